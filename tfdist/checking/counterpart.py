"""What one worker of a scheme is in plain TensorFlow: what a folder's `plain.py` may say.

With one worker most schemes are the model's own optimizer, its rule for local steps, or plain SGD,
whichever they ask the model for. Such a folder has no `plain.py`.
"""

from tfdist.checking import rules
from tfdist.model import building
from tfdist.scheme import local_rules
from tfdist.start.quiet import tf


class Counterpart:
    """The base class of the class `Plain` in a folder's `plain.py`.

    Attributes:
      says: string, what is checked, if it is not the scheme as the flags make it; or None.
      settings: dict of values by flag with which the scheme is checked.
    """

    says = None
    settings = {}

    def model(self, program):
        """Returns the `model_file.Model` that `program` trains, a module of the folder."""
        return program.model

    def scheme_class(self, program):
        """Returns the class of the scheme: a `seam.Seam`, or one that has as much as is used here.

        That is its constructor, `local_steps`, `batches`, `tables_stay_on_ps`, `train_op`, `hooks`.
        """
        # Everything is in one process, so there are no devices of workers.
        return type('Scheme', (program.Scheme,), {'worker_device': staticmethod(lambda _: None)})

    def train_batches(self, model, hparams, count, num_steps):
        """Returns the batches of a run, as in `model_file`; the check takes `num_steps` in all."""
        del num_steps
        return model.train_batches(hparams.batch_size, count, 0, 1, hparams.seed)

    def trained(self, scheme, hparams):
        """Returns what a scheme trains, a list of tensors for the network's variables.

        It is empty for most schemes: these train the variables themselves.
        """
        del scheme, hparams
        return []

    def learning_rate(self, hparams):
        """Returns the step size, a float or a scalar tensor, without the model's schedule."""
        return hparams.learning_rate

    def optimizer(self, model, rate, hparams, asked):
        """Returns the `tf.train.Optimizer` to compare the scheme with.

        Args:
          model: `model_file.Model`.
          rate: float or scalar tensor, the learning rate.
          hparams: object with the values of all flags as attributes.
          asked: dict, see `Asked`.
        """
        if 'local_rule' in asked:
            otherwise, kwargs = asked['local_rule']
            return rules.as_optimizer(model.local_rule(rate) or otherwise(rate, **kwargs), rate)
        if 'optimizer' in asked:
            otherwise, kwargs = asked['optimizer']
            return model.optimizer(rate) or otherwise(rate, **kwargs)
        return tf.train.GradientDescentOptimizer(rate)


class Asked(building.Network):
    """A network that notes what a scheme asks it for.

    Attributes:
      asked: dict; has 'local_rule' if the scheme asks for the model's rule, and 'optimizer' if it
        asks for an optimizer: a class, and its arguments by name, for a model that has none.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = {}

    def local_rule(self, learning_rate, otherwise=local_rules.Sgd, **kwargs):
        """See `building.Network`."""
        self.asked['local_rule'] = otherwise, kwargs
        return super().local_rule(learning_rate, otherwise, **kwargs)

    def optimizer(self, learning_rate, otherwise=tf.train.GradientDescentOptimizer, clips=False,
                  **kwargs):
        """See `building.Network`."""
        self.asked['optimizer'] = otherwise, kwargs
        return super().optimizer(learning_rate, otherwise, clips, **kwargs)
