"""The network and its data: the file to replace with your own."""

import tensorflow.compat.v1 as tf
from tfdist.data import layers, problem

INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch
train_batches, test_set = problem.train_batches, problem.test_set


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
