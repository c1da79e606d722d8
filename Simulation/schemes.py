"""Finds the scheme to simulate: the program of a folder, as it is."""

import functools
import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def folders():
    """Returns the names of all folders whose workers have a scheme, sorted."""
    return sorted(path.parent.name for path in ROOT.glob('*/worker.py') if _has_scheme(path))


def _has_scheme(path):
    return 'class Scheme(' in path.read_text(encoding='utf-8')


def asked_for(arguments, flag='scheme'):
    """Returns what a list of arguments says of a flag, before they are parsed; None if nothing."""
    for word, following in zip(arguments, [*arguments[1:], '']):
        name, equals, value = word.lstrip('-').partition('=')
        if name == flag:
            return value if equals else following
    return None


def load(name):
    """Imports the program of a folder, with its flags.

    What it imports from its folder it gets from there, also where this folder has such a name.

    Args:
      name: string, of a folder of the collection, or the path of any other.

    Returns:
      The module `worker`; and a function that writes what its workers read, if they have a
      `prepare_data.py`, and else does nothing. It takes the flags as they are.

    Raises:
      SystemExit: if there is no scheme there.
    """
    folder = ROOT / name if (ROOT / name).is_dir() else pathlib.Path(name)
    path = folder / 'worker.py'
    if not folder.is_dir():
        sys.exit(f'--scheme={name}: there is no such folder. There are {", ".join(folders())}.')
    if not path.exists() or not _has_scheme(path):
        sys.exit(f'--scheme={name}: it has no worker.py with a class Scheme: there are no workers '
                 'to simulate.')
    own = {each.stem for each in folder.glob('*.py')} - {'tfdist'}
    hidden = {module: sys.modules.pop(module) for module in own if module in sys.modules}
    sys.path.insert(0, str(folder.resolve()))
    try:
        program = importlib.import_module('worker')
        if 'prepare_data' in own:
            return program, functools.partial(importlib.import_module('prepare_data').main, [])
        return program, lambda: None
    finally:
        sys.path.pop(0)
        for module in own:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)
