"""An early end: the chief says after which step, all others hear of it, and stop there."""

from absl import flags
from tfdist.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('stop_after_evals_without_gain', 0, 'end when so many tests one after the '
                     'other, see --eval_every_secs, were no better than the best; 0: never',
                     lower_bound=0)
# By so many steps the end is ahead of the step at which it is decided. Workers that step together
# are at most one step apart: each hears of it in time, and none waits for one that has stopped.
_AHEAD = 10


class Board:
    """Where the last step is written, for all to read. It is in no checkpoint.

    Attributes:
      last_step: int64 scalar tensor, what is written there, or else a step that never comes.
    """

    def __init__(self, global_step, device=None):
        """Makes the ops.

        Args:
          global_step: int64 `tf.Variable`.
          device: string, where the board is; by default beside the global step.
        """
        with tf.device(device or global_step.device):
            key = tf.constant(0, tf.int64)
            # A table, since nobody has to initialize it: what is not there has a default.
            board = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64,
                                                  shared_name='last_step')
            self.last_step = tf.raw_ops.LookupTableFindV2(
                table_handle=board, keys=key, default_value=tf.constant(tf.int64.max, tf.int64))
            self._soon = global_step.read_value() + _AHEAD
            self._write = tf.raw_ops.LookupTableInsertV2(table_handle=board, keys=key,
                                                         values=self._soon)

    def write(self, session):
        """Writes a step that comes soon, in a `tf.Session`; returns it, an int."""
        return int(session.run([self._soon, self._write])[0])
