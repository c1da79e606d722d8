"""A training recipe: how a model is trained, whatever the scheme; and where training stands."""

import copy
import inspect
import math
import numbers
import re
import sys

from tfdist.start.quiet import tf


class Recipe:
    """What `RECIPE` of a model says: schedule, clipping and weight decay, the same in each scheme.

    A local step clips its gradient by value, then by norm; takes the step of the optimizer or of
    the local rule, with the learning rate of the schedule; and decays the weights beside it:

        x <- x - rate * (step of the clipped gradient) - rate * weight_decay * x

    In schemes in which all workers make each step together, their mean gradient is clipped, as if
    one process had a batch as large as all of theirs.

    Razvan Pascanu, Tomas Mikolov, Yoshua Bengio, "On the difficulty of training recurrent neural
    networks", arXiv 1211.5063, section 3.2; Ilya Loshchilov, Frank Hutter, "Decoupled Weight Decay
    Regularization", arXiv 1711.05101.
    """

    def __init__(self, schedule=None, clip_norm=None, clip_value=None, weight_decay=0.,
                 decays=None):
        """Takes the parts of the recipe; each may be left out.

        Args:
          schedule: function of `examples` and `step`, two float32 scalar tensors, which returns the
            factor of all learning rates, a float32 scalar: `examples` is how many of them all
            workers have trained on so far, `step` is the global step.
          clip_norm: float, the most that the gradient of all variables together may be long.
          clip_value: float, the most that an element of a gradient may be, up or down.
          weight_decay: float.
          decays: function of a variable's name that returns whether the variable decays; by default
            all do. Of a table, only the rows that a run reads do.

        Raises:
          SystemExit: if a part is of the wrong kind.
        """
        for name, value in dict(clip_norm=clip_norm, clip_value=clip_value).items():
            if value is not None and not (_is_number(value) and value > 0):
                sys.exit(f'Recipe: {name}={value!r} is not a finite number above 0.')
        if not (_is_number(weight_decay) and weight_decay >= 0):
            sys.exit(f'Recipe: weight_decay={weight_decay!r} is not a finite number of 0 or more.')
        _check_function('schedule', schedule, examples=0., step=0.)
        _check_function('decays', decays, 'name')
        self.schedule, self.weight_decay = schedule, weight_decay
        self._clip_norm, self._clip_value = clip_norm, clip_value
        self._decays = decays or (lambda name: True)

    @property
    def changes(self):
        """Whether it changes the step of an optimizer, beyond the learning rate."""
        return bool(self.weight_decay or self._clip_norm or self._clip_value)

    def within(self, scope):
        """Returns it for variables in a scope, a string; `decays` gets their names without it."""
        other = copy.copy(self)
        other._decays = lambda name: self._decays(re.sub(f'^{scope}/', '', name))
        return other

    def clip(self, gradients):
        """Returns a list of gradients, tensors or `tf.IndexedSlices`, clipped; None stays None."""
        if self._clip_value is not None:
            gradients = [_of_values(gradient, self._by_value) for gradient in gradients]
        if self._clip_norm is None:
            return gradients
        # The sum of squares in float32: those of half floats overflow.
        squares = [tf.reduce_sum(tf.square(tf.cast(_values(gradient), tf.float32)))
                   for gradient in gradients if gradient is not None]
        factor = self._clip_norm / tf.maximum(tf.sqrt(tf.add_n(squares)), self._clip_norm)
        return [_of_values(gradient, lambda values: values * tf.cast(factor, values.dtype))
                for gradient in gradients]

    def _by_value(self, values):
        return tf.clip_by_value(values, -self._clip_value, self._clip_value)

    def shrunk(self, variables, values, rate):
        """Returns the values of variables after their decay alone.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`.
          values: list of tensors.
          rate: float or float32 scalar tensor, the learning rate.
        """
        return [value - scaled(rate, self.decay(variable, value)) if self._decays_of(variable)
                else value for variable, value in zip(variables, values)]

    def decay(self, variable, value):
        """Returns weight_decay * value for a variable that decays, else None.

        Args:
          variable: `tf.Variable` or `tables.Rows`.
          value: tensor.
        """
        return self.weight_decay * value if self._decays_of(variable) else None

    def decayed(self, gradients, variables, values):
        """Returns gradients with the decay: for schemes whose step is plain SGD, it is the same.

        Args:
          gradients: list of tensors.
          variables: list of `tf.Variable` and `tables.Rows`.
          values: list of tensors, the variables' values to which the step is made.
        """
        return [gradient + self.decay(variable, value) if self._decays_of(variable) else gradient
                for gradient, variable, value in zip(gradients, variables, values)]

    def _decays_of(self, variable):
        return bool(self.weight_decay) and self._decays(variable.op.name)


def _is_number(value):
    return (isinstance(value, numbers.Real) and not isinstance(value, bool)
            and math.isfinite(value))


def _check_function(name, function, *args, **kwargs):
    """Ends the program if a part of a recipe is no function of such arguments, and not None."""
    try:
        if function is not None:
            inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # Python does not know the arguments of some functions of its own
        pass
    except TypeError as error:
        sys.exit(f'Recipe: {name}={function!r} is no function of '
                 f'{" and ".join([*args, *kwargs])}: {error}.')


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _of_values(gradient, function):
    """Returns a gradient, which may be None, with a function applied to its values."""
    if gradient is None:
        return None
    changed = function(_values(gradient))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(changed, gradient.indices, gradient.dense_shape)
    return changed


class Pace:
    """How fast training goes: from it follow the learning rates of a recipe.

    Attributes:
      accumulate: int, the number of batches that make the gradient of a local step.
    """

    def __init__(self, recipe, global_step, accumulate=1, batch_size=1, local_steps_per_count=1):
        """Takes what makes the pace.

        Args:
          recipe: `Recipe`.
          global_step: integer `tf.Variable`.
          accumulate: int, see above.
          batch_size: int, the examples of a batch.
          local_steps_per_count: int, how many local steps, by all workers together, there are when
            the global step counts one; or a function of the global step, a float32 scalar tensor,
            that returns how many there were before it.
        """
        self._recipe, self._global_step = recipe, global_step
        self.accumulate = accumulate
        self._local_steps = (local_steps_per_count if callable(local_steps_per_count)
                             else lambda step: step * local_steps_per_count)
        self._examples = accumulate * batch_size

    def rate(self, learning_rate, step=None, done=0):
        """Returns a learning rate as scheduled: without a schedule, what was given.

        Args:
          learning_rate: float or float32 scalar tensor.
          step: integer scalar tensor, the global step; by default as it is, on its device.
          done: int, how many local steps there were since, of all workers that this one knows of.
        """
        schedule = self._recipe.schedule
        if not schedule:
            return learning_rate
        if step is None:
            with tf.device(self._global_step.device):
                return self.rate(learning_rate, self._global_step.read_value(), done)
        step = tf.cast(step, tf.float32)
        factor = schedule(examples=(self._local_steps(step) + done) * self._examples, step=step)
        number = None if factor is None else tf.cast(factor, tf.float32)
        if number is None or number.shape.rank:
            sys.exit(f"The schedule of the model's RECIPE returns {factor!r}, which is no number.")
        return learning_rate * number


class Optimizer(tf.train.Optimizer):
    """An optimizer with a recipe's weight decay, and its clipping if that is left to it."""

    def __init__(self, optimizer, recipe, rate, clips):
        """Takes what to apply.

        Args:
          optimizer: `tf.train.Optimizer`.
          recipe: `Recipe`.
          rate: function that returns the learning rate, a float or a float32 scalar tensor.
          clips: bool, whether to clip the gradients, because nobody has before.
        """
        super().__init__(use_locking=False, name='Recipe')
        self._optimizer, self._recipe, self._rate, self._clips = optimizer, recipe, rate, clips

    def compute_gradients(self, *args, **kwargs):
        """See `tf.train.Optimizer`."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See `tf.train.Optimizer`."""
        gradients, variables = zip(*grads_and_vars)
        if self._clips:
            gradients = self._recipe.clip(gradients)
        rate = self._rate()
        shrunk = [self._shrink(*both, rate) for both in zip(gradients, variables)]
        with tf.control_dependencies([op for op in shrunk if op is not None]):
            return self._optimizer.apply_gradients(zip(gradients, variables), global_step, name)

    def _shrink(self, gradient, variable, rate):
        """Returns the op of the decay, on the variable's device; None if it does not decay."""
        # Not before the gradient is there: until then workers read the variable. By a copy of it:
        # who feeds the gradient has nothing run that makes it.
        with tf.device(variable.device), tf.control_dependencies([tf.identity(_values(gradient))]):
            if isinstance(gradient, tf.IndexedSlices):
                rows = tf.gather(variable, gradient.indices)
                decay = self._recipe.decay(variable, rows)
                return None if decay is None else tf.raw_ops.ResourceScatterSub(
                    resource=variable.handle, indices=gradient.indices,
                    updates=scaled(rate, decay))
            decay = self._recipe.decay(variable, variable.read_value())
            return None if decay is None else variable.assign_sub(scaled(rate, decay),
                                                                  read_value=False)


def scaled(rate, tensor):
    """Returns a rate, a float or a float32 scalar tensor, times a tensor of any dtype."""
    return (tf.cast(rate, tensor.dtype) if isinstance(rate, tf.Tensor) else rate) * tensor
