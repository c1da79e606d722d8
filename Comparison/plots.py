"""The pictures of the comparison: small panels, few lines in each.

Each function takes the rows of results.csv and returns a figure, or None if they have nothing for
it.
"""

import collections
import math

from examples import BARE, examples, GROUPS
import matplotlib
import numpy as np
import report
from style import COLOURS, GREY, logarithmic, MARKERS, STYLE

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

GROUP_COLOURS = dict(zip(GROUPS, ['#000000', *COLOURS]))
SHORT = {'Synchronous-SGD-different-learning-rates': 'Synchronous-SGD, own rates',
         'Multiple-GPUs-Single-Machine': 'Multiple-GPUs, towers'}


def short(name):
    """Returns a folder's name as it fits into a picture."""
    return SHORT.get(name, name)


def groups(rows):
    """Returns a dict of the `Example`s with runs in the table, by group; no empty groups."""
    there = {row['folder'] for row in rows}
    found = collections.OrderedDict()
    for group in GROUPS:
        members = [each for each in examples() if each.group == group and each.name in there]
        if members:
            found[group] = members
    return found


def mean_curve(rows, axis, points=60):
    """Returns the mean of some runs' test accuracy.

    Args:
      rows: list of dicts, runs.
      axis: int, over what: 0 for local steps, 1 for seconds.
      points: int, how many.

    Returns:
      Two arrays of floats [points], up to where the first run ends; None without curves.
    """
    curves = [report.curve(row) for row in rows if row['curve']]
    if not curves:
        return None
    last = min(each[axis][-1] for each in curves)
    x = last * np.linspace(0, 1, points) ** 2  # more of them where it rises
    return x, np.mean([np.interp(x, each[axis], each[2]) for each in curves], axis=0)


def accuracy(rows):
    """Draws test accuracy against wall time and against local steps, by groups."""
    rows = [row for row in rows if row['experiment'] in report.TABLE]
    found = groups(rows)
    if not found:
        return None
    figure, axes = plt.subplots(len(found), 2, figsize=(9, 2.5 * len(found)), sharey=True,
                                squeeze=False, sharex='col')
    for panels, (group, members) in zip(axes, found.items()):
        for axis, panel in zip((1, 0), panels):
            reference = mean_curve([row for row in rows if row['folder'] == report.REFERENCE],
                                   axis)
            if reference and report.REFERENCE not in [each.name for each in members]:
                panel.plot(*reference, color=GREY, linestyle='--', label=report.REFERENCE)
            for example, colour, marker in zip(members, COLOURS, MARKERS):
                drawn = mean_curve([row for row in rows if row['folder'] == example.name], axis)
                if drawn:
                    panel.plot(*drawn, color=colour, label=short(example.name), marker=marker,
                               markersize=3.5, markevery=10)
            panel.set_ylim(0.7, 1)
        logarithmic(panels[0], 'x')
        panels[1].set_xlim(left=0)
        panels[0].set_title(group)
        panels[0].set_ylabel('test accuracy')
        panels[1].legend(loc='lower right')
    axes[-1][0].set_xlim(0.03, max(report.curve(row)[1][-1] for row in rows if row['curve']))
    axes[-1][0].set_xlabel('seconds since training began')
    axes[-1][1].set_xlabel('local steps of all workers')
    return figure


def overview(rows):
    """Draws the table: a line for each scheme, a panel for each figure."""
    found = [each for each in report.summaries(rows) if each.example and each.rate]
    if not found:
        return None
    figure, axes = plt.subplots(1, 4, figsize=(9.5, 0.27 * len(found) + 1.1), sharey=True)
    panels = [('test accuracy', 'accuracy', False), ('seconds to 95 %', 'seconds_to_95', True),
              ('local steps/s', 'rate', True), ('bytes per local step', 'sent', True)]
    places = range(len(found))
    for panel, (title, figure_name, is_logarithmic) in zip(axes, panels):
        for place, summary in zip(places, found):
            value = getattr(summary, figure_name)
            if value is None or (is_logarithmic and not value):
                text = 'none' if figure_name == 'sent' else 'not reached'
                panel.text(0.02, place, text, va='center', fontsize=7, color=GREY,
                           transform=panel.get_yaxis_transform())
                continue
            panel.errorbar(value, place, fmt='o', markersize=5, capsize=2,
                           xerr=summary.spread if figure_name == 'accuracy' else None,
                           color=GROUP_COLOURS[summary.example.group])
        panel.set_title(title)
        if is_logarithmic:
            logarithmic(panel, 'x', (1, 2, 5) if figure_name == 'seconds_to_95' else (1, 3))
        panel.tick_params(axis='y', length=0)
    lowest = min(each.accuracy for each in found if each.accuracy is not None)
    axes[0].set_xlim(max(0.8, lowest - 0.01), 1)
    axes[0].set_yticks(list(places))
    axes[0].set_yticklabels([short(each.name) for each in found])
    for label, summary in zip(axes[0].get_yticklabels(), found):
        label.set_color(GROUP_COLOURS[summary.example.group])
    axes[0].invert_yaxis()
    handles = [plt.Line2D([], [], marker='o', linestyle='', color=GROUP_COLOURS[group])
               for group in groups(rows)]
    figure.legend(handles, list(groups(rows)), loc='lower center', ncol=4)
    figure.tight_layout(rect=(0, 0.9 / (2.5 * len(found)), 1, 1))
    return figure


def _against(rows, experiment, column, label):
    """Draws throughput and accuracy of an experiment against one of its columns, by groups."""
    rows = [row for row in rows if row['experiment'] == experiment]
    found = groups(rows)
    if not found:
        return None
    figure, axes = plt.subplots(len(found), 2, figsize=(9, 2.5 * len(found)), squeeze=False,
                                sharex=True, sharey='col')
    values = sorted({int(row[column]) for row in rows})
    for panels, (group, members) in zip(axes, found.items()):
        for panel, figure_name in zip(panels, ('steps_per_s', 'test_accuracy')):
            for example, colour, marker in zip(members, COLOURS, MARKERS):
                own = sorted((int(row[column]), float(row[figure_name])) for row in rows
                             if row['folder'] == example.name and row[figure_name])
                if own:
                    panel.plot(*zip(*own), color=colour, marker=marker, markersize=4,
                               label=short(example.name))
            panel.set_xscale('log')
            panel.set_xticks(values)
            panel.set_xticklabels(values)
            panel.minorticks_off()
        logarithmic(panels[0], 'y')
        panels[0].set_title(group)
        panels[0].set_ylabel('local steps/s of all workers')
        panels[1].set_ylabel('test accuracy')
        panels[1].legend(loc='lower left')
    lowest = min(float(row['test_accuracy']) for row in rows if row['test_accuracy'])
    axes[0][1].set_ylim(max(0.5, lowest - 0.02), 1)
    for panel in axes[-1]:
        panel.set_xlabel(label)
    return figure


def windows(rows):
    """Draws throughput and accuracy against the window."""
    return _against(rows, 'window', 'window', 'local steps in a window')


def workers(rows):
    """Draws throughput and accuracy against the number of workers."""
    return _against(rows, 'workers', 'workers', 'workers')


def latency(rows):
    """Draws throughput against the round-trip time of the network."""
    lines = collections.defaultdict(list)
    for row in rows:
        if row['experiment'] == 'latency' and row['steps_per_s']:
            windowed = f', window {row["window"]}' * (int(row['window']) > 1)
            lines[row['folder'] + windowed].append((float(row['round_trip']),
                                                    float(row['steps_per_s'])))
    if not lines:
        return None
    figure, panel = plt.subplots(figsize=(9, 3.6))
    for (name, points), colour, marker in zip(lines.items(), COLOURS, MARKERS):
        x, y = zip(*sorted(points))
        panel.plot(x, y, color=colour, marker=marker, markersize=5, label=name)
    panel.legend(loc='center left', bbox_to_anchor=(1, 0.5))  # beside: some lines lie together
    logarithmic(panel, 'y')
    panel.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
    panel.set_xlabel('round-trip time of the network, ms')
    panel.set_ylabel('local steps/s of all workers')
    return figure


def straggler(rows):
    """Draws what is left of each scheme's throughput with a straggler."""
    left = sorted((each.straggling / each.rate, each.name, each.example.group)
                  for each in report.summaries(rows) if each.straggling and each.rate)
    if not left:
        return None
    figure, panel = plt.subplots(figsize=(9, 0.26 * len(left) + 0.9))
    shares, names, of_groups = zip(*left)
    bars = panel.barh(range(len(left)), shares, height=0.7,
                      color=[GROUP_COLOURS[group] for group in of_groups])
    for bar, share in zip(bars, shares):
        panel.text(bar.get_width(), bar.get_y() + 0.35, f' {share:.0%}', va='center', fontsize=8)
    panel.set_yticks(range(len(left)))
    panel.set_yticklabels([short(name) for name in names])
    panel.grid(axis='y', visible=False)
    panel.set_xlabel('local steps/s with one of two workers slowed down, in those without')
    handles = [plt.Rectangle((0, 0), 1, 1, color=GROUP_COLOURS[group])
               for group in dict.fromkeys(of_groups)]
    panel.legend(handles, dict.fromkeys(of_groups), loc='lower right')
    return figure


def staleness(rows):
    """Draws a histogram of the staleness for each scheme that counts it, at two workers."""
    found = {each.name: report.histogram(each.rows) for each in report.summaries(rows)}
    found = {name: counts for name, counts in found.items() if sum(counts.values())}
    if not found:
        return None
    columns, most = 4, 6
    lines = math.ceil(len(found) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(9, 1.7 * lines), sharex=True, sharey=True,
                                squeeze=False)
    for panel in axes.flat[len(found):]:
        panel.set_visible(False)
    for panel, (name, counts) in zip(axes.flat, found.items()):
        total = sum(counts.values())
        shares = [counts[value] / total for value in range(most)]
        shares.append(1 - sum(shares))  # all that is more
        panel.bar(range(most + 1), shares, color=COLOURS[0])
        panel.set_title(short(name), fontsize=8)
        mean = sum(value * count for value, count in counts.items()) / total
        panel.text(0.97, 0.85, f'mean {mean:.2f}\nmax {max(counts)}', ha='right', va='top',
                   fontsize=8, transform=panel.transAxes)
        panel.set_xticks(range(most + 1))
        panel.set_xticklabels([*range(most), f'{most}+'])
        panel.tick_params(labelbottom=True)
    for panel in axes[:, 0]:
        panel.set_ylabel('share of updates')
    return figure


def models(rows):
    """Draws each scheme's throughput in that of one process: the digits, and two models."""
    kinds = {'': 'digits: the runtime dominates', 'resnet': 'ResNet: computing dominates',
             'clicks': 'clicks: tables dominate'}
    found = report.with_models(rows)
    if not found:
        return None
    figure, axes = plt.subplots(1, len(kinds), figsize=(9.5, 0.27 * len(found) + 1.1), sharey=True)
    colours = {each.name: GROUP_COLOURS[each.group] for each in examples()}
    for panel, (name, title) in zip(axes, kinds.items()):
        for place, folder in enumerate(found):
            ratio = report.relative_rate(rows, folder, name)
            if ratio:
                panel.plot(ratio, place, 'o', markersize=5, color=colours[folder])
        panel.axvline(1, color=GREY, linestyle='--')
        panel.set_title(title)
        logarithmic(panel, 'x')
        panel.tick_params(axis='y', length=0)
    axes[1].set_xlabel('local steps/s of two workers, in those of one process')
    axes[0].set_yticks(range(len(found)))
    axes[0].set_yticklabels(map(short, found))
    for label, folder in zip(axes[0].get_yticklabels(), found):
        label.set_color(colours[folder])
    axes[0].invert_yaxis()
    figure.tight_layout()
    return figure


PICTURES = {
    overview: 'All schemes, one line each: the figures of the table',
    accuracy: 'Test accuracy against wall time, and against local steps',
    windows: 'Throughput and test accuracy against the communication window, with two workers',
    workers: 'Throughput and test accuracy against the number of workers, all on one machine',
    models: 'Throughput in that of one process, on three kinds of problems',
    straggler: 'What a straggler leaves of the throughput',
    latency: 'Throughput against the round-trip time of the network: two workers and a ps, each '
             'on a host of its own',
    staleness: 'How stale updates are, with two workers'}


def draw(rows, directory):
    """Writes the pictures that the rows suffice for into a directory, a path.

    Returns:
      Dict of captions, strings, by the names of the files without their suffix.
    """
    drawn = {}
    with plt.rc_context(STYLE):
        for picture, caption in PICTURES.items():
            figure = picture([row for row in rows if row['folder'] != BARE])
            if figure is None:
                continue
            if picture is not overview:
                figure.tight_layout()
            figure.savefig(str(directory / f'{picture.__name__}.png'))
            plt.close(figure)
            drawn[picture.__name__] = caption
    return drawn
