"""Each fault at each task, with each flag, at each moment: role x fault x flag x moment.

    python tests/faults/matrix.py                                  all of them once: hours
    python tests/faults/matrix.py --only=HogWild,eval --times=20   cells by any of their words
    python tests/faults/matrix.py --sample=15 --seed=1             so many, drawn by a seed

A cell is one run of a folder with a ps and two workers. The task that is struck is killed and
started again, stopped and woken, or its host loses its power and comes back. After that the run has
to come to its own good end, with a test, in time, and with nothing left running.
"""

import argparse
import collections
import itertools
import pathlib
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from measuring import hosts  # noqa: E402
from processes import DID, Programs, SLOW, STEP, Tasks, TEST, TESTED, wait_until  # noqa: E402
import slow_model  # noqa: E402

AWAY_SECS = {'kill': 1, 'pause': 4, 'power': 3}
STEPS = {'HogWild': 400, 'AGN': 80, 'Synchronous-SGD': 250, 'In-Graph-Replication': 1000,
         'Model-Parallel': 1500}
MOMENTS = 'start', 'middle', 'test', 'end'
FLAGS = {
    'eval': ['--eval_every_secs=1'],
    'stop': ['--eval_every_secs=1', '--stop_after_evals_without_gain=3'],
    'average': ['--eval_every_secs=1', '--moving_average_decay=0.9'],
    'export': ['--export_dir={directory}/export'],
    'order': ['--order_dir={directory}/order'],
}
NOT_RECORDED = {'In-Graph-Replication', 'Model-Parallel'}  # they have no scheme that pulls
END_SECS = 300  # from the fault to the end; a good run needs a quarter, also on a busy machine
RESTART_PATIENCE = '--patience_secs=10'  # of a ps that does not know who was done before
_BEGUN_ANEW = re.compile(  # a recorded run has one beginning: its tasks are not started again
    '--order_dir(: a run is recorded from its beginning|=.* has the order of another run)')

Cell = collections.namedtuple('Cell', 'folder task fault flag moment')


def cells():
    """Returns all cells, a list."""
    found = []
    for folder, fault, flag, moment in itertools.product(STEPS, AWAY_SECS, FLAGS, MOMENTS):
        if flag == 'order' and folder in NOT_RECORDED:
            continue
        if moment == 'test' and not FLAGS[flag][0].startswith('--eval'):
            continue  # only the test at the end, which is another moment
        for task in tasks_of(folder):
            found.append(Cell(folder, task, fault, flag, moment))
    return found


def tasks_of(folder):
    """Returns the tasks of a folder, strings such as 'ps-0'."""
    alone = {'In-Graph-Replication': ['ps-0', 'chief-0', 'worker-1'],
             'Model-Parallel': ['chief-0', 'worker-1']}
    return alone.get(folder, ['ps-0', 'worker-0', 'worker-1'])


class Run:
    """The run of a cell."""

    def __init__(self, cell, directory):
        """Takes a `Cell`, and a `pathlib.Path` of an empty directory."""
        self._cell, self._directory = cell, directory
        self._programs = Programs(directory)

    def strike(self):
        """Makes the run and its fault; returns the seconds from the fault to the end.

        Raises:
          AssertionError: if the run does not come to its good end.
        """
        try:
            if self._cell.fault == 'power':
                names = ['ps-0', 'worker-0', 'worker-1', 'chief-0']
                with hosts.Hosts(self._directory, names) as network:
                    return self._strike(network)
            return self._strike(None)
        finally:
            self._programs.end()

    def _strike(self, network):
        tasks = self._start(network)
        victim = self._cell.task.partition('-')[::2]
        victim = victim[0], int(victim[1])
        self._await_moment()
        began = time.monotonic()
        program = self._running[victim]
        if self._cell.fault == 'pause':
            program.send(signal.SIGSTOP)
            time.sleep(AWAY_SECS['pause'])
            program.send(signal.SIGCONT)
        else:
            if network:
                network.lose_power(self._cell.task, program)
            else:
                program.kill()
            time.sleep(AWAY_SECS[self._cell.fault])
            if network:
                network.power_on(self._cell.task)
            self._running[victim] = tasks.start(*victim,
                                                *[RESTART_PATIENCE] * (victim[0] == 'ps'))
        self._judge(began)
        return time.monotonic() - began

    def _start(self, network):
        """Starts all tasks; returns `Tasks`."""
        folder = self._cell.folder
        copy = slow_model.copy(folder, self._directory, seconds=0.3)
        (self._directory / 'order').mkdir()
        has_ps = 'ps-0' in tasks_of(folder)
        tasks = Tasks(self._programs, num_ps=int(has_ps), folder=copy,
                      python=network.python() if network else sys.executable, flags=[
            f'--train_steps={STEPS[folder]}', '--log_every_n_steps=10', '--save_checkpoint_secs=1',
            '--patience_secs=60', f'--model_dir={self._directory / "model"}',
            *(flag.format(directory=self._directory) for flag in FLAGS[self._cell.flag]),
            *[SLOW] * ('chief-0' not in tasks_of(folder)),
            *['--communication_window=5'] * (folder == 'AGN')])
        self._running = {(job, i): tasks.start(job, i) for job in ('chief', 'worker', 'ps')
                         for i in range(len(tasks.cluster.get(job, [])))}
        self._chief = ('chief', 0) if ('chief', 0) in self._running else ('worker', 0)
        return tasks

    def _await_moment(self):
        chief = self._running[self._chief]
        if self._cell.moment == 'start':
            time.sleep(0.5)
        elif self._cell.moment == 'middle':
            chief.wait_for(STEP, 3)
        elif self._cell.moment == 'test':
            chief.wait_for(TESTED)
            time.sleep(2)  # the next one begins after a second, and takes longer than one
        else:
            chief.wait_for(DID)
            time.sleep(1)

    def _judge(self, began):
        """Waits for the end of all, and asserts that it is good."""
        trains = [task for task in self._running if task[0] == self._chief[0]]
        wait_until(lambda: not any(self._running[task].running for task in trains)
                   or time.monotonic() > began + END_SECS, 'never')
        refused = [task for task in trains
                   if any(map(_BEGUN_ANEW.search, self._running[task].err))]
        for task, program in self._running.items():
            if task in refused or refused and task not in trains:  # a ps waits for who is refused
                continue
            if task not in trains or not program.running:
                wait_until(lambda: not program.running  # noqa: B023 (it is called here)
                           or time.monotonic() > began + END_SECS, 'never')
            assert not program.running and not program.wait() and not program.err, self.story()
        assert self._cell.flag == 'order' or not refused, self.story()
        assert refused or any(self._running[task].matches(TEST) for task in trains), self.story()

    def story(self):
        """Returns what all tasks printed."""
        return '\n'.join(map(str, [self._cell, *self._running.values()]))


def main():
    """Goes through the cells, prints a table; the exit status is 1 if any run went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--only', default='', help='words that a cell must have, by commas')
    parser.add_argument('--times', type=int, default=1, help='runs of each cell')
    parser.add_argument('--sample', type=int, default=0, help='so many cells, drawn; 0: all')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    words = [word for word in options.only.split(',') if word]
    chosen = [cell for cell in cells() if all(word in cell for word in words)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    wrong = 0
    print('| folder | task | fault | flag | moment | good | median s | longest s |\n'
          '|---|---|---|---|---|---:|---:|---:|', flush=True)
    for cell in chosen:
        seconds = []
        for _ in range(options.times):
            directory = pathlib.Path(tempfile.mkdtemp(prefix='matrix-'))
            try:
                seconds.append(Run(cell, directory).strike())
                shutil.rmtree(str(directory))
            except AssertionError as error:
                wrong += 1
                print(f'WRONG, see {directory}: {error}', file=sys.stderr, flush=True)
        times = f'{statistics.median(seconds):.0f} | {max(seconds):.0f}' if seconds else '- | -'
        print(f'| {" | ".join(cell)} | {len(seconds)} of {options.times} | {times} |', flush=True)
    print(f'{len(chosen)} cells, {wrong} runs went wrong.')
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()
