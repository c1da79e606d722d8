"""The order of a run's pulls and pushes, for who repeats the run, and looks into it.

With --order_dir=DIRECTORY, one that is new and that all workers see, these files are written there:

- `run.json`: 'folder' of the program, 'workers', 'flags' that were given, the version 'tensorflow';
- `start.npz`: the variables on the ps as the run begins, by name;
- `worker-0.npz` and so on, when that worker ends: a row for each run of its train op. Of the global
  step it has 'pulled' and what it was after the push, 'step', or where a run has several pulls or
  pushes a list of them; 'dropped', whether the push was too late to count; 'loss'; and 'at', when
  the last push began, in seconds on the clock of one ps: sums of several pushes are rounded as
  these come. What the worker kept as it began is 'own_0' and so on.

In a recorded run each pull and each push is whole: the ps lets one at a time touch its variables.
Else a pull may see half of an update, which no order of whole ones repeats. And it begins when all
workers are there, as the order of their examples depends on the step at which they come. That
changes when things happen, and not what a scheme does.
"""

import atexit
import json
import os
import sys
import time

from absl import flags
import numpy as np
from tfdist import directories, graphs, patience, runs
from tfdist.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('order_dir', None, 'new directory for the order of pulls and pushes, seen by '
                    'all workers: the run can be repeated then, see Simulation')
_COLUMNS = 'pulled', 'step', 'dropped', 'loss', 'at'


def check(scheme, hparams, num_workers):
    """Ends the program if the order of pulls and pushes is not all that makes a run.

    Args:
      scheme: `seam.Seam`.
      hparams: object, its hyperparameters.
      num_workers: int, or None if nobody knows.
    """
    for applies, why in (
            (hasattr(scheme, 'sums'), 'there is no center that is pulled and pushed'),
            (num_workers is None, 'workers come and go'),
            (hasattr(hparams, 'batches_per_ticket'), 'which examples a worker gets depends on when '
             'it asks'),
            ((getattr(hparams, 'replicas_to_aggregate', None) or num_workers) != num_workers, 'a '
             'worker may pull while backup workers complete a step, and see half of it')):
        if applies:
            sys.exit(f'--order_dir: in this scheme {why}: such a run is not recorded.')


class Recorder(tf.train.SessionRunHook):
    """Records the runs of a scheme's train op. Give it as a hook."""

    def __init__(self, scheme, global_step, hparams, task_index, num_workers):
        """Changes `train_op` of a `seam.Seam`; the other arguments are those of its constructor."""
        check(scheme, hparams, num_workers)
        self._directory, self._task_index = hparams.order_dir, task_index
        self._workers = num_workers
        directories.make(self._directory, 'order_dir')
        if os.path.exists(self._file()):
            sys.exit(f'--order_dir={self._directory} has the order of another run. Give a new one.')
        self._scheme, self._rows, self._began = scheme, [], False
        done, at = _one_at_a_time(scheme, global_step.device)
        pulled = [each.tensors[0] for each in scheme.exchanges if isinstance(each, runs.Pull)]
        steps = [each.figures['global_step'] for each in scheme.exchanges[:-1]
                 if isinstance(each, runs.Push)] + [scheme.train_op['global_step']]
        with tf.device(scheme.worker_device(task_index)), tf.control_dependencies([done]):
            row = [_list(pulled), _list(steps), scheme.train_op.get('dropped', tf.constant(0.)),
                   scheme.train_op['loss'], at]
            step = tf.py_func(self._note, row, tf.int64)
        step.set_shape([])
        scheme.train_op['global_step'] = step

    def _note(self, *row):
        self._rows.append(row)
        return np.ravel(row[1])[-1]

    def _file(self, name=None):
        return os.path.join(self._directory, name or f'worker-{self._task_index}.npz')

    def after_create_session(self, session, coord):
        """Writes what there is at the beginning, and waits until all have done so."""
        if self._began:  # a ps was lost, and steps with it: who repeats the run finds that
            return
        self._began = True
        if self._task_index == 0:
            self._write_start(session)
        own = session.run(self._scheme.own)
        self._write_own(own)
        atexit.register(self._write_own, own)
        patience.PATIENCE.expect('not all workers are there, whose order is to be written')
        names = ['start.npz', *(f'worker-{worker}.npz' for worker in range(self._workers))]
        while not all(os.path.exists(self._file(name)) for name in names):
            time.sleep(0.05)

    def _write_start(self, session):
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        values = session.run(variables)
        if values['global_step']:
            sys.exit('--order_dir: a run is recorded from its beginning, and this one goes on at '
                     f'step {values["global_step"]}. Give another --model_dir, or none.')
        run = {'folder': os.path.dirname(os.path.abspath(sys.argv[0])), 'workers': self._workers,
               'flags': [FLAGS[name].serialize() for name in FLAGS if FLAGS[name].present],
               'tensorflow': tf.__version__}
        with open(self._file('run.json'), 'w', encoding='utf-8') as file:
            json.dump(run, file, indent=1)
        _write(self._file('start.npz'), values)

    def _write_own(self, own):
        columns = zip(*self._rows) if self._rows else [[]] * len(_COLUMNS)
        values = dict(zip(_COLUMNS, map(np.array, columns)))
        _write(self._file(), dict(values, **{f'own_{i}': value for i, value in enumerate(own)}))


def _list(tensors):
    """Returns a list of tensors as one; it is that one if there is one."""
    return tf.stack(tensors) if len(tensors) > 1 else tensors[0]


def _one_at_a_time(scheme, device):
    """Has pulls and pushes of all workers touch the variables one after the other.

    Args:
      scheme: `seam.Seam`.
      device: string, where the mutex is.

    Returns:
      An op: the last push is done; and a float64 scalar tensor, when that began.
    """
    with tf.device(device):
        mutex = tf.raw_ops.MutexV2(shared_name='order')
    done, earlier, ops = [], set(), []
    for exchange in scheme.exchanges:
        found = graphs.ancestors(exchange.results)
        ops.append(found - earlier - graphs.ancestors(exchange.needs))
        earlier |= found
    for exchange, mine in zip(scheme.exchanges, ops):
        lock, free = _alone(mutex, mine, [*done, *exchange.needs], exchange.results)
        done = [free]
    with tf.device(device), tf.control_dependencies([lock]):
        return free, tf.timestamp()


def _alone(mutex, ops, after, results):
    """Has those of some ops that touch resources wait for the mutex, which their results free.

    Args:
      mutex: resource tensor.
      ops: set of ops.
      after: list of ops and tensors that are to be there first.
      results: list of tensors.

    Returns:
      The op that has got it, and the one that frees it.
    """
    with tf.device(mutex.device):
        with tf.control_dependencies(after):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        for op in ops:
            # TensorFlow 1.15 has accumulators as references.
            if any(tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype
                   for tensor in op.inputs):
                op._add_control_input(lock.op)
        with tf.control_dependencies(results):
            return lock.op, tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


def _write(path, arrays):
    """Writes a file of arrays by name, which is there as a whole or not at all."""
    with open(f'{path}.part', 'wb') as file:
        np.savez(file, **arrays)
    os.replace(f'{path}.part', path)
