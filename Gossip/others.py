"""The other workers, as one of them sees them: how far each has come, and its values.

Each is asked by itself, through its own server: so one that is gone, or hangs, holds up nothing
else, and nothing of it is left here.
"""

import threading

from tfdist.cluster import liveness, servers
from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf

# How far a worker has come: it has its values; it trains, or may; it has made its last step; the
# mean has been tested and saved; its sessions are closed.
BEGUN, TRAINS, DONE, OVER, CLOSED = range(1, 6)
_ANSWER_SECS = 10
_STAGE = 0  # the key of how far a worker has come


def device_of(worker):
    """Returns the device of a worker."""
    return f'/job:worker/task:{worker}'


def handle_of(variable, worker):
    """Returns the handle of the variable that another worker has in the place of this one."""
    own = variable.handle.op
    with tf.device(device_of(worker)):
        return tf.raw_ops.VarHandleOp(
            dtype=variable.dtype.base_dtype, shape=variable.shape,
            container=own.get_attr('container').decode(),
            shared_name=own.get_attr('shared_name').decode())


def read(variable, worker):
    """Returns the value that another worker has in the place of a variable, there."""
    handle = handle_of(variable, worker)
    with tf.device(device_of(worker)):
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype.base_dtype)
    value.set_shape(variable.shape)
    return value


class Link:
    """Runs ops in a session on another worker's server, as long as that worker answers.

    Attributes:
      worker: int.
      silence: string, why the last call had no answer; empty if it had one.
    """

    def __init__(self, worker, target, graph, sees, answer_secs=_ANSWER_SECS):
        """Takes what to run ops of.

        Args:
          worker: int, the other one, or this one.
          target: string, such as grpc://localhost:2223.
          graph: `tf.Graph`.
          sees: list of ints, the workers on whose devices its ops are.
          answer_secs: float, how long a call may take.
        """
        self.worker, self.silence = worker, ''
        self._target, self._graph, self._session = target, graph, None
        self._config = servers.config(device_filters=list(map(device_of, sees)),
                                      operation_timeout_in_ms=int(1000 * answer_secs))

    def run(self, fetches, feed_dict=None):
        """Returns what `tf.Session.run` does; None if the worker does not answer: see `silence`."""
        try:
            if not self._session:
                self.silence = liveness.silence(self._target.rpartition('/')[2])
                if self.silence:
                    return None
                self._session = tf.Session(self._target, self._graph, self._config)
            return self._session.run(fetches, feed_dict)
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
                tf.errors.DeadlineExceededError) as error:
            late = isinstance(error, tf.errors.DeadlineExceededError)
            self.silence = liveness.LATE if late else error.message.splitlines()[0]
            self.close()
            return None

    def close(self):
        """Closes the session, beside this thread: that may take long if the worker is gone."""
        session, self._session = self._session, None
        if session:
            threading.Thread(target=_close, args=(session,), daemon=True).start()


def _close(session):
    try:
        session.close()
    except tf.errors.OpError:
        pass  # its worker is gone


class Board:
    """Numbers that one worker shows of itself: how far it has come, and others by their keys.

    Attributes:
      index: int.
      target: string, of sessions on its server.
      link: `Link`.
    """

    def __init__(self, index, target):
        """Takes the index of a worker, and the target of sessions on it."""
        self.index, self.target = index, target
        with tf.Graph().as_default() as self._graph:
            board = volatile_table.VolatileTable('gossip', device_of(index), default=0)
            with tf.device(device_of(index)):
                key, self._new = tf.constant(_STAGE, tf.int64), tf.placeholder(tf.int64, [])
                self._stage, self._show = board.read(key), board.write(key, self._new)
                self._keys, self._numbers = (tf.placeholder(tf.int64, [None]) for _ in range(2))
                self._read, self._write = (board.read(self._keys),
                                           board.write(self._keys, self._numbers))
        self.link = Link(index, target, self._graph, [index])

    def stage(self):
        """Returns how far it has come, an int, 0 at first; None if it does not answer."""
        stage = self.link.run(self._stage)
        return None if stage is None else int(stage)

    def show(self, stage):
        """Has this worker show how far it has come, an int."""
        self.link.run(self._show, {self._new: stage})

    def told(self, keys):
        """Returns numbers by a list of keys, a list of ints, each 0 at first; None as `stage`."""
        numbers = self.link.run(self._read, {self._keys: keys})
        return None if numbers is None else numbers.tolist()

    def tell(self, numbers):
        """Has this worker show numbers, a dict of ints by keys."""
        keys, values = zip(*numbers.items())
        self.link.run(self._write, {self._keys: keys, self._numbers: values})


class Worker(Board):
    """One worker: what it shows of itself, and its variables."""

    def __init__(self, index, target, variables):
        """Takes its index, the target of sessions on it, and `tf.Variable`s of this worker."""
        super().__init__(index, target)
        with self._graph.as_default():
            self._values = {variable.op.name: read(variable, index) for variable in variables}

    def values(self, variables):
        """Returns its values of some variables, a list of arrays; None if it does not answer."""
        return self.link.run([self._values[variable.op.name] for variable in variables])
