"""The library: rooms of small modules, imports that run one way, no word of a scheme; its page."""

import ast
import functools
import re

from absl import flags
import pytest

from processes import examples, ROOT

LIBRARY = ROOT / 'tfdist'
PAGE = (ROOT / 'docs' / 'the-library.md').read_text(encoding='utf-8')
ROOMS = sorted(path.parent.name for path in LIBRARY.glob('*/__init__.py'))
MODULES = {(path.parent.name, path.stem): path for path in LIBRARY.glob('*/[!_]*.py')}
MOST_LINES = 60  # of a function
# What schemes are called besides their folders' names.
OTHER_NAMES = ['easgd', 'eamsgd', 'asgd', 'sync-sgd']
VAGUE = {'utils', 'util', 'helpers', 'helper', 'common', 'misc', 'tools'}


@functools.lru_cache(maxsize=None)
def tree_of(path):
    """Returns the syntax tree of a file."""
    return ast.parse(path.read_text(encoding='utf-8'))


def imports(path):
    """Returns the set of pairs (room, module) of the library that a file imports."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith('tfdist.')]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path.name}: imports are absolute'
            package, *rest = (node.module or '').split('.')
            if package == 'tfdist' and len(rest) == 1:
                found |= {(rest[0], alias.name) for alias in node.names}
            elif package == 'tfdist' and len(rest) == 2:
                found.add(tuple(rest))
    return found


def drawing():
    """Returns what the page draws: a list of sets, the floors from below, and a set of arrows."""
    text, = re.findall(r'```mermaid\n(flowchart .*?)```', PAGE, re.DOTALL)
    floors = {int(number): set(names.split()) for number, names in re.findall(
        r'subgraph floor_(\d+) \[[^]]+\]\n(.*?)\n +end\n', text, re.DOTALL)}
    arrows = {(above, below) for above, targets in re.findall(r'(\w+) --> (.+)', text)
              for below in targets.split(' & ')}
    return [floors[number] for number in sorted(floors)], arrows


def rows_of(room):
    """Returns the rows of a room's table on the page: lists of cells."""
    section = re.split(rf'^### {room}$', PAGE, flags=re.MULTILINE)[1].split('\n#')[0]
    return [[cell.strip() for cell in line.strip('|').split('|')]
            for line in re.findall(r'^\| `.*\|$', section, re.MULTILINE)]


def test_the_page_draws_the_rooms_and_the_imports_between_them():
    floors, arrows = drawing()
    assert sorted(room for floor in floors for room in floor) == ROOMS
    code = {(room, other) for (room, _), path in MODULES.items() for other, _ in imports(path)}
    assert arrows == {(room, other) for room, other in code if room != other}
    assert len(arrows) > 10


def test_imports_between_rooms_run_one_way():
    """From each floor to lower ones only: so there is no cycle."""
    floors, arrows = drawing()
    floor_of = {room: i for i, floor in enumerate(floors) for room in floor}
    assert not [arrow for arrow in arrows if floor_of[arrow[1]] >= floor_of[arrow[0]]]


@pytest.mark.parametrize('room', ROOMS)
def test_the_page_names_the_modules_of_a_room(room):
    """Each once, with what it imports of its room; and no circle there."""
    rows = rows_of(room)
    assert sorted(row[0].strip('`') for row in rows) == sorted(
        name for its_room, name in MODULES if its_room == room)
    above = []
    for row in rows:
        name = row[0].strip('`')
        inside = {module for its_room, module in imports(MODULES[room, name]) if its_room == room}
        assert set(re.findall(r'`(\w+)`', row[2] if len(row) > 2 else '')) == inside, name
        assert not inside & {name, *above}, f'{name}: what is imported stands below'
        above.append(name)


def test_each_room_says_what_it_has():
    """In one sentence, which the page has, too."""
    for room in ROOMS:
        says = ast.get_docstring(tree_of(LIBRARY / room / '__init__.py'))
        row, = re.findall(rf'^\| \[`{room}`\]\(#{room}\) \| (.*) \|$', PAGE, re.MULTILINE)
        assert row.lower() in (says.lower().rstrip('.'), row.lower() * (room == 'gallery'))


def test_programs_import_what_is_there():
    """By name; and the library imports no program."""
    programs = [path for folder in examples() for path in (ROOT / folder).glob('*.py')
                if path.name != 'find_library.py']
    assert len(programs) > 60
    assert not {(str(path), name) for path in programs for name in imports(path) - set(MODULES)}
    names = {path.stem for path in programs}
    for path in MODULES.values():
        text = path.read_text(encoding='utf-8')
        assert not names & set(re.findall(r'^ *(?:import|from) (\w+)', text, re.MULTILINE)), path


def test_what_one_folder_alone_needs_is_in_that_folder():
    """A module of the library is imported by the library, or by more than one folder."""
    users = {path: imports(path) for path in ROOT.glob('[!.]*/**/*.py')
             if path.relative_to(ROOT).parts[0] not in ('tests', 'build')}
    for module in MODULES:
        if module[0] == 'gallery' or module in [
                ('scheme', 'toy'), ('model', 'starts'), ('training', 'predict')]:
            continue  # for models, for tests, and a program
        folders = {path.relative_to(ROOT).parts[0] for path, used in users.items()
                   if module in used}
        assert 'tfdist' in folders or len(folders) > 1, module


def test_options_come_from_whoever_defines_them():
    """A module that reads a flag defines it, or imports the module that does."""
    defined = {module: set(re.findall(r"DEFINE_\w+\(\s*'(\w+)'", path.read_text(encoding='utf-8')))
               for module, path in MODULES.items()}
    read = 0
    for module, path in MODULES.items():
        known = set().union(defined[module], *(defined.get(other, ()) for other in imports(path)))
        for node in ast.walk(tree_of(path)):
            owner = getattr(node, 'value', None)
            if 'FLAGS' not in (getattr(owner, 'id', ''), getattr(owner, 'attr', '')):
                continue
            if isinstance(node, ast.Attribute) and not hasattr(flags.FlagValues, node.attr):
                read += 1
                assert node.attr in known, f'{module} reads --{node.attr}'
    assert read > 30


def test_nothing_of_a_scheme_is_found_by_its_name():
    """All parts that a scheme may have are declared in the seam."""
    places = [*MODULES.values(), *ROOT.glob('Simulation/*.py')]
    wrong = [f'{path.name}:{node.lineno}' for path in places for node in ast.walk(tree_of(path))
             if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in (
                 'hasattr', 'getattr') and 'scheme' in ast.dump(node.args[0])]
    assert not wrong


def functions():
    """Yields path and node of each function of the programs and the library."""
    for path in ROOT.glob('[!.]*/**/*.py'):
        if path.relative_to(ROOT).parts[0] not in ('tests', 'build'):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.FunctionDef):
                    yield path, node


def lines_of(node):
    """Returns how many lines a function has, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    last = max(getattr(each, 'end_lineno', None) or each.lineno
               for each in ast.walk(node) if hasattr(each, 'lineno'))
    return last - body[0].lineno + 1 if body else 0


def test_functions_are_short():
    found = {f'{path.relative_to(ROOT)}: {node.name}': lines_of(node)
             for path, node in functions()}
    assert len(found) > 500
    assert not {name: lines for name, lines in found.items() if lines > MOST_LINES}


def mentions(names):
    """Returns a pattern of these names as words or parts of words with `_`, however written."""
    forms = '|'.join('[-_ ]?'.join(map(re.escape, re.split('[-_ ]', name))) for name in names)
    return re.compile(rf'(?<![a-z])(?:{forms})(?![a-z])', re.IGNORECASE)


SCHEMES = mentions(sorted(examples(), key=len, reverse=True) + OTHER_NAMES)


@pytest.mark.parametrize('text', ['as in HogWild', 'hogwild_push', 'ssp', 'local_sgd(',
                                  'Work queue', 'RING-ALLREDUCE', 'dc_asgd'])
def test_names_of_schemes_are_found(text):
    assert SCHEMES.search(text)
    assert not SCHEMES.search('a diagnosis of the ring; local steps of SGD; a queue')


@pytest.mark.parametrize('room, module', sorted(MODULES))
def test_a_module_knows_no_scheme(room, module):
    lines = MODULES[room, module].read_text(encoding='utf-8').splitlines()
    assert room == 'gallery' or not [line for line in lines if SCHEMES.search(line)]


def test_each_module_has_one_job_that_its_name_says():
    assert len(MODULES) > 20
    files = list(ROOT.glob('[!.]*/**/*.py'))
    assert not [path for path in files if path.stem in VAGUE]
