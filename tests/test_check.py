"""`bash run.sh --check`: agreement is said, and each difference is found."""

import re
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.checking import check, counterpart, distances
from tfdist.scheme import local_rules, recipe

from cases import briefly
from conftest import load_program
from processes import examples, ROOT
from test_building import (a_model, BATCH, by_cells, by_columns, by_get_variable, by_weighted_ids,
                           error, FEATURES, MODELS, RATE, with_a_moving_average,
                           with_batch_norm_of_keras, with_regularizers_in_the_loss)

WINDOW = {'HogWild': 1, 'DOWNPOUR-Easy': 4}


def with_dropout(batch, training):
    """Random numbers, in two ops of a build."""
    units = tf.layers.dropout(tf.layers.dense(batch['x'], 5), 0.5, training=training)
    return error(tf.layers.dense(units + tf.random_normal([1, 5]), 2), batch)


def with_dropout_in_a_loop(batch, training):
    del training
    cell = tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.LSTMCell(3), output_keep_prob=0.5)
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.cast(batch['ids'], tf.float32)[:, :, tf.newaxis],
                                   dtype=tf.float32)
    return error(outputs[:, -1], batch)


@pytest.fixture
def checked(capsys, monkeypatch):
    """A function that checks a folder on a model, and returns what it says, and the last line.

    Args (of the function):
      folder: string, of one without a plain.py.
      model: `model_file.Model`.
      scheme: function of the folder's Scheme that returns another, which is checked instead.
      **changes: values of flags.

    Returns (of the function):
      List of lines, without the first; and the complaint, a string, or None.
    """
    def run(folder, model, scheme=None, **changes):
        program = load_program(folder)
        flags.FLAGS.mark_as_parsed()
        program = types.SimpleNamespace(
            model=model, Scheme=scheme(program.Scheme) if scheme else program.Scheme)
        changes.setdefault('learning_rate', RATE)
        if WINDOW[folder] > 1:
            changes['communication_window'] = WINDOW[folder]
        with flagsaver.flagsaver(batch_size=BATCH, **changes):
            try:
                check.check(folder, program, counterpart.Counterpart())
                complaint = None
            except SystemExit as error:
                complaint = error.code
        said = capsys.readouterr().out.splitlines()
        assert said[:1] in ([], [
            f'check: {folder} with one worker against plain TensorFlow, 20 steps of model.py from '
            'the same values on the same batches'])
        return said[1:], complaint

    return run


def agrees(said, complaint, variables):
    """Asserts that all of so many variables were found to agree."""
    assert complaint is None, said
    assert said[-2].startswith('check: losses agree to ')
    assert said[-1].startswith(f'check: {variables} variables agree to ')


@pytest.mark.parametrize('folder, function, variables', briefly([
    ('HogWild', with_regularizers_in_the_loss, 4), ('HogWild', by_weighted_ids, 2),
    ('HogWild', with_dropout, 4), ('DOWNPOUR-Easy', with_dropout, 4),
    ('DOWNPOUR-Easy', with_batch_norm_of_keras, 6)
], lambda folder, function, _: folder == 'DOWNPOUR-Easy' or function is by_weighted_ids),
    ids=lambda one: getattr(one, '__name__', one))
def test_they_agree(checked, folder, function, variables):
    agrees(*checked(folder, a_model(function)), variables)


def test_both_sides_get_the_same_random_numbers(checked):
    said, _ = checked('HogWild', a_model(with_dropout))
    assert said[0].startswith('check: both got the same random numbers from dropout/')
    assert said[0].count(',') == 1


def test_random_numbers_in_a_loop_cannot_be_the_same(checked):
    said, complaint = checked('HogWild', a_model(with_dropout_in_a_loop))
    assert not said and complaint.startswith('check: rnn/while/') and 'in a loop' in complaint


def of_another_size_each_time():
    """Returns a model whose function multiplies its loss from its second call on."""
    calls = []

    def function(batch, training):
        loss, metrics = by_get_variable(batch, training)
        calls.append(1)
        return loss * (1.001 if len(calls) > 1 else 1), metrics

    return a_model(function)


@pytest.mark.parametrize('folder, when, hint', [
    ('HogWild', 'in step 1:', 'the loss differs before any update'),
    ('DOWNPOUR-Easy', 'in steps 1 to 4:', 'the updates differ')])
def test_a_model_that_is_another_when_built_again(checked, folder, when, hint):
    said, complaint = checked(folder, of_another_size_each_time())
    assert said[0].startswith(f'check: losses part {when} ')
    assert [line.split()[1] for line in said[1:]] == ['weights', 'b']
    assert complaint.startswith(f'check: {hint}')


def test_a_layer_that_is_kept_from_call_to_call(checked):
    kept = []

    def function(batch, training):
        del training
        kept.append(tf.keras.layers.Dense(2))
        return error(kept[0](batch['x']), batch)

    said, complaint = checked('HogWild', a_model(function))
    assert not said and 'make layers anew in each call' in complaint


@pytest.mark.parametrize('folder', sorted(WINDOW))
def test_a_scheme_with_a_wrong_step(checked, folder):
    def wrong(scheme_class):
        class Scheme(scheme_class):
            def make(self, network, global_step, hparams, task_index, num_workers):
                hparams = types.SimpleNamespace(**vars(hparams))
                hparams.learning_rate *= 1.01
                super().make(network, global_step, hparams, task_index, num_workers)
        return Scheme

    said, complaint = checked(folder, a_model(by_get_variable), wrong)
    part = 'step 2' if folder == 'HogWild' else 'steps 1 to 4'
    assert said[0].startswith(f'check: losses part in {part}: ')
    assert [line.split()[1] for line in said[1:]] == ['weights', 'b']
    assert complaint.startswith('check: the updates differ')


def test_a_scheme_that_forgets_the_state(checked):
    def forgetful(scheme_class):
        return type('Scheme', (scheme_class,), {'_with_state': lambda *_: None})

    said, complaint = checked('HogWild', a_model(with_batch_norm_of_keras), forgetful)
    assert said[0].startswith('check: losses agree')
    assert [line.split('/')[1].split()[0] for line in said[1:3]] == [
        'moving_mean', 'moving_variance']
    assert said[3].startswith('check: 4 variables agree')
    assert 'only what the model itself assigns to differs' in complaint


@pytest.mark.parametrize('folder, unused', [('HogWild', 0), ('DOWNPOUR-Easy', 1)])
def test_the_optimizer_of_the_model(checked, folder, unused):
    """It is on both sides, or on none."""
    model = a_model(by_get_variable, optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9))
    said, complaint = checked(folder, model)
    agrees(said, complaint, 2)
    assert sum('optimizer of the model is not used' in line for line in said) == unused


class Signs(local_rules.Rule):
    """A rule of the user's own, with a slot."""

    SLOTS, COUNTS = ('mean',), True

    def update(self, value, gradient, rate, count, mean):
        mean = 0.9 * mean + 0.1 * gradient
        return value - rate / count * tf.sign(mean), mean


def with_a_constraint(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3],
                              constraint=lambda value: tf.clip_by_value(value, -0.5, 0.5))
    return error(tf.matmul(batch['x'], weights) + tf.get_variable('b', [3]), batch)


@pytest.mark.parametrize('rule', [
    Signs, *(pytest.param(rule, marks=pytest.mark.thorough) for rule in (
        local_rules.Sgd, local_rules.Momentum, local_rules.Nesterov, local_rules.Adam,
        local_rules.AdamW))])
def test_the_local_rule_of_the_model(checked, rule):
    agrees(*checked('DOWNPOUR-Easy', a_model(with_a_constraint, local_rule=rule)), 2)


# Models that --accumulate refuses: they have tables, or state that waits for the loss.
ONE_BATCH = by_columns, by_cells, by_weighted_ids, with_a_moving_average
# Of tables: in a window all its rows decay in each step, in plain TensorFlow those of the step.
RECIPE = recipe.Recipe(lambda examples, step: 1 / (1 + examples / 50 + step / 10), clip_norm=0.5,
                       clip_value=0.3, weight_decay=0.1,
                       decays=lambda name: not re.search('bias|table|embedding', name))


@pytest.mark.parametrize('folder', sorted(WINDOW))
@pytest.mark.parametrize('function', [by_get_variable, *(
    pytest.param(function, marks=pytest.mark.thorough)
    for function in MODELS if function is not by_get_variable)], ids=lambda one: one.__name__)
def test_the_recipe_of_the_model(checked, folder, function):
    accumulate = 1 if function in ONE_BATCH else 2
    said, complaint = checked(folder, a_model(function, RECIPE=RECIPE), accumulate=accumulate)
    assert complaint is None, said


@pytest.mark.parametrize('here, nudged, agrees', [
    (1.000009, 1., True), (1.000011, 1., False), (1.0001, 1.00002, True), (1.0001, 1.000009, False),
    (1.02, 2., False), (1.02, np.inf, False), (np.nan, 1., False)])
def test_what_training_makes_of_rounding_is_allowed(here, nudged, agrees):
    pair = distances.Pair('x', *(np.array([0.5, value]) for value in (1., here, nudged)))
    assert pair.agrees == agrees
    half = distances.Pair('x', *(np.array([value], np.float16) for value in (2., 2.015, 2.)))
    assert half.agrees
    number = distances.Pair('x', *(np.array(value) for value in (10 ** 6, 10 ** 6 + 1, 10 ** 5)))
    assert not number.agrees


@pytest.mark.parametrize('folder', [
    'DOWNPOUR-Easy', pytest.param('HogWild', marks=pytest.mark.thorough)])
def test_averages_are_compared(checked, folder):
    agrees(*checked(folder, a_model(by_get_variable), moving_average_decay=0.8), 4)


@pytest.mark.parametrize('function', [by_get_variable, by_weighted_ids],
                         ids=lambda function: function.__name__)
def test_the_initial_values_of_the_model(checked, function):
    """Each side takes them by itself, also for a variable in parts."""
    given = {'weights': np.full([FEATURES, 3], 0.3, np.float32), 'table': np.ones([5, 2])}
    asked = []

    def initial_values(names):
        asked.append(names)
        return {name: given[name] for name in names if name in given}

    agrees(*checked('HogWild', a_model(function, initial_values=initial_values)), 2)
    assert len(asked) == 2 and asked[0] == asked[1]
    wrong = iter([3., 2.])
    said, complaint = checked('HogWild', a_model(
        function, initial_values=lambda names: {names[-1]: next(wrong) * given[names[-1]]}))
    assert said[1].startswith('check: losses part in step 1: ') and complaint


def with_an_optimizer_inside(batch, training):
    """It updates nothing, neither here nor there."""
    loss, metrics = by_get_variable(batch, training)
    tf.train.AdamOptimizer(0.1).minimize(loss)
    return loss, metrics


def test_what_the_model_trains(checked):
    """Not all; and an optimizer in the function has no effect."""
    said, complaint = checked('HogWild', a_model(with_an_optimizer_inside,
                                                 trains=lambda name: name == 'weights'))
    agrees(said, complaint, 2)
    assert 'applies AdamOptimizer, which has no effect' in said[0]


def test_training_that_diverges_proves_nothing(checked):
    said, complaint = checked('HogWild', a_model(by_get_variable), learning_rate=1e30)
    assert not said[1:] and 'training diverges there, too' in complaint


def test_run_sh(programs):
    """The launcher starts the check, and nothing else; its help says how."""
    run = programs.run_sh('HogWild', '--check', '--check_steps=3')
    run.ends_well()
    assert run.out[0].startswith('check: HogWild with one worker') and ' 3 steps ' in run.out[0]
    assert len(run.out) == 3


@pytest.mark.thorough
def test_help_names_it(programs):
    run = programs.run_sh('HogWild', '--help')
    run.wait()
    assert any('bash run.sh --check' in line for line in run.out)


@pytest.mark.thorough
@pytest.mark.parametrize('folder', sorted(set(examples()) - {'Model-Parallel'}))
def test_each_folder(programs, folder):
    run = programs.run_sh(folder, '--check')
    run.ends_well()
    assert 'losses agree' in run.out[-2] and 'variables agree' in run.out[-1]


@pytest.mark.thorough
def test_what_is_not_checked_says_so(programs):
    programs.run_sh('Model-Parallel', '--check').fails('check: Model-Parallel is not checked')


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'DOWNPOUR', 'SAGN', 'Ring-AllReduce'])
@pytest.mark.parametrize('model', sorted(
    path.stem for path in (ROOT / 'tfdist' / 'gallery').glob('[!_]*.py')
    if path.stem != 'cifar10'))  # that one needs files
def test_each_model_of_the_gallery(programs, folder, model):
    small = ['--clicks_rows=1000'] if model == 'clicks' else []
    programs.run_sh(folder, '--check', f'--model={model}', *small).ends_well()


@pytest.mark.thorough
@pytest.mark.parametrize('folder', sorted(WINDOW))
@pytest.mark.parametrize('function', MODELS, ids=lambda function: function.__name__)
def test_each_way_to_make_variables(checked, folder, function):
    said, complaint = checked(folder, a_model(function))
    assert complaint is None, said
