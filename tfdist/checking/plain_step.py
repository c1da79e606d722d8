"""The step of an optimizer of plain TensorFlow, with clipping and weight decay."""

import numpy as np
from tfdist.start.quiet import tf


class Step:
    """A step that is made of gradients as arrays, of one batch or of several."""

    def __init__(self, optimizer, pairs, recipe, rate):
        """Makes the ops.

        Args:
          optimizer: `tf.train.Optimizer`.
          pairs: list of pairs of a gradient, a tensor or `tf.IndexedSlices`, and its `tf.Variable`.
          recipe: `recipe.Recipe`.
          rate: float or scalar tensor, the learning rate.
        """
        known = vars(recipe)
        self._clip_value, self._clip_norm = known['_clip_value'], known['_clip_norm']
        self._given, decays = [], []
        for gradient, variable in pairs:
            dtype = variable.dtype.base_dtype
            decay = recipe.weight_decay if known['_decays'](variable.op.name) else 0
            factor = tf.cast(rate * decay, dtype)
            if isinstance(gradient, tf.IndexedSlices):
                rows = tf.placeholder(tf.int64, [None])
                shape = variable.shape.as_list()
                given = tf.IndexedSlices(tf.placeholder(dtype, [None, *shape[1:]]), rows,
                                         tf.constant(shape, tf.int64))
                if decay:
                    decays.append(tf.scatter_sub(variable, rows,
                                                 factor * tf.gather(variable, rows)))
            else:
                given = tf.placeholder(dtype, variable.shape)
                if decay:
                    decays.append(variable.assign_sub(factor * variable))
            self._given.append(given)
        with tf.control_dependencies(decays):
            self._op = optimizer.apply_gradients(
                [(given, variable) for given, (_, variable) in zip(self._given, pairs)])

    def run(self, session, gradients, fed):
        """Makes the step in a `tf.Session`.

        Args:
          session: `tf.Session`.
          gradients: list, for each batch, of lists of gradients, arrays or
            `tf.compat.v1.IndexedSlicesValue`.
          fed: dict, what else is fed.
        """
        means = self._clip([_mean(of_one) for of_one in zip(*gradients)])
        for given, (values, rows) in zip(self._given, means):
            if rows is None:
                fed[given] = values
            else:
                fed.update({given.values: values, given.indices: rows})
        session.run(self._op, fed)

    def _clip(self, gradients):
        """Returns gradients, pairs as of `_mean`, clipped by value, then by norm."""
        if self._clip_value is not None:
            gradients = [(np.clip(values, -self._clip_value, self._clip_value), rows)
                         for values, rows in gradients]
        if self._clip_norm is not None:
            norm = np.sqrt(sum(np.square(values.astype(np.float64)).sum()
                               for values, _ in gradients))
            factor = self._clip_norm / max(norm, self._clip_norm)
            gradients = [((values * factor).astype(values.dtype), rows)
                         for values, rows in gradients]
        return gradients


def _mean(gradients):
    """Returns the mean of gradients of one variable: its values, and their rows, each once.

    The rows are None for a dense gradient.
    """
    number, first = len(gradients), gradients[0]
    if isinstance(first, np.ndarray) or np.isscalar(first):
        return sum(gradients) / number, None
    rows, where = np.unique(np.concatenate([each.indices for each in gradients]),
                            return_inverse=True)
    total = np.zeros([len(rows), *first.values.shape[1:]], first.values.dtype)
    np.add.at(total, where, np.concatenate([each.values for each in gradients]))
    return total / number, rows
