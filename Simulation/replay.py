"""Repeats a real run that recorded its order of pulls and pushes: see `training/recorder.py`.

Each worker pulls after the same update as in the run, and makes the same updates. Only the cluster
is virtual: there is no clock.
"""

import collections
import csv
import json
import pathlib
import sys
import zipfile
import zlib

from absl import flags
import numpy as np
from tfdist.start import console
from tfdist.start.quiet import tf
import schemes

flags.DEFINE_string('replay', None, 'directory that a run wrote with --order_dir: repeats '
                    'that run, with its scheme and its flags')
flags.DEFINE_integer('until', None, 'the step at which a replay ends; by default the last one',
                     lower_bound=1)
flags.DEFINE_integer('look_at', None, 'the update to show with those around it; by default the '
                     'one after which the loss explodes', lower_bound=1)
flags.DEFINE_list('without', [], 'updates that a replay leaves out, separated by commas')
flags.DEFINE_string('center', None, 'file for the center at the end of a replay, such as '
                    'center.npz')
# Flags that say where a run is and where it writes: a replay does not repeat these.
_OF_THE_PLACE = {'ps_hosts', 'worker_hosts', 'chief_hosts', 'task_index', 'model_dir', 'order_dir',
                 'notes_dir', 'traced_runs', 'tested_share', 'eval_every_secs',
                 'stop_after_evals_without_gain'}
# Relative: a loss that differs by more is not that of the run. A replay rounds differently, and the
# difference grows with training: TensorFlow 1.15 optimizes no graph into which other tensors than
# placeholders are fed, so the replay sums gradients one by one which the run sums all at once.
_ARITHMETIC = 1e-3
_EXPLODED = 2  # a loss this many times the first one
_AROUND = 4  # updates shown on either side of one


class Row(collections.namedtuple('Row', 'pulled step dropped loss at')):
    """What a worker recorded of a round.

    Attributes:
      pulled: list of ints by pull, the global step at that time.
      step: list of ints by push, the global step after it.
      dropped: bool, whether the push came too late to count.
      loss: float, of its batches.
      at: float, when the last push came, in seconds.
    """


class Update(collections.namedtuple('Update', 'step worker pulled staleness loss way center')):
    """An update of the center, or in a synchronous scheme a push that is part of one.

    Attributes:
      step: int, the global step after it.
      worker: int.
      pulled: int, the step of the last center that the worker had pulled for it.
      staleness: int, how many updates other workers made between that pull and this update.
      loss: float, of its batch, at the center that was pulled; None where the loss is not known
        before a later pull.
      way: float, the Euclidean distance by which it moved the center.
      center: float, the norm of the center after it.
    """


def _rows(file):
    """Returns what a worker recorded, a list of `Row`, from a dict of arrays."""
    return [Row(np.ravel(pulled).tolist(), np.ravel(step).tolist(), bool(dropped), float(loss),
                float(at))
            for pulled, step, dropped, loss, at in zip(*map(file.__getitem__, Row._fields))]


def _arrays(path):
    """Returns the arrays of an npz file, a dict by name; raises ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(str(path)):  # where it cannot be opened, numpy prints a traceback
            pass
        return dict(np.load(path))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f'{path.name}: {error}') from error


class Order:
    """What a run recorded in a directory.

    Attributes:
      folder: string, the path of the run's folder.
      name: string, the name of the folder.
      flags: list of strings, the flags of the run.
      workers: int.
      start: dict of arrays, the variables at the beginning.
      rows: list by worker of lists of `Row`.
      own: list by worker of lists of arrays, what each worker kept at the beginning.
      last_step: int.
    """

    def __init__(self, directory):
        """Reads the directory.

        Raises:
          SystemExit: if it is missing, incomplete, or of another TensorFlow.
        """
        directory = pathlib.Path(directory)
        try:
            run = json.loads((directory / 'run.json').read_text(encoding='utf-8'))
            self.workers, folder = run['workers'], pathlib.Path(run['folder'])
            version = run['tensorflow']
            self.start = _arrays(directory / 'start.npz')
            files = [_arrays(directory / f'worker-{worker}.npz') for worker in range(self.workers)]
            self.rows = [_rows(file) for file in files]
            self.own = [[file[f'own_{i}'] for i in range(len(file) - len(Row._fields))]
                        for file in files]
            given = list(run['flags'])
            for flag in given:
                if not isinstance(flag, str):
                    raise TypeError(f'run.json: {flag} is no flag')
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f'--replay={directory}: there is no order of a run ({error}). A run writes it '
                     'with --order_dir=.')
        if version != tf.__version__:
            sys.exit(f'--replay={directory}: that run was on TensorFlow {version}, and this is '
                     f'{tf.__version__}, which shuffles the examples in another order.')
        self.name = folder.name
        self.folder = str(folder if folder.is_dir() else folder.name)
        self.flags = [flag for flag in given
                      if flag.lstrip('-').partition('=')[0] not in _OF_THE_PLACE]
        there = {step for rows in self.rows for row in rows for step in row.step}
        self.last_step = max(there, default=0)
        missing = sorted(set(range(1, self.last_step + 1)) - there)
        if missing or not there:
            sys.exit(f'--replay={directory}: no worker has written down '
                     f'{f"update {missing[0]}" if missing else "any update"}. One was lost: such a '
                     'run cannot be repeated.')


def asked_for(arguments):
    """Returns the `Order` that a list of unparsed arguments asks for, or None."""
    directory = schemes.asked_for(arguments, 'replay')
    return Order(directory) if directory else None


class Replay:
    """Plays the workers of a run in the order of the run.

    Attributes:
      step: int, the global step.
      updates: list of `Update`, those so far.
      differs: float, the largest relative difference between a loss and that of the run.
      other: int, the step that was pulled for the first loss that is not that of the run, or None.
    """

    def __init__(self, player, order, without=()):
        """Takes a `player.Player`, an `Order`, and the updates to leave out, strings or ints."""
        self._player, self._order = player, order
        try:
            self._without = set(map(int, without))
        except ValueError:
            sys.exit(f'--without={",".join(without)}: these are no numbers of updates.')
        self._together = player.scheme.complete is not None
        if self._together and self._without:
            sys.exit('--without: in this scheme all workers make each update together.')
        if (not self._together and sum(len(row.step) for rows in order.rows for row in rows)
                > order.last_step):
            sys.exit('--replay: some updates were made twice. A ps was lost: such a run cannot be '
                     'repeated.')
        player.restore(order.start)
        for worker, own in enumerate(order.own):
            player.begin(worker, own)
        pieces = [piece for piece in player.pieces[0] if piece.what in ('pulls', 'pushes')]
        self._left = [collections.deque((piece, row) for row in rows for piece in pieces)
                      for rows in order.rows]
        # By worker: the step that it pulled last, and how many updates it has made since.
        self._rounds, self._pulled, self._made = {}, {}, {}
        self.step, self.updates, self.differs, self.other = 0, [], 0., None
        self._center = self._flat()

    def _flat(self):
        return np.concatenate([np.ravel(array) for array in self._player.center()])

    def run(self, until=None):
        """Goes on up to a global step, by default to the end."""
        last_step = min(until or self._order.last_step, self._order.last_step)
        while self.step < last_step:
            self._pull()
            if self._together:
                self._push_together()
            else:
                self._push_one()

    def _pull(self):
        """Has workers pull that did so at this step; what was dropped later leads to nothing."""
        for worker, left in enumerate(self._left):
            while self._next(worker, 'pulls') == self.step:
                piece, row = left.popleft()
                self._rounds[worker] = self._player.compute(worker, self._rounds.get(worker),
                                                            piece.number)
                self._pulled[worker], self._made[worker] = self.step, 0
                if self._rounds[worker].figures:
                    self._compare(worker, row)
                if row.dropped:
                    left.popleft()
                    self._rounds.pop(worker)

    def _next(self, worker, what):
        """Returns the global step of what a worker does next, or None if that is not `what`."""
        if self._left[worker]:
            piece, row = self._left[worker][0]
            if piece.what == what:
                return (row.pulled if what == 'pulls' else row.step)[piece.number]
        return None

    def _compare(self, worker, row):
        """Compares the loss of a round with the recorded one."""
        loss = self._rounds[worker].figures['loss']
        if loss != row.loss and not np.isnan([loss, row.loss]).all():
            difference = abs(loss - row.loss) / max(abs(row.loss), 1e-30)
            self.differs = max(self.differs, difference)
            if not difference <= _ARITHMETIC and self.other is None:
                self.other = row.pulled[-1]

    def _push_one(self):
        worker = next((worker for worker in self._rounds
                       if self._next(worker, 'pushes') == self.step + 1), None)
        if worker is None:
            sys.exit(f'--replay: nobody who has pulled makes update {self.step + 1}: the order is '
                     'not that of a run.')
        if self.step + 1 not in self._without:
            self._player.push(worker, self._rounds[worker], self._left[worker][0][0].number)
        self._add([worker])

    def _push_together(self):
        # In the order in which they came, on which the rounding of the sums depends.
        pushing = sorted((worker for worker in self._rounds if self._pulled[worker] == self.step),
                         key=lambda worker: self._left[worker][0][1].at)
        needed = self._player.hparams.replicas_to_aggregate or self._order.workers
        if len(pushing) < needed:  # there may be more: pushes that came meanwhile count, too
            sys.exit(f'--replay: {len(pushing)} workers have pushed in step {self.step + 1}, which '
                     f'takes {needed}: the order is not that of a run.')
        for worker in pushing:
            self._player.push(worker, self._rounds[worker])
        self._player.complete()
        self._add(pushing)

    def _add(self, workers):
        """Records pushes of workers, which have made a step."""
        self.step += 1
        center = self._flat()
        way, self._center = float(np.linalg.norm(center - self._center)), center
        for worker in workers:
            piece, _ = self._left[worker].popleft()
            pulled, loss = self._pulled[worker], self._rounds[worker].figures.get('loss')
            self.updates.append(Update(
                self.step, worker, pulled, self.step - 1 - pulled - self._made[worker],
                None if loss is None else float(loss), way, float(np.linalg.norm(center))))
            self._made[worker] += 1
            if piece.number == self._player.pushes - 1:
                self._rounds.pop(worker)

    def write(self, path):
        """Writes the updates as CSV."""
        with open(path, 'w', newline='', encoding='utf-8') as file:
            writer = csv.writer(file)
            writer.writerow(Update._fields)
            writer.writerows(self.updates)

    def write_center(self, path):
        """Writes the current center, arrays by name."""
        with open(path, 'wb') as file:
            np.savez(file, **{variable.op.name: array for variable, array in
                              zip(self._player.variables, self._player.center())})

    def say(self, name, look_at=None):
        """Prints the results.

        Args:
          name: string, with which each line begins.
          look_at: int, the update to show with those around it; by default the one after which the
            loss explodes, if there is one.
        """
        test = self._player.test()
        metric = next(iter(test))
        console.say(name, f'test {metric} {test[metric]:.3f} after {self.step} steps of '
                    f'{self._order.last_step}, {self._order.workers} workers')
        exploded = self._exploded()
        if exploded:
            made = next(each for each in self.updates if each.step == exploded.pulled)
            console.say(name, f'the loss is {exploded.loss:.3g} after update {made.step}, by '
                        f'worker {made.worker} with staleness {made.staleness}; at first it was '
                        f'{self._with_loss()[0].loss:.3g}')
            look_at = look_at or made.step
        if look_at:
            self._show(look_at)

    def _exploded(self):
        """Returns the `Update` computed at the first center that has a large loss, or None."""
        known = self._with_loss()
        large = [update for update in known
                 if update.pulled and not update.loss <= _EXPLODED * known[0].loss]
        return min(large, key=lambda update: update.pulled) if large else None

    def _with_loss(self):
        return [update for update in self.updates if update.loss is not None]

    def _show(self, step):
        """Prints the updates around one."""
        print('  step worker pulled staleness      loss       way    center')
        for each in self.updates:
            if abs(each.step - step) <= _AROUND:
                loss = '' if each.loss is None else f'{each.loss:.4g}'
                print(f'{each.step:6} {each.worker:6} {each.pulled:6} {each.staleness:9} '
                      f'{loss:>9} {each.way:9.4g} {each.center:9.4g}')

    def check(self, name):
        """Prints that this was the run, or ends the program if it should have been and was not."""
        if self._without:
            return
        if self.other is not None:
            sys.exit(f'--replay: a loss at step {self.other} is not that of the run; they differ '
                     f'by up to {self.differs:.1g} of it: the model is random itself, or the '
                     'order, flags or data are others.')
        console.say(name, 'each loss is that of the run, '
                    + (f'but for {self.differs:.1g} of it' if self.differs else 'to the bit'))
