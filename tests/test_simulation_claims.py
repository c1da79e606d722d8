"""What papers claim: the pages say what the results say, and each verdict can be another one."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT

SIMULATION = ROOT / 'Simulation'

import claims  # noqa: E402
import experiments  # noqa: E402
import papers  # noqa: E402

NAMES = [claim.name for claim in papers.CLAIMS]


@pytest.fixture(scope='module')
def table():
    return experiments.Table(claims.RESULTS / 'claims.csv', papers.COLUMNS)


def test_the_pages_say_what_the_results_say(table):
    judged = claims.judge(papers.CLAIMS, table)
    assert list(judged) == papers.CLAIMS, 'all of them are simulated'
    text = claims.README.read_text(encoding='utf-8')
    assert claims.verdicts_of(judged) in text
    assert claims.figures_of(judged) in claims.PAGE.read_text(encoding='utf-8')
    assert len(re.findall(r'\| ({}) \|'.format('|'.join(papers.VERDICTS)), text)) == len(NAMES)


def test_results_are_of_claims(table):
    """Nothing is left of an experiment that has been changed."""
    asked = [pair for claim in papers.CLAIMS for pair in claims.asked_for(claim.sweeps)]
    rows = {id(table.row(*pair)) for pair in asked}
    assert rows == {id(row) for row in table.rows.values()} and len(rows) > 150


def test_columns_are_what_is_asked_for():
    asked = [flags for claim in papers.CLAIMS for _, flags in claims.asked_for(claim.sweeps)]
    assert {name for flags in asked for name in flags} == set(papers.COLUMNS)


@pytest.mark.parametrize('claim', papers.CLAIMS, ids=NAMES)
def test_pictures_are_where_they_belong(claim):
    name = claims.picture_of(claim)
    assert (claims.RESULTS / name).read_bytes().startswith(b'\x89PNG')
    for folder in claim.folders:
        text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
        assert f'(../Simulation/results/{name})' in text, folder
    first = (ROOT / claim.folders[0] / 'README.md').read_text(encoding='utf-8')
    assert f'    bash Simulation/run.sh --claims={claim.name}\n' in first


class Mistaken(claims.Found):
    """What would be found if some sweeps were as others are."""

    def __init__(self, sweeps, table, instead):
        """Takes what `claims.Found` does, and a dict of names of sweeps."""
        super().__init__(sweeps, table)
        self._instead = instead

    def mean(self, name, x, figure='accuracy'):
        other = self._instead.get(name, name)
        places = list(self.sweeps[other].at)
        return super().mean(other, x if x in places else places[-1], figure)


@pytest.mark.parametrize('claim, instead', [
    (papers.Staleness, {64: 16}),
    (papers.Stability, {'AGN': 'DOWNPOUR-Easy'}),
    (papers.Stability, {'10 workers': 'DOWNPOUR-Easy, a tenth'}),
    (papers.Heterogeneity, {'DynSGD': 'DynSGD, 1/N'}),
    (papers.Elastic, {'DOWNPOUR-Easy': 'AEASGD', 'AEASGD': 'DOWNPOUR-Easy',
                      'AEAMSGD': 'DOWNPOUR-Easy'}),
    # With a lambda of 0 it is HogWild.
    (papers.Delay, {'constant': 'HogWild', 'adaptive': 'HogWild'}),
    (papers.Bound, {name: f'{name}, no bound' for name in papers.Bound.sweeps
                    if 'no bound' not in name}),
    (papers.Backups, {'pareto:1ms:1.5': 'lognormal:2ms:0.1'}),
    (papers.Windows, {'Local-SGD': 'SAGN'}),
    (papers.Scaling, {'scaled': 'not scaled', 'scaled, warm-up': 'not scaled'})])
def test_a_verdict_can_be_another_one(claim, instead, table):
    """If a scheme were as another one is, less of its claim would hold."""
    verdict, seen = claim.judge(claims.Found(claim.sweeps, table))
    mistaken, other = claim.judge(Mistaken(claim.sweeps, table, instead))
    assert other != seen
    assert papers.VERDICTS.index(mistaken) > papers.VERDICTS.index(verdict)


class Pretended:
    """A scheme that is not simulated: its accuracy is its step size."""

    simulated = 0

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def simulate(self, asked):
        Pretended.simulated += 1
        return dict(dict.fromkeys(experiments.FIGURES, ''), accuracy=asked['learning_rate'])


class Small(papers.Claim):
    name = 'small'
    says = 'Larger is better.'
    paper = 'Nobody'
    folders = []
    sweeps = {'it': papers.sweep('AGN', papers.over('learning_rate', [.25, .5]), 3)}

    @staticmethod
    def judge(found):
        line = found.line('it')
        return papers.VERDICTS[0 if line[.5] > line[.25] else 2], f'{line[.25]} and {line[.5]}'

    @staticmethod
    def panels(found):
        return [papers.Panel('all', 'step size', 'test accuracy', {'it': found.line('it')}, False)]


def test_it_goes_on_from_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(papers, 'CLAIMS', [Small])
    monkeypatch.setattr(experiments, 'Scheme', Pretended)
    monkeypatch.setattr(Pretended, 'simulated', 0)
    before = claims.README.read_bytes(), claims.PAGE.read_bytes()
    csv = tmp_path / 'claims.csv'
    for expected in 6, 2, 0:
        claims.main(['--claims', f'--results_dir={tmp_path}'])
        assert capsys.readouterr().out == 'small: holds: 0.25 and 0.5\n'
        assert (tmp_path / 'claim-small.png').stat().st_size > 5000
        assert Pretended.simulated == expected
        Pretended.simulated = 0
        lines = csv.read_text(encoding='utf-8').splitlines(keepends=True)
        assert len(lines) == 7
        if expected == 6:
            csv.write_text(''.join(lines[:5]), encoding='utf-8')
    assert (claims.README.read_bytes(), claims.PAGE.read_bytes()) == before, (
        'only the results of the folder are told there')


@pytest.mark.parametrize('arguments, complaint', [
    (['--claims=delay,bounds'], 'there is no bounds; there are staleness, .*scaling'),
    (['--claims', '--draw', '--results_dir=none'], 'nothing to draw')])
def test_bad_input(arguments, complaint):
    run = subprocess.run(['bash', str(SIMULATION / 'run.sh'), *arguments], stderr=subprocess.PIPE,
                         env={'PYTHON': sys.executable, 'PATH': '/usr/bin:/bin'}, timeout=60,
                         universal_newlines=True, check=False)
    assert run.returncode == 1 and len(run.stderr.splitlines()) == 1, run.stderr
    assert re.search(complaint, run.stderr)


@pytest.mark.thorough
def test_a_row_is_simulated_again(table):
    """Times are the same on any machine; what is learned, nearly."""
    asked = papers.Stability.sweeps['10 workers'].asked(1, 1)
    with experiments.Scheme('DOWNPOUR-Easy') as scheme:
        again = scheme.simulate(asked)
    row = table.row('DOWNPOUR-Easy', asked)
    for figure in 'steps', 'seconds', 'staleness', 'staleness_max':
        assert float(again[figure]) == float(row[figure]), figure
    assert abs(again['accuracy'] - float(row['accuracy'])) < 0.02


def test_processes_share_the_simulations_of_a_scheme(tmp_path, monkeypatch):
    """If there are fewer schemes than processors; each simulation is made once."""
    started = []

    class Counted(Pretended):
        def __init__(self, name):
            started.append(name)
            super().__init__(name)

    monkeypatch.setattr(experiments, 'Scheme', Counted)
    for jobs, processes in (1, 1), (4, 4), (50, 6):
        table = experiments.Table(tmp_path / str(jobs) / 'claims.csv', papers.COLUMNS)
        claims.simulate([Small], table, jobs)
        assert len(table.rows) == 6 and started == ['AGN'] * processes
        started.clear()


def test_a_number_of_jobs_that_is_none(capsys):
    with pytest.raises(SystemExit):
        claims.main(['--claims', '--jobs=0'])
    assert capsys.readouterr().err.endswith('argument --jobs: 0 is no number from 1 on\n')
