"""An early end: the chief says after which step, all others hear of it, and stop there."""

from absl import flags
from tfdist import ledger
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
        device = device or global_step.device
        board = ledger.Ledger('last_step', device, default=tf.int64.max)
        with tf.device(device):
            key = tf.constant(0, tf.int64)
            self.last_step = board.read(key)
            self._soon = global_step.read_value() + _AHEAD
            self._write = board.write(key, self._soon)

    def write(self, session):
        """Writes a step that comes soon, in a `tf.Session`; returns it, an int."""
        return int(session.run([self._soon, self._write])[0])
