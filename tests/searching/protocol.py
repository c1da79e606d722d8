"""What all protocols have: tasks that are started, killed, lost and found dead, in a world."""

import contextlib
import json

from searching import machine as machines, world as worlds


class Protocol:
    """A protocol: who takes part, what may fail, and what must hold.

    Attributes:
      name: string.
      settings: list of dicts, the sizes in which it is played, small ones first.
      modules: list of modules in which the world takes the place of time and threads.
      may_be_killed, may_be_lost: bools, whether a task may be; lost is its machine, silently.
      only_faults: regular expression of the actions that may fail a task, or start it again.
      verbs: strings, the first words of other actions that may fail something, see `do`.
      most_lives: int, how often a task may be started, in all.
      workers: dict by setting of dicts of workers by task, as `make_worker` made them.
    """

    name = ''
    settings = [{}]
    modules = ()
    may_be_killed = may_be_lost = False
    only_faults, verbs = '', ()
    most_lives = 3

    def __init__(self):
        self._machines, self.workers = {}, {}

    def machine(self, setting):
        """Returns the `machine.Machine` of a setting, made once."""
        key = json.dumps(setting, sort_keys=True)
        if key not in self._machines:
            self._machines[key] = machines.Machine(self.graphs(setting))
        return self._machines[key]

    def graphs(self, setting):
        """Returns the graphs of a setting, a dict of `tf.Graph` by task."""
        made = self.workers[str(setting)] = {
            f'worker {i}': self.make_worker(i, setting) for i in range(setting['workers'])}
        return {task: worker.graph for task, worker in made.items()}

    def make_worker(self, task_index, setting):
        """Returns a worker of a setting, an object with the attribute `graph`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def world(self, setting):
        """A new world, at its beginning."""
        machine = self.machine(setting)
        machine.reset()
        world = worlds.World(machine, self)
        world.setting = setting
        with world.patched(*self.modules), self.more(world):
            yield world

    def more(self, world):
        """A context of a world, for what else has to be in another's place."""
        del world
        return contextlib.nullcontext()

    def tasks(self, world):
        """Returns the tasks, a list of strings."""
        return [f'worker {i}' for i in range(world.setting['workers'])]

    def begin(self, world):
        """Starts all tasks."""
        for task in self.tasks(world):
            self.start(world, task)

    def start(self, world, task):
        """Starts a task."""
        world.start(task, lambda process: self.body(world, process))

    def body(self, world, process):
        """What a task does."""
        raise NotImplementedError

    def faults(self, world):
        """Returns what may fail now, or be started again, a list of actions."""
        found = []
        for task, process in world.processes.items():
            if process.alive:
                found += [f'kill {task}'] * self.may_be_killed + [f'lose {task}'] * self.may_be_lost
            elif not process.is_done and process.life < self.most_lives:
                found.append(f'start {task}')
        return found + [f'cut {agent.name} off' for agent in world.agents if not agent.is_code]

    def do(self, world, verb, what):
        """Does an action of its own: one of `verbs`, and what it is done to."""
        raise NotImplementedError

    def calm(self, world):
        """Starts again what is dead, before all come to their end."""
        for task, process in list(world.processes.items()):
            if not process.alive and not process.is_done:
                self.start(world, task)

    def observe(self, world, agent, run, atom, given, made):
        """Is told of each atom that has run; raises `world.ViolationError`."""

    def left_behind(self, world, run):
        """Is told of each run that was cut off."""

    def gone(self, world, process):
        """Is told of each process that has ended, however it ended."""

    def at_the_end(self, world):
        """Checks what must hold when all have ended."""


def must(condition, kind, details=''):
    """Raises `world.ViolationError` unless a condition holds."""
    if not condition:
        raise worlds.ViolationError(kind, details)
