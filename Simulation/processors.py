"""What computes: each task has its own processor, or all tasks of a machine share some.

A pull and a push together, an exchange, have stages, as a trace of a run shows them: a worker asks,
the ps answer and read, the worker gets that and computes, the ps get what it pushes and update, the
worker hears of it. So part of a round lies before the read and after the update, in which what a
worker pulls does not become stale. In each stage both sides work at the same time.
"""

from clock import Queue


class Processors:
    """Says when what is to be computed is done."""

    def __init__(self, clock, cluster, stages):
        """Takes a `clock.Clock`, a `description.Cluster`, and how many stages a round has."""
        self._clock, self._cluster = clock, cluster
        self._waits, self._works = cluster.exchange / stages, cluster.exchange_work / stages / 2
        self._shared = Queue(clock, cluster.cores) if cluster.cores else None

    def stage(self, computes=0.):
        """Returns when a stage of an exchange is over, that begins now.

        On processors that all share, both sides have to get one. What the stage takes beyond the
        work of a side, until a thread wakes up, it takes after that.

        Args:
          computes: float, seconds for which the worker computes in it.
        """
        if not self._shared:
            return self._clock.now + self._waits + computes
        beyond = max(0., self._waits - self._works)
        return beyond + max(self._shared.serve(work) if work else self._clock.now
                            for work in (self._works + computes, self._works))

    def hop(self, workers):
        """Returns the seconds that the runtime takes for a hop of so many workers in a ring."""
        shared = workers * self._cluster.hop_work / self._cluster.cores if self._shared else 0
        return max(self._cluster.hop, shared)

    def shares(self):
        """Returns a dict: for what share of the time so far they have worked."""
        if not self._shared:
            return {}
        return {'processors': self._shared.busy() / (self._clock.now * self._cluster.cores or 1)}
