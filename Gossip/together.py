"""Workers without a ps: they start with the same values, and end together."""

import contextlib
import time

from tfdist.cluster import awake_clock, patience
from tfdist.start import console
from tfdist.training import checkpoints, training_flags
from tfdist.start.quiet import tf
import others

LOST_AFTER_SECS, _WORD_EVERY_SECS, _LOOK_EVERY_SECS = 10, 10, 0.1
AGAIN = 'Start all workers again: with --model_dir they go on from the last checkpoint.'


@contextlib.contextmanager
def failures(name, by_sockets=None):
    """Ends this process when a neighbour is lost.

    Args:
      name: string, the worker of this process.
      by_sockets: object that has an attribute `lost`, see `swaps.Swaps`; or None.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError,
            tf.errors.CancelledError) as error:
        console.give_up(f'{name}: lost a neighbour ({console.reason(error.message)}). {AGAIN}')
    except (tf.errors.OpError, RuntimeError):
        if by_sockets and by_sockets.lost:
            console.give_up(f'{name}: lost a neighbour ({by_sockets.lost}). {AGAIN}')
        raise


class Together(tf.train.SessionRunHook):
    """Starts and ends the workers together. Make it the last hook.

    At the start worker 0 has the values, initial ones or those of its checkpoint; the others copy
    them, and nobody trains before all have. A worker that starts again while others train copies
    the values of one of them, and the step. At the end each waits for worker 0, which tests the
    mean when all have made their last step, or are gone. Nobody exits before its neighbours have
    closed their sessions.
    """

    def __init__(self, workers, me, neighbours, stop_watching, others_go_on):
        """Makes the ops.

        Args:
          workers: dict by index of `others.Worker`, of all workers.
          me: int, this worker.
          neighbours: list of ints.
          stop_watching: `threading.Event`, to set when no worker need be there any more.
          others_go_on: bool, whether a worker that is gone is left out; otherwise who watches for
            it ends this process.
        """
        self._workers, self._me, self._name = workers, me, f'worker {me}'
        self._neighbours, self._stop_watching = neighbours, stop_watching
        self._others_go_on = others_go_on
        self._variables = tf.global_variables()
        self._given = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                       for variable in self._variables]
        self._take_over = tf.group(*[variable.assign(value, read_value=False) for variable, value
                                     in zip(self._variables, self._given)])
        self._begin_batches = tf.tables_initializer()
        self._silences = Silences()

    def _others(self):
        return [worker for index, worker in sorted(self._workers.items()) if index != self._me]

    def after_create_session(self, session, coord):
        """Takes over the values of another worker, and the order of examples due at its step."""
        source = self._source()
        if source:
            worker, values = source
            session.run(self._take_over, dict(zip(self._given, values)))
        session.run(self._begin_batches)
        self._show(others.BEGUN)
        if not source:
            for each in self._others():
                self._wait_for(each, others.BEGUN, 'has not begun')
        else:
            self._wait_for(worker, others.TRAINS, 'does not train yet')
        self._show(others.TRAINS)

    def _source(self):
        """Returns whose values to take, an `others.Worker`, and its values; None: the own ones."""
        waiting = Waiting(self._name)
        while True:
            for worker in self._others():
                stage = worker.stage()
                if stage and stage < others.OVER:
                    values = worker.values(self._variables)
                    if values:
                        return worker, values
            if not self._me:
                return None
            waiting.go_on('worker 0 has not begun')

    def _show(self, stage):
        self._workers[self._me].show(stage)

    def _wait_for(self, worker, stage, what):
        """Waits until a worker has come so far; returns whether it has: or it is gone."""
        waiting = Waiting(self._name)
        while True:
            now = worker.stage()
            if now and now >= stage:
                return True
            if self._is_gone(worker, now):
                return False
            waiting.go_on(f'worker {worker.index} {what}', limit=stage < others.DONE)

    def _is_gone(self, worker, stage):
        """Returns whether a worker, which shows `stage` or does not answer, is gone."""
        return (self._silences.are_too_long(worker.index, stage is None)
                and self._others_go_on)

    def session_options(self, saver):
        """Returns what a `tf.train.MonitoredTrainingSession` gets, a dict.

        Args:
          saver: `mean.Saver` on worker 0, else None.
        """
        model_dir = training_flags.FLAGS.model_dir if saver else None
        checkpoints.claim(model_dir, self._name)
        return dict(checkpoint_dir=model_dir, scaffold=tf.train.Scaffold(saver=saver),
                    save_checkpoint_secs=training_flags.FLAGS.save_checkpoint_secs)

    def done(self):
        """Is called after the last step; on worker 0 it waits for the last steps of all."""
        patience.PATIENCE.rest()  # others may train for long, and worker 0 tests
        self._show(others.DONE)
        if not self._me:
            for worker in self._others():
                self._wait_for(worker, others.DONE, 'still trains')

    def end(self, session):
        """Waits until the mean is tested and saved, before this session is closed."""
        if not self._me:
            self._show(others.OVER)
        elif not self._wait_for(self._workers[0], others.OVER, 'has not tested the mean'):
            console.give_up(f'{self._name}: worker 0 does not answer '
                            f'({self._workers[0].link.silence}): nobody tests and saves the mean.')
        self._stop_watching.set()

    def leave(self):
        """Returns when this process may exit. Call it after the session is closed."""
        self._show(others.CLOSED)
        deadline = time.monotonic() + LOST_AFTER_SECS
        need_me = [worker for worker in self._others()
                   if not self._me or worker.index in self._neighbours]
        while time.monotonic() < deadline and not all(
                worker.stage() in (None, others.CLOSED) for worker in need_me):
            time.sleep(_LOOK_EVERY_SECS)


class Waiting:
    """A wait, of which a word is said now and then."""

    def __init__(self, name):
        """Takes the name of who waits."""
        self._name, self._began = name, awake_clock.seconds()
        self._told = self._began

    def go_on(self, what, limit=True):
        """Waits a moment for `what`, a string; if there is a limit, gives up after too long."""
        now = awake_clock.seconds()
        if limit and now - self._began > training_flags.FLAGS.patience_secs:
            console.give_up(f'{self._name}: {what}. Gave up after '
                            f'{training_flags.FLAGS.patience_secs:g} s. {AGAIN}')
        if now - self._told > _WORD_EVERY_SECS:
            self._told = now
            console.say(self._name, f'{what} after {now - self._began:.0f} s; waiting')
        time.sleep(_LOOK_EVERY_SECS)


class Silences:
    """For how long workers have not answered."""

    def __init__(self):
        self._since = {}

    def are_too_long(self, worker, silent):
        """Returns whether a worker, which is or is not `silent` now, is gone."""
        if not silent:
            self._since.pop(worker, None)
            return False
        since = self._since.setdefault(worker, awake_clock.seconds())
        # Without worker 0 nobody tests and saves: it may be on its way back.
        secs = LOST_AFTER_SECS if worker else training_flags.FLAGS.patience_secs
        return awake_clock.seconds() - since > secs
