"""What compare.py has to know about the examples: their programs are asked for it."""

import collections
import functools
import json
import re
import subprocess
import sys

from measuring.runs import ROOT

DIGITS = 4 * (64 * 128 + 128 + 128 * 10 + 10)  # bytes of the parameters of the network
BOUNDARY = 4 * 32 * 128  # bytes of the activations between the layers, of a batch
BARE = 'bare limit'  # no folder: the plainest loop in one process, of bench.py
GROUPS = 'one process', 'asynchronous, in each step', 'asynchronous, in windows', 'synchronous'


class Settings(collections.namedtuple(
        'Settings', 'workers flags together note gallery own_steps update turn',
        defaults=(None, (), None, '', True, False, None, None))):
    """What the programs do not say.

    Attributes:
      workers: int, how many workers it is for, if the number is not free; 0: it is one process.
      flags: list of strings, which make it the same problem as the others'.
      together: bool or None, whether all workers make each update together; None: as Scheme says.
      note: string, what is not the same in spite of that.
      gallery: bool, whether it takes the models of the gallery.
      own_steps: bool, whether each worker counts its own steps: they exchange parameters in pairs.
      update: int or None, the local steps of all workers in an update, if these do not depend on
        how many workers there are.
      turn: int or None, the local steps of a worker between two exchanges, if no flag says it.
    """


SETTINGS = {
    'Non-Distributed-Setup': Settings(workers=0),
    'Distributed-Setup': Settings(workers=1),
    'Distributed-MNIST': Settings(note='Adam'),
    'Elastic-Workers': Settings(flags=('--join_at=', '--leave_at=')),
    # A tenth of 100 clients, with 15 batches of 5 each.
    'FedAvg': Settings(flags=('--eval_every_secs=0',), together=True, note='batches of 5',
                       gallery=False, update=150, turn=15),
    'Gossip': Settings(own_steps=True),
    'In-Graph-Replication': Settings(workers=2, together=True),
    'Model-Parallel': Settings(workers=2, flags=('--hidden_units=128',), note='momentum',
                               gallery=False),
    'Multiple-GPUs-Single-Machine': Settings(workers=0, together=True,
                                             note='two towers, a convolutional network'),
    'Parameter-Placement': Settings(workers=2),
    'Work-Queue': Settings(gallery=False),
}
# Flags of models of the gallery: tables that every scheme takes, also those that send all of them.
MODEL_FLAGS = {'clicks': ['--clicks_rows=30000']}

WINDOWS = {'communication_window', 'n_fetch', 'n_push'}  # flags: local steps between exchanges


def names():
    """Returns the names of the folders that train: those with a model.py, sorted."""
    return [path.parent.name for path in sorted(ROOT.glob('*/model.py'))]


@functools.lru_cache(maxsize=None)
def _answers():
    """Returns what the programs of all folders say of themselves, see asking.py; it takes seconds.

    Raises:
      SystemExit: if one cannot be asked.
    """
    asked = subprocess.run([sys.executable, '-m', 'measuring.asking', *names()], cwd=str(ROOT),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                           universal_newlines=True, check=False)
    if asked.returncode:
        sys.exit(f'The folders cannot be asked for their flags:\n{asked.stderr}')
    return dict(map(json.loads, asked.stdout.splitlines()))


class Example:
    """A folder that trains.

    Attributes:
      name, settings: string, and `Settings`.
      flags: set of strings, the names of its flags.
      window: int, the local steps between two exchanges, by default; 1 if there are no windows.
      synchronous: bool, whether all workers make each update together.
      free_workers: bool, whether it is for any number of workers.
      kind: string, between whom the parameters travel: 'server', workers and ps; 'ring', workers
        alone; 'pairs', two workers each; 'layers', none, but activations do; 'alone', it is one
        process.
      group: string, one of GROUPS.
    """

    def __init__(self, name):
        self.name = name
        self.settings = SETTINGS.get(name, Settings())
        answer = _answers()[name]
        self.flags = set(answer['flags'])
        self._window_flags = sorted(WINDOWS & self.flags)
        self.window = max((answer['flags'][flag] for flag in self._window_flags), default=1)
        self.kind = ('alone' if self.settings.workers == 0 else
                     'server' if (ROOT / name / 'ps.py').exists() else
                     'pairs' if self.settings.own_steps else
                     'ring' if answer['seam'] else 'layers')
        self.synchronous = self.settings.together
        if self.synchronous is None:
            self.synchronous = (self.kind == 'ring'
                                or answer['barrier'] and 'is_sync' not in self.flags)
        self.free_workers = self.settings.workers is None
        self.group = GROUPS[0 if self.kind == 'alone' else
                            3 if self.synchronous or self.kind == 'layers' else
                            2 if self.window > 1 else 1]

    def steps_of_update(self, workers, window):
        """Returns how many local steps, of all workers, there are to one global step."""
        if self.settings.update:
            return self.settings.update
        at_once = max(workers, 2) if self.settings.workers == 0 else workers
        return window * (at_once if self.synchronous or self.settings.own_steps else 1)

    def arguments(self, workers, window, local_steps):
        """Returns flags, a list of strings, with which all workers together make `local_steps`."""
        updates = max(1, round(local_steps / self.steps_of_update(workers, window)))
        return [f'--train_steps={updates}', *self.settings.flags,
                *(f'--{flag}={window}' for flag in self._window_flags)]


def bytes_per_step(kind, workers, window):
    """Returns what a worker sends and gets in one local step, in bytes, without counters.

    The `kind` is that of an `Example`, the `window` the local steps between two exchanges. Without
    a ps it is what a worker sends.
    """
    if kind == 'server':
        return 2 * DIGITS / window
    if kind == 'pairs':
        return DIGITS
    if kind == 'ring':
        return 2 * (workers - 1) / workers * DIGITS
    return 2 * BOUNDARY if kind == 'layers' else 0  # the activations return as gradients


def gallery():
    """Returns how many local steps each model suggests that brings its data along, a dict."""
    found = {}
    for path in sorted((ROOT / 'tfdist' / 'gallery').glob('[!_]*.py')):
        suggested = re.search(r'^LEARNING_RATE, LOCAL_STEPS = [\d.]+, (\d+)',
                              path.read_text(encoding='utf-8'), re.MULTILINE)
        found[path.stem] = int(suggested[1])
    for name in 'cifar10', 'stateful_lstm':  # its data are to be fetched; it is the lstm again
        del found[name]
    return found


def examples():
    """Returns an `Example` for each folder that trains, sorted."""
    return [Example(name) for name in names()]
