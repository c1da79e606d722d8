"""Each kind of task is killed with -9, started again as a cluster engine would, and goes on."""

import cluster
from processes import (BEGINS, checkpoints, DID, OF_A_DEAD_PS, RESUMES, STEP, Tasks, TEST,
                       wait_until)
import pytest
import tensorflow.compat.v1 as tf

SLOW = '--straggler=0:0.02,1:0.02'  # not even 50 steps per second and worker: time to kill one


def test_a_cancelled_call_counts_as_a_failure_of_a_ps():
    """TensorFlow 2.21 raises it at times, and not on demand."""
    with pytest.raises(tf.errors.AbortedError, match='RecvFromRemoteAsync'):
        with cluster.failures_of_ps():
            raise tf.errors.CancelledError(None, None, 'RecvFromRemoteAsync is cancelled.')


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


@pytest.mark.parametrize('model_dir', [True, False])
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


def test_chief_after_all_others_are_done(programs):
    """The ps waits for it, and it still evaluates."""
    tasks = Tasks(programs, flags=['--train_steps=60', '--log_every_n_steps=1'])
    ps, (chief, worker) = start(tasks)
    chief.kill()
    worker.ends_well()
    again = tasks.start('worker', 0)
    for task in again, ps:
        task.ends_well()
    assert int(again.wait_for(BEGINS)['step']) >= 60
    assert int(again.wait_for(DID)['local_steps']) == 0
    assert again.matches(TEST)


@pytest.mark.parametrize('num_ps', [1, 2])
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
        task.ends_well(but=OF_A_DEAD_PS)
    assert workers[0].matches(TEST)
    times = [path.stat().st_mtime for path in model_dir.glob('model.ckpt-*.index')]
    gaps = [after - before for before, after in zip(sorted(times), sorted(times)[1:])]
    assert max(gaps) < 10, 'they come every second or two; by default it would be every minute'


def test_ps_without_checkpoints(programs):
    """Training starts again, and still ends."""
    tasks = Tasks(programs, flags=['--train_steps=300', '--log_every_n_steps=5'])
    ps, workers = start(tasks)
    wait_until(lambda: max(steps(workers[1])) > 60, 'no progress of', *workers)
    ps.kill()
    again = tasks.start('ps', 0)
    for task in workers + [again]:
        task.ends_well(but=OF_A_DEAD_PS)
    assert not workers[0].matches(RESUMES)
    assert any(steps(worker) != sorted(steps(worker)) for worker in workers), 'it began anew'


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
        task.ends_well(but=OF_A_DEAD_PS)
    assert again.out == ['ps 0: worker 1 never said that it is done, and does not answer']
