"""No silent wait: a word when what is to come does not come for long, and an end when too long."""

from absl import flags
from tfdist import console

FLAGS = flags.FLAGS  # those of task_flags, too: only tasks count
_WORD_EVERY_SECS = 10


class Patience:
    """Says when this process waits long for something, and ends it when it waits too long.

    There is one for the process, PATIENCE, which `liveness.watch` has count. Its clock stands still
    while the process is paused, while it computes, and while a task that it watches does not
    answer, which has a clock of its own.
    """

    def __init__(self):
        self._phrase = 'nothing has come back'
        self._heard = False
        self._resting = False
        self._waited = self._told = 0.

    def heard(self):
        """What was waited for has come: the time begins anew."""
        self._heard = True

    def rest(self):
        """From now on this process may wait as long as it likes."""
        self._resting = True

    def expect(self, phrase):
        """Has it say `phrase`, such as 'the step is not complete', of what is to come next."""
        self._phrase, self._heard = phrase, True

    def count(self, seconds, name, why):
        """Counts time in which nothing may have come.

        Args:
          seconds: float.
          name: string, who is speaking, for example 'worker 0'.
          why: function that returns a string: what is known of the reason.
        """
        if self._heard or self._resting:
            self._heard, self._waited, self._told = False, 0., 0.
            return
        self._waited += seconds
        if self._waited > FLAGS.patience_secs:
            console.give_up(f'{name}: {self._phrase} ({why()}). Gave up after '
                            f'{FLAGS.patience_secs:g} s.')
        if self._waited > self._told + _WORD_EVERY_SECS:
            self._told = self._waited
            console.say(name, f'{self._phrase} after {self._waited:.0f} s ({why()}); waiting')


PATIENCE = Patience()
