"""DOWNPOUR: a window of plain SGD on the worker, Adagrad on the ps for the sum of its gradients.

With t counting this worker's local steps, for each t:

    if t mod n_fetch = 0:        x <- c                                         pull
    a <- a + g(x);  x <- x - learning_rate * g(x)
    if (t + 1) mod n_push = 0:   G <- G + a^2;  c <- c - server_learning_rate * a / sqrt(G)
                                 a <- 0                                         push

What this worker keeps: nothing beyond the least common multiple of n_fetch and n_push local steps,
which are one run. What it sends, every n_push local steps: the sum of the gradients since the last
push. The ps keeps c and G, Adagrad's sum of squares.

Jeffrey Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1 and algorithm
1.1 of its appendix.
"""

import console  # first: it loads TensorFlow without its banners
import sys
import time

from absl import flags
import cluster
import model
import numpy as np
import tensorflow.compat.v1 as tf
import transfer

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 500, 'updates of the center, by all workers', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local step')
flags.DEFINE_integer('n_fetch', 10, 'local steps between two pulls', lower_bound=1)
flags.DEFINE_integer('n_push', 10, 'local steps between two pushes', lower_bound=1)
flags.DEFINE_float('server_learning_rate', 0.05, "step size of the ps's Adagrad", lower_bound=0)
flags.DEFINE_float('initial_accumulator_value', 0.1, 'where G starts; above 0', lower_bound=1e-30)


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


def add(values, others, factor=1):
    """Returns values + factor * others for two lists of tensors of the same shapes."""
    return [value + factor * other for value, other in zip(values, others)]


def gradients_at(loss_at, values):
    """Makes a fresh batch's gradients at `values`.

    Returns:
      A list of dense tensors of the values' shapes, and the batch's loss and accuracy.
    """
    loss, accuracy = loss_at(values)
    gradients = tf.gradients(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, accuracy


def mean(scalars):
    """Returns the mean of a list of float32 scalar tensors."""
    return tf.add_n(scalars) / len(scalars)


class Scheme:
    """DOWNPOUR: pull every n_fetch local steps, push to Adagrad every n_push.

    Attributes:
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      pull: list of tensors, the global step and the variables' values as read first.
      train_op: dict of tensors to run again and again, as many local steps as it takes until a pull
        comes right after a push: 'global_step' after this worker's last push; 'loss' and
        'accuracy', means over the batches; 'staleness' of each push: how many others came between
        it and the pull before it.
    """

    @staticmethod
    def local_steps(hparams):
        """Returns how many local steps, each on a fresh batch, one run of `train_op` makes."""
        return int(np.lcm(hparams.n_fetch, hparams.n_push))

    def __init__(self, loss_at, variables, global_step, hparams, task_index, num_workers):
        """Makes the ops.

        Args:
          loss_at: function of a list of tensors, values for the variables, that returns the float32
            scalars loss and accuracy on a fresh batch.
          variables: list of `tf.Variable`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate, server_learning_rate,
            initial_accumulator_value, n_fetch and n_push.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.hooks = []
        adagrad = tf.train.AdagradOptimizer(hparams.server_learning_rate,
                                            hparams.initial_accumulator_value)
        zeros = [tf.zeros(variable.shape) for variable in variables]
        pulls, x, a, pushed, staleness, losses, accuracies = [], zeros, zeros, [], [], [], []
        for t in range(self.local_steps(hparams)):
            if t % hparams.n_fetch == 0:
                # Not before the worker has come so far, and not without what it pushed.
                with tf.control_dependencies(x + pushed):
                    pulls.append(pull(variables, global_step))
                step_read, x = pulls[-1][0], transfer.to_worker(pulls[-1][1:])
            gradients, loss, accuracy = gradients_at(loss_at, x)
            a = add(a, gradients)
            x = add(x, gradients, -hparams.learning_rate)
            if (t + 1) % hparams.n_push == 0:
                a = transfer.to_ps(a, variables)
                # The device is that where the step size is wanted.
                with tf.control_dependencies(pushed), tf.device(global_step.device):
                    push = adagrad.apply_gradients(zip(a, variables))
                with tf.control_dependencies([push]):
                    step, own_staleness = count(global_step, step_read)
                pushed = [step]
                staleness.append(own_staleness)
                a = zeros
            losses.append(loss)
            accuracies.append(accuracy)
        self.pull = pulls[0]
        self.train_op = {'global_step': step, 'loss': mean(losses), 'accuracy': mean(accuracies),
                         'staleness': tf.stack(staleness)}

    def wait(self):
        """Returns when this worker may begin its next run: at once, it waits for nobody."""


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
