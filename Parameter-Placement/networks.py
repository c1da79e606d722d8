"""Networks to place: the one of model.py, and two on which the strategies differ.

For worker.py this is the model: the functions of model.py, with a choice of networks.
"""

from absl import flags
import model
from model import test_set, train_batches  # noqa: F401  (for worker.py)
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_enum('network', 'model', ['model', 'uneven', 'deep'],
                  'model: the one of model.py; uneven: one large layer and five small ones; '
                  'deep: 50 narrow layers, a hundred small variables')

_CLASSES = 10


def loss_and_accuracy(images, labels):
    """Builds the network of --network on a batch; see `model.loss_and_accuracy`."""
    if FLAGS.network == 'model':
        return model.loss_and_accuracy(images, labels)
    logits = (_uneven if FLAGS.network == 'uneven' else _deep)(images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def _uneven(units):
    """An MLP. On the digits, 8x8 pixels, its first layer has 38 % of the 88,232 bytes."""
    for i, size in enumerate([128, 48, 48, 48, 48]):
        units = tf.nn.relu(_dense(units, size, f'hidden_{i}'))
    return _dense(units, _CLASSES, 'logits')


def _deep(units, layers=50, width=16):
    """Residual layers: each adds its little to what it gets, so that all of them learn."""
    units = tf.nn.relu(_dense(units, width, 'hidden_0'))
    for i in range(1, layers - 1):
        units += tf.nn.relu(_dense(units, width, f'hidden_{i}')) / layers
    return _dense(units, _CLASSES, 'logits')


def _dense(units, size, name):
    """Returns units [batch_size, n] times weights plus biases: [batch_size, size]."""
    with tf.variable_scope(name):
        weights = tf.get_variable('weights', [units.shape[1], size],
                                  initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable('biases', [size], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(units, weights), biases)
