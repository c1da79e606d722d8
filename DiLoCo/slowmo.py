"""SlowMo: the outer momentum in units of gradients, for an inner learning rate that changes."""

from tfdist.start.quiet import tf


class SlowMo(tf.train.MomentumOptimizer):
    """The rule, with G in the place of a gradient, and eta the inner rate as the window began.

        u <- momentum * u + G / eta
        c <- c - learning_rate * eta * u

    While eta is constant, it is the heavy ball. After a decay it differs: there u is still as long
    as the windows were before.

    Jianyu Wang, Vinayak Tantia, Nicolas Ballas, Michael Rabbat, "SlowMo: Improving
    Communication-Efficient Distributed SGD with Slow Momentum", ICLR 2020, arXiv 1910.00643,
    algorithm 1.
    """

    def __init__(self, learning_rate, momentum, inner_rate):
        """Takes alpha, beta, and eta, a float or a float32 scalar tensor."""
        # Its slots have a name of their own: a velocity in other units is not taken over.
        super().__init__(learning_rate * inner_rate, momentum, name='SlowMo')
        self._inner_rate = inner_rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See `tf.train.Optimizer`; a window at a rate of 0 has moved nothing."""
        divided = [(tf.math.divide_no_nan(gradient, tf.cast(self._inner_rate, gradient.dtype)),
                    variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(divided, global_step, name)
