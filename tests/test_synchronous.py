"""The synchronous schemes: the worked numbers of each come out of the ops worker.py trains with.

The toy problem: one parameter that starts at 8, gradient x - m, learning rate 1/2. A worker's step
returns when the step of all is complete, so each runs in a thread of its own.
"""

import collections
import threading
import time
import types

from absl import flags
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building, model_file
from tfdist.scheme import seam, warmup
from tfdist.scheme.toy import Problem

from cases import briefly
from conftest import load_program

HPARAMS = {
    'Synchronous-SGD': dict(scale_learning_rate=False, warmup_steps=0),
    'Synchronous-SGD-different-learning-rates': dict(learning_rates=[]),
    'SAGN': dict(communication_window=2),
    'Local-SGD': dict(communication_window=2),
    'DiLoCo': dict(communication_window=2, inner='sgd', inner_weight_decay=0., outer='nesterov',
                   outer_learning_rate=1., outer_momentum=0.5),
}
BRIEF = 'Synchronous-SGD', 'DiLoCo'  # of gradients, and of changes in windows
BLOCKED = 0.5  # seconds; a step takes a hundredth of that


@pytest.fixture
def workers(toy):
    """Makes workers of a scheme whose chief does its part for `steps` steps; see `toy`."""
    def make(folder, ms=(0, 4), steps=1, **changes):
        common = dict(replicas_to_aggregate=None, train_steps=steps, patience_secs=60.)
        return toy(folder, ms, **dict(common, **dict(HPARAMS[folder], **changes)))
    return make


class Call:
    """A worker's step under way, in a thread."""

    def __init__(self, worker, gradient=None):
        """Starts it; with a `gradient`, the worker pushes that, not the one of its batch."""
        self._result = None
        feed = {} if gradient is None else {worker.scheme.pull[1]: gradient}
        self._thread = threading.Thread(target=self._run, args=(worker, feed), daemon=True)
        self._thread.start()

    def _run(self, worker, feed):
        self._result = worker.session.run(worker.scheme.train_op, feed)

    def blocks(self):
        """Returns whether it has not come back within a moment."""
        self._thread.join(BLOCKED)
        return self._thread.is_alive()

    def result(self):
        """Waits for it; returns its result."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._result, 'it failed'
        return self._result


def together(made):
    """All make a step; returns the center after it."""
    results = [call.result() for call in [Call(worker) for worker in made]]
    assert len({result['global_step'] for result in results}) == 1
    assert [result['dropped'] for result in results] == [0] * len(made)
    return made[0].center()


def accumulated(worker):
    """Returns how many gradients wait in the accumulator of the first variable."""
    accumulator = next(op for op in worker.graph.get_operations()
                       if op.type.endswith('ConditionalAccumulator'))
    count = (tf.raw_ops.ResourceAccumulatorNumAccumulated
             if accumulator.type.startswith('Resource') else tf.raw_ops.AccumulatorNumAccumulated)
    with worker.graph.as_default(), tf.device(accumulator.device):
        return worker.session.run(count(handle=accumulator.outputs[0]))


def tokens(worker):
    """Returns how many tokens wait for a worker."""
    queue = next(op for op in worker.graph.get_operations() if op.type == 'FIFOQueueV2'
                 and op.get_attr('shared_name').decode() == f'tokens_{worker.task_index}')
    with worker.graph.as_default(), tf.device(queue.device):
        return worker.session.run(tf.raw_ops.QueueSizeV2(handle=queue.outputs[0]))


def lose_a_ps(worker, task='/task:0'):
    """Makes it look as if a ps, and what only it had, had been lost."""
    table = next(op for op in worker.graph.get_operations() if op.type == 'MutableHashTableV2'
                 and op.get_attr('shared_name') == b'entrance' and task in op.device)
    with worker.graph.as_default(), tf.device(table.device):
        worker.session.run(tf.raw_ops.LookupTableRemoveV2(table_handle=table.outputs[0],
                                                          keys=tf.constant([0], tf.int64)))


def join(worker):
    """Has a worker get a new session, as when it is started again or a ps was lost."""
    worker.session.close()
    worker.begin_again()


# Of every scheme.

@pytest.mark.parametrize('folder, changes, centers', [
    ('Synchronous-SGD', {}, [5, 3.5]),
    ('Synchronous-SGD-different-learning-rates', {}, [5, 3.5]),
    ('SAGN', dict(communication_window=1), [5, 3.5]),
    ('SAGN', {}, [5.75, 4.34375]),
    ('Local-SGD', dict(communication_window=1), [5, 3.5]),
    ('Local-SGD', {}, [3.5, 2.375]),
    ('DiLoCo', {}, [1.25, 0.96875]),
])
def test_two_workers_of_different_data(workers, folder, changes, centers):
    made = workers(folder, steps=2, **changes)
    assert [together(made) for _ in centers] == centers


@pytest.mark.parametrize('folder, centers', [
    ('Synchronous-SGD', [4, 2]),
    ('Synchronous-SGD-different-learning-rates', [4, 2]),
    ('SAGN', [5, 3.125]),
    ('Local-SGD', [2, 0.5]),
    ('DiLoCo', [-1, -1.375]),
])
def test_alone(workers, folder, centers):
    made = workers(folder, [0], steps=2)
    assert [together(made) for _ in centers] == centers


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_the_barrier_holds_from_the_first_step(workers, folder):
    first, second = workers(folder, steps=3)
    for step in range(1, 4):
        call = Call(first)
        assert call.blocks()
        assert first.session.run(first.global_step) == step - 1
        results = [Call(second).result(), call.result()]
        assert [result['global_step'] for result in results] == [step, step]
        assert tokens(first) == 0 and accumulated(first) == 0


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_everybody_pulls_the_new_center_after_the_barrier(workers, folder):
    """Bit for bit, in each of 50 steps."""
    made = workers(folder, steps=50, learning_rate=1 / 64)
    for _ in range(50):
        together(made)
        pulls = [worker.pull() for worker in made]
        assert pulls[0] == pulls[1]
        assert pulls[0][1] == made[0].center()


def test_after_the_loss_of_a_ps_each_votes_once(workers):
    """Who waits in a step that is never complete goes on; what was pushed does not count."""
    chief, other = made = workers('Synchronous-SGD', ms=(0, 4))
    waits = Call(other)
    assert waits.blocks() and accumulated(other) == 1
    lose_a_ps(chief)
    join(chief)
    assert waits.result()['global_step'] == 0, 'no step was made'
    assert accumulated(other) == 0
    join(other)
    assert together(made) == 5, 'one push from each'


def test_nobody_joins_before_the_chief_has_cleared_up(workers):
    chief, other = workers('Synchronous-SGD')
    lose_a_ps(chief)
    thread = threading.Thread(target=join, args=(other,), daemon=True)
    thread.start()
    thread.join(BLOCKED)
    assert thread.is_alive()
    join(chief)
    thread.join(60)
    assert not thread.is_alive()


def test_who_is_started_again_does_not_vote_again(workers):
    """What it pushed in its earlier life counts, and it goes on with the next step."""
    made = chief, other = workers('Synchronous-SGD', ms=(0, 4), steps=2)
    other.session.run(other.scheme.push)
    join(other)
    calls = [Call(worker) for worker in (other, chief)]
    assert [call.result()['dropped'] for call in calls] == [1, 0]
    assert other.center() == 5, 'one push from each'
    assert together(made) == 3.5


def test_a_chief_that_is_started_again_begins_the_step_afresh(workers):
    """Whoever has pushed is told so, and pushes again; nothing counts twice."""
    made = chief, other = workers('Synchronous-SGD', ms=(0, 4), start=[8., [8., 8.]], num_ps=2)
    waits = Call(other)
    assert waits.blocks()
    chief.session.run(chief.scheme.push)
    join(chief)
    assert waits.result()['global_step'] == 0
    assert accumulated(chief) == 0
    assert together(made) == 5, 'one push from each'


def test_a_push_to_one_of_two_variables_stops_no_later_step(workers):
    """The chief died when its other gradients had not arrived, and one mean was taken."""
    made = chief, other = workers('Synchronous-SGD', ms=(0, 4), start=[8., [8., 8.]], num_ps=2)
    waits = Call(other)
    assert waits.blocks()
    accumulator = chief.scheme.barrier._accumulators.all[0]
    with chief.graph.as_default():
        push = accumulator.apply_grad(tf.constant(8.), tf.int64.max)
        chief.session.run(push)
        chief.session.run(accumulator.take_grad(2))
    join(chief)
    assert waits.result()['global_step'] == 0
    assert together(made) == 5


def test_a_chief_begins_when_no_run_of_an_earlier_one_is_left(workers):
    """The machine is gone, and the ps does not know: the run still waits there."""
    made = chief, other = workers('Synchronous-SGD', ms=(0, 4), steps=2)
    left_over, before = Call(chief), chief.session
    assert left_over.blocks()
    thread = threading.Thread(target=chief.begin_again, daemon=True)  # with a session of its own
    thread.start()
    thread.join(BLOCKED)
    assert thread.is_alive()
    assert Call(other).result()['global_step'] == left_over.result()['global_step'] == 1
    before.close()  # the ps has found its connection dead
    thread.join(60)
    assert not thread.is_alive()
    result = Call(other).result()
    assert (result['global_step'], result['dropped']) == (1, 1), 'it had pushed too soon'
    assert together(made) == 3.5


def test_a_token_of_an_earlier_life_is_not_taken(workers):
    chief, other = made = workers('Synchronous-SGD', ms=(0, 4), steps=2)
    other.session.run(other.scheme.push)
    assert Call(chief).result()['global_step'] == 1
    assert tokens(other) == 1
    join(other)
    assert tokens(other) == 0
    assert together(made) == 3.5


def test_a_token_that_says_nothing_new_is_not_taken(workers):
    """A worker that joins between a step and its tokens gets one of the step in which it begins."""
    made = chief, other = workers('Synchronous-SGD', ms=(0, 4), steps=2)
    barrier = other.scheme.barrier
    with other.graph.as_default():
        other.session.run(barrier._tokens._mine.enqueue(barrier._clock.read()))
    waits = Call(other)
    assert waits.blocks()
    assert Call(chief).result()['global_step'] == waits.result()['global_step'] == 1
    assert together(made) == 3.5


def test_a_run_of_an_earlier_life_takes_no_token(workers):
    """The machine is gone, and the ps does not know: the run still waits there."""
    chief, other = made = workers('Synchronous-SGD', ms=(0, 4), steps=2)
    left_over = Call(other)
    assert left_over.blocks()
    other.begin_again()
    left_over.result()
    calls = [Call(chief), Call(other)]
    assert [call.result()['global_step'] for call in calls] == [1, 1]
    assert together(made) == 3.5


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_variables_of_any_shape_on_several_ps(workers, folder):
    made = workers(folder, steps=2, start=[8., [[8., 8., 8.], [8., 8., 8.]], [8.]], num_ps=2)
    expected = [together(made) for _ in range(2)][-1]
    assert expected < 8
    for value in made[0].session.run(made[0].variables):
        assert value.ravel() == pytest.approx(expected)
    assert len({variable.device for variable in made[0].variables}) == 2


@pytest.mark.parametrize('folder, window', briefly([
    ('Synchronous-SGD', 1), ('Synchronous-SGD-different-learning-rates', 1), ('SAGN', 2),
    ('Local-SGD', 2), ('DiLoCo', 2)], BRIEF))
def test_a_run_moves_the_parameters_once_in_each_direction(workers, folder, window):
    """However long the window. Within 1 % and the few bytes of counters."""
    size = 250000
    worker, = workers(folder, [0], 100, start=[[1.] * size, [[2.] * 1000]], num_ps=2)
    assert worker.scheme.local_steps(worker.hparams) == window
    worker.step()
    parameters = 4 * (size + 1000)
    for moved in worker.traffic():
        assert parameters <= moved <= 1.01 * parameters


@pytest.mark.parametrize('folder', ['SAGN', 'Local-SGD', 'DiLoCo'])
def test_a_window_is_as_many_fresh_gradients(workers, folder):
    worker, = workers(folder, [0])
    assert worker.window() == [8, 4]


# Synchronous-SGD, fed with gradients: at m = 0 the gradient is what is fed as the center.

@pytest.fixture
def fed(workers):
    """Makes workers at the rate 1 on a center that starts at 0."""
    def make(num_workers, steps, **changes):
        made = workers('Synchronous-SGD', [0] * num_workers, steps, learning_rate=1., **changes)
        made[0].set(made[0].variables[0], 0.)
        return made
    return make


def push(worker, gradient):
    """Pushes a gradient; returns the worker's result once the step is complete."""
    return Call(worker, gradient).result()


def test_two_of_two(fed):
    first, second = fed(2, steps=2)
    for gradients, center in [((1, 3), -2), ((5, 7), -8)]:
        call = Call(first, gradients[0])
        assert call.blocks()
        push(second, gradients[1])
        call.result()
        assert first.center() == center
    assert first.session.run(first.global_step) == 2


def test_a_late_gradient_is_dropped(fed):
    first, second, backup = fed(3, steps=3, replicas_to_aggregate=2)
    call = Call(first, 1)
    assert call.blocks()
    assert push(second, 3)['dropped'] == 0
    call.result()
    assert first.center() == -2
    late = push(backup, 50)
    assert first.center() == -2 and accumulated(first) == 0
    assert (late['dropped'], late['global_step']) == (1, 1)
    calls = [Call(backup, 10), Call(first, 20)]
    assert [call.result()['dropped'] for call in calls] == [0, 0]
    assert first.center() == -17, 'with its new token it counts again'


def test_with_backups_nobody_votes_twice_in_a_step(fed):
    """The first N workers, and not the first N gradients."""
    first, second, _ = fed(3, steps=2, replicas_to_aggregate=2)
    call = Call(first, 1)
    push(second, 3)
    call.result()
    assert tokens(first) == 0, 'that of the third worker is for nobody else'
    call = Call(first, 5)
    assert call.blocks()
    push(second, 7)
    assert call.result()['global_step'] == 2
    assert first.center() == -8


def test_nobody_takes_the_token_of_a_slower_one(fed):
    """One that has pushed, and not yet looked for its token when the others are far ahead."""
    chief, fast, slow = fed(3, steps=2)
    slow.session.run(slow.scheme.push, {slow.scheme.pull[1]: 3.})
    calls = [Call(chief, 1), Call(fast, 5)]
    assert [call.result()['global_step'] for call in calls] == [1, 1]
    assert chief.center() == -3
    calls = [Call(chief, 2), Call(fast, 4)]
    assert all(call.blocks() for call in calls)
    push(slow, 100)  # it has voted in that step, and takes its token now
    push(slow, 6)
    assert [call.result()['global_step'] for call in calls] == [2, 2]
    assert chief.center() == -7, 'one push from each'


def test_one_that_is_behind_goes_on_with_its_last_token(fed):
    first, second, behind = fed(3, steps=4, replicas_to_aggregate=2)
    for _ in range(3):
        call = Call(first, 1)
        push(second, 1)
        call.result()
    assert push(behind, 100)['dropped'] == 1
    call = Call(first, 1)
    assert push(behind, 3)['dropped'] == 0
    call.result()
    assert first.center() == -5


def test_accepted_and_dropped_are_all_that_was_sent(fed):
    """Three workers of different speed."""
    steps = 40
    made = fed(3, steps=steps, replicas_to_aggregate=2)
    results = [[] for _ in made]

    def train(worker, own, pause):
        while not own or own[-1]['global_step'] < steps:
            time.sleep(pause)
            own.append(worker.session.run(worker.scheme.train_op, {worker.scheme.pull[1]: 1.}))

    threads = [threading.Thread(target=train, args=arguments, daemon=True)
               for arguments in zip(made, results, (0.01, 0.01, 0.05))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    sent = sum(map(len, results))
    dropped = sum(result['dropped'] for own in results for result in own)
    assert made[0].center() == -steps, 'each step counted once, with the mean of its gradients'
    votes = collections.Counter()
    for own in results:
        steps_before = [0, *(result['global_step'] for result in own)]
        mine = [step for step, result in zip(steps_before, own) if not result['dropped']]
        assert len(set(mine)) == len(mine), 'once in a step'
        votes.update(mine)
    assert sorted(votes) == list(range(steps)) and set(votes.values()) <= {2, 3}
    assert sum(votes.values()) + dropped == sent
    assert dropped >= 10


def test_an_optimizer_with_variables_of_its_own(workers, monkeypatch):
    """They are shared by all workers, as the center is. Adam's first steps are of its rate."""
    monkeypatch.setattr(Problem, 'optimizer', lambda _, rate, clips: tf.train.AdamOptimizer(rate))
    made = workers('Synchronous-SGD', steps=2, learning_rate=0.5)
    names = []
    for worker in made:
        with worker.graph.as_default():
            names.append(sorted(variable.name for variable in tf.global_variables()))
    assert names[0] == names[1] and len(names[0]) == 6
    assert [together(made) for _ in range(2)] == pytest.approx([7.5, 7.0], abs=0.01)


# Large minibatches (Goyal et al., section 2).

@pytest.mark.parametrize('workers_per_step, step, rate', [
    (4, 0, 0.1), (4, 25, 0.25), (4, 50, 0.4), (4, 80, 0.4), (1, 25, 0.1)])
def test_gradual_warmup(fed, workers_per_step, step, rate):
    worker, = fed(1, steps=0)
    hparams = types.SimpleNamespace(learning_rate=0.1, scale_learning_rate=True, warmup_steps=50)
    worker.set(worker.global_step, step)
    with worker.graph.as_default():
        tensor = warmup.scaled_learning_rate(hparams, workers_per_step, worker.global_step)
    assert worker.session.run(tensor) == pytest.approx(rate)


@pytest.mark.parametrize('changes, centers', [
    (dict(scale_learning_rate=True), [-4, -8, -12]),
    (dict(scale_learning_rate=True, warmup_steps=2), [-2, -5, -9]),
    (dict(warmup_steps=2), [-2, -4, -6]),
])
def test_scaled_steps(fed, changes, centers):
    made = fed(2, steps=3, **changes)
    for center in centers:
        call = Call(made[0], 2)
        push(made[1], 2)
        call.result()
        assert made[0].center() == center


def test_the_step_size_is_scaled_by_the_pushes_that_make_a_step(fed):
    """And not by all workers: with a backup worker two of three."""
    made = fed(3, steps=2, replicas_to_aggregate=2, scale_learning_rate=True)
    call = Call(made[0], 2)
    push(made[1], 2)
    call.result()
    assert made[0].center() == -4


def test_state_of_a_model_is_the_mean_of_what_all_workers_make_of_it():
    """Such as moving averages of batch norm: those of two workers, after a step of both."""
    program = load_program('Synchronous-SGD')
    flags.FLAGS.mark_as_parsed()
    hparams = types.SimpleNamespace(learning_rate=0.5, train_steps=9, replicas_to_aggregate=None,
                                    scale_learning_rate=False, warmup_steps=0)

    def loss_and_metrics(batch, training):
        del training
        seen = tf.get_variable('seen', initializer=1., trainable=False)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, seen.assign(0.5 * seen + 0.5 * batch))
        return tf.square(tf.get_variable('x', initializer=8.)) / 2, {}

    model = model_file.Model(types.SimpleNamespace(
        __name__='toy', __file__='toy', train_batches=None, test_batches=None,
        loss_and_metrics=loss_and_metrics))
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        network = building.Network(model, [tf.constant(3.)])
        schemes = [program.Scheme(network.again([tf.constant(value)]), step, hparams, i, 2)
                   for i, value in enumerate([3., 7.])]
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        seen, = [variable for variable in tf.global_variables() if variable.op.name == 'seen']
        pulled = [session.run(scheme.pull) for scheme in schemes]
        for scheme, values in zip(schemes, pulled):
            session.run(scheme.push, seam.feed(scheme.pull, values))
        session.run(schemes[0].complete)
        assert session.run(seen) == 3, 'from 1, by the mean of 1 and 3'


def test_one_of_two_ps_is_lost(workers):
    """The entrance is shut until the chief has cleared up what is left on the other."""
    chief, other = workers('Synchronous-SGD', start=[8., [8., 8.]], num_ps=2)
    entrance = other.scheme.barrier._entrance
    assert entrance.is_open(other.session)
    lose_a_ps(chief, '/task:1')
    assert not entrance.is_open(other.session)
    join(chief)
    assert entrance.is_open(other.session)


# Synchronous-SGD-different-learning-rates.

@pytest.mark.parametrize('rates, ms, center', [
    (['0.5', '0.25'], (0, 0), 5), (['0', '0.5'], (0, 0), 6), (['0', '0.5'], (-1000, 0), 6),
    (['0.25'], (0, 0), 5), ([], (0, 0), 4)])
def test_rates(workers, rates, ms, center):
    assert together(workers('Synchronous-SGD-different-learning-rates', ms,
                            learning_rates=rates)) == center


@pytest.mark.parametrize('rate', ['fast', '-1', 'nan', 'inf', ''])
def test_a_rate_that_is_none(workers, rate):
    with pytest.raises(SystemExit, match=f'^--learning_rates: "{rate}" is not a learning rate'):
        workers('Synchronous-SGD-different-learning-rates', learning_rates=['0.1', rate])


def test_a_rate_too_many(workers):
    with pytest.raises(SystemExit, match='^--learning_rates has 3 rates, but there are 2 workers'):
        workers('Synchronous-SGD-different-learning-rates', learning_rates=['1', '2', '3'])


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_more_pushes_than_workers(workers, folder):
    with pytest.raises(SystemExit, match='^--replicas_to_aggregate=3, but there are 2 workers: no'):
        workers(folder, replicas_to_aggregate=3)
