"""D-PSGD past TensorFlow's servers: neighbours swap their replicas over sockets of their own.

A worker sends its replica to its neighbours while it receives theirs, in one call of Python, beside
which TensorFlow computes the gradient. Nobody asks, so it takes one message each way.
"""

import functools
import select

import numpy as np

from tfdist.cluster import connections
from tfdist.scheme import addition, transfer
from tfdist.training import traffic
from tfdist.start.quiet import tf

_LOOK_MSECS = 1000


class Swaps:
    """Swaps with the neighbours of one worker.

    Attributes:
      lost: string, why a neighbour is gone; empty as long as all are there.
    """

    def __init__(self, me, by_neighbour):
        """Takes this worker, an int; and a dict of `socket.socket` by neighbour."""
        self._me, self._connections, self.lost = me, by_neighbour, ''
        for each in by_neighbour.values():
            each.setblocking(False)

    def sums(self, vectors):
        """Sends vectors to the neighbours, and adds what they send in this step.

        All add in the order of the workers: so sums over all are the same on all, bit for bit.

        Args:
          vectors: list of [n] tensors.

        Returns:
          List of [n] tensors, the sums over this worker and its neighbours.
        """
        size = transfer.size_of(vectors)
        first, *rest = [traffic.name_of_sender(size, f'worker {each}')
                        for each in sorted(self._connections)]
        with tf.device('/device:CPU:0'):
            sums = tf.py_func(self._swap, vectors, [vector.dtype for vector in vectors], name=first)
            for name in rest:  # a trace has what goes to the other neighbour, too
                sums[0] = tf.identity(sums[0], name=name)
        for total, vector in zip(sums, vectors):
            total.set_shape(vector.shape)
        return sums

    def _swap(self, *vectors):
        try:
            received = self.swap(vectors)
        except connections.LostError as error:
            self.lost = str(error)  # TensorFlow tells whoever runs this step only that it failed
            raise
        received[self._me] = vectors
        in_order = [received[each] for each in sorted(received)]
        return [functools.reduce(_add, values) for values in zip(*in_order)]

    def swap(self, vectors):
        """Sends arrays to all neighbours, and receives as many of the same sizes from each.

        Args:
          vectors: sequence of [n] arrays.

        Returns:
          Dict of lists of arrays, by neighbour.

        Raises:
          connections.LostError: if a neighbour is gone.
        """
        received = {each: [np.empty_like(vector) for vector in vectors]
                    for each in self._connections}
        out, into = ({each: [memoryview(array.view(np.uint8)) for array in arrays if array.size]
                      for each, arrays in group.items()}
                     for group in (dict.fromkeys(self._connections, vectors), received))
        while out or into:
            moved = [self._move(each, out, 'send') for each in list(out)]
            moved += [self._move(each, into, 'recv_into') for each in list(into)]
            if not any(moved):
                wait = select.poll()
                for each in {*out, *into}:
                    wait.register(self._connections[each], select.POLLOUT * (each in out)
                                  | select.POLLIN * (each in into))
                wait.poll(_LOOK_MSECS)
        return received

    def _move(self, neighbour, left, how):
        """Sends or receives what can be at once; returns how many bytes.

        Args:
          neighbour: int.
          left: dict of lists of memoryviews by neighbour, what is left to be moved; changed.
          how: string, the method of a socket.
        """
        views = left[neighbour]
        try:
            moved = getattr(self._connections[neighbour], how)(views[0])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise connections.LostError(f'worker {neighbour}: {error.strerror}') from error
        if not moved:
            raise connections.LostError(f'worker {neighbour} has closed its connection')
        views[0] = views[0][moved:]
        if not views[0]:
            del views[0]
            if not views:
                del left[neighbour]
        return moved

    def close(self):
        """Closes the connections."""
        for each in self._connections.values():
            each.close()


def _add(one, other):
    return addition.add(one, other, out=np.empty_like(one))
