"""Free ports on this machine."""

import random
import socket


def free_ports(count):
    """Returns a list of `count` ports on which nothing listens, in an order of chance.

    They are below the range from which systems take those of outgoing connections.

    Raises:
      OSError: if there are not so many.
    """
    ports = []
    for port in random.sample(range(10000, 32768), 1000):
        if len(ports) == count:
            return ports
        with socket.socket() as probe:
            if probe.connect_ex(('localhost', port)):
                ports.append(port)
    raise OSError(f'there are no {count} free ports')
