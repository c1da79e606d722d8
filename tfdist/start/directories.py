"""Makes directories that flags name, and checks that they are writable before they are needed."""

import os
import sys
import tempfile


def make(path, flag):
    """Makes the directory `path`, the value of the flag `flag`, if it does not exist.

    Raises:
      SystemExit: if it cannot be made or written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        sys.exit(f'--{flag}={path} cannot be made or written to: {error.strerror}.')
