"""Checks a folder's scheme: `python tfdist/checking FOLDER PROGRAM FLAGS...`, see `check`."""

import sys

sys.path.pop(0)  # modules of this room are not to be found by their names alone
sys.path.insert(0, sys.argv[1])
import find_library  # noqa: F401  (of the folder: finds tfdist)
from tfdist.checking import check

check.start(*sys.argv[1:3], sys.argv[3:])
