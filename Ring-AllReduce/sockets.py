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

import numpy as np
from tfdist.cluster import patience
from tfdist.start import console
from tfdist.start.quiet import tf
import ring

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
      lost: string, why a neighbour is gone; empty as long as both are there.
    """

    def __init__(self, index, num_workers):
        """Takes the place of this worker in the ring, and how many workers there are, two ints."""
        self._index, self._size = index, num_workers
        self._next = self._previous = None
        self._received, self._results = {}, {}
        self.sent, self.lost = 0, ''

    def connect(self, to_next, from_previous):
        """Takes the connections, two `socket.socket`, before the first sum."""
        for each in to_next, from_previous:
            each.setblocking(False)
            for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
                each.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
            if each.family != socket.AF_UNIX:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next, self._previous = to_next, from_previous

    def close(self):
        """Ends both connections: who waits for them, here or there, raises `LostError`."""
        for each in self._next, self._previous:
            if each:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def sums(self, vectors):
        """Sums vectors over all workers.

        Args:
          vectors: list of [n] tensors; each n may be any number, known when the graph is built.

        Returns:
          List of [n] tensors.
        """
        if self._size == 1:
            return list(vectors)
        with tf.device('/device:CPU:0'):
            sums = tf.py_func(self._sum_all, vectors, [vector.dtype for vector in vectors])
        for total, vector in zip(sums, vectors):
            total.set_shape(vector.shape)
        return sums

    def _sum_all(self, *vectors):
        try:
            return [self.sum(vector, number) for number, vector in enumerate(vectors)]
        except LostError as error:
            self.lost = str(error)  # TensorFlow tells whoever runs this step only that it failed
            raise

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
            piece = add(mine[place], received, totals[place])

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


def add(one, other, out):
    """Adds two arrays into a third one, and returns it."""
    if one.dtype.name != 'bfloat16':
        return np.add(one, other, out=out)
    # NumPy does not know this type by itself. Its values are the upper halves of those of float32;
    # of two that are as near, TensorFlow rounds to the even one.
    wide = np.add(*((each.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                    for each in (one, other)))
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    out.view(np.uint16)[:] = np.where(np.isnan(wide), 0x7fc0, rounded)
    return out


def meet(place, resolver, target, config, port=0):
    """Connects the workers of a ring, who tell each other through their servers where they listen.

    Each tells the next one, which connects, and shows the token that it was told.

    Args:
      place: `ring.Place` of this worker.
      resolver: cluster resolver.
      target: string, of sessions on this worker.
      config: `tf.ConfigProto` of these sessions.
      port: int, where this worker listens until the next one has connected; 0: where it is free.

    Returns:
      `Exchange`; or None if not all have reached each other, which the first worker says.

    Raises:
      SystemExit: if this worker cannot listen on the port.
      tf.errors.OpError: if another worker is gone.
    """
    name = f'worker {resolver.task_id}'
    exchange = Exchange(place.index, len(place.workers))
    if len(place.workers) == 1:
        return exchange
    with patience.PATIENCE.during('the workers have not met'), tf.Graph().as_default(), \
            _listen(name, port) as listening:
        meeting = _Meeting(place, resolver)
        with tf.Session(target, config=config) as session:
            reached, connections = meeting.connect(session, listening)
            why = meeting.agree(session, reached)
    if not why:
        exchange.connect(*connections)
        return exchange
    for each in connections:
        each.close()
    if not place.index:
        console.say(name, f"{why}, so the sums go through TensorFlow's servers, which is slower. "
                    'Open that port between the workers: see --sockets_port.')
    return None


def _listen(name, port):
    """Returns a socket that listens on all addresses."""
    try:
        listening = socket.socket(socket.AF_INET6)
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # no IPv6 here
        listening = socket.socket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(('', port))
    except OSError as error:
        sys.exit(f'{name} cannot listen on port {port} ({error.strerror}): give another '
                 '--sockets_port.')
    listening.listen(_MOST_STRANGERS)
    return listening


class _Meeting:
    """What the workers tell each other, each to those that its sessions see, while they connect."""

    def __init__(self, place, resolver):
        """Makes the ops in the default graph."""
        following = (place.index + 1) % len(place.workers)
        self._before = place.workers[place.index - 1]
        self._name = f'worker {resolver.task_id}'
        self._host = resolver.cluster_spec().task_address(
            'worker', self._before).rpartition(':')[0].strip('[]')
        self._text = tf.placeholder(tf.string, [None])

        def queue(index, name, length):
            return place.queue(index, f'sockets_{name}', [tf.string], [[length]])

        self._say_where = queue(following, 'where', 2).enqueue([self._text])
        self._hear_where = queue(place.index, 'where', 2).dequeue()
        self._say_came = queue(place.index, 'came', 1).enqueue([self._text])
        self._hear_came = queue(following, 'came', 1).dequeue()
        self._num_workers, self._collects = len(place.workers), not place.index
        reached, result = queue(0, 'reached', 1), queue(0, 'result', 1)
        self._say_reached, self._hear_reached = reached.enqueue([self._text]), reached.dequeue()
        self._say_result, self._hear_result = result.enqueue([self._text]), result.dequeue()

    def connect(self, session, listening):
        """Connects with both neighbours; each waits only for what the other one has done.

        Returns:
          Why not, a string, empty if it is connected; and the connections, a list of
          `socket.socket`: to the next worker, and from the one before.
        """
        token, connections = secrets.token_bytes(2 * _HALF), []
        session.run(self._say_where, {self._text: [str(listening.getsockname()[1]), token]})
        port, its_token = session.run(self._hear_where)
        reached = ''
        try:
            before = socket.create_connection((self._host, int(port)), ring.LOST_AFTER_SECS)
            connections.append(before)
            before.sendall(its_token[:_HALF])
        except OSError as error:
            reached = self._not_reached(port, error)
        session.run(self._say_came, {self._text: [reached]})
        if not session.run(self._hear_came)[0]:
            with contextlib.suppress(OSError):  # the next one says it, as it gets no answer
                connections.insert(0, accept(listening, token, ring.LOST_AFTER_SECS))
        if not reached:
            try:
                if not hmac.compare_digest(before.recv(_HALF, socket.MSG_WAITALL),
                                           its_token[_HALF:]):
                    raise OSError('it is not that worker who answers')
            except OSError as error:
                reached = self._not_reached(port, error)
        return reached, connections

    def _not_reached(self, port, error):
        return (f'{self._name} cannot reach worker {self._before} at {self._host}:{int(port)} '
                f'({error.strerror or error})')

    def agree(self, session, reached):
        """Returns why not all are connected, a string, from what each one says; empty if all are.

        Args:
          session: `tf.Session`.
          reached: string, what this worker says.
        """
        session.run(self._say_reached, {self._text: [reached]})
        if self._collects:
            said = [session.run(self._hear_reached)[0] for _ in range(self._num_workers)]
            for _ in said:
                session.run(self._say_result, {self._text: [max(said)]})
        return session.run(self._hear_result)[0].decode()


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
