"""Virtual time: processes that wake up in order, signals for which they wait, queues."""

import heapq
import itertools
import math
import sys

_MOST_AT_ONCE = 10000  # how often a process goes on without time; a round of any scheme is shorter


class Clock:
    """Runs processes, generators. What one yields is when it goes on: a time, or a `Signal`.

    A time that is past is no wait. Who wakes up at the same time does so in the order in which it
    began to wait: so a run has one order of events, and the next run the same.

    Attributes:
      now: float, seconds since the beginning.
    """

    def __init__(self):
        self.now = 0.
        self._agenda, self._number = [], itertools.count()

    def start(self, process, at=0.):
        """Lets a process begin at a time, or now if that is past. To end it, close it."""
        heapq.heappush(self._agenda, (max(at, self.now), next(self._number), process))

    def at(self, time, function):
        """Calls a function at a time, or at once if that is past."""
        if time <= self.now:
            function()
        else:
            self.start(_calling(function), time)

    def run(self, goes_on):
        """Runs the processes until none is left, or the function `goes_on` returns False.

        Raises:
          SystemExit: if time stands still, or has come to its end.
        """
        while self._agenda and goes_on():
            self.now, _, process = heapq.heappop(self._agenda)
            if self.now == math.inf:
                sys.exit('Nothing more happens: what comes next takes more than 1e308 s. Give '
                         'shorter times, or more bandwidth.')
            for _ in range(_MOST_AT_ONCE):
                wish = next(process, None)
                if isinstance(wish, Signal):
                    wish.waiting.append(process)
                elif wish is not None and wish > self.now:
                    self.start(process, wish)
                elif wish is not None:
                    continue
                break  # it waits, has come to its end, or was closed
            else:
                sys.exit(f'Time stands still at {self.now:.3g} s: what a worker does takes none. '
                         'Give a --step or a --latency above 0.')


def _calling(function):
    """A process that calls a function, and ends."""
    function()
    yield from ()


class Signal:
    """What processes wait for that do not know when it comes.

    Attributes:
      waiting: list of processes.
    """

    def __init__(self, clock):
        self._clock, self.waiting = clock, []

    def fire(self):
        """Wakes up all that wait, in the order in which they came."""
        woken, self.waiting = self.waiting, []
        for process in woken:
            self._clock.start(process)


class Queue:
    """Serves who comes, one after the other: a link, a processor, or several of these."""

    def __init__(self, clock, servers=1):
        self._clock, self._free_at, self._promised = clock, [0.] * servers, 0.

    def serve(self, seconds):
        """Returns when one that comes now, and is served for so long, is done."""
        end = max(self._clock.now, self._free_at[0]) + seconds
        heapq.heapreplace(self._free_at, end)
        self._promised += seconds
        return end

    def busy(self):
        """Returns how many seconds it has served until now, a float, of all servers."""
        return self._promised - sum(max(0., end - self._clock.now) for end in self._free_at)
