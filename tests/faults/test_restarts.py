"""Tasks that die and start again: what workers leave on the ps does not add up; run.sh --restarts.

`tests/test_restarts_flag.py` has the launcher's part of the latter, without TensorFlow.
"""

import json
import re
import signal
import sys

import psutil
import pytest

from processes import checkpoints, DID, RESUMES, SLOW, STEP, Tasks, TEST, wait_until

MORE = {'memory': 60e6, 'threads': 12, 'descriptors': 16}  # than after the first round
SLOWLY = '--straggler=0:0.3,1:0.2,2:0.2,3:0.2'  # so that the restarts take few of the steps


def has(program):
    process = psutil.Process(program.pid)
    return {'memory': process.memory_info().rss, 'threads': process.num_threads(),
            'descriptors': process.num_fds()}


@pytest.mark.thorough
@pytest.mark.parametrize('folder, mortals, rounds', [
    ('HogWild', 3, 10), ('AGN', 3, 3), ('Synchronous-SGD', 1, 4)])
def test_workers_die_again_and_again(programs, folder, mortals, rounds):
    """The others go on, or wait; what the ps has is flat; and the run ends well by itself."""
    together = folder == 'Synchronous-SGD'
    tasks = Tasks(programs, num_workers=1 + mortals, folder=folder, flags=[
        f'--train_steps={60 if together else 300 if folder == "AGN" else 4000}',
        '--log_every_n_steps=2'])
    ps, first = tasks.start('ps', 0), tasks.start('worker', 0, SLOWLY)
    for i in range(rounds):
        workers = [tasks.start('worker', 1 + mortal, SLOWLY) for mortal in range(mortals)]
        for worker in workers:
            worker.wait_for(STEP)
        steps = len(first.matches(STEP))
        for worker in workers:
            worker.kill()
        if not together:
            first.wait_for(STEP, steps + 2)
        if i == 0:
            before = has(ps)
    now = has(ps)
    print(folder, before, now)
    assert all(now[what] <= before[what] + MORE[what] for what in MORE), (before, now)
    workers = [tasks.start('worker', 1 + mortal) for mortal in range(mortals)]
    for program in (first, *workers, ps):
        program.ends_well()
    assert first.matches(TEST) and all(worker.matches(DID) for worker in workers)


# run.sh --restarts.

def started(programs, folder, directory, *flags, **env):
    """Starts a run that keeps checkpoints; returns it once it has saved one after step 0."""
    run = programs.run_sh(folder, f'--model_dir={directory}', '--save_checkpoint_secs=1', *flags,
                          **env)
    wait_until(lambda: checkpoints(directory)[1:] or not run.running, 'saves nothing:', run)
    return run


def kill(run, job, index, signum=signal.SIGKILL):
    """Kills a task of a run, as the system does when memory is short; or sends another signal."""
    for process in run.left():
        try:
            task = json.loads(process.environ().get('TF_CONFIG', '{}')).get('task')
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
        if task == {'type': job, 'index': index}:
            process.send_signal(signum)
            return
    pytest.fail(f'there is no {job} {index} in {run}')


@pytest.mark.thorough
@pytest.mark.parametrize('folder, job, index, flags', [
    ('HogWild', 'ps', 0, ['--train_steps=700', SLOW]),
    ('HogWild', 'worker', 0, ['--train_steps=700', SLOW]),
    ('HogWild', 'worker', 1, ['--train_steps=700', SLOW]),
    ('Synchronous-SGD', 'worker', 1, ['--train_steps=300', SLOW]),
    ('Ring-AllReduce', 'worker', 1, ['--train_steps=300', SLOW]),
    ('In-Graph-Replication', 'chief', 0, ['--train_steps=3000']),
    ('Model-Parallel', 'worker', 1, ['--train_steps=3000'])])
def test_a_run_starts_again(programs, tmp_path, folder, job, index, flags):
    """From its checkpoint, whichever task was lost, and trains to its end."""
    run = started(programs, folder, tmp_path / 'model', '--restarts=1', *flags)
    saved = checkpoints(tmp_path / 'model')[-1]
    kill(run, job, index)
    name = 'train' if job == 'chief' else f'{job} {index}'
    run.wait_for(rf'run\.sh: {name} was killed \(SIGKILL\); restart 1 of 1')
    assert int(run.wait_for(RESUMES)['step']) >= saved > 0
    assert run.wait() == 0 and len(run.matches(TEST)) == 1, str(run)
    # The other worker of a ring may have said that it lost this one.
    assert all('lost another worker' in line for line in run.err), str(run)
    assert not run.left()


@pytest.mark.thorough
def test_a_task_that_gives_up(programs, tmp_path):
    """As it hears nothing of another, which is stopped; it is ended, and its port is free again."""
    run = started(programs, 'Ring-AllReduce', tmp_path / 'model', '--restarts=1',
                  '--train_steps=300', SLOW, PYTHON=sys.executable)
    kill(run, 'worker', 1, signal.SIGSTOP)
    run.wait_for(r'run\.sh: worker 0 gave up, as it lost another task .*; restart 1 of 1')
    run.wait_for(RESUMES)
    assert run.wait() == 0 and len(run.matches(DID)) == 2 and len(run.err) == 1, str(run)
    assert not run.left()


@pytest.mark.thorough
def test_a_run_that_loses_more_tasks_than_it_has_restarts(programs, tmp_path):
    run = started(programs, 'HogWild', tmp_path / 'model', '--restarts=1', '--train_steps=1000000',
                  SLOW)
    kill(run, 'worker', 1)
    run.wait_for(RESUMES)
    run.wait_for(STEP, len(run.matches(STEP)) + 1)
    kill(run, 'ps', 0)
    assert run.wait() == 128 + signal.SIGKILL
    assert run.err == ['run.sh: ps 0 was killed (SIGKILL); no restart is left of 1'], str(run)
    assert not run.left()


@pytest.mark.thorough
def test_one_program_starts_again(programs, tmp_path):
    run = started(programs, 'Non-Distributed-Setup', tmp_path / 'model', '--restarts=1',
                  '--train_steps=20000')
    saved = checkpoints(tmp_path / 'model')[-1]
    program, = [process for process in run.left()
                if re.search(r'/train\.py\b', ' '.join(process.cmdline()))]
    program.kill()
    assert int(run.wait_for(RESUMES)['step']) >= saved > 0
    run.ends_well()
    assert run.matches(r'run\.sh: train was killed \(SIGKILL\); restart 1 of 1')


@pytest.mark.thorough
def test_mistakes_do_not_start_again(programs, tmp_path):
    """A wrong flag, training that diverges, a directory in use: one line each, as ever."""
    first = started(programs, 'HogWild', tmp_path / 'model', '--train_steps=1000000', SLOW)
    for run, complaint in [
            (programs.run_sh('HogWild', '--restarts=3', '--lerning_rate=1'), "'lerning_rate'"),
            (programs.run_sh('Ring-AllReduce', '--restarts=3', '--learning_rate=1e30'),
             'training diverged'),
            (programs.run_sh('HogWild', '--restarts=3', f'--model_dir={tmp_path / "model"}'),
             'is in use by another run')]:
        run.fails(complaint)
        assert not run.matches('run.sh: .*; restart .*') and not run.left(), str(run)
    first.send(signal.SIGTERM)
    assert first.wait() == 143


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'Ring-AllReduce'])
def test_ctrl_c_in_the_middle_of_a_restart(programs, tmp_path, folder):
    run = started(programs, folder, tmp_path / 'model', '--restarts=3', '--train_steps=1000000',
                  SLOW)
    kill(run, 'worker', 1)
    run.wait_for(r'run\.sh: worker 1 was killed \(SIGKILL\); restart 1 of 3')
    run.send(signal.SIGINT, group=True)
    assert run.wait() == 128 + signal.SIGINT
    assert not run.left() and not run.matches(RESUMES)
