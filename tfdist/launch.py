"""Runs the programs of a folder on this machine until they end: what run.sh starts.

    bash run.sh                                      with the defaults of the folder
    WORKERS=4 PS=2 bash run.sh --train_steps=5000    more processes; flags go to the workers, or to
                                                     the chief where there is one
    PORT=2222 bash run.sh                            fixed ports, from 2222 on, instead of free ones
    PYTHON=python3.7 bash run.sh                     another interpreter
    LOCAL_ONLY=1 bash run.sh                         in a network of their own: nobody else can
                                                     connect, nothing can be downloaded (Linux)

The exit status is 0 if and only if every process ended well. When one fails, and on Ctrl-C, the
others are ended.
"""

import argparse
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from tfdist import ports

_KILL_AFTER_SECS = 5  # a task that heeds no SIGTERM
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def main(folder):
    """Runs what the command line says, and ends this process.

    Args:
      folder: string, the path of the folder with the programs.
    """
    options, flags = _parse()
    trainer = options.alone or ('train.py' if options.start_chief else 'worker.py')
    if '--help' in flags:
        print(__doc__, flush=True)
        os.execvp(*_command(folder, trainer, ['--help']))
    _confine(os.environ.get('LOCAL_ONLY', ''))
    if options.alone:
        if options.gpus:
            os.environ['CUDA_VISIBLE_DEVICES'] = options.gpus
        os.execvp(*_command(folder, trainer, flags))
    gpus = options.gpus.split(',') if options.gpus else []
    cluster = _addresses(_numbers(options, gpus))
    run = Run()
    if options.first:
        run.start(_command(folder, options.first, flags)[1], os.environ)
        run.wait()
    tasks = [(job, i) for job in cluster for i in range(len(cluster[job]))]
    # Each process gets its share of the cores: more threads than cores only wait for each other.
    threads = [f'--num_threads={max(1, (os.cpu_count() or 1) // len(tasks))}']
    if options.start_evaluator:
        tasks.append(('evaluator', 0))
    for job, i in tasks:
        program = 'train.py' if job == 'chief' else f'{job}.py'
        own = threads + (flags if program in (trainer, 'evaluator.py') else [])
        env = dict(os.environ, TF_CONFIG=json.dumps(
            {'cluster': cluster, 'task': {'type': job, 'index': i}}))
        if job != 'worker':
            env['CUDA_VISIBLE_DEVICES'] = ''  # the GPUs are for the workers
        elif gpus:
            env['CUDA_VISIBLE_DEVICES'] = gpus[i]
        run.start(_command(folder, program, own)[1], env)
    run.wait()
    sys.exit(0)


def _parse():
    """Returns the options that run.sh gives, and the flags for the programs, a list."""
    parser = argparse.ArgumentParser(prog='run.sh', add_help=False, allow_abbrev=False)
    parser.add_argument('--start-ps', type=int, default=0, help='parameter servers, by default')
    parser.add_argument('--start-workers', type=int, default=0, help='workers, by default')
    parser.add_argument('--start-chief', action='store_true', help='train.py; workers serve it')
    parser.add_argument('--start-evaluator', action='store_true', help='evaluator.py, too')
    parser.add_argument('--alone', help='a program that trains by itself, instead of all tasks')
    parser.add_argument('--first', help='a program to run before')
    parser.add_argument('--gpus', default='', help='by commas, one for each worker to see, or all '
                        'for the program that trains by itself')
    return parser.parse_known_args()


def _numbers(options, gpus):
    """Returns a dict: how many tasks there are of each job."""
    workers = _number('WORKERS', len(gpus) or options.start_workers)
    if gpus and workers > len(gpus):
        fail(f'WORKERS={workers}, and there are {len(gpus)} GPUs')
    jobs = {'ps': options.start_ps and _number('PS', options.start_ps), 'worker': workers,
            'chief': int(options.start_chief)}
    return {job: number for job, number in jobs.items() if number}


def _command(folder, program, flags):
    """Returns the interpreter and the whole command, a list of strings, that run a program."""
    interpreter = os.environ.get('PYTHON') or sys.executable
    return interpreter, [interpreter, os.path.join(folder, program), *flags]


def fail(line):
    """Ends this process with a line, a string, on stderr and status 1."""
    sys.exit(f'run.sh: {line}')


def _number(name, default):
    """Returns the environment variable `name` as an int, `default` if it is not set."""
    value = os.environ.get(name) or str(default)
    if not value.isdigit() or not value.isascii() or value.startswith('0'):
        fail(f'{name}={value} is not a positive number')
    return int(value)


def _addresses(jobs):
    """Returns a dict of lists, the addresses of the tasks by job, for a dict of their numbers."""
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
    """Starts this program anew in a network of its own, if LOCAL_ONLY is 1."""
    if not local_only:
        return
    if local_only != '1':
        fail(f'LOCAL_ONLY={local_only} is neither 1 nor empty')
    for tool in 'unshare', 'ip':
        if not shutil.which(tool):
            fail(f'LOCAL_ONLY=1 needs Linux and its command {tool}, which is not here')
    # Root may make a network. Others may as the root of a user namespace, and what they write there
    # is theirs. Root itself would lose, in one, its power over the files of others.
    for network in ['unshare', '--net'], ['unshare', '--user', '--map-root-user', '--net']:
        tried = subprocess.run([*network, 'ip', 'link', 'set', 'lo', 'up'], check=False,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               universal_newlines=True)
        if not tried.returncode:
            os.environ['LOCAL_ONLY'] = ''
            os.execvp(network[0], [*network, 'sh', '-c', 'ip link set lo up && exec "$@"', 'run.sh',
                                   sys.executable, *sys.argv])
    fail('LOCAL_ONLY=1: this system lets you make no network of your own '
         f'({tried.stdout.strip()})')


def _end_with(parent):
    """Has the system end this process when its parent, a process id, ends, however it does."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # that was too late
            os._exit(1)


class Run:
    """The processes of one run."""

    def __init__(self):
        """Begins to heed signals: they are noted, and `start` and `wait` act on them."""
        self._processes = []
        self._signal = None
        for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            if signal.getsignal(signum) != signal.SIG_IGN:  # as below nohup
                signal.signal(signum, self._note)

    def _note(self, signum, _):
        self._signal = signum  # no more than that: another process may be about to be started

    def start(self, command, env):
        """Starts a process, unless a signal came: from a list of strings, with an environment."""
        if self._signal is None:
            self._processes.append(subprocess.Popen(
                command, env=env, preexec_fn=functools.partial(_end_with, os.getpid())))

    def wait(self):
        """Waits until all have ended well.

        Raises:
          SystemExit: if one has failed or a signal came; the others are ended then.
        """
        while self._signal is None:
            statuses = [process.poll() for process in self._processes]
            failed = [status for status in statuses if status]
            if failed:
                self._stop()
                # As a shell says it, if it was a signal that ended the process.
                sys.exit(failed[0] if failed[0] > 0 else 128 - failed[0])
            if None not in statuses:
                return
            time.sleep(0.05)
        self._stop()
        sys.exit(128 + self._signal)

    def _stop(self):
        """Ends the processes that are left."""
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
