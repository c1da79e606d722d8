"""Free ports on this machine."""

import collections
import random
import socket
import sys

# Where the system can, a port is held for the task that is going to listen on it, so that two runs
# that begin at the same time do not choose the same. The oldest are let go: there may be many.
_held = collections.deque(maxlen=100)


def free_ports(count):
    """Returns a list of `count` ports on which nothing listens, in an order of chance.

    They are below the range from which systems take those of outgoing connections. Until this
    process ends, no other gets them in this way.

    Raises:
      OSError: if there are not so many.
    """
    found = []
    for port in random.sample(range(10000, 32768), 2000):
        if len(found) == count:
            return found
        probe = socket.socket()
        try:
            probe.bind(('', port))
        except OSError:
            probe.close()
            continue
        found.append(port)
        if sys.platform == 'linux':  # there, whoever sets the same option may listen
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held.append(probe)
        else:
            probe.close()
    raise OSError(f'there are no {count} free ports')
