"""Each kind of task is killed with -9, started again as a cluster engine would, and goes on."""

import time

import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches
from tfdist.training import sessions

from processes import (BEGINS, checkpoints, DID, INCOMPLETE, LONELY, RESUMES, SLOW, STEP, Tasks,
                       TEST, wait_until)


def test_a_cancelled_call_counts_as_a_failure_of_a_ps():
    """TensorFlow 2.21 raises it at times, and not on demand."""
    with pytest.raises(tf.errors.AbortedError, match='RecvFromRemoteAsync'):
        with sessions.failures_of_ps():
            raise tf.errors.CancelledError(None, None, 'RecvFromRemoteAsync is cancelled.')

def test_a_batch_that_is_cancelled_with_it_is_not_bad_data():
    message = 'Operation was cancelled\n\t [[node IteratorGetNext]]'
    with pytest.raises(tf.errors.CancelledError), batches.failures():
        raise tf.errors.CancelledError(None, None, message)
    with pytest.raises(SystemExit, match='The data cannot be read'), batches.failures():
        raise tf.errors.DataLossError(None, None, message)


GAVE_UP = r'ps 0 at \S+ does not answer \(.+\)\. Gave up after 1 s\.$'


def steps(task):
    """Returns the global steps in the lines of a worker."""
    return [int(match['step']) for match in task.matches(STEP)]


def start(tasks, *flags):
    """Starts a ps and two slow workers; returns them when both workers are training."""
    ps = tasks.start('ps', 0)
    workers = [tasks.start('worker', i, SLOW, *flags) for i in range(2)]
    for worker in workers:
        worker.wait_for(STEP)
    return ps, workers


def test_worker(programs):
    tasks = Tasks(programs, flags=['--train_steps=3000', '--log_every_n_steps=10'])
    ps, (chief, worker) = start(tasks)
    worker.kill()
    before = max(steps(worker))
    again = tasks.start('worker', 1)
    assert int(again.wait_for(BEGINS)['step']) >= before
    for task in again, chief, ps:
        task.ends_well()
    assert int(again.wait_for(DID)['local_steps']) > 0
    assert chief.matches(TEST)
    assert steps(chief) == sorted(steps(chief)), 'nothing was undone'


@pytest.mark.parametrize('model_dir', [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_chief(programs, model_dir):
    flags = [f'--model_dir={programs.directory / "model"}'] if model_dir else []
    tasks = Tasks(programs, flags=['--train_steps=3000', '--log_every_n_steps=10', *flags])
    ps, (chief, worker) = start(tasks)
    chief.kill()
    worker.wait_for(STEP, len(steps(worker)) + 2)  # it goes on without
    before = max(steps(worker))
    again = tasks.start('worker', 0)
    assert int(again.wait_for(BEGINS)['step']) >= before, "the other's work is kept"
    for task in again, worker, ps:
        task.ends_well()
    assert steps(worker) == sorted(steps(worker))
    assert not again.matches(RESUMES), 'the parameters were alive'
    assert int(again.wait_for(DID)['local_steps']) > 0
    assert again.matches(TEST)


@pytest.mark.thorough
def test_chief_after_all_others_are_done(programs):
    """The ps waits for it, and it still evaluates."""
    tasks = Tasks(programs, flags=['--train_steps=60', '--log_every_n_steps=1'])
    # The chief alone would take half a minute: so it is not done before the other comes.
    ps, (chief, worker) = start(tasks, '--straggler=0:0.5,1:0.02')
    chief.kill()
    worker.ends_well()
    again = tasks.start('worker', 0)
    for task in again, ps:
        task.ends_well()
    assert int(again.wait_for(BEGINS)['step']) >= 60
    assert int(again.wait_for(DID)['local_steps']) == 0
    assert again.matches(TEST)


@pytest.mark.parametrize('num_ps', [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_ps(programs, num_ps):
    """The last checkpoint is restored, also when one of two ps still has newer values."""
    model_dir = programs.directory / 'model'
    tasks = Tasks(programs, num_ps, flags=[
        '--train_steps=600', '--log_every_n_steps=5', f'--model_dir={model_dir}',
        '--save_checkpoint_secs=1', SLOW])
    servers = [tasks.start('ps', i) for i in range(num_ps)]
    workers = [tasks.start('worker', i) for i in range(2)]
    wait_until(lambda: len(checkpoints(model_dir)) >= 2, 'no checkpoints by', *workers)
    saved = checkpoints(model_dir)[-1]
    wait_until(lambda: max(steps(workers[1]), default=0) > saved + 20, 'no progress of', *workers)
    saved = checkpoints(model_dir)[-1]  # the later ones may be in pieces
    servers[-1].kill()
    seen = max(steps(workers[0]) + steps(workers[1]))
    servers[-1] = tasks.start('ps', num_ps - 1)
    resumed = int(workers[0].wait_for(RESUMES)['step'])
    assert saved <= resumed <= seen + 2 * 5, 'the last checkpoint'
    for task in workers + servers:
        task.ends_well()
    assert workers[0].matches(TEST)
    times = [path.stat().st_mtime for path in model_dir.glob('model.ckpt-*.index')]
    gaps = [after - before for before, after in zip(sorted(times), sorted(times)[1:])]
    assert max(gaps) < 10, 'they come every second or two; by default it would be every minute'


@pytest.mark.thorough
def test_ps_without_checkpoints(programs):
    """Training starts again, and still ends."""
    tasks = Tasks(programs, flags=['--train_steps=300', '--log_every_n_steps=5'])
    ps, workers = start(tasks)
    wait_until(lambda: max(steps(workers[1])) > 60, 'no progress of', *workers)
    ps.kill()
    again = tasks.start('ps', 0)
    for task in workers + [again]:
        task.ends_well()
    assert not workers[0].matches(RESUMES)
    assert any(steps(worker) != sorted(steps(worker)) for worker in workers), 'it began anew'


@pytest.mark.thorough
def test_ps_that_does_not_know_who_is_done(programs):
    """Started again after a worker had left, it gives that one up once another is done."""
    tasks = Tasks(programs, flags=[f'--model_dir={programs.directory / "model"}',
                                   '--save_checkpoint_secs=1'])
    ps = tasks.start('ps', 0)
    chief = tasks.start('worker', 0, '--train_steps=400', SLOW)
    tasks.start('worker', 1, '--train_steps=5').ends_well()
    assert ps.running and chief.running
    ps.kill()
    again = tasks.start('ps', 0, '--patience_secs=3')
    for task in chief, again:
        task.ends_well()
    assert again.out == ['ps 0: worker 1 never said that it is done, and does not answer']


@pytest.mark.thorough
@pytest.mark.parametrize('workers_come', [False, True])
def test_a_ps_that_nobody_needs_any_more(programs, workers_come):
    """Its workers never came; or all were done, and it was killed and started again too late."""
    tasks = Tasks(programs, flags=['--train_steps=5'])
    if workers_come:
        ps = tasks.start('ps', 0)
        for worker in [tasks.start('worker', i) for i in range(2)]:
            worker.ends_well()
        ps.wait()
    late = tasks.start('ps', 0, '--patience_secs=12')
    late.wait_for(LONELY)
    late.fails(r'^ps 0: no worker answers, and none has said that it is done\. '
               r'Gave up after 12 s\.$')


OVER = r'worker {}: ps 0 at \S+ does not answer \(.+\)\. The run is over: its last step is saved'


@pytest.mark.thorough
def test_a_worker_that_nobody_needs_any_more(programs):
    """It was killed in its end, when it had said that it is done, and an engine starts it again."""
    model_dir = programs.directory / 'model'
    tasks = Tasks(programs, flags=['--train_steps=20', f'--model_dir={model_dir}'])
    run = [tasks.start('ps', 0), *(tasks.start('worker', i) for i in range(2))]
    for task in run:
        task.ends_well()

    def alone(index, *flags):
        return tasks.start('worker', index, '--patience_secs=1', *flags)

    for index, worker in enumerate([alone(index) for index in range(2)]):
        worker.ends_well()
        assert worker.matches(OVER.format(index))
    alone(1, f'--model_dir={programs.directory / "another"}').fails(GAVE_UP)
    # A longer run is not over there, unless it has ended early.
    longer = '--train_steps=90', '--eval_every_secs=1'
    alone(1, *longer).fails(GAVE_UP)
    early = model_dir / 'last_step'
    early.write_text(str(checkpoints(model_dir)[-1]))
    chief = alone(0, *longer)
    chief.ends_well()
    assert chief.matches(OVER.format(0))


# Synchronous schemes.

@pytest.fixture
def together(programs):
    """Starts a ps and slow workers of Synchronous-SGD; returns them all when they are training."""
    def start_all(num_workers, *flags, num_ps=1):
        tasks = Tasks(programs, num_ps, num_workers, folder='Synchronous-SGD', flags=[
            '--train_steps=300', '--log_every_n_steps=5', *flags])
        slow = '--straggler=' + ','.join(f'{i}:0.02' for i in range(num_workers))
        servers = [tasks.start('ps', i) for i in range(num_ps)]
        workers = [tasks.start('worker', i, slow) for i in range(num_workers)]
        for worker in workers:
            worker.wait_for(STEP)
        return tasks, servers, workers
    return start_all


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1])
def test_a_synchronous_step_waits_for_a_worker_to_come_back(together, victim):
    """Also for the chief, which takes the mean."""
    tasks, servers, workers = together(2)
    workers[victim].kill()
    survivor = workers[1 - victim]
    survivor.wait_for(INCOMPLETE)
    before = max(steps(survivor))
    again = tasks.start('worker', victim)
    assert int(again.wait_for(BEGINS)['step']) >= before
    for task in [again, survivor] + servers:
        task.ends_well()
    assert max(steps(again)) > 290 and int(again.wait_for(DID)['local_steps']) > 0


def test_a_synchronous_step_gives_up_a_worker_that_is_dead(together):
    """One line for each that waits, within --patience_secs."""
    _, servers, workers = together(2, '--patience_secs=5')
    workers[1].kill()
    died = time.monotonic()
    workers[0].fails(r'^worker 0: the step is not complete \(worker 1 at \S+ does not answer '
                     r'\(Connection refused\)\)\. Gave up after 5 s\.$')
    assert time.monotonic() - died < 30
    servers[0].kill()  # a cluster engine would start the workers again


@pytest.mark.thorough
def test_with_backup_workers_a_dead_one_is_not_missed(together):
    tasks, servers, workers = together(3, '--replicas_to_aggregate=2')
    workers[2].kill()
    for worker in workers[:2]:
        worker.ends_well()
        assert not worker.matches(INCOMPLETE)
    assert workers[0].matches(TEST)
    again = tasks.start('worker', 2)  # so that the ps does not wait for it
    for task in [again] + servers:
        task.ends_well()


@pytest.mark.thorough
def test_with_backup_workers_the_chief_is_missed(together):
    """It takes the mean: the others wait for it, and go on when it is back; no step is lost."""
    tasks, servers, workers = together(3, '--replicas_to_aggregate=2')
    workers[0].kill()
    for worker in workers[1:]:
        worker.wait_for(INCOMPLETE)
    before = max(steps(workers[1]) + steps(workers[2]))
    workers[0] = tasks.start('worker', 0)
    assert int(workers[0].wait_for(BEGINS)['step']) >= before
    for task in workers + servers:
        task.ends_well()
    for worker in workers:
        assert steps(worker) == sorted(steps(worker)) and max(steps(worker)) > 290


@pytest.mark.thorough
@pytest.mark.parametrize('num_ps, victim', [(1, 0), (2, 0), (2, 1)])
def test_a_synchronous_job_resumes_when_a_ps_died(together, tmp_path, num_ps, victim):
    """What was pushed to the other ps is of no use; global step and tokens are on ps 0."""
    tasks, servers, workers = together(2, f'--model_dir={tmp_path / "model"}',
                                       '--save_checkpoint_secs=1', num_ps=num_ps)
    wait_until(lambda: len(checkpoints(tmp_path / 'model')) >= 2, 'no checkpoints by', *workers)
    servers[victim].kill()
    servers[victim] = tasks.start('ps', victim)
    assert int(workers[0].wait_for(RESUMES)['step']) > 0
    for task in workers + servers:
        task.ends_well()
    assert workers[0].matches(TEST)


@pytest.mark.thorough
def test_a_synchronous_job_waits_for_a_late_worker(programs):
    tasks = Tasks(programs, folder='Synchronous-SGD', flags=['--train_steps=50'])
    servers, chief = [tasks.start('ps', 0)], tasks.start('worker', 0)
    chief.wait_for(INCOMPLETE)
    assert not chief.matches(STEP)
    late = tasks.start('worker', 1)
    for task in [late, chief] + servers:
        task.ends_well()
    assert int(late.wait_for(DID)['local_steps']) == 50
