"""DiLoCo: windows of local steps by AdamW, and momentum on the ps between them.

    x_i <- c                                                                    pull
    communication_window times:  x_i <- a step of the inner optimizer from x_i
    barrier
    G <- c - mean over the workers of the x_i                                   push
    u <- outer_momentum * u + G
    c <- c - outer_learning_rate * (G + outer_momentum * u)

That is Nesterov's form; the heavy ball has c <- c - outer_learning_rate * u in the last line, and
SlowMo, see slowmo.py, the same with u in units of gradients. What
this worker keeps from window to window: the inner optimizer's moments and its count of local steps,
and not the parameters. What it sends, once per window: c - x_i, as in local SGD. The velocity u
stays on the ps. Local SGD, SlowMo, BMUF and Lookahead are settings of the flags: see README.md.
With --fragments the center is exchanged in parts, while the workers train: see streaming.py.

Arthur Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv
2311.08105, algorithm 1.

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
from tfdist.scheme import compression, exchange, local_rules, transfer
from tfdist.start import console
from tfdist.synchronous import barrier
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf
import slowmo
import streaming

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=200, learning_rate=0.01, communication_window=10,
                      of_sgd=False)
flags.DEFINE_enum('inner', 'adamw', ['adamw', 'sgd'], 'the inner optimizer, which makes the local '
                  'steps; a model with a local_rule has its own')
flags.DEFINE_float('inner_weight_decay', 0.01, 'weight decay in the local steps of adamw',
                   lower_bound=0)
flags.DEFINE_enum('outer', 'nesterov', ['nesterov', 'heavy_ball', 'slowmo'], 'the form of the '
                  'momentum with which the ps moves the center')
flags.DEFINE_float('outer_learning_rate', 0.7, 'nu, step size of the center', lower_bound=0)
flags.DEFINE_float('outer_momentum', 0.9, 'mu, share of the velocity of the center that is left '
                   'in the next step', lower_bound=0)
compression.define()
streaming.define()


class Scheme(barrier.Synchronous):
    """DiLoCo: pull, a window of the inner optimizer, push, barrier, a step of the outer one.

    Attributes:
      replica: list of `tf.Variable`, the worker's own values of a center in fragments.
    """

    tables_stay_on_ps = False  # the velocity moves every row, also those that no window reads
    replica = ()

    @staticmethod
    def local_steps(hparams):
        return streaming.local_steps(hparams)

    def at(self, step):
        return [self, *self.others][step % (1 + len(self.others))]

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        with tf.device(self.worker_device(task_index)):
            if hparams.inner == 'adamw':
                rule = network.local_rule(hparams.learning_rate, local_rules.AdamW,
                                          weight_decay=hparams.inner_weight_decay)
            else:
                rule = network.local_rule(hparams.learning_rate)
        outer = outer_optimizer(network, hparams)
        if streaming.is_asked_for(hparams):
            streaming.make(self, rule, outer, global_step, hparams)
            return
        self.own = rule.own
        self.pull = exchange.pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        x, figures = center, []
        rule.pulled(self.pull[0], barrier.pushes_per_step(hparams, num_workers))
        for _ in range(hparams.communication_window):
            gradients, of_batch = network.gradients_at(x)
            x = rule.step(x, gradients)
            figures.append(of_batch)
        self.computed = after(rule.keep(), figures)
        self.meet(outer, exchange.add(center, x, -1), network, global_step, hparams, task_index,
                  num_workers)
        # In training the push comes first: of a window whose push fails the moments know nothing.
        with tf.control_dependencies([self.barrier.push['dropped']]):
            kept = rule.keep()
        self.finish = dict(after(kept, figures), **self.finish)


def outer_optimizer(network, hparams):
    """Returns the `tf.train.Optimizer` of the center, which gets G in the place of a gradient."""
    rate, momentum = hparams.outer_learning_rate, hparams.outer_momentum
    if hparams.outer == 'slowmo':
        return slowmo.SlowMo(rate, momentum, network.rate(hparams.learning_rate))
    # The point looked ahead to is what the workers pull: so this is the rule above.
    return tf.train.MomentumOptimizer(rate, momentum, use_nesterov=hparams.outer == 'nesterov')


def after(op, figures):
    """Returns the means of figures, see `exchange.mean`, once an op has run."""
    with tf.control_dependencies([op]):
        return exchange.mean(figures)


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
