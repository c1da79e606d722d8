"""What has the same name in two folders has the same text: copies do not drift apart."""

import ast
import collections
import re
import shutil

import pytest

from processes import ROOT

SEAM = 'Scheme'  # what the folders differ in
PROGRAMS = 'worker.py', 'ps.py', 'train.py'
# How each run.sh finds its interpreter: from `set -u` to the first line that starts something.
FINDS_PYTHON = re.compile(r'^set -u$.*?^\}$', re.DOTALL | re.MULTILINE)


def folders(root):
    """Returns the paths of the folders that train, those with a model.py."""
    return sorted(path.parent for path in root.glob('*/model.py'))


def says(path):
    """Returns what a file says that it is: its docstring, or in the shell its first comment."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        return ast.get_docstring(ast.parse(text))
    return re.match('(?:#.*\n)+', text).group()


def definitions(path):
    """Yields the name and the text of each top-level definition of a program."""
    text = path.read_text(encoding='utf-8')
    lines, body = text.splitlines(), ast.parse(text).body
    for node, following in zip(body, body[1:] + [None]):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != SEAM:
            last = following.lineno - 1 if following else len(lines)
            yield node.name, '\n'.join(lines[node.lineno - 1:last]).rstrip()


def differences(root):
    """Returns how many pairs were compared, and sentences on those that differ."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))  # what, text, paths
    for folder in folders(root):
        for path in [*folder.glob('*.py'), *folder.glob('*.sh')]:
            text = path.read_text(encoding='utf-8')
            found[path.name, 'which says the same of itself', says(path)][text].append(path)
            if path.name == 'run.sh':
                found[path.name, 'how it finds Python', ''][
                    FINDS_PYTHON.search(text).group()].append(path)
            if path.name in PROGRAMS:
                for name, own in definitions(path):
                    found[path.name, name, ''][own].append(path)
    compared, wrong = 0, []
    for (_, what, _), texts in found.items():
        groups = sorted(texts.values(), key=len)
        compared += sum(map(len, groups)) - 1
        for group in groups[:-1]:
            wrong += [f'{path.relative_to(root)}, {what}: differs from '
                      f'{groups[-1][0].relative_to(root)}' for path in group]
    return compared, wrong


def test_copies_do_not_differ():
    compared, wrong = differences(ROOT)
    # At least find_library.py, run.sh twice, ps.py twice and main of nearly each.
    assert compared > 6 * (len(folders(ROOT)) - 5) > 60
    assert not wrong, '\n'.join(wrong)


def test_the_finder_of_the_library_is_the_same_in_all():
    texts = {(folder / 'find_library.py').read_bytes() for folder in folders(ROOT)}
    assert len(texts) == 1


@pytest.fixture
def tree(tmp_path):
    """A copy of all folders, in which a test may spoil something."""
    for folder in folders(ROOT):
        shutil.copytree(str(folder), str(tmp_path / folder.name),
                        ignore=shutil.ignore_patterns('__pycache__', 'records', 'runs'))
    return tmp_path


@pytest.mark.parametrize('file, old, new, what', [
    ('run.sh', 'python=python', 'python=python3', 'how it finds Python'),
    ('run.sh', '--start-ps=1', '--start-ps=2', 'which says the same of itself'),
    ('find_library.py', 'sys.exit', 'sys.exit ', 'which says the same of itself'),
    ('ps.py', 'not server.join()', 'no server.join()', 'main'),
    ('worker.py', 'progress.done()', 'progress.done( )', 'main'),
    ('model.py', 'an MLP of ReLUs', 'a net of ReLUs', 'which says the same of itself'),
])
def test_what_drifts_is_found(tree, file, old, new, what):
    path = tree / 'HogWild' / file
    text = path.read_text(encoding='utf-8')
    assert old in text
    path.write_text(text.replace(old, new), encoding='utf-8')
    _, wrong = differences(tree)
    assert wrong and all(sentence.startswith(f'HogWild/{file}, ') for sentence in wrong)
    assert any(f'HogWild/{file}, {what}: ' in sentence for sentence in wrong)


def test_the_seam_and_what_is_said_of_a_file_may_differ(tree):
    before = differences(tree)
    assert not before[1]
    worker, ps = tree / 'HogWild' / 'worker.py', tree / 'HogWild' / 'ps.py'
    for path, old, new in ((worker, 'class Scheme(seam.Seam):', 'class Scheme(seam.Seam):  # mine'),
                           (ps, '"""A parameter server: ', '"""My parameter server: ')):
        path.write_text(path.read_text(encoding='utf-8').replace(old, new, 1), encoding='utf-8')
    assert not differences(tree)[1]


def test_a_new_folder_is_found_by_itself(tree):
    shutil.copytree(str(tree / 'HogWild'), str(tree / 'Another'))
    path = tree / 'Another' / 'ps.py'
    path.write_text(path.read_text(encoding='utf-8').replace("'ps', resolver", "'p', resolver"),
                    encoding='utf-8')
    assert {sentence.split(',')[0] for sentence in differences(tree)[1]} == {'Another/ps.py'}


def test_folders_are_thin():
    """A folder: at most 350 lines of programs; those with more of their own, what they need."""
    more = {'DiLoCo': 560, 'Distributed-MNIST': 660, 'Elastic-Workers': 370, 'FedAvg': 1340,
            'Gossip': 2120, 'Multiple-GPUs-Single-Machine': 860, 'Parameter-Placement': 470,
            'Ring-AllReduce': 2080}
    for folder in folders(ROOT):
        lines = sum(len(path.read_text(encoding='utf-8').splitlines())
                    for path in [*folder.glob('*.py'), *folder.glob('*.sh')])
        assert lines <= more.get(folder.name, 350), (folder.name, lines)
