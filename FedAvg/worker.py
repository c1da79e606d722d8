"""FedAvg: clients train on examples of their own, and the center goes to the mean of their models.

    round: the chief draws clients, and puts a ticket for each into a queue
    take a ticket: a client k, and its round
    x_k <- c                                                                    pull
    epochs times, for each batch of client k:  x_k <- x_k - learning_rate * g(x_k)
    c - x_k to the ps; then admission: it counts if the round is still open     push
    G <- sum over those admitted of n_k (c - x_k), by the sum of their n_k
    c <- c - server_learning_rate * G

n_k is how many examples client k has. With --buffer=K, FedBuff, there are no rounds: workers take
the next client as they are free, and whenever K have pushed

    G <- 1 / K * sum over these of (c as it was when k began - x_k) / sqrt(1 + staleness)

What this worker keeps: nothing but its ticket, and a client keeps nothing from turn to turn. What
it sends, once per client: c - x_k. See clients.py for who has which examples, rounds.py and
buffers.py for the tickets, admissions.py and pushes.py for what counts.

Brendan McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv 1602.05629, algorithm 1.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, transfer
from tfdist.start import console
from tfdist.synchronous import stamps
from tfdist.training import checkpoints, chief, evaluation, sessions, training_flags
from tfdist.start.quiet import tf
import admissions
import buffers
import clients
import fedadam
import pushes
import rounds

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=100, learning_rate=0.1, counted='rounds')
FLAGS.set_default('batch_size', 5)  # a client has few examples
FLAGS.set_default('eval_every_secs', 1)  # what clients say of themselves is of their own examples
flags.DEFINE_integer('clients', 100, 'how many clients there are', lower_bound=1)
flags.DEFINE_float('fraction', 0.1, 'share of the clients that takes part in a round',
                   lower_bound=0, upper_bound=1)
flags.DEFINE_integer('epochs', 5, 'how often a client trains on all its examples in a round',
                     lower_bound=1)
flags.DEFINE_integer('classes_per_client', None, 'sort the examples by class, and deal out so many '
                     'pieces to each client; by default clients have some of all', lower_bound=1)
flags.DEFINE_enum('server_optimizer', 'sgd', ['sgd', 'momentum', 'adam'], 'how the ps moves the '
                  'center: FedAvg, FedAvgM or FedAdam')
flags.DEFINE_float('server_learning_rate', None, 'nu, step size of the center; by default 1, and '
                   '0.01 with adam', lower_bound=0)
flags.DEFINE_float('server_momentum', 0.9, 'mu, share of the velocity of the center that is left '
                   'in the next round, with momentum', lower_bound=0)


class Scheme(seam.Seam):
    """FedAvg: pull, a client's local steps, push, admission; a step of the center in each round.

    With --buffer it is FedBuff: a step of the center whenever so many clients have come.

    Attributes:
      turn: `clients.Turn`, the client that this worker trains.
      admissions: `admissions.Admissions`.
      kept: `pushes.Pushes`.
      answer: int64 [3] tensor on ps 0, what a push is told: the global step, whether it counts,
        and its staleness.
      clock: `stamps.Clock`, of the steps of the center.
      counted: int64 [2] tensor, how many clients count in the step that `complete` makes, and how
        many examples these have.
    """

    tables_stay_on_ps = False  # momentum moves every row, also those that no client reads
    not_recorded = 'which clients a worker gets depends on when it asks'
    not_compared = 'its clients have the examples, and not its workers'

    def __init__(self, network, global_step, hparams, task_index, num_workers, turn):
        """Makes the ops; see the base class. The network has the batches of `turn`."""
        self.turn = turn
        self.local_steps = lambda _: turn.most_steps  # no need to read the examples once more
        super().__init__(network, global_step, hparams, task_index, num_workers)

    @staticmethod
    def local_steps(hparams):
        """Returns the number of local steps of the client that makes most."""
        return clients.of_model(model, hparams).most_steps

    @staticmethod
    def clients_per_step(hparams):
        """Returns how many clients there are to a step of the center, an int."""
        return hparams.buffer or clients.per_round(hparams.clients, hparams.fraction)

    def local_steps_per_count(self, hparams):
        return self.clients_per_step(hparams) * self.turn.most_steps

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables, turn = network.variables, self.turn
        with tf.device(self.worker_device(task_index)):
            rule = network.local_rule(hparams.learning_rate)  # never kept: each client begins at 0
        with tf.device(global_step.device):
            worker = self.index_to_feed()
        self.admissions = admissions.Admissions(global_step.device, worker, hparams.buffer)
        with tf.control_dependencies([self.admissions.life]):
            self.pull = exchange.pull(variables, global_step)
        center = transfer.to_worker(self.pull[1:])
        x, figures = center, []
        rule.pulled(self.pull[0], self.clients_per_step(hparams))
        for i in range(turn.most_steps):
            gradients, of_batch = network.gradients_at(x)
            before, x = x, rule.step(x, gradients)
            if i >= turn.fewest_steps:  # who has fewer steps stays where it is after its last one
                its_own = tf.less(tf.constant(i, tf.int64), turn.steps)
                x = [tf.where(its_own, new, old) for new, old in zip(x, before)]
                of_batch = {name: tf.where(its_own, value, tf.zeros_like(value))
                            for name, value in of_batch.items()}
            figures.append(of_batch)
        steps = tf.cast(turn.steps, tf.float32)
        self.computed = {name: tf.add_n([each[name] for each in figures]) / steps
                         for name in figures[0]}
        self.computed['local_steps'] = tf.identity(turn.steps)
        self.pushed = exchange.add(center, x, -1)
        self.clock = stamps.Clock(global_step)
        self.kept = pushes.Pushes(variables, may_be_later=hparams.buffer > 0)
        self._make_push(network, global_step, hparams)
        self._make_complete(network, global_step, hparams)

    def _make_push(self, network, global_step, hparams):
        """Makes `push`: has all of it kept on the ps, and then asks that it counts."""
        with tf.device(self.worker_device(self.task_index)):  # all that goes up is one tensor
            ticket = tf.concat([self.turn.ticket.read_value(), [self.turn.examples]], axis=0)
        arrived = exchange.arrive(transfer.to_ps(self.pushed, network.variables),
                                  network.variables)
        with tf.control_dependencies(self.kept.keep(arrived, ticket)):
            with tf.device(global_step.device):
                ticket = tf.identity(ticket)
                counts, staleness = self.admissions.admit(
                    ticket[:clients.TICKET], ticket[clients.TICKET], self.pull[0])
                share = tf.cast(counts, tf.float32) / self.clients_per_step(hparams)
        done = [counts]
        if network.state:  # what the model itself assigns becomes the mean over the clients
            done.append(network.state.push(share))
        with tf.control_dependencies(done), tf.device(global_step.device):
            self.answer = tf.stack([tf.cast(global_step.read_value(), tf.int64),
                                    tf.cast(counts, tf.int64), staleness])
        self.push = self.figures_of(self.answer, hparams)

    def figures_of(self, answer, hparams):
        """Returns the figures of a push, of a tensor that begins with its `answer`."""
        with tf.device(self.worker_device(self.task_index)):
            step, counts, staleness = tf.unstack(answer[:3])
            figures = {'global_step': step, 'dropped': 1 - tf.cast(counts, tf.float32)}
            return dict(figures, staleness=staleness) if hparams.buffer else figures

    def _make_complete(self, network, global_step, hparams):
        """Makes `complete`: once it is known who counts, the step of the center."""
        variables = network.variables
        with tf.device(global_step.device):
            # By clients: in which order they came does not change a rounding.
            who = tf.gather(self.admissions.closed, tf.argsort(self.admissions.closed[:, 1]))
            tickets, examples, staleness = tf.split(who, [clients.TICKET, 1, 1], axis=1)
            self.counted = tf.stack([tf.size(examples, out_type=tf.int64), tf.reduce_sum(examples)])
            if hparams.buffer:  # by how many, not by the sum of what they count for
                weights, total = buffers.of_age(staleness[:, 0]), hparams.buffer
            else:
                weights = tf.cast(examples[:, 0], tf.float64)
                total = tf.reduce_sum(weights)
        changes = []
        for variable, of_all in zip(variables, self.kept.take(tickets, weights)):
            with tf.device(variable.device):
                change = of_all / tf.cast(total, of_all.dtype)
                changes.append(tf.cast(change, variable.dtype.base_dtype))
        with tf.device(global_step.device):
            update = server_optimizer(hparams).apply_gradients(list(zip(changes, variables)))
            with tf.control_dependencies([update]):
                self.complete = global_step.assign_add(1)
        network.constrains = True
        if network.averages:
            self.complete = network.averages.follow(self.complete)


def server_optimizer(hparams):
    """Returns the `tf.train.Optimizer` of the center, which gets G in the place of a gradient."""
    kind, rate = hparams.server_optimizer, hparams.server_learning_rate
    if kind == 'adam':
        return fedadam.FedAdam(0.01 if rate is None else rate)
    rate = 1. if rate is None else rate
    if kind == 'momentum':
        return tf.train.MomentumOptimizer(rate, hparams.server_momentum)
    return tf.train.GradientDescentOptimizer(rate)


def train_clients(_):
    resolver = membership.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Distributed: a session waits for all tasks that it sees. These see the ps and this worker.
    config = servers.config(device_filters=['/job:ps', worker_device])
    rounds.check_flags()
    everyone = clients.of_model(model, FLAGS)
    if is_chief and everyone.most_steps > 50:
        console.say('worker 0', f'a client makes up to {everyone.most_steps} local steps in a '
                    'round: a graph with all of them takes a while to build')
    # Distributed: the ps and this worker reach each other through their servers.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    # Distributed: the variables go to the ps in turn, for all workers; other ops to this worker.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=worker_device)):
        global_step = tf.train.get_or_create_global_step()
        # Distributed: whose examples to train on comes from a queue on a ps, a ticket at a time.
        with tf.device(worker_device):
            turn = clients.Turn(everyone, clients.client_of(FLAGS))
        network = building.Network(model, turn.batches, training_flags.straggler_delay(task_index),
                                   Scheme.tables_stay_on_ps)
        test = evaluation.Test(model, network.at_variables, is_chief, network.tested_values)
        scheme = Scheme(network, global_step, FLAGS, task_index,
                        cluster_spec.num_tasks('worker'), turn)
        its_steps = (buffers.Buffers if FLAGS.buffer else rounds.Rounds)(
            scheme, global_step, FLAGS, task_index)
        # Distributed: the run in which a client is pushed also takes the ticket of the next one.
        its_steps.take_with_each_push()

    trainer = sessions.Trainer.of(scheme, test)
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: the ps end when every worker has said that it is done.
    hooks = [its_steps, trainer, chief_role, shutdown.SayDone(resolver)]
    # Distributed: no silent wait for a ps that does not answer.
    liveness.watch(resolver, over=test.is_over)
    # Distributed: the chief makes or restores the parameters; the others wait for these.
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config, chief_role), hooks)

    with session:
        progress = rounds.Progress(its_steps, f'worker {task_index}', session.run(global_step),
                                   is_chief, model)
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, turn.most_steps,
                                       chief_role.now_and_then,
                                       goes_on=lambda: its_steps.take(progress))
        progress.done()
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(train_clients)
