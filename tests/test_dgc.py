"""Deep gradient compression: momentum on the worker, before the largest elements are selected.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m; learning rate
1/2.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import compression, compressors, recipe
from tfdist.scheme.toy import Problem

from conftest import at_once
import test_compression
import test_ring
import test_seam
import test_simulation
import test_synchronous
from test_synchronous import together

player, simulated = test_seam.player, test_simulation.toy  # fixtures
ring_workers = test_ring.workers  # a fixture, too
NAME = 'dgc:0.5:0.5'


class NotMasked(compression.DeepGradientCompression):
    """Its velocities go on where something was sent."""

    @staticmethod
    def _masked(velocity, decoded):
        return velocity


def pushes(monkeypatch, kind=compression.DeepGradientCompression):
    """Returns the pushes of a worker with two elements, by top-1 and with a momentum of 1/2."""
    monkeypatch.setattr(compression, 'Compression', lambda *args: kind(*args[:4], 0.5))
    return test_compression.Pushes(compressors.by_name(NAME))


@pytest.mark.parametrize('kind, sent', [
    (compression.DeepGradientCompression, [(2, 0), (0, 2.5), (5, 0), (0, 2.5)]),
    (NotMasked, [(2, 0), (3, 0), (0, 4.25), (7.25, 0)]),
])
def test_four_pushes_by_hand(monkeypatch, kind, sent):
    """Of the gradient (2, 1) each time."""
    made = pushes(monkeypatch, kind)
    assert [tuple(made.push([2., 1.])) for _ in sent] == sent


def test_a_push_that_does_not_count_leaves_all_as_it_was(monkeypatch):
    made = pushes(monkeypatch)
    made.push([2., 1.])
    before = made.session.run(made.own)
    assert [each.tolist() for each in before[::2]] == [[0, 1], [0, 1]]
    assert made.push([2., 1.], is_late=True).tolist() == [0, 2.5]
    assert [each.tolist() for each in made.session.run(made.own[::2])] == [[0, 1], [0, 1]]
    assert made.push([2., 1.]).tolist() == [0, 2.5]


@pytest.mark.parametrize('size', [1, 7, 100])
def test_bytes_of_a_vector(monkeypatch, size):
    monkeypatch.setattr(compression, 'Compression', lambda *args:
                        compression.DeepGradientCompression(*args[:4], 0.9))
    made = test_compression.Pushes(compressors.by_name('dgc:0.25:0.9'), size)
    assert made.encoded(np.linspace(-1, 3, size)).nbytes == test_compression.size_of(
        'topk:0.25', size)


class Rule:
    """One worker's pushes by top-1 with a momentum of 1/2, in numpy, from vectors of zeros."""

    def __init__(self, size):
        self.state = np.zeros((2, size))  # u and v

    def push(self, gradient):
        """Returns what arrives."""
        u = self.state[0] / 2 + gradient
        v = self.state[1] + u
        place = np.arange(len(v)) == np.argmax(abs(v))
        self.following = np.where(place, 0, [u, v])
        return np.where(place, v, 0)

    def arrived(self):
        self.state = self.following


@pytest.mark.parametrize('needed', [5, 3])
def test_many_workers_at_once(player, needed):
    """In any order; who comes too late is dropped, and keeps both of its vectors."""
    random = np.random.RandomState(1)
    ms = random.randint(-8, 8, size=5) / 4
    played = player('Synchronous-SGD', ms, [[0.5, -1., 3.]], [tf.float64],
                    replicas_to_aggregate=needed, compression='dgc:0.3:0.5')
    center, rules = test_seam.flat(played.center()), [Rule(3) for _ in ms]
    for _ in range(6):
        pulled = played.pull()
        computed = [(worker, played.compute(worker, pulled)[0]) for worker in range(len(ms))]
        sent = [rule.push(center - m) for rule, m in zip(rules, ms)]
        random.shuffle(computed)
        for worker, pushed in computed[:needed]:
            assert played.push(worker, pulled, pushed)['dropped'] == 0
            rules[worker].arrived()
        played.session.run(played.scheme.complete)
        center = center - test_seam.RATE * np.mean(
            [sent[worker] for worker, _ in computed[:needed]], axis=0)
        assert test_seam.flat(played.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
        for worker, pushed in computed[needed:]:
            assert played.push(worker, pulled, pushed)['dropped'] == 1
        for own, rule in zip(played.own, rules):
            assert [*own[2], *own[0]] == pytest.approx(rule.state.ravel().tolist(), abs=1e-9)
    assert max(abs(rule.state[0]).max() for rule in rules) > 0.1


def test_simulated_workers(simulated):
    """Each variable has a place that is sent; the others wait, with their momentum."""
    toy = simulated('Synchronous-SGD', 4, step='1ms', changes=dict(compression=NAME))
    center = test_seam.flat(test_simulation.START)
    parts = slice(0, 1), slice(1, 3)
    rules = [[Rule(1), Rule(2)] for _ in toy.ms]
    for _ in range(60):
        sums = []
        for mine, m in zip(rules, toy.ms):
            sums.append(np.concatenate([rule.push((center - m)[part])
                                        for rule, part in zip(mine, parts)]))
            for rule in mine:
                rule.arrived()
        center = center - test_seam.RATE * np.mean(sums, axis=0)
    assert test_seam.flat(toy.player.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
    assert {tuple(one.push_bytes()) for *_, one in toy.pushed} == {(12, 12)}  # int32 and float64


MS = [np.array(m, np.float32) for m in [(6., 1.), (-6., 1.)]]


def by_hand(steps):
    """Returns the centers of two workers from (0, 4), in numpy."""
    x, rules, centers = np.array([0., 4.]), [Rule(2) for _ in MS], []
    for _ in range(steps):
        sent = [rule.push(x - m) for rule, m in zip(rules, MS)]
        for rule in rules:
            rule.arrived()
        x = x - np.mean(sent, axis=0) / 2
        centers.append(pytest.approx(x, abs=1e-5))
    return centers


def workers_of(toy, steps=10, **changes):
    """Returns the workers of Synchronous-SGD on real servers."""
    return toy('Synchronous-SGD', MS, **dict(
        test_synchronous.HPARAMS['Synchronous-SGD'], replicas_to_aggregate=None, train_steps=steps,
        patience_secs=60., start=[[0., 4.]], **changes))


def test_two_workers_on_real_servers(toy):
    made = workers_of(toy, compression=NAME)
    assert [together(made) for _ in range(10)] == by_hand(10)


def test_two_workers_in_a_ring(ring_workers):
    made, found = ring_workers(MS, start=[[0., 4.]], compression=NAME), []
    for _ in range(10):
        at_once([worker.step for worker in made])
        found.append(made[0].center())
    assert found == by_hand(10)


def test_where_all_is_sent_it_is_plain_sgd(toy):
    """No velocity lasts."""
    plain, all_ = (workers_of(toy, 3, **changes)
                   for changes in ({}, dict(compression='dgc:1:0.9')))
    for _ in range(3):
        assert together(plain) == together(all_)


# What is refused.

@pytest.mark.parametrize('name', ['dgc', 'dgc:0.1', 'dgc:0:0.9', 'dgc:2:0.9', 'dgc:0.1:1',
                                  'dgc:0.1:-1', 'dgc:0.1:x', 'dgc:0.1:0.9:1', 'topk:0.1:0.9'])
def test_what_it_is_not(name):
    with pytest.raises(SystemExit, match='^--compression=[^\n]* there are none, bf16, [^\n]*$'):
        compressors.by_name(name)


@pytest.mark.parametrize('folder', ['HogWild', 'SSP', 'DOWNPOUR-Easy', 'AGN', 'DynSGD', 'SAGN',
                                    'Local-SGD', 'DiLoCo'])
def test_schemes_that_do_not_push_gradients_of_a_step(player, folder):
    with pytest.raises(SystemExit, match='^--compression=dgc:0.5:0.5: its momentum is that of '
                                         'gradients of which all workers make a step [^\n]*$'):
        player(folder, [0., 4.], [8.], [tf.float64], compression=NAME)


@pytest.mark.parametrize('folder', ['Synchronous-SGD', 'Ring-AllReduce'])
@pytest.mark.parametrize('owner, attribute, value, name', [
    (Problem, 'model_optimizer', lambda _, rate: tf.train.AdamOptimizer(rate), 'AdamOptimizer'),
    (recipe.Recipe, 'changes', True, 'Optimizer')], ids=['optimizer', 'recipe'])
def test_optimizers_that_are_not_plain_sgd(player, monkeypatch, folder, owner, attribute, value,
                                           name):
    monkeypatch.setattr(owner, attribute, value)
    with pytest.raises(SystemExit, match=f'^--compression={NAME}: [^\n]* Here {name} would take'):
        player(folder, [0., 4.], [8.], [tf.float64], compression=NAME)
