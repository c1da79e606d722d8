"""Gathered computing: in several threads and at other times, and the same to the bit.

What is compared is a run in which each worker computes when it pulls, one after the other.
"""

import os
import threading

import numpy as np
import pytest

from tfdist.scheme import schedule
from tfdist.scheme.toy import Problem
from tfdist.start.quiet import tf

from cases import briefly
import description
import gathering
import parts
import player
import round_parts
import shards
import test_simulation
from test_seam import CASES, of_each_kind

toy = test_simulation.toy  # a fixture
# Of each kind: what the simulation is asked for, besides the scheme.
STRAGGLERS = dict(step=['lognormal:1ms:1', 'lognormal:1ms:1', '5ms'], latency=['1ms', '0.2ms'],
                  update='100us')
DEATHS = dict(STRAGGLERS, die=['1:9.1ms', '3:13ms'], come=['1:17.3ms', '3:13.1ms', '4:6ms'],
              leave=['2:31ms'])
BACK = dict(STRAGGLERS, die=['1:9.1ms'], come=['1:17.3ms'])  # nobody may be missing for good
FRAGMENTS = dict(communication_window=4, fragments=2, fragment_delay=1, fragment_alpha=0.5)
KINDS = [
    ('HogWild', {}, DEATHS), ('HogWild', dict(compression='topk:0.5'), DEATHS),
    ('DC-ASGD', dict(variance='adaptive', lambda_0=0.125), DEATHS), ('AGN', {}, DEATHS),
    ('DynSGD', {}, DEATHS),
    ('DOWNPOUR', dict(n_fetch=2, n_push=3), DEATHS),
    ('DOWNPOUR', dict(n_fetch=3, n_push=1), DEATHS),
    ('AEASGD', {}, DEATHS), ('AEAMSGD', {}, DEATHS), ('SSP', dict(staleness_bound=1), DEATHS),
    ('Synchronous-SGD', {}, BACK), ('Synchronous-SGD', dict(replicas_to_aggregate=3), BACK),
    ('SAGN', {}, BACK), ('Local-SGD', dict(compression='topk:0.5'), BACK),
    ('Local-SGD', dict(local_sgd_from_step=5), BACK), ('DiLoCo', {}, BACK),
    ('DiLoCo', FRAGMENTS, BACK), ('DiLoCo', dict(FRAGMENTS, compression='int8'), BACK),
    ('Ring-AllReduce', {}, STRAGGLERS), ('Ring-AllReduce', dict(compression='int8'), STRAGGLERS)]
NAMES = ['-'.join([folder, *map(str, changes.values())]) for folder, changes, _ in KINDS]
# Of each number of local steps and exchanges in a round, and of all that a worker keeps.
BRIEF = {'DC-ASGD-adaptive-0.125', 'DOWNPOUR-2-3', 'AEASGD', 'SSP-1', 'Synchronous-SGD-3',
         'Local-SGD-topk:0.5', 'DiLoCo-4-2-1-0.5-int8', 'Ring-AllReduce'}


@pytest.fixture
def three(monkeypatch):
    """Three threads compute, whatever machine this is; returns how many were computed in a row."""
    monkeypatch.setattr(os, 'cpu_count', lambda: 3)
    compute, found = player.Player._compute_all, []

    def noting(self, several):
        found.append((len(several), threading.get_ident()))
        return compute(self, several)

    monkeypatch.setattr(player.Player, '_compute_all', noting)
    return found


def one_by_one(patched):
    """Has each worker compute when it pulls, within `patched`, a context of monkeypatch."""
    add = gathering.Gathering.add

    def add_and_make(self, asked):
        one = add(self, asked)
        one.result()
        return one

    patched.setattr(gathering.Gathering, 'add', add_and_make)


def what_came_of(one):
    """Returns all that can be seen of a `test_simulation.Toy` that has run, to the bit."""
    kept = one.player._own
    record = one.record
    return ([array.tobytes() for array in one.player.center()], one.clock.now, one.exchanges,
            [(worker, figure, step) for worker, figure, step, _ in one.pushed], record.curve,
            dict(record.seconds), dict(record._whole.sums), record.staleness, record.local_steps,
            [array.tobytes() for worker in one.crew.there for array in kept.of(worker)]
            if kept and kept.places else None)


@pytest.mark.parametrize('folder, changes, said', briefly(
    KINDS, lambda *case: NAMES[KINDS.index(case)] in BRIEF), ids=NAMES)
def test_gathered_and_one_by_one(toy, monkeypatch, three, folder, changes, said):
    """With stragglers, deaths and returns."""
    steps = 12 if 'Sync' in folder or folder in ('SAGN', 'Local-SGD', 'DiLoCo',
                                                 'Ring-AllReduce') else 60
    gathered = toy(folder, 5, steps, changes=changes, **said)
    assert gathered.record.step == steps and gathered.player.computes_later
    if 'AEA' not in folder:  # whose pushes leave at once
        assert len({thread for _, thread in three}) > 1
    three.clear()
    with monkeypatch.context() as patched:
        one_by_one(patched)
        alone = toy(folder, 5, steps, changes=changes, **said)
    assert {number for number, _ in three} == {1} and len({thread for _, thread in three}) == 1
    assert what_came_of(gathered) == what_came_of(alone)


@pytest.mark.parametrize('folder, changes', [
    ('AEASGD', {}), ('DC-ASGD', dict(variance='adaptive', lambda_0=0.125)),
    ('HogWild', dict(compression='int8')),
    ('Local-SGD', dict(compression='topk:0.5'))])
def test_what_is_kept_may_be_loaded_or_fed(toy, monkeypatch, folder, changes):
    """A scheme that does not only read and assign has it loaded; the results are the same."""
    fed = toy(folder, 5, 12, changes=changes, **BACK)
    monkeypatch.setattr(parts, 'only_reads_and_assigns', lambda *_: False)
    loaded = toy(folder, 5, 12, changes=changes, **BACK)
    assert fed.player._own.places and not loaded.player._own.places
    assert what_came_of(fed)[:-1] == what_came_of(loaded)[:-1]


@pytest.mark.parametrize('folder', ['HogWild', 'DOWNPOUR', 'AEASGD', 'SSP', 'Ring-AllReduce'])
def test_a_push_reads_the_center_as_a_run_of_its_own_does(toy, monkeypatch, folder):
    at_once = toy(folder, 5, 12, **STRAGGLERS)
    assert all(at_once.player._parts[0]._center_after)
    monkeypatch.setattr(round_parts.RoundParts, '_make_center_after',
                        lambda self: [[] for _ in self._exchanges(schedule.Push)])
    apart = toy(folder, 5, 12, **STRAGGLERS)
    assert what_came_of(at_once) == what_came_of(apart)


@pytest.mark.parametrize('folder, changes', of_each_kind(CASES))
def test_all_schemes_compute_later(folder, changes):
    """Unless the model is random, or has tables: nothing else slows a simulation down."""
    one = test_simulation.Toy(folder, [0.5, 1.], description.Cluster(workers='2'), 1, **changes)
    assert one.player.computes_later
    one.player.close()


@pytest.mark.parametrize('make', [
    lambda value: value * tf.random_uniform([], dtype=value.dtype),
    lambda value: tf.py_func(lambda same: same, [value], value.dtype),
    lambda value: value * tf.cast(tf.train.get_global_step().read_value(), value.dtype)])
def test_what_depends_on_more_is_computed_at_once(toy, monkeypatch, make):
    """On random numbers, on Python, on a variable that is not fed: in the order of the pulls."""
    def gradients_at(problem, values):
        gradients, figures = of_problem(problem, values)
        changed = [make(gradient) for gradient in gradients]
        for one, gradient in zip(changed, gradients):
            one.set_shape(gradient.shape)
        return changed, figures

    of_problem = Problem.gradients_at
    monkeypatch.setattr(Problem, 'gradients_at', gradients_at)
    assert not toy('HogWild', 4, 20, **STRAGGLERS).player.computes_later


def test_a_variable_that_nothing_changes_may_be_read(toy, monkeypatch):
    """As a frozen one of a model is."""
    def gradients_at(problem, values):
        frozen = tf.get_variable('frozen', initializer=tf.constant(2., tf.float64))
        gradients, figures = of_problem(problem, values)
        return [gradient * frozen.read_value() for gradient in gradients], figures

    of_problem = Problem.gradients_at
    monkeypatch.setattr(Problem, 'gradients_at', gradients_at)
    assert toy('HogWild', 4, 20, **STRAGGLERS).player.computes_later


# Reads, assignments and copies in graphs.

def graph_of(body):
    """Returns whether the tensors that a function makes of a variable only read and assign."""
    with tf.Graph().as_default():
        variable = tf.get_variable('own', initializer=tf.zeros([4]))
        return parts.only_reads_and_assigns(body(variable), [], {variable.handle.op: 0})


def after(own, what):
    """Returns a list of what a function makes after an assignment."""
    with tf.control_dependencies([own.assign(own + 1., read_value=False)]):
        return [what()]


@pytest.mark.parametrize('body, only', [
    (lambda own: [own.read_value()], True),
    (lambda own: [own.assign(own.read_value() + 1, read_value=False)], True),
    (lambda own: after(own, lambda: tf.constant(1)), True),
    (lambda own: after(own, own.read_value), False),
    (lambda own: [own.assign_add(tf.ones([4]), read_value=False)], False),
    (lambda own: [own.sparse_read([1, 2])], False),
    (lambda own: [own.assign(tf.ones([4]), read_value=False),
                  own.assign(tf.zeros([4]), read_value=False)], False)])
def test_what_may_be_fed_of_a_variable(body, only):
    assert graph_of(body) == only


def test_tensors_made_again_come_after_what_they_wait_for():
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable('x', initializer=1.)
        first = variable.read_value()
        with tf.control_dependencies([first]):
            both = [first, variable.read_value() * 2]
        with tf.control_dependencies([variable.assign_add(4., read_value=False)]):
            added = tf.constant(0)
        again = parts.made_again(both, added, 'again')
        assert len(tf.global_variables()) == 1
        session.run(tf.global_variables_initializer())
        assert [session.run(again), session.run(again)] == [[5, 10], [9, 18]]
        assert session.run(both) == [9, 18]


# The threads.

@pytest.mark.parametrize('threads', [1, 2, 5])
def test_all_that_is_asked_for_is_made_once(threads):
    made, begun = [], []

    def compute(several):
        made.extend(several)
        return [one * 10 for one in several]

    gathered = gathering.Gathering(compute, 3, begun.append, threads)
    several = [gathered.add(number) for number in range(40)]
    assert several[7].result() == 70
    assert [one.result() for one in several] == [number * 10 for number in range(40)]
    assert sorted(made) == list(range(40))
    assert sorted(begun) == list(range(1, len(begun) + 1)) and len(begun) < threads
    gathered.close()


@pytest.mark.parametrize('threads', [1, 3])
def test_nothing_is_made_before_there_is_need_or_enough(threads):
    """In vain it would be, if the run ends before."""
    made = []
    gathered = gathering.Gathering(lambda several: [made.append(one) for one in several], 4,
                                   print, threads)
    for number in range(11):
        gathered.add(number)
    assert not made
    gathered.close()


@pytest.mark.parametrize('threads', [1, 3])
def test_a_failure_is_that_of_who_asks(threads):
    def compute(several):
        raise SystemExit(f'The data of {several[0]} cannot be read.')

    gathered = gathering.Gathering(compute, 2, print, threads)
    several = [gathered.add(number) for number in range(9)]
    with pytest.raises(SystemExit, match=r'^The data of \d cannot be read\.$'):
        several[0].result()
    gathered.close()


# What is drawn ahead.

@pytest.mark.parametrize('text', ['lognormal:2ms:0.5', 'pareto:1ms:1.5', '3ms'])
def test_times_drawn_ahead_are_those_drawn_one_by_one(text):
    """To the bit, however many local steps a piece has."""
    times = description.Times(text)
    ahead, random = times.ahead(np.random.RandomState(4)), np.random.RandomState(4)
    counts = [1, 1, 10, 3, 1, 300, 7] * 30
    assert [ahead(count) for count in counts] == [times.draw(random, count) for count in counts]


@pytest.mark.parametrize('num_shards', [2, 9, 50])
def test_batches_drawn_together_are_those_drawn_alone(monkeypatch, num_shards):
    """Also from shards of one or two examples, whose epochs are drawn many at a time."""
    def source():
        arrays = [np.arange(40.).reshape(20, 2), np.arange(20)]
        return shards.Arrays(arrays, 3, 2, [(i, num_shards) for i in range(num_shards)],
                             [1] * num_shards)

    with tf.Graph().as_default():
        together, alone = source(), source()
        monkeypatch.setattr(shards, '_AHEAD', 1)
        for workers in [0, 1, 1, num_shards - 1], [1], [0] * 40:
            found = together.draw([together.ask(worker) for worker in workers])
            for worker, arrays in zip(workers, found):
                expected = alone.next(worker)
                assert [array.tobytes() for array in arrays] == [
                    array.tobytes() for array in expected]
                assert [array.shape for array in arrays] == [(2, 3, 2), (2, 3)]
