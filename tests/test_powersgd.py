"""PowerSGD in a ring: two thin factors go around, and the product of their means is the gradient.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m.
"""

import functools
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import seam
from tfdist.training import traffic

from conftest import at_once, load_program
import test_asynchronous
from test_compression_ring import BySockets, exchanges_of
import test_ring

connect, workers = test_ring.connect, test_ring.workers  # fixtures
DIGITS = [[64, 128], [128], [128, 10], [10]]  # the shapes of the network
SHARE = 4 * (2 * (64 + 128) + 128 + 2 * (128 + 10) + 10)  # bytes of it at rank 2


# The worked numbers: two workers, whose gradients are diag(4, 0) and diag(0, 2).

def corner(*numbers):
    """Returns a matrix of 5 x 5 with four numbers in its first corner: factors of it save bytes."""
    matrix = np.zeros((5, 5), np.float32)
    matrix[:2, :2] = np.reshape(numbers, (2, 2))
    return matrix


@pytest.fixture
def two(workers):
    """A function of a rank: two workers; and a function that runs a step of both from x = 0.

    It returns the corner of what took the place of their mean gradient, a list.
    """
    def make(rank):
        made = workers([-corner(4, 0, 0, 0), -corner(0, 0, 0, 2)], start=[corner(0, 0, 0, 0)],
                       learning_rate=1., compression=f'powersgd:{rank}')

        def step():
            at_once([worker.step for worker in made])
            one, other = (-np.array(worker.center())[:2, :2].ravel() for worker in made)
            assert one.tobytes() == other.tobytes()
            for worker in made:
                worker.set(worker.variables[0], corner(0, 0, 0, 0))
            return one
        return made, step
    return make


def test_by_hand(two):
    made, step = two(1)
    for worker in made:
        worker.set(worker.scheme.own[1], np.float32([[1], [1], [0], [0], [0]]))
    assert step() == pytest.approx([1.6, 0.4, 0.8, 0.2], abs=1e-6)
    left = [worker.session.run(worker.scheme.own[0])[:2, :2].ravel() for worker in made]
    assert left[0] == pytest.approx([0.8, 0, -1.6, 0], abs=1e-6)
    assert left[1] == pytest.approx([0, -0.8, 0, 1.6], abs=1e-6)


def test_without_feedback_the_second_direction_is_lost(two):
    made, step = two(1)
    for worker in made:
        worker.set(worker.scheme.own[1], np.float32([[1], [1], [0], [0], [0]]))
    for _ in range(4):
        for worker in made:
            worker.session.run(worker.scheme.own[0].initializer)
        arrived = step()
    assert arrived == pytest.approx([1.9998779, 0.0078120, 0.015624, 6.1031431e-05], rel=1e-5)


def test_with_feedback_it_only_comes_later(two):
    made, step = two(1)
    total = sum(step() for _ in range(20))
    left = np.mean([worker.session.run(worker.scheme.own[0]) for worker in made], axis=0)
    assert total + left[:2, :2].ravel() == pytest.approx([40, 0, 0, 20], abs=1e-4)
    assert total[3] > 15


def test_a_rank_that_is_enough_gives_the_mean(two):
    _, step = two(2)
    for _ in range(2):
        assert step() == pytest.approx([2, 0, 0, 1], abs=1e-6)


# The rule.

def in_numpy(start, ms, factors, steps, rate):
    """Does the same in NumPy; `factors` has Q by the index of a variable, of which M is a matrix.

    Returns:
      The values of the variables, a list; and the residuals of each worker, a list of dicts.
    """
    values, residuals = list(start), [dict.fromkeys(factors, 0.) for _ in ms]
    for _ in range(steps):
        for i, value in enumerate(values):
            gradients = [value - m for m in ms]
            mean = np.mean(gradients, axis=0)
            if i in factors:
                matrices = [gradient.reshape(-1, value.shape[-1]) + residual[i]
                            for gradient, residual in zip(gradients, residuals)]
                basis, _ = np.linalg.qr(np.mean([m @ factors[i] for m in matrices], axis=0))
                for residual, matrix in zip(residuals, matrices):
                    residual[i] = matrix - basis @ basis.T @ matrix
                factors[i] = np.mean(matrices, axis=0).T @ basis
                mean = (basis @ factors[i].T).reshape(value.shape)
            values[i] = value - rate * mean
    return values, residuals


def test_three_workers_stay_the_same_bit_for_bit_and_nothing_is_lost(workers):
    """A matrix, a vector, and a kernel of a convolution, which is one of 12 x 8."""
    random = np.random.RandomState(0)
    start = [random.normal(size=shape) for shape in ([8, 6], [5], [2, 2, 3, 8])]
    ms, steps, rate = (0.3, 1.7, -0.4), 10, 0.125
    made = workers(ms, start=start, learning_rate=rate, compression='powersgd:2')
    fetched = [worker.session.run(worker.scheme.own[2:]) for worker in made]
    assert [each.shape for each in fetched[0]] == [(6, 2), (8, 2)]
    for each in fetched[1:]:  # all draw the same
        assert [q.tobytes() for q in each] == [q.tobytes() for q in fetched[0]]
    values, residuals = in_numpy(start, ms, dict(zip((0, 2), fetched[0])), steps, rate)
    given = 0
    for _ in range(steps):
        given += sum(window[0] for window in at_once([worker.window for worker in made]))
    bits = set()
    for worker, left in zip(made, residuals):
        own = worker.scheme.own
        found = worker.session.run([*worker.variables, *own[2:], *own[:2]])
        bits.add(b''.join(each.tobytes() for each in found[:5]))
        for one, other in zip(found[:3] + found[5:], values + [left[0], left[2]]):
            assert one == pytest.approx(other, abs=1e-4)
        assert {each.device for each in own} == {seam.Seam.worker_device(worker.task_index)}
        with worker.graph.as_default():
            assert not {*own} & {*tf.global_variables()}
    assert len(bits) == 1
    left = sum(worker.session.run(worker.scheme.own[0]) for worker in made)
    assert np.abs(left).max() > 0.1
    assert start[0] - found[0] == pytest.approx(rate / 3 * (given - left), abs=1e-5)


def test_where_the_rank_is_enough_it_is_the_plain_ring(workers):
    """Half squares from a matrix of rank 1 have gradients of rank 2."""
    start = [np.outer([1, 2, 3, 4, 5.], [3, -1, 2, 0, 1]) / 8, [0.5, 1.]]
    values = []
    for name in 'none', 'powersgd:2':
        made = workers((0.3, 1.7), start=start, learning_rate=0.3, compression=name)
        for _ in range(5):
            at_once([worker.step for worker in made])
        values.append(made[1].session.run(made[1].variables))
    for plain, compressed in zip(*values):
        assert compressed == pytest.approx(plain, abs=1e-6)


def test_several_batches_of_a_step_are_one_gradient(workers):
    start, values = [np.random.RandomState(0).normal(size=(5, 5))], []
    for ms in [[0., 2.], [4., 6.]], [1., 5.]:
        made = workers(ms, start=start, compression='powersgd:1',
                       accumulate=2 if isinstance(ms[0], list) else 1)
        for _ in range(3):
            at_once([worker.step for worker in made])
        values.append(made[0].center())
    assert np.array(values[0]) == pytest.approx(np.array(values[1]), abs=1e-5)


def test_after_a_gradient_of_zeros_it_goes_on(workers):
    """Zeros make Q 0, and so the next P. It has a basis nevertheless, and the next Q is not 0."""
    worker, = workers([0], start=[corner(0, 0, 0, 0)], compression='powersgd:1')
    for _ in range(2):
        worker.step()
        for each in worker.session.run([*worker.variables, *worker.scheme.own]):
            assert np.array_equal(each, np.zeros_like(each))
    worker.set(worker.variables[0], np.float32(np.outer([1, 2, 3, 4, 5], [1, 1, 2, 2, 3])))
    for _ in range(10):
        worker.step()
    assert np.abs(worker.center()).max() < 0.1


@pytest.fixture
def alone(monkeypatch):
    """A function that has PowerSGD of one worker compress a matrix, whatever its rank."""
    def mean_of(matrix, rank, dtype=tf.float32):
        program = load_program('Ring-AllReduce', 'powersgd')
        monkeypatch.setattr(program, 'matrix_shape', lambda variable, rank: list(matrix.shape))
        with tf.Graph().as_default(), tf.Session() as session:
            made = program.PowerSGD(rank, [tf.get_variable('x', matrix.shape, dtype)])
            mean, = made.means([tf.constant(matrix, dtype)], list)
            session.run(tf.local_variables_initializer())
            return session.run(mean)
    return mean_of


@pytest.mark.parametrize('dtype, error', [(tf.float32, 1e-6), (tf.float64, 1e-12),
                                          (tf.float16, 1e-3)])
def test_full_rank_is_all(alone, dtype, error):
    matrix = np.random.RandomState(0).uniform(-1, 1, size=(9, 7))
    mean = alone(matrix, 7, dtype)
    assert mean.dtype == dtype.as_numpy_dtype and mean == pytest.approx(matrix, abs=error)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_as_such(alone, bad):
    matrix = np.ones((9, 7))
    matrix[4, 3] = bad
    assert not np.isfinite(alone(matrix, 2)).all()


# What travels.

@pytest.mark.parametrize('shape, rank, dtype, as_matrix', [
    ([64, 128], 2, tf.float32, [64, 128]), ([128, 10], 2, tf.float32, [128, 10]),
    ([3, 3], 1, tf.float64, [3, 3]), ([3, 3, 16, 32], 4, tf.float32, [144, 32]),
    ([9, 7], 3, tf.float32, [9, 7]), ([9, 7], 3, tf.float16, None),  # factors are of float32
    ([2, 2], 1, tf.float32, None), ([9, 7], 4, tf.float32, None), ([100, 1], 1, tf.float32, None),
    ([10], 1, tf.float32, None), ([], 1, tf.float32, None)])
def test_which_variables_have_factors(shape, rank, dtype, as_matrix):
    """Those of which two factors are smaller."""
    program = load_program('Ring-AllReduce', 'powersgd')
    with tf.Graph().as_default():
        variable = tf.get_variable('x', shape, dtype)
        assert program.matrix_shape(variable, rank) == as_matrix


def test_bytes_by_queues(workers):
    """Within 2 %: with two workers each sends as much as the factors and biases have."""
    assert SHARE == 3192
    made = workers([0, 0], start=[np.ones(shape) for shape in DIGITS], compression='powersgd:2')
    at_once([worker.step for worker in made])
    for to_workers, to_ps in at_once([functools.partial(worker.traffic, runs=5)
                                      for worker in made]):
        assert to_ps == 0
        assert to_workers == pytest.approx(SHARE, rel=0.02)


def test_bytes_by_sockets(connect, monkeypatch):
    """Of all three workers together 2 (N - 1) times as much, to the byte."""
    monkeypatch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
    hparams = types.SimpleNamespace(**dict(test_ring.HPARAMS, implementation='sockets',
                                           learning_rate=0.3, compression='powersgd:2'))
    exchanges = exchanges_of(3, connect)
    made = [BySockets(exchange, i, i, hparams, [np.ones(shape, np.float32) for shape in DIGITS])
            for i, exchange in enumerate(exchanges)]
    at_once([worker.step for worker in made])
    assert sum(exchange.sent for exchange in exchanges) == 2 * 2 * SHARE
    for worker in made:
        worker.session.close()


def test_two_sums_of_one_size_are_both_in_a_trace(connect):
    """TensorFlow numbers operations of the same name."""
    exchanges = exchanges_of(2, connect)
    threads = tf.ConfigProto(inter_op_parallelism_threads=2, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=threads) as session:
        sums = [exchange.sums(exchange.sums([tf.ones([30])], f'worker {1 - i}'), f'worker {1 - i}')
                for i, exchange in enumerate(exchanges)]
        trace = tf.RunMetadata()
        for total, in session.run(sums, options=traffic.TRACE, run_metadata=trace):
            assert total.tolist() == [4] * 30
        sent = [(one.receiver, one.bytes) for one in traffic.transfers(trace)]
    assert sorted(sent) == 2 * [('worker 0', 120)] + 2 * [('worker 1', 120)]


def test_the_collective_of_tensorflow_does_the_same(workers):
    """It sums up, and nothing else is asked of it."""
    check = load_program('Ring-AllReduce', 'compressing').check
    check(types.SimpleNamespace(compression='powersgd:1', implementation='collective',
                                min_workers=None))
    start, values = [np.random.RandomState(0).normal(size=(5, 5)), [0.7]], []
    for implementation in 'ring', 'collective':
        made = workers((0.3, 1.7), start=start, compression='powersgd:1',
                       implementation=implementation)
        for _ in range(3):
            at_once([worker.step for worker in made])
        values += [b''.join(value.tobytes() for value in worker.session.run(worker.variables))
                   for worker in made]
    assert len(set(values)) == 1


# What is refused.

@pytest.mark.parametrize('name', ['powersgd', 'powersgd:', 'powersgd:0', 'powersgd:-1',
                                  'powersgd:1.5', 'powersgd:x'])
def test_what_is_no_rank(name):
    check = load_program('Ring-AllReduce', 'compressing').check
    with pytest.raises(SystemExit, match=f'^--compression={name}: give a rank, [^\n]*$'):
        check(types.SimpleNamespace(compression=name, implementation='sockets', min_workers=None))


def test_a_rank_by_which_nothing_gets_smaller(workers):
    with pytest.raises(SystemExit, match='^--compression=powersgd:3: each variable is as [^\n]*$'):
        workers([0], start=[corner(0, 0, 0, 0), [1.]], compression='powersgd:3')


def test_no_other_folder_has_it(toy):
    with pytest.raises(SystemExit, match='^--compression=powersgd:2: there are none, [^\n]*$'):
        toy('HogWild', [0], compression='powersgd:2', **test_asynchronous.HPARAMS['HogWild'])


# Real processes.

def test_a_run(programs):
    run = programs.run_sh('Ring-AllReduce', '--compression=powersgd:2', '--train_steps=20',
                          f'--model_dir={programs.directory / "model"}', WORKERS=2)
    run.ends_well()
    assert len(tf.train.list_variables(str(programs.directory / 'model'))) == 5  # no residuals
