"""Folders share files and definitions by name, and the copies are the same."""

import shutil

import companions
import pytest


@pytest.fixture
def tree(tmp_path):
    """A copy of all folders with a model.py, in which a test may spoil something."""
    for path in companions.ROOT.glob('*/model.py'):
        shutil.copytree(str(path.parent), str(tmp_path / path.parent.name),
                        ignore=shutil.ignore_patterns('__pycache__'))
    companions.mend(tmp_path)  # so that nothing but what the test spoils is wrong
    return tmp_path


def spoil(path, old, new):
    """Replaces the first `old` in a file by `new`, which must be something else."""
    text = path.read_text(encoding='utf-8')
    assert old in text and old != new
    path.write_text(text.replace(old, new, 1), encoding='utf-8')


def test_copies_do_not_differ():
    compared, wrong = companions.differences()
    print(f'compared {compared} pairs')
    folders = len(list(companions.ROOT.glob('*/worker.py')))
    # At least run.sh, ps.py, cluster.py, console.py, model.py and main() of each but the master.
    assert folders >= 2 and compared >= 6 * (folders - 1)
    assert not wrong, '\n'.join(wrong + ['`make companions` mends this'])


def test_a_byte_in_a_file_is_found_and_mended(tree):
    copy = tree / 'HogWild' / 'cluster.py'
    spoil(copy, 'who is in the cluster', 'who is in a cluster')
    assert companions.differences(tree)[1] == [
        'HogWild/cluster.py differs from Distributed-Setup/cluster.py']
    companions.mend(tree)
    assert companions.differences(tree)[1] == []
    assert copy.read_bytes() == (tree / 'Distributed-Setup' / 'cluster.py').read_bytes()


def test_a_word_in_a_definition_is_found_and_mended(tree):
    copy = tree / 'HogWild' / 'worker.py'
    before = copy.read_text(encoding='utf-8')
    spoil(copy, 'def main(_):', 'def main(_):  # almost the same')
    spoil(copy, 'Returns the seconds that', 'Gives the seconds that')
    compared, wrong = companions.differences(tree)
    assert sorted(wrong) == [
        'main in HogWild/worker.py differs from Distributed-Setup/worker.py',
        'straggler_delay in HogWild/worker.py differs from Distributed-Setup/worker.py']
    companions.mend(tree)
    assert companions.differences(tree) == (compared, [])
    assert copy.read_text(encoding='utf-8') == before


def test_the_seam_may_differ(tree):
    copy = tree / 'HogWild' / 'worker.py'
    spoil(copy, 'class Scheme:', 'class Scheme:  # another one')
    spoiled = copy.read_bytes()
    assert companions.differences(tree)[1] == []
    companions.mend(tree)
    assert copy.read_bytes() == spoiled


def test_a_marked_file_may_differ(tree):
    copy = tree / 'HogWild' / 'run.sh'
    compared, _ = companions.differences(tree)
    spoil(copy, '\n', f'\n# {companions.MARKER} this scheme has no ps.\n')
    spoiled = copy.read_bytes()
    assert companions.differences(tree) == (compared - 1, [])
    companions.mend(tree)
    assert copy.read_bytes() == spoiled


def test_a_new_folder_is_found_by_itself(tree):
    shutil.copytree(str(tree / 'HogWild'), str(tree / 'Another'))
    (tree / 'Another' / 'ps.py').write_bytes(b'')
    assert companions.differences(tree)[1] == ['Another/ps.py differs from Distributed-Setup/ps.py']
