"""The study: what it asks for, the search for the step size, going on, and what it says."""

import collections
import math
import re
import subprocess
import sys

import pytest

from conftest import ROOT
import experiments
import schemes
import study
import study_cases
import study_plots
import study_report


class Invented:
    """Stands for an `experiments.Scheme`: it answers at once, and counts what it was asked."""

    asked = collections.Counter()

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def simulate(self, asked):
        Invented.asked[self.name, tuple(sorted(asked.items()))] += 1
        return dict(dict.fromkeys(experiments.FIGURES, ''), **self.figures(asked))

    def figures(self, asked):
        """The best step size is 0.9 / N; more than 64 workers do not come to 95 %."""
        workers = int(asked['workers'])
        rate = float(asked.get('learning_rate') or asked.get('server_learning_rate'))
        best = 0.9 / workers
        far = max(rate / best, best / rate)
        return {'accuracy': 0.98 - 0.01 * far - 0.1 * (workers > 64), 'loss': far, 'diverged': 0,
                'examples': 320000, 'seconds': 20 / workers, 'wall_seconds': 2, 'megabytes': 300,
                'target_seconds': '' if workers > 64 else 8 / workers ** 0.5}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of results that were invented, of all that the study asks for."""
    monkeypatch.setattr(study, 'Quiet', Invented)
    Invented.asked.clear()
    made = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    study.simulate(made, schemes.folders())
    return made


def test_every_scheme_is_in_the_study():
    tuned = [name for members in study_report.FAMILIES.values() for name in members]
    found = [*tuned, *study_cases.ALIKE]
    assert sorted(found) == schemes.folders(), (
        'FAMILIES of Simulation/study_report.py has them by kind, ALIKE of study_cases.py those '
        'that make the updates of another one')
    assert set(study_cases.ALIKE.values()) <= set(tuned)


def test_what_is_asked_for():
    asked = study_cases.asked('AGN', 128, -2, 'sites', 'stragglers')
    assert asked == {'workers': '128', 'cluster': 'sites', 'learning_rate': '0.0111',
                     'step': ','.join(['2ms'] * 9 + ['10ms']), 'communication_window': '10',
                     'local_steps': '10000', 'tests': '100'}
    assert set(asked) <= set(study_cases.COLUMNS)
    assert study_cases.asked('DOWNPOUR', 1) == {
        'workers': '1', 'cluster': 'ethernet', 'server_learning_rate': '0.05',
        'local_steps': '10000', 'tests': '100'}
    assert 'communication_window' not in study_cases.asked('HogWild', 1)


def rows(accuracies, losses=None):
    """A function of an exponent that returns a row; and a list of what it was asked."""
    asked = []

    def measure(exponent):
        asked.append(exponent)
        value = accuracies.get(exponent, 0.1)
        return {'accuracy': str(value), 'diverged': str(int(value is None)),
                'loss': str((losses or {}).get(exponent, 1))} if value else {
                    'accuracy': '0.3', 'diverged': '1', 'loss': 'nan'}

    return measure, asked


@pytest.mark.parametrize('accuracies, losses, best, order', [
    ({0: .9, -1: .8, 1: .7}, {}, 0, [0, -1, 1]),
    ({0: .7, -1: .8, -2: .9, -3: .8, 1: .99}, {}, -2, [0, -1, -2, -3]),
    ({0: .9, -1: .8, 1: .92, 2: .91}, {}, 1, [0, -1, 1, 2]),
    ({0: .9, -1: .9, 1: .9}, {0: .2, -1: .1, -2: .3}, -1, [0, -1, -2]),
    ({0: .9, -1: .9, 1: .9}, {}, 0, [0, -1, 1]),
    ({0: .12, -1: .09, -2: .11, -3: .6, -4: .5}, {}, -3, [0, -1, -2, -3, -4]),
    ({0: None, -1: None, -2: .25, -3: .2}, {}, -2, [0, -1, -2, -3]),
    ({-9: .9}, {}, 0, [0, -1, -2, -3, -4, 1]),
    ({0: .1, 1: .5, 2: .6, 3: .4}, {}, 2, [0, -1, -2, -3, -4, 1, 2, 3]),
])
def test_the_search(accuracies, losses, best, order):
    measure, asked = rows(accuracies, losses)
    assert study_cases.search(measure, 0, study_cases._accurate) == best
    assert asked == order


def test_the_step_size_that_is_the_first_at_95_percent(tmp_path):
    """A larger one than the most accurate, if it is sooner there and stays there."""
    accuracies = {-2: .96, -1: .98, 0: .97, 1: .96, 2: .96, 3: .9}
    seconds = {-2: 9, -1: 5, 0: 4, 1: 2, 2: 3, 3: 1}

    class Quick(Invented):
        def figures(self, asked):
            exponent = round(math.log(float(asked['learning_rate']) / 0.1, 3))
            return {'accuracy': accuracies.get(exponent, .5) - .1 * (asked['workers'] == '4'),
                    'loss': 1, 'diverged': 0, 'target_seconds': seconds.get(exponent, 1)}

    made = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    one = study_cases.Study(made, Quick('HogWild'))
    assert (one.best(1), one.soonest(1)) == (-1, 1)
    assert one.best(4) == one.soonest(4) == -1, 'who does not come there has the most accurate'


def test_the_search_has_an_end():
    measure, asked = rows({exponent: .5 + .01 * exponent for exponent in range(-20, 20)})
    assert study_cases.search(measure, 6, study_cases._accurate) == study_cases.FARTHEST
    assert asked == [6, 5, 7, 8]


def test_it_searches_from_where_fewer_workers_ended(table):
    """The best step size, 0.9 / N, is never far from there."""
    one = study_cases.Study(table, study_cases.Absent('HogWild'))
    assert [one.best(workers) for workers in study_cases.NUMBERS] == [
        2, 1, 1, 0, -1, -1, -2, -2, -3, -4, -4]

    def tried(workers):
        """The exponents that were tried."""
        return [exponent for exponent in range(-9, 9) if ('HogWild', tuple(sorted(
            study_cases.asked('HogWild', workers, exponent).items()))) in Invented.asked]

    assert tried(256) == [-4, -3, -2], 'it begins with -2, that of 64'
    assert tried(512) == [-5, -4, -3], 'it begins with -3, that of 256'
    assert tried(1024) == [-5, -4, -3, 0], 'and the fixed one'


def test_it_goes_on(table, tmp_path):
    """What is in the table is not simulated again, and what was cut off is."""
    assert set(Invented.asked.values()) == {1}
    whole = len(Invented.asked)
    lines = (tmp_path / 'study.csv').read_text(encoding='utf-8').splitlines(keepends=True)
    assert len(lines) == whole + 1
    again = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    study.simulate(again, schemes.folders())
    assert sum(Invented.asked.values()) == whole
    (tmp_path / 'study.csv').write_text(''.join(lines[:-7]), encoding='utf-8')
    again = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    study.simulate(again, schemes.folders())
    assert sum(Invented.asked.values()) == whole + 7
    assert study_report.tables(again) == study_report.tables(table)


def test_some_schemes_only(tmp_path, monkeypatch):
    monkeypatch.setattr(study, 'Quiet', Invented)
    made = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    study.simulate(made, ['AGN', 'Work-Queue'])
    names = collections.Counter(row['scheme'] for row in made.rows.values())
    assert set(names) == {'AGN', 'Work-Queue'}
    assert names['Work-Queue'] == len(study_cases.FIXED), 'that is not tuned'
    parts = study_report.tables(made)
    assert 'Empty cells are not simulated yet' in parts['study'] and 'HogWild' in parts['study']
    assert not re.search(r'\bAGN\b', parts['study'])
    assert re.search(r'\[HogWild\]\S+( \| +)+\|', parts['best'])


def cells_of(markdown, scheme):
    """The cells of a scheme's line, the first such one."""
    line, *_ = re.findall(rf'^\| \[{scheme}\]\(../../{scheme}/\) \| (.*) \|$', markdown,
                          re.MULTILINE)
    return line.split(' | ')


def test_what_the_tables_say(table):
    parts = study_report.tables(table)
    assert cells_of(parts['fixed'], 'AGN') == ['0.890', '0.969', '0.944', '0.738', '-0.258']
    assert cells_of(parts['best'], 'AGN')[0] == '0.970'
    assert cells_of(parts['rates of best'], 'AGN')[:2] == ['0.9', '0.3']
    times = cells_of(parts['times on ethernet'], 'AGN')
    assert times[:3] == ['8', '5.66 (1.4)', '4 (2)']
    assert times[6:] == ['1 (8)', '–', '–', '–', '–']
    disturbed = cells_of(parts['disturbed'], 'AGN')
    assert disturbed[3:] == ['1', '1', '1', '32,000', '32,000', '32,000']
    times, accuracies = study_report.times_guide(table), study_report.accuracy_guide(table)
    assert '| ethernet | 64 | HogWild | 1 (8) | DC-ASGD, SSP, ' in times
    tuned = sum(map(len, study_report.FAMILIES.values()))
    assert f'| sites | 256 | none |  | none | 0 of {tuned} |' in times
    assert '| 4 | 0.969 | all |' in accuracies
    assert '| 256 | 0.869 | all but DOWNPOUR |' in accuracies
    assert '| 16 | 0.969 | Distributed-MNIST, DOWNPOUR, DiLoCo |' in accuracies, (
        'their grids are others')


def test_a_run_that_diverged():
    assert study_report.accuracy({'accuracy': '0.09', 'diverged': '1'}) == 'diverged'
    assert study_report.accuracy({'accuracy': '0.09', 'diverged': '0'}) == '0.090'
    assert study_report.accuracy(None) == ''


@pytest.mark.parametrize('picture', [study_plots.accuracy, study_plots.speed_up])
def test_pictures(picture, table):
    """Each scheme that is tuned has a line with points, in its family's panels."""
    figure = picture(table)
    panels = figure.axes
    assert len(panels) == 2 * len(study_report.FAMILIES)
    for line in range(2):
        for panel, members in zip(panels[4 * line:], study_report.FAMILIES.values()):
            drawn = {each.get_label(): each for each in panel.lines}
            assert set(members) <= set(drawn)
            assert all(len(drawn[name].get_xdata()) >= 5 for name in members)
    study_plots.plt.close(figure)


@pytest.mark.parametrize('name', ['AGN', 'Distributed-MNIST', 'Work-Queue'])
def test_the_picture_of_a_scheme(name, table):
    """Its own line is in colour and in front of those of all others; less is known of some."""
    figure = study_plots.of_scheme(table, name)
    panels, folders = figure.axes, len(schemes.folders())
    tuned = folders - len(study_cases.ALIKE)
    assert [len(panel.lines) for panel in panels] == (
        [folders] * 2 if name in study_cases.ALIKE else [folders] + [tuned] * 3)
    for panel in panels:
        *others, own = panel.lines
        assert own.get_label() == name and own.get_color() == study_plots.look_of(name)['color']
        assert {line.get_color() for line in others} == {study_plots.GREY}
        assert all(len(line.get_xdata()) >= 5 for line in panel.lines)
    one = study_cases.Study(table, study_cases.Absent(name))
    assert panels[0].lines[-1].get_ydata().tolist() == [
        float(one.row(workers)['accuracy']) for workers in study_cases.FIXED]
    if name not in study_cases.ALIKE:
        assert panels[3].lines[-1].get_ydata().tolist() == [
            float(one.soonest_row(workers, 'sites')['target_seconds'])
            for workers in study_cases.NUMBERS if workers <= 64]
    study_plots.plt.close(figure)


@pytest.mark.thorough
def test_pictures_of_nothing(tmp_path):
    study_plots.draw(experiments.Table(tmp_path / 'none.csv', study_cases.COLUMNS), tmp_path)
    assert {path.name for path in tmp_path.glob('*.png')} == {
        'study-accuracy.png', 'study-speed-up.png', *map(study_plots.picture_of,
                                                         schemes.folders())}


def test_the_readme_has_the_results(tmp_path):
    """And the page, and the pictures."""
    path = study.RESULTS / 'study.csv'
    made = experiments.Table(path, study_cases.COLUMNS)
    assert len(made.rows) > 80
    texts = [published.read_text(encoding='utf-8') for published in
             (study_report.README, study_report.PAGE)]
    copies = tmp_path / 'README.md', tmp_path / 'study.md'
    for copy, text in zip(copies, texts):
        copy.write_text(text, encoding='utf-8')
    study_report.publish(made, *copies)
    assert [copy.read_text(encoding='utf-8') for copy in copies] == texts, (
        '`make simulate ARGS="--study --draw"` mends this')
    for name in re.findall(r'results/study[\w-]*\.png', texts[0]):
        assert (study_report.README.parent / name).exists()


@pytest.mark.parametrize('name', schemes.folders())
def test_each_folder_shows_its_picture(name):
    """It is small, and stands in the section that says what is seen in it, and by what command."""
    picture = study_plots.picture_of(name)
    text = (ROOT / name / 'README.md').read_text(encoding='utf-8')
    section = text.partition('\n## With many workers\n')[2].partition('\n## ')[0]
    assert f'](../Simulation/results/{picture})\n' in section, (
        f'`make simulate ARGS="--study --only={name}"` draws it; `## With many workers` shows it')
    assert f'\n    bash Simulation/run.sh --study --only={name}\n' in section
    assert re.findall(r'results/(scheme-[\w-]+\.png)', text) == [picture]
    assert 0 < (study.RESULTS / picture).stat().st_size < 60000


def test_bad_input():
    done = subprocess.run(['bash', str(ROOT / 'Simulation' / 'run.sh'), '--study', '--only=Nobody'],
                          env={'PYTHON': sys.executable, 'PATH': '/usr/bin:/bin'}, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          universal_newlines=True)
    assert done.returncode
    line, = done.stdout.splitlines()
    assert line.startswith('--only=Nobody: there are AEAMSGD, ')


@pytest.mark.thorough
def test_real_simulations(tmp_path, monkeypatch):
    """Of a process of its own, short; the curves are not kept."""
    monkeypatch.setattr(study_cases, 'LENGTH', {'local_steps': '300', 'tests': '3'})
    monkeypatch.setattr(study_cases, 'FIXED', (1, 2))
    monkeypatch.setattr(study_cases, 'COARSE', (1, 4))
    monkeypatch.setattr(study_cases, 'SOME', 4)
    monkeypatch.setattr(study, 'COARSE', (1, 4))
    monkeypatch.setattr(study, 'BETWEEN', (2,))
    made = experiments.Table(tmp_path / 'study.csv', study_cases.COLUMNS)
    study.simulate(made, ['AGN'])
    found = study_cases.Study(made, study_cases.Absent('AGN'))
    assert float(found.best_row(1)['accuracy']) > 0.5
    assert not any(row['curve'] for row in made.rows.values())
    calm, late = (float(found.best_row(4, steps)['seconds'])
                  for steps in ('none', 'stragglers'))
    assert late != calm
