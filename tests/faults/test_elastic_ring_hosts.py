"""Machines and networks that fail while workers of the ring have --min_workers.

Each worker is on a host of its own. The others go on without it, and it joins them later.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from measuring import hosts

from processes import BEGINS, checkpoints, DID, ROOT, STEP, TEST, wait_until
from test_elastic_ring import GOES_ON, Run

SOON_SECS = 30  # the others are asked after 2 s, and counted as lost after 10 more
STEPS = 1200  # at most 10 in a second: time to come back
CUT_SECS = 15  # more, after the others go on
LOCKED = r'worker \d: --model_dir=\S+ is locked by a worker that is not in the ring: nobody saves'
pytestmark = [pytest.mark.usefixtures('needs_hosts'), pytest.mark.thorough]
_AGREE = ('import sys; sys.path[:0] = sys.argv[1:3]; from test_elastic_ring import agree; '
          'agree(sys.argv[3], dict(each.split("=") for each in sys.argv[4:]))')


class RunOnHosts(Run):
    """Workers of an elastic ring, each on its host."""

    def __init__(self, programs, network, num_workers, *flags):
        slow = ','.join(f'{i}:0.1' for i in range(num_workers))  # time to look between two steps
        super().__init__(programs, num_workers, '--save_checkpoint_secs=1', f'--straggler={slow}',
                         '--log_every_n_steps=2', *flags, python=network.python())
        self._network = network

    def agree(self, *tasks):
        """See `Run.agree`: hosts are reached from hosts."""
        ports = {task: self.tasks.cluster['worker'][task].rpartition(':')[2] for task in tasks}
        looks = subprocess.run(self._network.on(f'worker-{tasks[0]}', [
            sys.executable, '-c', _AGREE, str(ROOT), str(ROOT / 'tests'), str(self.model_dir),
            *(f'{task}=worker-{task}:{port}' for task, port in ports.items())], os.getcwd()),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=400,
            check=False)
        assert not looks.returncode, looks.stdout

    def lose(self, *victims):
        """Waits until the others go on; asserts that they say so, and that they agree."""
        others = self.others(*victims)
        lines = [worker.wait_for(GOES_ON) for worker in others]
        lost = ', '.join(f'lost worker {victim}' for victim in victims)
        assert {(line['what'], line['size'], line['step']) for line in lines} == {
            (lost, str(len(others)), lines[0]['step'])}, str(self)
        self.agree(*(i for i in self.workers if i not in victims))

    def all_train(self, *, new=()):
        """Waits until all train together; asserts that they agree.

        Args:
          new: ints, workers that are processes which have not been in a ring.
        """
        size = len(self.workers)

        def last(i, worker):
            found = worker.matches(BEGINS) if i in new else worker.matches(GOES_ON)
            return found and (i in new or int(found[-1]['size']) == size)

        wait_until(lambda: all(last(*each) for each in self.workers.items()) or not all(
            worker.running for worker in self.workers.values()), 'not all:', self)
        assert all(worker.running for worker in self.workers.values()), str(self)
        for worker in self.workers.values():
            worker.wait_for(STEP, len(worker.matches(STEP)) + 2)
        self.agree(*self.workers)

    def __str__(self):
        return '\n'.join(map(str, self.workers.values()))


@pytest.fixture
def start(programs):
    """A function that starts a `RunOnHosts` and waits until all train.

    It returns the hosts and the run, which is ended after the test.
    """
    def begin(num_workers, *flags):
        network = hosts.Hosts(programs.directory, [f'worker-{i}' for i in range(num_workers)])
        networks.append(network.__enter__())
        runs.append(RunOnHosts(programs, network, num_workers, *flags))
        return network, runs[-1].train()

    networks, runs = [], []
    yield begin
    for run in runs:
        for worker in run.workers.values():
            worker.end()
    for network in networks:
        network.__exit__()


def steps(program):
    """Returns how many lines of steps a program has printed."""
    return len(program.matches(STEP))


@pytest.mark.parametrize('victim', [0, 1])
def test_a_machine_loses_its_power(start, victim):
    network, run = start(3, f'--train_steps={STEPS}')
    dark = time.monotonic()
    network.lose_power(f'worker-{victim}', run.workers[victim])
    for worker in run.others(victim):
        worker.wait_for(GOES_ON)
    assert time.monotonic() - dark < SOON_SECS
    network.power_on(f'worker-{victim}')
    back = run.restart(victim)
    run.lose(victim)
    run.all_train(new=[victim])
    for worker in run.workers.values():
        worker.ends_well()
    joined = int(back.wait_for(BEGINS)['step'])
    assert int(back.wait_for(DID)['local_steps']) == STEPS - joined
    assert [bool(run.workers[i].matches(TEST)) for i in range(3)] == [True, False, False]
    assert checkpoints(run.model_dir)[-1] == STEPS


@pytest.mark.parametrize('victim', [0, 2])
def test_a_machine_is_back_before_anybody_knows(start, victim):
    network, run = start(3)
    network.lose_power(f'worker-{victim}', run.workers[victim])
    network.power_on(f'worker-{victim}')
    run.restart(victim)
    run.all_train(new=[victim])


@pytest.mark.parametrize('victim', [0, 2])
def test_a_worker_is_started_again_at_once(start, victim):
    _, run = start(3)
    run.kill(victim)
    run.restart(victim)
    run.all_train(new=[victim])


@pytest.mark.parametrize('victim', [0, 2])
def test_a_worker_is_cut_off(start, victim):
    """It waits, and neither trains nor saves; the others go on, and save if they have the lock."""
    network, run = start(3)
    network.plug(f'worker-{victim}', 'down')
    run.lose(victim)
    before, saved = steps(run.workers[victim]), checkpoints(run.model_dir)[-1]
    time.sleep(CUT_SECS)
    assert steps(run.workers[victim]) == before and run.workers[victim].running, str(run)
    if victim:
        assert checkpoints(run.model_dir)[-1] > saved
    else:
        assert run.workers[1].matches(LOCKED)
        assert checkpoints(run.model_dir)[-1] == saved, 'worker 0 saves though it is cut off'
    network.plug(f'worker-{victim}')
    run.all_train()
    wait_until(lambda: checkpoints(run.model_dir)[-1] > saved, 'nobody saves:', run)


@pytest.mark.parametrize('few', [(0, 3), (2, 4)])
def test_a_cut_that_divides_the_workers(start, few):
    """The three on one side go on, the two on the other side wait."""
    network, run = start(5)
    network.divide(*(f'worker-{i}' for i in few))
    run.lose(*few)
    before = [steps(run.workers[i]) for i in few]
    time.sleep(CUT_SECS)
    assert [steps(run.workers[i]) for i in few] == before, str(run)
    network.divide()
    run.all_train()


def test_two_are_frozen(start):
    few = 0, 3
    _, run = start(5)
    for i in few:
        run.workers[i].send(signal.SIGSTOP)
    run.lose(*few)
    for i in few:
        run.workers[i].send(signal.SIGCONT)
    run.all_train()


@pytest.mark.parametrize('back, away', [(0, 3), (3, 0)])
def test_two_are_killed_and_one_comes_back(start, back, away):
    _, run = start(5)
    run.kill(back, away)
    run.lose(*sorted((back, away)))
    run.restart(back).wait_for(BEGINS)
    for worker in run.others(back, away):
        line = worker.wait_for(GOES_ON, 2)
        assert (line['what'], line['size']) == (f'worker {back} is back', '4')
    run.agree(*(i for i in run.workers if i != away))
