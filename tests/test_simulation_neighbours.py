"""Gossip in the simulation: its worked numbers, what is conserved, who waits for whom.

The toy problem: the half square of x - m, with an optimum m of each worker's own, so that the
gradient is x - m. x starts at 8, and the learning rate is 1/2.
"""

import heapq
import itertools
import math
import re
import statistics
import types

import numpy as np
import pytest

from measuring import hosts
from tfdist.scheme.toy import Problem
from tfdist.start.quiet import tf

from clock import Clock
from conftest import load_program
from crew import Crew
import description
import links
import lives
from processes import STEP
from record import Record
import replicas
import schemes
import test_simulation
from test_gossip import D_PSGD
from test_seam import defaults
from test_simulation_gathering import one_by_one

simulate = test_simulation.simulate  # a fixture
FOLDER = 'Gossip'
EXACT = dict(rel=1e-6, abs=1e-6)
FLOAT = 4  # bytes
# No two events are at the same time.
UNEVEN = dict(step=['lognormal:2ms:0.5', 'lognormal:3.1ms:0.2'],
              latency=['0.2ms', '0.7ms', '0.3ms'], bandwidth=['72kbit', '110kbit', '64kbit'])


class Toy(Problem):
    """The toy problem; with a momentum it asks for an optimizer of its own."""

    momentum = 0.

    def model_optimizer(self, learning_rate):
        return (tf.train.MomentumOptimizer(learning_rate, self.momentum) if self.momentum
                else None)


class Played:
    """A cluster of workers with replicas.

    Attributes:
      clock, player, record, life, crew: its parts.
      steps: list of triples for each step: the virtual time, worker, and its x after it.
      under_way: float, what has been added to partners and not yet subtracted.
    """

    def __init__(self, ms, train_steps, said, algorithm='d-psgd', roles='any', rate=0.5, start=None,
                 momentum=0., delays=None, seed=1, sends_to=None, graph='ring',
                 implementation='sockets'):
        values = dict(defaults(FOLDER, algorithm=algorithm, roles=roles, graph=graph,
                               implementation=implementation), learning_rate=rate)
        program = load_program(FOLDER)
        if sends_to:
            program.topology.receivers_of = lambda worker, *_: sends_to[worker]

        def make():
            source = test_simulation.Optima(ms)
            x = tf.get_variable('x', initializer=8.)

            def loss_at(values):
                m = tf.cast(source.placeholders[0], tf.float32)
                return tf.square(values[0] - m) / 2, tf.constant(0.)

            problem = Toy(loss_at, [x])
            problem.momentum = momentum
            return problem, source

        self.player = replicas.Replicas(program, make, None, types.SimpleNamespace(**values),
                                        len(ms), seed)
        self.steps, self.under_way = [], 0.
        self._watch(start)
        self.clock = Clock()
        cluster = description.Cluster(workers=str(len(ms)), **said)
        self.record = Record(None, self.clock, train_steps, 1, self.player.test, 1)
        self.life = lives.kind_of(self.player)(self.clock, cluster, self.player, self.record,
                                               delays or [0.] * len(ms), seed)
        self.crew = Crew(self.clock, cluster, self.life, seed)

    def _watch(self, start):
        """Notes what the player does, and has workers begin at the values of a list."""
        player, (place,) = self.player, self.player._averaged
        begin, push, add, subtract = player.begin, player.push, player.add_half, player.subtract

        def begin_at(worker, values=None):
            if values is None and start:
                values = list(player._first)
                values[place] = np.float32(start[worker])
            begin(worker, values)

        def note(worker, *args):
            push(worker, *args)
            self.steps.append((self.clock.now, worker, self.x(worker)))

        def add_and_note(worker, replica):
            halves = add(worker, replica)
            self.under_way += float(halves[0])
            return halves

        def subtract_and_note(worker, halves):
            subtract(worker, halves)
            self.under_way -= float(halves[0])

        player.begin, player.push = begin_at, note
        player.add_half, player.subtract = add_and_note, subtract_and_note

    def run(self):
        self.clock.run(self.record.goes_on)
        return self

    def x(self, worker):
        """Returns a worker's replica as it is now, a float."""
        return float(self.player.replica(self.player.look(worker))[0])

    def all(self):
        """Returns all replicas, a list of floats."""
        return [self.x(worker) for worker in range(len(self.life._computes))]

    def w(self):
        """Returns the weights of all in SGP, a list of floats."""
        return [float(self.player.look(worker)[-1]) for worker in range(len(self.life._computes))]

    def of(self, worker):
        """Returns a worker's x after each of its steps, a list."""
        return [x for _, who, x in self.steps if who == worker]

    # By hand, at no time:

    def begin(self):
        for worker in range(len(self.life._computes)):
            self.player.begin(worker)

    def exchange(self, worker, partner, seen=None):
        """Makes an exchange; returns what the worker had seen."""
        seen = seen or self.player.look(worker)
        self.player.subtract(worker, self.player.add_half(partner, self.player.replica(seen)))
        return seen

    def step(self, worker, seen):
        self.player.push(worker, self.player.compute(worker, seen).result())


@pytest.fixture
def play():
    """A function that makes a `Played`."""
    made = []

    def make(ms, train_steps=1, said=None, **changes):
        made.append(Played(ms, train_steps, dict(dict(step=['2ms']), **(said or {})), **changes))
        return made[-1]

    yield make
    for each in made:
        each.player.close()


# The worked numbers.

@pytest.mark.parametrize('ms, replicas_, distances', D_PSGD, ids=str)
def test_d_psgd(play, ms, replicas_, distances):
    """Whatever takes how long: who steps when does not matter."""
    played = play(ms, len(replicas_), UNEVEN).run()
    steps = list(zip(*map(played.of, range(len(ms)))))
    assert [value for step in steps for value in step] == pytest.approx(
        [value for step in replicas_ for value in step], **EXACT)
    assert len(played.steps) == len(ms) * len(replicas_) and played.record.step == len(replicas_)
    if distances:
        assert played.player.form_mean() == (len(ms), pytest.approx(distances[-1], **EXACT))
        mean, = played.player._mean.values
        assert mean == pytest.approx(np.mean(replicas_[-1]), **EXACT)


def test_mixing_alone(play):
    played = play([0] * 4, 3, rate=0., start=[8, 0, 0, 0]).run()
    found = list(zip(*map(played.of, range(4))))
    assert found[0] == pytest.approx([8 / 3, 8 / 3, 0, 8 / 3], **EXACT)
    assert found[1] == pytest.approx([2.6666667] + [1.7777778] * 3, **EXACT)
    assert found[2] == pytest.approx([2.0740741, 2.0740741, 1.7777778, 2.0740741], **EXACT)


def test_the_replicas_of_a_full_mean_have_the_same_bits(play):
    """All add in the order of the workers: in another one the sum is 0."""
    played = play([0] * 3, 1, rate=0., start=[1e8, -1e8, 0.3]).run()
    assert played.all() == pytest.approx([0.1] * 3, **EXACT) and len(set(played.all())) == 1


def test_ad_psgd_by_hand(play):
    """Workers 0, 1, 0, 1 in turn; the gradient is that of before the exchange."""
    played, found = play([0, 4], algorithm='ad-psgd'), []
    played.begin()
    for worker in 0, 1, 0, 1:
        played.step(worker, played.exchange(worker, 1 - worker))
        found.append(played.all())
    assert found == [[4, 8], [6, 4], [2, 5], [3.5, 3]]


def test_pairs_alone(play):
    played, found = play([0] * 3, algorithm='ad-psgd', start=[8, 4, 0]), []
    played.begin()
    for pair in (0, 1), (1, 2), (2, 0), (0, 1):
        played.exchange(*pair)
        found.append(played.all())
    assert found == [[6, 6, 0], [6, 3, 3], [4.5, 3, 4.5], [3.75, 3.75, 4.5]]


def test_what_comes_in_between_is_not_overwritten(play):
    """Worker 0 has read 8; 2 exchanges with 0; then 0 ends its exchange: assigned, it were 6."""
    played = play([0] * 3, algorithm='ad-psgd', start=[8, 4, 0])
    played.begin()
    seen = played.player.look(0)
    played.exchange(2, 0)
    assert played.all() == [4, 4, 4]
    played.exchange(0, 1, seen)
    assert played.all() == [2, 6, 4]


@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
def test_one_worker_is_sgd(play, algorithm):
    played = play([4], 3, algorithm=algorithm).run()
    assert played.steps == [(pytest.approx(0.002), 0, 6), (pytest.approx(0.004), 0, 5),
                            (pytest.approx(0.006), 0, 4.5)]
    assert played.life.travels.sent == 0


# What travels.

def test_what_travels_between_workers_takes_its_time():
    """1 kB each, over 8 and 16 kbit/s: a link is a queue in each direction."""
    clock = Clock()
    mesh = links.Mesh(clock, description.Cluster(
        workers='3', latency=['100ms', '50ms'], bandwidth=['8kbit', '16kbit', '16kbit']), 2)
    there = test_simulation.ends_of(clock, {
        message: mesh.to(*message, [500]) for message in ((1, 2), (1, 0), (2, 0), (0, 2))})
    assert there == pytest.approx({(1, 2): 0.5 + 0.1, (1, 0): 1. + 0.1, (2, 0): 2. + 0.1,
                                   (0, 2): 1. + 0.1})
    assert mesh.sent == 4000
    assert mesh.shares() == pytest.approx({'links': (1 + 0.5 + 1 + 2 + 1) / (6 * 2.1)})


@pytest.mark.parametrize('implementation, of_pairs, of_all', [('servers', 6, 4), ('sockets', 2, 1)])
def test_how_many_messages_an_exchange_takes(play, implementation, of_pairs, of_all):
    """Of which two carry a replica, or the halves; over sockets it is beside the computing."""
    said = dict(latency=['1ms'], bandwidth=['32kbit'], step=['10ms'])
    pairs = dict(algorithm='ad-psgd', roles='bipartite', implementation=implementation)
    played = play([0, 4], 1, said, **pairs).run()
    carry = FLOAT / 4e3
    takes = 0.010 + (implementation == 'servers') * (0.001 * of_pairs + 2 * carry)
    # Worker 1 is passive.
    assert dict((worker, time) for time, worker, _ in played.steps) == {
        0: pytest.approx(takes), 1: pytest.approx(0.010)}
    assert 2 * FLOAT <= played.life.travels.sent <= 3 * FLOAT  # it may have begun another step
    played = play([0, 4], 1, dict(said, step=['1us', '1s']), **pairs).run()
    takes = 0.001 * of_pairs + 2 * carry
    assert played.steps[0][:2] == (pytest.approx(takes, abs=2e-6), 0)
    step = play([0, 4], 1, said, implementation=implementation).run()
    assert step.clock.now == pytest.approx(0.010), 'it sends while it computes'
    step = play([0, 4, 8], 1, dict(said, step=['1ms']), implementation=implementation).run()
    assert step.clock.now == pytest.approx(0.001 * of_all + 2 * carry), 'both neighbours, one link'
    assert step.life.travels.sent == 3 * 2 * FLOAT


def test_two_who_exchange_at_the_same_time_swap_their_replicas(play):
    """Each adds half of the difference, and subtracts its own; so each ends where the other was."""
    said = dict(latency=['1ms'])
    both = play([0, 0], 1, said, algorithm='ad-psgd', rate=0., start=[8, 0]).run()
    assert both.all() == [0, 8]
    one = play([0, 0], 4, said, algorithm='ad-psgd', roles='bipartite', rate=0., start=[8, 0]).run()
    assert one.all() == [4, 4]


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
@pytest.mark.parametrize('implementation, algorithm, messages', [
    ('servers', 'ad-psgd', 6), ('servers', 'd-psgd', 4), ('servers', 'sgp', 4),
    ('sockets', 'ad-psgd', 2), ('sockets', 'd-psgd', 1), ('sockets', 'sgp', 1)])
def test_messages_of_real_workers(programs, tmp_path, implementation, algorithm, messages):
    """On two hosts so far apart that a step takes little but messages."""
    with hosts.Hosts(tmp_path, ['worker-0', 'worker-1'], round_trip=0.2) as network:
        run = programs.run_sh(FOLDER, f'--algorithm={algorithm}', '--train_steps=15',
                              f'--implementation={implementation}',
                              '--log_every_n_steps=5', PYTHON=network.python())
        assert run.wait() == 0
    rates = [float(match.group().split()[-2]) for match in run.matches(STEP)]
    # Who is there first may be done with AD-PSGD, in no time, before the other one comes. And who
    # waits for a late message finds the next ones there: the rates are high after low ones.
    rate = statistics.median(rate for rate in rates if rate < 100)
    assert int(1 / rate / 0.1) == messages


def test_parameters_are_taken_for_larger_ones(play):
    said = dict(step=['0s'], bandwidth=['8Mbit'], parameters='1MB')
    assert play([0, 4, 8], 1, said).run().clock.now == pytest.approx(2)
    assert play([0, 4], 1, said, algorithm='ad-psgd').run().clock.now == pytest.approx(2)


# An independent simulator.

class Independent:
    """The same, written once more: an agenda of functions, and numbers in place of tensors.

    Attributes:
      size: int, the bytes of a message with a replica.
    """

    size = FLOAT

    def __init__(self, ms, train_steps, algorithm, rate=0.5, momentum=0., seed=1, asks=False):
        number, self.asks = len(ms), asks
        self.ms, self.rate, self.momentum, self.train_steps = ms, rate, momentum, train_steps
        self.x, self.v, self.steps = [8.] * number, [0.] * number, []
        self.latency = [[0.2e-3, 0.7e-3, 0.3e-3][i % 3] for i in range(number)]
        self.bandwidth = [[9e3, 13.75e3, 8e3][i % 3] for i in range(number)]
        self.out, self.into = [0.] * number, [0.] * number
        self.times = [np.random.RandomState([seed, i]) for i in range(number)]
        self.draws = [np.random.RandomState([seed, i]) for i in range(number)]
        self.neighbours = [sorted({(i - 1) % number, (i + 1) % number}) for i in range(number)]
        self.now, self.agenda, self.order = 0., [], itertools.count()
        self.box, self.done, self.waits = {}, [0] * number, [0] * number
        for i in range(number):
            self.after(0., self.pair if algorithm == 'ad-psgd' else self.together, i)
        while self.agenda and len(self.steps) < number * train_steps:
            self.now, _, function, args = heapq.heappop(self.agenda)
            function(*args)

    def after(self, seconds, function, *args):
        heapq.heappush(self.agenda, (self.now + seconds, next(self.order), function, args))

    def takes(self, i):
        mean, sigma = [(2e-3, 0.5), (3.1e-3, 0.2)][i % 2]
        return self.times[i].lognormal(math.log(mean) - sigma ** 2 / 2, sigma)

    def far(self, i, j):
        return max(self.latency[i], self.latency[j])

    def carry(self, i, j, function, *args):
        self.out[i] = max(self.out[i], self.now) + self.size / self.bandwidth[i]
        self.into[j] = max(self.into[j], self.now) + self.size / self.bandwidth[j]
        arrives = max(self.out[i], self.into[j]) - self.now
        self.after(arrives, lambda: self.after(self.far(i, j), function, *args))

    def step(self, i, gradient):
        self.v[i] = self.momentum * self.v[i] + gradient
        self.x[i] -= self.rate * self.v[i]
        self.steps.append((self.now, i, self.x[i]))

    # AD-PSGD.

    def pair(self, i):
        j = self.neighbours[i][self.draws[i].randint(len(self.neighbours[i]))]
        if self.asks:
            self.after(2 * self.far(i, j), self.read, i, j)
        else:
            self.waits[i] = 2
            self.after(self.takes(i), self.one_of_both, i, self.x[i])
            self.read(i, j)

    def read(self, i, j):
        self.carry(i, j, self.add, i, j, self.x[i])

    def one_of_both(self, i, seen):
        self.waits[i] -= 1
        if not self.waits[i]:
            self.end(i, seen)

    def add(self, i, j, seen):
        half = (seen - self.x[j]) / 2
        self.x[j] += half
        self.carry(j, i, self.subtract, i, j, seen, half)

    def subtract(self, i, j, seen, half):
        self.x[i] -= half
        if not self.asks:
            self.one_of_both(i, seen)
            return
        self.after(2 * self.far(i, j) + self.takes(i), self.end, i, seen)

    def end(self, i, seen):
        self.step(i, seen - self.ms[i])
        self.pair(i)

    # D-PSGD.

    def together(self, i):
        self.box.setdefault((i, self.done[i]), {})[i] = self.x[i]
        waits = {'computes', *self.neighbours[i]}
        self.after(self.takes(i), self.hear, i, waits, 'computes')
        for j in self.neighbours[i]:
            if not self.asks:
                waits.discard(j)
            self.after(2 * self.far(i, j) * self.asks, self.send, i, j, self.done[i], self.x[i],
                       waits)

    def send(self, i, j, number, x, waits):
        self.carry(i, j, self.receive, i, j, number, x, waits)

    def receive(self, i, j, number, x, waits):
        self.box.setdefault((j, number), {})[i] = x
        if self.asks:
            self.after(self.far(i, j), self.hear, i, waits, j)
        self.perhaps(j)

    def hear(self, i, waits, what):
        waits.discard(what)
        if not waits:
            self.box[i, self.done[i]]['heard'] = True
        self.perhaps(i)

    def perhaps(self, i):
        box = self.box.get((i, self.done[i]), {})
        if {'heard', i, *self.neighbours[i]} <= set(box):
            group = [box[j] for j in sorted({i, *self.neighbours[i]})]
            gradient, self.x[i] = box[i] - self.ms[i], sum(group) / len(group)
            self.step(i, gradient)
            self.done[i] += 1
            if self.done[i] < self.train_steps:
                self.together(i)


@pytest.mark.parametrize('number, momentum', [(4, 0.), (8, 0.5)])
@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
@pytest.mark.parametrize('implementation', ['servers', 'sockets'])
def test_an_independent_simulator(play, algorithm, number, momentum, implementation):
    """Who steps when, and what comes of it; each worker has slots of its own."""
    ms = [(7 * i) % 12 for i in range(number)]
    played = play(ms, 15, UNEVEN, algorithm=algorithm, rate=0.25, momentum=momentum,
                  implementation=implementation).run()
    other = Independent(ms, 15, algorithm, 0.25, momentum, asks=implementation == 'servers')
    assert len(played.steps) == len(other.steps) == 15 * number
    for (time, worker, x), (its_time, its_worker, its_x) in zip(played.steps, other.steps):
        assert worker == its_worker
        assert time == pytest.approx(its_time, rel=0, abs=1e-9)
        assert x == pytest.approx(its_x, rel=0, abs=1e-5)
    if algorithm == 'ad-psgd':
        assert len({len(played.of(worker)) for worker in range(number)}) > 1


# What holds in any run.

@pytest.mark.parametrize('roles', ['any', 'bipartite'])
def test_exchanges_keep_the_sum(play, roles):
    """With what is under way; and all agree, however their exchanges are interleaved."""
    start = [8, -4, 0, 20, 5, -3]
    played = play([0] * 6, 60, UNEVEN, algorithm='ad-psgd', roles=roles, rate=0., start=start)
    sums = []
    subtract = played.player.subtract

    def note(worker, halves):
        subtract(worker, halves)
        sums.append(sum(played.all()) - played.under_way)

    played.player.subtract = note
    played.run()
    assert len(sums) > 60 and sums == pytest.approx([26] * len(sums), abs=1e-4)
    assert played.player.form_mean() == (6, pytest.approx(0, abs=1e-3))


def test_d_psgd_waits_for_neighbours_only(play):
    """A straggler: nobody is more than a step ahead of a neighbour; the numbers are the same."""
    ms, said = list(range(8)), dict(step=['1ms'], latency=['10us'])
    even = play(ms, 12, said).run()
    slow = play(ms, 12, said, delays=[0.05 * (worker == 3) for worker in range(8)]).run()
    assert slow.clock.now == pytest.approx(12 * 0.051, rel=0.01)
    assert [slow.of(worker) for worker in range(8)] == [even.of(worker) for worker in range(8)]
    made, ahead = np.zeros(8, int), []
    for _, worker, _ in slow.steps:
        made[worker] += 1
        assert abs(made - np.roll(made, 1)).max() <= 1
        ahead.append(made[7] - made[3])  # at distance 4
    assert max(ahead) == 4
    assert slow.record.seconds['waits'] > 3 * slow.record.seconds['computes']


def test_ad_psgd_does_not_wait(play):
    """For as long as the straggler's server answers."""
    said = dict(step=['1ms'], latency=['10us'])
    played = play([0] * 8, 40, said, algorithm='ad-psgd',
                  delays=[0.05 * (worker == 3) for worker in range(8)]).run()
    made = [len(played.of(worker)) for worker in range(8)]
    assert made[3] < 3 and min(made[:3] + made[4:]) > 40
    assert played.record.seconds['waits'] == 0


@pytest.mark.parametrize('algorithm, said', [
    ('d-psgd', UNEVEN), ('ad-psgd', dict(UNEVEN, die_every='lognormal:20ms:1', back_after='5ms'))])
def test_two_runs_are_equal_to_the_bit(play, monkeypatch, algorithm, said):
    """Also when steps are computed one by one, and not in threads; and if workers die."""
    ms = [(5 * i) % 9 for i in range(7)]
    one, other = (play(ms, 25, said, algorithm=algorithm).run() for _ in range(2))
    assert one.player.computes_later
    with monkeypatch.context() as patched:
        one_by_one(patched)
        third = play(ms, 25, said, algorithm=algorithm).run()
    for each in other, third:
        assert one.steps == each.steps and one.record.seconds == each.record.seconds
        assert one.all() == each.all() and one.clock.now == each.clock.now
        assert one.life.travels.sent == each.life.travels.sent


def test_the_draws_are_those_of_the_folder(play):
    """By the seed and the worker, as long as all answer."""
    played, drawn = play([0] * 4, 30, algorithm='ad-psgd', seed=3), []
    meet = played.life._meet

    def note(worker, partner, life):
        if worker == 2:
            drawn.append(partner)
        return meet(worker, partner, life)

    played.life._meet = note
    played.run()
    random = np.random.RandomState([3, 2])
    assert len(drawn) > 20 and drawn == [[1, 3][random.randint(2)] for _ in drawn]


def test_who_dies_is_left_out_and_comes_back(play):
    """With the replica and the step of one that is there; the mean is without it meanwhile."""
    said = dict(step=['2ms'], latency=['10us'], die=['1:21ms'], come=['1:61ms'])
    played = play([4] * 4, 40, said, algorithm='ad-psgd', start=[0, 0, 0, 0], rate=0.01)
    seen = {}

    def look(name):
        seen[name] = sorted(played.life._there), len(played.of(1)), played.player.form_mean()[0]

    for time, name in (0.0207, 'before'), (0.0605, 'away'):
        played.clock.at(time, lambda name=name: look(name))
    begin = played.player.begin

    def note(worker, values=None):
        begin(worker, values)
        if values is not None:
            seen['back'] = worker, played.x(worker) == played.x(0), int(values[0]), len(
                played.of(0))

    played.player.begin = note
    played.run()
    assert seen['before'][0] == [0, 1, 2, 3] and seen['before'][2] == 4
    assert seen['away'][0] == [0, 2, 3] and seen['away'][2] == 3
    assert seen['away'][1] == seen['before'][1] == 10
    worker, is_same, step, of_source = seen['back']
    assert worker == 1 and is_same and step == of_source > 20
    assert len(played.of(1)) > 12 and 0 < played.of(1)[-1] < 4


def test_who_is_lost_in_an_exchange(play):
    """Its partner hears of it, and goes on: alone, as there is nobody else."""
    said = dict(step=['1ms'], latency=['2ms'], die=['1:5ms'])
    sides = dict(algorithm='ad-psgd', start=[8, 0], roles='bipartite')
    played = play([0, 4], 3, said, **sides).run()
    # The first exchange takes 4 ms; what is sent then finds nobody at 6 ms, as it hears at 8 ms.
    assert [time for time, worker, _ in played.steps if not worker] == pytest.approx(
        [0.004, 0.008])
    assert played.under_way == 0
    played = play([0, 4], 3, said, implementation='servers', **sides).run()
    # It asks, is asked and sends; at 6 ms nobody is there; it knows at 8 ms, and steps until 9.
    assert [time for time, worker, _ in played.steps if not worker][:2] == pytest.approx(
        [0.009, 0.010])
    assert played.of(0)[:2] == [4, 2] and played.under_way == 0


def test_d_psgd_cannot_lose_a_worker(play):
    for what in 'die', 'leave':
        with pytest.raises(SystemExit, match=r'^Worker 2 is lost at 0\.0\d+ s: with --algorithm=d-'
                                             r'psgd nobody goes on without a neighbour\.$'):
            play([0] * 4, 40, {what: ['2:11ms']}).run()


# The program.

def test_it_is_simulated_and_not_compared():
    assert FOLDER in schemes.simulated() and FOLDER not in schemes.folders()
    assert load_program(FOLDER).Scheme.not_compared


def test_a_folder_says_why_it_is_not_simulated(tmp_path):
    (tmp_path / 'worker.py').write_text(
        "class Scheme():\n    not_simulated = 'it asks people'\n", encoding='utf-8')
    with pytest.raises(SystemExit, match=f'^--scheme={re.escape(str(tmp_path))}: it is not '
                                         r'simulated: it asks people\.$'):
        schemes.load(str(tmp_path))


@pytest.mark.parametrize('flags', [
    [], pytest.param(['--algorithm=d-psgd'], marks=pytest.mark.thorough)], ids=str)
def test_the_program(simulate, flags):
    """It trains the folder's own model, and tests the mean."""
    status, out, err = simulate('--scheme=Gossip', '--workers=4', '--train_steps=400', '--tests=2',
                                *flags)
    assert status == 0 and not err
    assert not re.search(r'\b(ps|update|hop) ', out[0])
    means = [line for line in out if re.fullmatch(
        r'Gossip: tests the mean of 4 replicas, consensus distance \d\S*', line)]
    assert len(means) == 2
    sent, = re.findall(r'Gossip: sent (\S+) MB, (\S+) kB in a local step', '\n'.join(out))
    # A replica has 9,610 numbers. In a step one leaves for each neighbour; or in every other
    # worker's steps one, and the halves.
    assert float(sent[1]) == pytest.approx(2 * 38.44 if flags else 38.44, rel=0.01)
    assert float(re.search(r'test accuracy (\S+) after 400 steps', '\n'.join(out))[1]) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize('flags', [[], ['--roles=bipartite'], ['--algorithm=d-psgd']], ids=str)
def test_a_thousand_workers(simulate, flags):
    """In bounded memory."""
    status, out, err = simulate('--scheme=Gossip', '--workers=1024', '--local_steps=5120',
                                '--tests=2', *flags)
    assert status == 0 and not err
    assert 'Gossip: tests the mean of 1024 replicas, ' in '\n'.join(out)
    assert int(re.search(r'(\d+) MB', out[-1])[1]) < 1000


@pytest.mark.thorough
@pytest.mark.parametrize('flag', ['--model=resnet', '--moving_average_decay=0.9'])
def test_models_that_keep_more(simulate, flag):
    """Batch norm, whose moving averages are a worker's own; averages of the parameters."""
    status, out, err = simulate('--scheme=Gossip', '--workers=3', '--train_steps=4',
                                '--batch_size=8', '--tests=1', flag)
    assert status == 0 and not err and ' after 4 steps' in '\n'.join(out), out
