"""Plays all workers of a folder's own scheme in one graph and one session; see `scheme/seam.py`.

A worker's round is two runs of the session: in one it computes what it will push, from the center
as it was when it pulled, and in the other it pushes. That one also reads the center as it is then,
for who pulls next. A scheme may pull and push several times in a round. A `Round` holds what a
worker has between these runs.
"""

import collections
import itertools
import sys

from tfdist.scheme import schedule
from tfdist.start.quiet import tf
from gathering import Gathering
from own import Own
import parts
from parts import Part
from rounds import Computed, pieces_of, Round

# Local steps that a thread computes in a row. Fewer, and threads wait for each other more often;
# more, and at the end of a run more are computed in vain.
_STEPS_IN_A_ROW = 8


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


class _Asked(collections.namedtuple('_Asked', 'worker pull fed pushed center batches kept')):
    """What a computation is made from; all of it is known when the worker pulls.

    Attributes:
      worker: int.
      pull: `_Pull`.
      fed, pushed: of the `Round` that goes on, see there.
      center: list of arrays, the global step and what is needed of the center.
      batches: what the source drew for the worker, see `shards`; None if that is among `fed`.
      kept: list of arrays, what the worker keeps, see `own`.
    """


def _size(tensor):
    """Returns the bytes of a tensor, or None if its shape does not tell."""
    if not tensor.shape.is_fully_defined():
        return None
    return tensor.shape.num_elements() * tensor.dtype.size


def _names(tensors):
    return [tensor.name for tensor in tensors]


class Player:
    """A scheme, a session, and any number of workers.

    Attributes:
      scheme: the Scheme.
      hparams: object, its hyperparameters.
      session: `tf.Session`.
      source: the source of its batches, see `shards`.
      variables: list of the trained `tf.Variable`s.
      parameters: int, the bytes of the variables.
      pieces: list of `Piece`, what a worker does in a round.
      pushes: int, how many pushes a round has.
      pushes_first: bool, whether a push needs no batch: it can leave before the worker computes.
      computes_later: bool, whether a worker's computation depends on nothing but what it has pulled
        and drawn. Otherwise, as with dropout, each is made when the worker pulls.
      tear: function of the list of arrays that a worker pushes, which returns what arrives of it;
        or None: all of it does.
    """

    def __init__(self, scheme_class, make, hparams, num_workers, seed=1):
        """Makes the graph and the session.

        Args:
          scheme_class: class, a `seam.Seam`.
          make: function that makes in the graph, and returns, what is trained, a
            `building.Network` or `toy.Problem`; a source of its batches, see `shards`; and an
            `evaluation.Test`, or None.
          hparams: object with the scheme's hyperparameters as attributes.
          num_workers: int.
          seed: int, of the initial values.
        """
        # Everything is in one process, so there are no devices of workers.
        here = type('Scheme', (scheme_class,), {'worker_device': staticmethod(lambda _: None)})
        with tf.Graph().as_default() as graph:
            tf.set_random_seed(seed)
            global_step = tf.train.get_or_create_global_step()
            network, self.source, self._test = make()
            self.scheme = here(network, global_step, hparams, 0, num_workers)
            center = [getattr(variable, 'table', variable) for variable in network.variables]
            self.hparams, self.variables = hparams, [
                variable for variable in tf.trainable_variables() if variable in center]
            self.parameters = sum(map(_size, self.variables))
            self._own = Own(self.scheme.own) if self.scheme.own else None
            self._given = [*self.source.placeholders, *self.scheme.workers]
            self._given_names = _names(self._given)
            looks, given = parts.needed(self.scheme.pull, self._given)
            self._only_looks = not given and parts.only_reads(looks)
            self._center_after = self._make_center_after()
            initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                          tf.tables_initializer()]
        self.session, self.tear = parts.new_session(graph), None
        for op in initialize:
            self.session.run(op)
        graph.finalize()
        # A source that draws faster for several workers at once does so.
        self._ask = getattr(self.source, 'ask', self.source.next)
        self._draw = getattr(self.source, 'draw', lambda asked: asked)
        # The center and the clocks of the gate as they are now; None if they have to be read.
        self._center = self._clocks = None
        self._make_parts()
        steps = sum(piece.local_steps for piece in self.pieces if piece.what == 'computes')
        self._gathering = Gathering(self._compute_all, max(1, _STEPS_IN_A_ROW // steps),
                                    parts.in_thread)

    def _exchanges(self, kind):
        return [each for each in self.scheme.exchanges if isinstance(each, kind)]

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

    def _part(self, fetches, may_be_fed=()):
        return Part(self.session, fetches, may_be_fed, self._own and self._own.places)

    def _make_parts(self):
        """Makes the parts that are run again and again."""
        scheme, gate, pushes = self.scheme, self.scheme.gate, self._exchanges(schedule.Push)
        self.pieces, self.pushes = pieces_of(scheme.exchanges), len(pushes)
        may_be_fed = [*(tensor for pull in self._exchanges(schedule.Pull)
                        for tensor in pull.tensors), *self._given]
        pushing = [(list(push.figures.values()), [
            *may_be_fed, *push.arrived, *scheme.stamps, *scheme.sums,
            *([gate.worker] if gate else [])]) for push in pushes]
        computing, keeps, numbers = self._computations(may_be_fed)
        if self._own:
            self._own.make_parts(self.session, [*pushing, *computing])
        self.computes_later = self._only_looks and self._are_alone(computing, pushing)
        self._make_pulls(pushing, computing, keeps, numbers)
        self._push = [self._part(fetches + [after[i] for i in self._taken if after], fed)
                      for (fetches, fed), after in zip(pushing, self._center_after)]
        self._arrived = [_names(push.arrived) for push in pushes]
        self._stamps, self._sums = _names(scheme.stamps), _names(scheme.sums)
        self._figures = [list(push.figures) for push in pushes]
        self.pushes_first = (len(pushes) == 1 and
                             not parts.needed(scheme.pushed, self.source.placeholders)[1])
        if scheme.complete is not None:
            self._complete = self._part([scheme.complete])
        if gate:
            self._join, self._leave = (self._part([op], [gate.worker])
                                       for op in (gate.join, gate.leave))
            self._look = self._part([gate.clocks])

    def _are_alone(self, computing, pushing):
        """Returns whether computations depend neither on other runs, nor on each other.

        The arguments are lists of pairs of lists of tensors: to fetch, and that may be fed.
        """
        scheme, gate, places = self.scheme, self.scheme.gate, self._own.places if self._own else {}
        others = [*pushing, ([scheme.complete] if scheme.complete is not None else [], []),
                  ([gate.join, gate.leave] if gate else [], [])]
        changed = set().union(*(parts.changed_by(parts.needed(*run)[0]) for run in others))
        return all(parts.depend_on_feeds_alone(parts.planned(*run, places)[0], places, changed)
                   for run in computing)

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

    def _make_pulls(self, pushing, computing, keeps, numbers):
        """Makes the parts that read the center, and those that compute.

        Args:
          pushing: list by push of pairs of lists of tensors: to fetch, and that may be fed.
          computing: list by pull of such pairs.
          keeps: list by pull of lists of tensors, see `_computations`.
          numbers: list by pull of lists of ints, see `_computations`.
        """
        pulls = [pull.tensors for pull in self._exchanges(schedule.Pull)]
        needs = [set(_names(parts.needed(*run)[1])) for run in [*computing, *pushing]]
        self._fed_later = set().union(*needs[1:])
        sizes = [_size(tensor) for tensor in self.scheme.pull]
        # The center is the step, and what is fed of the variables, or has a size to be known.
        used = needs[0] | self._fed_later
        self._taken = taken = [0, *(i for i in range(1, len(sizes)) if sizes[i] is None or any(
            tensors[i].name in used for tensors in pulls if i < len(tensors)))]
        self._read = self._part([self.scheme.pull[i] for i in taken], self._given)
        self._pulls = [
            _Pull(_names(tensors[i] for i in taken if i < len(tensors)), sizes[:len(tensors)],
                  self._part(*run) if run[0] else None, _names(kept), each)
            for tensors, run, kept, each in zip(pulls, computing, keeps, numbers)]

    def begin(self, worker, own=None):
        """Initializes what a worker keeps, as its program does at its start, or with `own`."""
        if self._own:
            self._own.begin(worker, own)
        if self.scheme.gate:
            self._clocks = None
            self._join({self.scheme.gate.worker.name: worker})

    def _run(self, worker, part, values):
        return self._own.run(worker, part, values) if self._own else part(values)

    def compute(self, worker, one=None, number=0):
        """Pulls the center as it is now, and has all computed that can be from that.

        Args:
          worker: int.
          one: `Round` to go on with; by default a new one begins.
          number: int, which pull of the round this is.

        Returns:
          `Round`.
        """
        pull, fed, pushed, batches = self._pulls[number], {}, [], None
        if one:
            fed, pushed = one.fed, one.pushed
        else:
            batches = self._ask(worker)
        center = self._center
        if not self._only_looks:  # such as at the rows of a batch
            if batches is not None:
                fed, batches = self._drawn(worker, *self._draw([batches])), None
            center = self._run(worker, self._read, fed)
        elif center is None:
            center = self._center = self._read({})
        computation = self._gathering.add(_Asked(
            worker, pull, fed, pushed, center, batches, self._own and self._own.of(worker)))
        if self._own:
            self._own.keep(worker, computation)
        if not self.computes_later:
            computation.result()
            self._center = None  # if it has changed something
        return Round(int(center[0]), self._bytes(pull, center), computation)

    def _drawn(self, worker, arrays):
        """Returns a dict by name of what is fed of a worker's batches, and of itself."""
        return dict(zip(self._given_names, [*arrays, *[worker] * len(self.scheme.workers)]))

    def _bytes(self, pull, center):
        """Returns the sizes of the tensors of a `_Pull`, a list of ints."""
        if None not in pull.sizes:
            return pull.sizes
        arrays = dict(zip(self._taken, center))
        return [arrays[i].nbytes if size is None else size for i, size in enumerate(pull.sizes)]

    def _compute_all(self, several):
        """Returns a list of `Computed` for a list of `_Asked`."""
        batches = [each.batches for each in several if each.batches is not None]
        drawn = iter(self._draw(batches) if batches else [])
        return [self._compute(each, each.fed if each.batches is None else
                              self._drawn(each.worker, next(drawn))) for each in several]

    def _compute(self, asked, fed):
        """Returns what is `Computed` for an `_Asked`; `fed` is a dict of its batches, at least."""
        pull, kept, values, results = asked.pull, asked.kept, dict(fed), []
        values.update(zip(pull.names, asked.center))
        if pull.compute and self._own and not self._own.places:
            results = self._own.run(asked.worker, pull.compute, values)
        elif pull.compute:
            results, kept = pull.compute.run_for(values, kept)
        results = iter(results)
        values.update(zip(pull.keeps, results))
        pushed = [list(itertools.islice(results, size)) for size in pull.pushes]
        return Computed({name: value for name, value in values.items() if name in self._fed_later},
                        asked.pushed + pushed, dict(zip(self.scheme.computed, results)), kept)

    def push(self, worker, one, number=0, stamp=None, sums=()):
        """Pushes what was computed.

        Args:
          worker: int, who does it.
          one: `Round`.
          number: int, which push of the round this is.
          stamp: int, the step to stamp the push with; by default the step that was pulled.
          sums: list of arrays, the pushes of all workers of a ring, summed.

        Returns:
          Dict of the figures of the push.
        """
        values = dict(one.fed)
        pushed = one.pushed[number]
        values.update(zip(self._arrived[number], self.tear(pushed) if self.tear else pushed))
        values.update(zip(self._sums, sums))
        values.update(dict.fromkeys(self._stamps, one.step if stamp is None else stamp))
        if self.scheme.gate:
            values[self.scheme.gate.worker.name] = worker
        results = self._run(worker, self._push[number], values)
        names = self._figures[number]
        self._center, self._clocks = results[len(names):] or None, None
        return dict(zip(names, results))

    def complete(self):
        """Completes a step for all workers, after enough pushes; returns the global step."""
        self._center = None
        return int(self._complete({})[0])

    def clocks(self):
        """Returns the clocks of a gate, an array by worker."""
        if self._clocks is None:
            self._clocks, = self._look({})
        return self._clocks

    def leave(self, worker):
        """Tells the gate that a worker does not count any more."""
        self._clocks = None
        self._leave({self.scheme.gate.worker.name: worker})

    def center(self):
        """Returns the values of the variables, a list of arrays."""
        return self.session.run(self.variables)

    def restore(self, values):
        """Sets variables to the arrays of a dict by name, which has all variables of the center.

        Raises:
          SystemExit: if a variable of the center is missing.
        """
        self._center = None
        for variable in self.session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
            if variable.op.name in values:
                initial = variable.initializer.inputs[1]
                self.session.run(variable.initializer, {initial: values[variable.op.name]})
            elif variable in self.variables:
                sys.exit(f'There is no value for {variable.op.name}: the model is another one.')

    def test(self):
        """Returns the figures of the test, a dict of floats; an empty one if there is no test."""
        return self._test.run(self.session) if self._test else {}

    def close(self):
        """Closes the session."""
        self._gathering.close()
        self.session.close()
