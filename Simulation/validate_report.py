"""Reports what `validate` found: a summary in README.md, tables, and the picture.

Only cases that no cost was measured with are counted, see `validate_cases.is_fitted`. Beside each
simulated figure of steps/s stands that of the naive model, see `naive`.
"""

import collections
import statistics

import matplotlib
from measuring import readmes
from measuring.results import median
from measuring.style import COLOURS, GREY, logarithmic, look_of, STYLE
import experiments
import naive
import predictions
import validate_cases
from validate_cases import FIELDS, GROUPS, name_of, of, setting_of, words

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

README = experiments.HERE / 'README.md'
PICTURE, PAGE = (experiments.HERE / 'results' / f'validation.{kind}' for kind in ('png', 'md'))
FIGURES = ['steps_per_s', 'staleness', 'accuracy', 'dropped']
TOLERANCES = {'steps_per_s': (0.2, 0), 'staleness': (0.2, 0.1), 'accuracy': (0, 0.01),
              'dropped': (0.2, 0.02)}  # relative, absolute: one of them is enough
_FORMS = {'steps_per_s': '.0f', 'staleness': '.2f', 'accuracy': '.3f', 'dropped': '.1%'}
_WORST = 3  # cases that the summary names

Compared = collections.namedtuple('Compared', 'case real simulated naive')
Compared.__doc__ = """A case, as it was really run, as simulated, and by the naive model.

Attributes:
  case: dict of strings by FIELDS.
  real, simulated: dicts of floats by FIGURES, of those that there are.
  naive: float, steps/s.
"""


def figures_of(group):
    """Returns which FIGURES are compared in a group.

    The accuracy is so only in the long runs on this machine: in short ones the initial values
    decide it, which are others in a simulation.
    """
    return [name for name in FIGURES if group == 'here' or name != 'accuracy']


def compared(rows):
    """Returns a list of `Compared`, of the rows of the file, dicts of strings."""
    found = []
    for row in of(rows, 'simulated'):
        case = {name: row[name] for name in FIELDS}
        names = figures_of(validate_cases.group_of(case))
        real, simulated = ({name: value for name in names for value in [median(own, name)]
                            if value is not None} for own in (of(rows, 'real', **case), [row]))
        found.append(Compared(case, real, simulated, naive.steps_per_second(rows, case)))
    return found


def counted(found):
    """Returns those of a list of `Compared` that nothing was fitted to."""
    return [each for each in found if not validate_cases.is_fitted(each.case)]


def is_near(name, real, other):
    """Returns whether another figure is near enough to the real one."""
    relative, absolute = TOLERANCES[name]
    return abs(other - real) <= max(relative * abs(real), absolute)


def error(each, model):
    """Returns by which share a model, 'simulated' or 'naive', has too many steps/s, a float."""
    steps = each.naive if model == 'naive' else each.simulated['steps_per_s']
    return steps / each.real['steps_per_s'] - 1


def _cells(each, name):
    """Returns the cells of a figure: the real one, the simulated one, and of steps/s the naive one.

    In parentheses is what was fitted, and in bold what is off.
    """
    real, others = each.real.get(name), [each.simulated.get(name)]
    if name == 'steps_per_s':
        others.append(each.naive)
    if None in (real, *others):
        return [''] * (1 + len(others))
    is_fitted = validate_cases.is_fitted(each.case)
    texts = [format(other, _FORMS[name]) for other in others]
    return [format(real, _FORMS[name]),
            *(f'({text})' if is_fitted else text if is_near(name, real, other) else f'**{text}**'
              for text, other in zip(texts, others))]


def figures(found, group):
    """Returns the table of a group's cases, in Markdown; `found` is a list of `Compared`."""
    own = [each for each in found if validate_cases.group_of(each.case) == group]
    if not own:
        return 'Not measured yet: `bash Simulation/run.sh --validate` does it.'
    settings = [] if group == 'here' else ['with']
    names = figures_of(group)
    lines = [['', 'workers', *settings, 'steps/s', 'simulated', 'naive',
              *(word for name in names[1:] for word in (name, 'simulated'))]]
    lines += [[name_of(each.case), each.case['workers'], *[setting_of(each.case)] * len(settings),
               *(cell for name in names for cell in _cells(each, name))] for each in own]
    return readmes.table(lines)


def _percent(share):
    return f'{100 * share:.0f} %'


def _errors(found):
    """Returns cells: how many cases; of both models the median error, the largest, how many near.

    The last ones are those within the tolerance.
    """
    cells = [str(len(found))]
    for model in 'simulated', 'naive':
        off = [abs(error(each, model)) for each in found]
        near = sum(share <= TOLERANCES['steps_per_s'][0] for share in off)
        cells += [_percent(statistics.median(off)), _percent(max(off)), str(near)]
    return cells


def summary(rows):
    """Returns in Markdown how near the simulation comes, beyond what was fitted."""
    found = counted(compared(rows))
    parts = []
    if found:
        number, middle, most, _, naive_middle, naive_most, _ = _errors(found)
        parts.append(readmes.paragraph(
            f'With {number} of the cases no cost was measured. In these the simulated steps/s are '
            f'off by {middle} in the median and by {most} at most. The naive model, which is one '
            f'line of arithmetic, is off by {naive_middle} in the median and by {naive_most} at '
            'most.'))
        by_group = {title: [each for each in found
                            if validate_cases.group_of(each.case) == group]
                    for group, title in GROUPS.items()}
        parts.append(readmes.table([
            ['steps/s', 'cases', 'simulated: median error', 'largest', 'within 20 %',
             'naive: median error', 'largest', 'within 20 %'],
            *([title, *_errors(own)] for title, own in by_group.items() if own)]))
        parts.append(readmes.paragraph(f'{_others_near(found)} {_worst(found)}'))
    missing = len(validate_cases.missing(rows))
    if missing:
        parts.append(readmes.paragraph(
            f'This is not all of it: {missing} of {len(validate_cases.cases())} runs are missing.'))
    return '\n\n'.join(parts)


def _others_near(found):
    """Returns a sentence: how often the other figures of a list of `Compared` are near."""
    parts = []
    for name, tolerance in (('staleness', '20 % or 0.1 of the staleness'),
                            ('accuracy', '0.01 of the accuracy'),
                            ('dropped', '20 % or 2 % of the share of dropped pushes')):
        near = [is_near(name, each.real[name], each.simulated[name]) for each in found
                if name in each.real and name in each.simulated]
        if near:
            parts.append(f'{tolerance} in {sum(near)} of {len(near)}')
    return f'The simulation is within {"; ".join(parts)}.' if parts else ''


def _worst(found):
    """Returns a sentence that names those of a list of `Compared` that are furthest off."""
    worst = sorted(found, key=lambda each: -abs(error(each, 'simulated')))[:_WORST]
    named = '; '.join(
        f'{words(each.case)}, {_percent(abs(share))} too {"fast" if share > 0 else "slow"}'
        for each in worst for share in [error(each, 'simulated')])
    return f'Furthest off: {named}.'


def _draw_here(panel, rows):
    """Draws the steps/s over the number of workers on this machine: measured, and simulated."""
    for name in predictions.WINDOWS:
        look = look_of(name)
        for kind, without in ('real', 'linestyle'), ('simulated', 'marker'):
            own = of(rows, kind, scheme=name, backups=0, window=predictions.WINDOWS[name],
                     model='', sleep='', mbit='', round_trip='')
            numbers = sorted({int(row['workers']) for row in own})
            panel.plot(numbers, [median([row for row in own if row['workers'] == str(number)],
                                        'steps_per_s') for number in numbers],
                       **dict(look, **{without: ''}))
    panel.set(title='this machine: measured (points), simulated (lines)', xlabel='workers',
              ylabel='local steps/s of all workers')
    logarithmic(panel, 'y')


def _draw_errors(panel, found):
    """Draws the ratio to the measured steps/s, of both models, by group."""
    panel.axhspan(0.8, 1.2, color=GREY, alpha=0.2, linewidth=0)
    panel.axhline(1, color=GREY)
    for model, side, colour in ('simulated', -0.2, COLOURS[0]), ('naive', 0.2, COLOURS[1]):
        points = []
        for place, group in enumerate(GROUPS):
            own = [each for each in found if validate_cases.group_of(each.case) == group]
            points += [(place + side + 0.24 * (i / max(1, len(own) - 1) - 0.5),
                        1 + error(each, model)) for i, each in enumerate(own)]
        panel.plot([x for x, _ in points], [y for _, y in points], 'o', color=colour, markersize=3,
                   label=model)
    panel.set(title='steps/s, relative to measured: not fitted', xticks=range(len(GROUPS)),
              ylim=(0, None))
    panel.set_xticklabels(GROUPS)
    panel.legend(loc='lower left')


def _draw_predicted(panel):
    """Draws what is predicted for a cluster."""
    predicted = predictions.rates()
    for name in predictions.WINDOWS:
        panel.plot(*zip(*predicted[name]), label=name, **look_of(name))
    panel.set(title=f'predicted: {predictions.IN_WORDS}', xlabel='workers')
    panel.legend(loc='upper left', handlelength=4)
    logarithmic(panel, 'x', (1,))
    logarithmic(panel, 'y')


def draw(rows):
    """Returns a figure: steps/s as measured and simulated, errors, and predicted for a cluster."""
    figure, (here, errors, there) = plt.subplots(1, 3, figsize=(13, 3.6), constrained_layout=True)
    _draw_here(here, rows)
    _draw_errors(errors, counted(compared(rows)))
    _draw_predicted(there)
    return figure


def publish(rows, directory=None):
    """Publishes the rows of a file: a summary in README.md, tables on the page, and the picture.

    With a `directory`, a path, all of it goes there, and nothing is published.
    """
    found = compared(rows)
    tables = {group: figures(found, group) for group in GROUPS}
    if directory:
        (directory / 'validation.md').write_text('\n\n'.join([
            summary(rows), *(f'## {GROUPS[group]}\n\n{table}' for group, table in tables.items())
        ]) + '\n', encoding='utf-8')
    else:
        readmes.fill(README, {'validation': summary(rows)})
        readmes.fill(PAGE, tables)
    with plt.rc_context(STYLE):
        draw(rows).savefig(str(directory / 'validation.png' if directory else PICTURE))
