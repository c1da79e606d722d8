"""What `validate` found: the table for README.md, and the picture."""

import collections
import statistics
import sys

import experiments
import matplotlib
import predictions

sys.path.append(str(experiments.HERE.parent / 'Comparison'))
from examples import Example  # noqa: E402
import readmes  # noqa: E402
from report import read  # noqa: E402
from style import COLOURS, logarithmic, MARKERS, STYLE  # noqa: E402

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

README = experiments.HERE / 'README.md'
MEASURED = experiments.HERE.parent / 'Comparison' / 'results' / 'results.csv'
PICTURE = experiments.HERE / 'results' / 'validation.png'
FIGURES = ['steps_per_s', 'staleness', 'accuracy', 'dropped']
TOLERANCES = {'steps_per_s': (0.2, 0), 'staleness': (0.2, 0.1), 'accuracy': (0, 0.01),
              'dropped': (0.2, 0.02)}  # relative, absolute: one of them is enough


def median(rows, name):
    """Returns the median of a column, of those rows that have it; None if none has."""
    values = [float(row[name]) for row in rows if row[name] not in ('', None)]
    return statistics.median(values) if values else None


def of(rows, kind, **which):
    """Returns the rows of a kind and of what a case's fields are to be."""
    return [row for row in rows if row['kind'] == kind
            and all(row[name] == str(value) for name, value in which.items())]


def is_near(name, real, other):
    """Returns whether a figure of a simulation is as near to the real one as is wanted."""
    relative, absolute = TOLERANCES[name]
    return abs(other - real) <= max(relative * abs(real), absolute)


def pairs(rows, kind='simulated'):
    """Returns what can be compared: a list of (case's fields as a tuple, figure, real, other)."""
    found = []
    for row in of(rows, kind):
        which = {name: row[name] for name in ('scheme', 'backups', 'workers', 'window')}
        real = of(rows, 'real', **which)
        for name in FIGURES:
            values = median(real, name), median([row], name)
            if None not in values:
                found.append((tuple(which.values()), name, *values))
    return found


_FORMS = {'steps_per_s': '.0f', 'staleness': '.2f', 'accuracy': '.3f', 'dropped': '.1%'}


def table(rows, whole):
    """Returns the lines for the README, of all rows; see `publish`."""
    lines = ['| | workers | steps/s | simulated | staleness | simulated | accuracy | simulated | '
             'dropped | simulated |', '|---|---:' + '|---:' * 8 + '|']
    cells = collections.OrderedDict()
    for which, name, real, other in pairs(rows):
        text = format(other, _FORMS[name])
        cells.setdefault(which, {})[name] = (
            format(real, _FORMS[name]), text if is_near(name, real, other) else f'**{text}**')
    for (scheme, backups, workers, _), figures in cells.items():
        name = f'{scheme}, {backups} backup' if int(backups) else scheme
        lines.append('| ' + ' | '.join([name, workers, *(
            cell for figure in FIGURES for cell in figures.get(figure, ('', '')))]) + ' |')
    compared = pairs(rows)
    lines += ['', 'As near as wanted, else bold: ' + '; '.join(
        '{} in {} of {}'.format(words, *_count(name, compared)) for name, words in (
            ('steps_per_s', 'steps/s within 20 %'), ('staleness', 'staleness within 20 % or 0.1'),
            ('accuracy', 'accuracy within 0.01'), ('dropped', 'dropped within 20 % or 2 %'))) + '.']
    errors = [abs(other / real - 1) for (scheme, _, workers, _), name, real, other in compared
              if name == 'steps_per_s' and int(workers) > _measured_with(scheme)]
    lines += ['With more workers than costs were measured with the steps/s are off by '
              f'{statistics.median(errors):.0%} in the median and by {max(errors):.0%} at most.']
    lines += distances(rows)
    there = len(of(rows, 'real'))
    if there < whole:
        lines += ['', f'This is not all of it: {there} of {whole} runs.']
    return lines


def measured_at_a_distance():
    """Returns what Comparison has measured with two workers and a round trip between all hosts.

    Returns:
      List of pairs: (scheme, window, milliseconds), and local steps/s.
    """
    return [((row['folder'], int(row['window']), int(row['round_trip'])), float(row['steps_per_s']))
            for row in read(MEASURED) if row['experiment'] == 'latency' and row['steps_per_s']]


def distances(rows):
    """Returns the lines of the table at a distance: what was measured, and what is simulated."""
    cells, ratios = collections.OrderedDict(), []
    for (scheme, window, round_trip), rate in measured_at_a_distance():
        other = median(of(rows, 'distant', scheme=scheme, window=window, round_trip=round_trip),
                       'steps_per_s')
        if other:
            name = f'{scheme}, window {window}' if window > 1 else scheme
            own = cells.setdefault(name, collections.OrderedDict())
            own[round_trip] = f'{rate:.0f}, {other:.0f}'
            if round_trip:
                ratios.append(abs(other / rate - 1))
    if not cells:
        return []
    columns = list(next(iter(cells.values())))
    return ['', '| | ' + ' | '.join(f'{round_trip} ms' for round_trip in columns) + ' |',
            '|---|' + '---:|' * len(columns),
            *('| ' + ' | '.join([name, *(own.get(each, '') for each in columns)]) + ' |'
              for name, own in cells.items()),
            '', 'Local steps/s of two workers, each of which has a host of its own, over the round '
            f'trip: [measured](../Comparison/#pictures), simulated. With one they are off by '
            f'{statistics.median(ratios):.0%} in the median and by {max(ratios):.0%} at most.']


def _measured_with(scheme):
    """Returns with how many workers at most the costs of a scheme were measured."""
    return 3 if Example(scheme).kind == 'ring' else 1


def _count(figure, compared):
    near = [is_near(name, real, other) for _, name, real, other in compared if name == figure]
    return sum(near), len(near)


def draw(rows):
    """Returns a figure: steps/s as measured and simulated, and as predicted for a cluster.

    Args:
      rows: list of dicts, of the file.
    """
    figure, (here, there) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    predicted = predictions.rates()
    for name, colour, marker in zip(predictions.WINDOWS, COLOURS, MARKERS):
        for kind, form in ('real', marker), ('simulated', '-'):
            own = of(rows, kind, scheme=name, backups=0, window=predictions.WINDOWS[name])
            numbers = sorted({int(row['workers']) for row in own})
            here.plot(numbers, [median([row for row in own if row['workers'] == str(number)],
                                       'steps_per_s') for number in numbers],
                      form, color=colour, markersize=5)
        there.plot(*zip(*predicted[name]), marker=marker, markersize=4, color=colour, label=name)
    here.set_title('this machine: measured (points), simulated (lines)')
    here.set_ylabel('local steps/s of all workers')
    there.set_title(f'predicted: {predictions.IN_WORDS}')
    there.legend(loc='upper left')
    logarithmic(there, 'x', (1,))
    for panel in here, there:
        logarithmic(panel, 'y')
        panel.set_xlabel('workers')
    return figure


def publish(rows, whole):
    """Puts the table into the README, between the marks, and draws the picture.

    Args:
      rows: see `draw`.
      whole: int, how many real runs there are if that is all.
    """
    readmes.fill(README, {'validation': '\n'.join(table(rows, whole))})
    with plt.rc_context(STYLE):
        draw(rows).savefig(str(PICTURE))
