"""A problem without end: a student learns what a fixed random network, its teacher, says.

The inputs of each batch are drawn anew, so that they never run out, however many workers there are.
The labels are drawn from the teacher's softmax. So the least possible loss is known, the teacher's
mean entropy, see `best_possible`; the test reports how far the student's loss is above it.

The teacher, the inputs to test on and what distinguishes the workers are the same in every run,
whatever its --seed. NumPy draws all of it from counters, and not from a state. So the simulation
and real runs get the very same batches, with either TensorFlow.
"""

import functools
import threading

from absl import flags
import numpy as np
from tfdist.data import batches, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('teacher_dimension', 64, 'numbers in an input', lower_bound=1)
flags.DEFINE_float('teacher_noise', 0.25, 'by which the logits of the teacher, whose variance is '
                   'about 1, are divided: the larger, the more labels are left to chance',
                   lower_bound=0.01)
flags.DEFINE_float('teacher_condition', 1, 'ratio of the largest to the smallest variance of an '
                   'input: the larger, the slower some of it is learned', lower_bound=1,
                   upper_bound=1e12)
flags.DEFINE_float('teacher_shift', 0, 'how unequal the inputs of the workers are: their means '
                   'have this standard deviation; 0: all are alike', lower_bound=0, upper_bound=1)
flags.DEFINE_integer('teacher_test_examples', 20000, 'examples to draw for the test set',
                     lower_bound=100)
LEARNING_RATE, LOCAL_STEPS = 0.1, 5000  # defaults of the flags, for plain SGD

INPUTS = 'inputs', 'labels', 'probabilities'  # what an exported model calls the parts of a batch
CLASSES = 10
UNITS = 128  # hidden, of the teacher and of the student
_EXAMPLES, _TEST, _MEAN = range(3)  # what is drawn
_THREAD = threading.local()  # its attributes are the generator of a thread, and its first state


def _generator(what, number, step=0):
    """Returns the `np.random.Generator` of this thread, set by nothing but these three ints."""
    if not hasattr(_THREAD, 'random'):  # to make one takes much longer than to set it
        _THREAD.random = np.random.Generator(np.random.Philox(0))
        _THREAD.state = _THREAD.random.bit_generator.state
    _THREAD.state['state'] = {'key': np.array([number % 2 ** 64, what], np.uint64),
                              'counter': np.array([0, step, 0, 0], np.uint64)}
    _THREAD.random.bit_generator.state = _THREAD.state
    return _THREAD.random


@functools.lru_cache(maxsize=None)
def teacher(dimension):
    """Returns the weights of the teacher, [dimension, UNITS] and [UNITS, CLASSES] float64.

    It has no biases. For standard normal inputs all its hidden units have one mean, and the weights
    of a logit sum to 0: so the mean of each logit is 0, and no class is preferred.
    """
    random = np.random.RandomState(0)
    hidden, out = random.randn(dimension, UNITS), random.randn(UNITS, CLASSES)
    out -= out.mean(axis=0)
    relu_variance = 0.5 - 0.5 / np.pi
    return (hidden / np.linalg.norm(hidden, axis=0),
            out / np.linalg.norm(out, axis=0) / relu_variance ** 0.5)


@functools.lru_cache(maxsize=None)
def scales(dimension, condition):
    """Returns the standard deviations of the parts of an input, [dimension] float64.

    Their squares, the eigenvalues of the inputs' covariance, fall from 1 to 1 / condition in equal
    ratios.
    """
    return np.geomspace(1, condition ** -0.5, dimension)


def examples(normals, uniforms):
    """Returns examples: what the teacher says of normal numbers, which the student gets scaled.

    So neither --teacher_condition nor --teacher_shift changes what there is to learn, only how hard
    it is.

    Args:
      normals: [..., dimension] float64.
      uniforms: [...] float64, from 0 to 1, which decide what is left to chance.

    Returns:
      Tuple of arrays as in `train_batches`.
    """
    dimension = FLAGS.teacher_dimension
    hidden, out = teacher(dimension)
    logits = np.empty(normals.shape[:-1] + out.shape[-1:])
    for batch in np.ndindex(normals.shape[:-2]):  # one by one they stay in the cache
        units = normals[batch] @ hidden
        units += np.abs(units)  # twice what np.maximum(units, 0) is, and without branches
        logits[batch] = (units * 0.5) @ out
    logits /= FLAGS.teacher_noise
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    sums = np.cumsum(odds, axis=-1)
    labels = np.sum(sums[..., :-1] < (uniforms * sums[..., -1])[..., np.newaxis], axis=-1)
    inputs = normals * scales(dimension, FLAGS.teacher_condition)
    return inputs.astype(np.float32), labels, (odds / sums[..., -1:]).astype(np.float32)


def test_set():
    """Returns the examples to test on, a tuple of arrays as in `train_batches`."""
    random, count = _generator(_TEST, 0), FLAGS.teacher_test_examples
    return examples(random.standard_normal((count, FLAGS.teacher_dimension)), random.random(count))


def best_possible():
    """Returns the teacher's accuracy, to be expected on the test set, and its mean entropy in nats.

    These are floats: the ceiling of the accuracy, and the floor of the loss.
    """
    probabilities = test_set()[2].astype(np.float64)
    logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return (float(probabilities.max(axis=1).mean()),
            float(-np.sum(probabilities * logs, axis=1).mean()))


@functools.lru_cache(maxsize=None)
def _mean_of(shard, dimension):
    """Returns the mean of a worker's inputs before it is scaled, [dimension] float64."""
    return _generator(_MEAN, shard).standard_normal(dimension)


def _draw(batch_size, count, num_shards, runs):
    """Draws the batches of several runs of the graph.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches in a run.
      num_shards: int, the number of workers.
      runs: list of triples of ints: which worker draws; the stream from which the worker's examples
        follow, see `batches.order_seed`; and which run of the graph it is, from 0 on. The batches
        of all runs are numbered, so that they do not depend on how many of them a run takes.

    Returns:
      Tuple of arrays [runs, count, batch_size, ...], the parts of a batch as in `train_batches`.
    """
    normals = np.empty((len(runs), count, batch_size, FLAGS.teacher_dimension))
    uniforms, shift = np.empty(normals.shape[:-1]), FLAGS.teacher_shift
    for i, (_, stream, run) in enumerate(runs):
        for j in range(count):
            random = _generator(_EXAMPLES, stream, run * count + j)
            random.standard_normal(out=normals[i, j])
            random.random(out=uniforms[i, j])
    if shift and num_shards > 1:
        # Over many workers these are standard normal again, as in the test.
        means = np.array([_mean_of(shard, FLAGS.teacher_dimension) for shard, _, _ in runs])
        normals = shift * means[:, np.newaxis, np.newaxis] + (1 - shift ** 2) ** 0.5 * normals
    return examples(normals, uniforms)


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Draws examples that no other worker draws, without end.

    Where a session begins at a later global step, as that of a worker that was started again, it
    draws others than before: nothing is repeated, and nothing is missing.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, which worker draws; with --teacher_shift, the mean of the inputs depends on it.
      num_shards: int, the number of workers; the inputs of a single one are not shifted.
      seed: int, of the draws; the shard is mixed in.

    Returns:
      List of `count` batches, tuples of three tensors: inputs [batch_size, dimension] float32,
      labels [batch_size] int64, and the teacher's probabilities [batch_size, CLASSES] float32. The
      function's attribute `drawn` draws the same without a graph, see `_drawn`.
    """
    def draw(stream, run):
        return [part[0] for part in _draw(batch_size, count, num_shards,
                                          [(shard, int(stream), int(run))])]

    def of_run(stream, run):
        parts = tf.py_func(draw, [stream, run], [tf.float32, tf.int64, tf.float32])
        for part, rest in zip(parts, [[FLAGS.teacher_dimension], [], [CLASSES]]):
            part.set_shape([count, batch_size, *rest])
        return tuple(parts)

    stream = batches.order_seed(seed, shard, num_shards)
    runs = tf.data.Dataset.range(tf.int64.max)
    return batches.in_pieces(batches.next_of(
        batches.mapped(runs, functools.partial(of_run, stream)).prefetch(1)))


def _drawn(batch_size, count, num_shards, runs):
    """Draws the batches of several runs of the graph, of any workers.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches in a run.
      num_shards: int, the number of workers.
      runs: list of triples of ints: the shard, the seed, and the number of the run, from 0 on.

    Returns:
      Tuple of arrays [runs, count, batch_size, ...], the parts of a batch as in `train_batches`.
    """
    return _draw(batch_size, count, num_shards, [
        (shard, seed * num_shards + shard, run) for shard, seed, run in runs])


train_batches.drawn = _drawn


def test_batches(batch_size):
    """Returns the test set, a `tf.data.Dataset` of batches as from `train_batches`."""
    return tf.data.Dataset.from_tensor_slices(batches.tensors(test_set())).batch(batch_size)


def logits(inputs):
    """Builds the student on inputs [batch_size, dimension] float32: [batch_size, CLASSES]."""
    units = tf.nn.relu(layers.dense(inputs, UNITS, 'hidden'))
    return layers.dense(units, CLASSES, 'logits')


def loss_and_metrics(batch, training):
    """Builds the student on a batch.

    Args:
      batch: tuple of three tensors, see `train_batches`.
      training: bool, whether to train on the batch.

    Returns:
      The mean cross-entropy in nats, a float32 scalar; and a dict of float32 scalars, the
      'accuracy', and in a test also the 'teacher_accuracy' on the same labels, and the
      'excess_loss': how far the loss is to be expected above that of the teacher. This is the mean
      divergence of the probabilities of Kullback and Leibler, so that which labels were drawn does
      not matter.
    """
    inputs, labels, probabilities = batch
    scores = logits(inputs)
    loss, accuracy = layers.loss_and_accuracy(scores, labels)
    if training:
        return loss, {'accuracy': accuracy}
    right = tf.equal(tf.argmax(probabilities, axis=1), labels)
    divergences = tf.reduce_sum(tf.math.xlogy(probabilities, probabilities)
                                - probabilities * tf.nn.log_softmax(scores), axis=1)
    return loss, {'accuracy': accuracy,
                  'teacher_accuracy': tf.reduce_mean(tf.cast(right, tf.float32)),
                  'excess_loss': tf.reduce_mean(divergences)}


def predictions(batch):
    """Returns what an exported model says of the inputs of a batch, see --export_dir."""
    scores = logits(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
