"""Disks: full, read-only, closed to others or not there, and a ps that dies while it writes."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from processes import checkpoints, RESUMES, ROOT, saved_step, SLOW, STEP, Tasks, wait_until

LONG = ['--train_steps=1000000', '--log_every_n_steps=20', '--save_checkpoint_secs=1', SLOW]
WHERE = 'HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'


class Disk:
    """A small disk that only what is started on it can see.

    Attributes:
      path: `pathlib.Path`, where it is for what is started on it.
      seen: `pathlib.Path`, where it is for everybody else.
    """

    def __init__(self, programs, path):
        path.mkdir()
        self.path = path
        self._programs = programs
        self._holder = subprocess.Popen(
            ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c',
             'mount -t tmpfs -o size=4m disk "$1" && echo ready && exec cat', 'sh', str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout.readline() == b'ready\n'
        self.seen = pathlib.Path(f'/proc/{self._holder.pid}/root{path}')
        self._enter = ['nsenter', f'--target={self._holder.pid}', '--user', '--mount',
                       '--preserve-credentials']

    def do(self, *command):
        subprocess.run([*self._enter, *command], check=True, timeout=30)

    def run_sh(self, folder, *flags):
        """Starts run.sh there, with checkpoints on this disk; returns a `Program`."""
        return self._programs.start(
            [*self._enter, f'--wd={self.path}', 'bash', ROOT / folder / 'run.sh', *flags,
             f'--model_dir={self.path / "model"}'], env={'PYTHON': sys.executable})

    def fill(self):
        with (self.seen / 'rest').open('wb', buffering=0) as rest, contextlib.suppress(OSError):
            while True:
                rest.write(bytes(2 ** 12))

    def end(self):
        self._holder.stdin.close()
        self._holder.wait(10)
        self._holder.stdout.close()


@pytest.fixture
def disk(programs, tmp_path):
    """A `Disk`."""
    try:
        made = Disk(programs, tmp_path / 'disk')
    except (OSError, AssertionError):
        pytest.skip('no user may mount anything here')
    yield made
    programs.end()
    made.end()


@pytest.mark.thorough
@pytest.mark.parametrize('folder', WHERE)
@pytest.mark.parametrize('fault, reason', [
    ('full', 'No space left on device'), ('read-only', 'Read-only file system')])
def test_no_checkpoint_can_be_written_any_more(disk, folder, fault, reason):
    """It ends in one line, and the next run goes on from the last one that is whole."""
    run = disk.run_sh(folder, *LONG)
    run.wait_for(STEP, 2)
    model_dir = str(disk.path / 'model')
    wait_until(lambda: len(checkpoints(disk.seen / 'model')) > 1, run)
    if fault == 'full':
        disk.fill()
    else:
        disk.do('mount', '--bind', model_dir, model_dir)
        disk.do('mount', '-o', 'remount,bind,ro', model_dir)
    line = rf'^The checkpoint \S+ cannot be written \(.*{reason}.*\)\. --model_dir has to be '
    run.fails(rf'{line}|^worker 1: lost another worker ', lines=range(1, 3))
    assert any(re.search(line, said) for said in run.err), str(run)
    wait_until(lambda: not run.left(), run)
    if fault == 'full':
        (disk.seen / 'rest').unlink()
    else:
        disk.run_sh(folder).fails(rf'^--model_dir=\S+ cannot be made or written to: {reason}\.$')
        disk.do('umount', model_dir)
    saved = saved_step(disk.seen / 'model')  # the disk may be full before the list names the last
    again = disk.run_sh(folder, f'--train_steps={saved + 20}')
    again.ends_well()
    assert any(RESUMES.fullmatch(line) and line.endswith(f'-{saved}') for line in again.out), again


def test_nobody_may_use_what_it_makes(programs, tmp_path):
    """By `umask 777`; root may all the same, so it is without that right here."""
    if os.geteuid() == 0 and not shutil.which('setpriv'):
        pytest.skip('root may do anything, and there is no setpriv')
    plain = ['setpriv', '--bounding-set=-dac_override,-dac_read_search'] * (os.geteuid() == 0)
    run = programs.start([*plain, 'bash', '-c', f'umask 777; bash {ROOT}/HogWild/run.sh '
                          f'--model_dir={tmp_path / "model"}'], env={'PYTHON': sys.executable})
    run.fails(r'^--model_dir=\S+ cannot be made or written to: Permission denied\.$')
    assert not run.left()
    (tmp_path / 'model').chmod(0o700)


@pytest.mark.thorough
def test_there_is_no_place_for_temporary_files(disk):
    for place in '/tmp', '/var/tmp', '/usr/tmp':
        if pathlib.Path(place).exists():
            disk.do('mount', '--rbind', place, place)
            disk.do('mount', '-o', 'remount,bind,ro', place)
    disk.do('mount', '-o', 'remount,bind,ro', str(disk.path))  # where it runs
    run = disk.run_sh('HogWild')
    run.fails(r'TensorFlow needs a place for temporary files \(No usable temporary directory found',
              lines=range(1, 4))
    assert not run.left()


@pytest.mark.thorough
@pytest.mark.parametrize('folder', WHERE[:3])
def test_a_ps_dies_while_it_writes_a_checkpoint(programs, tmp_path, folder):
    """Again and again; each time all go on from the last one that is whole."""
    model_dir = tmp_path / 'model'
    tasks = Tasks(programs, folder=folder, flags=[*LONG, f'--model_dir={model_dir}'])
    ps, *workers = [tasks.start(*task) for task in (('ps', 0), ('worker', 0), ('worker', 1))]
    while_writing = 0
    for resumed in range(1, 6):
        count = len(workers[1].matches(STEP))
        wait_until(lambda: model_dir.exists() and checkpoints(model_dir)[-1:] > [0], *workers)
        workers[1].wait_for(STEP, count + 2)
        deadline = time.monotonic() + 60
        while not any('_temp' in name for name in os.listdir(str(model_dir))):
            assert time.monotonic() < deadline  # without a rest: it takes milliseconds
        ps.kill()
        # The list may be about to name the last one. Earlier ones that it left out, it never names.
        whole = saved_step(model_dir), checkpoints(model_dir)[-1]
        while_writing += any(model_dir.glob('*_temp*'))
        ps = tasks.start('ps', 0)
        match = workers[0].wait_for(RESUMES, resumed)
        assert int(match['step']) in whole, (whole, match)
    print(f'{folder}: {while_writing} of 5 while it wrote')
    assert while_writing
    workers[1].wait_for(STEP, len(workers[1].matches(STEP)) + 2)
    assert not workers[0].err and not workers[1].err
    for program in (*workers, ps):
        program.end()
