"""Draws the study: pictures with a panel for each family of schemes, and one for each scheme."""

import functools
import statistics

import matplotlib
from measuring.study import curve, TARGET
from measuring.style import GREY, logarithmic, look_of, STYLE, write
import experiments
import schemes
import study_cases
from study_cases import (Absent, ALIKE, case, CLUSTERS, NUMBERS, OF_IMAGES, REFERENCE, SOME,
                         Study)
import study_figures
from study_figures import best_rows, digits_rows, mean_seconds, soonest_rows
import study_report

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

TICKS = 1, 8, 64, 256, 1024
# How a scheme is drawn in its own picture, besides its colour, and how all others are.
ITSELF = {'markersize': 4, 'linewidth': 2, 'linestyle': '-'}
OTHERS = {'color': GREY, 'linewidth': 0.6}


def _look(name):
    """Returns how a scheme of the study is drawn, a dict; see `measuring.style.look_of`."""
    folder = study_cases.folder_of(name)
    return dict(look_of(folder), **({} if name == folder else {'linestyle': ':'}))


def _over_workers(panel):
    """Gives a panel an axis of the number of workers."""
    panel.set(xlabel='workers', xscale='log', xlim=(TICKS[0] / 1.4, TICKS[-1] * 1.4),
              xticks=TICKS)
    panel.set_xticklabels([f'{tick:,}' for tick in TICKS])
    panel.minorticks_off()


def _panels(table, titles):
    """Makes a figure with a row of panels for each title, and a column for each family.

    Returns:
      The figure, and a list of tuples (panel, index of its title, list of `Study`).
    """
    found = study_figures.families(table)
    figure, axes = plt.subplots(len(titles), len(found), figsize=(11, 2 + 2.4 * len(titles)),
                                sharex='row', sharey=True, squeeze=False, constrained_layout=True)
    for panel, family in zip(axes[0], found):
        panel.set_title(family)
    for panel, title in zip(axes[:, 0], titles):
        panel.set_ylabel(title)
    return figure, [(panel, line, studies) for line in range(len(titles))
                    for panel, studies in zip(axes[line], found.values())]


def _legends(panels):
    """Says below each column of `_panels` what its lines are: no panel has room for it."""
    last = max(line for _, line, _ in panels)
    for panel, line, _ in panels:
        if line == last:
            panel.legend(loc='upper center', bbox_to_anchor=(0.5, -0.22), handlelength=4)


def _line(panel, points, **look):
    """Draws a line with error bars: the means and standard deviations of lists of floats, by x."""
    points = {x: values for x, values in points.items() if values}
    spreads = [statistics.stdev(values) if len(values) > 1 else 0 for values in points.values()]
    panel.errorbar(list(points), list(map(statistics.mean, points.values())),
                   spreads if any(spreads) else None, capsize=2, elinewidth=1, **look)


def _excess(study, its_case):
    """Returns the excess losses of a case with the best step size, a list by seed."""
    rows = best_rows(study, its_case)
    return [] if any(row['diverged'] == '1' for row in rows) else [
        float(row['excess_loss']) for row in rows]


def _seconds(study, its_case, tuned=True):
    """Returns the mean time of a case to the TARGET, a list of one; empty if not all come there."""
    found = mean_seconds(soonest_rows(study, its_case, tuned))
    return [found] if found else []


def _seconds_on(cluster, study, workers):
    return _seconds(study, case(workers, cluster=cluster), cluster == CLUSTERS[0])


def _of_digits(figure, study, workers):
    """Returns a figure, a function of a row, of the digits, a list by seed."""
    return list(map(figure, digits_rows(study, workers)))


def _alone(table):
    return Study(table, Absent(REFERENCE))


def excess(table):
    """Draws the excess loss over the number of workers."""
    figure, panels = _panels(table, ['excess loss'])
    for panel, _, studies in panels:
        of_one = _excess(_alone(table), case(1))
        if of_one:
            panel.axhline(statistics.mean(of_one), color=GREY, linestyle=':', label='one worker')
        for study in studies:
            _line(panel, {number: _excess(study, case(number)) for number in NUMBERS},
                  label=study.name, **_look(study.name))
        _over_workers(panel)
        logarithmic(panel, 'y')
    _legends(panels)
    return figure


def _curve(panel, rows, by_time, **look):
    """Draws the mean excess loss of some rows by examples, or by virtual time."""
    tests = list(zip(*map(curve, rows)))
    if tests and all(row['diverged'] == '0' for row in rows):
        xs = [statistics.mean(test[1] if by_time else test[0] * experiments.BATCH
                              for test in same) for same in tests]
        panel.plot(xs, [statistics.mean(test[2] for test in same) for same in tests],
                   **dict(look, markersize=3))
        if len(rows) > 1:
            lows, highs = ([which(test[2] for test in same) for same in tests]
                           for which in (min, max))
            panel.fill_between(xs, lows, highs, color=look['color'], alpha=0.2)


def curves(table):
    """Draws the excess loss with SOME workers by examples, and by virtual time."""
    figure, panels = _panels(table, ['excess loss by examples', 'excess loss by virtual s'])
    for panel, line, studies in panels:
        _curve(panel, best_rows(_alone(table), case(1)), line, label='one worker',
               **dict(OTHERS, linestyle=':', linewidth=1.5))
        for study in studies:
            _curve(panel, best_rows(study, case(SOME)), line, label=study.name,
                   **_look(study.name))
        logarithmic(panel, 'y')
        logarithmic(panel, 'x', (1,))
        panel.set(ylim=(0.05, 3), xlabel='virtual s' if line else 'examples')
    _legends(panels)
    return figure


def speed_up(table):
    """Draws the speed-up to the TARGET over one worker, on both networks."""
    figure, panels = _panels(table, [f'speed-up on {cluster}' for cluster in CLUSTERS])
    batch = study_figures.critical_of(table)
    for panel, line, studies in panels:
        panel.plot(TICKS, TICKS, color=GREY, label='linear')
        if batch:
            panel.axvline(batch[1], color=GREY, linestyle=':', label='critical batch')
        for study in studies:
            found = {number: study_figures.speed_up(table, study, number, CLUSTERS[line])
                     for number in NUMBERS}
            _line(panel, {number: [value] for number, value in found.items() if value},
                  label=study.name, **_look(study.name))
        _over_workers(panel)
        logarithmic(panel, 'y', (1,))
        panel.set_ylim(0.01, 1024)
    _legends(panels)
    return figure


def windows(table):
    """Draws the excess loss and the time to the TARGET over the window."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), constrained_layout=True)
    for name in study_cases.WINDOWED:
        study = Study(table, Absent(name))
        for shift in '', study_cases.SHIFT:
            look = dict(look_of(name), linestyle='--' if shift else '-')
            for panel, value in zip(axes, (_excess, _seconds)):
                _line(panel, {window: value(study, study_cases.of_window(window, shift))
                              for window in study_cases.WINDOWS},
                      label=f'{name}, {"unequal" if shift else "equal"} data', **look)
    for panel, title in zip(axes, ('excess loss', f's to an excess loss of {TARGET}')):
        panel.set(title=title, xlabel='window', xscale='log', xticks=study_cases.WINDOWS)
        panel.set_xticklabels(map(str, study_cases.WINDOWS))
        panel.minorticks_off()
        logarithmic(panel, 'y')
    axes[1].legend(loc='upper right', handlelength=4)
    return figure


def of_scheme(table, name):
    """Draws the lines of a scheme in front of those of all others.

    A scheme whose step size is that of another one has fewer panels.
    """
    everyone = [Study(table, Absent(each)) for each in schemes.folders()]
    tuned = [study for study in everyone if study.name not in ALIKE]
    panels = [('accuracy on the digits', everyone, OF_IMAGES, functools.partial(
        _of_digits, lambda row: float(row['accuracy'])))]
    if name in ALIKE:
        panels.append(('local steps/s', everyone, OF_IMAGES, functools.partial(
            _of_digits, experiments.local_steps_per_second)))
    else:
        panels = [('excess loss', tuned, NUMBERS,
                   lambda study, number: _excess(study, case(number))),
                  *((f's to {TARGET} on {cluster}', tuned, NUMBERS,
                     functools.partial(_seconds_on, cluster)) for cluster in CLUSTERS), *panels]
    figure, axes = plt.subplots(1, len(panels), figsize=(2.75 * len(panels), 2.5))
    for panel, (title, studies, numbers, value) in zip(axes, panels):
        panel.set_title(title)
        for study in sorted(studies, key=lambda study: study.name == name):  # it comes last
            is_itself = study.name == name
            _line(panel, {number: value(study, number) for number in numbers},
                  label=name if is_itself else 'the others',
                  **(dict(look_of(name), **ITSELF) if is_itself else OTHERS))
        _over_workers(panel)
        if 'accuracy' in title:
            panel.set_ylim(0, 1.02)
        else:
            logarithmic(panel, 'y', (1, 3))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend([handles[-1], handles[0]], [labels[-1], labels[0]], loc='upper left', ncol=2)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def picture_of(name):
    """Returns the name of a scheme's picture."""
    return f'scheme-{name}.png'


PICTURES = {'study-excess.png': excess, 'study-curves.png': curves,
            'study-scaling.png': speed_up, 'study-windows.png': windows}


def draw(table, directory):
    """Writes the pictures of an `experiments.Table` into a directory, a path.

    Those whose results are not told yet stay as they are, see `study_report.is_told`.
    """
    pictures = {picture_of(name): functools.partial(of_scheme, name=name)
                for name in schemes.folders() if study_report.is_told(table, name)}
    if study_report.is_told(table):
        pictures.update(PICTURES)
    with plt.rc_context(STYLE):
        for name, picture in pictures.items():
            figure = picture(table)
            write(figure, directory / name, 64)
            plt.close(figure)
