"""Lives of workers, as processes in virtual time: one class for each kind of scheme.

The parts of a scheme tell its kind. `sums` make a ring, `complete` a barrier, and a `gate` holds
workers back; a source of batches may give out tickets, or name a kind of its own, as in `turns`.
Where rounds at a barrier end with a pull, workers compute while all of that is under way.
The workers of all other schemes pull, compute and push as soon as they are ready.
"""

import math
import sys

import numpy as np
from tfdist.scheme import schedule
from clock import Signal
import links
from processors import Processors
from rounds import Piece


def kind_of(player):
    """Returns the class of the workers' lives for the scheme of a `player.Player`."""
    if hasattr(player.source, 'life'):
        return player.source.life
    if player.scheme.sums:
        return InARing
    if player.scheme.complete is not None:
        ends_with_a_pull = isinstance(player.scheme.exchanges[-1], schedule.Pull)
        return Meanwhile if ends_with_a_pull else Together
    if player.scheme.gate:
        return Held
    return WithTickets if hasattr(player.source, 'take') else Life


class Life:
    """A worker that waits for no other one: it pulls, computes, pushes, and begins again.

    A round may have more than these three pieces. Then a worker goes on after a push when it has
    heard that the push is done.

    Attributes:
      together: bool, whether all workers make each update together.
      stages: int, how many a round's exchange with the ps has, see `processors`.
      travels: `links.Star`, or `links.Ring`.
      processors: `processors.Processors`.
      step: int, the global step.
    """

    network, together, stages = links.Star, False, 5

    def __init__(self, clock, cluster, player, record, delays, seed):
        """Takes the parts.

        Args:
          clock: `clock.Clock`.
          cluster: `description.Cluster`.
          player: `player.Player`.
          record: `record.Record`.
          delays: list of floats by worker, seconds that it wastes in each local step.
          seed: int, of the random times.
        """
        self._clock, self._cluster, self._player, self._record = clock, cluster, player, record
        self._delays = delays
        self._computes = [
            cluster.steps_of(worker).ahead(np.random.RandomState([seed % 2 ** 32, worker]))
            for worker in range(cluster.workers)]
        self._leaving, self.step = set(), 0
        scale = cluster.parameters / player.parameters if cluster.parameters else 1
        self.travels = self.network(clock, cluster, scale, seed)
        self.processors = Processors(clock, cluster, self.stages)
        does = {'pulls': self._pull, 'computes': self._compute, 'pushes': self._push,
                'waits': self._follow}
        self._pieces = [[(piece, does[piece.what]) for piece in pieces]
                        for pieces in player.pieces]

    def of(self, worker):
        """The life of a worker, a process: from when it comes until it leaves."""
        clock, phase = self._clock, self._record.phase
        self._leaving.discard(worker)
        yield from self._begin(worker)
        self._record.may_test(worker)
        while worker not in self._leaving:
            began = clock.now
            yield from self._enter(worker)
            phase(worker, 'waits', began, clock.now)
            yield from self._round(worker)
            self._record.may_test(worker)
        self.lose(worker)

    def _begin(self, worker):
        """A process that ends when a worker may begin its first round: at once."""
        self._player.begin(worker)
        yield from ()

    def _round(self, worker):
        """A process: a worker makes a round, in the pieces of its kind."""
        if self._overlaps(worker):
            yield from self._exchange_and_compute(worker)
            return
        clock, phase, one = self._clock, self._record.phase, None
        for number in range(len(self._pieces[0])):
            # It knows which kind it is when it has pulled, and all kinds begin with that.
            piece, process = self._pieces[one.kind.number if one else 0][number]
            began = clock.now
            one = (yield from process(worker, one, piece)) or one
            phase(worker, piece.what, began, clock.now)

    def _overlaps(self, worker):
        """Returns whether a worker exchanges and computes at the same time.

        On shared processors it has one thread. While that computes it can do nothing else; while it
        sleeps, what was asked for can arrive.
        """
        return self._player.overlaps and (not self._cluster.cores or self._delays[worker] > 0)

    def _exchange_and_compute(self, worker):
        """A process: pulls during the first local step, and pushes during the others.

        The first gradient is taken where the worker is before the exchange, and needs no pull.
        """
        clock, phase, began = self._clock, self._record.phase, self._clock.now
        _, piece, *_ = self._player.pieces[0]
        first = self.processors.computation(self._computes[worker](1)) + self._delays[worker]
        one = yield from self._pull(worker, None, piece)
        pulled = clock.now
        # Shared processors are asked for the other local steps now, even if the first one goes on.
        others = self._when_computed(worker, piece.local_steps - 1) - pulled
        ready = max(first, pulled)  # for the second local step
        if self._cluster.cores:
            yield ready  # its one thread sends between local steps only
        yield from self._push(worker, one, piece._replace(local_steps=0))
        yield from self._follow(worker, one, piece)
        computed = ready + others
        yield computed
        self._record.local_steps += piece.local_steps
        if pulled > first:
            phase(worker, 'computes', began, first)
            phase(worker, 'pulls', first, pulled)
            began = pulled
        phase(worker, 'computes', began, computed)
        phase(worker, 'pushes', computed, clock.now)

    def _enter(self, worker):
        """A process that ends when a worker may begin its round: at once."""
        yield from ()

    def _pull(self, worker, one, piece):
        """A process: asks the ps, and receives what they answer.

        Args:
          worker: int.
          one: `rounds.Round` to go on with, or None.
          piece: `rounds.Piece`.

        Returns:
          `rounds.Round`.
        """
        yield self.processors.stage()
        yield self.travels.latency(worker)
        yield self.processors.stage()
        # The values are read now, and the computation needs nothing else.
        one = self._player.compute(worker, one, piece.number)
        yield from self.travels.to_worker(worker, one.pull_bytes)
        return one

    def _compute(self, worker, one, piece):
        """A process that ends when the local steps of a piece are computed; see `_pull`."""
        yield self._when_computed(worker, piece.local_steps)

    def _when_computed(self, worker, local_steps):
        """Returns when a worker has received its pull and computed a number of local steps."""
        computes = self._computes[worker](local_steps)
        return self.processors.stage(computes) + self._delays[worker] * local_steps

    def _push(self, worker, one, piece):
        """Pushes, and waits for the answer of the ps, a process; see `_pull`."""
        yield from self.travels.to_ps(worker, one.push_bytes(piece.number))
        yield self.processors.stage()
        self._arrive(worker, one, piece)
        yield self.travels.latency(worker)

    def _arrive(self, worker, one, piece):
        """Updates the center with what a worker pushes."""
        pushed = self._player.push(worker, one, piece.number)
        self.step = int(pushed.pop('global_step'))
        # The figures of the batches are those of a whole round.
        figures = one.figures if piece.number == self._player.pushes - 1 else {}
        self._record.add(dict(figures, **pushed), piece.local_steps)
        self._record.reach(self.step)

    def _follow(self, worker, one, piece):
        """A process that ends when a worker has heard that its push is done."""
        yield self.processors.stage()

    def leave(self, worker):
        """Has a worker leave when its round is over."""
        self._leaving.add(worker)

    def lose(self, worker):
        """Called when a worker has left, or when it is known to be dead."""

    def patience(self):
        """Returns the seconds after which a dead worker is known to be dead."""
        return 0.

    def stands(self):
        """Returns why nothing happens any more, a string."""
        return 'no worker is left'


class Held(Life):
    """A worker that is held at a gate while it is too far ahead of the slowest."""

    stages = 7  # the look at the gate is a run of its own: a question to the ps and the answer

    def __init__(self, *args):
        super().__init__(*args)
        self._moved, self._slowest = Signal(self._clock), None

    def _enter(self, worker):
        yield self.processors.stage()
        yield self.travels.latency(worker)  # it asks for the clocks
        while self._player.scheme.gate.holds(self._player.clocks(), worker).any():
            yield self._moved
        yield self.travels.latency(worker)
        yield self.processors.stage()

    def _arrive(self, worker, one, piece):
        super()._arrive(worker, one, piece)
        if self._moved.waiting:
            slowest = self._player.clocks().min()
            if slowest != self._slowest:  # all of them wait for this one
                self._slowest = slowest
                self._moved.fire()

    def lose(self, worker):
        self._player.leave(worker)
        self._moved.fire()

    def patience(self):
        return self._player.hparams.dead_after_secs

    def stands(self):
        return f'{len(self._moved.waiting)} workers wait at the gate'


class Together(Life):
    """Workers that make each step together: enough pushes complete it, late ones are dropped."""

    together = True

    def __init__(self, *args):
        super().__init__(*args)
        self._needed = self._player.hparams.replicas_to_aggregate or self._cluster.workers
        self._pushes, self._voted, self._completed = 0, {}, Signal(self._clock)
        self._has_backups = self._needed < self._cluster.workers
        if self._has_backups:
            # Steps that are still to be completed: number and sizes.
            self._summed, self._enough = [], Signal(self._clock)
            self._clock.start(self._complete_steps())

    def _push(self, worker, one, piece):
        """A process that ends when a push has arrived; a token answers it, see `_follow`."""
        yield from self.travels.to_ps(worker, one.push_bytes(piece.number), one.kind.share)
        yield self.processors.stage()
        self._arrive(worker, one, piece)

    def _arrive(self, worker, one, piece):
        # A worker that came back and had pushed in this step before it died counts only once.
        again = self._voted.get(worker) == one.step
        pushed = self._player.push(worker, one, stamp=-1 if again else one.step)
        self._voted[worker] = one.step
        self._note(worker, one, piece, pushed)
        if not pushed['dropped']:
            self._pushes += 1
            if self._pushes == self._needed:
                self._pushes = 0
                self._sum_up(one)

    def _note(self, worker, one, piece, pushed):
        """Records a push, whose own figures are the dict `pushed`."""
        self._record.add(dict(one.figures, **pushed), piece.local_steps)

    def _sum_up(self, one):
        """Completes a step after enough pushes, of which `one` is the last."""
        # The ps take the sums at once, so a push that comes now is late. For the workers the step
        # is complete when the update is made.
        summed = self._player.complete(one.step), one.push_bytes(), one.kind.share
        if self._has_backups:
            self._summed.append(summed)
            self._enough.fire()
        else:
            self._clock.start(self._complete(*summed))

    def _complete(self, step, sizes, share):
        """A process: completes a step, after which all workers go on."""
        yield self.travels.update([0, *sizes], share)
        self.step = step
        self._record.reach(step)
        self._completed.fire()

    def _complete_steps(self):
        """A process: what the chief does besides its own steps if there are backup workers.

        It asks the ps to complete each step and waits for the answer, in a round of its own.
        """
        while True:
            yield self.processors.stage()
            yield self.travels.latency(0)
            while not self._summed:
                yield self._enough
            yield from self._complete(*self._summed.pop(0))
            yield self.travels.latency(0)
            yield self.processors.stage()

    def _follow(self, worker, one, piece):
        # Its run waits for its token on the ps, so the answer leaves when there is one.
        if self.step == one.step:
            yield self._completed
        yield self.travels.latency(worker)
        yield from super()._follow(worker, one, piece)

    def stands(self):
        return f'{self._pushes} workers have pushed in this step, which takes {self._needed}'


class Meanwhile(Together):
    """Workers that make each step together, and compute while their exchange is under way.

    In a round a worker makes local steps, pushes, and makes others meanwhile. When these are over,
    and the answer has come, it takes over what the step has made of the center. It begins with a
    pull of all of the center, and with such local steps.
    """

    stages = 3  # it computes; the ps receive its push; it receives what comes of that

    def __init__(self, *args):
        super().__init__(*args)
        _, push, pull = self._player.scheme.exchanges
        self._piece = Piece('pushes', 0, pull.after)  # of a round, by which it is counted
        self._before, self._beside = push.after, pull.after - push.after
        self._made = 0  # the global step that the sums so far have made
        # By worker: what has come of a step that is not made, and rounds that have its result.
        self._come, self._merged = {}, {}

    def _begin(self, worker):
        clock, phase, began = self._clock, self._record.phase, self._clock.now
        self._merged.pop(worker, None)
        if worker in self._come:  # from its earlier life: it counts, and nothing follows from it
            _, pushed = self._come.pop(worker)
            self._record.add(pushed, self._piece.local_steps)
        yield self.processors.stage()
        yield self.travels.latency(worker)
        yield self.processors.stage()
        yield from self.travels.to_worker(worker, self._player.begin(worker))
        phase(worker, 'pulls', began, clock.now)
        began = clock.now
        yield self._when_computed(worker, self._beside)
        phase(worker, 'computes', began, clock.now)

    def _round(self, worker):
        clock, phase, began = self._clock, self._record.phase, self._clock.now
        one = self._player.compute(worker)  # it goes on from values of its own
        yield self._when_computed(worker, self._before)
        phase(worker, 'computes', began, clock.now)
        began = clock.now
        computed = self.processors.computation(self._computes[worker](self._beside))
        computed += self._delays[worker] * self._beside
        yield from self._push(worker, one, self._piece)
        ends = [('pushes', clock.now)]
        if self.step == one.step:
            yield self._completed
        ends.append(('waits', clock.now))
        # The ps have the token wait, and then read: the worker asked for both before.
        yield from self.travels.to_worker(worker, self._merged.pop(worker).pull_bytes)
        yield self.processors.stage()
        ends.append(('pulls', clock.now))
        yield computed
        phase(worker, 'computes', began, computed)
        for what, end in ends:  # as far as it takes longer than the local steps
            phase(worker, what, computed, max(computed, end))
            computed = max(computed, end)

    def _note(self, worker, one, piece, pushed):
        self._come[worker] = one, pushed

    def _sum_up(self, one):
        super()._sum_up(one)
        self._made = one.step + 1

    def _arrive(self, worker, one, piece):
        super()._arrive(worker, one, piece)
        if one.step < self._made:
            self._merge()

    def _merge(self):
        """Has those who have pushed take over what the step has made of the center.

        They hear of it later. But nothing else changes that before, and so the figures of the whole
        round are there when the step is tested.
        """
        come, self._come = self._come, {}
        # All are asked for before the first result is used, so that threads share them.
        merged = {worker: self._player.compute(worker, one, 1) for worker, (one, _) in come.items()}
        for worker, one in merged.items():
            _, pushed = come[worker]
            self._record.add(dict(one.figures, **pushed), self._piece.local_steps)
        self._merged.update(merged)


class InARing(Life):
    """Workers that sum up their pushes around a ring. All have the same center.

    Where what they push cannot be added on the way, each gets what all have pushed.
    """

    network, together, stages = links.Ring, True, 1

    def __init__(self, *args):
        super().__init__(*args)
        self.travels.asks = self._player.scheme.asks_for_sums
        self._gathers = self._player.scheme.gathered is not None
        self._there, self._sums, self._whole = 0, None, Signal(self._clock)
        self._rounds = {}  # by worker, where they gather
        if self._cluster.workers == 1:  # it exchanges nothing
            self.processors = Processors(self._clock, self._cluster, math.inf)

    def _pull(self, worker, one, piece):
        yield from ()  # each worker has the center itself
        return self._player.compute(worker)

    def _push(self, worker, one, piece):
        yield from ()  # one push, with the sums, is for all workers
        self._record.add(one.figures, piece.local_steps)
        self._there += 1
        if self._gathers:
            self._rounds[worker] = one
        else:
            pushed, = one.pushed
            self._sums = ([mine + sum_ for mine, sum_ in zip(pushed, self._sums)]
                          if self._sums else pushed)
        if self._there == self._cluster.workers:
            travel = self.travels.gather if self._gathers else self.travels.sum
            hop = self.processors.hop(self._cluster.workers)
            self._clock.at(travel(one.push_bytes(), hop), lambda: self._step(one))

    def _step(self, one):
        """Makes the step of all workers, with the sums."""
        if self._gathers:
            rounds = [self._rounds.pop(worker) for worker in range(self._cluster.workers)]
            figures = self._player.push_gathered(rounds)
        else:
            figures = self._player.push(0, one, sums=self._sums)
        self.step = int(figures['global_step'])
        self._there, self._sums = 0, None
        self._record.reach(self.step)
        self._whole.fire()

    def _follow(self, worker, one, piece):
        if self.step == one.step:
            yield self._whole

    def lose(self, worker):
        sys.exit(f'Worker {worker} is lost at {self._clock.now:.3g} s: a ring cannot go on without '
                 'it.')

    def stands(self):
        return f'{self._there} of {self._cluster.workers} workers have come to the ring'


class WithTickets(Life):
    """A worker that takes the next ticket, a piece of the data, as soon as it is ready."""

    def of(self, worker):
        self._player.source.begin(worker)
        yield from super().of(worker)

    def _enter(self, worker):
        if self._player.source.is_empty(worker):
            yield self.travels.latency(worker)
            self._player.source.take(worker)
            yield self.travels.latency(worker)
