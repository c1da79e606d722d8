"""Virtual time: processes that wake up in order, what they wait for, queues, and shared links."""

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


def until(time, waits):
    """A process that ends at a time, or later, when all of `waits` are over.

    Args:
      time: float.
      waits: list of what `Queue.serve` and `Shared.serve` return.
    """
    for each in waits:
        if not isinstance(each, Signal):
            time = max(time, each)
        elif not each.is_over:
            yield each
    yield time


class Queue:
    """Serves one after the other: a processor, several of them, or a link with turns."""

    def __init__(self, clock, servers=1):
        self._clock, self._free_at, self._promised = clock, [0.] * servers, 0.

    def serve(self, seconds):
        """Joins the queue now, to be served for so many seconds; returns when that is done."""
        now, free = self._clock.now, self._free_at[0]
        end = (now if now > free else free) + seconds
        heapq.heapreplace(self._free_at, end)
        self._promised += seconds
        return end

    def backlog(self):
        """Returns the seconds until all that have joined are served, a float."""
        return max(0., max(self._free_at) - self._clock.now)

    def busy(self):
        """Returns the seconds for which all servers together have worked so far, a float."""
        return self._promised - sum(max(0., end - self._clock.now) for end in self._free_at)


class Transfer(Signal):
    """What is under way on a link: fires when all of it has passed.

    Attributes:
      is_over: bool, whether it has.
    """

    is_over = False

    def end(self):
        """Ends it."""
        self.is_over = True
        self.fire()


class Shared(Queue):
    """A link that serves all at once, each with a share of its own, as TCP does.

    In queueing theory it is discriminatory processor sharing. Weights are lognormal: so four
    transfers over a link that begin together end as they do with TCP, see
    tests/test_simulation_links.py. What is under way in all is the same as in a queue.
    """

    unevenness = 0.5  # sigma of the weights; with 0 all shares are equal

    def __init__(self, clock, random):
        """Takes a `clock.Clock`, and the `np.random.RandomState` of the weights."""
        super().__init__(clock)
        self._random, self._number = random, itertools.count()
        # A heap of transfers: what one with a weight of 1 has had when this one ends, in seconds
        # of the whole link; a number; its weight; and itself.
        self._under_way, self._weights = [], 0.
        self._had, self._since = 0., 0.  # what one with a weight of 1 has had by a time; that time
        self._next = None  # when the next one ends if no other one begins before

    def serve(self, seconds):
        """Begins a `Transfer` that would take so many seconds alone; returns it."""
        transfer, now = Transfer(self._clock), self._clock.now
        if not seconds:
            transfer.end()
            return transfer
        super().serve(seconds)
        if self._under_way:
            self._had += (now - self._since) / self._weights
        else:
            self._had = self._weights = 0.
        self._since = now
        weight = self._random.lognormal(0., self.unevenness)
        self._weights += weight
        heapq.heappush(self._under_way,
                       (self._had + seconds / weight, next(self._number), weight, transfer))
        self._plan()
        return transfer

    def _ends(self):
        """Returns when the next transfer ends if no other one begins before."""
        return self._since + (self._under_way[0][0] - self._had) * self._weights

    def _plan(self):
        ends = self._ends()
        if self._next is None or ends < self._next:
            self._next = ends
            self._clock.at(ends, self._look)

    def _look(self):
        """Ends what has passed: nothing, if others have begun since this was planned."""
        now = self._clock.now
        if now != self._next:
            return  # what was planned later came first
        self._next = None
        while self._under_way and self._ends() <= now:
            self._had, _, weight, transfer = heapq.heappop(self._under_way)
            self._since = now
            self._weights -= weight
            transfer.end()
        if self._under_way:
            self._plan()
