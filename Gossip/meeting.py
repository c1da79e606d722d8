"""How workers find each other's sockets, and agree whether all can use them. --implementation.

Each listens on a port, and shows the port and a token on its board, on its own server: see
`others`. Who connects shows half of the token, and who it is.
"""

import contextlib
import secrets
import struct
import sys
import threading

from tfdist.cluster import connections
from tfdist.start import console
import others
import together

# Keys of a board: where a worker listens; the token, in numbers of four bytes; whether it has
# reached those that it connects to; what all use.
_PORT, _REACHED, _USED, _TOKEN = 1, 2, 3, 4
_KEYS = [_PORT, *range(_TOKEN, _TOKEN + connections.HALF // 2)]
_NO, _YES = 1, 2
_WHO = struct.Struct('>I')
_ANSWER_SECS = 10
_FIRST_WORDS_SECS = 5


def connect(host, board, me):
    """Connects to a worker that listens.

    Args:
      host: string.
      board: `others.Board` of it.
      me: int, this worker.

    Returns:
      `socket.socket`.

    Raises:
      OSError: if it is not reached.
    """
    told = board.told(_KEYS)
    if not told or not told[0]:
        raise OSError(board.link.silence or 'it does not listen')
    token = b''.join(map(_WHO.pack, told[1:]))
    connection = connections.connect(host, told[0], token, _ANSWER_SECS)
    connection.sendall(_WHO.pack(me))
    return connection


class Listener(threading.Thread):
    """Lets in other workers, which show the token of this one, as long as this process lives."""

    def __init__(self, name, port):
        """Listens.

        Args:
          name: string, this worker.
          port: int; 0: any that is free.

        Raises:
          SystemExit: if it cannot.
        """
        super().__init__(name='Listener', daemon=True)
        self._token = secrets.token_bytes(2 * connections.HALF)
        try:
            self._listening = connections.listen(port)
        except OSError as error:
            sys.exit(f'{name} cannot listen on port {port} ({error.strerror}): give another '
                     '--sockets_port.')
        self._door = connections.Door(self._listening, self._token)
        self._come, self._condition, self._serve, self._closed = {}, threading.Condition(), None, (
            False)

    def told(self):
        """Returns what to show on the board of this worker, a dict of ints."""
        numbers = [self._listening.getsockname()[1],
                   *(number for number, in _WHO.iter_unpack(self._token))]
        return dict(zip(_KEYS, numbers))

    def serve(self, function):
        """Has a function called with each connection that comes from now on, in its own thread."""
        with self._condition:
            self._serve = function
            waiting, self._come = list(self._come.values()), {}
        for connection in waiting:
            threading.Thread(target=function, args=(connection,), daemon=True).start()

    def take(self, worker, secs):
        """Returns the connection of a worker that has come, or comes before so many seconds."""
        with self._condition:
            if not self._condition.wait_for(lambda: worker in self._come, secs):
                raise OSError(f'worker {worker} has not connected in {secs:g} s')
            return self._come.pop(worker)

    def run(self):
        while not self._closed:
            for connection in self._door.come_in():
                with contextlib.suppress(OSError):
                    self._let_in(connection)
        self._door.close()
        self._listening.close()

    def _let_in(self, connection):
        connection.settimeout(_FIRST_WORDS_SECS)
        worker, = _WHO.unpack(receive(connection, _WHO.size))
        connections.prepare(connection)
        with self._condition:
            if not self._serve:
                self._come[worker] = connection
                self._condition.notify_all()
                return
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self):
        """Has it end soon."""
        self._closed = True


def receive(connection, size):
    """Returns so many bytes from a `socket.socket`.

    Raises:
      OSError: if they do not come.
    """
    found = b''
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise OSError('it has closed the connection')
        found += part
    return found


def meet(resolver, server, reaches, others_go_on, port):
    """Has the workers find out whether all reach each other's sockets.

    A worker that starts while others train does as they do.

    Args:
      resolver: cluster resolver.
      server: `tf.train.Server` of this worker.
      reaches: list of ints, the workers to which this one connects.
      others_go_on: bool, whether a worker that is gone is left out.
      port: int, where to listen; 0: on any that is free.

    Returns:
      `Met`; or None if not all are reached, which each that does not reach another one says, and
      worker 0.

    Raises:
      SystemExit: if this worker cannot listen.
    """
    me, spec = resolver.task_id, resolver.cluster_spec()
    name = f'worker {me}'
    listener = Listener(name, port)
    listener.start()
    boards = {i: others.Board(i, server.target if i == me else f'grpc://{address}')
              for i, address in enumerate(spec.job_tasks('worker'))}
    boards[me].tell(listener.told())
    meeting = _Meeting(me, boards, others_go_on, {
        i: spec.task_address('worker', i).rpartition(':')[0].strip('[]') for i in boards})
    used = meeting.agree(reaches)
    boards[me].tell({_USED: used})
    for board in boards.values():
        board.link.close()
    if used == _YES:
        return Met(me, listener, meeting.hosts, meeting.made)
    listener.close()
    for connection in meeting.made.values():
        connection.close()
    if not me:
        console.say(name, "not all workers reach each other's sockets, so replicas go through "
                    "TensorFlow's servers, which is slower. Open those ports between the workers: "
                    'see --sockets_port.')
    return None


class Met:
    """How one worker is reached, and reaches others.

    Attributes:
      listener: `Listener` of this worker.
    """

    def __init__(self, me, listener, hosts, made):
        """Takes this worker; its `Listener`; and dicts by worker of hosts and of connections."""
        self._me, self.listener, self._hosts, self._made = me, listener, hosts, made

    def connections(self, neighbours):
        """Returns the connections with neighbours, a dict by worker; then it listens no more.

        Args:
          neighbours: list of ints, the later of whom this worker has connected to.

        Raises:
          SystemExit: if one is gone.
        """
        try:
            return {each: self._made.get(each) or self.listener.take(each, _ANSWER_SECS)
                    for each in neighbours}
        except OSError as error:
            console.give_up(f'worker {self._me}: {error}. {together.AGAIN}')
        finally:
            self.listener.close()

    def connect(self, board):
        """Connects to a worker anew, whose `others.Board` is given; see `connect`."""
        for connection in self._made.values():  # they have served
            connection.close()
        self._made = {}
        return connect(self._hosts[board.index], board, self._me)


class _Meeting:
    """What one worker does until it is known what all use.

    Attributes:
      hosts: dict of strings by worker.
      made: dict of `socket.socket` by worker.
    """

    def __init__(self, me, boards, others_go_on, hosts):
        """See `meet`; `boards` and `hosts` are dicts by worker."""
        self._me, self._boards, self._others_go_on, self.hosts = me, boards, others_go_on, hosts
        self._name, self.made = f'worker {me}', {}
        self._silences = together.Silences()

    def agree(self, reaches):
        """Returns what all use, `_YES` or `_NO` for the sockets; see `meet`."""
        used = self._used()
        reached = _YES
        for worker in [] if used else reaches:
            if not self._reach(worker):
                reached = _NO
        self._boards[self._me].tell({_REACHED: reached})
        waiting = together.Waiting(self._name)
        while not used and self._me:
            used = self._used()
            if not used:
                waiting.go_on('worker 0 has not met all')
        if used:
            return used
        return min([reached] + [self._wait(worker, _REACHED) or _YES
                                for worker in self._boards if worker])

    def _used(self):
        """Returns what a worker says that all use; 0 if none does."""
        told = (board.told([_USED]) for i, board in self._boards.items() if i != self._me)
        return next((number for number, in filter(None, told) if number), 0)

    def _wait(self, worker, key):
        """Waits until a worker shows a number, and returns it; 0 if it is gone."""
        waiting, board = together.Waiting(self._name), self._boards[worker]
        while True:
            told = board.told([key])
            if told and told[0]:
                return told[0]
            if self._silences.are_too_long(worker, told is None) and self._others_go_on:
                return 0
            waiting.go_on(f'worker {worker} has not begun')

    def _reach(self, worker):
        """Connects to a worker; returns whether it could, or whether it is gone."""
        if not self._wait(worker, _PORT):
            return True
        try:
            self.made[worker] = connect(self.hosts[worker], self._boards[worker], self._me)
        except OSError as error:
            console.say(self._name, f"cannot reach worker {worker}'s socket at "
                        f'{self.hosts[worker]} ({error.strerror or error})')
            return False
        return True
