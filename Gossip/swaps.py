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
import parcels

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

    def means(self, x):
        """Sends a replica to the neighbours; returns the mean of it and of what they send.

        All add in the order of the workers: so a mean of all is the same on all, bit for bit.

        Args:
          x: list of tensors.

        Returns:
          List of tensors of the same shapes.
        """
        size = transfer.size_of(x)
        first, *rest = [traffic.name_of_sender(size, f'worker {each}')
                        for each in sorted(self._connections)]
        with tf.device('/device:CPU:0'):
            means = tf.py_func(self._swap, x, [value.dtype for value in x], name=first)
            for name in rest:  # a trace has what goes to the other neighbour, too
                means[0] = tf.identity(means[0], name=name)
        for mean, value in zip(means, x):
            mean.set_shape(value.shape)
        return means

    def _swap(self, *replica):
        try:
            received = self.swap(replica)
        except connections.LostError as error:
            self.lost = str(error)  # TensorFlow tells whoever runs this step only that it failed
            raise
        received[self._me] = replica
        in_order = [received[each] for each in sorted(received)]
        return [_mean(values) for values in zip(*in_order)]

    def swap(self, replica):
        """Sends arrays to all neighbours, and receives as many of the same shapes from each.

        Args:
          replica: sequence of arrays.

        Returns:
          Dict of lists of arrays, by neighbour.

        Raises:
          connections.LostError: if a neighbour is gone.
        """
        received = {each: [np.empty_like(value) for value in replica]
                    for each in self._connections}
        out, into = ({each: parcels.views(arrays) for each, arrays in group.items()}
                     for group in (dict.fromkeys(self._connections, replica), received))
        while out or into:
            moved = [self._move(each, out, parcels.send) for each in list(out)]
            moved += [self._move(each, into, parcels.receive) for each in list(into)]
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
          how: function of `parcels`.
        """
        try:
            moved = how(self._connections[neighbour], left[neighbour])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise connections.LostError(f'worker {neighbour}: {error.strerror or error}') from error
        if not left[neighbour]:
            del left[neighbour]
        return moved

    def close(self):
        """Closes the connections."""
        for each in self._connections.values():
            each.close()


def _mean(values):
    """Returns the mean of arrays, as `worker.Scheme.mix` forms it, bit for bit."""
    total = functools.reduce(_add, values)
    return np.multiply(total, total.dtype.type(1 / len(values)), out=total)


def _add(one, other):
    return addition.add(one, other, out=np.empty_like(one))
