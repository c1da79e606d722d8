"""Whose pushes have counted in a step, exactly, where it may be complete without some of them."""

from tfdist import ledger
from tfdist.quiet import tf


class Box:
    """Ballots, on the device of the scope: the last part of a push, and the first that is taken.

    So all other parts of a push whose ballot is taken have come before, and are in the mean.

    Attributes:
      accumulator: `tf.ConditionalAccumulator`, in which they are.
    """

    def __init__(self, me, stamp, num_workers):
        """Makes the box.

        Args:
          me: int64 scalar tensor, which worker this is.
          stamp: int64 scalar tensor, the step to which its push belongs.
          num_workers: int, how many there are.
        """
        self._me, self._stamp, self._num_workers = me, stamp, num_workers
        self._counted = ledger.Ledger('counted', stamp.device, default=-2)  # no stamp is -2
        self.accumulator = tf.ConditionalAccumulator(tf.float32, [num_workers],
                                                     shared_name='ballots', reduction_type='SUM')

    def vote(self):
        """Returns an op that gives this worker's ballot."""
        return self.accumulator.apply_grad(tf.one_hot(self._me, self._num_workers), self._stamp)

    def count(self, needed, step, takes):
        """Makes what counts the ballots.

        Args:
          needed: int, how many there have to be.
          step: int64 scalar tensor, the global step when a step is complete.
          takes: list of ops that take the other parts of the pushes.

        Returns:
          The tensor `step`, when it is written down for each worker whether it has counted.
        """
        ballots = self.accumulator.take_grad(needed)
        for op in takes:
            op._add_control_input(ballots.op)
        voters = tf.where(tf.greater(ballots, 0))[:, 0]
        counted = self._counted.write(voters, tf.fill(tf.shape(voters), step - 1))
        with tf.control_dependencies([counted]):
            return tf.identity(step)

    def has_not_counted(self):
        """Returns a bool tensor: whether the push has not, now that its step is complete."""
        return tf.not_equal(self._counted.read(self._me), self._stamp)
