"""The network and its data: the file to replace with your own.

`train_batches` reads the examples of a ticket, which is known only when the program runs, and not
those of a shard.
"""

import numpy as np
from tfdist import batches, layers, problem
import tensorflow.compat.v1 as tf

test_set = problem.test_set


def num_examples():
    """Returns how many examples there are to train on."""
    return len(problem.load()[0])


def train_batches(batch_size, count, ticket, num_steps, seed=0):
    """Reads the examples of one ticket after the other.

    Each epoch has an order of its own, the same for all workers. Its first ticket is the first
    `batch_size * num_steps` examples of it, and so on; the last ticket is filled up from the
    beginning.

    Args:
      batch_size: int, examples in a batch.
      count: int, how many batches each run of the graph takes.
      ticket: int64 [2] tensor, the epoch and which of its tickets.
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


def loss_and_accuracy(images, labels):
    """Builds the network, an MLP of ReLUs, on a batch.

    Args:
      images: [batch_size, pixels] float32.
      labels: [batch_size] int64, the classes.

    Returns:
      Two float32 scalars: the mean cross-entropy in nats, and the share of right answers.
    """
    units = images
    for i, size in enumerate(problem.hidden_units()):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    logits = layers.dense(units, problem.CLASSES, 'logits')
    return layers.loss_and_accuracy(logits, labels)
