"""What the advisor finds out about the cluster of TF_CONFIG."""

import json
import os
import re
import sys

import pytest

from conftest import ROOT
from measuring import hosts
from processes import wait_until

import advise
import advise_cluster
import advise_network
from tfdist.start import ports

OWN = {'empty': 4e-4, 'byte': 1e-9}


def a_host(name, empty=1.4e-3, byte=9e-9, step=1e-3, cores=4):
    return {'address': f'{name}:2222', 'cores': cores, 'step': step, 'empty': empty, 'byte': byte}


FIRST = {'address': 'alpha:2222', 'cores': 4, 'step': 1e-3}


def test_hosts_that_are_alike():
    """By hand: 1.4 ms less 0.4 ms; 8 bits in 9 ns less 1 ns are 1 Gbit/s."""
    described, unlike = advise_network.description([FIRST, a_host('beta'), a_host('gamma')], OWN)
    assert not unlike
    about = described.pop('about')
    assert about.startswith('Measured by alpha:2222, ')
    assert described == {'hosts': 3, 'cores': 4, 'round_trip': '1ms', 'rate': '1000Mbit',
                         'addresses': ['alpha:2222', 'beta:2222', 'gamma:2222']}


def test_what_is_unlike_is_said():
    found = [FIRST, a_host('beta', cores=8), a_host('gamma', empty=10.4e-3),
             a_host('delta', byte=81e-9), a_host('epsilon', step=0.5e-3)]
    described, unlike = advise_network.description(found, OWN)
    assert (described['round_trip'], described['rate'], described['cores']) == (
        '1ms', '1000Mbit', 4)
    assert 'slow' not in described
    assert unlike == [
        'beta:2222 has 8 cores; 4 are taken for all',
        'to gamma:2222 and back a message takes 10ms; 1ms are taken for all',
        'delta:2222 is reached at 100Mbit/s; 1000Mbit/s are taken for all',
        'local steps on epsilon:2222 take 0.5 times as long as here; 1 is taken']


def test_slow_hosts_come_last():
    """Of these one figure is taken, too, and who is far from it is named."""
    found = [FIRST, a_host('beta', step=3e-3), a_host('gamma'), a_host('delta', step=3.2e-3)]
    described, unlike = advise_network.description(found, OWN)
    assert not unlike and (described['slow'], described['slow_by']) == (2, '3.1')
    assert described['addresses'] == ['alpha:2222', 'gamma:2222', 'beta:2222', 'delta:2222']
    found.append(a_host('epsilon', step=9e-3))
    described, unlike = advise_network.description(found, OWN)
    assert (described['slow'], described['slow_by']) == (3, '3.2')
    assert unlike == ['local steps on epsilon:2222 take 9 times as long as here; 3.2 is taken']


def test_a_network_that_is_faster_than_tensorflow():
    """Nothing is said of its rate: what an exchange takes is measured on one host."""
    described, unlike = advise_network.description(
        [FIRST, a_host('beta', empty=3e-4, byte=1.2e-9), a_host('gamma', 3e-4, 0.9e-9)], OWN)
    assert not unlike and 'rate' not in described and described['round_trip'] == '0us'


def test_all_tasks_on_one_host():
    described, unlike = advise_network.description([FIRST], None)
    assert not unlike and described['hosts'] == 1


def test_the_file_is_a_cluster(tmp_path):
    found = [FIRST, *map(a_host, ['beta', 'gamma', 'delta'])]
    path = tmp_path / 'cluster.json'
    path.write_text(json.dumps(advise_network.description(found, OWN)[0]), encoding='utf-8')
    cluster = advise_cluster.Cluster(str(path))
    assert cluster.hosts == 4
    assert cluster.tasks(2, 2) == {'ps': ['alpha:2222', 'beta:2222'],
                                   'worker': ['gamma:2222', 'delta:2222']}
    assert cluster.tasks(5, 0) == {'worker': ['alpha:2222', 'beta:2222', 'gamma:2222',
                                              'delta:2222', 'alpha:2223']}
    assert advise_cluster.Cluster('4 hosts, 1Gbit').tasks(2, 1) is None


@pytest.mark.parametrize('addresses', [['alpha:2222'], 'alpha:2222', ['alpha', 'beta:2222']])
def test_addresses_that_cannot_be(tmp_path, addresses):
    path = tmp_path / 'cluster.json'
    path.write_text(json.dumps({'hosts': 2, 'round_trip': '1ms', 'addresses': addresses}),
                    encoding='utf-8')
    with pytest.raises(SystemExit) as error:
        advise_cluster.Cluster(str(path))
    assert str(error.value) == (
        f'--cluster={path}: "addresses" has one host:port for each of the 2 hosts.')


def start(programs, cluster, task, *more):
    """Starts the program as a task, a pair."""
    job, index = task
    config = json.dumps({'cluster': cluster, 'task': {'type': job, 'index': index}})
    command = [sys.executable, '-m', 'measuring.between_hosts', f'--step={index + 1}e-3', *more]
    return programs.start(command, env={'TF_CONFIG': config, 'PYTHONPATH': str(ROOT)})


def test_the_hosts_are_asked(programs, tmp_path):
    """Of a host with two tasks one is asked, and all end well."""
    addresses = [f'{host}:{port}' for host, port in zip(
        ['localhost', '127.0.0.1', '127.0.0.1', 'localhost'], ports.free_ports(4))]
    cluster = {'worker': addresses[:2], 'ps': addresses[2:]}
    tasks = [start(programs, cluster, task, f'--found={tmp_path / "found"}')
             for task in [('ps', 0), ('worker', 1), ('ps', 1), ('worker', 0)]]
    for task in tasks:
        assert task.wait() == 0 and not task.err, str(task)
    first, other = json.loads((tmp_path / 'found').read_text(encoding='utf-8'))
    cores = len(os.sched_getaffinity(0))
    assert first == {'address': addresses[0], 'cores': cores, 'step': 1e-3}
    assert (other['address'], other['cores']) == (addresses[1], cores)
    assert other['step'] == pytest.approx(2e-3)
    assert 0 < other['empty'] < 0.1 and 0 < other['byte'] < 1e-6


def test_a_task_that_does_not_come(programs):
    addresses = [f'localhost:{port}' for port in ports.free_ports(2)]
    task = start(programs, {'worker': addresses}, ('worker', 0), '--patience_secs=2')
    task.fails(rf'^worker 0: worker 1 at {addresses[1]} does not answer .* Gave up after 2 s\.$')


def test_a_tf_config_that_cannot_be_read(programs):
    task = start(programs, {'worker': 'alpha:2222'}, ('worker', 0))
    task.fails('^TF_CONFIG: the cluster has no list of hosts for the job worker$')


@pytest.mark.parametrize(('job', 'index', 'advises'), [
    ('chief', 0, True), ('worker', 0, False), ('ps', 0, False)])
def test_what_is_measured_is_kept(tmp_path, monkeypatch, job, index, advises):
    """In a directory that the tasks share, worker 0 alone advises: here that is the chief."""
    monkeypatch.setenv('TF_CONFIG', json.dumps({
        'cluster': {'chief': ['alpha:2222'], 'worker': ['beta:2222'], 'ps': ['gamma:2222']},
        'task': {'type': job, 'index': index}}))
    path = tmp_path / 'cluster.json'
    path.write_text('{"hosts": 2, "round_trip": "1ms"}', encoding='utf-8')
    said = []
    assert advise_network.file_for(None, tmp_path, False, said.append) == (
        path if advises else None)
    assert len(said) == 1 and '--fresh' in said[0]


def test_fresh_tasks_of_one_directory(tmp_path, monkeypatch):
    """What was simulated is for worker 0 to forget: others may come while it simulates anew."""
    monkeypatch.setenv('TF_CONFIG', '{}')
    monkeypatch.setattr(advise_network, 'file_for', lambda *_: None)
    (tmp_path / 'simulated.csv').write_text('old', encoding='utf-8')
    advise.main([f'--results_dir={tmp_path}', '--fresh'])
    assert (tmp_path / 'simulated.csv').read_text(encoding='utf-8') == 'old'


def test_a_cluster_of_tf_config_is_not_run_here(tmp_path, monkeypatch):
    monkeypatch.setenv('TF_CONFIG', '{}')
    with pytest.raises(SystemExit, match='^--run: it runs on this machine, and TF_CONFIG is'):
        advise.main([f'--results_dir={tmp_path}', '--run'])


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
def test_a_network_is_measured(programs, tmp_path):
    """100 Mbit/s and 10 ms there and back, from one command on each of three hosts."""
    cluster = {'worker': ['alpha:2222', 'beta:2222'], 'ps': ['gamma:2222']}
    places = {('worker', 0): 'alpha', ('worker', 1): 'beta', ('ps', 0): 'gamma'}
    with hosts.Hosts(tmp_path, list(places.values()), round_trip=0.01, gigabits=0.1) as network:
        tasks = []
        for (job, index), host in places.items():
            config = json.dumps({'cluster': cluster, 'task': {'type': job, 'index': index}})
            tasks.append(programs.start(
                network.on(host, [sys.executable, str(ROOT / 'Simulation' / 'advise.py'),
                                  f'--results_dir={tmp_path / host}', '--schemes=AGN',
                                  '--minutes=0.1', '--within=2'], str(tmp_path)),
                env={'TF_CONFIG': config, 'PYTHONPATH': str(ROOT)}))
        wait_until(lambda: not any(task.running for task in tasks), programs)
    for task, host in zip(tasks, places.values()):
        assert task.wait() == 0 and not task.err, str(task)
        assert (tmp_path / host / 'cluster.json').exists() == (host == 'alpha')
    assert tasks[1].out[-1] == 'advise: worker 0 knows this host now, and advises'
    found = json.loads((tmp_path / 'alpha' / 'cluster.json').read_text(encoding='utf-8'))
    assert found['hosts'] == 3
    rate = re.fullmatch(r'([\d.]+)Mbit', found['rate'])
    assert 85 < float(rate[1]) < 115
    trip = re.fullmatch(r'([\d.]+)ms', found['round_trip'])
    assert 9.5 < float(trip[1]) < 14
    answer = json.loads((tmp_path / 'alpha' / 'answer.json').read_text(encoding='utf-8'))
    assert answer['cluster'] == str(tmp_path / 'alpha' / 'cluster.json')
