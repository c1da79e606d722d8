"""Elastic workers: they join and leave a run that does not know them before. HogWild underneath.

    c <- c - learning_rate * g(c as it was when this worker read it)

What this worker keeps: nothing between steps, so that it can leave after any step. What it sends:
the gradients of one batch, as soon as it has them; its address when it joins, and word when it
leaves. It knows only the parameter servers and itself. SIGTERM makes it leave after the current
step; the others do the rest. Worker 0, the chief, saves and tests, or another while it is away.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    python ps.py --ps_hosts=alpha:2222 --task_index=0                                    # on alpha
    python worker.py --ps_hosts=alpha:2222 --worker_hosts=alpha:2223 --task_index=0      # on alpha
    python worker.py --ps_hosts=alpha:2222 --worker_hosts=beta:2223 --task_index=1       # on beta
"""

import signal
import threading
import time

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, patience, servers
from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, transfer
from tfdist.start import console
from tfdist.training import (checkpoints, chief, evaluation, report, sessions, stopping,
                             training_flags)
from tfdist.start.quiet import tf
import members

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1)
flags.DEFINE_boolean('use_locking', False, 'let one worker at a time write to a variable')
flags.DEFINE_list('join_at', [], 'worker:share[,...], the share of the steps that is done when '
                  'this worker joins')
flags.DEFINE_list('leave_at', [], 'worker:share[,...], the share that is done when it leaves')


class Scheme(seam.Seam):
    """HogWild!: one pull and one push in each local step, and no coordination."""

    not_recorded = 'workers come and go'

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        optimizer = network.optimizer(hparams.learning_rate, use_locking=hparams.use_locking)
        self.pushed, self.computed = network.gradients_at(center)
        push = exchange.apply(optimizer, self.pushed, variables, global_step)
        with tf.control_dependencies([push]):
            self.push = exchange.count(global_step, step_read)


def at_step(flag, task_index, otherwise):
    """Returns the global step that a flag, --join_at or --leave_at, sets for this worker.

    Args:
      flag: string, the flag's name.
      task_index: int, this worker's index.
      otherwise: int, what to return if the flag does not name this worker.
    """
    share = training_flags.of_worker(flag, task_index, otherwise=None, most=1,
                                     form='worker:share, such as 1:0.5')
    return otherwise if share is None else int(share * FLAGS.train_steps)


def start_server(cluster_spec, task_index):
    """Starts this worker's server; returns it, and its sessions' target and `tf.ConfigProto`.

    The server starts without a cluster. Each session tells it the cluster, which is the ps and this
    worker, so that the ps need not know this worker.
    """
    config = servers.config(cluster_def=cluster_spec.as_cluster_def())
    # All such sessions share the variables; otherwise each would have its own.
    config.experimental.share_session_state_in_clusterspec_propagation = True
    address = cluster_spec.task_address('worker', task_index)
    # The name in the cluster would be refused, so the server gets another one.
    server = tf.train.Server({'boot': [address]}, 'boot', 0, config=servers.config())
    # TensorFlow 1.15 looks for the target in the cluster; server.target is localhost everywhere.
    return server, f'grpc://{address}', config


def session_of(target, config, resolver, chief_role, hooks):
    """Returns the `tf.train.MonitoredSession` of this worker, with its hooks, a list."""
    # Distributed: the chief makes or restores the parameters; the others wait for these.
    if resolver.task_id == 0:
        return tf.train.MonitoredTrainingSession(
            target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    return tf.train.MonitoredSession(
        sessions.WorkerSessionCreator(target, config, chief_role), hooks)


def wait_to_join(session, global_step, join_at, stop_at, leaving):
    """Returns when it is time for this worker to take part, or to leave.

    Args:
      session: `tf.train.MonitoredSession`.
      global_step: integer `tf.Variable`.
      join_at: int, the global step at which the worker joins.
      stop_at: int64 scalar tensor, the step at which the run ends.
      leaving: `threading.Event`, set if the worker is to leave.
    """
    while session.run(global_step) < min(join_at, session.run(stop_at)) and not leaving.is_set():
        patience.PATIENCE.heard()  # it may wait as long as it likes
        time.sleep(0.1)


def join_and_train(_):
    # Distributed: this worker knows the ps and itself, and no other worker.
    resolver = membership.resolve('worker', alone=True)
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    join_at = at_step('join_at', task_index, 0)
    last_step = at_step('leave_at', task_index, FLAGS.train_steps)
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Distributed: the ps and this worker reach each other through their servers.
    server, target, config = start_server(cluster_spec, task_index)
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())

    tf.set_random_seed(FLAGS.seed)
    # Distributed: the variables go to the ps in turn, for all workers; other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        # Distributed: nobody knows how many workers will come: each reads all, in its own order.
        batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS),
                                      seed=FLAGS.seed + 1000 * task_index)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        test = evaluation.Test(model, network.at_variables, is_chief, network.tested_values)
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers=None)
        stop_at = stopping.LastStep(global_step).value

    trainer = sessions.Trainer.of(scheme, test)
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: this worker tells the ps when it comes and goes.
    member = members.Member(resolver)
    hooks = scheme.hooks + [trainer, chief_role, member]
    # Distributed: no silent wait for a ps that does not answer.
    liveness.watch(resolver, over=test.is_over)

    with session_of(target, config, resolver, chief_role, hooks) as session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief,
                                   model)
        wait_to_join(session, global_step, join_at, stop_at, leaving)
        sessions.run_in(session, member.join)

        def goes_on():
            return progress.goes_on() and progress.global_step < last_step and not leaving.is_set()

        while goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, local_steps, chief_role.now_and_then,
                                       goes_on)
        member.is_done = not progress.goes_on()
        progress.done()
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(join_and_train)
