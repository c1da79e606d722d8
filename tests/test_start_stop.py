"""Every run ends, with status 0 and nothing left, in whatever order its tasks come and go."""

import re
import socket
import time

import pytest
import tensorflow.compat.v1 as tf

from processes import BEGINS, DID, listens, ROOT, STEP, Tasks, TEST, wait_until, WAITS

LINGER = 20  # seconds; a ps takes 3 at most, and 27 to 70 when its session has no device filters


@pytest.mark.thorough
@pytest.mark.parametrize('cycle', range(10))
def test_four_workers_of_different_speed(programs, cycle):
    delays = [f'{(i + cycle) % 4}:{delay}' for i, delay in enumerate((0, 0.002, 0.01, 0.03))]
    run = programs.run_sh('HogWild', '--train_steps=100', f'--straggler={",".join(delays)}',
                          WORKERS=4, PS=1 + cycle % 2)
    run.ends_well()
    assert not run.left()
    names = [f'worker {i}' for i in range(4)]
    assert sorted(match['name'] for match in run.matches(DID)) == names
    assert [match['name'] for match in run.matches(TEST)] == names[:1]


@pytest.mark.parametrize('cycle', [
    0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 20))])
def test_synchronous_workers_of_different_speed(programs, cycle):
    """Two to four, with and without a backup, in every scheme with a barrier or a ring."""
    # Distributed-MNIST has a barrier on demand, and tests of its own.
    folders = sorted(path.parent.name for path in ROOT.glob('*/worker.py')
                     if re.search(r'barrier\.Synchronous|ring\.Ring\(', path.read_text())
                     and path.parent.name != 'Distributed-MNIST')
    assert len(folders) == 6
    folder, num_workers = folders[cycle % len(folders)], 2 + cycle % 3
    delays = [f'{(i + cycle) % num_workers}:{delay}' for i, delay in enumerate((0, 0.002, 0.01))]
    if folder == 'Ring-AllReduce':
        variant = f'--implementation={["ring", "collective", "sockets"][cycle // 5 % 3]}'
    else:
        variant = f'--replicas_to_aggregate={num_workers - cycle % 2}'
    run = programs.run_sh(folder, '--train_steps=30', variant, f'--straggler={",".join(delays)}',
                          WORKERS=num_workers)
    run.wait_for(TEST)
    trained = time.monotonic()
    run.ends_well()
    assert time.monotonic() - trained < LINGER and not run.left()
    names = [f'worker {i}' for i in range(num_workers)]
    assert sorted(match['name'] for match in run.matches(DID)) == names
    assert [match['name'] for match in run.matches(TEST)] == names[:1]


@pytest.mark.thorough
def test_a_worker_that_starts_10_seconds_late(programs):
    tasks = Tasks(programs, flags=['--train_steps=2000', '--log_every_n_steps=20'])
    ps = tasks.start('ps', 0)
    chief = tasks.start('worker', 0, '--straggler=0:0.02')
    chief.wait_for(BEGINS)
    time.sleep(10)
    late = tasks.start('worker', 1)
    begins = late.wait_for(BEGINS)
    assert ': joins' in begins.group() and int(begins['step']) > 0
    for task in late, chief, ps:
        task.ends_well()
    assert int(late.wait_for(DID)['local_steps']) > 0


@pytest.mark.thorough
def test_the_ps_starts_after_its_workers_and_the_chief_after_the_others(programs):
    tasks = Tasks(programs, num_ps=2, flags=['--train_steps=100'])
    worker = tasks.start_by_flags('worker', 1)
    worker.wait_for(WAITS)
    servers = [tasks.start_by_flags('ps', i) for i in range(2)]
    wait_until(lambda: all(map(listens, tasks.cluster['ps'])), 'no ps listens')
    assert worker.running and not worker.matches(BEGINS)
    chief = tasks.start_by_flags('worker', 0)
    for task in [worker, chief] + servers:
        task.ends_well()


@pytest.mark.thorough
@pytest.mark.parametrize('early', [0, 1])
def test_a_worker_that_ends_long_before_the_other(programs, early):
    tasks = Tasks(programs)
    ps = tasks.start('ps', 0)
    first = tasks.start('worker', early, '--train_steps=20')
    second = tasks.start('worker', 1 - early, '--train_steps=500', '--log_every_n_steps=20',
                         f'--straggler={1 - early}:0.02')
    first.ends_well()
    lines = len(second.matches(STEP))
    second.wait_for(STEP, lines + 2)
    assert ps.running, 'a worker still needs it'
    second.ends_well()
    ended = time.monotonic()
    ps.ends_well()
    assert time.monotonic() - ended < LINGER
    assert [len(task.matches(TEST)) for task in (first, second)] == [1 - early, early]


@pytest.mark.thorough
def test_a_ps_stays_for_one_that_is_late_with_its_good_bye(programs):
    """On a busy machine a worker that has said done may not answer for seconds: it is no dead one.

    Its part is played here: somebody listens at its address, and says nothing.
    """
    tasks = Tasks(programs, num_workers=1)
    ps = tasks.start('ps', 0)
    host, _, port = tasks.cluster['worker'][0].partition(':')
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        late.bind((host, int(port)))
        late.listen()
        wait_until(lambda: listens(tasks.cluster['ps'][0]), 'does not listen:', ps)
        with tf.Graph().as_default(), tf.device('/job:ps/task:0/device:CPU:0'):
            done = tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name='done').enqueue(0)
            config = tf.ConfigProto(device_filters=['/job:ps'])  # it does not ask the worker
            with tf.Session(f'grpc://{tasks.cluster["ps"][0]}', config=config) as session:
                session.run(done)
        time.sleep(7)
        assert ps.running
    ps.ends_well()
