"""Trains a model as one would without any scheme: one call of its function, one optimizer."""

import re
from unittest import mock

import numpy as np
from tfdist.checking import plain_step, random_ops
from tfdist.data import batches
from tfdist.model import collecting
from tfdist.scheme import graphs
from tfdist.start.quiet import tf

# With one thread rounding is the same each time. No step takes ten minutes, unless it waits.
CONFIG = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True,
                        intra_op_parallelism_threads=1, operation_timeout_in_ms=600000)
# The model's function only builds: what it says of training is in other functions.
_NO_TRAINING = mock.patch.object(tf.train.Optimizer, 'apply_gradients', lambda *_, **__: tf.no_op())
AVERAGE = '/ExponentialMovingAverage'  # in TensorFlow's names, after that of a variable


def parts_of(batch):
    """Returns a list of the tensors of a batch, a nest; those that make a sparse one, too."""
    return [part for part in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(part)]


def variables_made():
    """Returns a list of all `tf.Variable` but the global step and those of `tf.metrics`."""
    others = [tf.train.get_global_step(), *tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)]
    return [variable for variable in tf.global_variables() + tf.local_variables()
            if not any(variable is other for other in others)]


def feed_of(ops, outputs):
    """Returns a feed of arrays, for each op a list of its `outputs`."""
    return {tensor: array for op, arrays in zip(ops, outputs)
            for tensor, array in zip(op.outputs, arrays)}


def _is_inside(term, ops):
    """Returns whether a regularization term is computed among ops, a set."""
    if term.op.outputs[0] is term:
        return term.op in ops
    # Of a variable in parts: TensorFlow 2.21 computes it anew wherever it is used.
    name = re.compile(re.escape(re.sub(r'_\d+$', '', term.op.name)) + r'(_\d+)?')
    return any(name.fullmatch(op.name) for op in ops)


def _by_resource(next_creator, **kwargs):
    """Makes variables whose uses `_find_updates` can find; training is the same."""
    return next_creator(**dict(kwargs, use_resource=True))


class PlainSide:
    """A model in a graph of its own, and its training in plain TensorFlow.

    Attributes:
      variables: list of `tf.Variable`, as the model makes them.
      trained: list of those of the variables that are trained.
      random_ops: list of the ops that draw random numbers for a batch.
      given: set of strings, the names of variables for which the model has `initial_values`.
    """

    def __init__(self, model, make_batches, hparams):
        """Calls the model's function, for the first and only time on this side.

        Args:
          model: `model_file.Model`.
          make_batches: function that returns the batches of a run, a list of nests of tensors.
          hparams: object with the values of all flags as attributes.
        """
        self._model, self._hparams, self.given = model, hparams, set()
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.set_random_seed(hparams.seed)
            self._global_step = tf.train.get_or_create_global_step()
            made = make_batches()
            self._batches = [parts_of(batch) for batch in made]
            if model.keras():
                model.keras().backend.set_learning_phase(1)
            with collecting.failures('loss_and_metrics'), _NO_TRAINING, \
                    tf.variable_creator_scope(_by_resource):
                loss, _ = model.loss_and_metrics(made[0], True)
            self.variables = variables_made()
            self.trained = [variable for variable in tf.trainable_variables()
                            if model.trains(variable.op.name)]
            inside = graphs.ancestors([loss])
            self._loss = tf.add_n([loss, *(
                term for term in tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
                if not _is_inside(term, inside))])
            self._updates = self._find_updates()
            self.random_ops = random_ops.of([self._loss, *self._updates], self._batches[0])

    def _find_updates(self):
        """Returns what runs with a batch: UPDATE_OPS, and all by which the model assigns."""
        return [*tf.get_collection(tf.GraphKeys.UPDATE_OPS), *(
            op for variable in self.variables
            if not any(variable is each for each in self.trained)
            for op in variable.handle.consumers()
            if op.type.startswith(('Assign', 'ResourceScatter')) and op != variable.initializer)]

    def make_step(self, plain, asked):
        """Makes what a step runs.

        Args:
          plain: `counterpart.Counterpart`.
          asked: dict, see `counterpart.Asked`.
        """
        with self._graph.as_default():
            self._examples = tf.placeholder(tf.float32, [])
            rate = plain.learning_rate(self._hparams)
            if self._model.recipe.schedule:
                rate *= self._model.recipe.schedule(
                    examples=self._examples, step=tf.cast(self._global_step, tf.float32))
            optimizer = plain.optimizer(self._model, rate, self._hparams, asked)
            pairs = optimizer.compute_gradients(self._loss, self.trained)
            self._step = plain_step.Step(optimizer, pairs, self._model.recipe, rate)
            self._of_batch = [self._loss, [gradient for gradient, _ in pairs],
                              [op.outputs for op in self.random_ops], self._updates]
            self._count = self._global_step.assign_add(1)
            self._averages = self._make_averages(self.trained)
            self._initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                                tf.tables_initializer()]

    def _make_averages(self, variables):
        """Returns the moving averages of variables, which follow in each run, if there are any."""
        decay = self._hparams.moving_average_decay
        if decay is None:
            decay = getattr(self._model, 'MOVING_AVERAGE_DECAY', None)
        if not decay:
            return []
        averages = tf.train.ExponentialMovingAverage(decay, self._global_step)
        with tf.control_dependencies([self._count]):
            self._count = averages.apply(variables)
        return [averages.average(variable) for variable in variables]

    def start(self, begin=None):
        """Begins a session.

        Args:
          begin: dict of arrays as of `values`; by default the model's initial values.
        """
        self._session = tf.Session(graph=self._graph, config=CONFIG)
        for op in self._initialize:
            self._session.run(op)
        begin = self._initial_values() if begin is None else begin
        with self._graph.as_default():
            for variable in self.variables + self._averages:
                if variable.op.name in begin:
                    variable.load(begin[variable.op.name], self._session)

    def _initial_values(self):
        """Returns what the model's `initial_values` has, cut for variables in parts, by name."""
        places, begin = {}, {}
        for variable in self.variables:
            part = variable._get_save_slice_info()
            places[variable.op.name] = (part.full_name, tuple(
                slice(first, first + size) for first, size in zip(part.var_offset, part.var_shape)
            )) if part else (variable.op.name, ())
        values = self._model.initial_values(sorted({name for name, _ in places.values()})) or {}
        for own_name, (name, where) in places.items():
            if name in values:
                begin[own_name] = begin[own_name + AVERAGE] = np.asarray(values[name])[where]
        self.given = set(begin)
        return begin

    def values(self):
        """Returns a dict of arrays by name: the values of the variables and of their averages."""
        return self._session.run({each.op.name: each for each in self.variables + self._averages})

    def draw(self, num_runs):
        """Returns lists, for each run, of lists, for each batch, of its arrays."""
        with batches.failures():
            return [self._session.run(self._batches) for _ in range(num_runs)]

    def train(self, drawn, numbers=None):
        """Trains on all that `draw` returned, run by run.

        Args:
          drawn: see `draw`.
          numbers: the random numbers, as returned by another training; by default others.

        Returns:
          The mean loss of each run, a list of floats; and the random numbers of all batches: lists,
          for each run, of lists, for each batch, of the outputs of each op of `random_ops`.
        """
        losses, all_drawn, done = [], [], 0
        accumulate = self._hparams.accumulate
        for i, run in enumerate(drawn):
            results = []
            for j, batch in enumerate(run):
                fed = dict(zip(self._batches[0], batch))
                fed.update(feed_of(self.random_ops, numbers[i][j]) if numbers else {})
                results.append(self._session.run(self._of_batch, fed))
                if len(results) % accumulate == 0:
                    gradients = [gradients for _, gradients, _, _ in results[-accumulate:]]
                    self._step.run(self._session, gradients, {self._examples: done})
                    done += accumulate * self._hparams.batch_size
            self._session.run(self._count)
            losses.append(np.mean([loss for loss, _, _, _ in results]))
            all_drawn.append([outputs for _, _, outputs, _ in results])
        return losses, all_drawn
