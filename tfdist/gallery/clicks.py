"""Clicks on advertisements: wide and deep, with tables of a row for each of many ids.

The wide part adds up a weight for each id; the deep part, an MLP, looks at the ids' embeddings side
by side, and so at which ids come together. A step reads and writes only the rows of its batch.

The examples are drawn from a known model, so it is known how well any model can do: see
`best_possible`. With --data_dir they are those of files in the format of Criteo's data set.

Heng-Tze Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016, arXiv 1606.07792.
"""

import itertools
import os
import re
import sys

from absl import flags
import numpy as np
from tfdist import batches, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(datasets)  # --data_dir
flags.DEFINE_integer('clicks_rows', 1000000, 'rows of each table, for the ids of all fields',
                     lower_bound=100)
flags.DEFINE_integer('clicks_dimension', 32, 'numbers in a row of the deep table', lower_bound=1)
flags.DEFINE_integer('clicks_table_parts', 1, 'into how many parts, for as many ps, each table is '
                     'cut', lower_bound=1)
flags.DEFINE_integer('clicks_test_examples', 20000, 'in the test set, where examples are drawn',
                     lower_bound=100)
LEARNING_RATE, LOCAL_STEPS = 0.5, 5000  # of plain SGD: what the flags are by default

_FIELDS = 8  # such as the page, the advertisement, the city; each has a share of the rows
_BIAS, _WEIGHT, _INTERACTION = -1.5, 0.6, 0.6  # of the true model: one click in four
_PAIRS = [(0, 1), (2, 3)]  # of fields whose ids act together
_HIDDEN_UNITS = [64, 32]
_DRAWN_AT_ONCE = 4096  # examples: so a batch costs little
_CRITEO_NUMBERS, _CRITEO_FIELDS = 13, 26
_CRITEO_LINE = (r'[01](?:\t-?\d*(?:\.\d+)?){%d}(?:\t[^\t]*){%d}'
                % (_CRITEO_NUMBERS, _CRITEO_FIELDS))
_CRITEO_FORM = (f'the format of Criteo: a label, 0 or 1, {_CRITEO_NUMBERS} numbers and '
                f'{_CRITEO_FIELDS} ids, with tabs in between')
_SHUFFLED = 10000  # lines among which the next one is drawn


def _hidden(ids):
    """Returns two numbers for each id, both uniformly distributed, with mean 0 and variance 1.

    They are a hash of the id, so nobody has to keep numbers for each row.

    Args:
      ids: [n, fields] int64.

    Returns:
      Two [n, fields] float32 tensors.
    """
    bits = ids + 1
    for factor in 0x5851F42D4C957F2D, 0x14057B7EF767814F:
        bits *= factor
        high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 29), 2 ** 35 - 1)  # no signs
        bits = tf.bitwise.bitwise_xor(bits, high)
    halves = tf.cast(tf.bitcast(bits, tf.int32), tf.float32)  # one more axis, of 2
    return tf.unstack(halves * 3 ** 0.5 / 2 ** 31, axis=-1)


def true_logits(ids):
    """Returns the log-odds of a click: a weight for each id, and a term for pairs of fields.

    Args:
      ids: [n, 8] int64.

    Returns:
      [n] float32 tensor.
    """
    weights, traits = _hidden(ids)
    together = sum(traits[:, one] * traits[:, other] for one, other in _PAIRS)
    return _BIAS + _WEIGHT * tf.reduce_sum(weights, axis=1) + _INTERACTION * together


def draw(count, seeds):
    """Draws a batch from the true model.

    Args:
      count: int, how many examples.
      seeds: two ints, or tensors of them; others give other examples.

    Returns:
      Dict of tensors as of `train_batches`, of `count` examples.
    """
    random = tf.random.stateless_uniform([count, _FIELDS + 1], seeds, dtype=tf.float64)
    # Zipf's law, with exponent 1: of the n ids of a field the r-th comes with the probability
    # log(1 + 1 / r) / log(n + 1), which is about in proportion to 1 / r.
    size = FLAGS.clicks_rows // _FIELDS
    ranks = tf.cast(tf.exp(np.log(size + 1) * random[:, :_FIELDS]), tf.int64)
    ids = tf.minimum(ranks, size) - 1 + size * np.arange(_FIELDS)
    clicks = tf.cast(random[:, _FIELDS], tf.float32) < tf.sigmoid(true_logits(ids))
    return {'ids': ids, 'label': tf.cast(clicks, tf.float32)}


def _draw_test():
    """Returns the test set as one batch, as from `draw`."""
    return draw(FLAGS.clicks_test_examples, [1, 1])


def best_possible():
    """Returns the AUC and the log loss of the true model on the test set, two floats."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = _draw_test()
        logits, labels = session.run([true_logits(batch['ids']), batch['label']])
    losses = np.logaddexp(0, logits) - labels * logits
    ranks = np.argsort(np.argsort(logits)) + 1
    clicks = labels.sum()
    auc = (ranks[labels == 1].mean() - (clicks + 1) / 2) / (len(labels) - clicks)
    return float(auc), float(losses.mean())


def _draw_for_ever(batch_size, count, seed):
    """Returns a `tf.data.Dataset` of dicts of tensors [count, batch_size, ...]; see `draw`."""
    shape = [-(-_DRAWN_AT_ONCE // (count * batch_size)), count, batch_size]

    def examples(number):
        drawn = draw(np.prod(shape), [2 * seed, number])  # even: never the seeds of the test
        return {'ids': tf.reshape(drawn['ids'], shape + [_FIELDS]),
                'label': tf.reshape(drawn['label'], shape)}

    numbers = tf.data.Dataset.range(tf.int64.max)
    return batches.mapped(numbers, examples).prefetch(1).unbatch()


def _criteo(name, num_shards=1):
    """Returns the path of a file in --data_dir, after a look at its beginning.

    Args:
      name: string, the file's.
      num_shards: int, how many workers share it.

    Raises:
      SystemExit: if it is not a file in the format of Criteo, or too short.
    """
    path = os.path.join(os.path.expanduser(FLAGS.data_dir), name)
    try:
        with open(path, encoding='ascii') as file:
            lines = [line.rstrip('\n') for line in itertools.islice(file, num_shards)]
    except (OSError, ValueError) as error:
        sys.exit(f'--data_dir: {path} cannot be read ({error}). Put train.txt and test.txt there, '
                 'or leave --data_dir out.')
    if len(lines) < num_shards:
        sys.exit(f'--data_dir: {path} has {len(lines)} lines, too few for {num_shards} workers.')
    if not all(re.fullmatch(_CRITEO_LINE, line) for line in lines):
        sys.exit(f'--data_dir: {path} is not in {_CRITEO_FORM}.')
    return path


def _parse(lines, path):
    """Returns batches, as from `train_batches`, of lines, a tensor of strings of any shape.

    A line that is not in the format of Criteo is an error, which names the file, `path`.
    """
    right = tf.strings.regex_full_match(lines, _CRITEO_LINE)
    wrong = tf.strings.substr(tf.boolean_mask(lines, tf.logical_not(right))[:1], 0, 40)
    complaint = tf.strings.join([f'{path} has a line that is not in {_CRITEO_FORM}: ', wrong])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(right), [complaint])]):
        lines = tf.identity(lines)
    label, *columns = tf.io.decode_csv(
        lines, (1 + _CRITEO_NUMBERS) * [0.] + _CRITEO_FIELDS * [''], field_delim='\t',
        use_quote_delim=False)
    numbers = tf.stack(columns[:_CRITEO_NUMBERS], axis=-1)
    names = [tf.strings.join([f'{i}:', column])  # each column has hashes of its own
             for i, column in enumerate(columns[_CRITEO_NUMBERS:])]
    ids = tf.strings.to_hash_bucket_fast(tf.stack(names, axis=-1), FLAGS.clicks_rows)
    return {'ids': ids, 'label': label, 'numbers': tf.log1p(tf.nn.relu(numbers))}


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training set for ever; or draws examples that no other worker draws.

    Args:
      batch_size: int, examples in a batch.
      count: int, how many batches each run of the graph takes. They come in one piece.
      shard: int, which shard of the file: lines `shard`, `shard + num_shards`, ...
      num_shards: int, how many shards there are, one for each worker.
      seed: int, of the shuffle, or of what is drawn; the shard is mixed in.

    Returns:
      List of `count` batches, dicts of tensors: 'ids' [batch_size, fields] int64, rows of the
      tables; 'label' [batch_size] float32, 1 for a click; and for a file 'numbers' [batch_size, 13]
      float32.
    """
    seed = batches.order_seed(seed, shard, num_shards)
    if FLAGS.data_dir:
        path = _criteo('train.txt', num_shards)
        lines = tf.data.TextLineDataset(path).shard(num_shards, shard)
        lines = lines.shuffle(_SHUFFLED, seed=seed).repeat()
        for size in batch_size, count:
            lines = lines.batch(size, drop_remainder=True)
        dataset = batches.mapped(lines, lambda lines: _parse(lines, path)).prefetch(1)
    else:
        dataset = _draw_for_ever(batch_size, count, seed)
    return batches.in_pieces(batches.next_of(dataset))


def test_batches(batch_size):
    """Returns the test set, a `tf.data.Dataset` of batches as from `train_batches`."""
    if FLAGS.data_dir:
        path = _criteo('test.txt')
        lines = tf.data.TextLineDataset(path).batch(batch_size)
        return batches.mapped(lines, lambda lines: _parse(lines, path))
    return tf.data.Dataset.from_tensor_slices(_draw_test()).batch(batch_size)


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: dict of tensors, see `train_batches`.
      training: bool, whether it is trained on.

    Returns:
      The mean log loss in nats, a float32 scalar; and a dict of metrics, in a test the AUC.
    """
    rows, dimension, parts = FLAGS.clicks_rows, FLAGS.clicks_dimension, FLAGS.clicks_table_parts
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with tf.variable_scope('tables', partitioner=partitioner):
        # Small, so that a row that was never trained says nothing. It takes long to draw as many
        # numbers from a normal distribution.
        deep = tf.get_variable('deep', [rows, dimension],
                               initializer=tf.random_uniform_initializer(-0.005, 0.005))
        wide = tf.get_variable('wide', [rows, 1], initializer=tf.zeros_initializer())
    embeddings, weights = (tf.nn.embedding_lookup(table, batch['ids'], partition_strategy='div')
                           for table in (deep, wide))
    # A row is seldom in a batch. Scaled up, its gradients are: so plain SGD moves it far enough.
    units = tf.sqrt(float(dimension)) * tf.reshape(
        embeddings, [-1, batch['ids'].shape[1] * dimension])
    if 'numbers' in batch:
        units = tf.concat([units, batch['numbers']], axis=1)
    for i, size in enumerate(_HIDDEN_UNITS):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    logits = layers.dense(units, 1, 'logit')[:, 0] + tf.reduce_sum(weights, axis=[1, 2])
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch['label'],
                                                                  logits=logits))
    if training:
        return loss, {}
    return loss, {'auc': tf.metrics.auc(batch['label'], tf.sigmoid(logits), num_thresholds=1000)}
