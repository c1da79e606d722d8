"""A ring that goes on without a worker that is lost, and takes in one that comes back."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import sys
import time

from absl import flags
import psutil
import pytest
import tensorflow.compat.v1 as tf

from tfdist.training import busy, sessions

from conftest import load_program
from processes import BEGINS, checkpoints, DID, RESUMES, ROOT, STEP, Tasks, TEST, wait_until

GOES_ON = (r'worker \d: (?P<what>.+); (?P<size>\d) of \d go on from step (?P<step>\d+), '
           r'learning rate (?P<rate>[\d.]+)')


# Which ring is next.

def board(ring=0, step=7, whole=True, **more):
    """Returns what a worker shows that has the values of a ring, by its number; None: no values."""
    ballot = [-1, ''] if ring is None else [ring, 'x']
    return dict(values=ballot, step=step, whole=whole, batches=3 * step, **more)


@pytest.fixture
def next_ring():
    """A function of dicts of boards and lists: which ring is next, of 5 workers and at least 3."""
    agreement = load_program('Ring-AllReduce', 'agreement')

    def find(asking, known=(0, 1, 2, 3, 4), lost=()):
        return agreement.next_ring(asking, known, lost.__contains__, 3, 5)

    find.TooFewError = agreement.TooFewError
    return find


def test_at_first_all_begin_together(next_ring):
    fresh = {worker: board(None) for worker in range(5)}
    assert next_ring(fresh, known=[])['workers'] == [0, 1, 2, 3, 4]
    del fresh[3]
    assert next_ring(fresh, known=[]) is None


def test_those_that_may_still_ask_are_waited_for(next_ring):
    asking = {0: board(), 1: board(), 4: board()}
    assert next_ring(asking) is None
    assert next_ring(asking, lost=[2]) is None
    found = next_ring(asking, lost=[2, 3])
    assert (found['workers'], found['new']) == ([0, 1, 4], [])


def test_the_source_has_the_newest_values_and_all_of_them(next_ring):
    asking = {0: board(step=7), 1: board(step=8, whole=False), 4: board(step=8)}
    found = next_ring(asking, lost=[2, 3])
    assert (found['source'], found['step'], found['batches']) == (4, 8, 24)
    asking = {0: board(1, step=900), 1: board(2, step=8), 4: board(2, step=7), 3: board(None)}
    found = next_ring(asking, known=[1, 2, 4], lost=[2])
    assert (found['source'], found['step']) == (1, 8), 'of the newest ring, whatever its step'
    assert found['new'] == [0, 3]
    asking[1]['whole'] = asking[4]['whole'] = False
    with pytest.raises(next_ring.TooFewError, match='the last step'):
        next_ring(asking, known=[1, 2, 4], lost=[2])


def test_who_has_no_values_does_not_count(next_ring):
    """Else a ring that shares nobody with the last one could begin."""
    asking = {0: board(), 1: board(), 2: board(None), 3: board(None)}
    assert next_ring(asking) is None, 'worker 4 may have them'
    with pytest.raises(next_ring.TooFewError, match='lost worker 4; 2 of 5 left'):
        next_ring(asking, lost=[4])


# Real processes.

def test_nobody_listens_for_a_ring_that_broke_up(toy, monkeypatch):
    """Its trainer has no end: that of the next ring takes its place."""
    def listen(board, *args):
        begun.append(board)
        its_listen(board, *args)
        ended.append(board)

    def join_ring():
        worker, = toy('Ring-AllReduce', [0], implementation='ring', scale_learning_rate=False,
                      warmup_steps=0)
        with worker.graph.as_default():
            sessions.Trainer.of(worker.scheme).after_create_session(worker.session, None)

    flags.FLAGS.mark_as_parsed()
    begun, ended, its_listen = [], [], busy.Board.listen
    monkeypatch.setattr(busy.Board, 'listen', listen)
    monkeypatch.setattr(busy, '_LOOK_EVERY_SECS', 0.05)
    join_ring()
    time.sleep(0.5)
    assert len(begun) == 1 and not ended
    join_ring()
    wait_until(lambda: ended, 'the first one listens')
    assert len(begun) == 2 and ended == begun[:1]


class Run:
    """Workers of an elastic ring, in processes of their own."""

    def __init__(self, programs, num_workers, *flags, folder='Ring-AllReduce',
                 python=sys.executable):  # a test may stop them
        straggler = ','.join(f'{i}:0.03' for i in range(num_workers))
        self.model_dir = programs.directory / 'model'
        self.tasks = Tasks(
            programs, num_ps=0, num_workers=num_workers, folder=folder, flags=[
                f'--min_workers={num_workers // 2 + 1}', '--train_steps=100000',
                '--log_every_n_steps=5', f'--straggler={straggler}', '--scale_learning_rate',
                f'--model_dir={self.model_dir}', *flags],
            python=python)
        self.workers = {i: self.tasks.start('worker', i) for i in range(num_workers)}

    def train(self):
        """Waits until all train; returns this."""
        for worker in self.workers.values():
            worker.wait_for(STEP)
        return self

    def others(self, *victims):
        """Returns the workers but for some, a list of `Program`."""
        return [worker for i, worker in self.workers.items() if i not in victims]

    def kill(self, *victims):
        """Kills workers, all before the first is waited for."""
        for victim in victims:
            self.workers[victim].send(signal.SIGKILL)
        for victim in victims:
            self.workers[victim].kill()

    def restart(self, victim):
        """Starts a worker again; returns it."""
        self.workers[victim] = self.tasks.start('worker', victim)
        return self.workers[victim]

    def agree(self, *tasks):
        """Asserts that some workers have the same values after the same step, bit for bit."""
        agree(self.model_dir, {task: self.tasks.cluster['worker'][task] for task in tasks})


def agree(model_dir, addresses):
    """Asserts that workers have the same values after the same step, bit for bit.

    Args:
      model_dir: a directory with a checkpoint of theirs, for the names of the values.
      addresses: dict by task.
    """
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    end = time.monotonic() + 150  # on a machine that is very busy

    def watch(task):
        with tf.Graph().as_default(), tf.device(f'/job:worker/task:{task}'):
            values = {name: tf.get_variable(name, shapes[name], dtypes[name])
                      for name in sorted(shapes)}
            step = values['global_step'].read_value()
            with tf.control_dependencies([step]):
                values = {name: value.read_value() for name, value in values.items()}
            config = tf.ConfigProto(device_filters=[f'/job:worker/task:{task}'])
            with tf.Session(f'grpc://{addresses[task]}', config=config) as session:
                while time.monotonic() < end and len(common()) < 5:
                    (before, now), after = session.run([step, values]), session.run(step)
                    if before == after:  # between two steps
                        seen[task][int(before)] = {name: value.tobytes()
                                                   for name, value in now.items()}

    def common():
        return set.intersection(*map(set, list(seen.values())))

    seen = {task: {} for task in addresses}
    with concurrent.futures.ThreadPoolExecutor(len(seen)) as pool:
        list(pool.map(watch, seen))
    assert len(common()) >= 5
    for step in common():
        values = [each[step] for each in seen.values()]
        assert all(each == values[0] for each in values)


@pytest.fixture
def start(programs):
    """A function that starts a `Run`, whose workers are ended after the test."""
    def begin(*args, **kwargs):
        runs.append(Run(programs, *args, **kwargs))
        return runs[-1]

    runs = []
    yield begin
    for run in runs:
        run.kill(*(i for i, worker in run.workers.items() if worker.running))


def slow(folder, name, where, secs):
    """Appends to the model of a copied folder that a function waits, under a condition."""
    with (folder / 'model.py').open('a', encoding='utf-8') as model:
        model.write(f"""

import time
_{name} = {name}


def {name}(*args):
    if {where}:
        time.sleep({secs})
    return _{name}(*args)
""")


@pytest.fixture
def folder(tmp_path):
    """A copy of the folder, with the library beside it."""
    for name in 'Ring-AllReduce', 'tfdist':
        shutil.copytree(str(ROOT / name), str(tmp_path / 'copy' / name),
                        ignore=shutil.ignore_patterns('__pycache__'))
    return tmp_path / 'copy' / 'Ring-AllReduce'


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1, 2])
def test_the_others_go_on(start, victim):
    run = start(3, '--train_steps=300').train()
    died = time.monotonic()
    run.kill(victim)
    others = run.others(victim)
    lines = [worker.wait_for(GOES_ON) for worker in others]
    assert time.monotonic() - died < 10
    assert len({line['step'] for line in lines}) == 1
    for line in lines:
        assert (line['what'], line['size'], line['rate']) == (f'lost worker {victim}', '2', '0.2')
    run.agree(*(i for i in range(3) if i != victim))
    for worker in others:
        worker.ends_well()
        assert 299 <= int(worker.wait_for(DID)['local_steps']) <= 300, 'one may go uncounted'
    assert [bool(worker.matches(TEST)) for worker in others] == [True, False]
    assert checkpoints(run.model_dir)[-1] == 300


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1])
def test_who_comes_back_joins(start, victim):
    run = start(3, '--train_steps=500').train()
    run.kill(victim)
    others = run.others(victim)
    for worker in others:
        worker.wait_for(GOES_ON)
    back = run.restart(victim)
    joins = int(back.wait_for(BEGINS)['step'])
    for worker in others:
        line = worker.wait_for(GOES_ON, 2)
        assert line['what'] == f'worker {victim} is back'
        assert (line['size'], line['rate']) == ('3', '0.3')
        assert int(line['step']) == joins > 0
    run.agree(0, 1, 2)
    for worker in run.workers.values():
        worker.ends_well()
    assert int(back.wait_for(DID)['local_steps']) == 500 - joins
    assert [bool(run.workers[i].matches(TEST)) for i in range(3)] == [True, False, False]
    assert checkpoints(run.model_dir)[-1] == 500


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 2])
def test_who_was_stopped_joins_when_it_is_woken(start, victim):
    """It does not disturb the ring that the others have formed without it."""
    run = start(3).train()
    run.workers[victim].send(signal.SIGSTOP)
    stopped = time.monotonic()
    others = run.others(victim)
    for worker in others:
        assert worker.wait_for(GOES_ON)['what'] == f'lost worker {victim}'
    assert 10 < time.monotonic() - stopped < 30
    run.agree(*(i for i in range(3) if i != victim))
    run.workers[victim].send(signal.SIGCONT)
    lines = [worker.wait_for(GOES_ON, 2) for worker in others]
    lines.append(run.workers[victim].wait_for(GOES_ON))
    for line in lines:
        assert line['what'] == f'worker {victim} is back'
        assert line['step'] == lines[0]['step']
    run.agree(0, 1, 2)


@pytest.mark.thorough
def test_who_saves_when_the_one_that_did_is_stopped_and_then_killed(start):
    """Until then it keeps its lock; afterwards the others save, in a new ring."""
    run = start(3, '--save_checkpoint_secs=1').train()
    run.workers[0].send(signal.SIGSTOP)
    for worker in run.others(0):
        worker.wait_for(GOES_ON)
    run.workers[1].wait_for(r'worker 1: --model_dir=\S+ is locked by a worker that is not in the '
                            'ring: nobody saves')
    run.workers[1].wait_for(STEP, len(run.workers[1].matches(STEP)) + 3)
    saved = checkpoints(run.model_dir)[-1]
    run.kill(0)
    for worker in run.others(0):
        assert worker.wait_for(GOES_ON, 2)['what'] == 'a new ring'
    wait_until(lambda: checkpoints(run.model_dir)[-1] > saved, 'nobody saves:', *run.others(0))


@pytest.mark.thorough
def test_two_at_once_and_then_too_many(start):
    run = start(5).train()
    run.kill(0, 3)
    for worker in run.others(0, 3):
        assert worker.wait_for(GOES_ON)['what'] == 'lost worker 0, lost worker 3'
    run.agree(1, 2, 4)
    run.kill(2)
    for worker in run.others(0, 2, 3):
        worker.fails(r'worker \d: lost .*worker 2.*; [12] of 5 left with values, fewer than '
                     r'--min_workers=3\. Start all workers again')


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 2])
def test_one_is_lost_in_the_test_at_the_end(start, folder, victim):
    """If it was the one that tests, the next one does."""
    with (folder / 'model.py').open('a', encoding='utf-8') as model:
        model.write("""

import time


def test_batches(batch_size):
    def late(*batch):
        with tf.control_dependencies([tf.py_func(lambda: time.sleep(8), [], [])]):
            return [tf.identity(tensor) for tensor in batch]

    return tf.data.Dataset.from_tensors(test_set()).map(
        tf.autograph.experimental.do_not_convert(late))
""")
    run = start(3, '--train_steps=60', folder=folder)
    wait_until(lambda: all(worker.matches(DID) for worker in run.workers.values()), 'no end')
    assert not run.workers[0].matches(TEST)
    run.kill(victim)
    for worker in run.others(victim):
        worker.ends_well()
    tests = [bool(run.workers[i].matches(TEST)) for i in range(3)]
    assert tests == ([False, True, False] if victim == 0 else [True, False, False])


@pytest.mark.thorough
def test_a_loss_before_the_first_step_ends_all(start, folder):
    slow(folder, 'train_batches', 'args[2] == 1', 100)
    run = start(3, folder=folder)
    # Worker 0 locks it when it is in the ring: all begin to step, and to save, together.
    wait_until(run.model_dir.exists, 'worker 0 does not begin')
    run.kill(1)
    for worker in run.others(1):
        worker.fails(r'worker \d: lost .*worker 1.*; [01] of 3 left with values')


@pytest.mark.thorough
def test_a_worker_that_never_comes(programs):
    tasks = Tasks(programs, num_ps=0, num_workers=3, folder='Ring-AllReduce', flags=[
        '--min_workers=2', '--patience_secs=5'])
    for worker in [tasks.start('worker', i) for i in (0, 2)]:
        worker.fails(r'worker \d: .*worker 1 at \S+ does not answer \(.+\).* Gave up after 5 s\.')


# bash run.sh.

def begun(programs, *flags):
    """Starts three workers by run.sh; returns the run when all train, and a checkpoint is there."""
    directory = programs.directory / 'model'
    run = programs.run_sh('Ring-AllReduce', '--min_workers=2', '--log_every_n_steps=2',
                          '--straggler=0:0.1,1:0.1,2:0.1',  # time to be started again
                          f'--model_dir={directory}', '--save_checkpoint_secs=1', *flags, WORKERS=3)
    wait_until(lambda: len({line['name'] for line in run.matches(STEP)}) == 3
               and checkpoints(directory)[1:] or not run.running, 'do not begin:', run)
    return run


def kill(run, *victims):
    """Kills workers of a run, as the system does when memory is short."""
    for process in run.left():
        with contextlib.suppress(psutil.NoSuchProcess):
            task = json.loads(process.environ().get('TF_CONFIG', '{}')).get('task', {})
            if task.get('index') in victims:
                process.kill()


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1])
def test_run_sh_lets_the_others_go_on(programs, victim):
    run = begun(programs, '--train_steps=200')
    kill(run, victim)
    run.wait_for(rf'run\.sh: worker {victim} was killed \(SIGKILL\); the others go on')
    run.ends_well()
    others = [f'worker {i}' for i in range(3) if i != victim]
    assert sorted(line['name'] for line in run.matches(DID)) == others, str(run)
    assert [line['name'] for line in run.matches(TEST)] == others[:1]
    assert not run.left()


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1])
def test_run_sh_starts_one_again_alone(programs, victim):
    run = begun(programs, '--restarts=1', '--train_steps=800')
    kill(run, victim)
    run.wait_for(rf'run\.sh: worker {victim} was killed \(SIGKILL\); the others go on; '
                 'restart 1 of 1')
    wait_until(lambda: [line for line in run.matches(GOES_ON) if line['size'] == '3']
               or not run.running, 'does not join:', run)
    run.ends_well()
    assert sorted(line['name'] for line in run.matches(DID)) == [f'worker {i}' for i in range(3)]
    assert [line['name'] for line in run.matches(TEST)] == ['worker 0'], str(run)
    assert not run.matches(RESUMES) and not run.left()


@pytest.mark.thorough
@pytest.mark.parametrize('restarts', [0, 3])
def test_run_sh_when_too_few_are_left(programs, restarts):
    run = begun(programs, f'--restarts={restarts}', '--train_steps=200')
    kill(run, 0, 1)
    if not restarts:
        run.fails('worker 2: lost worker 0, worker 1; 1 of 3 left with values')
        assert run.wait() == os.EX_TEMPFAIL
    else:
        run.wait_for(r'run\.sh: worker \d gave up, as it lost another task \(status 75\); '
                     'restart 3 of 3')
        run.wait_for(RESUMES)
        assert run.wait() == 0 and len(run.matches(DID)) == 3, str(run)
    assert not run.left()


@pytest.mark.parametrize('num_workers, min_workers', [(2, 1), (4, 2), (3, 4)])
def test_both_halves_of_a_network_cannot_go_on(num_workers, min_workers):
    agreement = load_program('Ring-AllReduce', 'agreement')
    with pytest.raises(SystemExit, match='more than half of the'):
        agreement.check(min_workers, num_workers)
