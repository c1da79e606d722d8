"""Reports each mistake once, not once for each task of a run: the tasks share a list of reports.

The launcher makes the list, an open file that the tasks inherit. Tasks that are started in another
way have no list, and each reports what it finds.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import sys
import tempfile

_VARIABLE = 'TFDIST_TOLD'  # environment variable: the descriptor of the file
_SIZE = hashlib.sha256().digest_size


def begin():
    """Makes the list of a run: returns its file, to be kept open and inherited, or None."""
    try:
        file = tempfile.TemporaryFile()
    except OSError:
        return None
    os.environ[_VARIABLE] = str(file.fileno())
    return file


def is_new(text):
    """Returns whether no task of this run has reported `text` yet, and notes that one has now."""
    # Another worker may find the same, or this one a few steps later.
    text = re.sub(r'\b(task:|worker |step )\d+', r'\1', text)
    digest = hashlib.sha256(text.encode()).digest()
    try:
        file = int(os.environ.get(_VARIABLE, ''))
        if os.fstat(file).st_nlink:  # another file has this descriptor here
            return True
        fcntl.lockf(file, fcntl.LOCK_EX)  # locks it for this process, though the file is shared
        try:
            told = os.pread(file, os.fstat(file).st_size, 0)
            if digest in [told[i:i + _SIZE] for i in range(0, len(told), _SIZE)]:
                return False
            os.pwrite(file, digest, len(told))
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)
    except (OSError, ValueError):
        pass  # there is no list, or its file is closed
    return True


@contextlib.contextmanager
def failures():
    """Exits silently if the block fails with an error that another task has reported already."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            raise
        if is_new(f'{type(error).__name__}: {error}'):
            raise
        sys.exit(1)
