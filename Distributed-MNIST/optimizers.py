"""An optimizer on the ps that leaves alone the rows that a batch does not touch."""

from tfdist.start.quiet import tf


class LazyAdam(tf.train.AdamOptimizer):
    """Adam that updates only those rows of a table, and their moments, that have a gradient.

    In each step, TensorFlow's own Adam decays the moments of all rows, and moves all rows, which
    takes time in proportion to the size of the table. Both train dense variables in the same way.

    Diederik Kingma, Jimmy Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv
    1412.6980, algorithm 1, applied to each row in the steps that have a gradient of it.
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
