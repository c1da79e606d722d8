"""Rounds: each client of one has a ticket in a queue; the chief closes it, and opens the next.

A worker takes a ticket, trains the client, and pushes; see admissions.py for what counts then. A
round is closed when all its clients were admitted, or when its deadline has passed. The deadline
acts on admissions and not on pushes: queues and sums are of each variable by itself, and a round
closed by their counts could hold another set of clients in each.
"""

import contextlib
import functools
import sys
import threading

from absl import flags
from tfdist.cluster import patience
from tfdist.start import console
from tfdist.synchronous import succession
from tfdist.training import sessions, stopping
from tfdist.start.quiet import tf
import admissions
import clients

FLAGS = flags.FLAGS
flags.DEFINE_float('deadline_secs', 0, 'close a round so many seconds after it began, with the '
                   'clients that were admitted by then, or else with the next one; 0: wait for all '
                   'of them', lower_bound=0)
flags.DEFINE_integer('buffer', 0, 'K, no rounds: the center moves whenever K clients have come, '
                     'whichever these are (FedBuff); 0: rounds', lower_bound=0)
_OF_ROUNDS = 'fraction', 'deadline_secs'
_END_SECS = 10  # far more than it takes to say that the run is over


def check_flags():
    """Ends the program if a flag of rounds is given, and there are none."""
    for name in _OF_ROUNDS:
        if FLAGS.buffer and FLAGS[name].present:
            sys.exit(f'--{name}: it is of rounds, and with --buffer={FLAGS.buffer} there are none.')


class Steps(tf.train.SessionRunHook):
    """Gives this worker its tickets; in the chief, a thread makes the steps of the center: a hook.

    The base class of `Rounds` and of `buffers.Buffers`.

    Attributes:
      takes: list of what is run to take a ticket.
    """

    def __init__(self, scheme, global_step, hparams, task_index):
        """Makes the ops.

        Args:
          scheme: `Scheme` of worker.py.
          global_step: integer `tf.Variable`, counts the steps of the center.
          hparams: object with the attributes train_steps, clients, fraction, seed, deadline_secs,
            buffer and stop_after_evals_without_gain.
          task_index: int, the index of this worker; 0 is the chief.
        """
        self._is_chief, self._hparams, self._name = task_index == 0, hparams, f'worker {task_index}'
        self._thread, self._over, self._index = None, False, task_index
        with tf.device(global_step.device):
            self._step = global_step.read_value()
            self._ends = [self._step] + ([stopping.LastStep(global_step).value] if getattr(
                hparams, 'stop_after_evals_without_gain', 0) else [])
            self._begin_life = scheme.admissions.begin_life()
            self.make_take(scheme, global_step)
            if self._is_chief:
                devices = {variable.device for variable in scheme.network.variables}
                self._succession = succession.Succession(sorted(devices | {global_step.device}))
                self._shut, self._clear = scheme.admissions.shut(), scheme.kept.clear()
                self._begin_epoch = scheme.clock.begin_epoch()
                self._complete = [scheme.complete, scheme.counted]
                self.make_open(scheme)

    def make_take(self, scheme, global_step):
        """Makes `takes`, and the ops with which a worker takes a ticket."""
        raise NotImplementedError

    def make_open(self, scheme):
        """Makes what else only the chief runs."""
        raise NotImplementedError

    def after_create_session(self, session, coord):
        """Begins; the chief begins all afresh.

        What was pushed for a step that is not complete is forgotten, and what is still on its way
        is of an epoch that is over.
        """
        self._session, self._take = session, session.make_callable(self.takes)
        session.run(self._begin_life)
        self._over = self.is_over(session.run(self._ends))
        if self._is_chief:
            patience.PATIENCE.expect('a run of an earlier chief has not ended')
            self._succession.begin(session)
            for op in self._shut, self._clear, self._begin_epoch:
                session.run(op)
            self._thread = threading.Thread(target=self._make_all, args=(session,), daemon=True)
            self._thread.start()

    def is_over(self, ends):
        """Returns whether the last step is complete; `ends` is the step, and maybe an early end."""
        step, *last_step = ends
        return step >= min([self._hparams.train_steps, *last_step])

    def take(self, progress):
        """Waits for this worker's next ticket.

        Args:
          progress: `report.Progress`, which is told of the end.

        Returns:
          Whether there is one; otherwise the run is over.
        """
        if not self._over and self.take_next(self._session, self._take):
            return True
        self._over = True
        progress.global_step = int(self._session.run(self._step))
        progress.end_at(progress.global_step)
        return False

    def take_next(self, session, take):
        """Waits for a ticket.

        Args:
          session: `tf.Session`.
          take: function that runs `takes` in it.

        Returns:
          Whether there is one; otherwise the run is over.
        """
        raise NotImplementedError

    def _make_all(self, session):
        with sessions.closed_if_it_fails(session):
            self.make_steps(session, session.make_callable(self._complete))

    def make_steps(self, session, complete):
        """Makes all steps, by a function that waits until one is closed, and completes it."""
        raise NotImplementedError

    def end(self, session):
        """Lets the chief come to its end, for which the others wait."""
        if self._thread:
            self._thread.join(_END_SECS)


class Rounds(Steps):
    """Rounds of the clients that the chief draws.

    The chief opens a round, puts the tickets of its clients into the queue, waits until it is
    closed, and makes the step of the center. At the end it puts a ticket into the queue that says
    to all workers that the run is over.
    """

    def make_take(self, scheme, global_step):
        ticket, now = scheme.admissions.take()
        self.takes = [ticket[0], now, scheme.turn.ticket.assign(ticket, read_value=False)]

    def make_open(self, scheme):
        hparams, its_admissions = self._hparams, scheme.admissions
        self._sample = functools.partial(clients.sample, hparams.seed, number=hparams.clients,
                                         fraction=hparams.fraction)
        self._clients, self._stamp = tf.placeholder(tf.int64, [None]), scheme.clock.read()
        stamps = tf.fill(tf.shape(self._clients), self._stamp)
        of_all = tf.stack([stamps, self._clients, tf.zeros_like(stamps)], axis=1)
        number = tf.size(self._clients, out_type=tf.int64)
        with tf.control_dependencies([its_admissions.open(self._stamp, number)]):
            self._open = its_admissions.give_out(of_all)
        self._late = tf.placeholder(tf.int64, [])
        self._be_content = its_admissions.be_content(self._late)
        self._end = its_admissions.say_that_it_is_over()

    def take_next(self, session, take):
        stamp = now = None
        while stamp != admissions.NONE:
            stamp, now, _ = take()
            if stamp == now != admissions.NONE:
                return True  # otherwise it is left from a round that was closed without it
        return False

    def make_steps(self, session, complete):
        while not self.is_over(session.run(self._ends)):
            step = int(session.run(self._step))
            mine = self._sample(step)
            stamp, _ = session.run([self._stamp, self._open], {self._clients: mine})
            with self._closed_in_time(session, stamp):
                _, (counted, _) = complete()
            if counted < len(mine):
                console.say(self._name, f'round {step + 1} is closed after its '
                            f'{self._hparams.deadline_secs:g} s, with {counted} of {len(mine)} '
                            'clients')
        session.run(self._end)

    @contextlib.contextmanager
    def _closed_in_time(self, session, stamp):
        """Closes the round at its deadline, unless the block ends before."""
        if not self._hparams.deadline_secs:
            yield
            return
        timer = threading.Timer(self._hparams.deadline_secs, self._at_the_deadline,
                                [session, stamp])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _at_the_deadline(self, session, stamp):
        with sessions.until_it_ends():
            session.run(self._be_content, {self._late: stamp})
