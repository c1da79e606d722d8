"""Moving averages of the parameters, kept with the center: the test uses them in its place."""

from absl import flags
from tfdist import checkpoints, models, tables
from tfdist.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_float('moving_average_decay', None, 'what a moving average of the parameters keeps in '
                   'a step; the test uses the averages; by default as the model says, or 0: none',
                   lower_bound=0, upper_bound=1)


def asked_for(variables):
    """Returns `Averages` of variables, or None if neither the flag nor the model wants them."""
    decay = FLAGS.moving_average_decay
    if decay is None:
        decay = models.suggested('MOVING_AVERAGE_DECAY')
    return Averages(variables, decay) if decay else None


class Averages:
    """Averages that follow their variables, each where it is. Tables have none: the test has rows.

    In the first steps they follow faster: in step t they keep (1 + t) / (10 + t), if that is less.
    """

    def __init__(self, variables, decay):
        """Makes the averages.

        Args:
          variables: list of `tf.Variable` and `tables.Rows`.
          decay: float, what an average keeps in a step.
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
        """Returns the tensor `step`, when the averages have followed what it stands for."""
        with tf.control_dependencies([step]):
            followed = self._apply()
        with tf.control_dependencies([followed]), tf.device(step.device):
            return tf.identity(step)

    def values(self):
        """Returns a list of tensors, where they are, one for each variable; None for a table."""
        return [None if variable is None else self._averages.average(variable).read_value()
                for variable in self._variables]


class Saver(checkpoints.Saver):
    """A `checkpoints.Saver` that restores averages in the place of the variables, where there are.

    So the variables have what the chief's test has in their place.
    """

    def restore(self, sess, save_path):
        """See `checkpoints.Saver`."""
        super().restore(sess, save_path)
        reader = tf.train.load_checkpoint(save_path)
        for variable in tf.trainable_variables():
            part = variable._get_save_slice_info()  # in a checkpoint the parts of one are together
            name = f'{part.full_name if part else variable.op.name}/ExponentialMovingAverage'
            if reader.has_tensor(name):
                value = reader.get_tensor(name)
                if part:
                    value = value[tuple(slice(begin, begin + size) for begin, size in
                                        zip(part.var_offset, part.var_shape))]
                variable.load(value, sess)
