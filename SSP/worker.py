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

import console  # first: it loads TensorFlow without its banners
import sys
import time

from absl import flags
import cluster
import model
import tensorflow.compat.v1 as tf
import transfer

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 3000, 'updates of the center, by all workers', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local step')
flags.DEFINE_integer('staleness_bound', 3, 'iterations that a worker may be ahead of the slowest',
                     lower_bound=0)
flags.DEFINE_float('dead_after_secs', 30, 'how long the others wait for a clock that stands still',
                   lower_bound=0)


def pull(variables, global_step):
    """Reads the global step, then the variables, each on its ps.

    Returns:
      List of tensors on the ps: the global step, then the variables' values in order. Updates that
      are counted later may be in the values already.
    """
    with tf.device(global_step.device):
        step = global_step.read_value()
    values = []
    for variable in variables:
        with tf.control_dependencies([step]), tf.device(variable.device):
            values.append(variable.read_value())
    return [step] + values


def count(global_step, step_read):
    """Counts an update of the center.

    Args:
      global_step: integer `tf.Variable`; it gets 1 more.
      step_read: integer scalar tensor, the global step when the update's parameters were read.

    Returns:
      Two integer scalar tensors: the global step with this update, a number that no other update
      gets; and the update's staleness, how many others were counted since `step_read`.
    """
    with tf.device(global_step.device):
        before = tf.raw_ops.ResourceCountUpTo(resource=global_step.handle, limit=tf.int64.max,
                                              T=tf.int64)
        both = tf.stack([before + 1, before - step_read])  # they travel as one
    return tf.unstack(both)


class Scheme:
    """Stale synchronous parallel: gate, pull, one gradient, push, tick.

    Attributes:
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      gate: the `Gate` of this worker, the first of the hooks.
      pull: list of tensors, the global step and the variables' values as read.
      train_op: dict of tensors to run again and again: 'global_step' after this worker's update;
        'loss' and 'accuracy' on its batch; 'staleness' of the update: how many others came between
        its read and its write.
    """

    @staticmethod
    def local_steps(_):
        """Returns how many local steps, each on a fresh batch, one run of `train_op` makes."""
        return 1

    def __init__(self, loss_at, variables, global_step, hparams, task_index, num_workers):
        """Makes the ops.

        Args:
          loss_at: function of a list of tensors, values for the variables, that returns the float32
            scalars loss and accuracy on a fresh batch.
          variables: list of `tf.Variable`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate, staleness_bound and dead_after_secs.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.gate = Gate(global_step.device, task_index, num_workers, hparams.staleness_bound,
                         hparams.dead_after_secs)
        self.hooks = [self.gate]
        self.pull = pull(variables, global_step)
        step_read, center = self.pull[0], transfer.to_worker(self.pull[1:])
        loss, accuracy = loss_at(center)
        gradients = tf.gradients(loss, center)
        gradients = transfer.to_ps(gradients, variables)
        with tf.device(global_step.device):  # where the step size is wanted
            push = tf.train.GradientDescentOptimizer(hparams.learning_rate).apply_gradients(
                zip(gradients, variables))
        with tf.control_dependencies([push]):
            tick = self.gate.tick()
        with tf.control_dependencies([tick]):
            step, staleness = count(global_step, step_read)
        self.train_op = {'global_step': step, 'loss': loss, 'accuracy': accuracy,
                         'staleness': staleness}

    def wait(self):
        """Returns when this worker may begin its next iteration."""
        self.gate.wait()


class Gate(tf.train.SessionRunHook):
    """Holds a worker that is too far ahead.

    The clocks are a vector on the ps. An entry is the number of iterations that its worker has
    completed, or ABSENT, which is later than any clock and so holds nobody.
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
        with tf.device(ps_device):
            self._clocks = tf.get_variable(
                'clocks', [self.MOST_WORKERS], tf.int64, trainable=False,
                initializer=tf.constant_initializer(self.ABSENT, tf.int64))
            # A resumed run may have fewer workers than the one before.
            clocks = self._clocks.read_value()[:num_workers]
            slowest = tf.reduce_min(clocks)
            self._look_op = [clocks[task_index], slowest, tf.argmin(clocks)]
            begin = tf.where(tf.less(slowest, self.ABSENT), slowest, tf.zeros_like(slowest))
            self._join_op = self._set(task_index, begin)
            self._leave_op = self._set(task_index, self.ABSENT)
            self._other = tf.placeholder(tf.int64, [])
            self._bury_op = self._set(self._other, self.ABSENT)

    def _set(self, worker, clock):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._clocks.handle, indices=worker, updates=tf.cast(clock, tf.int64))

    def tick(self):
        """Makes the op that counts an iteration as completed."""
        with tf.device(self._clocks.device):
            return tf.raw_ops.ResourceScatterAdd(
                resource=self._clocks.handle, indices=self._task_index,
                updates=tf.constant(1, tf.int64))

    def after_create_session(self, session, coord):
        """Gets hold of the session, and joins."""
        self._look = session.make_callable(self._look_op)
        self._join = session.make_callable(self._join_op)
        self._bury = session.make_callable(self._bury_op, feed_list=[self._other])
        self.may_run()

    def end(self, session):
        """Leaves, for good: nobody is to wait for a worker that is done."""
        session.run(self._leave_op)

    def may_run(self):
        """Returns whether this worker may begin its next iteration; joins if it is absent."""
        own, slowest, self._slowest = self._look()
        if own >= self.ABSENT:
            self._join()
            return True
        self._standstill = self._slowest, slowest
        return slowest >= own - self._staleness_bound

    def wait(self):
        """Returns when this worker may begin its next iteration."""
        since, before = time.time(), None
        while not self.may_run():
            if self._standstill != before:
                since, before = time.time(), self._standstill
            elif time.time() - since > self._dead_after_secs:
                self._bury(self._slowest)
            time.sleep(0.002)


def make_loss_at(variables, batches, delay):
    """Makes the function that trains on values which are not (or not yet) in variables.

    Args:
      variables: list of `tf.Variable`, made by `model.loss_and_accuracy`.
      batches: list of what `model.loss_and_accuracy` takes, one for each call.
      delay: float, seconds to waste on each batch.

    Returns:
      Function of a list of tensors, values for the variables: builds the model with these values in
      the variables' place, on a fresh batch, and returns its loss and its accuracy.
    """
    names = [variable.op.name for variable in variables]
    fresh = iter(batches)

    def loss_at(values):
        value_of = dict(zip(names, values))

        def get(getter, name, *args, **kwargs):
            return value_of[name] if name in value_of else getter(name, *args, **kwargs)

        batch = next(fresh)
        if delay:
            with tf.control_dependencies(values):
                wasted = tf.py_func(lambda: time.sleep(delay), [], [])
            with tf.control_dependencies([wasted]):
                batch = [tf.identity(tensor) for tensor in batch]
        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=get):
            return model.loss_and_accuracy(*batch)

    return loss_at


def straggler_delay(task_index):
    """Returns the seconds that --straggler lets this worker waste in each local step."""
    try:
        parts = [part.split(':') for part in FLAGS.straggler]
        delays = {int(worker): float(seconds) for worker, seconds in parts}
        if not all(0 <= delay < 1e6 for delay in delays.values()):
            raise ValueError
    except ValueError:
        sys.exit(f'--straggler={",".join(FLAGS.straggler)} is not of the form worker:seconds, such '
                 'as 1:0.05, or several of these by commas.')
    return delays.get(task_index, 0.0)


class PastTheHooks(tf.train.SessionRunHook):
    """Trains past the hooks, which ask the ps for the global step in every run.

    It is a hook to get hold of each new session: there is one after each failure of a ps.
    """

    def __init__(self, scheme):
        self._scheme = scheme

    def after_create_session(self, session, coord):
        self._run = session.make_callable(self._scheme.train_op)

    def run(self):
        """Waits until this worker may go on, and returns the values of one run of `train_op`."""
        self._scheme.wait()
        return self._run()


def main(_):
    resolver = cluster.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    config = tf.ConfigProto(
        # Without filters a session waits for all tasks of the cluster, and not only for the ps.
        device_filters=['/job:ps', worker_device],
        intra_op_parallelism_threads=FLAGS.num_threads,
        inter_op_parallelism_threads=FLAGS.num_threads,
        gpu_options=tf.GPUOptions(allow_growth=True))
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    # The variables go to the ps in turn; all other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        _, test_accuracy = model.loss_and_accuracy(*model.test_set())
        center = tf.trainable_variables()
        local_steps = Scheme.local_steps(FLAGS)
        batches = model.train_batches(FLAGS.batch_size, local_steps, task_index, num_workers,
                                      FLAGS.seed)
        loss_at = make_loss_at(center, batches, straggler_delay(task_index))
        scheme = Scheme(loss_at, center, global_step, FLAGS, task_index, num_workers)

    past_the_hooks = PastTheHooks(scheme)
    hooks = scheme.hooks + [past_the_hooks, cluster.SayDone(resolver)]
    cluster.watch(resolver)
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=cluster.chief_scaffold(FLAGS.model_dir), hooks=hooks, config=config,
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            cluster.WorkerSessionCreator(server.target, config), hooks)

    with session:
        progress = console.Progress(f'worker {task_index}', session.run(global_step), is_chief)

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with cluster.failures_of_ps():
                while time.time() < until and progress.global_step < FLAGS.train_steps:
                    progress.add(past_the_hooks.run(), local_steps)
                step_context.run_with_hooks(global_step)

        while progress.global_step < FLAGS.train_steps and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        if is_chief:
            progress.test(session.run(test_accuracy))


if __name__ == '__main__':
    console.run(main)
