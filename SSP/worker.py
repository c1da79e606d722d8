"""SSP: stale synchronous parallel. Asynchronous SGD in which nobody gets too far ahead.

Each worker i has a clock k_i, how many iterations it has completed. An iteration:

    wait until  min_j k_j >= k_i - staleness_bound                              gate
    x <- c                                                                      pull
    c <- c - learning_rate * g(x)                                               push
    k_i <- k_i + 1                                                              tick

So what a worker reads has in it every update of all workers' iterations before number
k_i - staleness_bound. With --staleness_bound=0 they go in lock-step; with a huge one this is
HogWild!.

What this worker keeps: nothing between iterations. What it sends: the gradients of one batch and
its tick. The clocks of workers that have not begun, are done, or have not ticked for
--dead_after_secs do not count; who comes back begins at the slowest clock.

Qirong Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013.
"""

import sys
import time

from absl import flags
import numpy as np
from tfdist import (building, checkpoints, chief, cluster, console, ending, evaluation, exchange,
                    liveness, models, report, seam, sessions, training_flags, transfer)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=3000, learning_rate=0.1)
flags.DEFINE_integer('staleness_bound', 3, 'iterations that a worker may be ahead of the slowest',
                     lower_bound=0)
flags.DEFINE_float('dead_after_secs', 30, 'how long the others wait for a clock that stands still',
                   lower_bound=0)


class Scheme(seam.Seam):
    """Stale synchronous parallel: gate, pull, one gradient, push, tick.

    Attributes:
      gate: the `Gate` of this worker, the first of the hooks.
    """

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.gate = Gate(global_step.device, task_index, num_workers, hparams.staleness_bound,
                         hparams.dead_after_secs)
        self.hooks = [self.gate]
        self.pull = exchange.pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        self.pushed, self.computed = network.gradients_at(center)
        optimizer = network.optimizer(hparams.learning_rate)
        push = exchange.apply(optimizer, self.pushed, variables, global_step)
        with tf.control_dependencies([push]):
            tick = self.gate.tick()
        with tf.control_dependencies([tick]):
            self.push = exchange.count(global_step, step_read)

    def wait(self):
        """Returns when this worker may begin its next iteration."""
        self.gate.wait()


class Gate(tf.train.SessionRunHook):
    """Holds a worker that is too far ahead.

    The clocks are a vector on the ps. An entry is the number of iterations that its worker has
    completed, or ABSENT, which is later than any clock and so holds nobody.

    Attributes:
      clocks: int64 [num_workers] tensor, those of all workers.
      worker: int64 scalar tensor, whose clock it is that joins, leaves, and ticks when pushed: this
        worker's. To play another worker, feed it.
      join: op that sets a clock to that of the slowest, or to 0 if there is none.
      leave: op that makes a clock absent.
    """

    ABSENT = 2**62
    # A checkpoint with these clocks fits any number of workers up to this.
    MOST_WORKERS = 1024

    def __init__(self, ps_device, task_index, num_workers, staleness_bound, dead_after_secs):
        """Makes the clocks, all absent, and the ops on them; see the flags for the last two."""
        if num_workers > self.MOST_WORKERS:
            sys.exit(f'SSP has clocks for {self.MOST_WORKERS} workers, not for {num_workers}.')
        self._task_index = task_index
        self._staleness_bound = staleness_bound
        self._dead_after_secs = dead_after_secs
        self._waited = np.zeros(num_workers)  # seconds, for each clock since it moved
        self._seen = np.zeros(num_workers)  # the clocks, as they were then
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
        """Gets hold of the session, and joins."""
        self._look = session.make_callable(self.clocks)
        self._join = session.make_callable(self.join)
        self._strike = session.make_callable(self.leave, feed_list=[self.worker])
        self.may_run()

    def end(self, session):
        """Leaves, for good: nobody is to wait for a worker that is done."""
        session.run(self.leave)

    def holds(self, clocks, worker):
        """Returns an array, for each of the `clocks` whether it holds back `worker`, an index."""
        return clocks < clocks[worker] - self._staleness_bound

    def may_run(self):
        """Returns whether this worker may begin its next iteration; joins if it is absent."""
        self._now = self._look()
        if self._now[self._task_index] >= self.ABSENT:
            self._join()
            return True
        return not self.holds(self._now, self._task_index).any()

    def wait(self):
        """Returns when this worker may begin its next iteration; strikes clocks of the dead."""
        looked = time.monotonic()
        while not self.may_run():
            before, looked = looked, time.monotonic()
            # A longer time has no look in it: this process was stopped, or the ps did not answer.
            self._waited += min(looked - before, 1)
            self._waited[self._now != self._seen] = 0
            self._seen = self._now
            dead = self._waited > self._dead_after_secs
            for worker in np.flatnonzero(dead & self.holds(self._now, self._task_index)):
                self._strike(worker)
            time.sleep(0.002)


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
