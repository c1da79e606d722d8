"""A worker of a cluster, with one tower or several, and a ps between it and the others.

    x <- x - learning_rate * mean of g_k(x as it was when this worker read it)

Within a worker the towers are synchronous, as in towers.py; among workers it is asynchronous. With
one tower in each worker (`MODE=workers bash run.sh`, a process for each GPU) it is HogWild. What
travels in each step: the variables to each tower, and the mean of the towers' gradients to the ps.
"""

import time

from absl import flags
from tfdist import checkpoints, chief, cluster, console, ending, liveness, report, sessions
from tfdist.quiet import tf

import towers

FLAGS = flags.FLAGS


def placement(cluster_spec, worker_device):
    """Returns a function of a device of this worker, that returns what `tf.device` takes.

    That is, to put the variables on the ps in turn, and all else on the device.
    """
    return lambda device: tf.train.replica_device_setter(
        cluster=cluster_spec, ps_device='/job:ps/device:CPU:0',
        worker_device=worker_device + device)


def train(_):
    resolver = cluster.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    devices, options, words = towers.find_devices(FLAGS.num_gpus)
    # Without filters a session waits for all tasks of the cluster, and not only for the ps.
    config = sessions.config(device_filters=['/job:ps', worker_device], **options)
    # The server owns the devices, so it has to know how many there are.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    place = placement(cluster_spec, worker_device)
    global_step, tower_list, test = towers.build(devices, place, task_index, num_workers)
    with tf.device(place('/device:CPU:0')):
        train_op = towers.make_step(tower_list, global_step, FLAGS)

    past_the_hooks = sessions.PastTheHooks(train_op, test=test)
    duties = chief.Duties(resolver, test)
    hooks = [past_the_hooks, duties, ending.SayDone(resolver)]
    liveness.watch(resolver)
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), config=config,
            hooks=towers.summary_hooks(tower_list, FLAGS.model_dir) + hooks,
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief)
        progress.say(words)

        def train_a_second(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints, summaries."""
            until = time.time() + 1
            with sessions.failures_of_ps():
                while time.time() < until and progress.goes_on():
                    progress.add(past_the_hooks.run(), len(devices))
                step_context.run_with_hooks(global_step)
                duties.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train_a_second)
        progress.done()
        duties.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(train)
