"""Plays workers that each have a replica of their own, and no center: those of Gossip.

Gradients, both sides of an exchange, the mixing of replicas, steps and the mean of all are the
folder's own ops, in one graph and one session: each run has the variables of the worker whose turn
it is. What travels between workers, the folder's queues and sections, is played in `neighbours`.
"""

import collections
import functools

from tfdist.model import building
from tfdist.scheme import graphs, transfer
from tfdist.start.quiet import tf
from gathering import Gathering, STEPS_IN_A_ROW
import halves
import neighbours
from own import Own
import parts
from parts import Part
import shards
import sharing

_Asked = collections.namedtuple('_Asked', 'worker seen batches')


class Step(collections.namedtuple('Step', 'fed pushed figures')):
    """What a worker has computed for a step.

    Attributes:
      fed: dict of arrays by tensors' names: its batches, and what it has seen.
      pushed: list of arrays, its gradients first.
      figures: dict of floats, of its batches.
    """


def of_program(program, hparams, number):
    """Returns the `Replicas` of a folder's program.

    Args:
      program: module, the folder's worker.py.
      hparams: object with the scheme's hyperparameters as attributes.
      number: int, how many workers there are.

    Raises:
      SystemExit: if flags do not go together, or the model does not fit.
    """
    program.check(number)
    scheme = program.Scheme

    def make():
        source = shards.of_model(program.model, hparams.batch_size, scheme.batches(hparams),
                                 [(worker, number) for worker in range(number)],
                                 [hparams.seed] * number)
        return (building.Network(program.model, source.batches, 0, scheme.tables_stay_on_ps),
                source)

    def make_test(network, mean):
        return halves.test_of(program.model,
                              functools.partial(network.at_variables, values=mean.tested))

    return Replicas(program, make, make_test, hparams, number, hparams.seed)


def _to_be_given(values):
    """Returns a list of placeholders for values of a list of tensors or variables."""
    return [tf.placeholder(value.dtype.base_dtype, value.shape) for value in values]


def _played(program):
    """Returns the class of a program's scheme, with what an exchange is made of."""
    class Played(program.Scheme):
        """The scheme. What comes from others is fed.

        Attributes:
          received: list by neighbour of lists of placeholders, their replicas; only in D-PSGD.
          given: list of placeholders, what comes in an exchange of AD-PSGD.
          halves, subtracted: lists of tensors and ops, both sides of it; see the folder's `pairs`.
        """

        def make(self, network, *args):
            self.received, handles = [], [variable.handle for variable in network.variables]
            super().make(network, *args)
            self.given = _to_be_given(network.variables)
            self.halves = program.pairs.add_half(handles, self.given)
            self.subtracted = program.pairs.subtract(handles, self.given)

        def swap(self, x, task_index, receivers, senders):
            received = [_to_be_given(x) for _ in senders]
            if not self.weights:
                self.received = received
            return [], dict(zip(senders, received))

    return Played


class Replicas:
    """A scheme, a session, and any number of workers; what `player.Player` is for other schemes.

    Attributes:
      scheme: the Scheme.
      hparams: object, its hyperparameters.
      session: `tf.Session`.
      source: the source of its batches, see `shards`.
      parameters: int, the bytes of a replica.
      topology: module of the folder.
      shares: `sharing.Shares`, only in SGP.
      computes_later: bool, see `player.Player`.
      there: collection of ints, the workers whose replicas count in the mean.
      say: function of a string, which prints a line.
      pieces, pushes, overlaps: as a round has no pulls and no pushes.
    """

    pieces, pushes, overlaps = (), 1, False

    def __init__(self, program, make, make_test, hparams, num_workers, seed=1):
        """Makes the graph and the session.

        Args:
          program: module, the folder's worker.py.
          make: function that makes in the graph, and returns, what is trained, a
            `building.Network` or `toy.Problem`; and a source of its batches, see `shards`.
          make_test: function of what is trained, and of the folder's `mean.Mean`, that makes an
            `evaluation.Test`; or None.
          hparams: object with the scheme's hyperparameters as attributes.
          num_workers: int.
          seed: int, of the initial values.
        """
        with tf.Graph().as_default() as graph:
            tf.set_random_seed(seed)
            global_step = tf.train.get_or_create_global_step()
            network, self.source = make()
            self._mean = program.mean.Mean(network, {})
            self._test = make_test and make_test(network, self._mean)
            self.scheme = _played(program)(network, global_step, hparams, 0, num_workers)
            self._mean.weights = self.scheme.weights
            if self.scheme.weights:
                self.shares = sharing.Shares(program, self.scheme, hparams, num_workers)
            kept = self._place(network)
            self._own = Own(kept)
            initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                          tf.tables_initializer()]
        self.session = parts.new_session(graph)
        for op in initialize:
            self.session.run(op)
        graph.finalize()
        self.hparams, self.topology, self._words = hparams, program.topology, program.mean.words
        self.parameters = transfer.size_of(network.variables)
        self.there, self.say = (), lambda words: None
        self.source.life = neighbours.kind_of(self.scheme, hparams)
        self._ask = getattr(self.source, 'ask', self.source.next)
        self._draw = getattr(self.source, 'draw', lambda asked: asked)
        self._make_parts()
        self._first = self.session.run(kept)
        self._gathering = Gathering(self._compute_all, STEPS_IN_A_ROW, parts.in_thread)

    def _place(self, network):
        """Finds where the values of a worker's variables are; returns the list of variables."""
        scheme, averaged = self.scheme, self._mean.of
        before = [variable.handle.op for variable in scheme.before]
        kept = [*tf.global_variables(),
                *(variable for variable in scheme.own if variable.handle.op not in before)]
        places = {variable.handle.op: place for place, variable in enumerate(kept)}
        self._averaged = [places[variable.handle.op] for variable in averaged]
        self._counted = [*self._averaged,
                         *(places[weight.handle.op] for weight in scheme.weights)]
        # A replica as it was before an exchange is kept in what the worker has seen.
        places.update(zip(before, self._averaged))
        self._seen = []
        for tensor in scheme.pull:
            handle, = (op for op in graphs.ancestors([tensor]) if op.type == 'VarHandleOp')
            self._seen.append(places[handle])
        self._size = len(network.variables)
        return kept

    def _make_parts(self):
        """Makes the parts that are run again and again."""
        scheme, session = self.scheme, self.session
        batches = [*self.source.placeholders, *scheme.workers]
        fed = [*batches, *scheme.pull]
        computing = [*scheme.pushed, *scheme.computed.values()], fed
        mixed = scheme.mixed if scheme.weights else sum(scheme.received, [])
        pushing = list(scheme.push.values()), [*fed, *scheme.pushed, *mixed]
        self._own.make_parts(session, [computing, pushing])
        self._computing, self._push = Part(session, *computing), Part(session, *pushing)
        self._add, self._subtract = (Part(session, side, scheme.given)
                                     for side in (scheme.halves, scheme.subtracted))
        changed = parts.changed_by(self._push.ops | self._add.ops | self._subtract.ops)
        if scheme.weights:
            self.shares.make_parts(session, [*fed, *scheme.pushed])
            changed |= parts.changed_by(self.shares.ops)
        self.computes_later = parts.depend_on_feeds_alone(self._computing.ops, {}, changed)
        self._batches, self._pulled, self._pushed, self._given = (
            [tensor.name for tensor in tensors]
            for tensors in (batches, scheme.pull, scheme.pushed, scheme.given))
        # Worker 0, whose graph this is, comes before its neighbours.
        self._mixed = [[tensor.name for tensor in tensors] for tensors in (
            scheme.pull[1:1 + self._size], *scheme.received)] if scheme.received else []
        if scheme.weights:
            self._mixed = [[tensor.name for tensor in scheme.mixed]]

    def begin(self, worker, values=None):
        """Gives a worker its first values, the same for all, or `values`, a list of arrays."""
        self._own.begin(worker, values or self._first)

    def values(self, worker):
        """Returns all that a worker has, a list of arrays, for another one to begin with."""
        return self._own.values(worker)

    def look(self, worker):
        """Returns what a worker's run reads now: its step, replica and state, a list of arrays."""
        kept = self._own.values(worker)
        return [kept[place] for place in self._seen]

    def replica(self, seen):
        """Returns the replica in what a worker has seen, a list of arrays; see `look`."""
        return seen[1:1 + self._size]

    def compute(self, worker, seen):
        """Has a worker's step computed on its next batches, from what it has seen.

        Returns:
          `gathering.Computation` of a `Step`.
        """
        computation = self._gathering.add(_Asked(worker, seen, self._ask(worker)))
        if not self.computes_later:
            computation.result()
        return computation

    def _compute_all(self, several):
        drawn = self._draw([each.batches for each in several])
        return [self._compute(*both) for both in zip(several, drawn)]

    def _compute(self, asked, arrays):
        """Returns the `Step` of an `_Asked`, with the arrays of its batches."""
        fed = dict(zip(self._batches, [*arrays, *[asked.worker] * len(self.scheme.workers)]))
        fed.update(zip(self._pulled, asked.seen))
        # Several threads come here only if no variable has to be a worker's.
        results = (self._computing(fed) if self.computes_later else
                   self._own.run(asked.worker, self._computing, fed))
        number = len(self._pushed)
        return Step(fed, results[:number], dict(zip(self.scheme.computed, results[number:])))

    def share(self, worker, step, receivers):
        """Returns what each of a number of receivers gets in SGP, and the worker keeps, of a step.

        Args:
          worker: int.
          step: `Step`, which the worker makes.
          receivers: int.

        Returns:
          List of arrays.
        """
        return self._own.run(worker, self.shares.parts[receivers],
                             {**step.fed, **dict(zip(self._pushed, step.pushed))})

    def push(self, worker, step, mixed=()):
        """Has a worker make a `Step`.

        Args:
          worker: int.
          step: `Step`.
          mixed: list of replicas that become their mean before, in the order of the workers; in
            SGP, list of one list of arrays, what the worker has after it has received.
        """
        fed = dict(step.fed)
        fed.update(zip(self._pushed, step.pushed))
        for names, replica in zip(self._mixed, mixed):
            fed.update(zip(names, replica))
        self._own.run(worker, self._push, fed)

    def add_half(self, worker, replica):
        """Adds to a worker's replica half of the difference to another one; returns that half."""
        return self._own.run(worker, self._add, dict(zip(self._given, replica)))

    def subtract(self, worker, halves):
        """Subtracts from a worker's replica what was added to that of its partner."""
        self._own.run(worker, self._subtract, dict(zip(self._given, halves)))

    def form_mean(self):
        """Forms the mean of the replicas that count; returns their number, and the distance."""
        kept = [self._own.values(worker) for worker in sorted(self.there)]
        return self._mean.form_of(self.session, [[values[place] for place in self._counted]
                                                 for values in kept])

    def test(self):
        """Returns the figures of a test of the mean, a dict of floats; see `player.Player`."""
        if not self._test:
            return {}
        self.say(self._words(*self.form_mean()))
        self._own.turn_to(min(self.there))  # other state, as of batch norm, is that of one worker
        return halves.figures(self._test, self.session, self._mean.tested)

    def close(self):
        """Closes the session."""
        self._gathering.close()
        self.session.close()
