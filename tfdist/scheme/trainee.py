"""What a scheme trains: variables, and the optimizer, the local rule and the recipe for them."""

import functools
import sys

from tfdist.scheme import local_rules, recipe
from tfdist.start.quiet import tf


class Trainee:
    """The base class of `building.Network` and `toy.Problem`.

    Attributes:
      variables: list of `tf.Variable` and `tables.Rows`, the center of the schemes.
      recipe: `recipe.Recipe`.
      pace: `recipe.Pace`, see `set_pace`.
      constrains: bool, whether an optimizer or a local rule, which keep constraints, is used.
    """

    pace = recipe.Pace(recipe.Recipe(), None)
    recipe = recipe.Recipe()
    variables = ()
    _computes = None  # the optimizer whose own compute_gradients makes the gradients
    constrains = False
    _has_gradients = False  # whether any were made: it is too late for the optimizer

    summaries = {}  # dict by tag of string tensors, as `tf.summary` makes them

    def hooks(self):
        """Returns a list of `tf.train.SessionRunHook` of the model's own, for each run."""
        return []

    def shared_by(self, num_workers):
        """Is told how many workers train it; None if that is not known."""

    def set_pace(self, global_step, hparams, local_steps_per_count):
        """Takes what makes the pace, before the scheme makes its parts: see `recipe.Pace`.

        The `hparams` may have the attributes `accumulate` and `batch_size`.
        """
        self.pace = recipe.Pace(self.recipe, global_step, getattr(hparams, 'accumulate', 1),
                                getattr(hparams, 'batch_size', 1), local_steps_per_count)

    def model_optimizer(self, learning_rate):
        """Returns the model's own `tf.train.Optimizer`; None if it has none."""
        del learning_rate

    def model_rule(self, learning_rate):
        """Returns the model's own `local_rules.Rule`; None if it has none."""
        del learning_rate

    def optimizer(self, learning_rate, otherwise=tf.train.GradientDescentOptimizer, clips=False,
                  **kwargs):
        """Returns a `tf.train.Optimizer` for the ps. Ask for it before the gradients.

        Args:
          learning_rate: float or float32 scalar tensor.
          otherwise: optimizer class for a model that has no optimizer.
          clips: bool, whether the optimizer clips: for a mean of gradients that were not clipped.
          **kwargs: further arguments of this class.

        Raises:
          SystemExit: if the model's function returns something else.
        """
        self.constrains = True
        rate = self.pace.rate(learning_rate)
        own = self.model_optimizer(rate)
        if own is not None:
            _check_optimizer(own)
            if type(own).compute_gradients is not tf.train.Optimizer.compute_gradients:
                if self._has_gradients:
                    sys.exit(f"The model's optimizer, {type(own).__name__}, has a "
                             'compute_gradients() of its own, which this scheme does not call: '
                             'move what it does into apply_gradients(), or into the RECIPE of '
                             'model.py.')
                self._computes = own
        return self._by_recipe(otherwise(rate, **kwargs) if own is None else own, lambda: rate,
                               clips)

    def compute_as(self, other):
        """Has the optimizer for which another `Trainee` was asked compute the gradients here, too.

        For networks of the same variables, which share one optimizer and its slots.
        """
        self._computes = other._computes

    def rule_of_scheme(self, kind, learning_rate, often=False, **kwargs):
        """Returns an optimizer in place of the model's own: see `optimizer`.

        Args:
          kind: optimizer class; if `often`, one that takes a function as its learning rate.
          learning_rate: float or float32 scalar tensor.
          often: bool, whether it makes several updates in a run: each asks for the global step.
          **kwargs: further arguments of the class.
        """
        self.constrains = True
        if often:
            rate = functools.partial(self.pace.rate, learning_rate)
            return self._by_recipe(kind(rate, **kwargs), rate, clips=False)
        rate = self.pace.rate(learning_rate)
        return self._by_recipe(kind(rate, **kwargs), lambda: rate, clips=False)

    def _by_recipe(self, optimizer, rate, clips):
        if not self.recipe.changes:
            return optimizer
        return recipe.Optimizer(optimizer, self.recipe, rate, clips)

    def local_rule(self, learning_rate, otherwise=local_rules.Sgd, **kwargs):
        """Returns the model's rule for local steps.

        Its slots are made on the device of the scope.

        Args:
          learning_rate: float or float32 scalar tensor.
          otherwise: class of `local_rules` for a model that has no rule.
          **kwargs: further arguments of this class.

        Raises:
          SystemExit: if the model's function returns something else.
        """
        self.constrains = True
        rule = self.model_rule(learning_rate)
        if rule is None:
            rule = otherwise(learning_rate, **kwargs)
        if not isinstance(rule, local_rules.Rule):
            sys.exit(f"The model's local_rule returns {rule!r}, which is none of "
                     'tfdist.scheme.local_rules.')
        rule.begin(self.variables, self.recipe, self.pace)
        return rule

    def check_constraints(self, variables=None):
        """Ends the program if a variable has a constraint, which the scheme would not keep.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`, by default those that are trained.

        Raises:
          SystemExit: naming the variables.
        """
        names = [variable.op.name for variable in variables or self.variables
                 if getattr(getattr(variable, 'table', variable), 'constraint', None)]
        if names and not self.constrains:
            sys.exit(f'The model has constraints on {", ".join(names)}, which this scheme cannot '
                     'keep: it adds to the variables. Take one whose parameter server applies an '
                     'optimizer.')

    def rate(self, learning_rate, step=None, done=0):
        """Returns a learning rate as the recipe schedules it, see `recipe.Pace.rate`."""
        return self.pace.rate(learning_rate, step, done)

    def decayed(self, gradients, values):
        """Returns gradients with the weight decay at some values; see `recipe.Recipe.decayed`."""
        return self.recipe.decayed(gradients, self.variables, values)

    def shrunk(self, values, rate):
        """Returns values after their weight decay alone; see `recipe.Recipe.shrunk`."""
        return self.recipe.shrunk(self.variables, values, rate)


def _check_optimizer(optimizer):
    """Ends the program if the model's optimizer cannot be used."""
    kind = type(optimizer)
    if not isinstance(optimizer, tf.train.Optimizer):
        sys.exit(f"The model's optimizer(learning_rate) returns {optimizer!r}, which is no "
                 'tf.train.Optimizer: those of Keras are none.')
    if isinstance(optimizer, tf.train.SyncReplicasOptimizer):
        sys.exit("The model's optimizer is a SyncReplicasOptimizer, a barrier of its own: return "
                 'the optimizer within, and take a scheme in which all workers make each step '
                 'together.')
    if kind.minimize is not tf.train.Optimizer.minimize:
        sys.exit(f"The model's optimizer, {kind.__name__}, has a minimize() of its own, which no "
                 'scheme calls: put what it does into compute_gradients() or apply_gradients(), or '
                 'into the RECIPE of model.py.')
