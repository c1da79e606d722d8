"""Synchronous SGD with a learning rate for each worker.

    c <- c - mean over the workers i of (learning_rates[i] * g_i(c))

What this worker keeps: the step its parameters belong to. What it sends: the gradients of one
batch, times its own learning rate, in each step; then it waits until the step is complete.

No paper: for workers whose batches differ in size or worth. The rates are applied before the mean
is taken, so the ps itself has the learning rate 1 and plain SGD: Adam or Adagrad would undo the
scale.
"""

import sys
import time

from absl import flags
from tfdist import (barrier, building, checkpoints, chief, cluster, console, ending, evaluation,
                    exchange, liveness, models, report, sessions, training_flags, transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=2000, learning_rate=0.1)
flags.DEFINE_list('learning_rates', [], 'the step size of each worker, by commas; --learning_rate '
                  'for those that have none')


class Scheme(barrier.Synchronous):
    """Synchronous SGD with a rate of its own: pull, one gradient times the rate, push, barrier."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        gradients, self.computed = network.gradients_at(center)
        own_rate = learning_rate_of(task_index, num_workers, hparams)
        self.meet(tf.train.GradientDescentOptimizer(1.),
                  [own_rate * gradient for gradient in gradients], network, global_step, hparams,
                  task_index, num_workers)


def learning_rate_of(task_index, num_workers, hparams):
    """Returns this worker's learning rate, a float.

    Raises:
      SystemExit: if a rate is not a number that is 0 or more, or nobody's.
    """
    if len(hparams.learning_rates) > num_workers:
        sys.exit(f'--learning_rates has {len(hparams.learning_rates)} rates, and there are '
                 f'{num_workers} workers.')
    if task_index >= len(hparams.learning_rates):
        return hparams.learning_rate
    try:
        rate = float(hparams.learning_rates[task_index])
    except ValueError:
        rate = -1.
    if not 0 <= rate < float('inf'):
        sys.exit(f'--learning_rates: "{hparams.learning_rates[task_index]}" is no learning rate.')
    return rate


def main(_):
    resolver = cluster.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Without filters a session waits for all tasks of the cluster, and not only for the ps.
    config = sessions.config(device_filters=['/job:ps', worker_device])
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    # The variables go to the ps in turn; all other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        batches = model.train_batches(FLAGS.batch_size, local_steps, task_index, num_workers,
                                      FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.with_tables)
        test = evaluation.Test(model, network.at_variables, is_chief)
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers)

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, scheme.wait, test)
    duties = chief.Duties(resolver, test)
    hooks = scheme.hooks + [past_the_hooks, duties, ending.SayDone(resolver)]
    liveness.watch(resolver)
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief)

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with sessions.failures_of_ps():
                while time.time() < until and progress.goes_on():
                    progress.add(past_the_hooks.run(), local_steps)
                step_context.run_with_hooks(global_step)
                duties.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        duties.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(main)
