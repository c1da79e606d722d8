"""Plays all workers of a folder's own scheme in one graph and one session; see `scheme/seam.py`.

A worker's round is two runs of the session: in the first it reads the center and computes what it
will push, and later it pushes. A scheme may pull and push several times in a round. A `Round` holds
what a worker has between these runs. What a worker keeps from one round to the next is in the
session's variables while that worker plays, and beside the session otherwise.
"""

import collections
import itertools
import sys

from tfdist.scheme import schedule
from tfdist.start.quiet import tf
from parts import kept_between, Part
from rounds import pieces_of, Round


class _Own:
    """What each worker keeps: one worker's is in the variables, that of all others beside them."""

    def __init__(self, variables):
        """Makes ops on the `own` variables of a scheme, a list."""
        self._handles = {variable.handle.op for variable in variables}
        self._given = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                       for variable in variables]
        self._ops = ([variable.read_value() for variable in variables],
                     [variable.assign(value, read_value=False)
                      for variable, value in zip(variables, self._given)],
                     [tf.variables_initializer(variables)])
        self._kept, self._whose = {}, None

    def make_parts(self, session):
        """Makes the parts to run in a `tf.Session` of the finished graph."""
        take, give, make = self._ops
        self._take, self._give, self._make = (
            Part(session, take), Part(session, give, self._given), Part(session, make))

    def _put_away(self):
        if self._whose is not None:
            self._kept[self._whose] = self._take({})

    def turn(self, worker, part):
        """Loads what a worker keeps into the variables if a `Part` uses them."""
        if self._whose != worker and self._handles & part.ops:
            self._put_away()
            values = self._kept.pop(worker)
            self._give({tensor.name: value for tensor, value in zip(self._given, values)})
            self._whose = worker

    def begin(self, worker, values=None):
        """Gives a worker its initial values as of now, or `values`, a list of arrays."""
        if self._whose != worker:
            self._put_away()
        if values is None:
            self._make({})
        else:
            self._give({tensor.name: value for tensor, value in zip(self._given, values)})
        self._whose = worker


class _Pull(collections.namedtuple('_Pull', 'read taken names sizes compute keeps pushes')):
    """A pull of a round, and the computation of the pushes up to the next pull.

    Attributes:
      read: Part that returns the global step and the tensors of `taken`; for the first pull of a
        round also the computation's results: what is kept, what is pushed, and the figures.
      taken: list of ints, indices of the tensors of `Seam.pull` that are needed.
      names: list of strings, the names under which these are fed.
      sizes: list of ints, the bytes of each tensor; None where its shape does not tell.
      compute: Part that returns what is computed with a later pull; None if that is nothing.
      keeps: list of names of tensors that are computed here and fed later, so that no local step
        is made twice.
      pushes: list of ints, how many tensors each of the pushes has.
    """


def _size(tensor):
    """Returns the bytes of a tensor, or None if its shape does not tell."""
    if not tensor.shape.is_fully_defined():
        return None
    return tensor.shape.num_elements() * tensor.dtype.size


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
            self._own = _Own(self.scheme.own) if self.scheme.own else None
            initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                          tf.tables_initializer()]
        self.session = tf.Session(graph=graph, config=tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        for op in initialize:
            self.session.run(op)
        graph.finalize()
        self._make_parts()

    def _part(self, fetches, may_be_fed=()):
        return Part(self.session, fetches, may_be_fed)

    def _make_parts(self):
        """Makes the parts that are run again and again."""
        scheme, exchanges = self.scheme, self.scheme.exchanges
        gate = scheme.gate
        pulls, pushes = ([each for each in exchanges if isinstance(each, kind)]
                         for kind in (schedule.Pull, schedule.Push))
        self.pieces, self.pushes = pieces_of(exchanges), len(pushes)
        self._given = [*self.source.placeholders, *scheme.workers]
        may_be_fed = [*(tensor for pull in pulls for tensor in pull.tensors), *self._given]
        self._push = [self._part(list(push.figures.values()), [
            *may_be_fed, *push.arrived, *scheme.stamps, *scheme.sums,
            *([gate.worker] if gate else [])]) for push in pushes]
        self._arrived = [push.arrived for push in pushes]
        self._figures = [list(push.figures) for push in pushes]
        self._make_pulls(pulls, may_be_fed)
        self.pushes_first = (len(pushes) == 1 and
                             not self._part(scheme.pushed, self.source.placeholders).feeds)
        if scheme.complete is not None:
            self._complete = self._part([scheme.complete])
        if gate:
            self._join, self._leave = (self._part([op], [gate.worker])
                                       for op in (gate.join, gate.leave))
            self._clocks = self._part([gate.clocks])
        if self._own:
            self._own.make_parts(self.session)

    def _make_pulls(self, pulls, may_be_fed):
        """Makes the parts that are run with each pull; they compute all pushes up to the next pull.

        Args:
          pulls: list of `schedule.Pull`.
          may_be_fed: list of tensors.
        """
        scheme, known = self.scheme, []
        for exchange in scheme.exchanges:
            if isinstance(exchange, schedule.Pull):
                known.append([])
            else:
                known[-1].append(exchange.pushed)
        fetches = [sum(pushed, []) for pushed in known]
        fetches[-1] += scheme.computed.values()
        kept, feeds = kept_between(fetches, may_be_fed)
        fetches = [both + each for both, each in zip(kept, fetches)]
        # The first pull is read and used in one run; a later one is read first, and then fed.
        computes = [None, *(self._part(*both) if both[0] else None
                            for both in list(zip(fetches, feeds))[1:])]
        self._fed = {tensor.name for part in [*self._push, *filter(None, computes)]
                     for tensor in part.feeds}
        sizes = [_size(tensor) for tensor in scheme.pull]
        self._pulls = []
        for pull, compute, keeps, pushed in zip(pulls, computes, kept, known):
            taken = [i for i in range(len(pull.tensors)) if sizes[i] is None or any(
                each.tensors[i].name in self._fed for each in pulls if i < len(each.tensors))]
            read = [scheme.pull[i] for i in [0, *taken]] + ([] if self._pulls else fetches[0])
            self._pulls.append(_Pull(
                self._part(read, self._given), taken,
                [pull.tensors[i].name for i in taken], sizes[:len(pull.tensors)], compute,
                [tensor.name for tensor in keeps], list(map(len, pushed))))

    def begin(self, worker, own=None):
        """Initializes what a worker keeps, as its program does at its start, or with `own`."""
        if self._own:
            self._own.begin(worker, own)
        if self.scheme.gate:
            self._join({self.scheme.gate.worker.name: worker})

    def _run(self, worker, part, values):
        if self._own:
            self._own.turn(worker, part)
        return part(values)

    def compute(self, worker, one=None, number=0):
        """Pulls the center as it is now, and computes all that it can from that.

        Args:
          worker: int.
          one: `Round` to go on with; by default a new one begins.
          number: int, which pull of the round this is.

        Returns:
          `Round`.
        """
        pull = self._pulls[number]
        values = dict(one.fed) if one else dict(zip(
            [tensor.name for tensor in self._given],
            [*self.source.next(worker), *[worker] * len(self.scheme.workers)]))
        step, *results = self._run(worker, pull.read, values)
        pulled, results = results[:len(pull.taken)], results[len(pull.taken):]
        values.update(zip(pull.names, pulled))
        if pull.compute:
            results = self._run(worker, pull.compute, values)
        results = iter(results)
        values.update(zip(pull.keeps, results))
        pushed = [list(itertools.islice(results, size)) for size in pull.pushes]
        arrays = dict(zip(pull.taken, pulled))
        return Round(
            int(step), {name: value for name, value in values.items() if name in self._fed},
            [*one.pushed, *pushed] if one else pushed, dict(zip(self.scheme.computed, results)),
            [arrays[i].nbytes if size is None else size for i, size in enumerate(pull.sizes)])

    def push(self, worker, one, number=0, stamp=None, sums=()):
        """Pushes what was computed.

        Args:
          worker: int.
          one: `Round`.
          number: int, which push of the round this is.
          stamp: int, the step to stamp the push with; by default the step that was pulled.
          sums: list of arrays, the pushes of all workers of a ring, summed.

        Returns:
          Dict of the figures of the push.
        """
        scheme, values = self.scheme, dict(one.fed)
        for tensors, arrays in ((self._arrived[number], one.pushed[number]),
                                (scheme.sums, sums)):
            values.update((tensor.name, array) for tensor, array in zip(tensors, arrays))
        for tensor in scheme.stamps:
            values[tensor.name] = one.step if stamp is None else stamp
        if scheme.gate:
            values[scheme.gate.worker.name] = worker
        return dict(zip(self._figures[number], self._run(worker, self._push[number], values)))

    def complete(self):
        """Completes a step for all workers, after enough pushes; returns the global step."""
        return int(self._complete({})[0])

    def clocks(self):
        """Returns the clocks of a gate, an array by worker."""
        return self._clocks({})[0]

    def leave(self, worker):
        """Tells the gate that a worker does not count any more."""
        self._leave({self.scheme.gate.worker.name: worker})

    def center(self):
        """Returns the values of the variables, a list of arrays."""
        return self.session.run(self.variables)

    def restore(self, values):
        """Sets variables to the arrays of a dict by name, which has all variables of the center.

        Raises:
          SystemExit: if a variable of the center is missing.
        """
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
        self.session.close()
