"""Ring all-reduce: synchronous SGD without a server.

    g_i <- g(x)                                   on each of the N workers
    s   <- sum of the g_i                         around the ring, in 2 (N - 1) messages
    x   <- x - learning_rate * s / N              on each worker

What this worker keeps: all parameters, bit for bit as the others have them. What it sends: in each
step 2 (N - 1) pieces of the gradients, each 1 / N of them, to the next worker in the ring.

Pitch Patarasuk, Xin Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69(2), 2009. --scale_learning_rate and --warmup_steps:
Priya Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677.
"""

import console  # first: it loads TensorFlow without its banners
import sys
import time

from absl import flags
import cluster
import model
import ring
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 2000, 'updates, each by all workers together', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all tasks')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local step')
flags.DEFINE_enum('implementation', 'ring', ['ring', 'collective'],
                  "ring: the queues in this file; collective: TensorFlow's own all-reduce")
flags.DEFINE_boolean('scale_learning_rate', False, 'multiply the learning rate by how many '
                     'workers there are')
flags.DEFINE_integer('warmup_steps', 0, 'steps in which the learning rate grows to the scaled one',
                     lower_bound=0)


def gradients_at(loss_at, values):
    """Makes a fresh batch's gradients at `values`.

    Returns:
      A list of dense tensors of the values' shapes, and the batch's loss and accuracy.
    """
    loss, accuracy = loss_at(values)
    gradients = tf.gradients(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, accuracy


def hop(chunk, expected, name, task_index, num_workers):
    """Sends a piece to the next worker in the ring; receives one from the worker before.

    The queue is in the memory of the receiver: so the piece travels once, with the enqueue.

    Args:
      chunk: [m] tensor, what to send.
      expected: [n] tensor, of the shape that comes.
      name: string, of this hop; the same on all workers.
      task_index: int, which worker this is.
      num_workers: int, how many there are.

    Returns:
      The op that sends, and a tensor of the shape and dtype of `expected`.
    """
    def queue(task, like):
        with tf.device(f'/job:worker/task:{task}/device:CPU:0'):
            return tf.FIFOQueue(1, like.dtype, [like.shape], shared_name=name)

    return (queue((task_index + 1) % num_workers, chunk).enqueue(chunk),
            queue(task_index, expected).dequeue())


def scatter_reduce(chunks, task_index, num_workers):
    """Sums each piece over all workers; each worker ends with one whole sum.

    Args:
      chunks: list of num_workers tensors, the pieces of this worker.
      task_index: int, which worker this is.
      num_workers: int, how many there are.

    Returns:
      The pieces, of which the one at task_index + 1 is whole and the others are not; and the list
      of ops that send.
    """
    chunks, sends = list(chunks), []
    for i in range(num_workers - 1):
        mine, theirs = (task_index - i) % num_workers, (task_index - i - 1) % num_workers
        send, received = hop(chunks[mine], chunks[theirs], f'scatter_reduce_{i}', task_index,
                             num_workers)
        chunks[theirs] += received
        sends.append(send)
    return chunks, sends


def all_gather(chunks, task_index, num_workers):
    """Gives each worker the whole sums of the others.

    Args:
      chunks: list of num_workers tensors, from `scatter_reduce`.
      task_index: int, which worker this is.
      num_workers: int, how many there are.

    Returns:
      The pieces, all whole; and the list of ops that send.
    """
    chunks, sends = list(chunks), []
    for i in range(num_workers - 1):
        mine, theirs = (task_index + 1 - i) % num_workers, (task_index - i) % num_workers
        send, chunks[theirs] = hop(chunks[mine], chunks[theirs], f'all_gather_{i}', task_index,
                                   num_workers)
        sends.append(send)
    return chunks, sends


def ring_sum(vector, task_index, num_workers):
    """Sums a vector over all workers, around the ring.

    Each piece is summed in one order, by one worker after the other, and then copied: the result is
    the same on all, bit for bit.

    Args:
      vector: [n] tensor; n may be any number, known when the graph is built.
      task_index: int, which worker this is.
      num_workers: int, how many there are.

    Returns:
      [n] tensor.
    """
    size, rest = divmod(vector.shape.num_elements(), num_workers)
    sizes = [size + 1] * rest + [size] * (num_workers - rest)
    chunks, reduce_sends = scatter_reduce(tf.split(vector, sizes), task_index, num_workers)
    chunks, gather_sends = all_gather(chunks, task_index, num_workers)
    with tf.control_dependencies(reduce_sends + gather_sends):
        return tf.concat(chunks, axis=0)


def collective_sum(vector, num_workers):
    """The same with TensorFlow's own operation."""
    if num_workers == 1:
        return vector
    return tf.raw_ops.CollectiveReduce(
        input=vector, group_size=num_workers, group_key=1, instance_key=1, merge_op='Add',
        final_op='Id', subdiv_offsets=[0])


class Scheme:
    """Ring all-reduce: one gradient, its sum over the workers, one step.

    Attributes:
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      pull: list of tensors, the global step and this worker's parameters as read.
      train_op: dict of tensors to run again and again: 'global_step' after the update; 'loss' and
        'accuracy' on this worker's batch.
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
          variables: list of `tf.Variable`, this worker's own.
          global_step: integer `tf.Variable` of this worker, counts updates.
          hparams: object with the attributes implementation, learning_rate, scale_learning_rate and
            warmup_steps.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.hooks = []
        self.pull = [global_step.read_value()] + [variable.read_value() for variable in variables]
        gradients, loss, accuracy = gradients_at(loss_at, self.pull[1:])
        # All in one: a message for each variable would take longer.
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
        if hparams.implementation == 'ring':
            total = ring_sum(flat, task_index, num_workers)
        else:
            total = collective_sum(flat, num_workers)
        sizes = [gradient.shape.num_elements() for gradient in gradients]
        means = [tf.reshape(part, gradient.shape)
                 for part, gradient in zip(tf.split(total / num_workers, sizes), gradients)]
        optimizer = tf.train.GradientDescentOptimizer(
            scaled_learning_rate(hparams, num_workers, global_step))
        with tf.control_dependencies([optimizer.apply_gradients(zip(means, variables))]):
            self.train_op = {'global_step': global_step.assign_add(1), 'loss': loss,
                             'accuracy': accuracy}

    def wait(self):
        """Returns when this worker may begin its next run: at once, the others are in the run."""


def scaled_learning_rate(hparams, factor, global_step):
    """Linear scaling, and a gradual warm-up to it (Goyal et al., section 2).

    Args:
      hparams: object with the attributes learning_rate, scale_learning_rate and warmup_steps.
      factor: int, by how much the batch of a step is larger than one worker's.
      global_step: integer `tf.Variable`.

    Returns:
      A float32 scalar tensor on the ps: learning_rate, or with scale_learning_rate factor times
      that, to which it grows by the same amount in each of the first warmup_steps steps.
    """
    first = hparams.learning_rate
    full = first * factor if hparams.scale_learning_rate else first
    with tf.device(global_step.device):
        if not hparams.warmup_steps:
            return tf.constant(full, tf.float32)
        done = tf.cast(global_step.read_value(), tf.float32) / hparams.warmup_steps
        return first + (full - first) * tf.minimum(done, 1.)


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
    # Differs from Distributed-Setup: no ps. Each worker has all parameters, and is its own chief.
    resolver = cluster.resolve('worker', jobs=['worker'])
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    config = tf.ConfigProto(
        # A session waits for all tasks that it sees. TensorFlow's all-reduce wants to see all.
        device_filters=None if FLAGS.implementation == 'collective' else [
            f'/job:worker/task:{i}' for i in (0, task_index, (task_index + 1) % num_workers)],
        intra_op_parallelism_threads=FLAGS.num_threads,
        inter_op_parallelism_threads=FLAGS.num_threads,
        gpu_options=tf.GPUOptions(allow_growth=True),
        experimental=tf.ConfigProto.Experimental(
            collective_group_leader='/job:worker/replica:0/task:0'))
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(worker_device):
        global_step = tf.train.get_or_create_global_step()
        _, test_accuracy = model.loss_and_accuracy(*model.test_set())
        parameters = tf.trainable_variables()
        batches = model.train_batches(FLAGS.batch_size, Scheme.local_steps(FLAGS), task_index,
                                      num_workers, FLAGS.seed)
        loss_at = make_loss_at(parameters, batches, straggler_delay(task_index))
        scheme = Scheme(loss_at, parameters, global_step, FLAGS, task_index, num_workers)
        together = ring.Ring(resolver, tf.global_variables())

    past_the_hooks = PastTheHooks(scheme)
    model_dir = FLAGS.model_dir if is_chief else None  # all have the same to save
    console.check_model_dir(model_dir)
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=model_dir,
            scaffold=tf.train.Scaffold(saver=console.Saver(f'worker {task_index}')),
            hooks=scheme.hooks + [past_the_hooks, together], config=config,
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as session:
        progress = console.Progress(f'worker {task_index}', session.run(global_step), is_chief)

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with ring.failures(f'worker {task_index}'):
                while time.time() < until and progress.global_step < FLAGS.train_steps:
                    together.wait()
                    progress.add(past_the_hooks.run())
                step_context.run_with_hooks(global_step)

        while progress.global_step < FLAGS.train_steps:
            session.run_step_fn(train)
        progress.done()
        if is_chief:
            progress.test(session.run(test_accuracy))
    together.leave(server)


if __name__ == '__main__':
    console.run(main)
