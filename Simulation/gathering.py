"""Computes for several workers at once, on all processors: what does not depend on each other.

What a worker computes depends on nothing but what it has pulled, drawn and kept. So it has time
until its push arrives. By then other workers have pulled, too, and threads compute for all of them
meanwhile: a session computes without the lock of Python.
"""

import collections
import concurrent.futures
import itertools
import os

# Local steps that a thread computes in a row. Fewer, and threads wait for each other more often;
# more, and at the end of a run more are computed in vain.
STEPS_IN_A_ROW = 8


class Computation:
    """A computation that is made before its result is used."""

    __slots__ = '_gathering', 'asked', 'future', 'made'

    def __init__(self, gathering, asked):
        self._gathering, self.asked = gathering, asked
        self.future = self.made = None

    def result(self):
        """Returns the result; waits for it if it is not there yet."""
        if self.made is None:
            self._gathering.finish(self)
        return self.made


class Gathering:
    """Computations, in the order in which they were asked for.

    The thread that asks computes, too, while it waits for a result. The others begin as soon as
    there is enough to do for all.
    """

    def __init__(self, compute, most, begin, threads=None):
        """Takes the parts.

        Args:
          compute: function of a list of what is asked for that returns the list of results. Several
            threads call it at the same time.
          most: int, how many computations a thread makes in a row.
          begin: function of the number of a thread, from 1 on, that each thread calls first.
          threads: int, by default one for each processor.
        """
        self._compute, self._most = compute, most
        self._threads = threads or os.cpu_count()
        numbers = itertools.count(1)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            self._threads - 1, initializer=lambda: begin(next(numbers))
        ) if self._threads > 1 else None
        self._waiting, self._running = collections.deque(), []

    def add(self, asked):
        """Returns a `Computation` of what is asked for."""
        one = Computation(self, asked)
        self._waiting.append(one)
        if self._pool and len(self._waiting) >= self._threads * self._most:
            self._start()
        return one

    def finish(self, one):
        """Makes a `Computation`, and others meanwhile."""
        while one.made is None:
            if self._pool:
                self._start()
            if self._waiting:
                self._make(self._next())
            else:
                one.future.result()

    def _start(self):
        """Gives the other threads something to do, and something for later."""
        self._running = [future for future in self._running if not future.done()]
        # One alone is made sooner here than in a thread that has to wake up.
        while len(self._waiting) > 1 and len(self._running) < 2 * (self._threads - 1):
            several = self._next()
            self._running.append(self._pool.submit(self._make, several))
            for one in several:
                one.future = self._running[-1]

    def _next(self):
        """Returns the computations that a thread makes next, a list: at most its share of them."""
        number = min(self._most, -(-len(self._waiting) // self._threads))
        return [self._waiting.popleft() for _ in range(number)]

    def _make(self, several):
        for one, made in zip(several, self._compute([one.asked for one in several])):
            one.asked, one.made = None, made

    def close(self):
        """Ends the threads."""
        if self._pool:
            self._pool.shutdown()
