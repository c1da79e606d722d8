"""Finds the flags that are given in vain: those that nothing reads."""

import contextlib
import sys

from absl import flags

FLAGS = flags.FLAGS
_FROM_ARGUMENTS = 'model', 'replay'  # read before the flags are parsed
# A test reads these: they are of the tests during a real run, and of what comes after it.
_OF_TESTS = 'eval_every_secs', 'stop_after_evals_without_gain', 'export_dir', 'model_dir'


@contextlib.contextmanager
def refused_in_vain(whose, and_these=(), but=()):
    """Ends the program at the end of the block if it reads no value of a flag that is given.

    Args:
      whose: string, what has no use for such a flag.
      and_these: list of names of flags, to which the block may add: they count as not read.
      but: collection of names of flags that are not looked at.

    Raises:
      SystemExit: names the flags.
    """
    read, value = set(), flags.Flag.value
    flags.Flag.value = property(lambda flag: read.add(flag.name) or value.fget(flag), value.fset)
    try:
        yield
    finally:
        flags.Flag.value = value
    vain = sorted(name for name in FLAGS if FLAGS[name].present and name not in but
                  and (name in _OF_TESTS or name in and_these or name not in read)
                  and name not in _FROM_ARGUMENTS and not _is_of_a_package(name))
    if vain:
        sys.exit(f'{", ".join(f"--{name}" for name in vain)}: {whose} has no use for '
                 f'{"it" if len(vain) == 1 else "them"}.')


def _is_of_a_package(name):
    """Returns whether absl or TensorFlow, which look at their flags by themselves, defines one."""
    return FLAGS.find_module_defining_flag(name).partition('.')[0] in ('absl', 'tensorflow',
                                                                       'tensorflow_core')
