"""The study: what it asks for, the choice of step sizes, going on, and what it says."""

import collections
import math
import re
import shlex
import shutil
import subprocess
import sys
from unittest import mock

import pytest

from measuring.study import ERROR, LOST, reached, TARGET, worth
from conftest import ROOT
import experiments
import schemes
import study
import study_cases
from study_cases import Absent, case, DIGITS, NUMBERS, settle, SOME, Study
import study_plots
import study_figures
import study_report
from test_readme import prose


class Invented:
    """Stands for a `study.Simulator`: it answers at once, and counts what it was asked."""

    asked = collections.Counter()

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def simulate(self, asked):
        Invented.asked[self.name, tuple(sorted(asked.items()))] += 1
        return dict(dict.fromkeys(study_cases.FIGURES, ''), **figures(asked))


def figures(asked):
    """The best step size is 0.9 / N; more than 64 workers do not come to the target.

    The excess loss is inversely as the root of the local steps; seeds differ by 0.01.
    """
    workers, more = int(asked['workers']), 0.01 * (int(asked['seed']) - 1)
    rate = float(asked.get('learning_rate') or asked.get('server_learning_rate'))
    far = max(rate * workers / 0.9, 0.9 / workers / rate)
    seconds = 200 / workers
    found = {'diverged': 0, 'examples': 3276800, 'seconds': seconds, 'wall_seconds': 2,
             'megabytes': 300, 'staleness': workers - 1}
    if asked.get('model') != 'teacher':
        error = 0.01 * far + more * ('model' in asked)
        return dict(found, accuracy=1 - error, validation_accuracy=1 - error, validation_loss=far,
                    loss=far, error_curve=falling(error, seconds, asked))
    excess = 0.1 * far + 0.4 * (workers > 64) + more
    return dict(found, excess_loss=excess, validation_excess_loss=excess,
                excess_curve=falling(excess, seconds, asked))


def falling(last, seconds, asked):
    """Returns a curve that ends at a value, inversely as the root of the local steps."""
    return ' '.join(
        f'{int(asked["local_steps"]) * i * i / 256}:{seconds * i * i / 256}:{last * 16 / i}:'
        f'{last * 16 / i}' for i in range(1, 17))


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A table of results that were invented, of all that the study asks for; and its path."""
    path = tmp_path_factory.mktemp('study') / 'study.csv'
    Invented.asked.clear()
    with mock.patch.object(study, 'Simulator', Invented):
        made = study.open_table(path)
        study.simulate(made, study_cases.names(), jobs=1)
    return made, path, collections.Counter(Invented.asked)


@pytest.fixture
def table(whole):
    return whole[0]


def of(table, name):
    return Study(table, Absent(name))


def test_every_scheme_is_in_the_study():
    tuned = [name for members in study_figures.FAMILIES.values() for name in members]
    found = [*tuned, *study_cases.ALIKE]
    assert sorted(found) == sorted(study_cases.names()), (
        'FAMILIES of Simulation/study_figures.py has them by kind, ALIKE of study_cases.py those '
        'that make the updates of another one')
    assert set(study_cases.ALIKE.values()) <= set(tuned)


def test_what_is_asked_for():
    asked = of(None, 'Gossip (d-psgd)').asked(case(64), 2)
    assert (asked['algorithm'], asked['learning_rate']) == ('d-psgd', '0.9')
    assert 'communication_window' not in asked
    one = of(None, 'AGN')
    asked = one.asked(case(128, cluster='sites', step='2ms,10ms'), -2, seed='3')
    assert asked == {'model': 'teacher', 'workers': '128', 'cluster': 'sites',
                     'learning_rate': '0.0111', 'step': '2ms,10ms', 'communication_window': '10',
                     'local_steps': '102400', 'tests': '16', 'validation': 'true', 'seed': '3'}
    assert of(None, 'DOWNPOUR').asked(case(1, DIGITS)) == {
        'workers': '1', 'cluster': 'ethernet', 'server_learning_rate': '0.05',
        'local_steps': '10000', 'tests': '16', 'validation': 'true', 'seed': '1'}
    assert one.asked(study_cases.of_window(500, '0.5'))['communication_window'] == '500'
    compared = study_cases.of_momentum(8, '0.1')
    ball = of(None, 'DiLoCo').asked(compared['momentum'][1])
    assert (ball['learning_rate'], ball['outer_momentum'], ball['workers']) == (
        '0.0125', '0.875', '1')
    assert {each['learning_rate'] for each in (compared['plain'][1], compared[
        'asynchronous'][1])} == {'0.1'}


@pytest.mark.parametrize('losses, there, best, order', [
    ({0: 1, -1: 2, 1: 3}, [], 0, [0, -1, 1]),
    ({0: 3, -1: 2, -2: 1, -3: 2, 1: 4}, [], -2, [0, -1, -2, -3]),
    ({0: 3, -1: 4, 1: 2, 2: 1, 3: 5}, [], 2, [0, -1, 1, 2, 3]),
    ({0: math.inf, -1: math.inf, -2: 1, -3: 2}, [], -2, [0, -1, -2, -3]),
    # What is there already counts, even if the search would not come there.
    ({0: 2, -1: 3, 1: 3, 4: 1, 3: 5, 5: 6}, [0, 4], 4, [3, 5]),
    ({0: 1, -1: 2, 1: 3}, [-1, 0, 1], 0, []),
])
def test_the_search_goes_on_until_both_neighbours_of_the_best_are_there(losses, there, best, order):
    asked = []

    def measure(exponent):
        asked.append(exponent)
        return losses[exponent], 0.

    assert settle({exponent: (losses[exponent], 0.) for exponent in there}, measure, 0) == best
    assert asked == order


def test_the_search_has_an_end():
    assert settle({}, lambda exponent: (-exponent, 0.), 6) == study_cases.FARTHEST
    assert settle({}, lambda exponent: LOST, 0) == -study_cases.FARTHEST


def a_row(tests, diverged=0, validation=None):
    """Returns a row whose excess loss was tested, pairs of local steps and the loss."""
    return {'diverged': str(diverged), 'validation_excess_loss': str(tests[-1][1]),
            'excess_curve': ' '.join(f'{steps}:{steps / 100}:{loss}:{validation or loss}'
                                     for steps, loss in tests)}


def test_when_an_excess_loss_was_reached():
    """On a straight line of logarithms: here the loss falls with the root of the steps."""
    falling = [(100, 2.), (400, 1.), (1600, .5)]
    assert reached(a_row(falling), 2 ** -.5) == pytest.approx((800, 8))
    assert reached(a_row(falling), 2.) == (100, 1), 'the first test has it'
    assert reached(a_row(falling), .4) is None
    assert reached(a_row([*falling, (2000, .8)]), .5) is None, 'it has to stay there'
    assert reached(a_row(falling, diverged=1), .5) is None
    assert reached(a_row([(100, math.inf), (400, .5)]), .6) == (400, 4)
    assert reached(a_row(falling, validation=.1), .4, half=1) == (100, 1)
    assert reached(a_row([(100, .8), (400, .4)])) == (400, 4), 'an excess loss of 0.4'


def test_when_a_share_of_wrong_answers_was_reached():
    row = {'diverged': '0', 'excess_curve': '', 'error_curve': '100:1:0.4:0.1 1600:16:0.025:0'}
    assert reached(row) == pytest.approx((400, 4)), 'a tenth'
    assert reached(row, half=1) == (100, 1)
    assert reached(row, .05, half=1) == (1600, 16), 'none is wrong there: that has no logarithm'


def test_what_is_worth_more():
    digits = {'diverged': '0', 'validation_excess_loss': '', 'validation_loss': '0.5'}
    rows = [a_row([(1, .2)]), a_row([(1, .3)]), a_row([(1, math.nan)]), a_row([(1, .1)], 1)]
    assert [worth(row) for row in rows] == [(.2, 0), (.3, 0), LOST, LOST]
    assert [worth(dict(digits, validation_accuracy=value)) for value in ('0.9', '0.1')] == [
        (-.9, .5), LOST]


def test_the_step_size_that_is_the_first_at_the_target(tmp_path):
    """On the half to choose by, of those that are there; without any, the best one."""
    class Quick(Invented):
        def simulate(self, asked):
            exponent = round(math.log(float(asked['learning_rate']) / 0.1, 3))
            final = {-1: .15, 0: .1, 1: .2, 2: .5}[exponent] + (asked['workers'] == '256')
            return dict(super().simulate(asked), validation_excess_loss=final, excess_curve=(
                f'100:{10 - exponent}:0.29:0.29 200:20:{final}:{final}'))

    one = Study(study.open_table(tmp_path / 'study.csv'), Quick('AGN'))
    assert (one.best(case(64), 0), one.soonest(case(64))) == (0, 1)
    assert (one.best(case(256), 0), one.soonest(case(256))) == (0, 0)


def test_it_searches_from_where_its_neighbour_ended(table):
    """The best step size, 0.9 / N, is never far from there."""
    one = of(table, 'HogWild')
    assert [one.best(case(workers)) for workers in NUMBERS] == [0, -2, -3, -4]
    assert sorted(one.there(case(64))) == [-3, -2, -1]
    assert sorted(one.there(case(256))) == [-4, -3, -2], 'it begins with -2, that of 64'
    assert sorted(one.there(case(8))) == [-3, -2, -1, 0, 1]
    assert len(one.seeds(case(64), -2)) == 3 and len(one.seeds(case(64), -1)) == 1


def test_it_goes_on(whole, tmp_path):
    """What is in the table is not simulated again, and what was cut off is."""
    made, path, asked = whole
    assert set(asked.values()) == {1}
    number = len(asked)
    lines = path.read_text(encoding='utf-8').splitlines(keepends=True)
    assert len(lines) == number + 1
    cut = tmp_path / 'study.csv'
    cut.write_text(''.join(lines[:-7]), encoding='utf-8')
    again = study.open_table(cut)
    with mock.patch.object(study, 'Simulator', Invented):
        study.simulate(again, study_cases.names(), jobs=1)
    assert len(cut.read_text(encoding='utf-8').splitlines()) == number + 1
    assert study_report.tables(again) == study_report.tables(made)


def test_some_schemes_only(tmp_path, capsys):
    made = study.open_table(tmp_path / 'study.csv')
    with mock.patch.object(study, 'Simulator', Invented):
        study.simulate(made, ['DiLoCo', 'Work-Queue'], jobs=1)
    said = capsys.readouterr().out
    assert 'study: Work-Queue: alike has to wait for HogWild\n' in said
    assert 'study: DiLoCo: momentum has to wait for HogWild\n' in said
    assert 'study: DiLoCo: again is done\n' in said
    assert {row['scheme'] for row in made.rows.values()} == {'DiLoCo'}
    parts = study_report.tables(made)
    assert '*momentum* of DiLoCo, HogWild' in ' '.join(parts['study'].split())
    assert study_report.NOT_YET in parts['least excess']
    assert re.search(r'\[HogWild\]\S+( \| +)+\|', parts['least excess'])


def cells_of(markdown, scheme):
    """The cells of a scheme's line, the first such one."""
    line, *_ = re.findall(rf'^\| \[{scheme}\]\(../../{scheme}/\) \| (.*) \|$', markdown,
                          re.MULTILINE)
    return line.split(' | ')


def test_what_the_tables_say(table):
    parts = study_report.tables(table)
    assert 'All of it has been simulated.' in parts['study']
    assert study_report.NOT_YET not in ''.join(parts.values())
    # 0.1 is 1.125 times below 0.9 / 8, the best one; the seeds have 0, 0.01 and 0.02 more.
    assert re.fullmatch(r'0\.12[23] ± 0\.010', cells_of(parts['least excess'], 'HogWild')[0])
    assert cells_of(parts['rates'], 'HogWild') == ['0.1', '0.0111', '0.0037', '0.00123']
    of_seeds = [200 / 8 * ((.1125 + more) / TARGET) ** 2 for more in (0, .01, .02)]
    of_one = [200 * ((.1 + more) / TARGET) ** 2 for more in (0, .01, .02)]
    assert cells_of(parts['times'], 'HogWild')[0] == (
        f'{sum(of_seeds) / 3:.3g} ({sum(of_one) / sum(of_seeds):.2g})')
    assert cells_of(parts['times'], 'HogWild')[2:] == ['–', '–']
    assert [cells_of(parts['digits'], name)[1].split()[0]
            for name in ('Work-Queue', 'HogWild')] == [
        '0.989'] * 2
    assert ' '.join(parts['alike'].split()).endswith('or on other examples: none.')
    # 0.1 is the nearest to 0.9 / 8; a tenth of the answers is wrong after 0.0112 ** 2 / 0.01.
    accuracy, soonest = [cells_of(parts['mnist'], 'HogWild')[at] for at in (1, 4)]
    assert accuracy == '0.979 ± 0.010'
    of_seeds, of_one = [[200 / n * ((of_best + more) / ERROR) ** 2 for more in (0, .01, .02)]
                        for n, of_best in ((8, .01125), (1, .01))]
    assert soonest == f'{sum(of_seeds) / 3:.3g} ({sum(of_one) / sum(of_seeds):.2g})'
    assert len(cells_of(parts['disturbed'], 'AGN')) == 9
    assert cells_of(parts['unequal'], 'AGN')[2] == '1.00'
    assert '| [HogWild](../../HogWild/) | `--torn=0.5` | 131,072 | 255 |' in parts['ceilings']
    assert parts['momentum'].count('\n| 8 | 0.1 | 7 |') == 1
    assert '| 500 |' in parts['windows']


def test_the_guides(table):
    excess, times = study_report.excess_guide(table), study_report.times_guide(table)
    tuned = sum(map(len, study_figures.FAMILIES.values()))
    far = tuned - len(study_cases.WITHOUT_CENTER)
    assert re.search(rf'^\| 8 \| 0\.\d+( ± 0\.010)? \| .* \| {tuned} \|$', excess, re.MULTILINE)
    assert f'| sites | 256 | none |  | none | 0 of {far} |' in times
    assert re.search(rf'^\| ethernet \| 64 \| .* \| {tuned} of {tuned} \|$', times, re.MULTILINE)
    empty = experiments.Table(ROOT / 'no such file', study_cases.COLUMNS)
    assert study_report.times_guide(empty) == 'Nothing has been simulated yet.'


def test_the_critical_batch():
    """Found again where N workers need 1,000 (1 + N / 50) steps; not in a line that falls."""
    workers = 1, 8, 64, 256
    found = study_figures.critical({n: 1000 * (1 + n / 50) for n in workers})
    assert found == pytest.approx((1000, 50))
    assert study_figures.critical({n: 1000 - n for n in workers}) is None
    assert study_figures.critical({1: 1000, 8: 1100}) is None


def test_a_cell_is_repeated_by_one_command(table):
    """The command has all flags of the row, and no other one."""
    rows = [row for row in table.rows.values() if row.get('step')]
    words = shlex.split(study_report.command(rows[0]))
    assert words[:2] == ['bash', 'Simulation/run.sh']
    flags = dict(word[2:].split('=', 1) for word in words[2:])
    assert flags == {name: rows[0][name] for name in ['scheme', *study_cases.COLUMNS]
                     if rows[0].get(name)}
    lines = study.commands(table, 'AGN,64')
    assert len(lines) == len(set(lines)) > 10
    assert all(re.fullmatch(r'bash \S+ --scheme=AGN (--\S+ )+ # (excess loss|accuracy) \S+', line)
               for line in lines)
    assert study.commands(table, 'AGN,65') == []
    assert len(study.commands(table, 'AGN')) > len(lines)
    for name, part in study_report.tables(table).items():
        for command in re.findall(r'^    bash .*(?:\\\n.*)*', part, re.MULTILINE):
            assert '--scheme=' in command, name
            assert all(len(line) <= 100 for line in command.splitlines())


def test_workers_without_a_center(table):
    """They are in some stages, in the tables of these, and by their folder in commands."""
    assert study_cases.has_stage('Gossip', 'unequal') and not study_cases.has_stage('Gossip', 'far')
    parts = study_report.tables(table)
    line = '| [Gossip (d-psgd)](../../Gossip/) | 0.1'
    assert line in parts['least excess'] and '(d-psgd)' not in parts['times at sites']
    assert 'Gossip (d-psgd)' in study_report.excess_guide(table)
    commands = [line for line in study.commands(table, 'Gossip,64') if 'd-psgd' in line]
    assert commands and all('--scheme=Gossip --' in line and '--algorithm=d-psgd ' in line
                            for line in commands)
    with mock.patch.object(experiments, 'Scheme') as made:
        study.Simulator('Gossip (d-psgd)').simulate({'model': 'teacher'})
    made.assert_called_once_with('Gossip', '--model=teacher')


def test_a_table_of_an_older_program(tmp_path):
    """It has fewer columns: they are added before anything is written."""
    path = tmp_path / 'study.csv'
    path.write_text('scheme,workers,seed,loss\nAGN,8,1,0.5\n', encoding='utf-8')
    made = experiments.Table(path, ['workers', 'seed', 'roles'], ['loss', 'seconds'])
    assert made.row('AGN', {'workers': '8', 'seed': '1'})['loss'] == '0.5'
    for seed in '2', '3':
        scheme = mock.Mock(simulate=lambda asked: {'loss': 0.25, 'seconds': 3})
        scheme.name = 'AGN'
        made.simulate(scheme, {'workers': '8', 'seed': seed})
    assert path.read_text(encoding='utf-8').splitlines() == [
        'scheme,workers,seed,roles,loss,seconds', 'AGN,8,1,,0.5,', 'AGN,8,2,,0.25,3',
        'AGN,8,3,,0.25,3']


def test_rows_that_diverged():
    rows = [{'diverged': '1', 'excess_loss': 'nan'}, {'diverged': '0', 'excess_loss': '0.2'}]
    assert study_report.cell(rows) == 'diverged'
    assert study_report.cell(rows[1:]) == '0.200'
    assert study_report.cell([]) == ''


@pytest.mark.parametrize('name', sorted(study_plots.PICTURES))
def test_pictures(name, table):
    """Each scheme that is tuned has a line with points, in its family's panels."""
    figure = study_plots.PICTURES[name](table)
    drawn = [text for panel in figure.axes for text in panel.get_legend_handles_labels()[1]]
    if name == 'study-windows.png':
        assert drawn.count('Local-SGD, unequal data') == 2
    else:
        tuned = {each for members in study_figures.FAMILIES.values() for each in members}
        assert tuned <= set(drawn)
    study_plots.plt.close(figure)


@pytest.mark.parametrize('name', ['AGN', 'Work-Queue'])
def test_the_picture_of_a_scheme(name, table):
    """Its own line is in colour and in front of those of all others; less is known of some."""
    figure = study_plots.of_scheme(table, name)
    panels = figure.axes
    assert len(panels) == (2 if name in study_cases.ALIKE else 4)
    for panel in panels:
        *others, own = panel.containers
        assert own.get_label() == name and len(others) >= 14
        assert own.lines[0].get_color() == study_plots.look_of(name)['color']
        assert {line.lines[0].get_color() for line in others} == {study_plots.GREY}
    study_plots.plt.close(figure)


@pytest.mark.thorough
def test_all_pictures(table, tmp_path):
    """Those of a study of which nothing is there stay as they are."""
    study_plots.draw(study.open_table(tmp_path / 'none.csv'), tmp_path)
    assert list(tmp_path.glob('*.png')) == []
    study_plots.draw(table, tmp_path)
    assert {path.name for path in tmp_path.glob('*.png')} == {
        *study_plots.PICTURES, *map(study_plots.picture_of, schemes.folders())}


def copied(directory):
    """Copies what the study writes into; returns the texts, a dict by path in the collection."""
    paths = [study_report.README, study_report.PAGE,
             *(ROOT / name / 'README.md' for name in schemes.folders())]
    for path in paths:
        copy = directory / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(path), str(copy))
    return {path.relative_to(ROOT): path.read_text(encoding='utf-8') for path in paths}


def publish(table, directory):
    """Writes a study into such copies; returns their texts."""
    study_report.publish(table, *(directory / path.relative_to(ROOT)
                                  for path in (study_report.README, study_report.PAGE)), directory)
    return {path.relative_to(directory): path.read_text(encoding='utf-8')
            for path in directory.glob('**/*.md')}


def test_the_readmes_have_the_results(tmp_path):
    """And the page, and the pictures."""
    texts = copied(tmp_path)
    assert publish(study.open_table(study.RESULTS / 'study.csv'), tmp_path) == texts, (
        '`make simulate ARGS="--study --draw"` mends this')
    for name in re.findall(r'\(results/([\w-]+\.(?:png|md|csv))\)',
                           study_report.README.read_text(encoding='utf-8')):
        assert (study.RESULTS / name).exists(), name


def test_the_conclusions_hold():
    """Their words say which of the figures are larger."""
    table = study.open_table(study.RESULTS / 'study.csv')
    (alone,), losses, far, rates, unequal, on_mnist = [values for _, values in
                                                       study_report.findings(table)]
    assert study_report.conclusions(table).count('\n- ') == 5
    *some, (with_most, _) = [study_figures.arrivals(table, workers)
                             for workers in study_cases.NUMBERS]
    times = [found[0][0] for found, _ in some]
    assert times[1] < min(times[0], times[2]) and max(times) < alone and with_most == []
    synchronous, local, with_momentum = losses
    assert local > 1.2 * synchronous and with_momentum < synchronous
    assert min(far[:2]) > alone > max(far[2:])
    assert rates[0] < 0.6 * rates[1] and rates[2] > 0.99 * rates[3]
    assert unequal[1] > 1.2 > max(unequal[0], unequal[2])
    one, diloco, local, synchronous, hogwild, *of_most = on_mnist
    assert diloco < local < one < min(synchronous, hogwild)
    assert of_most[0] > 2 * diloco and of_most[1] > 2 * local and of_most[1] > one


def test_a_whole_study_is_told(table, tmp_path):
    """Tables and pictures, in each README; of a scheme that is not there nothing changes."""
    copied(tmp_path)
    texts = publish(table, tmp_path)
    main = next(text for path, text in texts.items() if path.parent.name == 'Simulation')
    shown = re.findall(r'results/(study[\w-]*\.png)', main)
    assert sorted(shown) == sorted(study_plots.PICTURES)
    assert '{' not in main.partition('<!-- study begins -->')[2].partition('<!-- study ends')[0]
    for path, text in texts.items():
        name = path.parent.name
        section = text.partition('<!-- study begins -->')[2].partition('<!-- study ends -->')[0]
        if name in schemes.folders():
            assert f'](../Simulation/results/{study_plots.picture_of(name)})\n' in section
            assert '| 8 | ' in section
            assert len(prose(tmp_path / path)) <= 1000
    one = study.open_table(tmp_path / 'one.csv')
    one.rows = {key: row for key, row in table.rows.items() if row['scheme'] == 'AGN'}
    before = copied(tmp_path)
    after = publish(one, tmp_path)
    changed = {path.parent.name for path, text in before.items() if after[path] != text}
    assert changed - {'Simulation', 'results'} <= {'AGN'}


@pytest.mark.parametrize('name', schemes.folders())
def test_each_folder_shows_its_picture(name):
    """It is small, and stands in the section that says what is seen in it, and by what command."""
    picture = study_plots.picture_of(name)
    text = (ROOT / name / 'README.md').read_text(encoding='utf-8')
    section = text.partition('\n## With many workers\n')[2].partition('\n## ')[0]
    assert f'](../Simulation/results/{picture})\n' in section, (
        f'`make simulate ARGS="--study --only={name}"` draws it; `## With many workers` shows it')
    assert f'\n    bash Simulation/run.sh --study --only={name}\n' in section
    assert '<!-- study begins -->' in section
    assert re.findall(r'results/(scheme-[\w-]+\.png)', text) == [picture]
    assert 0 < (study.RESULTS / picture).stat().st_size < 60000


@pytest.mark.parametrize('flag, said', [
    ('--only=Nobody', '--only=Nobody: there are AEAMSGD, '),
    ('--print=Nobody', '--print=Nobody: the study has no such simulation.')])
def test_bad_input(flag, said):
    done = subprocess.run(['bash', str(ROOT / 'Simulation' / 'run.sh'), '--study', flag],
                          env={'PYTHON': sys.executable, 'PATH': '/usr/bin:/bin'}, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          universal_newlines=True)
    assert done.returncode
    line, = done.stdout.splitlines()
    assert line.startswith(said)


@pytest.mark.thorough
def test_real_simulations_and_their_commands(tmp_path):
    """Of processes of their own, short; the printed command gives the same figures again."""
    short = {'local_steps': '640', 'teacher_test_examples': '1000'}
    columns = [*study_cases.COLUMNS, 'teacher_test_examples']
    with mock.patch.object(study_cases, 'COLUMNS', columns), study.Simulator('AGN') as simulator:
        made = study.open_table(tmp_path / 'study.csv')
        one = Study(made, simulator)
        row = one.row(case(4, **short), 1)
        assert 0.3 < float(row['excess_loss']) < 1.6 and row['excess_loss'] != row[
            'validation_excess_loss']
        words = shlex.split(study_report.command(row))
        digits = one.row(case(4, DIGITS, local_steps='640'))
    assert float(digits['accuracy']) > 0.5 and not digits['excess_curve']
    *_, error, _ = map(float, digits['error_curve'].split()[-1].split(':'))
    assert error == pytest.approx(1 - float(digits['accuracy']), abs=1e-4)
    done = subprocess.run(words, cwd=str(ROOT), check=True, stdout=subprocess.PIPE, timeout=120,
                          env={'PYTHON': sys.executable, 'PATH': '/usr/bin:/bin'},
                          universal_newlines=True)
    assert f'test excess loss {float(row["excess_loss"]):.3f}' in done.stdout
    assert f'validation excess loss {float(row["validation_excess_loss"]):.3f}' in done.stdout


def test_how_many_it_begins_with():
    assert SOME in NUMBERS and SOME in study_cases.OF_IMAGES
