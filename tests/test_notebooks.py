"""The notebooks run, alone and side by side, and what is stored in them is fit to be read."""

import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import nbformat
import pytest

from tfdist.start import ports
from tfdist.start.quiet import tf

from conftest import ROOT
import notebooks
from processes import Programs, wait_until

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


def copy(directory):
    """Returns a copy of the folder, in which notebooks can be executed, beside what they use."""
    for each in 'tfdist', 'HogWild':
        shutil.copytree(str(ROOT / each), str(directory / each),
                        ignore=shutil.ignore_patterns('__pycache__'))
    folder = directory / notebooks.FOLDER.name
    shutil.copytree(str(notebooks.FOLDER), str(folder), ignore=shutil.ignore_patterns(
        '__pycache__', '.ipynb_checkpoints', 'cluster.json'))
    return folder


def execute(programs, paths, *flags):
    """Starts to execute notebooks in fresh kernels; returns the program under way."""
    return programs.start([sys.executable, ROOT / 'tests' / 'notebooks.py', *flags, *paths])


def check(run, paths):
    """Waits until notebooks are executed; asserts that all went well, and that nothing is left."""
    run.ends_well()
    assert not run.left()
    executed = [match['name'] for match in run.matches(r'executed (?P<name>\S+) in \d+ s')]
    assert sorted(executed) == sorted(path.name for path in paths), str(run)
    for path in paths:
        for output in outputs_of(path):
            assert output.get('name') != 'stderr' and output.output_type != 'error', output


@pytest.fixture(scope='module')
def alone(request, tmp_path_factory):
    """The notebooks that stand alone, with their solutions, executed at the same time.

    They wait more than they compute. It is a dict of pairs by their paths: the program that
    executes one, and the path of the copy. Only those are in it that a test asks for.
    """
    directory = tmp_path_factory.mktemp('alone')
    folder, programs = copy(directory), Programs(directory)
    asked = [item.callspec.params['path'] for item in request.session.items
             if item.parent is request.node and 'alone' in item.fixturenames]
    yield {path: (execute(programs, [folder / path.name], '--solutions'), folder / path.name)
           for path in asked}
    programs.end()  # those whose test was not reached; of the others nothing is left, see `check`


@pytest.mark.xdist_group('notebooks')
@pytest.mark.parametrize('path', [
    pytest.param(path, id=name_of(path),
                 marks=[] if path.stem == 'Parameter-Server' else [pytest.mark.thorough])
    for path in ALONE])
def test_runs_with_the_solutions_of_its_exercises(alone, path):
    run, copied = alone[path]
    check(run, [copied])
    assert len(code_of(notebooks.read(copied).cells)) > len(code_of(notebooks.read(path).cells))


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The notebooks that are one cluster, in different orders, executed at the same time.

    It is a dict of pairs by the group and which of it is the first one: the program that executes
    the group, and the paths of the copies in order.
    """
    programs, runs = Programs(tmp_path_factory.mktemp('together')), {}
    for i, group in enumerate(TOGETHER):
        for first in range(len(group)):
            folder = copy(tmp_path_factory.mktemp(f'together-{i}-{first}'))
            copies = [folder / path.relative_to(notebooks.FOLDER) for path in group]
            order = copies[first:] + copies[:first]
            runs[i, first] = execute(programs, order), order
    yield runs
    programs.end()  # as in `alone`


@pytest.mark.thorough
@pytest.mark.xdist_group('notebooks')
@pytest.mark.parametrize('group, first', [
    pytest.param(i, first, id=f'{group[0].parent.name}-{first}')
    for i, group in enumerate(TOGETHER) for first in range(len(group))])
def test_run_side_by_side_in_any_order(together, group, first):
    run, copies = together[group, first]
    check(run, copies)
    workers = [''.join(output.get('text', '') for output in outputs_of(path))
               for path in copies if path.name.startswith('Worker')]
    last_steps = [int(re.search(r'global steps \d+ to (\d+)', text).group(1)) for text in workers]
    assert max(last_steps) == 600, 'each made 300, on the same variables'
    assert all('first values are from Worker-1' in text for text in workers)


def test_a_notebook_that_fails_is_an_error(programs, tmp_path):
    path = tmp_path / 'Fails.ipynb'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1 / 0')]), str(path))
    run = execute(programs, [path])
    assert run.wait() == 1 and not run.left() and not run.out
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


@pytest.fixture
def jupyter(programs, tmp_path):
    """What `make notebooks` serves: a function of a path that returns its status and its address.

    The environment that it runs in is that of the tests.
    """
    python = tmp_path / 'venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / 'venv' / 'installed').touch()
    port, = ports.free_ports(1)
    root = f'http://127.0.0.1:{port}'
    run = programs.start(['make', '-C', ROOT, 'notebooks', f'VENV={tmp_path / "venv"}',
                          f'ARGS=--no-browser --ip=127.0.0.1 --port={port} '
                          '--NotebookApp.token= --ServerApp.token='], env={'HOME': str(tmp_path)})

    def get(path):
        request = urllib.request.Request(root + urllib.parse.quote(path), headers={'Referer': root})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.geturl()[len(root):]
        except urllib.error.HTTPError as error:
            return error.code, path

    def listens():
        with socket.socket() as probe:
            return not probe.connect_ex(('127.0.0.1', port))

    wait_until(lambda: listens() or not run.running, 'Jupyter does not listen:', run)
    assert run.running, str(run)
    yield get
    run.end()


def test_make_notebooks_serves_what_the_notebooks_link_to(jupyter):
    assert jupyter('/') == (200, '/tree/Basics-Tutorial'), 'the page that opens'
    assert jupyter('/files/Basics-Tutorial/none.md')[0] == 404
    linked = {(path.parent / target).resolve() for path in ALL
              for target, _ in LINK.findall(text_of(notebooks.read(path).cells)) if target}
    assert any(notebooks.FOLDER not in path.parents for path in linked)
    missing = [path for path in linked if jupyter(f'/files/{path.relative_to(ROOT)}')[0] != 200]
    assert not missing


@pytest.mark.parametrize('group', notebooks.groups(ALL), ids=lambda group: name_of(group[0]))
def test_exercises(group):
    text = ''.join(text_of(notebooks.read(path).cells) for path in group)
    assert '## Exercises' in text and '## Next' in text
    # In Jupyter 6 there is no triangle: the words say that it opens.
    solutions = re.findall(r'<details>\n<summary><b>Solution</b> \(click to open\)</summary>\n\n'
                           r'.+?\n\n</details>', text, re.DOTALL)
    assert len(solutions) >= 2 and len(solutions) == text.count('<details>')


def test_the_last_step_to_a_program_meets_each_distributed_line():
    """What it shows is worker.py as it is, with the number of a section beside each such line."""
    path = notebooks.FOLDER / 'From-Loop-to-Worker.ipynb'
    shown = ''.join(output.get('text', '') for output in outputs_of(path))
    sections_of_it = re.findall(r'(?m)^## (\d+)\. ', text_of(notebooks.read(path).cells))
    program = (ROOT / 'HogWild' / 'worker.py').read_text(encoding='utf-8')
    lines = re.findall(r'(?m)^ *# Distributed: .*$', program)
    assert len(lines) >= 6
    for line in lines:
        found = re.search(rf'(?m)^ *(\d+) {re.escape(line)}$', shown)
        assert found and found[1] in sections_of_it, line


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
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')  # as it does for a kernel
    monkeypatch.syspath_prepend(str(notebooks.FOLDER))
    return importlib.import_module('basics')


def test_at_once(basics):
    """What fails is raised, although another one waits for it for ever."""
    assert basics.at_once(lambda: time.sleep(0.1) or 1, lambda: 2) == [1, 2]

    def fails():
        raise ValueError('broken')

    with pytest.raises(ValueError, match='broken'):
        basics.at_once(threading.Event().wait, fails)


def test_a_run_that_does_not_return_fails(basics, monkeypatch):
    monkeypatch.setattr(basics, 'RUN_SECS', 1)
    _, servers = basics.start_servers(ps=1, worker=1)
    with tf.Graph().as_default(), tf.device('/job:ps/task:0'):
        dequeue = tf.FIFOQueue(1, tf.int32).dequeue()
        with tf.Session(servers['worker 0'].target) as session:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(dequeue)


def test_a_run_that_tensorflow_loses_is_made_again(basics, capsys):
    outcomes = [tf.errors.AbortedError(None, None, ''), 5,
                tf.errors.DeadlineExceededError(None, None, ''), 6, ValueError('broken')]

    class Session:
        def make_callable(self, op):
            assert op == 'op'
            return run

    def run():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    again = basics.steady(Session(), 'op')
    assert [again(), again()] == [5, 6]
    with pytest.raises(ValueError, match='broken'):
        again()
    assert capsys.readouterr().out.splitlines() == [
        f'TensorFlow lost a run ({name}): it is made again'
        for name in ('AbortedError', 'DeadlineExceededError')]


def test_the_traced_transfers(basics):
    """All of them, each time: also where a server notes them late."""
    _, servers = basics.start_servers(ps=1, worker=2)
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.SetInParent()  # optimized by default, as in a notebook
    with tf.Graph().as_default():
        with tf.device('/job:ps/task:0'):
            x = tf.get_variable('x', [50])
            read = x.read_value()
        with tf.device('/job:worker/task:1'):
            y = tf.concat([read, read], axis=0, name='y')
        with tf.device('/job:ps/task:0'):
            step = tf.reduce_sum(y, name='z')
        with tf.Session(servers['worker 0'].target, config=config) as session:
            session.run(x.initializer)
            for _ in range(20):
                metadata = basics.trace(session, step.op)
                assert [(one.tensor, one.bytes, one.sender, one.receiver)
                        for one in basics.sent(metadata)] == [
                            ('y', 400, 'worker 1', 'ps 0'),
                            ('Read/ReadVariableOp', 200, 'ps 0', 'worker 1')]
                nodes = {node.name: node for node in basics.nodes_of(metadata)}
                assert nodes['y'].task == 'worker 1' and 'Read/ReadVariableOp' in nodes['y'].inputs
                assert 'y' in nodes['z'].inputs


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
