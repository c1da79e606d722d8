"""Ring all-reduce: synchronous SGD without a server.

    g_i <- g(x)                                   on each of the N workers
    s   <- sum of the g_i                         around the ring, in 2 (N - 1) messages
    x   <- x - learning_rate * s / N              on each worker

What this worker keeps: all parameters, bit for bit the same as the others. What it sends: in each
step 2 (N - 1) pieces, each 1 / N of the gradients, to the next worker in the ring; with
--compression, what N - 1 workers have encoded, or pieces of thin factors of the gradients.

Pitch Patarasuk, Xin Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69(2), 2009. --scale_learning_rate and --warmup_steps:
Priya Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--worker_hosts=alpha:2223,beta:2223"
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

import contextlib
import functools
import types

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers
from tfdist.model import building, model_file
from tfdist.scheme import compression, seam, warmup
from tfdist.start import console
from tfdist.training import checkpoints, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf
import agreement
import compressing
import elastic
import grouping
import powersgd
import ring
import sockets

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=2000, learning_rate=0.1,
                      counted='updates, each by all workers together')
flags.DEFINE_enum('implementation', 'sockets', ['sockets', 'ring', 'collective'],
                  "sockets: past TensorFlow's servers, where all workers can reach each other so; "
                  "ring: the queues in this file; collective: TensorFlow's own all-reduce")
flags.DEFINE_integer('sockets_port', 0, 'with --implementation=sockets worker i listens on this '
                     'port plus i, until its neighbour has connected; 0: on any that is free',
                     lower_bound=0, upper_bound=65535)
warmup.define('workers there are')
compression.define()
flags.DEFINE_integer('min_workers', None, 'if workers are lost, the others go on as long as there '
                     'are so many, more than half of all; by default all end', lower_bound=1)


class AllReduce:
    """Sums vectors over all workers, around a ring: the ops of one worker."""

    def __init__(self, task_index, num_workers, device_of, number=0):
        """Takes a place in the ring.

        Args:
          task_index: int, the index of this worker.
          num_workers: int, the number of workers.
          device_of: function of a worker's index that returns its device.
          number: int, which of the vectors of a dtype it is that a graph sums, the same on all
            workers.
        """
        self._task_index = task_index
        self._num_workers = num_workers
        self._device_of = device_of
        self._number = number

    def hop(self, chunk, expected, name):
        """Sends a piece to the next worker in the ring, and receives one from the worker before.

        The queue is in the memory of the receiver, so that the piece travels once, in the enqueue.

        Args:
          chunk: [m] tensor to send.
          expected: [n] tensor of the shape to receive.
          name: string, the name of this hop, the same on all workers.

        Returns:
          The op that sends, and a tensor of the shape and dtype of `expected`.
        """
        def queue(task, like):
            with tf.device(self._device_of(task)), tf.device('/device:CPU:0'):
                return tf.FIFOQueue(1, like.dtype, [like.shape],
                                    shared_name=f'{name}_{self._number}_{like.dtype.name}_to_{task}')

        following = (self._task_index + 1) % self._num_workers
        return queue(following, chunk).enqueue(chunk), queue(self._task_index, expected).dequeue()

    def scatter_reduce(self, chunks):
        """Sums each piece over all workers; each worker ends with one whole sum.

        Args:
          chunks: list of num_workers tensors, the pieces of this worker.

        Returns:
          The pieces, of which only the one at task_index + 1 is a whole sum; and the list of ops
          that send.
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
          The pieces, all whole sums; and the list of ops that send.
        """
        chunks, sends = list(chunks), []
        for i in range(self._num_workers - 1):
            mine, theirs = (self._task_index + 1 - i) % len(chunks), (
                self._task_index - i) % len(chunks)
            send, chunks[theirs] = self.hop(chunks[mine], chunks[theirs], f'all_gather_{i}')
            sends.append(send)
        return chunks, sends

    def sum(self, vector):
        """Sums a vector over all workers.

        Each piece is summed in one order, by one worker after the other, and then copied, so that
        the result is the same on all workers, bit for bit.

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

    def gather(self, vector):
        """Gives each worker the vectors of all.

        Args:
          vector: [n] tensor; n is the same on all workers, and known when the graph is built.

        Returns:
          [num_workers, n] tensor, in the order of the workers.
        """
        # As in a sum each worker begins with the piece after its own index.
        chunks, sends = self.all_gather([vector] * self._num_workers)
        with tf.control_dependencies(sends):
            return tf.stack(chunks[1:] + chunks[:1])


def collective_sum(vector, num_workers, key):
    """Sums a vector by TensorFlow's own operation; `key` is an int, different for each vector."""
    if num_workers == 1:
        return vector
    return tf.raw_ops.CollectiveReduce(
        input=vector, group_size=num_workers, group_key=1, instance_key=key, merge_op='Add',
        final_op='Id', subdiv_offsets=[0])


class Scheme(seam.Seam):
    """Ring all-reduce: one gradient, its sum over the workers, one step."""

    tables_stay_on_ps = False  # each worker has all parameters
    not_recorded = 'there is no center that is pulled and pushed'

    def __init__(self, network, global_step, hparams, task_index, num_workers, place=None,
                 exchange=None, marks=None):
        """See `seam.Seam`; by default all workers, no `sockets.Exchange` and no `elastic.Marks`."""
        self._place = place or ring.Place.among_all(task_index, num_workers)
        self._exchange, self._marks = exchange, marks
        super().__init__(network, global_step, hparams, task_index, num_workers)
        if marks:
            self.train_op['global_step'] = marks.end(list(self.train_op.values()),
                                                     self.train_op['global_step'])

    def local_steps_per_count(self, hparams):
        return self.num_workers

    @staticmethod
    def why_not_simulated(hparams):
        """See `seam.Seam`."""
        if compression.is_asked_for(hparams) and powersgd.rank_of(hparams):
            return 'in a simulated ring one sum goes around in a step, and thin factors take two'
        if compression.is_asked_for(hparams) and hparams.implementation == 'collective':
            return "--compression does not go with TensorFlow's own all-reduce"
        return None

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        if self._place.before:
            network.pace = elastic.Pace(network.pace, self._place.before)
        self.pull = [global_step.read_value()] + [variable.read_value() for variable in variables]
        optimizer = network.optimizer(
            warmup.scaled_learning_rate(hparams, num_workers, global_step), clips=True)
        gradients, self.computed = network.gradients_at(self.pull[1:], clipped=False)
        self.asks_for_sums = hparams.implementation != 'sockets'
        self.pushed, self._implementation = [], hparams.implementation
        rank = powersgd.rank_of(hparams)
        compressed = (powersgd.PowerSGD(rank, variables) if rank
                      else compression.of(self, hparams, optimizer=optimizer))
        self.own = compressed.own
        if rank:  # what goes around second depends on the first means: in one run, as in training
            means = compressed.means(gradients, self._means_of)
        elif compression.is_asked_for(hparams):
            sent, self.sums = compressed.sent_around(gradients, self._of_all)
            self.pushed, means = [sent], [total / num_workers for total in self.sums]
        else:
            means = self._means_of(gradients)
        begun = self._marks.begin(self.sums, self.pull[0] + 1) if self._marks else []
        with tf.control_dependencies(begun):
            applied = optimizer.apply_gradients(zip(means, variables))
        with tf.control_dependencies([applied]):
            self.push = compressed.arrived({'global_step': global_step.assign_add(1)})

    def _following(self):
        return f'worker {self._place.workers[(self._place.index + 1) % self.num_workers]}'

    def _by_queues(self, number=0):
        return AllReduce(self._place.index, self.num_workers,
                         lambda index: self.worker_device(self._place.workers[index]), number)

    def _means_of(self, tensors):
        """Returns the means of tensors over all workers, a list; another exchange in each call."""
        vectors = grouping.flatten(tensors)
        sums = self._sums_of(vectors, len(self.sums))
        self.pushed, self.sums = self.pushed + vectors, self.sums + sums
        return grouping.unflatten([total / self.num_workers for total in sums], tensors)

    def _sums_of(self, vectors, before):
        """Returns the sums of vectors over all workers, a list; `before`: how many a step had."""
        if self._exchange:
            return self._exchange.sums(vectors, self._following())
        if self._implementation == 'collective':
            return [collective_sum(vector, self.num_workers, key)
                    for key, vector in enumerate(vectors, before + 1)]
        with self._place.own_queues():
            return [self._by_queues(number).sum(vector)
                    for number, vector in enumerate(vectors, before)]

    def _of_all(self, vector):
        """Returns a vector of each worker, [num_workers, n] for an [n] tensor, in their order."""
        if self._exchange:
            self.gathered = self._exchange.gathered(vector, self._following())
        else:
            with self._place.own_queues():
                self.gathered = self._by_queues().gather(vector)
        return self.gathered


def train_in_a_ring(place, resolver, server, run, attempt=None, stop_watching=None):
    """Trains in a ring to the end.

    Args:
      place: `ring.Place` of this worker.
      resolver: cluster resolver.
      server: `tf.train.Server` of this worker.
      run: object with the attributes progress, done and tested, which remembers for the next ring.
      attempt: `elastic.Attempt`, or None if all end when one is lost.
      stop_watching: `threading.Event` to set at the end in this case.

    Raises:
      elastic.BrokenError: if there has to be another ring.
    """
    task_index, num_workers, is_first = resolver.task_id, len(place.workers), not place.index
    exchange = meet(place, resolver, server, attempt)
    tf.set_random_seed(FLAGS.seed)
    with tf.device(place.device(place.index)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        # Distributed: each worker trains on its own shard of the examples.
        batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS), place.index,
                                      num_workers, FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        test = (evaluation.Test(model, network.at_variables, values=network.tested_values)
                if is_first else None)
        marks = attempt and elastic.Marks(place.device(place.index))
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers, place, exchange,
                        marks)
        compressing.tell(scheme, FLAGS)
        # Distributed: all begin with the values of one worker, and end together.
        members = resolver, place, tf.global_variables(), exchange
        together = (elastic.Ring(*members, attempt, marks) if attempt
                    else ring.Ring(*members, stop_watching))

    # Distributed: a sum may hold this server's only thread: worker 0's is asked who is busy.
    first = resolver.cluster_spec().task_address('worker', place.workers[0])
    trainer = sessions.Trainer.of(scheme, test, stop_device=place.device(0),
                                  stop_target=f'grpc://{first}')
    # Distributed: all workers have the same parameters, so the first one alone saves and tests.
    own = together.session_options(checkpoints.Saver(f'worker {task_index}'), server)
    own['hooks'] = scheme.hooks + [trainer] + own['hooks']
    with together.opened(lambda: tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, config=session_config(place), save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None, **own)) as session:
        with together.failures():
            step = session.run(global_step)
        run.progress = run.progress or report.Progress(f'worker {task_index}', step, is_first,
                                                       model)
        run.progress.global_step = step
        while run.progress.goes_on():
            trainer.train_for_a_second(session, run.progress, local_steps,
                                       test and test.now_and_then, failures=together.failures)
            together.take_in()
        if not run.done:
            run.progress.done()
            run.done = True
        if test and not run.tested:
            with together.failures():
                test.at_the_end(session, run.progress)
            run.tested = True
    together.leave(server)


def meet(place, resolver, server, attempt):
    """Returns the `sockets.Exchange` of this worker; None if the sums go through the servers."""
    if FLAGS.implementation != 'sockets':
        return None
    with elastic.failures() if attempt else ring.failures(f'worker {resolver.task_id}'):
        return sockets.meet(place, resolver, server, session_config(place),
                            port=FLAGS.sockets_port and FLAGS.sockets_port + resolver.task_id,
                            limit_secs=ring.LOST_AFTER_SECS if attempt else float('inf'))


def session_config(place):
    """Returns the configuration of a session in a ring."""
    # Distributed: a session waits for all tasks that it sees. It has to see the neighbours in the
    # ring, and the first worker; TensorFlow's own all-reduce wants to see all.
    neighbours = [place.device(i) for i in (0, place.index, (place.index + 1) % len(place.workers))]
    # A sum over sockets waits in a thread. With these flags others ask this server for something
    # else meanwhile: the last step, who is ready for the timeline, the board of an elastic ring.
    asked = FLAGS.stop_after_evals_without_gain or FLAGS.timeline or FLAGS.min_workers is not None
    return servers.config(
        waiting_ops=int(FLAGS.implementation == 'sockets' and bool(asked)),
        device_filters=None if FLAGS.implementation == 'collective' else neighbours,
        experimental=tf.ConfigProto.Experimental(
            collective_group_leader='/job:worker/replica:0/task:0'))


def meet_and_train(_):
    compressing.check(FLAGS)
    # Distributed: there is no ps. Each worker has all parameters, and is its own chief.
    resolver = membership.resolve('worker', jobs=['worker'])
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    place = ring.Place.among_all(task_index, cluster_spec.num_tasks('worker'))
    if FLAGS.min_workers is not None:
        agreement.check(FLAGS.min_workers, len(place.workers))
        place = ring.Place([task_index], 0, 0, '', 0)
    # Distributed: workers reach each other through their servers.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=session_config(place))
    run = types.SimpleNamespace(progress=None, done=False, tested=False)
    if FLAGS.min_workers is None:
        # Distributed: a worker that is gone ends the run, so it is looked for.
        watching = liveness.watch(resolver, 'worker', patience_secs=ring.LOST_AFTER_SECS,
                                  over=evaluation.is_over)
        train_in_a_ring(place, resolver, server, run, stop_watching=watching)
        return
    workers = agreement.Workers(resolver, server)
    while True:
        place = workers.next_place(*elastic.Marks.read(server.target, task_index))
        attempt = elastic.Attempt(workers)
        with contextlib.suppress(elastic.BrokenError):
            attempt.run(functools.partial(train_in_a_ring, place, resolver, server, run, attempt))


if __name__ == '__main__':
    console.run(meet_and_train)
