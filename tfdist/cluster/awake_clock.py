"""A clock of the time this process has been awake: it stands still while the process is paused.

A process may be stopped by Ctrl-Z, by a scheduler, or with its whole machine. Meanwhile it cannot
hear from the tasks it waits for, so that time does not count as their silence.
"""

import threading
import time

_TICK_SECS = 0.25
_MOST_SECS = 1  # counted between two ticks: a longer gap is a pause, or a very busy machine


class _Clock:
    """Counts from the first call of `seconds`."""

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
    """Returns for how many seconds this process was awake since the first call, a float."""
    return _CLOCK.seconds()
