"""A convolutional network of Keras layers on the digits, with batch norm and dropout.

The function makes the layers again in each call: a scheme calls it several times, and gives the
same layers the same variables, or values in their place. The first layer is not told its input
shape, or Keras would first call all layers on a placeholder that is never fed.
"""

from tfdist.data import layers, problem
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.1, 500  # defaults of the flags, for plain SGD
train_batches, test_batches = problem.train_batches, problem.test_batches
INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch


def logits(images, training):
    """Builds the network.

    Args:
      images: [batch_size, pixels] float32 from 0 to 1.
      training: bool, whether batch norm uses the batch's own moments, and units are dropped.

    Returns:
      [batch_size, 10] float32.
    """
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
    # The mode of this build is a bool, not Keras' own placeholder.
    return network(images, training=training)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of tensors, images and labels [batch_size] int64.
      training: bool, see `logits`.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict with the 'accuracy', the share of
      right answers.
    """
    images, labels = batch
    loss, accuracy = layers.loss_and_accuracy(logits(images, training), labels)
    return loss, {'accuracy': accuracy}


def predictions(batch):
    """Returns what an exported model says of the images of a batch, see --export_dir."""
    scores = logits(batch[0], training=False)
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
