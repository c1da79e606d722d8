"""The chief's duties: it saves and it tests. While it is away another worker does."""

import os
import threading
import time

from absl import flags
from tfdist import awake, checkpoints, console, office, sessions
from tfdist.quiet import tf

FLAGS = flags.FLAGS
_LOOK_EVERY_SECS = 1
_AWAY_AFTER_SECS = 5  # a chief that ends well, or is started again at once, is not missed


class Duties(tf.train.SessionRunHook):
    """What a worker saves and tests: as the chief, or while there is none. Give it as a hook.

    Whoever holds the office of --model_dir, see `office.Office`, has the duties: the first worker
    that finds it empty takes it, and gives it back when the chief comes. The chief's checkpoints
    are written by TensorFlow's own hook, those of another worker here, by a thread: it may be that
    without the chief no step of its own is ever complete. Without --model_dir the duties are always
    the chief's.
    """

    def __init__(self, resolver, test):
        """Takes the worker's cluster resolver, and its `evaluation.Test`."""
        self._name = f'worker {resolver.task_id}'
        self._run = office.of_run(resolver)
        self._test = test
        self._is_chief = test.is_chief
        self._has_them = self._is_chief
        self._busy = threading.RLock()  # while it saves or tests the office is not given back
        self._session = self._office = self._saver = None

    def begin(self):
        if FLAGS.model_dir and not self._is_chief:
            self._saver = checkpoints.Saver(None, sharded=True)  # each ps writes its own
            self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        """Gets hold of the session; the first time it begins to look after the office."""
        is_first, self._session = self._session is None, session
        if not self._saver or not is_first:
            return
        place = office.Office(FLAGS.model_dir, self._run)
        if not place.is_of_this_run():
            console.say(self._name, f'--model_dir={FLAGS.model_dir} is not that of worker 0 here: '
                        'this worker will not save in its place')
            return
        self._office = place
        threading.Thread(target=self._look_after_it, daemon=True).start()

    def _look_after_it(self):
        """Takes the office when it is empty for long, saves, and gives it back to the chief."""
        empty_since = None
        try:
            while True:
                time.sleep(_LOOK_EVERY_SECS)
                with self._busy:
                    if self._has_them:
                        self._hold()
                    elif not self._office.take():
                        empty_since = None
                    elif empty_since and awake.seconds() - empty_since > _AWAY_AFTER_SECS:
                        empty_since = None
                        self._enter()
                    else:
                        self._office.give_back()
                        empty_since = empty_since or awake.seconds()
        except OSError as error:
            console.say(self._name, f'--model_dir={FLAGS.model_dir} cannot be locked '
                        f'({error.strerror}): this worker will not save in the place of worker 0')

    def _enter(self):
        """Begins to do the duties."""
        self._has_them, self._found = True, _newest()
        self._next_save = 0  # at once
        state = tf.train.get_checkpoint_state(FLAGS.model_dir)
        self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths if state else [])
        console.say(self._name, 'worker 0 is away: this worker saves and tests')

    def _hold(self):
        """Saves if it is time to, unless the chief is back."""
        if self._office.is_wanted():
            self._has_them = False
            self._office.give_back()
            console.say(self._name, 'worker 0 is back: it saves and tests')
        elif awake.seconds() > self._next_save:
            self._next_save = awake.seconds() + FLAGS.save_checkpoint_secs
            try:
                self._save(self._session)
            except SystemExit as error:  # no reason for one that trains well to end
                console.say(self._name, f'{error}')
            except (tf.errors.AbortedError, tf.errors.UnavailableError, RuntimeError):
                self._next_save = 0  # a ps died, or the session was closed: with the next one

    def _save(self, session):
        with sessions.failures_of_ps():
            self._saver.save(session, os.path.join(FLAGS.model_dir, 'model.ckpt'),
                             self._global_step)

    def now_and_then(self, session, progress):
        """Tests while training goes on, see `evaluation.Test.now_and_then`."""
        with self._busy:
            if self._has_them:
                self._test.now_and_then(session, progress)

    def at_the_end(self, session, progress):
        """Tests what training has come to, and saves it; an absent chief is not waited for.

        Args:
          session: `tf.train.MonitoredSession`.
          progress: `report.Progress`.
        """
        with self._busy:
            if self._is_chief or self._is_left_to_do(progress.last_step):
                progress.test(session.run_step_fn(self._test.in_step))
                if not self._is_chief:
                    session.run_step_fn(lambda step_context: self._save(step_context.session))

    def _is_left_to_do(self, last_step):
        """Returns whether the end of the run falls to this worker, which is not the chief."""
        if not self._office:
            return False
        if self._has_them:
            return self._found < last_step
        # Who saved the last step has tested it, too.
        return _newest() < last_step and self._office.take()


def _newest():
    """Returns the step of the newest checkpoint in --model_dir; -1 if there is none."""
    path = tf.train.latest_checkpoint(FLAGS.model_dir)
    return int(path.rpartition('-')[2]) if path else -1
