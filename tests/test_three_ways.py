"""Three ways to have the library: in the checkout, copied beside a folder, or installed."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from processes import DID, ROOT, TEST

TRAIN = '--train_steps=200'


@pytest.fixture
def project(tmp_path):
    """An empty directory with a space in its name."""
    path = tmp_path / 'my project'
    path.mkdir()
    return path


def copy(name, project):
    """Copies a folder into a project, as `cp -r` does."""
    shutil.copytree(str(ROOT / name), str(project / name),
                    ignore=shutil.ignore_patterns('__pycache__'))


def library_of(python, folder, **env):
    """Returns the path from which programs of a folder get the library."""
    script = 'import sys; sys.path[0] = sys.argv[1]; import tfdist; print(tfdist.__file__)'
    found = subprocess.run([python, '-c', script, str(folder)], cwd=str(folder.parent), check=True,
                           env=dict(os.environ, **env), stdout=subprocess.PIPE,
                           universal_newlines=True).stdout
    return pathlib.Path(found.strip()).parent


def trains(run, workers=2):
    """Waits for the end of a run, and asserts that it was a good one."""
    run.ends_well()
    assert len(run.matches(DID)) == workers and len(run.matches(TEST)) == 1


def test_in_the_checkout(programs, bare_python, tmp_path):
    """Without any installation, from any directory, and with a file there that must not be used."""
    (tmp_path / 'random.py').write_text('raise ImportError("not that of Python")')
    assert library_of(bare_python, ROOT / 'HogWild') == ROOT / 'tfdist'
    trains(programs.run_sh('HogWild', TRAIN, cwd=tmp_path, PYTHON=bare_python))


@pytest.mark.parametrize('folder, workers', [('HogWild', 2), ('Model-Parallel', 1)])
def test_copied(programs, bare_python, project, folder, workers):
    """Both folders are all there is to own; what else lies beside them does not matter."""
    for name in folder, 'tfdist':
        copy(name, project)
    (project / 'queue.py').write_text('raise ImportError("not that of Python")')
    assert library_of(bare_python, project / folder) == project / 'tfdist'
    trains(programs.start(['bash', 'run.sh', TRAIN], cwd=project / folder,
                          env={'PYTHON': bare_python}), workers)


def test_a_copy_beside_the_folder_comes_before_an_installation(project):
    """Whoever changed it means it."""
    for name in 'HogWild', 'tfdist':
        copy(name, project)
    assert library_of(sys.executable, project / 'HogWild') == project / 'tfdist'


@pytest.mark.thorough
def test_installed(programs, bare_python, project):
    """A folder alone, and the library by `pip install`."""
    source = project / 'source'
    source.mkdir()
    copy('tfdist', source)
    shutil.copy(str(ROOT / 'pyproject.toml'), str(source))
    site = project / 'site'
    subprocess.run([bare_python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check',
                    '--no-deps', f'--target={site}', str(source)], check=True)
    assert {path.name for path in (site / 'tfdist').glob('*.py')} == {
        path.name for path in (ROOT / 'tfdist').glob('*.py')}
    copy('HogWild', project)
    assert library_of(bare_python, project / 'HogWild', PYTHONPATH=str(site)) == site / 'tfdist'
    trains(programs.start(['bash', 'run.sh', TRAIN], cwd=project / 'HogWild',
                          env={'PYTHON': bare_python, 'PYTHONPATH': str(site)}))


def test_without_it(programs, bare_python, project):
    """One line, with the two ways out: by run.sh and by hand."""
    copy('HogWild', project)
    for command in ['bash', 'run.sh'], [bare_python, 'ps.py'], [bare_python, 'worker.py']:
        run = programs.start(command, cwd=project / 'HogWild', env={'PYTHON': bare_python})
        run.fails(r'^No module named .tfdist.\. Put the folder tfdist of the collection beside '
                  r'.*HogWild, or install it: `pip install \.` in the root of the collection\.$')
        assert run.wait() == 1 and not run.out


def test_a_library_that_is_not_whole_says_what_is_missing(programs, bare_python, project):
    """Not that there is none."""
    for name in 'HogWild', 'tfdist':
        copy(name, project)
    (project / 'tfdist' / 'cluster.py').unlink()
    run = programs.start([bare_python, 'ps.py'], cwd=project / 'HogWild')
    assert run.wait() == 1 and 'cluster' in run.err[-1]
