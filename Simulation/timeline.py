"""Shows when each worker computed, waited and sent: a picture, and a trace for viewers."""

import collections
import json
import os
import sys

import matplotlib
from tfdist.start import console

matplotlib.use('Agg')  # it writes a file, and needs no screen
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402

_MOST_ROUNDS, _MOST_ROWS = 12, 64  # in a picture that can still be read
_COLOURS = {'computes': '#0072B2', 'pulls': '#56B4E9', 'pushes': '#D55E00', 'waits': '#E6E6E6'}


def check(path):
    """Ends the program if no picture can have a file name like this."""
    ending = os.path.splitext(path)[1][1:].lower()
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if ending not in known:
        sys.exit(f'--timeline={path}: the name of a picture ends in one of .{", .".join(known)}.')


class Timeline:
    """Collects what workers did in a part of the virtual time."""

    def __init__(self, begins=0.):
        """Takes the virtual time of the beginning, in seconds; it ends when the picture is full."""
        self._begins, self._phases = begins, []
        self._rounds = collections.Counter()

    def add(self, worker, what, began, ended):
        """Records a phase of a worker, from one time to another."""
        if began < self._begins or _MOST_ROUNDS in self._rounds.values():
            return
        self._rounds[worker] += what == 'computes'
        if ended > began:
            self._phases.append((worker, what, began, ended))

    def write(self, path):
        """Draws the picture, and writes the trace into the file with the same name in .json.

        Args:
          path: string, of the picture, such as timeline.png.

        Returns:
          string, the path of the trace.
        """
        workers = sorted({worker for worker, *_ in self._phases})
        drawn = workers[:_MOST_ROWS]
        if len(drawn) < len(workers):
            console.say('timeline', f'{len(drawn)} of {len(workers)} workers are drawn; all are in '
                        'the trace')
        self._draw(drawn, len(workers), path)
        trace = os.path.splitext(path)[0] + '.json'
        events = [{'name': what, 'ph': 'X', 'pid': 0, 'tid': worker, 'ts': began * 1e6,
                   'dur': (ended - began) * 1e6} for worker, what, began, ended in self._phases]
        names = [{'name': 'thread_name', 'ph': 'M', 'pid': 0, 'tid': worker,
                  'args': {'name': f'worker {worker}'}} for worker in workers]
        with open(trace, 'w', encoding='utf-8') as file:
            json.dump({'traceEvents': names + events, 'displayTimeUnit': 'ms'}, file)
        return trace

    def _draw(self, workers, number, path):
        """Draws a list of workers; `number` is how many there are."""
        figure, axes = plt.subplots(figsize=(9, 1.2 + 0.16 * max(len(workers), 6)), dpi=100,
                                    constrained_layout=True)
        for what, colour in _COLOURS.items():
            for row, worker in enumerate(workers):
                axes.broken_barh([(began * 1e3, (ended - began) * 1e3)
                                  for who, did, began, ended in self._phases
                                  if (who, did) == (worker, what)],
                                 (row - 0.4, 0.8), facecolor=colour)
            axes.plot([], [], color=colour, linewidth=5, label=what)
        axes.set(xlabel='virtual milliseconds', yticks=range(len(workers)),
                 ylabel='worker' if len(workers) == number else
                 f'worker: the first {len(workers)} of {number}', ylim=(len(workers) - 0.5, -0.5))
        axes.set_yticklabels(workers, fontsize=6 if len(workers) > 12 else 8)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=len(_COLOURS), frameon=False,
                    fontsize=8)
        figure.savefig(path)
        plt.close(figure)
