"""AD-PSGD's exchange past TensorFlow's servers: a worker visits a partner, over a socket.

It sends its replica, and gets E back, in one call of Python, beside which TensorFlow computes the
gradient. In the partner's process a thread answers: see `replica`.
"""

import contextlib
import socket
import struct

import numpy as np

from tfdist.cluster import liveness
from tfdist.scheme import transfer
from tfdist.training import traffic
from tfdist.start.quiet import tf
import pairs
import parcels
import replica


class Visits(pairs.Partners):
    """The exchanges of one worker: those that it starts, and those that it is asked for."""

    def __init__(self, workers, me, partners, seed, answer_secs, met, is_visited):
        """Takes how to reach the partners.

        Args:
          workers: dict by index of `others.Worker`, of this worker and its partners, which need not
            be there yet.
          me: int, this worker.
          partners: list of ints.
          seed: int; with `me` it determines who is drawn.
          answer_secs: float, how long an exchange may take.
          met: `meeting.Met`.
          is_visited: bool, whether others start exchanges with this worker.
        """
        super().__init__(workers, me, partners, seed)
        self._answer_secs, self._met = answer_secs, met
        self._is_visited, self._replica = is_visited, None
        self._open, self._silences = {}, {}

    def begin(self):
        """See `pairs.Partners`; others may visit from now on."""
        if self._is_visited:
            self._replica.begin(self._workers[self._me].target)
            self._met.listener.serve(self._answer)
        super().begin()

    def visited(self, variables, x):
        """Adds to the variables what partners have added since the step before.

        Args:
          variables: list of `tf.Variable`.
          x: list of tensors, the replica as read.

        Returns:
          List of tensors, the replica after that.
        """
        if not self._is_visited:
            return x
        self._replica = replica.Replica(variables, self._me)
        added = parcels.call(lambda *now: self._replica.begin_step(now), x)
        added = [variable.assign_add(value, read_value=False)
                 for variable, value in zip(variables, added)]
        with tf.control_dependencies(added):
            return [variable.read_value() for variable in variables]

    def halves(self, x):
        """Exchanges with a partner; returns what to subtract from the replica, a list of tensors.

        Args:
          x: list of tensors, the replica.

        Returns:
          Empty if this worker starts no exchanges.
        """
        if not self._partners:
            return []
        # A trace has it as sent to the first partner, though one is drawn in each step.
        name = traffic.name_of_sender(transfer.size_of(x), f'worker {self._partners[0]}')
        return parcels.call(self.visit, x, name)

    def visit(self, *x):
        """Exchanges with one of the partners that answer; alone, with nobody.

        Args:
          *x: arrays, the replica.

        Returns:
          List of arrays, half of the difference from the partner's.
        """
        halves = self.with_one(lambda partner: self._visit(partner, x))
        if not halves:
            return [np.zeros_like(value) for value in x]
        if self._is_visited:
            self._replica.subtract(halves)
        return halves

    def _visit(self, partner, x):
        """Returns as `visit`; None if the partner does not answer."""
        connection = self._open[partner]
        try:
            send(connection, x)
            return receive(connection, [np.empty_like(value) for value in x])
        except OSError as error:
            self._silences[partner] = (liveness.LATE if isinstance(error, BlockingIOError) else
                                       error.strerror or str(error))
            self._open.pop(partner).close()
            return None

    def silence(self, partner):
        """See `pairs.Partners`."""
        return self._silences.get(partner) or super().silence(partner)

    def reach(self, partner):
        """See `pairs.Partners`."""
        try:
            connection = self._met.connect(self._workers[partner])
            limit(connection, self._answer_secs)
            self._open[partner] = connection
        except OSError as error:
            self._silences[partner] = error.strerror or str(error)
            return False
        self._silences.pop(partner, None)
        return True

    def _answer(self, connection):
        """Answers a partner that has connected, until it closes the connection."""
        asked = self._replica.empty()
        with contextlib.suppress(OSError), connection:
            limit(connection, self._answer_secs)
            while True:
                receive(connection, asked, begins=True)
                if _is_closed(connection):  # it has given up: its replica is of long ago
                    return
                halves = self._replica.add_half(asked)
                if halves is None:
                    return
                send(connection, halves)

    def close(self):
        """Ends the exchanges that this worker starts; others may go on to visit it."""
        super().close()
        if self._is_visited:
            self._replica.end_steps()
        for connection in list(self._open.values()):
            connection.close()


def limit(connection, secs):
    """Has calls of a `socket.socket` fail after so many seconds in which nothing travels.

    The system does it: Python would ask before each call whether that can go on at once.
    """
    connection.settimeout(None)
    time = struct.pack('ll', int(secs), int(secs % 1 * 1e6))
    for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
        connection.setsockopt(socket.SOL_SOCKET, option, time)


def send(connection, arrays):
    """Sends arrays over a `socket.socket`.

    Raises:
      OSError: if it fails, or takes too long.
    """
    left = parcels.views(arrays)
    while left:
        parcels.send(connection, left)


def receive(connection, arrays, begins=False):
    """Fills arrays with what comes over a `socket.socket`, and returns them.

    Args:
      connection: `socket.socket`.
      arrays: list of arrays.
      begins: bool, whether nothing may come for ever before the first.

    Raises:
      OSError: if it fails, or takes too long.
    """
    left = parcels.views(arrays)
    while left:
        try:
            parcels.receive(connection, left)
        except BlockingIOError:
            if not begins:
                raise
        else:
            begins = False
    return arrays


def _is_closed(connection):
    """Returns whether the other side has closed a connection on which it waits for an answer."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
