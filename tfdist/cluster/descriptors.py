"""Descriptors: a process that serves gets all that the system allows, and never uses them up.

Each connection takes one, whoever made it. A process without any cannot open a file; and TensorFlow
1.15 that has none when somebody connects never accepts a connection again. There even one that was
closed at once takes one for two minutes. So when three quarters are in use, the system drops every
wish to connect, until less than half are. Connections that exist are not touched. After a flood of
them the memory that they took goes back to the system.
"""

import contextlib
import ctypes
import functools
import os
import resource
import socket
import struct
import threading
import time

from tfdist.start import console

_OF_THIS_PROCESS = '/proc/self/fd'
_FASTEST = 100000  # connections in a second: nobody makes as many
_FLOOD = 500  # connections that a run does not lose at once
_ATTACH_FILTER, _DETACH_FILTER, _LISTENS = 26, 27, 30  # options of sockets, on Linux
_KEEP_NOTHING = struct.pack('HBBI', 6, 0, 0, 0)  # the filter's only instruction: return 0


@functools.lru_cache(maxsize=None)
def begin():
    """Raises this process's limit, usually 1,024, and starts threads that watch what is in use.

    The threads are on Linux only: others have no such filters. A second call does nothing.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError):  # macOS allows fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if os.path.isdir(_OF_THIS_PROCESS) and hard != resource.RLIM_INFINITY:
        for target in _keep_looking, _give_memory_back:
            threading.Thread(target=target, args=[hard], daemon=True).start()


def _keep_looking(limit):
    most, known = limit * 3 // 4, []
    while not known:
        time.sleep(0.1)
        known = _listening()
    for each in known:
        each.listen(limit // 8)  # that many may be connected, and wait to get a descriptor
    while True:
        lowest = _lowest_free(limit)
        if lowest > most:
            _accept(known, False)
            known = _listening()  # a program may begin to listen again
            _accept(known, False)
            console.say(f'process {os.getpid()}', f'{most} of {limit} descriptors are in use; it '
                        'accepts no connection until half of them are free')
            while _in_use(limit) > limit // 2:
                time.sleep(1)
            _accept(known, True)
        time.sleep(max(0.001, (limit - lowest) / _FASTEST))


def _give_memory_back(limit):
    highest = 0
    while True:
        used = _in_use(limit)
        highest = max(highest, used)
        if highest - used > _FLOOD:
            highest = used
            with contextlib.suppress(AttributeError):  # glibc has it
                ctypes.CDLL(None).malloc_trim(0)
        time.sleep(1)


def _lowest_free(limit):
    """Returns the lowest descriptor that is free, an int; `limit` if none is."""
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return limit
    os.close(lowest)
    return lowest


def _in_use(limit):
    """Returns how many descriptors this process has."""
    try:
        return len(os.listdir(_OF_THIS_PROCESS))
    except OSError:  # this takes one, too
        return limit


def _listening():
    """Returns duplicates of the sockets on which this process listens, a list."""
    found = {}
    for descriptor in os.listdir(_OF_THIS_PROCESS):
        with contextlib.suppress(OSError):  # closed in the meantime
            link = os.readlink(f'{_OF_THIS_PROCESS}/{descriptor}')
            if link.startswith('socket:') and link not in found:
                # Not its method dup: that would have gRPC wait in each call to accept.
                each = socket.socket(fileno=os.dup(int(descriptor)))
                if each.getsockopt(socket.SOL_SOCKET, _LISTENS):
                    found[link] = each
                else:
                    each.close()
    return list(found.values())


def _accept(listening, accepts):
    """Has the system drop all that comes to some sockets, or no longer."""
    instruction = ctypes.create_string_buffer(_KEEP_NOTHING)
    option, value = _DETACH_FILTER, struct.pack('i', 0)
    if not accepts:
        option, value = _ATTACH_FILTER, struct.pack('HP', 1, ctypes.addressof(instruction))
    for each in listening:
        with contextlib.suppress(OSError):  # there is no filter
            each.setsockopt(socket.SOL_SOCKET, option, value)
