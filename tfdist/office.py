"""The office of a --model_dir: whoever holds it saves there. One process at a time, a chief first.

It is two files on which the system keeps locks; it gives them back when the process that holds them
ends, however it does. One is of whoever holds the office, the other of the chief, which so shows
that it wants the office back from a worker that held it meanwhile.
"""

import fcntl
import os
import time

_MOMENT_SECS = 2  # `is_wanted` has the chief's lock for far less


def of_run(resolver):
    """Returns a string that tells a run from others: where its parameters are."""
    spec = resolver.cluster_spec()
    return ' '.join(f'{job} {",".join(spec.job_tasks(job))}'
                    for job in spec.jobs if job != resolver.task_type)


class Office:
    """The office, as one process sees it. All raise OSError where the file system has no locks."""

    def __init__(self, model_dir, run):
        """Takes a directory that is there, and what `of_run` returns, or another string."""
        self._run = run
        self._path = os.path.join(model_dir, 'lock')
        self._files = {}  # open, and locked, by their paths

    def is_of_this_run(self):
        """Returns whether a chief of this run was the last chief that held it.

        If not, then it may be a directory that only has the same name on this host.
        """
        try:
            with open(self._path, encoding='utf-8') as file:
                return file.read() == self._run
        except OSError:
            return False

    def register(self):
        """Returns whether this process is the chief; there is one at a time. It ends as such."""
        deadline = time.monotonic() + _MOMENT_SECS
        while not self._lock(f'{self._path}-chief'):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def take(self):
        """Returns whether the office, which nobody else holds, is this process's own now."""
        return self._lock(self._path)

    def sign(self):
        """Says that the office is of this run. For a chief that holds it."""
        file = self._files[self._path]
        file.truncate(0)
        file.write(self._run)
        file.flush()

    def give_back(self):
        """Leaves the office to others."""
        self._files.pop(self._path).close()

    def is_wanted(self):
        """Returns whether there is a chief. For a worker that holds the office."""
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
