"""Finds the ops of a graph that draw random numbers, so that both sides can get the same ones."""

import sys

from tfdist.scheme import graphs


def of(tensors, fed):
    """Returns a list of the ops that draw random numbers for `tensors`, as they were made.

    Args:
      tensors: list of tensors.
      fed: list of tensors that will be fed: what draws these does not count.

    Raises:
      SystemExit: naming an op in a loop or a branch, whose numbers cannot be fed.
    """
    used = graphs.ancestors(tensors, beyond={tensor.op for tensor in fed})
    graph = tensors[0].graph
    found = [op for op in graph.get_operations()
             if op in used and op.op_def.is_stateful and 'seed' in op.node_def.attr]
    for op in found:
        if not graph.is_fetchable(op):
            sys.exit(f'check: {op.name} ({op.type}) draws random numbers in a loop or a branch, '
                     'where the two sides cannot be given the same ones. Leave it out for the '
                     'check: a dropout that drops nothing, for example.')
    return found
