"""Streaming DiLoCo in the simulation: the numbers of the folder, and what the links gain by it.

The toy problem of `test_streaming`, played for all workers in one session, on a virtual clock.
"""

import numpy as np
import pytest

import advise_clock
from cases import briefly
import description
import test_simulation
from test_diloco import ADAM, outer
from test_seam import flat
from test_streaming import STREAMS, WORKED, Zero

LINE = 12.5e6  # bytes/s of 100 Mbit/s


@pytest.fixture
def simulated(monkeypatch):
    """Simulates DiLoCo in fragments; returns a `test_simulation.Toy` with its `centers`."""
    made = []

    def make(ms=(0, 4), steps=5, start=(8., 8.), said=None, **changes):
        monkeypatch.setattr(test_simulation, 'START', start)
        cluster = description.Cluster(workers=str(len(ms)), **said or {})
        one = test_simulation.Toy('DiLoCo', ms, cluster, steps,
                                  **{**STREAMS, 'learning_rate': 0.5, 'inner': 'sgd', **changes})
        made.append(one)
        complete, one.centers = one.player.complete, []

        def completing(step):
            after = complete(step)
            one.centers.append(flat(one.player.center()).tolist())
            return after

        one.player.complete = completing
        return one.run()

    yield make
    for each in made:
        each.player.close()


def replicas(one):
    """Returns what each worker has, a list of lists of two numbers."""
    return [flat(one.player._own.of(worker)[:2]).tolist() for worker in range(2)]


# The rule.

@pytest.mark.parametrize('ms, delay, alpha, changes, firsts, seconds', WORKED)
def test_worked_numbers(simulated, ms, delay, alpha, changes, firsts, seconds):
    """Whoever comes first and last, and however long an exchange takes."""
    said = dict(step=['lognormal:1ms:1'], latency=['0.7ms', '3ms'], ps_bandwidth='1Mbit')
    one = simulated(ms, fragment_delay=delay, fragment_alpha=alpha, said=said, **changes)
    expected = [8., 8.]
    for step, found in enumerate(one.centers):
        expected[step % 2] = (seconds if step % 2 else firsts)[step // 2]
        assert found == pytest.approx(expected, rel=0, abs=1e-6)
    assert len(one.centers) == 5
    assert one.record.local_steps == 5 * 2 * len(ms), 'those of the beginning are not counted'


def test_worked_numbers_of_the_replicas(simulated):
    changes = dict(fragment_delay=1, fragment_alpha=0.5, **outer(1., 0.5))
    assert replicas(simulated(steps=1, **changes)) == [[1.125, 1], [2.875, 4.5]]
    assert replicas(simulated(steps=2, **changes)) == [[0.28125, -0.09375], [3.71875, 1.84375]]


def test_moments_are_those_of_all_fragments(simulated):
    """Each local step of the worker counts, and so does that of the beginning."""
    for steps, count in (1, 3), (2, 5):
        one = simulated([0], steps, fragment_delay=1, **ADAM)
        assert one.player._own.places, 'what a worker keeps is fed'
        assert one.player._own.of(0)[-1] == count


@pytest.mark.parametrize('changes', briefly([{}, dict(compression='topk:0.5')], bool), ids=str)
def test_one_fragment_without_delay_is_diloco_to_the_bit(simulated, changes):
    """Without latency also in when it all happens: a worker need not ask for what it pulls."""
    found = []
    for alpha in 0., Zero(0.):
        one = simulated(
            (0.3, 1.7, 2.9), start=[0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]], said=dict(
                step=['lognormal:1ms:1'], ps_bandwidth='1Mbit', update='0.1ms', ps='2'),
            **dict(outer(0.7, 0.9), inner='adamw', inner_weight_decay=0.1, fragments=1,
                   fragment_alpha=alpha, **changes))
        assert bool(one.player.scheme.beginning) == isinstance(alpha, Zero)
        assert one.player._own.places, 'what a worker keeps is fed'
        found.append(([value.tobytes() for value in one.player.center()], one.clock.now,
                      one.record.curve, one.record.local_steps, one.life.travels.most_in_line(),
                      one.life.travels.shares()))
    assert found[0] == found[1]


@pytest.mark.parametrize('come, second, dropped', [('1:10.5ms', 0.125, 0), ('1:5ms', -0.4375, 1)])
def test_who_comes_back_begins_with_the_center(simulated, come, second, dropped):
    """Worker 1 dies at 4.5 ms, after its push, which counts; worker 0 completes that step at 8 ms.

    If it comes back later, it begins with the center (1.25, 8). Two local steps, that of the delay
    and one before the push, make it 5 in the second fragment, and worker 0 is at 1/2: so G = 5.25.
    If it comes back sooner, it begins with (8, 8), pushes again in vain, and goes on as before.
    """
    one = simulated(steps=3, fragment_delay=1, **outer(1., 0.5), said=dict(
        step=['4ms', '1ms'], die=['1:4.5ms'], come=[come]))
    assert one.centers[:2] == [[1.25, 8], [1.25, second]]
    assert (one.record.accepted, one.record.dropped) == (6, dropped)


# What takes how long.

@pytest.mark.parametrize('latency, seconds', [
    ('0.4ms', dict(computes=10e-3, pulls=0.8e-3, pushes=0, waits=0)),
    ('1.5ms', dict(computes=10e-3, pulls=3e-3 + 4 * 1.5e-3, pushes=4 * 0.5e-3, waits=0))])
def test_local_steps_hide_what_the_exchange_takes(simulated, latency, seconds):
    """By hand: what counts is the longer one of a local step and two latencies.

    The beginning is a pull, two latencies, and a local step; the end is the fifth push.
    """
    one = simulated([0], fragment_delay=1, said=dict(step=['1ms'], latency=[latency]))
    way = description.seconds(latency)
    assert one.clock.now == pytest.approx(
        2 * way + 1e-3 + 4 * (1e-3 + max(1e-3, 2 * way)) + 1e-3 + way)
    assert one.record.seconds == pytest.approx(seconds)


def test_an_exchange_has_three_stages(simulated):
    """3 ms of the runtime: a worker computes, the ps receive its push, it receives the answer."""
    one = simulated([0], said=dict(step=['1ms'], exchange='3ms'))
    assert one.clock.now == pytest.approx(3e-3 + 5 * (2e-3 + 2e-3) + 4 * 1e-3)


def test_a_fragment_takes_its_share_of_an_update(simulated):
    """Of 300 numbers the second variable has 200. An update is of one push, and then of the sum."""
    one = simulated([0], steps=2, start=(np.ones(100), np.ones(200)), said=dict(
        step=['1ms'], update='3ms'))
    assert one.player.pieces == [one.player.pieces[0]] * 2
    assert one.clock.now == pytest.approx(2 * 2e-3 + 2 * 3e-3)
    assert one.life.travels.shares()['updates'] == pytest.approx(6 / 10)


def test_each_ps_has_its_own_variables(simulated):
    """Of two ps the first has the step, and the second of two variables."""
    one = simulated([0], steps=4, start=(np.ones(1000), np.ones(1000)), said=dict(
        step=['1ms'], ps='2', ps_bandwidth='8Mbit'))
    first, second = one.life.travels.into
    assert first.busy() == second.busy() == pytest.approx(2 * 8e-3)


EQUAL = tuple(np.ones(25000) for _ in range(4))


def at_100_mbit(simulated, step, **changes):
    """Returns 4 workers that exchange 800 kB in windows of 8 local steps, after 3 windows."""
    steps = 3 * changes['fragments']
    return simulated((0, 1, 2, 3), steps, EQUAL, communication_window=8, **changes, said=dict(
        step=[step], ps_bandwidth='100Mbit'))


def test_the_line_of_the_ps_holds_a_fragment_and_nobody_waits(simulated):
    """An exchange of all takes 0.5 s, one of a fragment 0.13 s: less than a local step."""
    whole = at_100_mbit(simulated, '0.2s', fragments=1)
    parts = at_100_mbit(simulated, '0.2s', fragments=4, fragment_delay=1)
    most = [one.life.travels.most_in_line() for one in (whole, parts)]
    assert most == pytest.approx([4 * (800000 + 8), 4 * (200000 + 8)])
    assert most[0] / most[1] == pytest.approx(4, rel=1e-3)
    assert whole.record.local_steps == parts.record.local_steps == 3 * 8 * 4
    # Each pulls all at the beginning. The first one has it after a quarter of the time.
    begun = sum((i + 1) * 800008 for i in range(4)) / LINE
    idle = sum(parts.record.seconds.values()) - parts.record.seconds['computes'] - begun
    assert abs(idle) < 0.01 * sum(parts.record.seconds.values())
    idle = sum(whole.record.seconds.values()) - whole.record.seconds['computes'] - begun
    assert idle > 0.1 * sum(whole.record.seconds.values())


def test_shorter_local_steps_do_not_hide_it(simulated):
    short = at_100_mbit(simulated, '0.03s', fragments=4, fragment_delay=1)
    assert short.record.seconds['computes'] < 0.6 * sum(short.record.seconds.values())


def test_the_advisor_refuses_it(simulated):
    with pytest.raises(SystemExit, match='^with these flags not all rounds are the same, or '):
        advise_clock.Silent(simulated(steps=1).player)
