"""What a model.py may have besides its functions: starts, frozen parts, hooks, summaries."""

import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import starts
from tfdist.start import console
from tfdist.training import beside, sessions

from test_building import a_model, by_get_variable, by_keras, by_parts, error, FEATURES, scheme_of
from test_building import here  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures('here')


def started(folder, model, **changes):
    """Returns a scheme, and a session in which its variables begin as they are to."""
    scheme, network = scheme_of(folder, model, **changes)
    session = tf.Session()
    for op in (tf.global_variables_initializer(), tf.local_variables_initializer(),
               tf.tables_initializer()):
        session.run(op)
    for hook in scheme.hooks:
        hook.after_create_session(session, None)
    return scheme, network, session


def values_of(session):
    """Returns a dict of the global variables' values."""
    return {variable.op.name: session.run(variable) for variable in tf.global_variables()}


# Starts.

def test_initial_values_are_what_training_begins_with():
    model = a_model(by_get_variable, initial_values=lambda names: {
        'weights': np.full([FEATURES, 3], 2.), **({} if names == ['b', 'weights'] else None)})
    _, _, session = started('HogWild', model)
    found = values_of(session)
    assert (found['weights'] == 2).all() and (found['b'] != 2).any()
    assert model.remarks == ['initial_values of the model are for 1 of its 2 variables, not for b']


def test_parts_of_a_variable_begin_with_parts_of_its_value():
    whole = np.arange(3. * FEATURES).reshape([FEATURES, 3])
    _, _, session = started('HogWild', a_model(by_parts, initial_values=lambda names: {
        'weights': whole}))
    parts = [value for name, value in sorted(values_of(session).items()) if 'part' in name]
    assert len(parts) == 2 and (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize('values, complaint', [
    ({'weight': np.zeros(3)}, 'initial_values: the model makes no variable weight; it makes b, we'),
    ({'b': np.zeros(4)}, r'initial_values: the value of b is of shape \(4,\), the variable of')])
def test_initial_values_of_something_else(values, complaint):
    with pytest.raises(SystemExit, match=complaint):
        scheme_of('HogWild', a_model(by_get_variable, initial_values=lambda names: values))


def test_values_of_a_checkpoint_by_a_map_of_names(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable('old/body/w', initializer=[1., 2.])
        tf.get_variable('old/bias', initializer=[3.])
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))
    names = ['head/w', 'body/w', 'b']
    found = starts.of_checkpoint(path, names, {'old/body/': 'body/', 'old/bias': 'b'})
    assert {name: value.tolist() for name, value in found.items()} == {
        'body/w': [1, 2], 'b': [3]}
    with pytest.raises(SystemExit, match='has no old/w, which is to be head/w'):
        starts.of_checkpoint(path, names, {'old/': 'head/'})
    with pytest.raises(SystemExit, match='is no checkpoint that can be read'):
        starts.of_checkpoint(str(tmp_path / 'other'), names)


def test_values_of_a_model_of_keras():
    def made():
        layers = tf.keras.layers
        network = tf.keras.Sequential([layers.Dense(5, input_shape=[FEATURES]), layers.Dense(2)])
        network.set_weights([np.full(weight.shape, i) for i, weight in enumerate(network.weights)])
        return network

    _, _, session = started('HogWild', a_model(by_keras, initial_values=lambda names: (
        starts.of_keras(made))))
    found = values_of(session)
    assert [set(found[name].ravel()) for name in sorted(found) if 'dense' in name] == [
        {1}, {0}, {3}, {2}]


def loads_by_itself(batch, training):
    del training
    network = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    units = network(batch['x'])
    network.set_weights([np.ones([FEATURES, 2]), np.ones([2])])
    return error(units, batch)


def test_values_in_a_session_of_keras_would_be_lost():
    with pytest.raises(SystemExit, match=r'gives \S+ a value in a session of its own.*initial_val'):
        scheme_of('HogWild', a_model(loads_by_itself))


# What is trained.

@pytest.mark.parametrize('folder, window', [('HogWild', 1), ('DOWNPOUR-Easy', 3)])
def test_what_a_model_does_not_train(folder, window):
    model = a_model(by_get_variable, trains=lambda name: name != 'weights')
    scheme, network, session = started(folder, model, communication_window=window)
    before = values_of(session)
    session.run(scheme.train_op)
    after = values_of(session)
    assert [variable.op.name for variable in network.variables] == ['b']
    assert (after['weights'] == before['weights']).all() and (after['b'] != before['b']).any()


def with_its_own_adam(batch, training):
    loss, metrics = by_get_variable(batch, training)
    if training:
        tf.train.AdamOptimizer(1.).minimize(loss, tf.train.get_global_step())
    return loss, metrics


def test_an_optimizer_in_the_models_function_has_no_effect_and_the_chief_says_so():
    model = a_model(with_its_own_adam)
    scheme, _, session = started('HogWild', model)
    before = values_of(session)
    assert sorted(before) == ['b', 'global_step', 'weights']
    session.run(scheme.train_op)
    assert np.abs(values_of(session)['b'] - before['b']).max() < 0.9, 'the rate of SGD, not of Adam'
    assert model.remarks == ["the model's own function applies AdamOptimizer, which has no effect "
                             'here: return it from optimizer(learning_rate)']


# Hooks and summaries.

class Counts(tf.train.SessionRunHook):
    """Counts the runs, and looks at a tensor in each."""

    def __init__(self):
        self.seen, self.ended = [], False

    def begin(self):
        self.looked_at = tf.constant(7.)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({'it': self.looked_at})

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results['it']))
        if len(self.seen) == 3:
            run_context.request_stop()

    def end(self, session):
        self.ended = True


def summarized(batch, training):
    loss, metrics = by_get_variable(batch, training)
    tf.summary.scalar('of_the_model', loss)
    return loss, metrics


def test_hooks_see_each_run_and_may_not_end_it():
    hook = Counts()
    scheme, _ = scheme_of('HogWild', a_model(by_get_variable, hooks=lambda: [hook]))
    trainer = sessions.Trainer.of(scheme)
    trainer.begin()
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(tf.tables_initializer())
        trainer.after_create_session(session, None)
        steps = [trainer.run()['global_step'] for _ in range(2)]
        with pytest.raises(SystemExit, match='A hook of the model has asked for the end'):
            trainer.run()
        trainer.end(session)
    assert steps == [1, 2] and hook.seen == [7, 7, 7] and hook.ended


def test_something_else_than_hooks():
    model = a_model(by_get_variable, hooks=lambda: ['hook'])
    with pytest.raises(SystemExit, match="hooks.. returns 'hook', which is no tf.train.Session"):
        sessions.Trainer.of(scheme_of('HogWild', model)[0])


@pytest.mark.parametrize('folder, window', [('HogWild', 1), ('DOWNPOUR-Easy', 3)])
def test_summaries_have_the_tags_of_the_model(tmp_path, monkeypatch, folder, window):
    """Also those of the last batch of a window, whose ops have other names."""
    scheme, network = scheme_of(folder, a_model(summarized), communication_window=window)
    monkeypatch.setattr(beside.FLAGS['model_dir'], 'value', str(tmp_path))
    watch = beside.Beside(network, writes=True)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(tf.tables_initializer())
        run = watch.on(session, scheme.train_op, lambda: session.run(scheme.train_op))
        losses = [run()['loss'] for _ in range(3)]  # the first writes, the others wait for a while
    tf.summary.FileWriterCache.clear()
    path, = tmp_path.glob('events*')
    found = [(event.step, value.tag, value.simple_value) for event in
             tf.train.summary_iterator(str(path)) for value in event.summary.value]
    assert [each[:2] for each in found] == [(1, 'of_the_model')]
    if window == 1:
        assert found[0][2] == pytest.approx(losses[0])
    assert not beside.Beside(network, writes=False)


# What a run meets.

def that_cannot_be_multiplied(batch, training):
    loss, metrics = by_get_variable(batch, training)
    some = tf.boolean_mask(batch['x'], batch['y'] > 0)  # of a size that is known at run time
    return loss + tf.reduce_sum(tf.reshape(some, [400, 1])), metrics


def test_an_operation_that_fails_is_shown_with_the_models_code(capfd, monkeypatch):
    def main(_):
        scheme, _, session = started('HogWild', a_model(that_cannot_be_multiplied))
        session.run(scheme.train_op)

    ended = []
    monkeypatch.setattr(console.os, '_exit', lambda status: sys.exit(ended.append(status)))
    monkeypatch.setattr(console, '_parse_flags', lambda argv: argv[:1])
    # Only the main thread may set a signal's handler, and pytest-xdist may test in another one.
    monkeypatch.setattr(console.signal, 'getsignal', lambda _: None)
    with pytest.raises(SystemExit):
        console.run(main)
    said = capfd.readouterr().err
    assert ended == [1] and said.startswith('InvalidArgumentError: ') and 'tf.reshape(some' in said
    assert '/tfdist/' not in said and '/tensorflow' not in said


def with_the_global_step(batch, training):
    loss, metrics = by_get_variable(batch, training)
    return loss * tf.cast(tf.train.get_global_step(), tf.float32), metrics


@pytest.mark.parametrize('folder, window, said', [('HogWild', 1, 0), ('DOWNPOUR-Easy', 3, 1)])
def test_the_global_step_counts_something_else_in_a_window(folder, window, said):
    model = a_model(with_the_global_step)
    scheme_of(folder, model, communication_window=window)
    assert len(model.lines()) == said
