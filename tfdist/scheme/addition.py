"""Sums of arrays of any dtype: NumPy does not know bfloat16 by itself."""

import numpy as np


def add(one, other, out):
    """Adds two arrays of one dtype into a third one, and returns it."""
    if one.dtype.name != 'bfloat16':
        return np.add(one, other, out=out)
    # Its values are the upper halves of those of float32. Of two that are as near, TensorFlow
    # rounds to the even one.
    wide = np.add(*((each.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                    for each in (one, other)))
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    out.view(np.uint16)[:] = np.where(np.isnan(wide), 0x7fc0, rounded)
    return out
