"""Tests on two halves of the test set, and updates that are torn."""

import types

from absl import flags
import numpy as np
import pytest

from tfdist.start.quiet import tf

from conftest import load_program
import description
import halves
from record import VALIDATION
import torn


class Model:
    """Has seven examples to test on."""

    name = 'seven'

    def __init__(self, form):
        self._form = form

    def test_batches(self, batch_size):
        return tf.data.Dataset.from_tensor_slices(self._form(np.arange(7.))).batch(batch_size)


FORMS = {'array': lambda x: x, 'pair': lambda x: (x, 2 * x), 'one of a tuple': lambda x: (x,),
         'dict': lambda x: {'x': x, 'y': 2 * x}}



@pytest.mark.parametrize('form, batch_size, first, second', [
    ('array', 3, [0, 2, 3, 5, 6], [1, 4]), ('pair', 10, [0, 2, 4, 6], [1, 3, 5]),
    ('one of a tuple', 1, [0, 1, 2, 3, 4, 5, 6], []), ('dict', 7, [0, 2, 4, 6], [1, 3, 5])])
def test_no_example_is_in_both_halves(form, batch_size, first, second):
    model, read = Model(FORMS[form]), []
    for begin in range(2):
        half = halves.Half(model, begin)
        assert half.name == 'seven'
        with tf.Graph().as_default(), tf.Session() as session:
            whole, mine = model.test_batches(batch_size), half.test_batches(batch_size)
            tf.nest.assert_same_structure(whole.element_spec, mine.element_spec)
            batch = tf.data.make_one_shot_iterator(mine).get_next()
            examples = []
            while True:
                try:
                    parts = tf.nest.flatten(session.run(batch))
                except tf.errors.OutOfRangeError:
                    break
                assert all(np.array_equal(part, factor * parts[0])
                           for part, factor in zip(parts, (1, 2)))
                examples += list(parts[0])
            read.append(examples)
    assert read == [first, second]


def test_a_test_set_that_cannot_be_cut():
    model = types.SimpleNamespace(test_batches=lambda _: tf.data.Dataset.from_tensors(
        tf.SparseTensor([[0, 0]], [1.], [2, 2])))
    with tf.Graph().as_default(), pytest.raises(SystemExit, match='^--validation: .* sparse'):
        halves.Half(model, 0).test_batches(2)


def test_the_figures_of_both_halves():
    """Means over the examples of each: of 0, 4, 16 and 36, and of 1, 9 and 25."""
    load_program('HogWild')
    flags.FLAGS.mark_as_parsed()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        model = Model(lambda x: x ** 2)
        both = halves.BothHalves(model, lambda x: (tf.reduce_mean(x), {
            'double': tf.reduce_mean(2 * x)}))
        found = both.run(session)
    assert found == pytest.approx({'double': 28., 'loss': 14., f'{VALIDATION}double': 70 / 3,
                                   f'{VALIDATION}loss': 35 / 3})


@pytest.mark.parametrize('weight, is_fault', [
    (1., True), (2 ** 40, True), (-1e20, False), (float('nan'), False)])
def test_a_metric_that_refuses_what_a_model_says(weight, is_fault):
    """Training diverged if weights are huge; else, or if only a counter is huge, it is a fault."""
    with tf.Graph().as_default(), tf.Session() as session:
        refused = tf.debugging.assert_equal(tf.placeholder_with_default(0, []), 1)
        test = types.SimpleNamespace(run=lambda session: session.run(refused))
        values = [tf.constant(np.array([weight]))]
        if is_fault:
            with pytest.raises(tf.errors.InvalidArgumentError):
                halves.figures(test, session, values)
        else:
            found = halves.figures(test, session, values)
            assert list(found) == ['loss'] and np.isnan(found['loss'])


def test_torn_updates():
    """Of floats a share is lost, whichever; integers, such as rows, are whole."""
    lose = torn.losing(0.25, 1)
    values, rows = np.ones([100, 100], np.float32), np.arange(5)
    (first, whole), (second, _) = lose([values, rows]), lose([values, rows])
    assert first.dtype == np.float32 and set(np.unique(first)) == {0, 1}
    assert first.mean() == pytest.approx(0.75, abs=0.02) and (first != second).any()
    assert whole is rows
    assert (torn.losing(0.25, 1)([values, rows])[0] == first).all()
    assert (lose([values])[0] != torn.losing(0.25, 2)([values])[0]).any()


def test_a_push_arrives_torn(toy):
    """HogWild with a gradient of which all is lost leaves the center as it was."""
    lost = toy('HogWild', 2, train_steps=4, tear=lambda arrays: [0 * array for array in arrays])
    kept = toy('HogWild', 2, train_steps=4)
    first = [np.asarray(value) for value in ([1.], [0.5, -1.])]
    assert all(np.array_equal(value.ravel(), start) for value, start in zip(lost, first))
    assert not all(np.array_equal(value.ravel(), start) for value, start in zip(kept, first))


@pytest.fixture
def toy():
    """A function that runs a toy cluster, see `test_simulation.Toy`, and returns its center."""
    from test_simulation import Toy
    made = []

    def run(folder, workers, train_steps, tear=None):
        cluster = description.Cluster(workers=str(workers), step='1ms')
        made.append(Toy(folder, [2.] * workers, cluster, train_steps))
        made[-1].player.tear = tear
        made[-1].run()
        return made[-1].player.center()

    yield run
    for each in made:
        each.player.close()
