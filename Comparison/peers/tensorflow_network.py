"""The network of the TensorFlow peers, and its data; for graphs and for functions."""

import problem

tf = problem.load('tensorflow.compat.v1')


def threads(inter_op=1):
    """Returns the `ConfigProto` of a process with one thread to compute, as a worker has it."""
    return tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=inter_op)


def variables(options):
    """Makes the variables, a list of pairs of weights [n, m] and biases [m]."""
    return [(tf.Variable(weights), tf.Variable(biases))
            for weights, biases in problem.initial(problem.NETWORKS[options.model].sizes)]


def loss(layers, images, labels):
    """Returns the mean cross-entropy of images [batch_size, pixels] in nats, a scalar."""
    units = images
    for weights, biases in layers[:-1]:
        units = tf.nn.relu(tf.nn.bias_add(tf.matmul(units, weights), biases))
    weights, biases = layers[-1]
    logits = tf.nn.bias_add(tf.matmul(units, weights), biases)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels,
                                                                         logits=logits))


def dataset(options, worker=0, workers=1, seed=problem.SEED):
    """Returns the batches of one of some workers, a `tf.data.Dataset` without end."""
    images, labels = problem.shard(options, worker, workers)
    made = tf.data.Dataset.from_tensor_slices((images, labels))
    return made.shuffle(len(labels), seed=seed).repeat().batch(problem.BATCH_SIZE,
                                                               drop_remainder=True)


def optimizer(options):
    """Returns plain gradient descent."""
    return tf.train.GradientDescentOptimizer(problem.NETWORKS[options.model].learning_rate)
