"""The simulation: exact, repeated to the bit, and what its virtual cluster does is known by hand.

The toy problem: half squares around an optimum m, a worker's own, so that the gradient at x is
x - m. What a worker does is known from the equations, see `test_seam`.
"""

import collections
import contextlib
import csv
import gc
import json
import os
import re
import shutil
import signal
import sys
import types

from absl import flags
import numpy as np
import psutil
import pytest

from tfdist.data import problem
from tfdist.scheme import exchange, local_rules, schedule
from tfdist.scheme.toy import Problem
from tfdist.start.quiet import tf

from cases import briefly
from clock import Clock, Queue, Signal
from conftest import load_program, ROOT
import constants
from crew import Crew
import description
from events import Events
import experiments
import given
import links
import lives
from player import Player
from processes import wait_until, warm_python
from record import Record
import rounds
import schemes
import shards
from test_seam import (AT_ONCE, defaults, flat, is_together, of_each_kind, ONE_BY_ONE, RATE, RULES,
                       Sgd)
import timeline

START = [1., [0.5, -1.]]


class Optima:
    """A source of batches: the optimum of each worker, or those of a list in turn, by round."""

    def __init__(self, ms):
        self._ms, self.drawn = ms, collections.Counter()
        self.placeholders = [tf.placeholder(tf.float64, [])]

    def next(self, worker):
        mine = np.atleast_1d(self._ms[worker])
        self.drawn[worker] += 1
        return [np.float64(mine[(self.drawn[worker] - 1) % len(mine)])]


class Toy:
    """A cluster on the toy problem.

    Attributes:
      clock, player, record, life, crew: its parts.
      pushed: list of tuples for each push: worker, staleness or whether it was dropped, the global
        step, and its `rounds.Round`.
      exchanges: list of tuples for each pull and push: the virtual time, worker, and which it is.
    """

    def __init__(self, folder, ms, cluster, train_steps=60, seed=1, sleeps=0., **changes):
        program, pushed, self.exchanges = load_program(folder), [], []

        def make():
            variables = [tf.get_variable(f'x{i}', initializer=tf.constant(value, tf.float64))
                         for i, value in enumerate(START)]
            source = Optima(ms)

            def loss_at(values):
                m = tf.identity(source.placeholders[0])
                loss = sum(tf.reduce_sum(tf.square(value - m)) / 2 for value in values)
                return tf.cast(loss, tf.float32), tf.constant(0.)

            return Problem(loss_at, variables), source, None

        hparams = types.SimpleNamespace(**defaults(folder, **changes))
        self.player = Player(program.Scheme, make, hparams, len(ms), seed)
        push, compute = self.player.push, self.player.compute

        def note_pull(worker, *args):
            self.exchanges.append((self.clock.now, worker, 'pulls'))
            return compute(worker, *args)

        def note(worker, one, *args, **kwargs):
            self.exchanges.append((self.clock.now, worker, 'pushes'))
            figures = push(worker, one, *args, **kwargs)
            pushed.append((worker, figures.get('staleness', figures.get('dropped')),
                           figures.get('global_step'), one))
            return figures

        self.player.push, self.player.compute, self.pushed = note, note_pull, pushed
        self.clock = Clock()
        self.record = Record('toy', self.clock, train_steps, 1, self.player.test, 1)
        self.life = lives.kind_of(self.player)(
            self.clock, cluster, self.player, self.record, [sleeps] * len(ms), seed)
        self.crew = Crew(self.clock, cluster, self.life, seed)

    def run(self):
        self.clock.run(self.record.goes_on)
        return self


@pytest.fixture
def toy():
    """A function that makes a `Toy` and runs it; see there."""
    made = []

    def make(folder, workers, train_steps=60, seed=1, ms=None, changes=None, sleeps=0., **said):
        cluster = description.Cluster(workers=str(workers), **said)
        ms = np.random.RandomState(1).randint(4, 12, size=workers) / 4 if ms is None else ms
        made.append(Toy(folder, ms, cluster, train_steps, seed, sleeps, **(changes or {})))
        made[-1].ms = ms
        return made[-1].run()

    yield make
    for each in made:
        each.player.close()


def change(monkeypatch, folder, **attributes):
    """Has toys of a folder run its Scheme with some attributes set at the end of `make`."""
    def make(scheme, *args):
        super(changed, scheme).make(*args)
        vars(scheme).update(attributes)

    program = load_program(folder)
    changed = type('Scheme', (program.Scheme,), {'make': make})
    monkeypatch.setattr(program, 'Scheme', changed)
    # Toys would load it anew.
    monkeypatch.setattr(sys.modules[__name__], 'load_program', lambda _: program)


# Virtual time.

def test_who_wakes_up_when():
    clock, said, signal = Clock(), [], None

    def process(name, *waits):
        for wait in waits:
            yield wait if isinstance(wait, Signal) else clock.now + wait
            said.append((name, clock.now))

    signal = Signal(clock)
    closed = process('dead', 1)
    clock.start(process('a', 2, 0, 1))
    clock.start(process('b', 1, 1, signal))
    clock.start(process('c', 1, signal, 1))
    clock.start(closed)
    closed.close()
    clock.at(5, signal.fire)
    clock.run(lambda: True)
    assert said == [('b', 1), ('c', 1), ('a', 2), ('a', 2), ('b', 2), ('a', 3), ('c', 5), ('b', 5),
                    ('c', 6)]


def test_a_queue_serves_one_after_the_other():
    clock, done = Clock(), []
    one, two = Queue(clock), Queue(clock, 2)

    def come(seconds):
        done.append((one.serve(seconds), two.serve(seconds)))

    for time in 0, 1, 1, 10:
        clock.at(time, lambda: come(2))
    clock.run(lambda: True)
    assert done == [(2, 2), (4, 3), (6, 4), (12, 12)]
    assert clock.now == 10 and one.busy() == two.busy() == 6, 'of 8, two are to come'


def ends_of(clock, processes):
    """Runs processes, a dict by names; returns when each of them ends, another one."""
    ends = {}

    def noting(name, process):
        yield from process
        ends[name] = clock.now

    for name, process in processes.items():
        clock.start(noting(name, process))
    clock.run(lambda: True)
    return ends


def test_what_travels_takes_its_time():
    """1 kB over 8 kbit/s and a ps with 16: who comes second waits for the first."""
    clock = Clock()
    star = links.Star(clock, description.Cluster(
        workers='2', latency='100ms', bandwidth='8kbit', ps_bandwidth='16kbit', update='250ms'))
    there = ends_of(clock, {
        ('pulled', 0): star.to_worker(0, [500, 500]), ('pushed', 0): star.to_ps(0, [1000]),
        ('pulled', 1): star.to_worker(1, [500, 500]), ('pushed', 1): star.to_ps(1, [1000])})
    assert there == pytest.approx({('pulled', 0): 1.1, ('pulled', 1): 1.1,
                                   ('pushed', 0): 1.35, ('pushed', 1): 1.6})
    assert star.shares() == pytest.approx({'into the ps': 1 / 1.6, 'out of the ps': 1 / 1.6,
                                           'updates': 0.5 / 1.6})
    assert star.sent == 4000
    assert star.most_in_line() == pytest.approx(2000), 'two pushes come at the same time'
    assert links.Star(clock, description.Cluster()).most_in_line() is None, 'nothing ever waits'


def test_what_is_in_line_before_the_first_push_does_not_count():
    clock = Clock()
    star = links.Star(clock, description.Cluster(workers='9', ps_bandwidth='8kbit'))
    for worker in range(9):
        clock.start(star.to_worker(worker, [1000]))
    clock.start(star.to_ps(0, [1000]), at=20.)
    clock.start(star.to_worker(0, [3000]), at=30.)
    clock.run(lambda: True)
    assert star.most_in_line() == pytest.approx(3000)


def test_what_travels_is_spread_over_the_ps():
    clock = Clock()
    star = links.Star(clock, description.Cluster(ps='2', ps_bandwidth='8kbit', update='1s'))
    clock.start(star.to_ps(0, [1000, 500, 1000]))
    clock.run(lambda: True)
    assert clock.now == pytest.approx(2 + 2000 / 2500)


def test_a_ring_costs_what_the_formula_says():
    ring = links.Ring(Clock(), description.Cluster(workers='4', latency=['5ms', '1ms'],
                                                   bandwidth='8kbit'))
    assert ring.sum([1000, 3000]) == pytest.approx(6 * 4000 / 4 / 1000 + 7 * 2 * 0.005)
    assert ring.sent == 6 * 4000, 'four workers, a quarter in each of six hops'
    ring.asks = False
    assert ring.sum([1000, 3000]) == pytest.approx(6 * 4000 / 4 / 1000 + 6 * 0.005)
    assert links.Ring(Clock(), description.Cluster(workers='1', latency='1s')).sum([1]) == 0


@pytest.mark.parametrize('folder, exchanges', [
    ('HogWild', (32 + 24) / 24), ('Ring-AllReduce', 6 / 4)])
def test_parameters_are_taken_for_larger_ones(toy, folder, exchanges):
    """Three numbers of 8 bytes for 1 MB, over 1 MB/s; the pull has the global step, too."""
    links_ = dict(bandwidth='8Mbit') if folder == 'Ring-AllReduce' else dict(ps_bandwidth='8Mbit')
    workers = 4 if folder == 'Ring-AllReduce' else 1
    one = toy(folder, workers, train_steps=1, step=['0s'], parameters='1MB', **links_)
    assert one.clock.now == pytest.approx(exchanges)
    larger = toy(folder, workers, train_steps=1, step=['0s'], parameters='100MB', ps='5', **links_)
    on_each = 1 if folder == 'Ring-AllReduce' else 5
    assert larger.clock.now == pytest.approx(100 * one.clock.now / on_each)


def test_who_shares_processors_waits_for_them(toy):
    """On two, four workers are half as fast; what the runtime does takes its time, too."""
    alone = toy('HogWild', 4, step=['1ms'])
    shared = toy('HogWild', 4, step=['1ms'], cores='2')
    assert shared.clock.now == pytest.approx(2 * alone.clock.now)
    assert shared.life.processors.shares() == {'processors': pytest.approx(1)}
    assert alone.life.processors.shares() == {}
    # The run ends with the last push, before the worker hears of it, the last of five stages.
    one = toy('HogWild', 1, step=['1ms'], exchange='1ms')
    assert one.clock.now == pytest.approx(60 * 2e-3 - 0.2e-3)
    # Of 2.4 ms of work two processors make a half each: that is longer than the worker waits.
    one = toy('HogWild', 1, step=['1ms'], exchange='1ms', exchange_work='2.4ms', cores='2')
    assert one.clock.now == pytest.approx(60 * (1e-3 + 1.2e-3) - 0.24e-3)


def test_a_hop_of_a_ring_takes_its_time(toy):
    """A run has a beginning and an end, however many hops there are."""
    ring = toy('Ring-AllReduce', 4, train_steps=1, step=['1ms'], exchange='0.5ms', hop='2ms')
    assert ring.clock.now == pytest.approx(1.5e-3 + 6 * 2e-3)
    ring = toy('Ring-AllReduce', 4, train_steps=1, step=['1ms'], hop='2ms', hop_work='2ms',
               cores='2')
    assert ring.clock.now == pytest.approx(2e-3 + 6 * 4e-3)
    alone = toy('Ring-AllReduce', 1, train_steps=1, step=['1ms'], exchange='5ms', hop='5ms')
    assert alone.clock.now == pytest.approx(1e-3)


@pytest.mark.parametrize('latency, round_, pulls, pushes', [
    ('1ms', 10e-3, 0, 0), ('4ms', 16e-3, 3e-3, 3e-3), ('10ms', 40e-3, 15e-3, 15e-3)])
def test_who_pushes_what_it_pulled_computes_meanwhile(toy, latency, round_, pulls, pushes):
    """A pull and a push take two latencies each; the push needs no gradient.

    The first of two local steps of 5 ms needs no pull.
    """
    one = toy('AEASGD', 1, train_steps=2, step=['5ms'], latency=[latency])
    # It ends with the second push: that comes three latencies after the first round.
    pushed = 3 * float(latency[:-2]) / 1000
    assert one.clock.now == pytest.approx(round_ + pushed)
    assert [one.record.seconds[what] for what in ('computes', 'pulls', 'pushes')] == pytest.approx(
        [10e-3, pulls, pushes])
    # One thread does the one after the other.
    shared = toy('AEASGD', 1, train_steps=2, step=['5ms'], latency=[latency], cores='2')
    assert shared.clock.now == pytest.approx(2 * (10e-3 + pushed) + pushed / 3)
    # While it sleeps, it can receive; it sends when its first local step is over.
    asleep = toy('AEASGD', 1, train_steps=2, step=['1ms'], sleeps=0.004, latency=[latency],
                 cores='2')
    assert asleep.clock.now == pytest.approx(round_ + max(5e-3, pushed * 2 / 3) + pushed / 3)


@pytest.mark.parametrize('at_center', [False, True])
def test_whose_first_gradient_is_at_the_center_waits_for_its_pull(toy, monkeypatch, at_center):
    """Though its push needs no gradient: then nothing overlaps."""
    def make(self, network, global_step, hparams, *_):
        variables = network.variables
        self.own = [exchange.own_variable(variable.read_value(), f'own/{variable.op.name}')
                    for variable in variables]
        own = [variable.read_value() for variable in self.own]
        self.pull = exchange.pull(variables, global_step)
        self.pushed = [0.1 * (mine - other) for mine, other in zip(own, self.pull[1:])]
        values = self.pull[1:] if at_center else own
        for _ in range(hparams.communication_window):
            gradients, figures = network.gradients_at(values)
            values = exchange.add(values, gradients, -0.1)
        with tf.control_dependencies([exchange.assign(self.own, values)]):
            self.computed = exchange.mean([figures])
        with tf.control_dependencies([exchange.add_to(variables, self.pushed)]):
            self.push = exchange.count(global_step, self.pull[0])

    program = load_program('AEASGD')
    monkeypatch.setattr(program.Scheme, 'make', make)
    monkeypatch.setattr(sys.modules[__name__], 'load_program', lambda _: program)
    one = toy('AEASGD', 1, train_steps=2, step=['5ms'], latency=['1ms'])
    assert one.player.overlaps != at_center
    assert one.clock.now == pytest.approx(10e-3 + 3e-3 if not at_center else 14e-3 + 13e-3)


@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'AEAMSGD', 'DOWNPOUR', 'DC-ASGD'])
def test_whose_exchange_overlaps(toy, folder):
    assert toy(folder, 2, train_steps=1).player.overlaps == (folder == 'AEAMSGD')


def test_with_backups_the_chief_completes_steps_in_runs_of_their_own(toy):
    """Who is late meanwhile waits for it, too, and so all begin the next step together."""
    times = dict(train_steps=20, step=['1ms', '1.1ms'], latency=['1ms'])
    backup = toy('Synchronous-SGD', 2, changes=dict(replicas_to_aggregate=1), **times)
    # Pull, compute, push in 4 ms, and hear of it in 1 ms; the chief asks again in 2 ms, in time.
    assert backup.clock.now == pytest.approx(20 * 4e-3 + 19 * 1e-3)
    assert backup.record.accepted == 20 and backup.record.dropped == 19
    # Worker 1 pushes again after 1.1 ms, and waits until the chief has asked again.
    backup = toy('Synchronous-SGD', 2, changes=dict(replicas_to_aggregate=1),
                 **dict(times, latency=['1ms', '0ms']))
    assert backup.clock.now == pytest.approx(1.1e-3 + 19 * 2e-3)


@pytest.mark.parametrize('workers', [2, 8])
def test_a_worker_hears_of_a_step_one_latency_after_it_is_complete(toy, workers):
    """Pull in two latencies and push in one; the ps add the pushes one by one, and update."""
    latency, update, secs = 1e-3, 0.4e-3, [3e-3, 3.7e-3]
    one = toy('Synchronous-SGD', workers, train_steps=5, step=['3ms', '3.7ms'], latency=['1ms'],
              update='0.4ms')
    pulled, now = [], 0.
    for _ in range(5):
        pulled += [now + latency] * workers
        free = 0.
        for arrives in sorted(now + 3 * latency + secs[worker % 2] for worker in range(workers)):
            free = max(free, arrives) + update
        complete = free + update
        now = complete + latency
    assert [time for time, _, what in one.exchanges if what == 'pulls'] == pytest.approx(pulled)
    assert one.clock.now == pytest.approx(complete)


def test_the_token_of_a_late_worker_is_there(toy):
    """Worker 1 comes 3 ms after the step: it hears of both at once, after one latency."""
    one = toy('Synchronous-SGD', 2, train_steps=8, step=['4ms', '7ms'], latency=['1ms'],
              changes=dict(replicas_to_aggregate=1))
    assert [time for time, worker, what in one.exchanges if what == 'pulls' and worker][:3] == (
        pytest.approx([1e-3, 12e-3, 23e-3]))


# The scheme itself.

TIMES = dict(step=['lognormal:1ms:1'], latency=['1ms'], update='100us')


@pytest.mark.parametrize('folder, changes', of_each_kind(ONE_BY_ONE))
def test_one_by_one(toy, folder, changes):
    """Five workers in the order in which the virtual times bring them: as the equations say."""
    one = toy(folder, 5, changes=changes, **TIMES)
    rule = RULES[folder](flat(START), 5, **changes)
    late = 0
    # A worker computes when it pulls: after the pushes that it has seen, and before all others.
    rounds = {}
    for number, (worker, _, _, round_) in enumerate(one.pushed):
        rounds.setdefault(round_.step, []).append((number, worker))
    computed = {}
    for step in range(len(one.pushed) + 1):
        for number, worker in sorted(rounds.get(step, [])):
            computed[number] = rule.center, rule.compute(worker, rule.center, one.ms[worker])
        if step < len(one.pushed):
            worker, _, counted, round_ = one.pushed[step]
            assert counted == step + 1
            late = max(late, step - round_.step)
            rule.push(worker, *computed.pop(step), step - round_.step)
    assert flat(one.player.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
    assert late >= 3 and len(one.pushed) == 60
    assert abs(rule.center - flat(START)).min() > 0.01


@pytest.mark.parametrize('update', briefly(['0s', '1ms'], ['1ms']))
@pytest.mark.parametrize('folder, changes', of_each_kind(AT_ONCE))
def test_all_at_once_with_backups(toy, folder, changes, update):
    """Of eight workers six complete a step; who comes later is dropped, also during the update."""
    one = toy(folder, 8, train_steps=5, changes=dict(changes, replicas_to_aggregate=6),
              step=['lognormal:1ms:1'], update=update)
    rule, began = RULES[folder](flat(START), 8, **changes), collections.defaultdict(list)
    for worker, dropped, _, round_ in one.pushed:
        assert dropped == (sum(counts for _, counts in began[round_.step]) == 6)
        began[round_.step].append((worker, not dropped))
    assert sorted(began) == [0, 1, 2, 3, 4]
    for step in range(5):
        center = rule.center
        # What a worker keeps knows also of windows that are dropped.
        ways = [(rule.compute(worker, center, one.ms[worker]), counts)
                for worker, counts in began[step]]
        rule.push(None, None, np.mean([way for way, counts in ways if counts], axis=0), None)
    assert flat(one.player.center()) == pytest.approx(rule.center, rel=rule.tolerance,
                                                      abs=rule.tolerance)
    late = sum(dropped for _, dropped, _, _ in one.pushed)
    assert (one.record.accepted, one.record.dropped) == (30, late) and late >= 3


@pytest.mark.parametrize('workers, implementation, seconds', [
    (1, 'sockets', 1e-3), (4, 'sockets', 3e-3 + 6e-3), (4, 'ring', 3e-3 + 14e-3)])
def test_a_ring(toy, workers, implementation, seconds):
    """Over sockets a hop takes one latency; with queues a round trip, and one more to begin."""
    one = toy('Ring-AllReduce', workers, train_steps=5, step=['1ms', '3ms'], latency=['1ms'],
              changes=dict(implementation=implementation))
    rule = Sgd(flat(START), workers)
    for _ in range(5):
        rule.push(None, None, np.mean([rule.center - m for m in one.ms], axis=0), None)
    assert flat(one.player.center()) == pytest.approx(rule.center, rel=1e-9, abs=1e-9)
    assert one.clock.now == pytest.approx(5 * seconds)


@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'AEASGD', 'SSP', 'Synchronous-SGD'])
def test_one_worker_is_the_scheme_stepped_by_hand(toy, folder):
    one = toy(folder, 1, train_steps=4, ms=[0.5])
    by_hand = Toy(folder, [0.5], description.Cluster(workers='1'), 1).player
    by_hand.begin(0)
    for _ in range(4):
        by_hand.push(0, by_hand.compute(0))
        if is_together(by_hand.scheme):
            by_hand.complete()
    assert [value.tolist() for value in one.player.center()] == [
        value.tolist() for value in by_hand.center()]
    by_hand.close()


@pytest.mark.parametrize('folder', ['HogWild', 'AEASGD', 'Local-SGD'])
def test_a_seed_repeats_a_run_to_the_bit(toy, folder):
    def run(seed):
        one = toy(folder, 5, train_steps=20, seed=seed, **TIMES)
        return ([value.tobytes() for value in one.player.center()], one.clock.now,
                [(worker, figure) for worker, figure, _, _ in one.pushed])

    assert run(1) == run(1) != run(2)


# Several pulls and pushes in a round.

LATENCY = 0.3e-3
STEPS = 1e-3, 1.37e-3, 0.83e-3
OPTIMA = [[0.5, 2., -1.], [3., 1.25], [1.5, -0.5, 2.5, 0.]]  # by round
SAID = dict(step=['1ms', '1.37ms', '0.83ms'], latency=['0.3ms'])


def planned(n_fetch, n_push, lives_of):
    """Returns which worker pulls and pushes when, and after how many local steps of its life.

    Args:
      n_fetch: int.
      n_push: int.
      lives_of: list by worker of lists of pairs (seconds, seconds), when a life begins and ends.
    """
    events = []
    for worker, begins_and_ends in enumerate(lives_of):
        for now, end in begins_and_ends:
            of_life = []
            for t in range(500):
                if t % n_fetch == 0:
                    of_life.append((now + LATENCY, worker, 'pulls', t))
                    now += 2 * LATENCY
                now += STEPS[worker]
                if (t + 1) % n_push == 0:
                    of_life.append((now + LATENCY, worker, 'pushes', t + 1))
                    now += 2 * LATENCY
            events += [event for event in of_life if event[0] < end]
    return sorted(events)


def downpour(events, n_fetch, n_push, momentum, num_pushes):
    """Does by hand what DOWNPOUR does in an order; returns the center, and each push's staleness.

    Args:
      events: as `planned` returns them; those after the last push are left out.
      n_fetch: int.
      n_push: int.
      momentum: float, of the local steps.
      num_pushes: int.
    """
    rule, drawn, at, late = RULES['DOWNPOUR'](flat(START), 3), collections.Counter(), {}, []
    for _, worker, what, t in events:
        if what == 'pulls' and t == 0:  # a new life
            at[worker] = types.SimpleNamespace(t=0, a=0., u=0.)
        one = at[worker]
        while one.t < t:
            gradient = one.x - one.m
            one.u = momentum * one.u + gradient
            one.a, one.x, one.t = one.a + gradient, one.x - RATE * one.u, one.t + 1
        if what == 'pulls':
            if t % np.lcm(n_fetch, n_push) == 0:
                one.m = OPTIMA[worker][drawn[worker] % len(OPTIMA[worker])]
                drawn[worker] += 1
            one.x, one.pulled, one.mine = rule.center.copy(), len(late), 0
        else:
            rule.push(worker, None, one.a, None)
            late.append(len(late) - one.pulled - one.mine)
            one.a, one.mine = 0., one.mine + 1
        if len(late) == num_pushes:
            return rule.center, late


@pytest.mark.parametrize('momentum', briefly([0., 0.5], [0.5]))
@pytest.mark.parametrize('n_fetch, n_push', briefly(
    [(5, 10), (10, 5), (2, 3), (3, 2), (1, 4), (4, 4)], [5, 3, 4]))
def test_pulls_and_pushes_at_their_own_times(toy, monkeypatch, n_fetch, n_push, momentum):
    """Also when a worker dies in the midst of a round: it has pushed what it has pushed."""
    def rule(problem, learning_rate):
        made = local_rules.Momentum(learning_rate, momentum)
        made.begin(problem.variables)
        return made

    if momentum:
        monkeypatch.setattr(Problem, 'local_rule', rule)
    one = toy('DOWNPOUR', 3, ms=OPTIMA, die=['1:20.7ms'], come=['1:31ms'],
              changes=dict(n_fetch=n_fetch, n_push=n_push), **SAID)
    events = planned(n_fetch, n_push, [[(0, 9)], [(0, 20.7e-3), (31e-3, 9)], [(0, 9)]])
    center, late = downpour(events, n_fetch, n_push, momentum, 60)
    assert [exchange[1:] for exchange in one.exchanges] == [
        event[1:3] for event in events[:len(one.exchanges)]]
    assert [exchange[0] for exchange in one.exchanges] == pytest.approx(
        [event[0] for event in events[:len(one.exchanges)]])
    assert [int(staleness) for _, staleness, _, _ in one.pushed] == late
    assert flat(one.player.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
    assert max(late) >= 2 and sum(one.record.staleness.values()) == 60
    assert one.record.local_steps == 60 * n_push
    ended = sum(what == 'pushes' and t % np.lcm(n_fetch, n_push) == 0
                for _, _, what, t in events[:len(one.exchanges)])
    assert (one.record._whole.counts + one.record._line.counts)['loss'] == ended


@pytest.mark.parametrize('n_fetch, n_push', [(2, 3), (3, 2), (3, 5), (2, 4)])
def test_each_local_step_is_made_once(toy, monkeypatch, n_fetch, n_push):
    """What is random, such as dropout, is so once: what is pushed is what was computed with."""
    ran = []

    def gradients_at(problem, values):
        gradients, figures = of_problem(problem, values)
        drawn = tf.py_func(lambda m: ran.append(1) or m, gradients[:1], tf.float64)
        drawn.set_shape(gradients[0].shape)
        return [drawn, *gradients[1:]], figures

    of_problem = Problem.gradients_at
    monkeypatch.setattr(Problem, 'gradients_at', gradients_at)
    one = toy('DOWNPOUR', 1, ms=[OPTIMA[0]], train_steps=4 * np.lcm(n_fetch, n_push) // n_push,
              changes=dict(n_fetch=n_fetch, n_push=n_push), **SAID)
    assert len(ran) == one.record.local_steps == 4 * np.lcm(n_fetch, n_push)


@pytest.mark.parametrize('n_fetch, n_push, pulls, computes', [
    (2, 2, 2 + 0.032, 1 + 1), (1, 2, 4 + 0.064, 2 + 1), (2, 1, 2 + 0.032, 2 + 1)])
def test_what_the_pieces_of_a_round_take(toy, n_fetch, n_push, pulls, computes):
    """A stage is 1 s, and so is what both local steps take together; 1,000 bytes travel in 1 s.

    The worker gets or hears something, and computes, in one stage. A pull has three float64 and the
    global step, a push has no step, and the last one has not ended: the worker waits to hear of it.
    """
    one = toy('DOWNPOUR', 1, train_steps=2 // n_push, step=['0.5s'], exchange='5s',
              bandwidth=['8kbit'], changes=dict(n_fetch=n_fetch, n_push=n_push))
    assert one.clock.now == pytest.approx(pulls + computes + (1 + 0.024) * (2 // n_push))
    assert one.record.seconds == pytest.approx(
        dict(pulls=pulls, computes=computes, pushes=(1 + 0.024) * (2 // n_push), waits=0))


def test_the_pieces_of_a_round():
    def pieces(*exchanges):
        return [tuple(piece) for piece in rounds.pieces_of(exchanges)]

    def pull(after):
        return schedule.Pull(after, [])

    def push(after):
        return schedule.Push(after, [], [], {})

    assert pieces(pull(0), push(3)) == [('pulls', 0, 0), ('computes', 0, 3), ('pushes', 0, 3),
                                        ('waits', 0, 0)]
    assert pieces(pull(0), push(1), push(2), pull(2), push(3)) == [
        ('pulls', 0, 0), ('computes', 0, 1), ('pushes', 0, 1), ('computes', 0, 1), ('pushes', 1, 1),
        ('waits', 0, 0), ('pulls', 1, 0), ('computes', 0, 1), ('pushes', 2, 1), ('waits', 0, 0)]


def test_one_pull_and_one_push_are_what_they_are_without_lists(toy, monkeypatch):
    """To the bit."""
    def run(pulls):
        one = toy('DOWNPOUR', 5, **TIMES)
        assert len(one.player.scheme.pulls or []) == pulls
        return [value.tobytes() for value in one.player.center()], one.exchanges

    with_lists = run(1)
    change(monkeypatch, 'DOWNPOUR', pulls=None, pushes=None)
    assert run(0) == with_lists


# A scheme of a user's own, which has attributes with the names of parts.

def test_an_attribute_that_is_the_default_changes_nothing(toy, monkeypatch):
    """To the bit."""
    def run():
        one = toy('AGN', 3, train_steps=9)
        return [value.tobytes() for value in one.player.center()], one.exchanges

    plain = run()
    change(monkeypatch, 'AGN', gate=None)
    assert run() == plain


@pytest.mark.parametrize('name, value', [
    ('pulls', 0), ('pushes', 3), ('gate', 0), ('sums', 1.5), ('not_recorded', True)])
def test_an_attribute_that_is_no_such_part_is_told(toy, monkeypatch, name, value):
    change(monkeypatch, 'HogWild', **{name: value})
    with pytest.raises(SystemExit, match=f'^Scheme.{name} is {value}, but this is the name of a '):
        toy('HogWild', 2)


@pytest.mark.parametrize('folder, line, complaint', [
    ('AGN', 'self.gate = None', ''),
    ('HogWild', 'self.pulls = 0', r'Scheme\.pulls is 0, but this is the name of a part of ')])
def test_a_copied_folder_with_such_an_attribute(simulate, tmp_path, folder, line, complaint):
    """The program trains, or says it in one line."""
    shutil.copytree(str(ROOT / folder), str(tmp_path / 'Mine'))
    worker = tmp_path / 'Mine' / 'worker.py'
    before, make, after = worker.read_text(encoding='utf-8').partition(
        '    def make(self, network, global_step, hparams, task_index, num_workers):\n')
    worker.write_text(f'{before}{make}        {line}\n{after}', encoding='utf-8')
    status, out, err = simulate(f'--scheme={worker.parent}', '--workers=3', '--local_steps=300',
                                '--tests=1')
    if complaint:
        assert status == 1 and len(err) == 1 and re.match(complaint, err[0]), err
    else:
        assert status == 0 and not err and 'did 300 local steps' in out[3]


@pytest.mark.parametrize('name', ['tickets', 'other'])
def test_tickets_come_from_the_scheme_s_own_folder(simulate, tmp_path, name):
    """A copy may have a queue of its own; a model without examples to count is told."""
    shutil.copytree(str(ROOT / 'Work-Queue'), str(tmp_path / 'Mine'))
    path = tmp_path / 'Mine' / 'tickets.py'
    path.write_text(path.read_text(encoding='utf-8') + "\nprint('a queue of my own')\n",
                    encoding='utf-8')
    flags_ = ['--model=clicks', '--clicks_rows=300'] if name == 'other' else []
    status, out, err = simulate(f'--scheme={tmp_path / "Mine"}', '--workers=3',
                                '--local_steps=300', '--tests=1', *flags_)
    assert out[0] == 'a queue of my own'
    if flags_:
        assert status == 1 and err == ['The model clicks reads shards, and not tickets: it has no '
                                       'num_examples().']
    else:
        assert status == 0 and not err


def test_momentum_on_the_ps_is_that_of_a_model_with_such_an_optimizer(simulate, tmp_path):
    shutil.copytree(str(ROOT / 'HogWild'), str(tmp_path / 'Mine'))
    with open(tmp_path / 'Mine' / 'model.py', 'a', encoding='utf-8') as file:
        file.write('\n\ndef optimizer(learning_rate):\n'
                   '    return tf.train.MomentumOptimizer(learning_rate, 0.9)\n')
    ran = {}
    for scheme, *asked in [('HogWild', '--ps_momentum=0.9'), ('HogWild',), (tmp_path / 'Mine',)]:
        status, out, err = simulate(f'--scheme={scheme}', '--workers=3', '--local_steps=60',
                                    '--learning_rate=0.02', '--tests=2', *asked)
        assert status == 0 and not err
        ran[scheme, bool(asked)] = [line.partition(': ')[2] for line in out[1:-1]]
    assert ran['HogWild', True] == ran[tmp_path / 'Mine', False] != ran['HogWild', False]
    status, _, err = simulate(f'--scheme={tmp_path / "Mine"}', '--ps_momentum=0.5')
    assert status == 1 and err == [
        '--ps_momentum: the model has an optimizer of its own, change that one.']


# The kinds of lives.

@pytest.mark.parametrize('workers', [1, 2, 7])
def test_equal_workers_are_stale_by_all_others(toy, workers):
    one = toy('HogWild', workers, step=['1ms'])
    assert [staleness for _, staleness, _, _ in one.pushed[:workers]] == list(range(workers))
    assert {staleness for _, staleness, _, _ in one.pushed[workers:]} == {workers - 1}
    assert one.record.staleness == collections.Counter(
        [staleness for _, staleness, _, _ in one.pushed])


@pytest.mark.parametrize('scheme, window, every, after', [
    ('HogWild', 1, '5ms', [10, 20, 30, 40]), ('HogWild', 1, '15ms', [20, 40]),
    ('AEASGD', 4, '5ms', [40]), ('Synchronous-SGD', 1, '25ms', [30]),
    ('Ring-AllReduce', 1, '5ms', [10, 20, 30, 40]), ('Gossip', 1, '15ms', [20, 40]),
    ('FedAvg', None, '1s', [])])
def test_tests_between_the_rounds_of_worker_0(simulate, tmp_path, scheme, window, every, after):
    """The first one precedes training. Three workers make 24 local steps, of 10 ms each."""
    path = tmp_path / 'curve.csv'
    status, out, err = simulate(
        f'--scheme={scheme}', '--workers=3', '--step=10ms', '--local_steps=24', '--exchange=0s',
        '--latency=0s', f'--test_every={every}', f'--csv={path}',
        *([f'--communication_window={window}'] if window and window > 1 else []))
    assert status == 0 and not err
    with open(path, encoding='utf-8') as file:
        rows = list(csv.DictReader(file))
    assert [float(row['seconds']) for row in rows[:1 + len(after)]] == pytest.approx(
        [0, *(1e-3 * each for each in after)], abs=1e-3)
    assert int(rows[0]['step']) == 0 and not rows[0]['loss'] and float(rows[0]['test_accuracy'])
    assert any(re.search(r': step 0 of \d+, test accuracy [\d.]+, 0 steps/s, 0 s$', line)
               for line in out)


def test_nobody_tests_while_worker_0_is_away(simulate, tmp_path):
    """The others make their updates meanwhile, and there is a test at the end."""
    path = tmp_path / 'curve.csv'
    status, _, err = simulate('--scheme=HogWild', '--workers=2', '--step=10ms', '--local_steps=20',
                              '--die=0:35ms', '--test_every=1ms', f'--csv={path}')
    assert status == 0 and not err
    with open(path, encoding='utf-8') as file:
        *rows, last = csv.DictReader(file)
    assert [round(1e2 * float(row['seconds'])) for row in rows] == [0, 1, 2, 3]
    assert int(last['step']) == 20


def test_faster_workers_push_more(toy):
    one = toy('HogWild', 4, step=['1ms', '2ms'], train_steps=120)
    pushes = collections.Counter(worker for worker, _, _, _ in one.pushed)
    assert pushes == {0: 40, 1: 20, 2: 40, 3: 20}
    assert one.clock.now == pytest.approx(0.04)


@pytest.mark.parametrize('bound', [0, 1, 3])
def test_a_gate_holds_who_is_too_far_ahead(toy, bound):
    """One worker is five times as slow: the others are ahead by the bound, and never by more."""
    one = toy('SSP', 4, train_steps=100, step=['1ms', '1ms', '1ms', '5ms'],
              changes=dict(staleness_bound=bound))
    clocks, ahead = collections.Counter(), 0
    for worker, _, _, _ in one.pushed:
        clocks[worker] += 1
        ahead = max(ahead, clocks[worker] - min(clocks[i] for i in range(4)))
    assert ahead == bound + 1  # it has completed one that it was allowed to begin
    assert one.record.seconds['waits'] > 0.1 * one.clock.now


def test_a_gate_forgets_the_dead(toy):
    """Who died holds the others until it is known to be dead; who leaves, nobody."""
    def ends(**said):
        changes = dict(staleness_bound=1, dead_after_secs=0.5)
        return toy('SSP', 3, train_steps=30, step=['10ms'], changes=changes, **said).clock.now

    assert ends() == pytest.approx(0.1)
    assert ends(leave=['0:25ms']) == pytest.approx(0.15, abs=0.02)
    assert ends(die=['0:25ms']) == pytest.approx(0.525 + 0.1, abs=0.03)


def test_who_dies_between_pull_and_push_leaves_nothing(toy):
    def workers_of(one):
        """Returns who pushed, in order; the center is made of these pushes and nothing else."""
        rule = Sgd(flat(START), 2)
        computed = [rule.compute(worker, rule.center, one.ms[worker]) for worker in range(2)]
        for worker, *_ in one.pushed:
            rule.push(worker, None, computed[worker], None)
            computed[worker] = rule.compute(worker, rule.center, one.ms[worker])
        assert flat(one.player.center()) == pytest.approx(rule.center, rel=1e-9)
        return [worker for worker, *_ in one.pushed]

    said = dict(train_steps=9, step=['1ms', '1.5ms'])
    assert workers_of(toy('HogWild', 2, **said)) == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    one = toy('HogWild', 2, die=['1:4.2ms'], **said)
    assert workers_of(one) == [0, 1, 0, 1, 0, 0, 0, 0, 0]
    assert list(one.crew.there) == [0] and one.record.local_steps == 9


def test_a_worker_comes_back_as_a_new_one(toy):
    """Its replica begins at the center as it is then, as that of its program does."""
    one = toy('AEASGD', 2, train_steps=100, step=['0.5ms'], die=['1:20.5ms'], come=['1:50.5ms'])
    # Each takes 1 ms for its two local steps, and pushes before them.
    workers = [worker for worker, *_ in one.pushed]
    assert set(workers[42:72]) == {0} and set(workers[72:]) == {0, 1}
    rule = RULES['AEASGD'](flat(START), 2)
    centers = [rule.center]
    for number, (worker, _, _, its_round) in enumerate(one.pushed):
        if number == workers.index(1, 42):
            rule.own[1] = centers[its_round.step], 0
        center = centers[its_round.step]
        rule.push(worker, None, rule.compute(worker, center, one.ms[worker]), None)
        centers.append(rule.center)
    assert flat(one.player.center()) == pytest.approx(rule.center, rel=1e-9)


def test_workers_die_and_come_back_at_random(toy):
    one = toy('HogWild', 6, train_steps=3000, step=['1ms'], die_every='lognormal:50ms:1',
              back_after='20ms')
    rate = one.record.rate()
    assert 2500 < rate < 5500, rate  # 6,000 if nobody died; each is there 50 of 70 ms


def test_nobody_is_left(toy):
    one = toy('HogWild', 2, train_steps=1000, die=['0:5ms', '1:7ms'])
    assert one.record.goes_on() and one.life.stands() == 'no worker is left'
    one = toy('Synchronous-SGD', 3, train_steps=1000, die=['0:5ms'])
    assert one.life.stands() == '2 workers have pushed in this step, which takes 3'
    with pytest.raises(SystemExit, match='^Worker 2 is lost at 0.005 s: a ring cannot go on'):
        toy('Ring-AllReduce', 3, train_steps=1000, die=['2:5ms'])


def test_a_barrier_goes_on_with_who_comes_back(toy):
    """It has pushed in this step in its earlier life: that counts, and not again."""
    one = toy('Synchronous-SGD', 3, train_steps=20, step=['1ms', '1ms', '4ms'],
              die=['0:10ms'], come=['0:10.5ms'])
    assert one.record.step == 20
    counted = collections.Counter(round_.step for _, dropped, _, round_ in one.pushed
                                  if not dropped)
    assert set(counted.values()) == {3}


def test_memory_is_the_same_after_any_number_of_steps(toy):
    """Nothing is kept of a round that is over."""
    one = toy('AEASGD', 4, train_steps=20, **TIMES)

    def objects(step):
        one.clock.run(lambda: one.record.step < step)
        one.pushed.clear()
        one.exchanges.clear()
        gc.collect()
        return len(gc.get_objects())

    first, second, third = map(objects, [20, 2020, 4020])
    # An object for each step would be 2,000 more, both times; threads of other tests make some.
    assert min(second - first, third - second) < 1000


# What comes out.

def test_the_quantiles_of_the_staleness(toy):
    record = toy('HogWild', 1).record
    record._whole.staleness = collections.Counter({1: 50, 2: 40, 7: 9, 30: 1})
    record._line.staleness.clear()
    assert record.quantiles([.5, .51, .9, .99, 1]) == [1, 2, 2, 7, 30]
    assert record.mean_staleness() == pytest.approx((50 + 80 + 63 + 30) / 100)


def test_a_timeline(tmp_path, capsys):
    line = timeline.Timeline(begins=1.)
    line.add(0, 'computes', 0.5, 1.5)  # it began before
    for begins in range(1, 15):
        for worker in range(70):
            line.add(worker, 'computes', begins, begins + 0.5)
            line.add(worker, 'pushes', begins + 0.5, begins + 0.5 + worker / 100)
    trace = line.write(str(tmp_path / 'line.png'))
    assert (tmp_path / 'line.png').read_bytes()[1:4] == b'PNG'
    with open(trace, encoding='utf-8') as file:
        events = json.load(file)['traceEvents']
    assert len({event['tid'] for event in events}) == 70
    assert events[70] == {'name': 'computes', 'ph': 'X', 'pid': 0, 'tid': 0, 'ts': 1e6, 'dur': 5e5}
    assert max(event.get('ts', 0) for event in events) < 13e6, 'twelve rounds can be read'
    assert not any(event.get('dur') == 0 for event in events)
    assert capsys.readouterr().out == 'timeline: 64 of 70 workers are drawn; all are in the trace\n'


def test_the_board_has_the_virtual_clock(tmp_path):
    writer = Events(str(tmp_path))
    writer.add({'step': 3, 'seconds': 0.25, 'loss': 0.5}, 12.)
    writer.close()
    path, = tmp_path.glob('*')
    events = [event for event in tf.train.summary_iterator(str(path)) if event.summary.value]
    assert [(event.step, event.wall_time) for event in events] == [(3, 0.25)]
    assert {value.tag: value.simple_value for value in events[0].summary.value} == {
        'loss': 0.5, 'local_steps_per_second': 12}


# Many simulations.

def test_a_table_is_gone_on_with(tmp_path):
    path = tmp_path / 'results' / 'table.csv'
    with experiments.Scheme('HogWild') as scheme:
        table = experiments.Table(path, ['workers', 'train_steps'])
        rows = [table.simulate(scheme, {'workers': workers, 'train_steps': '50'})
                for workers in ('2', '4')]
    assert [row['steps'] for row in rows] == ['50', '50']
    assert float(rows[0]['staleness']) < 1.2 < float(rows[1]['staleness'])
    there = experiments.Table(path, ['workers', 'train_steps'])
    nobody = types.SimpleNamespace(name='HogWild')  # who is asked, fails
    assert there.simulate(nobody, {'workers': '4', 'train_steps': '50'}) == rows[1]


def test_what_a_folder_prepares_first(tmp_path):
    """By its own program, once, and of whichever numbers of workers a process simulates."""
    asked = {'records_dir': str(tmp_path), 'local_steps': '400', 'tests': '1'}
    with experiments.Scheme('Distributed-MNIST') as scheme:
        found = [scheme.simulate(dict(asked, **more)) for more in (
            {'workers': '2'}, {'workers': '20'},
            {'workers': '4', 'is_sync': 'true', 'learning_rate': '0.01'})]
    assert len(list((tmp_path / 'digits').glob('train-*'))) == 8
    assert [each['steps'] for each in found] == [400, 400, 100]
    assert min(each['accuracy'] for each in found) > 0.6
    assert 0 < found[0]['staleness'] < 1.5 < found[1]['staleness'] and not found[2]['staleness']


@pytest.mark.parametrize('folder', ['HogWild', 'Gossip'])
def test_a_metric_that_refuses_what_a_diverged_model_says(simulate, folder):
    """The AUC of the clicks refuses NaN on TensorFlow 1.15; the run ends as any that diverged."""
    status, out, err = simulate(f'--scheme={folder}', '--workers=2', '--model=clicks',
                                '--clicks_rows=100', '--local_steps=64', '--tests=2',
                                '--learning_rate=1e38')
    assert status == 0 and not err
    assert any('training diverged' in line for line in out)
    assert any(re.match(f'{folder}: test (loss nan|auc .*) after', line) for line in out)


def test_a_simulation_that_cannot_be_says_why(tmp_path):
    def simulate(name):
        with experiments.Scheme(name) as scheme:
            experiments.Table(tmp_path / 'table', ['workers']).simulate(scheme, {'workers': 'x'})

    with pytest.raises(SystemExit, match="^HogWild, {'workers': 'x'}: --workers: x is no number"):
        experiments.for_each(simulate, ['HogWild'] * 3, jobs=1)


def who_asks(programs, program, lines):
    """Starts a program that asks for simulations, and returns it when it has said so many lines."""
    asks = programs.start([sys.executable, '-c', program],
                          env={'PYTHONPATH': str(ROOT / 'Simulation')})
    wait_until(lambda: len(asks.out) >= lines, asks)
    return asks


def test_ctrl_c_ends_what_is_under_way(programs):
    """Also where it reaches only who asks: what is simulated ends, and nothing more begins."""
    ask = ('import sys\n'
           'import experiments\n'
           'def simulate(_):\n'
           "    with experiments.Scheme('HogWild') as scheme:\n"
           "        print('begins', flush=True)\n"
           "        scheme.simulate({'workers': '2', 'train_steps': '100000000'})\n"
           'try:\n'
           '    experiments.for_each(simulate, range(4), jobs=2)\n'
           'except KeyboardInterrupt:\n'
           '    sys.exit(3)\n')
    asks = who_asks(programs, ask, 2)
    os.kill(asks.pid, signal.SIGINT)
    assert asks.wait() == 3 and len(asks.out) == 2, str(asks)


def test_who_simulates_ends_with_who_asks(programs):
    """Also if that one is killed, and in the midst of a simulation."""
    ask = ('import experiments\n'
           "scheme = experiments.Scheme('HogWild')\n"
           "scheme.simulate({'workers': '2', 'train_steps': '10'})\n"
           'print(scheme._process.pid, flush=True)\n'
           "scheme.simulate({'workers': '2', 'train_steps': '1000000'})\n")
    asks = who_asks(programs, ask, 1)
    simulates = psutil.Process(int(asks.out[0]))
    worked = simulates.cpu_times().user
    wait_until(lambda: simulates.cpu_times().user > worked + 0.5, asks)
    os.kill(asks.pid, signal.SIGKILL)
    _, left = psutil.wait_procs([simulates], timeout=10)
    for process in left:
        process.kill()
    assert not left


def test_there_are_no_more_tests_than_steps(toy):
    record = toy('HogWild', 1).record
    assert Record(None, record._clock, 3, 1, dict, 10 ** 6)._test_at == [1, 2, 3]


def test_tests_are_often_at_first(toy):
    record = toy('HogWild', 1).record
    assert Record(None, record._clock, 1000, 1, dict, 10)._test_at == [
        10, 40, 90, 160, 250, 360, 490, 640, 810, 1000]


@pytest.mark.parametrize('accuracies, step, said', [
    ([.5, .8, 1., .9], 4 + 5 / 2, '90% after 6 steps, 65 examples, 13 s, between the tests at 4 '
     'and 9'),
    ([.95, .8, 1., .9], 1, '90% after 1 steps, 10 examples, 2 s, the first test'),
    ([.5, .6, .7, .9], 16, '90% after 16 steps, 160 examples, 32 s, between the tests at 9 and 16'),
    ([.5, .6, .7, .8], None, '90% in none of the 4 tests: the run ends with 16 local steps, 8 by '
     'each worker, and --local_steps= makes it longer')])
def test_when_the_target_is_reached(capsys, accuracies, step, said):
    """On a straight line between two tests; here a step takes 2 s."""
    clock, left = types.SimpleNamespace(now=0.), list(accuracies)
    record = Record('toy', clock, 16, 10, lambda: {'accuracy': left.pop(0)}, 4, target=0.9)
    while record.goes_on():
        clock.now += 2
        record.add({}, 1)
        record.reach(record.step + 1)
    record.done({}, 2)
    found = record.reached_target
    assert (found and found['step']) == pytest.approx(step)
    if step:
        assert (found['examples'], found['seconds']) == pytest.approx((10 * step, 2 * step))
    assert capsys.readouterr().out.splitlines()[-1] == f'toy: {said}'


def test_until_the_target():
    """It ends with the test that is there; with --until_target only."""
    clock, left = types.SimpleNamespace(now=0.), [.5, .95, 1., 1.]
    record = Record(None, clock, 16, 10, lambda: {'accuracy': left.pop(0)}, 4, target=0.9,
                    until_target=True)
    while record.goes_on():
        record.add({}, 1)
        record.reach(record.step + 1)
    assert record.step == 4 and record.done({}, 2) == {'accuracy': .95}


# Batches.

def test_each_worker_reads_its_own_shard():
    """All examples of it, once in each epoch, in an order of its own."""
    arrays = [np.arange(20).reshape(20, 1).astype(float), np.arange(20)]
    with tf.Graph().as_default():
        def read(seed):
            source = shards.Arrays(arrays, 2, 5, [(0, 2), (1, 2)], [seed] * 2)
            return [[source.next(worker) for _ in range(3)] for worker in range(2)]

        runs = read(1)
        for worker, own in enumerate(runs):
            for points, classes in own:
                assert points.shape == (5, 2, 1) and points.dtype == np.float32
                assert sorted(classes.ravel()) == list(range(worker, 20, 2))
                assert (points[..., 0] == classes).all()
            assert len({tuple(classes.ravel()) for _, classes in own}) == 3
        again, other = read(1), read(2)
        assert str(runs) == str(again) != str(other)


def test_more_workers_than_examples():
    with tf.Graph().as_default():
        source = shards.Arrays([np.arange(3)], 2, 2, [(i, 5) for i in range(5)], [1] * 5)
        read = [set(source.next(worker)[0].ravel()) for worker in range(5)]
    assert read == [{0}, {1}, {2}, {0}, {1}]


def test_a_model_with_its_own_batches_reads_them_in_the_order_of_a_run():
    program = load_program('HogWild')

    def train_batches(*args):
        return problem.train_batches(*args)

    flags.FLAGS.mark_as_parsed()
    model = types.SimpleNamespace(train_batches=train_batches)
    with tf.Graph().as_default():
        source = shards.of_model(model, 4, 3, [(0, 2), (1, 2)], [7, 7])
        assert isinstance(source, shards.Iterators)
        mine = [source.next(1) for _ in range(2)]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)  # as programs do
        own = tf.nest.flatten(program.model.train_batches(4, 3, 1, 2, 7))
        session.run(tf.tables_initializer())
        for values in mine:
            for value, same in zip(values, session.run(own)):
                assert (value == same).all()


POINTS = np.random.RandomState(3).randn(4000, 10).astype(np.float32)


def of_large_data(batch_size, count, shard, num_shards, seed):
    """Batches of whole data in each graph: by a dataset, as a constant, and by Python."""
    points = tf.data.Dataset.from_tensor_slices((POINTS, np.arange(4000)))
    points = points.shard(num_shards, shard).shuffle(50, seed=seed).repeat()
    iterator = tf.data.make_initializable_iterator(points.batch(batch_size * count))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    images, places = iterator.get_next()
    return [(images[i::count], tf.gather(tf.constant(POINTS), places[i::count]))
            for i in range(count)]


def by_python(*args):
    """As `of_large_data`, by a function of Python."""
    return [(images, tf.py_func(lambda same: same + 0, [same], tf.float32))
            for images, same in of_large_data(*args)]


@pytest.mark.parametrize('train_batches, kept', [(of_large_data, 1), (by_python, 0)])
def test_large_data_are_kept_once(monkeypatch, train_batches, kept):
    """Not once in the graph of each worker; and what is read is the same, to the bit."""
    def read(arrays_are_kept):
        sizes = []

        def reader(graph, begin, fetches, fed):
            sizes.append((graph.as_graph_def().ByteSize(), {id(array) for array in fed.values()
                                                            if array.dtype == np.float32}))
            return of_graph(graph, begin, fetches, fed)

        of_graph = shards.Iterators._reader
        with monkeypatch.context() as patched, tf.Graph().as_default():
            patched.setattr(shards.Iterators, '_reader', staticmethod(reader))
            if not arrays_are_kept:
                patched.setattr(constants, '_LARGE', 2 ** 30)
            source = shards.of_model(types.SimpleNamespace(train_batches=train_batches), 4, 3,
                                     [(0, 2), (1, 2)], [7, 7])
            return [[array.tobytes() for array in source.next(worker)]
                    for worker in (0, 1, 1, 0)], sizes

    (with_them, sizes), (without, whole) = read(True), read(False)
    assert with_them == without and with_them[0] != with_them[1]
    assert all(images == same for one in with_them for images, same in zip(one[::2], one[1::2]))
    assert min(size for size, _ in whole) > POINTS.nbytes
    assert (max(size for size, _ in sizes) < POINTS.nbytes / 2) == bool(kept)
    assert [len(arrays) for _, arrays in sizes] == [kept] * 2
    assert sizes[0][1] == sizes[1][1], 'both workers have the same array'


# The description.

def test_a_description():
    path = description.PRESETS / 'ethernet.json'
    said = json.loads(path.read_text(encoding='utf-8'))
    cluster = description.Cluster('ethernet', workers='12', step=['2ms', '4ms'], latency=[])
    assert cluster.workers == 12 and cluster.bandwidth == [1.25e9]
    assert cluster.latency == [description.seconds(said['latency'])]
    assert [cluster.of('step', worker).draw(None, 3) for worker in range(3)] == pytest.approx(
        [0.006, 0.012, 0.006])


@pytest.mark.parametrize('preset', sorted(path.stem for path in description.PRESETS.glob('*')))
def test_presets_are_whole(preset):
    assert description.Cluster(preset).about


def test_times_have_the_means_that_they_say(tmp_path):
    random = np.random.RandomState(1)
    (tmp_path / 'trace').write_text('1ms\n3ms\n', encoding='utf-8')
    for text, mean in [('2ms', 2), ('lognormal:2ms:0.5', 2), ('pareto:1ms:3', 1.5),
                       ('trace:trace', 2), ('drawn:trace', 2)]:
        times = description.Times(text, tmp_path)
        assert times.draw(random, 100000) / 100 == pytest.approx(mean, rel=0.02), text


def test_a_trace_is_followed_in_its_order(toy, tmp_path):
    """Its bursts stay bursts; workers that share it begin at even distances, and go on by it."""
    path = tmp_path / 'trace'
    path.write_text('1ms 2ms 3ms 40ms 50ms 6ms', encoding='utf-8')
    one = toy('HogWild', 3, train_steps=9, step=[f'trace:{path}'])
    pushed = [(round(1e3 * time), worker) for time, worker, what in one.exchanges
              if what == 'pushes']
    assert pushed == [(1, 0), (3, 1), (3, 0), (6, 0), (43, 1), (46, 0), (50, 2), (56, 2), (57, 2)]
    times = [description.Times(f'trace:{path}'), description.Times(f'drawn:{path}')]
    random = np.random.RandomState(1)
    drawn = [[round(1e3 * each.draw(random, 2)) for _ in range(3)] for each in times]
    assert drawn[0] == [3, 43, 56] != drawn[1]


def test_a_time_at_which_workers_die_may_be_of_a_trace(tmp_path):
    """To look at it is not to follow it."""
    (tmp_path / 'trace').write_text('1ms 2ms 3ms', encoding='utf-8')
    cluster = description.Cluster(die_every=f'trace:{tmp_path / "trace"}')
    assert cluster.die_every.draw(None, 1) == 1e-3


@pytest.mark.parametrize('said, without, words', [
    (dict(), (), 'step lognormal:2ms:0.1, latency 30us, bandwidth 10Gbit, ps_bandwidth 10Gbit, '
     'update 50us (ethernet); workers 8, ps 1 (default)'),
    (dict(bandwidth=['1Gbit', '2Gbit'], workers='3', hop='1ms'), ('update', 'ps'),
     'workers 3, hop 1ms, bandwidth 1Gbit,2Gbit (flags); step lognormal:2ms:0.1, latency 30us, '
     'ps_bandwidth 10Gbit (ethernet)')])
def test_a_cluster_in_words(said, without, words):
    """What a flag leaves as it was in the file is told as the file's."""
    assert description.Cluster('ethernet', **said).words(without) == words


@pytest.mark.parametrize('said, complaint', [
    (dict(workers='0'), '--workers: 0 is no number from 1 to 65536.'),
    (dict(workers='many'), '--workers: many is no number from 1 to 65536.'),
    (dict(step=['-1ms']), '--step: -1 is no number of at least 0.'),
    (dict(step=['1h']), '--step: 1h is no time, such as 2ms.'),
    (dict(step=['normal:1:2']), '--step: there is no distribution normal; there are constant, '
     'lognormal, pareto, trace and drawn.'),
    (dict(step=['2']), '--step: 2 has no unit: give 2s, 2ms or 2us.'),
    (dict(bandwidth=['1e9']), '--bandwidth: 1e9 has no unit: give 1e9bit, 1e9kbit, 1e9Mbit or '),
    (dict(die=['3:10']), '--die: 10 has no unit: give 10s, 10ms or 10us.'),
    (dict(step=['pareto:1ms']), '--step: pareto takes 2 numbers, not 1.'),
    (dict(step=['pareto:1ms:0']), '--step: 0 is no number above 0.'),
    (dict(step=['trace:/dev/stdin/none']), '--step: /dev/stdin/none cannot be read (Not a '),
    (dict(die=['²:1s']), '--die: ²:1s is not of the form worker:time, such as 3:10s.'),
    (dict(die_every='0s'), '--die_every: after 0 s nobody has lived. Give a time above 0.'),
    (dict(step=['trace:none']), '--step: none cannot be read (No such file or directory).'),
    (dict(parameters='-1MB'), '--parameters: -1 is no number above 0.'),
    (dict(parameters='much'), '--parameters: much is no size, such as 100MB.'),
    (dict(bandwidth=['0']), '--bandwidth: 0 is no number above 0.'),
    (dict(bandwidth=['fast']), '--bandwidth: fast is no bandwidth, such as 10Gbit.'),
    (dict(links='fair'), '--links: fair is neither turns nor shared.'),
    (dict(latency=['nan']), '--latency: nan is no time, such as 2ms.'),
    (dict(die=['3']), '--die: 3 is not of the form worker:time, such as 3:10s.'),
    (dict(die=['8:1s']), '--die: there is no worker 8; there are 8, from 0.'),
    (dict(back_after='1s'), '--back_after: without --die_every nobody dies so.'),
    (dict(file='nowhere'), '--cluster=nowhere: there are '),
    (dict(file='no/where.json'), '--cluster=no/where.json: it cannot be read (No such file or '
     'directory).'),
])
def test_what_is_wrong_in_a_description(said, complaint):
    with pytest.raises(SystemExit, match='^' + re.escape(complaint)):
        description.Cluster(**said)


@pytest.mark.parametrize('text, complaint', [
    ('{"worker": 3}', 'what is "worker"? There are about, workers, '),
    ('{"workers": -3}', 'workers: -3 is no number from 1 to 65536.'),
    ('{"step": []}', 'step: it is empty.'),
    ('{"step": {"mean": "1ms"}}', "step: {'mean': '1ms'} is no time, such as 2ms."),
    ('{"workers": {"number": 3}}', "workers: {'number': 3} is no number from 1 to 65536."),
    ('{"latency": NaN}', 'latency: nan is no time, such as 2ms.'),
    ('{"update": ["1ms", "2ms"]}', "update: ['1ms', '2ms'] is no time, such as 2ms."),
    ('{"step": "trace:mine.json"}', 'mine.json: {"step": is no time, such as 2ms.'),
    ('{"step": 3', 'it is no JSON ('),
    ('{"step": "1ms", "ps": 2, "step": "2ms"}', 'it has "step" twice.'),
    ('{"update": 0.5}', 'update: 0.5 has no unit: give 0.5s, 0.5ms or 0.5us.'),
    ('[3]', 'it has to be an object, {"workers": 8, ...}.'),
])
def test_what_is_wrong_in_a_file(tmp_path, text, complaint):
    path = tmp_path / 'mine.json'
    path.write_text(text, encoding='utf-8')
    with pytest.raises(SystemExit) as raised:
        description.Cluster(str(path))
    assert complaint in str(raised.value) and str(path) in str(raised.value)
    assert '\n' not in str(raised.value)


# The program.

@pytest.fixture
def simulate(programs):
    """A function that runs the program; returns its status, and what it says on both streams."""
    def run(*arguments):
        run = programs.start([warm_python(), ROOT / 'Simulation' / 'simulate.py', *arguments])
        return run.wait(), run.out, run.err

    return run


def test_the_program(simulate, tmp_path):
    """Two runs say the same, and write the same, but for the time that they took."""
    runs = []
    for name in 'first', 'second':
        path = tmp_path / name
        status, out, err = simulate('--scheme=AGN', '--workers=4', '--train_steps=200',
                                    '--learning_rate=0.1', '--tests=2', '--target=0.9',
                                    f'--csv={path}')
        assert status == 0 and not err
        runs.append((out[:-1], path.read_text(encoding='utf-8')))
    assert runs[0] == runs[1]
    out, curve = runs[0]
    assert len(out) == 8 and out[1] == 'AGN: starts at step 0 of 200'
    assert out[0] == ('AGN: cluster: workers 4 (flags); step lognormal:2ms:0.1, latency 30us, '
                      'bandwidth 10Gbit, ps_bandwidth 10Gbit, update 50us (ethernet); ps 1 '
                      '(default)')
    out = out[1:]
    assert re.fullmatch(r'AGN: step 50 of 200, loss \d\.\d+, accuracy 0\.\d+, staleness \d\.\d '
                        r'\(max \d\), test accuracy 0\.\d+, \d+ steps/s, 0\.\d+ s', out[1])
    assert re.search(r', updates \d+%, at most 0\.\d+ MB in line, \d+ steps/s$', out[3])
    assert re.fullmatch(r'AGN: staleness of 50% at most 3, 90% at most \d, 99% at most \d', out[4])
    assert float(re.match(r'AGN: test accuracy (\S+) after 200 steps', out[5])[1]) > 0.9
    assert re.fullmatch(r'AGN: 90% after \d+ steps, \d+ examples, 0\.\d+ s, '
                        r'(the first test|between the tests at 50 and 200)', out[6])
    assert [row.split(',')[:2] for row in curve.splitlines()] == [
        ['step', 'examples'], ['50', '16000'], ['200', '64000']]


@pytest.mark.parametrize('arguments, complaint', [
    ([], '--scheme= is missing: one of AEAMSGD, '),
    (['--scheme=Nobody'], '--scheme=Nobody: there is no such folder. There are AEAMSGD, '),
    (['--scheme=Gossip', '--workers=3', '--roles=bipartite'], '--roles=bipartite needs an even '),
    (['--scheme=In-Graph-Replication'], '--scheme=In-Graph-Replication: it has no worker.py '),
    (['--scheme=AGN', '--workers=-3'], '--workers: -3 is no number '),
    (['--scheme=AGN', '--hop_work=1ms'], '--hop_work: without --cores nobody shares '),
    (['--scheme=AGN', '--exchange_work=1ms'], '--exchange_work: without --cores nobody shares '),
    (['--scheme=AGN', '--timeline=a.png', '--timeline_from=x'], '--timeline_from: x is no time'),
    (['--scheme=AGN', '--test_every=3'], '--test_every: 3 has no unit'),
    (['--scheme=AGN', '--test_every=0s'], '--test_every=0s: it has to be above 0s'),
    (['--scheme=AGN', '--test_every=1s', '--tests=3'], '--tests'),
    (['--scheme=AGN', '--csv=no/where.csv'], '--csv=no/where.csv: it cannot be written (No such '),
    (['--scheme=HogWild', '--die=0:1ms', '--workers=1'], 'Nothing happens after 0.00'),
    (['--scheme=', '--workers=3'], '--scheme= is missing: one of AEAMSGD, '),
    (['--scheme=HogWild', '--step=1e308s'], 'Nothing more happens: what comes next takes more '),
    (['--scheme=HogWild', '--step=0s', '--latency=0s', '--bandwidth=inf', '--ps_bandwidth=inf',
      '--update=0s'], 'Time stands still at 0 s: what a worker does takes none. Give a --step '),
    (['--scheme=HogWild', '--workers=2', '--die_every=1us', '--back_after=1us'],
     '--die_every: workers have come back 10021 times since update 0, and died before the next '),
    (['--scheme=HogWild', '--board=/dev/null'], '--board=/dev/null cannot be made or written '),
    (['--scheme=HogWild', '--timeline=a.json'], '--timeline=a.json: the name of a picture ends '),
    (['--scheme=HogWild', '--without=3'], '--without: that is of --replay=, which is missing.'),
    (['--scheme=HogWild', '--order_dir=order'], '--order_dir: a real run writes its order, a '),
    (['--scheme=HogWild', '--model_dir=here', '--notes_dir=here', '--eval_every_secs=9',
      '--save_checkpoint_secs=9', '--worker_hosts=a:1,b:1', '--hop=1ms', '--seed=2'],
     '--eval_every_secs, --hop, --model_dir, --notes_dir, --save_checkpoint_secs, --worker_hosts: '
     'a simulation of HogWild has no use for them.'),
    (['--scheme=AGN', '--ps_momentum=0.9'], '--ps_momentum: a simulation of AGN has no use for it'),
    (['--scheme=HogWild', '--straggler=99:1'], '--straggler: there is no worker 99; there are 8, '),
])
def test_complaints_of_the_program(simulate, arguments, complaint):
    status, _, err = simulate(*arguments)
    assert status == 1 and len(err) == 1 and err[0].startswith(complaint), err


@pytest.mark.parametrize('arguments, these, but, complaint', [
    (['--read=3'], [], [], ''),
    (['--read=3', '--not_read=4'], [], [], '--not_read: nobody has no use for it.'),
    (['--noswitch', '--not_read=4'], [], [], '--not_read, --switch: nobody has no use for them.'),
    (['--not_read=4'], [], ['not_read'], ''),
    (['--read=3'], ['read'], [], '--read: nobody has no use for it.')])
def test_flags_in_vain(monkeypatch, arguments, these, but, complaint):
    """Those that are given, and that nothing reads."""
    given_flags = flags.FlagValues()
    for name in 'read', 'not_read':
        flags.DEFINE_integer(name, 1, 'a number', flag_values=given_flags)
    flags.DEFINE_boolean('switch', True, 'a switch', flag_values=given_flags)
    given_flags(['program', *arguments])
    monkeypatch.setattr(given, 'FLAGS', given_flags)
    value = flags.Flag.value
    with (pytest.raises(SystemExit, match=f'^{complaint}$') if complaint else
          contextlib.ExitStack()):
        with given.refused_in_vain('nobody', these, but):
            assert given_flags.read in (1, 3)
    assert flags.Flag.value is value


def test_all_folders_with_workers_are_found():
    assert schemes.folders() == sorted(RULES)


@pytest.mark.thorough
@pytest.mark.parametrize('scheme, flags', [
    *((name, []) for name in RULES if name != 'AGN'), ('Distributed-MNIST', ['--is_sync'])])
def test_each_folder(simulate, scheme, flags):
    """With its own model and its own flags."""
    status, out, err = simulate(f'--scheme={scheme}', '--workers=3', '--local_steps=2400',
                                '--tests=1', *flags)
    assert status == 0 and not err
    assert float(re.search(r'test accuracy (\S+)', out[-3])[1]) > 0.5, out


@pytest.mark.thorough
def test_a_folder_s_records(simulate, tmp_path):
    """They are made as its run.sh makes them, and found again; the workers may be many more."""
    for _ in range(2):
        status, out, err = simulate('--scheme=Distributed-MNIST', '--workers=1600', '--tests=1',
                                    '--train_steps=1700', f'--records_dir={tmp_path}')
        assert status == 0 and not err
        assert out[0] == ('prepare_data: 1500 examples in 8 files, and 297 to test on, are in '
                          f'{tmp_path}/digits')
    (tmp_path / 'digits' / 'index.json').unlink()
    status, _, err = simulate('--scheme=Distributed-MNIST', f'--records_dir={tmp_path}')
    assert status == 1 and len(err) == 1 and err[0].startswith('--records_dir: there are no whole')


@pytest.mark.thorough
@pytest.mark.parametrize('scheme', [['HogWild'], ['DOWNPOUR', '--n_fetch=1', '--n_push=2']])
def test_a_model_that_assigns_to_variables(simulate, scheme):
    """Batch norm, whose moving averages are pulled and pushed with the center."""
    status, out, err = simulate(f'--scheme={scheme[0]}', *scheme[1:], '--model=resnet',
                                '--workers=2', '--train_steps=4', '--batch_size=8', '--tests=1')
    assert status == 0 and not err and ' after 4 steps' in out[-3], out


@pytest.mark.thorough
def test_a_user_s_own_folder(simulate, tmp_path):
    """Also with modules of the names that the simulation uses itself."""
    shutil.copytree(str(ROOT / 'HogWild'), str(tmp_path / 'Mine'))
    (tmp_path / 'Mine' / 'clock.py').write_text('NAME = 3\n', encoding='utf-8')
    model = tmp_path / 'Mine' / 'model.py'
    model.write_text(model.read_text(encoding='utf-8') + '\nimport clock\nassert clock.NAME == 3\n',
                     encoding='utf-8')
    status, out, err = simulate(f'--scheme={tmp_path / "Mine"}', '--workers=3',
                                '--train_steps=300', '--tests=1')
    assert status == 0 and not err and 'Mine: did 300 local steps' in out[3]

