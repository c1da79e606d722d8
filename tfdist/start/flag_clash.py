"""Tells in a line of a flag that a model and its folder both define."""

import contextlib
import re
import sys

from absl import flags
from tfdist.start import told_once


@contextlib.contextmanager
def failures():
    """Ends the program in a line if a flag of the model and one of the folder have one name.

    Raises:
      SystemExit: naming the flag and who defines it.
    """
    try:
        yield
    except flags.DuplicateFlagError as error:
        sys.exit(_line_of(error))


def _line_of(error):
    """Returns the line for an `absl.flags.DuplicateFlagError`."""
    name, *modules = re.search(r"flag '(\w+)'.*?First from (\S+), Second from (\S+)\. ",
                               str(error), re.DOTALL).groups()
    return (f'The flag --{name} is defined by {" and by ".join(modules)}: in model.py, or in what '
            'it imports, give it another name, or use that of the folder.')


def _hook(kind, error, trace):
    """Is `sys.excepthook`: a folder may define a flag anywhere."""
    if not issubclass(kind, flags.DuplicateFlagError):
        sys.__excepthook__(kind, error, trace)
    elif told_once.is_new(str(error)):
        print(_line_of(error), file=sys.stderr)


sys.excepthook = _hook
