"""Finds the library: tfdist beside this folder, or the installed one. A program imports it first.

As a program it is what run.sh starts: the library's launcher.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(_HERE))
try:
    import tfdist  # noqa: F401  (from now on every import finds it)
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Put the folder tfdist of the collection beside {_HERE}, or install it: '
             '`pip install .` in the root of the collection.')
sys.path.pop(0)  # what else lies beside this folder is not to be imported
if __name__ == '__main__':
    from tfdist.start import launch
    launch.main(_HERE)
