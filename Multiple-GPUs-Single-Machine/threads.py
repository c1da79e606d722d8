"""Threads: the towers of towers.py, without the mean. A thread trains each at its own pace.

    x <- x - learning_rate * g_k(x as it was when tower k read it)

There is one process, one session, and one set of variables in memory. Each thread runs the train op
of its own tower again and again, and waits for nobody: HogWild! within a process. A global step is
an update by one tower.
"""

import functools
import threading

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.start import console
from tfdist.training import checkpoints, report, sessions
from tfdist.start.quiet import tf
import towers

FLAGS = flags.FLAGS
flags.DEFINE_boolean('use_locking', False, 'let one tower at a time write to a variable')


def make_steps(tower_list, global_step, hparams):
    """Makes a step for each tower.

    Args:
      tower_list: list of `towers.Tower`, each with its own network, on the same variables.
      global_step: integer `tf.Variable`, counts the updates by all towers.
      hparams: object with the attributes learning_rate, decay_rate, decay_steps and use_locking.

    Returns:
      List of dicts of tensors, one for each tower, to run again and again: 'global_step' after the
      step; 'loss' and the metrics on the tower's batch.
    """
    optimizer = tower_list[0].network.optimizer(
        towers.decayed_learning_rate(hparams, global_step), use_locking=hparams.use_locking)
    steps = []
    for tower in tower_list:
        updates = [optimizer.apply_gradients(zip(tower.gradients, tower.network.variables))]
        updates += [kept.push() for kept in (tower.network.state, tower.network.own) if kept]
        with tf.control_dependencies(updates):
            count = tf.identity(global_step.assign_add(1, use_locking=True))
        if tower.network.averages:
            count = tower.network.averages.follow(count)
        steps.append(dict(tower.figures, global_step=count))
    return steps


def train(runs, take, train_steps, step, coord):
    """Trains with a thread for each tower, up to the last step.

    Args:
      runs: list of functions without arguments, one for each tower, that make a step and return
        its result.
      take: function that takes each result; the threads call it one at a time.
      train_steps: int, the global step at which to stop.
      step: int, the current global step.
      coord: `tf.train.Coordinator`. When a thread fails, it stops the others, and its `join` raises
        the error.

    Returns:
      List of the `threading.Thread`, all started.
    """
    lock = threading.Lock()

    def loop(run):
        with coord.stop_on_exception():
            while not coord.should_stop():
                result = run()
                with lock:
                    take(result)
                if result['global_step'] >= min(train_steps, result.get('last_step', train_steps)):
                    coord.request_stop()

    threads = [threading.Thread(target=loop, args=(run,), daemon=True) for run in runs]
    if step >= train_steps:
        coord.request_stop()
    for thread in threads:
        thread.start()
    return threads


def main(_):
    devices, options, words = towers.find_devices(FLAGS.num_gpus)
    tf.set_random_seed(FLAGS.seed)
    global_step, tower_list, test = towers.build(devices, towers.local_placement, together=False)
    with tf.device('/device:CPU:0'):
        steps = make_steps(tower_list, global_step, FLAGS)

    trainers = [sessions.Trainer(step, test=None if i else test,
                                 network=tower_list[i].network) for i, step in enumerate(steps)]
    checkpoints.claim(FLAGS.model_dir, 'threads')
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, config=tf.ConfigProto(**options),
            scaffold=tf.train.Scaffold(saver=checkpoints.Saver('threads')),
            hooks=trainers + towers.summary_hooks(tower_list, FLAGS.model_dir),
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as session:
        progress = report.Progress('threads', session.run(global_step), model=towers.model)
        progress.say(words)
        coord = tf.train.Coordinator()
        threads = train([trainer.run for trainer in trainers], progress.add, FLAGS.train_steps,
                        progress.global_step, coord)
        while not coord.wait_for_stop(timeout=1):
            session.run(global_step)  # with the hooks: checkpoints, summaries
            sessions.run_in(session, functools.partial(test.now_and_then, progress=progress))
        coord.join(threads)
        progress.global_step = int(session.run(global_step))
        progress.done()
        test.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(main)
