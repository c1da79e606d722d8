"""Runs the programs of a folder on this machine until they end; run.sh starts it.

    bash run.sh                                      with the defaults of the folder
    WORKERS=4 PS=2 bash run.sh --train_steps=5000    more processes; flags go to the workers, or to
                                                     the chief where there is one
    PORT=2222 bash run.sh                            fixed ports, from 2222 on, instead of free ones
    PYTHON=python3.7 bash run.sh                     another interpreter
    LOCAL_ONLY=1 bash run.sh                         in a network of their own: nobody else can
                                                     connect, nothing can be downloaded (Linux)
    bash run.sh --check                              compares one worker with plain TensorFlow, for
                                                     20 steps or --check_steps, instead of training
    bash run.sh --restarts=3 --model_dir=DIR         if a process is lost, starts all again from the
                                                     last checkpoint, three times at most

The exit status is 0 if and only if every process succeeds. If one fails, or on Ctrl-C, the others
are stopped. A process is lost if a signal ends it, such as SIGKILL, or if it gives up because it
lost another one (status 75). Any other status is a mistake that would come again: no restart.

In some folders the others go on without a process that is killed, or a flag makes them do so. Then
it alone is started again, if a restart is left, and the exit status is 0 if all that are left
succeed.
"""

import argparse
import collections
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from tfdist.start import ports, told_once

_KILL_AFTER_SECS = 5  # for a task that ignores SIGTERM
_RESTART_AFTER_SECS = 1
_LATE_SECS = 30  # after the first task is done: one that is under way by itself has found no others
_GAVE_UP = os.EX_TEMPFAIL  # 75, of a task that lost another one: see console.give_up
_STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_CHECK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'checking')


Task = collections.namedtuple('Task', 'name command env')
Task.__doc__ = """A process to start.

Attributes:
  name: string, such as 'worker 1'.
  command: list of strings.
  env: dict, what to add to the environment.
"""


def main(folder):
    """Runs the programs in `folder`, a path, as the command line says, and ends this process."""
    options, flags = _parse()
    trainer = options.alone or ('train.py' if options.start_chief else 'worker.py')
    if '--help' in flags:
        print(__doc__, flush=True)
        os.execvp(*_command(folder, trainer, ['--help']))
    restarts = _restarts(options)
    _confine(os.environ.get('LOCAL_ONLY', ''))
    if options.check or options.check_steps:
        _prepare(Run(), folder, options, flags)
        number = [f'--check_steps={options.check_steps}'] if options.check_steps else []
        os.execvp(*_command(folder, _CHECK, [folder, trainer, *flags, *number]))
    if options.alone:
        if options.gpus:
            os.environ['CUDA_VISIBLE_DEVICES'] = options.gpus
        if not restarts:
            os.execvp(*_command(folder, trainer, flags))
        tasks = _alone(folder, trainer, flags)
    else:
        tasks = _tasks(folder, options, trainer, flags)
    others_go_on = _has(flags, options.others_go_on_with) or _lacks(
        flags, options.others_go_on_unless)
    if restarts and not _has(flags, 'model_dir'):
        _say('without --model_dir nothing is kept: a restart '
             f'{"of all tasks " if others_go_on else ""}begins at step 0')
    run = Run(restarts, others_go_on)
    _prepare(run, folder, options, flags)
    run.complete(tasks)
    sys.exit(0)


def _has(flags, name):
    """Returns whether a flag of this name, a string or None, is among `flags`, with a value."""
    return bool(name) and any(re.match(f'--?{name}(=.|$)', flag) for flag in flags)


def _lacks(flags, setting):
    """Returns whether a setting, such as `name=one,other`, is given, and `flags` have none."""
    if not setting:
        return False
    name, _, values = setting.partition('=')
    given = [match[1] for match in re.finditer(rf'(?:^|\0)--?{name}[=\0]([^\0]*)',
                                               '\0'.join(flags))]
    return not given or given[-1] not in values.split(',')


def _alone(folder, program, flags):
    """Returns the tasks of a run that is one program, a list of one `Task`."""
    return [Task(os.path.splitext(program)[0], _command(folder, program, flags)[1], {})]


def _tasks(folder, options, trainer, flags):
    """Returns the tasks of a cluster on this machine, a list of `Task`."""
    gpus = options.gpus.split(',') if options.gpus else []
    cluster = _addresses(_numbers(options, gpus))
    places = [(job, i) for job in cluster for i in range(len(cluster[job]))]
    # Each process gets its share of the cores: threads beyond these would only wait.
    threads = [f'--num_threads={max(1, (os.cpu_count() or 1) // len(places))}']
    if options.start_evaluator:
        places.append(('evaluator', 0))
    tasks = []
    for job, i in places:
        program = 'train.py' if job == 'chief' else f'{job}.py'
        name = f'{job} {i}' if job in ('ps', 'worker') else os.path.splitext(program)[0]
        own = threads + (flags if program in (trainer, 'evaluator.py') else [])
        env = {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': job, 'index': i}})}
        if job != 'worker':
            env['CUDA_VISIBLE_DEVICES'] = ''  # the GPUs are for the workers
        elif gpus:
            env['CUDA_VISIBLE_DEVICES'] = gpus[i]
        tasks.append(Task(name, _command(folder, program, own)[1], env))
    return tasks


def _prepare(run, folder, options, flags):
    """Has `run`, a `Run`, complete the program that is to run before the others, if there is one.

    It is the program of a folder.
    """
    if options.first:
        run.complete(_alone(folder, options.first, flags))


def _parse():
    """Returns the options set by run.sh, and a list of the flags for the programs."""
    parser = argparse.ArgumentParser(prog='run.sh', add_help=False, allow_abbrev=False)
    parser.add_argument('--start-ps', type=int, default=0, help='parameter servers, by default')
    parser.add_argument('--start-workers', type=int, default=0, help='workers, by default')
    parser.add_argument('--start-chief', action='store_true', help='train.py; workers serve it')
    parser.add_argument('--start-evaluator', action='store_true', help='evaluator.py, too')
    parser.add_argument('--alone', help='a program that trains by itself, instead of all tasks')
    parser.add_argument('--first', help='a program to run before')
    parser.add_argument('--others-go-on-with', help='the flag of the programs with which the '
                        'others go on when a task is killed')
    parser.add_argument('--others-go-on-unless', help='the flag with its values, name=one,other, '
                        'without which they do')
    parser.add_argument('--gpus', default='', help='by commas, one for each worker to see, or all '
                        'for the program that trains by itself')
    parser.add_argument('--check', action='store_true', help='one worker against plain TensorFlow')
    parser.add_argument('--check_steps', help='for so many local steps')
    parser.add_argument('--restarts', nargs='?', default='0', const='',
                        help='how often to start tasks again when one is lost')
    return parser.parse_known_args()


def _numbers(options, gpus):
    """Returns the number of tasks of each job, a dict."""
    workers = _number('WORKERS', len(gpus) or options.start_workers)
    if gpus and workers > len(gpus):
        fail(f'WORKERS={workers}, but there are {len(gpus)} GPUs')
    jobs = {'ps': options.start_ps and _number('PS', options.start_ps), 'worker': workers,
            'chief': int(options.start_chief)}
    return {job: number for job, number in jobs.items() if number}


def _restarts(options):
    """Returns the number of restarts that the options allow, an int."""
    text = options.restarts
    if not text.isdigit() or not text.isascii():
        fail(f'--restarts={text} is not a number of restarts, such as 3')
    if int(text) and (options.check or options.check_steps):
        fail('--restarts is for training: leave it out with --check')
    return int(text)


def _command(folder, program, flags):
    """Returns the interpreter, and the list of strings that is the whole command of a program."""
    interpreter = os.environ.get('PYTHON') or sys.executable
    return interpreter, [interpreter, os.path.join(folder, program), *flags]


def fail(line):
    """Prints a line on stderr, and exits with status 1."""
    sys.exit(f'run.sh: {line}')


def _say(line, stream=1):
    """Writes a line, if `stream`, a descriptor, can be written to; the run goes on in any case."""
    with contextlib.suppress(OSError):
        os.write(stream, f'run.sh: {line}\n'.encode())


def _number(name, default):
    """Returns the environment variable `name` as an int; `default` if it is not set."""
    value = os.environ.get(name) or str(default)
    if not value.isdigit() or not value.isascii() or value.startswith('0'):
        fail(f'{name}={value} is not a positive number')
    return int(value)


def _addresses(jobs):
    """Returns the addresses of the tasks, lists by job, for `jobs`, the numbers of tasks by job."""
    count = sum(jobs.values())
    if os.environ.get('PORT'):
        first = _number('PORT', 0)
        if first + count > 65536:
            fail(f'the ports from PORT={first} on are too few: the last one is 65535')
        chosen = list(range(first, first + count))
    else:
        try:
            chosen = ports.free_ports(count)
        except OSError as error:
            fail(error)
    return {job: [f'localhost:{chosen.pop(0)}' for _ in range(number)]
            for job, number in jobs.items()}


def _confine(local_only):
    """Restarts this program in a network of its own, if LOCAL_ONLY is 1."""
    if not local_only:
        return
    if local_only != '1':
        fail(f'LOCAL_ONLY={local_only} is neither 1 nor empty')
    for tool in 'unshare', 'ip':
        if not shutil.which(tool):
            fail(f'LOCAL_ONLY=1 needs Linux and its command {tool}, which is missing')
    # Root may make a network. Other users need a user namespace, in which they are root, and own
    # what they write. Root itself would lose its power over the files of others in a namespace.
    for network in ['unshare', '--net'], ['unshare', '--user', '--map-root-user', '--net']:
        tried = subprocess.run([*network, 'ip', 'link', 'set', 'lo', 'up'], check=False,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               universal_newlines=True)
        if not tried.returncode:
            os.environ['LOCAL_ONLY'] = ''
            os.execvp(network[0], [*network, 'sh', '-c', 'ip link set lo up && exec "$@"', 'run.sh',
                                   sys.executable, *sys.argv])
    fail('LOCAL_ONLY=1: this system does not let you make a network '
         f'({tried.stdout.strip()})')


def _end_with(parent):
    """Has the system kill this process when its parent, a process id, ends for whatever reason."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)


def _is_lost(status):
    """Returns whether a task with this status, of `subprocess`, may do better in another try."""
    return status == _GAVE_UP or status < 0 and -status not in _STOPS


def _what_ended(name, status):
    """Returns the end of a lost task in words."""
    if status == _GAVE_UP:
        return f'{name} gave up, as it lost another task (status {status})'
    names = {each.value: each.name for each in signal.Signals}  # without most real-time signals
    return f'{name} was killed ({names.get(-status, f"signal {-status}")})'


def _culprit(statuses):
    """Returns the number of the task of which others that failed are likely to have ended.

    A task that a signal ends does so without the help of others; one that gave up lost another.
    """
    failed = [i for i, status in enumerate(statuses) if status]
    return min(failed, key=lambda i: (statuses[i] > 0, statuses[i] == _GAVE_UP))


class Run:
    """The processes of one run.

    When a task is lost, all are stopped and started again, at the same addresses. To start that
    task alone would save some schemes the work since their last checkpoint, and is wrong for
    others, whose tasks end with the lost one, or wait for what died with it. Where the others go
    on by themselves, a task that is killed is started again alone.
    """

    def __init__(self, restarts=0, others_go_on=False):
        """Starts to note signals.

        Args:
          restarts: int, how often tasks may be started again.
          others_go_on: bool, whether the others go on when a task is killed.
        """
        self._restarts, self._restarted = restarts, 0
        self._others_go_on = others_go_on
        self._processes = []
        self._signal = None
        self._told = told_once.begin()
        for signum in _STOPS:
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(signum, self._note)

    def _note(self, signum, _):
        self._signal = signum  # no more than that: `_start` may be at work

    def complete(self, tasks):
        """Runs tasks, a list of `Task`, until all have succeeded; starts them again if one is lost.

        Raises:
          SystemExit: if one failed or a signal came, after the others were stopped.
        """
        while True:
            self._start(tasks)
            failed = self._wait(tasks)
            if self._signal is not None:
                self._stop()
                sys.exit(128 + self._signal)
            if failed is None:
                self._stop()  # who has found no others
                return
            status = self._processes[failed].returncode
            again = _is_lost(status) and self._restarted < self._restarts
            if again:
                self._restarted += 1
                _say(f'{_what_ended(tasks[failed].name, status)}; restart {self._restarted} of '
                     f'{self._restarts}')
            elif _is_lost(status) and self._restarts:
                _say(f'{_what_ended(tasks[failed].name, status)}; no restart is left of '
                     f'{self._restarts}', stream=2)
            self._stop()
            if not again:
                # If a signal ended the process, the status that a shell returns.
                sys.exit(status if status > 0 else 128 - status)
            if self._told:
                self._told.truncate(0)  # who starts again reports again
            self._pause()

    def _start(self, tasks):
        """Starts tasks, a list of `Task`, unless a signal came."""
        self._processes = []
        self._lost = {}  # by number of a task that the others go on without: when it starts again
        self._started_alone, self._done_at = set(), None
        for task in tasks:
            if self._signal is None:
                self._processes.append(self._process(task))

    def _process(self, task):
        """Starts one task."""
        return subprocess.Popen(
            task.command, env=dict(os.environ, **task.env),
            preexec_fn=functools.partial(_end_with, os.getpid()),
            pass_fds=[self._told.fileno()] if self._told else [])

    def _wait(self, tasks):
        """Waits until all processes have succeeded, one has failed or a signal came.

        Returns:
          Number of the process that failed, see `_culprit`; None if none did.
        """
        while self._signal is None:
            statuses = [process.poll() for process in self._processes]
            if any(statuses):
                # Asked again, as the culprit may have ended after it was asked above.
                statuses = [process.poll() for process in self._processes]
            if self._others_go_on:
                self._go_on(tasks, statuses)
            if any(statuses):
                return _culprit(statuses)
            if None not in statuses:
                return None
            time.sleep(0.05)
        return None

    def _go_on(self, tasks, statuses):
        """Has the others go on without tasks that were killed, which start again if they may.

        Args:
          tasks: list of `Task`.
          statuses: list of what `subprocess` says of each. It becomes None for a task that is to
            start again, and 0 for one that is left out.
        """
        now = time.monotonic()
        there = [i for i, status in enumerate(statuses) if not status and i not in self._lost]
        done = [i for i in there if statuses[i] == 0]
        if done and self._done_at is None:
            self._done_at = now
        for i, status in enumerate(statuses):
            if i not in self._lost and there and status and _is_lost(status) and (
                    done or status != _GAVE_UP):  # who gave up says that there are too few
                self._lose(i, f'{_what_ended(tasks[i].name, status)}; the others '
                              f'{"are done" if done else "go on"}', done)
            elif i in self._started_alone and status is None and done and (
                    now > self._done_at + _LATE_SECS):
                self._lose(i, f'{tasks[i].name} came too late: the others are done', done)
            if i in self._lost:
                statuses[i] = 0 if self._lost[i] is None else None
            if self._lost.get(i) and now > self._lost[i]:
                self._processes[i] = self._process(tasks[i])
                self._started_alone.add(i)
                del self._lost[i]

    def _lose(self, i, line, done):
        """Leaves out the task of number `i`, for a time or for good, and says so."""
        self._lost[i] = None
        if not done and self._restarts:
            if self._restarted < self._restarts:
                self._restarted += 1
                self._lost[i] = time.monotonic() + _RESTART_AFTER_SECS
                line += f'; restart {self._restarted} of {self._restarts}'
            else:
                line += f'; no restart is left of {self._restarts}'
        _say(line)

    def _pause(self):
        """Waits a little before a restart, unless a signal comes."""
        deadline = time.monotonic() + _RESTART_AFTER_SECS
        while self._signal is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def _stop(self):
        """Stops the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _KILL_AFTER_SECS
        for process in self._processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
