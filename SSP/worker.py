"""SSP: stale synchronous parallel. Asynchronous SGD in which no worker gets too far ahead.

Each worker i has a clock k_i, the number of iterations it has completed. An iteration:

    wait until  min_j k_j >= k_i - staleness_bound                              gate
    x <- c                                                                      pull
    c <- c - learning_rate * g(x)                                               push
    k_i <- k_i + 1                                                              tick

So a worker reads parameters with every update of all workers' iterations before number
k_i - staleness_bound. With --staleness_bound=0 the workers go in lock-step; with a huge bound this
is HogWild!.

What this worker keeps: nothing between iterations. What it sends: the gradients of one batch, and
its tick. The clocks of workers that have not begun, are done, or have not ticked for
--dead_after_secs do not count; a worker that comes back begins at the slowest clock.

Qirong Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

import sys
import time

from absl import flags
import numpy as np
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import compression, exchange, seam, transfer
from tfdist.start import console
from tfdist.training import checkpoints, chief, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1)
flags.DEFINE_integer('staleness_bound', 3, 'iterations that a worker may be ahead of the slowest',
                     lower_bound=0)
flags.DEFINE_float('dead_after_secs', 30, 'how long the others wait for a clock that stands still',
                   lower_bound=0)
compression.define()


class Scheme(seam.Seam):
    """Stale synchronous parallel: gate, pull, one gradient, push, tick."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.gate = Gate(global_step.device, task_index, num_workers, hparams.staleness_bound,
                         hparams.dead_after_secs)
        self.hooks = [self.gate]
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        optimizer = network.optimizer(hparams.learning_rate)
        gradients, self.computed = network.gradients_at(center)
        compressed = compression.of(self, hparams)
        self.pushed, gradients = compressed.sent(gradients)
        push = exchange.apply(optimizer, gradients, variables, global_step)
        with tf.control_dependencies([push]):
            tick = self.gate.tick()
        with tf.control_dependencies([tick]):
            self.push = compressed.arrived(exchange.count(global_step, step_read))
        self.own = compressed.own

    def wait(self):
        """Returns when this worker may begin its next iteration."""
        self.gate.wait()


class Gate(seam.Gate):
    """Holds back a worker that is too far ahead.

    The clocks are a vector on the ps. An entry is the number of iterations that its worker has
    completed, or ABSENT, which is later than any clock and so holds nobody back.

    Attributes:
      clocks: int64 [num_workers] tensor, the clocks of all workers.
      worker: int64 scalar tensor, the worker whose clock joins, leaves, and ticks with a push: this
        one. Feed it to play another worker.
      join: op that sets the clock to the slowest one, or to 0 if there is none.
      leave: op that makes the clock absent.
    """

    ABSENT = 2**62
    MOST_WORKERS = 1024  # checkpoints have so many clocks, and so fit any number of workers

    def __init__(self, ps_device, task_index, num_workers, staleness_bound, dead_after_secs):
        """Makes the clocks, all absent, and the ops on them. The last two arguments are flags."""
        if num_workers > self.MOST_WORKERS:
            sys.exit(f'SSP has clocks for {self.MOST_WORKERS} workers, not for {num_workers}.')
        self._task_index = task_index
        self._staleness_bound = staleness_bound
        self._dead_after_secs = dead_after_secs
        self._waited = np.zeros(num_workers)  # seconds since each clock moved
        self._seen = np.zeros(num_workers)  # the clocks when they last moved
        with tf.device(ps_device):
            self._clocks = tf.get_variable(
                'clocks', [self.MOST_WORKERS], tf.int64, trainable=False,
                initializer=tf.constant_initializer(self.ABSENT, tf.int64))
            # A resumed run may have fewer workers than the one before.
            self.clocks = self._clocks.read_value()[:num_workers]
            self.worker = tf.constant(task_index, tf.int64)
            slowest = tf.reduce_min(self.clocks)
            self.join = self._set(tf.where(tf.less(slowest, self.ABSENT), slowest,
                                           tf.zeros_like(slowest)))
            self.leave = self._set(tf.constant(self.ABSENT, tf.int64))

    def _set(self, clock):
        return tf.raw_ops.ResourceScatterUpdate(resource=self._clocks.handle, indices=self.worker,
                                                updates=clock)

    def tick(self):
        """Makes the op that counts an iteration as completed."""
        with tf.device(self._clocks.device):
            return tf.raw_ops.ResourceScatterAdd(resource=self._clocks.handle, indices=self.worker,
                                                 updates=tf.constant(1, tf.int64))

    def after_create_session(self, session, coord):
        """Prepares the calls in the new session, and joins."""
        self._look = session.make_callable(self.clocks)
        self._join = session.make_callable(self.join)
        self._strike = session.make_callable(self.leave, feed_list=[self.worker])
        self.may_run()

    def end(self, session):
        """Leaves for good, so that nobody waits for a worker that is done."""
        with sessions.until_it_ends():  # a ps that comes back has the clock of its checkpoint
            session.run(self.leave)

    def holds(self, clocks, worker):
        """Returns a bool for each of the `clocks`, an array: whether it holds back `worker`."""
        return clocks < clocks[worker] - self._staleness_bound

    def may_run(self):
        """Returns whether this worker may begin its next iteration; joins if it is absent."""
        self._now = self._look()
        if self._now[self._task_index] >= self.ABSENT:
            self._join()
            return True
        return not self.holds(self._now, self._task_index).any()

    def wait(self):
        """Returns when this worker may begin its next iteration; strikes the clocks of the dead."""
        looked = time.monotonic()
        while not self.may_run():
            before, looked = looked, time.monotonic()
            # No look at the clocks takes a second: this process was paused, or the ps was silent.
            self._waited += min(looked - before, 1)
            self._waited[self._now != self._seen] = 0
            self._seen = self._now
            dead = self._waited > self._dead_after_secs
            for worker in np.flatnonzero(dead & self.holds(self._now, self._task_index)):
                self._strike(worker)
                self._waited[worker] = 0  # it may come back where it stood
            time.sleep(0.002)


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
