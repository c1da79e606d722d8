"""Peers in other frameworks: turns, ratios, the table; and that they train, where installed."""

import importlib.util
import itertools
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from measuring import folders, hosts, peers
from tfdist.gallery import mnist

import bench
import beside
from conftest import ROOT

PAIR = beside.Pair('AGN', 'DDP', 'digits', 1.5)


@pytest.fixture
def a_peer(tmp_path, monkeypatch):
    """Makes a peer of a program, a string; returns its name."""
    def make(program):
        path = tmp_path / 'program.py'
        path.write_text(program, encoding='utf-8')
        monkeypatch.setitem(peers.PEERS, 'one', peers.Peer(str(path), 'Python', 'json', '2.'))
        return 'one'

    return make


def problem():
    """Returns what the programs of the peers share, as a module."""
    spec = importlib.util.spec_from_file_location(
        'problem_of_peers', str(ROOT / 'Comparison' / 'peers' / 'problem.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rate_is_the_mean_of_the_workers(a_peer):
    """Whatever a launcher writes before their lines, and others beside them."""
    name = a_peer('import sys\n'
                  'print("[1]<stdout>:worker 1: 100.0 steps/s per worker, loss 2.000 to 1.000")\n'
                  'print("I0000 9.0 steps/s of no one", file=sys.stderr)\n'
                  'print("worker 0:", sys.argv[1], "steps/s per worker, loss 2.000 to 1.000")')
    assert peers.steps_per_second(name, sys.executable, '300.0') == 200


@pytest.mark.parametrize('program, says', [
    ('import sys; sys.exit("there is no such thing")', 'there is no such thing\n\none: status 1'),
    ('print("done")', 'done\n\none: status 0')])
def test_a_peer_that_fails(a_peer, program, says):
    with pytest.raises(SystemExit) as raised:
        peers.steps_per_second(a_peer(program), sys.executable)
    assert str(raised.value) == says


def test_nothing_is_left_of_a_peer_that_does_not_end(a_peer, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, 'TIME_LIMIT', 3)
    name = a_peer('import pathlib, subprocess, sys, time\n'
                  'sleep = [sys.executable, "-c", "import time; time.sleep(99)"]\n'
                  'child = subprocess.Popen(sleep)\n'
                  f'pathlib.Path({str(tmp_path)!r}, "pid").write_text(str(child.pid))\n'
                  'time.sleep(99)')
    with pytest.raises(SystemExit, match='^one: it has not ended after 3 s$'):
        peers.steps_per_second(name, sys.executable)
    pid, limit = int((tmp_path / 'pid').read_text()), time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_where_peers_are_looked_for(a_peer, tmp_path, monkeypatch):
    """First where PEERS_PYTHON says; what is no interpreter has none, nor has an old version."""
    nothing = str(tmp_path / 'nothing')
    monkeypatch.setenv('PEERS_PYTHON', os.pathsep.join([nothing, sys.executable]))
    found = peers.interpreters()
    assert found[:2] == [nothing, sys.executable] and len(set(found)) == len(found)
    monkeypatch.setattr(peers, 'interpreters', lambda: [nothing, sys.executable])
    name = a_peer('')
    assert peers.installed([name]) == ({name: sys.executable}, ['Python 2.0.9'])
    monkeypatch.setitem(peers.PEERS, name, peers.PEERS[name]._replace(version='3.'))
    assert peers.installed([name]) == ({}, [])
    monkeypatch.setitem(peers.PEERS, name, peers.PEERS[name]._replace(module='no_such.thing'))
    assert peers.installed([name]) == ({}, [])


@pytest.fixture
def rounds(monkeypatch):
    """Both of a pair are made up; returns the list of what was run."""
    made, rates = [], itertools.cycle([30., 10., 50., 20., 12., 10.])

    def run(who, *_):
        made.append(who)
        return next(rates)

    monkeypatch.setattr(beside, 'ours', lambda pair, _: run(pair.folder))
    monkeypatch.setattr(beside, 'theirs', lambda pair, interpreter, _: run(interpreter))
    monkeypatch.setattr(peers, 'installed', lambda names: (
        {name: f'{name}!' for name in names if name != 'Horovod'}, ['PyTorch 3']))
    return made


def test_they_take_turns_and_the_ratio_is_taken_in_a_round(rounds, capsys):
    figures, frameworks = beside.measure({'a': PAIR}, 3)
    assert rounds == ['AGN', 'DDP!'] * 3 and frameworks == ['PyTorch 3']
    assert figures == {'a': [(30, 10), (50, 20), (12, 10)]}
    assert 'left out' not in capsys.readouterr().err
    row, = beside.rows(figures, {'a': PAIR})
    assert list(row.values()) == ['a', '30', '10', '2.50', '1.20 to 3.00', '>= 1.5']


@pytest.mark.parametrize('target, word', [(2.5, '>= 2.5'), (2.51, 'missed: >= 2.51'), (None, '')])
def test_a_target_that_is_missed_is_marked(target, word):
    """By the median that the table shows."""
    row, = beside.rows({'a': [(2.499, 1), (9, 1), (1, 1)]}, {'a': PAIR._replace(target=target)})
    assert (row['ratio'], row['target']) == ('2.50', word)


def test_what_is_not_installed_is_left_out_in_a_line(rounds, capsys):
    pairs = {'a': PAIR._replace(peer='Horovod'), 'b': PAIR, 'c': PAIR._replace(peer='Horovod')}
    figures, _ = beside.measure(pairs, 2)
    assert list(figures) == ['b'] and rounds == ['AGN', 'DDP!'] * 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == 'left out, as it is not installed (see Comparison/peers.txt): Horovod'
    assert said[1:] == ['1 of 2: b', '2 of 2: b']
    options = bench.parse(['--only=beside Horovod', '--repeats=1'])
    assert options.pairs and not options.cases and not list(bench.tables(options))


def test_the_pairs():
    """`beside` finds those of one machine and nothing else, `against` those of several hosts."""
    near, far = bench.parse(['--only=beside']), bench.parse(['--only=against'])
    assert {**beside.ALONE, **near.pairs, **far.pairs} == beside.PAIRS
    assert not near.cases and not far.cases
    assert bench.parse(['--only=Alone']).pairs == beside.ALONE
    assert not any(pair.network for pair in near.pairs.values())
    assert all(pair.network and pair.peer == 'DDP' for pair in far.pairs.values())
    assert near.pairs and far.pairs
    for pair in beside.PAIRS.values():
        assert (ROOT / 'Comparison' / 'peers' / peers.PEERS[pair.peer].program).exists()
    assert {pair.peer for pair in beside.PAIRS.values()} == set(peers.PEERS)
    assert [folders.Example(name).window for name in ('Local-SGD', 'Synchronous-SGD')] == [10, 1]


def test_without_hosts_their_pairs_are_left_out_in_a_line(rounds, monkeypatch, capsys):
    monkeypatch.setattr(hosts, 'missing', lambda: 'there is no tc')
    far = PAIR._replace(network=beside.Network(1, None))
    figures, _ = beside.measure({'a': far, 'b': PAIR}, 1)
    assert list(figures) == ['b'] and rounds == ['AGN', 'DDP!']
    assert capsys.readouterr().err.splitlines()[0] == (
        'left out, as there are no hosts: there is no tc')


SINK = """
import socket, time
with socket.socket() as server:
    server.bind(('', 5000))
    server.listen(1)
    print('listens', flush=True)
    connection, _ = server.accept()
    received, began = 0, time.monotonic()
    while True:
        some = connection.recv(2**20)
        if not some:
            break
        received += len(some)
print(8e-9 * received / (time.monotonic() - began))
"""
SOURCE = 'import socket; socket.create_connection(("b", 5000)).sendall(bytes(6000000))'


@pytest.mark.usefixtures('needs_hosts')
@pytest.mark.parametrize('round_trip', [None, 0.001])
def test_the_rate_of_a_link(tmp_path, round_trip):
    """6 MB at 0.1 Gbit/s: half a second, however fast this machine is."""
    with hosts.Hosts(tmp_path, ['a', 'b'], round_trip=round_trip, gigabits=0.1) as network:
        sink = subprocess.Popen(network.on('b', [sys.executable, '-c', SINK], str(tmp_path)),
                                stdout=subprocess.PIPE, universal_newlines=True)
        assert sink.stdout.readline() == 'listens\n'
        subprocess.run(network.on('a', [sys.executable, '-c', SOURCE], str(tmp_path)), check=True,
                       timeout=60)
        assert float(sink.communicate(timeout=60)[0]) < 0.12


def test_peers_have_the_network_and_the_batches_of_the_examples():
    shared = problem()
    layers = shared.initial(shared.NETWORKS['digits'].sizes)
    assert 4 * sum(values.size for layer in layers for values in layer) == folders.DIGITS
    assert 4 * sum((n + 1) * m for n, m in zip([784, 500, 500], [500, 500, 10])) == 4 * sum(
        values.size for layer in shared.initial(shared.NETWORKS['mnist'].sizes) for values in layer)
    assert shared.NETWORKS['mnist'].learning_rate == mnist.LEARNING_RATE
    assert set(shared.NETWORKS) == set(beside.MODELS)
    assert (f'--mnist_hidden_units={shared.NETWORKS["large"].sizes[1]}' in
            beside.MODELS['large'].flags)
    (weights, biases), _ = layers
    assert weights.std() == pytest.approx((2 / (64 + 128)) ** 0.5, rel=0.03) and not biases.any()
    images, labels = np.arange(70)[:, None], np.arange(70)
    drawn = [next_batch for next_batch, _ in zip(shared.batches(images, labels, 0), range(4))]
    assert all((batch[0][:, 0] == batch[1]).all() for batch in drawn)
    assert len(set(np.concatenate([batch[1] for batch in drawn[:2]]))) == 64
    assert drawn[0][1].tolist() != drawn[2][1].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize('name', sorted(peers.PEERS))
def test_a_peer_trains(name):
    found, _ = peers.installed([name])
    if not found:
        pytest.skip(f'{name} is not installed: make peers')
    assert peers.steps_per_second(name, found[name], '--steps=20', '--warm_up=20') > 0


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
def test_ddp_trains_on_hosts(tmp_path):
    found, _ = peers.installed(['DDP'])
    if not found:
        pytest.skip('DDP is not installed: make peers')
    with hosts.Hosts(tmp_path, ['worker-0', 'worker-1'], gigabits=1) as network:
        assert peers.steps_per_second('DDP', found['DDP'], '--steps=20', '--warm_up=20',
                                      network=network) > 0
