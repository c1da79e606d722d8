"""Takes the inventory of a model's variables, by what it does with them in its first build."""

import sys

from tfdist.model import collecting
from tfdist.scheme import graphs
from tfdist.start.quiet import tf

_LARGE = 2 ** 24  # bytes: too much to travel in each step
_INSIDE = {'Enter', 'Switch'}  # ops that take a handle into a loop or a branch


class Inventory:
    """Lists of the variables of a model, in the order in which it makes them.

    Attributes:
      made: all `tf.Variable` but local ones, such as those of a metric.
      own: local variables, but for those of metrics: the worker's own state.
      names: list of strings, what `tf.get_variable` was asked for, in order.
      listed_in: dict by variable of lists of strings, the collections that its creation put it in.
      collections: `collecting.Collections`, as the model is to find them in each build.
      collected: dict of lists by name, what the first build has added to them.
      trained: trainable variables.
      tables: variables in `trained` of which only rows are read, so that they can stay on the ps.
      assigned: variables that the model itself assigns to, such as moving averages.
      replaced: variables in `assigned` whose value a step replaces as a whole.
      frozen: variables that never change, and are read as a whole.
    """

    def __init__(self, model, batch, tables_stay_on_ps):
        """Builds the model once, for its variables: the other ops of this build never run.

        Args:
          model: `model_file.Model`.
          batch: nest of tensors.
          tables_stay_on_ps: bool, whether the scheme can leave tables on the ps.

        Raises:
          SystemExit: naming a variable that no scheme, or not this scheme, can train.
        """
        scope = tf.get_variable_scope().name
        self._trains = lambda name: model.trains(name[len(scope) + 1:] if scope else name)
        early = [variable.op.name for variable in tf.trainable_variables()]
        if early:
            sys.exit(f"Variables made before the model's function is called: {', '.join(early)}. "
                     'Make all variables in this function, so that each build makes them.')
        self.collections = collecting.Collections()
        self.made, self.own, self.names, self.listed_in = [], [], [], {}
        self._by_name, self._initializers = set(), set()
        self._worker, self._graph = tf.no_op().device, tf.get_default_graph()
        with tf.variable_scope(tf.get_variable_scope(), custom_getter=self._get), \
                tf.variable_creator_scope(self._create), \
                self.collections.as_found(makes_variables=True) as self.collected:
            loss, metrics = collecting.call(model, batch, training=True)
        self._initializers.update(variable.initializer for variable in self.made + self.own)
        self.trained, self.tables, self.assigned, self.frozen = [], [], [], []
        self.replaced = []
        uses = graphs.readers([loss, *tf.nest.flatten(list(metrics.values()))])
        for variable in self.made:
            self._sort(variable, uses[variable.handle.op], tables_stay_on_ps)
        if not self.trained:
            sys.exit('The model makes no trainable variable: there is nothing to train.')

    def _get(self, getter, name, *args, **kwargs):
        """Is a custom getter, see `tf.variable_scope`: notes what is asked for by name."""
        if name not in self.names:
            self.names.append(name)
        found = getter(name, *args, **kwargs)
        self._by_name.update(parts_of(found))
        return found

    def _create(self, next_creator, **kwargs):
        """Is a variable creator, see `tf.variable_creator_scope`: notes each variable."""
        if is_of_metric(kwargs):
            return next_creator(**kwargs)
        kwargs['use_resource'] = True  # a reference cannot be read in order
        if is_local(kwargs):
            with tf.device(self._worker):
                variable = next_creator(**kwargs)
            self.own.append(variable)
        else:
            variable = next_creator(**kwargs)
            self.made.append(variable)
        graph = self._graph
        listed_in = [name for name in graph.get_all_collection_keys()
                     if not name.startswith('_')
                     and any(each is variable for each in graph.get_collection_ref(name)[-1:])]
        if not is_local(kwargs) and tf.GraphKeys.GLOBAL_VARIABLES not in listed_in:
            sys.exit(f'The model makes {variable.op.name}, which is in no collection that is '
                     'initialized. Use tf.metrics, not tf.keras.metrics; have other variables in '
                     'GLOBAL_VARIABLES, too.')
        self.listed_in[variable] = listed_in
        self._initializers.add(variable.initializer)
        return variable

    def without_names(self, variables):
        """Returns those of a list of variables that `tf.get_variable` did not make."""
        return [variable for variable in variables if variable not in self._by_name]

    def _writers(self, variable):
        """Returns a list of the ops by which the model itself assigns to a variable."""
        return [op for op in variable.handle.consumers() if op not in self._initializers
                and op.type.startswith(('Assign', 'ResourceScatter'))]

    def _sort(self, variable, uses, tables_stay_on_ps):
        """Adds a variable to its lists; `uses` is the set of types of ops that use it."""
        name, dtype = variable.op.name, variable.dtype.base_dtype
        writers = self._writers(variable)
        if any(op.inputs[1].op.type == 'Placeholder' for op in writers):
            sys.exit(f'The model gives {name} a value in a session of its own, as load_weights and '
                     'set_weights of Keras do: it would be lost. Return it from initial_values() '
                     'of model.py.')
        only_rows = uses == {'ResourceGather'}
        if not variable.trainable or not self._trains(name):
            if writers or uses & _INSIDE:
                if dtype == tf.bool:
                    sys.exit(f'The model assigns to {name}, which is a bool: make it an integer.')
                self.assigned.append(variable)
                if any(op.type == 'AssignVariableOp' for op in writers):
                    self.replaced.append(variable)
            elif uses and not only_rows:
                self.frozen.append(variable)
            return
        if writers:
            sys.exit(f'The model itself assigns to the trainable variable {name}: make it with '
                     'trainable=False, or leave its training to the scheme.')
        if not dtype.is_floating:
            sys.exit(f'The trainable variable {name} is of {dtype.name}, which has no gradient: '
                     'make it with trainable=False.')
        if not uses:
            sys.exit(f'The loss does not depend on the trainable variable {name}: make it with '
                     'trainable=False, or leave it out.')
        self.trained.append(variable)
        if only_rows and tables_stay_on_ps:
            self.tables.append(variable)
        elif 'ResourceGather' in uses and variable.shape.num_elements() * dtype.size > _LARGE:
            others = ', '.join(sorted(uses - {'ResourceGather'}))
            why = ('this scheme would have it whole on each worker' if only_rows else
                   f'the model reads it as a whole (by {others}), and so would each step')
            sys.exit(f'The table {name} is of {variable.shape}, and {why}: gather rows of it only, '
                     'in a scheme that leaves tables on the ps.')


def is_local(kwargs):
    """Returns whether a variable creator is asked for a local variable."""
    return tf.GraphKeys.LOCAL_VARIABLES in (kwargs.get('collections') or ())


def is_of_metric(kwargs):
    """Returns whether a variable creator is asked for a variable of `tf.metrics`."""
    return tf.GraphKeys.METRIC_VARIABLES in (kwargs.get('collections') or ())


def parts_of(variable):
    """Returns a list: the parts of a `PartitionedVariable`, or any other variable itself."""
    return [variable] if hasattr(variable, 'handle') else list(variable)
