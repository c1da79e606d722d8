"""Real processes for tests: started as a user or a cluster engine starts them, found by a mark.

Every process carries a mark in its environment, which its descendants inherit: so what a run left
behind is found, whoever started it, and ended by its id.
"""

import atexit
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent

from tfdist.start import ports  # noqa: E402

SLOW = '--straggler=0:0.02,1:0.02'  # not even 50 steps per second and worker: time for a fault
PATIENCE = 180  # seconds that a test waits for a condition; nothing waits that long on a good run
_MARK = 'EXAMPLES_TEST_MARK'
# What a shell or this very test may have set, and a run reads. quiet.py sets the last but one; by
# the last one a kernel of Jupyter would believe that it is in the process of the test.
_FOREIGN = {'PS', 'WORKERS', 'PORT', 'LOCAL_ONLY', 'MODE', 'PYTHON', 'TF_CONFIG',
            'TF_CPP_MIN_LOG_LEVEL', 'PYTEST_CURRENT_TEST'}

# The lines of a good run.
_FIGURE = r'[a-z][\w/ ]* -?[\d.]+(?:e[+-]\d+)?(?: \(max -?[\d.]+\))?'
_RATE = r'[\d.]+ steps/s'
NAME = r'(?P<name>train|towers|threads|worker \d+)'
BEGINS = re.compile(NAME + r': (?:starts|joins) at step (?P<step>\d+) of \d+, after \d+\.\d s')
RESUMES = re.compile(NAME + r': resumes from (?P<path>.+-(?P<step>\d+))')
STEP = re.compile(NAME + r': step (?P<step>\d+) of \d+, loss (?P<loss>\d+\.\d{3}), '
                  rf'accuracy (?P<accuracy>[01]\.\d{{3}})(?:, {_FIGURE})*, {_RATE}')
DID = re.compile(NAME + rf': did (?P<local_steps>\d+) local steps(?:, {_FIGURE})*, {_RATE}')
TEST = re.compile(NAME + r': test \w+ (?P<accuracy>[01]\.\d{3})(?:, \w+ \d+\.\d{3})* after '
                  r'(?P<step>\d+) steps, '
                  r'\d+\.\d s')
TESTED = re.compile(NAME + r': test (?:\w+ \d+\.\d{3}(?:, )?)+ at step (?P<step>\d+)')
AWAY = re.compile(NAME + r': worker 0 is away: this worker saves and tests')
BACK = re.compile(NAME + r': worker 0 is back: it saves and tests')
WAITS_FOR_OFFICE = re.compile(NAME + r': waits for the worker that saves in --model_dir=\S+ now')
STOPS = re.compile(NAME + r': (?P<tests>\d+) tests without gain, all stop at step (?P<step>\d+)')
WAITS = re.compile(NAME + r': (?:ps|worker) \d+ at \S+ does not answer \(.+\); waiting')
LONELY = re.compile(r'\w+ \d+: no \w+ answers, and none has said that it is done; waiting')
INCOMPLETE = re.compile(NAME + r': the (?:step is|parameters are) not \w+ after \d+ s '
                        r'\(.+\); waiting')
PREPARED = re.compile(r'prepare_data: \d+ examples in \d+ files, and \d+ to test on, are in .+')
EVALUATED = re.compile(r'evaluator: checkpoint at step (?P<step>\d+), loss (?P<loss>\d+\.\d{3}), '
                       r'accuracy (?P<accuracy>[01]\.\d{3})')
EXPORTED = re.compile(r'evaluator: exported to (?P<path>.+/export/(?P<step>\d+))')
KEEPS = re.compile(NAME + r': (?P<task>\w+ \d+) keeps (?P<bytes>[\d,]+) B: (?P<variables>.+)')
SENDS = re.compile(NAME + r': in a step (?P<task>\w+ \d+) sends (?P<bytes>[\d,]+) B .+')
TOOK = re.compile(NAME + r': took (?P<tickets>\d+) tickets, the last one in epoch (?P<epoch>\d+)')
MEMBER = re.compile(r'ps 0: worker (?P<worker>\d+) (?P<what>joins|leaves|is done|does not answer), '
                    r'(?:1 worker takes|(?!1 )\d+ workers take) part')
DEVICES = re.compile(NAME + r': towers on /device:.+')
MEAN = re.compile(NAME + r': tests the mean of (?P<replicas>\d+) replicas, consensus distance \S+')
GOOD_LINES = (BEGINS, RESUMES, STEP, DID, TEST, WAITS, INCOMPLETE, KEEPS, SENDS, DEVICES,
              TOOK, MEMBER, PREPARED, EVALUATED, EXPORTED, TESTED, STOPS,
              AWAY, BACK, WAITS_FOR_OFFICE, LONELY, MEAN)


def examples():
    """Returns the names of all folders that train, those with a model.py; Comparison runs them."""
    return sorted(path.parent.name for path in ROOT.glob('*/model.py'))


def trainer(folder):
    """Returns 'train' if a folder, a path, has one program that trains, 'worker' if many do."""
    return 'train' if (folder / 'train.py').exists() else 'worker'


@functools.lru_cache(maxsize=None)
def _warm_path():
    """Returns where the interpreter of `warm_python` is, or will be."""
    directory = tempfile.mkdtemp(prefix='warm-')
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return f'{directory}/python'


@functools.lru_cache(maxsize=None)
def warm_python():
    """Returns the path of an interpreter that has TensorFlow loaded, see warm.py."""
    stand_in = pathlib.Path(_warm_path())
    directory = stand_in.parent
    program = pathlib.Path(__file__).resolve().parent / 'warm.py'
    stand_in.write_text(f'#!/bin/sh\nWARM={directory}/socket exec "{sys.executable}" -IS '
                        f'"{program}" "$@"\n', encoding='utf-8')
    stand_in.chmod(0o755)
    own = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    server = subprocess.Popen([sys.executable, str(program), '--serve', f'{directory}/socket'],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own)
    assert server.stdout.readline() == b'ready\n'
    atexit.register(lambda: (server.stdin.close(), server.wait(60)))
    return str(stand_in)


class Program:
    """A program under way.

    Attributes:
      pid: int.
      mark: string, in the environment of this process and its descendants.
      cwd: `pathlib.Path`, where it runs.
    """

    def __init__(self, command, directory, cwd=None, env=None):
        """Starts `command`, a list of strings; its output goes into files in `directory`.

        Args:
          command: list of strings.
          directory: `pathlib.Path`, for files with its output.
          cwd: where it runs; by default an empty directory.
          env: dict, what to add to the environment.
        """
        self.mark = uuid.uuid4().hex
        self._command = [str(word) for word in command]
        self._outputs = directory / f'{self.mark}.out', directory / f'{self.mark}.err'
        self.cwd = cwd or directory / self.mark
        self.cwd.mkdir(exist_ok=True)
        own = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
        with self._outputs[0].open('wb') as out, self._outputs[1].open('wb') as err:
            # A session of its own: a signal to its group is a Ctrl-C, and does not reach the tests.
            self._popen = subprocess.Popen(
                self._command, cwd=str(self.cwd), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=dict(own, **dict(env or {}, **{_MARK: self.mark})), start_new_session=True)
        self.pid = self._popen.pid

    def __str__(self):
        return '\n'.join([' '.join(self._command), f'status: {self._popen.poll()}', '-- stdout:',
                          *self.out, '-- stderr:', *self.err])

    @property
    def out(self):
        """The lines on stdout so far."""
        return self._outputs[0].read_text(encoding='utf-8').splitlines()

    @property
    def err(self):
        """The lines on stderr so far."""
        return self._outputs[1].read_text(encoding='utf-8').splitlines()

    @property
    def running(self):
        """Whether it has not ended."""
        return self._popen.poll() is None

    def matches(self, form):
        """Returns the matches of `form`, a regular expression, with whole lines on stdout."""
        return [match for match in map(re.compile(form).fullmatch, self.out) if match]

    def wait_for(self, form, count=1):
        """Waits for the `count`th line on stdout of `form`; returns its match."""
        wait_until(lambda: len(self.matches(form)) >= count or not self.running,
                   f'{form}\nwas waited for {count} times in\n', self)
        found = self.matches(form)
        assert len(found) >= count, f'{form}\ncame {len(found)} times in\n{self}'
        return found[count - 1]

    def wait(self):
        """Waits for its end; returns its exit status."""
        wait_until(lambda: not self.running, 'does not end:', self)
        return self._popen.returncode

    def ends_well(self):
        """Waits for its end; asserts that it was a good one: status 0, and nothing on stderr."""
        assert self.wait() == 0 and not self.err, str(self)

    def fails(self, form, lines=1):
        """Waits for its end; asserts that it failed, and said on stderr why in one line of `form`.

        Args:
          form: regular expression, to be found in each line on stderr.
          lines: int or range, how many there may be: one for each task that fails.
        """
        assert self.wait() not in (0, -signal.SIGABRT, -signal.SIGSEGV), str(self)
        allowed = range(lines, lines + 1) if isinstance(lines, int) else lines
        assert len(self.err) in allowed, str(self)
        assert all(re.search(form, line) for line in self.err), f'{form}\nis not in\n{self}'

    def send(self, signum, group=False):
        """Sends a signal to it, or to its whole group, as the terminal does on Ctrl-C."""
        (os.killpg if group else os.kill)(self.pid, signum)

    def kill(self):
        """Ends it as `kill -9` does; when this returns it is gone, and so is whatever it held."""
        self.send(signal.SIGUSR1 if self._command[0] == _warm_path() else signal.SIGKILL)
        self._popen.wait(PATIENCE)

    def left(self):
        """Returns those of its processes that run, itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                if (process.environ().get(_MARK) == self.mark
                        and process.status() != psutil.STATUS_ZOMBIE):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                pass  # it ended meanwhile, or is somebody else's
        return found

    def end(self):
        """Ends all that is left of it; returns their command lines."""
        names = []
        for _ in range(5):  # one of them may be starting another
            left = self.left()
            for process in left:
                try:
                    names.append(' '.join(process.cmdline()))
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            psutil.wait_procs(left, timeout=10)
        if self._popen.poll() is None:
            self._popen.wait(10)
        return names


class Programs:
    """Starts programs; at the end of a test none may be left."""

    def __init__(self, directory):
        self.directory = directory
        self._all = []

    def __str__(self):
        return '\n'.join(map(str, self._all))

    def start(self, command, cwd=None, env=None):
        """Starts a command, a list of strings; returns a `Program`."""
        self._all.append(Program(command, self.directory, cwd, env))
        return self._all[-1]

    def run_sh(self, folder, *flags, cwd=None, **env):
        """Starts `bash run.sh`.

        Args:
          folder: name of a folder, or path of a copy.
          *flags: strings.
          cwd: where it runs.
          **env: environment variables, such as WORKERS=4.
        """
        env = {'PYTHON': warm_python(), **{name: str(value) for name, value in env.items()}}
        return self.start(['bash', ROOT / folder / 'run.sh', *flags], cwd, env)

    def task(self, program, *flags, folder='HogWild', python=None, **env):
        """Starts 'ps' or 'worker' without a cluster, or 'train'."""
        return self.start([python or warm_python(), ROOT / folder / f'{program}.py', *flags],
                          env=env)

    def end(self):
        """Ends all that is left; returns what it was, a list of strings."""
        return [name for program in self._all for name in program.end()]


class Tasks:
    """The tasks of one cluster, started one by one as a cluster engine does."""

    def __init__(self, programs, num_ps=1, num_workers=2, folder='HogWild', flags=(), python=None):
        """Chooses the addresses.

        Args:
          programs: `Programs`.
          num_ps: int; 0 for a folder without.
          num_workers: int.
          folder: name of a folder.
          flags: strings, for each worker, or for the chief if the workers serve it.
          python: string, an interpreter, for tasks that are paused; by default `warm_python()`.
        """
        self._python = python or warm_python()
        hosts = [f'localhost:{port}' for port in ports.free_ports(num_ps + num_workers + 1)]
        self.cluster = {'worker': hosts[num_ps:-1]}
        if num_ps:
            self.cluster['ps'] = hosts[:num_ps]
        self._trainer = 'worker'
        if trainer(ROOT / folder) == 'train':
            self.cluster['chief'] = hosts[-1:]
            self._trainer = 'chief'
        self._programs = programs
        self._folder = folder
        self._flags = flags

    def start(self, job, index, *flags):
        """Starts a task by TF_CONFIG; returns a `Program`."""
        config = {'cluster': self.cluster, 'task': {'type': job, 'index': index}}
        flags = ('--num_threads=1', *self._own(job), *flags)
        return self._programs.task(self._program(job), *flags, folder=self._folder,
                                   python=self._python, TF_CONFIG=json.dumps(config))

    def start_by_flags(self, job, index, *flags):
        """Starts a task by the host flags; returns a `Program`."""
        hosts = [f'--{kind}_hosts={",".join(self.cluster[kind])}' for kind in self.cluster]
        return self._programs.task(self._program(job), *hosts, f'--task_index={index}',
                                   *self._own(job), *flags, folder=self._folder)

    def _own(self, job):
        """Returns the flags of those that train."""
        return self._flags if job == self._trainer else ()

    def _program(self, job):
        return 'train' if job == 'chief' else job


def listens(address):
    """Returns whether anything accepts connections at `address`, a host:port."""
    host, _, port = address.rpartition(':')
    with socket.socket() as probe:
        return not probe.connect_ex((host, int(port)))


def wait_until(condition, *complaint):
    """Waits until `condition()` is true; fails with `complaint` after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, ' '.join(map(str, complaint))
        time.sleep(0.05)


def checkpoints(model_dir):
    """Returns the global steps of the checkpoints in a directory."""
    return sorted(int(re.search(r'-(\d+)\.index$', path.name).group(1))
                  for path in pathlib.Path(model_dir).glob('model.ckpt-*.index'))


def saved_step(model_dir):
    """Returns the step of the checkpoint that a directory's list names: a chief restores that one.

    The files of a later one may be there already: they are written before the list.
    """
    listed = (pathlib.Path(model_dir) / 'checkpoint').read_text(encoding='utf-8')
    return int(re.match(r'model_checkpoint_path: ".*-(\d+)"', listed).group(1))
