"""Parameter-Placement with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """SGD."""

    says = 'where --strategy stores the parameters is left out: both keep them in this process'
