"""Reports what `validate` found: a summary in README.md, tables, and the picture."""

import collections
import statistics

import matplotlib
from measuring import readmes
from measuring.folders import Example
from measuring.results import median, read
from measuring.style import logarithmic, look_of, STYLE
import experiments
import predictions

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

README = experiments.HERE / 'README.md'
MEASURED = experiments.HERE.parent / 'Comparison' / 'results' / 'results.csv'
PICTURE, PAGE = (experiments.HERE / 'results' / f'validation.{kind}' for kind in ('png', 'md'))
FIGURES = ['steps_per_s', 'staleness', 'accuracy', 'dropped']
TOLERANCES = {'steps_per_s': (0.2, 0), 'staleness': (0.2, 0.1), 'accuracy': (0, 0.01),
              'dropped': (0.2, 0.02)}  # relative, absolute: one of them is enough


def of(rows, kind, **which):
    """Returns the rows of a kind whose columns have the given values."""
    return [row for row in rows if row['kind'] == kind
            and all(row[name] == str(value) for name, value in which.items())]


def is_near(name, real, other):
    """Returns whether a simulated figure is near enough to the real one."""
    relative, absolute = TOLERANCES[name]
    return abs(other - real) <= max(relative * abs(real), absolute)


def pairs(rows, kind='simulated'):
    """Returns what can be compared: a list of (fields of the case, figure, real, simulated)."""
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


def figures(rows):
    """Returns the table of real and simulated runs, in Markdown, of all rows of the file."""
    cells = collections.OrderedDict()
    for which, name, real, other in pairs(rows):
        text = format(other, _FORMS[name])
        cells.setdefault(which, {})[name] = (
            format(real, _FORMS[name]), text if is_near(name, real, other) else f'**{text}**')
    lines = [['', 'workers', *(word for name in ('steps/s', 'staleness', 'accuracy', 'dropped')
                               for word in (name, 'simulated'))]]
    for (scheme, backups, workers, _), found in cells.items():
        name = f'{scheme}, {backups} backup' if int(backups) else scheme
        lines.append([name, workers, *(cell for figure in FIGURES
                                       for cell in found.get(figure, ('', '')))])
    return readmes.table(lines)


def measured_at_a_distance():
    """Returns what Comparison has measured with two workers and a round trip between all hosts.

    Returns:
      List of pairs: (scheme, window, milliseconds), and local steps/s.
    """
    return [((row['folder'], int(row['window']), int(row['round_trip'])), float(row['steps_per_s']))
            for row in read(MEASURED) if row['experiment'] == 'latency' and row['steps_per_s']]


def simulated_at_a_distance(rows):
    """Returns the same list, with triples: the simulated local steps/s come last."""
    found = [(which, rate, median(of(rows, 'distant', **dict(zip(
        ('scheme', 'window', 'round_trip'), which))), 'steps_per_s'))
        for which, rate in measured_at_a_distance()]
    return [each for each in found if each[2]]


def distances(rows):
    """Returns the table of real and simulated local steps/s by round trip, in Markdown."""
    cells = collections.OrderedDict()
    for (scheme, window, round_trip), rate, other in simulated_at_a_distance(rows):
        name = f'{scheme}, window {window}' if window > 1 else scheme
        cells.setdefault(name, {})[round_trip] = f'{rate:.0f}, {other:.0f}'
    columns = sorted({round_trip for own in cells.values() for round_trip in own})
    lines = [['', *(f'{each} ms' for each in columns)],
             *([name, *(own.get(each, '') for each in columns)] for name, own in cells.items())]
    return readmes.table(lines)


def summary(rows, whole):
    """Returns in words how near the simulation comes; `whole` is how many real runs are all."""
    compared = pairs(rows)
    counts = {name: [is_near(*each[1:]) for each in compared if each[1] == name]
              for name in FIGURES}
    text = 'The simulation is within ' + '; '.join(
        f'{words} in {sum(counts[name])} of {len(counts[name])} cases' for name, words in (
            ('steps_per_s', '20 % of the measured steps/s'),
            ('staleness', '20 % or 0.1 of the staleness'), ('accuracy', '0.01 of the accuracy'),
            ('dropped', '20 % or 2 % of the share of dropped pushes'))) + '.'
    errors = [abs(other / real - 1) for (scheme, _, workers, _), name, real, other in compared
              if name == 'steps_per_s' and int(workers) > _measured_with(scheme)]
    ratios = [abs(other / rate - 1)
              for (_, _, round_trip), rate, other in simulated_at_a_distance(rows) if round_trip]
    for where, off in (('with more workers than the costs were measured with', errors),
                       ('with a round trip between hosts', ratios)):
        if off:
            text += (f' The steps/s {where} are off by {statistics.median(off):.0%} in the median, '
                     f'by {max(off):.0%} at most.')
    there = len(of(rows, 'real'))
    if there < whole:
        text += f' This is not all of it: {there} of {whole} runs.'
    return readmes.paragraph(text)


def _measured_with(scheme):
    """Returns with how many workers at most the costs of a scheme were measured."""
    return 3 if Example(scheme).kind == 'ring' else 1


def draw(rows):
    """Returns a figure: steps/s as measured, as simulated, and as predicted for a cluster."""
    figure, (here, there) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    predicted = predictions.rates()
    for name in predictions.WINDOWS:
        look = look_of(name)
        for kind, without in ('real', 'linestyle'), ('simulated', 'marker'):
            own = of(rows, kind, scheme=name, backups=0, window=predictions.WINDOWS[name])
            numbers = sorted({int(row['workers']) for row in own})
            here.plot(numbers, [median([row for row in own if row['workers'] == str(number)],
                                       'steps_per_s') for number in numbers],
                      **dict(look, **{without: ''}))
        there.plot(*zip(*predicted[name]), label=name, **look)
    here.set(title='this machine: measured (points), simulated (lines)',
             ylabel='local steps/s of all workers')
    there.set_title(f'predicted: {predictions.IN_WORDS}')
    there.legend(loc='upper left', handlelength=4)
    logarithmic(there, 'x', (1,))
    for panel in here, there:
        logarithmic(panel, 'y')
        panel.set_xlabel('workers')
    return figure


def publish(rows, whole):
    """Puts a summary into README.md and the tables into the page, and draws the picture.

    The rows are those of the file; `whole` is how many real runs there are in all.
    """
    readmes.fill(README, {'validation': summary(rows, whole)})
    readmes.fill(PAGE, {'runs': figures(rows), 'distances': distances(rows)})
    with plt.rc_context(STYLE):
        draw(rows).savefig(str(PICTURE))
