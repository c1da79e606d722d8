"""Turns: barriers of different variables that make the steps of a run one after the other."""

import collections

from tfdist.start.quiet import tf


class Turn(collections.namedtuple('Turn', 'number of center')):
    """The turn of one barrier: the steps `number`, `number + of`, `number + 2 * of`, and so on.

    All that is not of a variable, such as stamps and tokens, the barriers share on the ps.

    Attributes:
      number: int, which one of the barriers it is, from 0 on.
      of: int, how many barriers take turns.
      center: list of `tf.Variable`, those of all these barriers.
    """

    def has(self, step):
        """Returns a bool tensor: whether this barrier makes a step, an int64 scalar tensor."""
        return tf.equal(tf.math.floormod(step, self.of), self.number)
