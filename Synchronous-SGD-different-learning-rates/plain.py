"""Different learning rates, with one worker, as plain TensorFlow has it: for `run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """SGD."""

    says = 'there is one worker: checked with --learning_rate, without --learning_rates'
    settings = {'learning_rates': []}
