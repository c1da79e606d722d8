"""Elastic-Workers: workers that nobody was told of join a run and leave it; no step is lost."""

import json
import re
import signal
import types

from absl import flags
from absl.testing import flagsaver
import pytest

from measuring import hosts
from tfdist.cluster import awake_clock, keepalive, liveness
from tfdist.start import console
from tfdist.start.ports import free_ports
from tfdist.start.quiet import tf

from conftest import load_program, ROOT
from processes import (BEGINS, checkpoints, DID, listens, LONELY, MEMBER, RESUMES, STEP, Tasks,
                       TEST, wait_until)

FOLDER = 'Elastic-Workers'
SLOW = '--straggler=' + ','.join(f'{i}:0.02' for i in range(10))


@pytest.fixture
def job(programs):
    """A function that starts a task, which is told of itself and, if it is a worker, of the ps.

    That is what TFJob does with enableDynamicWorker.
    """
    addresses = [f'localhost:{port}' for port in free_ports(20)]
    # As on another host: by a name that TensorFlow's server does not give itself.
    addresses[2:] = [address.replace('localhost', '127.0.0.1') for address in addresses[2:]]

    def start(job, index, *flags, num_ps=1):
        mine = addresses[index + (2 if job == 'worker' else 0)]
        cluster = {'ps': [mine], 'worker': {}}
        if job == 'worker':
            cluster = {'ps': addresses[:num_ps], 'worker': {str(index): mine}}
            flags = '--log_every_n_steps=5', SLOW, *flags
        config = {'cluster': cluster, 'task': {'type': job, 'index': index}}
        return programs.task(job, '--num_threads=1', *flags, folder=FOLDER,
                             TF_CONFIG=json.dumps(config))
    return start


def said(ps):
    """Returns what ps 0 said of members: the worker, and what it did."""
    return [(int(match['worker']), match['what']) for match in ps.matches(MEMBER)]


def test_join_and_leave(job):
    servers = [job('ps', i) for i in range(2)]
    chief, early = (job('worker', i, '--train_steps=900', num_ps=2) for i in (0, 3))
    for worker in chief, early:
        worker.wait_for(STEP)
    late = job('worker', 7, '--train_steps=900', num_ps=2)
    begins = late.wait_for(BEGINS)
    assert ': joins' in begins.group() and int(begins['step']) > 0
    late.wait_for(STEP)
    early.send(signal.SIGTERM)
    early.ends_well()
    before = int(early.matches(STEP)[-1]['step'])
    for task in [late, chief] + servers:
        task.ends_well()
    assert int(chief.matches(STEP)[-1]['step']) > before, 'the others do the rest'
    steps = [int(worker.wait_for(DID)['local_steps']) for worker in (chief, early, late)]
    assert all(steps) and 900 <= sum(steps) <= 902
    assert not early.matches(TEST) and int(chief.wait_for(TEST)['step']) in (900, 901, 902)
    expected = [(0, 'joins'), (0, 'is done'), (3, 'joins'), (3, 'leaves'), (7, 'joins'),
                (7, 'is done')]
    assert sorted(said(servers[0])) == sorted(expected) and not servers[1].out


@pytest.mark.thorough
def test_the_commands_of_the_readme(programs):
    """A worker joins a job of run.sh by hand, and leaves it by `kill PID`."""
    text = (ROOT / FOLDER / 'README.md').read_text(encoding='utf-8')
    job, = re.findall(r'\n    PORT=2222 bash run.sh (.*)\n', text)
    join, = re.findall(r'\n    python worker.py (.*--worker_hosts=localhost:.*)\n', text)
    own, = free_ports(1)
    base = next(port for port in free_ports(100) if own not in range(port, port + 4)
                and not any(listens(f'localhost:{port + i}') for i in range(4)))
    for theirs, ours in ('2222', base), ('2307', own):
        assert f':{theirs} ' in join
        join = join.replace(f':{theirs} ', f':{ours} ')
    often = '--log_every_n_steps=20'
    run = programs.run_sh(FOLDER, *job.split(), often, PORT=base)
    run.wait_for(STEP)
    worker = programs.task('worker', *join.split(), often, folder=FOLDER)
    assert int(worker.wait_for(r'worker 7: joins at step (\d+) of 50000, .*')[1]) > 0
    worker.wait_for(STEP)
    worker.send(signal.SIGTERM)
    worker.ends_well()
    run.wait_for(r'ps 0: worker 7 leaves, \d+ workers? takes? part')
    assert (7, 'joins') in said(run)
    run.wait_for(STEP, len(run.matches(STEP)) + 1)
    run.send(signal.SIGTERM)
    assert run.wait() == 143 and not run.left()


@pytest.mark.thorough
def test_a_worker_that_dies_is_counted_out_and_may_come_back(job):
    ps = job('ps', 0)
    chief, victim = (job('worker', i, '--train_steps=1500') for i in (0, 1))
    victim.wait_for(STEP)
    victim.kill()
    ps.wait_for(r'ps 0: worker 1 does not answer, 1 worker takes part')
    again = job('worker', 1, '--train_steps=1500')
    for task in again, chief, ps:
        task.ends_well()
    assert int(again.wait_for(BEGINS)['step']) > 0 and int(again.wait_for(DID)['local_steps']) > 0
    assert [what for worker, what in said(ps) if worker] == [
        'joins', 'does not answer', 'joins', 'is done']


@pytest.mark.thorough
@pytest.mark.parametrize('comes', [True, False])
def test_a_worker_that_is_lost_before_the_end_and_comes_back_after_it(job, comes):
    ps = job('ps', 0, '--patience_secs=25')
    chief, victim = (job('worker', i, '--train_steps=300') for i in (0, 1))
    victim.wait_for(STEP)
    victim.kill()
    chief.ends_well()
    ps.wait_for(r'ps 0: worker 1 does not answer, [01] workers? takes? part')
    if comes:
        again = job('worker', 1, '--train_steps=300')
        again.ends_well()
        assert int(again.wait_for(DID)['local_steps']) == 0
    else:
        ps.wait_for('ps 0: worker 1 never said that it is done, and does not answer')
    ps.ends_well()


@pytest.mark.thorough
def test_a_ps_comes_back(job, tmp_path):
    ps = job('ps', 0)
    workers = [job('worker', i, '--train_steps=800', f'--model_dir={tmp_path / "model"}',
                   '--save_checkpoint_secs=1') for i in (0, 5)]
    wait_until(lambda: len(checkpoints(tmp_path / 'model')) >= 2, 'no checkpoints by', *workers)
    ps.kill()
    ps = job('ps', 0)
    assert int(workers[0].wait_for(RESUMES)['step']) > 0
    for task in [*workers, ps]:
        task.ends_well()
    assert workers[0].matches(TEST)
    assert sorted(said(ps)) == [(0, 'is done'), (0, 'joins'), (5, 'is done'), (5, 'joins')]


@pytest.mark.thorough
def test_between_hosts(programs, needs_hosts):
    """Each task is on a host of its own, so none is on the localhost of another one."""
    with hosts.Hosts(programs.directory, ['ps-0', 'worker-0', 'worker-1']) as network:
        tasks = Tasks(programs, folder=FOLDER, python=network.python(), flags=[
            '--train_steps=300', SLOW])
        started = [tasks.start(*task) for task in (('ps', 0), ('worker', 0), ('worker', 1))]
        for task in started:
            task.ends_well()
    ps, *workers = started
    assert 300 <= sum(int(worker.wait_for(DID)['local_steps']) for worker in workers) <= 301
    assert sorted(said(ps)) == [(0, 'is done'), (0, 'joins'), (1, 'is done'), (1, 'joins')]


@pytest.mark.parametrize('comes', [False, True])
def test_a_ps_whose_workers_have_gone_for_good(cluster, monkeypatch, capsys, comes):
    """It ends, as nobody ever comes; or --patience_secs after the last one has answered."""
    members = load_program(FOLDER, 'members')
    flags.FLAGS([''])
    now, answers_until = 0, 40 if comes else 0

    def sleep(_):
        nonlocal now
        now += 1
        assert now < 200, 'it waits for ever'

    def give_up(line):
        raise SystemExit(line)

    monkeypatch.setattr(awake_clock, 'seconds', lambda: now)
    monkeypatch.setattr(keepalive, 'begin', lambda: None)
    monkeypatch.setattr(members, 'time', types.SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(liveness, 'silence',
                        lambda address: 'refused' if now > answers_until else '')
    monkeypatch.setattr(console, 'give_up', give_up)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster.spec, task_type='ps', task_id=0)
    server = cluster.servers['ps', 0]
    with tf.Graph().as_default(), flagsaver.flagsaver(patience_secs=30.):
        if comes:
            with tf.Session(server.target) as session:
                session.run(members._queue(0).enqueue('3 localhost:1 joins'))
        with pytest.raises(SystemExit, match='^ps 0: no worker answers, and none has said that it '
                           r'is done\. Gave up after 30 s\.$'):
            members.serve(server, resolver)
    assert now == answers_until + 31
    lines = capsys.readouterr().out.splitlines()
    assert comes == ('ps 0: worker 3 does not answer, 0 workers take part' in lines)
    assert sum(bool(LONELY.fullmatch(line)) for line in lines) == 2


def test_a_ps_that_was_lost_before_the_end_hears_of_it(cluster):
    """The worker's session knows only the ps that was there before."""
    members = load_program(FOLDER, 'members')
    spec = cluster.spec.as_dict()
    spec['worker'] = {0: spec['worker'][0]}
    member = members.Member(tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type='worker', task_id=0))

    def lost(*_):
        raise tf.errors.UnavailableError(None, None, 'Socket closed')

    with tf.Graph().as_default() as graph:
        member.begin()
        heard = [members._queue(ps).dequeue() for ps in range(2)]
        session = types.SimpleNamespace(run=lost, graph=graph, _config=cluster.config(0),
                                        sess_str=cluster.servers['worker', 0].target)
        member.is_done = True
        member.end(session)
        with tf.Session(session.sess_str, config=session._config) as another:
            assert another.run(heard) == [f'0 {spec["worker"][0]} is done'.encode()] * 2


@pytest.mark.thorough
def test_a_ps_that_nobody_needs_any_more(job):
    """Its worker was done before the ps was killed and started again; or died, and stays dead."""
    ps = job('ps', 0)
    job('worker', 0, '--train_steps=5').ends_well()
    ps.ends_well()
    again = job('ps', 0, '--patience_secs=12')
    victim = job('worker', 0)
    victim.wait_for(STEP)
    victim.kill()
    for ps in again, job('ps', 1, '--patience_secs=12'):
        ps.wait_for(LONELY)
        ps.fails(r'^ps \d: no worker answers, and none has said that it is done\. '
                 r'Gave up after 12 s\.$')


@pytest.mark.parametrize('value', ['1', '1:', 'one:0.5', '1:2', '1:-0.1', '1:nan', '1:0.5,2'])
def test_shares(value):
    worker = load_program(FOLDER)
    flags.FLAGS([''])
    with flagsaver.flagsaver(train_steps=1000):
        for flag in 'join_at', 'leave_at':
            flags.FLAGS[flag].parse('1:0.5,2:0.25')
            assert [worker.at_step(flag, i, 7) for i in range(3)] == [7, 500, 250]
            flags.FLAGS[flag].parse(value)
            with pytest.raises(SystemExit, match=f'^--{flag}={value} is not of the form worker:sh'):
                worker.at_step(flag, 0, 7)
