"""DOWNPOUR with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart
from tfdist.start.quiet import tf


class Plain(counterpart.Counterpart):
    """Adagrad, if each local step is pushed and followed by a pull."""

    says = 'the ps has Adagrad: checked with --n_fetch=1 and --n_push=1'
    settings = {'n_fetch': 1, 'n_push': 1}

    def learning_rate(self, hparams):
        """See the base class."""
        return hparams.server_learning_rate

    def optimizer(self, model, rate, hparams, asked):
        """Returns the optimizer of the ps: no local step lasts longer than until the next pull."""
        return tf.train.AdagradOptimizer(rate, hparams.initial_accumulator_value)
