"""Which workers take part: they come, leave, die and come back as the description says."""

import functools
import sys

import numpy as np

_MOST_RETURNS = 10000  # without any update, besides ten of each worker


class Crew:
    """Starts and ends the lives of workers.

    Attributes:
      there: dict by worker of the processes of those that are alive.
    """

    def __init__(self, clock, cluster, life, seed, at_steps=None):
        """Starts the workers that are there from the beginning, and plans the rest.

        Args:
          clock: `clock.Clock`.
          cluster: `description.Cluster`.
          life: `lives.Life`.
          seed: int, of the times that are drawn.
          at_steps: dict of lists of pairs (worker, global step), by 'come' and 'leave'; or None.
        """
        self._clock, self._cluster, self._life, self.there = clock, cluster, life, {}
        self._random = np.random.RandomState([seed % 2 ** 32, cluster.workers, 1])
        self._at_steps = at_steps or {'come': [], 'leave': []}
        self._returns, self._step = 0, 0
        for what in 'come', 'leave', 'die':
            for worker, time in getattr(cluster, what):
                clock.at(time, functools.partial(getattr(self, what), worker))
        later = {worker for worker, _ in self._first_of(cluster) + self._at_steps['come']}
        for worker in range(cluster.workers):
            if worker not in later:
                self.come(worker)

    @staticmethod
    def _first_of(cluster):
        """Returns pairs (worker, time) of the workers that come later, not at the beginning."""
        firsts = {}
        for what in 'come', 'leave', 'die':
            for worker, time in getattr(cluster, what):
                firsts[worker] = min(firsts.get(worker, (time, what)), (time, what))
        return [(worker, time) for worker, (time, what) in firsts.items() if what == 'come']

    def come(self, worker):
        """Starts a worker that is not there."""
        if worker in self.there:
            return
        self.there[worker] = self._living(worker)
        self._clock.start(self.there[worker])
        if self._cluster.die_every:
            mine, after = self.there[worker], self._cluster.die_every.draw(self._random, 1)
            self._clock.at(self._clock.now + after, lambda: self._die_again(worker, mine))

    def _living(self, worker):
        """The life of a worker, a process; at its end the worker is gone."""
        yield from self._life.of(worker)
        self.there.pop(worker)

    def leave(self, worker):
        """Has a worker leave after its round."""
        self._life.leave(worker)

    def die(self, worker):
        """Kills a worker: what it has not delivered is lost."""
        if worker in self.there:
            self.there.pop(worker).close()
            self._clock.at(self._clock.now + self._life.patience(), lambda: self._miss(worker))

    def _miss(self, worker):
        if worker not in self.there:
            self._life.lose(worker)

    def _die_again(self, worker, process):
        """Kills a worker, if this is still the life that was to end now, and plans its return."""
        if self.there.get(worker) is process:
            self.die(worker)
            if self._cluster.back_after:
                after = self._cluster.back_after.draw(self._random, 1)
                self._clock.at(self._clock.now + after, lambda: self._come_back(worker))

    def _come_back(self, worker):
        """Restarts a worker.

        Raises:
          SystemExit: if workers die and come back forever, and none lives until its push.
        """
        if self._life.step > self._step:
            self._returns, self._step = 0, self._life.step
        self._returns += 1
        if self._returns > _MOST_RETURNS + 10 * self._cluster.workers:
            sys.exit(f'--die_every: workers have come back {self._returns} times since update '
                     f'{self._step}, and died before the next one. Let them live longer.')
        self.come(worker)

    def reach(self, step):
        """Has workers come and leave at their steps, of which `step` may be one."""
        for what, planned in self._at_steps.items() if any(self._at_steps.values()) else ():
            due = [(worker, at) for worker, at in planned if at <= step]
            for worker, at in due:
                planned.remove((worker, at))
                getattr(self, what)(worker)
