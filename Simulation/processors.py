"""What computes: each task has its own processor, or all tasks of a machine share some."""

from clock import Queue


class Processors:
    """Says when what is to be computed is done."""

    def __init__(self, clock, cluster):
        """Takes a `clock.Clock` and a `description.Cluster`."""
        self._clock, self._cluster = clock, cluster
        self._shared = Queue(clock, cluster.cores) if cluster.cores else None

    def compute(self, seconds):
        """Returns when a worker has computed for some seconds, which it begins now."""
        return self._shared.serve(seconds) if self._shared else self._clock.now + seconds

    def exchange(self):
        """Returns when half an exchange, a pull or a push, is made by the runtime.

        It takes that long anyway; on processors that all share, the work of both sides is in turn.
        """
        waits = self._clock.now + self._cluster.exchange / 2
        if not self._shared:
            return waits
        side = self._cluster.exchange_work / 4
        return max(waits, self._shared.serve(side), self._shared.serve(side))

    def hop(self, workers):
        """Returns the seconds that the runtime takes for a hop of so many workers in a ring."""
        shared = workers * self._cluster.exchange_work / self._cluster.cores if self._shared else 0
        return max(self._cluster.exchange, shared)

    def shares(self):
        """Returns a dict: for what share of the time so far they have worked."""
        if not self._shared:
            return {}
        return {'processors': self._shared.busy() / (self._clock.now * self._cluster.cores or 1)}
