"""How workers live, as processes in virtual time: one class for each kind of scheme.

Which one it is, a scheme shows: sums make a ring, what completes a step for all is a barrier, a
gate holds workers, and where the batches come from there may be tickets. All others pull, compute
and push whenever they are ready.
"""

import functools
import math
import sys

from clock import Signal
import links
import numpy as np
from processors import Processors


def kind_of(player):
    """Returns the class of the lives of a scheme's workers, of a `player.Player`."""
    if hasattr(player.scheme, 'sums'):
        return InARing
    if player.scheme.complete is not None:
        return Together
    if hasattr(player.scheme, 'gate'):
        return Held
    return WithTickets if hasattr(player.source, 'take') else Life


class Life:
    """A worker by itself: it pulls, computes, pushes, and begins again.

    A round may have more than these three pieces. Then a worker that has pushed goes on when it has
    heard of that.

    Attributes:
      together: bool, whether all workers make each update together.
      stages: int, of a round's exchange with the ps, see `processors`.
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
          seed: int, of the times that are drawn.
        """
        self._clock, self._cluster, self._player, self._record = clock, cluster, player, record
        self._delays = delays
        self._random = [np.random.RandomState([seed % 2 ** 32, worker])
                        for worker in range(cluster.workers)]
        self._leaving, self.step = set(), 0
        scale = cluster.parameters / player.parameters if cluster.parameters else 1
        self.travels = self.network(clock, cluster, scale)
        self.processors = Processors(clock, cluster, self.stages)
        self._does = {what: functools.partial(self._timed, what, process) for what, process in (
            ('pulls', self._pull), ('computes', self._compute), ('pushes', self._push),
            ('waits', self._follow))}
        self._does['overlaps'] = self._push_and_compute
        self._pieces = player.pieces
        # A worker of shared processors has one thread, and nothing leaves it while that computes.
        if player.pushes_first and not cluster.cores:
            pull, compute, *_ = player.pieces
            self._pieces = [pull, compute._replace(what='overlaps')]

    def of(self, worker):
        """A worker from when it comes to when it leaves, a process."""
        self._leaving.discard(worker)
        self._player.begin(worker)
        while worker not in self._leaving:
            yield from self._timed('waits', self._enter, worker)
            one = None
            for piece in self._pieces:
                one = (yield from self._does[piece.what](worker, one, piece)) or one
        self.lose(worker)

    def _timed(self, what, process, worker, *args):
        """Runs a process, and records from when to when a worker did what; returns its result."""
        began = self._clock.now
        result = yield from process(worker, *args)
        self._record.phase(worker, what, began, self._clock.now)
        return result

    def _push_and_compute(self, worker, one, piece):
        """Pushes while the local steps of a piece are made, a process; see `_pull`."""
        began, computed = self._clock.now, self._when_computed(worker, piece)
        yield from self._push(worker, one, piece._replace(local_steps=0))
        yield from self._follow(worker, one, piece)
        yield computed
        self._record.local_steps += piece.local_steps
        self._record.phase(worker, 'computes', began, computed)
        self._record.phase(worker, 'pushes', computed, self._clock.now)

    def _enter(self, worker):
        """Ends when a worker may begin its round, a process: at once."""
        yield from ()

    def _pull(self, worker, one, piece):
        """Asks the ps and brings what they answer, a process.

        Args:
          worker: int.
          one: `rounds.Round` that it goes on with, or None.
          piece: `rounds.Piece`.

        Returns:
          `rounds.Round`.
        """
        yield self.processors.stage()
        yield self.travels.latency(worker)
        yield self.processors.stage()
        # What is pulled by now is all that is needed to compute.
        one = self._player.compute(worker, one, piece.number)
        yield from self.travels.to_worker(worker, one.pull_bytes)
        return one

    def _compute(self, worker, one, piece):
        """Ends when the local steps of a piece are made, a process; see `_pull`."""
        yield self._when_computed(worker, piece)

    def _when_computed(self, worker, piece):
        """Returns when a worker has what the ps sent, and has made the local steps of a piece."""
        draw = self._cluster.of('step', worker).draw
        return (self.processors.stage(draw(self._random[worker], piece.local_steps))
                + self._delays[worker] * piece.local_steps)

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
        # Those of the batches are of a whole round.
        figures = one.figures if piece.number == self._player.pushes - 1 else {}
        self._record.add(dict(figures, **pushed), piece.local_steps)
        self._record.reach(self.step)

    def _follow(self, worker, one, piece):
        """Ends when a worker may go on after a push, a process: when it has heard of that."""
        yield self.processors.stage()

    def leave(self, worker):
        """Lets a worker leave when its round is over."""
        self._leaving.add(worker)

    def lose(self, worker):
        """Takes note that a worker has left, or that it is known to be dead."""

    def patience(self):
        """Returns how many seconds after its death it is known that a worker is dead."""
        return 0.

    def stands(self):
        """Returns why nobody goes on, a string, when nothing happens any more."""
        return 'no worker is left'


class Held(Life):
    """A worker that is held at a gate while it is too far ahead of the slowest."""

    stages = 7  # to look at the gate is a run by itself: it asks the ps, and hears from them

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
            if slowest != self._slowest:  # for this one all of them wait
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
    """Workers that take each step together: enough pushes complete it, who is late is dropped."""

    together = True

    def __init__(self, *args):
        super().__init__(*args)
        self._needed = self._player.hparams.replicas_to_aggregate or self._cluster.workers
        self._pushes, self._voted, self._completed = 0, {}, Signal(self._clock)
        self._has_backups = self._needed < self._cluster.workers
        if self._has_backups:
            # Of steps that are to be completed: number and sizes.
            self._summed, self._enough = [], Signal(self._clock)
            self._clock.start(self._complete_steps())

    def _arrive(self, worker, one, piece):
        # Who came back, and has pushed in this step in its earlier life, does not count again.
        again = self._voted.get(worker) == one.step
        pushed = self._player.push(worker, one, stamp=-1 if again else one.step)
        self._voted[worker] = one.step
        self._record.add(dict(one.figures, **pushed), piece.local_steps)
        if not pushed['dropped']:
            self._pushes += 1
            if self._pushes == self._needed:
                # The ps take the sums at once, and who comes now is late; to all others it is
                # complete when the update is made.
                summed, self._pushes = (self._player.complete(), one.push_bytes()), 0
                if self._has_backups:
                    self._summed.append(summed)
                    self._enough.fire()
                else:
                    self._clock.start(self._complete(*summed))

    def _complete(self, step, sizes):
        """Completes a step, a process: all go on with this one."""
        yield self.travels.update([0, *sizes])
        self.step = step
        self._record.reach(step)
        self._completed.fire()

    def _complete_steps(self):
        """What the chief does beside its own steps if there are backup workers, a process.

        For each step it asks the ps to complete it, and hears when it is, as a round by itself.
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
        if self.step == one.step:
            yield self._completed
            yield self.travels.latency(worker)
        yield from super()._follow(worker, one, piece)

    def stands(self):
        return f'{self._pushes} workers have pushed in this step, which takes {self._needed}'


class InARing(Life):
    """Workers that sum up around a ring what all of them push. All have the same center."""

    network, together, stages = links.Ring, True, 1

    def __init__(self, *args):
        super().__init__(*args)
        self._there, self._sums, self._whole = 0, None, Signal(self._clock)
        if self._cluster.workers == 1:  # it has nobody to exchange with
            self.processors = Processors(self._clock, self._cluster, math.inf)

    def _pull(self, worker, one, piece):
        yield from ()  # it has the center itself
        return self._player.compute(worker)

    def _push(self, worker, one, piece):
        yield from ()  # that is for all together
        self._record.add(one.figures, piece.local_steps)
        self._there += 1
        pushed, = one.pushed
        self._sums = ([mine + sum_ for mine, sum_ in zip(pushed, self._sums)]
                      if self._sums else pushed)
        if self._there == self._cluster.workers:
            hop = self.processors.hop(self._cluster.workers)
            self._clock.at(self.travels.sum(one.push_bytes(), hop), lambda: self._step(one))

    def _step(self, one):
        """Makes the step of all, with the sums."""
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
    """A worker that takes tickets, which say on what to train, as it is ready for the next."""

    def of(self, worker):
        self._player.source.begin(worker)
        yield from super().of(worker)

    def _enter(self, worker):
        if self._player.source.is_empty(worker):
            yield self.travels.latency(worker)
            self._player.source.take(worker)
            yield self.travels.latency(worker)
