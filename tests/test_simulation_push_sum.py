"""SGP of Gossip in the simulation: its worked numbers, when workers step, what is conserved.

The toy problem as in `test_simulation_neighbours`.
"""

import re

import numpy as np
import pytest

import test_simulation
import test_simulation_neighbours as neighbours_
from test_gossip import EXACT
from test_push_sum import FULL_AVERAGES, UNEVEN, W_ALONE, X_ALONE, Z_ALONE, Z_OF_SGP
from test_simulation_gathering import one_by_one

simulate = test_simulation.simulate  # a fixture
X_AND_W = 2 * neighbours_.FLOAT  # bytes


@pytest.fixture
def play():
    """A function that makes a `Played` of SGP."""
    made = []

    def make(ms, train_steps=1, said=None, **changes):
        made.append(neighbours_.Played(ms, train_steps, said or dict(step=['2ms']),
                                       algorithm='sgp', **changes))
        return made[-1]

    yield make
    for each in made:
        each.player.close()


def z(played):
    """Returns x / w of all workers, a list."""
    return [x / w for x, w in zip(played.all(), played.w())]


# The worked numbers.

def test_push_sum_alone(play):
    for steps, expected in (4, Z_ALONE), (20, [4] * 3):
        played = play([0] * 3, steps, neighbours_.UNEVEN, rate=0., start=[9, 3, 0],
                      sends_to=UNEVEN).run()
        assert z(played) == pytest.approx(expected, **EXACT)
        assert [sum(played.all()), sum(played.w())] == pytest.approx([12, 3], **EXACT)
    assert played.all() == pytest.approx(X_ALONE, **EXACT)
    assert played.w() == pytest.approx(W_ALONE, **EXACT)


def test_sgp(play):
    """And the mean is that of x by that of w."""
    for steps, expected in enumerate(Z_OF_SGP, 1):
        played = play([0, 4, 8], steps, neighbours_.UNEVEN, sends_to=UNEVEN).run()
        assert z(played) == pytest.approx(expected, **EXACT)
        number, distance = played.player.form_mean()
        mean, = played.player._mean.values
        assert number == 3 and mean == pytest.approx(sum(played.all()) / 3, **EXACT)
        assert distance == pytest.approx(np.mean(np.square(np.subtract(expected, mean))), **EXACT)


@pytest.mark.parametrize('ms, sends_to, expected', FULL_AVERAGES, ids=str)
def test_with_a_full_average_it_is_synchronous_sgd(play, ms, sends_to, expected):
    played = play(ms, len(expected), neighbours_.UNEVEN, sends_to=sends_to).run()
    for worker in range(len(ms)):
        assert played.of(worker) == pytest.approx(expected, **EXACT)


def test_the_exponential_graph(play):
    """Mean of all four after two steps, each with a worker at another distance."""
    played = play([0] * 4, 2, graph='exponential', rate=0.,
                  start=[8, 0, 0, 0]).run()
    assert list(zip(*map(played.of, range(4)))) == [(4, 4, 0, 0), (2, 2, 2, 2)]


def test_one_worker_is_sgd(play):
    played = play([4], 3).run()
    assert [x for _, _, x in played.steps] == [6, 5, 4.5] and played.life.travels.sent == 0


# When workers step.

def test_a_share_leaves_after_the_step(play):
    """Through the servers it is asked for meanwhile, and when it has come an answer goes back."""
    said = dict(latency=['1ms'], bandwidth=['32kbit'], step=['10ms'])
    carry = X_AND_W / 4e3
    for implementation, later, asked in ('sockets', 0.001, 0.), ('servers', 0.002, 0.002):
        its = dict(implementation=implementation)
        played = play([0, 4, 8], 1, said, **its).run()
        assert played.clock.now == pytest.approx(0.010 + carry + later)
        assert played.life.travels.sent == 3 * X_AND_W
        played = play([0, 4, 8], 1, dict(said, step=['1ms']), **its).run()
        assert played.clock.now == pytest.approx(max(0.001, asked) + carry + later)


def test_who_is_ahead_waits_for_room(play):
    """Worker 3 is slow: worker 4 waits for its share, worker 5 for the next one of worker 4.

    Through the servers worker 2 finds room for one share more than worker 3 has asked for; worker 1
    is as far ahead of worker 2 again.
    """
    said, ms, its = dict(step=['1ms'], latency=['10us']), list(range(8)), dict(
        implementation='servers')
    slow = play(ms, 6, said, delays=[0.05 * (i == 3) for i in range(8)], **its).run()
    even = play(ms, 6, said, **its).run()
    assert list(map(slow.of, range(8))) == list(map(even.of, range(8)))
    made, ahead = np.zeros(8, int), np.zeros(8, int)
    for _, worker, _ in slow.steps:
        made[worker] += 1
        ahead = np.maximum(ahead, made - made[3])
    assert ahead.tolist() == [4, 4, 2, 0, 1, 1, 2, 3]


class Independent(neighbours_.Independent):
    """SGP once more: of the directed ring, or of the exponential graph, in plain numbers."""

    size = X_AND_W

    def __init__(self, ms, train_steps, distances, **others):
        number = len(ms)
        self.distances, self.w = distances, [1.] * number
        self.begun, self.full, self.got, self.heard = [0] * number, [], {}, {}
        super().__init__(ms, train_steps, 'd-psgd', **others)

    def together(self, i):
        self.begun[i] += 1
        self.full, again = [], self.full
        for each in again:
            self.arrive(*each)
        self.after(self.takes(i), self.computed, i, self.now)

    def computed(self, i, began):
        number = self.done[i]
        self.v[i] = self.momentum * self.v[i] + self.x[i] / self.w[i] - self.ms[i]
        self.x[i] = (self.x[i] - self.rate * self.v[i]) / 2
        self.w[i] /= 2
        j = (i + self.distances[number % len(self.distances)]) % len(self.ms)
        self.heard[i] = not self.asks
        asked = max(self.now, began + 2 * self.far(i, j)) - self.now if self.asks else 0.
        self.after(asked, self.carry, i, j, self.arrive, i, j, number, self.x[i], self.w[i])
        self.perhaps(i)

    def arrive(self, i, j, number, *share):
        if self.begun[j] <= number - len(self.distances):
            self.full.append((i, j, number, *share))
            return
        self.got[j, number] = share
        if self.asks:
            self.after(self.far(i, j), self.hear, i)
        self.perhaps(j)

    def hear(self, i):
        self.heard[i] = True
        self.perhaps(i)

    def perhaps(self, i):
        if self.heard.get(i) and (i, self.done[i]) in self.got:
            x, w = self.got[i, self.done[i]]
            self.x[i] += x
            self.w[i] += w
            self.steps.append((self.now, i, self.x[i]))
            self.done[i] += 1
            self.heard[i] = False
            if self.done[i] < self.train_steps:
                self.together(i)


@pytest.mark.parametrize('implementation', ['servers', 'sockets'])
@pytest.mark.parametrize('number, graph, distances, momentum', [
    (4, 'ring', [1], 0.), (8, 'exponential', [1, 2, 4], 0.5), (5, 'exponential', [1, 2, 4], 0.)])
def test_an_independent_simulator(play, number, graph, distances, momentum, implementation):
    """Who steps when, and what comes of it."""
    ms = [(7 * i) % 12 for i in range(number)]
    played = play(ms, 15, neighbours_.UNEVEN, graph=graph, rate=0.25, momentum=momentum,
                  implementation=implementation).run()
    other = Independent(ms, 15, distances, rate=0.25, momentum=momentum,
                        asks=implementation == 'servers')
    assert len(played.steps) == len(other.steps) == 15 * number
    for (time, worker, x), (its_time, its_worker, its_x) in zip(played.steps, other.steps):
        assert worker == its_worker
        assert time == pytest.approx(its_time, rel=0, abs=1e-9)
        assert x == pytest.approx(its_x, rel=0, abs=1e-5)


def test_two_runs_are_equal_to_the_bit(play, monkeypatch):
    """Also when steps are computed one by one, and not in threads."""
    def run():
        return play([0, 5, 1, 6], 8, neighbours_.UNEVEN, graph='exponential').run()

    one = run()
    assert one.player.computes_later
    with monkeypatch.context() as patched:
        one_by_one(patched)
        other = run()
    assert one.steps == other.steps and one.record.seconds == other.record.seconds


def test_it_cannot_lose_a_worker(play):
    with pytest.raises(SystemExit, match='^Worker 2 is lost at .+ with --algorithm=sgp nobody'):
        play([0] * 4, 40, dict(step=['2ms'], die=['2:11ms'])).run()


# The program.

@pytest.mark.thorough
@pytest.mark.parametrize('flags', [[], ['--graph=exponential', '--moving_average_decay=0.9']],
                         ids=str)
def test_the_program(simulate, flags):
    """It trains the folder's own model, and tests the mean; a replica and a weight are sent."""
    status, out, err = simulate('--scheme=Gossip', '--workers=4', '--train_steps=400', '--tests=2',
                                '--algorithm=sgp', *flags)
    text = '\n'.join(out)
    assert status == 0 and not err and 'tests the mean of 4 replicas' in text
    assert float(re.search(r'sent \S+ MB, (\S+) kB in a local step', text)[1]) == pytest.approx(
        38.44, rel=0.01)
    assert float(re.search(r'test accuracy (\S+) after 400 steps', text)[1]) > 0.8


@pytest.mark.thorough
def test_a_thousand_workers(simulate):
    status, out, err = simulate('--scheme=Gossip', '--workers=1024', '--local_steps=5120',
                                '--tests=2', '--algorithm=sgp', '--graph=exponential')
    assert status == 0 and not err
    assert 'Gossip: tests the mean of 1024 replicas, ' in '\n'.join(out)


@pytest.mark.thorough
def test_batch_norm(simulate):
    """Its moving averages are a worker's own."""
    status, out, err = simulate('--scheme=Gossip', '--workers=3', '--train_steps=4',
                                '--batch_size=8', '--tests=1', '--model=resnet', '--algorithm=sgp')
    assert status == 0 and not err and ' after 4 steps' in '\n'.join(out), out
