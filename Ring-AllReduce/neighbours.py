"""Connections of a worker in a ring past TensorFlow's servers: to the next, from the one before.

Nothing is encrypted. Who connects is let in if it shows a token.
"""

import collections
import contextlib
import hmac
import select
import socket
import time

import numpy as np

HALF = 16  # bytes of a token: one half is shown to the other side, which answers with the other
_BUFFER = 2 ** 22  # bytes of a socket: a piece of a large network
_PART = 2 ** 16  # entries that a processor has at hand when they have come
_LOOK_MSECS = 1000
_MOST_STRANGERS = 100  # that may say nothing yet


class LostError(RuntimeError):
    """A neighbour is gone, for the reason that it gives."""


class Neighbours:
    """Both connections of a worker."""

    def __init__(self, to_next, from_previous):
        """Takes them, two `socket.socket`."""
        for each in to_next, from_previous:
            each.setblocking(False)
            for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
                each.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
            if each.family != socket.AF_UNIX:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next, self._previous = to_next, from_previous

    def close(self):
        """Ends both: who waits for them, here or there, raises `LostError`."""
        for each in self._next, self._previous:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def hop(self, piece, received, arrived=None):
        """Sends an array to the next worker, and fills another from the worker before.

        Both go on at the same time, in this thread: a thread for each would take turns with the
        other, as Python runs one at a time.

        Args:
          piece: [m] array.
          received: [n] array.
          arrived: function to call with which entries of `received` have come, from one index up to
            another, part by part, while others are under way; or None.

        Raises:
          LostError: if a neighbour is gone.
        """
        out, into = (memoryview(array.view(np.uint8)) for array in (piece, received))
        told = 0
        while out or into:
            moved = self._send(out) if out else 0
            out = out[moved:]
            filled = self._receive(into) if into else 0
            into = into[filled:]
            if arrived and filled:
                there = (received.nbytes - len(into)) // received.itemsize
                if not into or there - told >= _PART:
                    arrived(told, there)
                    told = there
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


def listen(port):
    """Returns a socket that listens on a port of all addresses; 0: on any that is free.

    Raises:
      OSError: if the port is in use.
    """
    try:
        listening = socket.socket(socket.AF_INET6)
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # no IPv6 here
        listening = socket.socket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(('', port))
    except OSError:
        listening.close()
        raise
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
        if hmac.compare_digest(connection.recv(HALF), token[:HALF]):
            connection.sendall(token[HALF:])
            return True
    return False
