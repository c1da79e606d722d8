"""The entrance to a barrier: a chief that begins clears what is left, and then lets workers in."""

from tfdist.scheme import volatile_table
from tfdist.synchronous import accumulators
from tfdist.start.quiet import tf


class Entrance:
    """Lets workers into the steps that all make together, and lets the chief begin them afresh.

    When a chief dies, some variables may have its last push, and others not. When a ps dies, its
    parts of the pushes are lost, but the other ps still have theirs. Steps that went on from there
    would count pushes twice, or never be complete. So the chief begins a new epoch: what has been
    pushed is removed, what is still on its way is too old, and all push again.
    """

    def __init__(self, every, clock, release):
        """Makes the ops.

        Args:
          every: list of `tf.ConditionalAccumulatorBase` of the pushes.
          clock: `stamps.Clock`.
          release: function that returns a list of ops that let all workers go on in the new epoch
            that wait in the one before.
        """
        key = tf.constant(0, tf.int64)
        stamp = clock.read_next_epoch()
        devices = {each.accumulator_ref.device for each in every} | {stamp.device}
        tables = [volatile_table.VolatileTable('entrance', device, default=0)
                  for device in sorted(devices)]
        self._opened = [table.read(key) for table in tables]
        self._open = [table.write(key, key + 1) for table in tables]
        self._pushed, self._take = [], []
        for accumulator in every:
            with tf.device(accumulator.accumulator_ref.device):
                self._pushed.append(accumulator.num_accumulated())
                self._take.append(_take(accumulator))
        self._refuse_older = accumulators.refuse_older(every, stamp)
        with tf.control_dependencies(self._refuse_older):  # whoever begins now is not refused
            begin = clock.begin_epoch()
        with tf.control_dependencies([begin]):
            self._begin_epoch = [begin, *release()]

    def is_open(self, session):
        """Returns whether no ps was lost since a chief opened the entrance, in a `tf.Session`.

        While it is shut a worker would push in vain.
        """
        return all(session.run(self._opened))

    def open(self, session):
        """Begins a new epoch, and opens the entrance, in a `tf.Session`. Only the chief does."""
        session.run(self._refuse_older)
        pushed = session.run(self._pushed)
        session.run([take for take, number in zip(self._take, pushed) if number])
        session.run(self._begin_epoch)  # sets the accumulators' steps once more: taking adds one
        session.run(self._open)


def _take(accumulator):
    """Returns a tensor that empties an accumulator that is not empty."""
    if isinstance(accumulator, tf.SparseConditionalAccumulator):
        return accumulator.take_indexed_slices_grad(1).values
    return accumulator.take_grad(1)
