"""How long this process waits, for whom, and what counts as a sign of life."""

import socket
import threading
import time

from absl import flags
from absl.testing import flagsaver
import pytest
import tensorflow.compat.v1 as tf

from tfdist.cluster import liveness, patience
from tfdist.start import console, ports
from tfdist.training import busy, checkpoints

from processes import wait_until

FLAGS = flags.FLAGS


class GaveUpError(Exception):
    """Instead of the end of the process."""


@pytest.fixture
def said(monkeypatch):
    """The lines of a process that is patient from now on; giving up raises `GaveUpError`."""
    lines = []

    def give_up(line):
        lines.append(line)
        raise GaveUpError(line)

    monkeypatch.setattr(console, 'say', lambda name, text: lines.append(f'{name}: {text}'))
    monkeypatch.setattr(console, 'give_up', give_up)
    monkeypatch.setattr(patience, 'PATIENCE', patience.Patience())
    return lines


def wait(seconds, limit=300):
    """Waits so long without a result, as the watch counts."""
    for _ in range(seconds):
        patience.PATIENCE.count(1, limit, 'worker 1', lambda: 'all tasks answer')


def test_a_word_and_an_end(said):
    patience.PATIENCE.expect('the step is not complete')
    wait(12)
    assert said == ['worker 1: the step is not complete after 11 s (all tasks answer); waiting']
    patience.PATIENCE.heard()
    wait(11)
    assert len(said) == 1, 'the count began again'
    with pytest.raises(GaveUpError, match='^worker 1: the step is .* Gave up after 20 s'):
        wait(20, limit=20)


def test_sessions_without_a_result_are_one_wait(said):
    """As when what follows a step fails in each session."""
    for _ in range(5):
        patience.PATIENCE.expect('the parameters are not initialized')
        patience.PATIENCE.begin_session(object(), 'the step is not complete')
        wait(3)
    assert said == ['worker 1: the step is not complete after 11 s (all tasks answer); waiting']
    patience.PATIENCE.heard()
    for _ in range(5):
        patience.PATIENCE.begin_session(object(), 'the step is not complete')
        wait(6)
        patience.PATIENCE.heard()
    assert len(said) == 1


def test_sessions_without_a_result_are_bounded(said):
    one = object()
    for _ in range(30):
        patience.PATIENCE.begin_session(one, 'each thread of a program waits for its own step')
    for _ in range(19):
        patience.PATIENCE.begin_session(object(), 'the step is not complete')
    patience.PATIENCE.heard()
    for _ in range(20):
        patience.PATIENCE.begin_session(object(), 'the step is not complete')
    with pytest.raises(GaveUpError, match='^20 sessions, one after the other, have ended'):
        patience.PATIENCE.begin_session(object(), 'the step is not complete')
    assert len(said) == 1


def test_who_is_busy_is_waited_for_and_named(said):
    wait(8, limit=10)
    for _ in range(100):
        patience.PATIENCE.excuse('worker 0 tests')
        wait(1, limit=10)
    assert [line.split(' back ')[1] for line in said] == [
        f'after {seconds} s (worker 0 tests); waiting' for seconds in (11, 23, 47, 95)]
    with pytest.raises(GaveUpError, match=r'\(all tasks answer\). Gave up after 10 s'):
        wait(11, limit=10)


def test_what_this_process_does_on_behalf_of_all(said):
    patience.PATIENCE.expect('the step is not complete')
    with patience.PATIENCE.during('the test is not complete'):
        wait(12)
    wait(12)
    assert [line.partition(' after')[0] for line in said] == [
        'worker 1: the test is not complete', 'worker 1: the step is not complete']


def test_a_result_is_an_answer_of_all(said, monkeypatch):
    """Probes fail, as when a stranger holds all connections; steps come back."""
    monkeypatch.setattr(liveness, 'silence', lambda _: '' if starting else 'Connection refused')
    monkeypatch.setattr(liveness, 'stranger', lambda *_: '')
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({'ps': ['alpha:1'], 'worker': ['beta:1', 'gamma:1']}),
        task_type='worker', task_id=1)
    FLAGS.mark_as_parsed()
    ended = []
    monkeypatch.setattr(threading, 'excepthook', lambda args: None, raising=False)
    monkeypatch.setattr(console, 'give_up', ended.append)
    starting = True
    with flagsaver.flagsaver(patience_secs=1):
        stop = liveness.watch(resolver)
        starting = False
        until = time.monotonic() + 4
        while time.monotonic() < until:
            patience.PATIENCE.heard()
            time.sleep(0.1)
        assert not ended and not said
        wait_until(lambda: ended)
        stop.set()
    assert ended[0].startswith('worker 1: ps 0 at alpha:1 does not answer (Connection refused).')


def test_a_way_on_which_long_messages_are_lost():
    """A relay in place of a network whose packets are smaller than the hosts believe."""
    port, = ports.free_ports(1)
    server = tf.train.Server({'ps': [f'localhost:{port}']}, 'ps', 0)
    relay = socket.socket()
    relay.bind(('localhost', 0))
    relay.listen()

    def pass_on(begins):
        connection, _ = relay.accept()
        with connection, socket.create_connection(('localhost', port)) as other:
            other.sendall(connection.recv(2**16)[:begins])
            time.sleep(0.2)  # for the settings, the first answer
            connection.sendall(other.recv(2**16))
            connection.recv(2**16)  # until it is closed

    address = f'localhost:{relay.getsockname()[1]}'
    assert liveness.takes_long_messages(f'localhost:{port}')
    for ask in liveness.silence, liveness.takes_long_messages:
        thread = threading.Thread(target=pass_on, args=(1300,), daemon=True)
        thread.start()
        assert not ask(address)
        thread.join(10)
    relay.close()
    assert server.target and not liveness.takes_long_messages(address), 'nobody answers'


@pytest.mark.parametrize('own', [False, True], ids=['', 'in a session of its own'])
def test_a_worker_that_tests_is_heard_by_the_others(said, monkeypatch, own):
    """On the board of a ps, which here is this process."""
    monkeypatch.setattr(busy, '_BEAT_SECS', 0.05)
    monkeypatch.setattr(busy, '_LOOK_EVERY_SECS', 0.1)
    server = tf.train.Server({'ps': [f'localhost:{ports.free_ports(1)[0]}']}, 'ps', 0)
    boards, sessions = [], []
    for worker in range(2):
        with tf.Graph().as_default() as graph:
            boards.append(busy.Board(worker, '/job:ps/task:0', server.target if own else None))
            sessions.append(tf.Session(server.target, graph))
    excused = []
    monkeypatch.setattr(patience.PATIENCE, 'excuse', excused.append)
    wait(5)
    listens = True
    thread = threading.Thread(target=boards[0].listen,
                              args=(None if own else sessions[0], lambda: listens))
    thread.start()
    with busy.on_behalf_of_all(sessions[1], 'saves'):  # the last board is this program's
        wait_until(lambda: len(excused) > 2)
    time.sleep(0.3)
    number = len(excused)
    time.sleep(0.5)
    listens = False
    thread.join(10)
    assert set(excused) == {'worker 1 saves'} and len(excused) == number
    for session in sessions:
        session.close()


def test_the_time_of_day_does_not_matter_for_checkpoints(monkeypatch):
    timer = tf.train.SecondOrStepTimer(every_secs=0.1)
    timer.update_last_triggered_step(1)
    assert not timer.should_trigger_for_step(2)
    now = time.time()
    monkeypatch.setattr(time, 'time', lambda: now - 3600)
    time.sleep(0.2)
    assert timer.should_trigger_for_step(2) and checkpoints.Saver


@pytest.mark.parametrize('saves', [True, False])
def test_the_checkpoint_of_a_step_is_written_once(tmp_path, saves):
    """At the end, before the test and when the session is closed."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable('x', [], initializer=tf.zeros_initializer())
        saver = checkpoints.Saver('worker 0' if saves else None)
        session.run(variable.initializer)
        checkpoints.save(session, str(tmp_path), 7)
        files = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob('*.index')}
        assert list(files) == ['model.ckpt-7.index'] * saves
        assert not saves or saver.save(session, str(tmp_path / 'model.ckpt'), 7).endswith('ckpt-7')
        assert files == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob('*.index')}
        checkpoints.save(session, str(tmp_path), 8)
        assert len(list(tmp_path.glob('*.index'))) == 2 * saves
