"""Connections of tasks past TensorFlow's servers.

Nothing is encrypted. Who connects is let in if it shows a token.
"""

import collections
import contextlib
import errno
import hmac
import select
import socket
import time

HALF = 16  # bytes of a token: one half is shown to the other side, which answers with the other
_BUFFER = 2 ** 22  # bytes of a socket: a piece of a large network
_LOOK_MSECS = 1000
_MOST_STRANGERS = 100  # that may say nothing yet


class LostError(RuntimeError):
    """A neighbour is gone, for the reason that it gives."""


def prepare(connection):
    """Gives a `socket.socket` the options of one over which arrays travel."""
    for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def listen(port):
    """Returns a socket that listens on a port of all addresses; 0: on any that is free.

    Raises:
      OSError: if the port is in use, or too high.
    """
    try:
        listening = socket.socket(socket.AF_INET6)
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # no IPv6 here
        listening = socket.socket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(('', port))
    except OverflowError as error:
        listening.close()
        raise OSError(errno.EINVAL, 'there is no such port') from error
    except OSError:
        listening.close()
        raise
    listening.listen(_MOST_STRANGERS)
    return listening


def connect(host, port, token, secs):
    """Connects to who has a token: shows one half, and is shown the other.

    Args:
      host: string.
      port: int.
      token: bytes.
      secs: float, how long each of the two may take.

    Returns:
      `socket.socket`.

    Raises:
      OSError: if nobody is there, or somebody else.
    """
    connection = socket.create_connection((host, port), secs)
    try:
        connection.sendall(token[:HALF])
        if not hmac.compare_digest(connection.recv(HALF, socket.MSG_WAITALL), token[HALF:]):
            raise OSError('it is not that worker who answers')
        prepare(connection)
    except OSError:
        connection.close()
        raise
    return connection


class Door:
    """Lets in who shows a token, and is shown its other half.

    A stranger has no token: it is not let in, and keeps nobody from coming in.
    """

    def __init__(self, listening, token):
        """Takes a `socket.socket`, and bytes."""
        self._listening, self._token = listening, token
        self._waiting = collections.OrderedDict()  # by descriptor
        self._wait = select.poll()
        self._wait.register(listening, select.POLLIN)

    def come_in(self, msecs=_LOOK_MSECS):
        """Waits up to `msecs` for somebody; returns who shows the token now, connections."""
        found = []
        for descriptor, _ in self._wait.poll(msecs):
            if descriptor != self._listening.fileno():
                each = self._take_out(descriptor)
                if _shows(each, self._token):
                    found.append(each)
                else:
                    each.close()
                continue
            each = self._listening.accept()[0]
            each.setblocking(False)
            self._waiting[each.fileno()] = each
            self._wait.register(each, select.POLLIN)
        while len(self._waiting) > _MOST_STRANGERS:  # the first has had the most time
            self._take_out(next(iter(self._waiting))).close()
        return found

    def _take_out(self, descriptor):
        self._wait.unregister(descriptor)
        return self._waiting.pop(descriptor)

    def close(self):
        """Closes the connections of those who have not shown anything."""
        for each in self._waiting.values():
            each.close()


def accept(listening, token, secs):
    """Returns the first connection that shows a token, see `Door`.

    Args:
      listening: `socket.socket`.
      token: bytes.
      secs: float, how long to wait.

    Raises:
      OSError: if it takes longer.
    """
    deadline = time.monotonic() + secs
    with contextlib.closing(Door(listening, token)) as door:
        while time.monotonic() < deadline:
            for each in door.come_in():
                return each
    raise OSError(f'the next worker has not connected in {secs:g} s')


def _shows(connection, token):
    """Returns whether who has connected shows the token; if so it is shown the other half."""
    with contextlib.suppress(OSError):
        if hmac.compare_digest(connection.recv(HALF), token[:HALF]):
            connection.sendall(token[HALF:])
            return True
    return False
