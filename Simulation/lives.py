"""Lives of workers, as processes in virtual time: one class for each kind of scheme.

The parts of a scheme tell its kind. `sums` make a ring, `complete` a barrier, and a `gate` holds
workers back; a source of batches may give out tickets, or name a kind of its own, as in `turns`.
The workers of all other schemes pull, compute and push as soon as they are ready.
"""

import math
import sys

import numpy as np
from clock import Signal
import links
from processors import Processors

_OVERLAPS = 'overlaps'  # a worker pushes, and computes meanwhile


def kind_of(player):
    """Returns the class of the workers' lives for the scheme of a `player.Player`."""
    if hasattr(player.source, 'life'):
        return player.source.life
    if player.scheme.sums:
        return InARing
    if player.scheme.complete is not None:
        return Together
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
        self.travels = self.network(clock, cluster, scale)
        self.processors = Processors(clock, cluster, self.stages)
        does = {'pulls': self._pull, 'computes': self._compute, 'pushes': self._push,
                'waits': self._follow, _OVERLAPS: self._push_and_compute}
        pieces = player.pieces
        # On shared processors a worker has one thread, which cannot send while it computes.
        if player.pushes_first and not cluster.cores:
            pull, compute, *_ = player.pieces
            pieces = [pull, compute._replace(what=_OVERLAPS)]
        self._pieces = [(piece, does[piece.what]) for piece in pieces]

    def of(self, worker):
        """The life of a worker, a process: from when it comes until it leaves."""
        clock, phase = self._clock, self._record.phase
        self._leaving.discard(worker)
        self._player.begin(worker)
        while worker not in self._leaving:
            began, one = clock.now, None
            yield from self._enter(worker)
            phase(worker, 'waits', began, clock.now)
            for piece, process in self._pieces:
                began = clock.now
                one = (yield from process(worker, one, piece)) or one
                if piece.what != _OVERLAPS:  # which are two phases
                    phase(worker, piece.what, began, clock.now)
        self.lose(worker)

    def _push_and_compute(self, worker, one, piece):
        """A process: pushes while the local steps of a piece are computed; see `_pull`."""
        began, computed = self._clock.now, self._when_computed(worker, piece)
        yield from self._push(worker, one, piece._replace(local_steps=0))
        yield from self._follow(worker, one, piece)
        yield computed
        self._record.local_steps += piece.local_steps
        self._record.phase(worker, 'computes', began, computed)
        self._record.phase(worker, 'pushes', computed, self._clock.now)

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
        yield self._when_computed(worker, piece)

    def _when_computed(self, worker, piece):
        """Returns when a worker has received its pull and computed a piece's local steps."""
        computes = self._computes[worker](piece.local_steps)
        return self.processors.stage(computes) + self._delays[worker] * piece.local_steps

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
        yield from self.travels.to_ps(worker, one.push_bytes(piece.number))
        yield self.processors.stage()
        self._arrive(worker, one, piece)

    def _arrive(self, worker, one, piece):
        # A worker that came back and had pushed in this step before it died counts only once.
        again = self._voted.get(worker) == one.step
        pushed = self._player.push(worker, one, stamp=-1 if again else one.step)
        self._voted[worker] = one.step
        self._record.add(dict(one.figures, **pushed), piece.local_steps)
        if not pushed['dropped']:
            self._pushes += 1
            if self._pushes == self._needed:
                # The ps take the sums at once, so a push that comes now is late. For the workers
                # the step is complete when the update is made.
                summed, self._pushes = (self._player.complete(), one.push_bytes()), 0
                if self._has_backups:
                    self._summed.append(summed)
                    self._enough.fire()
                else:
                    self._clock.start(self._complete(*summed))

    def _complete(self, step, sizes):
        """A process: completes a step, after which all workers go on."""
        yield self.travels.update([0, *sizes])
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


class InARing(Life):
    """Workers that sum up their pushes around a ring. All have the same center."""

    network, together, stages = links.Ring, True, 1

    def __init__(self, *args):
        super().__init__(*args)
        self.travels.asks = self._player.scheme.asks_for_sums
        self._there, self._sums, self._whole = 0, None, Signal(self._clock)
        if self._cluster.workers == 1:  # it exchanges nothing
            self.processors = Processors(self._clock, self._cluster, math.inf)

    def _pull(self, worker, one, piece):
        yield from ()  # each worker has the center itself
        return self._player.compute(worker)

    def _push(self, worker, one, piece):
        yield from ()  # one push, with the sums, is for all workers
        self._record.add(one.figures, piece.local_steps)
        self._there += 1
        pushed, = one.pushed
        self._sums = ([mine + sum_ for mine, sum_ in zip(pushed, self._sums)]
                      if self._sums else pushed)
        if self._there == self._cluster.workers:
            hop = self.processors.hop(self._cluster.workers)
            self._clock.at(self.travels.sum(one.push_bytes(), hop), lambda: self._step(one))

    def _step(self, one):
        """Makes the step of all workers, with the sums."""
        self.step = int(self._player.push(0, one, sums=self._sums)['global_step'])
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
