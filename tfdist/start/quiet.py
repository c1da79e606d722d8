"""Loads TensorFlow without its banners and notices. Import this before anything that loads it.

`--verbose` or the environment variable TF_CPP_MIN_LOG_LEVEL brings them back.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import os
import sys
import tempfile
import time
import warnings

from absl import flags

flags.DEFINE_boolean('verbose', False, 'show the banners and notices of TensorFlow and NumPy')

START = time.monotonic()  # of this program, before TensorFlow is loaded
_QUIET = '--verbose' not in sys.argv and 'TF_CPP_MIN_LOG_LEVEL' not in os.environ


@contextlib.contextmanager
def _held_back_stderr():
    """Holds back what native code writes to stderr, and shows it only if the block fails."""
    try:
        held = tempfile.TemporaryFile()
    except OSError as error:
        sys.exit(f'{sys.argv[0]}: TensorFlow needs a place for temporary files ({error.strerror}). '
                 'Set TMPDIR.')
    with held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


class _KerasLater(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Within the block, tf_keras can be found but not loaded.

    TensorFlow 2.21 would load all of it, and pandas: a quarter of the start, and 55 MB. Without it
    TensorFlow goes on, and loads it when `tf.keras` is first used.
    """

    def __enter__(self):
        sys.meta_path.insert(0, self)

    def __exit__(self, *_):
        sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == 'tf_keras' else None
        if spec:
            spec.loader = self
        return spec

    def exec_module(self, module):
        raise ImportError(f'{module.__name__} is not loaded yet')


if _QUIET:
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'  # native errors are raised as well
    warnings.simplefilter('ignore')
# Makes `tf.keras` of TensorFlow 2.21 the package tf_keras, if installed: Keras 3 uses no sessions.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# While it loads, TensorFlow 2.21 ignores log levels, and both versions complain if there is no GPU.
# All that loading makes stays: not to search it for garbage saves a sixth of the time.
gc.disable()
with _held_back_stderr() if _QUIET else contextlib.nullcontext(), _KerasLater():
    import tensorflow.compat.v1 as tf
    from tensorflow.python.util import deprecation
    tf.config.experimental.list_physical_devices('GPU')
gc.freeze()
gc.enable()
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # TensorFlow raises its errors as well
    # To find out whether a warning is due, which would not show, TensorFlow 1.15 takes apart the
    # arguments of each op: a sixth of the time in which a graph is built.
    deprecation._PRINT_DEPRECATION_WARNINGS = False
tf.disable_v2_behavior()
# No torn reads, no lost updates, and reads can be ordered after writes (unlike with references).
tf.enable_resource_variables()
