"""bash run.sh --restarts=3: the launcher starts all tasks again when one is lost.

Or that one alone, where the others go on. The programs are played by small ones, which load no
TensorFlow and end as a test says.
"""

import json
import os
import re
import signal
import sys
import time

import pytest

from tfdist.start import launch

from processes import PATIENCE, ROOT, wait_until

# Ends as the plan says of each try: with a status, or the signal of a name, or it waits; with
# 'asked' before that, as soon as the test asks for it.
PROGRAM = f"""
import fcntl, json, os, pathlib, signal, sys, time
from tfdist.start import told_once
signal.signal(signal.SIGINT, signal.SIG_DFL)
here = pathlib.Path(__file__).resolve().parent
config = json.loads(os.environ.get('TF_CONFIG', '{{}}'))
name = '{{type}} {{index}}'.format(**config['task']) if config else pathlib.Path(__file__).stem
lock = (here / f'{{name}}.lock').open('w')
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if that of an earlier try has not ended
def started():
    return [json.loads(line) for line in (here / 'starts').open() if line.endswith('\\n')]
with (here / 'starts').open('a') as starts:
    starts.write(json.dumps([name, config.get('cluster'), sys.argv[1:]]) + '\\n')
tries = [start[0] for start in started()].count(name)
alone = tries > 1 and '--min_workers=2' in sys.argv
size = sum(map(len, config['cluster'].values())) if config else 0
while not alone and sum(bool(start[1]) for start in started()) < size * tries:
    time.sleep(0.01)  # until all have started
if told_once.is_new('a mistake'):
    print('a mistake', flush=True)
end = json.loads((here / 'plan').read_text()).get(name, [0])[tries - 1:] or [0]
end = str(end[0]).split()
if end[0] == 'waits':
    time.sleep({10 * PATIENCE})
while end[0] == 'asked' and not (here / 'asked').exists():
    time.sleep(0.01)
if end[-1].startswith('SIG'):
    os.kill(os.getpid(), getattr(signal, end[-1]))
sys.exit(int(end[-1]))
"""
WORKERS = '--start-ps=1', '--start-workers=2'
ELASTIC = '--start-workers=3', '--others-go-on-with=min_workers'
LATE_SECS = 2
NOTHING_KEPT = 'run.sh: without --model_dir nothing is kept: a restart begins at step 0'


class Folder:
    """A folder whose programs do nothing but end.

    Attributes:
      run: `Program`, of the last start.
    """

    def __init__(self, programs, directory):
        self._programs, self._path = programs, directory / 'folder'
        self._path.mkdir()
        for name in 'ps', 'worker', 'train', 'prepare':
            (self._path / f'{name}.py').write_text(PROGRAM, encoding='utf-8')

    def starts(self, *flags, job=WORKERS, **plan):
        """Starts the launcher, as run.sh does.

        Args:
          *flags: strings.
          job: what the run.sh of the folder would say of its tasks.
          **plan: by name of a task, with _ for the space, how each of its tries ends.
        """
        (self._path / 'plan').write_text(json.dumps(
            {name.replace('_', ' '): ends for name, ends in plan.items()}), encoding='utf-8')
        launch = (f'from tfdist.start import launch; launch._LATE_SECS = {LATE_SECS}; '
                  f'launch.main({str(self._path)!r})')
        self.run = self._programs.start([sys.executable, '-c', launch, *job, *flags],
                                        env={'PYTHONPATH': str(ROOT)})

    def ask(self):
        """Asks those to end that wait for that."""
        (self._path / 'asked').touch()

    def ends(self, status, *says, err=()):
        """Waits for the end; asserts what it was, and what the launcher said meanwhile."""
        assert self.run.wait() == status, str(self.run)
        for lines, expected in (self.run.out, says), (self.run.err, err):
            own = [line for line in lines if line.startswith('run.sh: ')]
            assert own == list(expected), str(self.run)
        assert not self.run.left()

    def started(self):
        """Returns what was started so far: lists of name, cluster and flags."""
        path = self._path / 'starts'
        return [json.loads(line) for line in path.open()] if path.exists() else []


@pytest.fixture
def folder(programs, tmp_path):
    return Folder(programs, tmp_path)


def test_all_start_again_when_one_is_killed(folder):
    """At their addresses, with their flags, and what was reported is reported again."""
    folder.starts('--restarts=3', '--model_dir=kept', '--seed=7', ps_0=['waits'],
                  worker_0=['waits'], worker_1=['SIGKILL'])
    folder.ends(0, 'run.sh: worker 1 was killed (SIGKILL); restart 1 of 3')
    first, second = folder.started()[:3], folder.started()[3:]
    assert sorted(first) == sorted(second)
    assert [start[0] for start in sorted(first)] == ['ps 0', 'worker 0', 'worker 1']
    assert {'--model_dir=kept', '--seed=7'} < set(sorted(first)[1][2])
    assert not any(flag.startswith('--restarts') for start in first for flag in start[2])
    assert folder.run.out.count('a mistake') == 2


@pytest.mark.parametrize('plan, status', [
    (dict(worker_1=[1]), 1),
    *(pytest.param(plan, status, marks=pytest.mark.thorough) for plan, status in [
        (dict(ps_0=[2]), 2), (dict(worker_0=['SIGTERM']), 143), (dict(worker_1=['SIGINT']), 130),
        (dict(ps_0=['SIGHUP']), 129)])])
def test_a_mistake_and_a_task_that_was_told_to_end(folder, plan, status):
    """The one would come again, the other one is to end: no restart."""
    others = dict(ps_0=['waits'], worker_0=['waits'], worker_1=['waits'])
    folder.starts('--restarts=3', '--model_dir=kept', **{**others, **plan})
    folder.ends(status)
    assert len(folder.started()) == 3


@pytest.mark.thorough
def test_restarts_are_used_up(folder):
    """Each counts, whatever the task; the status is that of the last failure."""
    folder.starts('--restarts=2', ps_0=['waits', 'SIGSEGV'], worker_0=['waits'] * 3,
                  worker_1=['SIGABRT', 'waits', os.EX_TEMPFAIL])
    folder.ends(
        os.EX_TEMPFAIL, NOTHING_KEPT, 'run.sh: worker 1 was killed (SIGABRT); restart 1 of 2',
        'run.sh: ps 0 was killed (SIGSEGV); restart 2 of 2',
        err=['run.sh: worker 1 gave up, as it lost another task (status 75); no restart is left '
             'of 2'])
    assert len(folder.started()) == 9


@pytest.mark.thorough
@pytest.mark.parametrize('number', ['0', None])
def test_without_restarts_it_ends_at_the_first_loss(folder, number):
    folder.starts(*([f'--restarts={number}'] if number else []), ps_0=['waits'],
                  worker_1=['SIGKILL'])
    folder.ends(128 + signal.SIGKILL)
    assert len(folder.started()) == 3


@pytest.mark.parametrize('statuses, culprit', [
    ([None, -signal.SIGKILL, 1], 1),  # without a parameter server a worker may end in any way
    ([os.EX_TEMPFAIL, None, -signal.SIGKILL], 2),
    ([0, os.EX_TEMPFAIL, 1], 2),  # a mistake ended that worker, and the other one lost it
    ([os.EX_TEMPFAIL, os.EX_TEMPFAIL, None], 0)])
def test_which_task_ended_the_others(statuses, culprit):
    assert launch._culprit(statuses) == culprit


@pytest.mark.thorough
def test_one_program_that_trains_by_itself(folder):
    folder.starts('--restarts=1', '--model_dir', 'kept', job=['--alone=train.py'],
                  train=['SIGKILL'])
    folder.ends(0, 'run.sh: train was killed (SIGKILL); restart 1 of 1')
    assert [start[2] for start in folder.started()] == [['--model_dir', 'kept']] * 2


@pytest.mark.thorough
def test_what_is_to_run_before_counts_too(folder):
    folder.starts('--restarts=2', '--model_dir=kept', job=['--first=prepare.py', *WORKERS],
                  prepare=['SIGKILL'], worker_0=['SIGKILL'], worker_1=['waits'])
    folder.ends(0, 'run.sh: prepare was killed (SIGKILL); restart 1 of 2',
                'run.sh: worker 0 was killed (SIGKILL); restart 2 of 2')
    assert [start[0] for start in folder.started()].count('prepare') == 2


@pytest.mark.thorough
@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize('moment', ['stops', 'pauses', 'starts'])
def test_a_signal_in_the_middle_of_a_restart(folder, signum, moment):
    """While the others are stopped, before they start, and while they do."""
    folder.starts('--restarts=3', '--model_dir=kept', ps_0=['waits', 'waits'],
                  worker_0=['waits', 'waits'], worker_1=['SIGKILL', 'waits'])
    folder.run.wait_for('run.sh: worker 1 .*; restart 1 of 3')
    if moment == 'pauses':
        time.sleep(0.5)
    elif moment == 'starts':
        wait_until(lambda: len(folder.started()) > 3, folder.run)
    folder.run.send(signum, group=signum == signal.SIGINT)
    folder.ends(128 + signum, 'run.sh: worker 1 was killed (SIGKILL); restart 1 of 3')
    if moment != 'starts':
        assert len(folder.started()) == 3


@pytest.mark.thorough
@pytest.mark.parametrize('flags, complaint', [
    (['--restarts=-1'], '--restarts=-1 is not a number of restarts, such as 3'),
    (['--restarts', '-1'], '--restarts=-1 is not a number of restarts, such as 3'),
    (['--restarts=x'], '--restarts=x is not a number of restarts, such as 3'),
    (['--restarts=1.5'], '--restarts=1.5 is not a number'),
    (['--restarts'], '--restarts= is not a number'),
    (['--restarts=1', '--check'], '--restarts is for training: leave it out with --check'),
    (['--restarts=1', '--check_steps=3'], '--restarts is for training: leave it out with --check'),
])
def test_mistakes(folder, flags, complaint):
    folder.starts(*flags)
    folder.run.fails(f'^run.sh: {complaint}')
    assert not folder.run.out and not folder.started()


# Folders in which the others go on.

KILLED = 'run.sh: worker 1 was killed (SIGKILL); the others go on'


def elastic(folder, *flags, job=ELASTIC, **plan):
    """Starts workers that end when they are asked to, but for a plan."""
    plan = {**{f'worker_{i}': ['asked 0'] for i in range(3)}, **plan}
    folder.starts('--min_workers=2', *flags, job=job, **plan)


def test_the_others_go_on(folder):
    elastic(folder, worker_1=['SIGKILL'])
    folder.run.wait_for(re.escape(KILLED))
    time.sleep(1.5)  # a restart would come after 1 s
    folder.ask()
    folder.ends(0, KILLED)
    assert len(folder.started()) == 3


@pytest.mark.parametrize('flags, go_on', [
    ([], True), (['--how=alone'], True), (['--how=both', '--how', 'alone'], True),
    (['--how=both'], False), (['--how', 'all'], False), (['--how=alone', '-how=all'], False)])
def test_unless_a_flag_has_one_of_some_values(flags, go_on):
    """The last value counts."""
    assert launch._lacks(flags, 'how=both,all') == go_on


def test_the_one_that_was_killed_starts_again_alone(folder):
    """At its address and with its flags."""
    elastic(folder, '--restarts=3', '--model_dir=kept', worker_1=['SIGKILL', 'asked 0'])
    wait_until(lambda: len(folder.started()) == 4, folder.run)
    folder.ask()
    folder.ends(0, f'{KILLED}; restart 1 of 3')
    first, second = [start for start in folder.started() if start[0] == 'worker 1']
    assert first == second and '--min_workers=2' in first[2]
    assert not any('go-on' in flag for flag in first[2])


@pytest.mark.thorough
def test_it_is_killed_more_often_than_it_may_start_again(folder):
    elastic(folder, '--restarts=1', '--model_dir=kept', worker_1=['SIGKILL', 'SIGKILL'])
    folder.run.wait_for('.*no restart is left of 1')
    folder.ask()
    folder.ends(0, f'{KILLED}; restart 1 of 1', f'{KILLED}; no restart is left of 1')
    assert len(folder.started()) == 4


@pytest.mark.parametrize('restarts', [0, 2])
def test_too_few_are_left(folder, restarts):
    """Who says so gives up; then all start again, if a restart is left."""
    elastic(folder, f'--restarts={restarts}', worker_0=[f'asked {os.EX_TEMPFAIL}'],
            worker_1=['SIGKILL', 'waits'], worker_2=['waits'])
    folder.run.wait_for(f'{re.escape(KILLED)}.*')
    wait_until(lambda: not restarts or len(folder.started()) == 4, folder.run)
    folder.ask()
    if not restarts:
        folder.ends(os.EX_TEMPFAIL, KILLED)
        return
    folder.ends(0, NOTHING_KEPT.replace('restart', 'restart of all tasks'),
                f'{KILLED}; restart 1 of 2',
                'run.sh: worker 0 gave up, as it lost another task (status 75); restart 2 of 2')
    assert sorted(start[0] for start in folder.started()[4:]) == [f'worker {i}' for i in range(3)]


@pytest.mark.thorough
@pytest.mark.parametrize('end, status', [('1', 1), ('SIGTERM', 143), ('SIGINT', 130)])
def test_a_mistake_ends_the_others_also_where_they_go_on(folder, end, status):
    elastic(folder, '--restarts=3', '--model_dir=kept', worker_0=['waits'],
            worker_1=['SIGKILL', f'asked {end}'], worker_2=['waits'])
    wait_until(lambda: len(folder.started()) == 4, folder.run)
    folder.ask()
    folder.ends(status, f'{KILLED}; restart 1 of 3')
    assert len(folder.started()) == 4


@pytest.mark.thorough
def test_the_last_one_is_killed(folder):
    elastic(folder, job=['--start-workers=2', *ELASTIC[1:]], worker_0=['asked SIGKILL'],
            worker_1=['SIGKILL'])
    folder.run.wait_for(re.escape(KILLED))
    folder.ask()
    folder.ends(128 + signal.SIGKILL, KILLED)


@pytest.mark.thorough
def test_one_is_killed_when_the_others_are_done(folder):
    """It does not start again: it would wait for them."""
    elastic(folder, '--restarts=1', '--model_dir=kept', worker_0=[0], worker_2=[0],
            worker_1=['asked SIGKILL'])
    time.sleep(2)
    folder.ask()
    folder.ends(0, 'run.sh: worker 1 was killed (SIGKILL); the others are done')
    assert len(folder.started()) == 3


@pytest.mark.thorough
def test_one_starts_again_and_finds_no_others(folder):
    elastic(folder, '--restarts=1', '--model_dir=kept', worker_1=['SIGKILL', 'waits'])
    wait_until(lambda: len(folder.started()) == 4, folder.run)
    folder.ask()
    folder.ends(0, f'{KILLED}; restart 1 of 1',
                'run.sh: worker 1 came too late: the others are done')


@pytest.mark.thorough
def test_without_the_flag_all_end(folder):
    folder.starts(job=ELASTIC, worker_0=['waits'], worker_1=['SIGKILL'], worker_2=['waits'])
    folder.ends(128 + signal.SIGKILL)
