"""The validation of the simulation: its tables are of its file, and what it measures is known."""

import json
import statistics
import types

import pytest

from measuring.results import read

from clock import Clock
import description
import experiments
import naive
from processors import Processors
from test_simulation import toy  # noqa: F401
import validate
import validate_cases
import validate_report as report
from validate_cases import Case


def row(kind='real', **figures):
    """Returns a row of the file: HogWild with one worker, unless told otherwise."""
    figures = dict(dict(kind=kind, scheme='HogWild', backups=0, workers=1, window=1,
                        machine='2 cores'), **figures)
    return {name: str(figures.get(name, '')) for name in validate.COLUMNS}


def case(**fields):
    """Returns a case of the file, a dict of strings."""
    return {name: value for name, value in row(**fields).items() if name in validate_cases.FIELDS}


# By hand: a local step takes 0.1 ms; HogWild 1 ms besides, and processors 1.5 ms in that.
ROWS = [row(run_s=0.0011, work_s=0.0016, deviation_s=0.0001, steps_per_s=900),
        row(scheme='AGN', window=10, work_s=0.003, run_s=0.0025, deviation_s=0),
        row(scheme='AGN', window=50, work_s=0.007),
        row(scheme='Ring-AllReduce', run_s=0.0004, deviation_s=0, work_s=0.0004),
        row(scheme='Ring-AllReduce', workers=2, run_s=0.0014, work_s=0.0013),
        row(scheme='Ring-AllReduce', workers=3, run_s=0.0025, work_s=0.0019)]
# The large model: a local step takes 5 ms, and HogWild 10 ms besides.
LARGE = [row(model='mnist', run_s=0.015, work_s=0.02, deviation_s=0),
         row(scheme='AGN', window=10, model='mnist', work_s=0.06),
         row(scheme='AGN', window=50, model='mnist', work_s=0.26)]


def test_the_tables_are_those_of_the_file(tmp_path, monkeypatch):
    texts = {}
    for name in 'README', 'PAGE':
        published = getattr(report, name)
        texts[tmp_path / name] = published.read_text(encoding='utf-8')
        (tmp_path / name).write_text(texts[tmp_path / name], encoding='utf-8')
        monkeypatch.setattr(report, name, tmp_path / name)
    monkeypatch.setattr(report, 'PICTURE', tmp_path / 'validation.png')
    report.publish(validate.read(validate.RESULTS / 'validation.csv'))
    assert {path: path.read_text(encoding='utf-8') for path in texts} == texts


def test_the_preset_is_that_of_the_file(tmp_path, monkeypatch):
    committed = json.loads((validate.PRESETS / 'this-machine.json').read_text(encoding='utf-8'))
    rows = validate.read(validate.RESULTS / 'validation.csv')
    monkeypatch.setattr(validate.os, 'cpu_count', lambda: int(rows[0]['machine'].split()[0]))
    validate.write_preset(rows, tmp_path)
    mine = tmp_path / 'this-machine.json'
    assert json.loads(mine.read_text(encoding='utf-8')) == committed
    assert description.Cluster(str(mine)).cores == committed['cores']


def test_costs():
    costs = validate.costs_of('HogWild', ROWS)
    assert costs == pytest.approx((0.0001, 0.001, 0.0015, 0, 0, 0.0001))
    # Two hops work 0.6 ms, as the third worker's show: so of 1 ms they take two thirds.
    costs = validate.costs_of('Ring-AllReduce', ROWS)
    assert costs == pytest.approx((0.0004, 0.001 / 3, 0.0003, 0.001 / 3, 0.0003, 0))
    # The large model has costs of its own, and with links nothing is measured.
    rows = ROWS + LARGE + [row(model='mnist', mbit=100, run_s=1, work_s=1)]
    costs = validate.costs_of('HogWild', rows, 'mnist')
    assert costs == pytest.approx((0.005, 0.01, 0.015, 0, 0, 0))
    said = validate.description_of(validate.Costs(0.0001, 0.001, 0.0015, 0., 0., 0.0001), 1)
    assert said['step'] == 'lognormal:0.1ms:0.833' and said['exchange'] == '1ms'
    assert set(said) <= set(description.KEYS)


def test_a_ring_costs_nothing_where_a_local_step_is_lost_in_the_noise():
    """As that of a ResNet, which two workers may make in less time than was measured for one."""
    assert validate.costs_of_ring(0.056, 0.044, 0.110, 0.112) == pytest.approx((0, 0.052, 0, 0.001))


def test_what_is_asked_of_the_simulation():
    """The flags of the real run, costs of one worker, and the links."""
    asked = validate.asked(Case('HogWild', 0, 4, 1, 0, 160, 'mnist', '', 1000, ''), LARGE)
    assert asked['bandwidth'] == asked['ps_bandwidth'] == '1000Mbit' and 'latency' not in asked
    assert asked['links'] == 'shared'
    assert asked['exchange'] == '10ms' and asked['train_steps'] == '160' and 'model' not in asked
    asked = validate.asked(Case('HogWild', 0, 2, 1, 0, 1000, '', '', '', 1), ROWS)
    assert asked['latency'] == '0.5ms' and asked['workers'] == '2'
    assert 'bandwidth' not in asked and 'links' not in asked
    asked = validate.asked(Case('HogWild', 0, 2, 1, 0, 600, '', 50, '', ''), ROWS)
    assert asked['straggler'] == '0:0.05,1:0.05' and asked['exchange'] == '1ms'


@pytest.mark.thorough
def test_shared_links_are_nearer_to_real_runs_than_turns(monkeypatch):
    """Of the cases with a rate: by how much steps/s are off, in the median and at most."""
    path = validate.RESULTS / 'validation.csv'
    monkeypatch.setattr(validate, 'machine', lambda: read(path)[0]['machine'])
    results, errors = validate.Results(path), {'shared': [], 'turns': []}
    for case in [case for case in results.to_simulate() if case.mbit]:
        its = {name: str(getattr(case, name)) for name in validate.FIELDS}
        real = statistics.median(float(row['steps_per_s']) for row in results.rows
                                 if its.items() <= row.items())
        with experiments.Scheme(case.scheme, f'--model={case.model}') as process:
            for way, off in errors.items():
                found = process.simulate(dict(validate.asked(case, results.rows), links=way))
                off.append(abs(experiments.local_steps_per_second(found) / real - 1))
    assert len(errors['turns']) == 12
    off = {way: (statistics.median(each), max(each)) for way, each in errors.items()}
    assert off['shared'] == pytest.approx((0.04, 0.18), abs=0.01)
    assert off['turns'] == pytest.approx((0.15, 0.47), abs=0.01)


def test_where_a_case_is_run(monkeypatch):
    made = []

    class Hosts:
        def __init__(self, directory, names, **how):
            made.append((names, how))

        def __enter__(self):
            return types.SimpleNamespace(python=lambda: 'a python')

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(validate.hosts, 'Hosts', Hosts)
    with validate.where(Case('HogWild', 0, 2, 1, 0, 600, '', 50, '', '')) as env:
        assert env == {'WORKERS': '2'} and not made
    with validate.where(Case('HogWild', 0, 2, 1, 0, 50, 'mnist', '', 100, '')) as env:
        assert env == {'WORKERS': '2', 'PYTHON': 'a python'}
    with validate.where(Case('AGN', 0, 1, 10, 0, 50, '', '', '', 10)):
        pass
    assert made == [(['ps-0', 'worker-0', 'worker-1'], {'round_trip': None, 'gigabits': 0.1}),
                    (['ps-0', 'worker-0'], {'round_trip': 0.01, 'gigabits': None})]


def test_the_naive_model():
    """In ms, by hand; the parameters of the large model take 2,592,040 bytes."""
    def steps(**fields):
        return naive.steps_per_second(ROWS + LARGE, case(**fields))

    assert steps(workers=1) == pytest.approx(1 / 0.0011)
    assert steps(workers=8) == pytest.approx(2 / 0.0016)  # two processors are busy
    assert steps(scheme='AGN', window=10, workers=8) == pytest.approx(2 * 10 / 0.003)
    assert steps(workers=16, sleep=50) == pytest.approx(16 / 0.0511)
    assert steps(scheme='AGN', window=10, workers=2, sleep=50) == pytest.approx(20 / 0.5025)
    assert steps(workers=2, round_trip=10) == pytest.approx(2 / 0.0211)
    way = 2592040 * 8 / 1e8  # seconds at 100 Mbit/s
    assert steps(model='mnist', workers=1, mbit=100) == pytest.approx(1 / (0.015 + 2 * way))
    assert steps(model='mnist', workers=8, mbit=100) == pytest.approx(1 / way)
    # A ring of four has six hops: a run takes 0.4 + 3 ms, and processors 1.3 + 1.2 ms for each.
    ring = dict(scheme='Ring-AllReduce', workers=4)
    assert steps(**ring) == pytest.approx(2 / 0.0025)
    assert steps(**ring, round_trip=10) == pytest.approx(4 / 0.0734)
    assert steps(**dict(ring, workers=1)) == pytest.approx(1 / 0.0004)


def test_what_a_run_measures():
    """Two workers, one run each 10 ms, with 6 ms of processors in it; the start does not count."""
    notes = [{'began': 0, 'times': [0.01 * i + late for i in range(1, 200)]} for late in (0, 0.005)]
    work = [(0.1 * i, 5 * (i > 0) + 0.12 * i) for i in range(20)]  # 5 s of it to start
    found = validate.measured(notes, work)
    assert found['run_s'] == pytest.approx(0.01, rel=0.02)
    assert found['work_s'] == pytest.approx(0.006, rel=0.05)
    assert found['deviation_s'] == pytest.approx(0, abs=1e-9)
    assert validate.measured(notes, work[:1])['work_s'] == ''


def test_what_is_near():
    assert report.is_near('steps_per_s', 1000, 1190)
    assert not report.is_near('steps_per_s', 1000, 790)
    assert report.is_near('staleness', 0.4, 0.49) and not report.is_near('staleness', 2, 2.5)
    assert not report.is_near('accuracy', 0.98, 0.965)


FOUND = [*ROWS, *LARGE,
         row('simulated', steps_per_s=900, accuracy=0.98),  # what was fitted
         row(workers=2, steps_per_s=1000, staleness=0.5, accuracy=0.98),
         row(workers=2, steps_per_s=1100, staleness=0.5, accuracy=0.98),
         row('simulated', workers=2, steps_per_s=1300, staleness=0.55, accuracy=0.982),
         row(workers=8, sleep=50, steps_per_s=100, accuracy=0.5),
         row('simulated', workers=8, sleep=50, steps_per_s=90, accuracy=0.55)]


def test_the_tables_say_what_is_off():
    found = report.compared(FOUND)
    assert report.figures(found, 'here').splitlines()[2:] == [
        '| HogWild | 1 | 900 | (900) | (909) |  |  |  |  |  |  |',
        '| HogWild | 2 | 1050 | **1300** | 1250 | 0.50 | 0.55 | 0.980 | 0.982 |  |  |']
    # Eight that sleep for 50 ms make 8 / 0.0511.
    assert report.figures(found, 'sleeping').splitlines()[2:] == [
        '| HogWild | 8 | 50 ms of sleep | 100 | 90 | **157** |  |  |  |  |']
    assert report.figures(found, 'distances').startswith('Not measured yet')


def test_the_summary_counts_nothing_that_was_fitted():
    text = report.summary(FOUND)
    said = ' '.join(text.split())
    assert said.startswith('With 2 of the cases no cost was measured. In these the simulated '
                           'steps/s are off by 17 % in the median and by 24 % at most. The naive '
                           'model, which is one line of arithmetic, is off by 38 % in the median '
                           'and by 57 % at most.')
    assert '| up to 8 workers on this machine | 1 | 24 % | 24 % | 0 | 19 % | 19 % | 1 |' in said
    assert '| 16 and 32 workers that sleep | 1 | 10 % | 10 % | 1 | 57 % | 57 % | 0 |' in said
    assert 'links with a rate' not in said
    assert 'within 20 % or 0.1 of the staleness in 1 of 1; 0.01 of the accuracy in 1 of 1.' in said
    assert ('Furthest off: HogWild, 2 workers, 24 % too fast; HogWild, 8 workers, 50 ms of sleep, '
            '10 % too slow.') in said
    assert said.endswith('runs are missing.')
    rows = FOUND + [row(**each._asdict()) for each in validate_cases.cases()]
    assert 'missing' not in report.summary(rows[len(FOUND):])


def test_cases():
    cases = validate_cases.cases()
    assert len(set(cases)) == len(cases)
    found = {group: [each for each in cases if validate_cases.group_of(each._asdict()) == group]
             for group in validate_cases.GROUPS}
    assert {each.workers for each in found['sleeping']} == {16, 32}
    assert {each.mbit for each in found['bandwidths']} == {'', 100, 1000}
    assert {each.round_trip for each in found['distances']} == {1, 10}
    backups = [each for each in cases if each.backups]
    assert {each.workers for each in backups} == {2, 8}
    assert '--replicas_to_aggregate=1' in validate_cases.arguments(backups[0])
    assert '--train_steps=1500' in validate_cases.arguments(backups[0])
    # Each has its costs, from cases without sleep and links.
    for each in cases:
        if not validate_cases.is_fitted(each._asdict()):
            costs = [other for other in cases if validate_cases.is_fitted(other._asdict())
                     and (other.scheme, other.model) == (each.scheme, each.model)]
            assert {other.workers for other in costs} == (
                {1, 2, 3} if each.scheme == 'Ring-AllReduce' else {1})


def test_some_cases_come_with_their_costs():
    names = [validate_cases.words(each._asdict())
             for each in validate_cases.chosen('^Synchronous-SGD, 2 workers, 100 Mbit')]
    assert names == validate_cases.PASSES * [
        'AGN, window 10, 1 worker, mnist', 'AGN, window 50, 1 worker, mnist',
        'Synchronous-SGD, 1 worker, mnist', 'Synchronous-SGD, 2 workers, 100 Mbit/s, mnist']


@pytest.mark.parametrize('flag, complaint', [
    ('--only=Nobody', 'there is no such case; one is "HogWild, 2 workers"'),
    ('--only=[', 'it is no regular expression')])
def test_bad_input(flag, complaint):
    with pytest.raises(SystemExit, match=complaint):
        validate.main([flag])


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch):
    path, (first, second, *_) = tmp_path / 'results.csv', validate_cases.cases()
    results = validate.Results(path)
    results.add('real', first, {'steps_per_s': 123456.78, 'curve': 'no column'})
    results.add('simulated', first, {'steps_per_s': 1.})
    results = validate.Results(path)
    missing = validate_cases.missing(results.rows)
    assert first not in missing and second in missing
    only, = results.rows  # what was simulated is made anew
    assert only['steps_per_s'] == '1.2346e+05'
    assert results.to_simulate() == [first]
    monkeypatch.setattr(validate, 'machine', lambda: '64 cores')
    with pytest.raises(SystemExit, match='this is 64 cores. --fresh begins a new one'):
        validate.Results(path)


def test_all_of_it_in_a_directory_of_ones_own(tmp_path, monkeypatch, capsys):
    """With runs and simulations that are made up: what is run, simulated and written."""
    simulated = []

    class Scheme:
        def __init__(self, name, *flags):
            self._name, self._flags = name, flags

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def simulate(self, asked):
            simulated.append((self._name, *self._flags, asked['workers']))
            return {'examples': 32 * 1000, 'seconds': 1, 'accuracy': 0.9, 'staleness': '',
                    'dropped': ''}

    monkeypatch.setattr(validate, 'Scheme', Scheme)
    monkeypatch.setattr(validate.predictions, 'simulate', lambda: None)
    monkeypatch.setattr(validate.hosts, 'missing', lambda: 'there is no tc')
    monkeypatch.setattr(validate, 'really_run', lambda case: {
        'run_s': 0.001 * case.window, 'work_s': 0.001 * case.window, 'deviation_s': 0.,
        'steps_per_s': 800., 'accuracy': 0.9})
    only = '--only=^HogWild, (2 workers$|2 workers, 100 Mbit)'
    validate.main([only, f'--results_dir={tmp_path}'])
    said = capsys.readouterr()
    assert 'Without the runs at bandwidths and distances: there is no tc.' in said.err
    assert '12 of 12: AGN, window 50, 1 worker, again' in said.out and 'mnist' not in said.out
    assert simulated == [('HogWild', '1'), ('HogWild', '2'), ('AGN', '1')]
    # Two workers: 1,000 simulated, 2,000 by the naive model, 800 really.
    text = (tmp_path / 'validation.md').read_text(encoding='utf-8')
    assert '| HogWild | 2 | 800 | **1000** | **2000** |' in text
    assert {path.name for path in tmp_path.iterdir()} == {
        'validation.csv', 'validation.md', 'validation.png'}
    monkeypatch.setattr(validate.hosts, 'missing', lambda: '')
    validate.main([only, f'--results_dir={tmp_path}'])
    assert '1 of 12: HogWild, 1 worker, mnist' in capsys.readouterr().out
    assert ('HogWild', '--model=mnist', '2') in simulated


# The processors.

SHARED = dict(cores='2', exchange='1ms', exchange_work='1.5ms')


def test_a_stage_by_hand():
    clock = Clock()
    alone = Processors(clock, description.Cluster(exchange='1ms'), 5)
    assert alone.stage() == pytest.approx(0.0002) and alone.stage(0.001) == pytest.approx(0.0012)
    shared = Processors(clock, description.Cluster(**SHARED), 5)
    # Each side works 0.15 ms of the 0.2 ms; the next has to get the processors first.
    assert shared.stage() == pytest.approx(0.0002) and shared.stage() == pytest.approx(0.00035)
    # Who computes for 1 ms has one of them; the other side, and who comes next, have the other one.
    shared = Processors(clock, description.Cluster(**SHARED), 5)
    assert shared.stage(0.001) == pytest.approx(0.0012)
    assert shared.stage() == pytest.approx(0.0005)


@pytest.mark.parametrize('folder', ['HogWild', 'SSP', 'Synchronous-SGD'])
def test_one_worker_takes_what_was_measured(toy, folder):  # noqa: F811
    one = toy(folder, 1, train_steps=50, step=['0.5ms'], **SHARED)
    assert one.clock.now == pytest.approx(50 * 0.0015, rel=0.02)


def test_many_workers_are_bound_by_the_processors(toy):  # noqa: F811
    """Eight workers, each of which needs 2 ms of two processors in a round."""
    one = toy('HogWild', 8, train_steps=800, step=['lognormal:0.5ms:0.3'], **SHARED)
    assert one.record.rate() == pytest.approx(1000, rel=0.03)
    # Not by 7: part of the round lies before the read and after the update.
    assert 2 < one.record.mean_staleness() < 5
