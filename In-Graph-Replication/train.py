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
from tfdist import (building, checkpoints, cluster, console, ending, exchange, liveness, report,
                    sessions, traffic, training_flags)
from tfdist.quiet import tf

import model

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
            self.pulls.append(exchange.pull(variables, global_step))
            step_read, center = self.pulls[-1][0], self.pulls[-1][1:]
            gradients, losses, accuracies = [], [], []
            for loss_at, device in team:
                with tf.device(device):
                    own, loss, accuracy = exchange.gradients_at(loss_at, center)
                gradients.append(own)
                losses.append(loss)
                accuracies.append(accuracy)
            pushes = []
            for variable, value, *each in zip(variables, center, *gradients):
                # All read before anything is written, and the mean is taken where the variable is.
                with tf.device(variable.device), tf.control_dependencies([value]):
                    pushes.append(variable.assign_sub(hparams.learning_rate * exchange.mean(each),
                                                      read_value=False))
            with tf.control_dependencies(pushes):
                push = exchange.count(global_step, step_read)
            if hparams.mode == 'sync':
                del push['staleness']  # it is always 0
            with tf.device(team[0][1]):
                computed = {'loss': exchange.mean(losses), 'accuracy': exchange.mean(accuracies)}
                self.train_ops.append(dict(computed, **push))


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
        _, test_accuracy = model.loss_and_accuracy(*model.test_set())
        center = tf.trainable_variables()
        # A worker could not read them: the examples are in this process.
        shards = [model.train_batches(FLAGS.batch_size, 1, i, num_workers, FLAGS.seed)
                  for i in range(num_workers)]
        losses_at = [building.make_loss_at(model.loss_and_accuracy, center, shard)
                     for shard in shards]
        scheme = Scheme(losses_at, workers, center, global_step, FLAGS)
    replicas = num_workers // len(scheme.train_ops)  # in one run of a train op

    past_the_hooks = [sessions.PastTheHooks(train_op, test=None if i else test_accuracy)
                      for i, train_op in enumerate(scheme.train_ops)]
    hooks = [*past_the_hooks, ending.SayDone(resolver, jobs=('ps', 'worker'))]
    for job in 'ps', 'worker':
        liveness.watch(resolver, job)
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, 'train'), hooks=hooks, config=config,
        save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
        save_summaries_secs=None, log_step_count_steps=None)

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
                while time.time() < until and progress.global_step < FLAGS.train_steps:
                    result = run()
                    with one_at_a_time:
                        progress.add(result, replicas)

            with sessions.failures_of_ps():
                list(threads.map(drive, [hook.run for hook in past_the_hooks]))
                step_context.run_with_hooks(global_step)

        while progress.global_step < FLAGS.train_steps and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run(test_accuracy))


if __name__ == '__main__':
    console.run(replicate_and_train)
