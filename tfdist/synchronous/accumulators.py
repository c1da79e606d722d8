"""Accumulators: where the ps collects the gradients of a step, and sums them up."""

import sys

from tfdist.scheme import tables
from tfdist.start.quiet import tf


class Accumulators:
    """An accumulator for each variable of the center, on its device, shared by all workers' graphs.

    Each counts the steps that were taken from it, and drops gradients stamped with an earlier step.

    Attributes:
      all: list of `tf.ConditionalAccumulatorBase`.
    """

    def __init__(self, variables):
        """Makes the accumulators for a list of `tf.Variable` and `tables.Rows`."""
        self._variables = variables
        self.all = []
        for variable in variables:
            if variable.dtype.base_dtype == tf.bfloat16:
                sys.exit(f'The variable {variable.op.name} is of bfloat16, and TensorFlow cannot '
                         'sum up gradients of this type on a ps: make it of float32, and cast it '
                         'in the model, or take an asynchronous scheme.')
            with tf.device(variable.device):
                dtype, name = variable.dtype.base_dtype, f'{variable.op.name}/gradients'
                if isinstance(variable, tables.Rows):
                    # A mean would divide each row by the number of workers that pushed it. It has
                    # to be divided by the number of all, as if the others had pushed zeros.
                    self.all.append(tf.SparseConditionalAccumulator(
                        dtype, shared_name=name, reduction_type='SUM'))
                else:
                    self.all.append(tf.ConditionalAccumulator(
                        dtype, variable.shape, shared_name=name))

    def push(self, gradients, stamp):
        """Returns a list of ops that add gradients, unless their stamp is old.

        Args:
          gradients: list of tensors of the variables' shapes, on their devices.
          stamp: int64 scalar tensor, the step to which the gradients belong.
        """
        ops = []
        for accumulator, variable, gradient in zip(self.all, self._variables, gradients):
            with tf.device(variable.device):
                ops.append(accumulator.apply_grad(variable.ids, gradient, local_step=stamp)
                           if isinstance(variable, tables.Rows)
                           else accumulator.apply_grad(gradient, stamp))
        return ops

    def take(self, number, count):
        """Takes the mean gradients once there are enough, which begins the next step.

        Args:
          number: int, how many are enough.
          count: float32 scalar tensor or int, how many there are, by which to divide the sums that
            are kept for tables.

        Returns:
          List of tensors, and of `tf.IndexedSlices` for tables.
        """
        means = []
        for accumulator, variable in zip(self.all, self._variables):
            with tf.device(variable.device):
                if isinstance(variable, tables.Rows):
                    total = accumulator.take_indexed_slices_grad(number)
                    means.append(variable.slices(
                        total.values / tf.cast(count, total.values.dtype), total.indices))
                else:
                    means.append(accumulator.take_grad(number))
        return means
