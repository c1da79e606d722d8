"""Model parallelism: one network, of which each worker keeps a part and computes with it.

    y = f1(f0(x; theta0); theta1)    --split=layers: worker 0 has theta0, worker 1 has theta1
    y = f1([x W0 | x W1]; theta1)    --split=columns: W0 and W1 are columns of one layer's weights

What a worker keeps: its part of the parameters, and their momentum. What travels, in each step: the
activations at the boundary, and their gradients back. Parameters never travel. This program, the
chief, builds the one graph, and asks the workers to run it.

Jeffrey Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 3.
"""

import functools
import sys
import time

from absl import flags
from tfdist import (building, checkpoints, cluster, console, ending, evaluation, layers, liveness,
                    models, report, sessions, traffic, training_flags)
from tfdist.quiet import tf

import model

FLAGS = flags.FLAGS
training_flags.define(train_steps=2000, learning_rate=0.02, counted='updates of the variables',
                      straggler=False)
flags.DEFINE_float('momentum', 0.9, 'how much of the last step the next one keeps', lower_bound=0)
flags.DEFINE_enum('split', 'layers', ['layers', 'columns', 'none'],
                  'layers: each worker has some layers; columns: each has columns of the first '
                  'layer, worker 0 also the others; none: worker 0 has all')
flags.DEFINE_list('hidden_units', ['128', '100', '64'], 'sizes of the hidden layers, by commas')

_CLASSES = 10


def layer_sizes():
    """Returns the sizes of the layers, ints, the logits last.

    Raises:
      SystemExit: if --hidden_units is no list of sizes.
    """
    try:
        sizes = [int(size) for size in FLAGS.hidden_units]
        if not sizes or min(sizes) < 1:
            raise ValueError
    except ValueError:
        sys.exit(f'--hidden_units={",".join(FLAGS.hidden_units)} is not of the form size,size,... '
                 'with sizes of 1 and more.')
    return sizes + [_CLASSES]


def worker_device(task):
    """Returns the device of a worker."""
    return f'/job:worker/task:{task}'


def dense(units, size, seed, first=0, last=None):
    """Builds columns `first` to `last` (excluded) of a layer, where the device scope puts them.

    Args:
      units: [batch_size, n] float32.
      size: int, how many columns the whole layer has.
      seed: int. The initial values depend on it alone, and not on how the layer is split.
      first: int.
      last: int or None, to the end.

    Returns:
      [batch_size, last - first] float32: units times these weights, plus biases.
    """
    whole = tf.glorot_uniform_initializer(seed=seed)([int(units.shape[1]), size])
    weights = tf.get_variable('weights', initializer=whole[:, first:last])
    biases = tf.get_variable('biases', initializer=tf.zeros([size])[first:last])
    return tf.nn.bias_add(tf.matmul(units, weights), biases)


def split_by_layers(images, sizes, num_workers):
    """Builds the network in stages: the first layers on worker 0, and so on to the last worker.

    Args:
      images: [batch_size, pixels] float32.
      sizes: list of ints, how many columns the layers have.
      num_workers: int.

    Returns:
      [batch_size, sizes[-1]] float32, the logits.
    """
    units = images
    for i, size in enumerate(sizes):
        device = worker_device(i * num_workers // len(sizes))
        with tf.device(device), tf.variable_scope(f'layer_{i}'):
            units = dense(units if i == 0 else tf.nn.relu(units), size, seed=i)
    return units


def split_by_columns(images, sizes, num_workers):
    """Builds the network with the first layer's columns spread over the workers, the rest on 0.

    Args and result are those of `split_by_layers`.
    """
    bounds = [sizes[0] * i // num_workers for i in range(num_workers + 1)]
    parts = []
    for i in range(num_workers):
        with tf.device(worker_device(i)), tf.variable_scope(f'layer_0/columns_{i}'):
            parts.append(tf.nn.relu(dense(images, sizes[0], 0, bounds[i], bounds[i + 1])))
    with tf.device(worker_device(0)):
        units = tf.concat(parts, axis=1)
        for i, size in enumerate(sizes[1:], 1):
            with tf.variable_scope(f'layer_{i}'):
                units = dense(units if i == 1 else tf.nn.relu(units), size, seed=i)
    return units


def loss_and_metrics(batch, hparams, sizes, num_workers):
    """Builds the network over the workers, on a batch.

    Args:
      batch: pair of images [batch_size, pixels] float32 and labels [batch_size] int64, the classes.
      hparams: object with the attribute split.
      sizes: list of ints, how many columns the layers have.
      num_workers: int, over how many workers to split.

    Returns:
      Where the logits are, the mean cross-entropy in nats, a float32 scalar; and a dict:
      'accuracy', the share of right answers, a float32 scalar.
    """
    images, labels = batch
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        split = split_by_columns if hparams.split == 'columns' else split_by_layers
        logits = split(images, sizes, 1 if hparams.split == 'none' else num_workers)
    with tf.device(logits.device):
        loss, accuracy = layers.loss_and_accuracy(logits, labels)
    return loss, {'accuracy': accuracy}


class Scheme:
    """SGD with momentum, each variable updated where it lives.

    Attributes:
      optimizers: dict of `tf.train.Optimizer` by device.
      gradients: list of tensors, of the variables in order.
      train_op: dict of tensors to run again and again: 'global_step' after the update; 'loss' and
        the metrics on its batch.
    """

    def __init__(self, loss, metrics, variables, global_step, hparams):
        """Makes the ops.

        Args:
          loss: float32 scalar tensor, on a fresh batch.
          metrics: dict of float32 scalar tensors, on the same batch.
          variables: list of `tf.Variable`.
          global_step: integer `tf.Variable`, counts the updates.
          hparams: object with the attributes learning_rate and momentum.

        Raises:
          SystemExit: naming the variables that the loss does not depend on.
        """
        # Colocated: else backward ops go where bare ones do, and activations travel there.
        self.gradients = tf.gradients(loss, variables, colocate_gradients_with_ops=True)
        building.check_gradients(self.gradients, variables)
        self.optimizers, updates = {}, []
        for device in sorted({variable.device for variable in variables}):
            with tf.device(device):  # one for each, so that its step size need not travel
                self.optimizers[device] = tf.train.MomentumOptimizer(hparams.learning_rate,
                                                                     hparams.momentum)
                updates.append(self.optimizers[device].apply_gradients(
                    (gradient, variable) for gradient, variable in zip(self.gradients, variables)
                    if variable.device == device))
        with tf.control_dependencies(updates), tf.device(global_step.device):
            step = global_step.assign_add(1).read_value()
        self.train_op = dict({'loss': loss}, **metrics, global_step=step)


def split_and_train(_):
    if FLAGS.model:
        sys.exit(f'--model={FLAGS.model}: a network has to be split by hand, as that of this '
                 'folder is in split_by_layers.')
    resolver = cluster.resolve('chief', jobs=('chief', 'worker'))
    cluster_spec = resolver.cluster_spec()
    num_workers, sizes = cluster_spec.num_tasks('worker'), layer_sizes()
    config = sessions.config()
    server = tf.train.Server(cluster_spec, 'chief', 0, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(worker_device(0)):
        global_step = tf.train.get_or_create_global_step()
    build = functools.partial(loss_and_metrics, hparams=FLAGS, sizes=sizes,
                              num_workers=num_workers)
    with tf.device('/job:chief/task:0'):  # the examples are here, batches go where they are used
        batch, = model.train_batches(FLAGS.batch_size, count=1, seed=FLAGS.seed)
        loss, metrics = build(batch)
        test = evaluation.Test(models.Model(model), build)
    scheme = Scheme(loss, metrics, tf.trainable_variables(), global_step, FLAGS)

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, test=test)
    hooks = [past_the_hooks, ending.SayDone(resolver, jobs=('worker',))]
    liveness.watch(resolver, 'worker')
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver, 'train'), hooks=hooks,
        config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)

    with session:
        progress = report.Progress('train', session.run(global_step))
        for worker in range(num_workers):
            progress.say(traffic.kept('worker', worker, tf.global_variables()))
        ways = sessions.traced(session, scheme.train_op, progress)
        for (sender, receiver), sent in sorted(ways.items()):
            if sender.startswith('worker') and receiver.startswith('worker'):
                progress.say(f'in a step {sender} sends {sent} to {receiver}')

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with sessions.failures_of_ps():
                while time.time() < until and progress.goes_on():
                    progress.add(past_the_hooks.run())
                step_context.run_with_hooks(global_step)
                test.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run_step_fn(test.in_step))


if __name__ == '__main__':
    console.run(split_and_train)
