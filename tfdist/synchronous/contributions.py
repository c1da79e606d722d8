"""Keeps exact account of whose pushes count in a step that may be complete without some."""

from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf


class Contributions:
    """Records which workers contributed to a step, on the device of the scope.

    A worker notes its contribution as the last part of its push, and the notes are taken before all
    other parts. So if a push is noted, its other parts have arrived, and are in the mean.

    Attributes:
      accumulator: `tf.ConditionalAccumulator` of the notes.
      count: float32 scalar tensor, the number of contributions to the step that is taken.
      workers: bool [workers] tensor, who contributed to it.
    """

    def __init__(self, me, stamp, num_workers, number):
        """Makes the ops.

        Args:
          me: int64 scalar tensor, the index of this worker.
          stamp: int64 scalar tensor, that of its push.
          num_workers: int, the number of workers.
          number: int, the number of contributions that make a step.
        """
        self._me, self._stamp, self._num_workers = me, stamp, num_workers
        self._in_step = volatile_table.VolatileTable('contributed', stamp.device,
                                                     default=-2)  # no stamp is -2
        self.accumulator = tf.ConditionalAccumulator(
            tf.float32, [num_workers], shared_name='contributions', reduction_type='SUM')
        self._taken = self.accumulator.take_grad(number)
        self.count = tf.reduce_sum(self._taken)
        self.workers = tf.greater(self._taken, 0)

    def note(self):
        """Returns an op that notes this worker's contribution."""
        return self.accumulator.apply_grad(tf.one_hot(self._me, self._num_workers), self._stamp)

    def publish(self, stamp):
        """Returns an op after which all can read who contributed to the step before `stamp`."""
        contributors = tf.where(self.workers)[:, 0]
        return self._in_step.write(contributors, tf.fill(tf.shape(contributors), stamp - 1))

    def is_missing(self):
        """Returns a bool tensor: whether this push is missing from its step, which is complete."""
        return tf.not_equal(self._in_step.read(self._me), self._stamp)
