"""Post-local SGD: single local steps up to a step of the center, and then windows.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m; learning rate
1/2, windows of two local steps. Numbers are worked out by hand.
"""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import local_rules, recipe, seam
from tfdist.scheme.toy import Problem

from processes import BEGINS, DID, ROOT, warm_python
import test_building
from test_building import a_model, BATCH, scheme_of
import test_recipe
import test_simulation
from test_seam import at_once

here, simulated_toy = test_building.here, test_simulation.toy  # fixtures
NEVER = 10 ** 9


@pytest.fixture
def workers(toy):
    """Makes workers that train for five steps at most."""
    def make(ms=(0, 4), folder='Local-SGD', **changes):
        common = dict(replicas_to_aggregate=None, train_steps=5, communication_window=2)
        return toy(folder, ms, **dict(common, **changes))
    return make


def run_of(worker, step):
    """Returns a function that makes the run with which a worker's program begins at a step."""
    return functools.partial(worker.session.run, worker.scheme.at(step).train_op)


def centers(made, steps):
    """Returns the center, a list, after each of some steps that all workers make."""
    found = []
    for step in steps:
        results = at_once([run_of(worker, step) for worker in made])
        assert [(result['global_step'], result['dropped']) for result in results] == [
            (step + 1, 0)] * len(made)
        found.append(made[0].center())
    return found


def test_two_single_steps_and_two_windows(workers):
    assert centers(workers(local_sgd_from_step=2), range(4)) == [5, 3.5, 2.375, 2.09375]


@pytest.mark.parametrize('from_step, window, runs', [(0, 2, 1), (NEVER, 1, 2)])
def test_at_its_ends_it_is_local_sgd_bit_for_bit(workers, from_step, window, runs):
    """In windows from the first step on, or in none; at numbers that have to be rounded."""
    start, values = [0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]], []
    for changes in dict(local_sgd_from_step=from_step), dict(communication_window=window):
        made = workers((0.3, 1.7), start=start, learning_rate=0.3, num_ps=2, **changes)
        if 'local_sgd_from_step' in changes:
            assert len([made[0].scheme, *made[0].scheme.others]) == runs
        centers(made, range(4))
        values.append(made[0].session.run(made[0].variables))
    for one, other in zip(*values):
        assert np.array_equal(one, other)
        assert np.array_equal(one, one)  # no NaN


def test_without_windows_it_is_synchronous_sgd(workers):
    """To the bit, where no number has to be rounded."""
    synchronous = workers(folder='Synchronous-SGD', scale_learning_rate=False, warmup_steps=0)
    assert centers(workers(local_sgd_from_step=NEVER), range(5)) == centers(
        synchronous, range(5)) == [5, 3.5, 2.75, 2.375, 2.1875]


def test_windows_go_on_with_the_slots_of_the_local_rule(workers, monkeypatch):
    """By momentum: one worker makes six local steps, whatever the windows."""
    monkeypatch.setattr(Problem, 'model_rule', lambda self, rate: local_rules.Momentum(rate, 0.5))
    alone = workers([0], communication_window=1, train_steps=6)
    ways = centers(alone, range(6))
    assert centers(workers([0], local_sgd_from_step=2), range(4)) == [
        ways[0], ways[1], ways[3], ways[5]]
    assert ways[:3] == [4, 0, -2]


def test_windows_go_on_with_what_compression_has_left_out(workers):
    worker, = workers([0.5], start=[[8., 1., 2., 3.]], compression='topk:0.25',
                      local_sgd_from_step=2)
    way = 0
    for step in range(5):
        distance = np.array(worker.center()) - 0.5
        way += distance * (1 / 2 if step < 2 else 3 / 4)
        run_of(worker, step)()
    assert len(worker.scheme.own) == 2
    residual = worker.session.run(worker.scheme.own[0])
    assert np.array([8, 1, 2, 3]) - worker.center() == pytest.approx(way - residual, abs=1e-5)
    assert abs(residual).max() > 0.01


def test_a_schedule_counts_local_steps(workers):
    """With 32 examples in a batch and two workers: 64 in the first step, then 128 in each.

    So the rates are 1/2; 1/4 and 1/6; 1/8 and 1/10.
    """
    its_recipe = recipe.Recipe(schedule=test_recipe.by_examples)
    made = workers((0, 0), its_recipe=its_recipe, batch_size=32, local_sgd_from_step=1)
    assert centers(made, range(3)) == pytest.approx([4, 2.5, 2.5 * 7 / 8 * 9 / 10], rel=1e-6)


def that_counts_for_itself(batch, training):
    calls = tf.get_variable('calls', [], initializer=tf.zeros_initializer(), trainable=False,
                            collections=[tf.GraphKeys.LOCAL_VARIABLES])
    loss = test_building.by_get_variable(batch, training)
    if training:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, calls.assign_add(1.))
    return loss


@pytest.mark.usefixtures('here')
@pytest.mark.parametrize('function, name, each', [
    (test_building.with_a_moving_average, 'seen', BATCH), (that_counts_for_itself, 'calls', 1)])
def test_a_single_step_keeps_the_state_of_one_batch(function, name, each):
    """What the model itself assigns to, on the ps or on the worker."""
    scheme, _ = scheme_of('Local-SGD', a_model(function), communication_window=3,
                          local_sgd_from_step=2)
    variable, = [variable for variable in tf.global_variables() + tf.local_variables()
                 if variable.op.name == name]
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        session.run(tf.local_variables_initializer())
        for hook in scheme.hooks:
            hook.after_create_session(session, None)
        for step, batches in enumerate([1, 2, 5, 8]):
            result = session.run(scheme.at(step).train_op)
            assert result.get('local_steps', 3) == (1 if step < 2 else 3)
            assert session.run(variable) == batches * each


def test_with_backup_workers_a_late_one_changes_with_the_others(workers):
    """It hears the step as it hears that it is late."""
    chief, other, late = workers((0, 4, 8), replicas_to_aggregate=2, local_sgd_from_step=1)
    results = at_once([run_of(chief, 0), run_of(other, 0)])
    assert [(result['global_step'], result['dropped']) for result in results] == [(1, 0)] * 2
    assert chief.center() == 5
    scheme = late.scheme.at(0)
    result = late.session.run(scheme.train_op, seam.feed(scheme.pull, [0, 8.]))
    assert (result['global_step'], result['dropped']) == (1, 1)
    # Windows: from 5 to 1.25 around 0, and to 7.25 around 8.
    results = at_once([run_of(chief, 1), run_of(late, result['global_step'])])
    assert [result['dropped'] for result in results] == [0, 0]
    assert chief.center() == 4.25


def test_the_chief_says_once_when_windows_begin(workers, capsys):
    made = workers(local_sgd_from_step=2)
    for worker in made:
        for step in 0, 1, 2, 3:
            worker.scheme.at(step)
    assert capsys.readouterr().out == (
        'worker 0: from step 2 on, a step is 2 local steps of each worker\n')


# One scheme plays all workers.

@pytest.fixture
def simulated(simulated_toy, monkeypatch):
    """Simulates two workers on one number from 8, for four steps; see `test_simulation.Toy`."""
    def make(ms=(0, 4), steps=4, start=(8.,), **changes):
        monkeypatch.setattr(test_simulation, 'START', start)
        return simulated_toy('Local-SGD', len(ms), steps, ms=ms, step=['1ms'],
                             changes=dict(learning_rate=0.5, **changes))
    return make


def test_simulated_single_steps_and_windows(simulated):
    """Also how long they take."""
    for steps, center, local_steps in (1, 5, 1), (2, 3.5, 2), (3, 2.375, 4), (4, 2.09375, 6):
        one = simulated(steps=steps, local_sgd_from_step=2)
        assert one.player.center() == [center]
        assert one.clock.now == pytest.approx(1e-3 * local_steps)
        assert one.record.local_steps == 2 * local_steps


@pytest.mark.parametrize('from_step, window', [(0, 2), (NEVER, 1)])
def test_at_its_ends_it_is_simulated_local_sgd(simulated, from_step, window):
    """To the bit, at numbers that have to be rounded, and in all that is recorded."""
    found = []
    for changes in dict(local_sgd_from_step=from_step), dict(communication_window=window):
        one = simulated((0.3, 1.7), start=[0.1, [1 / 3, -0.7, 1e6]], **changes)
        found.append(([value.tobytes() for value in one.player.center()], one.clock.now,
                      one.exchanges, one.record.curve, one.record.local_steps))
    assert found[0] == found[1]


def test_simulated_local_steps_are_those_of_all_steps(programs):
    """20 steps of one by each of two workers, and 20 of five."""
    run = programs.start([warm_python(), ROOT / 'Simulation' / 'simulate.py', '--scheme=Local-SGD',
                          '--workers=2', '--communication_window=5', '--local_sgd_from_step=20',
                          '--local_steps=240', '--tests=1'])
    run.ends_well()
    assert run.matches('worker 0: from step 20 on, a step is 5 local steps of each worker')
    assert run.matches('Local-SGD: starts at step 0 of 40')
    assert run.matches('Local-SGD: did 240 local steps, .*')


# Real processes.

@pytest.mark.thorough
def test_a_run_that_resumes_on_both_sides(programs):
    """Which step it is decides, and each worker tells the local steps that it has made."""
    def run(train_steps):
        return programs.run_sh(
            'Local-SGD', '--communication_window=5', '--local_sgd_from_step=20',
            f'--train_steps={train_steps}', f'--model_dir={programs.directory / "model"}')

    for begin, end, says, local_steps in ((0, 10, [], 10), (10, 30, [20], 60), (30, 40, [30], 50)):
        made = run(end)
        made.ends_well()
        assert {int(found['step']) for found in made.matches(BEGINS)} == {begin}
        assert [int(found[1]) for found in made.matches(
            r'worker 0: from step (\d+) on, a step is 5 local steps of each worker')] == says
        assert [int(found['local_steps']) for found in made.matches(DID)] == [local_steps] * 2


def test_what_is_done_without_it_or_refused(programs):
    flag = '--local_sgd_from_step=5'
    programs.run_sh('Local-SGD', flag, f'--order_dir={programs.directory / "order"}').fails(
        '^--order_dir: in this scheme not every run is the same one: such a run is not recorded')
    check = programs.run_sh('Local-SGD', '--check', flag)
    check.ends_well()
    assert check.matches('check: checked with --local_sgd_from_step=0: in windows from the first '
                         'step on')
