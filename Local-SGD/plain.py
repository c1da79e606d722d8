"""Local-SGD with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from absl import flags
from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """The model's rule for local steps, in windows from the first step on."""

    settings = {'local_sgd_from_step': 0}

    @property
    def says(self):
        """See the base class."""
        if flags.FLAGS.local_sgd_from_step:
            return 'checked with --local_sgd_from_step=0: in windows from the first step on'
        return None
