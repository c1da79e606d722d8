"""A work queue: a worker that is free takes a ticket, a piece of the data. HogWild underneath.

    take a ticket: the epoch, and a piece of its examples
    for each batch of it:  c <- c - learning_rate * g(c as it was when this worker read it)
    say that the ticket is finished, and take the next one

What this worker keeps: nothing between steps but its ticket. What it sends: the gradients of each
batch, and word when a ticket is finished. Slow workers take fewer tickets, so that all examples
count alike; another worker takes over the tickets of one that died. See tickets.py.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

import math
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, transfer
from tfdist.start import console
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf
import tickets

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1)
flags.DEFINE_boolean('use_locking', False, 'let one worker at a time write to a variable')
flags.DEFINE_integer('batches_per_ticket', 5, 'local steps for one ticket', lower_bound=1)


class Scheme(seam.Seam):
    """HogWild!: one pull and one push in each local step, and no coordination."""

    not_recorded = 'which examples a worker gets depends on when it asks'

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        optimizer = network.optimizer(hparams.learning_rate, use_locking=hparams.use_locking)
        self.pushed, self.computed = network.gradients_at(center)
        push = exchange.apply(optimizer, self.pushed, variables, global_step)
        with tf.control_dependencies([push]):
            self.push = exchange.count(global_step, step_read)


def take_and_train(_):
    if not hasattr(model, 'num_examples'):
        sys.exit(f'The model {model.name} reads shards, and not tickets: it has no num_examples().')
    resolver = membership.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
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
        # Distributed: what to train on comes from the queue on a ps, a ticket at a time.
        per_ticket = FLAGS.batches_per_ticket * Scheme.batches(FLAGS)
        queue = tickets.Tickets(math.ceil(model.num_examples() / (FLAGS.batch_size * per_ticket)),
                                FLAGS.batches_per_ticket, global_step.device)
        batches, queue.make_ready = model.train_batches(
            FLAGS.batch_size, Scheme.batches(FLAGS), queue.mine, per_ticket, FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        test = evaluation.Test(model, network.at_variables, is_chief, network.tested_values)
        scheme = Scheme(network, global_step, FLAGS, task_index,
                        cluster_spec.num_tasks('worker'))

    trainer = sessions.Trainer.of(scheme, test, wait=queue.wait)
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: the ps end when every worker has said that it is done.
    hooks = scheme.hooks + [queue, trainer, chief_role, shutdown.SayDone(resolver)]
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
        progress.say(f'took {queue.taken} tickets, the last one in epoch {queue.epoch}')
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(take_and_train)
