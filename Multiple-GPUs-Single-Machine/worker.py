"""A worker of a cluster, with one tower or several, which trains through a ps.

    x <- x - learning_rate * mean of g_k(x as it was when this worker read it)

The towers of a worker are synchronous, as in towers.py; the workers are asynchronous. With one
tower in each worker (`MODE=workers bash run.sh`, a process for each GPU) this is HogWild. What
travels in each step: the variables to each tower, and the mean of the towers' gradients to the ps.

How to start it: `MODE=workers bash run.sh` on this machine, or by hand on the hosts alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.start import console
from tfdist.training import checkpoints, chief, report, sessions
from tfdist.start.quiet import tf
import towers

FLAGS = flags.FLAGS


def placement(cluster_spec, worker_device):
    """Returns a function of a device of this worker that returns a device function.

    The latter puts the variables on the ps in turn, and all else on the device.
    """
    return lambda device: tf.train.replica_device_setter(
        cluster=cluster_spec, ps_device='/job:ps/device:CPU:0',
        worker_device=worker_device + device)


def train(_):
    resolver = membership.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_workers = cluster_spec.num_tasks('worker')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    devices, options, words = towers.find_devices(FLAGS.num_gpus)
    # Distributed: a session waits for all tasks that it sees. These see the ps and this worker.
    config = servers.config(device_filters=['/job:ps', worker_device], **options)
    # The server owns the devices, so it has to know how many there are.
    # Distributed: the ps and this worker reach each other through their servers.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    place = placement(cluster_spec, worker_device)
    global_step, tower_list, test = towers.build(devices, place, task_index, num_workers)
    with tf.device(place('/device:CPU:0')):
        train_op = towers.make_step(tower_list, global_step, FLAGS)

    trainer = sessions.Trainer(train_op, test=test, network=tower_list[0].network,
                               place=(task_index, num_workers))
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: the ps end when every worker has said that it is done.
    hooks = [trainer, chief_role, shutdown.SayDone(resolver)]
    # Distributed: no silent wait for a ps that does not answer.
    liveness.watch(resolver, over=test.is_over)
    # Distributed: the chief makes or restores the parameters; the others wait for these.
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), config=config,
            hooks=towers.summary_hooks(tower_list, FLAGS.model_dir) + hooks,
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config, chief_role), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief,
                                   towers.model)
        progress.say(words)
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, len(devices), chief_role.now_and_then)
        progress.done()
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(train)
