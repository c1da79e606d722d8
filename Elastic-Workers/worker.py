"""Elastic workers: they join a run that nobody told of them, and leave it. HogWild underneath.

    c <- c - learning_rate * g(c as it was when this worker read it)

What this worker keeps: nothing between steps, so that it can leave after any. What it sends: the
gradients of one batch, as soon as it has them; when it comes, its address; when it goes, that it
goes. It knows the parameter servers and itself. SIGTERM makes it leave after the step that it is
in, and the others do the rest. Worker 0, the chief, saves and tests, and has to stay.
"""

import signal
import threading
import time

from absl import flags
from tfdist import (building, checkpoints, chief, cluster, console, evaluation, exchange, liveness,
                    membership, models, patience, report, seam, sessions, stopping, training_flags,
                    transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=3000, learning_rate=0.1)
flags.DEFINE_boolean('use_locking', False, 'let one worker at a time write to a variable')
flags.DEFINE_list('join_at', [], 'worker:share[,...], this worker waits until so much of the '
                  'steps is done')
flags.DEFINE_list('leave_at', [], 'worker:share[,...], it leaves when so much of them is done')


class Scheme(seam.Seam):
    """HogWild!: one pull and one push in each local step, and no coordination."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        self.pushed, self.computed = network.gradients_at(center)
        optimizer = network.optimizer(hparams.learning_rate, use_locking=hparams.use_locking)
        push = exchange.apply(optimizer, self.pushed, variables, global_step)
        with tf.control_dependencies([push]):
            self.push = exchange.count(global_step, step_read)


def at_step(flag, task_index, otherwise):
    """Returns the global step that a flag, --join_at or --leave_at, names for this worker.

    Args:
      flag: string, its name.
      task_index: int, this worker.
      otherwise: int, what to return if the flag does not name this worker.
    """
    share = training_flags.of_worker(flag, task_index, otherwise=None, most=1,
                                     form='worker:share, such as 1:0.5')
    return otherwise if share is None else int(share * FLAGS.train_steps)


def join_and_train(_):
    # The server is booted without a cluster, and told with each session who is in it: the ps and
    # this worker. So the ps need not know it.
    resolver = cluster.resolve('worker', alone=True)
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    join_at = at_step('join_at', task_index, 0)
    last_step = at_step('leave_at', task_index, FLAGS.train_steps)
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    config = sessions.config(cluster_def=cluster_spec.as_cluster_def())
    # All such sessions work on the same variables; otherwise each would have its own.
    config.experimental.share_session_state_in_clusterspec_propagation = True
    # Under another name than in the cluster, which would be refused.
    server = tf.train.Server({'boot': [cluster_spec.task_address('worker', task_index)]},
                             'boot', 0, config=config)
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())

    tf.set_random_seed(FLAGS.seed)
    # The variables go to the ps in turn; all other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        # Nobody knows how many shards would be needed: all data, in an order of this worker's own.
        batches = model.train_batches(FLAGS.batch_size, local_steps,
                                      seed=FLAGS.seed + 1000 * task_index)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.with_tables)
        test = evaluation.Test(model, network.at_variables, is_chief)
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers=None)
        board = stopping.Board(global_step)

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, scheme.wait, test)
    duties = chief.Duties(resolver, test)
    member = membership.Member(resolver)
    hooks = scheme.hooks + [past_the_hooks, duties, member]
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
        while (session.run(global_step) < min(join_at, session.run(board.last_step))
               and not leaving.is_set()):
            patience.PATIENCE.heard()  # it may wait as long as it likes
            time.sleep(0.1)
        session.run_step_fn(lambda step_context: member.join(step_context.session))

        def goes_on():
            return (progress.goes_on() and progress.global_step < last_step
                    and not leaving.is_set())

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with sessions.failures_of_ps():
                while time.time() < until and goes_on():
                    progress.add(past_the_hooks.run(), local_steps)
                step_context.run_with_hooks(global_step)
                duties.now_and_then(step_context.session, progress)

        while goes_on() and not session.should_stop():
            session.run_step_fn(train)
        member.is_done = not progress.goes_on()
        progress.done()
        duties.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(join_and_train)
