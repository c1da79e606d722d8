"""The ring past TensorFlow's servers: pieces travel over sockets of their own. --implementation.

A step's sums are made in one call of Python, which sends to the next worker while it receives from
the one before. It copies nothing: it sends from where the gradients are, and receives to where the
sums will be. The order of additions is that of the ring of queues, and so are the sums, bit for
bit.
"""

import collections
import contextlib
import hmac
import secrets
import select
import socket
import sys
import time

from absl import flags
import numpy as np
from tfdist.cluster import liveness, patience
from tfdist.start.quiet import tf
import ring

FLAGS = flags.FLAGS
flags.DEFINE_integer('sockets_port', 0, 'with --implementation=sockets worker i listens on this '
                     'port plus i, as well; 0: on any that is free', lower_bound=0,
                     upper_bound=65535)
_HALF = 16  # bytes of a token
_BUFFER = 2 ** 22  # bytes of a socket: a piece of a large network
_ALIGNMENT = 64  # bytes
_LOOK_MSECS = 1000
_MOST_STRANGERS = 100  # that may say nothing yet


class LostError(Exception):
    """A neighbour is gone, for the reason that it gives."""


class Exchange:
    """Sums vectors over all workers, around a ring; for one worker.

    Attributes:
      sent: int, bytes sent so far.
    """

    def __init__(self, index, num_workers, lost=None):
        """Takes a place in the ring.

        Args:
          index: int, the place of this worker.
          num_workers: int.
          lost: function of a reason, a string, to call when a neighbour is gone; by default
            `LostError` is raised.
        """
        self._index, self._size, self._lost = index, num_workers, lost
        self._next = self._previous = None
        self._received, self._results = {}, {}
        self.sent = 0

    def connect(self, to_next, from_previous):
        """Takes the connections, two `socket.socket`, before the first sum."""
        for each in to_next, from_previous:
            each.setblocking(False)
            for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
                each.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
            if each.family != socket.AF_UNIX:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next, self._previous = to_next, from_previous

    def sums(self, vectors):
        """Sums vectors over all workers.

        Args:
          vectors: list of [n] tensors; each n may be any number, known when the graph is built.

        Returns:
          List of [n] tensors.

        Raises:
          SystemExit: if NumPy cannot add what they are of.
        """
        if self._size == 1:
            return list(vectors)
        for vector in vectors:
            try:
                np.add(*[np.zeros(1, vector.dtype.as_numpy_dtype)] * 2)
            except TypeError:
                sys.exit(f'--implementation=sockets: NumPy does not add {vector.dtype.name} here. '
                         'Use float32 in the model, or --implementation=ring.')
        with tf.device('/device:CPU:0'):
            sums = tf.py_func(self._sum_all, vectors, [vector.dtype for vector in vectors],
                              name='exchange')
        for total, vector in zip(sums, vectors):
            total.set_shape(vector.shape)
        return sums

    def _sum_all(self, *vectors):
        try:
            return [self.sum(vector, number) for number, vector in enumerate(vectors)]
        except LostError as error:
            if self._lost is None:
                raise
            return self._lost(str(error))

    def sum(self, vector, number=0):
        """Sums an [n] array over all workers; `number`, an int, tells the vectors of a step apart.

        Raises:
          LostError: if a neighbour is gone.
        """
        total = self._result(vector, number)
        size, rest = divmod(len(vector), self._size)
        ends = np.cumsum([0] + [size + 1] * rest + [size] * (self._size - rest))
        mine, totals = ([array[begin:end] for begin, end in zip(ends, ends[1:])]
                        for array in (vector, total))
        self.scatter_reduce(mine, totals)
        self.all_gather(totals)
        return total

    def scatter_reduce(self, mine, totals):
        """Sums each piece over all workers; each worker ends with one whole sum.

        Args:
          mine: list of arrays, the pieces of this worker's vector.
          totals: list of arrays for the sums, of which the one at index + 1 becomes whole.
        """
        piece = mine[self._index]
        for i in range(self._size - 1):
            place = (self._index - i - 1) % self._size
            received = self._room(mine[place])
            self.hop(piece, received)
            piece = np.add(mine[place], received, out=totals[place])

    def all_gather(self, totals):
        """Gives each worker the whole sums of the others, in place, from `scatter_reduce`."""
        for i in range(self._size - 1):
            self.hop(totals[(self._index + 1 - i) % self._size],
                     totals[(self._index - i) % self._size])

    def hop(self, piece, received):
        """Sends an array to the next worker, and fills another from the worker before.

        Both go on at the same time, in this thread: a thread for each would take turns with the
        other, as Python runs one at a time.
        """
        out, into = (memoryview(array.view(np.uint8)) for array in (piece, received))
        self.sent += len(out)
        while out or into:
            moved = self._send(out) if out else 0
            out = out[moved:]
            filled = self._receive(into) if into else 0
            into = into[filled:]
            if not moved and not filled:
                wait = select.poll()
                if out:
                    wait.register(self._next, select.POLLOUT)
                if into:
                    wait.register(self._previous, select.POLLIN)
                wait.poll(_LOOK_MSECS)

    def _send(self, out):
        """Returns how many bytes could be sent at once."""
        try:
            return self._next.send(out)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LostError(f'the next one: {error.strerror}') from error

    def _receive(self, into):
        """Returns how many bytes were there to be received."""
        try:
            filled = self._previous.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LostError(f'the one before: {error.strerror}') from error
        if not filled:
            raise LostError('the one before has closed its connection')
        return filled

    def _room(self, like):
        """Returns an array like another, to receive in; the next call returns the same memory."""
        key = like.dtype
        if key not in self._received or len(self._received[key]) < len(like):
            self._received[key] = np.empty(len(like), like.dtype)
        return self._received[key][:len(like)]

    def _result(self, vector, number):
        """Returns an array for a sum that nobody uses any more: new memory costs more than a sum.

        TensorFlow, or whoever has fetched an earlier sum, holds a reference to its memory.
        """
        known = self._results.setdefault((number, len(vector), vector.dtype), [])
        for i in range(len(known)):
            if sys.getrefcount(known[i]) == 2:  # the list's, and that of this call
                return known[i]
        known.append(_aligned(len(vector), vector.dtype))
        return known[-1]


class Meeting(tf.train.SessionRunHook):
    """Connects the workers of a ring, who tell each other through their servers where they listen.

    Each tells the next one, which connects, and shows the token that it was told.
    """

    def __init__(self, exchange, place, resolver):
        """Makes the ops.

        Args:
          exchange: `Exchange` of this worker.
          place: `ring.Place` of this worker.
          resolver: cluster resolver.
        """
        self._exchange, self._size = exchange, len(place.workers)
        self._name = f'worker {resolver.task_id}'
        following = (place.index + 1) % self._size  # the one before may not be in this session
        self._before = place.workers[place.index - 1]
        self._host = resolver.cluster_spec().task_address(
            'worker', self._before).rpartition(':')[0].strip('[]')
        self._port = FLAGS.sockets_port and FLAGS.sockets_port + resolver.task_id
        self._mine = tf.placeholder(tf.string, [2])
        self._tell = place.queue(following, 'sockets', [tf.string], [[2]]).enqueue([self._mine])
        self._hear = place.queue(place.index, 'sockets', [tf.string], [[2]]).dequeue()

    def after_create_session(self, session, coord):
        """Meets the neighbours.

        Raises:
          SystemExit: if they cannot be reached.
        """
        if self._size == 1:
            return
        token, secs = secrets.token_bytes(2 * _HALF), liveness.FLAGS.patience_secs
        with self._listening() as listening, patience.PATIENCE.during('the workers have not met'):
            session.run(self._tell, {self._mine: [str(listening.getsockname()[1]), token]})
            port, its_token = session.run(self._hear)
            try:
                before = socket.create_connection((self._host, int(port)), ring.LOST_AFTER_SECS)
                before.sendall(its_token[:_HALF])
                following = accept(listening, token, secs)
                before.settimeout(secs)  # it answers when it accepts, too
                if not hmac.compare_digest(before.recv(_HALF, socket.MSG_WAITALL),
                                           its_token[_HALF:]):
                    raise OSError('another program answers')
            except OSError as error:
                sys.exit(f'{self._name}: worker {self._before} cannot be reached at {self._host}:'
                         f'{int(port)} ({error.strerror or error}), a port that the ring opens '
                         "beside TensorFlow's. Open it, see --sockets_port, or take "
                         '--implementation=ring.')
            self._exchange.connect(following, before)

    def _listening(self):
        """Returns a socket that listens on all addresses."""
        listening = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
        with contextlib.suppress(OSError, AttributeError):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(('', self._port))
        except OSError as error:
            sys.exit(f'{self._name} cannot listen on port {self._port} ({error.strerror}): give '
                     'another --sockets_port.')
        listening.listen(_MOST_STRANGERS)
        return listening


def accept(listening, token, secs):
    """Returns the first connection that shows a token, and is shown its other half.

    A stranger has no token: it is not let in, and keeps nobody from coming in.

    Args:
      listening: `socket.socket`.
      token: bytes.
      secs: float, how long to wait.

    Raises:
      OSError: if it takes longer.
    """
    deadline, waiting = time.monotonic() + secs, collections.OrderedDict()  # by descriptor
    wait = select.poll()
    wait.register(listening, select.POLLIN)

    def take_out(descriptor):
        wait.unregister(descriptor)
        return waiting.pop(descriptor)

    try:
        while time.monotonic() < deadline:
            for descriptor, _ in wait.poll(_LOOK_MSECS):
                if descriptor != listening.fileno():
                    each = take_out(descriptor)
                    if _shows(each, token):
                        return each
                    each.close()
                    continue
                each = listening.accept()[0]
                each.setblocking(False)
                waiting[each.fileno()] = each
                wait.register(each, select.POLLIN)
            while len(waiting) > _MOST_STRANGERS:  # the first has had the most time
                take_out(next(iter(waiting))).close()
    finally:
        for each in waiting.values():
            each.close()
    raise OSError(f'the next worker has not connected in {secs:g} s')


def _shows(connection, token):
    """Returns whether who has connected shows the token; if so it is shown the other half."""
    with contextlib.suppress(OSError):
        if hmac.compare_digest(connection.recv(_HALF), token[:_HALF]):
            connection.sendall(token[_HALF:])
            return True
    return False


def _aligned(size, dtype):
    """Returns an uninitialized array that TensorFlow takes without copying it."""
    memory = np.empty(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin:begin + size * dtype.itemsize].view(dtype)
