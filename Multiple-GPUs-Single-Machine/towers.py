"""Towers: one process, one graph, a copy of the network on each GPU, one set of variables.

    g_k <- gradient of tower k on its own batch, all at the same x
    x   <- x - learning_rate * mean of g_k

This is one step on a batch as large as all towers' batches together. It is synchronous: no tower
goes on before the mean of all gradients is applied. Nothing crosses a network: the variables are in
the memory of the machine, and in each step every GPU reads them and sends back its gradients.

`worker.py` puts such towers into each worker of a cluster; `threads.py` gives each tower a thread
of its own.
"""

import collections
import os
import re
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.model import building, model_file
from tfdist.scheme import exchange
from tfdist.start import console
from tfdist.training import checkpoints, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=1000, learning_rate=0.1,
                      counted='updates of the variables', straggler=False)
flags.DEFINE_float('decay_rate', 0.5, 'factor by which decay_steps updates multiply the step size, '
                   'gradually', lower_bound=0)
flags.DEFINE_integer('decay_steps', 1000, 'updates that multiply the step size by decay_rate',
                     lower_bound=1)
flags.DEFINE_integer('num_gpus', None, 'towers of this process, each on a GPU, or without GPUs on '
                     'a virtual CPU device; by default as many as there are GPUs, else 2',
                     lower_bound=1)

Tower = collections.namedtuple('Tower', ['network', 'values', 'gradients', 'figures'])


def find_devices(num_gpus):
    """Finds the devices of this process's towers.

    Args:
      num_gpus: int or None, the value of --num_gpus.

    Returns:
      List of strings, such as '/device:GPU:0'; a dict of arguments for `tf.ConfigProto`; and a
      string that tells the user.

    Raises:
      SystemExit: if there are GPUs, but too few.
    """
    gpus = len(tf.config.experimental.list_physical_devices('GPU'))
    if not gpus:
        devices = [f'/device:CPU:{i}' for i in range(num_gpus or 2)]
        return (devices, {'device_count': {'CPU': len(devices)}},
                f'towers on {", ".join(devices)}: there is no GPU, these share the cores')
    if num_gpus and num_gpus > gpus:
        sys.exit(f'--num_gpus={num_gpus}, but this process sees {gpus}. On a machine without a GPU '
                 "there would be virtual devices: CUDA_VISIBLE_DEVICES='' hides them.")
    devices = [f'/device:GPU:{i}' for i in range(num_gpus or gpus)]
    options = {'gpu_options': tf.GPUOptions(allow_growth=True),
               'allow_soft_placement': True}  # not every operation has a kernel for GPUs
    return devices, options, f'towers on {", ".join(devices)}'


def local_placement(device):
    """Returns a device function that puts variables on the CPU, and all else on `device`."""
    return tf.train.replica_device_setter(ps_tasks=1, ps_device='/device:CPU:0',
                                          worker_device=device)


def build_towers(networks, devices, placement, together=True):
    """Builds the model once for each tower, on its device, on the same variables.

    Args:
      networks: list of `building.Network` of the same variables, one for each tower: a network with
        one batch for each, or the same network for all, with as many batches.
      devices: list of strings, one for each tower.
      placement: function of a device that returns a device function.
      together: bool, whether the towers make each step together: the mean is clipped, if any is.

    Returns:
      List of `Tower`: its network; two lists in the order of the network's variables, their values
      as this tower reads them, and its gradients; and its figures, a dict of float32 scalars:
      'loss', with the weight decay, and the metrics.
    """
    towers = []
    for k, (network, device) in enumerate(zip(networks, devices)):
        # Read once, on their devices, however often the tower uses the values.
        values = [exchange.read(variable) for variable in network.variables]
        with tf.name_scope(f'tower_{k}'), tf.device(placement(device)):
            towers.append(Tower(network, values,
                                *network.gradients_at(values, clipped=not together)))
    for network in set(networks):
        network.finish()
    return towers


def mean_gradients(towers):
    """Returns the mean gradients of the towers, a list of tensors on the variables' devices."""
    means = []
    for i, variable in enumerate(towers[0].network.variables):
        mean = tf.add_n([tower.gradients[i] for tower in towers]) / len(towers)
        # All towers read the variable before it is written, and so compute at the same x.
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
      placement: function of a device that returns a device function.
      task_index: int, the index of this process among those with towers.
      num_workers: int, the number of processes with towers.
      together: bool, whether one run of the graph runs all towers: the model's state, such as
        moving averages, then passes through them in order.

    Returns:
      The global step; list of `Tower`, each on its own shard of the examples; and the
      `evaluation.Test`.
    """
    shards = [task_index * len(devices) + k for k in range(len(devices))]
    with tf.device(placement('/device:CPU:0')):
        global_step = tf.train.get_or_create_global_step()
        batches = [model.train_batches(FLAGS.batch_size, FLAGS.accumulate, shard,
                                       num_workers * len(devices), FLAGS.seed) for shard in shards]
        network = building.Network(model, sum(batches, []), tables_stay_on_ps=False)
        test = evaluation.Test(model, network.at_variables, task_index == 0, network.tested_values)
        network.refuse_to_share_state(len(devices))
        networks = [network if together else network.again(own) for own in batches]
        for each in networks:
            each.set_pace(global_step, FLAGS, len(devices) if together else 1)
        towers = build_towers(networks, devices, placement, together)
    return global_step, towers, test


def make_step(towers, global_step, hparams):
    """Makes one synchronous step of all towers.

    Args:
      towers: list of `Tower`, all of the same network.
      global_step: integer `tf.Variable`, counts the steps, each by all towers together.
      hparams: object with the attributes learning_rate, decay_rate and decay_steps.

    Returns:
      Dict of tensors to run again and again: 'global_step' after the step; 'loss' and the metrics,
      means over the towers.
    """
    network, gradients = towers[0].network, mean_gradients(towers)
    means = exchange.mean([tower.figures for tower in towers])
    with tf.device(global_step.device):
        optimizer = network.optimizer(decayed_learning_rate(hparams, global_step), clips=True)
        updates = [optimizer.apply_gradients(zip(gradients, network.variables))]
    updates += [kept.push() for kept in (network.state, network.own) if kept]
    with tf.control_dependencies(updates), tf.device(global_step.device):
        step = global_step.assign_add(1)
    if network.averages:
        step = network.averages.follow(step)
    return dict(means, global_step=step)


def summarize(towers):
    """Makes summaries of the last tower, without the tower's name in their names.

    Returns:
      Scalar string tensor: the loss, and each layer's activations and the share that is zero.
    """
    last = f'tower_{len(towers) - 1}/'
    with tf.name_scope(None):  # a summary's name begins with its scope
        made = [tf.summary.scalar('total_loss', towers[-1].figures['loss'])]
        for units in towers[-1].network.collected[-1].get(tf.GraphKeys.ACTIVATIONS, []):
            name = re.sub(f'^{last}', '', units.op.name)
            made.append(tf.summary.histogram(f'{name}/activations', units))
            made.append(tf.summary.scalar(f'{name}/sparsity', tf.nn.zero_fraction(units)))
    return tf.summary.merge(made)


def summary_hooks(towers, model_dir):
    """Returns a list of the hook that writes summaries every 2 s; empty without `model_dir`."""
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

    trainer = sessions.Trainer(train_op, test=test, network=towers[0].network)
    checkpoints.claim(FLAGS.model_dir, 'towers')
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, config=tf.ConfigProto(**options),
            scaffold=tf.train.Scaffold(saver=checkpoints.Saver('towers')),
            hooks=[trainer] + summary_hooks(towers, FLAGS.model_dir),
            save_checkpoint_secs=FLAGS.save_checkpoint_secs, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as session:
        progress = report.Progress('towers', session.run(global_step), model=model)
        progress.say(words)
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, len(towers), test.now_and_then,
                                       step_with_hooks=True)
        progress.done()
        test.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(main)
