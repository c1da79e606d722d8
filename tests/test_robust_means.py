"""Means that bad workers cannot move: the worked numbers come out of the ops of the barrier."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import tables
from tfdist.synchronous import accumulators, liars, robust_means

from cases import briefly
from test_synchronous import Call, together, workers  # noqa: F401  (a fixture)

PUSHES = [(1, 2), (1.5, 1.5), (0.5, 2.5), (1, 1), (100, -100), (1.2, 2.2), (-50, 1.8)]
LIAR = [0, 1, 2, 3, 4]  # the optimum of each worker; the last one lies


def mean_of(pushes, aggregate, dtype=tf.float32, contributors=None, parts=1):
    """Returns what the accumulators give for pushes, as if each number were a part of a variable.

    Args:
      pushes: list of tuples, of each worker in turn.
      aggregate: string.
      dtype: of the variables.
      contributors: list of bools, or None.
      parts: int, over how many variables the numbers are spread.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        shape = [len(pushes[0]) // parts]
        variables = [tf.get_variable(f'x{i}', shape, dtype) for i in range(parts)]
        made = accumulators.Accumulators(
            variables, robust_means.asked_for(aggregate, len(pushes)))
        given = [tf.placeholder(dtype, shape) for _ in variables]
        worker = tf.placeholder(tf.int64, [])
        push = made.push(given, tf.constant(0, tf.int64), worker)
        taken = made.take(len(pushes), len(pushes),
                          None if contributors is None else tf.constant(contributors))
        for i in np.random.RandomState(1).permutation(len(pushes)):  # they come as they come
            session.run(push, {**dict(zip(given, np.split(np.array(pushes[i]), parts))),
                               worker: i})
        return np.concatenate(session.run(taken))


@pytest.mark.parametrize('parts', [1, 2])
@pytest.mark.parametrize('aggregate, expected', [
    ('mean', (7.88571429, -12.71428571)),
    ('median', (1, 1.8)),
    ('trimmed:1', (1.04, 1.7)),
    ('trimmed:2', (1.06666667, 1.76666667)),
    ('krum:2', (1, 2)),
    ('krum:2:3', (1.23333333, 1.9)),
    ('krum:2:5', (1.04, 1.84))])
def test_worked_numbers(aggregate, expected, parts):
    """Krum's distances are over all variables, so it does not matter how they are cut."""
    assert mean_of(PUSHES, aggregate, parts=parts) == pytest.approx(expected, rel=1e-6)


def test_the_scores_of_krum():
    """By hand: each one's squared distances from its three nearest others."""
    with tf.Graph().as_default(), tf.Session() as session:
        between = session.run(robust_means._squared_distances(tf.constant(PUSHES)))
    scores = np.sort(between, axis=0)[1:4].sum(axis=0)
    assert scores == pytest.approx([1.08, 1.58, 3.08, 2.98, 60211.5, 1.24, 7753.42], rel=1e-5)


def test_an_even_number_has_two_in_its_middle():
    assert list(mean_of([(1, 8), (2, 2), (10, 4), (4, 6)], 'median')) == [3, 5]


def test_of_equal_scores_the_first_worker_counts():
    assert list(mean_of([(3,), (1,), (1,), (3,), (2,)], 'krum:1')) == [3]
    assert list(mean_of([(4,), (4,), (0,), (0,), (2,)], 'krum:1')) == [4]


@pytest.mark.parametrize('nonsense', [float('nan'), float('inf'), -float('inf')])
@pytest.mark.parametrize('aggregate', ['median', 'trimmed:1', 'krum:1', 'krum:1:3'])
def test_what_is_not_finite_moves_nothing(aggregate, nonsense):
    others = [(1., 2.), (1.5, 1.5), (0.5, 2.5), (1., 1.)]
    moved = mean_of([*others, (nonsense, 1.)], aggregate)
    low, high = np.min(others, axis=0), np.max(others, axis=0)
    assert np.all(low <= moved) and np.all(moved <= high)


@pytest.mark.parametrize('dtype', [tf.float16, tf.float64])
@pytest.mark.parametrize('aggregate', ['median', 'trimmed:1', 'krum:1'])
def test_other_types(aggregate, dtype):
    mean = mean_of([(1,), (2,), (2,), (2,), (900,)], aggregate, dtype)
    assert mean.dtype == dtype.as_numpy_dtype and mean == 2


def test_who_did_not_contribute_is_left_out():
    """With backup workers a part of a push may be there, and the rest too late."""
    contributors = [True, True, False, True]
    assert list(mean_of([(1,), (2,), (70,), (4,)], 'median', contributors=contributors)) == [2]


@pytest.mark.parametrize('aggregate, complaint', [
    ('median:1', '--aggregate=median:1 is not mean, median, trimmed:b, krum:f or krum:f:m with '),
    ('trimmed:x', 'is not mean, median'),
    ('krum', 'is not mean, median'),
    ('trimmed:2', '--aggregate=trimmed:2 takes 5 pushes in a step, but 4 make one.'),
    ('krum:1', '--aggregate=krum:1 takes 5 pushes in a step, but 4 make one.'),
    ('krum:0:5', '--aggregate=krum:0:5 takes 5 pushes in a step, but 4 make one.'),
    ('krum:0:0', 'the mean of no push is nothing')])
def test_bad_values(aggregate, complaint):
    with pytest.raises(SystemExit, match=complaint):
        robust_means.asked_for(aggregate, 4)


@pytest.mark.parametrize('given, complaint', [
    (['1'], '--liar=1 is not of the form worker:number, such as 1:10'),
    (['1:-3'], '--liar=1:-3 is not of the form')])
def test_bad_liars(given, complaint):
    with pytest.raises(SystemExit, match=complaint):
        liars.lie(None, [tf.constant(1.)], types.SimpleNamespace(liar=given))


@pytest.mark.parametrize('aggregate, centers', briefly([
    ('mean', [9.4, 11.64, 15.224, 20.9584]),
    ('median', [5, 3.5, 2.25, 1.625]),
    ('trimmed:1', [5, 3.5, 2.25, 1.625]),
    ('krum:1', [4.5, 2.75, 1.875, 1.4375]),
    ('krum:1:3', [4.5, 2.75, 1.875, 1.4375])], ['mean', 'trimmed:1', 'krum:1']))
def test_a_liar_among_five(workers, aggregate, centers):  # noqa: F811
    """Worker 4 pushes -10 (x - 4): the mean runs away, the others end near the honest ones."""
    made = workers('Synchronous-SGD', LIAR, steps=4, aggregate=aggregate, liar=['4:10'])
    assert [together(made) for _ in centers] == pytest.approx(centers, rel=1e-6)


@pytest.mark.parametrize('folder', briefly(
    ['SAGN', 'Local-SGD', 'DiLoCo', 'Synchronous-SGD-different-learning-rates'],
    ['SAGN', 'DiLoCo']))
def test_in_each_scheme_with_a_barrier(workers, folder):  # noqa: F811
    """With three workers the median is the second one's push: as if that trained alone."""
    alone = together(workers(folder, [4]))
    assert together(workers(folder, [0, 4, 30], aggregate='median')) == alone


def test_with_backup_workers(workers):  # noqa: F811
    """Three of four make a step: the median of those that came."""
    made = workers('Synchronous-SGD', [0, 2, 6, 100], steps=1, replicas_to_aggregate=3,
                   aggregate='median')
    calls = [Call(worker) for worker in made[:3]]
    assert [call.result()['dropped'] for call in calls] == [0, 0, 0]
    assert made[0].center() == 5  # 8 - (8 - 2) / 2


def test_tables_have_only_the_mean():
    with tf.Graph().as_default():
        rows = tables.Rows(tf.get_variable('words', [10, 2]))
        with pytest.raises(SystemExit, match='of the table words each worker pushes other rows'):
            accumulators.Accumulators([rows], robust_means.asked_for('median', 3))
