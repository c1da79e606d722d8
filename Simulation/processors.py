"""Processors: one for each task, or some that all tasks of a machine share.

A pull and a push together are an exchange. A trace of a run shows its stages: a worker asks; the ps
read and answer; the worker receives that and computes; the ps receive its push and update; the
worker hears of it. The parts of a round before the read and after the update make nothing stale. In
each stage both sides work at the same time.
"""

from clock import Queue


class Processors:
    """Tells when a computation will be done."""

    def __init__(self, clock, cluster, stages):
        """Takes a `clock.Clock`, a `description.Cluster`, and the number of stages in a round."""
        self._clock, self._cluster = clock, cluster
        self._waits, self._works = cluster.exchange / stages, cluster.exchange_work / stages / 2
        self._shared = Queue(clock, cluster.cores) if cluster.cores else None

    def stage(self, computes=0.):
        """Returns when a stage of an exchange that begins now is over.

        On shared processors each side has to get one. The time that a stage takes beyond the work
        of a side, until a thread wakes up, comes after that work.

        Args:
          computes: float, seconds for which the worker computes in this stage.
        """
        if not self._shared:
            return self._clock.now + self._waits + computes
        beyond = max(0., self._waits - self._works)
        return beyond + max(self._shared.serve(work) if work else self._clock.now
                            for work in (self._works + computes, self._works))

    def computation(self, seconds):
        """Returns when a worker has computed for so many seconds beside an exchange."""
        if self._shared and seconds:
            return self._shared.serve(seconds)
        return self._clock.now + seconds

    def hop(self, workers):
        """Returns the seconds that the runtime takes for a hop in a ring of so many workers."""
        shared = workers * self._cluster.hop_work / self._cluster.cores if self._shared else 0
        return max(self._cluster.hop, shared)

    def shares(self):
        """Returns a dict with the share of the time so far for which the processors worked."""
        if not self._shared:
            return {}
        return {'processors': self._shared.busy() / (self._clock.now * self._cluster.cores or 1)}
