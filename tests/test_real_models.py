"""Models of usual kinds, as a user writes them, in copied folders: what went wrong without a word.

Each kind once was not trained, or not tested, or sent a whole table in each step. Wherever a
`model.py` in the older form, with `loss_and_accuracy` and `test_set`, can express it, it is one.
"""

import json
import re
import shutil
import statistics

import pytest

from processes import ROOT, STEP, TEST

HELPERS = """
import numpy as np
import tensorflow.compat.v1 as tf

RANDOM = np.random.RandomState(0)


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    examples = tf.data.Dataset.from_tensor_slices(TRAIN).shard(num_shards, shard)
    examples = examples.shuffle(2000, seed=seed).repeat()
    for size in batch_size, count:
        examples = examples.batch(size, drop_remainder=True)
    iterator = tf.data.make_initializable_iterator(examples)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return list(zip(*map(tf.unstack, iterator.get_next())))


def test_set():
    return tuple(map(tf.constant, TEST))


def loss_and_share_right(logits, classes):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
    right = tf.equal(tf.argmax(logits, axis=1), classes)
    return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))
"""

CLOUDS = HELPERS + """
CLASSES = RANDOM.randint(10, size=2500)
POINTS = RANDOM.normal(size=[10, 16])[CLASSES] + RANDOM.normal(0, .3, [2500, 16])
POINTS = POINTS.astype(np.float32)
TRAIN, TEST = (POINTS[:2000], CLASSES[:2000]), (POINTS[2000:], CLASSES[2000:])
"""

KERAS = CLOUDS + """

def loss_and_accuracy(points, classes):
    units = tf.keras.layers.Dense(32, activation='relu')(points)
    return loss_and_share_right(tf.keras.layers.Dense(10)(units), classes)
"""

# In the older form only the size of a batch says that it is the test's.
BATCH_NORM = CLOUDS + """

def loss_and_metrics(batch, training):
    points, classes = batch
    points = 10 * points + 50
    units = tf.layers.batch_normalization(points, momentum=.9, training=training, name='inputs')
    units = tf.layers.dense(units, 64, use_bias=False, name='hidden')
    units = tf.nn.relu(tf.layers.batch_normalization(units, momentum=.9, training=training,
                                                     name='norm'))
    units = tf.layers.dropout(units, .2, training=training)
    loss, accuracy = loss_and_share_right(tf.layers.dense(units, 10, name='logits'), classes)
    return loss, {'accuracy': accuracy}


def loss_and_accuracy(points, classes):
    loss, metrics = loss_and_metrics((points, classes), points.shape[0] != len(TEST[0]))
    return loss, metrics['accuracy']
"""

# All rows are zero at first: who does not train the table cannot tell one id from another. Each
# worker has all ids: the other one may start late, and train little.
TABLE = HELPERS + """
IDS = RANDOM.choice(1000000, 400, replace=False)
CLASSES = RANDOM.randint(32, size=400)
TRAIN, TEST = (IDS.repeat(2), CLASSES.repeat(2)), (IDS, CLASSES)


def loss_and_accuracy(ids, classes):
    table = tf.get_variable('table', [1000000, 32], initializer=tf.zeros_initializer(),
                            partitioner=PARTITIONER)
    rows = tf.nn.embedding_lookup(table, ids, partition_strategy='div')
    return loss_and_share_right(tf.layers.dense(rows, 32, name='logits'), classes)
"""
WHOLE_TABLE = TABLE.replace('PARTITIONER', 'None')
TABLE_IN_PARTS = TABLE.replace('PARTITIONER', 'tf.fixed_size_partitioner(2)')

UNNAMED_LAYERS = CLOUDS + """

def loss_and_accuracy(points, classes):
    units = tf.layers.conv2d(tf.reshape(points, [-1, 4, 4, 1]), 8, 3, activation=tf.nn.relu)
    return loss_and_share_right(tf.layers.dense(tf.layers.flatten(units), 10), classes)
"""

FEATURE_COLUMNS = HELPERS + """
WORDS = np.array(['red', 'green', 'blue', 'black', 'white'])
PLACES, SIGNS = RANDOM.randint(5, size=1000), RANDOM.choice([-1., 1.], 1000).astype(np.float32)
TRAIN = TEST = WORDS[PLACES], SIGNS, 2 * PLACES + (SIGNS > 0)


def loss_and_accuracy(words, signs, classes):
    column = tf.feature_column.categorical_column_with_vocabulary_list('word', list(WORDS))
    columns = [tf.feature_column.embedding_column(column, 8),
               tf.feature_column.numeric_column('sign')]
    units = tf.feature_column.input_layer({'word': words, 'sign': signs}, columns)
    units = tf.layers.dense(units, 32, activation=tf.nn.relu, name='hidden')
    return loss_and_share_right(tf.layers.dense(units, 10, name='logits'), classes)
"""

# The inputs that the training set never has are noise in the test: only the regularizer can end
# what their large weights make of it.
REGULARIZER = CLOUDS + """
TRAIN = np.hstack([TRAIN[0], np.zeros([2000, 16], np.float32)]), TRAIN[1]
TEST = np.hstack([TEST[0], RANDOM.normal(size=[500, 16]).astype(np.float32)]), TEST[1]


def loss_and_accuracy(points, classes):
    weights = tf.get_variable('weights', [32, 10], initializer=tf.random_normal_initializer(0, 5),
                              regularizer=lambda value: .1 * tf.reduce_sum(value ** 2))
    loss, accuracy = loss_and_share_right(tf.matmul(points, weights), classes)
    return loss + tf.losses.get_regularization_loss(), accuracy
"""

LAYERS_REGULARIZER = CLOUDS + """

def loss_and_accuracy(points, classes):
    logits = tf.layers.dense(points, 10, name='logits', kernel_initializer=tf.ones_initializer(),
                             kernel_regularizer=lambda value: tf.reduce_sum(value) / 16)
    loss, accuracy = loss_and_share_right(logits, classes)
    return loss + tf.losses.get_regularization_loss(), accuracy
"""

# Inputs so small that plain SGD gets nowhere, and Adam does not mind.
OPTIMIZER = CLOUDS + """

def loss_and_accuracy(points, classes):
    return loss_and_share_right(tf.layers.dense(1e-3 * points, 10, name='logits'), classes)


def optimizer(learning_rate):
    step = tf.train.get_global_step()
    return tf.train.AdamOptimizer(tf.train.exponential_decay(learning_rate, step, 1000, .5))
"""

# The second figure is how large a part of the test set a batch is.
TEST_SET = CLOUDS + """
import json
import os
import pathlib


def note():
    index = json.loads(os.environ['TF_CONFIG'])['task']['index']
    pathlib.Path(__file__).with_name(f'tested-by-{index}').touch()


def test_set():
    note()
    return tuple(map(tf.constant, TEST))


def test_batches(batch_size):
    note()
    return tf.data.Dataset.from_tensor_slices(TEST).batch(batch_size)


def loss_and_accuracy(points, classes):
    loss, _ = loss_and_share_right(tf.layers.dense(points, 10, name='logits'), classes)
    return loss, tf.shape(points)[0] / len(TEST[0])
"""


@pytest.fixture
def run(programs, tmp_path):
    """A function that runs a copy of a folder, with another model.py, to its good end."""
    def run(folder, text, *flags, **env):
        for name in folder, 'tfdist':
            if (ROOT / name).exists():
                shutil.copytree(str(ROOT / name), str(tmp_path / name),
                                ignore=shutil.ignore_patterns('*.pyc.*'))
        (tmp_path / folder / 'model.py').write_text(text)
        program = programs.run_sh(tmp_path / folder, '--log_every_n_steps=10', *flags, **env)
        program.ends_well()
        return program

    return run


def accuracy_in_the_test(program):
    """Returns the figure that the chief printed in the end."""
    return float(program.wait_for(TEST)['accuracy'])


KINDS = {  # a model.py, flags, and the environment
    'keras': (KERAS, [], {}), 'table_in_parts': (TABLE_IN_PARTS, ['--learning_rate=10'], {'PS': 2}),
    'unnamed_layers': (UNNAMED_LAYERS, [], {}), 'feature_columns': (FEATURE_COLUMNS, [], {}),
    'regularizer': (REGULARIZER, [], {}), 'optimizer': (OPTIMIZER, ['--learning_rate=1'], {})}
QUICK = [('keras', 'AGN', 60), ('table_in_parts', 'HogWild', 100)]
THOROUGH = [
    ('keras', 'HogWild', 300), ('keras', 'Synchronous-SGD', 300), ('keras', 'Ring-AllReduce', 300),
    ('keras', 'Multiple-GPUs-Single-Machine', 300), ('table_in_parts', 'Synchronous-SGD', 100),
    ('unnamed_layers', 'HogWild', 400), ('unnamed_layers', 'AGN', 100),
    ('feature_columns', 'HogWild', 400), ('feature_columns', 'AGN', 100),
    ('regularizer', 'HogWild', 400), ('regularizer', 'Synchronous-SGD', 400),
    ('regularizer', 'AGN', 200), ('regularizer', 'Ring-AllReduce', 400),
    ('optimizer', 'HogWild', 500), ('optimizer', 'Synchronous-SGD', 500)]


@pytest.mark.parametrize('kind, folder, steps', [
    *QUICK, *[pytest.param(*row, marks=pytest.mark.thorough) for row in THOROUGH]])
def test_it_is_trained(run, kind, folder, steps):
    """Chance is 0.1 or less."""
    text, flags, env = KINDS[kind]
    assert accuracy_in_the_test(run(folder, text, f'--train_steps={steps}', *flags, **env)) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'Ring-AllReduce'])
def test_batch_norm_and_dropout_are_off_in_the_test(run, folder):
    program = run(folder, BATCH_NORM, '--train_steps=300')
    train = statistics.mean(float(line['accuracy']) for line in program.matches(STEP)[-10:])
    assert train > 0.8
    assert accuracy_in_the_test(program) > train - 0.1


@pytest.mark.thorough
@pytest.mark.parametrize('folder, flags', [
    ('HogWild', '--train_steps=100'), ('Synchronous-SGD', '--train_steps=40'),
    ('AGN', '--train_steps=30 --communication_window=10')])
def test_of_a_table_only_rows_travel_and_are_read(run, tmp_path, folder, flags):
    """The table has 128 MB."""
    program = run(folder, WHOLE_TABLE, *flags.split(), '--learning_rate=10',
                  f'--notes_dir={tmp_path}', '--traced_runs=3')
    sent = [json.loads(path.read_text())['bytes'] for path in tmp_path.glob('*.json')]
    assert len(sent) == 2 and max(sent) < 2e6
    rates = re.findall(r'step .* ([\d.]+) steps/s', '\n'.join(program.out))
    assert max(map(float, rates)) > 20, 'who copies the table makes six'
    assert accuracy_in_the_test(program) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'AGN'])
def test_the_term_of_a_regularizer_is_in_the_loss_once(run, folder):
    """Without a step nothing changes: the loss is log(10) of ten equal logits, and a term of 10."""
    program = run(folder, LAYERS_REGULARIZER, '--train_steps=40', '--learning_rate=0')
    losses = [float(line['loss']) for line in program.matches(STEP)]
    assert losses == pytest.approx([12.303] * len(losses), abs=0.002) and losses


@pytest.mark.thorough
def test_the_chief_alone_tests_in_batches(run, tmp_path):
    program = run('HogWild', TEST_SET, '--train_steps=100', '--test_batch_size=50')
    assert [path.name for path in tmp_path.glob('HogWild/tested-by-*')] == ['tested-by-0']
    assert accuracy_in_the_test(program) == 0.1
