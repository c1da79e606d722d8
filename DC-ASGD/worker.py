"""DC-ASGD: asynchronous SGD in which the ps corrects a late gradient for changes in the meantime.

    bak, x <- c                                                                 pull
    c <- c - learning_rate * (g + lambda * g * g * (c - bak)),   g = g(x)        push

lambda * g * g stands for the diagonal of the Hessian. With --variance=constant, lambda is lambda_0;
with --variance=adaptive, lambda_0 is divided by the root of MS, a running mean of g * g:

    MS <- mean_square_decay * MS + (1 - mean_square_decay) * g * g
    lambda <- lambda_0 / sqrt(MS + 1e-10)

What this worker keeps: nothing between steps. What it sends: the gradients of one batch. The ps
keeps MS and bak, the values that this worker read, and corrects in a critical section.

Shuxin Zheng, Qi Meng, Taifeng Wang, Wei Chen, Nenghai Yu, Zhi-Ming Ma, Tie-Yan Liu, "Asynchronous
Stochastic Gradient Descent with Delay Compensation", ICML 2017, arXiv 1609.08326.

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
from tfdist.scheme import exchange, recipe, seam, tables, transfer
from tfdist.start import console
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1)
flags.DEFINE_enum('variance', 'constant', ['constant', 'adaptive'],
                  'constant: lambda is lambda_0; adaptive: it is divided by the root of MS')
flags.DEFINE_float('lambda_0', None, 'strength of the correction; by default 0.04 with '
                   '--variance=constant, 2 with adaptive', lower_bound=0)
flags.DEFINE_float('mean_square_decay', 0.95, 'm, the share of MS that is kept', lower_bound=0,
                   upper_bound=1)
flags.DEFINE_boolean('first_square', False, 'let MS begin with the first square, not with 0')


class Scheme(seam.Seam):
    """Delay-compensated ASGD: pull, one gradient, a push that the ps corrects.

    Attributes:
      own: list of `tf.Variable` on the ps, this worker's running means of squares, MS, which the
        push updates; empty if the variance is constant.
    """

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        lambda_0 = hparams.lambda_0
        if lambda_0 is None:
            lambda_0 = {'constant': 0.04, 'adaptive': 2.}[hparams.variance]
        # The ps keeps what this worker read until the push comes: both are in one run.
        self.pull = exchange.pull(variables, global_step)
        step_read, backup = self.pull[0], self.pull[1:]
        self.pushed, self.computed = network.gradients_at(transfer.to_worker(backup))
        arrived = exchange.arrive(transfer.to_ps(self.pushed, variables), variables)
        lambdas = [lambda_0] * len(variables)
        rate = network.rate(hparams.learning_rate)
        if hparams.variance == 'adaptive':
            for i, (variable, gradient) in enumerate(zip(variables, arrived)):
                with tf.device(variable.device):
                    mean_square = tables.slot(
                        variable, f'mean_square_{task_index}/{variable.op.name}')
                    self.own.append(getattr(mean_square, 'table', mean_square))
                    lambdas[i] /= tf.sqrt(1e-10 + updated_mean_square(
                        mean_square, gradient, hparams.mean_square_decay, hparams.first_square))

        def push():
            updates = []
            for variable, gradient, lambda_, bak in zip(variables, arrived, lambdas, backup):
                with tf.device(variable.device):
                    now = variable.read_value()
                    correction = lambda_ * gradient * gradient * (now - bak)
                    step = network.recipe.decayed([gradient + correction], [variable], [now])[0]
                    updates.append(variable.assign_sub(recipe.scaled(rate, step),
                                                       read_value=False))
            with tf.control_dependencies(updates):
                return exchange.count(global_step, step_read)

        # The section begins when the gradients are there: nobody waits while they are computed.
        with tf.device(global_step.device), tf.control_dependencies(arrived):
            self.push = tf.CriticalSection(shared_name='center').execute(push)


def updated_mean_square(mean_square, gradient, decay, first_square):
    """Returns MS as updated by a gradient.

    Args:
      mean_square: `tf.Variable` or `tables.Rows`, MS.
      gradient: tensor of its shape.
      decay: float, m, the share of MS that is kept.
      first_square: bool, whether the first square becomes MS whole.
    """
    square = tf.square(gradient)
    before = mean_square.read_value()
    after = decay * before + (1 - decay) * square
    if first_square:
        after = tf.where(tf.equal(before, 0), square, after)
    with tf.control_dependencies([mean_square.assign(after, read_value=False)]):
        return tf.identity(after)


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
