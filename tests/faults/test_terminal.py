"""What a terminal, a disk and a second run do to a run: none is lost, nothing is left running."""

import re
import signal
import sys

import psutil
import pytest

from processes import BEGINS, checkpoints, DID, ROOT, STEP, TEST, wait_until

LONG = '--train_steps=1000000'


def in_bash(programs, command):
    """Starts a command line of bash that runs HogWild for 300 steps as `$run`."""
    return programs.start(['bash', '-c', f'run="bash {ROOT}/HogWild/run.sh --train_steps=300 '
                           f'--log_every_n_steps=50"; {command}'],
                          env={'PYTHON': sys.executable})


@pytest.mark.thorough
@pytest.mark.parametrize('command, reason', [
    ('$run >/dev/full', 'No space left on device'),
    ('set -o pipefail; $run | head -1', 'Broken pipe')])
def test_nobody_reads_what_it_says(programs, command, reason):
    """Each process says so in one line, and trains to its end."""
    run = in_bash(programs, command)
    assert run.wait() == 0, str(run)
    assert 1 <= len(run.err) <= 3, str(run)
    for line in run.err:
        assert re.fullmatch(rf'(ps|worker) \d: stdout cannot be written to \({reason}\); training '
                            'goes on silently', line), line


@pytest.mark.thorough
@pytest.mark.parametrize('closed', ['>&-', '2>&-', '<&-', '>&- 2>&- <&-'])
def test_without_stdin_stdout_or_stderr(programs, tmp_path, closed):
    """Nothing goes into a file that took their place, such as a checkpoint."""
    run = in_bash(programs, f'$run --model_dir={tmp_path / "model"} {closed}')
    assert run.wait() == 0 and not run.err, str(run)
    assert bool(run.matches(TEST)) == ('>&-' not in closed.replace('2>&-', '')), str(run)
    assert checkpoints(tmp_path / 'model')[-1] >= 300


@pytest.mark.skipif(not psutil.LINUX, reason='no system else tells of it')
@pytest.mark.parametrize('folder', [
    'HogWild', *(pytest.param(folder, marks=pytest.mark.thorough)
                 for folder in ('Ring-AllReduce', 'In-Graph-Replication', 'Distributed-MNIST'))])
def test_nothing_is_left_when_run_sh_is_killed(programs, folder):
    run = programs.run_sh(folder, LONG, '--log_every_n_steps=20')
    run.wait_for(STEP, 3)
    assert len(run.left()) > 2
    run.kill()
    wait_until(lambda: not run.left(), 'left:', run)


@pytest.mark.parametrize('folder', [
    'HogWild', *(pytest.param(folder, marks=pytest.mark.thorough)
                 for folder in ('AGN', 'Synchronous-SGD', 'Ring-AllReduce'))])
def test_a_terminal_is_closed(programs, folder):
    """It is that of another process here, and closes when that ends."""
    terminal = programs.start(
        [sys.executable, '-c', 'import pty, sys; pty.spawn(sys.argv[1:])', 'bash',
         ROOT / folder / 'run.sh', LONG, '--log_every_n_steps=20'], env={'PYTHON': sys.executable})
    terminal.wait_for(STEP, 3)
    assert len(terminal.left()) > 3
    terminal.kill()
    wait_until(lambda: not terminal.left(), 'left:', terminal)


def test_two_runs_in_one_directory(programs, tmp_path):
    """The second ends in one line and changes nothing; when the first is gone, one may go on."""
    flags = [f'--model_dir={tmp_path / "model"}', '--save_checkpoint_secs=1',
             '--log_every_n_steps=50']
    first = programs.run_sh('HogWild', LONG, *flags)
    first.wait_for(STEP, 3)
    second = programs.run_sh('AGN', LONG, *flags)
    second.fails(r'^--model_dir=\S+ is in use by another run\. Give another one, or end that run ')
    wait_until(lambda: checkpoints(tmp_path / 'model')[-1] > 0, first)
    assert first.running
    first.kill()
    wait_until(lambda: not first.left(), first)
    again = programs.run_sh('HogWild', LONG, *flags)
    assert int(again.wait_for(BEGINS)['step']) > 0
    again.send(signal.SIGTERM)
    again.wait()


def test_what_an_ended_checkpoint_left_is_removed(programs, tmp_path):
    for name in 'model.ckpt-7_temp_0123abcd', 'model.ckpt-7_temp':  # of TensorFlow 1.15, of 2.21
        (tmp_path / 'model' / name).mkdir(parents=True)
        (tmp_path / 'model' / name / 'part-00000-of-00001.index').touch()
    run = programs.run_sh('Non-Distributed-Setup', '--train_steps=50',
                          f'--model_dir={tmp_path / "model"}')
    run.ends_well()
    assert run.matches(DID) and not list((tmp_path / 'model').glob('*_temp*'))


def test_a_damaged_checkpoint_is_told_from_whole_ones(programs, tmp_path):
    """The line names the reason, and the next older one; without the damaged one that is taken."""
    directory = tmp_path / 'model'
    run = programs.run_sh('Distributed-Setup', LONG, f'--model_dir={directory}',
                          '--save_checkpoint_secs=1')
    wait_until(lambda: directory.exists() and len(checkpoints(directory)) >= 4, run)
    run.send(signal.SIGTERM)
    run.wait()
    wait_until(lambda: not run.left(), run)
    *_, whole, damaged = checkpoints(directory)
    for path in directory.glob(f'model.ckpt-{damaged}.data*'):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    flags = f'--train_steps={damaged + 50}', f'--model_dir={directory}'
    programs.run_sh('Distributed-Setup', *flags).fails(
        rf'^The checkpoint \S+-{damaged} is damaged \(.*[Cc]hecksum.*\)\. The next older one that '
        rf'is whole is \S+-{whole}: to go on from there, delete \S+-{damaged}\.\*$')
    for path in directory.glob(f'model.ckpt-{damaged}.*'):
        path.unlink()
    again = programs.run_sh('Distributed-Setup', *flags)
    again.ends_well()
    assert any(f'-{damaged} is gone, ' in line for line in again.out)
    assert any(re.search(rf'resumes from \S+-{whole}$', line) for line in again.out)
