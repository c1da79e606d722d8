"""Faults at random, for as long as you like, on a cluster of two ps and four workers.

    python tests/faults/soak.py --minutes=60                 every scheme in turn
    python tests/faults/soak.py --minutes=5 --only=AGN,SSP   some
    python tests/faults/soak.py --seed=7 --only=AGN          what the log says of a round, again

A round is one run of a folder, with flags that follow from the seed. Tasks are killed, or stopped
and woken, at times that follow from it, too; whatever ends with a failure is started again, as a
cluster's engine does. Then the faults end, and the run has to come to its own end: in time, with no
process left, and with the accuracy that it has without faults. A run that resumes has to do so from
the newest checkpoint that was whole for sure, or a newer one. Memory, threads and descriptors of
tasks that live for long are compared with what they had when they had just begun.
"""

import argparse
import collections
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

import psutil

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import (checkpoints, examples, listens, Programs, RESUMES, ROOT,  # noqa: E402
                       STEP, Tasks, TEST, trainer)
from measuring.folders import Example  # noqa: E402
import matrix  # noqa: E402

FAULTS_SECS = 45  # of each round
END_SECS = 600  # for the rest of a round, also on a busy machine: more is a hang
RESTART_SECS = 1  # an engine takes that long to start a task again
RATE = '--straggler=0:0.02,1:0.02,2:0.02,3:0.02'  # not even 50 local steps/s and worker
STEPS_PER_SEC = 60  # of a worker's: so long is a run without faults
LEAST_ACCURACY = 0.9
SETTLED_SECS = 15  # after it has begun, a task has what it needs
# Factor, and what may come besides: in the first ten losses of a ps the pools of gRPC fill up.
GROWTH = {'memory': (1.05, 20e6), 'threads': (1, 16), 'descriptors': (1, 40)}

# What is to happen: after so many seconds, to which task, and for how long if it is stopped.
Fault = collections.namedtuple('Fault', 'at kind task seconds')


def scheme(folder):
    """Returns the text of the program that has a folder's scheme; None if it has no cluster's."""
    text = (ROOT / folder / f'{trainer(ROOT / folder)}.py').read_text(encoding='utf-8')
    return text if 'class Scheme' in text and (ROOT / folder / 'worker.py').exists() else None


def plan(seed, folder, tasks):
    """Returns the list of `Fault` that a seed has for a folder's tasks, a list of (job, index)."""
    draw = random.Random(f'{seed} {folder}')
    faults, now = [], 0
    while True:
        now += draw.uniform(2, 10)
        if now > FAULTS_SECS:
            return faults
        faults.append(Fault(round(now, 1), draw.choice(['kill', 'kill', 'pause']),
                            draw.choice(tasks), round(draw.uniform(0.5, 8), 1)))


def draw_flags(seed, folder, directory):
    """Returns the flags, a list of strings, that a seed has for a folder; `directory` is theirs."""
    name = random.Random(f'{seed} {folder} flags').choice(['eval', 'stop', 'average', 'export'])
    return [flag.format(directory=directory) for flag in matrix.FLAGS[name]]


class Round:
    """One run of a folder, with faults.

    Attributes:
      problems: list of strings, what went wrong.
    """

    def __init__(self, folder, seed, directory):
        """Starts all tasks; `directory` is for their output and their checkpoints."""
        self.problems = []
        self._began = time.monotonic()
        self._model_dir = directory / 'model'
        self._programs = Programs(directory)
        has_ps = (ROOT / folder / 'ps.py').exists()
        source = scheme(folder)
        window = re.search(r"(?:communication_window=|'n_push', )(\d+)", source)
        steps = STEPS_PER_SEC * FAULTS_SECS
        update = Example(folder).settings.update or int(window[1] if window else 1)
        together = ('barrier.Synchronous' in source or 'ring.Ring' in source
                    or Example(folder).settings.own_steps)
        self._trainer = 'worker' if trainer(ROOT / folder) == 'worker' else 'chief'
        flags = draw_flags(seed, folder, directory)
        self._tasks = Tasks(self._programs, num_ps=2 * has_ps, num_workers=4, folder=folder,
                            python=sys.executable, flags=[
            f'--train_steps={steps * (1 if together else 4) // update}',
            '--log_every_n_steps=200', '--save_checkpoint_secs=5', '--patience_secs=60',
            *([RATE] if self._trainer == 'worker' else []),
            f'--model_dir={self._model_dir}', *flags, *self._prepare(folder, directory)])
        self._running = {(job, i): None for job in sorted(self._tasks.cluster)
                         for i in range(len(self._tasks.cluster[job]))}
        self._due = dict.fromkeys(self._running, 0.)  # when to start it
        self._done = set()
        self._started_at = {}  # by task: when it was started again, the last time
        self._trained_at = float('inf')  # when all that train had ended
        self._lines_at = {}  # of servers, by process: the lines of all that train as it began
        self._began_at = {}  # by process: when it was first seen at work
        self._first = {}  # by process: which task it is, what it had first, and what it has now
        self._saved = 0  # the newest step that a checkpoint surely has
        self._resumed = collections.Counter()  # how many such lines of each program were looked at
        self._faults = plan(seed, folder, sorted(self._running))
        self.say(f'with {" ".join(flags)}')
        self._woken = []

    def _prepare(self, folder, directory):
        """Makes the records that a folder reads, if it does; returns the flag that says where."""
        if not (ROOT / folder / 'prepare_data.py').exists():
            return []
        flag = f'--records_dir={directory / "records"}'
        self._programs.task('prepare_data', flag, folder=folder).ends_well()
        return [flag]

    def say(self, text):
        print(f'  {time.monotonic() - self._began:6.1f} s  {text}', flush=True)

    def run(self):
        """Runs it to its end."""
        try:
            while len(self._done) < len(self._running):
                seconds = time.monotonic() - self._began
                if seconds > FAULTS_SECS + END_SECS:
                    self.problems.append('it hangs: ' + '\n'.join(
                        str(program) for program in self._running.values() if program.running))
                    return
                self._tend()
                self._wake(seconds)
                while self._faults and self._faults[0].at <= seconds:
                    self._commit(self._faults.pop(0), seconds)
                self._measure()
                time.sleep(0.2)
            self._judge()
        finally:
            self._wake(float('inf'))
            left = self._programs.end()
            if left and not self.problems:
                self.problems.append(f'left running: {left}')

    def _tend(self):
        """Starts what is due, and what has failed; looks what was saved and restored."""
        self._look_at_resumed()
        if self._model_dir.exists():
            self._saved = max([self._saved, *checkpoints(self._model_dir)[:-1]])
        for task, program in self._running.items():
            if program is None or not program.running:
                if program and task not in self._done and not self._due[task]:
                    status = program.wait()
                    if not status or self._comes_too_late(task):
                        self._done.add(task)
                        continue
                    self.say(f'{task[0]} {task[1]} ended: status {status} {program.err[-1:]}')
                    self._due[task] = time.monotonic() + RESTART_SECS
                if task not in self._done and time.monotonic() >= self._due[task]:
                    self._running[task] = self._tasks.start(*task)
                    self._due[task] = 0.
                    self._started_at[task] = time.monotonic()
        trains = {task for task in self._running if task[0] == self._trainer}
        if trains <= self._done:
            self._trained_at = min(self._trained_at, time.monotonic())
            for task, program in self._running.items():
                if program and program.running and self._comes_too_late(task):
                    program.end()

    def _comes_too_late(self, task):
        """Returns whether nobody tells a server that the run is over: it was killed in its end.

        It would wait for --patience_secs, and then end with a failure. An engine has ended it.
        """
        return self._started_at.get(task, 0) > self._trained_at - RESTART_SECS

    def _look_at_resumed(self):
        """Judges from where runs were resumed since the last look."""
        program = self._running[self._trainer, 0]
        if not program:
            return
        for match in program.matches(RESUMES)[self._resumed[program.mark]:]:
            self._resumed[program.mark] += 1
            self.say(match[0])
            if int(match['step']) < self._saved:
                self.problems.append(f'{match[0]}, and up to step {self._saved} was saved')

    def _commit(self, fault, seconds):
        program = self._running[fault.task]
        if program is None or not program.running:
            return
        self.say('{0} {1[0]} {1[1]}'.format(fault.kind, fault.task)
                 + f' for {fault.seconds} s' * (fault.kind == 'pause'))
        if fault.kind == 'kill':
            program.kill()
        else:
            program.send(signal.SIGSTOP)
            self._woken.append((seconds + fault.seconds, program))

    def _wake(self, seconds):
        """Wakes what has been stopped for long enough."""
        for at, program in list(self._woken):
            if at <= seconds:
                self._woken.remove((at, program))
                if program.running:
                    program.send(signal.SIGCONT)

    def _measure(self):
        """Notes what each task has that is at work; the first time, to compare with."""
        for task, program in self._running.items():
            if program is None or not program.running:
                continue
            is_at_work = program.pid in self._began_at or (
                program.matches(STEP) if task[0] == self._trainer else self._serves(task, program))
            if not is_at_work:
                continue
            began = self._began_at.setdefault(program.pid, time.monotonic())
            if time.monotonic() - began < SETTLED_SECS:
                continue
            try:
                process = psutil.Process(program.pid)
                has = {'memory': process.memory_info().rss, 'threads': process.num_threads(),
                       'descriptors': process.num_fds()}
            except psutil.NoSuchProcess:
                continue
            first = self._first.setdefault(program.pid, (task, has, {}))
            first[2].update(has)

    def _serves(self, task, program):
        """Returns whether a server that does not train has all that it needs from now on.

        That is so when all that train, and so have their sessions with it, have stepped since it
        began to listen.
        """
        lines = {each.pid: len(each.matches(STEP)) for (job, _), each in self._running.items()
                 if job == self._trainer and each and each.running}
        if program.pid not in self._lines_at:
            # A server keeps what connects and says nothing for two minutes: so once.
            if listens(self._tasks.cluster[task[0]][task[1]]):
                self._lines_at[program.pid] = lines
            return False
        return all(count > self._lines_at[program.pid].get(pid, 0) for pid, count in lines.items())

    def _judge(self):
        """Says what a run that came to its end has lost, or gained."""
        self._look_at_resumed()
        # While the chief is away, another one tests.
        trainers = [each for (job, _), each in sorted(self._running.items()) if each
                    and job == self._trainer]
        tests = [float(test['accuracy']) for each in trainers for test in each.matches(TEST)]
        accuracy = min(tests, default=0.)
        self.say(f'ended, accuracy {accuracy}, saved up to step {self._saved}')
        if accuracy < LEAST_ACCURACY:
            self.problems.append(f'accuracy {accuracy}\n' + '\n'.join(map(str, trainers)))
        for task, had, has in self._first.values():
            for what, (factor, more) in GROWTH.items():
                if has.get(what, 0) > had[what] * factor + more:
                    self.problems.append(f'{task[0]} {task[1]}: {what} from {had[what]} to '
                                         f'{has[what]}')


def main():
    """Makes rounds until the time is up; the exit status is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--minutes', type=float, default=60, help='no round is begun later')
    parser.add_argument('--seed', type=int, default=1, help='of the first turn of all schemes')
    parser.add_argument('--only', help='folders, by commas')
    options = parser.parse_args()
    folders = options.only.split(',') if options.only else list(filter(scheme, examples()))
    deadline = time.monotonic() + 60 * options.minutes
    rounds, bad = 0, 0
    seed = options.seed
    while time.monotonic() < deadline:
        for folder in folders:
            if time.monotonic() >= deadline:
                break
            print(f'{folder}, --seed={seed}', flush=True)
            directory = pathlib.Path(tempfile.mkdtemp(prefix='soak-'))
            one = Round(folder, seed, directory)
            one.run()
            rounds += 1
            if one.problems:
                bad += 1
                print(f'  WRONG, see {directory}: ' + '\n  '.join(one.problems), flush=True)
            else:
                shutil.rmtree(str(directory))
        seed += 1
    print(f'{rounds} rounds, {bad} of them went wrong.')
    sys.exit(bool(bad))


if __name__ == '__main__':
    main()
