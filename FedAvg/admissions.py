"""Admissions: who has which ticket, and whose push counts in the step that is open.

A ticket names a client whose turn it is. A worker takes one, trains the client, and has all parts
of its push kept on the ps, see pushes.py. Then it asks for admission, in a critical section on ps
0: from then on the push counts, in every variable, whatever becomes of its worker. A push that was
not admitted never counts.

All that is kept here dies with ps 0, and is in no checkpoint: a chief that begins opens a step
anew.
"""

from tfdist.scheme import volatile_table
from tfdist.synchronous import stamps
from tfdist.start.quiet import tf
import clients

_OPEN, _NEEDED, _ADMITTED, _DRAWN = _STATE = 0, 1, 2, 3  # keys of the table
_LIFE = clients.TICKET  # of a worker's keys: after those of its ticket
NONE = -1


class Admissions:
    """Admits pushes to the step that is open, one at a time, on the device of ps 0.

    A step is named by its stamp, see `stamps.Clock`. It is a round, which the chief opens, and
    which is closed when enough pushes were admitted; or the filling of a buffer: when it is full,
    the next one is open at once.

    Attributes:
      life: int64 scalar tensor, how often this worker has begun; to be read before a run asks
        for anything that is of this life alone.
      closed: int64 [pushes, 5] tensor that waits until a step is closed, the pushes that count in
        it: the ticket of each, the examples of its client, and its staleness.
    """

    def __init__(self, device, worker, buffer=0):
        """Makes the ops.

        Args:
          device: string, that of ps 0.
          worker: int64 scalar tensor, the index of this worker.
          buffer: int, how many pushes the buffer takes; 0: there are rounds.
        """
        self._device, self._buffer, self._worker = device, buffer, worker
        self._table = volatile_table.VolatileTable('round', device, default=NONE)
        with tf.device(device):
            # One worker at a time: the graphs of all workers share the section.
            self._section = tf.CriticalSection(shared_name='round')
            self._tickets = tf.FIFOQueue(-1, tf.int64, shapes=[(clients.TICKET,)],
                                         shared_name='tickets')
            self._admitted = tf.FIFOQueue(-1, tf.int64, shapes=[(clients.TICKET + 2,)],
                                          shared_name='admitted')
            self._closed = tf.FIFOQueue(-1, tf.int64, shapes=[()], shared_name='closed')
            self.closed = self._admitted.dequeue_many(tf.cast(self._closed.dequeue(), tf.int32))
            self._state = tf.constant(_STATE, tf.int64)
            first = len(_STATE) + (_LIFE + 1) * worker
            # The ticket that this worker holds; and how often it has begun.
            self._mine, self._life = first + tf.range(_LIFE, dtype=tf.int64), first + _LIFE
            self.life = self._table.read(self._life)
            self._no_ticket = tf.fill([clients.TICKET], tf.constant(NONE, tf.int64))

    def open(self, stamp, number, drawn=0):
        """Returns an op that opens the step of a stamp for a number of pushes.

        Args:
          stamp: int64 scalar tensor.
          number: int64 scalar tensor, how many pushes close it.
          drawn: int64 scalar tensor, the next ticket that `draw` gives.
        """
        with tf.device(self._device):
            state = tf.stack([stamp, number, 0, drawn])
            # In the section: a late push that is refused writes the state that it has read.
            return self._section.execute(lambda: self._table.write(self._state, state))

    def shut(self):
        """Returns an op after which no step is open, and nothing is left of those before."""
        queues = self._tickets, self._closed, self._admitted
        with tf.device(self._device):
            with tf.control_dependencies([self.open(tf.constant(NONE, tf.int64), 0)]):
                sizes = [queue.size() for queue in queues]
            return tf.group(*[queue.dequeue_many(size).op for queue, size in zip(queues, sizes)])

    def give_out(self, tickets):
        """Returns an op that puts tickets into the queue, an int64 [number, 3] tensor."""
        with tf.device(self._device):
            return self._tickets.enqueue_many(tickets)

    def say_that_it_is_over(self):
        """Returns an op that puts a ticket into the queue that says so to all; see `take`."""
        return self.give_out(self._no_ticket[tf.newaxis])

    def begin_life(self):
        """Returns an op with which a worker begins: what its former life held, it gives back.

        Of the former life a run may be left on the ps: its push is not admitted any more, and a
        ticket that it has waited for goes back, too.
        """
        def locked():
            held, now = self._table.read(self._mine), self._table.read(self._state[_OPEN])
            life = self._table.read(self._life)
            with tf.control_dependencies([held]):
                gone = self._table.write(self._mine, self._no_ticket)
            with tf.control_dependencies([gone, self._table.write(self._life, life + 1)]):
                if self._buffer:
                    return tf.no_op()  # with a buffer nobody waits for a certain client
                # What the former life pushed with it is another push than that of the next holder.
                again = (held + [0, 0, 1])[tf.newaxis]
                is_lost = tf.equal(held[0], now) & tf.greater(now, NONE)
                return self._enqueue(self._tickets, again, is_lost)

        with tf.device(self._device):
            return self._section.execute(locked)

    def give_back(self):
        """Returns an op with which a worker gives back a ticket of which it has pushed nothing."""
        def locked():
            held, now = self._table.read(self._mine), self._table.read(self._state[_OPEN])
            is_mine = tf.equal(self._table.read(self._life), self.life)
            with tf.control_dependencies([held]):
                gone = self._table.write(self._mine, tf.where(is_mine, self._no_ticket, held))
            with tf.control_dependencies([gone]):
                return self._enqueue(self._tickets, held[tf.newaxis], is_mine & (
                    tf.equal(held[0], now) & tf.greater(now, NONE)))

        with tf.device(self._device):
            return self._section.execute(locked)

    @staticmethod
    def _enqueue(queue, element, condition):
        """Returns an op that puts an element into a queue on a condition."""
        return queue.enqueue_many(element[:tf.cast(condition, tf.int32)])

    def take(self, after=()):
        """Waits for a ticket, which this worker holds then.

        Args:
          after: list of tensors that are there before it asks for one.

        Returns:
          The ticket, an int64 [3] tensor, [-1, -1, -1] if the run is over; and the stamp of the
          step that is open, or -1.
        """
        with tf.device(self._device):
            with tf.control_dependencies([self.life, *after]):
                ticket = self._tickets.dequeue()

        def locked():
            held, now = self._table.read(self._mine), self._table.read(self._state[_OPEN])
            is_over = tf.not_equal(self._table.read(self._life), self.life)
            with tf.control_dependencies([held]):
                holds = self._table.write(self._mine, tf.where(is_over, held, ticket))
            goes_back = is_over | tf.equal(ticket[0], NONE)  # which is for all
            with tf.control_dependencies([
                    holds, self._enqueue(self._tickets, ticket[tf.newaxis], goes_back)]):
                return tf.identity(now)

        with tf.device(self._device):
            return ticket, self._section.execute(locked)

    def draw(self, global_step, after=()):
        """Draws a ticket, which this worker holds then. With a buffer there is no queue.

        Args:
          global_step: integer `tf.Variable`, how many steps are complete.
          after: list of tensors that are there before it draws.

        Returns:
          Int64 [3] tensor: a number that is given once, as a stamp of this epoch; 0, since the
          number tells which client it is; and this worker. Or [-1, -1, -1] if the update of a full
          buffer is still to be made, so that who begins now would not get it.
        """
        def locked():
            now, _, _, drawn = tf.unstack(self._table.read(self._state))
            held = self._table.read(self._mine)
            ready = tf.equal(stamps.step_of(now), global_step.read_value()) & (
                tf.equal(self._table.read(self._life), self.life))
            ticket = tf.stack([now - stamps.step_of(now) + drawn, 0, self._worker])
            with tf.control_dependencies([held]):
                written = [
                    self._table.write(self._state[_DRAWN], drawn + tf.cast(ready, tf.int64)),
                    self._table.write(self._mine, tf.where(ready, ticket, held))]
            with tf.control_dependencies(written):
                return tf.where(ready, ticket, self._no_ticket)

        with tf.device(self._device), tf.control_dependencies([self.life, *after]):
            return self._section.execute(locked)

    def hold(self, ticket):
        """Returns an op that notes that this worker has a ticket, an int64 [3] tensor."""
        return self._table.write(self._mine, ticket)

    def admit(self, ticket, examples, step_read):
        """Asks that a push counts; closes the step if it is the last one that it needs.

        Args:
          ticket: int64 [3] tensor, the ticket of this worker.
          examples: int64 scalar tensor, how many examples its client has.
          step_read: integer scalar tensor, the step at which the client began.

        Returns:
          Bool scalar tensor, whether it counts; and int64 scalar tensor, its staleness.
        """
        def locked():
            now, needed, admitted, drawn = tf.unstack(self._table.read(self._state))
            held = self._table.read(self._mine)
            if self._buffer:  # it is open to all that began with this chief
                is_open = tf.equal(ticket[0] - stamps.step_of(ticket[0]),
                                   now - stamps.step_of(now))
                staleness = stamps.step_of(now) - begun
            else:
                is_open, staleness = tf.equal(ticket[0], now), tf.zeros_like(now)
            counts = is_open & tf.reduce_all(tf.equal(ticket, held))
            one = tf.cast(counts, tf.int64)
            with tf.control_dependencies([held]):
                used = self._table.write(self._mine, tf.where(counts, self._no_ticket, held))
            push = tf.concat([ticket, [examples, staleness]], axis=0)
            with tf.control_dependencies([
                    used, self._enqueue(self._admitted, push[tf.newaxis], counts)]):
                settled = self._settle(now, needed, admitted + one, drawn)
            with tf.control_dependencies([settled]):
                return tf.identity(counts), one * staleness

        with tf.device(self._device):
            ticket, examples, begun = map(tf.identity, (ticket, examples, step_read))
            return self._section.execute(locked)  # which waits for these before it locks

    def be_content(self, stamp):
        """Returns an op that closes a round, if any push was admitted; else the next closes it.

        Args:
          stamp: int64 scalar tensor, of the round; another one is left alone.
        """
        def locked():
            now, needed, admitted, drawn = tf.unstack(self._table.read(self._state))
            needed = tf.where(tf.equal(now, stamp), tf.ones_like(needed), needed)
            return self._settle(now, needed, admitted, drawn)

        with tf.device(self._device):
            return self._section.execute(locked)

    def _settle(self, now, needed, admitted, drawn):
        """Returns an op that writes the state, and closes the step if enough were admitted."""
        full = tf.greater(now, NONE) & tf.greater_equal(admitted, needed)
        after = now + 1 if self._buffer else self._no_ticket[0]
        written = self._table.write(self._state, tf.where(
            full, tf.stack([after, needed, 0, drawn]), tf.stack([now, needed, admitted, drawn])))
        with tf.control_dependencies([written]):
            return self._closed.enqueue_many(tf.fill([tf.cast(full, tf.int32)], admitted))
