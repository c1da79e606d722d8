"""Synchronous SGD with a learning rate for each worker.

    c <- c - mean over the workers i of (learning_rates[i] * g_i(c))

What this worker keeps: the step its parameters belong to. What it sends: the gradients of one
batch, times its own learning rate, in each step; then it waits until the step is complete.

No paper: for workers whose batches differ in size or worth. The rates are applied before the mean
is taken, so the ps itself has the learning rate 1 and plain SGD: Adam or Adagrad would undo the
scale.
"""

import console  # first: it loads TensorFlow without its banners
import sys
import time

from absl import flags
import barrier
import cluster
import model
import tensorflow.compat.v1 as tf
import transfer

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 2000, 'updates of the center, by all workers', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local step')
flags.DEFINE_list('learning_rates', [], 'the step size of each worker, by commas; --learning_rate '
                  'for those that have none')


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


def gradients_at(loss_at, values):
    """Makes a fresh batch's gradients at `values`.

    Returns:
      A list of dense tensors of the values' shapes, and the batch's loss and accuracy.
    """
    loss, accuracy = loss_at(values)
    gradients = tf.gradients(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, accuracy


class Scheme:
    """Synchronous SGD with a rate of its own: pull, one gradient times the rate, push, barrier.

    Attributes:
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      barrier: the `barrier.Barrier`, the first of the hooks.
      pull: list of tensors, the global step and the variables' values as read.
      train_op: dict of tensors to run again and again: 'global_step' after this worker's update;
        'loss' and 'accuracy' on its batch; 'dropped', the share of its gradients that were late.
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
          hparams: object with the attributes learning_rate, learning_rates, replicas_to_aggregate,
            train_steps and patience_secs.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.pull = pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        gradients, loss, accuracy = gradients_at(loss_at, center)
        own_rate = learning_rate_of(task_index, num_workers, hparams)
        self.barrier = barrier.Barrier(tf.train.GradientDescentOptimizer(1.),
                                       [own_rate * gradient for gradient in gradients], variables,
                                       global_step, hparams, task_index, num_workers)
        self.hooks = [self.barrier]
        self.train_op = {'global_step': self.barrier.step, 'loss': loss, 'accuracy': accuracy,
                         'dropped': self.barrier.dropped}

    def wait(self):
        """Returns when this worker may begin its next run: at once, the barrier is in the run."""
        self.barrier.wait()


def learning_rate_of(task_index, num_workers, hparams):
    """Returns this worker's learning rate, a float.

    Raises:
      SystemExit: if a rate is not a number that is 0 or more, or nobody's.
    """
    if len(hparams.learning_rates) > num_workers:
        sys.exit(f'--learning_rates has {len(hparams.learning_rates)} rates, and there are '
                 f'{num_workers} workers.')
    if task_index >= len(hparams.learning_rates):
        return hparams.learning_rate
    try:
        rate = float(hparams.learning_rates[task_index])
    except ValueError:
        rate = -1.
    if not 0 <= rate < float('inf'):
        sys.exit(f'--learning_rates: "{hparams.learning_rates[task_index]}" is no learning rate.')
    return rate


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
