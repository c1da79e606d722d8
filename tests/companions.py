"""Files and definitions that the folders share: finds copies that differ, and mends them.

Two rules, and no list of names. A program or script that stands in two folders by the same name
has the same bytes in both; the folders are those that train, with a model.py. A definition that two
worker.py share by name has the same text in both, except the seam, which is the scheme. The master
is the copy in the first of MASTERS that has one. A file that truly must differ says so, and why, in
a comment within its first lines that begins with MARKER, and a definition in a comment within it.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MASTERS = 'Distributed-Setup', 'Synchronous-SGD'  # others follow by the alphabet
SEAM = 'Scheme'
MARKER = 'Differs from Distributed-Setup:'
OWN = {'worker.py', 'train.py'}  # of each folder, by design


def _masters_first(paths):
    """Returns paths of files in folders, sorted by who is the master of whom."""
    folders = {folder: rank for rank, folder in enumerate(MASTERS)}
    return sorted(paths, key=lambda path: (folders.get(path.parent.name, len(folders)), path))


def _is_marked(path):
    """Returns whether a program says that it differs."""
    return any(MARKER in line for line in path.read_text(encoding='utf-8').splitlines()[:30])


def files(root=ROOT):
    """Yields pairs of paths: a program in its master folder, and its copy in another folder."""
    masters = {}
    for path in _masters_first(path for kind in ('py', 'sh') for path in root.glob(f'*/*.{kind}')):
        if path.name in OWN or not (path.parent / 'model.py').exists() or _is_marked(path):
            continue
        if path.name in masters:
            yield masters[path.name], path
        masters.setdefault(path.name, path)


def definitions(path):
    """Returns a dict: the first and last line (excluded) of each top-level definition, by name."""
    text = path.read_text(encoding='utf-8')
    body = ast.parse(text).body
    lines = text.splitlines()
    found = {}
    for node, following in zip(body, body[1:] + [None]):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != SEAM:
            last = _first_line(following) if following else len(lines)
            while not lines[last - 1].strip():
                last -= 1
            found[node.name] = _first_line(node), last
    return found


def _first_line(node):
    """Returns the index of a node's first line, counting its decorators."""
    return min([node.lineno] + [d.lineno for d in getattr(node, 'decorator_list', [])]) - 1


def text_of(path, name):
    """Returns the lines of a top-level definition."""
    first, last = definitions(path)[name]
    return path.read_text(encoding='utf-8').splitlines()[first:last]


def shared_definitions(root=ROOT):
    """Yields (name, master path, copy path) for definitions that two worker.py have by name."""
    masters = {}
    for worker in _masters_first(root.glob('*/worker.py')):
        for name in definitions(worker):
            if MARKER in '\n'.join(text_of(worker, name)):
                continue
            if name in masters:
                yield name, masters[name], worker
            masters.setdefault(name, worker)


def differences(root=ROOT):
    """Returns (number of pairs compared, list of sentences on those that differ)."""
    compared, wrong = 0, []
    for master, copy in files(root):
        compared += 1
        if master.read_bytes() != copy.read_bytes():
            wrong.append(f'{copy.relative_to(root)} differs from {master.relative_to(root)}')
    for name, master, copy in shared_definitions(root):
        compared += 1
        if text_of(master, name) != text_of(copy, name):
            wrong.append(f'{name} in {copy.relative_to(root)} differs from '
                         f'{master.relative_to(root)}')
    return compared, wrong


def mend(root=ROOT):
    """Copies each master over its copies that differ."""
    for master, copy in files(root):
        copy.write_bytes(master.read_bytes())
        copy.chmod(master.stat().st_mode)
    for name, master, copy in list(shared_definitions(root)):
        first, last = definitions(copy)[name]
        lines = copy.read_text(encoding='utf-8').splitlines()
        lines[first:last] = text_of(master, name)
        copy.write_text('\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    _, before = differences()
    mend()
    print('\n'.join(f'mended: {sentence}' for sentence in before) or 'nothing to mend')
