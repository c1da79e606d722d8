"""Which gradients travel together: small ones in one vector, and each large one by itself."""

import collections

from tfdist.scheme import transfer
import sockets

_ENOUGH = 2 ** 24  # bytes of gradients together that are each smaller than `sockets.LARGE`


def groups_of(tensors):
    """Returns which tensors travel in one vector: lists of their indices, in the order of sending.

    Small ones of a dtype travel together, to send fewer messages. A large one travels by itself, as
    soon as it is there: the backward pass has the gradients of the last layers first.
    """
    groups, small = [], collections.OrderedDict()
    for i in reversed(range(len(tensors))):
        if transfer.size_of([tensors[i]]) >= sockets.LARGE:
            groups.append([i])
            continue
        group = small.setdefault(tensors[i].dtype, [])
        group.insert(0, i)
        if transfer.size_of([tensors[k] for k in group]) >= _ENOUGH:
            groups.append(small.pop(tensors[i].dtype))
    return groups + sorted(small.values())


def flatten(tensors):
    """Returns tensors as a list of vectors, one for each of `groups_of`."""
    return [transfer.pack([tensors[i] for i in group]) for group in groups_of(tensors)]


def unflatten(vectors, like):
    """Returns the vectors of `flatten` as a list of tensors of the shapes and dtypes of `like`."""
    tensors = list(like)
    for vector, group in zip(vectors, groups_of(like)):
        for i, part in zip(group, transfer.unpack(vector, [like[i] for i in group])):
            tensors[i] = part
    return tensors
