"""CIFAR-10 and the complete network of TensorFlow's old tutorial on several GPUs.

It has two convolutions with local response normalization, and three dense layers, two of them with
weight decay. Images are distorted again in each epoch, the learning rate falls in steps, and the
test uses moving averages of the parameters.

The images are read from CIFAR-10's binary version, the files data_batch_1.bin and so on, which lie
in --data_dir or in its directory cifar-10-batches-bin. They are not downloaded: they are in
https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz. Files may have any number of records.
"""

import functools
import math
import os
import sys

import numpy as np
from tfdist.data import batches, datasets, layers
from tfdist.training.training_flags import FLAGS
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.05, 2000  # defaults of the flags, for plain SGD

INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch
CLASSES = 10
SIDE = 24  # pixels of the images for the network, cut from 32x32
WEIGHT_DECAY = 0.004
DECAY_EPOCHS, DECAY_FACTOR = 350, 0.1  # of the learning rate
MOVING_AVERAGE_DECAY = 0.9999  # an option of the interface

_TRAIN = [f'data_batch_{i}.bin' for i in range(1, 6)]
_TEST = ['test_batch.bin']
_RECORD = 1 + 3 * 32 * 32  # bytes: the class, then the red, green and blue planes by rows
_MEND = 'Unpack cifar-10-binary.tar.gz, and name its directory with --data_dir.'

pool = functools.partial(tf.nn.max_pool2d, ksize=3, strides=2, padding='SAME')
normalize = functools.partial(tf.nn.lrn, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def find(names):
    """Returns the paths of files, a list of strings, and the number of their examples.

    Raises:
      SystemExit: if a file is missing, truncated, or something else.
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
            sys.exit(f'{path} is truncated, or not of the binary version of CIFAR-10. {_MEND}')
        examples += len(labels)
    return paths, examples


def decode(records):
    """Returns images [n, 32, 32, 3] uint8 and labels [n] int64 from n records, strings."""
    columns = tf.io.decode_raw(records, tf.uint8)
    columns.set_shape([records.shape[0], _RECORD])
    planes = tf.reshape(columns[:, 1:], [-1, 3, 32, 32])
    return tf.transpose(planes, [0, 2, 3, 1]), tf.cast(columns[:, 0], tf.int64)


def distort(images):
    """Crops each image, mirrors it or not, and changes brightness and contrast, all at random.

    Args:
      images: [n, 32, 32, 3] uint8, a batch, so that the ops run once for all.

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
    """Reads one shard of the training set endlessly, shuffled and distorted again in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, number of shards, one for each worker.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, SIDE, SIDE, 3] float32 of mean
      0 and variance 1, and labels [batch_size] int64.

    Raises:
      SystemExit: if the files are invalid, or have fewer records than there are workers.
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
    """Returns the test set, a `tf.data.Dataset` of batches as from `train_batches`.

    Its images are cut from the middle, and not distorted.
    """
    def prepare(records):
        images, labels = decode(records)
        images = tf.cast(tf.image.central_crop(images, SIDE / 32), tf.float32)
        return tf.image.per_image_standardization(images), labels

    paths, _ = find(_TEST)
    records = tf.data.FixedLengthRecordDataset(paths, _RECORD)
    return batches.mapped(records.batch(batch_size), prepare)


def variables(shape, stddev, bias, decay=0.0):
    """Returns a layer's weights, of `shape`, and its biases; `decay` is the weights' decay."""
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


def logits(images):
    """Builds the network on images [batch_size, SIDE, SIDE, 3] float32: [batch_size, CLASSES]."""
    images = normalize(pool(convolution(images, 0.0, 'conv1')))
    images = pool(normalize(convolution(images, 0.1, 'conv2')))
    units = tf.layers.flatten(images)
    units = tf.nn.relu(dense(units, 384, 'local3', 0.04, 0.1, WEIGHT_DECAY))
    units = tf.nn.relu(dense(units, 192, 'local4', 0.04, 0.1, WEIGHT_DECAY))
    return dense(units, CLASSES, 'softmax_linear', 1 / 192, 0.0)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, SIDE, SIDE, 3] float32 and labels [batch_size] int64.
      training: bool; the network is the same in training and in the test.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict with the 'accuracy', the share of
      right answers, a float32 scalar.
    """
    del training
    images, labels = batch
    loss, accuracy = layers.loss_and_accuracy(logits(images), labels)
    return loss, {'accuracy': accuracy}


def predictions(batch):
    """Returns what an exported model says of the images of a batch, see --export_dir."""
    scores = logits(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}


def optimizer(learning_rate):
    """Returns SGD with a learning rate that falls every DECAY_EPOCHS epochs.

    An epoch has as many global steps as the training set has batches of --batch_size.

    Args:
      learning_rate: float, the initial one; the tutorial's is 0.1, for batches of 128.
    """
    _, examples = find(_TRAIN)
    decay_steps = max(1, DECAY_EPOCHS * examples // FLAGS.batch_size)
    global_step = tf.train.get_global_step()
    with tf.device(global_step.device):
        rate = tf.train.exponential_decay(learning_rate, global_step.read_value(), decay_steps,
                                          DECAY_FACTOR, staircase=True)
    return tf.train.GradientDescentOptimizer(rate)
