"""PowerSGD: two thin factors of a gradient go around the ring, in place of it. --compression.

For each matrix M = g + e of this worker, a x b, and Q, b x RANK, the same on all workers:

    P <- mean of all M Q                 the first exchange
    P <- orthonormal columns for those of P
    Q <- mean of all M^T P               the second exchange; this Q is also that of the next step
    e <- M - P (M^T P)^T                 with this worker's own M^T P, once the step is made
    P Q^T                                takes the place of the mean gradient

Both exchanges are plain sums around the ring. So P and Q, and what becomes of them, are the same on
all workers, and the sum of all that was sent is that of all g, less all e.

Thijs Vogels, Sai Praneeth Karimireddy, Martin Jaggi, "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2.
"""

import re
import sys

import numpy as np
from tfdist.scheme import compression, exchange, transfer
from tfdist.start.quiet import tf


def rank_of(hparams):
    """Returns the rank that hyperparameters ask for, an int; None if they do not ask for this.

    Raises:
      SystemExit: if what they ask for is no rank.
    """
    kind, _, rank = getattr(hparams, 'compression', 'none').partition(':')
    if kind != 'powersgd':
        return None
    if not re.fullmatch('[1-9][0-9]*', rank):
        sys.exit(f'--compression={hparams.compression}: give a rank, a whole number from 1, such '
                 'as powersgd:2.')
    return int(rank)


def matrix_shape(variable, rank):
    """Returns [a, b], the shape of a variable as a matrix; None if its factors would be no smaller.

    The last dimension stays: a convolution's kernel has a column for each channel that comes out.
    """
    *others, columns = variable.shape.as_list() or [1]
    rows = int(np.prod(others))
    factors = rank * (rows + columns) * compression.dtype_of(variable).size
    return [rows, columns] if factors < transfer.size_of([variable]) else None


class PowerSGD:
    """What one worker sends of its gradients, and what it keeps.

    Attributes:
      own: list of `tf.Variable` of the worker, see `seam.Seam`: the residuals e, and then the last
        Q, of each matrix. They are in no checkpoint.
    """

    def __init__(self, rank, variables):
        """Makes what is kept, on the device of the scope.

        Args:
          rank: int.
          variables: list of `tf.Variable`. Vectors, and what would not get smaller, go as they are.

        Raises:
          SystemExit: if none of them would get smaller.
        """
        self._residuals, self._factors = {}, {}  # by the index of a variable
        self._following = []  # what a step leaves: pairs of one of these, and its next value
        for i, variable in enumerate(variables):
            shape = matrix_shape(variable, rank)
            if shape:
                dtype = compression.dtype_of(variable)
                # By these seeds all workers draw the same.
                drawn = tf.raw_ops.StatelessRandomNormal(shape=[shape[1], rank], seed=[i, 0],
                                                         dtype=dtype)
                self._residuals[i], self._factors[i] = (
                    exchange.own_variable(value, f'{name}/{variable.op.name}')
                    for name, value in (('residual', tf.zeros(shape, dtype)), ('factor', drawn)))
        if not self._residuals:
            sys.exit(f'--compression=powersgd:{rank}: each variable is as small as its factors of '
                     'this rank, or smaller. Take a smaller rank, or leave the compression out.')
        self.own = [*self._residuals.values(), *self._factors.values()]

    def means(self, gradients, mean_of):
        """Returns what takes the place of the workers' mean gradients, the same on all of them.

        Args:
          gradients: list of tensors of the variables' shapes and dtypes, on the worker.
          mean_of: function of a list of tensors of this worker that returns their means over all
            workers, a list, the same bits on each of them.
        """
        matrices, sent = {}, list(gradients)
        for i, residual in self._residuals.items():
            matrix = tf.cast(tf.reshape(gradients[i], residual.shape), residual.dtype.base_dtype)
            matrices[i] = matrix + residual.read_value()
            sent[i] = tf.matmul(matrices[i], self._factors[i].read_value())
        means = mean_of(sent)
        # Not Gram-Schmidt: of columns that are 0, or no more than rounding, it would make no basis.
        bases = {i: tf.linalg.qr(means[i]).q for i in matrices}
        shares = {i: tf.matmul(matrices[i], bases[i], transpose_a=True) for i in matrices}
        for i, factor in zip(matrices, mean_of(list(shares.values()))):
            left = matrices[i] - tf.matmul(bases[i], shares[i], transpose_b=True)
            self._following += [(self._residuals[i], left), (self._factors[i], factor)]
            mean = tf.reshape(tf.matmul(bases[i], factor, transpose_b=True), gradients[i].shape)
            means[i] = tf.cast(mean, gradients[i].dtype)
        return means

    def arrived(self, figures):
        """Returns the figures of a step, a dict of tensors, once what is kept is up to date."""
        with tf.control_dependencies(list(figures.values())):
            kept = exchange.assign(*zip(*self._following))
        with tf.control_dependencies([kept]):
            return {name: tf.identity(figure) for name, figure in figures.items()}
