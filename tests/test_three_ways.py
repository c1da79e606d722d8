"""Three ways to have the library: in the checkout, copied beside a folder, or installed."""

import os
import pathlib
import re
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
                    ignore=shutil.ignore_patterns('*.pyc.*'))


def library_of(python, folder, **env):
    """Returns the path from which programs of a folder get the library."""
    script = ('import sys; sys.path[0] = sys.argv[1]; import find_library, tfdist; '
              'print(tfdist.__file__)')
    found = subprocess.run([python, '-c', script, str(folder)], cwd=str(folder.parent), check=True,
                           env=dict(os.environ, **env), stdout=subprocess.PIPE,
                           universal_newlines=True).stdout
    return pathlib.Path(found.strip()).parent


def trains(run, workers=2):
    """Waits for the end of a run, and asserts that it was a good one."""
    run.ends_well()
    assert len(run.matches(DID)) == workers and len(run.matches(TEST)) == 1


@pytest.mark.thorough
def test_in_the_checkout(programs, bare_python, tmp_path):
    """Without any installation, from any directory, and with a file there that must not be used."""
    (tmp_path / 'random.py').write_text('raise ImportError("not that of Python")')
    assert library_of(bare_python, ROOT / 'HogWild') == ROOT / 'tfdist'
    trains(programs.run_sh('HogWild', TRAIN, cwd=tmp_path, PYTHON=bare_python))


@pytest.mark.parametrize('folder, workers', [
    ('HogWild', 2), pytest.param('Model-Parallel', 1, marks=pytest.mark.thorough)])
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


# What mypy says of an import or a name that it does not find, but in packages without types.
NOT_FOUND = re.compile(r'(?!.*"(?:absl|tensorflow|numpy|matplotlib)[."]).*'
                       r'\[(?:import[\w-]*|attr-defined)\]')


@pytest.mark.parametrize('beside', [True, False], ids=['beside', 'installed'])
def test_editors_follow_the_library(bare_python, project, beside):
    """The checker of types finds all that a copied folder imports, as editors do.

    The library lies beside the folder, and their parent is opened; or it is installed, where the
    tests run.
    """
    folder = 'Elastic-Workers'  # it has a module of its own, too
    for name in [folder, *(['tfdist'] if beside else [])]:
        copy(name, project)
    files = [str(path.relative_to(project)) for path in sorted((project / folder).glob('*.py'))]
    found = subprocess.run(
        [sys.executable, '-m', 'mypy', '--cache-dir', os.devnull, '--python-executable',
         bare_python if beside else sys.executable, *files], cwd=str(project), timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
        check=False).stdout
    assert f'checked {len(files)} source files' in found, found
    assert not [line for line in found.splitlines() if NOT_FOUND.match(line)]


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
    assert {path.relative_to(site) for path in (site / 'tfdist').rglob('*.py')} == {
        path.relative_to(ROOT) for path in (ROOT / 'tfdist').rglob('*.py')}
    assert (site / 'tfdist' / 'py.typed').exists()
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
    shutil.rmtree(str(project / 'tfdist' / 'cluster'))
    run = programs.start([bare_python, 'ps.py'], cwd=project / 'HogWild')
    assert run.wait() == 1 and 'tfdist.cluster' in run.err[-1]
