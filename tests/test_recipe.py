"""The recipe of a model in each scheme: schedule, clipping, weight decay, accumulation, rules.

The toy problem: one parameter that starts at 8, gradient x - m, learning rate 1/2. The table of
docs/models.md says what each part of a recipe does in which scheme; here the same is computed in
NumPy, as its cells say, and compared.
"""

import functools
import inspect
import re
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import graphs, local_rules, recipe
from tfdist.scheme.toy import Problem

from conftest import at_once, load_program, ROOT
from processes import examples, TEST
import test_building
from test_building import (a_model, BATCH, begin, by_cells, by_get_variable,
                           by_layers_without_names, by_parts, of_several_dtypes, RATE, scheme_of,
                           SERIAL, with_a_moving_average, with_regularizers)
import test_seam
from test_seam import CASES, defaults, is_together

here, player = test_building.here, test_seam.player  # fixtures
thorough = pytest.mark.thorough


def one_of_them(brief, *others):
    """Returns parameters of a test, of which the first is in `make test`."""
    return [brief, *(pytest.param(other, marks=thorough) for other in others)]


ONE_GRADIENT = one_of_them('HogWild', 'DC-ASGD', 'Distributed-Setup', 'Elastic-Workers',
                           'Parameter-Placement', 'SSP', 'Work-Queue')
WINDOWS = one_of_them('AGN', 'DOWNPOUR-Easy', 'DynSGD', 'Local-SGD')
TOGETHER = one_of_them('Synchronous-SGD', 'Ring-AllReduce', 'Distributed-MNIST',
                       'Synchronous-SGD-different-learning-rates')


def by_examples(examples, step):
    """A schedule: with batches of 32, the factor is 1, 1/1.5, 1/2, 1/2.5, 1/3 ..."""
    del step
    return 1 / (1 + examples / 64)


def by_steps(examples, step):
    """A schedule: the factor is 1, 1/2, 1/3 ..."""
    del examples
    return 1 / (1 + step)


@pytest.fixture
def workers(toy, monkeypatch):
    """A function that makes workers of a folder.

    Args (of the function):
      folder, ms, start: see `toy`.
      optimizer: function of a learning rate, the model's own; or None.
      **parts: of a recipe, or hyperparameters.
    """
    def make(folder, ms=(0,), start=(8.,), optimizer=None, **parts):
        if folder == 'Distributed-MNIST':
            optimizer = tf.train.GradientDescentOptimizer
        monkeypatch.setattr(Problem, 'model_optimizer',
                            lambda self, rate: optimizer and optimizer(rate))
        its_recipe = recipe.Recipe(**{name: parts.pop(name) for name in list(parts)
                                      if name in inspect.signature(recipe.Recipe).parameters})
        changes = dict(learning_rate=0.5, lambda_0=0., moving_rate=0.25, momentum=0.5,
                       communication_window=3, n_fetch=3, n_push=3, is_sync=True, batch_size=32,
                       server_learning_rate=1., initial_accumulator_value=1e-10)
        return toy(folder, ms, start, its_recipe=its_recipe,
                   **dict(defaults(folder), **of_folder(folder, **dict(changes, **parts))))
    return make


def of_folder(folder, **changes):
    """Returns those changes, a dict, that are of hyperparameters of a folder."""
    return {name: value for name, value in changes.items() if name in defaults(folder)}


def centers(made, steps):
    """Returns the first variable after each of some steps, in which all workers take part."""
    found = []
    for _ in range(steps):
        if is_together(made[0].scheme):
            at_once([worker.step for worker in made])
        else:
            for worker in made:
                worker.step()
        found.append(made[0].center())
    return found


# The schedule.

@pytest.mark.parametrize('folder', ONE_GRADIENT)
@pytest.mark.parametrize('parts, expected', [
    # 8 - 8/2; the rate is 1/3: 4 - 4/3; the rate is 1/4: 2/3 of 8/3.
    (dict(schedule=by_examples), [4, 8 / 3, 2]),
    # Each step is of 64 examples: rates 1/2, 1/4, 1/6.
    (dict(schedule=by_examples, accumulate=2), [4, 3, 2.5]),
    (dict(schedule=by_steps), [4, 3, 2.5]),
], ids=['examples', 'accumulate', 'steps'])
def test_schedule(workers, folder, parts, expected):
    assert centers(workers(folder, **parts), 3) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('folder', ONE_GRADIENT)
def test_examples_of_all_workers_count(workers, folder):
    """In turn, they train as one does."""
    first, second = workers(folder, [0, 0], schedule=by_examples)
    assert [(worker.step(), worker.center())[1] for worker in (first, second, first)] == (
        pytest.approx([4, 8 / 3, 2], rel=1e-6))


@pytest.mark.parametrize('folder', TOGETHER)
@pytest.mark.parametrize('accumulate, expected', [
    # 8 - (8 + 4) / 4; 64 examples: 5 - (5 + 1) / 2 * 1/4
    pytest.param(1, [5, 4.25], marks=thorough),
    (2, [5, 5 - 3 / 6])])  # 128 examples: the rate is 1/6
def test_schedule_of_steps_that_all_make_together(workers, folder, accumulate, expected):
    made = workers(folder, [0, 4], schedule=by_examples, accumulate=accumulate)
    assert centers(made, 2) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('folder', WINDOWS)
def test_schedule_moves_within_a_window(workers, folder):
    """Rates 1/2, 1/3, 1/4: from 8 to 4, 8/3 and 2; the next window begins with 2/5 of 1/2.

    Where two workers step together, 64 examples are in each local step: rates 1/2, 1/4, 1/6.
    """
    made = workers(folder, [0, 0] if folder == 'Local-SGD' else [0], schedule=by_examples)
    if folder == 'Local-SGD':  # 8 * 1/2 * 3/4 * 5/6; then rates 1/8, 1/10, 1/12
        expected = [2.5, 2.5 * 7 / 8 * 9 / 10 * 11 / 12]
    elif folder == 'AGN':  # a third of the way
        then = 6 * 4 / 5 * 5 / 6 * 6 / 7  # rates 1/5, 1/6, 1/7
        expected = [8 + (2 - 8) / 3, 6 + (then - 6) / 3]
    else:
        expected = [2, 2 * 4 / 5 * 5 / 6 * 6 / 7]
    assert centers(made, 2) == pytest.approx(expected, rel=1e-6)


@thorough
def test_schedule_of_sagn(workers):
    """Gradients at 8, 4 and 3, by rates 1/2 and 1/4; their mean is 5, by a rate of 1/2."""
    made = workers('SAGN', [0, 0], schedule=by_examples)
    # Then 5.5, by 1/8 of it 4.8125, by 1/10 of it 4.33125; and the mean by 1/8.
    then = 5.5 - (5.5 + 4.8125 + 4.33125) / 3 / 8
    assert centers(made, 2) == pytest.approx([5.5, then], rel=1e-6)


@pytest.mark.parametrize('n_push', [3, pytest.param(1, marks=thorough)])
def test_schedule_of_downpour(workers, n_push):
    """Both rates go down: that of the local steps, and Adagrad's, with each push."""
    worker, = workers('DOWNPOUR', schedule=by_examples, n_push=n_push)
    if n_push == 3:  # a run of a push; in the second one, factors are 1/2.5, 1/3, 1/3.5
        sums = [8 + 4 + 8 / 3, 7 + 7 * 4 / 5 + 7 * 4 / 5 * 5 / 6]
        expected = [7, 7 - sums[1] / np.hypot(*sums) / 2.5]
    else:  # a run of three pushes, each a factor further
        squares = 8 ** 2 + np.array([0, 4 ** 2, 4 ** 2 + (8 / 3) ** 2])
        expected = [8 - sum(np.array([8, 4 / 1.5, 8 / 3 / 2]) / squares ** 0.5)]
    assert centers([worker], len(expected)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('folder, x', [
    ('AEASGD', 2),    # 8 to 4 by 1/2, to 8/3 by 1/3, to 2 by 1/4
    # u is -4, x is 4; at 4 - 2 the gradient is 2: -2 - 2/3, x is 4/3; at 0 it is 0: -4/3.
    pytest.param('AEAMSGD', 0, marks=thorough)])
def test_schedule_on_a_replica(workers, folder, x):
    worker, = workers(folder, schedule=by_examples)
    worker.step()
    assert worker.session.run(worker.scheme.replica) == [pytest.approx(x, abs=1e-6)]


# Clipping.

@pytest.mark.parametrize('folder', ONE_GRADIENT)
@pytest.mark.parametrize('parts, start, expected', [
    # Gradient (3, 4) of length 5: (1.5, 2). Then (2.25, 3), of length 3.75: the same. Then it is
    # of length 2.5.
    (dict(clip_norm=2.5), (3., 4.), [2.25, 1.5, 0.75]),
    (dict(clip_value=2), (8.,), [7, 6, 5]),
    # By value (3, 4), and then by its length. The other way round it would be (0.8, 2.4).
    (dict(clip_value=4, clip_norm=2.5), (3., 9.), [2.25]),
    # The mean of 8 and 4 is 6; that of the clipped ones would be 4.5.
    (dict(clip_value=5, m=[0, 4], accumulate=2), (8.,), [5.5]),
], ids=['norm', 'value', 'both', 'accumulate'])
def test_clipping(workers, folder, parts, start, expected):
    parts = dict(parts)
    made = workers(folder, [parts.pop('m', 0)], start, **parts)
    assert centers(made, len(expected)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('folder', TOGETHER)
@pytest.mark.parametrize('parts', [dict(clip_value=5), dict(clip_norm=5)], ids=['value', 'norm'])
def test_clipping_of_steps_that_all_make_together(workers, folder, parts):
    """Gradients 8 and 4: their mean is 6, clipped 5. The mean of the clipped ones is 4.5."""
    clipped = 4.5 if 'different' in folder else 5
    assert centers(workers(folder, [0, 4], **parts), 1) == [8 - clipped / 2]


@thorough
def test_backup_workers_make_no_difference_to_that(workers):
    """The first of two that push 8 and 4; the other one comes too late."""
    first, _ = workers('Synchronous-SGD', [0, 4], clip_value=5, weight_decay=0.25,
                       replicas_to_aggregate=1, train_steps=1)
    first.step()
    assert first.center() == 8 - 5 / 2 - 1


@pytest.mark.parametrize('folder', [
    *WINDOWS, *(pytest.param(folder, marks=thorough) for folder in
                ('SAGN', 'DOWNPOUR', 'AEASGD', 'AEAMSGD'))])
def test_clipping_of_each_local_gradient(workers, folder):
    """From 8 to 7, 6 and 5, or in two dimensions from 3 to 2.25, 1.5 and 0.75; see above."""
    made = workers(folder, [0, 0] if folder in ('SAGN', 'Local-SGD') else [0], clip_value=2)
    if folder == 'DOWNPOUR':  # pushes 6 and again 6
        assert centers(made, 2) == pytest.approx([7, 7 - 6 / 72 ** 0.5], rel=1e-6)
    elif folder == 'AEASGD':
        made[0].step()
        assert made[0].session.run(made[0].scheme.replica) == [5]
    elif folder == 'AEAMSGD':  # u is -1, then -1.5, then -1.75
        made[0].step()
        assert made[0].session.run(made[0].scheme.replica) == [3.75]
    else:
        assert centers(made, 1) == [7 if folder in ('AGN', 'SAGN') else 5]
        made = workers(folder, [0] * len(made), (3., 4.), clip_norm=2.5)
        assert centers(made, 1) == [2.25 if folder in ('AGN', 'SAGN') else 0.75]


# Weight decay.

@pytest.mark.parametrize('folder', ONE_GRADIENT)
def test_weight_decay(workers, folder):
    """8 - 8/2 - 8/8; then 3/8 of it. With a schedule both have rates of 1/3."""
    made = workers(folder, weight_decay=0.25)
    assert centers(made, 2) == [3, 1.125]
    made = workers(folder, weight_decay=0.25, schedule=by_examples)
    assert centers(made, 2) == pytest.approx([3, 3 - 1 - 0.25], rel=1e-6)


@pytest.mark.parametrize('folder', ONE_GRADIENT)
def test_what_decays_when_a_push_is_late(workers, folder):
    """Both pull 8. The second push finds 3: 3/8 of it go; or an eighth of 8."""
    first, second = workers(folder, [0, 0], weight_decay=0.25)
    pulled = [worker.pull() for worker in (first, second)]
    for worker, values in zip((first, second), pulled):
        worker.push(values)
    as_read = folder == 'Parameter-Placement'
    assert first.center() == 3 - 4 - (1 if as_read else 3 / 8)


@pytest.mark.parametrize('folder', TOGETHER)
def test_weight_decay_of_steps_that_all_make_together(workers, folder):
    """8 - 6/2 - 8/8; then 4 - 2/2 - 4/8."""
    assert centers(workers(folder, [0, 4], weight_decay=0.25), 2) == [4, 2.5]


@pytest.mark.parametrize('folder', [*WINDOWS, pytest.param('SAGN', marks=thorough)])
def test_weight_decay_of_local_steps(workers, folder):
    """Each of them leaves 3/8: 3, 9/8 and 27/64. SAGN's center decays by its own step."""
    made = workers(folder, [0, 0] if folder in ('SAGN', 'Local-SGD') else [0], weight_decay=0.25)
    x = 27 / 64
    expected = {'AGN': 8 + (x - 8) / 3, 'SAGN': 8 - (8 + 3 + 9 / 8) / 3 / 2 - 1}.get(folder, x)
    assert centers(made, 1) == [pytest.approx(expected, rel=1e-6)]


@thorough
def test_weight_decay_of_downpour(workers):
    """Adagrad's first step is 1, its rate; it decays 8 by 1/4. The second one is of 12.125 again.

    5 to 15/8 and 45/64.
    """
    sums = [8 + 3 + 9 / 8, 5 + 15 / 8 + 45 / 64]
    then = 5 - sums[1] / np.hypot(*sums) - 5 / 4
    assert centers(workers('DOWNPOUR', weight_decay=0.25), 2) == pytest.approx([5, then], rel=1e-6)


@thorough
@pytest.mark.parametrize('folder, x', [
    ('AEASGD', 27 / 64),
    # u is -4, x is 7 - 4; at 3 - 2 it is 1: u is -2.5, x is 2.625 - 2.5; at 0.125 - 1.25 it is
    # -1.125: u is -1.25 + 0.5625, x is 0.109375 - 0.6875.
    ('AEAMSGD', -0.578125)])
def test_weight_decay_on_a_replica(workers, folder, x):
    worker, = workers(folder, weight_decay=0.25)
    worker.step()
    assert worker.session.run(worker.scheme.replica) == [x]


@pytest.mark.parametrize('folder', [
    'HogWild', *(pytest.param(folder, marks=thorough) for folder in
                 ('AGN', 'Synchronous-SGD', 'DC-ASGD', 'Parameter-Placement', 'AEAMSGD'))])
def test_what_decays_has_a_name(workers, folder):
    asked = []

    def decays(name):
        asked.append(name)
        return name == 'x1'

    made = workers(folder, start=(8., 8.), weight_decay=0.25, decays=decays)
    centers(made, 1)
    where = made[0].scheme.replica if folder == 'AEAMSGD' else made[0].variables
    first, second = made[0].session.run(where)
    alone, = workers(folder)
    centers([alone], 1)
    where = alone.scheme.replica if folder == 'AEAMSGD' else alone.variables
    assert [first] == alone.session.run(where) and second < first
    assert set(asked) == {'x0', 'x1'}


@pytest.mark.parametrize('optimizer, first, second', [
    # u is 8, then 3 and 4.
    (lambda rate: tf.train.MomentumOptimizer(rate, 0.5), 8, 7),
    # Adam's first step is 1. Then it has m, of 8 and 6.5, and v, of their squares.
    pytest.param(tf.train.AdamOptimizer, 1, (0.09 * 8 + 0.1 * 6.5) / 0.19 / np.sqrt(
        (0.000999 * 8 ** 2 + 0.001 * 6.5 ** 2) / 0.001999), marks=thorough)],
    ids=['momentum', 'adam'])
def test_weight_decay_beside_an_optimizer(workers, optimizer, first, second):
    """It is neither in the velocity nor in the moments: 8 - 8/2 - 1, or 8 - 1/2 - 1."""
    x = 8 - first / 2 - 1
    assert centers(workers('HogWild', optimizer=optimizer, weight_decay=0.25), 2) == pytest.approx(
        [x, x - second / 2 - x / 8], rel=1e-4)


@pytest.mark.parametrize('folder', one_of_them('Synchronous-SGD', 'SAGN'))
def test_nothing_decays_before_all_gradients_are_there(player, folder):
    """Else workers that come later would compute theirs on what has decayed already."""
    scheme = player(folder, its_recipe=recipe.Recipe(weight_decay=0.25)).scheme
    before = graphs.ancestors([scheme.complete])
    takes = {op for op in before if op.type.endswith('AccumulatorTakeGradient')}
    decays = [op for op in before if op.type == 'AssignSubVariableOp']
    assert len(decays) == len(takes) == 1
    assert takes <= graphs.ancestors(decays)


# All of it, in all schemes: as the cells of the table say.

MOMENTUM, WINDOW, EXAMPLES, DECAY = 0.5, 3, 16 * 2, 0.125
RULE_RATE = test_seam.RATE
START, DECAYS = [1., [0.5, -1.]], np.array([0, 1, 1])  # of the second variable


def slowly(examples, step):
    return 1 / (1 + examples / 512 + step / 8)


def clipped(gradient):
    gradient = np.clip(gradient, -2, 2)
    return gradient / max(1, np.linalg.norm(gradient))


ALL = dict(schedule=slowly, clip_value=2, clip_norm=1, weight_decay=DECAY,
           decays=lambda name: not name.endswith('x0'))


class Numpy:
    """A scheme in NumPy: one gradient in each step, which counts by itself.

    Attributes:
      cells: dict of the table's cells, strings, by the head of their column.
      center: vector of float64.
    """

    window, at_once = 1, False

    def __init__(self, cells, ms):
        self.cells, self.ms = cells, ms
        self.center, self.step = np.array([1., 0.5, -1.]), 0
        self.velocity = 0.
        self.kept = [self.at_first() for _ in ms]

    def at_first(self):
        """Returns what a worker keeps: the velocity of its local rule."""
        return 0.

    def factor(self, part, done=0, step=None):
        """Returns the schedule's factor, if a part is scheduled: 'update' or 'local steps'."""
        if part not in self.cells['schedule']:
            return 1
        step = self.step if step is None else step
        workers = len(self.ms) if self.at_once else 1
        return slowly((step * self.window + done) * workers * EXAMPLES, step)

    def gradient(self, worker, x):
        gradient = x - self.ms[worker]
        return clipped(gradient) if self.cells['clipping'] == 'each gradient' else gradient

    def decay(self, part, x):
        return DECAY * DECAYS * x if part in self.cells['weight decay'] else 0

    def through_window(self, worker, x, step):
        """Returns where a window leads, and the sum of its gradients."""
        total = 0
        for t in range(self.window):
            gradient = self.gradient(worker, x)
            total = total + gradient
            if self.cells['`local_rule`'] == 'used':
                self.kept[worker] = MOMENTUM * self.kept[worker] + gradient
                gradient = self.kept[worker]
            rate = RULE_RATE * self.factor('local steps', t, step)
            x = x - rate * (gradient + self.decay('local steps', x))
        return x, total

    def compute(self, worker, x, step):
        """Returns what a worker pushes that has pulled x in a step."""
        return self.gradient(worker, x)

    def push(self, pushed, x, staleness=0):
        """Changes the center by what a worker pushes that has pulled x, or by a mean."""
        if self.cells['clipping'] == 'mean gradient':
            pushed = clipped(pushed)
        if self.cells['`optimizer`'] == 'used':
            self.velocity = pushed = MOMENTUM * self.velocity + pushed
        self.move(RULE_RATE * self.factor('update'), pushed)

    def move(self, rate, step):
        self.center = self.center - rate * (step + self.decay('update', self.center))


class Together(Numpy):
    at_once = True


class AsRead(Numpy):
    def compute(self, worker, x, step):
        assert 'of what was read' in self.cells['weight decay']
        return RULE_RATE * self.factor('update', step=step) * (
            self.gradient(worker, x) + self.decay('update', x))

    def push(self, pushed, x, staleness=0):
        self.center = self.center - pushed


class AsReadTogether(AsRead):
    at_once = True


class Corrected(Numpy):
    def push(self, pushed, x, staleness=0):
        super().push(pushed + 0.125 * pushed ** 2 * (self.center - x), x)


class Sum(Numpy):
    window = WINDOW

    def compute(self, worker, x, step):
        return self.through_window(worker, x, step)[0] - x

    def push(self, pushed, x, staleness=0):
        self.center = self.center + pushed


class SumTogether(Sum):
    at_once = True


class SumTogetherWithMomentum(SumTogether):
    def push(self, pushed, x, staleness=0):
        self.velocity = MOMENTUM * self.velocity + pushed
        self.center = self.center + 0.75 * (pushed + MOMENTUM * self.velocity)


class Mean(Sum):
    def compute(self, worker, x, step):
        return super().compute(worker, x, step) / WINDOW


class LessIfStale(Sum):
    def push(self, pushed, x, staleness=0):
        super().push(pushed / (staleness + 1), x)


class MeanGradientTogether(Numpy):
    window, at_once = WINDOW, True

    def compute(self, worker, x, step):
        return self.through_window(worker, x, step)[1] / WINDOW


class Adagrad(Numpy):
    window, squares = WINDOW, 0.25

    def compute(self, worker, x, step):
        return self.through_window(worker, x, step)[1]

    def push(self, pushed, x, staleness=0):
        self.squares = self.squares + pushed ** 2
        self.move(0.125 * self.factor('update'), pushed / np.sqrt(self.squares))


class Replica(Sum):
    def at_first(self):
        """Returns the replica and its velocity."""
        return self.center, 0.

    def compute(self, worker, x, step):
        y, u = self.kept[worker]
        elastic = 0.25 * (y - x)
        x = y - elastic
        for t in range(WINDOW):
            rate = RULE_RATE * self.factor('local steps', t, step)
            u, moved = self.moved(worker, y, u, rate)
            x = y = x - rate * self.decay('local steps', x) + moved
        self.kept[worker] = x, u
        return elastic

    def moved(self, worker, y, u, rate):
        """Returns the velocity after a local step, and by how much it moves the replica."""
        u = u * MOMENTUM * (self.cells['`local_rule`'] == 'used') + self.gradient(worker, y)
        return u, -rate * u


class ReplicaWithMomentum(Replica):
    def moved(self, worker, y, u, rate):
        u = MOMENTUM * u - rate * self.gradient(worker, y + MOMENTUM * u)
        return u, u


def table():
    """Returns the rows of the page's table: dicts of cells by the head of their column, by name."""
    text = (ROOT / 'docs' / 'models.md').read_text(encoding='utf-8')
    section, = re.findall(r'^## Recipe\n(.*?)^## ', text, re.DOTALL | re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.strip('|').split('|')]
                      for line in section.splitlines() if line.startswith('|')]
    return {name: dict(zip(head[1:], row[1:])) for row in rows for name in row[0].split(', ')}


IN_NUMPY = {
    'AEAMSGD': ReplicaWithMomentum, 'AEASGD': Replica, 'AGN': Mean, 'DC-ASGD': Corrected,
    'DOWNPOUR': Adagrad, 'DOWNPOUR-Easy': Sum, 'DiLoCo': SumTogetherWithMomentum,
    'Distributed-MNIST': Numpy,
    'Distributed-MNIST with `--is_sync`': Together, 'Distributed-Setup': Numpy,
    'DynSGD': LessIfStale, 'Elastic-Workers': Numpy, 'HogWild': Numpy,
    'In-Graph-Replication': Together, 'In-Graph-Replication with `--mode=async`': Numpy,
    'Local-SGD': SumTogether, 'Multiple-GPUs-Single-Machine': Together,
    'Multiple-GPUs-Single-Machine with threads': Numpy, 'Non-Distributed-Setup': Numpy,
    'Parameter-Placement': AsRead, 'Ring-AllReduce': Together, 'SAGN': MeanGradientTogether,
    'SSP': Numpy, 'Synchronous-SGD': Together,
    'Synchronous-SGD-different-learning-rates': AsReadTogether, 'Work-Queue': Numpy,
}
ITS_OWN = 'Non-Distributed-Setup', 'In-Graph-Replication', 'Multiple-GPUs-Single-Machine'


def test_the_table_has_all_folders():
    """And the README of each says what a recipe does there."""
    # Clients of FedAvg take turns, and Gossip has no center: they have tests of their own.
    assert set(table()) == {*IN_NUMPY, 'FedAvg', 'Gossip', 'Model-Parallel'}
    assert {name.split(' ')[0] for name in table()} == set(examples())
    assert set(table()['Model-Parallel'].values()) == {'—'}
    for folder in examples():
        text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
        assert '#recipe)' in text, folder


@pytest.fixture
def momentum(monkeypatch):
    """Gives toy problems an optimizer and a local rule with momentum."""
    monkeypatch.setattr(Problem, 'model_optimizer',
                        lambda self, rate: tf.train.MomentumOptimizer(rate, MOMENTUM))
    monkeypatch.setattr(Problem, 'model_rule',
                        lambda self, rate: local_rules.Momentum(rate, MOMENTUM))


SETTINGS = dict(batch_size=16, accumulate=2, communication_window=WINDOW, n_fetch=WINDOW,
                n_push=WINDOW, lambda_0=0.125, moving_rate=0.25, momentum=MOMENTUM,
                server_learning_rate=0.125, initial_accumulator_value=0.25,
                outer_learning_rate=0.75, outer_momentum=MOMENTUM)


@pytest.mark.usefixtures('momentum')
@pytest.mark.parametrize('name', [
    name if name in ('Synchronous-SGD', 'SAGN', 'AEASGD') else
    pytest.param(name, marks=thorough) for name in sorted(IN_NUMPY)
    if not name.startswith(ITS_OWN)])
def test_all_of_it(player, name):
    """Two workers with different data; both pull before one of them pushes."""
    ms = [-2., 6.]
    same = IN_NUMPY[name](table()[name], ms)
    folder = name.split(' ')[0]
    played = player(folder, ms, START, [tf.float64], its_recipe=recipe.Recipe(**ALL), **of_folder(
        folder, is_sync=name.endswith('`--is_sync`'), **SETTINGS))
    for _ in range(3):
        center, step = same.center, same.step
        pushes = [same.compute(worker, center, step) for worker in range(2)]
        if is_together(played.scheme):
            played.together()
            same.push(np.mean(pushes, axis=0), center)
            same.step += 1
        else:
            pulled = played.pull()
            pushed = [played.compute(worker, pulled)[0] for worker in range(2)]
            for worker in range(2):
                played.push(worker, pulled, pushed[worker])
                same.push(pushes[worker], center, staleness=worker)
                same.step += 1
        assert test_seam.flat(played.center()) == pytest.approx(same.center, rel=1e-6, abs=1e-7)


def steps_of(name, problems, hparams):
    """Returns the train ops of a folder with a scheme of its own: of both workers, or together."""
    step, devices = tf.train.get_or_create_global_step(), ['/device:CPU:0'] * 2
    folder, together = name.split(' ')[0], ' ' not in name
    if folder == 'Non-Distributed-Setup':
        program = load_program(folder, 'train')
        return [program.Scheme(problems[0], step, hparams, 0, 1).train_op]
    if folder == 'In-Graph-Replication':
        hparams.mode = 'sync' if together else 'async'
        return load_program(folder, 'train').Scheme(
            problems[:1] if together else problems, devices, step, hparams).train_ops
    program = load_program(folder, 'towers' if together else 'threads')
    towers = program if together else program.towers
    networks = problems[:1] * 2 if together else problems
    for network in networks:
        network.set_pace(step, hparams, 2 if together else 1)
    made = towers.build_towers(networks, devices, towers.local_placement, together)
    return [program.make_step(made, step, hparams)] if together else program.make_steps(
        made, step, hparams)


@pytest.mark.usefixtures('momentum')
@pytest.mark.parametrize('name', [
    name if name == 'Multiple-GPUs-Single-Machine' else pytest.param(name, marks=thorough)
    for name in sorted(IN_NUMPY) if name.startswith(ITS_OWN)])
def test_all_of_it_in_one_program(name):
    """The same for schemes that have no worker.py, or more than one worker in it."""
    alone = name == 'Non-Distributed-Setup'
    ms = [-2.] if alone else [-2., 6.]
    same, together = IN_NUMPY[name](table()[name], ms), IN_NUMPY[name] is Together
    hparams = types.SimpleNamespace(learning_rate=RULE_RATE, decay_rate=1., decay_steps=1,
                                    use_locking=False, batch_size=16, accumulate=2)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(f'x{i}', initializer=tf.constant(value))
                     for i, value in enumerate(START)]

        def problem(*its_ms):
            fresh = iter(np.repeat(its_ms, 2))  # each for two batches
            return Problem(lambda values, fresh=fresh: (
                functools.partial(half_squares, next(fresh))(values), tf.constant(0.)),
                variables, recipe.Recipe(**ALL))

        problems = [problem(*ms)] if together else [problem(m) for m in ms]
        ops = steps_of(name, problems, hparams)
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            for worker, op in enumerate(ops):
                session.run(op)
                same.push(np.mean([same.gradient(each, same.center) for each in (
                    range(2) if together else [worker])], axis=0), same.center)
                same.step += 1
            assert test_seam.flat(session.run(variables)) == pytest.approx(
                same.center, rel=1e-5, abs=1e-6)


def half_squares(m, values):
    return sum(tf.reduce_sum(tf.square(value - m)) / 2 for value in values)


@pytest.mark.usefixtures('momentum')
@pytest.mark.parametrize('folder', one_of_them(
    'HogWild', 'DOWNPOUR', 'DC-ASGD', 'Parameter-Placement', 'Ring-AllReduce', 'Synchronous-SGD'))
def test_who_feeds_a_push_has_nothing_computed(player, folder):
    """Also if nothing is between what is fed and the update, as with one variable."""
    scheme = player(folder, start=[8.], its_recipe=recipe.Recipe(**dict(ALL, decays=None)),
                    **of_folder(folder, n_fetch=3, n_push=1)).scheme
    given = scheme.pull + scheme.stamps + scheme.sums
    for _, arrived, push in scheme.pushes or [(None, scheme.pushed, scheme.push)]:
        types_of = {op.type for op in test_seam.needed(push, given + arrived)}
        assert 'PyFunc' not in types_of and len(types_of) > 3
    assert 'PyFunc' in {op.type for op in test_seam.needed(scheme.train_op, [])}


@thorough
@pytest.mark.usefixtures('momentum')
@pytest.mark.parametrize('folder, changes', CASES)
def test_each_part_of_a_push_with_a_recipe_does_its_own(player, folder, changes):
    changes = of_folder(folder, **dict(SETTINGS, **changes, accumulate=1))
    test_seam.test_each_part_does_its_own(
        functools.partial(player, its_recipe=recipe.Recipe(**ALL)), folder, changes)


@pytest.mark.usefixtures('momentum')
@thorough
@pytest.mark.parametrize('folder, changes', CASES)
def test_parts_do_what_training_with_a_recipe_does(toy, player, folder, changes):
    changes = of_folder(folder, **dict(SETTINGS, **changes))
    test_seam.test_parts_do_what_training_does(
        *(functools.partial(make, its_recipe=recipe.Recipe(**ALL)) for make in (toy, player)),
        folder, changes)


@thorough
@pytest.mark.parametrize('folder, changes', CASES)
def test_dtypes(player, folder, changes):
    """Variables of all of them in one model: they are trained as those of float64 are."""
    changes = dict(of_folder(folder, **dict(SETTINGS, **changes)), its_recipe=recipe.Recipe(**ALL))
    numbers = []
    for dtypes in [tf.float64], [tf.float64, tf.float32, tf.float16]:
        played = player(folder, [-2.], [[1., 3.], [2., -1.], [[3.]]], dtypes, **changes)
        test_seam.train(played, 3)
        numbers.append(test_seam.flat(played.center()))
    # Where float16 starts, at 3, its numbers are 0.002 apart.
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-2, abs=4e-3)
    assert numbers[1][:4] == pytest.approx(numbers[0][:4], rel=1e-2)


# Accumulation.

def begin_without_slots(session):
    """Is `begin`, but slots of an optimizer begin as it wants them, and replicas as the center."""
    session.run(tf.global_variables_initializer())
    begin(session)
    session.run([tf.local_variables_initializer()] + [
        variable.initializer for variable in tf.global_variables()
        if re.search('Ada|beta._power', variable.name)])


def run_of(folder, model, steps, **changes):
    """Returns all variables after some runs of a scheme with one worker on a model."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        scheme, _ = scheme_of(folder, model, **changes)
        begin_without_slots(session)
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        for _ in range(steps):
            session.run(scheme.train_op)
        return {variable.op.name: session.run(variable) for variable in tf.global_variables()
                if 'clocks' not in variable.name}


REAL = dict(schedule=lambda examples, step: 1 / (1 + examples / 50), clip_norm=0.5, clip_value=0.3,
            weight_decay=0.1, decays=lambda name: name.split('/')[-1] not in ('b', 'table'))


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function', one_of_them(
    with_regularizers, by_cells, of_several_dtypes), ids=lambda function: function.__name__)
@pytest.mark.parametrize('folder, changes', [
    case if case.id == 'HogWild' else pytest.param(*case.values, marks=thorough)
    for case in CASES])
def test_accumulated_batches_are_one_large_batch(folder, changes, function):
    """Clipped after the mean; regularizers count once; and a row may be in several batches."""
    model = a_model(function, RECIPE=recipe.Recipe(**REAL))
    if 'aggregate' in changes and function is by_cells:  # it has a table
        with pytest.raises(SystemExit, match='^--aggregate: of the table table '):
            run_of(folder, model, 4, **changes)
        return
    changes = dict(changes, communication_window=2, n_fetch=2, n_push=2)
    large, small = [run_of(folder, model, 4, batch_size=BATCH // accumulate, accumulate=accumulate,
                           **changes) for accumulate in (1, 3)]
    assert len(large) == len(small) > 2
    for name in large:
        np.testing.assert_allclose(small[name], large[name], rtol=2e-6, atol=1e-6, err_msg=name)


@thorough
@pytest.mark.usefixtures('here')
def test_batch_norm_takes_each_batch_by_itself():
    """Moving averages follow them in order; so it is not a large batch."""
    def normalizing(batch, training):
        units = tf.layers.batch_normalization(batch['x'], momentum=0.75, training=training)
        return test_building.error(units, batch)

    model = a_model(normalizing)
    start = run_of('HogWild', model, 0)['batch_normalization/moving_mean']
    small = run_of('HogWild', model, 1, batch_size=3, accumulate=2)
    first, second = np.reshape(test_building.examples()['x'][:6], [2, 3, -1]).mean(axis=1)
    np.testing.assert_allclose(small['batch_normalization/moving_mean'],
                               0.75 * (0.75 * start + 0.25 * first) + 0.25 * second, rtol=1e-5)
    large = run_of('HogWild', model, 1, batch_size=6)
    assert abs(small['batch_normalization/gamma'] - large['batch_normalization/gamma']).max() > 1e-3


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder, count', [('HogWild', 3), pytest.param(
    'DOWNPOUR-Easy', 6, marks=thorough)])
def test_only_one_batch_has_its_activations_in_memory(folder, count):
    """The forward pass of a batch waits for the backward pass of the one before it in its step."""
    _, network = scheme_of(folder, a_model(by_layers_without_names), accumulate=3,
                           communication_window=2)
    losses = [graphs.ancestors([loss]) for loss in network._losses]
    assert len(losses) == count
    for i in range(count):
        if i % 3 == 0:  # a local step begins
            continue
        before, loss = losses[i - 1], losses[i]
        products = [op for op in loss - before if op.type == 'MatMul']
        backward = {op for op in products if op.name.startswith('gradients')}
        forward = set(products) - backward
        assert len(forward) == 3 and len(backward) == 5  # none for the gradient of the batch
        for op in forward:
            assert backward <= graphs.ancestors([op.outputs[0]])


# In plain TensorFlow.

def in_plain_tensorflow(function, optimizer=tf.train.GradientDescentOptimizer, accumulate=2,
                        start=begin_without_slots):
    """Returns all variables after 20 steps by a loop in which each part of REAL is written out."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        batch, = test_building.train_batches(BATCH, 1)
        loss, _ = function(batch, True)
        loss += tf.losses.get_regularization_loss()
        variables, rate = tf.trainable_variables(), tf.placeholder(tf.float32, [])
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            gradients = [tf.identity(gradient) for gradient in map(
                tf.convert_to_tensor, tf.gradients(loss, variables))]
        means = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                 for variable in variables]
        clipped, _ = tf.clip_by_global_norm([tf.clip_by_value(mean, -0.3, 0.3) for mean in means],
                                            0.5)
        decays = [variable.assign_sub(tf.cast(rate * 0.1, variable.dtype.base_dtype) * variable)
                  for variable in variables if REAL['decays'](variable.op.name)]
        with tf.control_dependencies(decays):
            step = optimizer(rate).apply_gradients(zip(clipped, variables))
        session.run(tf.tables_initializer())
        start(session)
        for t in range(20):
            pulled = [session.run(gradients) for _ in range(accumulate)]
            fed = {mean: np.mean(each, axis=0) for mean, each in zip(means, zip(*pulled))}
            fed[rate] = RATE / (1 + t * accumulate * BATCH / 50)
            session.run(step, fed)
        return {variable.op.name: session.run(variable) for variable in tf.global_variables()}


@functools.lru_cache(maxsize=None)
def expected(function, optimizer=tf.train.GradientDescentOptimizer):
    return in_plain_tensorflow(function, optimizer)


def compare(found, there):
    """Asserts that all variables of plain TensorFlow, but for its global step, are the same."""
    there = dict(there)
    del there['global_step']
    assert set(there) <= set(found)
    for name in there:
        np.testing.assert_allclose(found[name], there[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function', one_of_them(
    by_get_variable, by_parts, by_cells, with_regularizers, with_a_moving_average),
    ids=lambda function: function.__name__)
@pytest.mark.parametrize('folder', one_of_them('HogWild', *sorted(set(SERIAL) - {'HogWild'})))
def test_one_worker_does_what_plain_tensorflow_does(folder, function):
    model = a_model(function, RECIPE=recipe.Recipe(**REAL))
    found = run_of(folder, model, 20 // SERIAL[folder], accumulate=2)
    compare(found, expected(function))


@thorough
@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', ['HogWild', 'Synchronous-SGD', 'Ring-AllReduce',
                                    'Distributed-MNIST', 'Work-Queue'])
def test_so_it_does_by_the_optimizer_of_the_model(folder):
    model = a_model(by_get_variable, RECIPE=recipe.Recipe(**REAL),
                    optimizer=tf.train.AdamOptimizer)
    found = run_of(folder, model, 20, accumulate=2)
    compare(found, expected(by_get_variable, tf.train.AdamOptimizer))


@thorough
@pytest.mark.usefixtures('here')
def test_it_takes_less_memory_than_a_large_batch(monkeypatch):
    """By the records of what a run allocates, and frees."""
    def deep(batch, training):
        del training
        units = batch
        for _ in range(8):
            units = tf.layers.dense(units, 256, tf.nn.tanh)
        return tf.reduce_mean(tf.square(units)), {}

    def peak(accumulate):
        model = a_model(deep)
        model.train_batches = lambda size, count: [
            tf.random_normal([size, 64]) for _ in range(count)]
        with tf.Graph().as_default(), tf.Session() as session:
            tf.train.get_or_create_global_step()
            scheme, _ = scheme_of('HogWild', model, accumulate=accumulate,
                                  batch_size=4096 // accumulate)
            begin(session)
            trace = tf.RunMetadata()
            session.run(scheme.train_op, options=tf.RunOptions(
                trace_level=tf.RunOptions.FULL_TRACE), run_metadata=trace)
        changes = sorted((record.alloc_micros, record.alloc_bytes)
                         for device in trace.step_stats.dev_stats for node in device.node_stats
                         for memory in node.memory for record in memory.allocation_records)
        return max(np.cumsum([number for _, number in changes]))

    assert peak(4) < 0.6 * peak(1)


# Local rules.

def lion():
    """Returns the rule that the page has, as a class."""
    text = (ROOT / 'docs' / 'models.md').read_text(encoding='utf-8')
    source, = re.findall(r'```python\n(from [^`]*class Lion.*?)```', text, re.DOTALL)
    module = types.ModuleType('model')
    module.tf = tf
    exec(source, module.__dict__)
    assert module.local_rule is module.Lion
    return module.Lion


GRADIENTS = np.random.RandomState(0).normal(size=(12, 2, 3)).astype(np.float32)


def by_rule(rule, its_recipe=None):
    """Returns the values after each of three windows of four steps with these gradients."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable('x', initializer=tf.ones([2, 3]))
        rule.begin([variable], its_recipe)
        values, gradients = [variable.read_value()], tf.placeholder(tf.float32, [4, 2, 3])
        for gradient in tf.unstack(gradients):
            values = rule.step(values, [gradient])
        with tf.control_dependencies([rule.keep()]):
            run = variable.assign(values[0])
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return [session.run(run, {gradients: window}) for window in np.split(GRADIENTS, 3)]


def by_optimizer(optimizer):
    """Is `by_rule` for an optimizer of TensorFlow."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable('x', initializer=tf.ones([2, 3]))
        gradient = tf.placeholder(tf.float32, [2, 3])
        step = optimizer.apply_gradients([(gradient, variable)])
        session.run(tf.global_variables_initializer())
        found = [session.run([step, variable.read_value()], {gradient: each}) and
                 session.run(variable) for each in GRADIENTS]
        return found[3::4]


def adam_w(decay):
    """Is `by_rule` in NumPy."""
    x, m, v, found = 1, 0, 0, []
    for t, gradient in enumerate(GRADIENTS.astype(float), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient ** 2
        step = m / (1 - 0.9 ** t) / (np.sqrt(v / (1 - 0.99 ** t)))
        x = x - 0.1 * step - 0.1 * decay * x
        found.append(x)
    return found[3::4]


def signs_of_means():
    x, mean, found = 1, 0, []
    for gradient in GRADIENTS.astype(float):
        x, mean = x - 0.1 * np.sign(0.9 * mean + 0.1 * gradient), 0.99 * mean + 0.01 * gradient
        found.append(x)
    return found[3::4]


@pytest.mark.parametrize('rule, expected', [
    (lambda: local_rules.Sgd(0.1), lambda: by_optimizer(tf.train.GradientDescentOptimizer(0.1))),
    (lambda: local_rules.Momentum(0.1, 0.75),
     lambda: by_optimizer(tf.train.MomentumOptimizer(0.1, 0.75))),
    (lambda: local_rules.Nesterov(0.1),
     lambda: by_optimizer(tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True))),
    (lambda: local_rules.Adam(0.1), lambda: by_optimizer(tf.train.AdamOptimizer(0.1))),
    (lambda: local_rules.Adam(0.1, 0.5, 0.75, 0.125),
     lambda: by_optimizer(tf.train.AdamOptimizer(0.1, 0.5, 0.75, 0.125))),
    (lambda: local_rules.AdamW(0.1, 0.25, beta2=0.99), lambda: adam_w(0.25)),
    (lambda: lion()(0.1), signs_of_means),
], ids=['sgd', 'momentum', 'nesterov', 'adam', 'adam of other numbers', 'adamw', 'lion'])
def test_twelve_steps_of_a_local_rule(rule, expected):
    """In windows of four, from which it keeps its slots; and with a recipe's weight decay."""
    np.testing.assert_allclose(by_rule(rule()), expected(), rtol=1e-4, atol=1e-5)


def test_adam_with_the_decay_of_a_recipe_is_adamw():
    decayed = by_rule(local_rules.Adam(0.1, beta2=0.99), recipe.Recipe(weight_decay=0.25))
    np.testing.assert_allclose(decayed, adam_w(0.25), rtol=1e-4, atol=1e-5)
    both = by_rule(local_rules.AdamW(0.1, 0.125, beta2=0.99), recipe.Recipe(weight_decay=0.125))
    np.testing.assert_allclose(both, adam_w(0.25), rtol=1e-4, atol=1e-5)


class ByItself(local_rules.AdamW):
    """AdamW of each variable by itself: whether variables are packed is not inherited."""


def of_several(kind, its_recipe):
    """Returns how many slots a rule has, a class; and variables after two windows of two steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        random = np.random.RandomState(0)
        variables = [tf.get_variable(f'x{i}', initializer=random.normal(size=shape).astype(dtype),
                                     constraint=constraint) for i, (shape, dtype, constraint)
                     in enumerate([((2, 3), 'f4', None), ((), 'f8', None), ((200, 100), 'f4', None),
                                   ((7,), 'f4', tf.abs), ((), 'f4', None), ((4,), 'f8', None)])]
        rule = kind(0.1, 0.25)
        rule.begin(variables, its_recipe)
        values = [variable.read_value() for variable in variables]
        for step in 1, 2:
            values = rule.step(values, [tf.sin(step * value) for value in values])
        with tf.control_dependencies([rule.keep()]):
            run = tf.group(*[each.assign(value) for each, value in zip(variables, values)])
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for _ in range(2):
            session.run(run)
        return len(rule.own), session.run(variables)


@pytest.mark.parametrize('decay', [0, 0.5])
def test_small_variables_are_updated_together(decay):
    """As each by itself, but for roundings; also with constraints and with a recipe's decay."""
    number, found = of_several(local_rules.AdamW, recipe.Recipe(weight_decay=decay))
    assert number == 2 * 3 + 1, 'the small ones of each dtype, a large one, and the count'
    number, expected = of_several(ByItself, recipe.Recipe(weight_decay=decay))
    assert number == 2 * 6 + 1
    for value, other in zip(found, expected):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_a_rule_that_forgets_a_slot():
    class Forgetful(local_rules.Rule):
        SLOTS = 'first', 'second'

        def update(self, value, gradient, rate, count, first, second):
            return value - rate * gradient, first

    with pytest.raises(SystemExit, match=r'^The local rule Forgetful has 2 SLOTS, and its update'
                                         r'\(\) returns 1 beside the value\.$'):
        by_rule(Forgetful(0.1))


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('rule', one_of_them(lion, *(
    lambda kind=kind: kind for kind in (local_rules.Momentum, local_rules.Nesterov,
                                        local_rules.AdamW))))
def test_rules_with_slots_refuse_tables(rule):
    with pytest.raises(SystemExit, match='^The local rule keeps slots on each worker, and table is '
                                         'a table: use plain SGD for the local steps.$'):
        scheme_of('SAGN', a_model(by_cells, local_rule=rule()), communication_window=2)


# Tables.

def rows_of(*its_ids):
    """Returns a model of a table with rows 3, 2 and 7, and the half squares of those in its ids.

    The gradient of a row is its value, as often as it is among the ids.
    """
    def of_rows(batch, training):
        del training
        found = tf.get_variable('table', initializer=tf.constant([[3.], [2.], [7.]]))
        return tf.reduce_sum(tf.square(tf.gather(found, batch['ids']))) / 2, {}

    return of_rows, lambda size, count: [{'ids': tf.constant(ids)} for ids in its_ids]


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder, changes, its_ids, expected', [
    # The gradient is (3, 2 + 2), of length 5; (1.5, 2), and the rate is 0.1; a decay of 0.05.
    *(case if case[0] in ('HogWild', 'Synchronous-SGD') else pytest.param(*case, marks=thorough)
      for case in [(folder, changes, [[0, 1, 1]], [3 - 0.15 - 0.15, 2 - 0.2 - 0.1])
                   for folder, changes in [
                       ('HogWild', {}), ('Synchronous-SGD', {}), ('DC-ASGD', {}), ('SSP', {}),
                       ('Distributed-Setup', {}), ('Work-Queue', {}), ('Elastic-Workers', {}),
                       ('Parameter-Placement', {}),
                       ('Synchronous-SGD-different-learning-rates', {}),
                       ('SAGN', dict(communication_window=1)),
                       ('AGN', dict(communication_window=1)),
                       ('DynSGD', dict(communication_window=1))]]),
    # (3, 6) and (3, 2), whose mean is (3, 4).
    ('HogWild', dict(accumulate=2), [[0, 1, 1, 1], [1, 0]], [2.7, 1.7]),
    pytest.param('Synchronous-SGD', dict(accumulate=2), [[0, 1, 1, 1], [1, 0]], [2.7, 1.7],
                 marks=thorough),
    # After 2.7 and 1.7: (2.7, 0), of length 2.7, becomes 2.5. Both rows of the run decay again.
    ('DOWNPOUR-Easy', dict(communication_window=2), [[0, 1, 1], [0]],
     [2.7 - 0.25 - 0.135, 1.7 - 0.085]),
    pytest.param('Local-SGD', dict(communication_window=2), [[0, 1, 1], [0]],
                 [2.7 - 0.25 - 0.135, 1.7 - 0.085], marks=thorough),
    # Half of that way.
    pytest.param('AGN', dict(communication_window=2), [[0, 1, 1], [0]],
                 [3 - 0.685 / 2, 2 - 0.385 / 2], marks=thorough),
    # The mean of (1.5, 2) and (2.5, 0); the center decays once.
    pytest.param('SAGN', dict(communication_window=2), [[0, 1, 1], [0]],
                 [3 - 0.2 - 0.15, 2 - 0.1 - 0.1], marks=thorough),
], ids=str)
def test_rows_count_once_and_decay_when_they_are_read(folder, changes, its_ids, expected):
    of_rows, batches = rows_of(*its_ids)
    model = a_model(of_rows, RECIPE=recipe.Recipe(clip_norm=2.5, weight_decay=0.5))
    model.train_batches = batches
    scheme, network = scheme_of(folder, model, **changes)
    assert [type(variable).__name__ for variable in network.variables] == ['Rows']
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        session.run(scheme.train_op)
        values = session.run(network.variables[0].table)
    assert values[:, 0] == pytest.approx([*expected, 7], rel=1e-6)


# Variables that are cut.

@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('strategy', one_of_them('fused', 'round_robin', 'greedy', 'partitioned'))
def test_cut_variables_are_clipped_as_a_whole_and_decay_by_their_names(monkeypatch, strategy):
    program = load_program('Parameter-Placement')
    monkeypatch.setattr(program, 'model', a_model(with_three, RECIPE=recipe.Recipe(**REAL)))
    test_building.flags.FLAGS.mark_as_parsed()
    monkeypatch.setattr(test_building.flags.FLAGS['strategy'], 'value', strategy)
    hparams = types.SimpleNamespace(learning_rate=RATE, batch_size=BATCH, accumulate=2)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        network = program.Placed(test_building.train_batches(BATCH, 2), 0.,
                                 tf.train.ClusterSpec({'ps': ['a:1', 'b:1', 'c:1']}), '')
        scheme = program.Scheme(network, step, hparams, 0, 1)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(tf.tables_initializer())
        for _ in range(20):
            session.run(scheme.train_op)
        found = session.run(network.tested_values())
    there = in_plain_tensorflow(with_three, start=lambda session: session.run(
        tf.global_variables_initializer()))
    compare(found, there)


def with_three(batch, training):
    """A product, an offset that does not decay, and a table."""
    del training
    weights = tf.get_variable('weights', initializer=tf.ones([4, 3]) / 2)
    found = tf.gather(tf.get_variable('table', initializer=tf.ones([5, 3])), batch['ids'][:, 0])
    offset = tf.get_variable('b', initializer=tf.constant([0.5, 0.25, -0.5]))
    return test_building.error(tf.matmul(batch['x'], weights) + found + offset, batch)


# What is wrong is said in one line.

@pytest.mark.parametrize('parts, complaint', [
    (dict(clip_norm=0), 'clip_norm=0 is not a finite number above 0.'),
    (dict(clip_norm=True), 'clip_norm=True is not a finite number above 0.'),
    (dict(clip_norm=float('inf')), 'clip_norm=inf is not a finite number above 0.'),
    (dict(clip_value=-1.), 'clip_value=-1.0 is not a finite number above 0.'),
    (dict(clip_value='1'), "clip_value='1' is not a finite number above 0."),
    (dict(weight_decay=-0.1), 'weight_decay=-0.1 is not a finite number of 0 or more.'),
    (dict(weight_decay=float('nan')), 'weight_decay=nan is not a finite number of 0 or more.'),
    (dict(weight_decay=None), 'weight_decay=None is not a finite number of 0 or more.'),
    (dict(schedule=0.5), 'schedule=0.5 is no function of examples and step: 0.5 is not a callable '
                         'object.'),
    (dict(schedule=min), None),
    (dict(decays=['b']), "decays=['b'] is no function of name: ['b'] is not a callable object."),
    (dict(decays=re.compile('kernel').search, clip_norm=np.float32(1), clip_value=2), None),
])
def test_wrong_parts(parts, complaint):
    if complaint is None:
        recipe.Recipe(**parts)
        return
    with pytest.raises(SystemExit) as error:
        recipe.Recipe(**parts)
    assert error.value.code == f'Recipe: {complaint}'


def test_functions_of_something_else():
    with pytest.raises(SystemExit, match='^Recipe: schedule=.* is no function of examples and step'
                                         ": got an unexpected keyword argument 'examples'.$"):
        recipe.Recipe(schedule=lambda step: 1.)
    with pytest.raises(SystemExit, match='^Recipe: decays=.* is no function of name: too many pos'):
        recipe.Recipe(decays=lambda: True)


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('folder', one_of_them('HogWild', 'AGN', 'Parameter-Placement'))
@pytest.mark.parametrize('returned', [None, [0.5, 0.5]])
def test_a_schedule_that_returns_something_else(folder, returned):
    model = a_model(by_get_variable, RECIPE=recipe.Recipe(lambda examples, step: returned))
    with pytest.raises(SystemExit, match=f"^The schedule of the model's RECIPE returns "
                                         f'{re.escape(str(returned))}, which is no number.$'):
        scheme_of(folder, model)


@pytest.mark.usefixtures('here')
def test_a_recipe_that_is_none():
    with pytest.raises(SystemExit, match=r"^toy: RECIPE is \{'clip_norm': 1\}, and no tfdist."):
        a_model(by_get_variable, RECIPE={'clip_norm': 1})


@pytest.mark.usefixtures('here')
def test_a_recipe_that_is_not_used_is_named():
    model = a_model(by_get_variable, RECIPE=recipe.Recipe(clip_norm=1.))
    assert model.left_out == {'RECIPE'}
    scheme_of('HogWild', model)
    assert not model.left_out


@thorough
@pytest.mark.parametrize('folder', ['Elastic-Workers', 'Work-Queue', 'Multiple-GPUs-Single-Machine',
                                    'In-Graph-Replication', 'Non-Distributed-Setup'])
def test_accumulation_in_programs_that_make_their_own_batches(programs, folder):
    run = programs.run_sh(folder, '--accumulate=2', '--train_steps=100')
    run.ends_well()
    assert float(run.wait_for(TEST)['accuracy']) > 0.5


@thorough
def test_model_parallel_makes_a_step_of_one_batch(programs):
    programs.run_sh('Model-Parallel', '--accumulate=2').fails('--accumulate=2: a step here is of')
