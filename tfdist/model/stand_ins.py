"""Stand-ins: they take the place of a model's variables when it is built on values.

A stand-in is an instance of the variable's own class, so that layers of any kind accept it. Reading
it returns a tensor, with respect to which gradients are taken. Other ops consume a dummy handle,
which `check` finds and names.
"""

import functools
import sys

from tfdist.scheme import graphs
from tfdist.start.quiet import tf


def of_value(variable, value):
    """Returns a stand-in for `variable`, a `tf.Variable`, whose value is the tensor `value`."""
    return _make(variable, lambda: value, value)


def of_state(variable, value):
    """Returns a stand-in that the model can assign to, any number of times.

    Args:
      variable: `tf.Variable`.
      value: tensor, the initial value. The attribute `current` holds the latest.
    """
    stand_in = _make(variable, lambda: stand_in.current)
    stand_in.current = value
    return stand_in


def of_table(variable, rows, gather):
    """Returns a stand-in of which only rows can be read.

    Args:
      variable: `tf.Variable`.
      rows: tensor, all rows that are read.
      gather: function of a tensor of ids that returns their rows.
    """
    def whole():
        sys.exit(f'The table {variable.op.name} is read as a whole here, and only by its rows in '
                 'another build of the model: a scheme cannot know which it is.')

    stand_in = _make(variable, whole, rows)
    stand_in.gather = gather
    return stand_in


def of_parts(partitioned, parts):
    """Returns a `PartitionedVariable` like `partitioned`, of other parts, a list of variables."""
    copy = object.__new__(type(partitioned))
    vars(copy).update(vars(partitioned), _variable_list=parts)
    return copy


def is_one(element):
    """Returns whether an element of a collection is a stand-in."""
    return 'stands_for' in getattr(element, '__dict__', {})


def given(stand_ins):
    """Returns the set of ops whose outputs the `stand_ins` have as their values now."""
    return {(stand_in.differentiable if stand_in.gather else stand_in.read()).op
            for stand_in in stand_ins}


def check(stand_ins, results, values):
    """Ends the program if a model used one of its variables in an unsupported way.

    Args:
      stand_ins: dict of stand-ins by variable.
      results: list of tensors, what the model computed.
      values: set of ops, see `given`, before it did.

    Raises:
      SystemExit: naming the variable and the op.
    """
    ops = graphs.ancestors(results, beyond=values)
    for variable, stand_in in stand_ins.items():
        for op in vars(stand_in)['_handle'].consumers():
            if op in ops:
                sys.exit(f'The model uses the variable {variable.op.name} by {op.type}, which '
                         'cannot be done on values. Read it, gather rows of it, or assign to it.')
        for op in variable.handle.consumers():
            if op in ops:
                sys.exit(f'The model reads the variable {variable.op.name} itself, by {op.type} '
                         f'({op.name}), and not the values that a scheme trains. Ask for the '
                         'variable, or for the layer that has it, in each call.')


def _make(variable, read, differentiable=None):
    """Returns a stand-in for `variable`.

    Args:
      variable: `tf.Variable`.
      read: function that returns its value.
      differentiable: tensor to take gradients with respect to, or None.
    """
    stand_in = object.__new__(_class_for(type(variable)))
    vars(stand_in).update(vars(variable))
    # These are names of TensorFlow's own attributes; the tests check them on each version.
    nowhere = tf.placeholder(tf.resource, [], name='nowhere')
    vars(stand_in).update(_handle=nowhere, _cached_value=None, read=read, stands_for=variable,
                          gather=None, differentiable=differentiable)
    return stand_in


class _StandIn:
    """What a stand-in does in its own way, before the class of its variable: see the module."""

    @property
    def op(self):
        return self.stands_for.op

    @property
    def handle(self):
        # tf.gradients takes gradients with respect to the handles of variables.
        asking = sys._getframe(1).f_globals['__name__'].rpartition('.')[2]
        if asking == 'gradients_util' and self.differentiable is not None:
            return self.differentiable
        return self._handle

    def initialized_value(self):
        return self.read()

    def is_initialized(self, name=None):
        return tf.constant(True, name=name)

    def value(self):
        return self.read()

    def read_value(self):
        return self.read()

    def _read_variable_op(self, *_, **__):
        return self.read()

    def _as_graph_element(self):
        return self._handle if self.gather else self.read()

    def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False):
        if as_ref:  # only the op is needed, for colocation
            return self._handle
        value = self.read()
        if dtype is not None and not dtype.is_compatible_with(value.dtype):
            raise ValueError(f'{self.name} is of {value.dtype.name}, not of {dtype.name}')
        return value

    def sparse_read(self, indices, name=None):
        if self.gather is None:
            return tf.gather(self.read(), indices, name=name)
        return self.gather(tf.convert_to_tensor(indices))

    def gather_nd(self, indices, name=None):
        return tf.gather_nd(self.read(), indices, name=name)

    def assign(self, value, use_locking=None, name=None, read_value=True):
        if 'current' not in vars(self):
            sys.exit(f'The model assigns to the variable {self.op.name}, which is trainable, '
                     'or was not assigned to in its first build.')
        # A tensor in a branch or a loop has no value outside.
        if tf.get_default_graph()._get_control_flow_context() is not None:
            sys.exit(f'The model assigns to the variable {self.op.name} in a tf.cond or a '
                     'tf.while_loop: no scheme can know whether it does. Use a Python bool, '
                     'such as training, for the condition.')
        self.current = tf.convert_to_tensor(value, self.dtype.base_dtype)
        return self.current if read_value else self.current.op

    def assign_add(self, delta, use_locking=None, name=None, read_value=True):
        return self.assign(self.read() + delta, read_value=read_value)

    def assign_sub(self, delta, use_locking=None, name=None, read_value=True):
        return self.assign(self.read() - delta, read_value=read_value)


@functools.lru_cache(maxsize=None)
def _class_for(variable_class):
    """Returns the class of stand-ins for variables of `variable_class`."""
    return type('StandIn', (_StandIn, variable_class), {})
