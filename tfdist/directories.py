"""Directories that a flag names: made, and found to be written to, before they are needed."""

import os
import sys
import tempfile


def make(path, flag):
    """Makes a directory if it is not there.

    Args:
      path: string.
      flag: string, the name of the flag that names it.

    Raises:
      SystemExit: if it cannot be made or written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        sys.exit(f'--{flag}={path} cannot be made or written to: {error.strerror}.')
