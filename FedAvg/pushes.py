"""Pushes: what clients push, on the ps until it is known whose pushes count.

A push has a part in a queue on each ps. When all of its parts are in their queues, its worker asks
for admission, in one place: that makes all of them count at once, see admissions.py. So a push
counts in every variable or in none, whenever its worker dies. A sum could not do without a part
that has come, so the ps keep each: as many times the size of the parameters as pushes count.
"""

import collections

from tfdist.start.quiet import tf
import clients


class Pushes:
    """A queue for the variables of each device, there, shared by the graphs of all workers."""

    def __init__(self, variables, may_be_later):
        """Makes the queues.

        Args:
          variables: list of `tf.Variable`.
          may_be_later: bool, whether a push that does not count in one step may do so in a later
            one. The third number of a ticket is its worker then.
        """
        self._may_be_later, self._queues = may_be_later, collections.OrderedDict()
        self._on = collections.OrderedDict()  # by device the places of its variables in the list
        for place, variable in enumerate(variables):
            self._on.setdefault(variable.device, []).append(place)
        for device, places in self._on.items():
            own = [variables[place] for place in places]
            with tf.device(device):
                self._queues[device] = tf.FIFOQueue(
                    -1, [tf.int64, *(variable.dtype.base_dtype for variable in own)],
                    shapes=[(clients.TICKET,), *(variable.shape for variable in own)],
                    shared_name=f'{own[0].op.name}/pushes')

    def keep(self, changes, ticket):
        """Returns a list of ops that keep the parts of a push.

        Args:
          changes: list of tensors of the variables' shapes, on their devices.
          ticket: int64 tensor that begins with the ticket of the push, on any device.
        """
        ops = []
        for device, queue in self._queues.items():
            with tf.device(device):
                ops.append(queue.enqueue([ticket[:clients.TICKET],
                                          *(changes[place] for place in self._on[device])]))
        return ops

    def take(self, tickets, weights):
        """Takes pushes of which all parts are there, and sums them up.

        Args:
          tickets: int64 [pushes, 3] tensor, of those that count; others never will, unless they
            may be later.
          weights: float64 [pushes] tensor.

        Returns:
          List of tensors of the variables' shapes, on their devices: the sums of weight times part,
          in float32 at least.
        """
        sums = {}
        for device, queue in self._queues.items():
            with tf.device(device):
                counting = tf.identity(tickets)
                with tf.control_dependencies([counting]):
                    size = queue.size()
                kept, *parts = queue.dequeue_many(size)
                counts = tf.reduce_all(tf.equal(kept[:, tf.newaxis], counting), axis=2)
                which = tf.argmax(tf.cast(counts, tf.int32), axis=0)
                rows = [tf.gather(part, which) for part in parts]
                with tf.control_dependencies([self._put_back(
                        queue, kept, parts, tf.reduce_any(counts, axis=1))]):
                    sums.update(zip(self._on[device], (self._sum(each, weights) for each in rows)))
        return [sums[place] for place in sorted(sums)]

    @staticmethod
    def _sum(rows, weights):
        """Returns the sum of weight times row, in float32 at least."""
        rows = tf.cast(rows, tf.float64 if rows.dtype == tf.float64 else tf.float32)
        return tf.tensordot(tf.cast(weights, rows.dtype), rows, 1)

    def _put_back(self, queue, kept, parts, counts):
        """Returns an op that puts those back that may count later: the last one of each worker."""
        if not self._may_be_later:
            return tf.no_op()
        number, worker = kept[:, 0], kept[:, 2]
        # One before its last is left from an earlier life, which died before it was admitted.
        is_older = tf.reduce_any(tf.equal(worker[:, tf.newaxis], worker)
                                 & tf.less(number[:, tf.newaxis], number), axis=1)
        stays = ~counts & ~is_older
        return queue.enqueue_many([tf.boolean_mask(each, stays) for each in (kept, *parts)])

    def clear(self):
        """Returns an op that empties the queues."""
        ops = []
        for device, queue in self._queues.items():
            with tf.device(device):
                ops.append(queue.dequeue_many(queue.size())[0].op)
        return tf.group(*ops)
