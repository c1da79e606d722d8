"""Tells what happened in a schedule, in a few lines of words."""

import textwrap

import numpy as np

from searching import machine

_WORDS = {  # by the kind of atom: what is said, of its state, its inputs and its outputs
    'ReadVariableOp': '', 'LookupTableFindV2': '', 'QueueSizeV2': '', machine.ARRIVAL: '',
    'ResourceAccumulatorNumAccumulated': '', machine.UNLOCK: '', machine.LOCK: '',
    'AssignVariableOp': 'sets {state} to {0}',
    'AssignAddVariableOp': 'adds {0} to {state}',
    'AssignSubVariableOp': 'takes {0} from {state}',
    'ResourceCountUpTo': 'adds 1 to {state}',
    'ResourceApplyGradientDescent': 'applies {1} to {state}',
    'ResourceAccumulatorApplyGradient': 'pushes {1} into {state} with stamp {0}',
    'ResourceAccumulatorTakeGradient': 'takes the mean {made} from {state}',
    'ResourceAccumulatorSetGlobalStep': '',
    'LookupTableInsertV2': 'writes {1} into {state}[{0}]',
    'LookupTableRemoveV2': 'removes {state}[{0}]',
    'LookupTableImportV2': 'clears {state}',
    'QueueEnqueueV2': 'puts {0} into {state}',
    'QueueEnqueueManyV2': 'puts {0} into {state}',
    'QueueDequeueV2': 'takes {made} from {state}',
    'QueueDequeueManyV2': 'takes {made} from {state}',
    'ResourceScatterUpdate': 'sets {state}[{0}] to {1}',
    'ResourceScatterAdd': 'adds {1} to {state}[{0}]',
}


def words(atom, given, made):
    """Returns what an atom does, in words; the empty string for what changes nothing."""
    state = (atom.state or '').rpartition('@')[0]
    return _WORDS[atom.kind].format(*map(_short, given), state=state,
                                    made=_short(made[0]) if made else '')


def _short(value):
    value = np.asarray(value)
    if value.dtype == object:
        return str(value.tolist())
    if value.ndim == 0:
        return f'{value:g}' if abs(value) < 2 ** 62 else 'none'
    text = ','.join('none' if abs(each) >= 2 ** 62 else f'{each:g}' for each in value.ravel())
    return text if value.size == 1 else f'[{text}]'


def tell(events, width=100):
    """Returns the lines of a story, one for what one task does without another's between.

    Args:
      events: list of pairs: who, and a string or a triple for `words`.
      width: int, the columns of a line.
    """
    lines, last = [], None
    for who, what in events:
        what = what if isinstance(what, str) else words(*what)
        if not what:
            continue
        if who != last:
            lines.append([])
            last = who
        lines[-1].append(what if lines[-1] else f'{who} {what}')
    return [line for each in lines
            for line in textwrap.wrap(', '.join(each), width, subsequent_indent='    ')]
