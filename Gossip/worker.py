"""Gossip: workers average their parameters with those of neighbours. There is no ps and no center.

--algorithm=ad-psgd, asynchronous. Worker i, in each step, with a neighbour j drawn at random:

    g <- g_i(x_i)
    E <- (x_i - x_j) / 2;  x_i <- x_i - E;  x_j <- x_j + E                       one action
    x_i <- x_i - learning_rate * g

--algorithm=d-psgd, all workers together, with n neighbours each:

    x_i <- (x_i + sum of the neighbours' x_j) / (n + 1) - learning_rate * g_i(x_i)

--algorithm=sgp, all workers together, each sends to one and receives from another: `push_sum.py`.

What a worker keeps: its own replica x_i of all parameters, and its own count of steps. What it
sends: with AD-PSGD in each step x_i to the neighbour, from which E comes back; with D-PSGD x_i to
each neighbour. The gradient is that of before the averaging. What is tested and saved is the mean
of all replicas: `mean.py`.

Xiangru Lian, Ce Zhang, Huan Zhang, Cho-Jui Hsieh, Wei Zhang, Ji Liu, "Can Decentralized Algorithms
Outperform Centralized Algorithms?", arXiv 1705.09056 (D-PSGD). Xiangru Lian, Wei Zhang, Ce Zhang,
Ji Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", arXiv 1710.06952.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--worker_hosts=alpha:2223,beta:2223"
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

import functools
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers
from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, transfer
from tfdist.start import console
from tfdist.training import evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf
import mean
import meeting
import others
import pairs
import push_sum
import together
import swaps
import topology
import visits

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=1500, learning_rate=0.1,
                      counted='steps of each worker, which counts its own')
flags.DEFINE_enum('algorithm', 'ad-psgd', ['ad-psgd', 'd-psgd', 'sgp'],
                  'ad-psgd: pairs of workers, at any time; d-psgd: all workers together, each with '
                  'all of its neighbours; sgp: all together, each sends half to another one')
flags.DEFINE_enum('graph', 'ring', ['ring', 'exponential'],
                  'to whom workers send in sgp: the next one; or 1, 2, 4, ... places ahead in turn')
flags.DEFINE_enum('roles', None, ['any', 'bipartite'],
                  'who starts exchanges in ad-psgd; bipartite: only workers 0, 2, 4, ..., which is '
                  'the default for an even number of workers; otherwise any')
flags.DEFINE_enum('implementation', 'sockets', ['sockets', 'servers'],
                  "how replicas travel; sockets: past TensorFlow's servers, where all workers can "
                  'reach each other so; servers: through these')
flags.DEFINE_integer('sockets_port', 0, 'with --implementation=sockets worker i listens on this '
                     'port plus i; 0: on any that is free', lower_bound=0, upper_bound=65535)
flags.DEFINE_float('exchange_secs', 10, 'after how long a neighbour that does not answer in an '
                   'exchange of ad-psgd is left out', lower_bound=1)


class Scheme(seam.Seam):
    """A step of D-PSGD; of SGP, for which see `push_sum`; or of AD-PSGD.

    Past TensorFlow's servers the replicas of others come during the step, while it computes the
    gradient: see `swaps` and `visits`. Through these an exchange of AD-PSGD comes before the step:
    see `pairs.Pairs`.

    Attributes:
      before: list of `tf.Variable` of this worker, its replica before the exchange that came before
        this step; empty if none comes before it.
      weights: list of one `tf.Variable`, the weight of its replica in SGP; else empty.
      by_sockets: `swaps.Swaps`, or a `visits.Visits`, or None if all goes through the servers.
    """

    tables_stay_on_ps = False  # a replica is whole
    not_recorded = 'there is no center that is pulled and pushed'
    not_compared = 'there is no center, only a mean of replicas that no worker has'
    before = weights = meetings = ()

    def __init__(self, network, global_step, hparams, task_index, num_workers, by_sockets=None):
        """See `seam.Seam`; takes a `swaps.Swaps`, or a `visits.Visits`, or None."""
        self.by_sockets = by_sockets
        super().__init__(network, global_step, hparams, task_index, num_workers)
        push_sum.take_turns(self)

    def local_steps_per_count(self, hparams):
        return self.num_workers

    def at(self, step):
        """See `seam.Seam`."""
        return [self, *self.others][step % (1 + len(self.others))]

    def make(self, network, global_step, hparams, task_index, num_workers):
        self.asks_for_sums = hparams.implementation == 'servers'
        if hparams.algorithm == 'sgp':
            push_sum.make(self, network, global_step, hparams)
            return
        variables = network.variables
        optimizer = network.optimizer(hparams.learning_rate)
        is_asynchronous = hparams.algorithm == 'ad-psgd'
        before = is_asynchronous and not self.by_sockets and topology.partners_of(
            task_index, num_workers, hparams.roles)
        self.before = [exchange.own_variable(variable.read_value(), f'before/{variable.op.name}')
                       for variable in variables if before]
        x = [variable.read_value() for variable in self.before or variables]
        if is_asynchronous and self.by_sockets:
            x = self.by_sockets.visited(variables, x)
        self.pull = [global_step.read_value()] + x
        self.pushed, self.computed = network.gradients_at(x)
        self.own = self.before
        mixed = []
        if not is_asynchronous:
            neighbours = topology.neighbours_of(task_index, num_workers)
            mixed = [exchange.assign(variables, self.mix(x, task_index, neighbours))]
        elif self.by_sockets:
            mixed = [variable.assign_sub(half, read_value=False)
                     for variable, half in zip(variables, self.by_sockets.halves(x))]
        with tf.control_dependencies(mixed):
            applied = optimizer.apply_gradients(zip(self.pushed, variables))
        with tf.control_dependencies([applied]):
            self.push = {'global_step': global_step.assign_add(1)}

    def mix(self, x, task_index, neighbours):
        """Sends x to the neighbours, and returns the mean of x and of what they send in this step.

        All add in the order of the workers: so a mean of all is the same on all, bit for bit.

        Args:
          x: list of tensors, the replica.
          task_index: int, this worker.
          neighbours: list of ints.
        """
        if not neighbours:
            return x
        if self.by_sockets:
            return transfer.unbundle(self.by_sockets.means(transfer.bundle(x)), x)
        sends, parts = self.swap(x, task_index, neighbours, neighbours)
        parts[task_index] = x
        with tf.control_dependencies(sends):
            return [functools.reduce(tf.add, values) * (1 / len(parts))  # add_n may reorder
                    for values in zip(*[parts[each] for each in sorted(parts)])]

    def swap(self, x, task_index, receivers, senders):
        """Sends x to some workers, and receives what some send in this step.

        A queue is in the memory of the receiver, for one pair in one direction. It holds one
        element: to send waits only until the receiver has received what was sent to it before.

        Args:
          x: list of tensors; all workers send those of the same shapes and dtypes.
          task_index: int, this worker.
          receivers: list of ints; each of them has this worker among its senders in this step.
          senders: list of ints; each of them has this worker among its receivers.

        Returns:
          List of ops that send; and a dict by sender of lists of tensors.
        """
        def queue(sender, receiver):
            return tf.FIFOQueue(1, [value.dtype for value in x], [value.shape for value in x],
                                shared_name=f'x_{sender}_to_{receiver}')

        sends, parts = [], {}
        for each in receivers:
            with tf.device(self.worker_device(each)), tf.device('/device:CPU:0'):
                sends.append(queue(task_index, each).enqueue(transfer.to_worker(x)))
        for each in senders:
            with tf.device(self.worker_device(task_index)), tf.device('/device:CPU:0'):
                parts[each] = tf.nest.flatten(queue(each, task_index).dequeue())
        return sends, parts


def watch(resolver):
    """Waits until all workers answer; returns a `threading.Event` that stops to watch them."""
    # Distributed: but for AD-PSGD nobody goes on without a neighbour, so it is looked for.
    watching = liveness.watch(resolver, 'worker', over=evaluation.is_over)
    if FLAGS.algorithm == 'ad-psgd':
        watching.set()
    return watching


def server_of(cluster_spec, task_index, neighbours):
    """Starts this worker's server; returns it, and the `tf.ConfigProto` of sessions on it."""
    # Distributed: a session waits for all tasks that it sees. With AD-PSGD it sees only this
    # worker, as each exchange has its own; else it has to see the neighbours, and worker 0.
    seen = [task_index] if FLAGS.algorithm == 'ad-psgd' else sorted({0, task_index, *neighbours})
    # An exchange over sockets waits in a thread; others ask this server meanwhile how far it is.
    config = servers.config(waiting_ops=int(FLAGS.implementation == 'sockets'),
                            device_filters=list(map(others.device_of, seen)))
    # Distributed: workers reach each other through their servers.
    return tf.train.Server(cluster_spec, 'worker', task_index, config=config), config


def past_servers(resolver, server, neighbours, workers):
    """Connects with other workers past TensorFlow's servers.

    Args:
      resolver: cluster resolver.
      server: `tf.train.Server` of this worker.
      neighbours: list of ints.
      workers: dict of `others.Worker` by index, which need not be there yet.

    Returns:
      `swaps.Swaps` or `visits.Visits`; or None if all goes through the servers.
    """
    if FLAGS.implementation != 'sockets' or not neighbours:
        return None
    me, number = resolver.task_id, resolver.cluster_spec().num_tasks('worker')
    partners = topology.partners_of(me, number, FLAGS.roles)
    is_synchronous = FLAGS.algorithm != 'ad-psgd'
    # Distributed: one of two neighbours connects, and for AD-PSGD who starts exchanges.
    reaches = [each for each in neighbours if each > me] if is_synchronous else partners
    met = meeting.meet(resolver, server, reaches, not is_synchronous,
                       FLAGS.sockets_port and FLAGS.sockets_port + me)
    if not met:
        return None
    if is_synchronous:
        return swaps.Swaps(me, met.connections(neighbours))
    is_visited = any(me in topology.partners_of(each, number, FLAGS.roles) for each in neighbours)
    return visits.Visits(workers, me, partners, FLAGS.seed, FLAGS.exchange_secs, met, is_visited)


def add_to(workers, cluster_spec, server, task_index, variables):
    """Adds each worker of a cluster to a dict by index, as an `others.Worker` with variables."""
    for index, address in enumerate(cluster_spec.job_tasks('worker')):
        target = server.target if index == task_index else f'grpc://{address}'
        workers[index] = others.Worker(index, target, variables)


def train_among_neighbours(_):
    # Distributed: there is no ps. Each worker has all parameters, and is its own chief.
    resolver = membership.resolve('worker', jobs=['worker'])
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    check(num_workers)
    is_first, is_synchronous = task_index == 0, FLAGS.algorithm != 'ad-psgd'
    neighbours = topology.all_neighbours_of(task_index, num_workers, FLAGS.algorithm, FLAGS.graph)
    server, config = server_of(cluster_spec, task_index, neighbours)
    watching, workers = watch(resolver), {}
    by_sockets = past_servers(resolver, server, neighbours, workers)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(others.device_of(task_index)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        # Distributed: each worker trains on its own shard of the examples.
        batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS), task_index,
                                      num_workers, FLAGS.seed)
        network = building.Network(model, batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        of_all = mean.Mean(network, workers) if is_first else None
        test = mean.Test(model, network, of_all) if is_first else None
        scheme = Scheme(network, global_step, FLAGS, task_index, num_workers, by_sockets)
        if is_first:
            of_all.weights = scheme.weights
        saver = mean.Saver('worker 0', of_all) if is_first else None
        add_to(workers, cluster_spec, server, task_index,
               [*tf.global_variables(), *scheme.weights])
        exchanges = None if is_synchronous else by_sockets
        if scheme.before:
            exchanges = pairs.Pairs(
                workers, task_index, topology.partners_of(task_index, num_workers, FLAGS.roles),
                network.variables, scheme.before, FLAGS.seed, FLAGS.exchange_secs)
        # Distributed: all begin with the values of one worker, and end together.
        ends = together.Together(workers, task_index, neighbours, watching, not is_synchronous)

    trainer = sessions.Trainer.of(
        scheme, test, wait=exchanges.exchange if scheme.before else None,
        stop_device=others.device_of(0) if is_synchronous else None)
    own = ends.session_options(saver)
    failures = functools.partial(together.failures, f'worker {task_index}', by_sockets)
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, config=config, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None,
            hooks=scheme.hooks + [trainer, ends], **own) as session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_first,
                                   model)
        if exchanges:
            exchanges.begin()
        while progress.goes_on():
            trainer.train_for_a_second(session, progress, local_steps, test and test.now_and_then,
                                       failures=failures)
        progress.done()
        if exchanges:
            exchanges.close()
        ends.done()
        if test:
            test.at_the_end(session, progress)
    ends.leave()


def check(num_workers):
    """Ends the program if the flags do not go together."""
    topology.check(FLAGS.roles, num_workers)
    if FLAGS.roles and FLAGS.algorithm != 'ad-psgd':
        sys.exit(f'--roles is for --algorithm=ad-psgd: in {FLAGS.algorithm} all workers do the '
                 'same.')
    if FLAGS.graph != 'ring' and FLAGS.algorithm != 'sgp':
        sys.exit(f'--graph is for --algorithm=sgp: in {FLAGS.algorithm} the workers are a ring.')
    if FLAGS.stop_after_evals_without_gain:
        sys.exit('--stop_after_evals_without_gain: here each worker counts its own steps, and they '
                 'would not all end. Use --train_steps.')


if __name__ == '__main__':
    console.run(train_among_neighbours)
