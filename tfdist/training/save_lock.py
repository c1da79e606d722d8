"""A lock on a --model_dir: one process at a time saves there, and the chief comes first.

It consists of two files locked by the system, which releases them when the process that locked them
ends for whatever reason. One belongs to the process that saves. The other belongs to the chief, to
show that it wants to save, even while another worker does.
"""

import fcntl
import os
import time

_MOMENT_SECS = 2  # `is_wanted` holds the chief's file for far less


def run_of(resolver):
    """Returns a string that identifies a run, by the addresses of its parameters."""
    spec = resolver.cluster_spec()
    return ' '.join(f'{job} {",".join(spec.job_tasks(job))}'
                    for job in spec.jobs if job != resolver.task_type)


class SaveLock:
    """The lock, for one process. All methods raise OSError if the file system has no locks."""

    def __init__(self, model_dir, run):
        """Takes an existing directory, and what `run_of` returns, or another string."""
        self._run = run
        self._path = os.path.join(model_dir, 'lock')
        self._files = {}  # open and locked, by path

    def is_of_this_run(self):
        """Returns whether the last chief that held the lock was of this run.

        Otherwise it may be another directory, which merely has the same name on this host.
        """
        try:
            with open(self._path, encoding='utf-8') as file:
                return file.read() == self._run
        except OSError:
            return False

    def register(self):
        """Returns whether this process is now the only chief, until it ends."""
        deadline = time.monotonic() + _MOMENT_SECS
        while not self._lock(f'{self._path}-chief'):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def take(self):
        """Returns whether this process holds the lock now, and no other does."""
        return self._lock(self._path)

    def sign(self):
        """Marks the lock as of this run. Only a chief that holds it calls this."""
        file = self._files[self._path]
        file.truncate(0)
        file.write(self._run)
        file.flush()

    def give_back(self):
        """Releases the lock."""
        self._files.pop(self._path).close()

    def close(self):
        """Releases all that this process holds."""
        for path in list(self._files):
            self._files.pop(path).close()

    def is_wanted(self):
        """Returns whether there is a chief. Only a worker that holds the lock calls this."""
        path = f'{self._path}-chief'
        if not self._lock(path):
            return True
        self._files.pop(path).close()
        return False

    def _lock(self, path):
        file = open(path, 'a', encoding='utf-8')
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._files[path] = file
        return True
