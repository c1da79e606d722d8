"""AGN with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """The local rule, if a window is one step: a longer one ends with the mean of its steps."""

    says = "a push is the mean of a window's steps: checked with --communication_window=1"
    settings = {'communication_window': 1}
