"""The pictures of the study: a panel for each family of schemes; and one for each scheme."""

import functools
import io

import experiments
import matplotlib
import PIL.Image
import schemes
from study_cases import Absent, ALIKE, CLUSTERS, FIXED, NUMBERS, Study
import study_report  # makes the modules of Comparison known
from study_report import known
from style import COLOURS, GREY, logarithmic, MARKERS, STYLE

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

TICKS = 1, 4, 16, 64, 256, 1024
# How a scheme is drawn in its own picture, and how all others are.
ITSELF = {'color': COLOURS[0], 'marker': MARKERS[0], 'markersize': 4, 'linewidth': 2}
OTHERS = {'color': GREY, 'linewidth': 0.6}


def _over_workers(panel):
    """Has a panel show something over the number of workers."""
    panel.set_xlabel('workers')
    panel.set_xscale('log')
    panel.set_xlim(TICKS[0] / 1.4, TICKS[-1] * 1.4)
    panel.set_xticks(TICKS)
    panel.set_xticklabels(f'{tick:,}' for tick in TICKS)
    panel.minorticks_off()


def _panels(table, titles):
    """Makes a figure with a line of panels for each of two titles, and a column for each family.

    Returns:
      The figure, and a list of tuples (panel, index of the title, list of `Study`).
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
    """Draws a line for a `Study`, of a function of it and a number of workers."""
    points = [(number, value(study, number)) for number in numbers]
    points = [(number, y) for number, y in points if y is not None]
    panel.plot([number for number, _ in points], [y for _, y in points], **look)


def _lines(panel, studies, numbers, value):
    """Draws a line for each `Study`, see `_line`."""
    for study, colour, marker in zip(studies, COLOURS, MARKERS):
        _line(panel, study, numbers, value, color=colour, marker=marker, markersize=4,
              label=study.name)


def _fixed_accuracy(study, number):
    row = known(study.row, number)
    return row and float(row['accuracy'])


def _best_accuracy(study, number):
    row = known(study.best_row, number)
    return row and float(row['accuracy'])


def accuracy(table):
    """Draws the accuracy over the number of workers, with one step size and with the best ones."""
    figure, panels = _panels(table, ['accuracy, one step size', 'accuracy, the best ones'])
    for panel, line, studies in panels:
        if line:
            _lines(panel, studies, NUMBERS, _best_accuracy)
            panel.legend(loc='lower left')
        else:
            _lines(panel, studies, FIXED, _fixed_accuracy)
        panel.set_ylim(0, 1)
    return figure


def speed_up(table):
    """Draws how many times as soon as one worker they have 95 %, on both networks."""
    figure, panels = _panels(table, [f'speed-up on {cluster}' for cluster in CLUSTERS])
    for panel, line, studies in panels:
        panel.plot(NUMBERS, NUMBERS, color=GREY, linestyle='--', label='as many as workers')
        _lines(panel, studies, NUMBERS, lambda study, number, line=line: study_report.speed_up(
            study, number, CLUSTERS[line]))
        panel.set_yscale('log')
        panel.set_ylim(0.0005, 100)
        panel.set_yticks([0.001, 0.01, 0.1, 1, 10, 100])
        panel.set_yticklabels(['0.001', '0.01', '0.1', '1', '10', '100'])
        if line == 0:
            panel.legend(loc='lower left')
    return figure


def _seconds(study, number, cluster):
    row = known(study.soonest_row, number, cluster)
    return float(row['target_seconds']) if row and row['target_seconds'] else None


def _local_steps(study, number):
    row = known(study.row, number)
    return row and experiments.local_steps_per_second(row)


def of_scheme(table, name):
    """Draws where a scheme stands: its own lines in front of those of all others.

    Of one whose step size is not tuned there is less to be seen.
    """
    everyone = [Study(table, Absent(each)) for each in schemes.folders()]
    with_tuned = [study for study in everyone if study.name not in ALIKE]
    panels = [('accuracy, one step size', everyone, FIXED, _fixed_accuracy)]
    if name in ALIKE:
        panels.append(('local steps in a second', everyone, FIXED, _local_steps))
    else:
        panels.append(('accuracy, best step sizes', with_tuned, NUMBERS, _best_accuracy))
        panels += [(f's to 95 % on {cluster}', with_tuned, NUMBERS,
                    functools.partial(_seconds, cluster=cluster)) for cluster in CLUSTERS]
    figure, axes = plt.subplots(1, len(panels), figsize=(2.75 * len(panels), 2.5))
    for panel, (title, studies, numbers, value) in zip(axes, panels):
        panel.set_title(title)
        _over_workers(panel)
        if 'accuracy' in title:
            panel.set_ylim(0, 1.02)
        else:
            logarithmic(panel, 'y', (1, 3))
        for study in sorted(studies, key=lambda study: study.name == name):  # itself in front
            is_itself = study.name == name
            _line(panel, study, numbers, value, label=name if is_itself else 'the others',
                  **(ITSELF if is_itself else OTHERS))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend([handles[-1], handles[0]], [labels[-1], labels[0]], loc='upper left', ncol=2)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def picture_of(name):
    """Returns the name of the picture of a scheme."""
    return f'scheme-{name}.png'


def _write(figure, path):
    """Writes a figure into a file, a path, with 64 colours: that is a third of its size."""
    whole = io.BytesIO()
    figure.savefig(whole, format='png')
    PIL.Image.open(whole).convert('RGB').quantize(64).save(str(path), optimize=True)


def draw(table, directory):
    """Writes the pictures of an `experiments.Table` into a directory, a path."""
    with plt.rc_context(STYLE):
        for name, picture in [
                ('study-accuracy.png', accuracy), ('study-speed-up.png', speed_up),
                *((picture_of(name), functools.partial(of_scheme, name=name))
                  for name in schemes.folders())]:
            figure = picture(table)
            _write(figure, directory / name)
            plt.close(figure)
