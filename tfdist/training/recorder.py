"""Records the order of a run's pulls and pushes, so that the run can be repeated and looked into.

With --order_dir=DIRECTORY, a new one that all workers see, these files are written there:

- `run.json`: 'folder' of the program, 'workers', 'flags' that were given, the version 'tensorflow';
- `start.npz`: the variables on the ps as the run begins, by name;
- `worker-0.npz` and so on, when that worker ends: a row for each run of its train op. It has
  'pulled', the global step as read, and 'step', the global step after the push, each a list if a
  run has several pulls or pushes; 'dropped', whether the push was too late to count; 'loss'; and
  'at', when the last push began, in seconds on the clock of one ps: sums of several pushes are
  rounded in the order in which they come. The worker's own variables at its start are 'own_0' and
  so on.

In a recorded run each pull and each push is atomic: the ps lets one worker at a time touch its
variables. Otherwise a pull may see half of an update, which no order of whole updates repeats. And
training begins when all workers are there, because the order of their examples depends on the step
at which they start. Recording changes when things happen, but not what a scheme does.
"""

import atexit
import json
import os
import sys
import time

from absl import flags
import numpy as np
from tfdist.cluster import patience
from tfdist.scheme import graphs, schedule
from tfdist.start import directories
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('order_dir', None, 'new directory for the order of pulls and pushes, seen by '
                    'all workers: the run can be repeated then, see Simulation')
_COLUMNS = 'pulled', 'step', 'dropped', 'loss', 'at'


class Recorder:
    """Records the runs of a scheme's train op; a trainer tells it of each new session."""

    def __init__(self, scheme, directory):
        """Changes `train_op` of a `seam.Seam`, whose graph is not finished yet.

        Args:
          scheme: `seam.Seam`.
          directory: string, where to write.

        Raises:
          SystemExit: if the directory cannot be used, or if the order of pulls and pushes is not
            all that makes a run of this scheme.
        """
        reason = scheme.not_recorded or scheme.others and 'not every run is the same one'
        if reason:
            sys.exit(f'--order_dir: in this scheme {reason}: such a run is not '
                     'recorded.')
        self._directory, self._scheme = directory, scheme
        directories.make(directory, 'order_dir')
        if os.path.exists(self._file()):
            sys.exit(f'--order_dir={directory} has the order of another run. Give a new one.')
        self._rows, self._began = [], False
        done, at = _one_at_a_time(scheme, tf.train.get_global_step().device)
        pulled = [each.tensors[0] for each in scheme.exchanges if isinstance(each, schedule.Pull)]
        steps = [each.figures['global_step'] for each in scheme.exchanges[:-1]
                 if isinstance(each, schedule.Push)] + [scheme.train_op['global_step']]
        with tf.device(scheme.worker_device(scheme.task_index)), tf.control_dependencies([done]):
            row = [_list(pulled), _list(steps), scheme.train_op.get('dropped', tf.constant(0.)),
                   scheme.train_op['loss'], at]
            step = tf.py_func(self._note, row, tf.int64)
        step.set_shape([])
        scheme.train_op['global_step'] = step

    def _note(self, *row):
        self._rows.append(row)
        return np.ravel(row[1])[-1]

    def _file(self, name=None):
        return os.path.join(self._directory, name or f'worker-{self._scheme.task_index}.npz')

    def begin(self, session):
        """Writes what there is at the beginning, in a `tf.Session`; waits until all have done so.

        Raises:
          SystemExit: if it is not the beginning: the run resumes another one.
        """
        if self._began:  # a ps was lost, and steps with it: a replay of the run finds that
            return
        self._began = True
        if self._scheme.task_index == 0:
            self._write_start(session)
        own = session.run(self._scheme.own)
        self._write_own(own)
        atexit.register(self._write_own, own)
        patience.PATIENCE.expect('not all workers have begun to record')
        names = ['start.npz', *(f'worker-{i}.npz' for i in range(self._scheme.num_workers))]
        while not all(os.path.exists(self._file(name)) for name in names):
            time.sleep(0.05)

    def _write_start(self, session):
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        values = session.run(variables)
        if values['global_step']:
            sys.exit('--order_dir: a run is recorded from its beginning, but this one resumes at '
                     f'step {values["global_step"]}. Give another --model_dir, or none.')
        run = {'folder': os.path.dirname(os.path.abspath(sys.argv[0])),
               'workers': self._scheme.num_workers,
               'flags': [FLAGS[name].serialize() for name in FLAGS if FLAGS[name].present],
               'tensorflow': tf.__version__}
        with open(self._file('run.json'), 'w', encoding='utf-8') as file:
            json.dump(run, file, indent=1)
        _write(self._file('start.npz'), values)

    def _write_own(self, own):
        columns = zip(*self._rows) if self._rows else [[]] * len(_COLUMNS)
        values = dict(zip(_COLUMNS, map(np.array, columns)))
        _write(self._file(), dict(values, **{f'own_{i}': value for i, value in enumerate(own)}))


def asked_for(scheme):
    """Returns a `Recorder` of a `seam.Seam` with --order_dir, else None."""
    return Recorder(scheme, FLAGS.order_dir) if FLAGS.order_dir else None


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
    """Makes each of `ops` that touches a resource wait for the mutex; `results` release it.

    Args:
      mutex: resource tensor.
      ops: set of ops.
      after: list of ops and tensors that are to be there first.
      results: list of tensors.

    Returns:
      The op that takes the mutex, and the one that releases it.
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
