"""DiLoCo with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart


class Plain(counterpart.Counterpart):
    """The inner optimizer, if the center goes to where the window ends and no further."""

    says = ('momentum moves the center: checked without it, with --outer_learning_rate=1 '
            '--outer_momentum=0')
    settings = {'outer_learning_rate': 1., 'outer_momentum': 0.}
