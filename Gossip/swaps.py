"""D-PSGD and SGP past TensorFlow's servers: workers send to each other over sockets of their own.

A worker sends to others while it receives from others, in one call of Python. In D-PSGD TensorFlow
computes the gradient meanwhile; in SGP that comes before. Nobody asks, so it takes one message each
way.
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
    """What one worker sends to its neighbours, and receives from them.

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
        every = sorted(self._connections)
        return self._combined(x, every, every, mean)

    def totals(self, share, receivers, senders):
        """Sends a share to some workers; returns the sum of it and of what some send.

        Args:
          share: list of tensors.
          receivers: list of ints, neighbours; each of them has this worker among its senders now.
          senders: list of ints, neighbours; each of them has this worker among its receivers.

        Returns:
          List of tensors of the same shapes.
        """
        return self._combined(share, receivers, senders, total)

    def _combined(self, values, receivers, senders, combine):
        """Returns as `_run`, for lists of tensors."""
        size = transfer.size_of(values)
        first, *rest = [traffic.name_of_sender(size, f'worker {each}') for each in receivers]
        found = parcels.call(functools.partial(self._run, receivers, senders, combine), values,
                             first)
        with tf.device('/device:CPU:0'):
            for name in rest:  # a trace has what goes to the other neighbour, too
                found[0] = tf.identity(found[0], name=name)
        return found

    def _run(self, receivers, senders, combine, *mine):
        """Swaps; returns what a function makes of arrays, one of each worker in their order."""
        try:
            received = self.swap(mine, receivers, senders)
        except connections.LostError as error:
            self.lost = str(error)  # TensorFlow tells whoever runs this step only that it failed
            raise
        received[self._me] = mine
        in_order = [received[each] for each in sorted(received)]
        return [combine(values) for values in zip(*in_order)]

    def swap(self, mine, receivers, senders):
        """Sends arrays to some workers, and receives as many of the same shapes from some.

        Args:
          mine: sequence of arrays.
          receivers: list of ints, neighbours.
          senders: list of ints, neighbours.

        Returns:
          Dict of lists of arrays, by sender.

        Raises:
          connections.LostError: if one of them is gone.
        """
        received = {each: [np.empty_like(value) for value in mine] for each in senders}
        out, into = ({each: parcels.views(arrays) for each, arrays in group.items()}
                     for group in (dict.fromkeys(receivers, mine), received))
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


def mean(values):
    """Returns the mean of arrays, as `worker.Scheme.mix` forms it, bit for bit."""
    found = total(values)
    return np.multiply(found, found.dtype.type(1 / len(values)), out=found)


def total(values):
    """Returns the sum of arrays, added in their order."""
    return functools.reduce(_add, values)


def _add(one, other):
    return addition.add(one, other, out=np.empty_like(one))
