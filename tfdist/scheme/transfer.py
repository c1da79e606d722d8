"""Packs small tensors that go the same way into one, since each transfer costs time of its own.

It costs about as much as copying a hundred kilobytes, so large tensors travel by themselves.
"""

import collections

from tfdist.start.quiet import tf

_SMALL = 2 ** 16  # bytes


def size_of(tensors):
    """Returns the bytes of tensors or variables, a list; None if a shape does not tell."""
    if not all(each.shape.is_fully_defined() for each in tensors):
        return None
    return sum(each.shape.num_elements() * each.dtype.base_dtype.size for each in tensors)


def to_worker(values):
    """Returns `values`, a list of tensors read on the ps, on the device of the scope."""
    return _send(values, [''] * len(values))


def to_ps(values, variables):
    """Brings values to the devices of variables.

    Args:
      values: list of tensors of the variables' shapes, or None, or `tf.IndexedSlices`.
      variables: list of `tf.Variable`.

    Returns:
      List of the same values, the small tensors on the variables' devices.
    """
    return _send(values, [variable.device for variable in variables])


def _send(tensors, devices):
    """Packs small tensors of the same way and dtype into one, and unpacks it on the other side."""
    ways = collections.defaultdict(list)
    for i, (tensor, device) in enumerate(zip(tensors, devices)):
        size = size_of([tensor]) if isinstance(tensor, tf.Tensor) else None
        if size is not None and size <= _SMALL:
            ways[tensor.device, device, tensor.dtype].append(i)
    sent = list(tensors)
    for (source, target, _), indices in ways.items():
        if len(indices) == 1:
            continue
        shapes = [tensors[i].shape for i in indices]
        with tf.device(source):
            one = tf.concat([tf.reshape(tensors[i], [-1]) for i in indices], axis=0)
        with tf.device(target):
            parts = tf.split(one, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(indices, parts, shapes):
                sent[i] = tf.reshape(part, shape)
    return sent
