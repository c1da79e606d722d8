"""In-graph replication: one program builds one graph, with a replica of the network per worker.

    --mode=sync     c <- c - learning_rate * mean of all g_i(c)              one step of all
    --mode=async    c <- c - learning_rate * g_i(c as it was when i read it)    each by itself

What a worker keeps: nothing, not even a graph. It runs what this program, the chief, puts on it.
What travels, in each step of a replica: the parameters from the ps to its worker and the gradients
back, and its batch from the chief. The chief drives all replicas: in one run of the graph, or each
in a thread of its own.
"""

import console  # first: it loads TensorFlow without its banners
import concurrent.futures
import threading
import time

from absl import flags
import cluster
import model
import tensorflow.compat.v1 as tf
import traffic

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 2000, 'updates of the center', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a replica', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_enum('mode', 'sync', ['sync', 'async'],
                  'sync: all replicas make one step together; async: each makes its own')


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


def gradients_at(loss_at, values):
    """Makes a fresh batch's gradients at `values`.

    Returns:
      A list of dense tensors of the values' shapes, and the batch's loss and accuracy.
    """
    loss, accuracy = loss_at(values)
    gradients = tf.gradients(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, accuracy


def mean(tensors):
    """Returns the mean of a list of float32 tensors of one shape."""
    return tf.add_n(tensors) / len(tensors)


class Scheme:
    """Replicas of one network on one center, in one graph.

    Attributes:
      pulls: list of lists of tensors, the global step and the variables' values as read: one for
        all replicas if they go together, else one for each.
      train_ops: list of dicts of tensors to run again and again, each in a thread of its own:
        'global_step' after the update; 'loss' and 'accuracy', the means over its replicas; in
        --mode=async also 'staleness' of the update: how many others came between read and write.
    """

    def __init__(self, losses_at, devices, variables, global_step, hparams):
        """Makes the ops.

        Args:
          losses_at: list of functions, one for each replica, of a list of tensors, values for the
            variables, that return the float32 scalars loss and accuracy on a fresh batch.
          devices: list of strings, where the replicas compute.
          variables: list of `tf.Variable`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate and mode.
        """
        replicas = list(zip(losses_at, devices))
        teams = [replicas] if hparams.mode == 'sync' else [[replica] for replica in replicas]
        self.pulls, self.train_ops = [], []
        for team in teams:
            self.pulls.append(pull(variables, global_step))
            step_read, center = self.pulls[-1][0], self.pulls[-1][1:]
            gradients, losses, accuracies = [], [], []
            for loss_at, device in team:
                with tf.device(device):
                    own, loss, accuracy = gradients_at(loss_at, center)
                gradients.append(own)
                losses.append(loss)
                accuracies.append(accuracy)
            pushes = []
            for variable, value, *each in zip(variables, center, *gradients):
                # All read before anything is written, and the mean is taken where the variable is.
                with tf.device(variable.device), tf.control_dependencies([value]):
                    pushes.append(variable.assign_sub(hparams.learning_rate * mean(each),
                                                      read_value=False))
            with tf.control_dependencies(pushes):
                step, staleness = count(global_step, step_read)
            with tf.device(team[0][1]):
                train_op = {'global_step': step, 'loss': mean(losses), 'accuracy': mean(accuracies)}
            if hparams.mode == 'async':
                train_op['staleness'] = staleness
            self.train_ops.append(train_op)


def make_loss_at(variables, batch):
    """Makes the function that builds a replica on values that were read.

    Args:
      variables: list of `tf.Variable`, made by `model.loss_and_accuracy`.
      batch: what `model.loss_and_accuracy` takes.

    Returns:
      Function of a list of tensors, values for the variables, that returns the loss and the
      accuracy on the batch.
    """
    names = [variable.op.name for variable in variables]

    def loss_at(values):
        value_of = dict(zip(names, values))

        def get(getter, name, *args, **kwargs):
            return value_of[name] if name in value_of else getter(name, *args, **kwargs)

        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=get):
            return model.loss_and_accuracy(*batch)

    return loss_at


class PastTheHooks(tf.train.SessionRunHook):
    """Runs each of several fetches past the hooks, which ask the ps for the global step each time.

    Attributes:
      runs: list of functions that run one each, from any thread.
    """

    def __init__(self, fetches):
        self._fetches = fetches

    def after_create_session(self, session, coord):
        self.runs = [session.make_callable(fetch) for fetch in self._fetches]


def measure(progress, session, train_op, replicas):
    """Trains some steps with a trace, and says what one of them sends between the tasks."""
    def traced(step_context):
        with cluster.failures_of_ps():
            return traffic.trace(step_context.session, train_op, progress, FLAGS.train_steps,
                                 replicas)

    traces = session.run_step_fn(traced)
    for (sender, receiver), sent in sorted(traffic.between_tasks(traces).items()):
        progress.say(f'in a step {sender} sends {sent} to {receiver}')


def main(_):
    resolver = cluster.resolve('chief', jobs=('chief', 'ps', 'worker'))
    cluster_spec = resolver.cluster_spec()
    num_workers = cluster_spec.num_tasks('worker')
    workers = [f'/job:worker/task:{i}' for i in range(num_workers)]
    chief_device = '/job:chief/task:0'
    config = tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                            inter_op_parallelism_threads=FLAGS.num_threads)
    server = tf.train.Server(cluster_spec, 'chief', 0, config=config)

    tf.set_random_seed(FLAGS.seed)
    # The variables go to the ps in turn; what no replica says otherwise, to the chief.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=chief_device)):
        global_step = tf.train.get_or_create_global_step()
        _, test_accuracy = model.loss_and_accuracy(*model.test_set())
        center = tf.trainable_variables()
        # A worker could not read them: the examples are in this process.
        shards = [model.train_batches(FLAGS.batch_size, 1, i, num_workers, FLAGS.seed)
                  for i in range(num_workers)]
        losses_at = [make_loss_at(center, batch) for batch, in shards]
        scheme = Scheme(losses_at, workers, center, global_step, FLAGS)
    replicas = num_workers // len(scheme.train_ops)  # in one run of a train op

    past_the_hooks = PastTheHooks(scheme.train_ops)
    hooks = [past_the_hooks, cluster.SayDone(resolver, jobs=('ps', 'worker'))]
    for job in 'ps', 'worker':
        cluster.watch(resolver, job)
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=cluster.chief_scaffold(FLAGS.model_dir, 'train'), hooks=hooks, config=config,
        save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
        save_summaries_secs=None, log_step_count_steps=None)

    threads = concurrent.futures.ThreadPoolExecutor(len(scheme.train_ops))
    with session:
        progress = console.Progress('train', session.run(global_step))
        for ps in range(cluster_spec.num_tasks('ps')):
            progress.say(traffic.kept('ps', ps, tf.global_variables()))
        measure(progress, session, scheme.train_ops[0], replicas)
        one_at_a_time = threading.Lock()

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1

            def drive(run):
                while time.time() < until and progress.global_step < FLAGS.train_steps:
                    result = run()
                    with one_at_a_time:
                        progress.add(result, replicas)

            with cluster.failures_of_ps():
                list(threads.map(drive, past_the_hooks.runs))
                step_context.run_with_hooks(global_step)

        while progress.global_step < FLAGS.train_steps and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run(test_accuracy))


if __name__ == '__main__':
    console.run(main)
