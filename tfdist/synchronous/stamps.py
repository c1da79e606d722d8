"""Stamps: numbers that order the pushes and tokens of a barrier, by its epoch and by the step.

Each chief begins an epoch when it starts, and again after the loss of a ps. What was sent in the
epoch before is older than everything in the new one, even in the same step.
"""

import collections

from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf

STEPS = 2 ** 40  # in an epoch, more than any run makes
_EPOCH = _LIFE = 0  # keys of the tables


def step_of(stamp):
    """Returns the step that a stamp names; both are int64 tensors."""
    return tf.math.floormod(stamp, STEPS)


class Turn(collections.namedtuple('Turn', 'number of center')):
    """Which steps a barrier makes: `number`, `number + of`, `number + 2 * of`, and so on.

    Other barriers, of other variables, make the steps between. They share stamps and tokens.

    Attributes:
      number: int, which one of the barriers it is, from 0 on.
      of: int, how many barriers take turns.
      center: list of `tf.Variable`, those of all these barriers.
    """

    def has(self, step):
        """Returns a bool tensor: whether this barrier makes a step, an int64 scalar tensor."""
        return tf.equal(tf.math.floormod(step, self.of), self.number)


class Clock:
    """The current stamp of a barrier, on the device of the global step."""

    def __init__(self, global_step):
        """Takes the int64 `tf.Variable` that counts the steps."""
        self._step = global_step
        # The stamp of the epoch's step 0.
        self._table = volatile_table.VolatileTable('epoch', global_step.device, default=0)
        with tf.device(global_step.device):
            self._key = tf.constant(_EPOCH, tf.int64)

    def of(self, step):
        """Returns the stamp of a step, an int64 scalar tensor, in the current epoch."""
        return self._table.read(self._key) + step

    def read(self):
        """Returns the current stamp, an int64 scalar tensor."""
        return self.of(self._step.read_value())

    def read_next_epoch(self):
        """Returns the stamp at which the next epoch would begin."""
        return self.read() + STEPS

    def begin_epoch(self):
        """Returns an op that begins the next epoch, in the current step."""
        return self._table.write(self._key, self._table.read(self._key) + STEPS)


class Local:
    """The stamp of a worker: the epoch and the step in which it takes part.

    It lives on the ps, beside the ops that read and write it, and each life of the worker has its
    own. If the worker's machine died, a run of its former life may go on on the ps, and what that
    run writes is nothing to the new life.

    Attributes:
      value: int64 scalar tensor, as of the beginning of a run.
    """

    def __init__(self, task_index, device):
        """Makes the ops on a device, for the worker of an index."""
        self._lives = volatile_table.VolatileTable(f'lives_{task_index}', device, default=0)
        self._table = volatile_table.VolatileTable(f'stamps_{task_index}', device, default=0)
        with tf.device(device):
            self._key = tf.constant(_LIFE, tf.int64)
        self._life = self._lives.read(self._key)
        self.value = self._table.read(self._life)

    def write(self, stamp):
        """Returns an op that writes a stamp, an int64 scalar tensor."""
        return self._table.write(self._life, stamp)

    def begin_life(self, stamp):
        """Returns an op that begins a life of the worker with a stamp, an int64 scalar tensor."""
        life = self._lives.read(self._key) + 1
        with tf.control_dependencies([self._table.write(life, stamp)]):
            return self._lives.write(self._key, life)
