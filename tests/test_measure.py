"""measure.py: the row of its runs, and that it puts new rows in the place of old ones."""

import re
import sys
import types

import pytest

from measuring import readmes, runs

import bench
import beside
from conftest import ROOT
import measure

pytestmark = pytest.mark.xdist_group('asked')  # as in test_comparison.py
README = """# AGN

The first table:

| folder | workers | flags | local steps | test accuracy | staleness (max) | note |
|---|---:|---|---:|---:|---:|---|
| AGN | 2 |  | 15010 | **0.985 ± 0.002** | 0.6 (14) | by default |
| **HogWild** | 4 | `--learning_rate=1 --train_steps=500` | 500 | 0.1 | 1 (2) |  |
| AGN | 2 | `--communication_window=9` | 90 | 0.9 | 0.1 (1) | who knows how |

    steps=500
    python Comparison/measure.py AGN                     # as it comes
    python Comparison/measure.py --workers=4 --seeds=2 HogWild -- --learning_rate=1 \\
      --train_steps=$steps
    for window in 10 50; do
      python Comparison/measure.py --ps=2 AGN -- --communication_window=$window \\
        --train_steps=$((1000 / window))
    done

Means. 2026-11-21, a machine with 2
cores, TensorFlow 1.15.5 on
Python 3.7. No other words.

    make bench ARGS='--repeats=3 --only="a|b"'

On 2026-11-21:

| | median | target |
|---|---:|---|
| one | 1 | >= 9 |
| two | 2 |  |

## Others

| rates | test accuracy |
|---|---:|
| 0.5 | 0.9 |

    python Comparison/measure.py SAGN

    python -m pytest
"""
ROW = dict(zip(measure.HEADER, ['AGN', '2', '', '15020', '0.990 ± 0.001', '4000', '0.7 (9)', '5']))


def test_the_commands_of_a_readme():
    """With what the shell makes of loops, variables and sums."""
    first, second, third = [readmes.commands(table.block) for table in readmes.tables(README)]
    program, other = readmes.PROGRAMS
    assert first == [
        (program, 'AGN'),
        (program, '--workers=4', '--seeds=2', 'HogWild', '--', '--learning_rate=1',
         '--train_steps=500'),
        (program, '--ps=2', 'AGN', '--', '--communication_window=10', '--train_steps=100'),
        (program, '--ps=2', 'AGN', '--', '--communication_window=50', '--train_steps=20')]
    assert second == [(other, '--repeats=3', '--only=a|b')]
    assert third == [(program, 'SAGN')]


@pytest.mark.parametrize('more', ['rm -r AGN', 'python AGN > there', 'cd AGN', '/bin/true', 'done'])
def test_nothing_else_in_a_readme_is_run(more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='what is'):
        readmes.commands(f'    python Comparison/measure.py AGN\n    {more}\n')
    assert not list(tmp_path.iterdir())


def test_rows_are_replaced():
    """In their place, with the other columns as they were; rows without an old one come last."""
    rows = {
        'AGN': [ROW],
        'HogWild': [dict(ROW, folder='HogWild', workers='4', **{
            'flags': '`--learning_rate=1 --train_steps=500`', 'test accuracy': '0.2'})],
        '--communication_window=50': [dict(ROW, flags='`--communication_window=50`')],
        '--only=a|b': [{'': 'two', 'median': '2.5', 'target': '<= 3'}, {'': 'new', 'median': '7'}]}
    text, remarks = readmes.renewed(README, lambda words: next(
        (rows[name] for name in reversed(list(rows)) if name in words), None))
    before, after = README.splitlines(), text.splitlines()
    assert [line for line in after if line not in before] == [
        '| AGN | 2 |  | 15020 | **0.990 ± 0.001** | 0.7 (9) | by default |',
        '| **HogWild** | 4 | `--learning_rate=1 --train_steps=500` | 15020 | 0.2 | 0.7 (9) |  |',
        '| AGN | 2 | `--communication_window=50` | 15020 | 0.990 ± 0.001 | 0.7 (9) |  |',
        '| two | 2.5 | <= 3 |',
        '| new | 7 |  |']
    assert [line for line in before if line not in after] == [
        before[6], before[7], '| two | 2 |  |']
    assert after.index(before[8]) == 8, 'nobody measured it'
    assert [re.match(r'line \d+: nothing new for', remark) is not None for remark in remarks] == [
        True, True]
    assert before[8] in remarks[0] and '| one | 1 | >= 9 |' in remarks[1]
    assert text.splitlines()[-9:] == before[-9:]


def test_nothing_new_changes_nothing():
    assert readmes.renewed(README, lambda _: None) == (README, [])


def test_tables_on_a_terminal():
    """Columns are aligned, and have neither links nor bars; what is no table stays."""
    text = ('Before | this\n\n|  | rate | note | none |\n| --- | ---: | --- | --- |\n'
            '| [AGN](../AGN/) (mean) | **7,291** | yes |  |\n| ± | 9 |  |  |\n\nAfter [it](it)\n')
    assert readmes.for_terminal(text, 80) == (
        'Before | this\n\n             rate  note\n----------  -----  ----\n'
        'AGN (mean)  7,291  yes\n±               9\n\nAfter [it](it)\n')
    assert readmes.for_terminal(text, 20).split('\n\n')[1:3] == [
        '             rate\n----------  -----\nAGN (mean)  7,291\n±               9',
        '            note\n----------  ----\nAGN (mean)  yes\n±']


@pytest.mark.parametrize('is_terminal', [True, False])
def test_what_is_printed_depends_on_who_reads(is_terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: is_terminal)
    readmes.show('| a | b |\n|---|---|\n| [c](d) | e |')
    assert capsys.readouterr().out == (
        'a  b\n-  -\nc  e\n' if is_terminal else '| a | b |\n|---|---|\n| [c](d) | e |\n')


def test_the_date_and_the_machine():
    """In the paragraph that says them all, and nowhere else."""
    text = readmes.dated(README, '2030-01-02', 8, '2.21.0', '3.11')
    assert text == README.replace('2026-11-21, a machine with 2\n', '2030-01-02, a machine with 8\n'
                                  ).replace('1.15.5 on\nPython 3.7.', '2.21.0 on\nPython 3.11.')


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """A collection of two READMEs, whose runs are made up; returns the list of what was run."""
    made = []

    def run(folder, *flags, **env):
        made.append((folder, *flags, *(f'{name}={value}' for name, value in env.items())))
        if '--learning_rate=1' in flags:
            sys.exit('worker 0: the loss is nan')
        lines = [(1, 'worker 0: did 200 local steps, staleness 0.4 (max 3), 50 steps/s'),
                 (1, 'worker 1: did 100 local steps, staleness 1.0 (max 2), 100 steps/s'),
                 (1, f'worker 0: test accuracy 0.9{flags[-1][-1]}0 after 300 steps, 2.8 s')]
        finished = runs.Run.__new__(runs.Run)
        finished.lines = lines
        return finished

    for folder in 'AGN', 'HogWild':
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'README.md').write_text(README, encoding='utf-8')
    monkeypatch.setattr(measure, 'ROOT', tmp_path)
    monkeypatch.setattr(measure, 'Run', run)
    monkeypatch.setattr(measure, 'versions', lambda: ('1.15.5', '3.7'))
    monkeypatch.setattr(bench, 'CASES', {'a': lambda: {'x': 1}, 'c': lambda: {'y': 2}})
    monkeypatch.setattr(beside, 'PAIRS', {})
    return types.SimpleNamespace(made=made, read=lambda folder: (
        tmp_path / folder / 'README.md').read_text(encoding='utf-8'))


def test_the_tables_of_readmes_are_measured_again(collection, capsys):
    """Each command once, though two READMEs have it; what fails keeps its row."""
    measure.renew(['AGN', 'HogWild'], None)
    of_agn = [f'--seed={seed}' for seed in range(1, 6)]
    assert [words for words in collection.made if '--learning_rate=1' not in words] == [
        ('AGN', *flags, seed, 'WORKERS=2', f'PS={ps}') for flags, ps in [
            ((), 1), (('--communication_window=10', '--train_steps=100'), 2),
            (('--communication_window=50', '--train_steps=20'), 2)] for seed in of_agn]
    assert len(collection.made) == 16, 'one for what fails'
    text = collection.read('AGN')
    assert text == collection.read('HogWild')
    assert '| AGN | 2 |  | 300 | **0.930 ± 0.016** | 0.6 (3) | by default |\n' in text
    assert '| a, x | 1 |  |\n' in text
    assert README.splitlines()[7] in text, 'this one failed'
    said = capsys.readouterr().out
    assert '20 runs for 5 rows or tables' in said and 'failed: worker 0: the loss is nan' in said
    for folder in 'AGN', 'HogWild':
        assert f'{folder}/README.md, line 39: the columns rates, test accuracy do not say' in said


def test_seeds_for_all_commands(collection):
    measure.renew(['AGN'], 1)
    assert [words[-3] for words in collection.made] == ['--seed=1'] * 4
    assert '| AGN | 2 |  | 300 | **0.910** | 0.6 (3) | by default |\n' in collection.read('AGN')


def test_a_stop_leaves_whole_readmes(collection, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, 'measure', stopped)
    with pytest.raises(SystemExit, match='--readmes AGN/README.md HogWild/README.md$'):
        measure.renew(['AGN', 'HogWild'], 1)
    assert collection.read('AGN') == collection.read('HogWild') == README


def test_the_row_of_a_command(collection):
    options = measure.parse(['--seeds=2', '--workers=3', 'AGN', '--', '--train_steps=300'])
    assert measure.measured(options) == [
        'AGN', '3', '`--train_steps=300`', '300', '0.915 ± 0.007', '75', '0.6 (3)', '2.8']
    alone = measure.parse(['--seeds=1', 'Non-Distributed-Setup'])
    assert measure.measured(alone)[:5] == ['Non-Distributed-Setup', '', '', '300', '0.910']
    assert collection.made[-1] == ('Non-Distributed-Setup', '--seed=1'), 'no WORKERS, no PS'


def test_the_rate_of_workers_who_count_their_own_steps():
    """A fast one ends before a slow one: each counts until its own last step."""
    run = {'local steps': 300, 'local steps/s': 20., 'steps/s per worker': 70.,
           'test accuracy': 0.9, 'seconds': 9.}
    for folder, rate in ('Gossip', '280'), ('HogWild', '20'):
        options = measure.parse(['--seeds=1', '--workers=4', folder])
        assert measure.row(options, [run])[5] == rate


@pytest.mark.parametrize('words', [[], ['AGN', 'HogWild'], ['--seeds=0', 'AGN'],
                                   ['--seeds=0', '--readmes']])
def test_bad_input(words, capsys):
    with pytest.raises(SystemExit):
        measure.parse(words)
    assert re.search('one folder|without a seed', capsys.readouterr().err)


@pytest.mark.parametrize('page', measure.pages([]))
def test_each_row_of_a_readme_has_its_command(page, capsys):
    """And each command beside a table its row; bench.py names its rows only when it has run."""
    text = (ROOT / page).read_text(encoding='utf-8')
    jobs = measure.jobs_of(page, None)
    assert not capsys.readouterr().out, 'all tables can be measured again'
    of_bench = {words for words in jobs if words[0].endswith('bench.py')}

    def cells_that_say_it(words):
        if words in of_bench:
            return None
        return [dict(zip(measure.HEADER, measure.command_of(measure.parse(list(words[1:])))))]

    assert readmes.renewed(text, cells_that_say_it) == (text, [])
    for table in readmes.tables(text):
        for words in of_bench & set(readmes.commands(table.block)):
            rows = [readmes.cells(line)[0] for line in text.split('\n')[table.begin:table.end]][2:]
            options = bench.parse(list(words[1:]))
            assert {case for row in rows for case in options.cases
                    if row.startswith(f'{case}, ')} == set(options.cases)
            assert set(options.pairs) <= set(rows)
            assert all(row.startswith((*options.cases, *options.pairs)) for row in rows)


def test_a_target_that_is_missed_is_marked():
    """By what the table shows, of a number or of another figure, which is measured with it."""
    own, other = 'Synchronous-SGD, steps/s', 'HogWild, 2 workers, steps/s per worker'

    def target(values, others):
        row, = bench.rows({own: values, other: others}, {'Synchronous-SGD': None})
        return row['target']

    words = bench.TARGETS[own]
    assert target([500, 600, 700], [590, 590, 650]) == words
    assert target([500, 600, 700], [590, 610, 800]) == f'missed: {words}'
    assert target([380, 390, 700], [300, 300, 300]) == f'missed: {words}'
    assert target([399.99], [300]) == words, 'it is shown as 400'
    assert set(bench.with_references({'Synchronous-SGD': None})) == {
        'Synchronous-SGD', 'HogWild, 2 workers'}
    figures = [*bench.TARGETS, *bench.REFERENCES.values()]
    assert all(bench.case_of(figure) in bench.CASES for figure in figures)
    assert all(bench.bounds(figure) for figure in bench.TARGETS)


def test_there_are_such_readmes():
    pages = measure.pages([])
    assert {'README.md', 'AGN/README.md', 'docs/how-fast.md'} < set(pages)
    assert measure.pages(['AGN', 'docs/how-fast.md']) == ['AGN/README.md', 'docs/how-fast.md']
    assert len([page for page in pages if measure.jobs_of(page, None)]) > 20
    with pytest.raises(SystemExit, match='no README of Agn'):
        measure.pages(['AGN', 'Agn'])
