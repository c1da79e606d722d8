"""DiLoCo with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """The inner optimizer, if the center goes to where the window ends and no further."""

    says = ('momentum moves the center, and a delay the workers: checked without both, with '
            '--outer_learning_rate=1 --outer_momentum=0 --fragment_delay=0 --fragment_alpha=0')
    settings = {'outer_learning_rate': 1., 'outer_momentum': 0., 'fragment_delay': 0,
                'fragment_alpha': 0.}

    def trained(self, scheme, hparams):
        """Returns the worker's own values of all fragments, if the center is cut into some."""
        return scheme.replica
