"""The data and the network: the file to replace with your own.

A small convolutional network with weight decay, digits or CIFAR-10, and a pipeline of its own for
each tower.
"""

import os
import sys
import tarfile
import zlib

from absl import flags
import numpy as np
from tfdist import batches as pipelines, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_enum('dataset', 'digits', ['digits', 'cifar10'],
                  'digits: 8x8 grey images, part of scikit-learn; cifar10: 32x32 in color')
flags.DEFINE_float('weight_decay', 1e-4, "how much of the weights' squares is in the loss",
                   lower_bound=0)

_CIFAR_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
_CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane
_CHANNELS = {'digits': [16, 32], 'cifar10': [64, 64]}
_UNITS = {'digits': 64, 'cifar10': 192}
_CLASSES = 10


def _digits():
    """Returns the digits as images with one channel, see `datasets.digits`."""
    x, y, test_x, test_y = datasets.digits()
    return x.reshape(-1, 8, 8, 1), y, test_x.reshape(-1, 8, 8, 1), test_y


def _cifar10():
    """Returns 50,000 images to train on and 10,000 to test on, as (images, labels, images, labels).

    Raises:
      SystemExit: if the archive is neither there nor to be had, or is not what it should be.
    """
    path = datasets.fetch(_CIFAR_URL, datasets.directory('cifar10'), 'cifar10')
    try:
        with tarfile.open(path, 'r:gz') as archive:
            train, test = [], []
            for member in archive:
                name = os.path.basename(member.name)
                if name.startswith(('data_batch', 'test_batch')):
                    records = np.frombuffer(archive.extractfile(member).read(), np.uint8)
                    part = test if name.startswith('test') else train
                    part.append(records.reshape(-1, _CIFAR_RECORD))
            train, test = np.concatenate(train), np.concatenate(test)
    except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
        sys.exit(f'--dataset=cifar10: {path} is not a whole cifar-10-binary.tar.gz ({error}). '
                 'Delete it.')

    def images(records):
        return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255

    return images(train), train[:, 0], images(test), test[:, 0]


def load():
    """Returns images [n, height, width, channels] float32 in [0, 1] and labels [n] int64, twice.

    That is, to train on and to test on: (images, labels, images, labels).
    """
    arrays = _digits() if FLAGS.dataset == 'digits' else _cifar10()
    return [pipelines.cast(array) for array in arrays]


def train_batches(arrays, batch_size, shards, num_shards, seed=0):
    """Reads shards of the training set for ever, shuffled anew in each epoch: one for each tower.

    Args:
      arrays: what `load` returns.
      batch_size: int, examples in a batch of one tower.
      shards: list of ints, which shards: examples `shard`, `shard + num_shards`, ...
      num_shards: int, how many there are in all.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of batches, one for each shard, pairs of tensors: images [batch_size, height, width,
      channels] float32 in [0, 1] and labels [batch_size] int64. Each has a pipeline of its own.
    """
    batches = []
    for shard in shards:
        dataset = pipelines.shuffled(arrays[:2], shard, num_shards, seed)
        batches.append(pipelines.next_of(
            dataset.batch(batch_size, drop_remainder=True).prefetch(2)))
    return batches


def test_set(arrays):
    """Returns the whole test set as one batch, a pair of tensors as from `train_batches`."""
    return pipelines.tensors(arrays[2:])


def loss_and_accuracy(images, labels):
    """Builds the network: two layers of convolution and pooling, two dense ones.

    What each layer puts out goes into the collection ACTIVATIONS, and what --weight_decay adds to
    the loss into REGULARIZATION_LOSSES, every time that the network is built.

    Args:
      images: [batch_size, height, width, channels] float32.
      labels: [batch_size] int64, the classes.

    Returns:
      Two float32 scalars: the mean cross-entropy in nats, without the weight decay, and the share
      of right answers.
    """
    units = images
    for i, channels in enumerate(_CHANNELS[FLAGS.dataset]):
        with tf.variable_scope(f'convolution_{i}'):
            weights, biases = _weights([3, 3, units.shape[3], channels])
            units = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(units, weights, 1, 'SAME'), biases))
            tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, units)
            units = tf.nn.max_pool2d(units, 2, 2, 'SAME')
    units = tf.reshape(units, [units.shape[0], -1])
    with tf.variable_scope('dense'):
        weights, biases = _weights([units.shape[1], _UNITS[FLAGS.dataset]])
        units = tf.nn.relu(tf.nn.bias_add(tf.matmul(units, weights), biases))
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, units)
    with tf.variable_scope('logits'):
        weights, biases = _weights([units.shape[1], _CLASSES])
        logits = tf.nn.bias_add(tf.matmul(units, weights), biases)
    return layers.loss_and_accuracy(logits, labels)


def _weights(shape):
    """Returns the values of a layer's weights, of a shape, and of its biases."""
    weights = _read(tf.get_variable('weights', shape,
                                    initializer=tf.glorot_uniform_initializer()))
    biases = _read(tf.get_variable('biases', shape[-1:], initializer=tf.zeros_initializer()))
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES,
                         FLAGS.weight_decay * tf.nn.l2_loss(weights))
    return weights, biases


def _read(variable):
    """Reads a variable once, where it is, however often the value is used in a tower."""
    with tf.device(variable.device):
        return variable.read_value()
