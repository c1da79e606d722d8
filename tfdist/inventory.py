"""What variables a model has, and what each of them is: found out by its first build."""

import sys

from tfdist import collecting, graphs
from tfdist.quiet import tf

_LARGE = 2 ** 24  # bytes: so much should not travel whole in each step
_INSIDE = {'Enter', 'Switch'}  # ops that take a handle into a loop or a branch


class Inventory:
    """The variables of a model, in the order in which it makes them.

    Attributes:
      made: list of `tf.Variable`, all but those of a process alone, such as a metric's.
      in_order: list of those of them that are not made by `tf.get_variable`: so they are known by
        nothing but their order.
      trained: list of the trainable ones.
      tables: list of those of `trained` that can stay where they are: of which only rows are read.
      assigned: list of those that the model itself assigns to, such as moving averages.
      frozen: list of those that never change, and are read as a whole.
    """

    def __init__(self, model, batch, with_tables):
        """Builds the model once. What that makes, but for the variables, never runs.

        Args:
          model: `models.Model`.
          batch: nest of tensors.
          with_tables: bool, whether the scheme can leave tables where they are.

        Raises:
          SystemExit: naming a variable that no scheme, or not this one, can train.
        """
        early = [variable.op.name for variable in tf.trainable_variables()]
        if early:
            sys.exit(f'Made before the function of the model is called: {", ".join(early)}. Make '
                     'all variables in this function, so that they are made in each build.')
        self.made, by_name = [], set()

        def note(next_creator, **kwargs):
            variable = next_creator(**kwargs)
            if kwargs.get('collections') == []:
                sys.exit(f'The model makes {variable.op.name}, which is in no collection: nobody '
                         'would initialize it. In the place of tf.keras.metrics take tf.metrics.')
            if not is_local(kwargs):
                self.made.append(variable)
            return variable

        def get(getter, name, *args, **kwargs):
            found = getter(name, *args, **kwargs)
            by_name.update(parts_of(found))
            return found

        with tf.variable_scope(tf.get_variable_scope(), custom_getter=get), \
                tf.variable_creator_scope(note):
            loss, metrics = collecting.call(model, batch, training=True)
        self.in_order = [variable for variable in self.made if variable not in by_name]
        self.trained, self.tables, self.assigned, self.frozen = [], [], [], []
        uses = graphs.readers([loss, *tf.nest.flatten(list(metrics.values()))])
        for variable in self.made:
            self._sort(variable, uses[variable.handle.op], with_tables)
        if not self.trained:
            sys.exit('The model makes no trainable variable: there is nothing to train.')

    def _sort(self, variable, uses, with_tables):
        """Puts a variable into the lists where it belongs; `uses` is a set of types of ops."""
        name, dtype = variable.op.name, variable.dtype.base_dtype
        is_written = any(op.type.startswith(('Assign', 'ResourceScatter'))
                         and op is not variable.initializer
                         for op in variable.handle.consumers())
        only_rows = uses == {'ResourceGather'}
        if not variable.trainable:
            if is_written or uses & _INSIDE:
                if dtype == tf.bool:
                    sys.exit(f'The model assigns to {name}, which is of bool: make it an integer.')
                self.assigned.append(variable)
            elif not only_rows:
                self.frozen.append(variable)
            return
        if is_written:
            sys.exit(f'The model itself assigns to the trainable variable {name}: make it with '
                     'trainable=False, or leave its training to the scheme.')
        if not dtype.is_floating:
            sys.exit(f'The trainable variable {name} is of {dtype.name}, which has no gradient: '
                     'make it with trainable=False.')
        if not uses:
            sys.exit(f'The loss does not depend on the trainable variable {name}: make it with '
                     'trainable=False, or leave it out.')
        self.trained.append(variable)
        if only_rows and with_tables:
            self.tables.append(variable)
        elif 'ResourceGather' in uses and variable.shape.num_elements() * dtype.size > _LARGE:
            others = ', '.join(sorted(uses - {'ResourceGather'}))
            why = ('this scheme would have it whole on each worker' if only_rows else
                   f'the model reads it as a whole (by {others}), and so would each step')
            sys.exit(f'The table {name} is of {variable.shape}, and {why}: gather rows of it only, '
                     'in a scheme that leaves tables on the ps.')


def is_local(kwargs):
    """Returns whether a variable creator is asked for a variable of this process alone."""
    return tf.GraphKeys.LOCAL_VARIABLES in (kwargs.get('collections') or ())


def parts_of(variable):
    """Returns the list of a `PartitionedVariable`'s parts; of any other variable, itself."""
    return [variable] if hasattr(variable, 'handle') else list(variable)
