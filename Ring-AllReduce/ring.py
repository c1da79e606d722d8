"""Workers without a ps: they start with the same values, and end together."""

import collections
import contextlib
import threading
import time

from tfdist.cluster import liveness, patience
from tfdist.start import console
from tfdist.training import checkpoints, training_flags
from tfdist.start.quiet import tf

LOST_AFTER_SECS = 10  # a worker's state dies with its process: no use in waiting for a new one


class Place(collections.namedtuple('Place', ['workers', 'index', 'source', 'container', 'before'])):
    """The place of a worker in a ring.

    Attributes:
      workers: list of ints, the workers of the ring in its order.
      index: int, this worker's place.
      source: int, the place of the worker whose values all begin with.
      container: string, where the queues of the ring are; empty if there is only one ring.
      before: int, how many batches more there were than if there had been only this ring.
    """

    __slots__ = ()

    @classmethod
    def among_all(cls, task_index, num_workers):
        """Returns the place of worker `task_index` in a ring of all workers."""
        return cls(list(range(num_workers)), task_index, 0, '', 0)

    def device(self, index):
        """Returns the device of the worker at a place."""
        return f'/job:worker/task:{self.workers[index]}'

    def own_queues(self):
        """Returns a scope, in which queues are of this ring and no other."""
        return tf.container(self.container) if self.container else contextlib.nullcontext()

    def queue(self, index, name, dtypes, shapes):
        """Returns the queue `name` in the memory of the worker at a place."""
        with self.own_queues(), tf.device(self.device(index)), tf.device('/device:CPU:0'):
            return tf.FIFOQueue(-1, dtypes, shapes, shared_name=name)


def give_up(name, reason):
    """Ends this process, of a worker `name`, with a line that says for what reason all have to."""
    console.give_up(f'{name}: {reason}. Start all workers again: with --model_dir they go on from '
                    'the last checkpoint.')


@contextlib.contextmanager
def failures(name):
    """Ends this process, of a worker `name`, when the runtime has lost another worker."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError,
            tf.errors.CancelledError) as error:
        give_up(name, f'lost another worker ({console.reason(error.message)})')


class Ring(tf.train.SessionRunHook):
    """Starts and ends the workers together. Make it the last hook, and call `leave` at the end.

    At the start the values of one worker, as a rule worker 0 with initial ones or those of its
    checkpoint, go around the ring. At the end each worker waits for the others, because closing a
    session hangs if one of its tasks is gone, and a session's tasks include the first worker and
    the next one. So the order is: all are done; the first worker closes its session, and lets the
    others close theirs; each exits after the worker before it in the ring, and the first one last.
    """

    def __init__(self, resolver, place, variables, exchange=None, stop_watching=None):
        """Makes the ops.

        Args:
          resolver: cluster resolver.
          place: `Place` of this worker.
          variables: list of all `tf.Variable` whose values one worker gives to the others.
          exchange: `sockets.Exchange`, or None if the sums go through the servers.
          stop_watching: `threading.Event` to set when no worker need be there any more; or None.
        """
        self._exchange, self._stop_watching = exchange, stop_watching or threading.Event()
        self._resolver, self._place = resolver, place
        self._name = f'worker {resolver.task_id}'
        size = len(place.workers)
        dtypes = [variable.dtype.base_dtype for variable in variables]
        shapes = [variable.shape for variable in variables]
        steps = []
        if place.index != place.source:
            values = place.queue(place.index, 'start', dtypes, shapes).dequeue()
            steps += self.take_over(variables, values)
        following = (place.index + 1) % size
        if following != place.source:
            with tf.control_dependencies(steps):
                values = [variable.read_value() for variable in variables]
            steps.append(place.queue(following, 'start', dtypes, shapes).enqueue(values))
        self._start = tf.group(*steps)
        self._begin_batches = tf.tables_initializer()
        done, leave = (place.queue(0, name, [tf.int32], [()]) for name in ('done', 'leave'))
        self._say_done, self._hear_done = done.enqueue(place.index), done.dequeue()
        self._may_leave = leave.dequeue()

    def take_over(self, variables, values):
        """Returns the list of ops that give variables the values of another worker."""
        return [variable.assign(value) for variable, value in zip(variables, values)]

    @contextlib.contextmanager
    def failures(self):
        """Ends this process with one line when another worker is lost."""
        with failures(self._name):
            try:
                yield
            except (tf.errors.OpError, RuntimeError):
                if self._exchange and self._exchange.lost:
                    give_up(self._name, f'lost another worker ({self._exchange.lost})')
                raise

    def session_options(self, saver, server):
        """Returns what a `tf.train.MonitoredTrainingSession` gets for this ring, a dict.

        Args:
          saver: `checkpoints.Saver`, for the first worker.
          server: `tf.train.Server` of this worker.
        """
        del server
        model_dir = None if self._place.index else training_flags.FLAGS.model_dir
        checkpoints.claim(model_dir, self._name)
        return dict(checkpoint_dir=model_dir, scaffold=tf.train.Scaffold(saver=saver), hooks=[self],
                    save_checkpoint_secs=training_flags.FLAGS.save_checkpoint_secs)

    def opened(self, make_session):
        """Returns a context with the session that a function makes."""
        return make_session()

    def take_in(self):
        """Is called between two steps: nobody joins this ring later."""

    def after_create_session(self, session, coord):
        """Takes over the values of the source, and the order of examples due at its step."""
        with self.failures():
            session.run(self._start)
            session.run(self._begin_batches)
            if self._exchange:  # whose sums keep a thread that the runs above may need elsewhere
                self._exchange.wait_for_all()

    def end(self, session):
        """Waits until all are done and, except on the first, until this worker may leave."""
        patience.PATIENCE.rest()  # the first worker tests meanwhile
        with self.failures():
            if self._place.index:
                session.run(self._say_done)
                session.run(self._may_leave)
            else:
                for _ in self._place.workers[1:]:
                    session.run(self._hear_done)
        self._stop_watching.set()

    def leave(self, server):
        """Returns when this process may exit. Call it after the session is closed.

        Args:
          server: `tf.train.Server` of this worker.
        """
        addresses = self._resolver.cluster_spec().job_tasks('worker')
        if self._place.index:
            still_there = addresses[1:self._place.index][-1:]
        else:
            still_there = addresses[1:]
            self.let_leave(server)
        deadline = time.monotonic() + liveness.FLAGS.patience_secs
        while time.monotonic() < deadline and not all(map(liveness.silence, still_there)):
            time.sleep(0.05)

    def let_leave(self, server):
        """Lets the others leave. Only the first worker calls this, when all are done."""
        with tf.Graph().as_default():
            say_leave = self._place.queue(0, 'leave', [tf.int32], [()]).enqueue_many(
                tf.zeros([len(self._place.workers) - 1], tf.int32))
            config = tf.ConfigProto(device_filters=[self._place.device(0)])
            with tf.Session(server.target, config=config) as session:
                session.run(say_leave)
