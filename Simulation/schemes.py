"""Loads the scheme to simulate: the program of a folder, unchanged."""

import functools
import importlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def folders():
    """Returns the names of all folders with schemes to simulate and to compare, sorted."""
    return [name for name in simulated() if ' not_compared = ' not in _text(ROOT / name)]


def simulated():
    """Returns the names of all folders whose workers have a scheme to simulate, sorted."""
    return sorted(path.parent.name for path in ROOT.glob('*/worker.py') if _has_scheme(path)
                  and ' not_simulated = ' not in _text(path.parent))


def why_left_out(name):
    """Returns why a folder of the collection is none of `folders`, a string."""
    path = ROOT / name / 'worker.py'
    if not path.exists() or not _has_scheme(path):
        return 'there are no workers to simulate'
    return re.search(" not_(?:simulated|compared) = '(.*)'", _text(path.parent))[1]


def _text(folder):
    return (folder / 'worker.py').read_text(encoding='utf-8')


def _has_scheme(path):
    return 'class Scheme(' in _text(path.parent)


def asked_for(arguments, flag='scheme'):
    """Returns the value of a flag in a list of unparsed arguments, or None."""
    for word, following in zip(arguments, [*arguments[1:], '']):
        name, equals, value = word.lstrip('-').partition('=')
        if name == flag:
            return value if equals else following
    return None


def load(name):
    """Imports the program of a folder, with its flags.

    The program imports the files of its own folder, even where this folder has the same names.

    Args:
      name: string, a folder of the collection, or the path of any other folder.

    Returns:
      The module `worker`; and a function that runs the `prepare_data.py` of the folder, if there is
      one, with the flags as they are then.

    Raises:
      SystemExit: if the folder has no scheme, or one that is not simulated.
    """
    folder = ROOT / name if (ROOT / name).is_dir() else pathlib.Path(name)
    path = folder / 'worker.py'
    if not folder.is_dir():
        sys.exit(f'--scheme={name}: there is no such folder. There are {", ".join(simulated())}.')
    if not path.exists() or not _has_scheme(path):
        sys.exit(f'--scheme={name}: it has no worker.py with a class Scheme: there are no workers '
                 'to simulate.')
    own = {each.stem for each in folder.glob('*.py')}
    hidden = {module: sys.modules.pop(module) for module in own if module in sys.modules}
    sys.path.insert(0, str(folder.resolve()))
    try:
        program = importlib.import_module('worker')
        if program.Scheme.not_simulated:
            sys.exit(f'--scheme={name}: it is not simulated: {program.Scheme.not_simulated}.')
        if 'prepare_data' in own:
            return program, functools.partial(importlib.import_module('prepare_data').main, [])
        return program, lambda: None
    finally:
        sys.path.pop(0)
        for module in own:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)
