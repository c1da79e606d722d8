"""Draws what ran when, in rows on one clock, and writes it as a trace for Perfetto and the like."""

import collections
import contextlib
import importlib.util
import json
import os
import sys

from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string('timeline', None, 'file for a picture of what each task did when, such as '
                    'timeline.png; its trace is written beside it, timeline.json')

_ENDINGS = '.png', '.pdf', '.svg'
BLUE, SKY, ORANGE, GREEN, GREY = '#0072B2', '#56B4E9', '#D55E00', '#009E73', '#E6E6E6'
_MOST_LABELLED = 2  # layers of a row: labels of more would cover each other
_LABEL_SHARE = 0.011  # of the picture's width, what a character of a bar's label takes

# A row of the picture: the `task` whose it is, or None if the rows are of one; and its `name`.
Row = collections.namedtuple('Row', 'task name')
# What ran: the number of its `row`; `what` it is, which gives its colour; its `begin` and `end`, in
# seconds; a `label` to write on it where there is room; its `name` and `details` in the trace; and
# its `layer`, if it is drawn beside others of its row that overlap: its number, of how many.
Bar = collections.namedtuple('Bar', 'row what begin end label name details layer',
                             defaults=('', None, None, (0, 1)))


def check():
    """Ends the program if no picture can be made with the name that --timeline gives.

    matplotlib itself is not imported before there is something to draw.
    """
    path = FLAGS.timeline
    if os.path.splitext(path)[1].lower() not in _ENDINGS:
        sys.exit(f'--timeline={path}: the name of a picture ends in one of {", ".join(_ENDINGS)}.')
    if not importlib.util.find_spec('matplotlib'):
        sys.exit(f'--timeline={path}: a picture needs matplotlib, which is not installed: '
                 '`pip install matplotlib`.')


@contextlib.contextmanager
def replaced(path, mode='w'):
    """Opens a file that takes its name when the block ends, so that nobody reads half of it."""
    beside = f'{path}.{os.getpid()}'
    try:
        with open(beside, mode, encoding=None if 'b' in mode else 'utf-8') as file:
            yield file
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(beside)


def trace_path(path):
    """Returns the path of the trace that belongs to the picture `path`."""
    return os.path.splitext(path)[0] + '.json'


def write(path, rows, bars):
    """Writes the trace beside a picture.

    Args:
      path: string, of the picture.
      rows: dict of `Row` by number.
      bars: list of `Bar`.

    Returns:
      string, the path of the trace.
    """
    tasks = list(dict.fromkeys(row.task for row in rows.values()))
    events = [{'name': 'process_name', 'ph': 'M', 'pid': pid, 'args': {'name': task}}
              for pid, task in enumerate(tasks) if task is not None]
    pids = {number: tasks.index(row.task) for number, row in rows.items()}
    events += [{'name': 'thread_name', 'ph': 'M', 'pid': pids[number], 'tid': number,
                'args': {'name': row.name}} for number, row in rows.items()]
    for bar in bars:
        event = {'name': bar.name or bar.what, 'ph': 'X', 'pid': pids[bar.row], 'tid': bar.row,
                 'ts': bar.begin * 1e6, 'dur': (bar.end - bar.begin) * 1e6}
        events.append(dict(event, cat=bar.what, args=bar.details) if bar.details else event)
    with replaced(trace_path(path)) as file:
        json.dump({'traceEvents': events, 'displayTimeUnit': 'ms'}, file)
    return trace_path(path)


def draw(path, labels, bars, colours, title='', limits=None, inches=0.16, **axes_of):
    """Draws the picture.

    Args:
      path: string, of the picture.
      labels: dict of strings, of the rows to draw by number, from above.
      bars: list of `Bar`; those of other rows are left out.
      colours: dict of colours by what a `Bar` is; in this order they are drawn and explained.
      title: string.
      limits: pair of floats, the seconds to draw; by default all.
      inches: float, the height of a row.
      **axes_of: properties of the axes, such as xlabel.
    """
    import matplotlib
    matplotlib.use('Agg')  # it writes a file, and needs no screen
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1.2 + inches * max(len(labels), 6)), dpi=100,
                                constrained_layout=True)
    places = {number: place for place, number in enumerate(labels)}
    for what, colour in colours.items():
        for number, place in places.items():
            own = [bar for bar in bars if (bar.row, bar.what) == (number, what)]
            for layer, of in sorted({bar.layer for bar in own}):
                top, height = place - 0.4 + 0.8 * layer / of, 0.8 / of
                here = [bar for bar in own if bar.layer == (layer, of)]
                axes.broken_barh([(bar.begin * 1e3, (bar.end - bar.begin) * 1e3) for bar in here],
                                 (top, height), facecolor=colour, edgecolor=colour,
                                 linewidth=0.3)  # so that the shortest can be seen
                if of <= _MOST_LABELLED:
                    _label(axes, here, top + height / 2, limits)
        axes.plot([], [], color=colour, linewidth=5, label=what)
    axes.set(yticks=range(len(labels)), ylim=(len(labels) - 0.5, -0.5), **axes_of)
    if limits:
        axes.set_xlim(*(seconds * 1e3 for seconds in limits))
    axes.set_yticklabels(labels.values(), fontsize=6 if len(labels) > 12 and inches < 0.2 else 8)
    axes.spines[['top', 'right']].set_visible(False)
    if title:
        axes.set_title(title, loc='left', fontsize=8, pad=20)
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=len(colours), frameon=False,
                fontsize=8)
    with replaced(path, 'wb') as file:
        figure.savefig(file, format=os.path.splitext(path)[1][1:].lower())
    plt.close(figure)


def _label(axes, bars, place, limits):
    """Writes the labels of the bars of a row on those that have room for them."""
    for bar in bars:
        if limits and bar.label:
            begin, end = max(bar.begin, limits[0]), min(bar.end, limits[1])
            if end - begin > len(bar.label) * _LABEL_SHARE * (limits[1] - limits[0]):
                axes.text((begin + end) * 500, place, bar.label, ha='center', va='center',
                          fontsize=6, color='white')
