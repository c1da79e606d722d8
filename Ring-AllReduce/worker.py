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

import collections
import time

from absl import flags
from tfdist import (building, checkpoints, cluster, console, evaluation, models, report, ring,
                    seam, sessions, training_flags, warmup)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=2000, learning_rate=0.1,
                      counted='updates, each by all workers together')
flags.DEFINE_enum('implementation', 'ring', ['ring', 'collective'],
                  "ring: the queues in this file; collective: TensorFlow's own all-reduce")
warmup.define('workers there are')


class AllReduce:
    """Sums vectors over all workers, around a ring, as one of its workers sees it."""

    def __init__(self, task_index, num_workers, device_of):
        """Takes its place in the ring.

        Args:
          task_index: int, which worker this is.
          num_workers: int, how many there are.
          device_of: function of a worker's index that returns its device.
        """
        self._task_index = task_index
        self._num_workers = num_workers
        self._device_of = device_of

    def hop(self, chunk, expected, name):
        """Sends a piece to the next worker in the ring; receives one from the worker before.

        The queue is in the memory of the receiver: so the piece travels once, with the enqueue.

        Args:
          chunk: [m] tensor, what to send.
          expected: [n] tensor, of the shape that comes.
          name: string, of this hop; the same on all workers.

        Returns:
          The op that sends, and a tensor of the shape and dtype of `expected`.
        """
        def queue(task, like):
            with tf.device(self._device_of(task)), tf.device('/device:CPU:0'):
                return tf.FIFOQueue(1, like.dtype, [like.shape],
                                    shared_name=f'{name}_{like.dtype.name}_to_{task}')

        following = (self._task_index + 1) % self._num_workers
        return queue(following, chunk).enqueue(chunk), queue(self._task_index, expected).dequeue()

    def scatter_reduce(self, chunks):
        """Sums each piece over all workers; each worker ends with one whole sum.

        Args:
          chunks: list of num_workers tensors, the pieces of this worker.

        Returns:
          The pieces, of which the one at task_index + 1 is whole and the others are not; and the
          list of ops that send.
        """
        chunks, sends = list(chunks), []
        for i in range(self._num_workers - 1):
            mine, theirs = (self._task_index - i) % len(chunks), (
                self._task_index - i - 1) % len(chunks)
            send, received = self.hop(chunks[mine], chunks[theirs], f'scatter_reduce_{i}')
            chunks[theirs] += received
            sends.append(send)
        return chunks, sends

    def all_gather(self, chunks):
        """Gives each worker the whole sums of the others.

        Args:
          chunks: list of num_workers tensors, from `scatter_reduce`.

        Returns:
          The pieces, all whole; and the list of ops that send.
        """
        chunks, sends = list(chunks), []
        for i in range(self._num_workers - 1):
            mine, theirs = (self._task_index + 1 - i) % len(chunks), (
                self._task_index - i) % len(chunks)
            send, chunks[theirs] = self.hop(chunks[mine], chunks[theirs], f'all_gather_{i}')
            sends.append(send)
        return chunks, sends

    def sum(self, vector):
        """Sums a vector over all workers; one of each dtype in a graph.

        Each piece is summed in one order, by one worker after the other, and then copied: the
        result is the same on all, bit for bit.

        Args:
          vector: [n] tensor; n may be any number, known when the graph is built.

        Returns:
          [n] tensor.
        """
        size, rest = divmod(vector.shape.num_elements(), self._num_workers)
        sizes = [size + 1] * rest + [size] * (self._num_workers - rest)
        chunks, reduce_sends = self.scatter_reduce(tf.split(vector, sizes))
        chunks, gather_sends = self.all_gather(chunks)
        with tf.control_dependencies(reduce_sends + gather_sends):
            return tf.concat(chunks, axis=0)


def collective_sum(vector, num_workers, key):
    """The same with TensorFlow's own operation; `key` is an int, another for each vector."""
    if num_workers == 1:
        return vector
    return tf.raw_ops.CollectiveReduce(
        input=vector, group_size=num_workers, group_key=1, instance_key=key, merge_op='Add',
        final_op='Id', subdiv_offsets=[0])


def flatten(tensors):
    """Puts tensors into one vector for each dtype: a message for each would take longer.

    Returns:
      List of vectors.
    """
    of_dtype = collections.OrderedDict()
    for tensor in tensors:
        of_dtype.setdefault(tensor.dtype, []).append(tf.reshape(tensor, [-1]))
    return [tf.concat(parts, axis=0) for parts in of_dtype.values()]


def unflatten(vectors, like):
    """Returns a list of tensors of the shapes and dtypes of `like`, from what `flatten` made."""
    parts = {}
    for vector in vectors:
        sizes = [each.shape.num_elements() for each in like if each.dtype == vector.dtype]
        parts[vector.dtype] = iter(tf.split(vector, sizes))
    return [tf.reshape(next(parts[each.dtype]), each.shape) for each in like]


class Scheme(seam.Seam):
    """Ring all-reduce: one gradient, its sum over the workers, one step.

    Attributes:
      sums: list of tensors, those of `pushed` summed over all workers; what `push` waits for.
    """

    with_tables = False  # each worker has all parameters

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = [global_step.read_value()] + [variable.read_value() for variable in variables]
        gradients, self.computed = network.gradients_at(self.pull[1:])
        self.pushed = flatten(gradients)
        if hparams.implementation == 'ring':
            together = AllReduce(task_index, num_workers, self.worker_device)
            self.sums = [together.sum(vector) for vector in self.pushed]
        else:
            self.sums = [collective_sum(vector, num_workers, key)
                         for key, vector in enumerate(self.pushed, 1)]
        means = unflatten([total / num_workers for total in self.sums], gradients)
        optimizer = network.optimizer(
            warmup.scaled_learning_rate(hparams, num_workers, global_step))
        with tf.control_dependencies([optimizer.apply_gradients(zip(means, variables))]):
            self.push = {'global_step': global_step.assign_add(1)}


def meet_and_train(_):
    # No ps: each worker has all parameters, and is its own chief.
    resolver = cluster.resolve('worker', jobs=['worker'])
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # A session waits for all tasks that it sees. TensorFlow's all-reduce wants to see all.
    neighbours = [f'/job:worker/task:{i}' for i in (0, task_index, (task_index + 1) % num_workers)]
    config = sessions.config(
        device_filters=None if FLAGS.implementation == 'collective' else neighbours,
        experimental=tf.ConfigProto.Experimental(
            collective_group_leader='/job:worker/replica:0/task:0'))
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(worker_device):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        batches = model.train_batches(FLAGS.batch_size, local_steps, task_index, num_workers,
                                      FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.with_tables)
        test = evaluation.Test(model, network.at_variables) if is_chief else None
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers)
        together = ring.Ring(resolver, tf.global_variables())

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, scheme.wait, test,
                                           board='/job:worker/task:0')
    model_dir = FLAGS.model_dir if is_chief else None  # all have the same to save
    checkpoints.claim(model_dir, f'worker {task_index}')
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=model_dir,
            scaffold=tf.train.Scaffold(saver=checkpoints.Saver(f'worker {task_index}')),
            hooks=scheme.hooks + [past_the_hooks, together], config=config,
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief)

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with ring.failures(f'worker {task_index}'):
                while time.time() < until and progress.goes_on():
                    progress.add(past_the_hooks.run(), local_steps)
                step_context.run_with_hooks(global_step)
                if test:
                    test.now_and_then(step_context.session, progress)

        while progress.goes_on():
            session.run_step_fn(train)
        progress.done()
        if test:
            progress.test(session.run_step_fn(test.in_step))
    together.leave(server)


if __name__ == '__main__':
    console.run(meet_and_train)
