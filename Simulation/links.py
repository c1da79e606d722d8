"""What travels, and how long that takes: links with latency and bandwidth, and who shares them.

Each worker has a link of its own. That of a ps, one way and the other, is a queue for all workers,
and so is the time that the ps takes for updates: whoever comes first is served first.
"""

from clock import Queue


class Star:
    """Workers around parameter servers, over which what travels is spread in turn, by tensor.

    Attributes:
      into, out, updates: lists of `clock.Queue` by ps, its link in both directions and its work.
    """

    def __init__(self, clock, cluster, scale=1):
        """Takes the parts.

        Args:
          clock: `clock.Clock`.
          cluster: `description.Cluster`. If it has `parameters`, each ps has as much of them.
          scale: float, how many bytes travel for each one that there is.
        """
        self._clock, self._cluster, self._scale = clock, cluster, scale
        self.into, self.out, self.updates = (
            [Queue(clock) for _ in range(cluster.ps)] for _ in range(3))

    def latency(self, worker):
        """Returns when a message is there that a worker sends or gets now."""
        return self._clock.now + self._cluster.of('latency', worker)

    def _carry(self, worker, queues, sizes):
        """Returns when so many bytes are through the link of the worker, and those of the ps."""
        end = self._clock.now + self._scale * sum(sizes) / self._cluster.of('bandwidth', worker)
        for queue, size in zip(queues, self._spread(sizes)):
            end = max(end, queue.serve(self._scale * size / self._cluster.ps_bandwidth))
        return end

    def _spread(self, sizes):
        """Returns how much of the sizes is on each ps."""
        if self._cluster.parameters:
            return [sum(sizes) / self._cluster.ps] * self._cluster.ps
        return [sum(sizes[ps::self._cluster.ps]) for ps in range(self._cluster.ps)]

    def to_worker(self, worker, sizes):
        """Brings what a worker has asked the ps for, a process: until it is there."""
        yield self._carry(worker, self.out, sizes)
        yield self.latency(worker)

    def to_ps(self, worker, sizes):
        """Brings what a worker pushes to the ps, a process: until they have made the update."""
        # The global step, which is pulled and not pushed, has the first place among the ps.
        sizes = [0, *sizes]
        yield self.latency(worker)
        yield self._carry(worker, self.into, sizes)
        yield self.update(sizes)

    def update(self, sizes):
        """Returns when the ps have made an update of such sizes, each when it is its turn."""
        total = sum(sizes) or 1
        return max(queue.serve(self._cluster.update * size / total)
                   for queue, size in zip(self.updates, self._spread(sizes)))

    def shares(self):
        """Returns a dict: for what share of the time so far the ps have worked, by what."""
        time = self._clock.now * self._cluster.ps or 1
        return {name: sum(queue.busy() for queue in queues) / time for name, queues in
                (('into the ps', self.into), ('out of the ps', self.out),
                 ('updates', self.updates))}


class Ring:
    """Workers in a ring: in 2 (N - 1) hops, all at the same time, each sends 1 / N of its bytes.

    A hop takes a round trip, as who gets something asks for it, and to begin takes one more. The
    slowest link holds up all.
    """

    def __init__(self, clock, cluster, scale=1):
        """See `Star`."""
        self._clock, self._workers, workers = clock, cluster.workers, range(cluster.workers)
        self._scale = scale
        self._latency = max(cluster.of('latency', worker) for worker in workers)
        self._slowest = min(cluster.of('bandwidth', worker) for worker in workers)

    def sum(self, sizes, hop=0.):
        """Returns when a sum of what has so many bytes, which begins now, is there.

        Args:
          sizes: list of ints, bytes.
          hop: float, seconds of a hop beyond what travels.
        """
        hops = 2 * (self._workers - 1)
        if not hops:
            return self._clock.now
        piece = self._scale * sum(sizes) / self._workers
        return (self._clock.now + hops * (hop + piece / self._slowest)
                + (hops + 1) * 2 * self._latency)

    def shares(self):
        """See `Star`; there is no ps."""
        return {}
