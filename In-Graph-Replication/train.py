"""In-graph replication: one program builds one graph, with a replica of the network per worker.

    --mode=sync     c <- c - learning_rate * mean of all g_i(c)              one step of all
    --mode=async    c <- c - learning_rate * g_i(c as it was when i read it)    each by itself

What a worker keeps: nothing, not even a graph. It runs the ops that this program, the chief, puts
on it. What travels in each step of a replica: the parameters from the ps to its worker, the
gradients back, and its batch from the chief. The chief drives all replicas: in one run of the
graph, or each in a thread of its own.
"""

import concurrent.futures
import threading
import time

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import building, model_file
from tfdist.scheme import exchange
from tfdist.start import console
from tfdist.training import checkpoints, evaluation, report, sessions, traffic, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=2000, learning_rate=0.1,
                      counted='updates of the center', straggler=False)
flags.DEFINE_enum('mode', 'sync', ['sync', 'async'],
                  'sync: all replicas make one step together; async: each makes its own')


class Scheme:
    """Replicas of one network on one center, in one graph.

    Attributes:
      pulls: list of lists of tensors, the global step and the variables' values as read: one list
        for all replicas in --mode=sync, else one for each.
      train_ops: list of dicts of tensors to run again and again, each in a thread of its own:
        'global_step' after the update; 'loss' and the metrics, means over its replicas; in
        --mode=async also 'staleness', the number of updates by others between read and write.
    """

    def __init__(self, networks, devices, global_step, hparams):
        """Makes the ops.

        Args:
          networks: list of `building.Network` of the same variables, one for each team of replicas:
            in --mode=sync all replicas are one team, otherwise each is a team.
          devices: list of strings, the devices of the replicas.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate and mode.
        """
        teams = [devices] if hparams.mode == 'sync' else [[device] for device in devices]
        for network, team in zip(networks, teams):
            network.set_pace(global_step, hparams, len(team))
        with tf.device(global_step.device):
            optimizer = networks[0].optimizer(hparams.learning_rate, clips=True)
        self.pulls, self.train_ops = [], []
        for network, team in zip(networks, teams):
            network.compute_as(networks[0])
            self.pulls.append(exchange.pull(network.variables, global_step))
            step_read, center = self.pulls[-1][0], self.pulls[-1][1:]
            gradients, figures = [], []
            for device in team:
                with tf.device(device):
                    own, of_batch = network.gradients_at(center, clipped=False)
                gradients.append(own)
                figures.append(of_batch)
            network.finish()
            means = []
            for variable, value, *each in zip(network.variables, center, *gradients):
                # All read before anything is written; the mean is taken on the variable's device.
                with tf.device(variable.device), tf.control_dependencies([value]):
                    means.append(tf.add_n(each) / len(each))
            with tf.device(global_step.device):
                pushes = [optimizer.apply_gradients(zip(means, network.variables))]
            pushes += [kept.push() for kept in (network.state, network.own) if kept]
            with tf.control_dependencies(pushes):
                push = exchange.count(global_step, step_read)
            if network.averages:
                push['global_step'] = network.averages.follow(push['global_step'])
            if hparams.mode == 'sync':
                del push['staleness']  # it is always 0
            with tf.device(team[0]):
                self.train_ops.append(dict(exchange.mean(figures), **push))


def say_what_travels(session, progress, cluster_spec, train_op, replicas):
    """Prints what the ps keep, and what a step sends from task to task; trains a few steps."""
    for ps in range(cluster_spec.num_tasks('ps')):
        progress.say(traffic.kept('ps', ps, tf.global_variables()))
    ways = sessions.traced(session, train_op, progress, replicas)
    for (sender, receiver), sent in sorted(ways.items()):
        progress.say(f'in a step {sender} sends {sent} to {receiver}')


def train_for_a_second(session, trainers, threads, progress, replicas, global_step, test):
    """Trains for a second past the hooks, with a thread for each of the trainers, then runs them.

    Takes the `tf.train.MonitoredSession`; a list of `sessions.Trainer`; a `ThreadPoolExecutor`; the
    `report.Progress`; how many replicas a run of a train op has; the global step; and the test.
    """
    one_at_a_time = threading.Lock()

    def drive(trainer, until):
        while time.monotonic() < until and progress.goes_on():
            result = trainer.run()
            with one_at_a_time:
                progress.add(result, replicas)

    def train(step_context):
        until = time.monotonic() + 1
        with sessions.failures_of_ps():
            list(threads.map(drive, trainers, [until] * len(trainers)))
            step_context.run_with_hooks(global_step)
            test.now_and_then(sessions.live(session), progress)

    session.run_step_fn(train)


def replicate_and_train(_):
    # Distributed: this program, the chief, has the whole graph; the workers run what it puts there.
    resolver = membership.resolve('chief', jobs=('chief', 'ps', 'worker'))
    cluster_spec = resolver.cluster_spec()
    num_workers = cluster_spec.num_tasks('worker')
    workers = [f'/job:worker/task:{i}' for i in range(num_workers)]
    chief_device = '/job:chief/task:0'
    config = servers.config()
    server = tf.train.Server(cluster_spec, 'chief', 0, config=config)

    tf.set_random_seed(FLAGS.seed)
    # Distributed: the variables go to the ps in turn; what no replica places, to the chief.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=chief_device)):
        global_step = tf.train.get_or_create_global_step()
        # Distributed: a shard for each replica. A worker could not read its shard: the examples are
        # in this process.
        shards = [model.train_batches(FLAGS.batch_size, FLAGS.accumulate, i, num_workers,
                                      FLAGS.seed) for i in range(num_workers)]
        network = building.Network(model, shards[0], tables_stay_on_ps=False)
        test = evaluation.Test(model, network.at_variables, values=network.tested_values)
        if FLAGS.mode == 'sync':
            shards = [sum(shards, [])]
        network.refuse_to_share_state(num_workers)
        networks = [network.again(shard) for shard in shards]
        scheme = Scheme(networks, workers, global_step, FLAGS)
    replicas = num_workers // len(scheme.train_ops)  # in one run of a train op

    trainers = [sessions.Trainer(train_op, test=None if i else test, network=networks[i])
                for i, train_op in enumerate(scheme.train_ops)]
    # Distributed: the ps and the workers end when the chief has said that it is done.
    hooks = [*trainers, shutdown.SayDone(resolver, jobs=('ps', 'worker'))]
    # Distributed: no silent wait for a task that does not answer.
    liveness.watch(resolver, 'ps', 'worker', over=test.is_over)
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver, 'train'), hooks=hooks,
        config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)

    threads = concurrent.futures.ThreadPoolExecutor(len(scheme.train_ops))
    with session:
        progress = report.Progress('train', session.run(global_step), model=model)
        say_what_travels(session, progress, cluster_spec, scheme.train_ops[0], replicas)
        while progress.goes_on() and not session.should_stop():
            train_for_a_second(session, trainers, threads, progress, replicas, global_step, test)
        progress.done()
        test.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(replicate_and_train)
