"""AEAMSGD with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart
from tfdist.scheme import exchange
from tfdist.start.quiet import tf


class LookingAhead(tf.train.Optimizer):
    """u <- momentum * u - rate * g;  x <- x + u, in variables that have x + momentum * u.

    It is TensorFlow's `MomentumOptimizer` with use_nesterov, as long as the rate does not change.
    """

    def __init__(self, rate, momentum, recipe):
        super().__init__(use_locking=False, name='LookingAhead')
        self._rate, self._momentum, self._recipe = rate, momentum, recipe

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See `tf.train.Optimizer`."""
        ops = []
        for gradient, variable in grads_and_vars:
            velocity = self._zeros_slot(variable, 'velocity', self._name)
            # The weights have decayed before: by the weights alone, and not by what is ahead.
            ahead, = self._recipe.shrunk([variable], [velocity], self._rate)
            gradient = tf.convert_to_tensor(gradient)  # of rows of a table, too
            after = self._momentum * velocity - tf.cast(self._rate, gradient.dtype) * gradient
            value = variable - self._momentum * ahead + (1 + self._momentum) * after
            with tf.control_dependencies([value]):
                ops += [variable.assign(value), velocity.assign(after)]
        return tf.group(*ops)


class Plain(counterpart.Counterpart):
    """Nesterov's momentum on the replica, if the center does not pull at it."""

    says = 'the center pulls at the replica: checked without that, with --moving_rate=0'
    settings = {'moving_rate': 0.}

    def optimizer(self, model, rate, hparams, asked):
        """See the base class."""
        return LookingAhead(rate, hparams.momentum, model.recipe)

    def trained(self, scheme, hparams):
        """Returns the replica, where it looks ahead."""
        return exchange.add(scheme.replica, scheme.velocity, hparams.momentum)
