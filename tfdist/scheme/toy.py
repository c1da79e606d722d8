"""A problem made of a function, to drive a scheme by hand without a model."""

import copy

from tfdist.scheme import exchange, recipe, trainee
from tfdist.start.quiet import tf


class Problem(trainee.Trainee):
    """Takes the place of a `building.Network`, without a model and without data.

    Attributes:
      variables: list of `tf.Variable`, the center.
      state, own, averages: None, see `building.Network`.
    """

    state = own = averages = None

    def __init__(self, loss_at, variables, its_recipe=None):
        """Takes a function of values that returns loss and accuracy there; and the variables.

        With --accumulate the function is called as often for a local step. The recipe is a
        `recipe.Recipe`, or None.
        """
        self._loss_at, self.variables = loss_at, variables
        self.recipe = its_recipe or recipe.Recipe()

    def gradients_at(self, values, clipped=True):
        """Returns the gradients of the loss, and the figures; see `building.Network`."""
        every = []
        for _ in range(self.pace.accumulate):
            loss, accuracy = self._loss_at(values)
            every.append((tf.gradients(loss, values), {'loss': loss, 'accuracy': accuracy}))
        gradients = [sum(map(tf.convert_to_tensor, each)) / len(each)
                     for each in zip(*(gradients for gradients, _ in every))]
        return (self.recipe.clip(gradients) if clipped else gradients,
                exchange.mean([figures for _, figures in every]))

    def again(self, count=None):
        """Returns the same problem for another run of the graph, see `building.Network`."""
        del count
        return copy.copy(self)

    def finish(self):
        """Is called after the last gradients, see `building.Network`."""
