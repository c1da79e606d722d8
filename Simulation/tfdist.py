"""Finds the library: tfdist beside this folder, or else the one that is installed.

`import tfdist` comes here first, and this file puts the library in its own place. As a program it
is what run.sh starts: the launcher of the library.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_path = sys.path
# Only while the package itself is found: what else lies beside this folder is not to be imported.
sys.path = [os.path.dirname(_HERE), *(path for path in _path if os.path.abspath(path) != _HERE)]
sys.modules.pop('tfdist', None)
try:
    import tfdist  # noqa: F401  (by its own name, from now on)
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Put the folder tfdist of the collection beside {_HERE}, or install it: '
             '`pip install .` in the root of the collection.')
finally:
    sys.path = _path

if __name__ == '__main__':
    from tfdist import launch
    launch.main(_HERE)
