"""The network and its data: the file to replace with your own.

`train_batches` reads not a shard, but the examples of a ticket, known only while the program runs.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from tfdist.data import batches, layers, problem

INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch
test_set = problem.test_set


def num_examples():
    """Returns the number of examples to train on."""
    return len(problem.load()[0])


def train_batches(batch_size, count, ticket, num_steps, seed=0):
    """Reads the examples of one ticket after the other.

    Each epoch has its own order, the same for all workers. Its first ticket is the first
    `batch_size * num_steps` examples, and so on; the last ticket is filled up from the beginning.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes.
      ticket: int64 [2] tensor, the epoch and the number of a ticket.
      num_steps: int, batches in a ticket; `count` divides it.
      seed: int, of the order.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, pixels] float32 in [0, 1] and
      labels [batch_size] int64. And the op to run first, for each ticket.
    """
    images, labels = map(batches.cast, problem.load()[:2])
    per_ticket = batch_size * num_steps

    def examples_of(ticket):
        epoch, index = ticket
        order = np.random.RandomState([seed, epoch]).permutation(len(images))
        mine = order.take(np.arange(per_ticket) + index * per_ticket, mode='wrap')
        return images[mine], labels[mine]

    examples = tf.py_func(examples_of, [ticket], [tf.float32, tf.int64])
    for tensor, array in zip(examples, (images, labels)):
        tensor.set_shape((per_ticket,) + array.shape[1:])
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples))
    for size in batch_size, count:
        dataset = dataset.batch(size, drop_remainder=True)
    iterator = batches.make_iterator(dataset)
    return batches.in_pieces(iterator.get_next()), iterator.initializer


def logits(images):
    """Builds an MLP of ReLUs on images [batch_size, pixels] float32: [batch_size, 10] float32."""
    units = images
    for i, size in enumerate(problem.hidden_units()):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    return layers.dense(units, problem.CLASSES, 'logits')


def loss_and_accuracy(images, labels):
    """Builds the network on a batch; its labels are [batch_size] int64.

    Returns the mean cross-entropy in nats, and the share of right answers: two float32 scalars.
    """
    return layers.loss_and_accuracy(logits(images), labels)


def predictions(batch):
    """Returns what an exported model says of the images of a batch, see --export_dir."""
    scores = logits(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
