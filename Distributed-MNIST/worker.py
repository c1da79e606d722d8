"""The practical program: Adam, synchronous or not, over several parameter servers, to be copied.

    g_i <- gradient of a batch of worker i at c
    c <- Adam(c, g_i)             --nois_sync: with each gradient, as it comes (like HogWild)
    c <- Adam(c, mean of g_i)     --is_sync: with all workers' gradients at once

What this worker keeps: nothing between steps. What travels: the parameters and a gradient in each
step. Adam's moments stay on the ps, with the parameters that they belong to. Worker 0 saves
checkpoints; evaluator.py, which is not in the cluster, tests them and exports the last.

Diederik P. Kingma, Jimmy Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
"""

import time

from absl import flags
from tfdist import (barrier, building, checkpoints, chief, cluster, console, ending, evaluation,
                    exchange, liveness, models, optimizers, report, sessions, training_flags,
                    transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=2000, learning_rate=0.001, of_sgd=False)
flags.DEFINE_boolean('is_sync', False, 'take each step together, with the mean of all gradients')


class Scheme(barrier.Synchronous):
    """Adam on a center that lives on the ps, synchronous or asynchronous."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        gradients, self.computed = network.gradients_at(center)
        adam = network.optimizer(hparams.learning_rate, optimizers.LazyAdam)
        if hparams.is_sync:
            self.meet(adam, gradients, network, global_step, hparams, task_index, num_workers)
        else:
            self.pushed = gradients
            push = exchange.apply(adam, gradients, variables, global_step)
            with tf.control_dependencies([push]):
                self.push = exchange.count(global_step, step_read)


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
