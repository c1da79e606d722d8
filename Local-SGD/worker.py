"""Local SGD: the workers train by themselves for a window, and then average their models.

    x_i <- c                                                                    pull
    communication_window times:  x_i <- x_i - learning_rate * g(x_i)
    barrier
    c <- mean over the workers of the x_i                                       push

What this worker keeps: nothing between windows but the step its parameters belong to. What it
sends, once per window: c - x_i, how far the window took it. The mean of the models is the center
less the mean of these, so that the accumulators of synchronous SGD serve.

With --local_sgd_from_step, a window is a single local step until then: post-local SGD.

Sebastian U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv 1805.09767.
Tao Lin, Sebastian U. Stich, Kumar Kshitij Patel, Martin Jaggi, "Don't Use Large Mini-Batches, Use
Local SGD", ICLR 2020, arXiv 1808.07217.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import compression, exchange, transfer
from tfdist.start import console
from tfdist.synchronous import barrier
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=300, learning_rate=0.1, communication_window=10)
flags.DEFINE_integer('local_sgd_from_step', 0, 'the step from which on a step is a window of local '
                     'steps; before it, a step is a single local step', lower_bound=0)
compression.define()


class Scheme(barrier.Synchronous):
    """Local SGD: pull, a window of local steps, push, barrier, mean of the models.

    Attributes:
      others: list of one `seam.Seam`, the runs of the steps before --local_sgd_from_step: a window
        that ends with its first local step; empty if there are none.
    """

    _has_told = False

    def local_steps_per_count(self, hparams):
        """See `seam.Seam`."""
        begin, whole = from_step(hparams), super().local_steps_per_count(hparams)
        if not begin:
            return whole
        single = barrier.pushes_per_step(hparams, self.num_workers)
        return lambda step: whole * step - (whole - single) * tf.minimum(step, float(begin))

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        with tf.device(self.worker_device(task_index)):
            rule = network.local_rule(hparams.learning_rate)
        self.own = rule.own
        self.pull = exchange.pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        x, figures = center, []
        rule.pulled(self.pull[0], barrier.pushes_per_step(hparams, num_workers))

        def push():
            with tf.control_dependencies([rule.keep()]):
                self.computed = exchange.mean(figures)
            # c - 1 * mean(c - x_i) = mean(x_i)
            self.meet(tf.train.GradientDescentOptimizer(1.), exchange.add(center, x, -1), network,
                      global_step, hparams, task_index, num_workers)

        for _ in range(hparams.communication_window):
            gradients, of_batch = network.gradients_at(x)
            x = rule.step(x, gradients)
            figures.append(of_batch)
            if from_step(hparams) and not self.others:
                push()
                self.others = [self.so_far(1)]
        push()
        self._from_step, self._window = from_step(hparams), len(figures)

    def at(self, step):
        """See `seam.Seam`; the chief says when the windows begin."""
        if step < self._from_step:
            return self.others[0]
        if self._from_step and not self.task_index and not self._has_told:
            console.say('worker 0', f'from step {step} on, a step is {self._window} local steps of '
                        'each worker')
            self._has_told = True
        return self


def from_step(hparams):
    """Returns the step with which windows begin, an int; hyperparameters without it: 0."""
    return getattr(hparams, 'local_sgd_from_step', 0)


def main(_):
    resolver = membership.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Distributed: a session waits for all tasks that it sees. These see the ps and this worker.
    config = servers.config(device_filters=['/job:ps', worker_device])
    # Distributed: the ps and this worker reach each other through their servers.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    # Distributed: the variables go to the ps in turn, for all workers; other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        # Distributed: each worker trains on its own shard of the examples.
        batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS), task_index,
                                      num_workers, FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        test = evaluation.Test(model, network.at_variables, is_chief, network.tested_values)
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers)

    trainer = sessions.Trainer.of(scheme, test)
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: the ps end when every worker has said that it is done.
    hooks = scheme.hooks + [trainer, chief_role, shutdown.SayDone(resolver)]
    # Distributed: no silent wait for a ps that does not answer.
    liveness.watch(resolver, over=test.is_over)
    # Distributed: the chief makes or restores the parameters; the others wait for these.
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config, chief_role), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief,
                                   model)
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, local_steps, chief_role.now_and_then)
        progress.done()
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(main)
