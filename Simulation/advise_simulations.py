"""Simulations with gradients, several at a time, until time is up; a file keeps what they find."""

import collections
import threading
import time

from advise_folders import ALONE, SIMULATES_ALONE
import description
import experiments

# What identifies a simulation: the model with its flags, and flags.
COLUMNS = ['problem', *description.KEYS, 'straggler', 'learning_rate', 'server_learning_rate',
           'communication_window', 'n_fetch', 'n_push', 'local_steps', 'tests', 'test_every',
           'target', 'until_target', 'seed']

# Of a simulation that came to no end: as if it had diverged.
FAILED = {'diverged': '1', 'loss': 'nan', 'accuracy': '', 'examples': '0', 'seconds': '0',
          'target_seconds': '', 'target_examples': '', 'curve': ''}


class _Process(experiments.Scheme):
    """A process that simulates one scheme with the user's model."""

    is_apart = True  # `Simulations.stop` ends it

    def __init__(self, folder, name):
        """Takes an `advise_folders.Folder`, and the name of a scheme."""
        super().__init__(folder.of(name), *folder.flags)
        self.name = name

    def simulate(self, asked):
        return super().simulate({name: value for name, value in asked.items()
                                 if name != 'problem'})


class Simulations:
    """Runs simulations. A context manager: at its end no process is left.

    Attributes:
      deadline: float, the time of `time.monotonic` at which the search is to be over.
      number: int, how many simulations have been made, or were in the file.
    """

    def __init__(self, folder, path, jobs, deadline):
        """Takes an `advise_folders.Folder`, the path of the file, and how many run at a time."""
        self._folder, self._jobs, self.deadline = folder, jobs, deadline
        self._table = experiments.Table(path, COLUMNS)
        self.number, self._complaints, self._good = 0, {}, set()
        self._lock, self._idle, self._all = threading.Lock(), collections.OrderedDict(), set()
        self._is_over = False

    def run(self, asked, then, until):
        """Runs simulations.

        Args:
          asked: list of triples (key, scheme or ALONE, dict of strings by flags); the first ones
            first.
          then: function of a key and a row, see `experiments.Table`, to call after each of those
            that there was time for; in any thread.
          until: float, the time of `time.monotonic` after which none begins.
        """
        groups = collections.OrderedDict()
        for key, scheme, flags in asked:
            name = SIMULATES_ALONE if scheme == ALONE else scheme
            groups.setdefault(name, []).append((key, dict(flags, problem=self._folder.identity)))
        # No scheme is to keep one job busy while others have nothing left to do.
        most = -(-len(asked) // self._jobs)
        pieces = [(name, group[begin:begin + most]) for name, group in groups.items()
                  for begin in range(0, len(group), most)]

        def work(piece):
            name, group = piece
            for key, flags in group:
                try:
                    row = self._row(name, flags, until)
                except SystemExit as error:
                    row = None
                    if not self._is_over:  # a model may complain if it diverges
                        row = FAILED
                        self._complaints.setdefault(name, str(error).rpartition('}: ')[2])
                if row is not None:
                    if row is not FAILED:
                        self._good.add(name)
                    then(key, row)

        experiments.for_each(work, pieces, self._jobs)

    @property
    def left_out(self):
        """Dict by scheme of strings: why none of its simulations came to an end."""
        return {name: why for name, why in self._complaints.items() if name not in self._good}

    def _row(self, name, flags, until):
        """Returns the row of a simulation, or None if there is no time for it."""
        row = self._table.row(name, flags)
        if row is None and not self._is_over and time.monotonic() < until:
            process = self._process(name)
            row = self._table.simulate(process, flags)
            with self._lock:
                self._idle.setdefault(name, []).append(process)
        if row is not None:
            self.number += 1
        return row

    def _process(self, name):
        """Returns a process for a scheme: an idle one, or a new one, in place of others."""
        with self._lock:
            if self._idle.get(name):
                return self._idle[name].pop()
            idle = sum(map(len, self._idle.values()))
            while idle > self._jobs:  # each takes hundreds of MB
                _, processes = self._idle.popitem(last=False)
                for process in processes:
                    self._end(process)
                idle -= len(processes)
            process = _Process(self._folder, name)
            self._all.add(process)
            return process

    def _end(self, process):
        self._all.remove(process)
        process.__exit__()

    def stop(self):
        """Has no further simulation begin, and ends those that are under way."""
        self._is_over = True
        for process in list(self._all):
            process.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        with self._lock:
            for processes in self._idle.values():
                for process in processes:
                    self._end(process)
            self._idle.clear()
