"""Lives of workers that average their replicas with those of their neighbours, as in Gossip.

An exchange takes the messages that it takes in the folder. Over sockets, in AD-PSGD a replica
travels to the partner, and the half back; in D-PSGD a replica to each neighbour. Meanwhile a worker
computes. In SGP a share travels when it has.

Through TensorFlow's servers, in AD-PSGD the partner's server is asked to run it before the
step; it asks for the replica, and gets it; sends the half; hears that this was subtracted; and
answers. In D-PSGD each neighbour's server hears of the step, asks for the replica, gets it into its
queue, and says so. In SGP it is the same, but there is nothing to get before the worker has
computed.
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
        record.may_test(worker)
        if not record.goes_on():
            sent = self.travels.sent
            record.remark(f'sent {sent / 1e6:.4g} MB, {sent / record.local_steps / 1e3:.4g} kB in '
                          'a local step')


def kind_of(scheme, hparams):
    """Returns the class of a worker's life, by a folder's scheme and its hyperparameters."""
    if hparams.algorithm != 'ad-psgd':
        return InStep if hparams.algorithm == 'd-psgd' else InOneDirection
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
            self._record.may_test(worker)
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
        seen, replica, sizes = yield from self._bring(worker, partner)
        if self._there.get(partner) is not life:
            return None
        yield self.processors.stage()
        halves = player.add_half(partner, replica)
        yield from travels.to(partner, worker, sizes)
        player.subtract(worker, halves)
        return seen

    def _bring(self, worker, partner):
        """A process: a worker's replica travels to a partner.

        Returns:
          Triple of what the worker has seen, its replica, and the bytes of each part of that.
        """
        seen = self._player.look(worker)
        replica = self._player.replica(seen)
        sizes = [value.nbytes for value in replica]
        yield from self.travels.to(worker, partner, sizes)
        return seen, replica, sizes


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
        seen, replica, sizes = yield from self._bring(worker, partner)
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
        self._begun = [0 for _ in workers]  # steps: from then on what is sent for them is received

    def of(self, worker):
        self._leaving.discard(worker)
        self._player.begin(worker)
        self._there[worker] = object()
        self._record.may_test(worker)
        for number in range(self._record.train_steps):
            if worker in self._leaving:
                self.lose(worker)
            self._begun[worker] = number + 1
            self._news[worker].fire()
            yield from self._step_with(worker, number)

    def _step_with(self, worker, number):
        """A process: a worker sends its replica, computes, receives, and makes its step.

        Args:
          worker: int.
          number: int, of the step, 0 at first.
        """
        neighbours = self._player.topology.neighbours_of(worker, self._cluster.workers)
        began, seen = self._clock.now, self._player.look(worker)
        one, replica = self._player.compute(worker, seen), self._player.replica(seen)
        self._send_to(neighbours, worker, replica, began, number)
        yield self._when_stepped(worker)
        self._record.phase(worker, 'computes', began, self._clock.now)
        parts = yield from self._hear(worker, neighbours, replica)
        self._step(worker, one, parts)

    def _hear(self, worker, senders, own):
        """A process: a worker hears that what it has sent is there, and receives.

        Args:
          worker: int.
          senders: list of ints.
          own: list of arrays, its own part.

        Returns:
          List of its own part and those of the senders, in the order of the workers.
        """
        clock, phase, inbox = self._clock, self._record.phase, self._inbox[worker]
        began = clock.now
        while self._sending[worker]:
            yield self._news[worker]
        phase(worker, 'pushes', began, clock.now)
        began = clock.now
        while not all(inbox[each] for each in senders):
            yield self._news[worker]
        phase(worker, 'waits', began, clock.now)
        parts = {each: inbox[each].popleft() for each in senders}
        parts[worker] = own
        return [parts[each] for each in sorted(parts)]

    def _send_to(self, receivers, *args):
        """Begins to send to all of a list of receivers; see `_send`."""
        # Over sockets it has sent when the system has it.
        self._sending[args[0]] = len(receivers) * self._player.scheme.asks_for_sums
        for each in receivers:
            self._clock.start(self._send(each, *args))

    def _send(self, other, worker, sent, began, number, phases=1):
        """A process: a list of arrays travels into the queue of a neighbour, when there is room.

        In D-PSGD there always is: a worker that is a step ahead has what the neighbour has sent in
        its last one, and so the neighbour has begun that, and taken what was in the queue.

        Args:
          other: int, the neighbour.
          worker: int.
          sent: list of arrays.
          began: float, when the worker began its step: the neighbour hears of it, and asks.
          number: int, of the step.
          phases: int, after how many steps it sends to this neighbour again.
        """
        travels, clock, asks = self.travels, self._clock, self._player.scheme.asks_for_sums
        asked = began + 2 * asks * (travels.latency(worker, other) - clock.now)
        if asked > clock.now:
            yield asked
        yield from travels.to(worker, other, [value.nbytes for value in sent])
        while self._begun[other] < number + 1 - phases:
            yield self._news[other]
        self._inbox[other][worker].append(sent)
        self._news[other].fire()
        if asks:
            yield travels.latency(worker, other)
            self._sending[worker] -= 1
            self._news[worker].fire()

    def lose(self, worker):
        sys.exit(f'Worker {worker} is lost at {self._clock.now:.3g} s: with '
                 f'--algorithm={self._player.hparams.algorithm} nobody goes on without a '
                 'neighbour.')


class InOneDirection(InStep):
    """A worker of SGP: it makes its step, sends a share of what it has, and receives shares."""

    def _step_with(self, worker, number):
        """A process: a worker computes, steps, sends shares, and receives; see `InStep`."""
        player, shares, began = self._player, self._player.shares, self._clock.now
        phases = len(shares.receivers)
        receivers, senders = (by_phase[number % phases][worker]
                              for by_phase in (shares.receivers, shares.senders))
        one = player.compute(worker, player.look(worker))
        yield self._when_stepped(worker)
        self._record.phase(worker, 'computes', began, self._clock.now)
        share = player.share(worker, one.result(), len(receivers))
        self._send_to(receivers, worker, share, began, number, phases)
        parts = yield from self._hear(worker, senders, share)
        self._step(worker, one, [shares.total(parts)])
