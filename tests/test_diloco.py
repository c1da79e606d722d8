"""DiLoCo: its worked numbers and those of the schemes that are settings of it; what is kept where.

The toy problem of the synchronous schemes: a parameter that starts at 8, gradient x - m, learning
rate 1/2, windows of two local steps.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import graphs, recipe
from tfdist.scheme.toy import Problem

from cases import briefly
import test_synchronous
from test_synchronous import Call, join, together

workers = test_synchronous.workers  # a fixture
NESTEROV, HEAVY_BALL, SLOWMO = 'nesterov', 'heavy_ball', 'slowmo'
ADAM = dict(inner='adamw', outer_learning_rate=1., outer_momentum=0.)
ADAM_CENTERS = [7.0019709, 6.0190493, 5.06985]
FORGETFUL = [7.0019709, 6.0048288, 5.0099677]  # if all moments are 0 in each window


def outer(learning_rate, momentum, form=NESTEROV, **changes):
    """Returns hyperparameters, a dict."""
    return dict(changes, outer_learning_rate=learning_rate, outer_momentum=momentum, outer=form)


@pytest.mark.parametrize('ms, changes, centers', briefly([
    # Local SGD.
    ((0, 4), outer(1, 0), [3.5, 2.375, 2.09375, 2.0234375]),
    ((0, 4), outer(1, 0, HEAVY_BALL), [3.5, 2.375, 2.09375, 2.0234375]),
    ((0, 4, 8), outer(1, 0), [5, 4.25, 4.0625, 4.015625]),
    # BMUF by Nesterov; with two workers its momentum is 1 - 1/2.
    ((0, 4), outer(1, 0.5), [1.25, 0.96875, 1.7070312, 2.019043]),
    ((0, 4, 8), outer(1, 0.5), [3.5, 3.3125, 3.8046875, 4.0126953]),
    # SlowMo with alpha = 1, beta = 1/2 at a constant rate; classical BMUF with two workers.
    ((0, 4), outer(1, 0.5, HEAVY_BALL), [3.5, 0.125, -0.15625, 1.3203125]),
    ((0, 4, 8), outer(1, 0.5, HEAVY_BALL), [5, 2.75, 2.5625, 3.546875]),
    ((0, 4), outer(1, 0.5, SLOWMO), [3.5, 0.125, -0.15625, 1.3203125]),
    # Lookahead.
    ((0,), outer(0.5, 0), [5, 3.125, 1.953125, 1.2207031]),
    # DiLoCo's step of the center, with SGD and with AdamW inside.
    ((0, 4), outer(0.5, 0.5), [4.625, 2.5859375, 1.7290039, 1.5628357]),
    ((0, 4), outer(0.7, 0.9), [2.015, -0.5514625, -0.30910741, 1.0067808]),
    ((0, 4, 8), outer(0.7, 0.9), [4.01, 2.299025, 2.4605951, 3.3378539]),
    ((0, 4), outer(0.7, 0.9, inner='adamw', inner_weight_decay=0.1),
     [5.6722902, 2.7426442, -0.19031529]),
    # Adam inside, and the mean.
    ((0, 4), ADAM, ADAM_CENTERS),
], lambda ms, changes, centers: len(ms) < 3), ids=str)
def test_worked_numbers(workers, ms, changes, centers):
    made = workers('DiLoCo', ms, steps=len(centers), **changes)
    # Adam's correction of the bias is float32, as in TensorFlow's optimizer.
    far = 5e-5 if 'inner' in changes else 2e-6
    assert [together(made) for _ in centers] == pytest.approx(centers, rel=0, abs=far)


@pytest.mark.parametrize('form, centers', [
    (SLOWMO, [3.5, 1.71875, 0.95117188]), (HEAVY_BALL, [3.5, 0.59375, -0.24414062])])
def test_after_a_decay_slowmo_is_another_rule(workers, form, centers):
    """The inner rates are 1/2, and then 1/4."""
    def schedule(step, examples):
        del examples
        return tf.where(step < 1, 1., 0.5)

    made = workers('DiLoCo', steps=3, its_recipe=recipe.Recipe(schedule=schedule),
                   **outer(1, 0.5, form))
    assert [together(made) for _ in centers] == pytest.approx(centers, rel=1e-6)


def test_slowmo_waits_while_the_rate_is_0(workers):
    """As a warmup may begin: nothing is divided by it."""
    def schedule(step, examples):
        del examples
        return tf.where(step < 1, 0., 1.)

    made = workers('DiLoCo', steps=2, its_recipe=recipe.Recipe(schedule=schedule),
                   **outer(1, 0.5, SLOWMO))
    assert [together(made) for _ in range(2)] == [8, 3.5]


@pytest.mark.parametrize('form', briefly([NESTEROV, HEAVY_BALL], [NESTEROV]))
def test_without_momentum_it_is_local_sgd_bit_for_bit(workers, form):
    """At numbers that have to be rounded in each operation."""
    start = 0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]
    values = []
    for folder, changes in ('Local-SGD', {}), ('DiLoCo', outer(1, 0, form)):
        made = workers(folder, (0.3, 1.7), 5, start=start, learning_rate=0.3, num_ps=2, **changes)
        for _ in range(5):
            together(made)
        values.append(made[0].session.run(made[0].variables))
    for value, same in zip(*values):
        assert np.array_equal(value, same)
        assert np.array_equal(value, value)  # no NaN


@pytest.mark.parametrize('form', [NESTEROV, HEAVY_BALL])
def test_with_windows_of_one_step_it_is_synchronous_sgd_with_momentum(workers, monkeypatch, form):
    made = workers('DiLoCo', steps=4, communication_window=1, **outer(1, 0.5, form))
    found = [together(made) for _ in range(4)]
    monkeypatch.setattr(Problem, 'optimizer', lambda _, rate, clips: tf.train.MomentumOptimizer(
        rate, 0.5, use_nesterov=form == NESTEROV))
    made = workers('Synchronous-SGD', steps=4)
    assert found == pytest.approx([together(made) for _ in range(4)], rel=1e-6)


@pytest.mark.parametrize('of_bound, converges', [(0.8, True), (1.2, False)])
def test_how_large_the_outer_learning_rate_may_be(workers, of_bound, converges):
    """2 (1 + mu) / (1 + 2 mu) where a window goes all the way; here it goes 3/4 of it."""
    bound = 2 * 1.9 / 2.8 / 0.75
    worker, = workers('DiLoCo', [0], steps=60, **outer(of_bound * bound, 0.9))
    for _ in range(60):
        worker.step()
    assert (abs(worker.center()) < 8) == converges


def moments(worker):
    """Returns what the inner optimizer keeps on a worker, a list of arrays; the last counts."""
    return worker.session.run(worker.scheme.own)


def test_a_worker_that_starts_again_begins_with_no_moments_and_no_count(workers):
    """A new session initializes what is local: all of it, or the first step would be too long."""
    made = workers('DiLoCo', steps=3, **ADAM)
    found = [together(made)]
    for worker in made:
        assert all(np.all(value) for value in moments(worker))
        with worker.graph.as_default():
            assert {*worker.scheme.own} <= {*tf.local_variables()}
            worker.session.run(tf.local_variables_initializer())
        assert not any(np.any(value) for value in moments(worker))
    found.append(together(made))
    assert found == pytest.approx(FORGETFUL[:2], rel=1e-5)
    assert found[1] != pytest.approx(ADAM_CENTERS[1], rel=1e-5)


def test_moments_are_kept_after_the_push(workers):
    """In training: if the push fails, the worker still has those of before the window."""
    worker, = workers('DiLoCo', [0], **ADAM)
    handles = {variable.handle.op for variable in worker.scheme.own}
    run = graphs.ancestors(worker.scheme.train_op.values())
    keep = [op for op in run if op.type == 'AssignVariableOp'
            and op.inputs[0].op in handles]
    pushes = {op for op in run if op.type.endswith('AccumulatorApplyGradient')}
    assert len(keep) == len(handles) == 3 and len(pushes) == 1
    for op in keep:
        assert pushes <= graphs.ancestors([op])


def test_moments_of_a_window_that_is_dropped_advance(workers):
    """With a backup worker: the center knows nothing of its window, but its moments do."""
    chief, other, late = workers('DiLoCo', [0, 4, 8], steps=2, replicas_to_aggregate=2, **ADAM)
    calls = [Call(chief), Call(other)]
    assert [call.result()['dropped'] for call in calls] == [0, 0]
    assert chief.center() == pytest.approx(ADAM_CENTERS[0], rel=1e-5)
    pulled = [0, 8.]  # as before the step that it missed
    assert late.session.run(late.scheme.train_op, dict(zip(late.scheme.pull, pulled)))[
        'dropped'] == 1
    assert chief.center() == pytest.approx(ADAM_CENTERS[0], rel=1e-5)
    first, second, count = moments(late)
    assert count == 2


def test_a_run_that_is_resumed_has_its_velocity(workers, tmp_path):
    """The checkpoint has the center and the velocity; the moments of SGD are none."""
    whole = workers('DiLoCo', steps=4, **outer(0.7, 0.9))
    expected = [together(whole) for _ in range(4)]
    before, after = (workers('DiLoCo', steps=4, **outer(0.7, 0.9)) for _ in range(2))
    assert [together(before) for _ in range(2)] == expected[:2]
    savers = []
    for made in before, after:
        with made[0].graph.as_default():
            savers.append(tf.train.Saver())  # as MonitoredTrainingSession has it
    path = savers[0].save(before[0].session, str(tmp_path / 'model.ckpt'))
    assert sorted(name for name, _ in tf.train.list_variables(path)) == [
        'global_step', 'x0', 'x0/Momentum']
    savers[1].restore(after[0].session, path)
    for worker in after:
        join(worker)
    assert [together(after) for _ in range(2)] == expected[2:]
