"""What compare.py has to know about the examples, read from their files."""

import ast
import collections
import re

from runs import ROOT

DIGITS = 4 * (64 * 128 + 128 + 128 * 10 + 10)  # bytes of the parameters of the network
BOUNDARY = 4 * 32 * 128  # bytes of the activations between the layers, of a batch
BARE = 'bare limit'  # no folder: the plainest loop in one process, of bench.py
GROUPS = 'one process', 'asynchronous, in each step', 'asynchronous, in windows', 'synchronous'


class Settings(collections.namedtuple('Settings', 'workers flags together note gallery')):
    """What the files do not say.

    Attributes:
      workers: int, how many workers it is for, if the number is not free; 0: it is one process.
      flags: list of strings, which make it the same problem as the others'.
      together: bool or None, whether all workers make each update together; None: as the files say.
      note: string, what is not the same in spite of that.
      gallery: bool, whether it takes the models of the gallery.
    """


Settings.__new__.__defaults__ = None, (), None, '', True
SETTINGS = {
    'Non-Distributed-Setup': Settings(workers=0),
    'Distributed-Setup': Settings(workers=1),
    'Distributed-MNIST': Settings(note='Adam'),
    'Elastic-Workers': Settings(flags=('--join_at=', '--leave_at=')),
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


def _name(node):
    """Returns the name in a part of a program, such as 'flags.DEFINE_float', or ''."""
    if isinstance(node, ast.Attribute):
        return f'{_name(node.value)}.{node.attr}'
    return getattr(node, 'id', '')


def _calls_and_bases(folder):
    """Reads a folder's programs.

    Args:
      folder: `pathlib.Path`.

    Returns:
      List of all calls, (what is called, `ast.Call`), and a set of what classes derive from.
    """
    nodes = [node for path in sorted(folder.glob('*.py'))
             for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))]
    return ([(_name(node.func), node) for node in nodes if isinstance(node, ast.Call)],
            {_name(base) for node in nodes if isinstance(node, ast.ClassDef)
             for base in node.bases})


def _flags(calls):
    """Returns what flags calls define: a dict of their defaults, `ast` nodes, by their names."""
    found = {}
    for called, call in calls:
        if called == 'training_flags.define':
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            # Two of its arguments are no flags: one is of --help, one says whether there is a flag.
            given.pop('counted', None)
            if not ast.literal_eval(given.setdefault('straggler', ast.Constant(True))):
                del given['straggler']
            found.update(given)
        elif called.startswith('flags.DEFINE_'):
            found[ast.literal_eval(call.args[0])] = call.args[1]
    return found


class Example:
    """A folder that trains.

    Attributes:
      name: string.
      settings: `Settings`.
      flags: set of strings, the names of its flags.
      window: int, the local steps between two exchanges, by default; 1 if there are no windows.
      synchronous: bool, whether all workers make each update together.
      free_workers: bool, whether it is for any number of workers.
      kind: string, between whom the parameters travel: 'server', workers and ps; 'ring', workers
        alone; 'layers', none, but activations do; 'alone', it is one process.
      group: string, one of GROUPS.
    """

    def __init__(self, name):
        self.name = name
        self.settings = SETTINGS.get(name, Settings())
        folder = ROOT / name
        calls, bases = _calls_and_bases(folder)
        defaults = _flags(calls)
        self.flags = set(defaults)
        self._window_flags = sorted(WINDOWS & self.flags)
        self.window = max((ast.literal_eval(defaults[flag]) for flag in self._window_flags),
                          default=1)
        rings = any(called == 'ring.Ring' for called, _ in calls)
        self.synchronous = (self.settings.together if self.settings.together is not None else
                            rings or 'barrier.Synchronous' in bases and 'is_sync' not in self.flags)
        self.free_workers = self.settings.workers is None
        self.kind = ('alone' if self.settings.workers == 0 else
                     'server' if (folder / 'ps.py').exists() else
                     'ring' if rings else 'layers')
        self.group = GROUPS[0 if self.kind == 'alone' else
                            3 if self.synchronous or self.kind == 'layers' else
                            2 if self.window > 1 else 1]

    def steps_of_update(self, workers, window):
        """Returns how many local steps, of all workers, there are to one global step."""
        at_once = max(workers, 2) if self.settings.workers == 0 else workers
        return window * (at_once if self.synchronous else 1)

    def arguments(self, workers, window, local_steps):
        """Returns flags, a list of strings, with which all workers together make `local_steps`."""
        updates = max(1, round(local_steps / self.steps_of_update(workers, window)))
        return [f'--train_steps={updates}', *self.settings.flags,
                *(f'--{flag}={window}' for flag in self._window_flags)]


def bytes_per_step(kind, workers, window):
    """Returns what a worker sends and gets in one local step, in bytes, without counters.

    Args:
      kind: `Example.kind`.
      workers: int.
      window: int, local steps between two exchanges.
    """
    if kind == 'server':
        return 2 * DIGITS / window
    if kind == 'ring':
        return 2 * (workers - 1) / workers * DIGITS
    return 2 * BOUNDARY if kind == 'layers' else 0  # the activations return as gradients


def gallery():
    """Returns a dict: how many local steps each model of the gallery suggests, by its name.

    Only of those that bring their data along.
    """
    found = {}
    for path in sorted((ROOT / 'tfdist' / 'gallery').glob('[!_]*.py')):
        suggested = re.search(r'^LEARNING_RATE, LOCAL_STEPS = [\d.]+, (\d+)',
                              path.read_text(encoding='utf-8'), re.MULTILINE)
        found[path.stem] = int(suggested[1])
    del found['cifar10']
    return found


def examples():
    """Returns an `Example` for each folder that trains: those with a model.py, sorted."""
    return [Example(path.parent.name) for path in sorted(ROOT.glob('*/model.py'))]
