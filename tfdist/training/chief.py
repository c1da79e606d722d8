"""The chief's role: to save and to test. While the chief is away another worker does."""

import contextlib
import os
import threading
import time

from tfdist.cluster import awake_clock, liveness, patience
from tfdist.start import console
from tfdist.training import checkpoints, save_lock, sessions
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf

_LOOK_EVERY_SECS = 1
_AWAY_AFTER_SECS = 5  # no need to replace a chief that ends well, or is restarted at once


class Role(tf.train.SessionRunHook):
    """Saves and tests in the chief, or in another worker while the chief is away: a hook.

    The process that holds the `save_lock.SaveLock` of --model_dir has the role. The first worker
    that finds the lock free takes it, and gives it back when the chief returns. TensorFlow's own
    hook writes the chief's checkpoints; another worker saves in a thread of this class, because
    without the chief its own steps may never be complete. Without --model_dir the role is always
    the chief's.

    Attributes:
      restores_after_secs: float, for how long parameters have to be lost before `restore`: an
        engine has had the time to start the chief again, and there is time left for it.
    """

    def __init__(self, resolver, test):
        """Takes the worker's cluster resolver, and its `evaluation.Test`."""
        self.restores_after_secs = liveness.FLAGS.patience_secs / 2
        self._name = f'worker {resolver.task_id}'
        self._run = save_lock.run_of(resolver)
        self._test = test
        self._is_chief = test.is_chief
        self._has_it = self._is_chief
        self._busy = threading.RLock()  # keeps the save lock while this worker saves or tests
        self._session = self._lock = self._saver = None

    def begin(self):
        if FLAGS.model_dir and not self._is_chief:
            self._saver = checkpoints.Saver(None, sharded=True)  # each ps writes its own parameters
            self._global_step = tf.train.get_global_step()
            self._lost = tf.report_uninitialized_variables(tf.global_variables())

    def after_create_session(self, session, coord):
        """Takes the session; the first time, starts the thread that watches the lock."""
        is_first, self._session = self._session is None, session
        if not self._saver or not is_first:
            return
        lock = save_lock.SaveLock(FLAGS.model_dir, self._run)
        if not lock.is_of_this_run():
            console.say(self._name, f'--model_dir={FLAGS.model_dir} is not that of worker 0 here: '
                        'this worker will not save in its place')
            return
        self._lock = lock
        threading.Thread(target=self._look_after_it, daemon=True).start()

    def _look_after_it(self):
        """Takes the lock when it has been free for long, saves, and gives it back to the chief."""
        free_since = None
        try:
            while True:
                time.sleep(_LOOK_EVERY_SECS)
                with self._busy:
                    if self._has_it:
                        self._save_or_leave()
                    elif not self._lock.take():
                        free_since = None
                    elif free_since and awake_clock.seconds() - free_since > _AWAY_AFTER_SECS:
                        free_since = None
                        self._take_over()
                    else:
                        self._lock.give_back()
                        free_since = free_since or awake_clock.seconds()
        except OSError as error:
            console.say(self._name, f'--model_dir={FLAGS.model_dir} cannot be locked '
                        f'({error.strerror}): this worker will not save in the place of worker 0')

    def restore(self, session):
        """Restores the last checkpoint if parameters are lost, and nobody else will.

        The chief may have ended, because all steps are made; or it never comes back.

        Args:
          session: `tf.Session`, in which the parameters have been lost for long.
        """
        if not self._saver:
            return
        lock = self._lock if self._has_it else save_lock.SaveLock(FLAGS.model_dir, self._run)
        with self._busy, contextlib.suppress(OSError):  # without locks nobody stands in
            if not self._has_it and not (lock.is_of_this_run() and lock.take()):
                return
            try:
                path = tf.train.latest_checkpoint(FLAGS.model_dir)
                if path and not lock.is_wanted() and session.run(self._lost).size:
                    console.say(self._name, 'worker 0 is away: this worker restores the parameters')
                    with patience.PATIENCE.during('the checkpoint is not restored'):
                        self._saver.restore(session, path)
                    self._test.restore(session)
                    console.say(self._name, f'resumes from {path}')
            finally:
                if not self._has_it:
                    lock.give_back()

    def _take_over(self):
        """Takes over the role."""
        self._has_it, self._found = True, checkpoints.newest_step(FLAGS.model_dir)
        self._next_save = 0  # at once
        state = tf.train.get_checkpoint_state(FLAGS.model_dir)
        self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths if state else [])
        console.say(self._name, 'worker 0 is away: this worker saves and tests')

    def _save_or_leave(self):
        """Saves if it is time to, unless the chief is back."""
        if self._lock.is_wanted():
            self._has_it = False
            self._lock.give_back()
            console.say(self._name, 'worker 0 is back: it saves and tests')
        elif awake_clock.seconds() > self._next_save:
            self._next_save = awake_clock.seconds() + FLAGS.save_checkpoint_secs
            try:
                self._save(self._session)
            except SystemExit as error:  # no reason for this worker to stop training
                console.say(self._name, f'{error}')
            except (tf.errors.AbortedError, tf.errors.UnavailableError, RuntimeError):
                self._next_save = 0  # a ps died, or the session was closed: save in the next one

    def _save(self, session):
        with sessions.failures_of_ps():
            self._saver.save(session, os.path.join(FLAGS.model_dir, 'model.ckpt'),
                             self._global_step)

    def now_and_then(self, session, progress):
        """Tests while training goes on, see `evaluation.Test.now_and_then`."""
        with self._busy:
            if self._has_it:
                self._test.now_and_then(session, progress)

    def at_the_end(self, session, progress):
        """Saves, tests and exports the trained parameters, without waiting for an absent chief.

        Args:
          session: `tf.train.MonitoredSession`.
          progress: `report.Progress`.
        """
        with self._busy:
            if self._is_chief or self._is_left_to_do(progress.last_step):
                if not self._is_chief:
                    sessions.run_in(session, self._save)
                self._test.at_the_end(session, progress)

    def _is_left_to_do(self, last_step):
        """Returns whether the end of the run falls to this worker, which is not the chief."""
        if not self._lock:
            return False
        if self._has_it:
            return self._found < last_step
        # Who saved the last step has tested it, too.
        return checkpoints.newest_step(FLAGS.model_dir) < last_step and self._lock.take()
