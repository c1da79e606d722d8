"""Plays what the workers of SGP send each other, with the folder's own ops: see `replicas`."""

from parts import Part
from tfdist.start.quiet import tf


class Shares:
    """What workers send and receive in each phase, see the folder's `topology.phases`.

    Attributes:
      receivers, senders: lists by phase of lists by worker of sorted lists of ints.
      parts: dict of `parts.Part` by a number of receivers: after the step of the optimizer, what
        each of them gets.
      ops: set of the ops of these parts.
    """

    def __init__(self, program, scheme, hparams, num_workers):
        """Makes the ops.

        Args:
          program: module, the folder's worker.py.
          scheme: its Scheme, see `push_sum.make`.
          hparams: object with the scheme's hyperparameters as attributes.
          num_workers: int.
        """
        workers, topology = range(num_workers), program.topology
        self.receivers = [[topology.receivers_of(worker, num_workers, phase) for worker in workers]
                          for phase in range(topology.phases(hparams.graph, num_workers))]
        self.senders = [[[] for _ in workers] for _ in self.receivers]
        for receivers, senders in zip(self.receivers, self.senders):
            for worker in workers:
                for each in receivers[worker]:
                    senders[each].append(worker)
        self._shares = {number: program.push_sum.share(scheme.stepped, number)
                        for number in _sizes(self.receivers)}
        self._given = {number + 1: [[tf.placeholder(value.dtype, value.shape)
                                     for value in scheme.stepped] for _ in range(number + 1)]
                       for number in _sizes(self.senders) if number}
        self._totals = {number: program.push_sum.total(given)
                        for number, given in self._given.items()}

    def make_parts(self, session, may_be_fed):
        """Makes the parts to run in a `tf.Session`; `may_be_fed` is a list of tensors."""
        self.parts = {number: Part(session, tensors, may_be_fed)
                      for number, tensors in self._shares.items()}
        self.ops = set().union(*(part.ops for part in self.parts.values()))
        self._adding = {number: Part(session, tensors, sum(self._given[number], []))
                        for number, tensors in self._totals.items()}

    def total(self, parts):
        """Returns the sums of lists of arrays, in the order of the workers; a list of arrays."""
        if len(parts) == 1:
            return parts[0]
        given = self._given[len(parts)]
        return self._adding[len(parts)]({
            tensor.name: value for tensors, values in zip(given, parts)
            for tensor, value in zip(tensors, values)})


def _sizes(by_phase):
    """Returns how many there may be in one of the lists, a sorted list of ints."""
    return sorted({len(each) for lists in by_phase for each in lists})
