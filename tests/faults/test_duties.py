"""Faults that come while a worker tests, saves or exports on behalf of all."""

import re
import signal
import sys
import time

import pytest

from processes import DID, RESUMES, saved_step, SLOW, Tasks, TEST, TESTED, wait_until
import slow_model

BUSY = re.compile(r'worker 1: the step is not complete after \d+ s \(worker 0 tests\); waiting')
thorough = pytest.mark.thorough


def start(programs, folder, *flags, num_ps=1, python=None):
    """Starts all tasks of a folder; returns `Tasks`, and a dict of `Program` by job and index."""
    tasks = Tasks(programs, num_ps, folder=folder, python=python, flags=[
        '--log_every_n_steps=10', '--save_checkpoint_secs=1', *flags])
    return tasks, {(job, i): tasks.start(job, i) for job in ('chief', 'worker', 'ps')
                   for i in range(len(tasks.cluster.get(job, [])))}


def chief_of(running):
    return running.get(('chief', 0)) or running['worker', 0]


def lose(tasks, running, task):
    """Kills a task, and starts it again; a ps does not know then who was done before."""
    running[task].kill()
    running[task] = tasks.start(*task, *['--patience_secs=5'] * (task[0] == 'ps'))


@pytest.mark.parametrize('folder, steps', [
    ('HogWild', 900), pytest.param('AGN', 180, marks=thorough),
    pytest.param('Synchronous-SGD', 450, marks=thorough),
    pytest.param('In-Graph-Replication', 3000, marks=thorough),
    pytest.param('Elastic-Workers', 900, marks=thorough)])
def test_a_ps_is_lost_and_tests_go_on(programs, tmp_path, folder, steps):
    tasks, running = start(programs, folder, '--eval_every_secs=1', f'--train_steps={steps}',
                           f'--model_dir={tmp_path / "model"}',
                           *([SLOW] if folder != 'In-Graph-Replication' else []))
    chief = chief_of(running)
    chief.wait_for(TESTED, 2)
    lose(tasks, running, ('ps', 0))
    chief.wait_for(RESUMES)
    before = len(chief.matches(TESTED))
    chief.wait_for(TESTED, before + 2)
    for program in running.values():
        program.ends_well()
    assert chief.matches(TEST)


def long_test(programs, tmp_path, folder, *flags, seconds=0.5, **options):
    """Starts a folder whose test takes long; returns what `start` does."""
    return start(programs, slow_model.copy(folder, tmp_path, seconds), *flags, **options)


@thorough
@pytest.mark.parametrize('folder, task, steps', [
    ('HogWild', ('ps', 0), 200), ('HogWild', ('ps', 1), 200), ('Synchronous-SGD', ('ps', 0), 200),
    ('DOWNPOUR', ('ps', 0), 60), ('In-Graph-Replication', ('ps', 0), 200),
    ('In-Graph-Replication', ('worker', 1), 200)])
@pytest.mark.parametrize('exports', [False, True])
def test_a_task_is_lost_in_the_last_test(programs, tmp_path, folder, task, steps, exports):
    """The parameters were saved before: they are restored, and tested."""
    tasks, running = long_test(
        programs, tmp_path, folder, f'--train_steps={steps}', f'--model_dir={tmp_path / "model"}',
        *[f'--export_dir={tmp_path / "export"}'] * exports, num_ps=1 + (task == ('ps', 1)))
    chief = chief_of(running)
    chief.wait_for(DID)
    wait_until(lambda: saved_step(tmp_path / 'model') >= steps or not chief.running,
               'not saved:', chief)
    assert not chief.matches(TEST), str(chief)
    lose(tasks, running, task)
    for program in running.values():
        program.ends_well()
    assert int(chief.wait_for(TEST)['step']) >= steps
    if task[0] == 'ps':
        assert int(chief.wait_for(RESUMES)['step']) >= steps


@thorough
@pytest.mark.parametrize('folder', ['HogWild', 'Synchronous-SGD'])
def test_what_was_not_saved_is_lost_in_the_last_test(programs, tmp_path, folder):
    """One line says so; nothing is tested that was not trained."""
    tasks, running = long_test(programs, tmp_path, folder, '--train_steps=200')
    chief = chief_of(running)
    chief.wait_for(DID)
    lose(tasks, running, ('ps', 0))
    chief.fails('^A parameter server was lost with the parameters of step 20., before they were '
                'saved: what is left is step 0. Start the run again')
    assert not chief.matches(TEST)
    running['ps', 0].end()  # it waits for a chief that is started again


@thorough
@pytest.mark.parametrize('folder', ['Synchronous-SGD', 'Ring-AllReduce', 'Local-SGD', 'SSP',
                                    'HogWild'])
def test_a_test_longer_than_the_patience_of_all(programs, tmp_path, folder):
    """The others wait, say for what, and end well; so does whoever tests."""
    window = ['--communication_window=5'] * (folder == 'Local-SGD')
    tasks, running = long_test(
        programs, tmp_path, folder, '--eval_every_secs=2', '--patience_secs=6',
        f'--train_steps={150 // (5 if window else 1)}', SLOW, *window, seconds=1.5,
        num_ps=folder != 'Ring-AllReduce')
    for program in running.values():
        program.ends_well()
    assert running['worker', 0].matches(TESTED) and running['worker', 0].matches(TEST)
    if folder != 'SSP':  # who waits until --dead_after_secs, and may say so
        waited = bool(running['worker', 1].matches(BUSY))
        assert waited == (folder != 'HogWild'), str(running['worker', 1])


@thorough
@pytest.mark.parametrize('folder', ['Synchronous-SGD', 'Ring-AllReduce'])
def test_a_worker_that_hangs_in_its_test(programs, tmp_path, folder):
    """It does not beat, so the patience of the others ends."""
    tasks, running = long_test(
        programs, tmp_path, folder, '--eval_every_secs=2', '--patience_secs=6',
        '--train_steps=100000', SLOW, seconds=1.5, num_ps=folder != 'Ring-AllReduce',
        python=sys.executable)
    chief, other = running['worker', 0], running['worker', 1]
    other.wait_for(BUSY)
    chief.send(signal.SIGSTOP)
    began = time.monotonic()
    other.fails('worker 0 at .* does not answer|the step is not complete')
    assert time.monotonic() - began < 40
    for program in running.values():
        program.end()
