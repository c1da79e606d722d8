"""The exchange between a worker and the center: pull, push, count.

The center is the parameters on the parameter servers. A list of tensors has one tensor for each
variable of the center, in order, of its shape and dtype. Where a variable is a `tables.Rows`, the
tensor holds the rows that the run asks for.
"""

from tfdist.scheme import tables, transfer
from tfdist.start.quiet import tf


def pull(variables, global_step):
    """Reads the global step, then the variables, each on its ps.

    Returns:
      List of tensors on the ps: the global step, then the variables' values in order. The values
      may already contain updates that are counted later.
    """
    step = read(global_step)
    with tf.control_dependencies([step]):
        return [step] + [read(variable) for variable in variables]


def read(variable):
    """Returns the value of a variable, on its device."""
    with tf.device(variable.device):
        return variable.read_value()


def add(values, others, factor=1):
    """Returns values + factor * others for two lists of tensors of the same shapes."""
    return [value + factor * other for value, other in zip(values, others)]


def zeros_like(variables):
    """Returns a list of zero tensors of the variables' shapes and dtypes."""
    return [variable.zeros() if isinstance(variable, tables.Rows)
            else tf.zeros(variable.shape, variable.dtype.base_dtype) for variable in variables]


def mean(figures):
    """Returns the mean of each figure over a list of dicts of scalar tensors by name."""
    return {name: tf.add_n([each[name] for each in figures]) / len(figures) for name in figures[0]}


def arrive(values, variables):
    """Copies values to the variables' devices, so that waiting happens on the ps."""
    arrived = []
    for variable, value in zip(variables, values):
        with tf.device(variable.device):
            arrived.append(tf.identity(value))
    return arrived


def add_to(variables, deltas):
    """Returns an op that adds `deltas` to the variables on their devices; no update is lost."""
    updates = []
    for variable, delta in zip(variables, deltas):
        with tf.device(variable.device):  # else the group is on the worker, and the next op waits
            updates.append(variable.assign_add(delta, read_value=False))
    return tf.group(*updates)


def apply(optimizer, gradients, variables, global_step):
    """Returns an op that applies gradients on the ps.

    Args:
      optimizer: `tf.train.Optimizer`.
      gradients: list of tensors on the worker.
      variables: list of `tf.Variable` and `tables.Rows`.
      global_step: integer `tf.Variable`, whose device gets the optimizer's step size.
    """
    gradients = transfer.to_ps(gradients, variables)
    with tf.device(global_step.device):
        return optimizer.apply_gradients(tables.of_optimizer(gradients, variables))


def count(global_step, step_read):
    """Counts an update of the center.

    Args:
      global_step: integer `tf.Variable`, which is incremented.
      step_read: integer scalar tensor, the global step when the update's parameters were read.

    Returns:
      Dict of two integer scalar tensors: 'global_step' after this update, different for each
      update; and 'staleness', the number of other updates counted since `step_read`.
    """
    with tf.device(global_step.device):
        before = tf.raw_ops.ResourceCountUpTo(resource=global_step.handle, limit=tf.int64.max,
                                              T=tf.int64)
        both = tf.stack([before + 1, before - step_read])  # travels as one tensor
    return dict(zip(('global_step', 'staleness'), tf.unstack(both)))


def own_variable(initial_value, name):
    """Returns a variable of this worker alone, on the device of the scope, in no checkpoint."""
    return tf.Variable(initial_value, trainable=False, name=name,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])


def assign(variables, values):
    """Returns an op that assigns `values` to the variables."""
    return tf.group(*[variable.assign(value, read_value=False)
                      for variable, value in zip(variables, values)])
