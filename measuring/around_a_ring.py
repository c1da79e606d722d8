"""What the ring over sockets carries between two workers if nothing else is to be done."""

import multiprocessing
import socket
import statistics
import sys

import numpy as np
from measuring.runs import calls_per_second, ROOT, TIME_LIMIT

_WARM_UP = 20  # sums that do not count


def measure(size, sums):
    """Has two workers sum a vector, again and again; each sends as much as the vector has.

    Args:
      size: int, bytes of the vector of float32.
      sums: int, how often.

    Returns:
      Dict of figures: sums/s, and MB/s that both workers send together.
    """
    with multiprocessing.get_context('spawn').Pool(2) as pool:
        (to_second, from_first), (to_first, from_second) = _connection(), _connection()
        rates = [pool.apply_async(_sum, (worker, *ends, size, sums)) for worker, ends in enumerate(
            [(to_second, from_second), (to_first, from_first)])]
        rate = statistics.mean(each.get(TIME_LIMIT) for each in rates)
    return {'sums/s': rate, 'MB/s': 2 * rate * size / 1e6}


def _connection():
    """Returns both ends of a TCP connection within this machine."""
    with socket.socket() as listening:
        listening.bind(('localhost', 0))
        listening.listen(1)
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


def _sum(worker, to_next, from_previous, size, sums):
    """Is a worker, an int; returns the sums/s."""
    sys.path.insert(0, str(ROOT / 'Ring-AllReduce'))
    import sockets
    exchange, vector = sockets.Exchange(worker, 2), np.ones(size // 4, np.float32)
    exchange.connect(to_next, from_previous)
    return calls_per_second(lambda: exchange.sum(vector), sums, _WARM_UP)
