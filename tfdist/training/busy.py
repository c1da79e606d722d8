"""Who is busy on behalf of all says so, and those who wait for it hear that it is alive.

A synchronous step waits for all its workers, and one of them may be testing for an hour. The others
cannot tell that from a worker that hangs. So whoever tests, exports or saves beats on a board that
is kept beside the global step, and the patience of those who wait is for what does not beat.
"""

import contextlib
import functools
import itertools
import threading
import time

from tfdist.cluster import patience
from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf

_BEAT_SECS, _LOOK_EVERY_SECS = 1, 1.1
_DOINGS = {'tests': 'the test is not complete', 'exports the model': 'the model is not exported',
           'saves': 'the checkpoint is not written'}  # and what this worker waits for meanwhile
_BOARDS = []  # the last one is this program's


class Board:
    """Where workers say what they are busy with; for one worker.

    Attributes:
      graph: `tf.Graph` of its ops.
    """

    def __init__(self, task_index, device, target=None):
        """Makes the ops.

        Args:
          task_index: int, the index of this worker.
          device: string, the device of the global step, which keeps the board.
          target: string, the target of sessions on the server of `device`, for a worker that has to
            listen in such a session: all threads of its own server may be waiting. By default a
            worker listens in the session that trains.
        """
        self._task_index, self._device, self._target = task_index, device, target
        self._beat = tf.placeholder(tf.int64, [3])
        table, keys = self._table()
        self._write, self._read = table.write(keys, self._beat), table.read(keys)
        self.graph = tf.get_default_graph()
        _BOARDS[:] = [self]

    def _table(self):
        """Returns the table, in the default graph, and its keys."""
        keys = tf.constant([0, 1, 2], tf.int64)  # the worker, what it does, the number of its beat
        return volatile_table.VolatileTable('busy', self._device, default=-1), keys

    def is_this_programs(self):
        """Returns whether no other board was made after this one."""
        return _BOARDS == [self]

    def beat(self, session, doing, ended):
        """Beats in a `tf.Session` until `ended`, an event; `doing` is a key of _DOINGS."""
        for number in itertools.count():
            if ended.wait(_BEAT_SECS):
                return
            # What fails here fails in whatever this worker does, too, which knows what to do.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                session.run(self._write, {self._beat: [
                    self._task_index, list(_DOINGS).index(doing), number]})

    def listen(self, session, goes_on):
        """Excuses long waits of this process while another worker beats, as long as `goes_on()`."""
        before, read = None, self._reader(session)
        while goes_on():
            time.sleep(_LOOK_EVERY_SECS)
            if not patience.PATIENCE.is_waiting():
                before = None
                continue
            now = read()
            if before is not None and (now != before).any():
                patience.PATIENCE.excuse(f'worker {now[0]} {list(_DOINGS)[now[1]]}')
            before = now

    def _reader(self, session):
        """Returns the function that reads the board; see `__init__`."""
        if not self._target:
            return functools.partial(session.run, self._read)
        with tf.Graph().as_default() as graph:
            table, keys = self._table()
            read = table.read(keys)
        own = tf.Session(self._target, graph, tf.ConfigProto(device_filters=[self._device]))
        own.run(read)  # now: a busy server takes ten times as long for the first run as for others
        return functools.partial(own.run, read)


@contextlib.contextmanager
def on_behalf_of_all(session, doing):
    """Says on the board, if there is one, that this worker is busy as long as the block runs.

    This worker's own patience still counts: if it hangs it ends, and with it the beats.

    Args:
      session: `tf.Session`.
      doing: string, 'tests', 'exports the model' or 'saves'.
    """
    ended = threading.Event()
    for board in _BOARDS:
        if board.graph is session.graph:
            threading.Thread(target=board.beat, args=(session, doing, ended), daemon=True).start()
    try:
        with patience.PATIENCE.during(_DOINGS[doing]):
            yield
    finally:
        ended.set()
