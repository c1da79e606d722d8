"""MNIST and a small residual network, with batch normalization, dropout and weight decay.

It shows what a model may leave to TensorFlow's layers: moving averages, which only the test uses;
dropout, which only training uses; and a penalty on the kernels, which the layers add to the
collection of regularization losses, and the schemes from there to the loss.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun, "Identity Mappings in Deep Residual Networks",
ECCV 2016, arXiv 1603.05027. The digits are those of `mnist.py`.
"""

import functools

from tfdist.data import batches, datasets, layers
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.05, 400  # defaults of the flags, for plain SGD
CLASSES = 10
CHANNELS = [16, 32, 48]  # of the stages; all but the first halve the images' height and width
WEIGHT_DECAY = 1e-4
DROPOUT = 0.5  # the share of features that a training step drops
MOMENTUM = 0.9  # of the moving averages, which settle within a few dozen steps
# Pairs of images [batch_size, 784] float32 in [0, 1] and labels [batch_size] int64.
train_batches, test_batches = batches.of_arrays(datasets.mnist_at_hand)
INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch


def penalty(kernel):
    """Returns the weight decay of `kernel`, a float32 scalar to add to the loss."""
    return WEIGHT_DECAY * tf.nn.l2_loss(kernel)


convolution = functools.partial(tf.layers.conv2d, padding='same', use_bias=False,
                                kernel_initializer=tf.variance_scaling_initializer(2.0),
                                kernel_regularizer=penalty)


def normalized(images, training):
    """Normalizes images [batch_size, height, width, channels] by channel, and applies a ReLU."""
    return tf.nn.relu(tf.layers.batch_normalization(images, momentum=MOMENTUM, training=training))


def block(images, channels, stride, training):
    """Adds the result of two convolutions of the images to the images themselves.

    Args:
      images: [batch_size, height, width, any] float32.
      channels: int, number of channels of the result.
      stride: int.
      training: bool.

    Returns:
      [batch_size, height / stride, width / stride, channels] float32.
    """
    units = normalized(images, training)
    # If the shape changes, a convolution of 1x1 brings the images into the new shape.
    shortcut = images if images.shape[-1] == channels else convolution(units, channels, 1, stride)
    units = convolution(units, channels, 3, stride)
    return shortcut + convolution(normalized(units, training), channels, 3)


def logits(pixels, training):
    """Builds the network.

    Args:
      pixels: [batch_size, 784] float32.
      training: bool, whether to normalize by this batch, and to drop features.

    Returns:
      [batch_size, CLASSES] float32.
    """
    images = convolution(tf.reshape(pixels, [-1, 28, 28, 1]), CHANNELS[0], 3)
    for i, channels in enumerate(CHANNELS):
        with tf.variable_scope(f'stage_{i}'):
            images = block(images, channels, 2 if i else 1, training)
    features = tf.layers.flatten(normalized(images, training))
    features = tf.layers.dropout(features, DROPOUT, training=training)
    return tf.layers.dense(features, CLASSES, kernel_regularizer=penalty)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, 784] float32 and labels [batch_size] int64, the classes.
      training: bool, see `logits`.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict with the 'accuracy', the share of
      right answers, a float32 scalar.
    """
    images, labels = batch
    loss, accuracy = layers.loss_and_accuracy(logits(images, training), labels)
    return loss, {'accuracy': accuracy}


def predictions(batch):
    """Returns what an exported model says of the images of a batch, see --export_dir."""
    scores = logits(batch[0], training=False)
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
