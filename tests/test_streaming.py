"""Streaming DiLoCo: its worked numbers, what an exchange moves and waits for, and its faults.

The toy problem of the synchronous schemes, with two variables that have the same loss: both start
at 8, gradient x - m, learning rate 1/2. There are four local steps in a round, and two fragments.
"""

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import conftest
from tfdist.scheme import graphs, seam
from tfdist.training import sessions, traffic

from cases import briefly
import test_synchronous
from processes import BEGINS, DID, INCOMPLETE, STEP, Tasks, TEST
from test_diloco import ADAM, outer
from test_synchronous import join

workers = test_synchronous.workers  # a fixture
PLAIN = outer(1., 0.)  # the center goes to the mean
STREAMS = dict(communication_window=4, fragments=2, fragment_delay=0, fragment_alpha=0.)
# Optima, delay, alpha, the outer step; and the center: its first fragment changes after local steps
# 2, 6 and 10, the second after 4 and 8.
WORKED = briefly([
    ((0, 4), 0, 0., outer(1., 0.5), [1.25, 1.1796875, 1.9465332], [-0.4375, 1.58398438]),
    ((0, 4), 1, 0., outer(1., 0.5), [1.25, 1.109375, 1.87988281], [-0.4375, 1.35546875]),
    ((0, 4), 1, 0.5, outer(1., 0.5), [1.25, 1.25, 1.9296875], [-0.4375, 1.6015625]),
    ((0, 4, 8), 2, 0.5, outer(0.7, 0.9), [4.01, 2.338925, 2.75520931], [3.0125, 2.04584375])],
                 lambda ms, delay, alpha, *_: alpha)
# In the way of whoever goes on before the step of all is complete.
WAITS = {'QueueDequeueManyV2', 'AccumulatorTakeGradient', 'ResourceAccumulatorTakeGradient'}


@pytest.fixture
def streams(workers):
    """Makes workers of a center of two scalars in two fragments; see `test_synchronous.workers`."""
    def make(ms=(0, 4), steps=5, start=(8., 8.), **changes):
        return workers('DiLoCo', ms, steps, start=start, **dict(STREAMS, **changes))
    return make


class Call(test_synchronous.Call):
    """A worker's run under way, in a thread, at a global step."""

    def __init__(self, worker, step):
        self._seam = worker.scheme.at(step)
        super().__init__(worker)

    def _run(self, worker, feed):
        self._result = worker.session.run(self._seam.train_op, feed)


def exchange(made, step):
    """All make the exchange of a step; returns the values of the center after it."""
    results = [call.result() for call in [Call(worker, step) for worker in made]]
    assert [result['global_step'] for result in results] == [step + 1] * len(made)
    assert [result['dropped'] for result in results] == [0] * len(made)
    return center(made[0])


def center(worker):
    """Returns the values of the center, a list."""
    return worker.session.run(worker.variables)


def replica(worker):
    """Returns a worker's own values, a list."""
    return worker.session.run(list(worker.scheme.replica))


def accumulated(worker):
    """Returns how many gradients wait in the accumulator of each variable, a list."""
    counts = []
    for one in [worker.scheme, *worker.scheme.others]:
        accumulator = one.barrier._accumulators.all[0]
        with worker.graph.as_default(), tf.device(accumulator.accumulator_ref.device):
            counts.append(int(worker.session.run(accumulator.num_accumulated())))
    return counts


# The rule.

@pytest.mark.parametrize('ms, delay, alpha, changes, firsts, seconds', WORKED)
def test_worked_numbers(streams, ms, delay, alpha, changes, firsts, seconds):
    made = streams(ms, fragment_delay=delay, fragment_alpha=alpha, **changes)
    expected = [8., 8.]
    for step in range(5):
        expected[step % 2] = (seconds if step % 2 else firsts)[step // 2]
        assert exchange(made, step) == pytest.approx(expected, rel=0, abs=1e-6)


def test_worked_numbers_of_the_replicas(streams):
    made = streams(fragment_delay=1, fragment_alpha=0.5, **outer(1., 0.5))
    assert [replica(worker) for worker in made] == [[4, 4], [6, 6]], 'the delay comes first'
    exchange(made, 0)
    assert [replica(worker) for worker in made] == [[1.125, 1], [2.875, 4.5]]
    exchange(made, 1)
    assert [replica(worker) for worker in made] == [[0.28125, -0.09375], [3.71875, 1.84375]]


def test_alone_without_momentum_it_is_plain_sgd(streams):
    worker, = streams([0], **PLAIN)
    for step in range(5):
        exchange([worker], step)
        x = 8 / 4 ** (step + 1)
        assert replica(worker) == [x, x]
        assert center(worker)[step % 2] == x


class Zero(float):
    """A share of 0 that counts as asked for."""

    def __ne__(self, other):
        return True


def test_with_one_fragment_it_is_diloco_bit_for_bit(workers):
    """At numbers that have to be rounded in each operation, with moments inside."""
    start, values = (0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]), []
    for alpha in 0., Zero(0.):
        made = workers('DiLoCo', (0.3, 1.7), 5, start=start, learning_rate=0.3, num_ps=2,
                       inner='adamw', inner_weight_decay=0.1, fragments=1, fragment_delay=0,
                       fragment_alpha=alpha, **outer(0.7, 0.9))
        assert bool(made[0].scheme.replica) == isinstance(alpha, Zero)
        for step in range(5):
            exchange(made, step)
        values.append(center(made[0]))
    for value, same in zip(*values):
        assert np.array_equal(value, same)
        assert np.array_equal(value, value)  # no NaN


def test_moments_are_those_of_all_fragments(streams):
    """The inner optimizer counts each local step of this worker, and those of the beginning."""
    worker, = streams([0], fragment_delay=1, **ADAM)
    counts = []
    for step in range(3):
        counts.append(worker.session.run(worker.scheme.own[-1]))
        exchange([worker], step)
    assert counts == [1, 3, 5]


def test_velocities_are_in_the_checkpoint_and_replicas_are_not(streams):
    worker = streams(**outer(0.7, 0.9))[0]
    with worker.graph.as_default():
        names = {variable.op.name for variable in tf.global_variables()}
        assert names == {'global_step', 'x0', 'x0/Momentum', 'x1', 'x1/Momentum'}
        assert {*worker.scheme.own} <= {*tf.local_variables()}


# What an exchange moves, and what waits for it.

def sent(worker, step):
    """Makes the exchange of a step alone, with a trace.

    Returns:
      The bytes that arrive at the worker, and at the ps; None if the trace is not whole.
    """
    trace = tf.RunMetadata()
    worker.session.run(worker.scheme.at(step).train_op, options=traffic.TRACE, run_metadata=trace)
    if not traffic.is_whole(trace):
        return None
    ways = traffic.between_tasks([trace]).items()
    return [sum(each.bytes for (_, receiver), each in ways if receiver.startswith(job))
            for job in ('worker', 'ps')]


@pytest.mark.parametrize('delay', briefly([0, 1], [1]))
def test_an_exchange_moves_its_fragment_once_in_each_direction(streams, delay):
    """Within 1 % and the few bytes of counters; so a round moves what a round of DiLoCo does."""
    sizes = 250000, 100000
    worker, = streams([0], 200, start=[[1.] * size for size in sizes], fragment_delay=delay,
                      **PLAIN)
    seen, step = {}, 0
    while len(seen) < 2 and step < 200:
        moved = sent(worker, step)
        if moved:
            seen[step % 2] = moved
        step += 1
    for fragment, size in enumerate(sizes):
        for moved in seen[fragment]:
            assert 4 * size <= moved <= 1.01 * 4 * size


def test_local_steps_of_the_delay_wait_for_nobody(streams):
    """What follows on the exchange does, and so does the end of the run."""
    for worker in streams(fragment_delay=1):
        # One gradient is that of the beginning; then each fragment has two local steps.
        for one, gradient in zip([worker.scheme, *worker.scheme.others], worker.gradients[2::2]):
            assert WAITS & {op.type for op in graphs.ancestors(one.train_op.values())}
            assert not WAITS & {op.type for op in graphs.ancestors([gradient])}


@pytest.mark.thorough
def test_the_barrier_holds_in_each_exchange(streams):
    first, second = streams(fragment_delay=1)
    for step in range(4):
        call = Call(first, step)
        assert call.blocks()
        assert first.session.run(first.global_step) == step
        results = [Call(second, step).result(), call.result()]
        assert [result['global_step'] for result in results] == [step + 1] * 2
        assert accumulated(first) == [0, 0]


def test_a_trainer_takes_the_fragments_in_turn(streams):
    worker, = streams([0], **PLAIN)
    flags.FLAGS.mark_as_parsed()
    with worker.graph.as_default():
        trainer = sessions.Trainer.of(worker.scheme)
    exchange([worker], 0)
    trainer.after_create_session(worker.session, None)  # in step 1
    seen = [(trainer.run()['global_step'], *center(worker)) for _ in range(3)]
    trainer.end(worker.session)
    assert seen == [(2, 2, 0.5), (3, 0.125, 0.5), (4, 0.125, 0.03125)]


# Compression.

def test_all_of_it_compressed_is_the_scheme_bit_for_bit(streams):
    found = []
    for compression in 'none', 'topk:1':
        made = streams(start=[0.1, [1 / 3, -0.7]], learning_rate=0.3, compression=compression,
                       fragment_delay=1, fragment_alpha=0.5, **outer(0.7, 0.9))
        for step in range(5):
            exchange(made, step)
        found.append(center(made[0]))
    for value, same in zip(*found):
        assert np.array_equal(value, same)


def test_a_residual_stays_until_its_fragment_is_exchanged_again(streams):
    """The mean size of (6, 3) and (6, 3), 4.5, is sent, and 1.5 and -1.5 are left over."""
    start = [[8., 4.], [8., 4.]]
    worker, = streams([0], start=start, compression='sign', **PLAIN)

    def residuals():
        return [worker.session.run(one.own[-2]).tolist()  # before those that follow
                for one in [worker.scheme, *worker.scheme.others]]

    first = exchange([worker], 0)[0].tolist()
    assert (first, residuals()) == ([3.5, -0.5], [[1.5, -1.5], [0, 0]])
    exchange([worker], 1)
    assert residuals()[0] == [1.5, -1.5] and any(residuals()[1])
    # x of the first fragment has gone on from what was sent: from (3.5, -0.5) to a sixteenth.
    x = np.array(first) / 16
    left = np.array(first) - x + [1.5, -1.5]
    decoded = np.abs(left).mean() * np.where(left >= 0, 1, -1)
    assert exchange([worker], 2)[0] == pytest.approx(first - decoded)
    assert residuals()[0] == pytest.approx(left - decoded)


# When a task dies or comes late.

def test_a_push_in_the_turn_of_another_fragment_is_none(streams):
    """Neither under the stamp of that one, nor is it noted as the push of that step."""
    made = chief, other = streams(**outer(1., 0.5))
    exchange(made, 0)
    late = other.scheme.at(0)
    assert other.session.run(late.push)['dropped'] == 1
    assert accumulated(chief) == [0, 0]
    assert exchange(made, 1) == [1.25, -0.4375]


def test_a_push_of_the_last_round_is_dropped(streams):
    """The accumulators of a fragment are taken once in a round, and count the steps in between."""
    made = chief, other = streams(**outer(1., 0.5))
    for step in range(3):
        exchange(made, step)
    for fragment, stamp in (0, 2), (0, 0), (1, 1):
        one = other.scheme.at(fragment)
        pushed = other.session.run(one.pushed)
        other.session.run(one.push, seam.feed(one.pushed + one.stamps,
                                              pushed + [stamp] * len(one.stamps)))
        assert accumulated(chief) == [0, 0], 'it is of a step that is complete'


def test_a_worker_that_starts_again_begins_with_the_center(streams):
    made = chief, other = streams(fragment_delay=1, **outer(1., 0.5))
    exchange(made, 0)
    join(other)
    # One local step of the delay from (1.25, 8) to the optimum 4.
    assert replica(other) == [2.625, 6]
    assert replica(chief) == [1.25, 1], 'it keeps its own'
    exchange(made, 1)


def test_who_is_started_again_does_not_push_again(streams):
    """What it pushed in its earlier life counts."""
    made = chief, other = streams(**outer(1., 0.5))
    exchange(made, 0)
    other.session.run(other.scheme.at(1).push)
    join(other)
    calls = [Call(worker, 1) for worker in (other, chief)]
    assert [call.result()['dropped'] for call in calls] == [1, 0]
    assert center(chief) == [1.25, -0.4375], 'one push from each'
    exchange(made, 2)


@pytest.mark.parametrize('step', briefly([0, 1], [1]))
def test_a_chief_that_is_started_again_begins_the_exchange_afresh(streams, step):
    """Also that of the second fragment; whoever has pushed is told so, and pushes again."""
    made = chief, other = streams(num_ps=2, fragment_delay=1, **outer(1., 0.5))
    for before in range(step):
        exchange(made, before)
    found = center(other)
    waits = Call(other, step)
    assert waits.blocks()
    assert accumulated(other)[step] == 1
    join(chief)
    assert waits.result()['global_step'] == step
    assert accumulated(other) == [0, 0]
    after = exchange(made, step)
    assert after[1 - step] == found[1 - step] and after[step] != found[step]
    exchange(made, step + 1)


# What is refused.

@pytest.mark.parametrize('changes, message', [
    (dict(communication_window=5), '^--communication_window=5 is no multiple of --fragments=2: '),
    (dict(fragment_delay=3), '^--fragment_delay=3, but from one exchange to the next there are 2 '),
    (dict(communication_window=6, fragments=3), '^--fragments=3, but the model has 2 variables, '),
    (dict(replicas_to_aggregate=1), '^--replicas_to_aggregate=1: with backup workers '),
])
def test_what_does_not_go_together(streams, changes, message):
    with pytest.raises(SystemExit, match=message + '[^\n]*$'):
        streams(**changes)


def test_it_is_not_recorded(streams, monkeypatch):
    worker, = streams([0])
    flags.FLAGS.mark_as_parsed()
    monkeypatch.setattr(flags.FLAGS['order_dir'], 'value', '/nonexistent')
    with worker.graph.as_default(), pytest.raises(
            SystemExit, match='^--order_dir: in this scheme a worker begins [^\n]*$'):
        sessions.Trainer.of(worker.scheme)


def test_fragments_are_of_about_the_same_size():
    program = conftest.load_program('DiLoCo')
    with tf.Graph().as_default():
        variables = [tf.get_variable(f'v{i}', [size]) for i, size in enumerate([5, 3, 40, 20, 15])]
        assert program.streaming.cut(variables, 2) == [[1, 2], [0, 3, 4]]
        assert program.streaming.cut(variables, 5) == [[2], [3], [4], [0], [1]]


# Real processes.

FLAGS = ['--fragments=2', '--fragment_delay=2']


def test_a_run(programs):
    run = programs.run_sh('DiLoCo', '--train_steps=400', *FLAGS)
    run.ends_well()
    assert float(run.wait_for(TEST)['accuracy']) >= 0.95
    assert {match['local_steps'] for match in run.matches(DID)} == {'2000'}


def test_it_is_checked_against_plain_tensorflow(programs):
    """Alone, the worker's own values are those of the inner optimizer."""
    run = programs.run_sh('DiLoCo', '--check', *FLAGS)
    run.ends_well()
    run.wait_for('check: losses agree .*')
    run.wait_for(r'check: \d+ variables agree .*')


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [1, 0])
def test_a_worker_is_killed(programs, victim):
    """The others wait for it, and it goes on with the fragment whose turn it is."""
    slow = '--straggler=0:0.02,1:0.02'
    tasks = Tasks(programs, folder='DiLoCo', flags=[
        '--train_steps=100', '--log_every_n_steps=25', *FLAGS])
    ps, made = tasks.start('ps', 0), [tasks.start('worker', i, slow) for i in range(2)]
    for worker in made:
        worker.wait_for(STEP)
    made[victim].kill()
    made[1 - victim].wait_for(INCOMPLETE)
    before = max(int(match['step']) for match in made[1 - victim].matches(STEP))
    made[victim] = tasks.start('worker', victim)
    assert int(made[victim].wait_for(BEGINS)['step']) >= before
    for task in [*made, ps]:
        task.ends_well()
    assert made[0].matches(TEST)
