"""The ring past TensorFlow's servers: pieces travel over sockets of their own. --implementation.

A sum is made in one call of Python, which sends to the next worker while it receives from the one
before. It copies nothing: it sends from where the gradients are, and receives to where the sums
will be. The order of additions is that of the ring of queues, and so are the sums, bit for bit.
Large gradients are summed in threads, one after the other, while TensorFlow computes the next ones;
what comes last is summed where TensorFlow waits.
"""

import contextlib
import functools
import hmac
import secrets
import socket
import sys
import threading
import time

import numpy as np
from tfdist.cluster import connections, patience
from tfdist.scheme import addition, transfer
from tfdist.start import console
from tfdist.training import traffic
from tfdist.start.quiet import tf
import neighbours
import ring

_ALIGNMENT = 64  # bytes
LARGE = 2 ** 22  # bytes of a vector that takes longer than its hops: TensorFlow goes on meanwhile
_LOOK_MSECS = 2000


class Exchange:
    """Sums vectors over all workers, around a ring; for one worker.

    Attributes:
      sent: int, bytes sent so far.
      lost: string, why a neighbour is gone; empty as long as both are there.
    """

    def __init__(self, index, num_workers):
        """Takes the place of this worker in the ring, and how many workers there are, two ints."""
        self._index, self._size = index, num_workers
        self._neighbours = None
        self._received, self._results, self._under_way = {}, {}, []
        self.sent, self.lost = 0, ''

    def connect(self, to_next, from_previous):
        """Takes the connections, two `socket.socket`, before the first sum."""
        self._neighbours = neighbours.Neighbours(to_next, from_previous)

    def close(self):
        """Ends both connections: who waits for them, here or there, raises an error."""
        if self._neighbours:
            self._neighbours.close()

    def sums(self, vectors, following):
        """Sums vectors over all workers.

        Args:
          vectors: list of [n] tensors; each n may be any number, known when the graph is built.
          following: string, the next worker, such as 'worker 1'.

        Returns:
          List of [n] tensors.
        """
        if self._size == 1:
            return list(vectors)
        size = sum(self._entries_sent(vector.shape.num_elements()) * vector.dtype.size
                   for vector in vectors)
        large = [i for i, vector in enumerate(vectors[:-1])
                 if transfer.size_of([vector]) >= LARGE]
        first, begun = (large[-1] + 1 if large else 0), []
        with tf.device('/device:CPU:0'):
            for number, vector in enumerate(vectors[:first]):
                with tf.control_dependencies(begun):  # in one order on all workers
                    begun = [tf.py_func(functools.partial(self._begin, number), [vector], [])]
            with tf.control_dependencies(begun):
                sums = tf.py_func(self._finish, vectors[first:],
                                  [vector.dtype for vector in vectors],
                                  name=traffic.name_of_sender(size, following))
        for total, vector in zip(sums, vectors):
            total.set_shape(vector.shape)
        return sums

    def gathered(self, vector, following):
        """Gives each worker the vectors of all.

        Args:
          vector: [n] tensor; n is the same on all workers, and known when the graph is built.
          following: see `sums`.

        Returns:
          [num_workers, n] tensor, in the order of the workers.
        """
        if self._size == 1:
            return vector[tf.newaxis]
        length = vector.shape.num_elements()
        size = (self._size - 1) * length * vector.dtype.size
        with tf.device('/device:CPU:0'):
            rows = tf.py_func(self._gather_all, [vector], vector.dtype,
                              name=traffic.name_of_sender(size, following))
        return tf.reshape(rows, [self._size, length])

    def _gather_all(self, vector):
        with self._noting_who_is_lost():
            return self.gather(vector)

    def _begin(self, number, vector):
        """Begins to sum a vector in a thread: meanwhile TensorFlow computes the next gradients."""
        self._under_way.append(_Sum(self, vector, number, self._under_way[-1:]))
        self._under_way[-1].start()

    def _finish(self, *vectors):
        """Returns the sums that were begun, and those of further vectors."""
        with self._noting_who_is_lost():
            begun, self._under_way = self._under_way, []
            return [each.result() for each in begun] + [
                self.sum(vector, number) for number, vector in enumerate(vectors, len(begun))]

    @contextlib.contextmanager
    def _noting_who_is_lost(self):
        try:
            yield
        except connections.LostError as error:
            self.lost = str(error)  # TensorFlow tells whoever runs this step only that it failed
            raise

    def sum(self, vector, number=0):
        """Sums an [n] array over all workers; `number`, an int, tells the vectors of a step apart.

        Raises:
          connections.LostError: if one is gone.
        """
        total = self._result(len(vector), vector.dtype, number)
        ends = np.cumsum([0] + self._sizes(len(vector)))
        mine, totals = ([array[begin:end] for begin, end in zip(ends, ends[1:])]
                        for array in (vector, total))
        self.scatter_reduce(mine, totals)
        self.all_gather(totals)
        return total

    def gather(self, vector):
        """Returns the [n] arrays of all workers, one after the other, as one array.

        Raises:
          connections.LostError: if one is gone.
        """
        whole = self._result(self._size * len(vector), vector.dtype)
        rows = np.split(whole, self._size)
        rows[self._index][:] = vector
        self.all_gather([rows[-1], *rows[:-1]])  # there a worker begins with the next one's piece
        return whole

    def _sizes(self, length):
        """Returns the sizes of the pieces of a vector, a list."""
        size, rest = divmod(length, self._size)
        return [size + 1] * rest + [size] * (self._size - rest)

    def _entries_sent(self, length):
        """Returns how many entries this worker sends for the sum of vectors of a length."""
        sizes = self._sizes(length)
        return sum(sizes[(self._index - i) % self._size] + sizes[(self._index + 1 - i) % self._size]
                   for i in range(self._size - 1))

    def wait_for_all(self):
        """Returns when all workers have called this: a sum needs everybody.

        Raises:
          connections.LostError: if one is gone.
        """
        if self._size > 1:
            self._finish(np.ones(self._size, np.float32))

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
            self.hop(piece, received,
                     functools.partial(_add_part, mine[place], received, totals[place]))
            piece = totals[place]

    def all_gather(self, totals):
        """Gives each worker the whole sums of the others, in place, from `scatter_reduce`."""
        for i in range(self._size - 1):
            self.hop(totals[(self._index + 1 - i) % self._size],
                     totals[(self._index - i) % self._size])

    def hop(self, piece, received, arrived=None):
        """Sends an array to the next worker; see `neighbours.Neighbours`."""
        self.sent += piece.nbytes
        self._neighbours.hop(piece, received, arrived)

    def _room(self, like):
        """Returns an array like another, to receive in; the next call returns the same memory."""
        key = like.dtype
        if key not in self._received or len(self._received[key]) < len(like):
            self._received[key] = np.empty(len(like), like.dtype)
        return self._received[key][:len(like)]

    def _result(self, length, dtype, number=0):
        """Returns an array for a sum that nobody uses any more: new memory costs more than a sum.

        TensorFlow, or whoever has fetched an earlier sum, holds a reference to its memory.
        """
        known = self._results.setdefault((number, length, dtype), [])
        for i in range(len(known)):
            if sys.getrefcount(known[i]) == 2:  # the list's, and that of this call
                return known[i]
        known.append(_aligned(length, dtype))
        return known[-1]


def _add_part(one, other, total, begin, end):
    """Adds entries of two arrays into a third one, from one index up to another."""
    addition.add(one[begin:end], other[begin:end], total[begin:end])


class _Sum(threading.Thread):
    """A thread that sums a vector after the one before."""

    def __init__(self, exchange, vector, number, before):
        """Takes the arguments of `Exchange.sum`; and a list of `_Sum` that have to end first."""
        super().__init__(name='Sum', daemon=True)
        self._sum = functools.partial(exchange.sum, vector, number)
        self._before, self._total, self._error = before, None, None

    def run(self):
        try:
            for each in self._before:
                each.result()
            self._total = self._sum()
        except connections.LostError as error:
            self._error = error

    def result(self):
        """Waits for the sum, and returns it.

        Raises:
          connections.LostError: if a neighbour is gone.
        """
        self.join()
        if self._error:
            raise self._error
        return self._total


def meet(place, resolver, server, config, port=0, limit_secs=float('inf')):
    """Connects the workers of a ring, who tell each other through their servers where they listen.

    Each tells the next one, which connects, and shows the token that it was told.

    Args:
      place: `ring.Place` of this worker.
      resolver: cluster resolver.
      server: `tf.train.Server` of this worker.
      config: `tf.ConfigProto` of sessions on it.
      port: int, where this worker listens until the next one has connected; 0: where it is free.
      limit_secs: float, how long to wait for another worker at a time.

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
    try:
        listening = connections.listen(port)
    except OSError as error:
        sys.exit(f'{name} cannot listen on port {port} ({error.strerror}): give another '
                 '--sockets_port.')
    with patience.PATIENCE.during('the workers have not met'), tf.Graph().as_default(), listening:
        meeting = _Meeting(place, resolver, limit_secs)
        with tf.Session(server.target, config=config) as session:
            reached, made = meeting.connect(session, listening)
            why = meeting.agree(session, reached)
    if not why:
        exchange.connect(*made)
        return exchange
    for each in made:
        each.close()
    if not place.index:
        console.say(name, f"{why}, so the sums go through TensorFlow's servers, which is slower. "
                    'Open that port between the workers: see --sockets_port.')
    return None


class _Meeting:
    """What the workers tell each other, each to those that its sessions see, while they connect."""

    def __init__(self, place, resolver, limit_secs):
        """Makes the ops in the default graph."""
        self._limit_secs = limit_secs
        self._limit = tf.RunOptions(
            timeout_in_ms=0 if limit_secs == float('inf') else int(1000 * limit_secs))
        following = (place.index + 1) % len(place.workers)
        self._are_there = []
        for index in 0, following:
            with tf.device(place.device(index)), tf.device('/device:CPU:0'):
                self._are_there.append(tf.random_uniform([]))  # a constant would not be asked for
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
        token, made = secrets.token_bytes(2 * connections.HALF), []
        session.run(self._say_where, {self._text: [str(listening.getsockname()[1]), token]},
                    self._limit)
        port, its_token = self._hear(session, self._hear_where)
        reached = ''
        try:
            before = socket.create_connection((self._host, int(port)), ring.LOST_AFTER_SECS)
            made.append(before)
            before.sendall(its_token[:connections.HALF])
        except OSError as error:
            reached = self._not_reached(port, error)
        session.run(self._say_came, {self._text: [reached]}, self._limit)
        if not self._hear(session, self._hear_came)[0]:
            with contextlib.suppress(OSError):  # the next one says it, as it gets no answer
                made.insert(0, connections.accept(listening, token, ring.LOST_AFTER_SECS))
        if not reached:
            try:
                if not hmac.compare_digest(before.recv(connections.HALF, socket.MSG_WAITALL),
                                           its_token[connections.HALF:]):
                    raise OSError('it is not that worker who answers')
            except OSError as error:
                reached = self._not_reached(port, error)
        return reached, made

    def _hear(self, session, op):
        """Waits for what another worker says, and returns it.

        Raises:
          tf.errors.OpError: if a worker that the session sees has gone meanwhile, or started again:
            it says nothing any more.
        """
        deadline = time.monotonic() + self._limit_secs
        while True:
            try:
                return session.run(op, options=tf.RunOptions(timeout_in_ms=_LOOK_MSECS))
            except tf.errors.DeadlineExceededError:
                if time.monotonic() > deadline:
                    raise
            session.run(self._are_there, options=self._limit)

    def _not_reached(self, port, error):
        return (f'{self._name} cannot reach worker {self._before} at {self._host}:{int(port)} '
                f'({error.strerror or error})')

    def agree(self, session, reached):
        """Returns why not all are connected, a string, from what each one says; empty if all are.

        Args:
          session: `tf.Session`.
          reached: string, what this worker says.
        """
        session.run(self._say_reached, {self._text: [reached]}, self._limit)
        if self._collects:
            said = [self._hear(session, self._hear_reached)[0] for _ in range(self._num_workers)]
            for _ in said:
                session.run(self._say_result, {self._text: [max(said)]})
        return self._hear(session, self._hear_result)[0].decode()


def _aligned(size, dtype):
    """Returns an uninitialized array that TensorFlow takes without copying it."""
    memory = np.empty(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin:begin + size * dtype.itemsize].view(dtype)
