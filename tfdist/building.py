"""Builds a model as schemes want it: on values that are not (or not yet) in its variables."""

import collections
import sys
import time

from tfdist import exchange, graphs, stand_ins, state, tables, transfer
from tfdist.quiet import tf

# What a model puts there is of this build alone.
_COLLECTIONS = (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.LOSSES, tf.GraphKeys.UPDATE_OPS)
_LARGE = 2 ** 24  # bytes: so much should not travel whole in each step
_INSIDE = {'Enter', 'RefEnter', 'Switch', 'RefSwitch'}  # a handle goes into a loop or a branch

Built = collections.namedtuple('Built', ['loss', 'metrics'])


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
        self._model, self._batches, self._delay = model, batches, delay
        self._fresh = iter(batches)
        self._left = len(batches)
        early = [variable.op.name for variable in tf.trainable_variables()]
        if early:
            sys.exit(f'The variables {", ".join(early)} are made before the model is built: make '
                     'them in its function, so that it can be built on values.')
        self._first_build(with_tables)

    def _first_build(self, with_tables):
        """Makes the variables, and finds out what each of them is."""
        made, by_name = [], set()

        def note(next_creator, **kwargs):
            if tf.GraphKeys.LOCAL_VARIABLES in (kwargs.get('collections') or ()):
                return next_creator(**kwargs)
            made.append(next_creator(**kwargs))
            return made[-1]

        def get(getter, name, *args, **kwargs):
            found = getter(name, *args, **kwargs)
            by_name.update(map(id, _parts_of(found)))
            return found

        others = set(tf.global_variables())
        with tf.variable_scope(tf.get_variable_scope(), custom_getter=get), \
                tf.variable_creator_scope(note):
            built = self._call(self._batches[0], training=True)
        # Those that others make by name, such as the global step, are others' business.
        self._made = [variable for variable in made if variable not in others]
        self._in_order = [variable for variable in self._made if id(variable) not in by_name]
        reads = graphs.readers([built.loss, *tf.nest.flatten(built.metrics)])
        self.variables, assigned, frozen = [], [], []
        for variable in self._made:
            name, uses = variable.op.name, reads[variable.handle.op]
            writes = [op for op in variable.handle.consumers()
                      if op.type.startswith(('Assign', 'ResourceScatter')) and
                      op is not variable.initializer]
            by_rows = uses == {'ResourceGather'}
            if not variable.trainable:
                if writes or uses & _INSIDE:
                    if variable.dtype.base_dtype == tf.bool:
                        sys.exit(f'The model assigns to {name}, which is of bool: make it an int.')
                    assigned.append(variable)
                elif not by_rows:
                    frozen.append(variable)
                continue
            size = variable.shape.num_elements() * variable.dtype.size
            if writes:
                sys.exit(f'The model assigns to the variable {name}, which a scheme trains: make '
                         'it with trainable=False.')
            if not variable.dtype.base_dtype.is_floating:
                sys.exit(f'The trainable variable {name} is of {variable.dtype.name}, which has no '
                         'gradient: make it with trainable=False.')
            if not uses:
                sys.exit(f'The loss does not depend on the trainable variable {name}: make it with '
                         'trainable=False, or leave it out.')
            if 'ResourceGather' in uses and not (by_rows and with_tables) and size > _LARGE:
                why = ('this scheme would have it whole on each worker' if by_rows else
                       f'the model reads it as a whole ({", ".join(sorted(uses - {"ResourceGather"}))})'
                       ', and so would each step')
                sys.exit(f'The table {name} has {size / 1e6:.0f} MB, and {why}: gather rows of it '
                         'only, in a scheme that keeps tables on the ps (docs/your-own-model.md).')
            self.variables.append(tables.Rows(variable) if by_rows and with_tables else variable)
        if not self.variables:
            sys.exit('The model makes no trainable variable in its function: there is nothing to '
                     'train.')
        self.state = state.State(assigned) if assigned else None
        self._always = {id(each.stands_for): each for each in self.state.stand_ins} if assigned else {}
        read = transfer.to_worker([exchange.read(variable) for variable in frozen])
        for variable, value in zip(frozen, read):
            self._always[id(variable)] = stand_ins.of_value(variable, value)

    def _call(self, batch, training):
        """Calls the model's function; what it adds to collections is its own for as long."""
        graph = tf.get_default_graph()
        outside = {name: list(graph.get_collection_ref(name)) for name in _COLLECTIONS}
        for name in _COLLECTIONS:
            graph.clear_collection(name)
        loss, metrics = self._model.loss_and_metrics(batch, training)
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            sys.exit(f"The model's loss has to be one number, and is of shape {loss.shape} and "
                     f'{loss.dtype.name}.')
        reached = graphs.ancestors([loss])
        loss = tf.add_n([loss] + [
            term for term in graph.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
            if term.op not in reached], name='loss')
        if training:  # besides assignments to variables of its own, which are in its state
            with tf.control_dependencies(graph.get_collection(tf.GraphKeys.UPDATE_OPS)):
                loss = tf.identity(loss)
        for name, elements in outside.items():
            graph.get_collection_ref(name)[:] = elements
        return Built(loss, metrics)

    def _build(self, batch, training, in_place_of):
        """Builds the model again, on the same variables, or stand-ins for them.

        Args:
          batch: nest of tensors.
          training: bool.
          in_place_of: dict of what the model gets for a variable, by its id.
        """
        in_order, asked = iter(self._in_order), set()

        def hand_out(variable):
            asked.add(id(variable))
            return in_place_of.get(id(variable), variable)

        def get(getter, name, *args, **kwargs):
            try:
                found = getter(name, *args, **dict(kwargs, reuse=True))
            except ValueError as error:
                sys.exit(f'The second build of the model asks for the variable {name}, and the '
                         f'first made none like it ({str(error).splitlines()[0]}). Each build has '
                         'to make the same variables.')
            parts = [hand_out(part) for part in _parts_of(found)]
            regularizer = kwargs.get('regularizer')
            for part in parts if regularizer else []:
                tf.losses.add_loss(regularizer(part), tf.GraphKeys.REGULARIZATION_LOSSES)
            return stand_ins.of_parts(found, parts) if len(parts) > 1 else parts[0]

        def create(next_creator, **kwargs):
            if tf.GraphKeys.LOCAL_VARIABLES in (kwargs.get('collections') or ()):
                return next_creator(**kwargs)
            variable = next(in_order, None)
            if variable is None:
                sys.exit(f'The second build of the model makes a variable {kwargs.get("name")} '
                         'more than the first. Each build has to make the same variables.')
            shape = kwargs.get('shape')
            if shape is not None and not variable.shape.is_compatible_with(shape):
                sys.exit(f'The second build of the model makes a variable of shape {shape} where '
                         f'the first made {variable.op.name} of {variable.shape}. Each build has '
                         'to make the same variables.')
            return hand_out(variable)

        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=get), \
                tf.variable_creator_scope(create):
            built = self._call(batch, training)
        stand_ins.check(in_place_of.values())
        kept = [variable.op.name for variable in self._made if id(variable) not in asked]
        if kept and training:
            sys.exit(f'The second build of the model does not ask for the variables '
                     f'{", ".join(kept)}: they would not be trained. Make them, and the layers '
                     'that have them, in each call of its function.')
        return built

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
        in_place_of = dict(self._always)
        for variable, value in zip(self.variables, values):
            if isinstance(variable, tables.Rows):
                in_place_of[id(variable.table)] = stand_ins.of_table(
                    variable.table, variable.gather_from(value))
            else:
                in_place_of[id(variable)] = stand_ins.of_value(variable, value)
        built = self._build(self._late(next(self._fresh), values), True, in_place_of)
        sources = values if sources is None else sources
        gradients = tf.gradients(built.loss, sources)
        without = [variable.op.name for variable, gradient in zip(self.variables, gradients)
                   if gradient is None]
        if without:
            sys.exit(f'The loss does not depend on the trainable {", ".join(without)}, or has no '
                     'gradient there: make what it is with trainable=False, or leave it out.')
        self._left -= 1
        for rows in self.variables if not self._left else []:
            if isinstance(rows, tables.Rows):
                rows.all_asked()
        figures = {'loss': tf.cast(built.loss, tf.float32)}
        figures.update((name, tf.cast(metric, tf.float32)) for name, metric in
                       built.metrics.items() if not isinstance(metric, tuple))
        return [tf.convert_to_tensor(gradient) for gradient in gradients], figures

    def _late(self, batch, values):
        """Returns the batch, after the delay that begins when the values are there."""
        if not self._delay:
            return batch
        with tf.control_dependencies(values):
            wasted = tf.py_func(lambda: time.sleep(self._delay), [], [])
        with tf.control_dependencies([wasted]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def at_variables(self, batch):
        """Builds the model on the variables themselves, as for a test.

        Args:
          batch: nest of tensors.

        Returns:
          The loss, a scalar tensor; and a dict of metrics by name, see `models.Model`.
        """
        return self._build(batch, False, {})

    def optimizer(self, learning_rate, otherwise=tf.train.GradientDescentOptimizer, **kwargs):
        """Returns a `tf.train.Optimizer` for the ps.

        Args:
          learning_rate: float or float32 scalar tensor.
          otherwise: class of optimizers, for a model that brings none of its own.
          **kwargs: what this class takes besides.
        """
        return self._model.optimizer(learning_rate) or otherwise(learning_rate, **kwargs)


def _parts_of(variable):
    """Returns the list of a `PartitionedVariable`'s parts; of any other variable, itself."""
    return [variable] if isinstance(variable, tf.Variable) else list(variable)
