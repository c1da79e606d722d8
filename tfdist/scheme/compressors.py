"""Compressors: what travels in place of a vector, and what its receiver makes of that.

A vector is of float32 or float64. If an element is not finite, the receiver gets one that is not,
either: as without compression, training that diverges shows it in its loss.
"""

import math
import sys

from tfdist.start.quiet import tf


class Compressor:
    """The base class of compressors."""

    def encode(self, vector, seed):
        """Returns what travels, a vector of an integer type or of float16.

        Args:
          vector: [n] tensor; n is known when the graph is built.
          seed: function that returns an int64 [2] tensor, which no other vector gets, in no step
            and on no worker.
        """
        raise NotImplementedError

    def decode(self, sent, size, dtype):
        """Returns the [size] tensor of `dtype` for which something was sent."""
        raise NotImplementedError


class Bfloat16(Compressor):
    """The upper halves of float32: the same range, and 8 significant bits instead of 24.

    They are made by bits, as `tf.cast` to bfloat16 is slow on the CPU of TensorFlow 1.15.
    """

    def encode(self, vector, seed):
        """See `Compressor`."""
        bits = tf.bitcast(tf.cast(vector, tf.float32), tf.int32)
        upper = tf.bitwise.right_shift(bits, 16)
        # Of two that are as near, to the even one.
        rounded = bits + 0x7fff + tf.bitwise.bitwise_and(upper, 1)
        return tf.cast(tf.bitwise.right_shift(rounded, 16), tf.int16)

    def decode(self, sent, size, dtype):
        """See `Compressor`."""
        bits = tf.bitwise.left_shift(tf.cast(sent, tf.int32), 16)
        return tf.cast(tf.bitcast(bits, tf.float32), dtype)


class Float16(Compressor):
    """Half floats: 11 significant bits, from 6e-8 to 65504."""

    def encode(self, vector, seed):
        """See `Compressor`; of a finite number that is too large, the largest one is sent."""
        most = tf.float16.max
        clipped = tf.clip_by_value(vector, -most, most)
        return tf.cast(tf.where(tf.is_finite(vector), clipped, vector), tf.float16)

    def decode(self, sent, size, dtype):
        """See `Compressor`."""
        return tf.cast(sent, dtype)


class Int8(Compressor):
    """Multiples of 1/127 of the largest magnitude, rounded at random: their mean is the vector.

    Dan Alistarh et al., "QSGD", NIPS 2017, arXiv 1610.02132, has the idea, with another norm.
    """

    def encode(self, vector, seed):
        """See `Compressor`."""
        scale = _if_finite(tf.reduce_max(tf.abs(vector)) / 127, vector)
        levels = self.rounded(tf.math.divide_no_nan(vector, scale), seed)
        # The largest one over the scale may be 127.00001.
        return packed([tf.cast(tf.clip_by_value(levels, -127, 127), tf.int8), scale])

    def rounded(self, levels, seed):
        """Returns `levels`, a vector, rounded up or down; up as often as they are nearer to it."""
        drawn = tf.raw_ops.StatelessRandomUniform(shape=tf.shape(levels), seed=seed(),
                                                  dtype=levels.dtype)
        return tf.floor(levels + drawn)

    def decode(self, sent, size, dtype):
        """See `Compressor`."""
        levels, scale = unpacked(sent, [(tf.int8, size), (dtype, 1)])
        return tf.cast(levels, dtype) * scale


class ScaledSign(Compressor):
    """A bit for each element, and the mean magnitude.

    Sai Praneeth Karimireddy, Quentin Rebjock, Sebastian Stich, Martin Jaggi, "Error Feedback Fixes
    SignSGD and other Gradient Compression Schemes", ICML 2019, arXiv 1901.09847.
    """

    def encode(self, vector, seed):
        """See `Compressor`; 0 counts as positive."""
        bits = tf.cast(tf.greater_equal(vector, 0), tf.int32)
        size = vector.shape.num_elements()
        octets = tf.reshape(tf.pad(bits, [[0, -size % 8]]), [-1, 8])
        bytes_ = tf.reduce_sum(octets * [2 ** i for i in range(8)], axis=1)
        return packed([tf.cast(bytes_, tf.uint8), tf.reduce_mean(tf.abs(vector))])

    def decode(self, sent, size, dtype):
        """See `Compressor`."""
        bytes_, scale = unpacked(sent, [(tf.uint8, -(-size // 8)), (dtype, 1)])
        bits = tf.bitwise.right_shift(bytes_[:, tf.newaxis], tf.constant([*range(8)], tf.uint8))
        bits = tf.reshape(tf.bitwise.bitwise_and(bits, tf.constant(1, tf.uint8)), [-1])[:size]
        return tf.where(tf.equal(bits, 1), tf.fill([size], scale[0]), tf.fill([size], -scale[0]))


class TopK(Compressor):
    """The elements of the largest magnitudes, with their indices; the others count as 0."""

    def __init__(self, share):
        """Takes the share of the elements to send, above 0 and up to 1; it is at least one."""
        self._share = share

    def _number(self, size):
        return min(size, max(1, round(self._share * size)))

    def encode(self, vector, seed):
        """See `Compressor`."""
        number = self._number(vector.shape.num_elements())
        indices = tf.nn.top_k(tf.abs(vector), number, sorted=False).indices
        values = _if_finite(tf.gather(vector, indices), vector)
        return packed([indices, values])

    def decode(self, sent, size, dtype):
        """See `Compressor`."""
        number = self._number(size)
        indices, values = unpacked(sent, [(tf.int32, number), (dtype, number)])
        return tf.scatter_nd(indices[:, tf.newaxis], values, [size])


def _if_finite(value, vector):
    """Returns a tensor `value`, or NaN in its place if an element of `vector` is not finite."""
    return tf.where_v2(tf.reduce_all(tf.is_finite(vector)), value,
                       tf.constant(math.nan, value.dtype))


def packed(parts):
    """Returns tensors as one vector of bytes, uint8: one transfer for all."""
    return tf.concat([tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for part in parts], axis=0)


def unpacked(bytes_, kinds):
    """Returns the parts of `packed` as vectors; `kinds` has the dtype and the size of each."""
    parts = tf.split(bytes_, [dtype.size * size for dtype, size in kinds])
    return [tf.bitcast(part if dtype.size == 1 else tf.reshape(part, [-1, dtype.size]), dtype)
            for part, (dtype, _) in zip(parts, kinds)]


_BY_NAME = {'bf16': Bfloat16, 'fp16': Float16, 'int8': Int8, 'sign': ScaledSign}


def by_name(name):
    """Returns the `Compressor` that --compression names, a string.

    Raises:
      SystemExit: if there is none of this name.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]()
    kind, _, share = name.partition(':')
    try:
        if momentum_of(name) is not None:
            share = share.partition(':')[0]
        elif kind != 'topk':
            share = ''
        if 0 < float(share) <= 1:
            return TopK(float(share))
    except ValueError:
        pass
    sys.exit(f'--compression={name}: there are none, {", ".join(_BY_NAME)}, and topk:SHARE with a '
             'share above 0 and up to 1, such as topk:0.01; with momentum, dgc:SHARE:MOMENTUM with '
             'a momentum of at least 0 and below 1, such as dgc:0.01:0.9; around a ring also '
             'powersgd:RANK.')


def momentum_of(name):
    """Returns the momentum of deep gradient compression, a float; None if `name` has none."""
    kind, *numbers = name.split(':')
    try:
        if kind == 'dgc' and len(numbers) == 2 and 0 <= float(numbers[1]) < 1:
            return float(numbers[1])
    except ValueError:
        pass
    return None
