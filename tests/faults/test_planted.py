"""One fault of each protocol, planted in real processes: these go wrong, and without it do not.

The search, tests/searching, finds these faults in a world that is played. Here the same change of a
line or two stands in a copy of the folder and of the library, which real processes run. Each test
makes its moment come by itself: a batch that waits for a file, a worker that is stopped, or killed
when it has said something. What goes wrong is seen from outside.
"""

import fcntl
import signal
import sys
import time

import pytest
from tfdist.start.quiet import tf

from processes import (AWAY, BACK, BEGINS, checkpoints, DID, INCOMPLETE, ROOT, SLOW, STEP, STOPS,
                       Tasks, TEST, WAITS_FOR_OFFICE, wait_until)
from searching import planted
import slow_model

# At the end of a copied model.py: each worker notes what it reads, a line for each batch with the
# ticket that it is from, if there are tickets; and reads one of them only when a file is there.
_NOTES = """

import json
import os
import pathlib
import time

_FOLDER = pathlib.Path(__file__).parent
_ME = json.loads(os.environ['TF_CONFIG'])['task']['index']
_train_batches, _ticket = train_batches, []


def _read():
    with (_FOLDER / f'read-{{_ME}}').open('a') as notes:
        notes.write(' '.join(map(str, _ticket)) + '\\n')
    number = len((_FOLDER / f'read-{{_ME}}').read_text().splitlines())
    while number == {held}.get(_ME) and not (_FOLDER / f'go-{{_ME}}').exists():
        time.sleep(0.01)


def _take(ticket):
    _ticket[:] = ticket


def train_batches(*args, **kwargs):
    made = _train_batches(*args, **kwargs)
    batches, *make_ready = made if isinstance(made, tuple) else [made]
    with tf.control_dependencies([tf.py_func(_read, [], [])]):
        batches = [tf.nest.map_structure(tf.identity, batch) for batch in batches]
    if not make_ready:
        return batches
    return batches, tf.group(*make_ready, tf.py_func(_take, [args[2]], []))
"""
# A model whose values tell whose gradients they are from: x grows by 3, 6 or 12 with those of one.
_COUNTS = """

def loss_and_accuracy(images, labels):
    x = tf.get_variable('x', initializer=0.)
    return (99. - x) * (3. * 2 ** _ME + 0. * tf.reduce_sum(images)), tf.constant(0.)
"""
thorough = pytest.mark.thorough


def with_and_without(name):
    """Runs a test with a fault, by its name, and without it: the argument `plant`."""
    return pytest.mark.parametrize('plant', [name, None])


class Copy:
    """A copy of a folder and of the library, perhaps with a fault.

    Attributes:
      folder: `pathlib.Path`.
    """

    def __init__(self, folder, directory, plant, held=None, more=''):
        """Makes the copy.

        Args:
          folder: string.
          directory: `pathlib.Path`.
          plant: string, a key of PLANTS, or None.
          held: dict of ints by worker: which of its batches, from 1, waits until `let_go`.
          more: string, text for the end of model.py.
        """
        directory.mkdir()
        self.folder = slow_model.copy(folder, directory, seconds=0)
        with (self.folder / 'model.py').open('a', encoding='utf-8') as model:
            model.write(_NOTES.format(held=held or {}) + more)
        if plant:
            planted.plant_in_copy(planted.PLANTS[plant], directory)

    def read(self, worker):
        """Returns what a worker has read, a list of strings: the ticket of each batch, if any."""
        notes = self.folder / f'read-{worker}'
        return notes.read_text().splitlines() if notes.exists() else []

    def wait_for(self, worker, batch):
        """Waits until a worker reads its batch of this number, from 1."""
        wait_until(lambda: len(self.read(worker)) >= batch, 'batches of worker', worker)

    def let_go(self, worker):
        """Lets a worker go on with the batch that waits."""
        (self.folder / f'go-{worker}').touch()


@pytest.fixture
def copy(tmp_path, plant):
    """A function that makes the `Copy` of a test."""
    return lambda folder, **options: Copy(folder, tmp_path / 'copy', plant, **options)


class Run:
    """The tasks of a copied folder.

    Attributes:
      cluster: dict of lists of strings, the addresses by job.
      ps: `Program`, or None.
      workers: list of `Program`.
    """

    def __init__(self, programs, copied, *flags, num_ps=1, num_workers=2, real=()):
        """Starts all tasks.

        Args:
          programs: `Programs`.
          copied: `Copy`.
          *flags: strings, for each worker.
          num_ps: int, 0 or 1.
          num_workers: int.
          real: workers that will be killed or stopped, and need an interpreter of their own.
        """
        self._warm, self._real = (
            Tasks(programs, num_ps, num_workers, copied.folder, flags, python)
            for python in (None, sys.executable))
        self.cluster = self._real.cluster = self._warm.cluster
        self._are_real = real
        self.ps = self._warm.start('ps', 0) if num_ps else None
        self.workers = [self.start(i) for i in range(num_workers)]

    def start(self, worker, *flags):
        """Starts a worker, also again; returns it."""
        tasks = self._real if worker in self._are_real else self._warm
        return tasks.start('worker', worker, *flags)


def test_each_fault_can_be_planted_in_a_copy(tmp_path):
    for name, one in planted.PLANTS.items():
        path = planted.path(one)
        copied = tmp_path / path
        copied.parent.mkdir(parents=True, exist_ok=True)
        before = (ROOT / path).read_text(encoding='utf-8')
        copied.write_text(before, encoding='utf-8')
        planted.plant_in_copy(one, tmp_path)
        after = copied.read_text(encoding='utf-8')
        compile(after, name, 'exec')
        assert after != before


def pushes(cluster):
    """Returns how many gradients of x are on the ps, for the step that is not complete."""
    with tf.Graph().as_default(), tf.device('/job:ps/task:0'):
        number = tf.ConditionalAccumulator(
            tf.float32, [], shared_name='x/gradients').num_accumulated()
        with tf.Session(f'grpc://{cluster["ps"][0]}',
                        config=tf.ConfigProto(device_filters=['/job:ps'])) as session:
            return session.run(number)


@thorough
@with_and_without('vote not taken back')
def test_barrier_a_worker_is_started_again_in_a_step(programs, copy, tmp_path, plant):
    """A step is the mean of one push of each worker; with the fault a worker is in it twice."""
    copied = copy('Synchronous-SGD', held={2: 2}, more=_COUNTS)
    run = Run(programs, copied, '--train_steps=3', '--learning_rate=1', '--log_every_n_steps=1',
              f'--model_dir={tmp_path / "model"}', num_workers=3, real=[1])
    chief, victim, late = run.workers
    copied.wait_for(2, 2)
    wait_until(lambda: pushes(run.cluster) == 2, 'workers 0 and 1 have not pushed')
    victim.kill()
    again = run.start(1)
    wait_until(lambda: len(chief.matches(STEP)) > 1 or again.matches(INCOMPLETE), 'no', again)
    # The second step, in which worker 2 still trains.
    assert len(copied.read(2)) == 2
    assert len(chief.matches(STEP)) == (2 if plant else 1)
    copied.let_go(2)
    for task in chief, again, late, run.ps:
        task.ends_well()
    x = tf.train.load_checkpoint(str(tmp_path / 'model')).get_tensor('x')
    mean, twice_worker_1 = (3 + 6 + 12) / 3, (3 + 6 + 6) / 3
    assert x == (mean + twice_worker_1 + mean if plant else 3 * mean)


@thorough
@with_and_without('nobody told')
def test_stopping_early(programs, copy, plant):
    """All stop at the step that the chief has said; with the fault nobody stops."""
    copied = copy('Synchronous-SGD')
    run = Run(programs, copied, '--train_steps=10000000', '--log_every_n_steps=10000000',
              '--learning_rate=0',  # no gain
              '--eval_every_secs=0.4', '--stop_after_evals_without_gain=1')
    chief, other = run.workers
    last = int(chief.wait_for(STOPS)['step'])
    if plant:
        for worker in range(2):
            copied.wait_for(worker, last + 100)
        for task in chief, other, run.ps:
            assert task.running and not task.matches(DID)
            task.end()
        return
    for task in chief, other, run.ps:
        task.ends_well()
    for task in chief, other:
        assert int(task.wait_for(DID)['local_steps']) == last
    assert int(chief.wait_for(TEST)['step']) == last


@with_and_without('no gate')
def test_ssp_a_worker_is_far_behind(programs, copy, plant):
    """Nobody gets further ahead than the bound; with the fault a worker makes all steps alone."""
    copied = copy('SSP', held={0: 1, 1: 1})
    run = Run(programs, copied, '--train_steps=20', '--staleness_bound=1', '--log_every_n_steps=1',
              '--dead_after_secs=1000')
    fast, slow = run.workers
    copied.wait_for(0, 1)
    copied.wait_for(1, 1)  # both have clocks, at 0
    copied.let_go(0)
    if plant:
        fast.ends_well()
        assert len(fast.matches(STEP)) == 20
    else:
        fast.wait_for(STEP, 2)
        time.sleep(1)
        assert len(copied.read(0)) == 2, 'one iteration of each, and the bound'
    assert len(copied.read(1)) == 1 and not slow.matches(STEP)
    copied.let_go(1)
    for task in fast, slow, run.ps:
        task.ends_well()


@thorough
@with_and_without('finished when given')
def test_tickets_a_worker_dies_with_one(programs, copy, plant):
    """Each ticket of an epoch is trained on; with the fault nobody trains on that of the dead."""
    copied = copy('Work-Queue', held={0: 1, 1: 3})
    run = Run(programs, copied, '--train_steps=80', real=[1])
    chief, victim = run.workers
    copied.wait_for(1, 3)
    victim.kill()
    copied.let_go(0)
    chief.ends_well()
    read = [copied.read(i) for i in range(2)]
    assert len(read[1]) == 3 and len(set(read[1])) == 1
    tickets = [f'0 {number}' for number in range(10)]
    missing = {ticket for ticket in tickets if sum(each.count(ticket) for each in read) < 5}
    assert any(ticket.startswith('1 ') for ticket in read[0]), 'the epoch is over'
    assert missing == ({read[1][0]} if plant else set())
    for task in run.start(1), run.ps:
        task.ends_well()


@thorough
@with_and_without('chief does not wait')
def test_lock_a_chief_comes_back(programs, copy, tmp_path, plant):
    """Who saves holds the lock; with the fault the chief saves while another has it."""
    directory = tmp_path / 'model'

    def newest():
        return max(checkpoints(directory), default=0)

    def is_locked():
        with (directory / 'lock').open('a') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    copied = copy('HogWild')
    run = Run(programs, copied, '--train_steps=800', '--log_every_n_steps=10', SLOW,
              f'--model_dir={directory}', real=[0, 1])
    chief, deputy = run.workers
    for worker in run.workers:
        worker.wait_for(STEP)
    chief.kill()
    before = newest()
    deputy.wait_for(AWAY)
    wait_until(lambda: newest() > before, 'saves nothing:', deputy)
    deputy.send(signal.SIGSTOP)
    saved = newest()
    back = run.start(0, '--save_checkpoint_secs=1')
    wait_until(lambda: newest() > saved or back.matches(WAITS_FOR_OFFICE), 'nothing of', back)
    assert is_locked(), 'by the worker that is stopped'
    assert (newest() > saved) == bool(plant)
    assert bool(back.matches(WAITS_FOR_OFFICE)) == (not plant)
    deputy.send(signal.SIGCONT)
    deputy.wait_for(BACK)
    for task in back, deputy, run.ps:
        task.ends_well()
    assert back.matches(BEGINS) and newest() >= 800


@thorough
@with_and_without('over for all')
def test_members_one_is_done_and_one_is_not(programs, copy, plant):
    """A ps stays as long as a worker needs it; with the fault it ends with the first."""
    copied = copy('Elastic-Workers', held={0: 1, 1: 1})
    run = Run(programs, copied, '--train_steps=10', '--patience_secs=10')
    ps, (chief, other) = run.ps, run.workers
    copied.wait_for(1, 1)
    copied.let_go(0)
    if plant:
        assert ps.wait() == 0 and not other.matches(DID)
        ps.wait_for('ps 0: worker 0 is done, 1 worker takes part')
        copied.let_go(1)
        other.fails(r'^worker 1: ps 0 at \S+ does not answer \(.+\)\. Gave up after 10 s\.$')
        chief.end()  # it may wait for the ps, too
    else:
        chief.ends_well()
        assert ps.running
        copied.let_go(1)
        for task in other, ps:
            task.ends_well()
        ps.wait_for('ps 0: worker 1 is done, 0 workers take part')


@thorough
@with_and_without('nobody is waited for')
def test_ring_one_dies_and_one_may_still_ask(programs, copy, plant):
    """A ring has at least --min_workers, which are two; with the fault a worker goes on alone."""
    copied = copy('Ring-AllReduce')
    goes_on = r'worker \d: (.+); (\d) of 3 go on from step \d+, learning rate .+'
    run = Run(programs, copied, '--train_steps=150', '--min_workers=2', '--log_every_n_steps=5',
              '--straggler=0:0.03,1:0.03,2:0.03', num_ps=0, num_workers=3, real=range(3))
    for worker in run.workers:
        worker.wait_for(STEP)
    first, victim, stopped = run.workers
    stopped.send(signal.SIGSTOP)
    victim.kill()
    if plant:
        assert first.wait_for(goes_on).groups() == ('lost worker 1, lost worker 2', '1')
        first.wait_for(STEP, len(first.matches(STEP)) + 1)
        for worker in first, stopped:
            worker.end()
        return
    # Long before worker 2 is lost, too, as it is when it has been silent for ten seconds.
    first.wait_for(r'worker 0: worker 2 at \S+ does not answer \(timed out\); waiting')
    assert not first.matches(goes_on)
    stopped.send(signal.SIGCONT)
    for worker in first, stopped:
        assert worker.wait_for(goes_on).groups() == ('lost worker 1', '2')
        worker.ends_well()
