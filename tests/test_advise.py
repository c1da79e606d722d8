"""The advisor: what it is told, the clock alone, the search where one knows the answer."""

import collections
import copy
import functools
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

import pytest

from cases import briefly
from conftest import ROOT
from processes import wait_until
from test_simulation import Toy, toy  # noqa: F401

import advise
import advise_answer
import advise_clock
import advise_cluster
import advise_costs
from advise_costs import Costs, Figure
import advise_folders
from advise_folders import ALONE
import advise_measure
import advise_search
from advise_search import RUNGS, Search
import advise_simulations
import advise_space
from advise_space import Config, Goal, ONE, Space, Trial
import advise_steps
import advise_words
import description
import schemes
import study_cases

pytestmark = pytest.mark.xdist_group('advise')  # the clock is asked once
SECONDS = {'one process': 1e-3, 'step, 1 thread': 0.8e-3, 'step, 2 threads': 0.5e-3,
           'exchange': 1e-3, 'exchange, a byte': 1e-9, 'exchange work': 1.4e-3, 'update': 50e-6,
           'ring': 0.4e-3, 'ring work': 0.5e-3, 'hop': 0.2e-3, 'hop work': 0.15e-3, 'start': 0.,
           'start of a worker': 0., 'start, a local step': 0., 'start of a ring': 0., 'test': 1e-3}


def costs_of(**changes):
    """Returns `Costs` of round numbers; a figure is sure to 10 %. Other times in seconds."""
    names = {name.replace(', ', '_').replace(' ', '_'): name for name in SECONDS}
    seconds = dict(SECONDS, **{names[name]: value for name, value in changes.items()})
    figures = {name: Figure(value, 0.9 * value, 1.1 * value, 'by hand')
               for name, value in seconds.items()}
    for name, value in (('threads', 1.), ('variation', 0.), ('parameters', 4e4), ('pull', 4e4),
                        ('push', 4e4)):
        figures[name] = Figure(value, value, value, 'by hand')
    return Costs(collections.OrderedDict((name, figures[name]) for name in [
        *advise_costs.MEANINGS, 'step, 2 threads']))


# Costs.

def test_costs_are_read_as_they_are_written(tmp_path):
    costs = costs_of()
    costs.write(tmp_path / 'costs.json')
    read = advise_costs.read(tmp_path / 'costs.json')
    for name, figure in costs.figures.items():
        assert read.figures[name][:3] == pytest.approx(figure[:3], rel=1e-3), name
    assert read.get('exchange', 'high') == pytest.approx(1.1e-3)
    written = json.loads((tmp_path / 'costs.json').read_text(encoding='utf-8'))['figures']
    assert written['exchange'] == {'value': '1ms', 'low': '900us', 'high': '1.1ms',
                                   'how': 'by hand'}
    assert written['pull']['value'] == '40000B'


def test_a_step_with_more_threads_than_were_measured():
    costs = costs_of()
    assert [costs.step(threads) for threads in (0, 1, 2, 3, 64)] == [
        0.8e-3, 0.8e-3, 0.5e-3, 0.5e-3, 0.5e-3]


def test_a_scheme_whose_local_steps_take_longer():
    costs = costs_of()
    assert costs.of_scheme('DiLoCo') is costs
    for name, value in ('step of DiLoCo', 1.2e-3), ('start, a local step of DiLoCo', 9e-3):
        costs.figures[name] = Figure(value, value, value, 'by hand')
    assert costs.of_scheme('AGN') is costs
    its = costs.of_scheme('DiLoCo')
    assert [its.step(threads) for threads in (1, 2)] == pytest.approx([1.2e-3, 0.75e-3])
    assert its.step(1, 'high') == pytest.approx(1.1 * 1.2e-3)
    assert its.get('start, a local step') == 9e-3 and its.get('hop') == costs.get('hop')


@pytest.mark.parametrize('own, more', [(None, []), ('Mine', ['Mine']), ('DynSGD', [])])
def test_whose_local_steps_are_timed(monkeypatch, own, more):
    """Each scheme once, also if one's own is a changed copy of another one."""
    timed = []

    def of_steps(folder, names, *options):
        timed.extend(names)
        return {'steps': [{'step': (1e-3, 1e-3, 1e-3), 'more': 2e-3}]}

    monkeypatch.setattr(advise_measure, '_of_steps', of_steps)
    found = advise_measure._of_others(types.SimpleNamespace(own=own), lambda words: None)
    assert timed == ['DiLoCo', 'AEAMSGD', 'DynSGD', *more]
    assert len(found) == 2 * len(timed) and found['step of AEAMSGD'].value == 1e-3


@pytest.mark.parametrize('edit, complaint', [
    (lambda values: values['figures'].pop('hop'), '"hop" is missing: a hop of the ring'),
    (lambda values: values['figures']['hop'].update(value='2'), '"hop": 2 has no unit'),
    (lambda values: values['figures'].update(hop={}), '"hop": it has no value'),
    (lambda values: values.pop('figures'), 'it has no figures'),
])
def test_bad_costs(tmp_path, edit, complaint):
    path = tmp_path / 'costs.json'
    costs_of().write(path)
    values = json.loads(path.read_text(encoding='utf-8'))
    edit(values)
    path.write_text(json.dumps(values), encoding='utf-8')
    with pytest.raises(SystemExit) as error:
        advise_costs.read(path)
    assert str(error.value).startswith(f'--costs={path}: ') and complaint in str(error.value)
    assert '\n' not in str(error.value)


def test_a_spread():
    assert advise_steps.spread([1, 1, 1, 2, 2, 2, 9, 9, 9]) == (2, 1, 9)
    assert advise_steps.spread([3.]) == (3, 3, 3)


# The cluster.

FOUR = '5 hosts, 2 cores, 1Gbit, 1ms'


def test_words():
    cluster = advise_cluster.Cluster(f'{FOUR}, 1 slow by 3')
    assert cluster.numbers_of_workers(False) == [2, 3, 4, 8], 'one for each core, at last'
    assert cluster.numbers_of_workers(True) == [2, 4, 5, 10], 'a ring needs no host for a ps'
    assert cluster.numbers_of_ps(2) == [1, 2] and cluster.numbers_of_ps(4) == [1]
    flags = cluster.flags(costs_of(), 4, 1)
    assert flags == {
        'workers': '4', 'ps': '1', 'latency': '0.0005s', 'bandwidth': '1000Mbit',
        'ps_bandwidth': '1000Mbit', 'links': 'shared', 'update': '50us',
        'step': '500us,500us,500us,1.5ms', 'exchange': '1.03ms'}
    assert cluster.flags(costs_of(), 3, 1)['step'] == '500us', 'the slow host is the last'
    both = cluster.flags(costs_of(), 8, 1)
    assert both['bandwidth'] == '500Mbit' and both['step'] == ','.join(
        ['800us', '800us', '800us', '2.4ms'] * 2)
    late = advise_cluster.Cluster(f'{FOUR}, 1 slow by 50ms').flags(costs_of(), 4, 1)
    assert late['step'] == '500us' and late['straggler'] == '3:0.05'
    for each in flags, both, late:
        assert set(each) <= set(advise_simulations.COLUMNS)


def test_this_machine(monkeypatch):
    monkeypatch.setattr(advise_cluster.os, 'cpu_count', lambda: 2)
    cluster = advise_cluster.Cluster()
    assert cluster.words() == 'this machine, 2 cores'
    assert cluster.numbers_of_workers(False) == [2, 4] and cluster.numbers_of_ps(2) == [1, 2]
    flags = cluster.flags(costs_of(), 2, 1)
    assert flags['cores'] == '2' and flags['exchange'] == '1.08ms' and flags['update'] == '0s'
    assert flags['step'] == '800us' and flags['exchange_work'] == '1.4ms'
    assert flags['bandwidth'] == 'inf'
    held = cluster.flags(costs_of(), 2, 1, stages=7)
    assert held['exchange'] == '1.512ms', 'a gate has two more stages'
    ring = cluster.flags(costs_of(), 2, 0, is_ring=True)
    assert (ring['exchange'], ring['hop'], ring['hop_work']) == ('400us', '200us', '150us')


def test_hosts_that_share_cores():
    """As those that are imitated on one machine: a network, and processors for all."""
    flags = advise_cluster.Cluster('3 hosts, 2 cores shared, 1Gbit, 10ms').flags(
        costs_of(), 2, 1)
    assert flags['cores'] == '2' and flags['latency'] == '0.005s'
    assert flags['exchange_work'] == '1.4ms' and flags['update'] == '0s'


def test_steps_that_take_longer_than_here():
    """All workers sleep, the slow ones longer; and so would one process."""
    cluster = advise_cluster.Cluster(f'{FOUR}, steps 20ms longer, 1 slow by 3')
    flags = cluster.flags(costs_of(), 4, 1)
    assert flags['straggler'] == '0:0.02,1:0.02,2:0.02,3:0.06'
    assert flags['step'] == '500us,500us,500us,1.5ms'
    both = advise_cluster.Cluster(f'{FOUR}, steps 20ms longer, 1 slow by 50ms')
    flags = both.flags(costs_of(), 4, 1)
    assert flags['straggler'] == '0:0.02,1:0.02,2:0.02,3:0.07' and flags['step'] == '500us'
    space = Space({ALONE: {'rows': [], 'batch_size': 32}}, costs_of(), TARGET, cluster.longer)
    assert space.rate(ONE) == pytest.approx(1 / 21e-3)
    assert space.rows[ONE]['flags']['step'] == '21ms'
    assert space.takes == pytest.approx(0.8e-3), 'with one thread, and awake'


def test_the_start():
    """By hand: longer windows begin later, and on shared cores workers take turns."""
    costs = costs_of(start_of_a_worker=0.4, start_a_local_step=0.01, start_of_a_ring=0.6)
    apart = advise_cluster.Cluster(FOUR)
    assert apart.start(costs, 1, 4, 1) == pytest.approx(0.4)
    assert apart.start(costs, 11, 4, 1) == pytest.approx(0.5)
    assert apart.start(costs, 1, 5, 0, is_ring=True) == pytest.approx(0.6)
    shared = advise_cluster.Cluster('5 hosts, 2 cores shared, 1Gbit, 1ms')
    assert shared.start(costs, 1, 4, 1) == pytest.approx(1.6), 'and the ps works for each'
    assert shared.start(costs, 1, 4, 0, is_ring=True) == pytest.approx(1.2)
    for cores in 1, 2, 4:  # as was measured, with one worker
        alone = advise_cluster.Cluster(f'5 hosts, {cores} cores shared, 1Gbit, 1ms')
        assert alone.start(costs, 1, 1, 1) == pytest.approx(0.4)


def test_another_ps_is_on_another_host():
    cluster = advise_cluster.Cluster('5 hosts, 1 core, 1Gbit, 1ms')
    better = cluster.improvements()[advise_cluster.ANOTHER_PS]
    assert better.flags(costs_of(), 4, 2)['bandwidth'] == '1000Mbit'
    assert cluster.flags(costs_of(), 4, 2)['bandwidth'] == '500Mbit', 'two workers on one host'


def test_files(tmp_path):
    path = tmp_path / 'mine.json'
    path.write_text(json.dumps({'about': 'mine', 'hosts': 5, 'cores': 2, 'rate': '1Gbit',
                                'round_trip': '1ms'}), encoding='utf-8')
    costs = costs_of()
    assert advise_cluster.Cluster(str(path)).flags(costs, 4, 1) == advise_cluster.Cluster(
        FOUR).flags(costs, 4, 1)
    sites = advise_cluster.Cluster('sites')
    assert sites.numbers_of_workers(False) == [2, 4, 8]
    flags = sites.flags(costs, 8, 1)
    assert flags['latency'] == '50us,25ms,25ms,25ms' and flags['step'] == 'lognormal:2ms:0.2'
    assert 'cores' not in flags
    description.Cluster(**{name: value.split(',') if name in ('step', 'latency', 'bandwidth')
                           else value for name, value in flags.items()})


@pytest.mark.parametrize('text, complaint', [
    ('4 hosts, fast', 'what is "fast"? Please say it as in'),
    ('4 hosts', 'several hosts have a network: say its rate and its round trip'),
    ('4 hosts, 1Gbit, 9 slow by 3', '9 slow ones are too many: there are 4'),
    ('nowhere', 'there are ethernet, '),
    ('{"hosts": 4, "speed": 3}', 'what is "speed"? There are hosts, cores, '),
    ('{"hosts": 4, "rate": "1"}', '1 has no unit'),
    ('{"workers": 4, "die": ["3:10s"]}', '"die" is not for this'),
])
def test_a_cluster_that_cannot_be(tmp_path, text, complaint):
    if text.startswith('{'):
        path = tmp_path / 'mine.json'
        path.write_text(text, encoding='utf-8')
        text = str(path)
    with pytest.raises(SystemExit) as error:
        advise_cluster.Cluster(text)
    assert str(error.value).startswith(f'--cluster={text}: ') and complaint in str(error.value)
    assert '\n' not in str(error.value)


# Folders.

def test_the_digits_need_no_folder_of_their_own(tmp_path):
    folder = advise_folders.Folder('HogWild', [], tmp_path)
    assert folder.of('AGN') == ROOT / 'AGN'
    assert folder.of(ALONE) == ROOT / 'Non-Distributed-Setup'
    assert not list(tmp_path.iterdir())
    assert {'AGN', 'Ring-AllReduce'} < set(folder.names) and 'Work-Queue' not in folder.names


def test_a_model_of_ones_own(tmp_path):
    """It gets a folder for each scheme; a scheme of one's own is one more."""
    mine = tmp_path / 'Mine'
    shutil.copytree(str(ROOT / 'HogWild'), str(mine))
    with open(mine / 'model.py', 'a', encoding='utf-8') as file:
        file.write('# mine\n')
    (mine / 'numbers.txt').write_text('1 2 3', encoding='utf-8')
    folder = advise_folders.Folder(str(mine), [], tmp_path / 'joined')
    assert 'Mine' not in folder.names, 'its worker.py is that of HogWild'
    joined = folder.of('AGN')
    assert joined == tmp_path / 'joined' / 'AGN'
    text = {name: (joined / name).read_text(encoding='utf-8')
            for name in ('model.py', 'worker.py', 'numbers.txt', '../tfdist/__init__.py')}
    assert text['model.py'].endswith('# mine\n') and text['numbers.txt'] == '1 2 3'
    assert text['worker.py'] == (ROOT / 'AGN' / 'worker.py').read_text(encoding='utf-8')
    assert not (joined / 'worker.py').is_symlink(), 'Python would look for model.py elsewhere'
    before = folder.identity
    with open(mine / 'worker.py', 'a', encoding='utf-8') as file:
        file.write('# my scheme\n')
    folder = advise_folders.Folder(str(mine), [], tmp_path / 'joined')
    assert 'Mine' in folder.names and folder.of('Mine') == mine
    assert folder.identity != before
    assert folder.identity != advise_folders.Folder(str(mine), ['--seed=2'], tmp_path).identity


# The clock alone.

@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'SSP', 'AEASGD', 'Synchronous-SGD',
                                    'Local-SGD', 'Ring-AllReduce'])
@pytest.mark.parametrize('cluster', briefly([
    dict(latency=['2ms'], update='0.3ms'),
    dict(step=['1ms', '5ms'], cores='2', exchange='1ms', exchange_work='1.4ms', hop='0.2ms',
         hop_work='0.1ms')], lambda cluster: 'cores' in cluster))
def test_the_clock_is_that_of_the_simulation(toy, folder, cluster):  # noqa: F811
    """With gradients it takes as long, and is as stale."""
    whole = toy(folder, 3, train_steps=120, **dict(dict(step=['3ms']), **cluster))
    silent = advise_clock.Silent(toy(folder, 2, train_steps=1, step=['1ms']).player)
    window = silent.pieces[0][-2].local_steps or 1
    flags = {name: ','.join(value) if isinstance(value, list) else value
             for name, value in dict(dict(step=['3ms']), workers='3', **cluster).items()}
    found = advise_clock.simulate(silent, window, flags)
    assert found['rate'] == pytest.approx(whole.record.rate(), rel=0.06)
    assert found['computes'] == pytest.approx(
        whole.record.seconds['computes'] / sum(whole.record.seconds.values()), abs=0.05)
    if whole.record.staleness:
        assert found['staleness'] == pytest.approx(whole.record.mean_staleness(), abs=0.15)


def test_longer_windows_than_the_graph_has(toy):  # noqa: F811
    """By hand: a round takes four latencies and so many local steps."""
    silent = advise_clock.Silent(toy('AGN', 2, train_steps=1, step=['1ms']).player)
    for window in 5, 50:
        found = advise_clock.simulate(silent, window, {
            'workers': '4', 'step': '1ms', 'latency': '10ms'})
        assert found['rate'] == pytest.approx(4 * window / (0.04 + 1e-3 * window), rel=0.02)
        assert found['computes'] == pytest.approx(window / (40 + window), abs=0.05)


def test_workers_that_are_late(toy):  # noqa: F811
    silent = advise_clock.Silent(toy('Synchronous-SGD', 2, train_steps=1, step=['1ms']).player)
    found = advise_clock.simulate(silent, 1, {'workers': '4', 'step': '1ms',
                                              'straggler': '3:0.049'})
    assert found['rate'] == pytest.approx(4 / 0.05)
    assert found['waits'] == pytest.approx(3 * 49 / 200, abs=0.02)


def test_a_cluster_on_which_nothing_happens(toy):  # noqa: F811
    silent = advise_clock.Silent(toy('HogWild', 2, train_steps=1, step=['1ms']).player)
    with pytest.raises(SystemExit, match='Time stands still'):
        advise_clock.simulate(silent, 1, {'workers': '4', 'step': '0s'})


# The search.

JOBS = 2


class Now:
    """Stands for the module `time`: it passes while simulations are made."""

    def __init__(self):
        self.now = 0.

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of the search, a `Now`."""
    found = Now()
    monkeypatch.setattr(advise_search, 'time', found)
    return found


class Invented:
    """Stands for `advise_simulations.Simulations`: each local step is worth as much as any other.

    But for the step size: with the exponent `best` a target takes `needed` local steps, and twice
    as many with each one farther from that.
    """

    needed, best = 400, 1
    besides, step = 1., 1e-3  # seconds that a simulation takes, and each of its local steps

    def __init__(self, rates, clock, seconds=100):
        self._rates, self._clock, self.asked, self.left_out = rates, clock, [], {}
        self.deadline, self.number = clock.now + seconds, 0

    def stop(self):
        self.is_stopped = True

    def run(self, asked, then, until):
        for trial, _, flags in asked:
            if self._clock.now > until:
                return
            self.asked.append((trial, flags))
            steps = int(flags['local_steps'])
            self._clock.now += (self.besides + self.step * steps) / JOBS
            needed = self.needed * 2 ** abs(trial.exponent - self.best)
            rate = self._rates[trial.config]['rate']
            reached = steps >= needed
            then(trial, {
                'accuracy': str(min(0.99, 0.95 * steps / needed)), 'loss': '0.1', 'diverged': '0',
                'examples': str(32 * steps), 'seconds': str(steps / rate),
                'target_seconds': str(needed / rate) if reached else '',
                'target_examples': str(32 * needed) if reached else '',
                'curve': f'{32 * steps}:{steps / rate}:0.9'})


WINDOWED = 'AGN', 'Local-SGD'


@functools.lru_cache(maxsize=None)
def silent_of(name):
    """Returns the `advise_clock.Silent` of a scheme on the toy problem."""
    player = Toy(name, [1., 2.], description.Cluster(workers='2', step=['1ms']), 1).player
    silent = advise_clock.Silent(player)
    player.close()
    return silent


@functools.lru_cache(maxsize=None)
def rows_of(name, text, costs):
    """Returns the 'rows' that `advise_clock` answers, of costs as a text."""
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
        file.write(costs)
        file.flush()
        return advise_clock._rows(silent_of(name), {'cluster': text, 'costs': file.name},
                                  advise_clock.WINDOWS if name in WINDOWED else [1])


def answers_of(costs, tmp_path, text, names):
    """Returns what `advise_clock` answers, of the toy problem, whose steps take what costs say."""
    costs.write(tmp_path / 'costs.json')
    said = (tmp_path / 'costs.json').read_text(encoding='utf-8')
    found = {}
    for name in names:
        scheme, has_window = silent_of(name).scheme, name in WINDOWED
        together = bool(scheme.complete is not None or scheme.sums)
        found[name] = {
            'rows': copy.deepcopy(rows_of(name, text, said)),
            'window_flags': ['communication_window'] * has_window,
            'rate_flag': 'learning_rate', 'rate': 0.1, 'rate_is_given': False,
            'train_steps': 3000, 'batch_size': 32, 'together': together,
            'averages': together and not has_window, 'pushes': 1}
    found[ALONE] = dict(found['HogWild'], rows=[])
    return found


TARGET = Goal(0.95, None)
NAMES = 'HogWild', 'AGN', 'Synchronous-SGD', 'Local-SGD'


@pytest.fixture
def searched(tmp_path, clock):
    """A function that searches on a cluster; returns the search, and what was simulated."""
    def make(text, costs, goal=TARGET, seconds=60, names=NAMES):
        space = Space(answers_of(costs, tmp_path, text, names), costs, goal,
                      advise_cluster.Cluster(text).longer)
        invented = Invented(space.rows, clock, seconds)
        search = Search(space, invented, goal, seconds, JOBS)
        search.run()
        return search, invented

    return make


def rates(search):
    """Returns the highest rates, a dict by scheme."""
    found = collections.defaultdict(float)
    for config, row in search._space.rows.items():
        found[config.scheme] = max(found[config.scheme], row['rate'])
    return found


def test_on_a_slow_link_windows_win(searched):
    search, _ = searched('5 hosts, 1 core, 1Gbit, 20ms', costs_of())
    best = search.best()[0].config
    assert best.scheme in ('AGN', 'Local-SGD') and best.window >= 20 and best.workers == 4
    found = rates(search)
    assert max(found['HogWild'], found['Synchronous-SGD']) < found[ALONE] < found['AGN']


def test_without_latency_synchronous_is_as_good(searched):
    search, _ = searched('5 hosts, 1 core, 100Gbit, 0.01ms',
                         costs_of(step_1_thread=10e-3, one_process=10e-3, exchange=1e-4),
                         seconds=2000)
    found = rates(search)
    assert found['Synchronous-SGD'] == pytest.approx(found['HogWild'], rel=0.1)
    assert found['HogWild'] > 3.5 * found[ALONE]
    assert ALONE != search.best()[0].config.scheme


def test_with_a_straggler_asynchronous_wins(searched):
    search, _ = searched('5 hosts, 1 core, 1Gbit, 1ms, 1 slow by 5',
                         costs_of(step_1_thread=1., step_2_threads=1., one_process=1.),
                         seconds=20000, names=('HogWild', 'Synchronous-SGD'))
    first = search.best()[0].config
    assert first.scheme == 'HogWild' and first.workers in (3, 4)
    found = search._space.rows
    # All wait for the fifth second; without the slow host three are as fast as they can be.
    assert found[Config('Synchronous-SGD', 1, 4, 1)]['rate'] == pytest.approx(0.8, rel=0.02)
    assert found[Config('Synchronous-SGD', 1, 3, 1)]['rate'] == pytest.approx(3, rel=0.02)
    assert found[Config('HogWild', 1, 4, 1)]['rate'] == pytest.approx(3.2, rel=0.05)


def test_on_a_hopeless_network_one_process_is_best(searched):
    search, invented = searched('5 hosts, 1 core, 1Mbit, 2s', costs_of())
    assert search.best()[0].config == ONE
    assert len(search.too_slow) == len(search._space.rows) - 1, 'the clock rules out all others'
    assert {trial.config.scheme for trial, _ in invented.asked} == {ALONE, *NAMES}, (
        'and some are simulated to compare with')
    assert search.worth(search.best()[1])[0] == 0, 'and long enough, if they may'


@pytest.mark.parametrize('test, wanted', [(2e-3, 0.02), (1e-4, 0.008), (1., 0.04)])
def test_simulations_are_tested_as_often_as_a_real_run(searched, test, wanted):
    """A tenth of its time; but 10 to 50 times in the time of one process."""
    search, invented = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(test=test))
    assert Invented.needed / search._space.rate(ONE) == pytest.approx(0.4)
    for _, flags in invented.asked:
        assert ('test_every' in flags) != ('tests' in flags)
    every = {flags.get('test_every') for _, flags in invented.asked}
    known = {trial for trial, flags in invented.asked if 'test_every' not in flags}
    assert {trial.config for trial in known} == {ONE}, 'until it is known how long that takes'
    every, = every - {None}
    assert description.seconds(every) == pytest.approx(wanted)
    best = search._of_one()
    assert ['test_every' in flags for trial, flags in invented.asked
            if trial == best and flags['seed'] == '1'][:2] == [False, True]


def test_workers_that_wait_for_nobody_begin_at_different_moments(searched):
    search, invented = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(), seconds=600)
    kinds = set()
    for trial, flags in invented.asked:
        scheme, window, workers, _ = trial.config
        if scheme not in ('HogWild', 'AGN') or workers == 1:
            assert 'come' not in flags
            continue
        kinds.add((scheme, flags['seed']))
        moments = description.Cluster(workers=str(workers), come=flags['come'].split(',')).come
        assert [worker for worker, _ in moments] == list(range(1, workers))
        a_run = window * workers / search._space.rate(trial.config)
        assert all(0 <= moment <= a_run for _, moment in moments)
        again = search._space.flags(trial, 1, int(flags['seed']))
        assert again['come'] == flags['come']
        assert search._space.flags(trial, 1, 170)['come'] != flags['come']
    assert {'1', '2'} <= {seed for _, seed in kinds} and {'AGN', 'HogWild'} == {
        scheme for scheme, _ in kinds}


def test_how_long_a_test_takes():
    """The first one takes longer; a short run has no other."""
    others = {'chief': False, 'tested': []}
    of = advise_measure._seconds_of_test
    assert of([others, {'chief': True, 'tested': [0.5, 0.01, 0.03, 0.02]}]) == 0.02
    assert of([{'chief': True, 'tested': [0.5]}]) == 0.5


def test_what_is_simulated(searched):
    """More and more local steps; the best step size; other seeds at the end."""
    search, invented = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(), seconds=600)
    assert all(search._space.step_size(trial)[1] == '0.3' for trial in search.best())
    lengths = collections.defaultdict(list)
    for trial, flags in invented.asked:
        if flags['seed'] == '1' and 'test_every' in flags:
            lengths[trial].append(int(flags['local_steps']))
    assert all(each == sorted(set(each)) for each in lengths.values())
    assert max(map(len, lengths.values())) > 1
    seeds = {trial: set(rows) for trial, rows in search.found.items() if len(rows) > 1}
    assert all(seeds[trial] >= {1, 2, 3} for trial in search.best())
    soonest = search.worth(search.ranked()[0])[1]
    for trial in search.ranked():  # and all that may be the best
        kind, seconds, *_ = search.worth(trial)
        few = next((seeds for within, seeds in ((1.05, 20), (1.1, 10), (1.3, 3))
                    if seconds <= within * soonest), 0)
        assert kind or len(search.found[trial]) >= few
        others = 5 if trial.config == ONE else 3 if trial in search.best() else 1
        assert len(search.found[trial]) <= max(few, others)
    first = [flags for _, flags in invented.asked[:3]]
    assert [flags['learning_rate'] for flags in first] == ['0.1', '0.0333', '0.3']
    assert all(flags['step'] == '1ms' and flags['workers'] == '1' for flags in first)


def test_a_budget_bounds_it(searched):
    """With less time, fewer and shorter simulations; with none, none."""
    (none, few), (_, many) = (searched(FOUR, costs_of(), seconds=seconds) for seconds in (10, 600))
    assert none.is_stopped
    asked = [sum(int(flags['local_steps']) for _, flags in each.asked) for each in (few, many)]
    assert asked[0] < asked[1] and len(few.asked) < len(many.asked)


def test_it_searches_while_there_is_time(searched, clock):
    """More settings first, and then other seeds, to the last second."""
    number = {}
    for seconds in 20, 40, 80:
        begin = clock.now
        search, invented = searched(FOUR, costs_of(), seconds=seconds)
        assert 0.98 * seconds <= clock.now - begin <= 1.1 * seconds
        firsts = [place for place, (_, flags) in enumerate(invented.asked) if flags['seed'] == '1']
        number[seconds] = len(firsts)
        assert len(firsts) < len(invented.asked) and not search.is_stopped
        after = [flags['seed'] for _, flags in invented.asked[firsts[-1]:]]
        before = [flags['seed'] for _, flags in invented.asked[:firsts[-1]]]
        assert max(map(int, before)) <= 5, 'many seeds only once no other setting is begun'
    assert number[20] < number[40] < number[80] and max(map(int, after)) > 5


def test_the_step_size_of_one_process_is_not_the_best_by_luck(searched, monkeypatch):
    """It gets other seeds before any scheme is simulated; the best by them is where all begin."""
    made = Invented.run

    def run(self, asked, then, until):
        def told(trial, row):  # a lucky first seed
            if trial.exponent == 2 and flags['seed'] == '1' and row['target_seconds']:
                row = dict(row, target_seconds=str(float(row['target_seconds']) / 2.1))
            then(trial, row)

        for trial, scheme, flags in asked:
            made(self, [(trial, scheme, flags)], told, until)

    monkeypatch.setattr(Invented, 'run', run)
    search, invented = searched(FOUR, costs_of(), seconds=200)
    alone = list(itertools.takewhile(lambda each: each[0].config == ONE, invented.asked))
    seeds = collections.Counter(trial.exponent for trial, flags in alone if flags['seed'] != '1')
    assert seeds[2] and seeds[1] == 4 and search._space.exponent == 1


def test_what_may_be_the_best_gets_seeds_before_what_is_only_the_best_of_its_scheme(searched):
    search, invented = searched(FOUR, costs_of(), seconds=40)
    soonest = search.worth(search.ranked()[0])[1]
    order = [trial for trial, flags in invented.asked
             if flags['seed'] == '2' and trial.config != ONE]
    is_near = [search.worth(trial)[1] <= 1.3 * soonest for trial in order]
    assert is_near[0] and not all(is_near) and is_near == sorted(is_near, reverse=True)


def test_with_a_heavy_model_few_are_simulated_to_the_target(searched, monkeypatch):
    """And not many for so short that none comes there."""
    monkeypatch.setattr(Invented, 'step', 0.1)
    search, _ = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(
        one_process=0.1, step_1_thread=0.1), seconds=300)
    first, *others = search.ranked()
    assert first.config.scheme != ALONE and search.worth(first)[0] == 0
    assert sum(search.worth(trial)[0] == 1 for trial in others) > len(others) / 2


def test_each_scheme_gets_its_best_step_size(searched, monkeypatch):
    """Also one that is far behind, before settings are tried that nothing speaks for."""
    monkeypatch.setattr(Invented, 'best', 3)
    search, _ = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(), seconds=60)
    best = {trial.config.scheme: trial.exponent for trial in reversed(search.ranked())}
    assert set(best.values()) == {3}
    assert any(trial not in search.found for trial in search._all), 'it had no time for all'


def test_step_sizes_begin_around_that_of_one_process(searched, monkeypatch):
    """But for those that do not depend on how large gradients are; and no farther than the grid."""
    monkeypatch.setattr(Invented, 'best', 4)
    search, _ = searched(FOUR, costs_of(), seconds=600)
    space, config = search._space, Config('Local-SGD', 5, 4, 1)
    assert space.exponent == 4 and space.exponents(config) == [4, 3, 5]
    assert space.exponents(ONE) == [0, -1, 1]
    space.exponent = study_cases.FARTHEST
    assert space.exponents(config) == [study_cases.FARTHEST, study_cases.FARTHEST - 1]
    space.exponent += 2  # as many workers may add
    assert space.exponents(config) == [study_cases.FARTHEST, study_cases.FARTHEST - 1]
    monkeypatch.setattr(advise_space, '_ADAPTIVE', ('Local-SGD',))
    assert space.exponents(config) == [0, -1, 1]


def test_who_is_late_begins_with_smaller_steps(searched, monkeypatch):
    """But where a step is of the replica's own values, or is divided by how late it is."""
    search, _ = searched(FOUR, costs_of(), seconds=60)
    space, config = search._space, Config('AGN', 5, 4, 1)
    late = dict(space.rows[config], staleness=3.)
    for name, middle in ('AGN', -1), ('AEAMSGD', 0), ('DynSGD', 0):
        space.rows[config._replace(scheme=name)] = late
        monkeypatch.setitem(space._answers, name, space._answers['AGN'])
        assert space.exponents(config._replace(scheme=name))[0] == space.exponent + middle


def test_who_is_much_later_is_given_up(searched):
    """After twice the time of the best, unless a round of each worker takes longer."""
    search, invented = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of())
    space = search._space
    alone = Invented.needed / space.rate(ONE)
    for trial, flags in invented.asked:
        if trial.config != ONE and flags['seed'] == '1':
            least = trial.config.window * trial.config.workers
            assert int(flags['local_steps']) <= max(
                least, math.ceil(2 * alone * space.rate(trial.config)))


def test_how_good_several_seeds_are(searched):
    """As their mean; if they end in different ways, as the worst of them."""
    search, _ = searched(FOUR, costs_of())
    trial = search.best()[0]
    there = {'diverged': '0', 'loss': '0.1', 'accuracy': '0.95', 'target_seconds': '1'}
    not_there = dict(there, target_seconds='', accuracy='0.8')

    def worth(*rows):
        search.found[trial] = {seed: (row, 2) for seed, row in enumerate(rows, 1)}
        return search.worth(trial)

    assert worth(there, dict(there, target_seconds='2')) == (0, 1.5, 0, 0)
    assert worth(there, not_there) == worth(not_there) == (1, -2, -0.8, 0.1)
    assert worth(not_there, dict(not_there, accuracy='0.9', loss='0.3')) == pytest.approx(
        (1, -2, -0.85, 0.2))
    assert worth(there, dict(there, diverged='1'), not_there)[0] == 2


def test_how_far_another_seed_is_simulated(searched):
    """Twice as far as the slowest one; no farther than the first one, if that was not there."""
    search, _ = searched(FOUR, costs_of())
    trial, size = search.best()[0], search._space.batch_size

    def steps(*there):
        search.found[trial] = {seed: ({'target_examples': steps and str(steps * size),
                                       'examples': str(900 * size)}, 3)
                               for seed, steps in enumerate(there, 1)}
        return search._to_the_target(trial)

    assert steps(100) == 200 and steps(100, 150, '', 120) == 300 and steps('') == 900


def test_within_a_time(searched):
    """No target: what is best after a second, which is what makes the most of it."""
    search, invented = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(), Goal(None, 0.1))
    assert search.best()[0].config.scheme in ('AGN', 'Local-SGD')
    alone = max(int(flags['local_steps']) for trial, flags in invented.asked
                if trial.config == ONE)
    assert alone == 100


def test_who_stops_it_gets_what_there_is(tmp_path, clock):
    class Stopped(Invented):
        def run(self, asked, then, until):
            super().run(asked[:8], then, until)
            if len(self.asked) > 10:
                raise KeyboardInterrupt

    costs = costs_of()
    space = Space(answers_of(costs, tmp_path, FOUR, NAMES), costs, TARGET)
    stopped = Stopped(space.rows, clock)
    search = Search(space, stopped, TARGET, 60, JOBS)
    search.run()
    assert search.is_stopped and stopped.is_stopped and search.best()


def test_a_model_without_an_accuracy(searched, monkeypatch):
    def run(self, asked, then, until):
        for trial, _, _ in asked:
            then(trial, {'accuracy': '', 'loss': '0.3', 'diverged': '0', 'target_seconds': '',
                         'target_examples': '', 'examples': '320', 'curve': ''})

    monkeypatch.setattr(Invented, 'run', run)
    with pytest.raises(SystemExit, match='has no accuracy: ask for .* --within=10'):
        searched(FOUR, costs_of())
    search, _ = searched(FOUR, costs_of(), Goal(None, 0.1))
    assert search.best()


def test_what_is_better():
    row = {'diverged': '0', 'loss': '0.1', 'accuracy': '0.9', 'target_seconds': ''}
    soon, late = (dict(row, target_seconds=each) for each in ('1', '2'))
    order = [soon, late, dict(row, accuracy='0.95'), row, dict(row, loss='0.2'),
             dict(soon, diverged='1')]
    assert sorted(order, key=advise_search.worth) == order
    assert advise_search.worth(row, 2) < advise_search.worth(dict(row, accuracy='0.94'), 1), (
        'it was simulated for longer')


def test_one_process_goes_as_far_as_the_others(searched, monkeypatch):
    """Where nobody comes to the target, it is not compared after less time than they had."""
    monkeypatch.setattr(Invented, 'needed', 10 ** 7)
    search, _ = searched(FOUR, costs_of(), seconds=200)
    row = search.found[search._of_one()][1]
    others = [search.found[trial][1] for trial in search.best() if trial.config != ONE]
    assert row[1] > 0, 'it went on after the first round'
    assert float(row[0]['seconds']) >= 0.5 * max(float(other['seconds']) for other, _ in others)


def test_if_one_process_diverges_that_is_not_for_want_of_an_accuracy(searched, monkeypatch):
    made = Invented.run

    def run(self, asked, then, until):
        made(self, asked, lambda trial, row: then(
            trial, advise_simulations.FAILED if trial.config == ONE else row), until)

    monkeypatch.setattr(Invented, 'run', run)
    search, _ = searched(FOUR, costs_of())
    assert search.best() and ONE not in [trial.config for trial in search.best()]
    assert search.diverged() == [ALONE]


def test_what_simulations_take_besides_is_learned(searched, monkeypatch):
    """Such as long tests: with them, fewer are begun."""
    made = Invented.run

    def run(self, asked, then, until):
        made(self, asked, lambda trial, row: then(trial, dict(row, wall_seconds='8')), until)

    _, many = searched(FOUR, costs_of(), seconds=60)
    monkeypatch.setattr(Invented, 'run', run)
    search, few = searched(FOUR, costs_of(), seconds=60)
    assert search._fixed == pytest.approx(8 - 3000 * 0.001) and len(few.asked) < len(many.asked)


def test_with_a_target_each_ends_there_and_only_those_that_came_there_get_other_seeds(searched):
    search, made = searched(FOUR, costs_of())
    assert {flags['until_target'] for _, flags in made.asked} == {'true'}
    others = {trial for trial, flags in made.asked if flags['seed'] != '1'}
    assert others and not any(search.worth(trial)[0] for trial in others)
    _, made = searched(FOUR, costs_of(), Goal(None, 3.))
    assert {flags['until_target'] for _, flags in made.asked} == {'false'}


@pytest.mark.parametrize('late, is_there', [(3, True), (30, False)])
def test_an_unlucky_seed_is_simulated_on(searched, monkeypatch, late, is_there):
    """One that did not come there in its time is late; the setting need not be out of the race."""
    made = Invented.run

    def run(self, asked, then, until):
        def told(trial, row):
            needed = Invented.needed * 2 ** abs(trial.exponent - self.best)
            if self.asked[-1][1]['seed'] == '3' and int(row['examples']) < late * 32 * needed:
                row = dict(row, target_seconds='', target_examples='', accuracy='0.94')
            elif self.asked[-1][1]['seed'] == '3' and row['target_seconds']:
                row = dict(row, target_seconds=str(late * float(row['target_seconds'])),
                           target_examples=str(late * 32 * needed))
            then(trial, row)

        made(self, asked, told, until)

    monkeypatch.setattr(Invented, 'run', run)
    search, invented = searched(FOUR, costs_of(), seconds=600)
    others = [trial for trial, rows in search.found.items() if 3 in rows]
    there = [trial for trial in others if search.worth(trial)[0] == 0]
    assert others and bool(there) == is_there
    for trial in others:
        steps = [int(flags['local_steps']) for its, flags in invented.asked
                 if its == trial and flags['seed'] == '3']
        assert len(steps) <= 2 and (len(steps) == 1 or steps[1] == 2 * steps[0])
    if is_there:  # (1 + 1 + 3) / 3, and seeds that came later
        trial = search.best()[0]
        times = [float(row['target_seconds']) for row, _ in search.found[trial].values()]
        assert max(times) == pytest.approx(3 * min(times))


def test_workers_for_whom_there_is_no_time_come_last(searched):
    """With so many that each would make a few local steps only, nothing would be seen."""
    search, _ = searched(FOUR, costs_of())
    most = max(config.workers for config in search._space.rows)
    assert search._affordable_first('HogWild')[0].workers == most
    search._needed *= 10
    found = [config.workers for config in search._affordable_first('HogWild')]
    assert found[0] < most and sorted(found) == sorted(
        config.workers for config in search._space.rows if config.scheme == 'HogWild')


def test_many_workers_are_simulated_for_longer(searched):
    """As long as each made a step or two, they would look worse than they are."""
    search, _ = searched('33 hosts, 1 core, 10Gbit, 0.1ms', costs_of(), seconds=600)
    rung = RUNGS[-1]
    assert [search._enough(Config('HogWild', 1, workers, 1), rung) for workers in (2, 8, 32)] == [
        rung.steps * search._needed * times for times in (1, 1, 4)]
    search._needed = search._afford(rung.share, advise_search._FEW) / rung.steps / 4
    assert search._affordable_first('HogWild')[0].workers == 32
    search._needed *= 1.01  # now few of 32 workers could come to the end of the last rung
    assert search._affordable_first('HogWild')[0].workers < 32


def test_many_workers_are_tried_first_if_they_are_much_faster(searched):
    """32 that have one thread each may not be, and cost four times as long to simulate."""
    def first(text, costs):
        search, _ = searched(text, costs, seconds=6000)
        order = search._affordable_first('HogWild')
        rates = {config.workers: search._space.rate(config) for config in order}
        return order[0].workers, rates[32] / rates[8]

    workers, faster = first('33 hosts, 1 core, 10Gbit, 0.1ms', costs_of())
    assert workers == 32 and faster > 2
    slow = costs_of(step_1_thread=0.05, step_2_threads=0.02, one_process=0.02)
    workers, faster = first('9 hosts, 4 cores, 1Gbit, 0.1ms', slow)
    assert workers == 8 and 1 < faster < 2


def test_what_was_cut_short_and_may_be_the_soonest_goes_on(searched, clock):
    """What is there no sooner than another one does not, nor what was left before the last rung."""
    search, made = searched(FOUR, costs_of())
    first, *others = [trial for trial in search.ranked()
                      if trial.config != ONE and not search.worth(trial)[0]]
    late, early = others[:2]
    for trial, seconds, rung in ((first, 0., 2), (late, 99., 2), (early, 0., 1)):
        row, _ = search.found[trial][1]
        search.found[trial] = {1: (dict(row, target_seconds='', seconds=str(seconds)), rung)}
        search._steps[trial] = 100
    made.asked.clear()
    short = dict(search.found[first])
    search._deadline = clock.now  # there is no time
    search._finish()
    assert not made.asked and search.found[first] == short
    search._deadline = clock.now + search._wall
    search._finish()
    assert [trial for trial, _ in made.asked] == [first] and not search.worth(first)[0]


def test_within_a_time_all_that_counts_is_the_accuracy(searched, monkeypatch):
    """And not how soon it came to 1."""
    monkeypatch.setattr(Invented, 'needed', 10)
    search, _ = searched('5 hosts, 1 core, 1Gbit, 1ms', costs_of(), Goal(None, 0.1))
    assert all(row['target_seconds'] == '' for rows in search.found.values()
               for row, _ in rows.values())


class Process:
    """Stands for a process that simulates; it ends with a complaint for large step sizes."""

    def __init__(self, folder, name):
        self.name = name

    def simulate(self, asked):
        if asked['learning_rate'] == '9':
            sys.exit(f"{self.name}, {{'workers': '2'}}: predictions must be in [0, 1]")
        return {'accuracy': 0.5, 'loss': 0.1}

    def stop(self):
        pass

    def __exit__(self, *_):
        pass


def test_a_simulation_that_fails(tmp_path, monkeypatch):
    """It counts as one that diverged. A scheme is left out if all of it fails."""
    monkeypatch.setattr(advise_simulations, '_Process', Process)
    folder = advise_folders.Folder('HogWild', [], tmp_path)
    asked = [(number, name, {'learning_rate': rate}) for number, (name, rate) in enumerate(
        [('AGN', '1'), ('AGN', '9'), ('SSP', '9')])]
    found, now = {}, time.monotonic()
    with advise_simulations.Simulations(folder, tmp_path / 'all.csv', 1, now + 9) as simulations:
        simulations.run(asked, found.__setitem__, now + 9)
        late = {}
        simulations.run([(3, 'AGN', {'learning_rate': '2'}), *asked], late.__setitem__, now)
    assert found[0]['accuracy'] == '0.5' and found[1] == found[2] == advise_simulations.FAILED
    assert advise_search.worth(found[1])[0] == advise_search._DIVERGED
    assert simulations.left_out == {'SSP': 'predictions must be in [0, 1]'}
    assert list(late) == [0], 'what is in the file takes no time'


def test_one_process_is_simulated_as_one_worker_that_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(advise_simulations, '_Process', Process)
    folder, until, found = advise_folders.Folder('AGN', [], tmp_path), time.monotonic() + 9, {}
    with advise_simulations.Simulations(folder, tmp_path / 'all.csv', 1, until) as simulations:
        simulations.run([(0, ALONE, {'learning_rate': '1'})], found.__setitem__, until)
    assert found[0]['scheme'] == 'HogWild'


def test_who_is_stopped_does_not_complain(tmp_path, monkeypatch):
    """What ends because the search is over has not failed."""
    monkeypatch.setattr(advise_simulations, '_Process', Process)
    folder, now = advise_folders.Folder('HogWild', [], tmp_path), time.monotonic()
    with advise_simulations.Simulations(folder, tmp_path / 'all.csv', 1, now + 9) as simulations:
        monkeypatch.setattr(Process, 'simulate',
                            lambda self, _: (simulations.stop(), sys.exit('x')))
        found = {}
        simulations.run([(0, 'AGN', {'learning_rate': '1'})], found.__setitem__, now + 9)
    assert not found and not simulations.left_out


# The answer.

def entry_of(scheme, seconds, **values):
    """Returns what the answer has of a setting."""
    return dict({'scheme': scheme, 'seconds': seconds, 'from': seconds, 'to': seconds,
                 'accuracy': 0.9, 'loss': 0.1, 'simulated_seconds': 10., 'step_size': 0.1,
                 'workers': 2, 'workers_on_a_host': 1, 'ps': 1, 'window': 1,
                 'limited_by': 'computing', 'computes': 0.8, 'waits': 0., 'seeds': 1,
                 'reached': None}, **values)


def test_settings_are_compared_after_the_same_time():
    """Else who was simulated for longer would be better."""
    curve = [[1., 0.5], [10., 0.8], [20., 0.9]]
    short, long = (entry_of(name, None, accuracy=accuracy, simulated_seconds=seconds, curve=curve)
                   for name, accuracy, seconds in ((ALONE, 0.8, 10.), ('AGN', 0.9, 20.)))
    there = entry_of('SSP', 3., accuracy=0.95, simulated_seconds=4., curve=curve)
    assert advise_answer.compare_at_once([short, long, there]) == 10
    assert [each['accuracy'] for each in (short, long, there)] == [0.8, 0.8, 0.95]
    assert advise_answer.compare_at_once([there]) is None


SOME_UNTRIED = advise_words.Counts(100, 50, 20, 30, 60)
NONE_UNTRIED = advise_words.Counts(100, 50, 50, 0, 60)


def said_of(*entries, helps=(), counts=SOME_UNTRIED):
    """Returns the five sentences for entries."""
    ordered = advise_answer.one_process_first(list(entries))
    answer = types.SimpleNamespace(
        entries=ordered, best=ordered[0], helps=dict(helps), goal=TARGET, then=None,
        of=lambda name: next((each for each in ordered if each['scheme'] == name), None))
    return advise_words.sentences(answer, counts)


def test_what_hardly_pays_is_not_advised():
    hardly = entry_of('AGN', 9.5), entry_of(ALONE, 10.)
    said = said_of(*hardly, counts=NONE_UNTRIED)
    assert said[0].startswith('Stay on one machine: one process')
    assert said[1].startswith('To distribute it hardly pays: ')
    assert said[4].startswith('How sure that is: of 100 settings 50 cannot be fast enough, and 60 '
                              'simulations tried 50; the figures are of ')
    # One that was not tried may be soon enough.
    said = said_of(*hardly)
    assert said[0].startswith('As far as there was time to see, stay on one machine: one process')
    assert 'tried 20; for 30 there was no time, and more --minutes try them; the ' in said[4]
    assert said_of(entry_of('AGN', 11.), hardly[1])[0].startswith('Stay on one machine: ')
    # So may one that takes longer, if hardly any other was tried.
    few, enough = (advise_words.Counts(100, 0, tried, 100 - tried, 60) for tried in (19, 20))
    for seconds, counts, hedged in (15., few, True), (15., enough, False), (15.1, few, False):
        said = said_of(entry_of('AGN', seconds), hardly[1], counts=counts)
        assert said[0].startswith('As far as there was time to see, stay on') == hedged
        assert said[1].startswith('Of the few others that were tried none is sooner: the best of '
                                  'them, AGN with 2 workers') == hedged
        assert said[1].startswith('To distribute it does not pay: the best of the others, ') != (
            hedged)
    said = said_of(entry_of('AGN', 5.), entry_of(ALONE, 10.))
    assert said[0].startswith('Distribute it: AGN with 2 workers, 1 parameter server and a step ')
    assert said[1] == 'It pays: one process takes 10 s, 2 times as long.'
    assert said_of(entry_of('AGN', 5., workers=8, workers_on_a_host=4))[0].startswith(
        'Distribute it: AGN with 8 workers (up to 4 on a host), 1 parameter server and ')
    assert said[2] == ('What holds AGN up: hardly anything: its workers compute for 80% of their '
                       'time.')


def test_cores_that_are_busy_and_would_not_help():
    """Two workers on two cores keep them busy, and have no use for more."""
    entry = entry_of('AGN', 5., limited_by='the cores')
    assert 'all its processes share' in said_of(entry, helps={'twice the cores': 1.5})[2]
    assert said_of(entry, helps={'twice the cores': 1.01})[2].startswith(
        'What holds AGN up: nothing but computing: its 2 workers keep the cores busy')


def test_where_there_was_no_time_to_see():
    """Else a model whose simulations take long would stay on one machine for that alone."""
    alone = entry_of(ALONE, 10.)
    said = said_of(alone, entry_of('AGN', None, accuracy=0.8, simulated_seconds=4.))
    assert said[0].startswith('As far as there was time to see, stay on one machine: one process ')
    assert said[1].startswith('Whether it pays to distribute it is not known: there was no time ')
    assert said[1].endswith('it reaches an accuracy of 0.800 in 4 s. More --minutes tell more.')
    said = said_of(alone, entry_of('AGN', None, simulated_seconds=12.))
    assert said[0].startswith('Stay on one machine: one process ')
    assert said[1].startswith('To distribute it does not pay: ')
    some_seeds = entry_of('AGN', None, simulated_seconds=4., reached=1)
    assert said_of(alone, some_seeds)[1].startswith('To distribute it does not pay: ')


def test_where_one_process_came_to_nothing():
    """It is not said that it does not pay."""
    assert said_of(entry_of('AGN', 5.))[1] == (
        'Whether it pays is not known: one process came to no result with any step size.')
    assert said_of(entry_of(ALONE, 5.))[1].startswith('Whether something else is sooner')


@pytest.mark.parametrize('limit', advise_words._HOLDS_UP)
def test_each_limit_has_its_words(limit):
    assert said_of(entry_of('AGN', 5., limited_by=limit))[2].startswith('What holds AGN up: ')


class Told:
    """Stands for an `advise_clock.Oracle`: rates at higher costs, and with improvements."""

    def __init__(self, rates):
        self._rates = rates

    def ask(self, _, questions):
        found = []
        for question in questions:
            variants = question['variants']
            its = Config(question['name'], question['windows'][0], variants[0]['workers'][0],
                         variants[0]['ps'][0])
            times = {'low': 1.1, 'high': 0.9}
            found.append({'rows': [
                {'variant': number, 'rate': self._rates[its]['rate'] * (
                    times.get(variant.get('at'), 2 if 'improved' in variant else 1))}
                for number, variant in enumerate(variants)]})
        return found


@pytest.fixture
def answered(searched, tmp_path):
    """A function that answers for a cluster, in words, and costs."""
    def make(text, costs, goal=TARGET):
        search, _ = searched(text, costs, goal)
        folder = advise_folders.Folder('HogWild', [], tmp_path)
        return advise_answer.Answer(search, search._space, Told(search._space.rows), folder,
                                    advise_cluster.Cluster(text), goal)
    return make


def test_the_answer(answered, tmp_path):
    answer = answered('5 hosts, 1 core, 1Gbit, 20ms', costs_of())
    best = answer.best
    assert best['seconds'] == pytest.approx(400 / best['local_steps_per_second'])
    assert (best['from'], best['to']) == pytest.approx(
        (best['seconds'] / 1.1, best['seconds'] / 0.9), rel=1e-3)
    together = 4 if best['scheme'] == 'Local-SGD' else 1
    assert best['command'] == (
        f'WORKERS=4 PS=1 bash {best["scheme"]}/run.sh '
        f'--train_steps={-(-800 // (best["window"] * together))} '
        f'--communication_window={best["window"]} --learning_rate=0.3')
    said = answer.sentences()
    assert len(said) == 5 and said[0].startswith(
        f'Distribute it: {best["scheme"]} with 4 workers, 1 parameter server, an exchange after ')
    assert said[1].startswith('It pays: one process takes 0.4 s, ')
    assert 'twice the bandwidth (2 times as many local steps in a second)' in said[3]
    assert 'the figures are of 3 to 9 simulations each' in said[4]
    table = answer.table().splitlines()
    assert table[0].startswith('|  | window | step size | workers | ps | s to 95 % |')
    assert len(table) == 2 + len(answer.entries) <= 7
    assert any(line.startswith('| one process |') for line in table)
    assert answer.draw(tmp_path / 'accuracy.png')
    assert (tmp_path / 'accuracy.png').read_bytes().startswith(b'\x89PNG')
    found = json.loads(json.dumps(answer.as_json()))
    assert found['advised'][0]['scheme'] == best['scheme'] and found['target'] == 0.95


def test_the_commands_for_the_hosts(answered, tmp_path):
    """One for each task, as Clusters/several-hosts/README.md has them."""
    path = tmp_path / 'cluster.json'
    names = ['alpha', 'beta', 'gamma', 'delta', 'epsilon']
    path.write_text(json.dumps({
        'hosts': 5, 'cores': 1, 'rate': '1Gbit', 'round_trip': '20ms',
        'addresses': [f'{name}:2222' for name in names]}), encoding='utf-8')
    answer = answered(str(path), costs_of())
    best, commands = answer.best, answer.on_hosts()
    shared = ('--ps_hosts=alpha:2222 '
              '--worker_hosts=beta:2222,gamma:2222,delta:2222,epsilon:2222 --task_index=')
    assert commands[0] == f'alpha$ python ps.py {shared}0'
    assert commands[1:] == [
        f'{name}$ python worker.py {shared}{index} {" ".join(best["flags"])}'
        for index, name in enumerate(names[1:])]
    assert answer.as_json()['commands'] == commands
    assert answered('5 hosts, 1 core, 1Gbit, 20ms', costs_of()).on_hosts() == []


def test_stay_on_one_machine(answered):
    answer = answered('5 hosts, 1 core, 1Mbit, 2s', costs_of())
    assert answer.best['scheme'] == ALONE
    assert answer.best['command'] == ('bash Non-Distributed-Setup/run.sh --train_steps=800 '
                                      '--learning_rate=0.3 --num_threads=1')
    assert answer.sentences()[0].startswith('Stay on one machine: one process with a step size')
    assert answer.sentences()[1].startswith('To distribute it does not pay: ')
    assert (answer.best['from'], answer.best['to']) == pytest.approx((0.36, 0.44))


def test_the_start_is_predicted(answered):
    """In each figure; who pays a long start for little is not advised."""
    costs = costs_of(start=0.1, start_of_a_worker=2.)
    answer = answered('5 hosts, 1 core, 1Gbit, 20ms', costs)
    assert answer.best['scheme'] == ALONE and answer.best['seconds'] == pytest.approx(0.5)
    other = answer.entries[1]
    assert other['seconds'] == pytest.approx(2 + other['local_steps']
                                             / other['local_steps_per_second'])
    assert (answer.best['from'], answer.best['to']) == pytest.approx((0.46, 0.54))


def test_all_that_may_be_run(answered):
    """What was simulated comes first, with its prediction; the rest has none."""
    answer = answered('5 hosts, 1 core, 1Gbit, 20ms', costs_of())
    whole = answer.as_json()
    found = whole['candidates']
    assert whole['tried'] + whole['untried'] == len(found)
    assert whole['tried'] == len(answer._search.ranked())
    assert whole['settings'] == len(answer._space.rows)
    assert whole['ruled_out'] == len(answer._search.too_slow)
    assert len(found) == len(answer._space.rows) - len(answer._search.too_slow) + sum(
        trial.config in answer._search.too_slow for trial in answer._search.ranked())
    first = next(each for each in found if each['scheme'] == answer.best['scheme'])
    assert first['seconds'] == pytest.approx(answer.best['seconds'])
    assert f'--communication_window={first["window"]}' in first['flags']
    assert first['workers_and_ps'] == {'WORKERS': '4', 'PS': '1'}
    answer = answered('5 hosts, 1 core, 1Gbit, 20ms, steps 20ms longer', costs_of())
    delays = {each['scheme']: each['straggler'] for each in answer.candidates()}
    assert delays[ALONE] == '0:0.02' and delays['HogWild'].startswith('0:0.02,1:0.02')
    known = [each['seconds'] is not None for each in found]
    assert known == sorted(known, reverse=True) and not all(known)
    config = Config(*(found[-1][name] for name in Config._fields))
    likeliest, smaller, _ = (float(answer._space.step_size(Trial(config, each))[1])
                             for each in answer._space.exponents(config))
    assert found[-1]['step_size'] == likeliest > smaller
    whole, search = answer.as_json(), answer._search
    last = next(each.config for each in reversed(search.ranked())
                if each.config not in search.too_slow)
    for trial in [each for each in search.found if each.config == last]:
        del search.found[trial]
    less = answer.as_json()
    assert (less['tried'], less['untried']) == (whole['tried'] - 1, whole['untried'] + 1)


@pytest.mark.parametrize('row, what', [
    ({'processors': 0.99, 'computes': 0.9}, 'the cores'),
    ({'out of the ps': 0.97, 'into the ps': 0.9, 'pulls': 0.8}, 'the line out of the ps'),
    ({'updates': 0.95, 'pushes': 0.8}, 'updates on the ps'),
    ({'computes': 0.5, 'waits': 0.2, 'pulls': 0.2, 'pushes': 0.1}, 'computing'),
    ({'computes': 0.4, 'waits': 0.1, 'pulls': 0.3, 'pushes': 0.2}, 'pulls and pushes'),
    ({'computes': 0.3, 'waits': 0.7}, 'waiting')])
def test_what_limits(row, what):
    assert advise_answer.limited_by(row) == what


def test_when_a_curve_comes_to_a_target():
    assert advise_measure.reached([(1, 1., .5), (2, 3., .9), (3, 4., .95)], .7) == pytest.approx(2)
    assert advise_measure.reached([(1, 2., .8)], .4) == pytest.approx(1)
    assert advise_measure.reached([(1, 2., .8)], .9) is None


def test_what_the_first_runs_take_longer():
    """By hand: a host whose runs all take 2 s has no longer start; few runs are taken, too."""
    notes = [{'began': 1., 'times': [1.8, 1.9, 2., 2.1, 2.2, 2.3, 2.4]},  # 0.7 s longer
             {'began': 1., 'times': [3.3, 5.3, 7.3, 9.3, 11.3, 13.3]}]
    assert advise_measure.start_of(notes[1:], 0.1) == pytest.approx(0.3)
    assert advise_measure.start_of(notes, 0.1) == pytest.approx(0.7)
    del notes[0]['times'][3:]
    assert advise_measure.start_of(notes[:1], 0.1) == pytest.approx(0.7)
    notes[0]['began'] = 1.9
    assert advise_measure.start_of(notes[:1], 0.1) == 0.


@pytest.mark.parametrize('of_update, lost', [(10., 0.1), (40., 0.4)])
def test_how_long_tests_hold_up_the_training(of_update, lost):
    """By hand: of four workers one tests, for 0.4 s; where they wait for it, all lose that."""
    notes = [{'chief': True, 'began': 1., 'times': [9.], 'curve': [[0, 0., 0.1], [5, 3., 0.8]],
              'tested': [7., 0.4]}, {'chief': False, 'began': 1.2, 'times': [11.]},
             {'chief': False, 'began': 1., 'times': [9.]}]
    run = types.SimpleNamespace(find=lambda _: (12., re.match('(0.9)', '0.9')))
    setting = {'workers': 4, 'window': 10, 'local_steps_of_update': of_update}
    # The first test precedes training.
    assert advise_measure.curve_of(run, notes, setting) == [
        (0, 0., 0.1), (5, 3., 0.8), (None, pytest.approx(10. - lost), 0.9)]
    # For 0.8 s the three others train while the chief does not yet, unless they wait for it.
    notes[1]['began'] = 0.2
    more = 0.6 if of_update == 10. else 0.
    assert advise_measure.curve_of(run, notes, setting) == [
        (0, pytest.approx(more), 0.1), (5, pytest.approx(3. + more), 0.8),
        (None, pytest.approx(10. + more - lost), 0.9)]


# The program.

def start(*arguments):
    """Runs the program; returns its status and its lines."""
    done = subprocess.run(
        ['bash', str(ROOT / 'Simulation' / 'run.sh'), '--advise', *map(str, arguments)],
        env={'PYTHON': sys.executable, 'PATH': os.environ['PATH']}, check=False, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize('arguments, complaint', [
    (['--folder=nowhere'], '--folder=nowhere: there is no such folder.'),
    (['--folder=docs'], '--folder=docs: it has no model.py.'),
    (['--target=2'], '--target=2: an accuracy is at most 1'),
    (['--target=0.9', '--within=3'], '--target and --within: one of them'),
    (['--minutes=0'], 'argument --minutes: invalid number above 0'),
    (['--results_dir=/proc/self'], '--results_dir=/proc/self: '),  # no file can be made there
    (['--misspelt'], 'unrecognized arguments: --misspelt'),
    (['--run', f'--cluster={FOUR}'], '--run: it runs on this machine'),
    (['--schemes=FedAvg'], '--schemes=FedAvg: FedAvg is no candidate: its clients have the '),
    (['--schemes=AGN,Gossip'], '--schemes=AGN,Gossip: Gossip is no candidate: there is no center'),
    (['--schemes=Work-Queue'], '--schemes=Work-Queue: Work-Queue is no candidate: it makes the '),
    (['--schemes=AGM'], '--schemes=AGM: there is no AGM; there are AEAMSGD, '),
])
def test_bad_input(tmp_path, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as error:
        advise.main([f'--results_dir={tmp_path}', *arguments])
    assert str(error.value).startswith(complaint) and '\n' not in str(error.value)
    assert not capsys.readouterr().out


def test_kept_costs_that_lack_a_figure(tmp_path):
    """They may be edited: they are not measured again in silence."""
    costs = costs_of()
    del costs.figures['test']
    costs.write(tmp_path / 'costs.json')
    with pytest.raises(SystemExit) as error:
        advise.main([f'--results_dir={tmp_path}'])
    assert str(error.value) == (
        f'--costs={tmp_path / "costs.json"}: "test" is missing: what a test takes that process. '
        '--fresh measures all of it again.')


def test_a_flag_that_nobody_has(tmp_path):
    """The programs find it, and one line says it."""
    costs_of().write(tmp_path / 'costs.json')
    status, lines = start(f'--results_dir={tmp_path}', f'--costs={tmp_path / "costs.json"}',
                          '--schemes=AGN', '--', '--misspelt=3')
    assert status == 1
    assert lines[-1].startswith('The model cannot be simulated: ') and 'misspelt' in lines[-1]
    assert len(lines) == 2


@pytest.mark.thorough
def test_it_advises(tmp_path):
    """Really simulated, on a hopeless network: stay. A second start has it all in its files."""
    costs_of(one_process=0.25e-3, step_1_thread=0.1e-3).write(tmp_path / 'costs.json')
    arguments = (f'--results_dir={tmp_path}', f'--costs={tmp_path / "costs.json"}', '--jobs=1',
                 '--schemes=AGN', '--minutes=0.2', '--target=0.8',
                 '--cluster=3 hosts, 1 core, 1Mbit, 1s')
    status, lines = start(*arguments)
    assert status == 0, lines
    assert any(line.startswith('1. Stay on one machine: one process with ') for line in lines)
    found = json.loads((tmp_path / 'answer.json').read_text(encoding='utf-8'))
    assert [entry['scheme'] for entry in found['advised']] == [ALONE, 'AGN']
    assert found['advised'][0]['accuracy'] > 0.8 and not found['left_out']
    rows = (tmp_path / 'simulated.csv').read_text(encoding='utf-8').splitlines()
    status, again = start(*arguments)
    assert status == 0
    later = (tmp_path / 'simulated.csv').read_text(encoding='utf-8').splitlines()
    assert later[:len(rows)] == rows


@pytest.mark.thorough
def test_it_measures_and_runs(tmp_path):
    """All of it, on this machine."""
    status, lines = start(f'--results_dir={tmp_path}', '--schemes=HogWild,AGN', '--run')
    assert status == 0, lines
    costs = advise_costs.read(tmp_path / 'costs.json')
    assert 1e-5 < costs.get('step, 1 thread') < costs.get('exchange') < 0.1
    assert costs.get('parameters') == 4 * (64 * 128 + 128 + 128 * 10 + 10)
    assert [line for line in lines if line.startswith('| local steps/s |')]


@pytest.mark.thorough
def test_ctrl_c(programs, tmp_path):
    """It answers with what it has."""
    costs_of().write(tmp_path / 'costs.json')
    run = programs.start(
        [sys.executable, ROOT / 'Simulation' / 'advise.py', f'--results_dir={tmp_path}',
         f'--costs={tmp_path / "costs.json"}', '--minutes=5'], env={'PYTHONPATH': str(ROOT)})
    wait_until(lambda: any('best so far' in line for line in run.out), run)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait() == 0
    assert any('stopped before its end' in line for line in run.out)
    assert (tmp_path / 'answer.json').exists()


def test_it_knows_each_scheme_of_the_simulation():
    """What is no candidate makes the updates of another one, or has another model."""
    folder = advise_folders.Folder('HogWild', [], ROOT)
    assert set(schemes.folders()) - set(folder.names) == {
        'Distributed-MNIST', 'Distributed-Setup', 'Elastic-Workers', 'Parameter-Placement',
        'Work-Queue', 'Synchronous-SGD-different-learning-rates'}
    assert Trial(ONE, 0).config.scheme == ALONE
