"""Lists of arrays that travel together over a `socket.socket`, without being copied."""

import numpy as np

from tfdist.start.quiet import tf

_MOST = 64  # arrays at a time, of as many as a system takes


def views(arrays):
    """Returns the memory of arrays, a list of memoryviews of bytes."""
    return [memoryview(np.reshape(array, [-1]).view(np.uint8)) for array in arrays if array.size]


def send(connection, left):
    """Sends of some memoryviews, a list, what can be sent at once; takes it out of the list.

    Returns:
      The number of bytes.

    Raises:
      OSError: if the other side is gone; `BlockingIOError` if nothing can be sent now.
    """
    return _take_out(left, connection.sendmsg(left[:_MOST]))


def receive(connection, left):
    """Fills memoryviews, a list, with what has come; otherwise as `send`."""
    size, *_ = connection.recvmsg_into(left[:_MOST])
    if not size:
        raise OSError('it has closed the connection')
    return _take_out(left, size)


def _take_out(left, size):
    done, rest = 0, size
    while done < len(left) and rest >= len(left[done]):
        rest -= len(left[done])
        done += 1
    del left[:done]
    if rest:
        left[0] = left[0][rest:]
    return size


def call(function, x, name=None):
    """Returns what a function of arrays makes of tensors, a list of tensors like these."""
    with tf.device('/device:CPU:0'):
        made = tf.py_func(function, x, [value.dtype for value in x], name=name)
    for one, value in zip(made, x):
        one.set_shape(value.shape)
    return made
