"""In-Graph-Replication with one replica, as plain TensorFlow has it: for `bash run.sh --check`."""

from tfdist.checking import counterpart
import train


class OneReplica:
    """The scheme of one replica, as far as a check uses the scheme of a worker; see `seam.Seam`."""

    tables_stay_on_ps, hooks = False, []

    def __init__(self, network, global_step, hparams, task_index, num_workers):
        replicas = train.Scheme([network], ['/device:CPU:0'], global_step, hparams)
        self.train_op, = replicas.train_ops

    @staticmethod
    def local_steps(hparams):
        """Returns 1."""
        return 1

    @staticmethod
    def batches(hparams):
        """Returns the number of batches in a step."""
        return hparams.accumulate


class Plain(counterpart.Counterpart):
    """The model's optimizer."""

    def scheme_class(self, program):
        """See the base class."""
        return OneReplica
