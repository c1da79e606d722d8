"""The text of the repository: what the linters say, and words that do not belong there."""

import pathlib
import re
import subprocess
import sys

import pytest

from conftest import ROOT

# To end processes by name ends those of others; the rest holds on one machine only.
FOREIGN = re.compile(r'\b(pkill|killall)\b|(?<![\w.~])/(home|root|tmp|Users|work)/'
                     r'|\bpypi\.org|pythonhosted|index-url')


def tracked_files():
    """Returns the paths of the files in git, without links and what was deleted."""
    if not (ROOT / '.git').exists():
        pytest.skip('only a git checkout knows its own files')
    names = subprocess.check_output(['git', 'ls-files', '-z'], cwd=str(ROOT)).decode().split('\0')
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def check(*command):
    """Runs a linter in the repository; fails with what it found."""
    found = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           universal_newlines=True, timeout=60, check=False)
    assert found.returncode == 0, found.stdout


def test_python_is_clean():
    check(sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format=concise', '.')


def test_shell_is_clean():
    scripts = sorted(str(path) for path in tracked_files()
                     if path.suffix == '.sh' or re.match(rb'#!.*sh\n', path.read_bytes()))
    assert len(scripts) >= 3
    check(str(pathlib.Path(sys.executable).with_name('shellcheck')), *scripts)


def test_no_foreign_words():
    files = [path for path in tracked_files() if path != pathlib.Path(__file__).resolve()]
    assert len(files) > 20
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding='utf-8').splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        found += [f'{path.relative_to(ROOT)}:{number}: {line.strip()}'
                  for number, line in enumerate(lines, 1) if FOREIGN.search(line)]
    assert not found, '\n'.join(found)
