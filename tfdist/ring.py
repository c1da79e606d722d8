"""Workers without a ps: they start with the same values, and end when all are done."""

import contextlib
import time

from tfdist import console, liveness, patience
from tfdist.quiet import tf
from tfdist.task_flags import FLAGS

_LOST_AFTER_SECS = 10  # the state of a worker is gone with its process: no use to wait for another


@contextlib.contextmanager
def failures(name):
    """Ends this process, in one line, when the runtime has lost another worker.

    Args:
      name: string, who is speaking, for example 'worker 0'.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        console.give_up(f'{name}: lost another worker ({console.reason(error.message)}). Start all '
                        'of them again: with --model_dir they go on from the last checkpoint.')


def _queue(task, name, dtypes, shapes):
    """Returns a queue in the memory of worker `task`, by name the same for all workers."""
    with tf.device(f'/job:worker/task:{task}/device:CPU:0'):
        return tf.FIFOQueue(-1, dtypes, shapes, shared_name=name)


class Ring(tf.train.SessionRunHook):
    """Starts and ends the workers together. Give it as the last hook, and call `leave` at the end.

    At the start the values of worker 0, new ones or those of its checkpoint, go around the ring. At
    the end everybody waits for everybody: a session hangs at its close when one of its tasks is
    gone. A session has worker 0 and the next worker among its tasks, so the order is: all are done;
    worker 0 closes its session, and lets the others close theirs; each exits after the one before
    it in the ring, and worker 0 last.
    """

    def __init__(self, resolver, variables):
        """Makes the ops.

        Args:
          resolver: a cluster resolver.
          variables: list of all `tf.Variable` that worker 0 gives to the others.
        """
        self._resolver = resolver
        self._task_index = resolver.task_id
        self._num_workers = resolver.cluster_spec().num_tasks('worker')
        self._name = f'worker {self._task_index}'
        dtypes = [variable.dtype.base_dtype for variable in variables]
        shapes = [variable.shape for variable in variables]
        steps = []
        if self._task_index:
            values = _queue(self._task_index, 'start', dtypes, shapes).dequeue()
            steps += [variable.assign(value) for variable, value in zip(variables, values)]
        if self._task_index + 1 < self._num_workers:
            with tf.control_dependencies(steps):
                values = [variable.read_value() for variable in variables]
            steps.append(_queue(self._task_index + 1, 'start', dtypes, shapes).enqueue(values))
        self._start = tf.group(*steps)
        self._begin_batches = tf.tables_initializer()
        done, leave = (_queue(0, name, [tf.int32], [()]) for name in ('done', 'leave'))
        self._say_done, self._hear_done = done.enqueue(self._task_index), done.dequeue()
        self._may_leave = leave.dequeue()

    def begin(self):
        """Waits until all workers answer, and from then on watches for those that do not."""
        self._stop_watching = liveness.watch(self._resolver, 'worker',
                                             patience_secs=_LOST_AFTER_SECS)

    def after_create_session(self, session, coord):
        """Takes over the values of worker 0, and the order of examples that is due at its step."""
        with failures(self._name):
            session.run(self._start)
            session.run(self._begin_batches)

    def end(self, session):
        """Waits until all are done, and, except worker 0, until this one may leave."""
        patience.PATIENCE.rest()  # worker 0 tests meanwhile
        with failures(self._name):
            if self._task_index:
                session.run(self._say_done)
                session.run(self._may_leave)
            else:
                for _ in range(1, self._num_workers):
                    session.run(self._hear_done)
        self._stop_watching.set()

    def leave(self, server):
        """Returns when this process may exit. To be called after the session was closed.

        Args:
          server: `tf.train.Server` of this worker.
        """
        addresses = self._resolver.cluster_spec().job_tasks('worker')
        if self._task_index:
            still_there = addresses[1:self._task_index][-1:]
        else:
            still_there = addresses[1:]
            with tf.Graph().as_default():
                say_leave = _queue(0, 'leave', [tf.int32], [()]).enqueue_many(
                    tf.zeros([self._num_workers - 1], tf.int32))
                config = tf.ConfigProto(device_filters=['/job:worker/task:0'])
                with tf.Session(server.target, config=config) as session:
                    session.run(say_leave)
        deadline = time.monotonic() + FLAGS.patience_secs
        while time.monotonic() < deadline and not all(map(liveness.silence, still_there)):
            time.sleep(0.05)
