"""Asks the programs of folders about themselves; prints each one's answer as a line of JSON.

    python -m measuring.asking FOLDER...

TensorFlow is imported once, for all of them. Each folder is then asked in a copy of this process,
since folders share the names of their files and of their flags.
"""

import importlib
import json
import multiprocessing
import sys

from absl import flags
from measuring.runs import ROOT
from tfdist.start import quiet  # noqa: F401  (imports TensorFlow)


def ask(folder):
    """Prints what the program that trains in a folder says of itself: its name, and a dict.

    That has the defaults of all flags by their names as 'flags'; and of the class Scheme whether it
    is a `seam.Seam`, and whether a `barrier.Synchronous`.
    """
    sys.path.insert(0, str(ROOT / folder))
    program = importlib.import_module(
        'train' if (ROOT / folder / 'train.py').exists() else 'worker')
    bases = [base.__name__ for base in getattr(program, 'Scheme', object).__mro__]
    print(json.dumps([folder, {
        'flags': {name: flags.FLAGS[name].default for name in flags.FLAGS},
        'seam': 'Seam' in bases, 'barrier': 'Synchronous' in bases}]), flush=True)


def main():
    """Asks the folders that the command line names."""
    folders = sys.argv[1:]
    del sys.argv[1:]  # where a program looks for --model
    for folder in folders:
        copy = multiprocessing.get_context('fork').Process(target=ask, args=[folder])
        copy.start()
        copy.join()
        if copy.exitcode:
            sys.exit(copy.exitcode)


if __name__ == '__main__':
    main()
