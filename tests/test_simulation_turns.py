"""FedAvg in the simulation: its clients take turns on many workers, as they do on one by hand.

The toy problem: an example is a number m, and the loss of a batch is the mean of the half squares
of x - m. So the gradient is x less the mean of the batch.
"""

import types

import numpy as np
import pytest

from tfdist.scheme.toy import Problem
from tfdist.start.quiet import tf

from clock import Clock
from conftest import load_program
from crew import Crew
import description
import lives
from record import Record
import schemes
import turns
from test_seam import defaults

FOLDER = 'FedAvg'
RATE = 0.25


class Played:
    """A cluster on which clients take turns.

    Attributes:
      clients: `clients.Clients`.
      clock, player, record, life: its parts.
      pushes: list of triples: the ticket, the step that was pulled, and the figures of the push.
      centers: list of floats, the center at the beginning, and after each step.
    """

    def __init__(self, examples, workers, train_steps, said=None, **changes):
        values = defaults(FOLDER, **dict(dict(batch_size=2, epochs=2, accumulate=1), **changes))
        hparams, program = types.SimpleNamespace(**values), load_program(FOLDER)
        self.hparams, self.program, self.pushes = hparams, program, []
        self.clients = program.clients.Clients([np.float32(examples)], hparams)

        def make_network(batches):
            left = iter(batches)
            x = tf.get_variable('x', initializer=8.)

            def loss_at(values):
                batch, = next(left)
                return tf.reduce_mean(tf.square(values[0] - batch)) / 2, tf.constant(0.)

            return Problem(loss_at, [x]), None

        self.player = turns.play(program, self.clients, make_network, hparams, workers)
        cluster = description.Cluster(workers=str(workers), **(said or {}))
        push, complete = self.player.push, self.player.complete

        def note(worker, one, *args):
            ticket = self.player.source._held[worker]
            figures = push(worker, one, *args)
            self.pushes.append((tuple(ticket), one.step, dict(figures)))
            return figures

        def completing():
            step = complete()
            assert step == len(self.centers)
            self.centers += self.player.center()
            return step

        self.player.push, self.player.complete = note, completing
        self.centers = self.player.center()
        self.clock = Clock()
        self.record = Record('toy', self.clock, train_steps, 1, self.player.test, 1)
        self.life = lives.kind_of(self.player)(
            self.clock, cluster, self.player, self.record, [0.] * workers, 1)
        self.crew = Crew(self.clock, cluster, self.life, 1)
        self.clock.run(self.record.goes_on)

    def trained(self, x, client, step):
        """Returns what a client makes of x, and how many examples it has, by hand."""
        examples = self.clients._flat[0]
        for batch in self.clients.batches_of(client, step):
            x -= RATE * (x - examples[batch].mean(dtype=np.float64))
        return x, len(self.clients.parts[client])


@pytest.fixture
def play():
    """A function that makes a `Played`."""
    made = []

    def make(*args, **changes):
        made.append(Played(*args, **changes))
        return made[-1]

    yield make
    for each in made:
        each.player.close()


@pytest.mark.parametrize('workers, fraction', [
    pytest.param(1000, 1., marks=pytest.mark.thorough), (30, 0.2), (1, 0.05)])
def test_rounds_are_those_of_one_process(play, workers, fraction):
    """However many workers there are: of a thousand clients, with two or three examples each."""
    played = play(np.arange(2100) % 13, workers, 3, clients=1000, fraction=fraction,
                  server_learning_rate=0.75)
    x = 8.
    assert len(played.centers) == 4 and played.centers[0] == x
    for step in range(3):
        mine = played.program.clients.sample(1, step, 1000, fraction)
        models, numbers = zip(*(played.trained(x, client, step) for client in mine))
        x -= 0.75 * np.average(x - np.array(models), weights=numbers)
        assert played.centers[step + 1] == pytest.approx(x, abs=1e-5)
        assert len({number for number in numbers}) > 1
    assert played.record.accepted == 3 * len(mine) and played.record.dropped == 0


@pytest.mark.parametrize('workers, buffer', [
    pytest.param(1000, 100, marks=pytest.mark.thorough), (7, 3), (3, 1)])
def test_buffers_are_those_of_one_process(play, workers, buffer):
    played = play(np.arange(2100) % 13, workers, 12, clients=1000, buffer=buffer)
    assert len(played.centers) >= 13
    for step in range(12):
        change = 0
        for (number, client, _), began, figures in played.pushes[step * buffer:][:buffer]:
            assert figures['dropped'] == 0 and figures['staleness'] == step - began
            assert client == played.program.clients.in_passes(1, number, 1000)
            model, _ = played.trained(played.centers[began], client, number)
            change += (played.centers[began] - model) / np.sqrt(1 + step - began)
        assert played.centers[step + 1] == pytest.approx(
            played.centers[step] - change / buffer, abs=1e-5)
    assert max(figures['staleness'] for *_, figures in played.pushes) > 0


@pytest.mark.parametrize('changes', [dict(fraction=0.3), dict(buffer=4)], ids=str)
def test_two_runs_are_equal_to_the_bit(play, changes):
    """Also in what came when, with workers that die and come back."""
    said = dict(die_every='lognormal:10ms:1', back_after='5ms')
    one, other = (play(np.arange(90) % 13, 9, 10, said, clients=40, **changes) for _ in range(2))
    assert one.centers == other.centers and len(set(one.centers)) == 11
    assert one.clock.now == other.clock.now and one.record.seconds == other.record.seconds
    assert str(one.pushes) == str(other.pushes)


def test_who_dies_with_a_ticket_gives_it_back(play):
    """Its client is trained when it is back, or at once by another worker that is free."""
    said = dict(die=['0:3ms'], come=['0:900ms'], step=['2ms'], latency=['10us'])
    played = play(np.arange(12) % 5, 2, 1, said, clients=3, fraction=1.)
    assert sorted(ticket for ticket, *_ in played.pushes) == [(0, 0, 1), (0, 1, 0), (0, 2, 0)]
    assert 0.9 < played.clock.now < 1
    x = np.average([played.trained(8., client, 0)[0] for client in range(3)])
    assert played.centers[1] == pytest.approx(x, abs=1e-5)


def test_who_comes_after_the_deadline_is_left_out(play):
    """Worker 2 needs 240 ms for a client, and is late in each round in which it has one."""
    said = dict(step=['2ms', '2ms', '60ms'], latency=['10us'])
    played = play(np.arange(12) % 5, 3, 30, said, clients=3, fraction=1., deadline_secs=0.1)
    late, x = 0, 8.
    for step in range(30):
        mine = [client for (stamp, client, _), _, figures in played.pushes
                if stamp == step and not figures['dropped']]
        late += 3 - len(mine)
        x = np.average([played.trained(x, client, step)[0] for client in mine])
        assert played.centers[step + 1] == pytest.approx(x, abs=1e-5)
    assert played.record.accepted == 3 * 30 - late and played.record.dropped > 1
    assert 0.1 * late < played.clock.now < 0.1 * late + 30 * 0.02


def test_it_is_simulated_and_not_compared():
    assert FOLDER in schemes.simulated() and FOLDER not in schemes.folders()
    assert load_program(FOLDER).Scheme.not_compared
