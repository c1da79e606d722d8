"""The seam: a scheme does part by part what it does in training, and one plays many workers.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m.
"""

import functools
import inspect
import re
import signal
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.cluster import liveness
from tfdist.data import problem
from tfdist.scheme import seam
from tfdist.scheme.seam import feed
from tfdist.scheme.toy import Problem

from cases import briefly
from conftest import at_once, load_program
import schemes

FOLDERS = schemes.folders()
# By what a scheme becomes another one, besides its own defaults.
MODES = {
    'DC-ASGD': [dict(variance='adaptive', lambda_0=0.125),
                dict(variance='adaptive', lambda_0=0.125, first_square=True)],
    'Distributed-MNIST': [dict(is_sync=True)],
    'DiLoCo': [dict(inner='sgd'), dict(outer='heavy_ball')],
    'DynSGD': [dict(constant=True)],
    'Ring-AllReduce': [dict(implementation='collective')],
    'Synchronous-SGD': [dict(aggregate='trimmed:0')],  # of each push, and yet the mean
}
SYNCHRONOUS = {'DiLoCo', 'Local-SGD', 'SAGN', 'Synchronous-SGD',
               'Synchronous-SGD-different-learning-rates'}
CASES, AT_ONCE, ONE_BY_ONE = [], [], []
for name in FOLDERS:
    for different in [{}, *MODES.get(name, [])]:
        CASES.append(pytest.param(name, different, id='-'.join([name, *different])))
        if name in SYNCHRONOUS or 'is_sync' in different:
            AT_ONCE.append(CASES[-1])
        elif name != 'Ring-AllReduce':
            ONE_BY_ONE.append(CASES[-1])
# One of each kind of rule. `make test` has these where what is tested is the library's.
KINDS = {'AEAMSGD', 'AGN', 'DC-ASGD', 'DiLoCo', 'DOWNPOUR', 'HogWild', 'Ring-AllReduce', 'SSP',
         'Synchronous-SGD'}
WINDOW = 2
RATE = 0.25


def of_each_kind(cases):
    """Returns cases, of which those are thorough that are not of KINDS with its own defaults."""
    return briefly(cases, lambda name, different: name in KINDS and not different)


def defaults(folder, **changes):
    """Returns the hyperparameters of a folder, a dict: its flags, windows of WINDOW, `changes`."""
    load_program(folder)
    values = {name: flags.FLAGS[name].default for name in flags.FLAGS}
    for name in {'communication_window', 'n_fetch', 'n_push'} & load_program.flags:
        values[name] = WINDOW
    return {**values, 'learning_rate': RATE, **changes}


def is_together(scheme):
    """Returns whether all workers take each step together."""
    return scheme.complete is not None or scheme.sums


# In a session without servers.

class Player:
    """One scheme in a session of its own, which plays any number of workers.

    Attributes:
      schemes: list of Schemes in its graph, of task 0 and so on.
      scheme: the first of them, which plays.
      variables: the center.
      ran: how many batches have been computed on.
      own: list, for each worker the values of the scheme's `own` variables.
    """

    def __init__(self, folder, ms=(0.,), start=(8.,), dtypes=(tf.float32,), num_schemes=1,
                 squares=None, its_recipe=None, **changes):
        """Makes the graph.

        Args:
          folder: string.
          ms: the optimum of each worker, and so how many there are.
          start: values at which the variables start.
          dtypes: of the variables, in turn.
          num_schemes: int, how many schemes to make.
          squares: function of the variables' values that returns those whose half squares are the
            loss; by default the values themselves.
          its_recipe: `recipe.Recipe`, or None.
          **changes: of the hyperparameters.
        """
        program = load_program(folder)
        hparams = types.SimpleNamespace(**defaults(folder, **changes))
        self.ran, self._ms, self._squares = 0, ms, squares or (lambda values: values)
        with tf.Graph().as_default() as graph:
            global_step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(value, dtypes[i % len(dtypes)]))
                for i, value in enumerate(start)]
            self._played = tf.placeholder_with_default(tf.constant(ms[0], tf.float32), [])
            self.schemes = [
                program.Scheme(
                    Problem(functools.partial(self._loss_at, m), self.variables, its_recipe),
                    global_step, hparams, i, len(ms))
                for i, m in enumerate([self._played, *ms[1:num_schemes]])]
            self.scheme = self.schemes[0]
            self.state = tf.global_variables()
            initialize = tf.global_variables_initializer(), tf.local_variables_initializer()
        # A step that is never complete fails.
        config = tf.ConfigProto(operation_timeout_in_ms=20000)
        self.session = tf.Session(graph=graph, config=config)
        for op in initialize:
            self.session.run(op)
        self.own = [self.session.run(self.scheme.own) for _ in ms]

    def _loss_at(self, m, values):
        def count(m):
            self.ran += 1
            return m

        m = tf.py_func(count, [m], tf.float32)
        m.set_shape([])
        losses = [tf.reduce_sum(tf.square(value - tf.cast(m, value.dtype))) / 2
                  for value in self._squares(values)]
        return sum(tf.cast(loss, tf.float32) for loss in losses), tf.constant(0.)

    def join(self):
        """All schemes begin to train, as their programs would."""
        for scheme in self.schemes:
            for hook in scheme.hooks:
                hook.after_create_session(self.session, None)

    def close(self):
        self.session.close()

    def center(self):
        """Returns the values of the variables."""
        return self.session.run(self.variables)

    def pull(self):
        return self.session.run(self.scheme.pull)

    def compute(self, worker, pulled):
        """Returns what a worker pushes, and the figures of its batches."""
        self._put(worker)
        result = self.session.run(
            [self.scheme.pushed, self.scheme.computed],
            {self._played: self._ms[worker], **feed(self.scheme.pull, pulled),
             **self._is(worker)})
        self._take(worker)
        return result

    def push(self, worker, pulled, pushed, stamp=None, sums=None):
        """Pushes; returns the figures of it.

        Args:
          worker: int, who does it.
          pulled: from `pull`.
          pushed: from `compute`.
          stamp: int, the step that it is stamped with; by default the one pulled.
          sums: what `pushed` is over all workers, for a ring.
        """
        scheme = self.scheme
        fed = {**feed(scheme.pull + scheme.pushed, pulled + pushed), **self._is(worker)}
        stamp = pulled[0] if stamp is None else stamp
        fed.update(feed(scheme.stamps, [stamp] * len(scheme.stamps)))
        if scheme.sums:
            fed.update(feed(scheme.sums, sums or pushed))
        if scheme.gate:
            fed[scheme.gate.worker] = worker
        self._put(worker)
        result = self.session.run(scheme.push, fed)
        self._take(worker)
        return result

    def _is(self, worker):
        return dict.fromkeys(self.scheme.workers, worker)

    def step(self, worker):
        """A worker takes a step by itself; returns the figures of it."""
        pulled = self.pull()
        pushed, figures = self.compute(worker, pulled)
        return dict(figures, **self.push(worker, pulled, pushed))

    def together(self):
        """All workers take a step together; returns the figures of each."""
        pulled = self.pull()
        computed = [self.compute(worker, pulled) for worker in range(len(self.own))]
        if self.scheme.sums:  # each has a center of its own: they are all the same
            sums = [sum(parts) for parts in zip(*[pushed for pushed, _ in computed])]
            pushes = [self.push(0, pulled, computed[0][0], sums=sums)] * len(self.own)
        else:
            pushes = [self.push(worker, pulled, pushed)
                      for worker, (pushed, _) in enumerate(computed)]
            step = self.session.run(self.scheme.complete)
            pushes = [dict(push, global_step=step) for push in pushes]
        return [dict(figures, **push) for (_, figures), push in zip(computed, pushes)]

    def _put(self, worker):
        for variable, value in zip(self.scheme.own, self.own[worker]):
            variable.load(value, self.session)

    def _take(self, worker):
        self.own[worker] = self.session.run(self.scheme.own)


@pytest.fixture
def player(monkeypatch):
    """A function that makes a `Player`; it has no devices of workers."""
    made = []

    def make(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
            made.append(Player(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Parts and the whole.

def in_turn(functions):
    """Calls all functions one after the other; returns their results."""
    return [function() for function in functions]


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_parts_do_what_training_does(toy, player, folder, changes):
    """Two workers of different data, three rounds: figures, center, and what each one keeps.

    Two train, each in a graph and a session of its own on real servers. One plays them.
    """
    ms, start = (0., 4.), [8., [[1., 2., 3.]]]
    workers = toy(folder, ms, start, **defaults(folder, **changes))
    played = player(folder, ms, start, **changes)
    together = is_together(played.scheme)
    for step in range(1, 4):
        expected = (at_once if together else in_turn)([worker.step for worker in workers])
        results = played.together() if together else in_turn(
            [functools.partial(played.step, i) for i in range(len(ms))])
        assert [result['global_step'] for result in results] == (
            [step, step] if together else [2 * step - 1, 2 * step])
        for worker, own, figures, same in zip(workers, played.own, expected, results):
            assert set(figures) == set(same)
            for name in figures:
                assert same[name] == pytest.approx(figures[name], rel=1e-5), name
            assert len(own) == len(worker.scheme.own)
            for value, other in zip(worker.session.run(worker.scheme.own), own):
                assert value == pytest.approx(other, rel=1e-5, abs=1e-6)
    for value, other in zip(workers[0].session.run(workers[0].variables), played.center()):
        assert value == pytest.approx(other, rel=1e-5)
        assert (value != 8).all()


def needed(fetches, fed):
    """Returns the set of ops that make a dict of tensors, if a list of others is fed."""
    found, left = set(), [tensor.op for tensor in fetches.values()]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += op.control_inputs + [tensor.op for tensor in op.inputs
                                         if not any(tensor is other for other in fed)]
    return found


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_each_part_does_its_own(player, folder, changes):
    """Pushing computes nothing, and computing changes nothing but what is the worker's own.

    What is not needed may run, or not, as the version of TensorFlow likes: so we look for it, too.
    """
    played = player(folder, [0., 4.], start=[8., [1., 2.]], **changes)
    scheme, session = played.scheme, played.session
    before = session.run(played.state + scheme.own)
    pulled = played.pull()
    assert played.ran == 0
    pushed, _ = played.compute(1, pulled)
    assert played.ran == scheme.local_steps(types.SimpleNamespace(**defaults(folder, **changes)))
    state = session.run(played.state)
    for value, same in zip(before, state):
        assert (value == same).all()
    played.ran = 0
    given = scheme.pull + scheme.pushed + scheme.stamps + scheme.sums
    assert 'PyFunc' in {op.type for op in needed(scheme.train_op, [])}
    assert 'PyFunc' not in {op.type for op in needed(scheme.push, given)}
    played.push(1, pulled, pushed)
    if scheme.complete is not None:
        for value, same in zip(state, session.run(played.state)):
            assert (value == same).all()
        played.push(0, pulled, pushed)
        assert session.run(scheme.complete) == 1
    assert played.ran == 0
    assert session.run(played.state[0]) == 1 and played.state[0].op.name == 'global_step'


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_staleness_comes_out_as_driven(player, folder, changes):
    played = player(folder, [0., 0., 0.], **changes)
    if is_together(played.scheme):
        assert 'staleness' not in played.scheme.train_op
        return
    pulled = [played.pull() for _ in range(3)]
    pushed = [played.compute(i, pulled[i])[0] for i in range(3)]
    figures = [played.push(i, pulled[i], pushed[i]) for i in (1, 0, 2)]
    assert [result['global_step'] for result in figures] == [1, 2, 3]
    if 'staleness' in figures[0]:
        assert [np.ravel(result['staleness']).tolist() for result in figures] == [[0], [1], [2]]


# Many workers in one session: all that they do is known from the equations.

def single(number):
    """Returns a number as TensorFlow's optimizers have it: they round it to float32."""
    return float(np.float32(number))


class Sgd:
    """The rule of a scheme, in numpy: plain SGD. Others differ from it in a line or two.

    Attributes:
      center: vector of float64.
      tolerance: float, how far TensorFlow may be from it, relatively.
    """

    tolerance = 1e-9
    constant, variance, lambda_0, first_square = False, 'constant', 0.04, False

    def __init__(self, center, num_workers, **changes):
        """Begins at `center`; `changes` are of the hyperparameters."""
        self.center, self.num_workers = center, num_workers
        vars(self).update(changes)
        self.own = [self.at_first() for _ in range(num_workers)]

    def at_first(self):
        """Returns what a worker keeps."""

    def compute(self, worker, pulled, m):
        """Returns what a worker pushes that has pulled `pulled`."""
        return pulled - m

    def push(self, worker, pulled, pushed, staleness):
        """Brings the center up to date with what a worker pushes, or with the mean of several."""
        self.center = self.center - RATE * pushed

    def window(self, x, m):
        """Returns the sum of the gradients of a window of local steps from x."""
        total = 0
        for _ in range(WINDOW):
            total += x - m
            x = x - RATE * (x - m)
        return total


class Sum(Sgd):
    def compute(self, worker, pulled, m):
        return self.window(pulled, m)


class Mean(Sgd):
    def compute(self, worker, pulled, m):
        return self.window(pulled, m) / WINDOW


class LessIfStale(Sum):
    def push(self, worker, pulled, pushed, staleness):
        divisor = self.num_workers if self.constant else staleness + 1
        self.center = self.center - RATE * pushed / divisor


class Adagrad(Sum):
    squares = single(0.1)

    def push(self, worker, pulled, pushed, staleness):
        self.squares = self.squares + pushed ** 2
        self.center = self.center - single(0.05) * pushed / np.sqrt(self.squares)


class Adam(Sgd):
    mean = square = 0
    powers = 1

    def push(self, worker, pulled, pushed, staleness):
        betas = np.float32([0.9, 0.999])
        self.powers = self.powers * betas  # float32, too
        (beta_1, beta_2), powers = betas.astype(float), self.powers.astype(float)
        self.mean = beta_1 * self.mean + (1 - beta_1) * pushed
        self.square = beta_2 * self.square + (1 - beta_2) * pushed ** 2
        rate = RATE * np.sqrt(1 - powers[1]) / (1 - powers[0])
        self.center = self.center - rate * self.mean / (np.sqrt(self.square) + single(1e-8))


class DelayCompensated(Sgd):
    def at_first(self):
        return 0 * self.center

    def push(self, worker, pulled, pushed, staleness):
        lambda_, square = self.lambda_0, pushed ** 2
        if self.variance == 'adaptive':
            mean = 0.95 * self.own[worker] + 0.05 * square
            if self.first_square:
                mean = np.where(self.own[worker] == 0, square, mean)
            self.own[worker] = mean
            lambda_ /= np.sqrt(mean + 1e-10)
        correction = lambda_ * square * (self.center - pulled)
        self.center = self.center - RATE * (pushed + correction)


class Elastic(Sgd):
    momentum = 0

    def at_first(self):
        return self.center, 0 * self.center

    def compute(self, worker, pulled, m):
        x, u = self.own[worker]
        elastic = 0.9 / self.num_workers * (x - pulled)
        y, x = x, x - elastic
        for _ in range(WINDOW):
            u = self.momentum * u - RATE * (y + self.momentum * u - m)
            x = y = x + u
        self.own[worker] = x, u
        return elastic

    def push(self, worker, pulled, pushed, staleness):
        self.center = self.center + pushed


class ElasticWithMomentum(Elastic):
    momentum = 0.9


class OuterMomentum(Sgd):
    inner, inner_weight_decay, outer = 'adamw', 0.01, 'nesterov'
    outer_rate, outer_momentum = single(0.7), single(0.9)
    velocity, tolerance = 0, 1e-5  # powers of beta are float32, and rounded by each TensorFlow

    def at_first(self):
        return 0 * self.center, 0 * self.center, 0

    def compute(self, worker, pulled, m):
        if self.inner == 'sgd':
            return RATE * self.window(pulled, m)
        betas, x = np.float32([0.9, 0.999]), pulled
        first, second, done = self.own[worker]
        for t in range(done + 1, done + 1 + WINDOW):
            first = 0.9 * first + 0.1 * (x - m)
            second = 0.999 * second + 0.001 * (x - m) ** 2
            left = 1 - betas ** np.float32(t)
            step = float(np.sqrt(left[1]) / left[0]) * first / (np.sqrt(second) + 1e-8)
            x = x - RATE * (step + self.inner_weight_decay * x)
        self.own[worker] = first, second, done + WINDOW
        return pulled - x

    def push(self, worker, pulled, pushed, staleness):
        self.velocity = self.outer_momentum * self.velocity + pushed
        ahead = pushed + self.outer_momentum * self.velocity
        self.center = self.center - self.outer_rate * (
            ahead if self.outer == 'nesterov' else self.velocity)


RULES = {
    'AEAMSGD': ElasticWithMomentum, 'AEASGD': Elastic, 'AGN': Mean, 'DC-ASGD': DelayCompensated,
    'DOWNPOUR': Adagrad, 'DOWNPOUR-Easy': Sum, 'DiLoCo': OuterMomentum, 'Distributed-MNIST': Adam,
    'Distributed-Setup': Sgd, 'DynSGD': LessIfStale, 'Elastic-Workers': Sgd, 'HogWild': Sgd,
    'Local-SGD': Sum, 'Parameter-Placement': Sgd, 'Ring-AllReduce': Sgd, 'SAGN': Mean, 'SSP': Sgd,
    'Synchronous-SGD': Sgd, 'Synchronous-SGD-different-learning-rates': Sgd, 'Work-Queue': Sgd,
}
START = [1., [0.5, -1.]]


def flat(values):
    """Returns arrays as one vector of float64."""
    return np.concatenate([np.ravel(value) for value in values]).astype(float)


def test_all_schemes_have_a_rule():
    assert sorted(RULES) == FOLDERS, 'RULES, above, is to have the rule of each scheme'


@pytest.mark.parametrize('folder, changes', ONE_BY_ONE)
def test_one_by_one(player, folder, changes):
    """Five workers pull and push in any order."""
    random = np.random.RandomState(1)
    ms = random.randint(-8, 8, size=5) / 4
    played = player(folder, ms, START, [tf.float64], **changes)
    rule = RULES[folder](flat(played.center()), len(ms), **changes)
    under_way, late = {}, 0
    for _ in range(60):
        worker = random.randint(len(ms))
        if worker not in under_way:
            pulled = played.pull()
            under_way[worker] = (pulled, played.compute(worker, pulled)[0], flat(pulled[1:]),
                                 rule.compute(worker, flat(pulled[1:]), ms[worker]))
            continue
        pulled, pushed, *theirs = under_way.pop(worker)
        figures = played.push(worker, pulled, pushed)
        staleness = figures['global_step'] - 1 - pulled[0]
        late = max(late, staleness)
        rule.push(worker, *theirs, staleness)
        assert flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
    assert late >= 4
    assert abs(rule.center - flat(START)).min() > 0.01


@pytest.mark.parametrize('needed', briefly([8, 6], [6]))
@pytest.mark.parametrize('folder, changes', AT_ONCE)
def test_all_at_once(player, folder, changes, needed):
    """Eight workers push in any order, and enough complete a step; who comes later is dropped."""
    random = np.random.RandomState(1)
    ms = random.randint(-8, 8, size=8) / 4
    played = player(folder, ms, START, [tf.float64], replicas_to_aggregate=needed, **changes)
    rule = RULES[folder](flat(played.center()), len(ms), **changes)
    late = []
    for step in range(4):
        pulled = played.pull()
        assert pulled[0] == step
        computed = [(worker, played.compute(worker, pulled)[0]) for worker in range(8)]
        for worker, pushed in late:
            assert played.push(worker, pulled, pushed, stamp=step - 1)['dropped'] == 1
        random.shuffle(computed)
        in_time, late = computed[:needed], computed[needed:]
        for worker, pushed in in_time:
            assert played.push(worker, pulled, pushed)['dropped'] == 0
        assert (flat(played.center()) == flat(pulled[1:])).all(), 'not before all are there'
        assert played.session.run(played.scheme.complete) == step + 1
        center = rule.center
        ways = [rule.compute(worker, center, ms[worker]) for worker in range(8)]  # late ones, too
        rule.push(None, None, np.mean([ways[worker] for worker, _ in in_time], axis=0), None)
        assert flat(played.center()) == pytest.approx(rule.center, rel=rule.tolerance,
                                                      abs=rule.tolerance)
        for worker, pushed in late:
            assert played.push(worker, pulled, pushed)['dropped'] == 1
    assert abs(rule.center - flat(START)).min() > 0.01


@pytest.mark.parametrize('implementation', ['ring', 'collective'])
def test_a_ring_of_many(player, implementation):
    ms = np.random.RandomState(1).randint(-8, 8, size=8) / 4
    played = player('Ring-AllReduce', ms, START, [tf.float64], implementation=implementation)
    rule = Sgd(flat(played.center()), len(ms))
    for step in range(1, 5):
        assert [figures['global_step'] for figures in played.together()] == [step] * 8
        rule.push(None, None, np.mean([rule.center - m for m in ms], axis=0), None)
        assert flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize('folder, changes', of_each_kind(AT_ONCE))
def test_two_schemes_in_one_graph(player, folder, changes):
    """Each is a worker, with runs and stamps of its own."""
    ms = 0., 4.
    played = player(folder, ms, START, [tf.float64], num_schemes=2, **changes)
    stamps = [[stamp.op for stamp in scheme.stamps] for scheme in played.schemes]
    assert [len(of_one) for of_one in stamps] == [len(START)] * 2
    assert not set(stamps[0]) & set(stamps[1])
    played.join()
    rule = RULES[folder](flat(played.center()), 2, **changes)
    for step in 1, 2:
        results = at_once([functools.partial(played.session.run, scheme.train_op)
                           for scheme in played.schemes])
        assert [(result['global_step'], result['dropped']) for result in results] == [(step, 0)] * 2
        center = rule.center
        rule.push(None, None, np.mean([rule.compute(worker, center, m)
                                       for worker, m in enumerate(ms)], axis=0), None)
        assert flat(played.center()) == pytest.approx(rule.center, rel=rule.tolerance,
                                                      abs=rule.tolerance)


@pytest.mark.parametrize('n_fetch, n_push', briefly(
    [(2, 2), (1, 2), (2, 4), (4, 1), (2, 3), (3, 2)], lambda *both: both in [(2, 4), (3, 2)]))
def test_downpour_pull_by_pull_and_push_by_push(player, n_fetch, n_push):
    """After each of them the others push: that is what the staleness counts."""
    played = player('DOWNPOUR', [0.5], START, [tf.float64], n_fetch=n_fetch, n_push=n_push)
    scheme, session = played.scheme, played.session
    pulls, pushes, fed = iter(scheme.pulls), iter(scheme.pushes), {}
    rule = Adagrad(flat(played.center()), 1)
    a = others = 0

    def others_push():
        rule.center += 0.25
        for variable in played.variables:
            variable.load(session.run(variable) + 0.25, session)
        played.state[0].load(session.run(played.state[0]) + 1, session)

    for t in range(np.lcm(n_fetch, n_push)):
        if t % n_fetch == 0:
            x, others = rule.center.copy(), 0
            fed.update(feed(next(pulls), played.pull()))
            others_push()
            others += 1
        a, x = a + (x - 0.5), x - RATE * (x - 0.5)
        if (t + 1) % n_push == 0:
            pushed, arrived, push = next(pushes)
            values = session.run(pushed, fed)
            assert flat(values) == pytest.approx(a, rel=1e-9, abs=1e-9)
            assert flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
            played.ran = 0
            figures = session.run(push, {**fed, **feed(arrived, values)})
            assert played.ran == 0
            rule.push(None, None, a, None)
            assert flat(played.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
            assert figures == {'global_step': session.run(played.state[0]), 'staleness': others}
            a = 0
            others_push()
            others += 1
    assert next(pulls, None) is next(pushes, None) is None


def test_ssp_clocks_of_many(player):
    played = player('SSP', [0.] * 3, staleness_bound=1)
    session, gate = played.session, played.scheme.gate

    def held():
        """Returns for each worker those who hold it back."""
        clocks = session.run(gate.clocks)
        return [np.flatnonzero(gate.holds(clocks, worker)).tolist() for worker in range(3)]

    for worker in range(3):
        assert session.run(gate.clocks)[worker] == gate.ABSENT
        session.run(gate.join, {gate.worker: worker})
    for worker in 2, 2, 1:
        assert not held()[worker]
        played.step(worker)
    assert session.run(gate.clocks).tolist() == [0, 1, 2]
    assert held() == [[], [], [0]]
    session.run(gate.leave, {gate.worker: 0})
    assert held()[1:] == [[], []]
    session.run(gate.join, {gate.worker: 0})
    assert session.run(gate.clocks).tolist() == [1, 1, 2]


# Variables of any kind.

def train(played, steps=2):
    """Trains a player of one worker as its program would."""
    played.join()
    for _ in range(steps):
        played.session.run(played.scheme.train_op)


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_gradients_of_a_few_rows(player, folder, changes):
    """The rows 0 and 2 of a dense variable, and 2 twice."""
    start = [[[0.75, -1.], [2., 3.], [1., 2.]]]
    changes = dict(changes, inner_weight_decay=0.)  # else all rows decay
    whole, played = [
        player(folder, [0.5], start, squares=lambda values: [tf.gather(values[0], [0, 2, 2])],
               **changes) for _ in range(2)]
    train(whole)
    for _ in range(2):
        (played.together if is_together(played.scheme) else lambda: played.step(0))()
    for value, same in zip(whole.center(), played.center()):
        assert value == pytest.approx(same, rel=1e-6)
    rows, = played.center()
    assert rows[1].tolist() == [2, 3]
    assert (rows[[0, 2]] != np.array(start[0])[[0, 2]]).all()


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_dtypes(player, folder, changes):
    """Variables of all of them in one model."""
    tolerances = {tf.float64: 1e-9, tf.float32: 1e-6, tf.float16: 1e-2}
    played = player(folder, [0.5], [[1., 3.], [2., -1.], [[3.]]], list(tolerances), **changes)
    rule = RULES[folder](flat(played.center()), 1, **changes)
    train(played, 3)
    for _ in range(3):
        center = rule.center
        rule.push(0, center, rule.compute(0, center, 0.5), 0)
    expected = rule.center[:2], rule.center[2:4], rule.center[4:]
    for value, dtype, numbers in zip(played.center(), tolerances, expected):
        assert value.dtype == dtype.as_numpy_dtype
        assert np.ravel(value) == pytest.approx(numbers, rel=max(tolerances[dtype], rule.tolerance))


@pytest.mark.parametrize('folder', briefly(FOLDERS, KINDS))
def test_an_integer_that_is_trained(folder, monkeypatch):
    """The program says so before it trains, in one line."""
    program = load_program(folder)
    flags.FLAGS.mark_as_parsed()
    loss_and_metrics = program.model.loss_and_metrics

    def counts(batch, training):
        tf.get_variable('seen', [], tf.int32, tf.zeros_initializer())
        return loss_and_metrics(batch, training)

    cluster_spec = tf.train.ClusterSpec({'ps': ['localhost:1'], 'worker': ['localhost:2']})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster_spec, task_type='worker', task_id=0)
    monkeypatch.setattr(program.membership, 'resolve', lambda *args, **kwargs: resolver)
    monkeypatch.setattr(program.model, 'loss_and_metrics', counts)
    if folder == 'Distributed-MNIST':  # its examples are to be prepared
        monkeypatch.setattr(program.model, 'train_batches', problem.train_batches)
    monkeypatch.setattr(liveness, 'watch', lambda *args, **kwargs: None)
    monkeypatch.setattr(tf.train, 'Server', lambda *args, **kwargs: None)
    monkeypatch.setattr(signal, 'signal', lambda *args: None)
    main, = re.findall(r'console\.run\((\w+)\)', inspect.getsource(program))
    with tf.Graph().as_default(), pytest.raises(
            SystemExit, match='^The trainable variable (network/)?seen is of int32, which has no'):
        getattr(program, main)(None)
