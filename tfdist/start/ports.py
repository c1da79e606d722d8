"""Free ports on this machine."""

import collections
import random
import socket
import sys

# On Linux a port is held until its task listens on it, so that two runs that start at the same time
# choose different ports. The oldest are released: there may be many.
_held = collections.deque(maxlen=100)


def free_ports(count):
    """Returns a list of `count` ports on which nothing listens, in random order.

    They lie below the range that systems use for outgoing connections. On Linux this function
    returns them to no other process until this one ends.

    Raises:
      OSError: if there are too few.
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
        if sys.platform == 'linux':  # there, a task that sets the same option may listen
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held.append(probe)
        else:
            probe.close()
    raise OSError(f'there are no {count} free ports')
