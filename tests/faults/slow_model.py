"""Copies of folders whose test takes as long as wanted, for faults that come during the test."""

import shutil

from processes import ROOT

_SLOW_TEST = '''

import time


def test_batches(batch_size):
    """Reads the test set: each batch of 30 examples takes {seconds} s."""
    def late(*batch):
        wait = tf.py_func(lambda: time.sleep({seconds}), [], [])
        with tf.control_dependencies([wait]):
            return [tf.identity(tensor) for tensor in batch]

    return tf.data.Dataset.from_tensor_slices(test_set()).batch(30).map(
        tf.autograph.experimental.do_not_convert(late))
'''
BATCHES = 12  # of the test


def copy(folder, directory, seconds):
    """Copies a folder and the library into a `directory` that is there.

    Args:
      folder: string.
      directory: `pathlib.Path`.
      seconds: float, how long each of the BATCHES batches of the test takes.

    Returns:
      `pathlib.Path` of the copied folder.
    """
    for name in folder, 'tfdist':
        shutil.copytree(str(ROOT / name), str(directory / name),
                        ignore=shutil.ignore_patterns('__pycache__'))
    with (directory / folder / 'model.py').open('a', encoding='utf-8') as model:
        model.write(_SLOW_TEST.format(seconds=seconds))
    return directory / folder
