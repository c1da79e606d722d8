"""The five sentences of the answer, for who has to decide and has read nothing else."""

import collections

from advise_cluster import MORE_CORES
from advise_folders import ALONE

_HELPS = 1.05  # from so many times as many local steps/s on, something helps
_ALIKE = 1.005  # of two times so near, neither is said to be longer
# With less than such a share tried, what takes so many times as long may still be sooner.
_FEW_TRIED, _NEARLY = .2, 1.5
LINES = {'out of the ps': 'the line out of the ps', 'into the ps': 'the line into the ps',
         'updates': 'updates on the ps'}
# What holds a scheme up, by what `advise_answer.limited_by` says; with shares of its workers' time.
_HOLDS_UP = {
    'the cores': 'the cores of the machine, which all its processes share and keep busy',
    'the line out of the ps': 'the network, as the line out of the parameter servers (ps) is busy '
                              'nearly all the time',
    'the line into the ps': 'the network, as the line into the parameter servers (ps) is busy '
                            'nearly all the time',
    'updates on the ps': 'the parameter servers (ps), which are busy with updates nearly all the '
                         'time',
    'computing': 'hardly anything: its workers compute for {computes:.0%} of their time',
    'waiting': 'its workers wait for each other and for the sums, which takes {waits:.0%} of their '
               'time',
    'pulls and pushes': 'the exchanges: its workers compute for only {computes:.0%} of their time, '
                        'and send and receive for most of the rest'}

Counts = collections.namedtuple('Counts', 'settings ruled_out tried untried simulations')
Counts.__doc__ = """How many settings a search had, ints.

Attributes:
  settings: all that there are.
  ruled_out: of these the clock alone ruled out, though a few of them may be tried.
  tried: were simulated with gradients.
  untried: were not, though they were not ruled out.
  simulations: not settings, but simulations with gradients.
"""


def in_time(value):
    """Returns seconds in words, a string."""
    return f'{value:.3g} s'


def percent(share):
    """Returns a share, a float, in words."""
    return f'{100 * share:g} %'


def settings(entry):
    """Returns the settings of an entry of `advise_answer.Answer` in words."""
    if entry['scheme'] == ALONE:
        return f'{ALONE} with a step size of {entry["step_size"]:g}'
    workers, ps, together = entry['workers'], entry['ps'], entry['workers_on_a_host']
    parts = [f'{workers} worker{"s" * (workers > 1)}']
    if together > 1:
        parts[0] += f' (up to {together} on a host)'
    if ps:
        parts.append(f'{ps} parameter server{"s" * (ps > 1)}')
    if entry['window'] > 1:
        parts.append(f'an exchange after each {entry["window"]} local steps')
    parts.append(f'a step size of {entry["step_size"]:g}')
    return f'{entry["scheme"]} with {", ".join(parts[:-1])} and {parts[-1]}'


def sentences(answer, counts):
    """Returns five sentences, a list of strings, for an `advise_answer.Answer` and `Counts`."""
    best, alone = answer.best, answer.of(ALONE)
    other = next((entry for entry in answer.entries if entry['scheme'] != ALONE), None)
    return [_choice(answer, best, other, counts), _pays(answer, best, alone, other, counts),
            _limits(answer.helps, other), _what_helps(answer.helps, other),
            _method(answer, counts)]


def _reach(answer, entry):
    """Returns what an entry reaches, in words."""
    if entry['seconds'] is not None:
        return (f'{percent(answer.goal.target)} in {in_time(entry["seconds"])} (from '
                f'{in_time(entry["from"])} to {in_time(entry["to"])})')
    if entry['accuracy'] is None:
        return f'a loss of {entry["loss"]:.4g} in {in_time(entry["simulated_seconds"])}'
    return (f'an accuracy of {entry["accuracy"]:.3f} in '
            f'{in_time(answer.then or entry["simulated_seconds"])}')


def _is_cut_short(best, other):
    """Returns whether another entry was simulated for less time than the best one takes."""
    return bool(best['seconds'] and not other['seconds'] and not other['reached']
                and other['simulated_seconds'] < best['seconds'])


def is_sooner(seconds, others):
    """Returns whether a time is less than another one, and not alike; floats."""
    return seconds < others / _ALIKE


def _hardly_pays(best, other):
    """Returns whether another entry is sooner than the best one, which is one process."""
    return bool(best['seconds'] and other['seconds']
                and is_sooner(other['seconds'], best['seconds']))


def _is_hardly_searched(best, other, counts):
    """Returns whether another entry may be sooner with one of many settings that were not tried."""
    return bool(best['seconds'] and other['seconds']
                and other['seconds'] <= _NEARLY * best['seconds']
                and counts.tried < _FEW_TRIED * (counts.tried + counts.untried))


def _choice(answer, best, other, counts):
    begin = 'Stay on one machine' if best['scheme'] == ALONE else 'Distribute it'
    if best['scheme'] == ALONE and other and (
            _is_cut_short(best, other) or _is_hardly_searched(best, other, counts)
            or _hardly_pays(best, other) and counts.untried):
        begin = 'As far as there was time to see, stay on one machine'
    return f'{begin}: {settings(best)} reaches {_reach(answer, best)}.'


def _pays(answer, best, alone, other, counts):
    """Returns whether it pays to distribute it; `alone` and `other` are entries, or None."""
    if not alone:
        return 'Whether it pays is not known: one process came to no result with any step size.'
    if not other:
        return 'Whether something else is sooner is not known: there was no time to simulate it.'
    if best is not alone:
        if alone['seconds'] and best['seconds']:
            return (f'It pays: one process takes {in_time(alone["seconds"])}, '
                    f'{alone["seconds"] / best["seconds"]:.2g} times as long.')
        return f'It pays: one process reaches {_reach(answer, alone)}.'
    if _is_cut_short(best, other):
        return ('Whether it pays to distribute it is not known: there was no time to simulate the '
                f'best of the others, {settings(other)}, for as long as one process takes; it '
                f'reaches {_reach(answer, other)}. More --minutes tell more.')
    if not (other['seconds'] and best['seconds']):
        return (f'To distribute it does not pay: the best of the others, {settings(other)}, '
                f'reaches {_reach(answer, other)}.')
    if _hardly_pays(best, other):
        return (f'To distribute it hardly pays: the best of the others, {settings(other)}, is '
                f'there after {in_time(other["seconds"])}, which is too little sooner for what '
                'several processes cost.')
    longer = other['seconds'] / best['seconds']
    much = f'{longer:.2g} times as long' if longer > _ALIKE else 'no less'
    begin = 'To distribute it does not pay: the best of the others'
    if _is_hardly_searched(best, other, counts):
        begin = 'Of the few others that were tried none is sooner: the best of them'
    return f'{begin}, {settings(other)}, takes {in_time(other["seconds"])}, {much}.'


def _limits(helps, other):
    """Returns what holds a distributed run up; the arguments are those of `_what_helps`."""
    if not other:
        return 'What would hold a distributed run up was not simulated.'
    what = _HOLDS_UP[other['limited_by']].format(**other)
    if other['limited_by'] == 'the cores' and helps.get(MORE_CORES, _HELPS) < _HELPS:
        what = (f'nothing but computing: its {other["workers"]} workers keep the cores busy, and '
                'would gain from more of these only if there were more workers')
    return f'What holds {other["scheme"]} up: {what}.'


def _what_helps(helps, other):
    """Returns what would help; `helps` is that of the answer, `other` an entry or None."""
    found = sorted(((rate, name) for name, rate in helps.items() if rate >= _HELPS), reverse=True)
    if found:
        return f'What would help {other["scheme"]}: ' + '; '.join(
            f'{name} ({rate:.2g} times as many local steps in a second)'
            for rate, name in found) + '.'
    if helps:
        return f'None of these would make {other["scheme"]} 5 % faster: {", ".join(helps)}.'
    return 'What would help was not simulated.'


def _method(answer, counts):
    known = [entry for entry in answer.entries if entry['seconds'] is not None]
    seeds = [entry['seeds'] for entry in known or answer.entries]
    least, most = min(seeds), max(seeds)
    runs = f'of {least} simulations each' if least > 1 else 'of one simulation each'
    if most > least:
        runs = f'of {least} to {most} simulations each'
    untried = ''
    if counts.untried:
        untried = f'; for {counts.untried:,} there was no time, and more --minutes try them'
    return (f'How sure that is: of {counts.settings:,} settings {counts.ruled_out:,} cannot be '
            f'fast enough, and {counts.simulations:,} simulations tried {counts.tried:,}{untried}; '
            f'the figures are {runs}, and the ranges come from these and from how exactly the '
            'costs are known; step sizes were chosen on the test set, and what a simulation '
            'leaves out is in no range.')
