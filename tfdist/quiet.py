"""Loads TensorFlow without its banners and notices. Import it before anything that does so itself.

`--verbose` and the environment variable TF_CPP_MIN_LOG_LEVEL bring them back.
"""

import contextlib
import gc
import os
import sys
import tempfile
import time
import warnings

from absl import flags

flags.DEFINE_boolean('verbose', False, 'show the banners and notices of TensorFlow and NumPy')

START = time.time()  # when this program began: before TensorFlow is loaded
_QUIET = '--verbose' not in sys.argv and 'TF_CPP_MIN_LOG_LEVEL' not in os.environ


@contextlib.contextmanager
def _held_back_stderr():
    """Keeps what native code writes to stderr, and shows it only if the block fails."""
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


if _QUIET:
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'  # native errors are raised, too
    warnings.simplefilter('ignore')
# Else TensorFlow 2.21 loads Keras 3: a third of the start, 100 MB, and of no use in sessions. With
# this `tf.keras` is the older one, of the package tf_keras, if that is installed.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# While it loads, TensorFlow 2.21 heeds no log level; both versions complain when they find no GPU.
# What it makes then stays, so Python need not search it for garbage: a sixth of the time to load.
gc.disable()
with _held_back_stderr() if _QUIET else contextlib.nullcontext():
    import tensorflow.compat.v1 as tf
    tf.config.experimental.list_physical_devices('GPU')
gc.freeze()
gc.enable()
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # its errors are raised, too
tf.disable_v2_behavior()
# No torn reads, no lost updates, and a read can be ordered after a write (unlike a reference).
tf.enable_resource_variables()
