"""Rounds: each client of one has a ticket in a queue; the chief closes it, and opens the next.

A worker takes a ticket, trains the client, and pushes; see admissions.py for what counts then. The
run that pushes waits for the next ticket, too: a turn is one run of the session, and what ps 0
tells the worker in it is one tensor. A worker that has something else to do gives it back.

A round is closed when all its clients were admitted, or when its deadline has passed. The deadline
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
from tfdist.training import report, sessions, stopping
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
      takes: int64 tensor, what is run to take a ticket, and tells it; see `asks`.
    """

    gives_back = True

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
        self._thread, self._over, self._told = None, False, None
        self._scheme, self._global_step = scheme, global_step
        with tf.device(global_step.device):
            self._ends = self.ends()
            self._begin_life = scheme.admissions.begin_life()
            self._give_back = scheme.admissions.give_back()
            self.takes = self._holding(self.asks())
            if self._is_chief:
                devices = {variable.device for variable in scheme.network.variables}
                self._succession = succession.Succession(sorted(devices | {global_step.device}))
                self._shut, self._clear = scheme.admissions.shut(), scheme.kept.clear()
                self._begin_epoch = scheme.clock.begin_epoch()
                with tf.control_dependencies([scheme.complete]):
                    self._complete = tf.concat([scheme.counted, self.ends()], axis=0)
                self.make_open(scheme)

    def ends(self):
        """Returns what tells whether the run is over, see `is_over`: an int64 tensor on ps 0."""
        early = getattr(self._hparams, 'stop_after_evals_without_gain', 0)
        with tf.device(self._global_step.device):
            return tf.stack([tf.cast(self._global_step.read_value(), tf.int64)]
                            + ([stopping.LastStep(self._global_step).value] if early else []))

    def asks(self, after=()):
        """Returns the op with which a worker asks for a ticket, once the tensors `after` are there.

        Returns:
          Int64 tensor on ps 0: the ticket, and then what tells whether it is one to train on.
        """
        raise NotImplementedError

    def take_with_each_push(self):
        """Has each run of the train op ask for the next ticket, when its push was answered."""
        scheme = self._scheme
        with tf.device(self._global_step.device):
            told = tf.concat([scheme.answer, self.asks([scheme.answer])], axis=0)
        told = self._here(told)  # all that comes back is one tensor
        scheme.train_op.update(scheme.figures_of(told, self._hparams),
                               ticket=self._holding(told[3:]))

    def _here(self, told):
        with tf.device(self._scheme.turn.ticket.device):
            return tf.identity(told)

    def _holding(self, told):
        """Returns what a worker was told, on the worker, once its turn has the ticket."""
        told, ticket = self._here(told), self._scheme.turn.ticket
        with tf.device(ticket.device), tf.control_dependencies([
                ticket.assign(told[:clients.TICKET], read_value=False)]):
            return tf.identity(told)

    def make_open(self, scheme):
        """Makes what else only the chief runs."""
        raise NotImplementedError

    def after_create_session(self, session, coord):
        """Begins; the chief begins all afresh.

        What was pushed for a step that is not complete is forgotten, and what is still on its way
        is of an epoch that is over.
        """
        self._session, self._take, self._told = session, session.make_callable(self.takes), None
        session.run(self._begin_life)
        self._over = self.is_over(session.run(self._ends))
        if self._is_chief:
            patience.PATIENCE.expect('a run of an earlier chief has not ended')
            self._succession.begin(session)
            for op in self._shut, self._clear, self._begin_epoch:
                session.run(op)
            self._thread = threading.Thread(target=self._make_all, args=(session,), daemon=True)
            self._thread.start()

    def before_run(self, run_context):
        """Gives back the next ticket: who saves or tests now holds up nobody."""
        if self.gives_back and self._told is not None:
            self._told = None
            run_context.session.run(self._give_back)

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
        if not self._over and self.take_next(self._ask):
            return True
        self._over = True
        progress.global_step = int(self._session.run(self._ends)[0])
        progress.end_at(progress.global_step)
        return False

    def hear(self, told):
        """Takes what the run of a push has told of the next ticket, an array."""
        self._told = told

    def _ask(self):
        told, self._told = self._told, None
        return (self._take() if told is None else told).tolist()

    def take_next(self, ask):
        """Waits for a ticket.

        Args:
          ask: function that asks for one, and returns what it is told, a list of ints: see `asks`.

        Returns:
          Whether there is one; otherwise the run is over.
        """
        raise NotImplementedError

    def _make_all(self, session):
        run = session.make_callable(self._complete)

        def complete():
            counted, examples, *ends = run().tolist()
            return ends, (counted, examples)

        with sessions.closed_if_it_fails(session):
            self.make_steps(session, complete)

    def make_steps(self, session, complete):
        """Makes all steps.

        Args:
          session: `tf.Session`.
          complete: function that waits until a step is closed, and completes it; it returns what
            `is_over` takes, and how many clients and examples count in the step.
        """
        raise NotImplementedError

    def end(self, session):
        """Lets the chief come to its end, for which the others wait."""
        if self._thread:
            self._thread.join(_END_SECS)


class Progress(report.Progress):
    """The progress of a worker, whose results also tell `Steps` of the next ticket."""

    def __init__(self, its_steps, *args):
        """Takes the `Steps`, and the arguments of the base class."""
        super().__init__(*args)
        self._hear = its_steps.hear

    def add(self, result, local_steps=1):
        """See the base class."""
        self._hear(result.pop('ticket'))
        super().add(result, local_steps)


class Rounds(Steps):
    """Rounds of the clients that the chief draws.

    The chief opens a round, puts the tickets of its clients into the queue, waits until it is
    closed, and makes the step of the center. At the end it puts a ticket into the queue that says
    to all workers that the run is over.
    """

    def asks(self, after=()):
        """See the base class: the ticket, and the stamp of the round that is open."""
        ticket, now = self._scheme.admissions.take(after)
        return tf.concat([ticket, [now]], axis=0)

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

    def take_next(self, ask):
        stamp, now = None, admissions.NONE
        while stamp != now:  # it is left from a round that was closed without it
            stamp, *_, now = ask()
            if stamp == admissions.NONE:
                return False
        return True

    def make_steps(self, session, complete):
        ends = session.run(self._ends)
        while not self.is_over(ends):
            step = int(ends[0])
            mine = self._sample(step)
            stamp, _ = session.run([self._stamp, self._open], {self._clients: mine})
            with self._closed_in_time(session, stamp):
                ends, (counted, _) = complete()
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
