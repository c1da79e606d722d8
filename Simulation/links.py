"""Links: how long messages travel, with latency, bandwidth and queues.

Each worker has a link of its own. All workers use the link of a ps: in each direction they take
turns, first come, first served, or share it, as the cluster says. The time of the ps for updates is
a queue. Without a ps workers form a ring, or send to each other as they like.
"""

import functools
import math

import numpy as np
from clock import Queue, Shared, until
import description

_KEPT = 256  # sizes whose times are known: where rows of tables travel, all sizes are different
_OF_LINKS = description.MOST_WORKERS  # what the seed of their random numbers has besides --seed


def _maker(clock, cluster, seed):
    """Returns a function that makes a link in one direction, of the kind that a cluster says."""
    if cluster.links == description.TURNS:
        return functools.partial(Queue, clock)
    return functools.partial(Shared, clock, np.random.RandomState([seed % 2 ** 32, _OF_LINKS]))


class Star:
    """Workers around parameter servers; tensors go to the ps in turn.

    Attributes:
      into, out: lists by ps of its link in each direction, `clock.Queue` or `clock.Shared`.
      updates: list by ps of `clock.Queue`.
      sent: float, the bytes of all tensors that have left so far.
      ignores: tuple of strings, which of `description.KEYS` say nothing about it.
    """

    ignores = 'hop', 'hop_work'

    def __init__(self, clock, cluster, scale=1, seed=1):
        """Takes the parts.

        Args:
          clock: `clock.Clock`.
          cluster: `description.Cluster`. If it has `parameters`, these are in equal parts on the
            ps.
          scale: float, how many bytes travel for each byte of a tensor.
          seed: int, of how uneven shared links are.
        """
        self._clock, self._cluster, self._scale = clock, cluster, scale
        link = _maker(clock, cluster, seed)
        self.into, self.out, self.updates = (
            [make() for _ in range(cluster.ps)]
            for make in (link, link, functools.partial(Queue, clock)))
        self._latencies, self._bandwidths = (
            [cluster.of(name, worker) for worker in range(cluster.workers)]
            for name in ('latency', 'bandwidth'))
        self._times_of = functools.lru_cache(_KEPT)(self._times_of_sizes)
        self._longest, self._has_pushed, self.sent = 0., False, 0.

    def latency(self, worker):
        """Returns when a message arrives that now leaves for a worker, or from it."""
        return self._clock.now + self._latencies[worker]

    def _times_of_sizes(self, sizes):
        """Returns what tensors of these sizes, a tuple, take, whenever they travel.

        Returns:
          Float, bytes on the link of a worker; list of floats by ps, seconds on its link; and list
          of floats by ps, seconds that it takes for the update.
        """
        total, spread = sum(sizes), self._spread(sizes)
        return (self._scale * total,
                [self._scale * size / self._cluster.ps_bandwidth for size in spread],
                [self._cluster.update * size / (total or 1) for size in spread])

    def _carry(self, worker, links, sizes):
        """A process: tensors of these sizes pass the links of the worker and the ps."""
        total, each, _ = self._times_of(tuple(sizes))
        self.sent += total
        waits = [link.serve(seconds) for link, seconds in zip(links, each)]
        if self._has_pushed:
            self._longest = max(self._longest, *(link.backlog() for link in links))
        yield from until(self._clock.now + total / self._bandwidths[worker], waits)

    def _spread(self, sizes):
        """Returns how many bytes of tensors of these sizes are on each ps."""
        if self._cluster.parameters:
            return [sum(sizes) / self._cluster.ps] * self._cluster.ps
        return [sum(sizes[ps::self._cluster.ps]) for ps in range(self._cluster.ps)]

    def to_worker(self, worker, sizes):
        """A process: tensors travel from the ps to a worker, which has asked for them."""
        yield from self._carry(worker, self.out, sizes)
        yield self.latency(worker)

    def to_ps(self, worker, sizes, share=1.):
        """A process: what a worker pushes travels to the ps, and the ps make the update.

        The `share` is that of the center that the push is for.
        """
        # The first ps has the global step, which is pulled but not pushed.
        sizes, self._has_pushed = [0, *sizes], True
        yield self.latency(worker)
        yield from self._carry(worker, self.into, sizes)
        yield self.update(sizes, share)

    def update(self, sizes, share=1.):
        """Returns when all ps, each after its queue, have updated tensors of these sizes.

        They are a `share` of the center, and take that share of the time.
        """
        _, _, each = self._times_of(tuple(sizes))
        return max(queue.serve(share * seconds) for queue, seconds in zip(self.updates, each))

    def shares(self):
        """Returns a dict by kind of work: the share of the time so far for which the ps did it."""
        time = self._clock.now * self._cluster.ps or 1
        return {name: sum(each.busy() for each in several) / time for name, several in
                (('into the ps', self.into), ('out of the ps', self.out),
                 ('updates', self.updates))}

    def most_in_line(self):
        """Returns the most bytes that were on the link of a ps, or waited for it, at a time.

        In one direction, and from the first push on: what all workers read at the beginning does
        not count.

        Returns:
          Float; None if the links of the ps are infinitely fast, so that nothing ever waits.
        """
        bandwidth = self._cluster.ps_bandwidth
        return None if math.isinf(bandwidth) else self._longest * bandwidth


class Ring:
    """Workers in a ring: 2 (N - 1) hops, in each of which every worker sends 1 / N of its bytes.

    Where all send all to all, there are N - 1 hops, in each of which every worker sends as much as
    one has. All wait for the slowest link. Where the receiver asks for the data, a hop takes a
    round trip, and the beginning takes one more; otherwise a hop takes one way.

    Attributes:
      ignores, sent: see `Star`.
      asks: bool, whether the receiver asks.
    """

    ignores = 'ps', 'ps_bandwidth', 'update', 'links'

    def __init__(self, clock, cluster, scale=1, seed=1):
        """See `Star`; nothing here is random."""
        del seed
        self._clock, self._workers, workers = clock, cluster.workers, range(cluster.workers)
        self._scale, self.asks, self.sent = scale, True, 0.
        self._latency = max(cluster.of('latency', worker) for worker in workers)
        self._slowest = min(cluster.of('bandwidth', worker) for worker in workers)

    def sum(self, sizes, hop=0.):
        """Returns when a sum that begins now is complete.

        Args:
          sizes: list of ints, the bytes of each tensor.
          hop: float, seconds of a hop beyond those on the links.
        """
        piece = self._scale * sum(sizes) / self._workers
        return self._after(2 * (self._workers - 1), piece, hop)

    def gather(self, sizes, hop=0.):
        """Returns when all have what each has, if they begin now; see `sum`."""
        return self._after(self._workers - 1, self._scale * sum(sizes), hop)

    def _after(self, hops, piece, hop):
        """Returns when hops are over in each of which every worker sends `piece` bytes."""
        if not hops:
            return self._clock.now
        self.sent += self._workers * hops * piece
        ways = 2 * (hops + 1) if self.asks else hops
        return self._clock.now + hops * (hop + piece / self._slowest) + ways * self._latency

    def shares(self):
        """See `Star`; there is no ps."""
        return {}

    def most_in_line(self):
        """See `Star`; there is no ps."""
        return None


class Mesh:
    """Workers that send to each other: each has a link of its own, and there is no ps.

    What travels passes the link out of one worker and the one into the other. It then takes the
    latency of that one of the two which has more.

    Attributes:
      into, out: lists by worker of its link in each direction, see `Star`.
      ignores, sent: see `Star`.
    """

    ignores = 'ps', 'ps_bandwidth', 'update', 'hop', 'hop_work'

    def __init__(self, clock, cluster, scale=1, seed=1):
        """See `Star`."""
        self._clock, self._scale, self.sent, workers = clock, scale, 0., range(cluster.workers)
        link = _maker(clock, cluster, seed)
        self.into, self.out = ([link() for _ in workers] for _ in range(2))
        self._latencies, self._bandwidths = (
            [cluster.of(name, worker) for worker in workers] for name in ('latency', 'bandwidth'))

    def latency(self, worker, other):
        """Returns when a message arrives that now leaves one of two workers for the other one."""
        return self._clock.now + max(self._latencies[worker], self._latencies[other])

    def to(self, worker, other, sizes):
        """A process: tensors of some sizes, a list of ints, travel from a worker to another one."""
        size = self._scale * sum(sizes)
        self.sent += size
        yield from until(self._clock.now, [
            self.out[worker].serve(size / self._bandwidths[worker]),
            self.into[other].serve(size / self._bandwidths[other])])
        yield self.latency(worker, other)

    def shares(self):
        """See `Star`: the share for which a link was busy, the mean of all, in both directions."""
        links = [*self.into, *self.out]
        time = self._clock.now * len(links) or 1
        return {'links': sum(link.busy() for link in links) / time}

    def most_in_line(self):
        """See `Star`; there is no ps."""
        return None
