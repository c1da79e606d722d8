"""What a scheme trains, made of a function: to drive it by hand, without a model."""

from tfdist import local_rules
from tfdist.quiet import tf


class Problem:
    """What a scheme trains, made of a function: without a model and without data.

    Attributes:
      variables: list of `tf.Variable`, the center.
      state, averages: None, see `building.Network`.
    """

    state = averages = None

    def __init__(self, loss_at, variables):
        """Takes a function of the variables' values that returns loss and accuracy, and these."""
        self._loss_at, self.variables = loss_at, variables

    def gradients_at(self, values):
        """Returns the gradients of the loss, and the figures; see `building.Network`."""
        loss, accuracy = self._loss_at(values)
        gradients = map(tf.convert_to_tensor, tf.gradients(loss, values))
        return list(gradients), {'loss': loss, 'accuracy': accuracy}

    def finish(self):
        """Is called after the last gradients, see `building.Network`."""

    def local_rule(self, learning_rate):
        """Returns plain SGD, see `building.Network`."""
        return local_rules.Sgd(learning_rate)

    def optimizer(self, learning_rate, otherwise=tf.train.GradientDescentOptimizer, **kwargs):
        """Returns an optimizer of class `otherwise`, see `building.Network`."""
        return otherwise(learning_rate, **kwargs)
