"""Compression with error feedback: what travels, what arrives, and what is left for later.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m; learning rate
1/2. Numbers are worked out by hand.
"""

import contextlib
import itertools
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import compression, compressors, graphs, seam, tables
from tfdist.scheme.toy import Problem

from cases import briefly
from conftest import load_program
import test_asynchronous
import test_check
import test_seam
import test_simulation
import test_synchronous
from test_synchronous import Call, together

player, checked, simulated = test_seam.player, test_check.checked, test_simulation.toy  # fixtures
NAMES = ['bf16', 'fp16', 'int8', 'sign', 'topk:0.25', 'topk:1']
TOGETHER = ['Synchronous-SGD', 'SAGN', 'Local-SGD', 'DiLoCo']
FOLDERS = ['HogWild', 'SSP', 'DOWNPOUR-Easy', 'AGN', 'DynSGD', *TOGETHER]
BRIEF = 'HogWild', 'AGN', 'Synchronous-SGD', 'DiLoCo'  # those of `make test`


def in_each_of(folders):
    """Returns a mark: a test in each of these folders, in `make test` in those that are BRIEF."""
    return pytest.mark.parametrize('folder', briefly(folders, BRIEF))

# How what is pushed is to the center's step: a gradient, a change, or a change the other way.
UNITS = {**dict.fromkeys(['HogWild', 'SSP', 'Synchronous-SGD', 'SAGN'], test_seam.RATE),
         **dict.fromkeys(['DOWNPOUR-Easy', 'AGN', 'DynSGD'], -1), 'Local-SGD': 1}


@pytest.fixture
def workers(toy):
    """Makes workers of a scheme; in windows of two steps, where it has some."""
    def make(folder, ms=(0, 4), steps=1, **changes):
        if folder in TOGETHER:
            common = dict(test_synchronous.HPARAMS[folder], replicas_to_aggregate=None,
                          train_steps=steps, patience_secs=60.)
        else:
            common = test_asynchronous.HPARAMS[folder]
        return toy(folder, ms, **dict(common, **changes))
    return make


class Pushes:
    """A worker's pushes of given vectors, past any scheme.

    Attributes:
      session: `tf.Session`.
      own: list of `tf.Variable`, residuals and what follows.
    """

    def __init__(self, compressor, size=2, dtype=tf.float32, task_index=0, feedback=True):
        with tf.Graph().as_default() as graph:
            self._vector = tf.placeholder(dtype, [size])
            self._step = tf.placeholder_with_default(tf.constant(0, tf.int64), [])
            variable = tf.get_variable('x', [size], dtype)
            made = compression.Compression(compressor, [variable],
                                           tf.constant(task_index, tf.int64), self._step, feedback)
            (self._encoded,), (decoded,) = made.sent([self._vector])
            self._arrives = made.arrived({'sum': decoded})['sum']
            self._late = made.arrived({'sum': decoded, 'dropped': tf.constant(1.)})['sum']
            self.own = made.own
            initialize = tf.local_variables_initializer()
        self.session = tf.Session(graph=graph)
        self.session.run(initialize)

    def push(self, vector, step=0, is_late=False):
        """Pushes; returns what arrives."""
        return self.session.run(self._late if is_late else self._arrives,
                                {self._vector: vector, self._step: step})

    def encoded(self, vector):
        """Returns what would travel."""
        return self.session.run(self._encoded, {self._vector: vector})

    @property
    def residual(self):
        return self.session.run(self.own[0])


class ToNearest(compressors.Int8):
    """Eight bits, not rounded at random."""

    def rounded(self, levels, seed):
        return tf.round(levels)


class BareSign(compressors.Compressor):
    """The sign alone, without a scale; that of 0 is +1."""

    def encode(self, vector, seed):
        return tf.where(vector >= 0, tf.ones_like(vector), -tf.ones_like(vector))

    def decode(self, sent, size, dtype):
        return tf.cast(sent, dtype)


# What travels, and what arrives.

def size_of(name, size):
    """Returns how many bytes are sent for so many floats."""
    kind, _, share = name.partition(':')
    return {'none': 4 * size, 'bf16': 2 * size, 'fp16': 2 * size, 'int8': size + 4,
            'sign': -(-size // 8) + 4, 'topk': 8 * max(1, round(float(share or 0) * size))}[kind]


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('size', [1, 7, 8, 9, 100])
def test_bytes_of_a_vector(name, size):
    pushes = Pushes(compressors.by_name(name), size)
    assert pushes.encoded(np.linspace(-1, 3, size)).nbytes == size_of(name, size)


@pytest.mark.parametrize('name, total', [('int8', 9626), ('sign', 1218), ('bf16', 19220)])
def test_bytes_of_the_digits(name, total):
    """The network 64-128-10: a scale for each of four variables."""
    assert sum(size_of(name, size) for size in (64 * 128, 128, 1280, 10)) == total


@pytest.mark.parametrize('name, vector, arrives', [
    ('bf16', [257, 0.1, -3e38, 1e-30], [256, 0.10009766, -3.00405527e38, 9.98402083e-31]),
    ('bf16', [259, 258, -257, 0], [260, 258, -256, 0]),  # of two as near, the even one
    ('fp16', [70000, -1e6, 1e-8, 0.1], [65504, -65504, 0, 0.099975586]),
    ('sign', [3, -1, 0, -4], [2, -2, 2, -2]),
    ('sign', [-2] * 9 + [1, 3], [-2] * 9 + [2, 2]),
    ('topk:0.5', [1, -3, 2, 0.5], [0, -3, 2, 0]),
    ('topk:0.5', [1, 1, 1, 1], [1, 1, 0, 0]),
    ('topk:0.01', [1, -3, 2, 0.5], [0, -3, 0, 0]),
    ('topk:1', [1, -3, 2, 0.5], [1, -3, 2, 0.5]),
])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_what_arrives(name, vector, arrives, dtype):
    pushes = Pushes(compressors.by_name(name), len(vector), dtype)
    assert pushes.push(vector) == pytest.approx(arrives, rel=1e-6, abs=0)


@pytest.mark.parametrize('name', NAMES)
def test_zeros_are_zeros(name):
    """Not 0 / 0, which a residual would keep for ever."""
    pushes = Pushes(compressors.by_name(name), 5)
    for _ in range(2):
        assert pushes.push([0.] * 5).tolist() == [0] * 5
        assert pushes.residual.tolist() == [0] * 5


@pytest.mark.parametrize('bad', briefly([np.nan, np.inf, -np.inf], [np.nan]))
@pytest.mark.parametrize('name', NAMES)
def test_what_is_not_finite_arrives_as_such(name, bad):
    """Or a run that diverges would not show it."""
    vector = np.ones(9)
    vector[4] = bad
    assert not np.isfinite(Pushes(compressors.by_name(name), 9).push(vector)).all()


def test_int8_rounds_at_random_and_to_the_right_mean():
    size = 100000
    pushes = Pushes(compressors.by_name('int8'), size, feedback=False)
    arrived = pushes.push(np.array([127] + [0.25] * (size - 1)), step=3)
    assert arrived[0] == 127
    assert set(arrived[1:]) == {0, 1}
    assert arrived[1:].mean() == pytest.approx(0.25, abs=0.005)
    assert arrived[1:].var() == pytest.approx(0.1875, abs=0.003)


def test_int8_draws_anew_in_each_step_on_each_worker_and_for_each_variable(workers):
    vector = np.array([127] + [0.5] * 100)
    drawn = {tuple(Pushes(compressors.by_name('int8'), 101, task_index=worker).push(vector, step))
             for worker in range(3) for step in range(3)}
    assert len(drawn) == 9
    again = {tuple(Pushes(compressors.by_name('int8'), 101, task_index=2).push(vector, 2))}
    assert again < drawn, 'the same worker in the same step draws the same'
    worker, = workers('HogWild', [0], start=[vector, vector], compression='int8')
    one, other = worker.session.run(worker.scheme.pushed)
    assert one.tolist() != other.tolist()


def test_simulated_workers_draw_different_numbers(simulated):
    toy = simulated('Synchronous-SGD', 4, train_steps=1, ms=np.zeros(4),
                    changes=dict(compression='int8'))
    assert len(toy.pushed) == 4, 'all push the same gradient, in the same step'
    assert len({tuple(np.concatenate(one.pushed[0])) for *_, one in toy.pushed}) > 1


def test_eight_bits_by_hand():
    fed, bare = (Pushes(ToNearest(), feedback=feedback) for feedback in (True, False))
    sent, left = [], []
    for _ in range(4):
        sent.append(fed.push([127, 0.25]))
        left.append(fed.residual[1])
    assert np.array(sent)[:, 1].tolist() == [0, 0, 1, 0]
    assert left == [0.25, 0.5, -0.25, 0]
    assert sum(sent).tolist() == [508, 1]
    assert sum(bare.push([127, 0.25]) for _ in range(4)).tolist() == [508, 0]


def test_a_bare_sign_goes_the_wrong_way_without_feedback():
    """Gradients 4, -1, -1, -1 at the rate 1/2: their sum is 1, so x has to fall by 1/2."""
    fed, bare = (Pushes(BareSign(), 1, feedback=feedback) for feedback in (True, False))
    x = {fed: 0, bare: 0}
    for cycle in range(25):
        for gradient in 4, -1, -1, -1:
            for pushes in x:
                x[pushes] -= pushes.push([gradient])[0] / 2
        if not cycle:
            assert x == {fed: -1, bare: 1}
            assert fed.residual == -1
    assert x == {fed: -13, bare: 25}
    assert fed.residual == -1


@pytest.mark.parametrize('dtype', briefly([tf.float32, tf.float64, tf.float16], [tf.float16]))
@pytest.mark.parametrize('name', NAMES)
def test_all_that_was_sent_is_all_that_there_was_less_the_residual(name, dtype):
    random = np.random.RandomState(1)
    pushes = Pushes(compressors.by_name(name), 50, dtype)
    given, arrived = np.zeros(50), np.zeros(50)
    for step in range(20):
        vector = random.normal(size=50).astype(dtype.as_numpy_dtype)
        given += vector
        arrived += pushes.push(vector, step)
    assert arrived + pushes.residual == pytest.approx(
        given, rel=0, abs=1e-13 if dtype == tf.float64 else 1e-5)
    assert np.any(pushes.residual) == (name != 'topk:1' and (name, dtype) != ('fp16', tf.float16))


def test_what_is_too_large_for_half_floats_comes_later():
    pushes = Pushes(compressors.by_name('fp16'), 1)
    assert pushes.push([70000.]) == [65504]
    assert pushes.residual == [4496]
    assert pushes.push([0.]) == [4496]
    assert pushes.residual == [0]


def test_a_push_that_does_not_count_leaves_the_residual_as_it_was():
    pushes = Pushes(compressors.by_name('topk:0.5'))
    pushes.push([3., 1.])
    assert pushes.residual.tolist() == [0, 1]
    assert pushes.push([1., 1.], is_late=True).tolist() == [0, 2]
    assert pushes.residual.tolist() == [0, 1]


# Schemes: two counter-examples, with and without feedback.

@pytest.mark.parametrize('third, centers, bare', [
    ([], [[0, 4], [0, 0], [0, 0]], [[0, 4], [0, 4], [0, 4]]),
    pytest.param([(0., 3.)], [[0, 3.8333333], [0, 1.0833333], [0, 1.4027778], [0, 1.6689815]],
                 [[0, 3.8333333], [0, 3.6944444], [0, 3.5787037]], marks=pytest.mark.thorough),
])
def test_what_is_large_on_each_worker_but_cancels(workers, third, centers, bare):
    """Each sends the larger of two coordinates, and these cancel: the other one never moves."""
    ms = [np.array(m, np.float32) for m in [(6., 0.), (-6., 0.), *third]]
    options = dict(start=[[0., 4.]], compression='topk:0.5')
    made = workers('Synchronous-SGD', ms, steps=60, error_feedback=False, **options)
    assert [together(made) for _ in bare] == [pytest.approx(each, abs=1e-6) for each in bare]
    for _ in range(60 - len(bare)):
        last = together(made)
    assert last == pytest.approx([0, 3 if third else 4], abs=1e-3)
    made = workers('Synchronous-SGD', ms, steps=400, **options)
    assert [together(made) for _ in centers] == [pytest.approx(each, abs=1e-6)
                                                 for each in centers]
    if third:  # it goes around the optimum, which is (0, 1)
        for _ in range(400 - len(centers)):
            last = together(made)
        assert last == pytest.approx([0, 0.99837184], abs=5e-4)  # rounded 400 times


def test_the_residuals_of_the_first_example(workers):
    made = workers('Synchronous-SGD', [np.array([6., 0.], np.float32), np.array([-6., 0.],
                                                                                np.float32)],
                   steps=3, start=[[0., 4.]], compression='topk:0.5')
    for expected in ([[0, 4], [0, 4]], [[-6, 0], [6, 0]], [[0, 0], [0, 0]]):
        together(made)
        assert [worker.session.run(worker.scheme.own[0]).tolist() for worker in made] == expected


def on_a_valley(monkeypatch, feedback):
    """Runs HogWild on |x_1 + x_2| / 2 + |x_1 - x_2| from (1, 1) at the rate 1/4, by scaled signs.

    Returns:
      Six centers, and the residual with each, as lists.
    """
    def loss_at(values):
        x, y = values[0][0], values[0][1]
        plus, minus = (tf.stop_gradient(tf.where_v2(each >= 0, 1., -1.)) * each
                       for each in (x + y, x - y))  # 1 where the slope is not defined
        return plus / 2 + minus, tf.constant(0.)

    program = load_program('HogWild')
    hparams = types.SimpleNamespace(learning_rate=0.25, use_locking=False, compression='sign',
                                    error_feedback=feedback)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.Graph().as_default())
        monkeypatch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
        global_step = tf.train.get_or_create_global_step()
        x = tf.get_variable('x', initializer=[1., 1.])
        scheme = program.Scheme(Problem(loss_at, [x]), global_step, hparams, 0, 1)
        session = stack.enter_context(tf.Session())
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        found = []
        for _ in range(6):
            session.run(scheme.train_op)
            found.append([each.tolist() for each in session.run([x, scheme.own[0]])])
    return [list(each) for each in zip(*found)]


def test_signs_in_a_valley(monkeypatch):
    """Without feedback the sum of both stays 2 for ever, at any rate; the optimum is (0, 0)."""
    bare, _ = on_a_valley(monkeypatch, feedback=False)
    assert bare == [[0.75, 1.25], [1, 1]] * 3
    centers, residuals = on_a_valley(monkeypatch, feedback=True)
    assert [sum(center) for center in centers] == [2, 1.5, 1.5, 1, 1, 0.5]
    assert residuals == [[0.5, 0.5], [-1, 1], [0.5, 0.5], [1, -1], [0.5, 0.5], [-1, 1]]


def test_pushes_in_few_bits_add_up_where_a_center_in_few_bits_stands_still(workers):
    """Eight steps of 1/2 from 256; to a center of bfloat16 each of them would be nothing."""
    worker, = workers('HogWild', [0], start=[256.], compression='bf16')
    scheme, half = worker.scheme, tf.bfloat16.as_numpy_dtype(0.5)
    center = tf.bfloat16.as_numpy_dtype(256)
    with worker.graph.as_default():
        sent = worker.session.run(compressors.Bfloat16().encode(tf.constant([1.]), None))
    for _ in range(8):
        worker.session.run(scheme.push, seam.feed(
            scheme.pull + scheme.pushed, [*worker.pull(), sent]))
        center = tf.bfloat16.as_numpy_dtype(center - half)
    assert (worker.center(), float(center)) == (252, 256)


# Every scheme that has the flag.

def run_of(folder, made, steps):
    """Has workers train; returns the values of all variables at the end."""
    for _ in range(steps):
        if folder in TOGETHER:
            together(made)
        else:
            test_asynchronous.in_turn(made)
    return made[0].session.run(made[0].variables)


def test_folders():
    """Those have the flag whose docs say so, and no others; a ring has tests of its own."""
    assert {folder for folder in test_seam.FOLDERS
            if 'compression' in (load_program(folder), flags.FLAGS)[1]} == {*FOLDERS,
                                                                           'Ring-AllReduce'}


@pytest.mark.parametrize('folder', briefly(FOLDERS, ['DiLoCo']))
def test_where_all_is_sent_it_is_the_plain_scheme_bit_for_bit(workers, folder):
    """At numbers that have to be rounded in each operation."""
    start = 0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]
    values = []
    for changes in {}, dict(compression='none'), dict(compression='topk:1'):
        made = workers(folder, (0.3, 1.7), 5, start=start, learning_rate=0.3, num_ps=2, **changes)
        values.append(run_of(folder, made, 5))
        assert (len(made[0].scheme.own) == 4) == (changes == dict(compression='topk:1'))
    for plain, none, all_ in zip(*values):
        assert np.array_equal(plain, none)
        assert np.array_equal(plain, all_)
        assert np.array_equal(plain, plain)  # no NaN


@pytest.mark.parametrize('name, folder', briefly(
    itertools.product(['bf16', 'int8', 'sign', 'topk:0.01'], FOLDERS),
    lambda name, folder: (name, folder) == ('topk:0.01', 'HogWild')
    or name == 'int8' and folder in ('AGN', 'DiLoCo')))
def test_a_run_sends_as_many_bytes_as_computed(workers, folder, name):
    """Within 2 %: to the worker all parameters, to the ps what is left of them."""
    size, rows = 250000, 1000
    worker, = workers(folder, [0], 100, start=[[1.] * size, [[2.] * rows]], num_ps=2,
                      compression=name)
    worker.step()
    down, up = worker.traffic()
    assert down == pytest.approx(4 * (size + rows), rel=0.02)
    assert up == pytest.approx(size_of(name, size) + size_of(name, rows), rel=0.02)


@in_each_of(FOLDERS)
def test_residuals_are_the_workers_own(workers, folder):
    """On its device, in no checkpoint, and 0 again when it starts again."""
    made = workers(folder, (0, 4), 3, start=[[8., 1., 2., 3.]], compression='topk:0.25')
    run_of(folder, made, 2)
    for worker in made:
        residuals = [each for each in worker.scheme.own if 'residual' in each.op.name]
        assert len(residuals) == 2
        assert {each.device for each in residuals} == {f'/job:worker/task:{worker.task_index}'}
        assert any(np.any(worker.session.run(each)) for each in residuals)
        with worker.graph.as_default():
            assert not {*residuals} & {*tf.global_variables()}
            worker.session.run(tf.local_variables_initializer())
        assert not any(np.any(worker.session.run(each)) for each in residuals)


def keeping(worker):
    """Returns the ops that a run of a worker needs before it assigns its residual, a set."""
    handles = {each.handle.op for each in worker.scheme.own if each.op.name.startswith('residual')}
    keep = [op for op in graphs.ancestors(worker.scheme.train_op.values())
            if op.type == 'AssignVariableOp' and op.inputs[0].op in handles]
    assert len(keep) == 1
    return graphs.ancestors(keep)


@in_each_of(FOLDERS)
def test_residuals_change_after_the_push(workers, folder):
    """In the same run, and only when the push has arrived."""
    worker, = workers(folder, [0], compression='sign')
    pushes = {op for op in graphs.ancestors(worker.scheme.train_op.values())
              if '/job:ps' in op.device and op.type.endswith(
                  ('AccumulatorApplyGradient', 'ResourceApplyGradientDescent',
                   'AssignAddVariableOp'))}
    assert pushes and pushes <= keeping(worker)


def test_with_backup_workers_residuals_change_when_the_step_is_complete(workers):
    """Only then it is known whether the push counts."""
    made = workers('Synchronous-SGD', [0, 0, 0], replicas_to_aggregate=2, compression='sign')
    for worker in made:
        assert 'QueueDequeueManyV2' in {op.type for op in keeping(worker)}


def test_a_dropped_push_leaves_the_residual(workers):
    """With a backup worker: in training it is known when the step is complete."""
    ms = [np.array(m, np.float32) for m in [(6., 0.), (-6., 0.), (0., 3.)]]
    chief, other, late = workers('Synchronous-SGD', ms, steps=2, start=[[0., 4.]],
                                 replicas_to_aggregate=2, compression='topk:0.5')
    calls = [Call(chief), Call(other)]
    assert [call.result()['dropped'] for call in calls] == [0, 0]
    pulled = [0, np.array([0., 4.])]  # as before the step that it missed
    assert late.session.run(late.scheme.train_op, seam.feed(late.scheme.pull, pulled))[
        'dropped'] == 1
    residuals = [worker.session.run(worker.scheme.own[0]).tolist()
                 for worker in (chief, other, late)]
    assert residuals == [[0, 4], [0, 4], [0, 0]]


# One scheme plays many workers.

@pytest.mark.parametrize('name', briefly(['int8', 'topk:0.5'], ['int8']))
@pytest.mark.parametrize('folder', briefly(FOLDERS, ['DiLoCo']))
def test_parts_do_what_training_does(toy, player, folder, name):
    test_seam.test_parts_do_what_training_does(toy, player, folder, dict(compression=name))


@in_each_of(FOLDERS)
def test_each_part_does_its_own(player, folder):
    test_seam.test_each_part_does_its_own(player, folder, dict(compression='int8'))


class Shifted:
    """What a worker of any scheme pushes by top-1 of three with feedback, in numpy."""

    def __init__(self, size):
        self.residual = np.zeros(size)

    def sent(self, vector):
        p = vector + self.residual
        arrives = np.zeros_like(p)
        place = np.argmax(abs(p))
        arrives[place] = p[place]
        self.following = p - arrives
        return arrives

    def arrived(self):
        self.residual = self.following


@in_each_of(['HogWild', 'SSP', 'DOWNPOUR-Easy', 'AGN', 'DynSGD'])
def test_many_workers_one_by_one(player, folder):
    """Five workers pull and push in any order; each has its own residual."""
    random = np.random.RandomState(1)
    ms = random.randint(-8, 8, size=5) / 4
    played = player(folder, ms, [[0.5, -1., 3.]], [tf.float64], compression='topk:0.3')
    rule = test_seam.RULES[folder](test_seam.flat(played.center()), len(ms))
    feedback, under_way = [Shifted(3) for _ in ms], {}
    for _ in range(60):
        worker = random.randint(len(ms))
        if worker not in under_way:
            pulled = played.pull()
            center = test_seam.flat(pulled[1:])
            under_way[worker] = (pulled, played.compute(worker, pulled)[0], center,
                                 feedback[worker].sent(rule.compute(worker, center, ms[worker])))
            continue
        pulled, pushed, center, sent = under_way.pop(worker)
        staleness = played.push(worker, pulled, pushed)['staleness']
        rule.push(worker, center, sent, staleness)
        feedback[worker].arrived()
        assert test_seam.flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize('needed', briefly([5, 3], [3]))
@pytest.mark.parametrize('folder', ['Synchronous-SGD', 'Local-SGD', 'SAGN'])
def test_many_workers_at_once(player, folder, needed):
    """In any order; who comes too late is dropped, and keeps its residual."""
    random = np.random.RandomState(1)
    ms = random.randint(-8, 8, size=5) / 4
    # In numpy what is averaged there is pushed as gradients.
    factor = test_seam.RATE if folder == 'Local-SGD' else 1
    played = player(folder, ms, [[0.5, -1., 3.]], [tf.float64], replicas_to_aggregate=needed,
                    compression='topk:0.3')
    rule = test_seam.RULES[folder](test_seam.flat(played.center()), len(ms))
    feedback = [Shifted(3) for _ in ms]
    for step in range(6):
        pulled, center = played.pull(), rule.center
        computed = [(worker, played.compute(worker, pulled)[0]) for worker in range(len(ms))]
        sent = [each.sent(rule.compute(worker, center, ms[worker]))
                for worker, each in enumerate(feedback)]
        random.shuffle(computed)
        for worker, pushed in computed[:needed]:
            assert played.push(worker, pulled, pushed)['dropped'] == 0
            feedback[worker].arrived()
        assert played.session.run(played.scheme.complete) == step + 1
        rule.push(None, None, np.mean([sent[worker] for worker, _ in computed[:needed]], axis=0),
                  None)
        assert test_seam.flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
        for worker, pushed in computed[needed:]:
            assert played.push(worker, pulled, pushed)['dropped'] == 1
        for worker, each in enumerate(feedback):
            assert played.own[worker][0] == pytest.approx(factor * each.residual, abs=1e-9)


@pytest.mark.parametrize('name', ['sign', 'topk:0.3'])
@in_each_of(UNITS)
def test_the_center_goes_all_the_way_but_for_the_residual(player, folder, name):
    """What a worker by itself has left out in three steps is in its residual."""
    played = player(folder, [0.5], [[0.5, -1., 3.]], [tf.float64], compression=name)
    rule = test_seam.RULES[folder](test_seam.flat(played.center()), 1)
    start, way = rule.center, 0
    for _ in range(3):
        way += test_seam.RATE * rule.compute(0, test_seam.flat(played.center()), 0.5)
        played.together() if folder in TOGETHER else played.step(0)
    residual = UNITS[folder] * played.own[0][0]
    assert start - test_seam.flat(played.center()) == pytest.approx(way - residual, abs=1e-12)
    assert abs(residual).max() > 1e-3


def largest_of_each(residual, x):
    """Returns what arrives of a push of x by top-1 of the variables 0 and 1 to 2, and what is left.

    Takes and returns vectors of three.
    """
    p = residual + x
    arrives = np.array([p[0], *np.where(abs(p[1:]) == abs(p[1:]).max(), p[1:], 0)])
    return arrives, p - arrives


def test_simulated_workers(simulated):
    """The residual is each worker's own, and as many bytes travel as of the encoded vectors."""
    toy = simulated('HogWild', 4, step='lognormal:1ms:0.5', latency='1ms',
                    changes=dict(compression='topk:0.5'))
    center = test_seam.flat(test_simulation.START)
    residuals, under_way = np.zeros((4, 3)), {}
    for _, worker, what in toy.exchanges:
        if what == 'pulls':
            under_way[worker] = largest_of_each(residuals[worker], center - toy.ms[worker])
        else:
            arrives, residuals[worker] = under_way.pop(worker)
            center = center - test_seam.RATE * arrives
    assert test_seam.flat(toy.player.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
    assert len(toy.pushed) == 60 and abs(residuals).max() > 0.01
    assert {tuple(one.push_bytes()) for *_, one in toy.pushed} == {(12, 12)}  # int32 and float64


def test_simulated_workers_at_a_barrier(simulated):
    toy = simulated('Synchronous-SGD', 4, step='1ms', changes=dict(compression='topk:0.5'))
    center, residuals = test_seam.flat(test_simulation.START), np.zeros((4, 3))
    for _ in range(60):
        pushes = [largest_of_each(*each) for each in zip(residuals, center - toy.ms[:, np.newaxis])]
        arrive, residuals = map(np.array, zip(*pushes))
        center = center - test_seam.RATE * arrive.mean(axis=0)
    assert test_seam.flat(toy.player.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
    assert {tuple(one.push_bytes()) for *_, one in toy.pushed} == {(12, 12)}


@pytest.mark.parametrize('folder', briefly(BRIEF, ['HogWild', 'DiLoCo']))
def test_simulated_links_carry_what_is_encoded(simulated, folder):
    """By bf16 6 bytes in place of 24: of three float64. The pull has these and the step, 32 bytes.

    A worker's link takes a second for 1,000 bytes; there is nothing else that takes time.
    """
    def seconds(**changes):
        return simulated(folder, 1, train_steps=10, step='0s', bandwidth='8kbit',
                         changes=changes).clock.now

    assert seconds(compression='bf16') == pytest.approx(10 * (0.032 + 0.006))
    assert seconds() == pytest.approx(10 * (0.032 + 0.024))


# What is refused.

def test_it_is_not_checked_against_plain_tensorflow(checked):
    model = test_check.a_model(test_check.by_get_variable)
    assert checked('HogWild', model, compression='sign') == (
        [], 'check: plain TensorFlow has no --compression=sign: leave it out.')


@pytest.mark.parametrize('name', ['int4', 'topk', 'topk:', 'topk:0', 'topk:1.5', 'topk:-1',
                                  'topk:nan', 'topk:x', 'bf16:2', '', 'powersgd:2'])
def test_a_compression_that_does_not_exist(name):
    with pytest.raises(SystemExit, match='^--compression=[^\n]* there are none, bf16, [^\n]*$'):
        compressors.by_name(name)


def test_a_table_is_refused():
    with tf.Graph().as_default():
        rows = tables.Rows(tf.get_variable('words', [10, 2]))
        scheme = types.SimpleNamespace(network=types.SimpleNamespace(variables=[rows]))
        hparams = types.SimpleNamespace(compression='int8')
        with pytest.raises(SystemExit, match='^--compression=int8: words is a table[.] [^\n]*$'):
            compression.of(scheme, hparams)
        hparams.compression = 'none'
        assert compression.of(scheme, hparams).own == []
