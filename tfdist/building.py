"""Builds a model as schemes want it: on values that are not (or not yet) in its variables."""

import copy
import sys
import time

from tfdist import (averages, collecting, exchange, inventory, local_rules, stand_ins, state,
                    tables, transfer)
from tfdist.quiet import tf


class Network:
    """A model and its variables: what a scheme trains.

    Attributes:
      variables: list, what the schemes call the center: `tf.Variable`, and in the place of a table
        its `tables.Rows`.
      state: `state.State`, the variables that the model itself assigns to; None if there are none.
    """

    def __init__(self, model, batches, delay=0, with_tables=True):
        """Builds the model once, so that its variables are there.

        Args:
          model: `models.Model`.
          batches: list of nests of tensors, one for each call of `gradients_at`.
          delay: float, seconds to waste on each batch.
          with_tables: bool, whether the scheme can leave tables where they are, and read rows.

        Raises:
          SystemExit: naming a variable that cannot be trained in a scheme.
        """
        self._model, self._delay = model, delay
        self._scope = tf.get_variable_scope()
        if not batches:
            sys.exit("The model's train_batches made no batch.")
        self._all = inventory.Inventory(model, batches[0], with_tables)
        self._begin(batches)
        self._averages = []

    def again(self, batches):
        """Returns another `Network` of the same variables, for other batches."""
        other = copy.copy(self)
        other._begin(batches)
        return other

    @property
    def averages(self):
        """The `averages.Averages` of the variables, which the test uses; or None."""
        if not self._averages:  # one for all that this network is made again for
            self._averages.append(averages.asked_for(self.variables))
        return self._averages[0]

    def _begin(self, batches):
        """Makes ready for a run of the graph, which takes in these batches."""
        self._fresh = iter(batches)
        self.variables = [tables.Rows(variable) if variable in self._all.tables else variable
                          for variable in self._all.trained]
        self.state = state.State(self._all.assigned) if self._all.assigned else None
        self._always = {each.stands_for: each
                        for each in (self.state.stand_ins if self.state else [])}
        read = transfer.to_worker([exchange.read(variable) for variable in self._all.frozen])
        for variable, value in zip(self._all.frozen, read):
            self._always[variable] = stand_ins.of_value(variable, value)

    def _build(self, batch, training, in_place_of):
        """Builds the model again, on the same variables, or stand-ins for them.

        Args:
          batch: nest of tensors.
          training: bool.
          in_place_of: dict of what the model gets for a variable.
        """
        in_order, asked = iter(self._all.in_order), set()

        def hand_out(variable):
            asked.add(variable)
            return in_place_of.get(variable, variable)

        def get(getter, name, *args, **kwargs):
            try:
                found = getter(name, *args, **dict(kwargs, reuse=True))
            except ValueError as error:
                sys.exit(f'The second build of the model asks for the variable {name}, and the '
                         f'first made none like it ({str(error).splitlines()[0]}). Each build has '
                         'to make the same variables.')
            parts = [hand_out(part) for part in inventory.parts_of(found)]
            regularizer = kwargs.get('regularizer')
            for part in parts if regularizer else []:
                tf.losses.add_loss(regularizer(part), tf.GraphKeys.REGULARIZATION_LOSSES)
            return parts[0] if hasattr(found, 'handle') else stand_ins.of_parts(found, parts)

        def create(next_creator, **kwargs):
            if inventory.is_local(kwargs):
                return next_creator(**kwargs)
            variable = next(in_order, None)
            if variable is None:
                sys.exit(f'The second build of the model makes a variable {kwargs.get("name")} '
                         'more than the first. Each build has to make the same variables.')
            shape = kwargs.get('shape') or getattr(kwargs.get('initial_value'), 'shape', None)
            if shape is not None and not variable.shape.is_compatible_with(shape):
                sys.exit(f'The second build of the model makes a variable of shape {shape} where '
                         f'the first made {variable.op.name} of {variable.shape}. Each build has '
                         'to make the same variables.')
            return hand_out(variable)

        # To enter the scope again begins the numbers of layers without a name anew.
        with tf.variable_scope(self._scope, reuse=True, custom_getter=get), \
                tf.variable_creator_scope(create):
            loss, metrics = collecting.call(self._model, batch, training)
        stand_ins.check(in_place_of.values())
        kept = [variable.op.name for variable in self._all.made if variable not in asked]
        if kept and training:
            sys.exit(f'The second build of the model does not ask for the variables '
                     f'{", ".join(kept)}: they would not be trained. Make them, and the layers '
                     'that have them, in each call of its function.')
        return loss, metrics

    def gradients_at(self, values, sources=None):
        """Makes a fresh batch's gradients.

        Args:
          values: list of tensors, where: values for the variables.
          sources: list of tensors of which the values are made, one for each variable; by default
            the values themselves.

        Returns:
          A list of dense tensors of the sources' shapes; and the batch's figures, a dict of float32
          scalars: 'loss' and the model's metrics.

        Raises:
          SystemExit: naming the variables that the loss does not depend on.
        """
        batch = next(self._fresh, None)
        if batch is None:
            sys.exit("The model's train_batches made fewer batches than the scheme takes in a run: "
                     'it has to make as many as its argument count says.')
        batch = self._late(batch, values)
        loss, metrics = self._build(batch, True, {**self._always, **self._stand_ins(values)})
        sources = values if sources is None else sources
        gradients = tf.gradients(loss, sources)
        check_gradients(gradients, self.variables)
        figures = {'loss': tf.cast(loss, tf.float32)}
        figures.update((name, tf.cast(metric, tf.float32)) for name, metric in
                       metrics.items() if not isinstance(metric, tuple))
        return [tf.convert_to_tensor(gradient) for gradient in gradients], figures

    def finish(self):
        """Says that no batch is left: from now on it is known which rows a run asks for."""
        if next(self._fresh, None) is not None:
            sys.exit("The model's train_batches made more batches than the scheme takes in a run: "
                     'it has to make as many as its argument count says.')
        for variable in self.variables:
            if isinstance(variable, tables.Rows):
                variable.all_asked()

    def _stand_ins(self, values):
        """Returns a dict of stand-ins by the variables for which they stand."""
        made = {}
        for variable, value in zip(self.variables, values):
            if value is None:
                continue
            if isinstance(variable, tables.Rows):
                made[variable.table] = stand_ins.of_table(variable.table,
                                                          variable.gather_from(value))
            else:
                made[variable] = stand_ins.of_value(variable, value)
        return made

    def _late(self, batch, values):
        """Returns the batch, after the delay that begins when the values are there."""
        if not self._delay:
            return batch
        with tf.control_dependencies(values):
            wasted = tf.py_func(lambda: time.sleep(self._delay), [], [])
        with tf.control_dependencies([wasted]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def at_variables(self, batch, values=None):
        """Builds the model for a test, where its variables are.

        Args:
          batch: nest of tensors.
          values: list of tensors, values in the place of the variables; by default their moving
            averages, or else their own.

        Returns:
          The loss, a scalar tensor; and a dict of metrics by name, see `models.Model`.
        """
        if values is None and self.averages:
            values = self.averages.values()
        return self._build(batch, False, self._stand_ins(values or []))

    def local_rule(self, learning_rate):
        """Returns a `local_rules.Sgd`, or the model's own rule, for steps on the worker.

        What it keeps is made on the device of the scope.
        """
        rule = self._model.local_rule(learning_rate) or local_rules.Sgd(learning_rate)
        rule.begin(self.variables)
        return rule

    def optimizer(self, learning_rate, otherwise=tf.train.GradientDescentOptimizer, **kwargs):
        """Returns a `tf.train.Optimizer` for the ps.

        Args:
          learning_rate: float or float32 scalar tensor.
          otherwise: class of optimizers, for a model that brings none of its own.
          **kwargs: what this class takes besides.
        """
        return self._model.optimizer(learning_rate) or otherwise(learning_rate, **kwargs)


def check_gradients(gradients, variables):
    """Ends the program if one of the `gradients`, a list, is None; it names the variables."""
    without = [variable.op.name for variable, gradient in zip(variables, gradients)
               if gradient is None]
    if without:
        sys.exit(f'The loss does not depend on the trainable {", ".join(without)}, or has no '
                 'gradient there: make what it is with trainable=False, or leave it out.')
