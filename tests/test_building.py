"""Models built on values: as plain TensorFlow trains them, whatever made their variables."""

import functools
import re
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches
from tfdist.model import building, model_file
from tfdist.scheme import local_rules, seam
from tfdist.training import checkpoints, evaluation

from cases import briefly
from conftest import load_program, ROOT
from test_seam import defaults

BATCH, FEATURES, STEPS = 6, 4, 20
RATE = 0.1
IN_PLAIN_TENSORFLOW = []  # True, while it is so
# Schemes that are serial SGD with one worker: so much is one run.
SERIAL = {'DC-ASGD': 1, 'DOWNPOUR-Easy': 10, 'Distributed-Setup': 1, 'DynSGD': 5,
          'Elastic-Workers': 1, 'Gossip': 1, 'HogWild': 1, 'Local-SGD': 10,
          'Parameter-Placement': 1, 'Ring-AllReduce': 1, 'SSP': 1, 'Synchronous-SGD': 1,
          'Synchronous-SGD-different-learning-rates': 1, 'Work-Queue': 1}


def examples():
    """Returns a dict of arrays, a small problem with numbers, ids and words."""
    random = np.random.RandomState(0)
    return {'x': random.normal(size=(30, FEATURES)).astype(np.float32),
            'ids': random.randint(5, size=(30, 3)),
            'word': np.array([b'a', b'b', b'c'])[random.randint(3, size=30)],
            'y': random.normal(size=30).astype(np.float32)}


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Returns `count` batches, in the order of the examples."""
    del shard, num_shards, seed
    arrays = examples()
    dataset = tf.data.Dataset.from_tensor_slices(arrays).repeat()
    for size in batch_size, count:
        dataset = dataset.batch(size, drop_remainder=True)
    stacked = batches.next_of(dataset)
    return [{name: stacked[name][i] for name in arrays} for i in range(count)]


def error(units, batch):
    """Returns a loss, and the metrics, of units [batch_size, n]."""
    wrong = tf.reduce_mean(units, axis=1) - batch['y']
    return tf.reduce_mean(tf.square(wrong)), {'off': tf.reduce_mean(tf.abs(wrong))}


# Models, each of another way to make variables.

def by_get_variable(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3])
    return error(tf.nn.relu(tf.matmul(batch['x'], weights) + tf.get_variable('b', [3])), batch)


def by_variable(batch, training):
    del training
    weights = tf.Variable(tf.random_normal([FEATURES, 3], seed=1), name='weights')
    return error(tf.matmul(batch['x'], weights) + tf.Variable([1., 2., 3.]), batch)


def by_layers_without_names(batch, training):
    del training
    units = tf.layers.dense(batch['x'], 5, tf.nn.tanh)
    return error(tf.layers.dense(tf.layers.dense(units, 4), 2), batch)


def by_layers_with_names(batch, training):
    del training
    return error(tf.layers.dense(batch['x'], 5, name='first', use_bias=False), batch)


def by_keras(batch, training):
    del training
    units = tf.keras.layers.Dense(5, activation='tanh')(batch['x'])
    return error(tf.keras.layers.Dense(2)(units), batch)


def by_parts(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3],
                              partitioner=tf.fixed_size_partitioner(2))
    return error(tf.matmul(batch['x'], weights), batch)


def by_columns(batch, training):
    del training
    word = tf.feature_column.categorical_column_with_vocabulary_list('word', ['a', 'b', 'c'])
    units = tf.feature_column.input_layer(batch, [
        tf.feature_column.numeric_column('x', [FEATURES]),
        tf.feature_column.embedding_column(word, 2), tf.feature_column.indicator_column(word)])
    return error(units * tf.get_variable('scale', [units.shape[1]]), batch)


def by_cells(batch, training):
    del training
    cell = tf.nn.rnn_cell.LSTMCell(3)
    table = tf.get_variable('table', [5, 2])
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(table, batch['ids']),
                                   dtype=tf.float32)
    return error(outputs[:, -1], batch)


def by_weighted_ids(batch, training):
    del training
    table = tf.get_variable('table', [5, 2], partitioner=tf.fixed_size_partitioner(2))
    where = tf.where(tf.ones_like(batch['ids'], tf.bool))
    sparse = tf.SparseTensor(where, tf.reshape(batch['ids'], [-1]), [BATCH, 3])
    return error(tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner='sqrtn'), batch)


def of_several_dtypes(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 2], tf.float64)
    units = tf.cast(tf.matmul(tf.cast(batch['x'], tf.float64), weights), tf.float32)
    return error(units + tf.get_variable('b', [2]), batch)


def with_regularizers(batch, training):
    del training
    units = tf.layers.dense(batch['x'], 3, kernel_regularizer=tf.nn.l2_loss)
    weights = tf.get_variable('weights', [3, 2], regularizer=lambda w: 0.5 * tf.nn.l2_loss(w),
                              partitioner=tf.fixed_size_partitioner(2))
    return error(tf.matmul(units, weights), batch)


def with_regularizers_in_the_loss(batch, training):
    loss, metrics = with_regularizers(batch, training)
    return loss + tf.losses.get_regularization_loss(), metrics


def with_batch_norm(batch, training):
    units = tf.layers.dense(batch['x'], 5)
    units = tf.layers.batch_normalization(units, momentum=0.8, training=training)
    return error(tf.nn.relu(units), batch)


def with_batch_norm_of_keras(batch, training):
    norm = tf.keras.layers.BatchNormalization(momentum=0.8)
    loss = error(norm(tf.layers.dense(batch['x'], 5), training=training), batch)
    if training and IN_PLAIN_TENSORFLOW:  # in schemes nobody has to
        for update in norm.updates:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return loss


def with_a_moving_average(batch, training):
    mean = tf.get_variable('mean', [FEATURES], trainable=False, initializer=tf.zeros_initializer())
    seen = tf.get_variable('seen', [], tf.int64, tf.zeros_initializer(), trainable=False)
    loss = error(tf.matmul(batch['x'] - mean, tf.get_variable('weights', [FEATURES, 2])), batch)
    if training:
        with tf.control_dependencies([loss[0]]):
            for update in (mean.assign_sub(0.2 * (mean - tf.reduce_mean(batch['x'], axis=0))),
                           seen.assign_add(BATCH)):
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return loss


def with_what_is_frozen(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3], trainable=False)
    table = tf.get_variable('table', [5, 3], trainable=False)
    units = tf.matmul(batch['x'], weights) + tf.gather(table, batch['ids'][:, 0])
    return error(units * tf.get_variable('scale', [3]), batch)


def tied(batch, training):
    """A small table that is read as a whole, too."""
    del training
    table = tf.get_variable('table', [5, 2])
    units = tf.gather(table, batch['ids'][:, 0])
    return error(tf.matmul(units, table, transpose_b=True), batch)


BRIEF = [by_keras, by_parts, by_weighted_ids, of_several_dtypes, with_batch_norm,
         with_a_moving_average, tied]
MODELS = [by_get_variable, by_variable, by_layers_without_names, by_layers_with_names, by_keras,
          by_parts, by_columns, by_cells, by_weighted_ids, of_several_dtypes, with_regularizers,
          with_regularizers_in_the_loss, with_batch_norm, with_batch_norm_of_keras,
          with_a_moving_average, with_what_is_frozen, tied]


def a_model(function, **more):
    """Returns a model of one of the functions above."""
    return model_file.Model(types.SimpleNamespace(
        __name__='toy', __file__='toy', train_batches=train_batches, loss_and_metrics=function,
        test_batches=lambda size: tf.data.Dataset.from_tensor_slices(examples()).batch(size),
        **more))


def begin(session):
    """Initializes all, and gives each variable values that depend on its shape and place only."""
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())  # of which some copy global ones
    session.run(tf.tables_initializer())
    for i, variable in enumerate(tf.global_variables()):
        if variable.dtype.base_dtype.is_floating:
            random = np.random.RandomState(i)
            variable.load(random.uniform(0.1, 0.9, variable.shape.as_list()), session)


def plain(function, steps=STEPS):
    """Trains as plain TensorFlow does; returns the losses, and all variables at the end."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch, = train_batches(BATCH, 1)
        IN_PLAIN_TENSORFLOW.append(True)
        loss, _ = function(batch, True)
        IN_PLAIN_TENSORFLOW.clear()
        if 'in_the_loss' not in function.__name__:
            loss += tf.losses.get_regularization_loss()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            step = tf.train.GradientDescentOptimizer(RATE).minimize(
                loss, tf.train.get_global_step())
        begin(session)
        losses = [session.run([loss, step])[0] for _ in range(steps)]
        return losses, session.run(tf.global_variables())


def scheme_of(folder, model, num_workers=1, **changes):
    """Returns the scheme of a folder's worker 0, on a model, and its network."""
    program = load_program(folder)
    window = SERIAL.get(folder, 1)
    changes = dict(dict(communication_window=window, n_fetch=1, n_push=1, batch_size=BATCH),
                   **changes)
    settings = defaults(folder)
    hparams = types.SimpleNamespace(**dict(settings, **{
        name: value for name, value in changes.items() if name in settings}))
    hparams.learning_rate, hparams.lambda_0 = RATE, 0.
    drawn = model.train_batches(hparams.batch_size, program.Scheme.batches(hparams))
    network = building.Network(model, drawn, tables_stay_on_ps=program.Scheme.tables_stay_on_ps)
    return program.Scheme(
        network, tf.train.get_or_create_global_step(), hparams, 0, num_workers), network


@pytest.fixture
def here(monkeypatch):
    """Lets schemes be made without devices of workers, in a graph of their own."""
    monkeypatch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
    flags.FLAGS.mark_as_parsed()
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        yield


@functools.lru_cache(maxsize=None)
def expected(function):
    return plain(function)


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', briefly(sorted(SERIAL), ['DOWNPOUR-Easy']))
@pytest.mark.parametrize('function', briefly(MODELS, BRIEF), ids=lambda function: function.__name__)
def test_with_one_worker_it_is_plain_tensorflow(function, folder):
    losses, values = expected(function)
    scheme, _ = scheme_of(folder, a_model(function))
    runs = STEPS // SERIAL[folder]
    with tf.Session() as session:
        begin(session)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        said = [session.run(scheme.train_op)['loss'] for _ in range(runs)]
        named = zip(tf.global_variables(), session.run(tf.global_variables()))
        now = [value for variable, value in named if 'clocks' not in variable.name]
    np.testing.assert_allclose(said, np.reshape(losses, [runs, -1]).mean(axis=1), rtol=1e-5)
    assert len(now) == len(values)
    for value, same in zip(now[1:], values[1:]):
        np.testing.assert_allclose(value, same, atol=2e-6)


# What cannot be trained says so, in one line, before the first step.

def unused(batch, training):
    tf.get_variable('left_out', [3])
    return by_get_variable(batch, training)


def without_a_gradient(batch, training):
    choice = tf.argmax(tf.matmul(batch['x'], tf.get_variable('choice', [FEATURES, 3])), axis=1)
    loss, metrics = by_get_variable(batch, training)
    return loss + tf.reduce_mean(tf.cast(choice, tf.float32)), metrics


KEPT = []


def with_a_layer_that_is_kept(batch, training):
    del training
    if not KEPT:
        KEPT.append(tf.keras.layers.Dense(2, name='kept'))
    return error(KEPT[0](batch['x']), batch)


def with_one_more_each_time(batch, training):
    loss, metrics = by_get_variable(batch, training)
    KEPT.append(1)
    return loss * tf.get_variable(f'scale{len(KEPT)}', []), metrics


def with_one_more_by_no_name(batch, training):
    loss, metrics = by_variable(batch, training)
    KEPT.append(1)
    for _ in KEPT:
        loss *= tf.Variable(2., name='scale')
    return loss, metrics


def of_another_shape_each_time(batch, training):
    del training
    KEPT.append(1)
    return error(batch['x'][:, :1] * tf.Variable(tf.ones([len(KEPT)]), name='scale'), batch)


def that_assigns_to_what_is_trained(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES])
    with tf.control_dependencies([weights.assign(tf.ones([FEATURES]))]):
        return error(batch['x'] * weights, batch)


def that_assigns_in_a_branch(batch, training):
    del training
    mean = tf.get_variable('mean', [], trainable=False)
    update = tf.cond(batch['y'][0] > 0, lambda: mean.assign(1.), lambda: mean.read_value())
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return error(batch['x'] * tf.get_variable('weights', [FEATURES]), batch)


def with_a_flag(batch, training):
    flag = tf.get_variable('flag', [], tf.bool, tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, flag.assign(True))
    return by_get_variable(batch, training)


def that_counts_what_is_trained(batch, training):
    tf.get_variable('seen', [], tf.int32, tf.zeros_initializer())
    return by_get_variable(batch, training)


def that_uses_a_variable_in_its_own_way(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES], trainable=False)
    size = tf.cast(tf.reduce_sum(tf.raw_ops.VariableShape(input=weights.handle)), tf.float32)
    return error(batch['x'] * tf.get_variable('scale', []) * size + weights.assign(
        tf.ones([FEATURES])), batch)


def with_nothing_to_train(batch, training):
    del training
    return error(batch['x'], batch)


def of_many_losses(batch, training):
    loss, metrics = by_get_variable(batch, training)
    return tf.stack([loss, loss]), metrics


def without_metrics(batch, training):
    return by_get_variable(batch, training)[0]


def large(batch, training):
    del training
    table = tf.get_variable('table', [10 ** 6, 8])
    return error(tf.gather(table, batch['ids'][:, 0]), batch)


def large_and_whole(batch, training):
    table = tf.get_variable('table', [10 ** 6, 8])
    loss, metrics = error(tf.gather(table, batch['ids'][:, 0]), batch)
    return loss + tf.nn.l2_loss(table), metrics


def whole_in_a_test_of_its_rows(batch, training):
    loss, metrics = by_cells(batch, training)
    KEPT.append(1)
    with tf.variable_scope('', reuse=True):
        return loss + (tf.nn.l2_loss(tf.get_variable('table')) if len(KEPT) > 1 else 0), metrics


def of_rows_that_depend_on_rows(batch, training):
    del training
    table = tf.get_variable('table', [5, 2])
    first = tf.gather(table, batch['ids'][:, 0])
    return error(first + tf.gather(table, tf.cast(first[:, 0] > 0, tf.int64)), batch)


def with_an_input_of_keras(batch, training):
    network = tf.keras.Sequential([
        tf.keras.layers.Dense(3, input_shape=[FEATURES]),
        tf.keras.layers.BatchNormalization()])
    tf.keras.backend.set_learning_phase(int(training))
    return error(network(batch['x']), batch)


def with_a_metric_of_keras(batch, training):
    loss, metrics = by_get_variable(batch, training)
    mean = tf.keras.metrics.Mean()
    return loss, dict(metrics, mean=mean(batch['y']))


COMPLAINTS = [
    (with_an_input_of_keras, 'The model assigns a variable a value that depends on'),
    (with_a_metric_of_keras, 'The model makes total, which is in no collection that is'),
    (unused, 'The loss does not depend on the trainable variable left_out: make it with'),
    (without_a_gradient, 'The loss does not depend on the trainable choice, or has no gradient'),
    (with_a_layer_that_is_kept, 'The second build of the model does not ask for the variables '
                                'kept/kernel, kept/bias: they would not be trained. Make them'),
    (with_one_more_each_time, 'The second build of the model asks for the variable scale2, but'),
    (with_one_more_by_no_name, 'The second build of the model makes a variable that the first did '
                               'not: scale'),
    (of_another_shape_each_time, 'The second build of the model makes a variable of shape'),
    (that_assigns_to_what_is_trained, 'The model itself assigns to the trainable variable weights'),
    (that_assigns_in_a_branch, 'The model assigns to the variable mean in a tf.cond or a'),
    (with_a_flag, 'The model assigns to flag, which is a bool: make it an integer'),
    (that_counts_what_is_trained, 'The trainable variable seen is of int32, which has no gradient'),
    (that_uses_a_variable_in_its_own_way, 'The model uses the variable weights by VariableShape'),
    (with_nothing_to_train, 'The model makes no trainable variable: there is nothing to train'),
    (of_many_losses, "The model's loss has to be one number: it is of shape (2,) and float32"),
    (without_metrics, "The model's loss_and_metrics has to return its loss, and a dict of metrics"),
    (large_and_whole, 'The table table is of (1000000, 8), and the model reads it as a whole (by'),
    (whole_in_a_test_of_its_rows, 'The table table is read as a whole here, and only by its rows'),
    (of_rows_that_depend_on_rows, 'Which rows of the table table are read depends on the rows'),
]


OTHERS = [  # of tests below
    'The table table is of (1000000, 8), and this scheme would have it whole on each worker',
    "Variables made before the model's function is called: early.", 'The test set is empty',
    "The model's train_batches made no batch.", "The model's train_batches made fewer batches"]


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function, complaint', COMPLAINTS, ids=[
    function.__name__ for function, _ in COMPLAINTS])
@pytest.mark.parametrize('folder', briefly(['HogWild', 'AGN'], ['HogWild']))
def test_what_is_said_before_the_first_step(folder, function, complaint):
    KEPT.clear()
    with pytest.raises(SystemExit) as raised:
        scheme_of(folder, a_model(function), communication_window=2)
    assert str(raised.value).startswith(complaint) and '\n' not in str(raised.value)


def test_the_page_has_what_is_said():
    """Each line that a test has seen; test_bring_your_model.py holds it against the code."""
    page = (ROOT / 'docs' / 'models.md').read_text(encoding='utf-8')
    page = page.split('## What does not work')[1]
    forms = re.findall(r'^\| `(.*?)` \|', page, re.MULTILINE)
    said = [complaint for _, complaint in COMPLAINTS] + OTHERS

    def fits(form, complaint):
        """Whether one of them begins as the other; `...` stands for anything."""
        begin, rest = form.split('...')[0], form.split('...')[1:]
        return (complaint.startswith(begin) or begin.startswith(complaint)) and (
            len(complaint) < len(form) or all(part[:20] in complaint for part in rest))

    for complaint in said:
        assert any(fits(form, complaint) for form in forms), complaint


@pytest.mark.usefixtures('here')
def test_a_large_table_is_not_for_schemes_that_have_all_on_each_worker():
    scheme_of('HogWild', a_model(large))
    with tf.Graph().as_default(), pytest.raises(SystemExit) as raised:
        scheme_of('Ring-AllReduce', a_model(large))
    assert str(raised.value).startswith(
        'The table table is of (1000000, 8), and this scheme would have it whole on each worker')


@pytest.mark.usefixtures('here')
def test_variables_that_are_made_before():
    tf.get_variable('early', [2])
    with pytest.raises(SystemExit, match="^Variables made before the model's .*: early. Make"):
        scheme_of('HogWild', a_model(by_get_variable))


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('count, complaint', [(0, 'no batch'), (1, 'fewer'), (3, 'more')])
def test_too_few_batches_and_too_many(count, complaint):
    model = a_model(by_get_variable)
    model.train_batches = lambda *args: train_batches(BATCH, 3)[:count]
    with pytest.raises(SystemExit, match=f"^The model's train_batches made {complaint}"):
        scheme_of('AGN', model, communication_window=2)


# Its own optimizer.

@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', briefly(
    ['HogWild', 'Synchronous-SGD', 'Ring-AllReduce', 'Distributed-Setup', 'Distributed-MNIST',
     'Work-Queue'], ['HogWild', 'Synchronous-SGD', 'Ring-AllReduce']))
def test_the_optimizer_of_the_model(folder):
    """Momentum, with a gradient that is cut off, as in plain TensorFlow; slots on the ps."""
    class Clipped(tf.train.MomentumOptimizer):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            return super().apply_gradients(
                [(tf.clip_by_norm(gradient, 0.1), variable)
                 for gradient, variable in grads_and_vars], *args, **kwargs)

    model = a_model(by_get_variable, optimizer=lambda rate: Clipped(rate, 0.9))
    assert model.left_out == {'optimizer'}
    scheme, _ = scheme_of(folder, model)
    assert not model.left_out
    slots = [variable for variable in tf.global_variables() if 'Momentum' in variable.name]
    assert len(slots) == 2
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch, = train_batches(BATCH, 1)
        step = Clipped(RATE, 0.9).minimize(by_get_variable(batch, True)[0])
        begin(session)
        for _ in range(STEPS):
            session.run(step)
        expected = session.run(tf.trainable_variables())
    with tf.Session() as session:
        begin(session)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        for _ in range(STEPS):
            session.run(scheme.train_op)
        for value, same in zip(session.run(tf.trainable_variables()), expected):
            np.testing.assert_allclose(value, same, atol=1e-6)


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', briefly(['Local-SGD', 'DOWNPOUR-Easy', 'DynSGD'],
                                           ['Local-SGD']))
@pytest.mark.parametrize('rule, optimizer', [
    (local_rules.Momentum, lambda rate: tf.train.MomentumOptimizer(rate, 0.9)),
    (local_rules.Adam, tf.train.AdamOptimizer)], ids=['Momentum', 'Adam'])
def test_the_local_rule_of_the_model(folder, rule, optimizer):
    """In windows of one worker, as in plain TensorFlow without them: it keeps what it has."""
    model = a_model(by_get_variable, local_rule=rule)
    scheme, _ = scheme_of(folder, model)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch, = train_batches(BATCH, 1)
        step = optimizer(RATE).minimize(by_get_variable(batch, True)[0])
        begin(session)
        session.run([variable.initializer for variable in tf.global_variables()[3:]])  # slots
        for _ in range(STEPS):
            session.run(step)
        expected = session.run(tf.trainable_variables())
    with tf.Session() as session:
        begin(session)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        for _ in range(STEPS // SERIAL[folder]):
            session.run(scheme.train_op)
        for value, same in zip(session.run(tf.trainable_variables()), expected):
            np.testing.assert_allclose(value, same, atol=1e-5)
    assert not model.left_out


@pytest.mark.usefixtures('here')
def test_a_local_rule_with_slots_is_not_for_tables():
    with pytest.raises(SystemExit, match='^The local rule keeps slots on each worker, and table'):
        scheme_of('AGN', a_model(by_cells, local_rule=local_rules.Adam))


# Averages of the parameters.

@pytest.mark.parametrize('folder', briefly(
    ['HogWild', 'Synchronous-SGD', 'Ring-AllReduce', 'DC-ASGD', 'Parameter-Placement'],
    ['HogWild', 'Synchronous-SGD', 'Ring-AllReduce']))
@pytest.mark.usefixtures('here')
def test_the_test_uses_moving_averages(monkeypatch, folder):
    """They follow the variables, faster in the first steps; and a checkpoint has them."""
    model = a_model(by_get_variable)
    monkeypatch.setattr(flags.FLAGS['moving_average_decay'], 'value', 0.8)
    scheme, network = scheme_of(folder, model)
    test = evaluation.Test(model, network.at_variables)
    dense = network.variables
    followers = [variable for variable in tf.global_variables() if 'Moving' in variable.name]
    assert len(followers) == len(dense) == 2
    with tf.Session() as session:
        begin(session)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        expected = session.run(followers)
        for t in range(1, 46):  # from the 36th step on it keeps as much as it is told
            session.run(scheme.train_op)
            keep = min(0.8, (1 + t) / (10 + t))
            expected = [keep * average + (1 - keep) * value
                        for average, value in zip(expected, session.run(dense))]
        for value, same in zip(session.run(followers), expected):
            np.testing.assert_allclose(value, same, rtol=1e-5)
        figures, (weights, bias) = test.run(session), expected
    arrays = examples()
    wrong = np.maximum(arrays['x'].dot(weights) + bias, 0).mean(axis=1) - arrays['y']
    assert figures['loss'] == pytest.approx((wrong ** 2).mean(), rel=1e-4)


@pytest.mark.usefixtures('here')
def test_a_table_has_no_average(monkeypatch):
    model = a_model(by_cells)
    monkeypatch.setattr(flags.FLAGS['moving_average_decay'], 'value', 0.5)
    scheme, network = scheme_of('HogWild', model)
    test = evaluation.Test(model, network.at_variables)
    followers = [variable for variable in tf.global_variables() if 'Moving' in variable.name]
    assert [variable.op.name for variable in followers] == [
        'rnn/lstm_cell/kernel/ExponentialMovingAverage',
        'rnn/lstm_cell/bias/ExponentialMovingAverage']
    with tf.Session() as session:
        begin(session)
        session.run(scheme.train_op)
        assert np.isfinite(test.run(session)['loss'])


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function', [by_get_variable, by_parts, by_cells])
@pytest.mark.parametrize('decay', briefly([0.5, 0], [0.5]))
def test_a_checkpoint_is_tested_by_its_averages(monkeypatch, tmp_path, function, decay):
    """If it has any, and also in parts: who restores it sees what the chief's test sees."""
    model = a_model(function)
    monkeypatch.setattr(flags.FLAGS['moving_average_decay'], 'value', decay)
    scheme, network = scheme_of('HogWild', model)
    test = evaluation.Test(model, network.at_variables)
    with tf.Session() as session:
        begin(session)
        for _ in range(4):
            session.run(scheme.train_op)
        expected = test.run(session)
        path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))
    figures = []
    for saver in checkpoints.AveragesSaver, checkpoints.Saver:
        with tf.Graph().as_default(), tf.Session() as session:
            tf.train.get_or_create_global_step()
            alone = evaluation.Test(model, functools.partial(function, training=False))
            saver(None).restore(session, path)
            figures.append(alone.run(session))
    assert figures[0] == pytest.approx(expected, rel=1e-6)
    assert (figures[0] == figures[1]) == (decay == 0)


# The test.

@pytest.mark.usefixtures('here')
def test_a_batch_that_begins_with_a_sparse_tensor():
    def loss_and_metrics(batch):
        sums = tf.sparse.reduce_sum(batch['x'], axis=1)
        return tf.reduce_mean(sums), {'mean': tf.metrics.mean(sums)}

    model, array = a_model(None), examples()['x']
    model.module.test_batches = lambda size: tf.data.Dataset.from_tensor_slices(
        {'x': tf.sparse.from_dense(array)}).batch(size)
    with flagsaver.flagsaver(test_batch_size=7), tf.Session() as session:
        figures = evaluation.Test(model, loss_and_metrics).run(session)
    mean = array.sum(axis=1).mean()
    assert figures == pytest.approx({'mean': mean, 'loss': mean}, rel=1e-4)


@pytest.mark.usefixtures('here')
def test_the_test_uses_what_was_learnt():
    """The moving averages as they are at the end, and means over all examples."""
    scheme, network = scheme_of('HogWild', a_model(with_batch_norm))
    test = evaluation.Test(a_model(with_batch_norm), network.at_variables)
    with tf.Session() as session:
        begin(session)
        before = test.run(session)
        for _ in range(STEPS):
            session.run(scheme.train_op)
        after = test.run(session)
        kernel, bias, gamma, beta, mean, variance = session.run(tf.global_variables()[1:])
    arrays = examples()
    units = arrays['x'].dot(kernel) + bias
    units = (units - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    wrong = np.maximum(units, 0).mean(axis=1) - arrays['y']
    assert after == pytest.approx({'off': np.abs(wrong).mean(), 'loss': (wrong ** 2).mean()},
                                  rel=1e-4)
    assert after['loss'] < before['loss'] and list(after) == ['off', 'loss']


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', briefly(['HogWild', 'AGN', 'AEASGD'], ['HogWild']))
def test_a_worker_of_several_moves_state_by_its_share(folder):
    """Whole changes of all, each from a value that was read before the others', would overshoot."""
    moved = {}
    for num_workers in 1, 4:
        with tf.Graph().as_default(), tf.Session() as session:
            scheme, _ = scheme_of(folder, a_model(with_batch_norm), num_workers,
                                  communication_window=3)
            state = [each for each in tf.global_variables() if 'moving' in each.name]
            session.run(tf.global_variables_initializer())  # elastic replicas begin with these
            begin(session)
            session.run(tf.local_variables_initializer())
            before = session.run(state)
            session.run(scheme.train_op)
            moved[num_workers] = np.subtract(session.run(state), before)
    np.testing.assert_allclose(moved[4], moved[1] / 4, rtol=1e-4)
    assert np.abs(moved[1]).min() > 0


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('size', [30, 7, 1])
def test_a_test_in_batches(size):
    """Whatever their size, also the last's, it comes to the same; and again to the same."""
    def loss_and_metrics(batch, training):
        loss, metrics = by_get_variable(batch, training)
        right = batch['y'] > 0
        if not training:
            metrics['area'] = tf.metrics.auc(right, tf.sigmoid(batch['x'][:, 0]))
            metrics['mean'] = tf.metrics.mean(batch['y'])
        return loss, metrics

    model = a_model(loss_and_metrics)
    _, network = scheme_of('HogWild', model)
    with flagsaver.flagsaver(test_batch_size=size):
        test = evaluation.Test(model, network.at_variables)
    with tf.Session() as session:
        begin(session)
        figures = [test.run(session) for _ in range(2)]
        weights, bias = session.run(tf.global_variables()[1:])
    assert figures[0] == figures[1] and list(figures[0]) == ['off', 'area', 'mean', 'loss']
    arrays = examples()
    wrong = np.maximum(arrays['x'].dot(weights) + bias, 0).mean(axis=1) - arrays['y']
    assert figures[0]['off'] == pytest.approx(np.abs(wrong).mean(), rel=1e-5)
    assert figures[0]['loss'] == pytest.approx((wrong ** 2).mean(), rel=1e-5)
    assert figures[0]['mean'] == pytest.approx(arrays['y'].mean(), rel=1e-4)
    order = [(one > other) for one in arrays['x'][arrays['y'] > 0, 0]
             for other in arrays['x'][arrays['y'] <= 0, 0]]
    assert figures[0]['area'] == pytest.approx(np.mean(order), abs=0.02)


@pytest.mark.usefixtures('here')
def test_an_empty_test_set():
    model = a_model(by_get_variable)
    none = {name: array[:0] for name, array in examples().items()}
    model.test_batches = lambda size: tf.data.Dataset.from_tensor_slices(none).batch(size)
    test = evaluation.Test(model, lambda batch: by_get_variable(batch, False))
    with tf.Session() as session, pytest.raises(SystemExit, match='^The test set is empty'):
        begin(session)
        test.run(session)
