"""The gate of a barrier: closed from the loss of a ps until the chief has cleared what is left."""

from tfdist import ledger
from tfdist.quiet import tf


class Gate:
    """Lets workers into the steps that all take together.

    A ps that dies takes with it what was pushed to it, while others still have the rest of it. Who
    came before that was cleared would be counted twice, or not at all.
    """

    def __init__(self, accumulators, global_step, afresh):
        """Makes the ops.

        Args:
          accumulators: list of `tf.ConditionalAccumulatorBase`, what is pushed.
          global_step: int64 `tf.Variable`, the step that they are to begin with.
          afresh: list of ops to run when nothing is in them any more.
        """
        key = tf.constant(0, tf.int64)
        devices = {each.accumulator_ref.device for each in accumulators} | {global_step.device}
        ledgers = [ledger.Ledger('gate', device, default=0) for device in sorted(devices)]
        self._opened = [of_device.read(key) for of_device in ledgers]
        self._open = [of_device.write(key, key + 1) for of_device in ledgers]
        self._pushed, self._take, self._afresh = [], [], list(afresh)
        for accumulator in accumulators:
            with tf.device(accumulator.accumulator_ref.device):
                self._pushed.append(accumulator.num_accumulated())
                self._take.append(_take(accumulator))
                self._afresh.append(accumulator.set_global_step(global_step))

    def is_open(self, session):
        """Returns whether no ps was lost since a chief opened it, in a `tf.Session`."""
        return all(session.run(self._opened))

    def open(self, session):
        """Opens it, if it is closed, in a `tf.Session`. For the chief."""
        if not self.is_open(session):
            pushed = session.run(self._pushed)
            session.run([take for take, number in zip(self._take, pushed) if number])
            session.run(self._afresh)
            session.run(self._open)


def _take(accumulator):
    """Returns a tensor, which empties an accumulator that has something."""
    if isinstance(accumulator, tf.SparseConditionalAccumulator):
        return accumulator.take_indexed_slices_grad(1).values
    return accumulator.take_grad(1)
