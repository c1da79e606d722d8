"""CIFAR-10 and the network of TensorFlow's old tutorial on several GPUs, whole.

Two convolutions with local response normalization, three dense layers of which two have a weight
decay; images that are distorted anew in each epoch; a learning rate that falls in stairs; and
moving averages of the parameters, which the test takes.

The images are read from CIFAR-10's binary version, the files data_batch_1.bin and so on, which lie
in --data_dir or in its directory cifar-10-batches-bin. They are not downloaded: they are in
https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz. Files of any number of records will do.
"""

import functools
import math
import os
import sys

from absl import flags
import numpy as np
from tfdist import batches, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
LEARNING_RATE, LOCAL_STEPS = 0.05, 2000  # of plain SGD: what the flags are by default

CLASSES = 10
SIDE = 24  # of the images that the network sees, in pixels: parts of 32x32
WEIGHT_DECAY = 0.004
DECAY_EPOCHS, DECAY_FACTOR = 350, 0.1  # of the learning rate
MOVING_AVERAGE_DECAY = 0.9999  # an option of the interface, for the scheme

_TRAIN = [f'data_batch_{i}.bin' for i in range(1, 6)]
_TEST = ['test_batch.bin']
_RECORD = 1 + 3 * 32 * 32  # bytes: the class, then the red, the green and the blue plane by rows
_MEND = 'Unpack cifar-10-binary.tar.gz, and name its directory with --data_dir.'

pool = functools.partial(tf.nn.max_pool2d, ksize=3, strides=2, padding='SAME')
normalize = functools.partial(tf.nn.lrn, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def find(names):
    """Returns the paths of files, a list of strings, and how many examples they have in all.

    Raises:
      SystemExit: if one of them is missing, cut, or something else.
    """
    directory = os.path.expanduser(datasets.directory('cifar10'))
    inner = os.path.join(directory, 'cifar-10-batches-bin')  # as the archive has it
    paths = [os.path.join(inner if os.path.isdir(inner) else directory, name) for name in names]
    examples = 0
    for path in paths:
        try:
            labels = np.memmap(path, np.uint8, mode='r')[::_RECORD]
        except (OSError, ValueError) as error:  # ValueError: it is empty
            sys.exit(f'{path} cannot be read ({error}). {_MEND}')
        if os.path.getsize(path) % _RECORD or labels.max() >= CLASSES:
            sys.exit(f'{path} is cut, or not of the binary version of CIFAR-10. {_MEND}')
        examples += len(labels)
    return paths, examples


def decode(records):
    """Returns images [n, 32, 32, 3] uint8 and labels [n] int64 from n records, strings."""
    columns = tf.io.decode_raw(records, tf.uint8)
    columns.set_shape([records.shape[0], _RECORD])
    planes = tf.reshape(columns[:, 1:], [-1, 3, 32, 32])
    return tf.transpose(planes, [0, 2, 3, 1]), tf.cast(columns[:, 0], tf.int64)


def distort(images):
    """Cuts a random part out of each image, mirrors it or not, changes brightness and contrast.

    Args:
      images: [n, 32, 32, 3] uint8. All n at once: the ops run once, and not n times.

    Returns:
      [n, SIDE, SIDE, 3] float32, standardized.
    """
    n = images.shape[0]
    top, left = (tf.random.uniform([n, 1], maxval=32 - SIDE + 1, dtype=tf.int32) for _ in range(2))
    part = tf.range(SIDE)[tf.newaxis]
    images = tf.gather(images, top + part, axis=1, batch_dims=1)
    mirrored = tf.random.uniform([n, 1]) < 0.5
    columns = left + tf.where_v2(mirrored, part[:, ::-1], part)
    images = tf.cast(tf.gather(images, columns, axis=2, batch_dims=1), tf.float32)
    images += tf.random.uniform([n, 1, 1, 1], -63, 63)
    means = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    images = means + (images - means) * tf.random.uniform([n, 1, 1, 1], 0.2, 1.8)
    return tf.image.per_image_standardization(images)


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training set for ever, shuffled and distorted anew in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, how many batches each run of the graph takes. They come in one piece.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, how many shards there are, one for each worker.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, SIDE, SIDE, 3] float32 of mean
      0 and variance 1, and labels [batch_size] int64.

    Raises:
      SystemExit: if the files are not as they should be, or have fewer records than the workers.
    """
    def prepare(records):
        images, labels = decode(records)
        return distort(images), labels

    paths, examples = find(_TRAIN)
    if examples < num_shards:
        sys.exit(f'The {examples} examples of CIFAR-10 here are too few for {num_shards} workers.')
    records = tf.data.FixedLengthRecordDataset(paths, _RECORD).shard(num_shards, shard)
    mine = math.ceil((examples - shard) / num_shards)
    records = records.shuffle(mine, seed=batches.order_seed(seed, shard, num_shards)).repeat()
    dataset = batches.mapped(records.batch(batch_size, drop_remainder=True), prepare)
    return batches.in_pieces(batches.next_of(dataset.batch(count, drop_remainder=True).prefetch(2)))


def test_batches(batch_size):
    """Returns the test set as a `tf.data.Dataset` of batches as from `train_batches`.

    Of each image it has the middle, undistorted.
    """
    def prepare(records):
        images, labels = decode(records)
        images = tf.cast(tf.image.central_crop(images, SIDE / 32), tf.float32)
        return tf.image.per_image_standardization(images), labels

    paths, _ = find(_TEST)
    records = tf.data.FixedLengthRecordDataset(paths, _RECORD)
    return batches.mapped(records.batch(batch_size), prepare)


def variables(shape, stddev, bias, decay=0.0):
    """Returns a layer's weights, of `shape`, and its biases; `decay` is that of the weights."""
    weights = tf.get_variable(
        'weights', shape, initializer=tf.truncated_normal_initializer(stddev=stddev),
        regularizer=(lambda weights: decay * tf.nn.l2_loss(weights)) if decay else None)
    return weights, tf.get_variable('biases', shape[-1:],
                                    initializer=tf.constant_initializer(bias))


def convolution(images, bias, name):
    """Returns ReLUs [batch_size, height, width, 64] of images [batch_size, height, width, any]."""
    with tf.variable_scope(name):
        kernel, biases = variables([5, 5, images.shape[-1], 64], 5e-2, bias)
    units = tf.nn.conv2d(images, kernel, strides=[1, 1, 1, 1], padding='SAME')
    return tf.nn.relu(tf.nn.bias_add(units, biases))


def dense(units, size, name, stddev, bias, decay=0.0):
    """Returns units [batch_size, n] times weights plus biases: [batch_size, size]."""
    with tf.variable_scope(name):
        weights, biases = variables([units.shape[-1], size], stddev, bias, decay)
    return tf.nn.bias_add(tf.matmul(units, weights), biases)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, SIDE, SIDE, 3] float32 and labels [batch_size] int64.
      training: bool; this network is the same in training and in the test.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict: 'accuracy', the share of right
      answers, a float32 scalar.
    """
    del training
    images, labels = batch
    images = normalize(pool(convolution(images, 0.0, 'conv1')))
    images = pool(normalize(convolution(images, 0.1, 'conv2')))
    units = tf.layers.flatten(images)
    units = tf.nn.relu(dense(units, 384, 'local3', 0.04, 0.1, WEIGHT_DECAY))
    units = tf.nn.relu(dense(units, 192, 'local4', 0.04, 0.1, WEIGHT_DECAY))
    logits = dense(units, CLASSES, 'softmax_linear', 1 / 192, 0.0)
    loss, accuracy = layers.loss_and_accuracy(logits, labels)
    return loss, {'accuracy': accuracy}


def optimizer(learning_rate):
    """Returns SGD with a learning rate that falls every DECAY_EPOCHS epochs.

    An epoch has as many global steps as the training set has batches of --batch_size.

    Args:
      learning_rate: float, the one at first; the tutorial's is 0.1, for batches of 128.

    Returns:
      `tf.train.GradientDescentOptimizer`.
    """
    _, examples = find(_TRAIN)
    decay_steps = max(1, DECAY_EPOCHS * examples // FLAGS.batch_size)
    global_step = tf.train.get_global_step()
    with tf.device(global_step.device):
        rate = tf.train.exponential_decay(learning_rate, global_step.read_value(), decay_steps,
                                          DECAY_FACTOR, staircase=True)
    return tf.train.GradientDescentOptimizer(rate)
