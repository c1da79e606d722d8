"""SGP of Gossip: its worked numbers, what it conserves, its graphs, its mean; real workers.

The toy problem as in `test_gossip`: x starts at 8, gradient z - m, learning rate 1/2.
"""

import importlib

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import recipe

from cases import briefly
from conftest import load_program
from processes import MEAN, TEST
import test_gossip
from test_gossip import at_once, distance, EXACT

connected = test_gossip.connected  # a fixture

UNEVEN = {0: [1, 2], 1: [2], 2: [0]}  # by worker, to whom it sends
ALL_TO_ALL = {0: [1, 2], 1: [0, 2], 2: [0, 1]}
# Push-sum on UNEVEN, from (9, 3, 0) and without gradients: z after four steps; where x and w go.
Z_ALONE, X_ALONE, W_ALONE = [3.9946154, 3.9708964, 4.0185078], [4, 8 / 3, 16 / 3], [1, 2 / 3, 4 / 3]
# SGP on UNEVEN, with the targets 0, 4 and 8: z after each step.
Z_OF_SGP = [[6.4, 5.2, 6.25], [5.6279412, 3.712, 5.2765306]]
# Targets; to whom workers send, None: in a ring; and z after each step, the same for all, as in
# synchronous SGD.
FULL_AVERAGES = briefly([
    ([0, 8], None, [6, 5, 4.5]), ([0, 4], None, [5, 3.5, 2.75, 2.375]),
    ([0, 4, 8], ALL_TO_ALL, [6, 5, 4.5])], lambda ms, *_: 4 in ms)


class Pushing:
    """Workers of SGP on real servers, which all take a step at once."""

    def __init__(self, made):
        self.made = made

    def step(self):
        """Has all take a step; returns z of each, a list."""
        step = self.steps()  # before any of them begins
        at_once([lambda each=each: each.session.run(each.scheme.at(step).train_op)
                 for each in self.made])
        return self.z()

    def steps(self):
        number, = {int(each.session.run(each.global_step)) for each in self.made}
        return number

    def x(self):
        return [each.center() for each in self.made]

    def w(self):
        return [float(each.session.run(each.scheme.weights)[0]) for each in self.made]

    def z(self):
        return [x / w for x, w in zip(self.x(), self.w())]

    def set(self, values):
        """Gives each worker a replica."""
        for each, value in zip(self.made, values):
            each.variables[0].load(value, each.session)


@pytest.fixture(params=['servers', 'sockets'])
def pushing(toy, connected, monkeypatch, request):
    """A function that makes a `Pushing` of workers with the optima `ms`.

    By `sends_to`, a dict, they send to others than in the graphs of the folder; `change` is a
    function that changes its program before.
    """
    real, changes = importlib.import_module, []

    def import_module(name, *args):
        module = real(name, *args)
        for change in changes if name == 'worker' else []:
            change(module)
        return module

    def make(ms, sends_to=None, graph='ring', change=None, **others):
        def redirect(program):
            program.topology.receivers_of = lambda worker, *_: sends_to[worker]

        changes[:] = ([redirect] if sends_to else []) + ([change] if change else [])
        monkeypatch.setattr(importlib, 'import_module', import_module)
        more = [(make.swaps.Swaps(i, each),)
                for i, each in enumerate(connected(len(ms), with_all=True))]
        return Pushing(toy('Gossip', ms, algorithm='sgp', roles='any', graph=graph,
                           implementation=request.param,
                           more=more if request.param == 'sockets' else None, **others))

    make.swaps = load_program('Gossip', 'swaps')
    return make


# The worked numbers.

def test_push_sum_alone(pushing):
    """What is x / w goes to the mean, and x alone does not; both sums stay."""
    made = pushing([0] * 3, UNEVEN, learning_rate=0.)
    made.set([9, 3, 0])
    for _ in range(4):
        z = made.step()
        assert sum(made.x()) == pytest.approx(12, **EXACT)
        assert sum(made.w()) == pytest.approx(3, **EXACT)
    assert z == pytest.approx(Z_ALONE, **EXACT)
    for _ in range(16):
        z = made.step()
    assert z == pytest.approx([4] * 3, **EXACT)
    assert made.x() == pytest.approx(X_ALONE, **EXACT)
    assert made.w() == pytest.approx(W_ALONE, **EXACT)


def test_sgp(pushing):
    """The gradient is that at z, and the step is made to x; the mean of x does what z say."""
    ms = [0, 4, 8]
    made, mean, z = pushing(ms, UNEVEN), 8., [8.] * 3
    for expected in Z_OF_SGP:
        mean -= 0.5 * np.mean(np.subtract(z, ms))
        z = made.step()
        assert z == pytest.approx(expected, **EXACT)
        assert np.mean(made.x()) == pytest.approx(mean, **EXACT)
    assert made.steps() == 2


@pytest.mark.parametrize('ms, sends_to, expected', FULL_AVERAGES, ids=str)
def test_with_a_full_average_it_is_synchronous_sgd(pushing, ms, sends_to, expected):
    """To the bit the same on all workers."""
    made = pushing(ms, sends_to)
    for value in expected:
        z = made.step()
        assert z == pytest.approx([value] * len(ms), **EXACT) and len(set(z)) == 1


def test_a_ring_of_four(pushing):
    """Worked out by hand: after the step 4, 6, 8, 10, and each has half of its own and of one."""
    made = pushing([0, 4, 8, 12])
    assert made.step() == [7, 5, 7, 9]
    assert made.step() == [7, 4, 6, 9]
    assert made.w() == [1] * 4


def test_weights_by_rows_lose_the_mean(pushing):
    """If receivers divide, and not senders: what the sums of the tests above would show."""
    def by_rows(program):
        program.push_sum.share = lambda values, receivers: values
        program.push_sum.total = lambda parts: [sum(each) / len(parts) for each in zip(*parts)]
        pushing.swaps.total = lambda values: np.mean(values, axis=0, dtype=np.float32)

    made = pushing([0] * 3, UNEVEN, change=by_rows, learning_rate=0.)
    made.set([9, 3, 0])
    made.step()
    assert made.w() == pytest.approx([1] * 3) and abs(sum(made.x()) - 12) > 1


def test_without_others_it_is_sgd(pushing):
    made = pushing([4], graph='exponential')
    assert [made.step() for _ in range(3)] == [[6], [5], [4.5]]


# The graphs.

@pytest.mark.parametrize('number, values', [
    (4, [[4, 4, 0, 0], [2, 2, 2, 2]]), (3, [[4, 4, 0], [4, 2, 2], [3, 3, 2]])])
def test_the_exponential_graph(pushing, number, values):
    """A mean of all 2^k workers after k steps; other numbers of them only come near it."""
    made = pushing([0] * number, graph='exponential', learning_rate=0.)
    made.set([8] + [0] * (number - 1))
    assert [made.step() for _ in values] == values
    assert made.w() == [1] * number


@pytest.mark.parametrize('graph', ['ring', 'exponential'])
def test_shares_make_up_what_there_was(graph):
    """Columns of each phase's matrix sum to 1, rows as well; and who has heard of whom."""
    program = load_program('Gossip')
    for number in range(1, 18):
        heard = np.eye(number)
        for phase in range(program.topology.phases(graph, number)):
            weights = matrix(program, number, phase)
            assert (weights.sum(axis=0) == 1).all() and (weights.sum(axis=1) == 1).all()
            heard = weights @ heard
        if graph == 'exponential':
            assert heard.all() and (number & (number - 1) or (heard == 1 / number).all())
        else:
            assert np.count_nonzero(heard) == number * min(2, number)


def matrix(program, number, phase):
    """Returns the matrix of a phase, [number, number]: what a row has of what a column had."""
    topology, weights = program.topology, np.zeros([number] * 2)
    for worker in range(number):
        receivers = topology.receivers_of(worker, number, phase)
        for each in receivers:
            assert worker in topology.senders_of(each, number, phase)
        weights[[worker, *receivers], worker], = program.push_sum.share([1.], len(receivers))
    return weights


@pytest.mark.parametrize('number, factor', [(4, 2), (8, 1.17)])
def test_how_fast_mixing_is(number, factor):
    """In a ring, by so much a step divides the distance at least."""
    weights = matrix(load_program('Gossip'), number, 0)
    _, second, *_ = np.linalg.svd(weights, compute_uv=False)
    assert 1 / second ** 2 == pytest.approx(factor, abs=0.005)


def test_all_neighbours():
    """In a ring those of D-PSGD; in the exponential graph all that are 1, 2 or 4 places away."""
    topology = load_program('Gossip', 'topology')
    for number in range(1, 9):
        for worker in range(number):
            assert topology.all_neighbours_of(worker, number, 'sgp', 'ring') == (
                topology.all_neighbours_of(worker, number, 'd-psgd', 'ring'))
    assert topology.all_neighbours_of(1, 8, 'sgp', 'exponential') == [0, 2, 3, 5, 7]


# The mean, and what else a worker keeps.

def test_the_mean_is_that_of_x_by_that_of_w(pushing, cluster, tmp_path):
    """And so it is saved; who restores it begins with it, and with the weight 1."""
    made = pushing([0, 4, 8], UNEVEN)
    first = made.made[0]
    flags.FLAGS.mark_as_parsed()
    with first.graph.as_default():
        workers = {i: first.program.others.Worker(i, cluster.servers['worker', i].target,
                                                  [*first.variables, *first.scheme.weights])
                   for i in range(3)}
        for each in workers.values():
            each.show(first.program.others.BEGUN)
        of_all = first.program.mean.Mean(first.scheme.network, workers)
        of_all.weights = first.scheme.weights
        saver = first.program.mean.Saver('worker 0', of_all)
        first.session.run(tf.local_variables_initializer())
    made.step()
    number, apart = of_all.form(first.session)
    assert number == 3 and first.session.run(of_all.tested) == [pytest.approx(6, **EXACT)]
    assert apart == pytest.approx(np.mean(np.square(np.subtract(made.z(), 6))), **EXACT)
    assert apart != pytest.approx(distance(made.z()), **EXACT), 'z are not weighted'
    workers[2].show(0)
    assert of_all.form(first.session)[0] == 2
    x, w = made.x(), made.w()
    assert first.session.run(of_all.tested) == [
        pytest.approx((x[0] + x[1]) / (w[0] + w[1]), **EXACT)]
    workers[2].show(first.program.others.BEGUN)
    path = saver.save(first.session, str(tmp_path / 'model.ckpt'), 1)
    assert [name for name, _ in tf.train.list_variables(path)] == ['global_step', 'x0']
    first.begin_again()
    with first.graph.as_default():
        saver.restore(first.session, path)
    first.session.run(first.scheme.weights[0].initializer)
    assert made.x()[0] == made.z()[0] == pytest.approx(6, **EXACT)


def test_a_recipe(pushing):
    """A worker clips its own gradient, and decays its own replica; then they exchange."""
    made = pushing([0, 4], its_recipe=recipe.Recipe(clip_norm=1., weight_decay=0.25))
    made.set([8, 4])
    assert made.step() == [(8 - 0.5 - 1 + 4 - 0.5) / 2] * 2


# Flags.

@pytest.mark.parametrize('values, complaint', [
    (dict(algorithm='sgp', roles='bipartite'), '--roles is for --algorithm=ad-psgd: in sgp all'),
    (dict(algorithm='d-psgd', graph='exponential'), '--graph is for --algorithm=sgp: in d-psgd'),
    (dict(graph='exponential'), '--graph is for --algorithm=sgp: in ad-psgd the workers')])
def test_flags_that_do_not_go_together(monkeypatch, values, complaint):
    program = load_program('Gossip')
    flags.FLAGS.mark_as_parsed()
    for name, value in values.items():
        monkeypatch.setattr(flags.FLAGS[name], '_value', value)
    with pytest.raises(SystemExit, match=f'^{complaint}'):
        program.check(2)


# Real processes.

@pytest.mark.thorough
@pytest.mark.parametrize('workers, its_flags', [
    (2, []), (4, ['--moving_average_decay=0.9']), (4, ['--graph=exponential']),
    (4, ['--graph=exponential', '--implementation=servers'])], ids=str)
def test_real_workers(programs, workers, its_flags):
    run = programs.run_sh('Gossip', '--algorithm=sgp', *its_flags, WORKERS=workers)
    assert run.wait() == 0
    assert f'the mean of {workers} replicas' in run.matches(MEAN)[-1].group()
    assert float(run.matches(TEST)[-1]['accuracy']) >= 0.95
