"""DOWNPOUR: a window of plain SGD on the worker, Adagrad on the ps for the sum of its gradients.

With t counting this worker's local steps, for each t:

    if t mod n_fetch = 0:        x <- c                                         pull
    a <- a + g(x);  x <- x - learning_rate * g(x)
    if (t + 1) mod n_push = 0:   G <- G + a^2;  c <- c - server_learning_rate * a / sqrt(G)
                                 a <- 0                                         push

What this worker keeps: nothing beyond a run, the least common multiple of n_fetch and n_push local
steps. What it sends, every n_push local steps: the sum of the gradients since the last push. The ps
keeps c and G, Adagrad's sum of squares.

Jeffrey Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1 and algorithm
1.1 of its appendix.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

from absl import flags
import numpy as np
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, tables, transfer
from tfdist.start import console
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=500, learning_rate=0.1)
flags.DEFINE_integer('n_fetch', 10, 'local steps between two pulls', lower_bound=1)
flags.DEFINE_integer('n_push', 10, 'local steps between two pushes', lower_bound=1)
flags.DEFINE_float('server_learning_rate', 0.05, "step size of the ps's Adagrad", lower_bound=0)
flags.DEFINE_float('initial_accumulator_value', 0.1, 'where G starts; above 0', lower_bound=1e-30)


class Scheme(seam.Seam):
    """DOWNPOUR: pull every n_fetch local steps, push to Adagrad every n_push.

    A run ends with the first push that a pull follows directly. Among its figures, 'staleness' is a
    vector with an entry for each push.
    """

    @staticmethod
    def local_steps(hparams):
        return int(np.lcm(hparams.n_fetch, hparams.n_push))

    def local_steps_per_count(self, hparams):
        return hparams.n_push

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        with tf.device(self.worker_device(task_index)):
            rule = network.local_rule(hparams.learning_rate)
        self.own = rule.own
        adagrad = network.rule_of_scheme(
            tf.train.AdagradOptimizer, hparams.server_learning_rate, often=True,
            initial_accumulator_value=hparams.initial_accumulator_value)
        zeros = exchange.zeros_like(variables)
        x, a, last_step, figures = zeros, zeros, [], []
        self.pulls, self.pushes = [], []
        for t in range(self.local_steps(hparams)):
            if t % hparams.n_fetch == 0:
                # Not before the worker has come so far, and not without what it pushed.
                with tf.control_dependencies(x + last_step):
                    self.pulls.append(exchange.pull(variables, global_step))
                step_read, x = self.pulls[-1][0], transfer.to_worker(self.pulls[-1][1:])
                rule.pulled(step_read)
                pushes_before = len(self.pushes)
            gradients, of_batch = network.gradients_at(x)
            a = exchange.add(a, gradients)
            x = rule.step(x, gradients)
            if (t + 1) % hparams.n_push == 0:
                arrived = transfer.to_ps(a, variables)
                with tf.control_dependencies(last_step):
                    arrived = exchange.arrive(arrived, variables)
                # A schedule counts the pushes before. By copies: who feeds what arrived has nothing
                # run that makes it.
                before = exchange.arrive(arrived, variables) if network.recipe.schedule else []
                # That is where the step size is wanted.
                with tf.device(global_step.device), tf.control_dependencies(before):
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
