"""The pictures of the study: a panel for each family of schemes."""

import matplotlib
from study_cases import CLUSTERS, FIXED, NUMBERS
import study_report  # makes the modules of Comparison known
from study_report import known
from style import COLOURS, GREY, MARKERS, STYLE

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

TICKS = 1, 4, 16, 64, 256, 1024


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
        panel.set_xlabel('workers')
        panel.set_xscale('log')
        panel.set_xticks(TICKS)
        panel.set_xticklabels(f'{tick:,}' for tick in TICKS)
        panel.minorticks_off()
    return figure, [(panel, line, studies) for line in range(2)
                    for panel, studies in zip(axes[line], found.values())]


def _lines(panel, studies, numbers, value):
    """Draws a line for each `Study`, of a function of it and a number of workers."""
    for study, colour, marker in zip(studies, COLOURS, MARKERS):
        points = [(number, value(study, number)) for number in numbers]
        points = [(number, y) for number, y in points if y is not None]
        panel.plot([number for number, _ in points], [y for _, y in points], color=colour,
                   marker=marker, markersize=4, label=study.name)


def accuracy(table):
    """Draws the accuracy over the number of workers, with one step size and with the best ones."""
    def of(*asked):
        row = known(*asked)
        return row and float(row['accuracy'])

    figure, panels = _panels(table, ['accuracy, one step size', 'accuracy, the best ones'])
    for panel, line, studies in panels:
        if line:
            _lines(panel, studies, NUMBERS, lambda study, number: of(study.best_row, number))
            panel.legend(loc='lower left')
        else:
            _lines(panel, studies, FIXED, lambda study, number: of(study.row, number))
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
        panel.set_ylim(0.001, 100)
        panel.set_yticks([0.001, 0.01, 0.1, 1, 10, 100])
        panel.set_yticklabels(['0.001', '0.01', '0.1', '1', '10', '100'])
        if line == 0:
            panel.legend(loc='lower left')
    return figure


def draw(table, directory):
    """Writes the pictures of an `experiments.Table` into a directory, a path."""
    with plt.rc_context(STYLE):
        for picture in accuracy, speed_up:
            figure = picture(table)
            figure.savefig(str(directory / f'study-{picture.__name__.replace("_", "-")}.png'))
            plt.close(figure)
