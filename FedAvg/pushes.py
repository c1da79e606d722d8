"""Pushes: what clients push, on the ps of each variable until it is known whose pushes count.

A push has a part in the queue of each variable. When all of its parts are in their queues, its
worker asks for admission, in one place: that makes all of them count at once, see admissions.py. So
a push counts in every variable or in none, whenever its worker dies. A sum could not do without a
part that has come, so the ps keep each: as many times the size of the parameters as pushes count.
"""

from tfdist.start.quiet import tf
import clients


class Pushes:
    """A queue for each variable, on its device, shared by the graphs of all workers."""

    def __init__(self, variables, may_be_later):
        """Makes the queues.

        Args:
          variables: list of `tf.Variable`.
          may_be_later: bool, whether a push that does not count in one step may do so in a later
            one. The third number of a ticket is its worker then.
        """
        self._variables, self._may_be_later, self._queues = variables, may_be_later, []
        for variable in variables:
            with tf.device(variable.device):
                self._queues.append(tf.FIFOQueue(
                    -1, [tf.int64, variable.dtype.base_dtype],
                    shapes=[(clients.TICKET,), variable.shape],
                    shared_name=f'{variable.op.name}/pushes'))

    def keep(self, changes, ticket):
        """Returns a list of ops that keep the parts of a push.

        Args:
          changes: list of tensors of the variables' shapes, on their devices.
          ticket: int64 tensor that begins with the ticket of the push, on any device.
        """
        ops = []
        for queue, variable, change in zip(self._queues, self._variables, changes):
            with tf.device(variable.device):
                ops.append(queue.enqueue([ticket[:clients.TICKET], change]))
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
        sums = []
        for queue, variable in zip(self._queues, self._variables):
            with tf.device(variable.device):
                counting = tf.identity(tickets)
                with tf.control_dependencies([counting]):
                    size = queue.size()
                kept, parts = queue.dequeue_many(size)
                counts = tf.reduce_all(tf.equal(kept[:, tf.newaxis], counting), axis=2)
                rows = tf.gather(parts, tf.argmax(tf.cast(counts, tf.int32), axis=0))
                rows = tf.cast(rows, tf.float64 if rows.dtype == tf.float64 else tf.float32)
                with tf.control_dependencies([self._put_back(
                        queue, kept, parts, tf.reduce_any(counts, axis=1))]):
                    sums.append(tf.tensordot(tf.cast(weights, rows.dtype), rows, 1))
        return sums

    def _put_back(self, queue, kept, parts, counts):
        """Returns an op that puts those back that may count later: the last one of each worker."""
        if not self._may_be_later:
            return tf.no_op()
        number, worker = kept[:, 0], kept[:, 2]
        # One before its last is left from an earlier life, which died before it was admitted.
        is_older = tf.reduce_any(tf.equal(worker[:, tf.newaxis], worker)
                                 & tf.less(number[:, tf.newaxis], number), axis=1)
        stays = ~counts & ~is_older
        return queue.enqueue_many([tf.boolean_mask(kept, stays), tf.boolean_mask(parts, stays)])

    def clear(self):
        """Returns an op that empties the queues."""
        ops = []
        for queue, variable in zip(self._queues, self._variables):
            with tf.device(variable.device):
                ops.append(queue.dequeue_many(queue.size())[0].op)
        return tf.group(*ops)
