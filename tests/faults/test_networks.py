"""Networks that deliver some packets and not others, late, or those of one way only."""

import signal
import time

import pytest

from clusters import cluster, host, seconds_until_all_train
from processes import STEP, wait_until

SILENT_SECS = 28  # longer than 25 s, when a dead connection ends
SOON_SECS = 30  # after that all train again
pytestmark = [pytest.mark.usefixtures('needs_hosts'), pytest.mark.thorough]
RING_ENDS = r'^worker \d: (lost another|worker \d at \S+ does not answer)'


def steps(program):
    """Returns how many lines of steps a program has printed."""
    return len(program.matches(STEP))


@pytest.mark.parametrize('folder, forgets', [
    ('HogWild', ('ps', 0)), ('HogWild', ('worker', 1)), ('AGN', ('ps', 0)),
    ('Synchronous-SGD', ('ps', 0))])
def test_connections_that_one_side_has_forgotten(programs, folder, forgets):
    """The other side takes them for whole, and may wait on them for ever."""
    with cluster(programs, folder) as (network, _, running):
        network.forget(host(forgets))
        print(f'{folder} {forgets}: {seconds_until_all_train(running, SOON_SECS):.1f} s')


def test_a_connection_that_is_forgotten_while_it_is_quiet(programs):
    """Worker 0 waits for a token of the ps, since worker 1 is stopped, and sends nothing."""
    with cluster(programs, 'Synchronous-SGD') as (network, _, running):
        running['worker', 1].send(signal.SIGSTOP)
        time.sleep(2)
        network.forget('ps-0')
        time.sleep(2)
        running['worker', 1].send(signal.SIGCONT)
        print(f'{seconds_until_all_train(running, SOON_SECS):.1f} s')


@pytest.mark.parametrize('folder, mute, other', [
    ('HogWild', ('ps', 0), ('worker', 1)), ('AGN', ('worker', 1), ('ps', 0)),
    ('Synchronous-SGD', ('ps', 0), ('worker', 1))])
def test_one_way_is_silent_and_heard_again(programs, folder, mute, other):
    """Who does not need that way goes on meanwhile."""
    with cluster(programs, folder) as (network, _, running):
        network.silence(host(mute), host(other))
        time.sleep(SILENT_SECS - 5)
        before = steps(running['worker', 0])
        time.sleep(5)
        assert (steps(running['worker', 0]) > before) == (folder != 'Synchronous-SGD')
        network.silence(host(mute), host(other), begins=False)
        print(f'{folder} {mute}: {seconds_until_all_train(running, SOON_SECS):.1f} s')


@pytest.mark.parametrize('folder, mute, other, line', [
    ('HogWild', ('ps', 0), ('worker', 1),
     r'^worker 1: ps 0 at \S+ does not answer \((timed out|No route to host)\)\. Gave up after 12 '
     r's\.$'),
    ('Synchronous-SGD', ('worker', 1), ('ps', 0), r'^worker 1: ps 0 at \S+ does not answer '
                                                  r'\(timed out\)\. Gave up after 12 s\.$'),
    ('Ring-AllReduce', ('worker', 0), ('worker', 1), RING_ENDS)])
def test_one_way_stays_silent(programs, folder, mute, other, line):
    """Who is cut off ends in one line; the others go on, or say for whom they wait and end."""
    with cluster(programs, folder, '--patience_secs=12') as (network, _, running):
        network.silence(host(mute), host(other))
        running['worker', 1].fails(line)
        if folder == 'HogWild':
            before = steps(running['worker', 0])
            wait_until(lambda: steps(running['worker', 0]) > before + 2, running['worker', 0])
        else:
            running['worker', 0].fails(RING_ENDS if 'Ring' in folder else
                                       # To it, worker 1 answers, as long as worker 1 is there.
                                       r'^worker 0: the step is not complete \((all tasks answer'
                                       r'|worker 1 at \S+ does not answer \(.+\))\)\. Gave up '
                                       r'after 12 s\.$')


@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'])
def test_packets_are_late_and_lost(programs, folder):
    """100 ms there and back, and of 100 packets 2 do not arrive: slow, and that is all."""
    with cluster(programs, folder, '--log_every_n_steps=2', round_trip=0.1, lost=0.02) as (
            _, _, running):
        print(f'{folder}: {seconds_until_all_train(running, SOON_SECS):.1f} s')
        assert not any(program.err for program in running.values()), running
