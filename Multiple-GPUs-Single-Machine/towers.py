"""Towers: one process, one graph, a copy of the network on each GPU, one set of variables.

    g_k <- gradient of tower k on its own batch, all at the same x
    x   <- x - learning_rate * mean of g_k

That is one step on a batch as large as those of all towers together. It is synchronous: no tower
goes on before the mean of all gradients is applied. Nothing goes through a network: the variables
are in the memory of the machine, and each step each GPU reads them and sends back its gradients.

`worker.py` puts such towers into each worker of a cluster; `threads.py` has the same towers, each
with a thread of its own.
"""

import collections
import os
import re
import sys
import time

from absl import flags
from tfdist import (building, checkpoints, console, evaluation, exchange, models, report, sessions,
                    training_flags)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=1000, learning_rate=0.1, counted='updates of the variables',
                      straggler=False)
flags.DEFINE_float('decay_rate', 0.5, 'by which the step size is multiplied every decay_steps',
                   lower_bound=0)
flags.DEFINE_integer('decay_steps', 1000, 'after so many updates; gradually', lower_bound=1)
flags.DEFINE_integer('num_gpus', None, 'towers of this process, each on a GPU, or if there is '
                     'none on a virtual CPU device; by default the GPUs there are, else 2',
                     lower_bound=1)

Tower = collections.namedtuple('Tower', ['network', 'values', 'gradients', 'figures'])


def find_devices(num_gpus):
    """Finds the devices of this process's towers.

    Args:
      num_gpus: int or None, how many are asked for.

    Returns:
      A list of strings, such as '/device:GPU:0'; a dict of arguments for `tf.ConfigProto`; and the
      words that say it to the reader.

    Raises:
      SystemExit: if there are GPUs, but not so many.
    """
    gpus = len(tf.config.experimental.list_physical_devices('GPU'))
    if not gpus:
        devices = [f'/device:CPU:{i}' for i in range(num_gpus or 2)]
        return (devices, {'device_count': {'CPU': len(devices)}},
                f'towers on {", ".join(devices)}: there is no GPU, these share the cores')
    if num_gpus and num_gpus > gpus:
        sys.exit(f'--num_gpus={num_gpus}, and this process sees {gpus}. On a machine without a GPU '
                 "there would be virtual devices: CUDA_VISIBLE_DEVICES='' hides them.")
    devices = [f'/device:GPU:{i}' for i in range(num_gpus or gpus)]
    options = {'gpu_options': tf.GPUOptions(allow_growth=True),
               'allow_soft_placement': True}  # not every operation has a kernel for GPUs
    return devices, options, f'towers on {", ".join(devices)}'


def local_placement(device):
    """Returns what `tf.device` takes to put variables on the CPU, and all else on `device`."""
    return tf.train.replica_device_setter(ps_tasks=1, ps_device='/device:CPU:0',
                                          worker_device=device)


def build_towers(networks, devices, placement):
    """Builds the model once for each tower, each time on another device, on the same variables.

    Args:
      networks: list of `building.Network` of the same variables, one for each tower: each of them
        with a batch of its own, or the same one for all, with as many batches.
      devices: list of strings, one for each tower.
      placement: function of a device that returns what `tf.device` takes.

    Returns:
      List of `Tower`: its network; two lists in the order of the network's variables: their values
      as this tower reads them, and its gradients; and its figures, a dict of float32 scalars:
      'loss', with the weight decay, and the metrics.
    """
    towers = []
    for k, (network, device) in enumerate(zip(networks, devices)):
        # Once, where they are, however often the tower uses them.
        values = [exchange.read(variable) for variable in network.variables]
        with tf.name_scope(f'tower_{k}'), tf.device(placement(device)):
            towers.append(Tower(network, values, *network.gradients_at(values)))
    for network in set(networks):
        network.finish()
    return towers


def mean_gradients(towers):
    """Returns the means of the towers' gradients, a list of tensors, each where its variable is."""
    means = []
    for i, variable in enumerate(towers[0].network.variables):
        mean = tf.add_n([tower.gradients[i] for tower in towers]) / len(towers)
        # All have read the variable before it is written: so they are at the same x.
        with tf.device(variable.device), \
                tf.control_dependencies([tower.values[i] for tower in towers]):
            means.append(tf.identity(mean))
    return means


def decayed_learning_rate(hparams, global_step):
    """Returns learning_rate * decay_rate ** (global_step / decay_steps), a float32 scalar."""
    with tf.device(global_step.device):
        return tf.train.exponential_decay(hparams.learning_rate, global_step.read_value(),
                                          hparams.decay_steps, hparams.decay_rate)


def build(devices, placement, task_index=0, num_workers=1, together=True):
    """Builds the towers of a process as the flags say, and a test of the model.

    Args:
      devices: list of strings, one for each tower.
      placement: function of a device that returns what `tf.device` takes.
      task_index: int, which of the processes that have towers this is.
      num_workers: int, how many these are.
      together: bool, whether a run of the graph is of all towers: what the model keeps besides its
        parameters, such as moving averages, then goes through them in order.

    Returns:
      The global step; list of `Tower`, each on a shard of its own of the examples; and the
      `evaluation.Test`.
    """
    shards = [task_index * len(devices) + k for k in range(len(devices))]
    with tf.device(placement('/device:CPU:0')):
        global_step = tf.train.get_or_create_global_step()
        batches = [model.train_batches(FLAGS.batch_size, 1, shard, num_workers * len(devices),
                                       FLAGS.seed) for shard in shards]
        network = building.Network(model, sum(batches, []), with_tables=False)
        test = evaluation.Test(model, network.at_variables, is_chief=task_index == 0)
        networks = [network if together else network.again(own) for own in batches]
        towers = build_towers(networks, devices, placement)
    return global_step, towers, test


def make_step(towers, global_step, hparams):
    """Makes one synchronous step of all towers.

    Args:
      towers: list of `Tower`, all of the same network.
      global_step: integer `tf.Variable`, counts the steps, 1 for all towers together.
      hparams: object with the attributes learning_rate, decay_rate and decay_steps.

    Returns:
      Dict of tensors to run again and again: 'global_step' after the step; 'loss' and the metrics,
      means over the towers.
    """
    network, gradients = towers[0].network, mean_gradients(towers)
    means = exchange.mean([tower.figures for tower in towers])
    with tf.device(global_step.device):
        optimizer = network.optimizer(decayed_learning_rate(hparams, global_step))
        updates = [optimizer.apply_gradients(zip(gradients, network.variables), global_step)]
    if network.state:
        updates.append(network.state.push())
    with tf.control_dependencies(updates), tf.device(global_step.device):
        step = global_step.read_value()
    if network.averages:
        step = network.averages.follow(step)
    return dict(means, global_step=step)


def summarize(towers):
    """Makes summaries of the last tower, without its name in theirs.

    Returns:
      Scalar string tensor: its loss, and of each layer the units' values and how many are zero.
    """
    last = f'tower_{len(towers) - 1}/'
    with tf.name_scope(None):  # a summary is named after the scopes that it is made in
        made = [tf.summary.scalar('total_loss', towers[-1].figures['loss'])]
        for units in tf.get_collection(tf.GraphKeys.ACTIVATIONS, last):
            name = re.sub(f'^{last}', '', units.op.name)
            made.append(tf.summary.histogram(f'{name}/activations', units))
            made.append(tf.summary.scalar(f'{name}/sparsity', tf.nn.zero_fraction(units)))
    return tf.summary.merge(made)


def summary_hooks(towers, model_dir):
    """Returns a list of the hook that writes the summaries, every other second; [] without one."""
    if not model_dir:
        return []
    return [tf.train.SummarySaverHook(save_secs=2, summary_op=summarize(towers),
                                      output_dir=os.path.join(model_dir, 'last-tower'))]


def main(_):
    devices, options, words = find_devices(FLAGS.num_gpus)
    tf.set_random_seed(FLAGS.seed)
    global_step, towers, test = build(devices, local_placement)
    with tf.device('/device:CPU:0'):
        train_op = make_step(towers, global_step, FLAGS)

    past_the_hooks = sessions.PastTheHooks(train_op, test=test)
    checkpoints.claim(FLAGS.model_dir, 'towers')
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, config=tf.ConfigProto(**options),
            scaffold=tf.train.Scaffold(saver=checkpoints.Saver('towers')),
            hooks=[past_the_hooks] + summary_hooks(towers, FLAGS.model_dir),
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as session:
        progress = report.Progress('towers', session.run(global_step))
        progress.say(words)

        def train(step_context):
            """Trains past the hooks for a second, and one step with them."""
            until = time.time() + 1
            while time.time() < until and progress.goes_on():
                progress.add(past_the_hooks.run(), len(towers))
            if progress.goes_on():
                progress.add(step_context.run_with_hooks(train_op), len(towers))
            test.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run_step_fn(test.in_step))


if __name__ == '__main__':
    console.run(main)
