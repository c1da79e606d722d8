"""Model parallelism: each worker keeps a part of one network, and computes with it.

    y = f1(f0(x; theta0); theta1)    --split=layers: worker 0 has theta0, worker 1 has theta1
    y = f1([x W0 | x W1]; theta1)    --split=columns: W0 and W1 are columns of one layer's weights

What a worker keeps: its part of the parameters, and their momentum. What travels in each step: the
activations at the boundary, and their gradients back. Parameters never travel. This program, the
chief, builds the one graph, and has the workers run it.

Jeffrey Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 3.
"""

import functools
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.data import layers
from tfdist.model import building, model_file
from tfdist.scheme import exchange
from tfdist.start import console
from tfdist.training import checkpoints, evaluation, report, sessions, traffic, training_flags
from tfdist.start.quiet import tf
import model

FLAGS = flags.FLAGS
training_flags.define(model, train_steps=2000, learning_rate=0.02,
                      counted='updates of the variables', straggler=False)
flags.DEFINE_float('momentum', 0.9, 'share of a step that the next one keeps', lower_bound=0)
flags.DEFINE_enum('split', 'layers', ['layers', 'columns', 'none'],
                  'layers: each worker has some layers; columns: each has columns of the first '
                  'layer, and worker 0 the other layers; none: worker 0 has all layers')
flags.DEFINE_list('hidden_units', ['128', '100', '64'],
                  'sizes of the hidden layers, separated by commas')

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
    """Builds columns `first` to `last` (excluded) of a layer, on the device of the scope.

    Args:
      units: [batch_size, n] float32.
      size: int, the number of columns of the whole layer.
      seed: int. The initial values depend on it alone, not on how the layer is split.
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
      sizes: list of ints, the numbers of columns of the layers.
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
    """Builds the first layer's columns spread over the workers, and the rest on worker 0.

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


def network(images, hparams, sizes, num_workers):
    """Builds the network as --split says: `split_by_layers`, or `split_by_columns`."""
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        split = split_by_columns if hparams.split == 'columns' else split_by_layers
        return split(images, sizes, 1 if hparams.split == 'none' else num_workers)


def loss_and_metrics(batch, hparams, sizes, num_workers):
    """Builds the network over the workers, on a batch.

    Args:
      batch: pair of images [batch_size, pixels] float32 and labels [batch_size] int64, the classes.
      hparams: object with the attribute split.
      sizes: list of ints, the numbers of columns of the layers.
      num_workers: int, the number of workers over which to split.

    Returns:
      On the device of the logits: the mean cross-entropy in nats, a float32 scalar; and a dict with
      the 'accuracy', the share of right answers, a float32 scalar.
    """
    images, labels = batch
    logits = network(images, hparams, sizes, num_workers)
    with tf.device(logits.device):
        loss, accuracy = layers.loss_and_accuracy(logits, labels)
    return loss, {'accuracy': accuracy}


def predictions(batch, **split):
    """Returns what an exported model says of the images of a batch; see `network` for `split`."""
    scores = network(batch[0], **split)
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}


class Scheme:
    """SGD with momentum, which updates each variable on its device.

    Attributes:
      optimizers: dict of `tf.train.Optimizer` by device.
      gradients: list of tensors in the order of the variables.
      train_op: dict of tensors to run again and again: 'global_step' after the update; 'loss' and
        the metrics on its batch.
    """

    def __init__(self, loss, metrics, variables, global_step, hparams):
        """Makes the ops.

        Args:
          loss: float32 scalar tensor of a fresh batch.
          metrics: dict of float32 scalar tensors of the same batch.
          variables: list of `tf.Variable`.
          global_step: integer `tf.Variable`, counts the updates.
          hparams: object with the attributes learning_rate and momentum.

        Raises:
          SystemExit: naming the variables that the loss does not depend on.
        """
        # Colocated: otherwise backward ops go to the default device, and activations travel there.
        self.gradients = tf.gradients(loss, variables, colocate_gradients_with_ops=True)
        building.check_gradients(self.gradients, variables)
        self.optimizers, updates = {}, []
        for device in sorted({variable.device for variable in variables}):
            with tf.device(device):  # one optimizer for each, so that no step size travels
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
        sys.exit(f'--model={FLAGS.model}: a network has to be split by hand, as split_by_layers '
                 'does with the network of this folder.')
    if FLAGS.accumulate > 1:
        sys.exit(f'--accumulate={FLAGS.accumulate}: a step here is of one batch. Take a larger '
                 '--batch_size: each worker holds a part of its activations.')
    # Distributed: this program, the chief, has the whole graph; the workers run what it puts there.
    resolver = membership.resolve('chief', jobs=('chief', 'worker'))
    cluster_spec = resolver.cluster_spec()
    num_workers, sizes = cluster_spec.num_tasks('worker'), layer_sizes()
    config = servers.config()
    server = tf.train.Server(cluster_spec, 'chief', 0, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(worker_device(0)):
        global_step = tf.train.get_or_create_global_step()
    split = {'hparams': FLAGS, 'sizes': sizes, 'num_workers': num_workers}
    build, tested = functools.partial(loss_and_metrics, **split), model_file.Model(model)
    tested.predictions = functools.partial(predictions, **split)
    # Distributed: the examples are here; batches go to the layers that use them.
    with tf.device('/job:chief/task:0'):
        batch, = model.train_batches(FLAGS.batch_size, count=1, seed=FLAGS.seed)
        loss, metrics = build(batch)
        test = evaluation.Test(tested, build, values=lambda: {
            variable.op.name: exchange.read(variable) for variable in tf.trainable_variables()})
    scheme = Scheme(loss, metrics, tf.trainable_variables(), global_step, FLAGS)

    trainer = sessions.Trainer(scheme.train_op, test=test)
    # Distributed: the workers end when the chief has said that it is done.
    hooks = [trainer, shutdown.SayDone(resolver, jobs=('worker',))]
    # Distributed: no silent wait for a worker that does not answer.
    liveness.watch(resolver, 'worker', over=test.is_over)
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
        scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver, 'train'), hooks=hooks,
        config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)

    with session:
        progress = report.Progress('train', session.run(global_step), model=tested)
        for worker in range(num_workers):
            progress.say(traffic.kept('worker', worker, tf.global_variables()))
        ways = sessions.traced(session, scheme.train_op, progress)
        for (sender, receiver), sent in sorted(ways.items()):
            if sender.startswith('worker') and receiver.startswith('worker'):
                progress.say(f'in a step {sender} sends {sent} to {receiver}')
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, then=test.now_and_then)
        progress.done()
        test.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(split_and_train)
