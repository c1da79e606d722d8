"""What goes between a worker and the center: a pull, a push, a count.

The center is the parameters on the parameter servers. A list of tensors here has one for each of
its variables, in order, of the variable's shape and dtype. A variable may be a `tables.Rows`: then
the tensor is of the rows that the run asks for.
"""

from tfdist import tables, transfer
from tfdist.quiet import tf


def pull(variables, global_step):
    """Reads the global step, then the variables, each on its ps.

    Returns:
      List of tensors on the ps: the global step, then the variables' values in order. Updates that
      are counted later may be in the values already.
    """
    step = read(global_step)
    with tf.control_dependencies([step]):
        return [step] + [read(variable) for variable in variables]


def read(variable):
    """Returns the value of a variable, where it is."""
    with tf.device(variable.device):
        return variable.read_value()


def add(values, others, factor=1):
    """Returns values + factor * others for two lists of tensors of the same shapes."""
    return [value + factor * other for value, other in zip(values, others)]


def zeros_like(variables):
    """Returns a list of tensors, zeros of the variables' shapes and dtypes."""
    return [variable.zeros() if isinstance(variable, tables.Rows)
            else tf.zeros(variable.shape, variable.dtype.base_dtype) for variable in variables]


def mean(figures):
    """Returns the mean of figures: of a list of dicts of scalar tensors of the same names."""
    return {name: tf.add_n([each[name] for each in figures]) / len(figures) for name in figures[0]}


def arrive(values, variables):
    """Returns tensors with `values` on the devices of the variables: who needs them waits there."""
    arrived = []
    for variable, value in zip(variables, values):
        with tf.device(variable.device):
            arrived.append(tf.identity(value))
    return arrived


def add_to(variables, deltas):
    """Returns an op that adds `deltas` to the variables, each where it lives; none is lost."""
    updates = []
    for variable, delta in zip(variables, deltas):
        with tf.device(variable.device):  # else the group is on the worker, and the next op waits
            updates.append(variable.assign_add(delta, read_value=False))
    return tf.group(*updates)


def apply(optimizer, gradients, variables, global_step):
    """Returns an op that lets an optimizer make its step on the ps.

    Args:
      optimizer: `tf.train.Optimizer`.
      gradients: list of tensors on the worker.
      variables: list of `tf.Variable` and `tables.Rows`.
      global_step: integer `tf.Variable`; on its device the optimizer's step size is wanted.
    """
    gradients = transfer.to_ps(gradients, variables)
    with tf.device(global_step.device):
        return optimizer.apply_gradients(tables.of_optimizer(gradients, variables))


def count(global_step, step_read):
    """Counts an update of the center.

    Args:
      global_step: integer `tf.Variable`; it gets 1 more.
      step_read: integer scalar tensor, the global step when the update's parameters were read.

    Returns:
      Dict of two integer scalar tensors: 'global_step' with this update, a number that no other
      update gets; and the update's 'staleness', how many others were counted since `step_read`.
    """
    with tf.device(global_step.device):
        before = tf.raw_ops.ResourceCountUpTo(resource=global_step.handle, limit=tf.int64.max,
                                              T=tf.int64)
        both = tf.stack([before + 1, before - step_read])  # they travel as one
    return dict(zip(('global_step', 'staleness'), tf.unstack(both)))


def own_variable(initial_value, name):
    """Returns a variable of this worker alone, which is in no checkpoint.

    Args:
      initial_value: tensor; the variable lives where the device scope says.
      name: string.
    """
    return tf.Variable(initial_value, trainable=False, name=name,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])


def assign(variables, values):
    """Returns an op that gives `values` to the variables."""
    return tf.group(*[variable.assign(value, read_value=False)
                      for variable, value in zip(variables, values)])
