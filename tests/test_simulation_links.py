"""Links that all who need them at a time share, as with TCP, in place of turns."""

import subprocess
import sys
import time

import numpy as np
import pytest

from measuring import hosts

from clock import Clock, Shared, until
import description
import links
from test_simulation import ends_of, toy  # noqa: F401


@pytest.fixture(name='equal')
def fixture_equal(monkeypatch):
    """All shares are equal."""
    monkeypatch.setattr(Shared, 'unevenness', 0.)


def ends_on(link, clock, transfers):
    """Returns when transfers, pairs of a beginning and of seconds, end on a link, in a list."""
    def send(begins, seconds):
        yield begins
        yield from until(begins, [link.serve(seconds)])

    ends = ends_of(clock, {number: send(*each) for number, each in enumerate(transfers)})
    return [ends[number] for number in range(len(transfers))]


@pytest.mark.usefixtures('equal')
def test_a_shared_link_serves_all_at_once():
    """By hand: the second transfer has half of the link, and the first one all of it before."""
    clock = Clock()
    link = Shared(clock, np.random.RandomState(1))
    assert ends_on(link, clock, [(0, 2), (1, 2), (1, 0), (10, 3), (10, 3), (10, 1), (20, 1)]) == [
        3, 4, 1, 17, 17, 13, 21]
    assert link.busy() == pytest.approx(2 + 2 + 7 + 1) and link.backlog() == 0


def simulated(transfers, weights):
    """Does what `ends_on` does, independently: from one beginning or end to the next one."""
    left, ends, now, begun = {}, [None] * len(transfers), 0., 0
    while None in ends:
        total = sum(weights[number] for number in left)
        last, seconds = min(((number, left[number] * total / weights[number]) for number in left),
                            key=lambda each: each[1], default=(None, np.inf))
        begins = transfers[begun][0] if begun < len(transfers) else np.inf
        passes = min(seconds, begins - now)
        for number in left:
            left[number] -= passes * weights[number] / total
        now += passes
        if passes == seconds:
            ends[last] = now
            del left[last]
        else:
            left[begun] = transfers[begun][1]
            begun += 1
    return ends


@pytest.mark.parametrize('seed', range(3))
def test_shares_are_those_of_an_independent_simulator(seed):
    """Of a link that is busy for nine tenths of the time."""
    random = np.random.RandomState([seed, 7])
    transfers = list(zip(np.cumsum(random.exponential(1., 200)), random.exponential(0.9, 200)))
    weights = np.random.RandomState(seed).lognormal(0., Shared.unevenness, 200)
    clock = Clock()
    assert ends_on(Shared(clock, np.random.RandomState(seed)), clock, transfers) == pytest.approx(
        simulated(transfers, weights), rel=0, abs=1e-9)


@pytest.mark.usefixtures('equal')
def test_a_ps_has_links_that_are_shared():
    """1 kB each over 16 kbit/s: both end after 1 s; with turns the first ends after 0.5 s."""
    clock = Clock()
    star = links.Star(clock, description.Cluster(
        workers='2', latency='100ms', ps_bandwidth='16kbit', links='shared'))
    there = ends_of(clock, {
        ('pulled', 0): star.to_worker(0, [500, 500]), ('pushed', 0): star.to_ps(0, [1000]),
        ('pulled', 1): star.to_worker(1, [500, 500]), ('pushed', 1): star.to_ps(1, [1000])})
    assert there == pytest.approx(dict.fromkeys(there, 1.1)) and len(there) == 4
    assert star.shares() == pytest.approx({'into the ps': 1 / 1.1, 'out of the ps': 1 / 1.1,
                                           'updates': 0})
    assert star.most_in_line() == pytest.approx(2000)


@pytest.mark.usefixtures('equal')
def test_workers_share_their_links_with_each_other():
    clock = Clock()
    mesh = links.Mesh(clock, description.Cluster(workers='3', bandwidth='8kbit', links='shared'))
    there = ends_of(clock, {
        (0, 1): mesh.to(0, 1, [1000]), (0, 2): mesh.to(0, 2, [500]), (2, 1): mesh.to(2, 1, [1000])})
    assert there == pytest.approx({(0, 1): 2., (0, 2): 1., (2, 1): 2.})


@pytest.mark.usefixtures('equal')
@pytest.mark.parametrize('way, seconds', [('turns', 0.5 + 0.16 + 0.12),
                                          ('shared', 0.5 + 4 * (0.16 + 0.12))])
def test_equal_shares_keep_workers_together(toy, way, seconds):  # noqa: F811
    """By hand, a round of 4 workers with ten local steps of 50 ms.

    A pull, with the global step, takes 0.16 s of the link, and a push 0.12 s. With turns nobody
    waits after the first round; with equal shares all begin together for ever.
    """
    one = toy('AGN', 4, train_steps=400, step=['50ms'], parameters='150kB', links=way,
              ps_bandwidth='10Mbit', changes=dict(communication_window=10))
    assert one.record.rate() == pytest.approx(4 * 10 / seconds, rel=0.03)


# Says when each of some transfers of 2.59 MB, which begin at given times, has come from the host
# ps; or serves them.
_TCP = """
import socket, sys, threading, time
SIZE = 2590000
def serve(connection):
    while connection.recv(1):
        connection.sendall(bytes(SIZE))
if sys.argv[1] == 'serve':
    listens = socket.socket()
    listens.bind(('', 5555))
    listens.listen(9)
    print('ready', flush=True)
    for _ in range(4):
        threading.Thread(target=serve, args=(listens.accept()[0],)).start()
    sys.exit()
connection = socket.create_connection(('ps', 5555), 10)
for begins in map(float, sys.argv[2:]):
    time.sleep(max(0, begins - time.time()))
    connection.send(b'.')
    left = SIZE
    while left:
        left -= len(connection.recv(min(left, 1 << 18)))
    print(time.time() - begins)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
def test_tcp_shares_a_link_so(tmp_path):
    """Four transfers over 100 Mbit/s begin together: when the first, the second, ... has ended."""
    workers = [f'worker-{i}' for i in range(4)]
    with hosts.Hosts(tmp_path, ['ps', *workers], gigabits=0.1) as network:
        def start(host, *args):
            return subprocess.Popen(network.on(host, [sys.executable, '-c', _TCP, *args], '/'),
                                    stdout=subprocess.PIPE, universal_newlines=True)

        ps = start('ps', 'serve')
        assert ps.stdout.readline() == 'ready\n'
        begins = [str(time.time() + 1 + i) for i in range(60)]
        asking = [start(worker, *begins) for worker in workers]
        seconds = [[float(line) for line in each.communicate(timeout=90)[0].split()]
                   for each in asking]
        ps.communicate(timeout=10)
    real = np.sort(np.transpose(seconds)).mean(axis=0)
    clock, alone, many = Clock(), 2.59e6 * 8 / 100e6, 1000
    ends = ends_on(Shared(clock, np.random.RandomState(1)), clock,
                   [(10. * i, alone) for i in range(many) for _ in workers])
    ends = np.reshape(ends, (many, 4)) - 10. * np.arange(many)[:, None]
    assert np.sort(ends).mean(axis=0) == pytest.approx(real, rel=0.15)
    assert real[0] < 0.75 * real[3], 'not in equal parts'
