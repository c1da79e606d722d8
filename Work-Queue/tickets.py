"""The queue: pieces of the training set are tickets on the ps, which workers take as they are free.

A ticket is finished when a worker has trained on all of it. When every ticket has been taken, those
that are not finished are taken again: their workers may be slow, or dead, and nobody has to find
out which. When all are finished, the next epoch begins with all tickets again. So every ticket is
finished in every epoch, but may be trained on more than once.
"""

from tfdist.start.quiet import tf

_NONE = -1, -1  # the epoch and the ticket of a worker that has none


class Tickets(tf.train.SessionRunHook):
    """The queue for one worker. Call `wait` before each step.

    Attributes:
      mine: int64 [2] placeholder, an epoch and a ticket.
      make_ready: op to set, which prepares the examples of the ticket in `mine`.
      exchange: int64 [2] tensor that finishes the ticket in `mine` and takes the next: its epoch
        and its number.
      number: int, the number of tickets in an epoch.
      taken: int, the number of tickets that this worker took.
      epoch: int, the epoch of its last ticket, from 0.
    """

    def __init__(self, number, num_steps, device):
        """Makes the ops.

        Args:
          number: int, tickets in an epoch.
          num_steps: int, local steps per ticket.
          device: string, the device of the queue, on a ps.
        """
        self.number = number
        self.make_ready = None
        self.taken, self.epoch = 0, 0
        self._num_steps = num_steps
        self.mine = tf.placeholder(tf.int64, [2])
        with tf.device(device), tf.variable_scope('tickets'):
            self._epoch = tf.get_variable('epoch', initializer=tf.zeros([], tf.int64),
                                          trainable=False)
            # For each ticket of this epoch: how often it was taken, and whether it is finished.
            self._taken = tf.get_variable('taken', initializer=tf.zeros([number], tf.int64),
                                          trainable=False)
            self._finished = tf.get_variable('finished', initializer=tf.zeros([number], tf.bool),
                                             trainable=False)
            # One worker at a time: the graphs of all workers share the section.
            self.exchange = tf.CriticalSection(shared_name='tickets').execute(self._exchange)

    def _exchange(self):
        """Finishes the ticket in `mine`, and takes the unfinished one taken least often."""
        epoch, taken, finished = (variable.read_value() for variable in (
            self._epoch, self._taken, self._finished))
        of_this_epoch = tf.equal(self.mine[0], epoch)
        finished |= of_this_epoch & tf.equal(tf.range(self.number, dtype=tf.int64), self.mine[1])
        over = tf.reduce_all(finished)
        epoch += tf.cast(over, tf.int64)
        taken *= tf.cast(~over, tf.int64)
        finished &= ~over
        ticket = tf.argmin(tf.where(finished, tf.fill([self.number], tf.int64.max), taken))
        taken += tf.one_hot(ticket, self.number, dtype=tf.int64)
        with tf.control_dependencies([self._epoch.assign(epoch), self._taken.assign(taken),
                                      self._finished.assign(finished)]):
            return tf.stack([epoch, ticket])

    def after_create_session(self, session, coord):
        """Begins without a ticket: any worker may take the one of this worker's former session."""
        self._exchange_for = session.make_callable(self.exchange, [self.mine])
        self._make_ready = session.make_callable(self.make_ready, [self.mine])
        self._held, self._steps_left = _NONE, 0

    def wait(self):
        """Takes a ticket if this worker has finished its last one."""
        if not self._steps_left:
            self._held = self._exchange_for(self._held)
            self._make_ready(self._held)
            self._steps_left = self._num_steps
            self.taken, self.epoch = self.taken + 1, int(self._held[0])
        self._steps_left -= 1
