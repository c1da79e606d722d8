"""Sessions: how a worker gets one, and how it trains in one."""

import contextlib
import sys
import threading
import time

from tfdist.cluster import patience
from tfdist.data import batches
from tfdist.training import beside, busy, notes, recorder, stopping, timeline, traffic
from tfdist.start.quiet import tf


@contextlib.contextmanager
def failures_of_ps():
    """Lets a session recover from every error that TensorFlow raises when a call to a ps fails.

    `tf.train.MonitoredSession` makes a new session after `AbortedError` and `UnavailableError`.
    TensorFlow 2.21 may raise `CancelledError` instead, for another part of the same call. A session
    that `stuck_chief` has closed is replaced, too.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error
    except RuntimeError as error:
        if 'closed Session' not in str(error):
            raise
        raise tf.errors.AbortedError(None, None, str(error)) from error


@contextlib.contextmanager
def until_it_ends():
    """Ends the block, which a thread runs in a session, if a ps fails or the session is closed."""
    with contextlib.suppress(tf.errors.AbortedError, tf.errors.UnavailableError):
        with failures_of_ps():
            yield


@contextlib.contextmanager
def closed_if_it_fails(session):
    """Ends the block as `until_it_ends` does, and closes its `tf.Session` if a run in it fails.

    For another run of that session may be waiting on another ps, for ever.
    """
    with until_it_ends():
        try:
            yield
        except (tf.errors.OpError, RuntimeError):
            session.close()
            raise


def run_in(session, function):
    """Calls `function` with the `tf.Session` of a `tf.train.MonitoredSession`; returns its result.

    After each failure of a ps it calls the function again, with the next `tf.Session`.
    """
    def step(step_context):
        with failures_of_ps():
            return function(live(session))

    return session.run_step_fn(step)


def live(session):
    """Returns the `tf.Session` that a `tf.train.MonitoredSession` has now.

    `step_context.session` is not that: after a failure TensorFlow calls a step function again with
    the session that has failed, and is closed.
    """
    return session._tf_sess()


class WorkerSessionCreator(tf.train.SessionCreator):
    """Gives a worker its session as soon as the chief has initialized the parameters.

    TensorFlow's own checks only every 30 s, at the start and after a ps has come back.
    """

    def __init__(self, master, config, stand_in=None):
        """See `tf.train.WorkerSessionCreator`; the graph must be complete.

        Args:
          master: string, the target of sessions on this worker.
          config: `tf.ConfigProto`.
          stand_in: `chief.Role`, which restores the parameters if the chief stays away; or None.
        """
        self._master, self._config, self._stand_in = master, config, stand_in
        global_variables = tf.global_variables()
        self._manager = tf.train.SessionManager(
            ready_for_local_init_op=tf.report_uninitialized_variables(global_variables),
            local_init_op=tf.group(tf.local_variables_initializer(), tf.tables_initializer()),
            ready_op=tf.report_uninitialized_variables(global_variables + tf.local_variables()),
            graph=tf.get_default_graph(), recovery_wait_secs=0.2)

    def create_session(self):
        """Returns a `tf.Session` in which the parameters are initialized."""
        tf.get_default_graph().finalize()
        patience.PATIENCE.expect('the chief, worker 0, has not initialized the parameters')
        wait_secs = self._stand_in.restores_after_secs if self._stand_in else float('inf')
        while True:
            with contextlib.suppress(tf.errors.DeadlineExceededError):
                return self._manager.wait_for_session(
                    self._master, config=self._config, max_wait_secs=wait_secs)
            if self._stand_in:
                with until_it_ends(), tf.Session(self._master, config=self._config) as session:
                    self._stand_in.restore(session)


class Trainer(tf.train.SessionRunHook):
    """Runs a train op past the session's hooks, which ask the ps for the global step in every run.

    It is itself a hook, to get the new session after each failure of a ps.
    """

    def __init__(self, train_op, wait=None, test=None, stop_device=None, recorded=None,
                 network=None, board=None, place=None, others=(), which=None):
        """Takes what to run.

        Args:
          train_op: dict of tensors.
          wait: function to call before each run, which returns when it may begin; or None.
          test: `evaluation.Test` for the notes of the process that tests, or None.
          stop_device: string, the device of `stopping.LastStep`; by default the global step's.
          recorded: `recorder.Recorder` of these runs, or None.
          network: `trainee.Trainee` that is trained, whose hooks and summaries are run; or None.
          board: `busy.Board` that tells why a step takes long, or None.
          place: pair of ints, the index of this worker, and the number of workers or None if it is
            not known; by default no other process trains.
          others: list of dicts of tensors, further train ops, each for some of the runs.
          which: function of the global step at which a run begins, an int, that returns the index
            of its train op: 0 is `train_op`, and then come the `others`. Needed if there are any.

        Raises:
          SystemExit: if the runs are to be recorded, but belong to no scheme.
        """
        if recorder.FLAGS.order_dir and not recorded:
            sys.exit('--order_dir: this program has no scheme whose runs could be recorded.')
        self._global_step = tf.train.get_global_step()
        self._train_ops, self._which = [dict(each) for each in (train_op, *others)], which
        self._step = None  # at which the next run begins; known if there are several train ops
        self._last_step = self._last_step_at_first = None
        if stopping.FLAGS.stop_after_evals_without_gain:
            self._last_step = stopping.LastStep(self._global_step, stop_device).value
            for each in self._train_ops:
                each.setdefault('last_step', self._last_step)
        self._wait, self._recorded, self._board = wait, recorded, board
        self._notes = notes.asked_for(test)
        self._timeline = timeline.asked_for(*(place or (None, 1)),
                                             stop_device or self._global_step.device)
        if self._timeline and wait:
            self._wait = self._timeline.noting(wait)
        self._beside = network and beside.Beside(network, writes=test and test.is_chief)

    @classmethod
    def of(cls, scheme, test=None, wait=None, stop_device=None, stop_target=None):
        """Returns the trainer of a `seam.Seam`, which records the runs if --order_dir is given.

        `stop_target` is the target of sessions on the server of `stop_device`, for a worker whose
        own server has no thread left while it waits; see `busy.Board`.
        """
        recorded = recorder.asked_for(scheme)  # changes the train op
        board = scheme.num_workers and busy.Board(
            scheme.task_index, stop_device or tf.train.get_global_step().device, stop_target)
        seams = [scheme, *scheme.others]
        return cls(scheme.train_op, wait or scheme.wait, test, stop_device, recorded,
                   scheme.network, board, (scheme.task_index, scheme.num_workers),
                   [each.train_op for each in scheme.others],
                   lambda step: seams.index(scheme.at(step)))

    def begin(self):
        patience.PATIENCE.expect('the parameters are not initialized')
        if self._beside:
            self._beside.begin()

    def after_create_session(self, session, coord):
        if self._recorded:
            self._recorded.begin(session)
        patience.PATIENCE.begin_session(session, 'the step is not complete')
        if self._beside:
            self._beside.after_create_session(session, coord)
        runs = [self._on(session, train_op) for train_op in self._train_ops]
        self._run = self._by_step(session, runs) if len(runs) > 1 else runs[0]
        self._session = session
        if self._last_step is not None:  # before the first run: the others may have stopped
            self._last_step_at_first = session.run(self._last_step)
        if self._board:
            threading.Thread(target=self._listen, args=(session,), daemon=True).start()

    def _on(self, session, train_op):
        """Returns a function that runs a train op in a `tf.Session`, and whatever is asked for."""
        run = session.make_callable(train_op)
        if self._beside:
            run = self._beside.on(session, train_op, run)
        if self._timeline:
            run = self._timeline.on(session, train_op, run)
        return self._notes.on(session, train_op, run) if self._notes else run

    def _by_step(self, session, runs):
        """Returns a function that calls that one of `runs` which the global step asks for."""
        self._step = int(session.run(self._global_step))

        def run():
            result = runs[self._which(self._step)]()
            self._step = int(result['global_step'])
            return result

        return run

    def _listen(self, session):
        """Hears what others are busy with, until the session ends or another trainer trains."""
        with until_it_ends():
            self._board.listen(session, lambda: self._session is session and (
                self._board.is_this_programs()))  # who was left alone has no `end`

    def run(self):
        """Waits until this worker may go on, and returns the values of one run of a train op."""
        if self._wait:
            self._wait()
        try:
            result = self._run()
        except tf.errors.OpError as error:  # no context manager: this is the hot path
            batches.check(error)
            raise
        patience.PATIENCE.heard()
        if self._beside and self._beside.stops:
            raise SystemExit('A hook of the model has asked for the end, which all workers have to '
                             'reach together: use --train_steps, or --eval_every_secs with '
                             '--stop_after_evals_without_gain.')
        return result

    def train_for_a_second(self, session, progress, local_steps=1, then=None, goes_on=None,
                           failures=failures_of_ps, step_with_hooks=False):
        """Trains for a second past the hooks, and then runs them, which saves checkpoints.

        Args:
          session: `tf.train.MonitoredSession`, which gets a new session if a ps fails.
          progress: `report.Progress` that gets the results.
          local_steps: int, the number of local steps in a run of the train op.
          then: function of a `tf.Session` and `progress` to call at the end, or None.
          goes_on: function that returns whether to train on; by default that of `progress`.
          failures: function that returns a context manager for errors of TensorFlow.
          step_with_hooks: bool, whether the run with the hooks trains a step, for hooks that look
            into a step, such as summaries; otherwise it only reads the global step.
        """
        goes_on = goes_on or progress.goes_on

        def train(step_context):
            until = time.monotonic() + 1
            if self._last_step_at_first is not None:
                progress.end_at(self._last_step_at_first)
            with failures():
                while time.monotonic() < until and goes_on():
                    progress.add(self.run(), local_steps)
                if not step_with_hooks:
                    step_context.run_with_hooks(self._global_step)
                elif goes_on():
                    which = self._which(self._step) if len(self._train_ops) > 1 else 0
                    result = step_context.run_with_hooks(self._train_ops[which])
                    self._step = int(result['global_step'])
                    progress.add(result, local_steps)
                if then:
                    then(live(session), progress)

        session.run_step_fn(train)

    def end(self, session):
        self._session = None
        if self._beside:
            self._beside.end(session)
        patience.PATIENCE.expect('the session is not closed')


def traced(session, train_op, progress, local_steps=1):
    """Trains a few steps with a trace, in a `tf.train.MonitoredSession`; see `traffic.trace`.

    Returns:
      What one run sends, see `traffic.between_tasks`; empty if no steps are left to train.
    """
    def train(current):
        with batches.failures():
            return traffic.trace(current, train_op, progress, local_steps)

    return traffic.between_tasks(run_in(session, train))
