"""The gallery: each model in each scheme trains all that it has, and is tested."""

import importlib
import sys
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building, model_file
from tfdist.scheme import exchange, seam, tables
from tfdist.training import evaluation

from conftest import load_program
from processes import DID, ROOT, TEST
import test_gallery_cifar10
from test_seam import CASES, defaults

NAMES = sorted(path.stem for path in (ROOT / 'tfdist' / 'gallery').glob('[!_]*.py'))
BATCH = 8
SMALL = {'clicks_rows': 1000, 'clicks_test_examples': 100, 'lstm_characters': 200000,
         'teacher_test_examples': 100, 'test_batch_size': 100}


@pytest.fixture
def model(request, tmp_path_factory):
    """A model of the gallery, small, in a graph of its own, for schemes without servers."""
    module = importlib.import_module(f'tfdist.gallery.{request.param}')
    flags.FLAGS.mark_as_parsed()
    small = {name: value for name, value in SMALL.items() if name in flags.FLAGS}
    if request.param in ('cifar10', 'feature_columns'):  # their files
        place = tmp_path_factory.getbasetemp() / request.param
        place.mkdir(exist_ok=True)
        small['data_dir'] = str(place)
        if request.param == 'cifar10':
            random = np.random.RandomState(0)
            for name in ['test_batch', *(f'data_batch_{i}' for i in range(1, 6))]:
                test_gallery_cifar10.records(random, 20).tofile(str(place / f'{name}.bin'))
    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(flags.FLAGS[name], 'value', value)
        patch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
        tf.set_random_seed(1)
        tf.train.get_or_create_global_step()
        yield model_file.Model(module)


def few(name, folder):
    """Returns marks: a few cells of the matrix are in the short run of the tests."""
    return [] if (name, folder) in [
        ('clicks', 'AGN'), ('keras_layers', 'Synchronous-SGD'), ('feature_columns', 'HogWild'),
        ('lstm', 'DC-ASGD')] else [pytest.mark.thorough]


CELLS = [pytest.param(name, case.values[0], case.values[1], id=f'{name}-{case.id}',
                      marks=few(name, case.id)) for name in NAMES for case in CASES]


@pytest.mark.parametrize('model, folder, changes', CELLS, indirect=['model'])
def test_each_model_in_each_scheme(model, folder, changes):
    program = load_program(folder)
    hparams = types.SimpleNamespace(**defaults(folder, **changes))
    hparams.learning_rate = 0.001
    drawn = model.train_batches(BATCH, program.Scheme.local_steps(hparams))
    network = building.Network(model, drawn, tables_stay_on_ps=program.Scheme.tables_stay_on_ps)
    if 'aggregate' in changes and any(isinstance(variable, tables.Rows)
                                      for variable in network.variables):
        with pytest.raises(SystemExit, match='^--aggregate: of the table .* only the mean.$'):
            program.Scheme(network, tf.train.get_global_step(), hparams, 0, 1)
        return
    scheme = program.Scheme(network, tf.train.get_global_step(), hparams, 0, 1)
    test = evaluation.Test(model, network.at_variables)
    with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=60000)) as session:
        for begin in (tf.global_variables_initializer(), tf.local_variables_initializer(),
                      tf.tables_initializer()):
            session.run(begin)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        trained = [variable for variable in tf.global_variables() if 'clocks' not in variable.name]
        before = session.run(trained)
        for _ in range(2):
            result = session.run(scheme.train_op)
        after = session.run(trained)
        figures = test.run(session)
    assert np.isfinite(result['loss']) and np.isfinite(list(figures.values())).all()
    still = [variable.op.name for variable, value, first in zip(trained, after, before)
             if (value == first).all()]
    assert not still, 'neither trained nor updated'
    assert len(figures) >= 2 and list(figures)[-1] == 'loss'


# The digits of each folder end with an accuracy; so do these, by the same command.

@pytest.mark.thorough
@pytest.mark.parametrize('folder, name, least, steps', [
    ('HogWild', 'keras_layers', 0.9, 300), ('Synchronous-SGD', 'feature_columns', 0.75, 600),
    ('AGN', 'lstm', 0.25, 20), ('Local-SGD', 'mnist', 0.7, 60),
    ('Ring-AllReduce', 'resnet', 0.5, 60), ('HogWild', 'clicks', 0.6, 1500)])
def test_run(programs, tmp_path, folder, name, least, steps):
    place = [f'--data_dir={tmp_path}'] if name == 'feature_columns' else []
    run = programs.run_sh(folder, f'--model={name}', f'--train_steps={steps}', *place)
    run.ends_well()
    assert len(run.matches(DID)) == 2
    assert float(run.wait_for(TEST)['accuracy']) > least


def test_a_model_that_is_not_there(programs):
    run = programs.run_sh('HogWild', '--model=resnets')
    run.fails('--model=resnets: the gallery has cifar10, clicks, feature_columns, keras_layers, ')


@pytest.mark.parametrize('model', [
    name if name in ('clicks', 'lstm') else pytest.param(name, marks=pytest.mark.thorough)
    for name in NAMES], indirect=True)
def test_gradients_on_values_are_those_of_plain_tensorflow(model, monkeypatch):
    """On one batch, without dropout, whose draws would differ."""
    monkeypatch.setattr(tf.layers, 'dropout', lambda units, *_, **__: units)
    monkeypatch.setattr(tf.keras.layers, 'Dropout',
                        lambda _: tf.keras.layers.Lambda(lambda units: units))
    # On variables that are there already, tf.layers leaves regularizers out.
    monkeypatch.setattr(model.module, 'WEIGHT_DECAY', 0., raising=False)
    drawn = model.train_batches(BATCH, 1)
    network = building.Network(model, drawn)
    gradients, figures = network.gradients_at(list(map(exchange.read, network.variables)))
    network.finish()
    loss, _ = network._build(drawn[0], True, {})  # on the variables themselves
    expected = []
    for variable in network.variables:
        gradient, = tf.gradients(loss, [getattr(variable, 'table', variable)])
        expected.append(tf.gather(gradient, variable.ids) if isinstance(variable, tables.Rows)
                        else tf.convert_to_tensor(gradient))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())  # an iterator begins at the step
        tensors = tf.nest.flatten(drawn)
        batch = dict(zip(tensors, session.run(tensors)))
        results = []
        for fetches in [gradients, figures['loss']], [expected, loss]:
            session.run(tf.local_variables_initializer())  # a run may leave another state
            results.append(session.run(fetches, batch))
    (ours, said), (plain, same) = results
    assert said == pytest.approx(same, rel=1e-6)
    for value, other in zip(ours, plain):
        np.testing.assert_allclose(value, other, atol=1e-6, rtol=1e-5)
        assert value.any()


@pytest.mark.parametrize('words', [['--model=keras_layers'], ['--model', 'keras_layers'],
                                   ['-model=keras_layers', '--seed=2']])
def test_the_flag_in_each_form(monkeypatch, words):
    monkeypatch.setattr(sys, 'argv', ['worker.py', '--train_steps=7', *words])
    model = model_file.load()
    assert model.name == 'keras_layers' and model.LOCAL_STEPS == 500
    assert not hasattr(model, 'OTHER')
