"""Optimizers on the ps that leave alone what a batch does not touch."""

from tfdist.quiet import tf


class LazyAdam(tf.train.AdamOptimizer):
    """Adam, of a table for the rows that have a gradient only: their values and their moments.

    TensorFlow's own lets the moments of all rows decay, and moves all rows, in each step: it takes
    as long as the table is large. Dense variables are trained in the same way by both.

    Diederik Kingma, Jimmy Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv
    1412.6980, algorithm 1, on each row at the steps that have a gradient of it.
    """

    def _resource_apply_sparse(self, grad, var, indices):
        """See `tf.train.Optimizer`: `indices` have no duplicates here."""
        beta1, beta2 = (tf.cast(power, var.dtype.base_dtype)
                        for power in self._get_beta_accumulators())
        m, v = self.get_slot(var, 'm'), self.get_slot(var, 'v')
        rows_m = self._beta1 * m.sparse_read(indices) + (1 - self._beta1) * grad
        rows_v = self._beta2 * v.sparse_read(indices) + (1 - self._beta2) * tf.square(grad)
        rate = tf.cast(self._lr_t, var.dtype.base_dtype) * tf.sqrt(1 - beta2) / (1 - beta1)
        step = rate * rows_m / (tf.sqrt(rows_v) + self._epsilon)

        def write(variable, values):
            return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices,
                                                    updates=values)

        return tf.group(
            write(m, rows_m), write(v, rows_v),
            tf.raw_ops.ResourceScatterAdd(resource=var.handle, indices=indices, updates=-step))
