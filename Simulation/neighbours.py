"""Lives of workers that average their replicas with those of their neighbours, as in Gossip.

An exchange takes the messages that it takes in the folder. Over sockets, in AD-PSGD a replica
travels to the partner, and the half back; in D-PSGD a replica to each neighbour. Meanwhile a worker
computes.

Through TensorFlow's servers, in AD-PSGD the partner's server is asked to run it before the
step; it asks for the replica, and gets it; sends the half; hears that this was subtracted; and
answers. In D-PSGD each neighbour's server hears of the step, asks for the replica, gets it into its
queue, and says so.
"""

import collections
import math
import sys

from clock import Signal
import links
import lives
from processors import Processors


class _Neighbours(lives.Life):
    """A worker that steps with its own replica.

    All workers together make as many local steps as if each made --train_steps; a step of the
    record is one of each.
    """

    network, together = links.Mesh, True

    def __init__(self, clock, cluster, player, record, delays, seed):
        """See `lives.Life`; the player is a `replicas.Replicas`."""
        super().__init__(clock, cluster, player, record, delays, seed)
        if cluster.workers == 1:  # it exchanges nothing
            self.processors = Processors(clock, cluster, math.inf)
        self._seed, self._there = seed, {}  # by worker, each life is an object of its own
        player.there, player.say = self._there, record.remark

    def _when_stepped(self, worker):
        """Returns when a worker has computed a local step that begins now."""
        return self.processors.stage(self._computes[worker](1)) + self._delays[worker]

    def _step(self, worker, one, mixed=()):
        """Makes a worker's step, of a computation; see `replicas.Replicas.push`."""
        record, step = self._record, one.result()
        self._player.push(worker, step, mixed)
        record.add(step.figures, 1)
        self.step = record.local_steps // self._cluster.workers
        record.reach(self.step)
        if not record.goes_on():
            sent = self.travels.sent
            record.remark(f'sent {sent / 1e6:.4g} MB, {sent / record.local_steps / 1e3:.4g} kB in '
                          'a local step')


def kind_of(scheme, hparams):
    """Returns the class of a worker's life, by a folder's scheme and its hyperparameters."""
    if hparams.algorithm == 'd-psgd':
        return InStep
    return InPairs if scheme.asks_for_sums else Visiting


class Visiting(_Neighbours):
    """A worker of AD-PSGD: it exchanges with a neighbour while it computes, and waits for no other.

    A neighbour that has died is left out at once, and taken in again when it has its values.
    """

    stages = 2  # half is added; it computes

    def of(self, worker):
        topology, player = self._player.topology, self._player
        self._leaving.discard(worker)
        yield from self._begin(worker)
        partners = topology.partners_of(worker, self._cluster.workers, player.hparams.roles)
        draw, self._there[worker] = topology.Draw(self._seed, worker), object()
        try:
            yield from self._after_all_that_begin_now()
            while worker not in self._leaving:
                one = yield from self._meet_and_compute(worker, partners, draw)
                self._step(worker, one)
        finally:  # also if it is killed
            del self._there[worker]
        self.lose(worker)

    def _begin(self, worker):
        """A process: a worker gets the first values of all, or if others train, those of one."""
        if not self._there or not self._record.local_steps:
            self._player.begin(worker)
            return
        source, began = min(self._there), self._clock.now
        yield self.travels.latency(worker, source)
        values = self._player.values(source)
        yield from self.travels.to(source, worker, [value.nbytes for value in values])
        self._player.begin(worker, values)
        self._record.phase(worker, 'pulls', began, self._clock.now)

    def _after_all_that_begin_now(self):
        """A process that ends when those that begin at the same time have their values, too."""
        begun = Signal(self._clock)

        def fire():
            begun.fire()
            yield from ()

        self._clock.start(fire())
        yield begun

    def _meet_and_compute(self, worker, partners, draw):
        """A process: a worker exchanges and computes a step; see `_exchange`.

        Returns:
          `gathering.Computation` of the step.
        """
        began, seen = self._clock.now, self._player.look(worker)
        one, stepped = self._player.compute(worker, seen), self._when_stepped(worker)
        yield from self._exchange(worker, partners, draw)
        self._record.phase(worker, 'computes', began, stepped)
        if stepped > self._clock.now:
            yield stepped
        self._record.phase(worker, 'pulls', stepped, self._clock.now)
        return one

    def _exchange(self, worker, partners, draw):
        """A process: a worker exchanges with a partner that answers, if there is one.

        Args:
          worker: int.
          partners: sorted list of ints.
          draw: `topology.Draw` of the folder.

        Returns:
          What the worker has seen before the exchange, see `replicas.Replicas.look`.
        """
        there = [each for each in partners if each in self._there]
        while there:
            partner, began = draw(there), self._clock.now
            seen = yield from self._meet(worker, partner, self._there.get(partner))
            if seen:
                return seen
            yield self.travels.latency(worker, partner)  # it hears that the partner is lost
            self._record.phase(worker, 'waits', began, self._clock.now)
            there.remove(partner)
        return self._player.look(worker)

    def _meet(self, worker, partner, life):
        """A process: an exchange with a partner; see `_exchange`.

        Args:
          worker: int.
          partner: int.
          life: object, which one of the partner's lives this is; None: it is lost.

        Returns:
          As `_exchange`; None if the partner is lost before its replica has changed.
        """
        player, travels = self._player, self.travels
        if not life:
            return None
        seen = player.look(worker)
        replica = player.replica(seen)
        sizes = [value.nbytes for value in replica]
        yield from travels.to(worker, partner, sizes)
        if self._there.get(partner) is not life:
            return None
        yield self.processors.stage()
        halves = player.add_half(partner, replica)
        yield from travels.to(partner, worker, sizes)
        player.subtract(worker, halves)
        return seen


class InPairs(Visiting):
    """A worker of AD-PSGD that exchanges through the servers, and then computes."""

    stages = 5  # it asks; its replica is read; half is added; and subtracted; it computes

    def _meet_and_compute(self, worker, partners, draw):
        seen = yield from self._exchange(worker, partners, draw)
        began, one = self._clock.now, self._player.compute(worker, seen)
        yield self._when_stepped(worker)
        self._record.phase(worker, 'computes', began, self._clock.now)
        return one

    def _meet(self, worker, partner, life):
        player, travels, stage, began = (self._player, self.travels, self.processors.stage,
                                         self._clock.now)
        yield stage()
        yield travels.latency(worker, partner)
        if not life or self._there.get(partner) is not life:
            return None
        yield travels.latency(worker, partner)
        yield stage()
        seen = player.look(worker)
        replica = player.replica(seen)
        sizes = [value.nbytes for value in replica]
        yield from travels.to(worker, partner, sizes)
        if self._there.get(partner) is not life:
            return None
        yield stage()
        halves = player.add_half(partner, replica)
        self._record.phase(worker, 'pushes', began, self._clock.now)
        began = self._clock.now
        yield from travels.to(partner, worker, sizes)
        yield stage()
        player.subtract(worker, halves)
        yield travels.latency(worker, partner)
        yield travels.latency(worker, partner)
        self._record.phase(worker, 'pulls', began, self._clock.now)
        return seen


class InStep(_Neighbours):
    """A worker of D-PSGD: each of its steps waits for what its neighbours send in theirs."""

    stages = 1  # all of a step is one run

    def __init__(self, *args):
        super().__init__(*args)
        workers = range(self._cluster.workers)
        self._news = [Signal(self._clock) for _ in workers]
        self._sending = [0 for _ in workers]  # how many neighbours still have to say that they have
        self._inbox = [collections.defaultdict(collections.deque) for _ in workers]  # by sender

    def of(self, worker):
        self._leaving.discard(worker)
        self._player.begin(worker)
        self._there[worker] = object()
        neighbours = self._player.topology.neighbours_of(worker, self._cluster.workers)
        for _ in range(self._record.train_steps):
            if worker in self._leaving:
                self.lose(worker)
            yield from self._step_with(worker, neighbours)

    def _step_with(self, worker, neighbours):
        """A process: a worker sends its replica, computes, receives, and makes its step."""
        clock, phase, inbox, began = self._clock, self._record.phase, self._inbox[worker], (
            self._clock.now)
        seen = self._player.look(worker)
        one, replica = self._player.compute(worker, seen), self._player.replica(seen)
        self._sending[worker] = len(neighbours)
        for each in neighbours:
            clock.start(self._send(worker, each, replica))
        yield self._when_stepped(worker)
        phase(worker, 'computes', began, clock.now)
        began = clock.now
        while self._sending[worker]:
            yield self._news[worker]
        phase(worker, 'pushes', began, clock.now)
        began = clock.now
        while not all(inbox[each] for each in neighbours):
            yield self._news[worker]
        phase(worker, 'waits', began, clock.now)
        mixed = {each: inbox[each].popleft() for each in neighbours}
        mixed[worker] = replica
        self._step(worker, one, [mixed[each] for each in sorted(mixed)])

    def _send(self, worker, other, replica):
        """A process: a replica travels to a neighbour, through the servers into its queue.

        The queue is never full: a worker that is a step ahead has what the neighbour has sent in
        its last one, and so the neighbour has begun that, and taken what was in the queue.
        """
        travels, asks = self.travels, self._player.scheme.asks_for_sums
        if not asks:  # it has sent when the system has it
            self._sending[worker] -= 1
        for _ in range(2 * asks):
            yield travels.latency(worker, other)
        yield from travels.to(worker, other, [value.nbytes for value in replica])
        self._inbox[other][worker].append(replica)
        self._news[other].fire()
        if asks:
            yield travels.latency(worker, other)
            self._sending[worker] -= 1
            self._news[worker].fire()

    def lose(self, worker):
        sys.exit(f'Worker {worker} is lost at {self._clock.now:.3g} s: with --algorithm=d-psgd '
                 'nobody goes on without a neighbour.')
