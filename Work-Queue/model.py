"""The data and the network: the file to replace with your own.

Differs from Distributed-Setup: `train_batches` reads the examples of a ticket, which is known only
when the program runs, and not those of a shard.

What the other files use: `num_examples`, `train_batches`, `test_set` and `loss_and_accuracy`.
Variables are made by `tf.get_variable`, so that a scheme can build the network again on values of
its own.
"""

import os
import sys
import urllib.error
import urllib.request
import zipfile
import zlib

from absl import flags
import numpy as np
import sklearn.datasets
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_enum('dataset', 'digits', ['digits', 'mnist'],
                  'digits: 8x8 images, part of scikit-learn; mnist: 28x28, from --data_dir')
flags.DEFINE_string('data_dir', os.path.join('~', '.cache', 'mnist'),
                    'where mnist.npz is, or is put after its download')

_MNIST_URL = 'https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz'
_HIDDEN_UNITS = {'digits': [128], 'mnist': [500, 500]}
_CLASSES = 10


def _digits():
    """Returns 1,500 digits to train on and 297 to test on, as (images, labels, images, labels)."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    # The file is sorted by writer. Shuffled, the test asks for new digits and not for new hands.
    order = np.random.RandomState(0).permutation(len(labels))
    images, labels = images[order] / 16, labels[order]
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def _mnist():
    """Returns 60,000 digits to train on and 10,000 to test on, as (images, labels, images, labels).

    Raises:
      SystemExit: if `mnist.npz` is neither there nor to be had, or is not what it should be.
    """
    path = os.path.join(os.path.expanduser(FLAGS.data_dir), 'mnist.npz')
    if not os.path.exists(path):
        part = f'{path}.{os.getpid()}'  # several workers may download at once
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            urllib.request.urlretrieve(_MNIST_URL, part)
            os.replace(part, path)
        except OSError as error:
            if os.path.exists(part):
                os.remove(part)
            sys.exit(f'--dataset=mnist: there is no {path}, and downloading {_MNIST_URL} failed '
                     f'({error}). Put the file there, or name its directory with --data_dir.')
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError('the end is missing, or it is something else')
        with np.load(path) as arrays:
            x, y, test_x, test_y = (arrays[k] for k in ('x_train', 'y_train', 'x_test', 'y_test'))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        sys.exit(f'--dataset=mnist: {path} is not a whole mnist.npz ({error}). Delete it.')
    return x.reshape(-1, 784) / 255, y, test_x.reshape(-1, 784) / 255, test_y


def _load():
    """Returns the arrays of --dataset: images float32 in [0, 1] by rows, labels int64."""
    arrays = _digits() if FLAGS.dataset == 'digits' else _mnist()
    return [a.astype(np.float32 if a.ndim == 2 else np.int64) for a in arrays]


def _tensors(images, labels):
    """Returns both arrays as tensors that stay out of the graph, which has to fit a message."""
    tensors = tf.py_func(lambda: (images, labels), [], [tf.float32, tf.int64])
    for tensor, array in zip(tensors, (images, labels)):
        tensor.set_shape(array.shape)
    return tuple(tensors)


def num_examples():
    """Returns how many examples there are to train on."""
    return len(_load()[0])


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
    images, labels, _, _ = _load()
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
    iterator = tf.data.make_initializable_iterator(dataset)
    return list(zip(*map(tf.unstack, iterator.get_next()))), iterator.initializer


def test_set():
    """Returns the whole test set as one batch, a pair of tensors as from `train_batches`."""
    return _tensors(*_load()[2:])


def loss_and_accuracy(images, labels):
    """Builds the network, an MLP of ReLUs, on a batch.

    Args:
      images: [batch_size, pixels] float32.
      labels: [batch_size] int64, the classes.

    Returns:
      Two float32 scalars: the mean cross-entropy in nats, and the share of right answers.
    """
    units = images
    for i, size in enumerate(_HIDDEN_UNITS[FLAGS.dataset]):
        units = tf.nn.relu(_dense(units, size, f'hidden_{i}'))
    logits = _dense(units, _CLASSES, 'logits')
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def _dense(units, size, name):
    """Returns units [batch_size, n] times weights plus biases: [batch_size, size]."""
    with tf.variable_scope(name):
        weights = tf.get_variable('weights', [units.shape[1], size],
                                  initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable('biases', [size], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(units, weights), biases)
