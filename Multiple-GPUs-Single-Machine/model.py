"""The data and the network: the file to replace with your own.

It has a small convolutional network with weight decay, the digits or CIFAR-10, and an input
pipeline for each tower.
"""

import functools
import os
import sys
import tarfile
import zlib

from absl import flags
import numpy as np
import tensorflow.compat.v1 as tf
from tfdist.data import batches as pipelines, datasets, layers

FLAGS = flags.FLAGS
flags.DEFINE_enum('dataset', 'digits', ['digits', 'cifar10'],
                  'digits: 8x8 grey images, part of scikit-learn; cifar10: 32x32 in color')
flags.DEFINE_float('weight_decay', 1e-4, "factor of the weights' squares in the loss",
                   lower_bound=0)

INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch
_CIFAR_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
_CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
_CHANNELS = {'digits': [16, 32], 'cifar10': [64, 64]}
_UNITS = {'digits': 64, 'cifar10': 192}
_CLASSES = 10


def _digits():
    """Returns the digits as images with one channel, see `datasets.digits`."""
    x, y, test_x, test_y = datasets.digits()
    return x.reshape(-1, 8, 8, 1), y, test_x.reshape(-1, 8, 8, 1), test_y


@functools.lru_cache(maxsize=None)  # for each tower and for the test
def _cifar10(data_dir):
    """Returns 50,000 images to train on and 10,000 to test on, as (images, labels, images, labels).

    Args:
      data_dir: string, directory of the archive, or for its download.

    Raises:
      SystemExit: if the archive cannot be downloaded, or is not whole.
    """
    path = datasets.fetch(_CIFAR_URL, data_dir, 'cifar10')
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
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        return np.divide(planes.transpose(0, 2, 3, 1), 255, dtype=np.float32)

    return images(train), train[:, 0], images(test), test[:, 0]


def load():
    """Returns the arrays of --dataset, to train on and to test on: images, labels, images, labels.

    Images are [n, height, width, channels] from 0 to 1, labels [n].
    """
    return _digits() if FLAGS.dataset == 'digits' else _cifar10(datasets.directory('cifar10'))


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training set endlessly, shuffled again in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, number of shards, one for each tower.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, height, width, channels]
      float32 in [0, 1] and labels [batch_size] int64. Batches are prepared two runs ahead.
    """
    dataset = pipelines.shuffled(load()[:2], shard, num_shards, seed)
    for size in batch_size, count:
        dataset = dataset.batch(size, drop_remainder=True)
    return pipelines.in_pieces(pipelines.next_of(dataset.prefetch(2)))


def test_batches(batch_size):
    """Returns the test set, a `tf.data.Dataset` of batches as from `train_batches`."""
    return tf.data.Dataset.from_tensor_slices(pipelines.tensors(load()[2:])).batch(batch_size)


def logits(images):
    """Builds the network: two layers of convolution and pooling, then two dense layers.

    Each time, it adds the outputs of the layers to the collection ACTIVATIONS, and the terms of
    --weight_decay to REGULARIZATION_LOSSES.

    Args:
      images: [batch_size, height, width, channels] float32.

    Returns:
      [batch_size, 10] float32.
    """
    units = images
    for i, channels in enumerate(_CHANNELS[FLAGS.dataset]):
        with tf.variable_scope(f'convolution_{i}'):
            weights, biases = _weights([3, 3, units.shape[3], channels])
            units = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(units, weights, 1, 'SAME'), biases))
            tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, units)
            units = tf.nn.max_pool2d(units, 2, 2, 'SAME')
    units = tf.reshape(units, [-1, units.shape[1:].num_elements()])
    with tf.variable_scope('dense'):
        weights, biases = _weights([units.shape[1], _UNITS[FLAGS.dataset]])
        units = tf.nn.relu(tf.nn.bias_add(tf.matmul(units, weights), biases))
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, units)
    with tf.variable_scope('logits'):
        weights, biases = _weights([units.shape[1], _CLASSES])
        return tf.nn.bias_add(tf.matmul(units, weights), biases)


def loss_and_metrics(batch, training):
    """Builds the network on a batch: pair of images and labels [batch_size] int64, the classes.

    Returns the mean cross-entropy in nats, without the weight decay, a float32 scalar; and a dict
    with the 'accuracy', the share of right answers. The network is the same in training and test.
    """
    del training
    loss, accuracy = layers.loss_and_accuracy(logits(batch[0]), batch[1])
    return loss, {'accuracy': accuracy}


def predictions(batch):
    """Returns what an exported model says of the images of a batch, see --export_dir."""
    scores = logits(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}


def _weights(shape):
    """Returns a layer's weights, of a shape, and its biases."""
    weights = tf.get_variable('weights', shape, initializer=tf.glorot_uniform_initializer())
    biases = tf.get_variable('biases', shape[-1:], initializer=tf.zeros_initializer())
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES,
                         FLAGS.weight_decay * tf.nn.l2_loss(weights))
    return weights, biases
