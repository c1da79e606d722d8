"""Rules for the local steps of a window, on values; what they keep is in the worker's variables."""

import sys

from tfdist import exchange, tables
from tfdist.quiet import tf


class Sgd:
    """x <- x - learning_rate * g."""

    def __init__(self, learning_rate):
        """Takes a float or a float32 scalar tensor."""
        self._slots, self._learning_rate = {}, learning_rate

    @property
    def own(self):
        """List of `tf.Variable`, what the rule keeps from one run to the next."""
        return sum(self._slots.values(), [])

    def begin(self, variables):
        """Is called once, where the worker keeps variables, with those that are trained."""

    def step(self, values, gradients):
        """Returns the values after a step, a list of tensors, of lists of tensors."""
        return exchange.add(values, gradients, -self._learning_rate)

    def keep(self):
        """Returns an op that keeps what the next run begins with, when the last step is made."""
        return tf.group()


class _WithSlots(Sgd):
    """A rule that keeps something beside each variable."""

    SLOTS = ()

    def begin(self, variables):
        """See `Sgd`.

        Raises:
          SystemExit: if there is a table, all of which would be kept on each worker.
        """
        for variable in variables:
            if isinstance(variable, tables.Rows):
                sys.exit(f'The local rule keeps slots on each worker, and {variable.op.name} is a '
                         'table: take plain SGD for the local steps.')
        self._slots = {
            slot: [exchange.own_variable(zeros, f'{slot}/{variable.op.name}')
                   for zeros, variable in zip(exchange.zeros_like(variables), variables)]
            for slot in self.SLOTS}
        self._now = {slot: [variable.read_value() for variable in of_slot]
                     for slot, of_slot in self._slots.items()}

    def keep(self):
        """See `Sgd`."""
        return exchange.assign(self.own, sum(self._now.values(), []))


class Momentum(_WithSlots):
    """u <- momentum * u + g;  x <- x - learning_rate * u, as `tf.train.MomentumOptimizer`."""

    SLOTS = ('velocity',)

    def __init__(self, learning_rate, momentum=0.9):
        """Takes the step size, and the share of the velocity that is kept."""
        super().__init__(learning_rate)
        self._momentum = momentum

    def step(self, values, gradients):
        """See `Sgd`."""
        self._now['velocity'] = [self._momentum * u + gradient for u, gradient in
                                 zip(self._now['velocity'], gradients)]
        return exchange.add(values, self._now['velocity'], -self._learning_rate)


class Adam(_WithSlots):
    """Adam, with the count of its steps on this worker, as `tf.train.AdamOptimizer`.

    Diederik Kingma, Jimmy Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
    """

    SLOTS = ('m', 'v')

    def __init__(self, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        """Takes the step size, the shares of the moments that are kept, and a small number."""
        super().__init__(learning_rate)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def begin(self, variables):
        """See `Sgd`."""
        super().begin(variables)
        self._slots['t'] = [exchange.own_variable(tf.zeros([]), 't')]
        self._now['t'] = [self._slots['t'][0].read_value()]

    def step(self, values, gradients):
        """See `Sgd`."""
        now = self._now
        now['t'] = [now['t'][0] + 1]
        now['m'] = [self._beta1 * m + (1 - self._beta1) * gradient
                    for m, gradient in zip(now['m'], gradients)]
        now['v'] = [self._beta2 * v + (1 - self._beta2) * tf.square(gradient)
                    for v, gradient in zip(now['v'], gradients)]
        rate = (self._learning_rate * tf.sqrt(1 - tf.pow(self._beta2, now['t'][0]))
                / (1 - tf.pow(self._beta1, now['t'][0])))
        return [value - tf.cast(rate, value.dtype) * m / (tf.sqrt(v) + self._epsilon)
                for value, m, v in zip(values, now['m'], now['v'])]
