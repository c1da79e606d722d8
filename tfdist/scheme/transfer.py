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


def is_small(tensor):
    """Returns whether a tensor or variable is small enough to be packed."""
    size = size_of([tensor])
    return size is not None and size <= _SMALL


def pack(tensors):
    """Returns the elements of tensors, a list of one dtype, as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(vector, like):
    """Returns what `pack` has packed; takes the vector, and a list of tensors of such shapes."""
    shapes = [tensor.shape for tensor in like]
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def groups_of(tensors):
    """Returns lists of the places of tensors or variables: of one dtype the small ones together."""
    groups = collections.OrderedDict()
    for i, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype.base_dtype.name if is_small(tensor) else i, []).append(i)
    return list(groups.values())


def join(tensors):
    """Returns a group of tensors as one: packed, unless it is alone."""
    return pack(tensors) if len(tensors) > 1 else tensors[0]


def take_apart(one, like):
    """Returns the list of tensors that `join` has made one; takes it, and a list of such shapes."""
    return unpack(one, like) if len(like) > 1 else [one]


def bundle(tensors):
    """Returns a tensor for each of `groups_of`, as `join` makes it."""
    return [join([tensors[i] for i in group]) for group in groups_of(tensors)]


def unbundle(bundles, like):
    """Returns what `bundle` has bundled; takes a list, and one of tensors of such shapes."""
    tensors = list(like)
    for one, group in zip(bundles, groups_of(like)):
        for i, part in zip(group, take_apart(one, [like[i] for i in group])):
            tensors[i] = part
    return tensors


def to_worker(values):
    """Returns `values`, a list of tensors read on the ps, on the device of the scope."""
    return _send(values, [''] * len(values))


def to_ps(values, variables):
    """Brings values to the devices of variables.

    Args:
      values: list of tensors of the variables' shapes, or None, or `tf.IndexedSlices`.
      variables: list of `tf.Variable`.

    Returns:
      List of the same values, the tensors on the variables' devices, if their shapes are known.
    """
    sent = _send(values, [variable.device for variable in variables])
    return [_send_first(value, variable.device) if one is value else one
            for one, value, variable in zip(sent, values, variables)]


def _send_first(value, device):
    """Returns a tensor on a device, to which it leaves before what else follows it is computed.

    A worker with one thread would compute first: after an elastic exchange, all of the window. But
    an op that TensorFlow takes for cheap runs at once, and then what follows that op, the transfer.
    (2.21 finds out in the first hundred runs what is cheap, and on a busy machine errs at times.)
    TensorFlow removes all cheap ops that do nothing, unless one changes the shape.
    """
    if not isinstance(value, tf.Tensor) or not value.shape.is_fully_defined():
        return value
    with tf.device(value.device):
        cheap = tf.expand_dims(value, 0)
    with tf.device(device):
        return tf.squeeze(cheap, [0])


def _send(tensors, devices):
    """Packs small tensors of the same way and dtype into one, and unpacks it on the other side."""
    ways = collections.defaultdict(list)
    for i, (tensor, device) in enumerate(zip(tensors, devices)):
        if isinstance(tensor, tf.Tensor) and is_small(tensor):
            ways[tensor.device, device, tensor.dtype].append(i)
    sent = list(tensors)
    for (source, target, _), indices in ways.items():
        if len(indices) == 1:
            continue
        packed = [tensors[i] for i in indices]
        with tf.device(source):
            one = pack(packed)
        with tf.device(target):
            for i, part in zip(indices, unpack(one, packed)):
                sent[i] = part
    return sent
