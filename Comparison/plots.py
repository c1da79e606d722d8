"""The pictures of the comparison: small panels, few lines in each.

Each function takes the rows of results.csv and returns a figure, or None if they have nothing for
it.
"""

import collections
import math

import matplotlib
import numpy as np
from measuring.folders import BARE, Example, examples, GROUPS
from measuring.style import GREY, legend_beside, logarithmic, look_of, STYLE, write
import report

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

SHORT = {'Synchronous-SGD-different-learning-rates': 'Synchronous-SGD, own rates',
         'Multiple-GPUs-Single-Machine': 'Multiple-GPUs, towers'}


def short(name):
    """Returns a folder's name as it fits into a picture."""
    return SHORT.get(name, name)


def _look(name, place, every=1):
    """Returns how the folder at a place in its panel is drawn: with markers at its own points."""
    return dict(look_of(name), label=short(name), markevery=(place % every, every))


def _by_group(panel, names):
    """Makes the lines of a panel: one for each group, and below it one for each of its folders.

    Takes the names of the folders, by groups; returns a dict of their lines, ints.
    """
    labels = []
    for name in names:
        group = Example(name).group
        labels += [name] if group in labels else [group, name]
    panel.set_yticks(range(len(labels)))
    for text, label in zip(labels, panel.set_yticklabels(map(short, labels))):
        label.set_fontweight('bold' if text in GROUPS else 'normal')
    panel.set_ylim(len(labels) - 0.4, -0.6)
    return {name: labels.index(name) for name in names}


def groups(rows):
    """Returns a dict of the names of folders that have rows, by group; no empty groups."""
    there = {row['folder'] for row in rows}
    found = {group: [each.name for each in examples() if each.group == group and each.name in there]
             for group in GROUPS}
    return {group: names for group, names in found.items() if names}


def mean_curve(rows, axis, points=60):
    """Returns the mean of some runs' test accuracy over local steps, axis 0, or seconds, axis 1.

    These are two arrays of floats [points], up to where the first run ends; None without curves.
    """
    curves = [report.curve(row) for row in rows if row['curve']]
    if not curves:
        return None
    last = min(each[axis][-1] for each in curves)
    x = np.geomspace(last / 1000, last, points)
    return x, np.mean([np.interp(x, each[axis], each[2]) for each in curves], axis=0)


def _near_one(panel):
    """Draws the accuracies of a panel farther apart the nearer they are to 1."""
    panel.set_yscale('function', functions=(lambda y: -np.log(np.maximum(1.005 - y, 1e-9)),
                                            lambda y: 1.005 - np.exp(-y)))
    panel.set(ylim=(0.7, 0.99), yticks=[0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99])
    panel.yaxis.set_major_formatter('{x:.2f}')


def accuracy(rows):
    """Draws test accuracy against wall time and against local steps, by groups."""
    rows = [row for row in rows if row['experiment'] in report.TABLE]
    found = groups(rows)
    if not found:
        return None
    figure, axes = plt.subplots(len(found), 2, figsize=(11, 2.7 * len(found)), sharey=True,
                                squeeze=False, sharex='col')
    for panels, (group, names) in zip(axes, found.items()):
        for axis, panel in zip((1, 0), panels):
            _near_one(panel)
            for place, name in enumerate(dict.fromkeys([report.REFERENCE, *names])):
                drawn = mean_curve([row for row in rows if row['folder'] == name], axis)
                if drawn:
                    plain = {} if name in names else {'linewidth': 1, 'marker': ''}
                    panel.plot(*drawn, **dict(_look(name, place, 10), **plain))
            logarithmic(panel, 'x')
        panels[0].set(title=group, ylabel='test accuracy')
        legend_beside(panels[1])
    longest = max(report.curve(row)[1][-1] for row in rows if row['curve'])
    axes[-1][0].set(xlim=(0.03, longest), xlabel='seconds since training began')
    axes[-1][1].set(xlim=(50, None), xlabel='local steps of all workers')
    return figure


def overview(rows):
    """Draws the table: a line for each scheme, a panel for each figure."""
    found = [each for each in report.summaries(rows) if each.example and each.rate]
    if not found:
        return None
    figure, axes = plt.subplots(1, 4, figsize=(9.5, 0.25 * len(found) + 1.6), sharey=True)
    places = _by_group(axes[0], [each.name for each in found])
    panels = [('test accuracy', 'accuracy', ()), ('seconds to 95 %', 'seconds_to_95', (1, 2, 5)),
              ('local steps/s', 'rate', (1, 3)), ('bytes per local step', 'sent', (1, 3))]
    for panel, (title, figure_name, steps) in zip(axes, panels):
        for summary in found:
            place, value = places[summary.name], getattr(summary, figure_name)
            if value:
                panel.errorbar(value, place, capsize=2, xerr=None if steps else summary.spread,
                               **dict(look_of(summary.name), markersize=5, linewidth=1.2))
            else:
                panel.text(0.02, place, 'none' if figure_name == 'sent' else 'not reached',
                           va='center', fontsize=7, color=GREY,
                           transform=panel.get_yaxis_transform())
        panel.set_title(title)
        if steps:
            logarithmic(panel, 'x', steps)
        panel.tick_params(axis='y', length=0)
    lowest = min(each.accuracy for each in found if each.accuracy is not None)
    axes[0].set_xlim(max(0.8, lowest - 0.01), 1)
    return figure


def _against(rows, experiment, label):
    """Draws throughput and accuracy against what an experiment varies, by groups."""
    rows = [row for row in rows if row['experiment'] == experiment]
    found = groups(rows)
    if not found:
        return None
    figure, axes = plt.subplots(len(found), 2, figsize=(11, 2.5 * len(found)), squeeze=False,
                                sharex=True, sharey='col')
    values = sorted({int(row[experiment]) for row in rows})
    for panels, (group, names) in zip(axes, found.items()):
        for panel, figure_name in zip(panels, ('steps_per_s', 'test_accuracy')):
            for place, name in enumerate(names):
                aside = 1.03 ** (place - (len(names) - 1) / 2)  # so that none hides another
                own = sorted((aside * int(row[experiment]), float(row[figure_name])) for row in rows
                             if row['folder'] == name and row[figure_name])
                if own:
                    panel.plot(*zip(*own), **_look(name, place))
            panel.set(xscale='log', xticks=values, xticklabels=values)
            panel.minorticks_off()
        logarithmic(panels[0], 'y')
        panels[0].set(title=group, ylabel='local steps/s of all workers')
        panels[1].set_ylabel('test accuracy')
        legend_beside(panels[1])
    lowest = min(float(row['test_accuracy']) for row in rows if row['test_accuracy'])
    axes[0][1].set_ylim(max(0.5, lowest - 0.02), 1)
    for panel in axes[-1]:
        panel.set_xlabel(label)
    return figure


def windows(rows):
    """Draws throughput and accuracy against the window."""
    return _against(rows, 'window', 'local steps in a window')


def workers(rows):
    """Draws throughput and accuracy against the number of workers."""
    return _against(rows, 'workers', 'workers')


def latency(rows):
    """Draws throughput against the round-trip time of the network."""
    lines = collections.defaultdict(list)
    for row in rows:
        if row['experiment'] == 'latency' and row['steps_per_s']:
            lines[row['folder'], int(row['window'])].append((float(row['round_trip']),
                                                             float(row['steps_per_s'])))
    if not lines:
        return None
    figure, panel = plt.subplots(figsize=(9, 3.6))
    for (name, window), points in lines.items():
        windowed = {'label': f'{name}, window {window}'} if window > 1 else {'label': name}
        if window == max(its for folder, its in lines if folder == name) > 10:
            windowed['linestyle'] = ':'
        panel.plot(*zip(*sorted(points)), **dict(look_of(name), **windowed))
    legend_beside(panel)
    logarithmic(panel, 'y')
    panel.set(xticks=sorted({x for points in lines.values() for x, _ in points}),
              xlabel='round-trip time of the network, ms', ylabel='local steps/s of all workers')
    return figure


def straggler(rows):
    """Draws what is left of each scheme's throughput with a straggler."""
    left = sorted((GROUPS.index(each.example.group), -each.straggling / each.rate, each.name)
                  for each in report.summaries(rows) if each.straggling and each.rate)
    if not left:
        return None
    figure, panel = plt.subplots(figsize=(9, 0.26 * len(left) + 1.6))
    places = _by_group(panel, [name for _, _, name in left])
    for _, share, name in left:
        panel.barh(places[name], -share, height=0.7, color=look_of(name)['color'])
        panel.text(-share, places[name], f' {-share:.0%}', va='center', fontsize=8)
    panel.grid(axis='y', visible=False)
    panel.tick_params(axis='y', length=0)
    panel.set_xlabel('local steps/s with one of two workers slowed down, relative to a run without '
                     'a straggler')
    return figure


def staleness(rows):
    """Draws a histogram of the staleness for each scheme that counts it, at two workers."""
    found = [each for each in report.summaries(rows) if each.staleness]
    if not found:
        return None
    columns, most = 4, 6
    lines = math.ceil(len(found) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(9, 1.7 * lines), sharex=True, sharey=True,
                                squeeze=False)
    for panel in axes.flat[len(found):]:
        panel.set_visible(False)
    for panel, each in zip(axes.flat, found):
        shares = [each.staleness[value] / sum(each.staleness.values()) for value in range(most)]
        shares.append(1 - sum(shares))  # all that is more
        panel.bar(range(most + 1), shares, color=look_of(each.name)['color'])
        panel.set_title(short(each.name), fontsize=8)
        panel.text(0.97, 0.85, f'mean {each.mean_staleness:.2f}\nmax {each.most_stale}',
                   ha='right', va='top', fontsize=8, transform=panel.transAxes)
        panel.set(xticks=range(most + 1), xticklabels=[*range(most), f'{most}+'])
        panel.tick_params(labelbottom=True)
    for panel in axes[:, 0]:
        panel.set_ylabel('share of updates')
    return figure


def models(rows):
    """Draws each scheme's throughput relative to one process: the digits, and two models."""
    titles = {'': 'digits: the runtime dominates', 'resnet': 'ResNet: computing dominates',
              'clicks': 'clicks: tables dominate'}
    found = report.with_models(rows)
    if not found:
        return None
    figure, axes = plt.subplots(1, len(titles), figsize=(9.5, 0.25 * len(found) + 1.6),
                                sharey=True)
    places = _by_group(axes[0], found)
    for panel, (model, title) in zip(axes, titles.items()):
        panel.axvline(1, color=GREY, linestyle='--', linewidth=1)
        for name, place in places.items():
            ratio = report.relative_rate(rows, name, model)
            if ratio:
                panel.plot(ratio, place, **dict(look_of(name), markersize=5))
        panel.set_title(title)
        logarithmic(panel, 'x')
        panel.tick_params(axis='y', length=0)
    axes[1].set_xlabel('local steps/s of two workers, relative to one process')
    return figure


PICTURES = {
    overview: 'All schemes, one line each: the figures of the table',
    accuracy: 'Test accuracy against wall time, and against local steps',
    windows: 'Throughput and test accuracy against the communication window, with two workers',
    workers: 'Throughput and test accuracy against the number of workers, all on one machine',
    models: 'Throughput relative to one process, on three kinds of problems',
    straggler: 'What a straggler leaves of the throughput',
    latency: 'Throughput against the round-trip time of the network: two workers and a ps, each '
             'on a host of its own',
    staleness: 'How stale updates are, with two workers'}


def why():
    """Draws the images/s of a ResNet: one process, and two workers on the same two cores."""
    rates = report.resnet_rates()
    figure, panel = plt.subplots(figsize=(6.4, 0.3 * len(rates) + 0.5))
    names = list(rates)[::-1]
    bars = panel.barh([name.replace(' of 1 thread', '') for name in names],
                      [rates[name] for name in names],
                      color=[GREY if 'process' in name else look_of(name.split(',')[0])['color']
                             for name in names])
    for bar in bars:
        panel.annotate(f'{bar.get_width():.0f}', (bar.get_width(), bar.get_y() + 0.4),
                       xytext=(3, 0), textcoords='offset points', va='center')
    panel.set_title('images/s of a ResNet, on two cores')
    panel.grid(axis='y', visible=False)
    return figure


def _save(figure, path):
    figure.tight_layout()
    write(figure, path)
    plt.close(figure)


def draw(rows, directory):
    """Writes the pictures that the rows suffice for; returns their captions by files' stems."""
    drawn = {}
    with plt.rc_context(STYLE):
        for picture, caption in PICTURES.items():
            figure = picture([row for row in rows if row['folder'] != BARE])
            if figure:
                _save(figure, directory / f'{picture.__name__}.png')
                drawn[picture.__name__] = caption
        _save(why(), directory / 'why.png')
    return drawn
