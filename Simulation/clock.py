"""Virtual time: processes that wake up in order, signals that they wait for, and queues."""

import heapq
import itertools
import math
import sys

_MOST_AT_ONCE = 10000  # resumptions of a process in no time; a round of any scheme has fewer


class Clock:
    """Runs processes, which are generators. Each yields what it waits for: a time, or a `Signal`.

    A time in the past is no wait. Processes that wake up at the same time do so in the order in
    which they began to wait. So every run has the same order of events.

    Attributes:
      now: float, seconds since the beginning.
    """

    def __init__(self):
        self.now = 0.
        self._agenda, self._number = [], itertools.count()

    def start(self, process, at=0.):
        """Starts a process at a time, or now if that time is past. To end the process, close it."""
        heapq.heappush(self._agenda, (max(at, self.now), next(self._number), process))

    def at(self, time, function):
        """Calls a function at a time, or at once if that time is past."""
        if time <= self.now:
            function()
        else:
            self.start(_calling(function), time)

    def run(self, goes_on):
        """Runs the processes until none is left, or the function `goes_on` returns False.

        Raises:
          SystemExit: if time stands still, or becomes infinite.
        """
        agenda, number, pop, push = self._agenda, self._number, heapq.heappop, heapq.heappush
        while agenda and goes_on():
            self.now, _, process = pop(agenda)
            now = self.now
            if now == math.inf:
                sys.exit('Nothing more happens: what comes next takes more than 1e308 s. Give '
                         'shorter times, or more bandwidth.')
            for _ in range(_MOST_AT_ONCE):
                wish = next(process, None)
                if isinstance(wish, Signal):
                    wish.waiting.append(process)
                elif wish is not None:
                    if not wish > now:
                        continue
                    push(agenda, (wish, next(number), process))
                break  # it waits, has ended, or was closed
            else:
                sys.exit(f'Time stands still at {self.now:.3g} s: what a worker does takes none. '
                         'Give a --step or a --latency above 0.')


def _calling(function):
    """A process that calls a function and ends."""
    function()
    yield from ()


class Signal:
    """An event at no known time, for which processes wait.

    Attributes:
      waiting: list of processes.
    """

    def __init__(self, clock):
        self._clock, self.waiting = clock, []

    def fire(self):
        """Wakes up all that wait, in the order in which they began to."""
        woken, self.waiting = self.waiting, []
        for process in woken:
            self._clock.start(process)


class Queue:
    """Serves one after the other: a link, a processor, or several of them."""

    def __init__(self, clock, servers=1):
        self._clock, self._free_at, self._promised = clock, [0.] * servers, 0.

    def serve(self, seconds):
        """Joins the queue now, to be served for so many seconds; returns when that is done."""
        now, free = self._clock.now, self._free_at[0]
        end = (now if now > free else free) + seconds
        heapq.heapreplace(self._free_at, end)
        self._promised += seconds
        return end

    def busy(self):
        """Returns the seconds for which all servers together have worked so far, a float."""
        return self._promised - sum(max(0., end - self._clock.now) for end in self._free_at)
