"""DynSGD: the staler a window's steps, the less of them the ps adds.

    x, version <- c, number of commits so far                                   pull
    communication_window times:  x <- x - learning_rate * g(x)
    staleness <- number of commits now - version
    c <- c + (x - c as pulled) / (staleness + 1)                                commit

With --constant the divisor is the number of workers instead. A commit, from the reading of the
number to its increment, is one critical section on the ps.

What this worker keeps: nothing between windows. What it sends, once in a window: the sum of the
window's steps.

The rule is that of Joeri Hermans, "On Scalable Deep Learning and Parallelizing Gradient Descent",
Maastricht University 2017, after Jiawei Jiang, Bin Cui, Ce Zhang, Lele Yu, "Heterogeneity-aware
Distributed Parameter Servers", SIGMOD 2017.
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
flags.DEFINE_integer('train_steps', 800, 'updates of the center, by all workers', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local step')
flags.DEFINE_integer('communication_window', 5, 'local steps between two exchanges', lower_bound=1)
flags.DEFINE_boolean('constant', False, 'divide by the number of workers, not by the staleness + 1')


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
    """Dynamic SGD: pull, a window of local steps, a commit scaled by its staleness.

    Attributes:
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      pull: list of tensors, the global step and the variables' values as read.
      train_op: dict of tensors to run again and again, a whole window: 'global_step' after this
        worker's commit; 'loss' and 'accuracy', means over the window's batches; 'staleness' of the
        commit: how many others came between the pull and it.
    """

    @staticmethod
    def local_steps(hparams):
        """Returns how many local steps, each on a fresh batch, one run of `train_op` makes."""
        return hparams.communication_window

    def __init__(self, loss_at, variables, global_step, hparams, task_index, num_workers):
        """Makes the ops.

        Args:
          loss_at: function of a list of tensors, values for the variables, that returns the float32
            scalars loss and accuracy on a fresh batch.
          variables: list of `tf.Variable`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate, communication_window and constant.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.hooks = []
        with tf.device(global_step.device):
            section = tf.CriticalSection(shared_name='center')

        def read():
            self.pull = pull(variables, global_step)
            with tf.control_dependencies(self.pull):
                return tf.identity(self.pull[0])

        with tf.device(global_step.device):
            version = section.execute(read)
        center = transfer.to_worker(self.pull[1:])
        x, losses, accuracies = center, [], []
        for _ in range(hparams.communication_window):
            gradients, loss, accuracy = gradients_at(loss_at, x)
            x = add(x, gradients, -hparams.learning_rate)
            losses.append(loss)
            accuracies.append(accuracy)
        deltas = []
        for variable, delta in zip(variables, transfer.to_ps(add(x, center, -1), variables)):
            with tf.device(variable.device):
                deltas.append(tf.identity(delta))

        def commit():
            staleness = global_step.read_value() - version
            divisor = tf.cast(num_workers if hparams.constant else staleness + 1, tf.float32)
            updates = []
            for variable, delta in zip(variables, deltas):
                with tf.device(variable.device):
                    updates.append(variable.assign_add(delta / divisor, read_value=False))
            with tf.control_dependencies(updates):
                return count(global_step, version)

        # The section begins when the deltas are there: nobody waits while a window is computed.
        with tf.device(global_step.device), tf.control_dependencies(deltas):
            step, staleness = section.execute(commit)
        self.train_op = {'global_step': step, 'loss': mean(losses),
                         'accuracy': mean(accuracies), 'staleness': staleness}

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
