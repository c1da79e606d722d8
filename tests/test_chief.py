"""The chief's role, and who does them while it is away: never two at once."""

import signal
import sys
import time
import types

from absl import flags
from absl.testing import flagsaver
import pytest
import tensorflow.compat.v1 as tf

from tfdist.training import checkpoints as library, chief, save_lock

from conftest import load_program
from processes import (AWAY, BACK, BEGINS, checkpoints, DID, RESUMES, STEP, STOPS, Tasks, TEST,
                       TESTED, wait_until)

SLOW = '--straggler=0:0.02,1:0.02,2:0.02'


@pytest.fixture
def start(programs):
    """A function that starts a ps and three slow workers of a folder, and waits until all train.

    It returns the tasks, the ps and a list of the workers.
    """
    def started(folder, train_steps, *flags, ps_flags=(), python=None):
        tasks = Tasks(programs, num_workers=3, folder=folder, python=python, flags=[
            f'--train_steps={train_steps}', '--log_every_n_steps=10', '--save_checkpoint_secs=1',
            f'--model_dir={programs.directory / "model"}', SLOW, *flags])
        ps = tasks.start('ps', 0, *ps_flags)
        workers = [tasks.start('worker', i) for i in range(3)]
        for worker in workers:
            worker.wait_for(STEP)
        return tasks, ps, workers
    return started


@pytest.fixture
def model_dir(programs):
    return programs.directory / 'model'


def newest(model_dir):
    """Returns the step of the newest checkpoint."""
    return max(checkpoints(model_dir), default=0)


def who_stands_in(workers):
    """Waits until one of the workers says that the chief is away; returns it and the others."""
    wait_until(lambda: any(worker.matches(AWAY) for worker in workers), 'nobody stands in:',
               *workers)
    deputy = next(worker for worker in workers if worker.matches(AWAY))
    return deputy, [worker for worker in workers if worker is not deputy]


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'SSP'])
def test_another_worker_saves_and_tests_until_the_chief_is_back(start, model_dir, folder):
    tasks, ps, (chief, *workers) = start(folder, 2500, '--eval_every_secs=1')
    chief.kill()
    before = newest(model_dir)
    deputy, others = who_stands_in(workers)
    deputy.wait_for(TESTED, 2)
    wait_until(lambda: newest(model_dir) > before + 100, 'saves nothing:', deputy)
    # A new one is there a moment before the oldest is deleted.
    wait_until(lambda: len(checkpoints(model_dir)) <= 5, 'deletes no old ones:', deputy)
    chief = tasks.start('worker', 0)
    deputy.wait_for(BACK)
    chief.wait_for(TESTED)
    tests = len(deputy.matches(TESTED))
    for task in (chief, *workers, ps):
        task.ends_well()
    assert len(deputy.matches(TESTED)) == tests, 'it has given that back, too'
    assert chief.matches(TEST) and not deputy.matches(TEST)
    assert not chief.matches(RESUMES), 'the parameters were alive'
    assert not any(worker.matches(AWAY) or worker.matches(TESTED) for worker in others)
    assert newest(model_dir) >= 2500 and len(checkpoints(model_dir)) <= 5


def test_without_a_chief_the_run_is_tested_and_saved_at_its_end(start, model_dir):
    tasks, ps, (chief, *workers) = start('AGN', 150, '--communication_window=5')
    chief.kill()
    for worker in workers:
        worker.ends_well()
    tests = [test for worker in workers for test in worker.matches(TEST)]
    assert len(tests) == 1, 'one of them tests'
    assert newest(model_dir) >= 150
    again = tasks.start('worker', 0)
    for task in again, ps:
        task.ends_well()
    assert int(again.wait_for(BEGINS)['step']) >= 150, 'nothing is left to do'


@pytest.mark.thorough
def test_a_chief_that_dies_in_the_last_seconds(start, model_dir):
    """Nobody has missed it yet when the others are done."""
    _, ps, (chief, *workers) = start('HogWild', 400, ps_flags=['--patience_secs=10'])
    wait_until(lambda: any(int(match['step']) > 300 for match in chief.matches(STEP)), 'no', chief)
    chief.kill()
    for task in (*workers, ps):
        task.ends_well()
    assert newest(model_dir) >= 400
    assert len([1 for worker in workers if worker.matches(TEST)]) == 1
    assert not any(worker.matches(AWAY) for worker in workers)


@pytest.mark.thorough
def test_a_chief_that_is_stopped_keeps_its_lock(start, model_dir):
    _, ps, (chief, *workers) = start('HogWild', 1500, python=sys.executable)
    chief.send(signal.SIGSTOP)
    before = newest(model_dir)
    time.sleep(12)
    assert newest(model_dir) == before
    chief.send(signal.SIGCONT)
    for task in (chief, *workers, ps):
        task.ends_well()
    assert not any(worker.matches(AWAY) for worker in workers)


@pytest.mark.thorough
def test_a_ps_dies_while_the_chief_is_away(start, model_dir):
    """The chief comes back and restores what another worker has saved."""
    tasks, ps, (chief, *workers) = start('HogWild', 2500)
    chief.kill()
    before = newest(model_dir)
    who_stands_in(workers)
    wait_until(lambda: newest(model_dir) > before + 100, 'saves nothing:', *workers)
    ps.kill()
    ps = tasks.start('ps', 0)
    chief = tasks.start('worker', 0)
    assert int(chief.wait_for(RESUMES)['step']) > before + 100
    for task in (chief, *workers, ps):
        task.ends_well()


@pytest.mark.thorough
def test_a_ps_dies_and_the_chief_never_comes_back(start, model_dir):
    """A worker restores what was saved, and all go on to the end."""
    patience = '--patience_secs=30'
    tasks, ps, (chief, *workers) = start('HogWild', 2000, patience)
    chief.kill()
    who_stands_in(workers)
    wait_until(lambda: newest(model_dir) > 200, 'saves nothing:', *workers)
    ps.kill()
    ps = tasks.start('ps', 0, patience)
    for task in (*workers, ps):
        task.ends_well()
    resumed = [line for worker in workers for line in worker.matches(RESUMES)]
    assert len(resumed) == 1 and int(resumed[0]['step']) > 200
    assert len([1 for worker in workers if worker.matches(TEST)]) == 1
    assert newest(model_dir) >= 2000


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'Synchronous-SGD'])
def test_a_worker_that_missed_the_end_finds_the_ps_empty(start, model_dir, folder):
    """The run ended early, and its chief with it: the worker does not train on."""
    backup = ['--replicas_to_aggregate=2'] * (folder == 'Synchronous-SGD')
    tasks, ps, (chief, second, third) = start(
        folder, 100000, '--eval_every_secs=1', '--stop_after_evals_without_gain=2', *backup,
        python=sys.executable)
    third.send(signal.SIGSTOP)
    last = int(chief.wait_for(STOPS)['step'])
    for task in chief, second:
        task.ends_well()
    for task in third, ps:
        task.kill()
    ps, third = (tasks.start(*task, '--patience_secs=20') for task in [('ps', 0), ('worker', 2)])
    for task in third, ps:
        task.ends_well()
    assert int(third.wait_for(RESUMES)['step']) >= last
    assert third.wait_for(DID)['local_steps'] == '0' and not third.matches(TEST)


@pytest.mark.thorough
def test_a_synchronous_run_that_stands_still_is_saved(start, model_dir):
    """Without the chief no step is complete; none of those that were is lost."""
    tasks, ps, (chief, *workers) = start('Synchronous-SGD', 400, '--save_checkpoint_secs=600')
    chief.wait_for(STEP, 5)
    chief.kill()
    who_stands_in(workers)
    wait_until(lambda: newest(model_dir) > 0, 'saves nothing:', *workers)
    saved = newest(model_dir)
    assert saved >= max(int(match['step']) for match in chief.matches(STEP))
    for task in (ps, *workers):
        task.kill()
    ps, *workers = [tasks.start('ps', 0), *(tasks.start('worker', i) for i in range(3))]
    assert int(workers[0].wait_for(RESUMES)['step']) == saved
    for task in (ps, *workers):
        task.ends_well()


@pytest.mark.thorough
def test_a_worker_with_another_directory_does_not_stand_in(programs, tmp_path):
    """It may have the same name, on another host."""
    tasks = Tasks(programs, flags=['--train_steps=300', '--log_every_n_steps=10', SLOW])
    ps = tasks.start('ps', 0)
    chief = tasks.start('worker', 0, f'--model_dir={tmp_path / "model"}')
    worker = tasks.start('worker', 1, f'--model_dir={tmp_path / "another"}')
    worker.wait_for(r'worker 1: --model_dir=.* is not that of worker 0 here: .*')
    for task in chief, worker, ps:
        task.wait()
    assert not list((tmp_path / 'another').glob('*ckpt*'))


@pytest.fixture
def deputy(tmp_path):
    """The role of worker 1, of a run whose chief has saved step 5 and is gone; its session."""
    load_program('HogWild')
    flags.FLAGS.mark_as_parsed()
    resolver = types.SimpleNamespace(
        task_type='worker', task_id=1,
        cluster_spec=lambda: tf.train.ClusterSpec({'ps': ['a:1'], 'worker': ['b:1', 'c:1']}))
    with tf.Graph().as_default(), flagsaver.flagsaver(model_dir=str(tmp_path)):
        role = chief.Role(resolver, types.SimpleNamespace(is_chief=False))
        step = tf.train.get_or_create_global_step()
        role.begin()
        role._lock = save_lock.SaveLock(str(tmp_path), 'ps a:1')
        with tf.Session() as session:
            def save(at):
                session.run(step.assign(at))
                role._save(session)
            session.run(step.initializer)
            save(5)
            yield role, save


@pytest.mark.parametrize('found, saved, last_step, is_left', [
    (True, [], 10, True), (True, [8], 10, True),
    (True, [10], 10, True),  # by itself, while training came to its end
    (False, [10], 10, False),  # the chief, at its end
    (False, [], 10, True)])
def test_whose_the_end_is(deputy, found, saved, last_step, is_left):
    role, save = deputy
    if found:
        assert role._lock.take()
        role._take_over()
    for step in saved:
        save(step)
    assert role._is_left_to_do(last_step) == is_left


def test_who_comes_after_the_end_has_nothing_to_do(deputy):
    role, save = deputy
    save(10)
    assert role._lock.take()
    role._take_over()
    assert not role._is_left_to_do(10)


@pytest.mark.parametrize('gone', [False, True])
def test_old_checkpoints_are_deleted_when_saving_changes_hands(tmp_path, gone):
    """Also one that a process was about to delete when it died, and if one of the list is gone."""
    def save(saver, session, number):
        session.run(step.assign(number))
        saver.save(session, str(tmp_path / 'model.ckpt'), step)

    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        session.run(step.initializer)
        first = library.Saver(None, sharded=True)
        for number in range(7):
            save(first, session, number)
            if number == 1:
                left = {path: path.read_bytes() for path in tmp_path.glob('model.ckpt-1.*')}
        for path, content in left.items():
            path.write_bytes(content)
        if gone:
            for path in tmp_path.glob('model.ckpt-3.*'):
                path.unlink()
        assert len(checkpoints(tmp_path)) == (5 if gone else 6)
        second = library.Saver(None, sharded=True)
        state = tf.train.get_checkpoint_state(str(tmp_path))
        second.recover_last_checkpoints(state.all_model_checkpoint_paths)
        for number in range(7, 12):
            save(second, session, number)
            assert len(checkpoints(tmp_path)) == 5
    assert checkpoints(tmp_path) == [7, 8, 9, 10, 11]


def test_the_newest_that_is_there_is_the_last_one_when_the_last_is_gone(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        saver = library.Saver(None, sharded=True)
        for number in range(3):
            session.run(step.initializer if not number else step.assign(number))
            saver.save(session, str(tmp_path / 'model.ckpt'), step)
    for path in tmp_path.glob('model.ckpt-2.*'):
        path.unlink()
    library.claim(str(tmp_path), 'worker 0', 'ps a:1')
    library._LOCKS.pop().give_back()
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-1')


@pytest.fixture
def chief_of():
    """A function that returns a lock, which it takes and signs as the chief of a run."""
    def taken(directory, run):
        place = save_lock.SaveLock(str(directory), run)
        assert place.register() and place.take()
        place.sign()
        return place
    return taken


def test_one_at_a_time(tmp_path, chief_of):
    chief, worker = chief_of(tmp_path, 'ps a:1'), save_lock.SaveLock(str(tmp_path), 'ps a:1')
    assert not worker.take()
    chief.give_back()
    assert worker.take() and not chief.take()
    worker.give_back()
    assert chief.take()


def test_a_chief_wants_its_lock_back(tmp_path, chief_of):
    chief_of(tmp_path, 'ps a:1')  # it ends
    worker = save_lock.SaveLock(str(tmp_path), 'ps a:1')
    assert worker.take() and not worker.is_wanted()
    chief = save_lock.SaveLock(str(tmp_path), 'ps a:1')
    assert chief.register() and worker.is_wanted()
    another = save_lock.SaveLock(str(tmp_path), 'ps a:1')
    assert not another.register(), 'there is one chief at a time'


def test_of_which_run_it_is(tmp_path, chief_of):
    assert not save_lock.SaveLock(str(tmp_path / 'none'), 'ps a:1').is_of_this_run()
    chief_of(tmp_path, 'ps a:1,b:1')
    chief_of(tmp_path, 'ps a:1')
    assert save_lock.SaveLock(str(tmp_path), 'ps a:1').is_of_this_run()
    assert not save_lock.SaveLock(str(tmp_path), 'ps a:1,b:1').is_of_this_run()


def test_the_lock_of_another_run_is_not_waited_for(tmp_path, chief_of):
    chief_of(tmp_path, 'ps a:1')  # it ends
    worker = save_lock.SaveLock(str(tmp_path), 'ps a:1')
    assert worker.take()
    with pytest.raises(SystemExit, match='in use by another run'):
        library.claim(str(tmp_path), 'worker 0', 'ps b:1')
