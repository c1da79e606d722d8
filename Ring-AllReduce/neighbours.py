"""Connections of a worker in a ring past TensorFlow's servers: to the next, from the one before."""

import contextlib
import select
import socket

import numpy as np

from tfdist.cluster import connections

_PART = 2 ** 16  # entries that a processor has at hand when they have come
_LOOK_MSECS = 1000


class Neighbours:
    """Both connections of a worker."""

    def __init__(self, to_next, from_previous):
        """Takes them, two `socket.socket`."""
        for each in to_next, from_previous:
            each.setblocking(False)
            connections.prepare(each)
        self._next, self._previous = to_next, from_previous

    def close(self):
        """Ends both: who waits for them, here or there, raises `connections.LostError`."""
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
          connections.LostError: if a neighbour is gone.
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
            raise connections.LostError(f'the next one: {error.strerror}') from error

    def _receive(self, into):
        """Returns how many bytes were there to be received."""
        try:
            filled = self._previous.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise connections.LostError(f'the one before: {error.strerror}') from error
        if not filled:
            raise connections.LostError('the one before has closed its connection')
        return filled
