"""Towers: one of them, as plain TensorFlow has it; for `bash run.sh --check`."""

from tfdist.checking import counterpart
from tfdist.start.quiet import tf
import towers


class OneTower:
    """The step of one tower, as far as a check uses the scheme of a worker; see `seam.Seam`."""

    tables_stay_on_ps, hooks = False, []

    def __init__(self, network, global_step, hparams, task_index, num_workers):
        network.set_pace(global_step, hparams, 1)
        tower = towers.build_towers([network], ['/device:CPU:0'], towers.local_placement)
        self.train_op = towers.make_step(tower, global_step, hparams)

    @staticmethod
    def local_steps(hparams):
        """Returns 1."""
        return 1

    @staticmethod
    def batches(hparams):
        """Returns the number of batches in a step."""
        return hparams.accumulate


class Plain(counterpart.Counterpart):
    """The model's optimizer, with a step size that decays."""

    says = 'in each MODE the step of one tower is checked'

    def model(self, program):
        """See the base class."""
        return towers.model

    def scheme_class(self, program):
        """See the base class."""
        return OneTower

    def learning_rate(self, hparams):
        """See the base class."""
        return tf.train.exponential_decay(hparams.learning_rate, tf.train.get_global_step(),
                                          hparams.decay_steps, hparams.decay_rate)
