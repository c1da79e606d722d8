"""Machines that lose their power and come back: nobody hears good-bye from their connections."""

import time

import pytest

from clusters import cluster, host, seconds_until_all_train
from processes import checkpoints, RESUMES, wait_until

DARK_SECS = 5  # without power
SOON_SECS = 30  # after its return all train again
FOLDERS = 'HogWild', 'AGN', 'Synchronous-SGD', 'In-Graph-Replication'
pytestmark = pytest.mark.usefixtures('needs_hosts')


@pytest.mark.parametrize('folder, victim', [
    pytest.param(folder, victim, id=f'{folder}-{host(victim)}',
                 marks=[] if (folder, victim) == ('HogWild', ('ps', 0)) else pytest.mark.thorough)
    for victim in [('ps', 0), ('worker', 1), ('worker', 0)] for folder in FOLDERS])
def test_training_goes_on(programs, folder, victim):
    with cluster(programs, folder) as (network, start, running):
        network.lose_power(host(victim), running[victim])
        time.sleep(DARK_SECS)
        network.power_on(host(victim))
        running[victim] = start(*victim)
        print(f'{folder} {victim}: {seconds_until_all_train(running, SOON_SECS):.1f} s')


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [('worker', 0), ('worker', 1)], ids=host)
def test_one_that_is_back_before_anybody_knows(programs, victim):
    """A run of its earlier life may still wait on the ps, and take part in a step."""
    with cluster(programs, 'Synchronous-SGD') as (network, start, running):
        network.lose_power(host(victim), running[victim])
        network.power_on(host(victim))
        running[victim] = start(*victim)
        print(f'{victim}: {seconds_until_all_train(running, SOON_SECS):.1f} s')


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [('worker', 0), ('worker', 1)], ids=host)
def test_the_ring_ends_and_resumes(programs, tmp_path, victim):
    with cluster(programs, 'Ring-AllReduce') as (network, start, running):
        wait_until(lambda: checkpoints(tmp_path / 'model')[-1] > 0, running)
        network.lose_power(host(victim), running[victim])
        other, = set(running) - {victim}
        running[other].fails(r'^worker \d: (lost another|worker \d at \S+ does not answer)')
        network.power_on(host(victim))
        for task in running:
            running[task] = start(*task)
        assert int(running['worker', 0].wait_for(RESUMES)['step']) > 0
        seconds_until_all_train(running, SOON_SECS)
