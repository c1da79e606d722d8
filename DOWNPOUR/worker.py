"""DOWNPOUR: a window of plain SGD on the worker, Adagrad on the ps for the sum of its gradients.

With t counting this worker's local steps, for each t:

    if t mod n_fetch = 0:        x <- c                                         pull
    a <- a + g(x);  x <- x - learning_rate * g(x)
    if (t + 1) mod n_push = 0:   G <- G + a^2;  c <- c - server_learning_rate * a / sqrt(G)
                                 a <- 0                                         push

What this worker keeps: nothing beyond the least common multiple of n_fetch and n_push local steps,
which are one run. What it sends, every n_push local steps: the sum of the gradients since the last
push. The ps keeps c and G, Adagrad's sum of squares.

Jeffrey Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1 and algorithm
1.1 of its appendix.
"""

import time

from absl import flags
import numpy as np
from tfdist import (building, checkpoints, chief, cluster, console, ending, evaluation, exchange,
                    liveness, models, report, seam, sessions, tables, training_flags, transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=500, learning_rate=0.1)
flags.DEFINE_integer('n_fetch', 10, 'local steps between two pulls', lower_bound=1)
flags.DEFINE_integer('n_push', 10, 'local steps between two pushes', lower_bound=1)
flags.DEFINE_float('server_learning_rate', 0.05, "step size of the ps's Adagrad", lower_bound=0)
flags.DEFINE_float('initial_accumulator_value', 0.1, 'where G starts; above 0', lower_bound=1e-30)


class Scheme(seam.Seam):
    """DOWNPOUR: pull every n_fetch local steps, push to Adagrad every n_push.

    One run takes as many local steps as there are until a pull comes right after a push.

    Attributes:
      pulls: list of lists of tensors, of each pull in a run. `pull` is the first of them; run by
        itself, it reads what is to be fed to the others, too.
      pushes: list of triples, of each push in a run: `pushed`; the same when it is on the ps and
        the pushes before it are done, to be fed where one push is run by itself; and `push`. The
        attributes of these names are all of them together; 'staleness' is a vector.
    """

    @staticmethod
    def local_steps(hparams):
        return int(np.lcm(hparams.n_fetch, hparams.n_push))

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        with tf.device(self.worker_device(task_index)):
            rule = network.local_rule(hparams.learning_rate)
        self.own = rule.own
        adagrad = tf.train.AdagradOptimizer(hparams.server_learning_rate,
                                            hparams.initial_accumulator_value)
        zeros = exchange.zeros_like(variables)
        x, a, last_step, figures = zeros, zeros, [], []
        self.pulls, self.pushes = [], []
        for t in range(self.local_steps(hparams)):
            if t % hparams.n_fetch == 0:
                # Not before the worker has come so far, and not without what it pushed.
                with tf.control_dependencies(x + last_step):
                    self.pulls.append(exchange.pull(variables, global_step))
                step_read, x = self.pulls[-1][0], transfer.to_worker(self.pulls[-1][1:])
                pushes_before = len(self.pushes)
            gradients, of_batch = network.gradients_at(x)
            a = exchange.add(a, gradients)
            x = rule.step(x, gradients)
            if (t + 1) % hparams.n_push == 0:
                arrived = transfer.to_ps(a, variables)
                with tf.control_dependencies(last_step):
                    arrived = exchange.arrive(arrived, variables)
                with tf.device(global_step.device):  # that is where the step size is wanted
                    push = adagrad.apply_gradients(tables.of_optimizer(arrived, variables))
                with tf.control_dependencies([push]):
                    push = exchange.count(global_step, step_read)
                push['staleness'] -= len(self.pushes) - pushes_before  # this worker's own
                self.pushes.append((a, arrived, push))
                last_step = [push['global_step']]
                a = zeros
            figures.append(of_batch)
        self.pull = self.pulls[0]
        with tf.control_dependencies([rule.keep()]):
            self.computed = exchange.mean(figures)
        self.pushed = [tensor for pushed, _, _ in self.pushes for tensor in pushed]
        self.push = {'global_step': last_step[0],
                     'staleness': tf.stack([push['staleness'] for _, _, push in self.pushes])}


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
