"""Rounds: the tickets of the clients that take part, and who of them was admitted.

Each client of a round has a ticket in a queue on ps 0. A worker takes one, trains the client, and
asks to be admitted; only then does it push. A round is closed when enough clients are admitted, or
when its deadline has passed. The deadline acts on admissions and not on pushes: accumulators count
for each variable by itself, and a round closed by their counts could hold another set of clients in
each. After admission every client pushes to all of them, and the chief waits for exactly these.
"""

import functools
import threading

from absl import flags
from tfdist.cluster import patience
from tfdist.scheme import volatile_table
from tfdist.start import console
from tfdist.synchronous import entrance, succession
from tfdist.training import sessions, stopping
from tfdist.start.quiet import tf
import clients

flags.DEFINE_float('deadline_secs', 0, 'close a round so many seconds after it began, with the '
                   'clients that were admitted by then, or else with the next one; 0: wait for all '
                   'of them', lower_bound=0)
_CLOSE_SECS = 10  # far more than it takes to close the queue
_OPEN, _NEEDED, _ADMITTED, _EXAMPLES = _STATE = 0, 1, 2, 3  # keys of the table
_NONE = -1


class Admissions:
    """Admits clients to the round that is open, one at a time, on the device of ps 0.

    A round is named by its stamp, see `stamps.Clock`. What is kept here is in no checkpoint: a
    chief that begins opens the round anew.

    Attributes:
      closed: int64 [2] tensor that waits until a round is closed: how many clients were admitted,
        and how many examples these have together.
    """

    def __init__(self, device, task_index):
        """Makes the ops, for the worker of an index."""
        self._device = device
        self._table = volatile_table.VolatileTable('round', device, default=_NONE)
        with tf.device(device):
            # One worker at a time: the graphs of all workers share the section.
            self._section = tf.CriticalSection(shared_name='round')
            self._closed = tf.FIFOQueue(-1, tf.int64, shapes=[(2,)], shared_name='closed')
            self.closed = self._closed.dequeue()
            self._state = tf.constant(_STATE, tf.int64)
            # The ticket that this worker holds: its stamp, and its client.
            self._mine = len(_STATE) + 2 * task_index + tf.range(2, dtype=tf.int64)
            self._no_ticket = tf.fill([2], tf.constant(_NONE, tf.int64))

    def open_now(self):
        """Returns the stamp of the round that is open, an int64 scalar tensor, or -1."""
        return self._table.read(self._state[_OPEN])

    def open(self, stamp, number):
        """Returns an op that opens the round of a stamp for so many clients."""
        return self._table.write(self._state, tf.stack([stamp, number, 0, 0]))

    def shut(self):
        """Returns an op after which no round is open, and none is left closed but not complete."""
        with tf.device(self._device):
            with tf.control_dependencies([self._section.execute(lambda: self._written(_NONE))]):
                size = self._closed.size()
            return self._closed.dequeue_many(size).op

    def _written(self, stamp):
        with tf.control_dependencies([self.open(tf.constant(stamp, tf.int64), 0)]):
            return tf.constant(0)

    def hold(self, ticket):
        """Returns an op that notes that this worker has taken a ticket, an int64 [2] tensor."""
        return self._table.write(self._mine, ticket)

    def give_up(self):
        """Returns the ticket that this worker held, [-1, -1] if its round is over: it has none now.

        After that its former life, if something of it is still on the way, is not admitted.
        """
        def locked():
            held, now = self._table.read(self._mine), self._table.read(self._state)[_OPEN]
            with tf.control_dependencies([held]):
                gone = self._table.write(self._mine, self._no_ticket)
            with tf.control_dependencies([gone]):
                return tf.where(tf.equal(held[0], now), held, self._no_ticket)

        with tf.device(self._device):
            return self._section.execute(locked)

    def admit(self, ticket, examples):
        """Asks to be admitted; closes the round if this client is the last one that it needs.

        Args:
          ticket: int64 [2] tensor, the ticket of this worker.
          examples: int64 scalar tensor, how many examples the client has.

        Returns:
          Bool scalar tensor: whether the client was admitted, and is to push.
        """
        def locked():
            now, needed, admitted, so_far = tf.unstack(self._table.read(self._state))
            held = self._table.read(self._mine)
            ok = tf.equal(ticket[0], now) & tf.reduce_all(tf.equal(ticket, held))
            one = tf.cast(ok, tf.int64)
            with tf.control_dependencies([held]):
                used = self._table.write(self._mine, tf.where(ok, self._no_ticket, held))
            with tf.control_dependencies([used]):
                settled = self._settle(now, needed, admitted + one, so_far + one * examples)
            with tf.control_dependencies([settled]):
                return tf.identity(ok)

        with tf.device(self._device):
            ticket, examples = tf.identity(ticket), tf.identity(examples)
            return self._section.execute(locked)

    def be_content(self, stamp):
        """Returns an op that closes a round, if any client was admitted; else the next closes it.

        Args:
          stamp: int64 scalar tensor, of the round; another one is left alone.
        """
        def locked():
            now, needed, admitted, so_far = tf.unstack(self._table.read(self._state))
            needed = tf.where(tf.equal(now, stamp), tf.ones_like(needed), needed)
            with tf.control_dependencies([self._settle(now, needed, admitted, so_far)]):
                return tf.constant(0)

        with tf.device(self._device):
            return self._section.execute(locked)

    def _settle(self, now, needed, admitted, examples):
        """Returns an op that writes the state, and closes the round if enough were admitted."""
        full = tf.greater(now, _NONE) & tf.greater_equal(admitted, needed)
        now = tf.where(full, self._no_ticket[0], now)
        written = self._table.write(self._state, tf.stack([now, needed, admitted, examples]))
        news = tf.stack([admitted, examples])[tf.newaxis]
        with tf.control_dependencies([written]):
            return self._closed.enqueue_many(news[:tf.cast(full, tf.int32)])


class Rounds(tf.train.SessionRunHook):
    """Gives this worker its tickets; in the chief, a thread makes the rounds: a hook.

    The chief opens a round, puts the tickets of its clients into the queue, waits until it is
    closed, and makes the step of the center. At the end it closes the queue: that no more tickets
    come is how all workers know that the run is over.
    """

    def __init__(self, scheme, global_step, hparams, task_index):
        """Makes the ops.

        Args:
          scheme: `Scheme` of worker.py.
          global_step: integer `tf.Variable`, counts the rounds.
          hparams: object with the attributes train_steps, clients, fraction, seed, deadline_secs
            and stop_after_evals_without_gain.
          task_index: int, the index of this worker; 0 is the chief.
        """
        self._is_chief, self._hparams, self._name = task_index == 0, hparams, f'worker {task_index}'
        self._thread, self._over = None, False
        self._sample = functools.partial(clients.sample, hparams.seed, number=hparams.clients,
                                         fraction=hparams.fraction)
        admissions, clock = scheme.admissions, scheme.clock
        with tf.device(global_step.device):
            self._step = global_step.read_value()
            self._ends = [self._step] + ([stopping.LastStep(global_step).value] if getattr(
                hparams, 'stop_after_evals_without_gain', 0) else [])
            tickets = tf.FIFOQueue(-1, tf.int64, shapes=[(2,)], shared_name='tickets')
            self._make_take(tickets, admissions, scheme.turn)
            self._lost = admissions.give_up()
            self._ticket = tf.placeholder(tf.int64, [2])
            self._return = tickets.enqueue(self._ticket)
        if self._is_chief:
            self._make_rounds(scheme, tickets, clock, global_step)

    def _make_take(self, tickets, admissions, turn):
        """Makes the op that takes a ticket, and says which round is open then."""
        ticket = tickets.dequeue()
        with tf.control_dependencies([admissions.hold(ticket)]):
            now = admissions.open_now()
        with tf.control_dependencies([turn.ticket.assign(ticket, read_value=False)]):
            self._take = tf.identity(ticket[0]), tf.identity(now)

    def _make_rounds(self, scheme, tickets, clock, global_step):
        """Makes what only the chief runs."""
        accumulators = scheme.accumulators.all
        devices = {each.accumulator_ref.device for each in accumulators} | {global_step.device}
        self._succession = succession.Succession(sorted(devices))
        self._entrance = entrance.Entrance(accumulators, clock, release=list)
        self._complete = [scheme.complete, scheme.closed]
        with tf.device(global_step.device):
            self._shut = scheme.admissions.shut()
            self._clients, self._stamp = tf.placeholder(tf.int64, [None]), clock.read()
            of_all = tf.stack([tf.fill(tf.shape(self._clients), self._stamp), self._clients],
                              axis=1)
            number = tf.size(self._clients, out_type=tf.int64)
            with tf.control_dependencies([scheme.admissions.open(self._stamp, number)]):
                self._open = tickets.enqueue_many(of_all)
            self._late = tf.placeholder(tf.int64, [])
            self._be_content = scheme.admissions.be_content(self._late)
            self._queue_is_closed, self._close_queue = tickets.is_closed(), tickets.close()

    def after_create_session(self, session, coord):
        """Gives back the ticket that an earlier life of this worker has taken with it.

        The chief begins all afresh: what was pushed in a round that is not complete is forgotten,
        and its clients, which are the same again, get new tickets.
        """
        self._session, self._over = session, self._is_over(session)
        if self._is_chief:
            patience.PATIENCE.expect('a run of an earlier chief has not ended')
            self._succession.begin(session)
            session.run(self._shut)
            self._entrance.open(session)
            self._thread = threading.Thread(target=self._make_all, args=(session,), daemon=True)
            self._thread.start()
        else:
            ticket = session.run(self._lost)
            if ticket[0] != _NONE:
                session.run(self._return, {self._ticket: ticket})
        self._take_next = session.make_callable(self._take)

    def _is_over(self, session):
        """Returns whether the last round is complete."""
        step, *last_step = session.run(self._ends)
        return step >= min([self._hparams.train_steps, *last_step])

    def take(self, progress):
        """Waits for this worker's next ticket.

        Args:
          progress: `report.Progress`, which is told of the end.

        Returns:
          Whether there is one; otherwise the run is over.
        """
        while not self._over:
            try:
                stamp, now = self._take_next()
            except tf.errors.OutOfRangeError:
                self._over = True
            else:
                if stamp == now:
                    return True  # otherwise it is left from a round that was closed without it
        progress.global_step = int(self._session.run(self._step))
        progress.end_at(progress.global_step)
        return False

    def _make_all(self, session):
        """Makes all rounds, in a `tf.Session`, and closes the queue."""
        with sessions.until_it_ends():
            complete = session.make_callable(self._complete)
            while not self._is_over(session):
                try:
                    self._make_round(session, complete)
                except (tf.errors.OpError, RuntimeError):
                    session.close()  # the chief may be waiting on another ps, for ever
                    raise
            if not session.run(self._queue_is_closed):
                session.run(self._close_queue)

    def _make_round(self, session, complete):
        """Makes one round."""
        step = int(session.run(self._step))
        mine = self._sample(step)
        stamp, _ = session.run([self._stamp, self._open], {self._clients: mine})
        timer = threading.Timer(self._hparams.deadline_secs, self._at_the_deadline,
                                [session, stamp])
        timer.daemon = True
        if self._hparams.deadline_secs:
            timer.start()
        try:
            _, (admitted, _) = complete()
        finally:
            timer.cancel()
        if admitted < len(mine):
            console.say(self._name, f'round {step + 1} is closed after its '
                        f'{self._hparams.deadline_secs:g} s, with {admitted} of {len(mine)} '
                        'clients')

    def _at_the_deadline(self, session, stamp):
        with sessions.until_it_ends():
            session.run(self._be_content, {self._late: stamp})

    def end(self, session):
        """Lets the chief close the queue, for which the others wait."""
        if self._thread:
            self._thread.join(_CLOSE_SECS)
