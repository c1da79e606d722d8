"""Machines that lose their power and come back: nobody hears good-bye from their connections."""

import contextlib
import sys
import time

from conftest import ROOT
from processes import STEP, Tasks, wait_until
import pytest

sys.path.append(str(ROOT / 'Comparison'))

import hosts  # noqa: E402

SLOW = '--straggler=0:0.02,1:0.02'  # not even 50 steps per second and worker
DARK_SECS = 5  # without power
SOON_SECS = 30  # after its return all train again


@contextlib.contextmanager
def cluster(programs, folder, *flags):
    """Starts the tasks of a folder, each on a host of its own.

    Yields:
      `hosts.Hosts`; a function that starts a task, of its job and its index; and the tasks, a dict
      of `Program` by (job, index).
    """
    trainer = 'chief' if folder == 'In-Graph-Replication' else 'worker'
    names = ['ps-0', 'worker-0', 'worker-1'] + ['chief-0'] * (trainer == 'chief')
    with hosts.Hosts(programs.directory, names) as network:
        tasks = Tasks(programs, folder=folder, python=network.python(), flags=[
            '--train_steps=1000000', '--log_every_n_steps=20', '--save_checkpoint_secs=1',
            f'--model_dir={programs.directory / "model"}', '--patience_secs=60', *flags])
        running = {}
        for name in names:
            job, index = name.split('-')
            running[job, int(index)] = tasks.start(job, int(index))
        try:
            yield network, tasks.start, running
        finally:
            for program in running.values():
                program.end()


def steps(program):
    """Returns the global steps in the lines of a worker, or of a chief."""
    return [int(match['step']) for match in program.matches(STEP)]


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [('ps', 0), ('worker', 1), ('worker', 0)],
                         ids=lambda task: '-'.join(map(str, task)))
@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'Synchronous-SGD', 'In-Graph-Replication'])
def test_training_goes_on(programs, folder, victim):
    if hosts.missing():
        return  # no hosts on this machine
    flags = [] if folder == 'In-Graph-Replication' else [SLOW]
    with cluster(programs, folder, *flags) as (network, start, running):
        training = [task for task in running
                    if task[0] == ('chief' if folder == 'In-Graph-Replication' else 'worker')]
        for task in training:
            running[task].wait_for(STEP, 3)
        network.lose_power('-'.join(map(str, victim)), running[victim])
        time.sleep(DARK_SECS)
        network.power_on('-'.join(map(str, victim)))
        running[victim] = start(*victim)
        back = time.monotonic()
        seen = {task: len(steps(running[task])) for task in training}
        wait_until(lambda: all(len(steps(running[task])) > seen[task] + 2 for task in training)
                   or not all(program.running for program in running.values())
                   or time.monotonic() > back + SOON_SECS, 'never')
        late = [task for task in training if len(steps(running[task])) <= seen[task] + 2]
        print(f'{folder} {victim}: {time.monotonic() - back:.1f} s')
        assert not late, '\n'.join(map(str, running.values()))
