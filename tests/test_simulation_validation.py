"""The validation of the simulation: its table is of its file, and what it measures is known."""

import json

import pytest

from clock import Clock
import description
from processors import Processors
from test_simulation import toy  # noqa: F401
import validate
import validate_report as report


def row(kind='real', **figures):
    """Returns a row of the file: HogWild with one worker, unless told otherwise."""
    figures = dict(dict(kind=kind, scheme='HogWild', backups=0, workers=1, window=1), **figures)
    return {name: str(figures.get(name, '')) for name in validate.COLUMNS}


# By hand: a local step takes 0.1 ms; HogWild 1 ms besides, and processors 1.5 ms in that.
ROWS = [row(run_s=0.0011, work_s=0.0016, deviation_s=0.0001, steps_per_s=900),
        row(scheme='AGN', window=10, work_s=0.003), row(scheme='AGN', window=50, work_s=0.007),
        row(scheme='Ring-AllReduce', run_s=0.0004, deviation_s=0),
        row(scheme='Ring-AllReduce', workers=2, run_s=0.0014, work_s=0.0013),
        row(scheme='Ring-AllReduce', workers=3, run_s=0.0025, work_s=0.0019)]


def test_the_tables_are_those_of_the_file(tmp_path, monkeypatch):
    texts = {}
    for name in 'README', 'PAGE':
        published = getattr(report, name)
        texts[tmp_path / name] = published.read_text(encoding='utf-8')
        (tmp_path / name).write_text(texts[tmp_path / name], encoding='utf-8')
        monkeypatch.setattr(report, name, tmp_path / name)
    monkeypatch.setattr(report, 'PICTURE', tmp_path / 'validation.png')
    report.publish(report.read(validate.RESULTS), len(validate.cases()))
    assert {path: path.read_text(encoding='utf-8') for path in texts} == texts


def test_the_preset_is_that_of_the_file(tmp_path, monkeypatch):
    committed = json.loads(validate.PRESET.read_text(encoding='utf-8'))
    monkeypatch.setattr(validate, 'PRESET', tmp_path / 'mine.json')
    rows = report.read(validate.RESULTS)
    monkeypatch.setattr(validate.os, 'cpu_count', lambda: int(rows[0]['machine'].split()[0]))
    validate.write_preset(rows)
    assert json.loads((tmp_path / 'mine.json').read_text(encoding='utf-8')) == committed
    assert description.Cluster(str(tmp_path / 'mine.json')).cores == committed['cores']


def test_costs():
    costs = validate.costs_of('HogWild', ROWS)
    assert costs == pytest.approx((0.0001, 0.001, 0.0015, 0, 0, 0.0001))
    # Two hops work 0.6 ms, as the third worker's show: so of 1 ms they take two thirds.
    costs = validate.costs_of('Ring-AllReduce', ROWS)
    assert costs == pytest.approx((0.0004, 0.001 / 3, 0.0003, 0.001 / 3, 0.0003, 0))
    said = validate.description_of(validate.Costs(0.0001, 0.001, 0.0015, 0., 0., 0.0001), 1)
    assert said['step'] == 'lognormal:0.1ms:0.833' and said['exchange'] == '1ms'
    assert set(said) <= set(description.KEYS)


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


def test_the_table_says_what_is_off():
    rows = [row(workers=2, steps_per_s=1000, staleness=0.5, accuracy=0.98),
            row(workers=2, steps_per_s=1100, staleness=0.5, accuracy=0.98),
            row('simulated', workers=2, steps_per_s=1300, staleness=0.55, accuracy=0.982)]
    assert report.figures(rows).splitlines()[2:] == [
        '| HogWild | 2 | 1050 | **1300** | 0.50 | 0.55 | 0.980 | 0.982 |  |  |']
    said = ' '.join(report.summary(rows, 3).split())
    assert ('20 % of the measured steps/s in 0 of 1 cases; 20 % or 0.1 of the staleness in 1 of 1'
            in said)
    assert 'by 24% in the median, by 24% at most.' in said
    assert said.endswith('This is not all of it: 2 of 3 runs.')


def test_cases():
    cases = validate.cases()
    assert len(set(cases)) == len(cases)
    assert {case.workers for case in cases if case.scheme == 'Ring-AllReduce'} == {1, 2, 3, 4, 8}
    backups = [case for case in cases if case.backups]
    assert {case.workers for case in backups} == {2, 4, 8}
    assert '--replicas_to_aggregate=3' in validate.arguments(backups[1])
    assert '--train_steps=750' in validate.arguments(backups[1])


def test_what_is_there_is_not_run_again(tmp_path):
    path, (first, second, *_) = tmp_path / 'results.csv', validate.cases()
    results = validate.Results(path)
    results.add('real', first, {'steps_per_s': 123456.78, 'curve': 'no column'})
    results.add('simulated', first, {'steps_per_s': 1.})
    results = validate.Results(path)
    assert results.has(first) and not results.has(second)
    only, = results.rows  # what was simulated is made anew
    assert only['steps_per_s'] == '1.2346e+05'


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
