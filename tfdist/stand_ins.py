"""Stand-ins: what a model gets in the place of its variables when it is built on values.

A stand-in is an instance of the variable's own class, so layers of any kind take it for one. Its
value is a tensor. What TensorFlow may still do to it behind our back goes to a handle that leads
nowhere: so it cannot happen unnoticed.
"""

import functools
import sys

from tfdist.quiet import tf


def of_value(variable, value):
    """Returns a stand-in for `variable`, a `tf.Variable`, whose value is the tensor `value`."""
    return _make(variable, lambda: value)


def of_state(variable, value):
    """Returns a stand-in that can be assigned to, as often as the model likes.

    Args:
      variable: `tf.Variable`.
      value: tensor, its value at first. The attribute `current` is what it is in the end.
    """
    stand_in = _make(variable, lambda: stand_in.current)
    stand_in.current = value
    return stand_in


def of_table(variable, gather):
    """Returns a stand-in of which only rows can be read.

    Args:
      variable: `tf.Variable`.
      gather: function of a tensor of ids that returns their rows.
    """
    def whole():
        sys.exit(f'The table {variable.op.name} is read as a whole here, and only by its rows in '
                 'another build of the model: a scheme cannot know which it is.')

    stand_in = _make(variable, whole)
    stand_in.gather = gather
    return stand_in


def of_parts(partitioned, parts):
    """Returns a `PartitionedVariable` like `partitioned`, of other parts, a list of variables."""
    copy = object.__new__(type(partitioned))
    vars(copy).update(vars(partitioned), _variable_list=parts)
    return copy


def check(stand_ins):
    """Ends the program if a model did with one of the `stand_ins` what none can do.

    Raises:
      SystemExit: naming the variable.
    """
    for stand_in in stand_ins:
        for op in stand_in.handle.consumers():
            sys.exit(f'The model uses the variable {stand_in.op.name} by {op.type}, which cannot '
                     'be done on values. Read it, gather rows of it, or assign to it.')


def _make(variable, read):
    """Returns a stand-in for `variable`; the function `read` returns its value."""
    stand_in = object.__new__(_class_for(type(variable)))
    vars(stand_in).update(vars(variable))
    # The names of TensorFlow's own attributes: a test on each version sees that they still hold.
    nowhere = tf.placeholder(tf.resource, [], name='nowhere')
    vars(stand_in).update(_handle=nowhere, _cached_value=None, read=read, stands_for=variable,
                          gather=None)
    return stand_in


@functools.lru_cache(maxsize=None)
def _class_for(variable_class):
    """Returns the class of stand-ins for variables of a class."""

    class StandIn(variable_class):
        """See the module."""

        @property
        def op(self):
            return self.stands_for.op

        def value(self):
            return self.read()

        def read_value(self):
            return self.read()

        def _read_variable_op(self, *_, **__):
            return self.read()

        def _as_graph_element(self):
            return self.handle if self.gather else self.read()

        def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False):
            if as_ref:  # the op is asked for, to be beside it
                return self.handle
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
            # A tensor of a branch or of a loop has no value outside of it.
            if tf.get_default_graph()._get_control_flow_context() is not None:
                sys.exit(f'The model assigns to the variable {self.op.name} in a tf.cond or a '
                         'tf.while_loop: no scheme can know whether it does. Take a Python bool, '
                         'such as training, for the condition.')
            self.current = tf.convert_to_tensor(value, self.dtype.base_dtype)
            return self.current if read_value else self.current.op

        def assign_add(self, delta, use_locking=None, name=None, read_value=True):
            return self.assign(self.read() + delta, read_value=read_value)

        def assign_sub(self, delta, use_locking=None, name=None, read_value=True):
            return self.assign(self.read() - delta, read_value=read_value)

    return StandIn
