"""Builds a model again, on values that are not (or not yet) in its variables."""

import sys
import time

from tfdist.quiet import tf


def make_loss_at(loss_and_accuracy, variables, batches, delay=0):
    """Makes the function that trains on values.

    Args:
      loss_and_accuracy: function of a batch, that of `model.py`; it makes its variables by
        `tf.get_variable`.
      variables: list of `tf.Variable`, made by `loss_and_accuracy`.
      batches: list of what `loss_and_accuracy` takes, one for each call.
      delay: float, seconds to waste on each batch.

    Returns:
      Function of a list of tensors, values for the variables: builds the model with these values in
      the variables' place, on a fresh batch, and returns its loss and its accuracy.

    Raises:
      SystemExit: if a variable can have no gradient; by the function that is returned, if the model
        takes one without `tf.get_variable`, and would not be trained on the values.
    """
    for variable in variables:
        if not variable.dtype.base_dtype.is_floating:
            sys.exit(f'The trainable variable {variable.op.name} is of {variable.dtype.name}, '
                     'which has no gradient: make it with trainable=False.')
    names = [variable.op.name for variable in variables]
    fresh = iter(batches)

    def loss_at(values):
        value_of, asked_for = dict(zip(names, values)), set()

        def get(getter, name, *args, **kwargs):
            asked_for.add(name)
            return value_of[name] if name in value_of else getter(name, *args, **kwargs)

        batch = next(fresh)
        if delay:
            with tf.control_dependencies(values):
                wasted = tf.py_func(lambda: time.sleep(delay), [], [])
            with tf.control_dependencies([wasted]):
                batch = [tf.identity(tensor) for tensor in batch]
        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=get):
            loss, accuracy = loss_and_accuracy(*batch)
        for name in names:
            if name not in asked_for:
                sys.exit(f'The trainable variable {name} is not made by tf.get_variable: what the '
                         'worker has read cannot take its place.')
        return loss, accuracy

    return loss_at
