"""Schedules: drawn by a seed, played again, and made as short as they can be."""

import random

from searching import story, world as worlds

_MOST_LINES = 60
_LENGTHS = 5, 20, 60, 150, 300  # of a schedule, and of an agent's pause in it
_CALM = 0, 0, 50, 100, 200  # choices before the first fault


class Outcome:
    """What a schedule came to.

    Attributes:
      actions: list of strings, what was chosen, in order.
      failure: `world.ViolationError`, or None.
      events: list of pairs, see `story.tell`.
    """

    def __init__(self, actions, failure, events):
        self.actions, self.failure, self.events = actions, failure, events

    def story(self):
        """Returns lines that tell what happened; of an endless story, the beginning."""
        lines = story.tell(self.events)
        if len(lines) > _MOST_LINES:
            lines = lines[:_MOST_LINES // 2] + ['...']
        return lines + ([str(self.failure)] if self.failure else [])


class Drawn:
    """Draws what happens next, by a seed."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._calm = self._random.choice(_CALM)
        self._left = self._calm + self._random.choice(_LENGTHS)
        self._switches = self._random.choice([0.02, 0.1, 0.3, 1.])
        self._faults = self._random.choice([0., 0.01, 0.03, 0.1])
        self._restarts = self._random.choice([0.02, 0.3, 1.])
        # Half of the orders are of agents that are slow for a while, or stand still.
        self._slowness, self._changes, self._pauses = self._random.choice(
            [(1., 0, 0)] * 5
            + [(0.1, 0, 0), (0.01, 0, 0), (0.01, 0.02, 0), (1., 0, 0.02), (1., 0, 0.1)])
        self._speeds = {}  # by agent
        self._paused = {}  # by agent: how much is left when it may go on

    def next(self, world):
        """Returns the next action, or None at the end."""
        self._left -= 1
        if self._left < 0 or not world.agents and not world.faults():
            return None
        draw = self._random.random
        # What fails while somebody waits is what protocols are for; what fails before it has run
        # anything tells little.
        running = {agent.process.name for agent in world.agents if agent.run or agent.until}
        waiting = {agent.process.name for agent in world.agents
                   if agent.until or agent.run and agent.run.waiting}
        self._calm -= 1
        if self._calm < 0 and draw() < self._faults * (4 if waiting else 1 if running else 0.2):
            faults = [each for each in world.faults() if not each.startswith('start')]
            names = waiting if draw() < 0.5 else running if draw() < 0.8 else ()
            theirs = [each for each in faults if each.partition(' ')[2] in names]
            if faults:
                return self._random.choice(theirs or faults)
        if draw() < self._restarts:
            starts = [each for each in world.faults() if each.startswith('start')]
            if starts:
                return self._random.choice(starts)
        options = world.options()
        if not options:
            starts = [each for each in world.faults() if each.startswith('start')]
            return self._random.choice(starts) if starts and draw() < 0.5 else None
        options = [each for each in options
                   if self._paused.get(each.name, self._left) >= self._left] or options
        agent = world.last if world.last in options and draw() > self._switches else (
            self._random.choices(options, [self._speed(each) for each in options])[0])
        if draw() < self._changes:
            self._speeds.clear()
        if draw() < self._pauses:
            self._paused[agent.name] = self._left - self._random.choice(_LENGTHS)
        choices = len(agent.run.choices()) if agent.run else 1
        choice = self._random.randrange(choices) if draw() < self._switches else 0
        return f'{agent.name}.{choice}' if choice else agent.name

    def _speed(self, agent):
        return self._speeds.setdefault(agent.name, self._random.choice([1., self._slowness]))


class Given:
    """Plays a list of actions."""

    def __init__(self, actions):
        self._actions = iter(actions)

    def next(self, world):
        """Returns the next action that is possible, or None at the end."""
        for action in self._actions:
            if world.can(action):
                return action
        return None


def play(protocol, setting, chooser):
    """Plays a schedule, then lets all come to their end without faults.

    Args:
      protocol: the protocol, see `protocols`.
      setting: one of its settings.
      chooser: `Drawn` or `Given`.

    Returns:
      The `Outcome`.
    """
    actions, failure = [], None
    with protocol.world(setting) as world:
        try:
            protocol.begin(world)
            action = chooser.next(world)
            while action:
                actions.append(action)
                world.act(action)
                action = chooser.next(world)
            protocol.calm(world)
            world.settle()
            protocol.at_the_end(world)
        except worlds.ViolationError as error:
            failure = error
        except worlds.TooLongError:
            pass
        finally:
            world.close()
    return Outcome(actions, failure, world.story)


def shrink(protocol, setting, outcome, most=200):
    """Returns the outcome of the shortest schedule found that fails in the same way.

    Args:
      protocol: see `play`.
      setting: see `play`.
      outcome: `Outcome` of one that fails.
      most: int, how many schedules to try.
    """
    best, tried = outcome, 0
    size = len(best.actions)
    while size:
        at = len(best.actions)
        while at > 0 and tried < most:
            at -= size
            shorter = best.actions[:max(at, 0)] + best.actions[at + size:]
            tried += 1
            found = play(protocol, setting, Given(shorter))
            if (found.failure and found.failure.kind == outcome.failure.kind
                    and _cost(found) < _cost(best)):
                best = found
                at = min(at, len(best.actions))
        size //= 2
    return best


def _cost(outcome):
    """What is made small: the lines of the story first."""
    return len(outcome.story()), len(outcome.actions)
