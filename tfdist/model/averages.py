"""Moving averages of the parameters, kept with the center: the test uses them instead."""

from absl import flags
from tfdist.scheme import tables
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_float('moving_average_decay', None, 'share of a moving average of the parameters that '
                   'a step keeps; the test uses the averages; by default as the model says, or 0: '
                   'none', lower_bound=0, upper_bound=1)


def asked_for(variables, model):
    """Returns `Averages` of variables, or None if neither the flag nor the model asks for them."""
    decay = FLAGS.moving_average_decay
    if decay is None:
        decay = getattr(model, 'MOVING_AVERAGE_DECAY', None)
    return Averages(variables, decay) if decay else None


class Averages:
    """Averages on the devices of their variables. Tables have none: the test reads their rows.

    The first steps use a smaller decay: in step t at most (1 + t) / (10 + t).
    """

    def __init__(self, variables, decay):
        """Makes the averages.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`.
          decay: float, the share of an average that a step keeps.
        """
        self._variables = [None if isinstance(variable, tables.Rows) else variable
                           for variable in variables]
        self._global_step = tf.train.get_global_step()
        self._averages = tf.train.ExponentialMovingAverage(decay, self._global_step)
        self._apply()  # makes the variables; what it returns is never run

    def _apply(self):
        with tf.device(self._global_step.device):
            return self._averages.apply([each for each in self._variables if each is not None])

    def follow(self, step):
        """Returns the tensor `step` once the averages have followed its update."""
        with tf.control_dependencies([step]):
            followed = self._apply()
        with tf.control_dependencies([followed]), tf.device(step.device):
            return tf.identity(step)

    @property
    def variables(self):
        """List of `tf.Variable`, the averages, one for each variable; None for a table."""
        return [None if variable is None else self._averages.average(variable)
                for variable in self._variables]

    def values(self):
        """Returns a list of tensors on the ps, one for each variable; None for a table."""
        return [None if average is None else average.read_value() for average in self.variables]
