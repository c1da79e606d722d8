"""The idioms of public code, in schemes: each is trained as plain TensorFlow trains it, or refused.

With one worker, the losses and all variables are compared after 12 steps.
"""

import functools
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building
from tfdist.training import evaluation

from cases import briefly
from conftest import load_program, ROOT
import idioms
import test_building
from test_building import (a_model, BATCH, begin, error, examples, FEATURES,
                           IN_PLAIN_TENSORFLOW, plain, RATE, scheme_of, SERIAL, train_batches)

here = test_building.here
STEPS, WINDOW = 12, 4
SGD = tf.train.GradientDescentOptimizer
PATIENCE = tf.ConfigProto(operation_timeout_in_ms=20000)  # a step that hangs is a failure
BRIEF = ['HogWild', 'DOWNPOUR-Easy']
THOROUGH = ['Synchronous-SGD', 'Ring-AllReduce', 'Non-Distributed-Setup', 'Local-SGD', 'DynSGD',
            'Parameter-Placement', 'SSP']
# These apply the model's own optimizer, as HogWild does.
THOROUGH_OF_OPTIMIZERS = ['Synchronous-SGD', 'Ring-AllReduce', 'Non-Distributed-Setup',
                          'Distributed-Setup', 'Distributed-MNIST', 'Work-Queue']
# Where a window may differ from single steps: these keep something, or reach for variables.
BRIEF_IN_A_WINDOW = {
    idioms.decay_over_trainable_variables, idioms.decay_over_a_layer,
    idioms.decay_over_a_collection_of_its_own, idioms.losses_in_a_collection_of_its_own,
    idioms.average_of_the_loss, idioms.averages_of_the_variables, idioms.gradient_penalty,
    idioms.step_within_the_loss, idioms.state_by_get_variable, idioms.state_by_variable,
    idioms.keras_functional, idioms.target_network, idioms.adversaries, idioms.loop,
    idioms.template, idioms.clipped_rows, idioms.spectral_norm, idioms.in_half_precision}
# Other brief tests have their like.
NEVER_BRIEF = {idioms.decay_over_trainable_variables_of_a_scope, idioms.mapped,
               idioms.straight_through, idioms.sampled_softmax, idioms.layer_norm}
pytestmark = pytest.mark.usefixtures('here')


def in_phase(function):
    """Returns the function, for plain TensorFlow: Keras has to be told whether it is training."""
    @functools.wraps(function)
    def told(batch, training):
        tf.keras.backend.set_learning_phase(int(training))
        return function(batch, training)

    return told if 'keras' in function.__name__ else function


@functools.lru_cache(maxsize=None)
def expected(function):
    return plain(in_phase(function), STEPS)


def initialize(session):
    """Begins with the values that the model says."""
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])


def plain_by(function, make=SGD, start=begin):
    """Is `plain` for an optimizer, a function of a learning rate, and for values to start at."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch, = train_batches(BATCH, 1)
        loss, _ = function(batch, True)
        step = make(RATE).minimize(loss, tf.train.get_global_step())
        start(session)
        session.run(tf.tables_initializer())
        losses = [session.run([loss, step])[0] for _ in range(STEPS)]
        return losses, session.run(tf.global_variables())


@functools.lru_cache(maxsize=None)
def expected_by(make, function):
    return plain_by(function, make)


def scheme_in(folder, model):
    """Is `scheme_of`, also for the folder without a worker; windows are of WINDOW steps."""
    if (ROOT / folder / 'worker.py').exists():
        return scheme_of(folder, model, communication_window=min(WINDOW, SERIAL.get(folder, 1)))
    network = building.Network(model, model.train_batches(BATCH, 1))
    hparams = types.SimpleNamespace(learning_rate=RATE)
    make = load_program(folder, 'train').Scheme
    return make(network, tf.train.get_or_create_global_step(), hparams, 0, 1), network


def run(scheme, window=1, start=begin, test=None):
    """Trains for STEPS steps.

    Returns:
      The losses of the runs; a dict of the values of all variables at the end, but of the global
      step and of clocks; the global step; and the figures of the `test`, an `evaluation.Test`.
    """
    with tf.Session(config=PATIENCE) as session:
        start(session)
        session.run(tf.tables_initializer())
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        losses = [session.run(scheme.train_op)['loss'] for _ in range(STEPS // window)]
        step, *variables = tf.global_variables()
        values = {variable.op.name: session.run(variable) for variable in variables
                  if 'clocks' not in variable.name}
        return losses, values, session.run(step), test and test.run(session)


def window_of(folder):
    return min(WINDOW, SERIAL.get(folder, 1))


def compare(losses, values, expected_losses, expected_values):
    """Asserts that a run made of each variable what plain TensorFlow makes of it."""
    # Of floats of 2 bytes, a window's difference is rounded before it is added to the center.
    tolerance = 1e-2 if any(value.itemsize == 2 for value in expected_values) else 1e-5
    means = np.reshape(expected_losses, [len(losses), -1]).mean(axis=1)
    np.testing.assert_allclose(losses, means, rtol=tolerance)
    assert len(values) == len(expected_values) - 1  # it has the global step, too
    for name, same in zip(values, expected_values[1:]):
        value, same = (np.asarray(each, np.float32) for each in (values[name], same))
        np.testing.assert_allclose(value, same, rtol=tolerance, atol=2e-6, err_msg=name)


def in_folders(brief, thorough):
    """Returns a decorator: a test in each of these folders."""
    return pytest.mark.parametrize('folder', briefly([*brief, *thorough], brief))


def is_brief(function, folder):
    """Returns whether `make test` has this case: an idiom in a window, or by single steps."""
    if function in BRIEF_IN_A_WINDOW:
        return folder == 'DOWNPOUR-Easy'
    return folder == 'HogWild' and function not in NEVER_BRIEF


@pytest.mark.parametrize('function, folder', briefly([
    pytest.param(function, folder, id=f'{function.__name__}-{folder}')
    for function in idioms.MODELS for folder in BRIEF + THOROUGH], is_brief))
def test_an_idiom_is_trained_as_in_plain_tensorflow(function, folder):
    scheme, _ = scheme_in(folder, a_model(function))
    losses, values, *_ = run(scheme, window_of(folder))
    compare(losses, values, *expected(function))


def figures_in_plain_tensorflow(function, values):
    """Returns the loss and the metrics of a test on all examples, with given values."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch = {name: tf.constant(array) for name, array in examples().items()}
        loss, metrics = in_phase(function)(batch, False)
        session.run(tf.local_variables_initializer())
        for variable, value in zip(tf.global_variables(), values):
            variable.load(value, session)
        return session.run(dict(metrics, loss=loss))


IN_A_TEST = {idioms.averages_of_the_variables, idioms.state_by_variable, idioms.auxiliary_head,
             idioms.keras_functional}  # is other than in training


@pytest.mark.parametrize('function', briefly(
    [function for function in idioms.MODELS if function is not idioms.by_a_known_batch_size],
    IN_A_TEST), ids=lambda function: function.__name__)
def test_an_idiom_is_tested_as_in_plain_tensorflow(function):
    """On all examples at once, in inference mode."""
    model = a_model(function)
    scheme, network = scheme_in('HogWild', model)
    *_, figures = run(scheme, test=evaluation.Test(model, network.at_variables))
    _, values = expected(function)
    assert figures == pytest.approx(figures_in_plain_tensorflow(function, values), rel=2e-4)


# State of a worker's own.

@pytest.mark.parametrize('function', [idioms.state_by_get_variable, idioms.state_by_variable])
def test_state_of_a_worker_stays_with_it(function):
    """It is on the worker and in no checkpoint; who plays several workers finds it in `own`."""
    setter = tf.train.replica_device_setter(ps_tasks=1, worker_device='/job:worker/task:3')
    with tf.device(setter):
        scheme, _ = scheme_in('HogWild', a_model(function))
    state, = (variable for variable in tf.local_variables() if 'state' in variable.name)
    assert state.device == '/job:worker/task:3'
    assert state in scheme.own and state not in tf.global_variables()


# Starts.

@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """A checkpoint for `idioms.STARTS`, and the values in it."""
    random = np.random.RandomState(3)
    values = [random.normal(size=shape).astype(np.float32) for shape in ([FEATURES, 4], [4])]
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in zip(('old/kernel', 'old/bias'), values):
            tf.get_variable(name, initializer=value)
        initialize(session)
        path = str(tmp_path_factory.mktemp('checkpoint') / 'model.ckpt')
        return tf.train.Saver().save(session, path), values


@in_folders(['HogWild'], ['DOWNPOUR-Easy', *THOROUGH])
@pytest.mark.parametrize('function', idioms.STARTS, ids=lambda function: function.__name__)
def test_a_start_from_a_checkpoint(checkpoint, function, folder):
    """All variables begin as in plain TensorFlow, and are trained on."""
    path, saved = checkpoint

    def model(batch, training):
        del training
        return function(batch, path)

    scheme, _ = scheme_in(folder, a_model(model))
    with tf.Session() as session:
        initialize(session)
        for value, same in zip(session.run(tf.trainable_variables('first')), saved):
            np.testing.assert_array_equal(value, same)
    losses, values, *_ = run(scheme, window_of(folder), initialize)
    compare(losses, values, *plain_by(model, start=initialize))


# Optimizers.

@in_folders(['HogWild'], THOROUGH_OF_OPTIMIZERS)
@pytest.mark.parametrize('make, function', idioms.OPTIMIZERS, ids=[
    f'{make.__name__}-{function.__name__}' for make, function in idioms.OPTIMIZERS])
def test_an_optimizer_trains_as_in_plain_tensorflow(make, function, folder):
    """With slots and averages; and the scheme counts, whether the optimizer does or not."""
    scheme, _ = scheme_in(folder, a_model(function, optimizer=make))
    losses, values, step, _ = run(scheme)
    compare(losses, values, *expected_by(make, function))
    assert step == STEPS


# What cannot be, ends in one line.

def the_line_of(call, *args, **kwargs):
    """Returns the line with which a call ends the program."""
    with pytest.raises(SystemExit) as raised:
        call(*args, **kwargs)
    assert isinstance(raised.value.code, str) and '\n' not in raised.value.code
    return raised.value.code


@in_folders(['HogWild'], THOROUGH_OF_OPTIMIZERS)
def test_an_optimizer_that_overrides_minimize(folder):
    """No scheme calls it."""
    line = the_line_of(scheme_in, folder,
                       a_model(idioms.two_layers, optimizer=idioms.ClipsInMinimize))
    assert 'minimize' in line and 'ClipsInMinimize' in line


@pytest.mark.parametrize('returned', [
    None, [], lambda rate: [SGD(rate)], lambda rate: SGD, lambda rate: (SGD(rate), rate), 'Adam',
    0.1, lambda rate: tf.keras.optimizers.SGD(rate)],
    ids=['None', 'empty', 'list', 'class', 'pair', 'string', 'number', 'keras'])
def test_an_optimizer_that_is_none(returned):
    model = a_model(idioms.two_layers,
                    optimizer=returned if callable(returned) else lambda rate: returned)
    assert 'optimizer' in the_line_of(scheme_in, 'HogWild', model)


KEPT = []


def with_a_variable_that_is_kept(batch, training):
    """Its decay is over a variable itself, of which a scheme trains a copy."""
    loss, metrics = idioms.two_layers(batch, training)
    if not KEPT:
        KEPT.extend(tf.trainable_variables('first'))
    return loss + idioms.decay(KEPT), metrics


def with_a_placeholder(batch, training):
    loss, metrics = idioms.two_layers(batch, training)
    return loss * tf.placeholder(tf.float32, [], name='keep_prob'), metrics


@in_folders(['HogWild'], ['DOWNPOUR-Easy', 'Synchronous-SGD', 'Ring-AllReduce'])
@pytest.mark.parametrize('function, named', [
    (with_a_variable_that_is_kept, 'first/kernel'), (with_a_placeholder, 'keep_prob')],
    ids=['kept', 'placeholder'])
def test_what_is_said_before_the_first_step(function, named, folder):
    KEPT.clear()

    def train():
        run(scheme_in(folder, a_model(function))[0], window_of(folder))

    assert named in the_line_of(train)


def trained_or_refused(folder, function, model=None):
    """Trains as plain TensorFlow does, and returns None; or returns the line that says why not."""
    def train():
        scheme, _ = scheme_in(folder, model or a_model(function))
        return run(scheme, window_of(folder))

    try:
        losses, values, *_ = train()
    except SystemExit as refused:
        assert isinstance(refused.code, str) and '\n' not in refused.code
        return refused.code
    compare(losses, values, *expected(function))
    return None


def with_an_iterator(batch, training):
    """Data that are the model's own: noise, for example."""
    loss, metrics = idioms.two_layers(batch, training)
    iterator = tf.data.make_initializable_iterator(
        tf.data.Dataset.from_tensor_slices([0.5, 1., 2.]).repeat())
    if IN_PLAIN_TENSORFLOW:  # in schemes nobody may know that he has to
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return loss * iterator.get_next(), metrics


def of_references(batch, training):
    """Variables as they were before there were resources."""
    del training
    weights = tf.get_variable('weights', [FEATURES, 3], use_resource=False)
    return error(tf.nn.relu(tf.matmul(batch['x'], weights)), batch)


def with_a_constraint(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3],
                              constraint=lambda value: tf.clip_by_value(value, -0.5, 0.5))
    return error(tf.nn.tanh(tf.matmul(batch['x'], weights)), batch)


def with_centers(batch, training):
    """As in the center loss: only the rows of a batch are moved."""
    centers = tf.get_variable('centers', [5, 3], trainable=False)
    units, classes = idioms.layer(batch['x'], 3), batch['ids'][:, 0]
    away = tf.gather(centers, classes) - units
    loss, metrics = error(units, batch)
    if training:
        with tf.control_dependencies([away]):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.scatter_sub(
                centers, classes, 0.1 * away))
    return loss + 0.5 * tf.reduce_mean(tf.square(away)), metrics


def in_bfloat16(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES], tf.bfloat16)
    return error(batch['x'] * tf.cast(weights, tf.float32), batch)


def ragged(batch, training):
    del training
    ids = batch['ids']
    ids = ids.to_tensor() if isinstance(ids, tf.RaggedTensor) else ids
    rows = tf.gather(tf.get_variable('table', [5, 3]), ids)
    return error(tf.reduce_sum(rows, axis=1), batch)


@in_folders(BRIEF, THOROUGH)
@pytest.mark.parametrize('function, named', [
    (with_an_iterator, 'iterator'), (of_references, 'use_resource'),
    (with_a_constraint, 'constraint'), (with_centers, 'centers')],
    ids=['iterator', 'references', 'constraint', 'centers'])
def test_an_idiom_is_trained_or_refused(function, named, folder):
    """In windows, too: each step takes the next element, and keeps to the constraint."""
    line = trained_or_refused(folder, function)
    assert line is None or named in line


@in_folders(['Synchronous-SGD'], [
    'HogWild', 'DOWNPOUR-Easy', 'Local-SGD', 'SAGN', 'DC-ASGD', 'Ring-AllReduce',
    'Synchronous-SGD-different-learning-rates'])
def test_variables_of_bfloat16(folder):
    line = trained_or_refused(folder, in_bfloat16)
    assert line is None or 'weights' in line and 'bfloat16' in line


@in_folders(['HogWild'], ['DOWNPOUR-Easy', *THOROUGH])
def test_a_ragged_tensor_in_the_batch(folder):
    model = a_model(ragged)
    model.train_batches = lambda *args: [
        dict(batch, ids=tf.RaggedTensor.from_tensor(batch['ids']))
        for batch in train_batches(*args)]
    line = trained_or_refused(folder, ragged, model)
    assert line is None or 'agged' in line


def test_a_test_of_another_batch_size():
    """A network that knows the size of a batch has figures, or a line says why it has none."""
    model = a_model(idioms.by_a_known_batch_size)
    scheme, network = scheme_in('HogWild', model)
    try:
        *_, figures = run(scheme, test=evaluation.Test(model, network.at_variables))
    except SystemExit as refused:
        first, *trace = refused.code.splitlines()
        assert 'whose batches are of no fixed size' in first
        assert 'by_a_known_batch_size' in '\n'.join(trace)
    else:
        _, values = expected(idioms.by_a_known_batch_size)
        assert figures == pytest.approx(
            figures_in_plain_tensorflow(idioms.by_a_known_batch_size, values), rel=2e-4)


@pytest.mark.parametrize('when', [0, 1], ids=['first', 'second'])
def test_an_error_of_the_model_is_shown_as_it_is(when):
    """In whichever build: with the trace of the model's code."""
    KEPT.clear()

    def that_fails(batch, training):
        KEPT.append(1)
        return idioms.two_layers({} if len(KEPT) > when else batch, training)

    with pytest.raises(SystemExit) as raised:
        scheme_in('HogWild', a_model(that_fails))
    shown = raised.value.code
    assert 'in two_layers' in shown and "KeyError: 'x'" in shown and 'tfdist' not in shown


def with_a_flag(name, folder, directory):
    """Returns a copy of a folder whose model defines a flag."""
    copy = directory / folder
    copy.mkdir()
    for path in (ROOT / folder).glob('*.py'):
        text = path.read_text(encoding='utf-8')
        if path.name == 'model.py':
            text += f"\nfrom absl import flags\nflags.DEFINE_integer('{name}', 1, 'mine')\n"
        (copy / path.name).write_text(text, encoding='utf-8')
    return copy


def test_a_flag_that_the_folder_has(tmp_path):
    """The line names the flag and the file."""
    line = the_line_of(load_program, str(with_a_flag('batch_size', 'HogWild', tmp_path)))
    assert '--batch_size' in line and 'model.py' in line


@pytest.mark.thorough
@pytest.mark.parametrize('name', ['batch_size', 'model'])  # the library has the latter
def test_a_program_with_a_flag_twice(programs, tmp_path, name):
    folder = with_a_flag(name, 'Non-Distributed-Setup', tmp_path)
    programs.task('train', folder=folder).fails(f'--{name}.*model\\.py')
