"""Accumulators: where the ps collects the gradients of a step, and sums them up."""

import sys

from tfdist.scheme import tables
from tfdist.start.quiet import tf


class Accumulators:
    """An accumulator for each variable of the center, on its device, shared by all workers' graphs.

    Each counts the steps that were taken from it, and drops gradients stamped with an earlier step.
    It keeps the sum of what was pushed; for a robust mean it keeps each push, in the worker's row.

    Attributes:
      all: list of `tf.ConditionalAccumulatorBase`.
    """

    def __init__(self, variables, robust_mean=None):
        """Makes the accumulators.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`.
          robust_mean: function of `robust_means`, or None for the plain mean.

        Raises:
          SystemExit: if a variable is not of a kind for which this works.
        """
        self._variables, self._robust_mean = variables, robust_mean
        self.all = []
        for variable in variables:
            if variable.dtype.base_dtype == tf.bfloat16:
                sys.exit(f'The variable {variable.op.name} is of bfloat16, and TensorFlow cannot '
                         'sum up gradients of this type on a ps: make it of float32, and cast it '
                         'in the model, or take an asynchronous scheme.')
            with tf.device(variable.device):
                dtype, name = variable.dtype.base_dtype, f'{variable.op.name}/gradients'
                if robust_mean and isinstance(variable, tables.Rows):
                    sys.exit(f'--aggregate: of the table {variable.op.name} each worker pushes '
                             'other rows, so there is only the mean.')
                if robust_mean:
                    self.all.append(tf.SparseConditionalAccumulator(
                        dtype, shared_name=f'{name}_by_worker', reduction_type='SUM'))
                elif isinstance(variable, tables.Rows):
                    # A mean would divide each row by the number of workers that pushed it. It has
                    # to be divided by the number of all, as if the others had pushed zeros.
                    self.all.append(tf.SparseConditionalAccumulator(
                        dtype, shared_name=name, reduction_type='SUM'))
                else:
                    self.all.append(tf.ConditionalAccumulator(
                        dtype, variable.shape, shared_name=name))

    def push(self, gradients, stamp, worker=None):
        """Returns a list of ops that add gradients, unless their stamp is old.

        Args:
          gradients: list of tensors of the variables' shapes, on their devices.
          stamp: int64 scalar tensor, the step to which the gradients belong.
          worker: int64 scalar tensor, the index of the worker, for a robust mean.
        """
        ops = []
        for accumulator, variable, gradient in zip(self.all, self._variables, gradients):
            with tf.device(variable.device):
                if self._robust_mean:
                    ops.append(accumulator.apply_grad([worker], gradient[tf.newaxis],
                                                      local_step=stamp))
                elif isinstance(variable, tables.Rows):
                    ops.append(accumulator.apply_grad(variable.ids, gradient, local_step=stamp))
                else:
                    ops.append(accumulator.apply_grad(gradient, stamp))
        return ops

    def take(self, number, count, contributors=None):
        """Takes the mean gradients once there are enough, which begins the next step.

        Args:
          number: int, how many are enough.
          count: float32 scalar tensor or int, how many there are, by which to divide the sums that
            are kept for tables.
          contributors: bool [workers] tensor, whose pushes have arrived with all their parts; by
            default those of all workers have.

        Returns:
          List of tensors, and of `tf.IndexedSlices` for tables.
        """
        if self._robust_mean:
            return self._robust_mean(self._take_stacks(number, contributors))
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

    def _take_stacks(self, number, contributors):
        """Returns what was pushed for each variable, a list of [pushes, ...], by worker."""
        stacks = []
        for accumulator, variable in zip(self.all, self._variables):
            with tf.device(variable.device):
                pushes = accumulator.take_indexed_slices_grad(number)
                values = tf.reshape(pushes.values, [-1, *variable.shape.as_list()])
                if contributors is not None:
                    values = tf.boolean_mask(values, tf.gather(
                        contributors, tf.reshape(pushes.indices, [-1])))
                stacks.append(values)
        return stacks


def refuse_older(all_, stamp):
    """Returns a list of ops after which accumulators refuse what is older than a stamp.

    Each counts only the steps that are taken from it, and not those of another epoch or turn.

    Args:
      all_: list of `tf.ConditionalAccumulatorBase`.
      stamp: int64 scalar tensor.
    """
    ops = []
    for accumulator in all_:
        with tf.device(accumulator.accumulator_ref.device):
            ops.append(accumulator.set_global_step(stamp))
    return ops
