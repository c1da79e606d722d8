"""What goes between a worker and the center: a pull, gradients at what was pulled, a push, a count.

The center is the parameters on the parameter servers. A list of tensors here has one for each of
its variables, in order, of the variable's shape and dtype.
"""

from tfdist import transfer
from tfdist.quiet import tf


def pull(variables, global_step):
    """Reads the global step, then the variables, each on its ps.

    Returns:
      List of tensors on the ps: the global step, then the variables' values in order. Updates that
      are counted later may be in the values already.
    """
    with tf.device(global_step.device):
        step = global_step.read_value()
    values = []
    for variable in variables:
        with tf.control_dependencies([step]), tf.device(variable.device):
            values.append(variable.read_value())
    return [step] + values


def gradients_at(loss_at, values):
    """Makes a fresh batch's gradients at `values`.

    Returns:
      A list of dense tensors of the values' shapes, and the batch's loss and accuracy.
    """
    loss, accuracy = loss_at(values)
    gradients = tf.gradients(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, accuracy


def known(gradients):
    """Returns a list of those gradients that are not None: of what the loss depends on."""
    return [gradient for gradient in gradients if gradient is not None]


def add(values, others, factor=1):
    """Returns values + factor * others for two lists of tensors of the same shapes."""
    return [value + factor * other for value, other in zip(values, others)]


def zeros_like(variables):
    """Returns a list of tensors, zeros of the variables' shapes and dtypes."""
    return [tf.zeros(variable.shape, variable.dtype.base_dtype) for variable in variables]


def mean(tensors):
    """Returns the mean of a list of tensors of one shape."""
    return tf.add_n(tensors) / len(tensors)


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
      gradients: list of tensors on the worker, also None and `tf.IndexedSlices`.
      variables: list of `tf.Variable`.
      global_step: integer `tf.Variable`; on its device the optimizer's step size is wanted.
    """
    gradients = transfer.to_ps(gradients, variables)
    with tf.device(global_step.device):
        return optimizer.apply_gradients(zip(gradients, variables))


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
