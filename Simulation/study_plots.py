"""Draws the study: pictures with a panel for each family of schemes, and one for each scheme."""

import functools

import matplotlib
from measuring.style import GREY, logarithmic, look_of, STYLE, write
import experiments
import schemes
from study_cases import Absent, ALIKE, CLUSTERS, FIXED, NUMBERS, Study
import study_report
from study_report import known

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

TICKS = 1, 4, 16, 64, 256, 1024
# How a scheme is drawn in its own picture, besides its colour, and how all others are.
ITSELF = {'markersize': 4, 'linewidth': 2, 'linestyle': '-'}
OTHERS = {'color': GREY, 'linewidth': 0.6}


def _over_workers(panel):
    """Gives a panel an axis of the number of workers."""
    panel.set(xlabel='workers', xscale='log', xlim=(TICKS[0] / 1.4, TICKS[-1] * 1.4),
              xticks=TICKS, xticklabels=[f'{tick:,}' for tick in TICKS])
    panel.minorticks_off()


def _panels(table, titles):
    """Makes a figure with a row of panels for each of two titles, and a column for each family.

    Returns:
      The figure, and a list of tuples (panel, index of its title, list of `Study`).
    """
    found = study_report.families(table)
    figure, axes = plt.subplots(2, len(found), figsize=(11, 5), sharex=True, sharey=True,
                                constrained_layout=True)
    for panel, family in zip(axes[0], found):
        panel.set_title(family)
    for panel, title in zip(axes[:, 0], titles):
        panel.set_ylabel(title)
    for panel in axes[-1]:
        _over_workers(panel)
    return figure, [(panel, line, studies) for line in range(2)
                    for panel, studies in zip(axes[line], found.values())]


def _line(panel, study, numbers, value, **look):
    """Draws a line: `value`, a function of a `Study` and a number of workers."""
    points = [(number, value(study, number)) for number in numbers]
    points = [(number, y) for number, y in points if y is not None]
    panel.plot([number for number, _ in points], [y for _, y in points], **look)


def _lines(panel, studies, numbers, value):
    """Draws a line for each `Study`, see `_line`."""
    for study in studies:
        _line(panel, study, numbers, value, label=study.name, **look_of(study.name))


def _figure(name, ask, *more):
    """Returns a function of a `Study` and a number of workers: a figure of a row, or None.

    Args:
      name: string, a column, or 'local steps/s'.
      ask: method of `Study` that returns the row.
      *more: arguments of the method, besides the number of workers.
    """
    def value(study, number):
        row = known(ask, study, number, *more)
        if row and name == 'local steps/s':
            return experiments.local_steps_per_second(row)
        return float(row[name]) if row and row[name] else None
    return value


FIXED_ACCURACY = _figure('accuracy', Study.row)
BEST_ACCURACY = _figure('accuracy', Study.best_row)


def accuracy(table):
    """Draws the accuracy over the number of workers: with one step size, with the best ones."""
    figure, panels = _panels(table, ['accuracy, one step size', 'accuracy, the best ones'])
    for panel, line, studies in panels:
        if line:
            _lines(panel, studies, NUMBERS, BEST_ACCURACY)
            panel.legend(loc='lower left', handlelength=4)
        else:
            _lines(panel, studies, FIXED, FIXED_ACCURACY)
        panel.set_ylim(0, 1.03)
    return figure


def speed_up(table):
    """Draws the speed-up to 95 % over one worker, on both networks."""
    figure, panels = _panels(table, [f'speed-up on {cluster}' for cluster in CLUSTERS])
    for panel, line, studies in panels:
        panel.plot(NUMBERS, NUMBERS, color=GREY, label='linear')
        _lines(panel, studies, NUMBERS, lambda study, number, line=line: study_report.speed_up(
            study, number, CLUSTERS[line]))
        panel.set(yscale='log', ylim=(0.0005, 100), yticks=[0.001, 0.01, 0.1, 1, 10, 100],
                  yticklabels=['0.001', '0.01', '0.1', '1', '10', '100'])
        if line == 0:
            panel.legend(loc='lower left', handlelength=4)
    return figure


def of_scheme(table, name):
    """Draws the lines of a scheme in front of those of all others.

    A scheme whose step size is not tuned has fewer panels.
    """
    everyone = [Study(table, Absent(each)) for each in schemes.folders()]
    with_tuned = [study for study in everyone if study.name not in ALIKE]
    panels = [('accuracy, one step size', everyone, FIXED, FIXED_ACCURACY)]
    if name in ALIKE:
        panels.append(('local steps/s', everyone, FIXED, _figure('local steps/s', Study.row)))
    else:
        panels.append(('accuracy, best step sizes', with_tuned, NUMBERS, BEST_ACCURACY))
        panels += [(f's to 95 % on {cluster}', with_tuned, NUMBERS,
                    _figure('target_seconds', Study.soonest_row, cluster)) for cluster in CLUSTERS]
    figure, axes = plt.subplots(1, len(panels), figsize=(2.75 * len(panels), 2.5))
    for panel, (title, studies, numbers, value) in zip(axes, panels):
        panel.set_title(title)
        _over_workers(panel)
        if 'accuracy' in title:
            panel.set_ylim(0, 1.02)
        else:
            logarithmic(panel, 'y', (1, 3))
        for study in sorted(studies, key=lambda study: study.name == name):  # it comes last
            is_itself = study.name == name
            _line(panel, study, numbers, value, label=name if is_itself else 'the others',
                  **(dict(look_of(name), **ITSELF) if is_itself else OTHERS))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend([handles[-1], handles[0]], [labels[-1], labels[0]], loc='upper left', ncol=2)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def picture_of(name):
    """Returns the name of a scheme's picture."""
    return f'scheme-{name}.png'


def draw(table, directory):
    """Writes the pictures of an `experiments.Table` into a directory, a path."""
    with plt.rc_context(STYLE):
        for name, picture in [
                ('study-accuracy.png', accuracy), ('study-speed-up.png', speed_up),
                *((picture_of(name), functools.partial(of_scheme, name=name))
                  for name in schemes.folders())]:
            figure = picture(table)
            write(figure, directory / name, 64)
            plt.close(figure)
