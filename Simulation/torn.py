"""Updates that are torn: without a lock, one update overwrites some elements of another one."""

import numpy as np

_STREAM = 2 ** 31  # of its random numbers, beside those of the workers


def losing(share, seed):
    """Returns a function of a list of arrays, what a worker pushes, that loses some of it.

    It returns the arrays with a share of the elements set to zero, whichever; arrays of integers,
    such as the indices of rows, stay whole.

    Args:
      share: float.
      seed: int.
    """
    random = np.random.RandomState([seed % 2 ** 32, _STREAM])

    def lose(arrays):
        return [array * (random.random_sample(array.shape) >= share).astype(array.dtype)
                if np.issubdtype(array.dtype, np.floating) else array for array in arrays]

    return lose
