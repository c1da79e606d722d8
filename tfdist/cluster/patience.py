"""Reports a long wait, and ends the process after too long a one."""

import contextlib

from tfdist.start import console

_WORD_EVERY_SECS = 10
_MOST_SESSIONS = 20  # one after the other without a result: what ends them will not pass


class Patience:
    """Says when this process has waited long, and ends it when it has waited too long.

    The process has one, PATIENCE; `liveness.watch` has it count. It does not count while the
    process is paused or computes, nor while a watched task does not answer: that time is counted
    for the task.

    Attributes:
      results: int, how many results have come so far.
    """

    def __init__(self):
        self.results = 0
        self._phrase = 'nothing has come back'
        self._counted = 0  # the results that came before the count began
        self._restarts = self._resting = self._excused = False
        self._busy = None
        self._waited = self._told = self._unexcused = 0.
        self._session, self._sessions, self._results_before = None, 0, 0

    def heard(self):
        """Is called when a result has come: the count starts again."""
        self.results += 1

    def rest(self):
        """Lets this process wait as long as it likes from now on."""
        self._resting = True

    def expect(self, phrase):
        """Sets what to say of the next wait: `phrase`, such as 'the step is not complete'.

        The count starts again, except in a session that follows one without a result: a process
        that gets one session after the other has waited since the first.
        """
        self._phrase = phrase
        if self._sessions <= 1 or self.results > self._results_before:
            self._restarts = True

    def begin_session(self, session, phrase):
        """Is called when there is a new session; ends the process if too many had no result.

        Args:
          session: `tf.Session`. All that wait for results of it may call this.
          phrase: string, what to say of the wait for its first result.
        """
        if self.results > self._results_before:
            self._sessions, self._results_before = 0, self.results
        if session is not self._session:
            self._session = session
            self._sessions += 1
        if self._sessions > _MOST_SESSIONS:
            console.give_up(f'{_MOST_SESSIONS} sessions, one after the other, have ended before a '
                            'result came: a parameter server fails again and again, or a step '
                            'always fails on it. Look at what the parameter servers print.')
        self.expect(phrase)

    @contextlib.contextmanager
    def during(self, phrase):
        """Sets what to say of the waits in a block, and afterwards says again what it said."""
        before = self._phrase
        self.expect(phrase)
        try:
            yield
        finally:
            self.expect(before)

    def is_waiting(self):
        """Returns whether this process has waited so long that it may ask who is busy."""
        return self._waited > _WORD_EVERY_SECS / 10

    def excuse(self, busy):
        """Is called while another task is busy on behalf of all: `busy`, as 'worker 0 tests'."""
        self._busy, self._excused = busy, True

    def count(self, seconds, limit, name, why):
        """Counts time in which no result may have come.

        Args:
          seconds: float.
          limit: float, the seconds after which to end this process.
          name: string, the speaker, for example 'worker 0'.
          why: function that returns what is known of the reason, a string.
        """
        if self.results > self._counted or self._restarts or self._resting:
            self._counted, self._restarts, self._busy = self.results, False, None
            self._waited = self._told = self._unexcused = 0.
            return
        self._waited += seconds
        self._unexcused += seconds
        if self._excused:
            self._excused, self._unexcused = False, 0.
        elif self._unexcused > _WORD_EVERY_SECS:
            self._busy = None
        if self._unexcused > limit:
            console.give_up(f'{name}: {self._phrase} ({why()}). Gave up after {limit:g} s.')
        # Whoever is busy for an hour need not be named 360 times.
        pause = max(_WORD_EVERY_SECS, self._told) if self._busy else _WORD_EVERY_SECS
        if self._waited > self._told + pause:
            self._told = self._waited
            console.say(name, f'{self._phrase} after {self._waited:.0f} s '
                        f'({self._busy or why()}); waiting')


PATIENCE = Patience()
