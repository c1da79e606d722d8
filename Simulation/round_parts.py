"""What one kind of a scheme's rounds runs in the session: parts that read, compute and push."""

import collections

from tfdist.scheme import schedule, transfer
from tfdist.start.quiet import tf
import parts
from parts import Part
from rounds import Kind, pieces_of


class _Pull(collections.namedtuple('_Pull', 'names sizes compute keeps pushes')):
    """A pull of a round, and the computation of the pushes up to the next pull.

    Attributes:
      names: list of strings, the names under which the center is fed, as far as it is needed.
      sizes: list of ints, the bytes of each tensor; None where its shape does not tell.
      compute: Part that returns what is kept, what is pushed, and with the last pull the figures;
        None if that is nothing.
      keeps: list of names of tensors that are computed here and fed later, so that no local step
        is made twice.
      pushes: list of ints, how many tensors each of the pushes has.
    """


def _names(tensors):
    return [tensor.name for tensor in tensors]


class RoundParts:
    """The parts of one kind of rounds: `make` makes them when the graph is complete.

    Attributes:
      scheme: `seam.Seam`, whose runs these rounds are.
      kind: `rounds.Kind`.
      pieces: list of `rounds.Piece`, what a worker does in such a round.
      computing, pushing: lists by pull and by push of pairs of lists of tensors: what is fetched
        there, and what may be fed.
      only_looks: bool, whether a pull only reads variables, whatever the batch.
      given_names: list of strings, what is fed of the batches and of which worker it is.
      fed_later: set of strings, the names of what is fed after the first computation.
      center: list of arrays, the global step and what is needed of the center, as it is now; None
        if that has to be read.
      read, complete: Part; None if nothing completes a step.
      pulls: list of `_Pull`.
      push: list of Part.
      arrived, figures: lists by push of lists of strings, names of what is fed and of the results.
      stamps, sums: lists of strings, names of what is fed.
      others_keep: for a ring in which one push is made for all workers: Part that returns what each
        of the others keeps after it, dict by name of the places that are fed to it, and list of the
        places that it returns, see `own`; None if each worker pushes, or the others keep nothing.
    """

    center = complete = others_keep = None

    def __init__(self, scheme, number, placeholders, variables):
        """Looks through the graph, and adds what a pull right after a push reads.

        Args:
          scheme: `seam.Seam`.
          number: int, see `rounds.Kind`.
          placeholders: list of tensors, the batches.
          variables: list of `tf.Variable`, the center.
        """
        self.scheme = scheme
        self._given = [*placeholders, *scheme.workers]
        self.given_names = _names(self._given)
        looks, given = parts.needed(scheme.pull, self._given)
        self.only_looks = not given and parts.only_reads(looks)
        self._center_after = self._make_center_after()
        self.pieces, self.kind = pieces_of(scheme.exchanges), self._kind(number, variables)
        pulls, pushes = self._exchanges(schedule.Pull), self._exchanges(schedule.Push)
        may_be_fed = [*(tensor for pull in pulls for tensor in pull.tensors), *self._given]
        of_all = scheme.sums if scheme.gathered is None else [scheme.gathered]
        self.pushing = [(list(push.figures.values()), [
            *may_be_fed, *push.arrived, *scheme.stamps, *of_all,
            *([scheme.gate.worker] if scheme.gate else [])]) for push in pushes]
        self.computing, self._keeps, self._numbers = self._computations(may_be_fed)
        self.arrived = [_names(push.arrived) for push in pushes]
        self.figures = [list(push.figures) for push in pushes]
        self.stamps, self.sums = _names(scheme.stamps), _names(scheme.sums)
        self._look_through([pull.tensors for pull in pulls])

    def _exchanges(self, kind):
        return [each for each in self.scheme.exchanges if isinstance(each, kind)]

    def _kind(self, number, variables):
        fragment, share = self.scheme.fragment, 1.
        if fragment is not None:
            sizes = [transfer.size_of([variable]) for variable in variables]
            share = sum(sizes[place] for place in fragment) / sum(sizes)
        return Kind(number, fragment, len(variables), share)

    def _make_center_after(self):
        """Returns for each push of a round what a pull right after it reads, a list of tensors.

        Lists are empty where a run of its own reads that: after a step of all workers together, or
        if a pull does more than read variables, as one that waits for a lock does.
        """
        scheme, pushes = self.scheme, self._exchanges(schedule.Push)
        looks, given = parts.needed(scheme.pull, self._given)
        if scheme.complete is not None or given or not parts.only_reads(looks, may_lock=False):
            return [[] for _ in pushes]
        after = []
        for push in pushes:
            with tf.control_dependencies(list(push.figures.values())):
                pushed = tf.constant(0, name='pushed')
            after.append(parts.made_again(scheme.pull, pushed, 'center_after'))
        return after

    def _computations(self, may_be_fed):
        """Returns what is computed with each pull: all pushes up to the next pull.

        Args:
          may_be_fed: list of tensors.

        Returns:
          List by pull of pairs of lists of tensors: those to fetch, and those that may be fed; list
          by pull of lists of tensors, the first ones of these, which are fed later; and list by
          pull of lists of ints, how many tensors each of the pushes has.
        """
        pushes = []
        for exchange in self.scheme.exchanges:
            if isinstance(exchange, schedule.Pull):
                pushes.append([])
            else:
                pushes[-1].append(exchange.pushed)
        fetches = [sum(pushed, []) for pushed in pushes]
        fetches[-1] += self.scheme.computed.values()
        kept, feeds = parts.kept_between(fetches, may_be_fed)
        return ([(both + each, fed) for both, each, fed in zip(kept, fetches, feeds)], kept,
                [list(map(len, pushed)) for pushed in pushes])

    def _look_through(self, pulls):
        """Finds what of the center is needed; takes the list by pull of lists of tensors."""
        needs = [set(_names(parts.needed(*run)[1])) for run in [*self.computing, *self.pushing]]
        self.fed_later = set().union(*needs[1:])
        self._sizes = [transfer.size_of([tensor]) for tensor in self.scheme.pull]
        # The center is the step, and what is fed of the variables, or has a size to be known.
        used = needs[0] | self.fed_later
        self._taken = [0, *(i for i in range(1, len(self._sizes)) if self._sizes[i] is None or any(
            tensors[i].name in used for tensors in pulls if i < len(tensors)))]
        self._pulled = pulls

    def make(self, session, places):
        """Makes the parts.

        Args:
          session: `tf.Session` of the finished graph.
          places: dict by op of what workers keep, see `own`.
        """
        scheme, taken = self.scheme, self._taken

        def part(fetches, may_be_fed=()):
            return Part(session, fetches, may_be_fed, places)

        self.read = part([scheme.pull[i] for i in taken], self._given)
        self.pulls = [
            _Pull(_names(tensors[i] for i in taken if i < len(tensors)),
                  self._sizes[:len(tensors)], part(*run) if run[0] else None, _names(kept), each)
            for tensors, run, kept, each in zip(
                self._pulled, self.computing, self._keeps, self._numbers)]
        self.push = [part(fetches + [after[i] for i in taken if after], fed)
                     for (fetches, fed), after in zip(self.pushing, self._center_after)]
        if scheme.complete is not None:
            self.complete = part([scheme.complete])
        if scheme.gathered is not None:
            (fetches, fed), = self.pushing
            _, _, reads, assigned = parts.planned(fetches, fed, places)
            # Without the push itself, on which what is read waits.
            if assigned:
                self.others_keep = (
                    Part(session, [tensor for tensor, _ in assigned],
                         [tensor for tensor, _ in reads]),
                    {tensor.name: place for tensor, place in reads},
                    [place for _, place in assigned])

    def bytes_of(self, pull, center):
        """Returns the sizes of the tensors of a `_Pull`, a list of ints; see `Round.pull_bytes`."""
        sizes = pull.sizes
        if None in sizes:
            arrays = dict(zip(self._taken, center))
            sizes = [arrays[i].nbytes if size is None else size for i, size in enumerate(sizes)]
        if self.kind.fragment is None:
            return sizes
        return [*sizes[:1], *self.kind.in_place(sizes[1:])]
