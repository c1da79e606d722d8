"""The rules for local steps as optimizers of plain TensorFlow."""

from tfdist.scheme import local_rules
from tfdist.start.quiet import tf


def as_optimizer(rule, rate):
    """Returns the `tf.train.Optimizer` that has the equations of a rule.

    Args:
      rule: `local_rules.Rule`.
      rate: float or scalar tensor, the learning rate.
    """
    kind, known = type(rule), vars(rule)
    if kind is local_rules.Sgd:
        return tf.train.GradientDescentOptimizer(rate)
    if kind in (local_rules.Momentum, local_rules.Nesterov):
        return tf.train.MomentumOptimizer(rate, known['_momentum'],
                                          use_nesterov=kind is local_rules.Nesterov)
    if kind is local_rules.Adam:
        return tf.train.AdamOptimizer(rate, known['_beta1'], known['_beta2'], known['_epsilon'])
    return _Applied(rule, rate)


class _Applied(tf.train.Optimizer):
    """A rule for which TensorFlow has no optimizer, applied to the variables themselves."""

    def __init__(self, rule, rate):
        super().__init__(use_locking=False, name=type(rule).__name__)
        self._rule, self._rate = rule, rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See `tf.train.Optimizer`."""
        count, ops = None, []
        if self._rule.COUNTS:
            count = tf.Variable(0., trainable=False, name='count').assign_add(1, read_value=True)
        for gradient, variable in grads_and_vars:
            slots = [tf.Variable(tf.zeros(variable.shape, variable.dtype.base_dtype),
                                 trainable=False, name=slot) for slot in self._rule.SLOTS]
            after = self._rule.update(
                variable.read_value(), tf.convert_to_tensor(gradient),
                tf.cast(self._rate, variable.dtype.base_dtype), count,
                *(slot.read_value() for slot in slots))
            value, *kept = after if isinstance(after, (tuple, list)) else [after]
            after = [variable.constraint(value) if variable.constraint else value, *kept]
            with tf.control_dependencies(after):
                ops += [one.assign(value) for one, value in zip([variable, *slots], after)]
        return tf.group(*ops)
