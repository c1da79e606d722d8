"""Exports: they answer as the model does at the values that the test saw; what is wrong says so."""

import os
import re
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches
from tfdist.model import building, model_file
from tfdist.training import evaluation, export, predict

from conftest import digits, load_program, ROOT
from processes import examples, NAME, TEST
import test_building
from test_building import a_model, BATCH, begin, scheme_of
from test_building import here  # noqa: F401  (a fixture)
from test_chief import start as start_three  # noqa: F401  (a fixture)
import test_gallery
from test_gallery import model as of_gallery  # noqa: F401  (a fixture)
from test_parameter_placement import placing, STRATEGIES, WORKER

EXPORTED = re.compile(NAME + r': exported to (?P<path>.+/(?P<step>\d+))')
ANSWER = re.compile(r'example (?P<number>\d+): classes (?P<label>\d), probabilities \[.+\]')
FLAGS = flags.FLAGS
BRIEF = [test_building.by_parts, test_building.by_columns, test_building.with_batch_norm_of_keras,
         test_building.with_what_is_frozen]


@pytest.fixture
def export_dir(tmp_path, monkeypatch):
    """Has programs export to there; all values travel in pieces of two numbers at most."""
    monkeypatch.setattr(export, '_AT_ONCE', 8)
    monkeypatch.setattr(predict, '_AT_ONCE', BATCH)
    monkeypatch.setattr(FLAGS['export_dir'], 'value', str(tmp_path / 'exports'))
    monkeypatch.setattr(FLAGS['test_batch_size'], 'value', BATCH)
    FLAGS.mark_as_parsed()
    return tmp_path / 'exports'


def estimating(function, **more):
    """Returns a model of a function of test_building, which predicts what has the error."""
    def predictions(batch):
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test_building, 'error', lambda units, _: found.append(units) or (0., {}))
            function(batch, training=False)
        return {'estimate': tf.reduce_mean(found[0], axis=1)}

    return a_model(function, **dict({'predictions': predictions}, **more))


def trained(model, scheme, network, session, steps=4):
    """Trains in a session, tests, exports; returns the test's figures, and the model as loaded."""
    test = evaluation.Test(model, network.at_variables, values=network.tested_values)
    begin(session)
    for hook in scheme.hooks:
        hook.after_create_session(session, None)
    for _ in range(steps):
        session.run(scheme.train_op)
    return test.run(session), predict.Model(test.export.write(session, 7))


def off(loaded, tmp_path):
    """Returns how far the answers on the examples, read from a file, are off in the mean."""
    arrays = test_building.examples()
    np.savez(str(tmp_path / 'examples.npz'), **arrays)
    answers = loaded(predict.read(str(tmp_path / 'examples.npz'), loaded.inputs))
    return np.abs(answers['estimate'] - arrays['y']).mean()


# What is exported.

@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function', [
    function if function in BRIEF else pytest.param(function, marks=pytest.mark.thorough)
    for function in test_building.MODELS], ids=lambda function: function.__name__)
def test_it_answers_as_the_test_found(export_dir, tmp_path, function):
    model = estimating(function)
    with tf.Session() as session:
        figures, loaded = trained(model, *scheme_of('HogWild', model), session)
    assert off(loaded, tmp_path) == pytest.approx(figures['off'], rel=1e-5)
    assert 'y' not in loaded.inputs and os.listdir(str(export_dir)) == ['7']


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function', [test_building.with_batch_norm, test_building.by_cells])
def test_moving_averages_are_exported(export_dir, tmp_path, monkeypatch, function):
    """Of tables, which have none, the rows."""
    model = estimating(function)
    monkeypatch.setattr(FLAGS['moving_average_decay'], 'value', 0.9)
    scheme, network = scheme_of('HogWild', model)
    with tf.Session() as session:
        figures, loaded = trained(model, scheme, network, session)
        kernel = next(variable for variable in network.variables
                      if hasattr(variable, 'op') and 'kernel' in variable.op.name)
        assert np.abs(session.run(network.tested_values()[kernel.op.name])
                      - session.run(kernel)).max() > 1e-3
    assert off(loaded, tmp_path) == pytest.approx(figures['off'], rel=1e-5)


@pytest.mark.usefixtures('here')
def test_a_large_table_is_not_in_the_graph(export_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(export, '_AT_ONCE', 2 ** 24)
    model = estimating(test_building.large)
    with tf.Session() as session:
        figures, loaded = trained(model, *scheme_of('HogWild', model), session)
    assert off(loaded, tmp_path) == pytest.approx(figures['off'], rel=1e-5)
    assert (export_dir / '7' / 'saved_model.pb').stat().st_size < 10 ** 5


@pytest.mark.parametrize('decay', [0, 0.9])
@pytest.mark.parametrize('strategy', ['fused', *(
    pytest.param(strategy, marks=pytest.mark.thorough) for strategy in STRATEGIES[:-1])])
def test_what_was_cut_is_whole(cluster, export_dir, tmp_path, monkeypatch, strategy, decay):
    """By its own name, whatever the strategy; and a table, and what is frozen."""
    def function(batch, training):
        weights = tf.get_variable('weights', [test_building.FEATURES, 3])
        rows = tf.gather(tf.get_variable('table', [5, 3]), batch['ids'][:, 0])
        frozen = tf.get_variable('frozen', [3], trainable=False)
        return test_building.error((tf.matmul(batch['x'], weights) + rows) * frozen, batch)

    program = load_program('Parameter-Placement')
    FLAGS.mark_as_parsed()
    monkeypatch.setattr(FLAGS['strategy'], 'value', strategy)
    monkeypatch.setattr(FLAGS['moving_average_decay'], 'value', decay)
    monkeypatch.setattr(program, 'model', estimating(function))
    container = f'export.{STRATEGIES.index(strategy)}.{decay}'
    with placing(program, cluster, strategy, container) as graph:
        step = tf.train.get_or_create_global_step()
        network = program.Placed(test_building.train_batches(BATCH, 1), 0, cluster.spec, WORKER)
        scheme = program.Scheme(network, step, FLAGS, 0, 1)
        with tf.Session(cluster.servers['worker', 0].target, graph=graph,
                        config=cluster.config(0)) as session:
            figures, loaded = trained(program.model, scheme, network, session)
    assert off(loaded, tmp_path) == pytest.approx(figures['off'], rel=1e-5)


@pytest.mark.parametrize('of_gallery', [
    name if name == 'clicks' else pytest.param(name, marks=pytest.mark.thorough)
    for name in test_gallery.NAMES], indirect=True)
def test_each_model_of_the_gallery(export_dir, monkeypatch, of_gallery):  # noqa: F811
    """With as many answers as examples; where a label is to be guessed, as right as the test."""
    monkeypatch.setattr(export, '_AT_ONCE', 2 ** 14)
    model = of_gallery
    network = building.Network(model, model.train_batches(8, 1))
    test = evaluation.Test(model, network.at_variables, values=network.tested_values)
    batch = batches.next_of(model.test_batches(BATCH))
    with tf.Session() as session:
        begin(session)
        figures, drawn = test.run(session), []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                drawn.append(session.run(batch))
        loaded = predict.Model(test.export.write(session, 7))
    flat = [np.concatenate(parts) for parts in zip(*map(tf.nest.flatten, drawn))]
    names = sorted(drawn[0]) if isinstance(drawn[0], dict) else model.INPUTS
    arrays = dict(zip(names, flat))
    answers = loaded(arrays)
    assert {len(answer) for answer in answers.values()} == {len(flat[0])}
    assert set(loaded.inputs) < set(arrays)
    if 'classes' in answers:
        right = np.mean(answers['classes'] == arrays['labels'])
        assert right == pytest.approx(figures['accuracy'], abs=1e-6)


def test_sparse_tensors_and_parts_without_names(export_dir, tmp_path, monkeypatch):
    """Three inputs for one, which are not cut by examples; the label is none of them."""
    monkeypatch.setattr(predict, '_AT_ONCE', 1)
    array = np.array([[0, 2., 0], [3, 0, 4], [0, 0, 0]], np.float32)

    def predictions(batch):
        (sparse, _), (words, _) = batch
        sums = tf.sparse.reduce_sum(sparse, axis=1)
        return {'sums': sums * tf.get_variable('factor', []), 'upper': tf.strings.upper(words)}

    structure = ((tf.SparseTensorSpec([None, 3]), tf.TensorSpec([5])),
                 (tf.TensorSpec([5], tf.string), tf.TensorSpec([5])))
    made = model_file.Model(a_module(predictions))
    with tf.Graph().as_default(), tf.Session() as session:
        exported = export.Export(made, structure, lambda: {'factor': tf.constant(10.)})
        loaded = predict.Model(exported.write(session, 1))
    assert list(loaded.inputs) == ['input_0_0_indices', 'input_0_0_shape', 'input_0_0_values',
                                   'input_1_0']
    where = np.argwhere(array)
    np.savez(str(tmp_path / 'sparse.npz'), input_0_0_indices=where, input_0_0_shape=[3, 3],
             input_0_0_values=array[tuple(where.T)], input_1_0=['a', 'b', 'ü'])
    answers = loaded(predict.read(str(tmp_path / 'sparse.npz'), loaded.inputs))
    assert answers['sums'].tolist() == [20, 70, 0]
    assert answers['upper'].tolist() == ['A', 'B', 'ü'], 'TensorFlow knows only ASCII'


@pytest.mark.parametrize('structure, names, expected', [
    ({'b': 1, 'a': {'d': 2, 'c': 3}}, None, ['a_c', 'a_d', 'b']),
    ((1, 2), ('images', 'labels'), ['images', 'labels']),
    (({'b': 1, 'a': 2}, 3), ('x', 'y'), ['x_a', 'x_b', 'y']),
    ([1, (2, 3)], None, ['input_0', 'input_1_0', 'input_1_1']),
    (1, ['x'], ['x']), (1, 'x', ['x']), (1, None, ['input_0']),
])
def test_names_of_inputs(structure, names, expected):
    structure = tf.nest.map_structure(lambda size: tf.TensorSpec([7, size]), structure)
    with tf.Graph().as_default():
        batch, inputs = export._placeholders(structure, names)
    assert list(inputs) == expected
    assert list(inputs.values()) == tf.nest.flatten(batch)
    assert all(tensor.shape.as_list()[0] is None for tensor in inputs.values())


# What is written.

def a_module(predictions=None, **more):
    """Returns a module that is a model."""
    functions = dict(more, **({'predictions': predictions} if predictions else {}))
    return types.SimpleNamespace(__name__='toy', __file__='toy', train_batches=None,
                                 loss_and_metrics=None, test_batches=None, **functions)


def doubling(batch):
    """Predictions of a model that names a device, and a variable as the input may be named."""
    with tf.device('/job:worker/task:7'):
        return {'double': 2 * batch + tf.Variable(0., name='Placeholder')}


def write_doubling(step):
    """Exports a model that adds 1 to the doubles of numbers; returns the directory."""
    with tf.Graph().as_default(), tf.Session() as session:
        return export.Export(model_file.Model(a_module(doubling)), tf.TensorSpec([None]),
                             lambda: {'Placeholder': tf.constant(1.)}).write(session, step)


def test_it_is_there_whole_or_not_at_all(export_dir, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(
            SystemExit, match='^--export_dir=.* cannot be written to: .*proc') as error:
        patch.setattr(os, 'rename', lambda *_: os.mkdir('/proc/below'))
        write_doubling(3)
    assert '\n' not in str(error.value) and not os.listdir(str(export_dir))
    for number in 1, 2:  # the second one replaces the first
        (export_dir / '4' / 'older').mkdir(parents=True, exist_ok=True)
        write_doubling(4)
        assert [path.name for path in export_dir.iterdir()] == ['4']
        assert not (export_dir / '4' / 'older').exists(), number
    assert predict.Model(str(export_dir / '4'))({'input_0': [3.]})['double'].tolist() == [7]


def test_the_newest_is_taken(export_dir):
    for name in '9', '10', '11.99', 'notes':
        (export_dir / name).mkdir(parents=True)
    assert predict.newest(str(export_dir)) == str(export_dir / '10')


# What is wrong.

@pytest.mark.parametrize('predictions, names, complaint', [
    (None, None, '--export_dir: toy.py has no function predictions(batch). It has to return'),
    (lambda batch: batch[0], None, "The model's predictions has to return a dict of tensors"),
    (lambda batch: {'a': 1.}, None, "The model's predictions has to return a dict of tensors"),
    (lambda batch: {'a': tf.constant(1.)}, None,
     "The model's predictions depends on nothing in the batch."),
    (lambda batch: {'a': batch[0] * tf.get_variable('y', [])}, None,
     "The model's predictions makes the variable y, which its training does not have."),
    (lambda batch: {'a': batch[0] * tf.get_variable('x', [2])}, None,
     "The model's predictions makes the variable x of (2,) and float32; in training it is of () "),
    (lambda batch: {'a': tf.cast(batch[0], tf.float64) * tf.get_variable('x', [], tf.float64)},
     None, "The model's predictions makes the variable x of () and float64; in training it is "),
    (lambda batch: {'a': batch[0]}, ['one'],
     "The model's INPUTS are 1 names, and a batch has 2 parts."),
])
def test_a_model_that_cannot_be_exported(export_dir, predictions, names, complaint):
    made = model_file.Model(a_module(predictions, INPUTS=names))
    spec = tf.TensorSpec([None])
    with tf.Graph().as_default(), pytest.raises(SystemExit) as error:
        export.asked_for(made, (spec, spec), lambda: {'x': tf.constant(1.)})
    assert str(error.value).startswith(complaint) and '\n' not in str(error.value)


def test_a_program_or_a_place_that_is_not_for_exports(export_dir, monkeypatch):
    made = model_file.Model(a_module(doubling))
    with pytest.raises(SystemExit, match='^--export_dir: this program exports nothing.$'):
        export.asked_for(made, tf.TensorSpec([None]), None)
    monkeypatch.setattr(FLAGS['export_dir'], 'value', '/proc/below')
    with pytest.raises(SystemExit, match='^--export_dir=/proc/below cannot be made or written to'):
        export.asked_for(made, tf.TensorSpec([None]), dict)
    monkeypatch.setattr(FLAGS['export_dir'], 'value', None)
    assert export.asked_for(made, tf.TensorSpec([None]), dict) is None


def test_what_predict_cannot_use(export_dir, tmp_path, monkeypatch, capsys):
    def says(complaint, inputs=None, **arrays):
        """Asserts that the program ends with this line."""
        path = tmp_path / (inputs or 'arrays.npz')
        if not inputs:
            np.savez(str(path), **arrays)
        monkeypatch.setattr(FLAGS['inputs'], 'value', str(path))
        with pytest.raises(SystemExit) as error:
            predict.main([''])
        assert re.search(complaint, str(error.value)) and '\n' not in str(error.value)

    says('^--export_dir=.*exports: nothing is exported there', x=1)
    directory = write_doubling(1)
    says(r'has no input_0: the model takes input_0, float32 \[\?\]\.$', x=[1.])
    says(r'input_0 is float64 \[1, 1\], and the model takes float32 \[\?\]\.$', input_0=[[1.]])
    says(r'input_0 is str\d+ \[1\], and the model takes float32 \[\?\]\.$', input_0=['a'])
    says('cannot be read .*allow_pickle', input_0=np.array([{}], object))
    says(r'none.npy cannot be read \(.*No such file', inputs='none.npy')
    (tmp_path / 'text.npz').write_text('PK')
    says(r'text.npz cannot be read \(', inputs='text.npz')
    monkeypatch.setattr(FLAGS['outputs'], 'value', '/proc/below')
    np.save(str(tmp_path / 'one.npy'), [1])
    says('^--outputs=/proc/below cannot be written to: No such file', inputs='one.npy')
    with open(os.path.join(directory, 'saved_model.pb'), 'w', encoding='ascii') as file:
        file.write('damaged')
    says('exports/1 is not a whole SavedModel', inputs='one.npy')
    monkeypatch.setattr(FLAGS['inputs'], 'value', None)
    with pytest.raises(SystemExit, match='^predict: give the --inputs.$'):
        predict.main([''])
    assert not capsys.readouterr().out


def test_what_predict_prints(capsys, tmp_path):
    """A line for each example; of long vectors the ends; and if they do not fit, one line."""
    rows = np.arange(24.).reshape(2, 12) / 10
    predict.show({'a': np.array([7, 8]), 'b': np.array(['x', 'y']), 'c': rows,
                  'd': np.array([[[True]], [[False]]])})
    assert capsys.readouterr().out.splitlines() == [
        'example 0: a 7, b x, c [0.000 0.100 0.200 ... 0.900 1.000 1.100], d [[True]]',
        'example 1: a 8, b y, c [1.200 1.300 1.400 ... 2.100 2.200 2.300], d [[False]]']
    for other in np.zeros(3), np.float32(1):
        with pytest.raises(SystemExit, match=r'^Not all outputs have a row for each example \(a'):
            predict.show({'a': np.zeros(2), 'b': other})


# Runs.

def test_a_run_exports_and_predict_answers(programs, tmp_path, bare_python):
    """By an interpreter without the library, which the program finds beside it."""
    run = programs.run_sh('HogWild', '--train_steps=300', '--export_dir=exports', cwd=tmp_path)
    run.ends_well()
    assert run.wait_for(EXPORTED)['step'] == run.wait_for(TEST)['step']
    _, _, images, labels = digits()
    np.save(str(tmp_path / 'images.npy'), images)
    asked = programs.start([bare_python, ROOT / 'tfdist' / 'training' / 'predict.py',
                            '--export_dir=exports', '--inputs=images.npy'], cwd=tmp_path)
    asked.ends_well()
    answers = asked.matches(ANSWER)
    assert [int(answer['number']) for answer in answers] == list(range(297))
    right = np.mean([int(answer['label']) == label for answer, label in zip(answers, labels)])
    assert right == pytest.approx(float(run.wait_for(TEST)['accuracy']), abs=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize('folder, mode', [
    *((folder, None) for folder in examples()), ('Multiple-GPUs-Single-Machine', 'threads'),
    ('Multiple-GPUs-Single-Machine', 'workers'), ('Model-Parallel', '--split=columns')])
def test_each_program_exports(programs, tmp_path, capsys, folder, mode):
    more = [mode] if mode and mode.startswith('--') else []
    if folder == 'Distributed-MNIST':
        more = [f'--records_dir={tmp_path / "records"}', f'--model_dir={tmp_path / "model"}']
    run = programs.run_sh(folder, '--train_steps=20', '--export_dir=exports', *more, cwd=tmp_path,
                          **({'MODE': mode} if mode and not more else {}))
    run.ends_well()
    path, = [match['path'] for match in run.matches(EXPORTED)]
    loaded = predict.Model(str(tmp_path / path))
    (_, shape), = loaded.inputs.values()
    predict.show(loaded({'images': np.zeros([3, *shape.as_list()[1:]])}))
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.thorough
def test_who_stands_in_for_the_chief_exports(start_three, tmp_path):  # noqa: F811
    """And the chief again, when it is back after the end."""
    tasks, ps, (chief, *workers) = start_three('AGN', 150, '--communication_window=5',
                                               f'--export_dir={tmp_path / "exports"}')
    chief.kill()
    for worker in workers:
        worker.ends_well()
    exported, = [match for worker in workers for match in worker.matches(EXPORTED)]
    assert predict.newest(str(tmp_path / 'exports')) == exported['path']
    assert int(exported['step']) >= 150
    again = tasks.start('worker', 0)
    for task in again, ps:
        task.ends_well()
    newest = again.wait_for(EXPORTED)['path']  # another worker may have made one more step since
    assert predict.newest(str(tmp_path / 'exports')) == newest
