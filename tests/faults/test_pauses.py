"""Tasks that are stopped and woken: by Ctrl-Z, by a scheduler, or with the lid of a laptop."""

import signal
import sys
import time

import pytest

from processes import DID, SLOW, STEP, Tasks, TEST, wait_until

FOLDERS = 'HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'
PATIENCE_SECS = 8


def start(programs, folder, *flags):
    """Starts all tasks of a folder; returns them, a dict of `Program` by job and index."""
    window = ['--communication_window=5'] * (folder == 'AGN')
    tasks = Tasks(programs, num_ps=folder != 'Ring-AllReduce', folder=folder,
                  python=sys.executable, flags=[
        f'--train_steps={150 if window else 700 if folder == "HogWild" else 350}',
        '--log_every_n_steps=10', f'--patience_secs={PATIENCE_SECS}', SLOW, *window, *flags])
    running = {(job, i): tasks.start(job, i)
               for job in sorted(tasks.cluster) for i in range(len(tasks.cluster[job]))}
    for (job, _), program in running.items():
        if job == 'worker':
            program.wait_for(STEP, 2)
    return running


def pause(programs, seconds):
    """Stops programs, and wakes them."""
    for program in programs:
        program.send(signal.SIGSTOP)
    time.sleep(seconds)
    for program in programs:
        program.send(signal.SIGCONT)


def all_end_well(running):
    for (job, _), program in running.items():
        program.ends_well()
        assert job == 'ps' or program.matches(DID)
    assert running['worker', 0].matches(TEST)


@pytest.mark.thorough
@pytest.mark.parametrize('folder', FOLDERS)
def test_all_are_paused_for_longer_than_their_patience(programs, folder):
    running = start(programs, folder)
    pause(running.values(), 2 * PATIENCE_SECS)
    all_end_well(running)


@pytest.mark.thorough
@pytest.mark.parametrize('task', [('ps', 0), ('worker', 0), ('worker', 1)],
                         ids=lambda task: '-'.join(map(str, task)))
@pytest.mark.parametrize('folder', FOLDERS)
def test_one_is_paused_for_less(programs, folder, task):
    running = start(programs, folder)
    if task in running:  # the ring has no ps
        pause([running[task]], PATIENCE_SECS - 2.5)
    all_end_well(running)


@pytest.mark.thorough
@pytest.mark.parametrize('folder, task, line', [
    ('HogWild', ('ps', 0), r'ps 0 at \S+ does not answer \(timed out\)'),
    ('Synchronous-SGD', ('worker', 1), r'the step is not complete \(worker 1 at \S+ does not '
                                       r'answer \(timed out\)\)'),
    ('Ring-AllReduce', ('worker', 1), r'worker 1 at \S+ does not answer \(timed out\)')])
def test_one_is_paused_for_longer(programs, folder, task, line):
    """The others end in one line, and what is woken then ends, too."""
    running = start(programs, folder)
    running[task].send(signal.SIGSTOP)
    others = [program for (job, _), program in running.items()
              if job == 'worker' and program is not running[task]]
    for program in others:
        program.fails(rf'^worker \d: {line}\. Gave up after \d+ s\.$')
    running[task].send(signal.SIGCONT)
    if task[0] == 'worker':
        wait_until(lambda: running[task].matches(DID) or not running[task].running, running[task])
    for program in running.values():
        program.end()
