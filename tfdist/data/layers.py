"""A dense layer, made by `tf.get_variable`, and a classifier's loss and accuracy."""

from tfdist.start.quiet import tf


def dense(units, size, name):
    """Returns units [batch_size, n] times weights plus biases: [batch_size, size]."""
    with tf.variable_scope(name):
        weights = tf.get_variable('weights', [units.shape[1], size],
                                  initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable('biases', [size], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(units, weights), biases)


def loss_and_accuracy(logits, labels):
    """Returns the mean cross-entropy in nats, and the share of right answers, float32 scalars.

    Args:
      logits: [batch_size, classes] float32.
      labels: [batch_size] int64, the classes.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))
