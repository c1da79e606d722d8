"""The teacher: what can be reached is known, and each batch by its seed, worker and number."""

import csv
import hashlib
import importlib
import re
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.start import console

from processes import ROOT, TEST, warm_python
import shards

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.teacher')


@pytest.fixture(autouse=True)
def fresh():
    """A graph of its own, and all flags at their defaults."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(), tf.Graph().as_default():
        tf.set_random_seed(1)
        yield


def drawn(runs=1, batch_size=8, count=2, shard=0, num_shards=1, seed=0):
    """Returns what a worker draws in several runs, in order, as from `model.test_set`."""
    parts = model.train_batches.drawn(batch_size, count, num_shards,
                                      [(shard, seed, run) for run in range(runs)])
    return [part.reshape(-1, *part.shape[3:]) for part in parts]


def in_graph(runs=1, count=2, step=None, **kwargs):
    """Returns the same by the graph of a run, which begins at a global step if one is given."""
    with tf.Graph().as_default(), tf.Session() as session:
        if step is not None:
            session.run(tf.train.get_or_create_global_step().initializer)
            session.run(tf.assign_add(tf.train.get_global_step(), step))
        batches = model.train_batches(8, count, **kwargs)
        session.run(tf.tables_initializer())
        found = [batch for _ in range(runs) for batch in session.run(batches)]
    return [np.concatenate(part) for part in zip(*found)]


def equal(some, others):
    """Returns whether two lists of arrays have the same values."""
    return all(np.array_equal(one, other) for one, other in zip(some, others))


def figures_of(values):
    """Returns the figures of a test of a student with these values, of its variables in order."""
    batch, = [tf.data.experimental.get_single_element(model.test_batches(10 ** 6))]
    loss, metrics = model.loss_and_metrics(batch, training=False)
    with tf.Session() as session:
        for variable, value in zip(tf.trainable_variables(), values):
            variable.load(value, session)
        return session.run(dict(metrics, loss=loss))


def test_the_best_possible_is_what_the_teacher_reaches():
    """To errors of sampling: the teacher is judged by labels, and what is possible is a mean."""
    accuracy, floor = model.best_possible()
    _, labels, probabilities = model.test_set()
    right = probabilities.argmax(axis=1) == labels
    losses = -np.log(probabilities[np.arange(20000), labels])
    for values, expected in (right, accuracy), (losses, floor):
        assert abs(values.mean() - expected) < 3 * values.std() / 20000 ** 0.5
    assert 0.7 < accuracy < 0.8 and 0.6 < floor < 0.8
    assert np.bincount(labels).min() > 1400, 'no class is rare'


def test_a_student_that_equals_the_teacher_has_no_excess_loss():
    FLAGS.teacher_condition, FLAGS.teacher_noise = 100, 0.5
    hidden, out = model.teacher(64)
    found = figures_of([hidden / model.scales(64, 100)[:, np.newaxis], np.zeros(128), out / 0.5,
                        np.zeros(10)])
    accuracy, floor = model.best_possible()
    assert abs(found['excess_loss']) < 1e-6
    assert found['loss'] == pytest.approx(floor, abs=0.02)
    assert found['accuracy'] == found['teacher_accuracy'] == pytest.approx(accuracy, abs=0.02)


def test_a_student_that_knows_nothing_has_the_excess_loss_that_is_expected():
    found = figures_of([np.zeros([64, 128]), np.zeros(128), np.zeros([128, 10]), np.zeros(10)])
    assert found['loss'] == pytest.approx(np.log(10), abs=1e-4)
    assert found['excess_loss'] == pytest.approx(np.log(10) - model.best_possible()[1], abs=1e-5)


@pytest.mark.parametrize('noise, floor, accuracy', [(0.01, 0.026, 0.989), (100, 2.3, 0.101)])
def test_noise_moves_what_is_possible(noise, floor, accuracy):
    best, least = model.best_possible()
    FLAGS.teacher_noise = noise
    assert model.best_possible() == pytest.approx((accuracy, floor), abs=0.01)
    assert least != pytest.approx(floor, abs=0.5) and best != pytest.approx(accuracy, abs=0.1)


def test_everywhere_the_same():
    """With any NumPy, on any machine: so with both TensorFlows."""
    assert [hashlib.md5(part.tobytes()).hexdigest()[:8]
            for part in [*model.test_set()[:2], *drawn(50, 32, 1, 3, 7, 5)[:2]]] == [
        '9814f203', '574c222e', 'ba091ff9', '407606f1']


def test_a_batch_follows_from_the_seed_the_worker_and_its_number():
    """However many batches a run takes."""
    mine = drawn(3, shard=1, num_shards=4, seed=2)
    assert equal(mine, drawn(2, count=3, shard=1, num_shards=4, seed=2))
    others = [drawn(3, shard=2, num_shards=4, seed=2), drawn(3, shard=1, num_shards=4, seed=3),
              drawn(3, shard=1, num_shards=4, seed=-2), [model.test_set()[0][:48]]]
    inputs = np.concatenate([inputs for inputs, *_ in [mine, *others]])
    assert len(np.unique(inputs, axis=0)) == 5 * 48, 'none is drawn twice'


def test_what_several_workers_draw_at_once_is_what_each_draws_alone():
    """To the bit, also with means of their own."""
    FLAGS.teacher_shift = 0.3
    runs = [(3, 7, 0), (0, 7, 5), (3, 7, 1), (4, 8, 2)]
    for part, *alone in zip(model.train_batches.drawn(32, 3, 5, runs), *(
            model.train_batches.drawn(32, 3, 5, [run]) for run in runs)):
        assert [one.tobytes() for one in part] == [one.tobytes() for one in alone]


def test_batches_are_as_promised():
    batches = model.train_batches(20, 3)
    assert len(batches) == 3
    for inputs, labels, probabilities in batches:
        assert inputs.shape == [20, 64] and inputs.dtype == tf.float32
        assert labels.shape == [20] and labels.dtype == tf.int64
        assert probabilities.shape == [20, 10] and probabilities.dtype == tf.float32


def test_a_run_and_the_simulation_get_the_same():
    FLAGS.teacher_shift = 0.5
    source = shards.of_model(types.SimpleNamespace(train_batches=model.train_batches), 8, 2,
                             [(0, 3), (1, 3)], [7, 7])
    assert isinstance(source, shards.Drawn)
    mine, other, *more = [source.next(worker) for worker in (1, 0, 1, 1)]
    for placeholder, array in zip(source.placeholders, other):
        assert placeholder.dtype == array.dtype and placeholder.shape == array.shape
    for worker, runs in (0, [other]), (1, [mine, *more]):
        for part, expected in enumerate(in_graph(len(runs), shard=worker, num_shards=3, seed=7)):
            found = np.concatenate([run[part] for run in runs])
            assert np.array_equal(found.reshape(expected.shape), expected)


def test_a_worker_that_was_started_again_draws_other_examples():
    first, again, later = (in_graph(step=step, seed=1) for step in (0, 0, 5))
    assert equal(first, again) and equal(first, drawn(seed=1))
    assert not np.isin(first[0], later[0]).any()


def test_conditioning_changes_the_inputs_and_not_what_is_learned():
    plain, floor = drawn(100), model.best_possible()
    FLAGS.teacher_condition = 100
    inputs, *rest = drawn(100)
    np.testing.assert_allclose(inputs, plain[0] * np.logspace(0, -1, 64), rtol=1e-6)
    assert equal(rest, plain[1:]) and floor == model.best_possible()


def test_the_shift_of_workers():
    """Workers have means of their own; over all of them, inputs are distributed as in the test."""
    plain, test = drawn(2, 500), model.test_set()
    FLAGS.teacher_shift = 0.8
    assert equal(plain, drawn(2, 500)) and equal(test, model.test_set()), 'who is alone'
    workers = [drawn(1, 100, shard=shard, num_shards=200)[0] for shard in range(200)]
    means = np.mean(workers, axis=1)
    assert means.std() == pytest.approx(0.8, abs=0.02)
    assert abs(np.corrcoef(means)[0, 1:]).max() < 0.6, 'all are different'
    assert np.mean([inputs.std(axis=0) for inputs in workers]) == pytest.approx(0.6, abs=0.01)
    assert np.std(workers) == pytest.approx(1, abs=0.02)
    again = drawn(1, 100, shard=3, num_shards=5, seed=9)[0]
    assert abs(again.mean(axis=0) - means[3]).max() < 0.3, 'whatever the seed'


@pytest.mark.parametrize('name, value', [
    ('dimension', '0'), ('noise', '0'), ('noise', 'nan'), ('condition', '0.5'),
    ('condition', 'inf'), ('shift', '-0.1'), ('shift', '1.1'), ('test_examples', '10')])
def test_bad_values(name, value):
    with pytest.raises(SystemExit, match=f'flag --teacher_{name}={value}: ') as error:
        console._parse_flags(['worker.py', f'--teacher_{name}={value}'])
    assert '\n' not in str(error.value)


def test_data_are_not_in_the_graph():
    model.loss_and_metrics(model.train_batches(32, 10)[0], training=True)
    model.test_batches(1000)
    assert tf.get_default_graph().as_graph_def().ByteSize() < 50e3


@pytest.mark.thorough
def test_a_run(programs):
    run = programs.run_sh('HogWild', '--model=teacher', '--train_steps=400')
    run.ends_well()
    run.wait_for(TEST)
    excess, = re.findall(r'excess_loss ([\d.]+)', '\n'.join(run.out))
    assert float(excess) < 0.75, 'at the initial values it is above 1.3'


def test_a_simulation(programs, tmp_path):
    """The excess loss falls; it is what the loss is above the floor, to errors of sampling."""
    path = tmp_path / 'curve'
    run = programs.start([
        warm_python(), ROOT / 'Simulation' / 'simulate.py', '--scheme=Local-SGD', '--workers=4',
        '--model=teacher', '--learning_rate=0.1', '--local_steps=800', '--tests=2',
        '--teacher_test_examples=2000', '--teacher_shift=0.3', f'--csv={path}'])
    assert run.wait() == 0 and not run.err
    early, end = csv.DictReader(path.read_text(encoding='utf-8').splitlines())
    FLAGS.teacher_test_examples = 2000
    _, floor = model.best_possible()
    for row in early, end:
        excess = float(row['test_loss']) - floor
        assert float(row['test_excess_loss']) == pytest.approx(excess, abs=0.1)
    assert float(end['test_excess_loss']) < 0.9 * float(early['test_excess_loss']) < 1.3
