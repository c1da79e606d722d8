"""Columns of a table, such as ages, occupations and cities, by `tf.feature_column`, from TFRecords.

The records, `tf.train.Example`, are made in the first run, from a known model of made-up people, so
that the best possible result is known: see `best_possible`. Each worker reads files of its own.
"""

import os
import sys

from absl import flags
import numpy as np
from tfdist.data import batches, datasets, layers
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(datasets)  # --data_dir
LEARNING_RATE, LOCAL_STEPS = 0.1, 3000  # defaults of the flags, for plain SGD

_TRAIN = [f'train-{i}.tfrecords' for i in range(8)]
_TEST = [f'test-{i}.tfrecords' for i in range(2)]
_RECORDS = 2500  # in each file
_OCCUPATIONS = ['baker', 'carpenter', 'dentist', 'driver', 'farmer', 'guard', 'lawyer', 'nurse',
                'painter', 'pilot', 'teacher', 'waiter']
_CITIES = [f'city {i}' for i in range(100)]
_BRACKETS = [25, 32, 39, 46, 53, 60]  # ages at which the next bracket begins
_FEATURES = {'age': tf.io.FixedLenFeature([], tf.float32),
             'hours': tf.io.FixedLenFeature([], tf.float32),
             'occupation': tf.io.FixedLenFeature([], tf.string),
             'city': tf.io.FixedLenFeature([], tf.string),
             'label': tf.io.FixedLenFeature([], tf.float32)}


def people(name):
    """Draws the people of the file `name` from the true model.

    Returns:
      Dict of arrays [2500]: 'age' in years and 'hours' of work per week, float64; 'occupation' and
      'city', strings; and 'label', float64, 1 for a high income. And the log-odds of a high income,
      an array [2500] of float64.
    """
    truth = np.random.RandomState(0)  # the same for all files
    of_occupation, of_city = truth.randn(len(_OCCUPATIONS)), truth.randn(len(_CITIES))
    best_age = truth.uniform(30, 65, len(_OCCUPATIONS))
    random = np.random.RandomState(1 + (_TRAIN + _TEST).index(name))
    age, hours = random.uniform(18, 67, _RECORDS), random.normal(38, 8, _RECORDS)
    occupation = random.randint(len(_OCCUPATIONS), size=_RECORDS)
    city = random.randint(len(_CITIES), size=_RECORDS)
    logits = (2 + of_occupation[occupation] + of_city[city] + (hours - 38) / 8 -
              np.abs(age - best_age[occupation]) / 6)
    label = 1. * (random.logistic(size=_RECORDS) < logits)
    return {'age': age, 'hours': hours, 'occupation': np.array(_OCCUPATIONS)[occupation],
            'city': np.array(_CITIES)[city], 'label': label}, logits


def best_possible():
    """Returns the accuracy and the AUC of the true model on the test set, two floats."""
    drawn = [people(name) for name in _TEST]
    labels = np.concatenate([columns['label'] for columns, _ in drawn])
    logits = np.concatenate([logits for _, logits in drawn])
    ranks = np.argsort(np.argsort(logits)) + 1
    ones = labels.sum()
    auc = (ranks[labels == 1].mean() - (ones + 1) / 2) / (len(labels) - ones)
    return float(((logits > 0) == labels).mean()), float(auc)


def serialize(values):
    """Returns a record as bytes, from a dict of floats and strings by feature."""
    features = {}
    for name, value in values.items():
        if _FEATURES[name].dtype == tf.string:
            features[name] = tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[value.encode()]))
        else:
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(directory):
    """Writes the files that are missing in `directory`. Several workers may do so at once.

    Raises:
      SystemExit: if the files cannot be written.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        for name in _TRAIN + _TEST:
            path = os.path.join(directory, name)
            if not os.path.exists(path):
                part = f'{path}.{os.getpid()}'  # renamed when it is whole
                columns, _ = people(name)
                with tf.io.TFRecordWriter(part) as writer:
                    for row in zip(*columns.values()):
                        writer.write(serialize(dict(zip(columns, row))))
                os.replace(part, path)
    except (OSError, tf.errors.OpError) as error:
        sys.exit(f'--data_dir: the records cannot be written to {directory} ({error}). Name '
                 'another directory.')


def _records(names):
    """Returns the records of files, a `tf.data.Dataset` of strings, by the files' names, a list.

    Raises:
      SystemExit: if a file is not whole.
    """
    directory = os.path.expanduser(datasets.directory('feature_columns'))
    write_records(directory)
    paths = [os.path.join(directory, name) for name in names]
    for path in paths:
        try:
            found = sum(1 for _ in tf.io.tf_record_iterator(path))
        except tf.errors.OpError as error:
            found = error.message
        if found != _RECORDS:
            sys.exit(f'--data_dir: {path} does not have {_RECORDS} whole records ({found}). '
                     'Delete it: it will be made again.')
    return tf.data.TFRecordDataset(paths)


def _parse(records, shape):
    """Returns batches as from `train_batches`, from many records at once, which is much faster.

    Args:
      records: [n] strings.
      shape: list of ints, the shape of each tensor of the batches.
    """
    parsed = tf.io.parse_example(records, _FEATURES)
    return {name: tf.reshape(tensor, shape) for name, tensor in parsed.items()}


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads this worker's files of the training set endlessly, shuffled again in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, this worker's index: it reads the files `shard`, `shard + num_shards`, ...
      num_shards: int, number of workers.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, dicts of tensors [batch_size] by feature: 'age', 'hours' and 'label'
      float32, 'occupation' and 'city' strings.

    Raises:
      SystemExit: if there are fewer files than workers.
    """
    mine = _TRAIN[shard::num_shards]
    if num_shards > len(_TRAIN):
        sys.exit(f'feature_columns: {len(_TRAIN)} files are too few for {num_shards} workers: each '
                 'reads files of its own.')
    seed = batches.order_seed(seed, shard, num_shards)
    records = _records(mine).shuffle(len(mine) * _RECORDS, seed=seed).repeat()
    records = records.batch(count * batch_size, drop_remainder=True)
    dataset = batches.mapped(records, lambda batch: _parse(batch, [count, batch_size])).prefetch(1)
    return batches.in_pieces(batches.next_of(dataset))


def test_batches(batch_size):
    """Returns the test set, a `tf.data.Dataset` of batches as from `train_batches`."""
    return batches.mapped(_records(_TEST).batch(batch_size), lambda batch: _parse(batch, [-1]))


def columns():
    """Returns the input of the network, a list of dense feature columns."""
    age = tf.feature_column.numeric_column('age')
    brackets = tf.feature_column.bucketized_column(age, _BRACKETS)
    occupation = tf.feature_column.categorical_column_with_vocabulary_list(
        'occupation', _OCCUPATIONS)
    city = tf.feature_column.categorical_column_with_vocabulary_list('city', _CITIES)
    # A row for each bracket in each occupation, because the best age depends on the occupation.
    both = tf.feature_column.crossed_column([brackets, 'occupation'], hash_bucket_size=1000)
    return [brackets,
            tf.feature_column.numeric_column('hours', normalizer_fn=lambda x: (x - 38) / 8),
            tf.feature_column.indicator_column(occupation),
            tf.feature_column.embedding_column(city, dimension=8),
            tf.feature_column.embedding_column(both, dimension=8)]


def income_logits(batch):
    """Builds the network, an MLP of ReLUs on the columns of a batch: [batch_size] float32."""
    # In its own scope, which restarts the numbering, so that each call makes the same names.
    with tf.variable_scope('columns'):
        units = tf.feature_column.input_layer(batch, columns())
    units = tf.nn.relu(layers.dense(units, 32, 'hidden'))
    return layers.dense(units, 1, 'logit')[:, 0]


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: dict of tensors, see `train_batches`.
      training: bool, whether to train on the batch.

    Returns:
      The mean log loss in nats, a float32 scalar; and a dict of metrics: the accuracy, and in a
      test the AUC.
    """
    logits, label = income_logits(batch), batch['label']
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits)
    right = tf.equal(logits > 0, label > 0)
    metrics = {'accuracy': tf.reduce_mean(tf.cast(right, tf.float32))}
    if not training:
        metrics['auc'] = tf.metrics.auc(label, tf.sigmoid(logits), num_thresholds=1000)
    return tf.reduce_mean(losses), metrics


def predictions(batch):
    """Returns what an exported model says of the people of a batch, see --export_dir."""
    return {'high_income_probability': tf.sigmoid(income_logits(batch))}
