"""No silent hang: the runtime would wait for ever for a worker that is gone."""

import threading
import time

import cluster

_WORD_EVERY_SECS = 10


class Patience:
    """Says when a step takes long, and ends the program when it takes too long."""

    def __init__(self, name, patience_secs):
        """Makes a stopped clock.

        Args:
          name: string, who is speaking, for example 'worker 0'.
          patience_secs: float, how long to wait.
        """
        self._name = name
        self._patience_secs = patience_secs
        self._since = None

    def start(self):
        """A step begins."""
        self._since = time.monotonic()

    def stop(self):
        """What comes now may take its time."""
        self._since = None

    def watch(self):
        """Begins to look at the clock, in a thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        said = 0.
        while True:
            time.sleep(0.5)
            since = self._since
            if since is None:
                continue
            waited = time.monotonic() - since
            if waited > self._patience_secs:
                cluster.give_up(f'{self._name}: the step is not complete. Is a worker dead? Gave '
                                f'up after {self._patience_secs:g} s.')
            if waited > _WORD_EVERY_SECS and time.monotonic() - said > _WORD_EVERY_SECS:
                said = time.monotonic()
                print(f'{self._name}: the step is not complete after {waited:.0f} s; waiting',
                      flush=True)
