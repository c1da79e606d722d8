"""SAGN with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart
from tfdist.start.quiet import tf


class Plain(counterpart.Counterpart):
    """SGD, if a window is one step: a longer one ends with the mean of its gradients."""

    says = "a push is the mean of a window's gradients: checked with --communication_window=1"
    settings = {'communication_window': 1}

    def optimizer(self, model, rate, hparams, asked):
        """Returns the optimizer of the ps; the model's local rule only counts in longer windows."""
        return tf.train.GradientDescentOptimizer(rate)
