"""In-graph replication: one program builds one graph, with a replica of the network per worker.

    --mode=sync     c <- c - learning_rate * mean of all g_i(c)              one step of all
    --mode=async    c <- c - learning_rate * g_i(c as it was when i read it)    each by itself

What a worker keeps: nothing, not even a graph. It runs what this program, the chief, puts on it.
What travels, in each step of a replica: the parameters from the ps to its worker and the gradients
back, and its batch from the chief. The chief drives all replicas: in one run of the graph, or each
in a thread of its own.
"""

import concurrent.futures
import threading
import time

from absl import flags
from tfdist import (building, checkpoints, cluster, console, ending, evaluation, exchange,
                    liveness, models, report, sessions, traffic, training_flags)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=2000, learning_rate=0.1, counted='updates of the center',
                      straggler=False)
flags.DEFINE_enum('mode', 'sync', ['sync', 'async'],
                  'sync: all replicas make one step together; async: each makes its own')


class Scheme:
    """Replicas of one network on one center, in one graph.

    Attributes:
      pulls: list of lists of tensors, the global step and the variables' values as read: one for
        all replicas if they go together, else one for each.
      train_ops: list of dicts of tensors to run again and again, each in a thread of its own:
        'global_step' after the update; 'loss' and the metrics, means over its replicas; in
        --mode=async also 'staleness' of the update: how many others came between read and write.
    """

    def __init__(self, networks, devices, global_step, hparams):
        """Makes the ops.

        Args:
          networks: list of `building.Network` of the same variables, one for each team of replicas:
            in --mode=sync there is one, else each replica is one.
          devices: list of strings, where the replicas compute.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes learning_rate and mode.
        """
        teams = [devices] if hparams.mode == 'sync' else [[device] for device in devices]
        self.pulls, self.train_ops = [], []
        for network, team in zip(networks, teams):
            self.pulls.append(exchange.pull(network.variables, global_step))
            step_read, center = self.pulls[-1][0], self.pulls[-1][1:]
            gradients, figures = [], []
            for device in team:
                with tf.device(device):
                    own, of_batch = network.gradients_at(center)
                gradients.append(own)
                figures.append(of_batch)
            network.finish()
            means = []
            for variable, value, *each in zip(network.variables, center, *gradients):
                # All read before anything is written, and the mean is taken where the variable is.
                with tf.device(variable.device), tf.control_dependencies([value]):
                    means.append(tf.add_n(each) / len(each))
            with tf.device(global_step.device):
                pushes = [network.optimizer(hparams.learning_rate).apply_gradients(
                    zip(means, network.variables))]
            if network.state:
                pushes.append(network.state.push())
            with tf.control_dependencies(pushes):
                push = exchange.count(global_step, step_read)
            if network.averages:
                push['global_step'] = network.averages.follow(push['global_step'])
            if hparams.mode == 'sync':
                del push['staleness']  # it is always 0
            with tf.device(team[0]):
                self.train_ops.append(dict(exchange.mean(figures), **push))


def replicate_and_train(_):
    resolver = cluster.resolve('chief', jobs=('chief', 'ps', 'worker'))
    cluster_spec = resolver.cluster_spec()
    num_workers = cluster_spec.num_tasks('worker')
    workers = [f'/job:worker/task:{i}' for i in range(num_workers)]
    chief_device = '/job:chief/task:0'
    config = sessions.config()
    server = tf.train.Server(cluster_spec, 'chief', 0, config=config)

    tf.set_random_seed(FLAGS.seed)
    # The variables go to the ps in turn; what no replica says otherwise, to the chief.
    with tf.device(tf.train.replica_device_setter(cluster=cluster_spec,
                                                  worker_device=chief_device)):
        global_step = tf.train.get_or_create_global_step()
        # A worker could not read them: the examples are in this process.
        shards = [model.train_batches(FLAGS.batch_size, 1, i, num_workers, FLAGS.seed)
                  for i in range(num_workers)]
        network = building.Network(model, shards[0], with_tables=False)
        test = evaluation.Test(model, network.at_variables)
        if FLAGS.mode == 'sync':
            shards = [sum(shards, [])]
        networks = [network.again(shard) for shard in shards]
        scheme = Scheme(networks, workers, global_step, FLAGS)
    replicas = num_workers // len(scheme.train_ops)  # in one run of a train op

    past_the_hooks = [sessions.PastTheHooks(train_op, test=None if i else test)
                      for i, train_op in enumerate(scheme.train_ops)]
    hooks = [*past_the_hooks, ending.SayDone(resolver, jobs=('ps', 'worker'))]
    liveness.watch(resolver, 'ps', 'worker')
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver, 'train'), hooks=hooks,
        config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)

    threads = concurrent.futures.ThreadPoolExecutor(len(scheme.train_ops))
    with session:
        progress = report.Progress('train', session.run(global_step))
        for ps in range(cluster_spec.num_tasks('ps')):
            progress.say(traffic.kept('ps', ps, tf.global_variables()))
        ways = sessions.traced(session, scheme.train_ops[0], progress, replicas)
        for (sender, receiver), sent in sorted(ways.items()):
            progress.say(f'in a step {sender} sends {sent} to {receiver}')
        one_at_a_time = threading.Lock()

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1

            def drive(run):
                while time.time() < until and progress.goes_on():
                    result = run()
                    with one_at_a_time:
                        progress.add(result, replicas)

            with sessions.failures_of_ps():
                list(threads.map(drive, [hook.run for hook in past_the_hooks]))
                step_context.run_with_hooks(global_step)
                test.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run_step_fn(test.in_step))


if __name__ == '__main__':
    console.run(replicate_and_train)
