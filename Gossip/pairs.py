"""AD-PSGD's exchange: two workers replace their replicas by the mean of both, as one action."""

import threading

from tfdist.scheme import transfer
from tfdist.start import console
from tfdist.start.quiet import tf
import others
import topology

_LOOK_EVERY_SECS = 1


def exchange(variables, before, worker, partner):
    """Makes the op of an exchange of two workers.

    With a and b the replicas of the two: before <- a; E <- (a - b) / 2; a <- a - E; b <- b + E.
    Both sides add. So whatever else changes a or b meanwhile, their sum does not change.

    The section is on the partner, and a worker never holds two. What the partner needs has arrived
    before it begins, and nothing in it waits for a network: so there is no deadlock.

    Args:
      variables: list of `tf.Variable`, of which each worker has its own.
      before: list of `tf.Variable` of `worker` alone, which keep its replica as it was.
      worker: int, who runs it.
      partner: int, the other one.
    """
    mine = [others.read(variable, worker) for variable in variables]
    here, there = ([others.handle_of(variable, place) for variable in variables]
                   for place in (worker, partner))
    with tf.device(others.device_of(partner)):
        arrived = [tf.identity(value) for value in transfer.to_worker(mine)]
        halves = add_half(there, arrived)
    with tf.device(others.device_of(worker)):
        subtracted = subtract(here, transfer.to_worker(halves))
    return tf.group(keep(variables, before, worker, mine), *subtracted)


def add_half(handles, arrived):
    """Makes the partner's side of an exchange: adds half of the difference to its replica.

    Args:
      handles: list of handles of the partner's variables.
      arrived: list of tensors, the replica of the other worker.

    Returns:
      List of tensors, the halves.
    """
    def add():
        halves = []
        for handle, value in zip(handles, arrived):
            now = tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
            halves.append((value - now) / 2)
        added = [tf.raw_ops.AssignAddVariableOp(resource=handle, value=half)
                 for handle, half in zip(handles, halves)]
        with tf.control_dependencies(added):
            return [tf.identity(half) for half in halves]

    with tf.control_dependencies(arrived):
        return tf.CriticalSection(shared_name='replica').execute(add)


def subtract(handles, halves):
    """Returns a list of ops, the other side of an exchange; see `add_half`."""
    return [tf.raw_ops.AssignSubVariableOp(resource=handle, value=half)
            for handle, half in zip(handles, halves)]


def keep(variables, before, worker, values=None):
    """Returns an op that keeps a worker's replica as it is: before <- a.

    Args:
      variables: see `exchange`.
      before: see `exchange`.
      worker: see `exchange`.
      values: list of tensors, the replica as read; by default it is read.
    """
    values = values or [others.read(variable, worker) for variable in variables]
    with tf.device(others.device_of(worker)):
        return tf.group(*[tf.raw_ops.AssignVariableOp(
            resource=others.handle_of(variable, worker), value=value)
            for variable, value in zip(before, values)])


class Partners:
    """With whom one worker can exchange: the base class of both implementations."""

    def __init__(self, workers, me, partners, seed):
        """Takes the workers.

        Args:
          workers: dict by index of `others.Worker`, of this worker and its partners.
          me: int, this worker.
          partners: list of ints.
          seed: int; with `me` it determines who is drawn.
        """
        self._workers, self._me, self._partners = workers, me, partners
        self._draw = topology.Draw(seed, me)
        self._there, self._lost, self._closed = set(), set(), threading.Event()

    def begin(self):
        """Looks for the partners once, and from then on in a thread, for those that are lost."""
        self._look()
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def with_one(self, exchange_with):
        """Exchanges with a partner that answers, drawn at random.

        Args:
          exchange_with: function of a partner, whose result is false if it does not answer.

        Returns:
          That result; None if no partner answers.
        """
        there = sorted(self._there)
        while there:
            partner = self._draw(there)
            result = exchange_with(partner)
            if result:
                return result
            there.remove(partner)
            self._there.discard(partner)
            self._say_lost(partner, self.silence(partner))
        return None

    def silence(self, partner):
        """Returns why a partner does not answer, a string."""
        return self._workers[partner].link.silence

    def reach(self, partner):
        """Is called when a partner is there again; returns whether it can be exchanged with."""
        del partner
        return True

    def _keep_looking(self):
        while not self._closed.wait(_LOOK_EVERY_SECS):
            self._look()

    def _look(self):
        """Looks for partners that are not there; one that starts anew has to have its values."""
        for partner in set(self._partners) - self._there:
            stage = self._workers[partner].stage()
            begun = stage is not None and others.BEGUN <= stage < others.CLOSED
            if stage is None or begun and not self.reach(partner):
                self._say_lost(partner, self.silence(partner))
            elif begun:
                self._there.add(partner)
                if partner in self._lost:
                    self._lost.discard(partner)
                    console.say(f'worker {self._me}', f'worker {partner} answers again')

    def _say_lost(self, partner, reason):
        if partner not in self._lost:
            self._lost.add(partner)
            console.say(f'worker {self._me}', f'worker {partner} does not answer ({reason}): this '
                        'worker goes on without it')

    def close(self):
        """Ends the exchanges that this worker starts."""
        self._closed.set()


class Pairs(Partners):
    """Exchanges through TensorFlow's servers, of which one worker starts each before its step.

    Attributes:
      ops: dict of ops by worker: an exchange with it; for this worker, to keep its replica.
    """

    def __init__(self, workers, me, partners, variables, before, seed, answer_secs):
        """Makes an op for each partner, in a graph of its own: each has a session of its own.

        Args:
          workers: see `Partners`.
          me: see `Partners`.
          partners: see `Partners`.
          variables: see `exchange`.
          before: see `exchange`.
          seed: see `Partners`.
          answer_secs: float, how long an exchange may take.
        """
        super().__init__(workers, me, partners, seed)
        self.ops, self._links = {}, {}
        for worker in [me, *partners]:
            with tf.Graph().as_default() as graph:
                self.ops[worker] = (
                    keep(variables, before, me) if worker == me else
                    exchange(variables, before, me, worker))
            self._links[worker] = others.Link(worker, workers[worker].target, graph,
                                              sorted({me, worker}), answer_secs)

    def exchange(self):
        """Exchanges with one of the partners that answer; alone, only keeps the replica."""
        if not self.with_one(self.exchange_with):
            self.exchange_with(self._me)

    def exchange_with(self, partner):
        """Exchanges with one partner, or with `me` only keeps; returns whether it has answered."""
        return self._links[partner].run([self.ops[partner]]) is not None

    def silence(self, partner):
        """See `Partners`."""
        return self._links[partner].silence or super().silence(partner)

    def close(self):
        """See `Partners`; closes its sessions."""
        super().close()
        for link in self._links.values():
            link.close()
