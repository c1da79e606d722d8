"""How far two sides are apart, how far rounding alone brings them, and in words."""

import collections

import numpy as np

_HALF_FLOATS = {'float16': 1e-2, 'bfloat16': 1e-1}
_ROUNDING = 1e-7  # of a float32
_MOST = 1e-2  # further apart than that, nothing agrees: but for half floats


class Pair(collections.namedtuple('Pair', 'name there here nudged')):
    """What both sides have of one thing.

    Attributes:
      name: string.
      there, here: arrays, what plain TensorFlow has, and the scheme.
      nudged: array, what plain TensorFlow has if it begins with errors of rounding.
    """

    @property
    def distance(self):
        """How far both are apart, a float: see `between`."""
        return between(self.there, self.here)

    @property
    def agrees(self):
        """Whether both are as close as they can be, a bool.

        Where training makes small differences large, ten times what it makes of errors of rounding
        is still close.
        """
        if self.there.dtype.kind in 'iub':
            return self.distance == 0
        close = _HALF_FLOATS.get(self.there.dtype.name, 1e-5)
        return self.distance <= max(close, min(10 * between(self.there, self.nudged), _MOST))


def between(one, other):
    """Returns the largest difference between two arrays, over the largest value of one, or over 1.

    What is not a number is infinitely far from all.
    """
    one, other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid='ignore'):
        apart = np.abs(one - other).max(initial=0)
    return float(apart / np.abs(one).max(initial=1)) if np.isfinite(apart) else float('inf')


def furthest(pairs):
    """Returns the `Pair` of a list whose distance is the largest."""
    return max(pairs, key=lambda pair: pair.distance)


def up_to(distance):
    """Returns up to what something agrees, in words."""
    return f'to {distance:.1e}' if distance else 'to the last bit'


def nudged(array):
    """Returns floats with an error of rounding in each, the same each time; others as they are."""
    if array.dtype.kind in 'iub':
        return array
    signs = np.random.RandomState(0).choice([-1, 1], array.shape)
    return (array.astype(np.float64) * (1 + _ROUNDING * signs)).astype(array.dtype)
