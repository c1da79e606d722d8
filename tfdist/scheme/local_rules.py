"""Update rules for the local steps of a window; their slots are variables of the worker.

A rule of your own is a class of a few lines with one function:

    class Signs(local_rules.Rule):
        SLOTS = ('mean',)

        def update(self, value, gradient, rate, count, mean):
            mean = 0.9 * mean + 0.1 * gradient
            return value - rate * tf.sign(mean), mean
"""

import copy
import sys

from tfdist.scheme import exchange, recipe, tables, transfer
from tfdist.start.quiet import tf


class Rule:
    """The base class of rules.

    Attributes:
      SLOTS: tuple of strings, what the rule keeps of each variable from one local step to the next:
        a tensor of its shape, zeros at first.
      COUNTS: bool, whether `update` is told how many local steps this worker has made.
      PACKED: bool, whether small variables are updated as one vector: for an `update` of many ops,
        in which an element of a variable does not depend on others. Subclasses do not inherit it.
    """

    SLOTS, COUNTS, PACKED = (), False, False

    def __init__(self, learning_rate):
        """Takes the step size, a float or a float32 scalar tensor."""
        self._learning_rate = learning_rate
        self._recipe, self._step, self._done, self._workers = recipe.Recipe(), None, 0, 1
        self._pace = recipe.Pace(self._recipe, None)

    def update(self, value, gradient, rate, count, *slots):
        """Returns the value after a step, and then each slot's.

        Args:
          value: tensor, a variable's value.
          gradient: tensor of this shape and dtype.
          rate: the learning rate, a float or a scalar tensor of this dtype.
          count: float32 scalar tensor, the number of this local step, from 1 on; None without
            COUNTS.
          *slots: tensors of this shape and dtype, one for each of SLOTS.

        Returns:
          Tensor; or, with slots, a tuple of it and the slots.
        """
        raise NotImplementedError

    @property
    def own(self):
        """List of `tf.Variable` that the rule keeps from one run to the next."""
        return self._kept

    def begin(self, variables, its_recipe=None, pace=None):
        """Is called once, on the device for the worker's variables.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`, which are trained.
          its_recipe: `recipe.Recipe`, by which weights decay, or None.
          pace: `recipe.Pace`, by which the learning rate changes, or None.

        Raises:
          SystemExit: if a variable is a table, and the rule would keep slots for all its rows.
        """
        self._variables = variables
        self._recipe, self._pace = its_recipe or self._recipe, pace or self._pace
        for variable in variables if self.SLOTS else []:
            if isinstance(variable, tables.Rows):
                sys.exit(f'The local rule keeps slots on each worker, and {variable.op.name} is a '
                         'table: use plain SGD for the local steps.')
        self._groups = self._groups_of(variables)
        self._kept = []
        for group in self._groups if self.SLOTS else []:
            zeros = transfer.join(exchange.zeros_like([variables[i] for i in group]))
            self._kept += [exchange.own_variable(zeros, f'{slot}/{variables[group[0]].op.name}')
                           for slot in self.SLOTS]
        if self.COUNTS:
            self._kept.append(exchange.own_variable(tf.zeros([]), 't'))
        self._begin_run()

    def _groups_of(self, variables):
        """Returns lists of the places of variables that are updated together."""
        # A subclass may have another update.
        is_packed = vars(type(self)).get('PACKED')
        return transfer.groups_of(variables) if is_packed else [[i] for i in range(len(variables))]

    def _begin_run(self):
        self._now = [variable.read_value() for variable in self._kept]
        self._vectors = {}  # of groups: the values that a step has returned, and their vector

    def again(self):
        """Returns the same rule, with the same slots, for another run of the graph."""
        other = copy.copy(self)
        other._begin_run()
        return other

    def pulled(self, step, workers=1, done=0):
        """Is called after a pull.

        Args:
          step: integer scalar tensor, the global step with which the worker pulled.
          workers: int, how many workers make the steps of their windows together.
          done: int, how many local steps each of them has made since that global step.
        """
        self._step, self._done, self._workers = step, done * workers, workers

    def step(self, values, gradients):
        """Returns the values after a step, a list of tensors; takes lists of tensors.

        Raises:
          SystemExit: if `update` returns not as many slots as there are.
        """
        rate = self._pace.rate(self._learning_rate, self._step, self._done)
        self._done += self._workers
        count = None
        if self.COUNTS:
            count = self._now[-1] = self._now[-1] + 1
        after = list(values)
        for number, group in enumerate(self._groups):
            its = [values[i] for i in group]
            own_rate = tf.cast(rate, its[0].dtype) if isinstance(rate, tf.Tensor) else rate
            vector = self._update(number, its, [gradients[i] for i in group], own_rate, count)
            stepped = transfer.take_apart(vector, [self._variables[i] for i in group])
            self._vectors[number] = stepped, vector
            for i, new in zip(group, stepped):
                decay = self._recipe.decay(self._variables[i], values[i])
                new = new if decay is None else new - own_rate * decay
                keep = getattr(self._variables[i], 'constraint', None)
                after[i] = keep(new) if keep else new
        return after

    def _update(self, number, values, gradients, rate, count):
        """Returns the new values of a group, packed; takes those before it, and the gradients."""
        last, vector = self._vectors.get(number, ([], None))
        if len(last) != len(values) or any(a is not b for a, b in zip(last, values)):
            vector = transfer.join(values)
        places = range(number * len(self.SLOTS), (number + 1) * len(self.SLOTS))
        new = self.update(vector, transfer.join(gradients), rate, count,
                          *(self._now[k] for k in places))
        new, *slots = new if isinstance(new, (tuple, list)) else [new]
        if len(slots) != len(self.SLOTS):
            sys.exit(f'The local rule {type(self).__name__} has {len(self.SLOTS)} SLOTS, and its '
                     f'update() returns {len(slots)} beside the value.')
        for k, slot in zip(places, slots):
            self._now[k] = slot
        return new

    def keep(self):
        """Returns an op, made after the last step, that saves the slots for the next run."""
        # Tensors of their own: whoever runs a part of the graph alone may feed what others have
        # computed.
        return exchange.assign(self._kept, [tf.identity(value) for value in self._now])


class Sgd(Rule):
    """x <- x - rate * g."""

    def update(self, value, gradient, rate, count):
        """See `Rule`."""
        return value + -rate * gradient


class Momentum(Rule):
    """u <- momentum * u + g;  x <- x - rate * u, as `tf.train.MomentumOptimizer`."""

    SLOTS = ('velocity',)

    def __init__(self, learning_rate, momentum=0.9):
        """Takes the step size, and the share of the velocity kept in each step."""
        super().__init__(learning_rate)
        self._momentum = momentum

    def update(self, value, gradient, rate, count, velocity):
        """See `Rule`."""
        velocity = self._momentum * velocity + gradient
        return value + -rate * velocity, velocity


class Nesterov(Momentum):
    """u <- momentum * u + g;  x <- x - rate * (g + momentum * u), as TensorFlow's use_nesterov."""

    def update(self, value, gradient, rate, count, velocity):
        """See `Rule`."""
        velocity = self._momentum * velocity + gradient
        return value + -rate * (gradient + self._momentum * velocity), velocity


class Adam(Rule):
    """Adam, as `tf.train.AdamOptimizer`, counting the steps of this worker.

    Diederik Kingma, Jimmy Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
    """

    SLOTS, COUNTS, PACKED = ('m', 'v'), True, True

    def __init__(self, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        """Takes the step size, the shares of the moments kept in each step, and a small number."""
        super().__init__(learning_rate)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def update(self, value, gradient, rate, count, m, v):
        """See `Rule`."""
        change, m, v = self._change(gradient, rate, count, m, v)
        return value - change, m, v

    def _change(self, gradient, rate, count, m, v):
        """Returns what Adam subtracts from the value, and the slots.

        The slot m is the paper's divided by 1 - beta1: one product fewer of whole tensors. With v
        the same would leave too little of the range of float16.
        """
        m = self._beta1 * m + gradient
        v = self._beta2 * v + (1 - self._beta2) * tf.square(gradient)
        correction = tf.sqrt(1 - tf.pow(self._beta2, count)) * (
            (1 - self._beta1) / (1 - tf.pow(self._beta1, count)))
        return rate * tf.cast(correction, m.dtype) * m / (tf.sqrt(v) + self._epsilon), m, v


class AdamW(Adam):
    """Adam, and beside it x <- x - rate * weight_decay * x.

    Ilya Loshchilov, Frank Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101,
    algorithm 2, whose decay the learning rate multiplies here, as in most implementations.
    """

    PACKED = True

    def __init__(self, learning_rate, weight_decay=0.01, **kwargs):
        """Takes the step size, the decay, and what `Adam` takes."""
        super().__init__(learning_rate, **kwargs)
        self._weight_decay = weight_decay

    def update(self, value, gradient, rate, count, m, v):
        """See `Rule`."""
        change, m, v = self._change(gradient, rate, count, m, v)
        return value - change - rate * self._weight_decay * value, m, v
