"""FedAvg with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

import types

from tfdist.checking import counterpart
from tfdist.start.quiet import tf

_STEPS = 5  # of the client in a round


class Plain(counterpart.Counterpart):
    """The model's rule for local steps, on the batches of the one client that there is."""

    says = ('tickets and parts are left out: one client has all examples, and each of its windows '
            f'of {_STEPS} local steps is a round, with --server_optimizer=sgd')
    settings = {'server_optimizer': 'sgd', 'server_learning_rate': 1., 'buffer': 0}

    def scheme_class(self, program):
        """See the base class: the scheme, which opens and completes a round in each run."""
        class Alone(program.Scheme):
            local_steps = staticmethod(lambda hparams: _STEPS)
            worker_device = staticmethod(lambda task_index: None)

            def __init__(self, *arguments):
                super().__init__(*arguments, types.SimpleNamespace(
                    most_steps=_STEPS, fewest_steps=_STEPS,
                    steps=tf.constant(_STEPS, tf.int64),
                    examples=tf.constant(1, tf.int64), ticket=None))

            def _make_push(self, network, global_step, hparams):
                stamp = self.clock.read()
                ticket = tf.stack([stamp, 0, 0])
                with tf.control_dependencies([self.admissions.open(stamp, 1),
                                              self.admissions.hold(ticket)]):
                    self.turn.ticket = types.SimpleNamespace(read_value=lambda: ticket)
                    super()._make_push(network, global_step, hparams)

            def _make_complete(self, network, global_step, hparams):
                super()._make_complete(network, global_step, hparams)
                with tf.control_dependencies([self.push['global_step']]):
                    self.finish = dict(self.push, global_step=tf.identity(self.complete))

        return Alone
