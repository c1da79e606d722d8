"""The library: small modules, imports that run one way, no word of a scheme; its page says so."""

import ast
import re

import pytest
from processes import examples, ROOT

LIBRARY = ROOT / 'tfdist'
PAGE = (ROOT / 'docs' / 'the-library.md').read_text(encoding='utf-8')
MODULES = {path.stem: path for path in LIBRARY.glob('[!_]*.py')}
MOST_LINES = 220
# What schemes are called besides their folders' names.
OTHER_NAMES = ['easgd', 'eamsgd', 'asgd', 'sync-sgd']
VAGUE = {'utils', 'util', 'helpers', 'helper', 'common', 'misc', 'tools'}


def imports(path):
    """Returns the set of modules of the library that a file imports, by whatever form."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split('.')[1] for alias in node.names
                      if alias.name.startswith('tfdist.')}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path.name}: imports are absolute'
            package, _, module = (node.module or '').partition('.')
            if package == 'tfdist':
                found |= {module} if module else {alias.name for alias in node.names}
    return found


def drawing():
    """Returns what the page draws: a list of sets, the floors from below, and a set of arrows."""
    text, = re.findall(r'```mermaid\n(flowchart .*?)```', PAGE, re.DOTALL)
    floors = {int(number): set(names.split()) for number, names in re.findall(
        r'subgraph floor_(\d+) \[[^]]+\]\n(.*?)\n +end\n', text, re.DOTALL)}
    arrows = {(above, below) for above, targets in re.findall(r'(\w+) --> (.+)', text)
              for below in targets.split(' & ')}
    return [floors[number] for number in sorted(floors)], arrows


def test_the_page_names_each_module_once():
    table, = re.findall(r'\| module \|.*?\n\n', PAGE, re.DOTALL)
    assert sorted(re.findall(r'^\| `(\w+)` \|', table, re.MULTILINE)) == sorted(MODULES)
    floors, _ = drawing()
    assert sorted(name for floor in floors for name in floor) == sorted(MODULES)


def test_the_drawing_has_the_imports_of_the_code():
    _, arrows = drawing()
    code = {(name, imported) for name, path in MODULES.items() for imported in imports(path)}
    assert len(arrows) > 10
    assert arrows == {(name, imported) for name, imported in code if imported != 'quiet'}


def test_imports_run_one_way():
    """From each floor to lower ones only: so there is no cycle."""
    floors, _ = drawing()
    floor_of = {name: i for i, floor in enumerate(floors) for name in floor}
    assert not [f'{name} imports {imported}' for name, path in MODULES.items()
                for imported in imports(path) if floor_of[imported] >= floor_of[name]]


def test_programs_import_what_is_there():
    """By name; and the library imports no program."""
    programs = [path for folder in examples() for path in (ROOT / folder).glob('*.py')
                if path.name != 'tfdist.py']
    assert len(programs) > 60
    assert not {(str(path), name) for path in programs for name in imports(path) - set(MODULES)}
    names = {path.stem for path in programs}
    for path in MODULES.values():
        text = path.read_text(encoding='utf-8')
        assert not names & set(re.findall(r'^ *(?:import|from) (\w+)', text, re.MULTILINE)), path


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


@pytest.mark.parametrize('module', sorted(MODULES))
def test_module(module):
    """It is short, and knows no scheme."""
    lines = MODULES[module].read_text(encoding='utf-8').splitlines()
    assert len(lines) <= MOST_LINES
    assert not [line for line in lines if SCHEMES.search(line)]


def test_each_module_has_one_job_that_its_name_says():
    assert len(MODULES) > 20
    files = [path for path in ROOT.glob('*/*.py') if not path.parts[-2].startswith('.')]
    assert not [path for path in files if path.stem in VAGUE]
