"""Walks through a graph: what a tensor depends on, and how it reads variables."""

import collections


def ancestors(tensors):
    """Returns the set of ops that run for a list of tensors or ops, if nothing is fed."""
    found, left = set(), [getattr(tensor, 'op', tensor) for tensor in tensors]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    return found


def awaited(tensors):
    """Returns the set of ops that have to run before a list of tensors, but make nothing of it."""
    made, found, left = set(), set(), [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op not in made:
            made.add(op)
            found.update(op.control_inputs)
            left += [tensor.op for tensor in op.inputs]
    return found - made


def readers(tensors):
    """Returns which types of ops a list of tensors depends on, by whose output they take.

    Returns:
      Dict by op, such as that of a variable's handle, of sets of strings, which may be empty.
    """
    types = collections.defaultdict(set)
    for op in ancestors(tensors):
        for tensor in op.inputs:
            types[tensor.op].add(op.type)
    return types
