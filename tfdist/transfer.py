"""Small tensors that go the same way travel as one: each transfer costs time of its own.

That is about as long as it takes to copy a hundred kilobytes, so a large tensor travels by itself.
"""

import collections

from tfdist.quiet import tf

_SMALL = 2 ** 16  # bytes


def to_worker(values):
    """Brings values that were read on the ps to the device of the scope.

    Args:
      values: list of tensors.

    Returns:
      List of the same tensors, there.
    """
    return _send(values, [''] * len(values))


def to_ps(values, variables):
    """Brings values to the devices of variables.

    Args:
      values: list of tensors of the variables' shapes, or None, or `tf.IndexedSlices`.
      variables: list of `tf.Variable`.

    Returns:
      List of the same; the small tensors are there.
    """
    return _send(values, [variable.device for variable in variables])


def _send(tensors, devices):
    """Puts small tensors into one, by the way they go and by dtype, and takes it apart there."""
    ways = collections.defaultdict(list)
    for i, (tensor, device) in enumerate(zip(tensors, devices)):
        if isinstance(tensor, tf.Tensor) and tensor.shape.is_fully_defined():
            if tensor.shape.num_elements() * tensor.dtype.size <= _SMALL:
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
