"""AEAMSGD: asynchronous elastic averaging with Nesterov's momentum on each worker.

With t counting this worker's local steps, for each t:

    y <- x
    if t mod communication_window = 0:
        E <- moving_rate * (y - c);  x <- x - E;  c <- c + E                    exchange
    u <- momentum * u - learning_rate * g(y + momentum * u);  x <- x + u

What this worker keeps: its replica x, which the center never overwrites, and its velocity u. What
travels, once in a window: c to the worker, E to the ps. The gradient does not depend on the
exchange, so the worker computes while c is on its way.

Sixin Zhang, Anna Choromanska, Yann LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015,
arXiv 1412.6651, algorithm 2.
"""

import time

from absl import flags
from tfdist import (building, checkpoints, chief, cluster, console, ending, evaluation, exchange,
                    liveness, models, report, seam, sessions, training_flags, transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=500, learning_rate=0.02, communication_window=10)
flags.DEFINE_float('moving_rate', None, 'alpha, the share of the distance that each side moves; '
                   'by default 0.9 / number of workers', lower_bound=0)
flags.DEFINE_float('momentum', 0.9, 'delta, the share of the velocity that is kept', lower_bound=0,
                   upper_bound=1)


class Scheme(seam.Seam):
    """Elastic averaging with momentum: an exchange and a window of local steps on a replica.

    Attributes:
      replica: list of `tf.Variable` on this worker, x.
      velocity: list of `tf.Variable` on this worker, u.
    """

    with_tables = False  # a replica is whole

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        moving_rate = hparams.moving_rate
        if moving_rate is None:
            moving_rate = 0.9 / num_workers
        with tf.device(self.worker_device(task_index)):
            self.replica = [
                exchange.own_variable(variable.read_value(), f'replica/{variable.op.name}')
                for variable in variables]
            self.velocity = [
                exchange.own_variable(zeros, f'velocity/{variable.op.name}')
                for zeros, variable in zip(exchange.zeros_like(variables), variables)]
        self.own = self.replica + self.velocity
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        x = y = [variable.read_value() for variable in self.replica]
        u = [variable.read_value() for variable in self.velocity]
        self.pushed = [moving_rate * (own - other) for own, other in zip(y, center)]
        x = exchange.add(x, self.pushed, -1)
        figures = []
        for _ in range(hparams.communication_window):
            # Nesterov's look-ahead: the gradient where the velocity alone would lead.
            gradients, of_batch = network.gradients_at(exchange.add(y, u, hparams.momentum))
            u = [hparams.momentum * own - hparams.learning_rate * gradient
                 for own, gradient in zip(u, gradients)]
            x = y = exchange.add(x, u)
            figures.append(of_batch)
        with tf.control_dependencies([exchange.assign(self.own, x + u)]):
            self.computed = exchange.mean(figures)
        push = exchange.add_to(variables, transfer.to_ps(self.pushed, variables))
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
