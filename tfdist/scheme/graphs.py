"""Walks a graph: finds what a tensor depends on, and how variables are read."""

import collections


def ancestors(tensors, beyond=()):
    """Returns the set of ops that run for a list of tensors or ops if nothing is fed.

    The ops of the set `beyond`, and what only these depend on, are left out.
    """
    found, left = set(), [getattr(tensor, 'op', tensor) for tensor in tensors]
    while left:
        op = left.pop()
        if op not in found and op not in beyond:
            found.add(op)
            left += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    return found


def awaited(tensors):
    """Returns the set of ops that a list of tensors waits for, without using their outputs."""
    made, found, left = set(), set(), [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op not in made:
            made.add(op)
            found.update(op.control_inputs)
            left += [tensor.op for tensor in op.inputs]
    return found - made


def readers(tensors):
    """Finds by which types of ops a list of tensors uses each op, such as a variable's handle.

    Returns:
      `collections.defaultdict` by op: the types of ops that take its output, a set of strings.
    """
    types = collections.defaultdict(set)
    for op in ancestors(tensors):
        for tensor in op.inputs:
            types[tensor.op].add(op.type)
    return types
