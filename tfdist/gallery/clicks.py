"""Clicks on advertisements: a wide and deep network, with a table row for each of many ids.

The wide part adds a weight for each id. The deep part, an MLP, reads the concatenated embeddings of
the ids, and so learns from their combination; --clicks_deep=false leaves it out. A step reads and
writes only the rows of its batch.

The examples are drawn from a known model, so that the best possible result is known: see
`best_possible`. With --data_dir they come from files in the format of Criteo's data set.

Heng-Tze Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016, arXiv 1606.07792.
"""

import itertools
import os
import re
import sys

from absl import flags
import numpy as np
from tfdist.data import batches, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(datasets)  # --data_dir
flags.DEFINE_integer('clicks_rows', 1000000, 'rows of each table, for the ids of all fields',
                     lower_bound=100)
flags.DEFINE_integer('clicks_dimension', 32, 'numbers in a row of the deep table', lower_bound=1)
flags.DEFINE_bool('clicks_deep', True, 'with the deep part; without it this is logistic regression')
flags.DEFINE_bool('clicks_uniform', False, 'draws each id as often as any other, and not by '
                  "Zipf's law")
flags.DEFINE_integer('clicks_table_parts', 1, 'parts into which each table is cut, for as many ps',
                     lower_bound=1)
flags.DEFINE_integer('clicks_test_examples', 20000, 'examples to draw for the test set',
                     lower_bound=100)
LEARNING_RATE, LOCAL_STEPS = 0.5, 5000  # defaults of the flags, for plain SGD

_FIELDS = 8  # such as the page, the advertisement, the city; each has a share of the rows
_BIAS, _WEIGHT, _INTERACTION = -1.5, 0.6, 0.6  # of the true model: one click in four
_PAIRS = [(0, 1), (2, 3)]  # fields whose ids interact
_HIDDEN_UNITS = [64, 32]
_DRAWN_AT_ONCE = 4096  # examples, so that a batch costs little
_CRITEO_NUMBERS, _CRITEO_FIELDS = 13, 26
_CRITEO_LINE = (r'[01](?:\t-?\d*(?:\.\d+)?){%d}(?:\t[^\t]*){%d}'
                % (_CRITEO_NUMBERS, _CRITEO_FIELDS))
_CRITEO_FORM = (f'the format of Criteo: a label, 0 or 1, {_CRITEO_NUMBERS} numbers and '
                f'{_CRITEO_FIELDS} ids, with tabs in between')
_SHUFFLED = 10000  # lines from which the next one is drawn


def _hidden(ids):
    """Returns two uniformly distributed numbers for each id, with mean 0 and variance 1.

    They are a hash of the id, so that they need not be stored.

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
    """Returns the log-odds of clicks on ids, [n, 8] int64, as a [n] float32 tensor.

    They are the sum of a weight for each id and a term for each pair of interacting fields.
    """
    weights, traits = _hidden(ids)
    together = sum(traits[:, one] * traits[:, other] for one, other in _PAIRS)
    return _BIAS + _WEIGHT * tf.reduce_sum(weights, axis=1) + _INTERACTION * together


def draw(count, seeds):
    """Draws a batch from the true model.

    Args:
      count: int, the number of examples.
      seeds: two ints or int tensors; others give other examples.

    Returns:
      Dict of tensors as in `train_batches`, of `count` examples.
    """
    random = tf.random.stateless_uniform([count, _FIELDS + 1], seeds, dtype=tf.float64)
    # Zipf's law with exponent 1: the r-th of the n ids of a field has the probability
    # log(1 + 1 / r) / log(n + 1), which is roughly proportional to 1 / r.
    size = FLAGS.clicks_rows // _FIELDS
    random, chance = random[:, :_FIELDS], random[:, _FIELDS]
    ranks = 1 + size * random if FLAGS.clicks_uniform else tf.exp(np.log(size + 1) * random)
    ids = tf.minimum(tf.cast(ranks, tf.int64), size) - 1 + size * np.arange(_FIELDS)
    clicks = tf.cast(chance, tf.float32) < tf.sigmoid(true_logits(ids))
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
        drawn = draw(np.prod(shape), [2 * seed, number])  # even, unlike the seeds of the test
        return {'ids': tf.reshape(drawn['ids'], shape + [_FIELDS]),
                'label': tf.reshape(drawn['label'], shape)}

    numbers = tf.data.Dataset.range(tf.int64.max)
    return batches.mapped(numbers, examples).prefetch(1).unbatch()


def _criteo(name, num_shards=1):
    """Returns the path of a file in --data_dir, after a check of its first lines.

    Args:
      name: string, the file's name.
      num_shards: int, the number of workers that share the file.

    Raises:
      SystemExit: if the file is not in the format of Criteo, or is too short.
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
    """Returns batches as from `train_batches` from lines, a tensor of strings of any shape.

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
    names = [tf.strings.join([f'{i}:', column])  # so that columns hash differently
             for i, column in enumerate(columns[_CRITEO_NUMBERS:])]
    ids = tf.strings.to_hash_bucket_fast(tf.stack(names, axis=-1), FLAGS.clicks_rows)
    return {'ids': ids, 'label': label, 'numbers': tf.log1p(tf.nn.relu(numbers))}


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training set endlessly, or draws examples that no other worker draws.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, which shard of the file: lines `shard`, `shard + num_shards`, ...
      num_shards: int, number of shards, one for each worker.
      seed: int, of the shuffle or of the draws; the shard is mixed in.

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


def click_logits(batch):
    """Builds the network on a batch, of which it does not read the label: [batch_size] float32."""
    rows, dimension, parts = FLAGS.clicks_rows, FLAGS.clicks_dimension, FLAGS.clicks_table_parts
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with tf.variable_scope('tables', partitioner=partitioner):
        if FLAGS.clicks_deep:
            # Small, so that untrained rows have little effect. Uniform, because drawing so many
            # numbers from a normal distribution takes long.
            deep = tf.get_variable('deep', [rows, dimension],
                                   initializer=tf.random_uniform_initializer(-0.005, 0.005))
        wide = tf.get_variable('wide', [rows, 1], initializer=tf.zeros_initializer())

    def rows_of(table):
        return tf.nn.embedding_lookup(table, batch['ids'], partition_strategy='div')

    linear = tf.reduce_sum(rows_of(wide), axis=[1, 2])
    units = batch.get('numbers')
    if FLAGS.clicks_deep:
        # A row is seldom in a batch. Scaling up its gradients lets plain SGD move it far enough.
        embeddings = tf.sqrt(float(dimension)) * tf.reshape(
            rows_of(deep), [-1, batch['ids'].shape[1] * dimension])
        units = embeddings if units is None else tf.concat([embeddings, units], axis=1)
        for i, size in enumerate(_HIDDEN_UNITS):
            units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    return linear if units is None else linear + layers.dense(units, 1, 'logit')[:, 0]


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: dict of tensors, see `train_batches`.
      training: bool, whether to train on the batch.

    Returns:
      The mean log loss in nats, a float32 scalar; and a dict of metrics, in a test the AUC.
    """
    logits = click_logits(batch)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch['label'],
                                                                  logits=logits))
    if training:
        return loss, {}
    return loss, {'auc': tf.metrics.auc(batch['label'], tf.sigmoid(logits), num_thresholds=1000)}


def predictions(batch):
    """Returns what an exported model says of the ids of a batch, see --export_dir."""
    return {'click_probability': tf.sigmoid(click_logits(batch))}
