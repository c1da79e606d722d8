"""AEASGD: asynchronous elastic averaging. Replica and center attract each other, as by a spring.

With t counting this worker's local steps, for each t:

    y <- x
    if t mod communication_window = 0:
        E <- moving_rate * (y - c);  x <- x - E;  c <- c + E                    exchange
    x <- x - learning_rate * g(y)

What this worker keeps: its replica x, which the center never overwrites. What travels, once per
window: c to the worker, E to the ps. The gradient is taken at the value before the exchange, so the
worker computes while c is on its way.

Sixin Zhang, Anna Choromanska, Yann LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015,
arXiv 1412.6651, algorithm 1.

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
from tfdist.scheme import exchange, seam, transfer
from tfdist.start import console
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=500, learning_rate=0.1, communication_window=10)
flags.DEFINE_float('moving_rate', None, 'alpha, the share of the distance that each side moves; '
                   'by default 0.9 / number of workers', lower_bound=0)


class Scheme(seam.Seam):
    """Elastic averaging: an exchange and a window of local steps on a replica.

    Attributes:
      replica: list of `tf.Variable` on this worker, x.
    """

    tables_stay_on_ps = False  # a replica is whole

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        moving_rate = hparams.moving_rate
        if moving_rate is None:
            moving_rate = 0.9 / num_workers
        with tf.device(self.worker_device(task_index)):
            self.replica = [
                exchange.own_variable(variable.read_value(), f'replica/{variable.op.name}')
                for variable in variables]
            rule = network.local_rule(hparams.learning_rate)
        self.own = self.replica + rule.own
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        y = [variable.read_value() for variable in self.replica]
        self.pushed = [moving_rate * (own - other) for own, other in zip(y, center)]
        rule.pulled(step_read)
        gradients, of_batch = network.gradients_at(y)
        x = rule.step(exchange.add(y, self.pushed, -1), gradients)
        figures = [of_batch]
        for _ in range(hparams.communication_window - 1):
            gradients, of_batch = network.gradients_at(x)
            x = rule.step(x, gradients)
            figures.append(of_batch)
        with tf.control_dependencies([exchange.assign(self.replica, x), rule.keep()]):
            self.computed = exchange.mean(figures)
        push = exchange.add_to(variables, transfer.to_ps(self.pushed, variables))
        with tf.control_dependencies([push]):
            self.push = exchange.count(global_step, step_read)


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
