"""Networks that are cut, and whole again: no packet comes through meanwhile, and nobody is told."""

import time

import pytest

from clusters import cluster, host, seconds_until_all_train

SOON_SECS = 30  # after the network is whole all train again
pytestmark = pytest.mark.usefixtures('needs_hosts')


@pytest.mark.thorough
@pytest.mark.parametrize('folder, victim, seconds', [
    *((folder, victim, seconds) for folder in ('HogWild', 'AGN', 'Synchronous-SGD')
      for victim, seconds in ((('ps', 0), 5), (('ps', 0), 35), (('worker', 1), 35))),
    ('HogWild', ('ps', 0), 90), ('In-Graph-Replication', ('worker', 1), 35),
    ('Ring-AllReduce', ('worker', 1), 3)])
def test_training_goes_on(programs, folder, victim, seconds):
    """Dead connections end after 25 s, so cuts are shorter than that, or longer."""
    with cluster(programs, folder, '--patience_secs=150') as (network, _, running):
        network.plug(host(victim), 'down')
        time.sleep(seconds)
        network.plug(host(victim))
        took = seconds_until_all_train(running, SOON_SECS)
        print(f'{folder} {victim}, cut for {seconds} s: {took:.1f} s')


@pytest.mark.thorough
def test_the_ring_ends(programs):
    with cluster(programs, 'Ring-AllReduce') as (network, _, running):
        network.plug('worker-1', 'down')
        for program in running.values():
            program.fails(r'^worker \d: (lost another|worker \d at \S+ does not answer)')
