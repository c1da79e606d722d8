"""Networks to place: the network of model.py, and two on which the strategies differ.

To worker.py this is the model: it has the functions of model.py, with a choice of networks.
"""

from absl import flags
from tfdist.data import layers, problem
from tfdist.model import model_file
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
train_batches, test_batches = model.train_batches, model.test_batches
flags.DEFINE_enum('network', 'model', ['model', 'uneven', 'deep'],
                  'model: the one of model.py; uneven: one large layer and five small ones; '
                  'deep: 50 narrow layers, a hundred small variables')


def __getattr__(name):
    """Returns what else model.py has; what names variables is for its own network only."""
    if name in ('initial_values', 'trains') and FLAGS.is_parsed() and FLAGS.network != 'model':
        raise AttributeError(name)
    return getattr(model.module, name)


def loss_and_metrics(batch, training):
    """Builds the network of --network on a batch; see `model_file`."""
    if FLAGS.network == 'model':
        return model.loss_and_metrics(batch, training)
    images, labels = batch
    logits = (_uneven if FLAGS.network == 'uneven' else _deep)(images)
    loss, accuracy = layers.loss_and_accuracy(logits, labels)
    return loss, {'accuracy': accuracy}


def predictions(batch):
    """Returns what an exported model says of a batch; see `model_file`."""
    if FLAGS.network == 'model':
        return model.predictions(batch)
    scores = (_uneven if FLAGS.network == 'uneven' else _deep)(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}


def _uneven(units):
    """An MLP. On the digits, 8x8 pixels, its first layer has 38 % of the 88,232 bytes."""
    for i, size in enumerate([128, 48, 48, 48, 48]):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    return layers.dense(units, problem.CLASSES, 'logits')


def _deep(units, depth=50, width=16):
    """Residual layers: each adds a little to its input, so that all of them learn."""
    units = tf.nn.relu(layers.dense(units, width, 'hidden_0'))
    for i in range(1, depth - 1):
        units += tf.nn.relu(layers.dense(units, width, f'hidden_{i}')) / depth
    return layers.dense(units, problem.CLASSES, 'logits')
