"""Local SGD: the workers train by themselves for a window, and then average their models.

    x_i <- c                                                                    pull
    communication_window times:  x_i <- x_i - learning_rate * g(x_i)
    barrier
    c <- mean over the workers of the x_i                                       push

What this worker keeps: nothing between windows but the step its parameters belong to. What it
sends, once in a window: how far the window took it. The mean of the models is the center less the
mean of these ways, so that the accumulators of synchronous SGD serve.

Sebastian U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv 1805.09767.
"""

import time

from absl import flags
from tfdist import (barrier, building, checkpoints, chief, cluster, console, ending, evaluation,
                    exchange, liveness, models, report, sessions, training_flags, transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=300, learning_rate=0.1, communication_window=10)


class Scheme(barrier.Synchronous):
    """Local SGD: pull, a window of local steps, average of the models, barrier."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        with tf.device(self.worker_device(task_index)):
            rule = network.local_rule(hparams.learning_rate)
        self.own = rule.own
        self.pull = exchange.pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        x, figures = center, []
        for _ in range(hparams.communication_window):
            gradients, of_batch = network.gradients_at(x)
            x = rule.step(x, gradients)
            figures.append(of_batch)
        with tf.control_dependencies([rule.keep()]):
            self.computed = exchange.mean(figures)
        # c - 1 * mean(c - x_i) = mean(x_i)
        self.meet(tf.train.GradientDescentOptimizer(1.), exchange.add(center, x, -1), network,
                  global_step, hparams, task_index, num_workers)


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
