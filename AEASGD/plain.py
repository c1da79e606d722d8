"""AEASGD with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """SGD on the replica, if the center does not pull at it."""

    says = 'the center pulls at the replica: checked without that, with --moving_rate=0'
    settings = {'moving_rate': 0.}

    def trained(self, scheme, hparams):
        """Returns the replica."""
        return scheme.replica
