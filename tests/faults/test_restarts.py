"""Workers that die and are started again, many times: what they leave on the ps does not add up."""

from processes import DID, STEP, Tasks, TEST
import psutil
import pytest

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
