"""TensorFlow is loaded without its notices, and --verbose brings them back."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.parametrize('more, shown', [([], False), (['--verbose'], True)], ids=str)
def test_notices(more, shown):
    env = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
    done = subprocess.run(
        [sys.executable, '-c', 'from tfdist.start.quiet import tf\ntf.to_float(1)', *more],
        cwd=str(ROOT), env=env, check=True, timeout=60, stderr=subprocess.PIPE,
        universal_newlines=True)
    assert ('to_float' in done.stderr) == shown, done.stderr
    assert shown or not done.stderr
