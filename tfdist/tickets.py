"""The queue: pieces of the training set are tickets on the ps, for whoever is free to take.

A ticket is finished when a worker that took it has trained on all of it. When every ticket has been
taken, but some are not finished, they are taken again: their workers may be slow, or dead. Nobody
has to find out which. When all are finished the next epoch begins, with all tickets anew. So each
ticket is finished in each epoch, by whomever, and may be trained on more than once.
"""

from tfdist.quiet import tf

_NONE = -1, -1  # the epoch and the ticket of a worker that has none


class Tickets(tf.train.SessionRunHook):
    """The queue as one worker sees it. Call `wait` before each step.

    Attributes:
      mine: int64 [2] placeholder, an epoch and a ticket.
      make_ready: op to set, which makes ready the examples of the ticket in `mine`.
      exchange: int64 [2] tensor, the epoch and the ticket now taken; running it finishes the one in
        `mine`.
      number: int, how many tickets there are in an epoch.
      taken: int, how many this worker took.
      epoch: int, that of its last one, from 0.
    """

    def __init__(self, number, num_steps, device):
        """Makes the ops.

        Args:
          number: int, tickets in an epoch.
          num_steps: int, local steps for each.
          device: string, where the queue is: a ps.
        """
        self.number = number
        self.make_ready = None
        self.taken, self.epoch = 0, 0
        self._num_steps = num_steps
        self.mine = tf.placeholder(tf.int64, [2])
        with tf.device(device), tf.variable_scope('tickets'):
            self._epoch = tf.get_variable('epoch', initializer=tf.zeros([], tf.int64),
                                          trainable=False)
            # In this epoch, of each ticket: how many workers took it, and whether one finished it.
            self._taken = tf.get_variable('taken', initializer=tf.zeros([number], tf.int64),
                                          trainable=False)
            self._finished = tf.get_variable('finished', initializer=tf.zeros([number], tf.bool),
                                             trainable=False)
            # One worker at a time: the section is shared by the graphs of all.
            self.exchange = tf.CriticalSection(shared_name='tickets').execute(self._exchange)

    def _exchange(self):
        """Finishes the ticket in `mine`, and takes one of those that the fewest have taken."""
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
        """Begins without a ticket. One that it had in an earlier session is left to whoever."""
        self._exchange_for = session.make_callable(self.exchange, [self.mine])
        self._make_ready = session.make_callable(self.make_ready, [self.mine])
        self._held, self._steps_left = _NONE, 0

    def wait(self):
        """Takes a ticket if this worker has trained on all of its last one."""
        if not self._steps_left:
            self._held = self._exchange_for(self._held)
            self._make_ready(self._held)
            self._steps_left = self._num_steps
            self.taken, self.epoch = self.taken + 1, int(self._held[0])
        self._steps_left -= 1
