"""Shows when each worker computed, waited and sent: a picture, and a trace for viewers."""

import collections

from tfdist.start import console
from tfdist.training import gantt

_MOST_ROUNDS, _MOST_ROWS = 12, 64  # in a picture that can still be read
_COLOURS = {'computes': gantt.BLUE, 'pulls': gantt.SKY, 'pushes': gantt.ORANGE, 'waits': gantt.GREY}


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
            self._phases.append(gantt.Bar(worker, what, began, ended))

    def write(self, path):
        """Draws the picture, and writes the trace into the file with the same name in .json.

        Args:
          path: string, of the picture, such as timeline.png.

        Returns:
          string, the path of the trace.
        """
        workers = sorted({phase.row for phase in self._phases})
        drawn = workers[:_MOST_ROWS]
        if len(drawn) < len(workers):
            console.say('timeline', f'{len(drawn)} of {len(workers)} workers are drawn; all are in '
                        'the trace')
        gantt.draw(path, {worker: str(worker) for worker in drawn}, self._phases, _COLOURS,
                   xlabel='virtual milliseconds', ylabel='worker' if drawn == workers else
                   f'worker: the first {len(drawn)} of {len(workers)}')
        return gantt.write(path, {worker: gantt.Row(None, f'worker {worker}')
                                  for worker in workers}, self._phases)
