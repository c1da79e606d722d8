"""A convolutional network of Keras' layers on the digits, with batch norm and dropout.

The layers are made in the function, and anew in each call: a scheme calls it several times, and
gives the same layers the same variables, or values in their place. The first layer is not told the
shape of its input: Keras would call all layers on a placeholder first, which nobody feeds.
"""

from tfdist import layers, problem
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.1, 500  # of plain SGD: what the flags are by default
train_batches, test_batches = problem.train_batches, problem.test_batches


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of tensors, images [batch_size, pixels] float32 from 0 to 1, and labels
        [batch_size] int64.
      training: bool, whether batch norm takes the batch's own moments, and units are dropped.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict with the 'accuracy', the share of
      right answers.
    """
    images, labels = batch
    side = int(images.shape[1].value ** .5)
    network = tf.keras.Sequential([
        tf.keras.layers.Reshape([side, side, 1]),
        tf.keras.layers.Conv2D(16, 3, padding='same', use_bias=False),
        tf.keras.layers.BatchNormalization(momentum=.9),
        tf.keras.layers.ReLU(),
        tf.keras.layers.MaxPool2D(),
        tf.keras.layers.Conv2D(32, 3, padding='same', use_bias=False),
        tf.keras.layers.BatchNormalization(momentum=.9),
        tf.keras.layers.ReLU(),
        tf.keras.layers.MaxPool2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(.2),
        tf.keras.layers.Dense(problem.CLASSES),
    ])
    # A bool, and not Keras' own placeholder, says in which mode this build is.
    loss, accuracy = layers.loss_and_accuracy(network(images, training=training), labels)
    return loss, {'accuracy': accuracy}
