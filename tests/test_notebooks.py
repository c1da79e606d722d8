"""The notebooks run, alone and side by side, and what is stored in them is fit to be read."""

import importlib
import os
import re
import shutil
import subprocess
import sys

from conftest import ROOT
import nbformat
import notebooks
import pytest

ALL = notebooks.notebooks()
ALONE = [group[0] for group in notebooks.groups(ALL) if len(group) == 1]
TOGETHER = [group for group in notebooks.groups(ALL) if len(group) > 1]
CLASSES = {
    'Server', 'Coordinator', 'SessionManager', 'Supervisor', 'SessionCreator', 'Scaffold',
    'MonitoredSession', 'MonitoredTrainingSession', 'SyncReplicasOptimizer', 'LoggingTensorHook',
    'StopAtStepHook', 'StepCounterHook', 'CheckpointSaverHook', 'NanTensorHook',
    'SummarySaverHook', 'GlobalStepWaiterHook', 'FinalOpsHook', 'FeedFnHook'}
LINK = re.compile(r'\]\(([^)#:]*)(?:#([^)]+))?\)')


def name_of(path):
    return str(path.relative_to(notebooks.FOLDER).with_suffix(''))


each = pytest.mark.parametrize('path', ALL, ids=name_of)


def code_of(cells):
    return [cell for cell in cells if cell.cell_type == 'code']


def text_of(cells):
    return '\n'.join(cell.source for cell in cells if cell.cell_type == 'markdown')


def outputs_of(path):
    """Returns all outputs of a notebook's code cells."""
    return [output for cell in code_of(notebooks.read(path).cells) for output in cell.outputs]


def anchor(heading):
    """Returns the anchor that Jupyter gives a heading."""
    return heading.replace('`', '').strip().replace(' ', '-')


def sections(path):
    """Returns the text and the executed code under each heading, its subheadings included.

    Returns:
      Dict by anchor of dicts with the keys 'markdown' and 'code'.
    """
    found, levels = {}, {}
    for cell in notebooks.read(path).cells:
        if cell.cell_type == 'code':
            pieces = [cell.source] if cell.execution_count else []
        else:
            pieces = re.split(r'(?m)^(?=#+ )', cell.source)
        for piece in pieces:
            heading = re.match(r'(#+) (.*)', piece)
            if heading and cell.cell_type == 'markdown':
                name, level = anchor(heading.group(2)), len(heading.group(1))
                levels = {outer: n for outer, n in levels.items() if n < level}
                levels[name] = level
                found[name] = {'markdown': '', 'code': ''}
            for name in levels:
                found[name][cell.cell_type] += f'{piece}\n'
    return found


def glossary():
    """Returns (term, notebook, anchor) for each row of the glossary."""
    text = (notebooks.FOLDER / 'README.md').read_text(encoding='utf-8').split('## Glossary')[1]
    return re.findall(r'^\| \[([^]]+)\]\(([^)#]+)#([^)]+)\) \| .+ \|$', text, re.MULTILINE)


@pytest.fixture
def folder(tmp_path):
    """A copy of the folder, in which notebooks can be executed."""
    place = tmp_path / notebooks.FOLDER.name
    shutil.copytree(str(notebooks.FOLDER), str(place), ignore=shutil.ignore_patterns(
        '__pycache__', '.ipynb_checkpoints', 'cluster.json'))
    return place


def execute(programs, paths, *flags):
    """Executes notebooks in fresh kernels; returns the ended program."""
    run = programs.start([sys.executable, ROOT / 'tests' / 'notebooks.py', *flags, *paths])
    run.wait()
    assert not run.left()
    return run


def check(run, paths):
    """Asserts that notebooks were executed, and that all went well."""
    run.ends_well()
    executed = [match['name'] for match in run.matches(r'executed (?P<name>\S+) in \d+ s')]
    assert sorted(executed) == sorted(path.name for path in paths), str(run)
    for path in paths:
        for output in outputs_of(path):
            assert output.get('name') != 'stderr' and output.output_type != 'error', output


@pytest.mark.parametrize('path', ALONE, ids=name_of)
def test_runs_with_the_solutions_of_its_exercises(programs, folder, path):
    copy = folder / path.name
    check(execute(programs, [copy], '--solutions'), [copy])
    assert len(code_of(notebooks.read(copy).cells)) > len(code_of(notebooks.read(path).cells))


@pytest.mark.parametrize('first', range(3))
@pytest.mark.parametrize('group', TOGETHER, ids=lambda group: group[0].parent.name)
def test_run_side_by_side_in_any_order(programs, folder, group, first):
    copies = [folder / path.relative_to(notebooks.FOLDER) for path in group]
    order = copies[first:] + copies[:first]
    check(execute(programs, order), order)
    workers = [''.join(output.get('text', '') for output in outputs_of(copy))
               for copy in copies if copy.name.startswith('Worker')]
    last_steps = [int(re.search(r'global steps \d+ to (\d+)', text).group(1)) for text in workers]
    assert max(last_steps) == 600, 'each made 300, on the same variables'
    assert all('first values are from Worker-1' in text for text in workers)


def test_a_notebook_that_fails_is_an_error(programs, folder):
    path = folder / 'Fails.ipynb'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1 / 0')]), str(path))
    run = execute(programs, [path])
    assert run.wait() == 1 and not run.out
    assert run.err[0].startswith('Fails.ipynb: ') and 'ZeroDivisionError' in '\n'.join(run.err)


@each
def test_the_stored_outputs(path):
    notebook = notebooks.read(path)
    assert notebook.metadata == notebooks.METADATA
    code = code_of(notebook.cells)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = outputs_of(path)
    assert any('image/png' in output.get('data', {}) for output in outputs)
    for output in outputs:
        assert output.get('name') != 'stderr' and output.output_type != 'error', output
        text = output.get('text', '') + output.get('data', {}).get('text/plain', '')
        assert not re.search(r'(?i)\bwarn', text), text
        assert not re.search(r'(?<![\w.:/])/(?!job:)\w+/', text), text  # a path of a machine


@each
def test_ports_are_free_ones(path):
    for cell in code_of(notebooks.read(path).cells):
        assert not re.search(r'localhost:\d|grpc://\w+:\d', cell.source), cell.source


@each
def test_links(path):
    text = text_of(notebooks.read(path).cells)
    for target, name in LINK.findall(text):
        place = path.parent / target
        assert place.exists(), target
        if name and place.suffix == '.md':
            headings = re.findall(r'(?m)^#+ (.+)$', place.read_text(encoding='utf-8'))
            assert name in {anchor(heading).lower() for heading in headings}, name
    end = text_of(notebooks.read(path).cells[-1:])
    assert LINK.search(end), 'it ends with what to read next'


@pytest.mark.parametrize('group', notebooks.groups(ALL), ids=lambda group: name_of(group[0]))
def test_exercises(group):
    text = ''.join(text_of(notebooks.read(path).cells) for path in group)
    assert '## Exercises' in text and '## Next' in text
    solutions = re.findall(r'<details>\n<summary>Solution</summary>\n\n.+?\n\n</details>', text,
                           re.DOTALL)
    assert len(solutions) >= 2 and len(solutions) == text.count('<details>')


def test_both_workers_are_one_program():
    one, other = [[cell.source for cell in code_of(notebooks.read(path).cells)]
                  for path in ALL if path.name in ('Worker-1.ipynb', 'Worker-2.ipynb')]
    assert one[0] == other[0].replace('ME = 1', 'ME = 0') != other[0]
    assert one[1:] == other[1:]


def test_the_glossary_has_all_classes():
    terms = [term for term, _, _ in glossary()]
    assert len(terms) > 40 and len(set(terms)) == len(terms)
    assert CLASSES - {'Server'} <= set(terms) and 'server' in terms


@pytest.mark.parametrize('term, file, place', glossary(), ids=lambda value: value)
def test_the_glossary_links_to_what_shows_it(term, file, place):
    section = sections(notebooks.FOLDER / file)[place]
    assert section['code'], 'a section without an executed cell shows nothing'
    name = term.strip('`')
    if name in CLASSES or term != name:
        assert re.search(rf'\btf\.train\.{name}\b', section['code'])
    else:
        assert re.split('[ ,]', name)[0].lower() in ''.join(section.values()).lower()


def test_the_table_has_all_notebooks():
    text = (notebooks.FOLDER / 'README.md').read_text(encoding='utf-8').split('## Glossary')[0]
    linked = {target for target, _ in LINK.findall(text) if target.endswith('.ipynb')}
    assert linked == {f'{name_of(path)}.ipynb' for path in ALL}


@pytest.fixture
def basics(monkeypatch):
    for name in ('TF_CPP_MIN_LOG_LEVEL', 'CUDA_VISIBLE_DEVICES'):  # it sets them for a kernel
        monkeypatch.setenv(name, os.environ.get(name, ''))
    monkeypatch.syspath_prepend(str(notebooks.FOLDER))
    return importlib.import_module('basics')


def test_notebooks_meet(basics, tmp_path):
    file = str(tmp_path / 'cluster.json')

    def meet(job, index):
        return basics.meet(job, index, file).as_dict()

    spec = meet('worker', 1)
    assert meet('ps', 0) == meet('worker', 0) == spec
    assert [len(spec['ps']), len(spec['worker'])] == [1, 2]
    again = meet('worker', 0)  # a second run, without a restart
    assert again != spec
    assert meet('ps', 0) == again


def test_notebooks_do_not_meet_the_dead(basics, tmp_path):
    file = tmp_path / 'cluster.json'
    spec = basics.meet('ps', 0, str(file)).as_dict()
    ended = subprocess.Popen([sys.executable, '-c', ''])
    ended.wait()
    file.write_text(file.read_text().replace(f' {os.getpid()}\n', f' {ended.pid}\n'))
    assert basics.meet('worker', 0, str(file)).as_dict() != spec


def test_waiting_says_for_what_and_ends(basics, capsys):
    port, = basics.free_ports(1)
    with pytest.raises(TimeoutError, match='start the ps'):
        basics.wait_for(f'localhost:{port}', 'start the ps', patience_secs=0.3)
    assert capsys.readouterr().out == 'start the ps\n'
