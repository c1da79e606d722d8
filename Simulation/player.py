"""Plays all workers of a folder's own scheme in one graph and one session; see `scheme/seam.py`.

A worker's round is two runs of the session: in one it computes what it will push, from the center
as it was when it pulled, and in the other it pushes. That one also reads the center as it is then,
for who pulls next. A scheme may pull and push several times in a round. A `Round` holds what a
worker has between these runs. If not all rounds of a scheme are the same, the step decides which
kind the next one is.
"""

import collections
import itertools
import sys

import numpy as np
from tfdist.scheme import transfer
from tfdist.start.quiet import tf
from gathering import Gathering, STEPS_IN_A_ROW
import halves
from own import Own
import parts
from parts import Part
from round_parts import RoundParts
from rounds import Computed, Round


class _Asked(collections.namedtuple('_Asked', 'worker round pull fed pushed center batches kept')):
    """What a computation is made from; all of it is known when the worker pulls.

    Attributes:
      worker: int.
      round: `RoundParts`.
      pull: one of its pulls.
      fed, pushed: of the `Round` that goes on, see there.
      center: list of arrays, the global step and what is needed of the center.
      batches: what the source drew for the worker, see `shards`; None if that is among `fed`.
      kept: list of arrays, what the worker keeps, see `own`.
    """


class Player:
    """A scheme, a session, and any number of workers.

    Attributes:
      scheme: the Scheme.
      hparams: object, its hyperparameters.
      session: `tf.Session`.
      source: the source of its batches, see `shards`.
      variables: list of the trained `tf.Variable`s.
      parameters: int, the bytes of the variables.
      pieces: list by kind of round of lists of `Piece`, what a worker does in it: kind 0 is the
        scheme's own, and then come its `others`. All have as many pieces, and the same ones.
      pushes: int, how many pushes a round has.
      overlaps: bool, whether a worker can pull during its first local step, and push during the
        others.
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

        Raises:
          SystemExit: if what a model keeps on each worker does not fit the scheme.
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
            self.parameters = transfer.size_of(self.variables)
            self._seams = [self.scheme, *self.scheme.others]
            beginning = [self.scheme.beginning] if self.scheme.beginning else []
            self._parts = [RoundParts(each, number, self.source.placeholders, center)
                           for number, each in enumerate([*self._seams, *beginning])]
            self._beginning = self._parts[-1] if beginning else None
            own = collections.OrderedDict((variable.name, variable)
                                          for each in self._seams for variable in each.own)
            self._own = Own([*own.values()]) if own else None
            step = global_step.read_value()
            initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                          tf.tables_initializer()]
        self.session, self.tear = parts.new_session(graph), None
        for op in initialize:
            self.session.run(op)
        graph.finalize()
        # A source that draws faster for several workers at once does so.
        self._ask = getattr(self.source, 'ask', self.source.next)
        self._draw = getattr(self.source, 'draw', lambda asked: asked)
        self._clocks = None  # those of the gate as they are now; None if they have to be read
        self._make_parts(step)
        steps = sum(piece.local_steps for piece in self.pieces[0] if piece.what == 'computes')
        self._gathering = Gathering(self._compute_all, max(1, STEPS_IN_A_ROW // steps),
                                    parts.in_thread)

    def _make_parts(self, step):
        """Makes the parts that are run again and again; `step` is the global step as it is."""
        scheme, gate, own = self.scheme, self.scheme.gate, self._own
        runs = [run for each in self._parts for run in [*each.pushing, *each.computing]]
        if own:
            own.make_parts(self.session, runs)
        places = own.places if own else {}
        if scheme.gathered is not None and not places:
            sys.exit('The model keeps state of a worker in local variables in a way that is not '
                     'simulated in a ring with --compression: leave the compression out.')
        self.computes_later = (all(each.only_looks for each in self._parts)
                               and self._are_alone(places))
        for each in self._parts:
            each.make(self.session, places)
        self.pieces = [each.pieces for each in self._parts[:len(self._seams)]]
        self.pushes = len(self._parts[0].push)
        self.overlaps = len(self._seams) == self.pushes == 1 and self._overlaps()
        self._step = Part(self.session, [step])
        if gate:
            self._join, self._leave = (Part(self.session, [op], [gate.worker], places)
                                       for op in (gate.join, gate.leave))
            self._look = Part(self.session, [gate.clocks], (), places)

    def _overlaps(self):
        """Returns whether the push needs no batch, and the first gradient no pull."""
        if parts.needed(self.scheme.pushed, self.source.placeholders)[1]:
            return False
        kept, of_batch, pulled = map(parts.following, (
            [variable.handle for variable in self.scheme.own], self.source.placeholders[:1],
            self.scheme.pull))
        return bool(kept & of_batch - pulled)

    def _are_alone(self, places):
        """Returns whether computations depend neither on other runs, nor on each other.

        Args:
          places: dict by op of what workers keep, see `own`.
        """
        gate = self.scheme.gate
        others = [run for each in self._parts for run in each.pushing]
        others += [([each.complete], []) for each in self._seams if each.complete is not None]
        others += [([gate.join, gate.leave], [])] if gate else []
        changed = set().union(*(parts.changed_by(parts.needed(*run)[0]) for run in others))
        return all(parts.depend_on_feeds_alone(parts.planned(*run, places)[0], places, changed)
                   for each in self._parts for run in each.computing)

    def begin(self, worker, own=None):
        """Initializes what a worker keeps, as its program does at its start, or with `own`.

        Returns:
          List of ints, the size of each tensor that it reads of the center before its first round;
          empty if it reads nothing.
        """
        if self._own:
            self._own.begin(worker, own)
        if self.scheme.gate:
            self._clocks = None
            self._join({self.scheme.gate.worker.name: worker})
        if self._beginning:
            return self._pulls(worker, self._beginning).pull_bytes
        return []

    def _run(self, worker, part, values):
        return self._own.run(worker, part, values) if self._own else part(values)

    def _kind_at(self, step=None):
        """Returns which kind of round begins at a global step, both ints; by default as it is."""
        if len(self._seams) == 1:
            return 0
        step = self._step({})[0] if step is None else step
        return self._seams.index(self.scheme.at(int(step)))

    def compute(self, worker, one=None, number=0):
        """Pulls the center as it is now, and has all computed that can be from that.

        Args:
          worker: int.
          one: `Round` to go on with; by default a new one begins.
          number: int, which pull of the round this is.

        Returns:
          `Round`.
        """
        kind = one.kind.number if one else self._kind_at()
        return self._pulls(worker, self._parts[kind], one, number)

    def _pulls(self, worker, of_round, one=None, number=0):
        """Does what `compute` says, in a round of which `RoundParts` are given."""
        pull, fed, pushed, batches = of_round.pulls[number], {}, [], None
        if one:
            fed, pushed = one.fed, one.pushed
        else:
            batches = self._ask(worker)
        center = of_round.center
        if not of_round.only_looks:  # such as at the rows of a batch
            if batches is not None:
                fed, batches = self._drawn(of_round, worker, *self._draw([batches])), None
            center = self._run(worker, of_round.read, fed)
        elif center is None:
            center = of_round.center = of_round.read({})
        computation = self._gathering.add(_Asked(
            worker, of_round, pull, fed, pushed, center, batches,
            self._own and self._own.of(worker)))
        if self._own:
            self._own.keep(worker, computation)
        if not self.computes_later:
            computation.result()
            self._forget()  # if it has changed something
        return Round(int(center[0]), of_round.bytes_of(pull, center), computation, of_round.kind)

    def _forget(self):
        """Has the center be read again: it may have changed."""
        for each in self._parts:
            each.center = None

    @staticmethod
    def _drawn(of_round, worker, arrays):
        """Returns a dict by name of what is fed of a worker's batches, and of itself."""
        return dict(zip(of_round.given_names, [*arrays, *[worker] * len(of_round.scheme.workers)]))

    def _compute_all(self, several):
        """Returns a list of `Computed` for a list of `_Asked`."""
        batches = [each.batches for each in several if each.batches is not None]
        drawn = iter(self._draw(batches) if batches else [])
        return [self._compute(each, each.fed if each.batches is None else
                              self._drawn(each.round, each.worker, next(drawn)))
                for each in several]

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
        later = asked.round.fed_later
        return Computed({name: value for name, value in values.items() if name in later},
                        asked.pushed + pushed, dict(zip(asked.round.scheme.computed, results)),
                        kept)

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
        of_round = self._parts[one.kind.number]
        given = dict(zip(of_round.sums, sums))
        given.update(dict.fromkeys(of_round.stamps, one.step if stamp is None else stamp))
        return self._push(worker, one, number, given)

    def _push(self, worker, one, number, given):
        """Does what `push` says; `given` is a dict by name of what is fed besides the round."""
        of_round, values, pushed = self._parts[one.kind.number], dict(one.fed), one.pushed[number]
        values.update(zip(of_round.arrived[number], self.tear(pushed) if self.tear else pushed))
        values.update(given)
        if self.scheme.gate:
            values[self.scheme.gate.worker.name] = worker
        results = self._run(worker, of_round.push[number], values)
        names = of_round.figures[number]
        self._forget()
        of_round.center, self._clocks = results[len(names):] or None, None
        return dict(zip(names, results))

    def push_gathered(self, several):
        """Pushes for all workers of a ring, each of which gets what all of them send.

        Args:
          several: list of `Round` by worker.

        Returns:
          Dict of the figures of the push.
        """
        sent = np.stack([one.pushed[0][0] for one in several])
        figures = self._push(0, several[0], 0, {self.scheme.gathered.name: sent})
        others_keep = self._parts[0].others_keep
        for worker in range(1, len(several)) if others_keep else ():  # the center is that of all
            self._own.settle(worker, *others_keep)
        return figures

    def complete(self, step=0):
        """Completes a step for all workers, after enough pushes; returns the global step.

        Args:
          step: int, the one in which they have pushed; if not all rounds are the same, this counts.
        """
        self._forget()
        return int(self._parts[self._kind_at(step)].complete({})[0])

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
        self._forget()
        for variable in self.session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
            if variable.op.name in values:
                initial = variable.initializer.inputs[1]
                self.session.run(variable.initializer, {initial: values[variable.op.name]})
            elif variable in self.variables:
                sys.exit(f'There is no value for {variable.op.name}: the model is another one.')

    def test(self):
        """Returns the figures of the test, a dict of floats; an empty one if there is no test."""
        return halves.figures(self._test, self.session, self.variables) if self._test else {}

    def close(self):
        """Closes the session."""
        self._gathering.close()
        self.session.close()
