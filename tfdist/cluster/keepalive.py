"""Ends dead connections, so that calls that wait on them fail, and can be made again.

A machine that loses power does not close its connections: to the others they stay open, and a call
waits for an answer for ever, even after the machine is back. So this process has the system probe
each quiet connection: does the other side still know it?
"""

import contextlib
import os
import socket
import threading
import time

_ROUND_SECS = 1
_IDLE_SECS, _INTERVAL_SECS, _PROBES = 10, 5, 3  # a dead connection ends after 25 s
_OPTIONS = {'TCP_KEEPIDLE': _IDLE_SECS, 'TCP_KEEPINTVL': _INTERVAL_SECS, 'TCP_KEEPCNT': _PROBES,
            # The same limit for data that was sent and never acknowledged.
            'TCP_USER_TIMEOUT': 1000 * (_IDLE_SECS + _INTERVAL_SECS * _PROBES)}
_OF_THIS_PROCESS = '/proc/self/fd'


def begin():
    """Starts a thread that watches for new connections. On Linux only: others do not list them."""
    if os.path.isdir(_OF_THIS_PROCESS):
        threading.Thread(target=_keep_looking, daemon=True).start()


def _keep_looking():
    known = set()
    while True:
        with contextlib.suppress(OSError):  # no descriptor is left to look with
            known = set_on_all(known)
        time.sleep(_ROUND_SECS)


def set_on_all(known=frozenset()):
    """Has the system probe each TCP connection of this process.

    Args:
      known: set of strings, connections that are probed already.

    Returns:
      Set of strings, the connections that exist now.
    """
    found = set()
    for descriptor in os.listdir(_OF_THIS_PROCESS):
        with contextlib.suppress(OSError):  # closed in the meantime
            link = os.readlink(f'{_OF_THIS_PROCESS}/{descriptor}')
            if link.startswith('socket:'):
                found.add(link)
                if link not in known:
                    _set_on(int(descriptor))
    return found


def _set_on(descriptor):
    """Sets the options of `descriptor`, if it is a TCP connection."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if (connection.family in (socket.AF_INET, socket.AF_INET6)
                and connection.type & socket.SOCK_STREAM):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _OPTIONS.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
