"""Connections that are dead end, so that what waits on them fails and is made anew.

A machine that loses its power says no good-bye: for the others its connections stay open, and a
call that waits for an answer on one waits for ever, also when the machine is back. So this process
has the system ask, on each connection that is quiet, whether the other side still knows of it.
"""

import contextlib
import os
import socket
import threading
import time

_ROUND_SECS = 1
_IDLE_SECS, _INTERVAL_SECS, _PROBES = 10, 5, 3  # a dead connection ends after 25 s
_OPTIONS = {'TCP_KEEPIDLE': _IDLE_SECS, 'TCP_KEEPINTVL': _INTERVAL_SECS, 'TCP_KEEPCNT': _PROBES,
            # The same where something was sent, and nobody says that it came.
            'TCP_USER_TIMEOUT': 1000 * (_IDLE_SECS + _INTERVAL_SECS * _PROBES)}
_OF_THIS_PROCESS = '/proc/self/fd'


def begin():
    """Begins to look for new connections of this process, in a thread.

    Where the system does not list them (it is not Linux), they are left as they are.
    """
    if os.path.isdir(_OF_THIS_PROCESS):
        threading.Thread(target=_keep_looking, daemon=True).start()


def _keep_looking():
    known = set()
    while True:
        known = set_on_all(known)
        time.sleep(_ROUND_SECS)


def set_on_all(known=frozenset()):
    """Has the system probe each TCP connection of this process.

    Args:
      known: set of strings, connections for which that is done.

    Returns:
      Set of strings, those that there are now.
    """
    found = set()
    for descriptor in os.listdir(_OF_THIS_PROCESS):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            link = os.readlink(f'{_OF_THIS_PROCESS}/{descriptor}')
            if link.startswith('socket:'):
                found.add(link)
                if link not in known:
                    _set_on(int(descriptor))
    return found


def _set_on(descriptor):
    """Sets the options if it is a connection by TCP."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if (connection.family in (socket.AF_INET, socket.AF_INET6)
                and connection.type & socket.SOCK_STREAM):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _OPTIONS.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
