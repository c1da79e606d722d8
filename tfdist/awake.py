"""How long this process has been awake: a clock that stands still while it is paused.

A process may be stopped by Ctrl-Z, by a scheduler, or with its whole machine. Then it could not
have heard what it waits for, and that time is not to be held against anybody.
"""

import threading
import time

_TICK_SECS = 0.25
_MOST_SECS = 1  # that count between two ticks: more was a pause, or a very busy machine


class _Clock:
    """Counts, from the first time that somebody asks."""

    def __init__(self):
        self._lock = threading.Lock()
        self._last = None
        self._seconds = 0.

    def seconds(self):
        """Returns the seconds so far."""
        with self._lock:
            if self._last is None:
                self._last = time.monotonic()
                threading.Thread(target=self._tick, daemon=True).start()
            now = time.monotonic()
            self._seconds += min(now - self._last, _MOST_SECS)
            self._last = now
            return self._seconds

    def _tick(self):
        while True:
            time.sleep(_TICK_SECS)
            self.seconds()


_CLOCK = _Clock()


def seconds():
    """Returns for how many seconds this process was awake since somebody asked first, a float."""
    return _CLOCK.seconds()
