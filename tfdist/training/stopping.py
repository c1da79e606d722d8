"""An early end: the chief writes the last step, at which all workers stop."""

from absl import flags
from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('stop_after_evals_without_gain', 0, 'end when so many tests one after the '
                     'other, see --eval_every_secs, were no better than the best; 0: never',
                     lower_bound=0)
# The end comes this many steps after the decision. Workers that make each step together are at most
# one step apart, so that each hears of it in time, and none waits for one that has stopped.
_AHEAD = 10


class LastStep:
    """The last step, which all workers read. It is in no checkpoint.

    Attributes:
      value: int64 scalar tensor, the last step, or one that never comes if none was written.
    """

    def __init__(self, global_step, device=None):
        """Makes the ops on `device`, by default that of `global_step`, an int64 `tf.Variable`."""
        device = device or global_step.device
        board = volatile_table.VolatileTable('last_step', device, default=tf.int64.max)
        with tf.device(device):
            key = tf.constant(0, tf.int64)
            self.value = board.read(key)
            self._soon = global_step.read_value() + _AHEAD
            self._step = tf.placeholder_with_default(self._soon, [])
            self._write = board.write(key, self._step)

    def write(self, session, step=None):
        """Writes the last step, by default one that comes soon, if there is none yet.

        Some workers may have heard of the one that there is, before the chief that wrote it was
        started again.

        Args:
          session: `tf.Session`.
          step: int, or None.

        Returns:
          The last step, an int.
        """
        last_step = int(session.run(self.value))
        return last_step if last_step < tf.int64.max else int(session.run(
            [self._step, self._write], {} if step is None else {self._step: step})[0])
