"""Workers on which clients take turns, as in FedAvg: by tickets, which a chief draws.

What is pushed, whether it counts, and the step of the center are the folder's own ops. Who waits
for a ticket, and when there is one, is played here, as in the `rounds.py` and `buffers.py` of the
folder.
"""

import types

from tfdist.model import building
from tfdist.synchronous import stamps
from tfdist.start.quiet import tf
from clock import Signal
import halves
import lives
from parts import Part
from player import Player
import shards


class Turns:
    """A source of batches, see `shards`: those of the client whose turn it is on a worker.

    It also stands for the `Turn` of the folder's `clients.py`.

    Attributes:
      life: class of the workers' lives.
      clients: the module `clients` of the folder.
      ticket: has `read_value`, the ticket of the worker that plays.
      examples, steps, most_steps, fewest_steps, batches: see `Turn`.
      hold, open, be_content: pairs of an op of the scheme and a list of tensors to feed.
    """

    def __init__(self, clients, everyone):
        """Makes the placeholders; `everyone` is a `clients.Clients`."""
        self.clients, self._everyone = clients, everyone
        self.life = InTurns
        self.most_steps, self.fewest_steps = everyone.most_steps, everyone.fewest_steps
        ticket = shards.to_be_fed(tf.int64, [clients.TICKET])
        self.examples, self.steps = (shards.to_be_fed(tf.int64, []) for _ in range(2))
        read = [shards.to_be_fed(dtype, None) for dtype in everyone.dtypes[2:]]
        self.placeholders = [ticket, self.examples, self.steps, *read]
        self.batches = everyone.packed(read)
        self.ticket = types.SimpleNamespace(read_value=lambda: ticket)
        self._held = {}

    def make_ops(self, scheme):
        """Makes what the chief runs, and a worker that takes a ticket."""
        ticket, (worker,) = self.placeholders[0], scheme.workers
        stamp, number, drawn = (tf.placeholder(tf.int64, []) for _ in range(3))
        self.hold = scheme.admissions.hold(ticket), [ticket, worker]
        self.open = scheme.admissions.open(stamp, number, drawn), [stamp, number, drawn]
        self.be_content = scheme.admissions.be_content(stamp), [stamp]

    def give(self, worker, ticket):
        """Gives a worker a ticket."""
        self._held[worker] = ticket

    def has(self, worker):
        """Returns whether a worker has a ticket."""
        return worker in self._held

    def take_away(self, worker):
        """Returns the ticket that a worker has, which has none now; or None."""
        return self._held.pop(worker, None)

    def next(self, worker):
        """Returns arrays, the values of the placeholders."""
        ticket = self._held[worker]
        return [ticket, *self._everyone.read(ticket[0] % stamps.STEPS, ticket[1])]



def of_program(program, hparams, number):
    """Returns the `player.Player` of a folder's program; the other arguments are `play`'s.

    Raises:
      SystemExit: if flags do not go together, or the model does not fit.
    """
    program.rounds.check_flags()
    everyone = program.clients.of_model(program.model, hparams)

    def make_network(batches):
        network = building.Network(program.model, batches, 0, program.Scheme.tables_stay_on_ps)
        return network, halves.test_of(program.model, network.at_variables)

    return play(program, everyone, make_network, hparams, number, hparams.seed)


def play(program, everyone, make_network, hparams, number, seed=1):
    """Returns a `player.Player` whose workers train clients in turn.

    Args:
      program: module, the folder's worker.py.
      everyone: `clients.Clients` of the folder.
      make_network: function of a list of batches that makes what is trained, and its test; see
        `player.Player`.
      hparams: object, see there.
      number: int, how many workers there are.
      seed: int, see there.
    """
    class Played(program.Scheme):
        """The scheme, with the ops that its hook would make."""

        def __init__(self, *args):
            super().__init__(*args, source)

        def make(self, *args):
            super().make(*args)
            source.make_ops(self)

    source = None

    def make():
        nonlocal source
        source = Turns(program.clients, everyone)
        network, test = make_network(source.batches)
        return network, source, test

    return Player(Played, make, hparams, number, seed)


class InTurns(lives.Life):
    """A worker that takes a ticket, trains the client, and pushes; the answer is another ticket.

    Its first ticket it asks for in a run of its own; so it does where the update of a full buffer
    is still to be made.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._source, hparams = self._player.source, self._player.hparams
        self._hold, self._open, self._content = (
            Part(self._player.session, [op], fed) for op, fed in (
                self._source.hold, self._source.open, self._source.be_content))
        self._news = Signal(self._clock)  # tickets, or the update of a full buffer
        self._buffer, self._deadline = hparams.buffer, hparams.deadline_secs
        self._tickets, self._needed = [], self._buffer
        self._admitted = self._drawn = self._updates = 0
        if self._buffer:
            self._run(self._open, 0, self._buffer, 0)
        else:
            self._open_round()

    @staticmethod
    def _run(part, *values):
        part({tensor.name: value for tensor, value in zip(part.feeds, values)})

    def of(self, worker):
        self._give_back(worker, lives_lost=1)  # it died, and is back
        yield from super().of(worker)
        self._give_back(worker, lives_lost=0)

    def _give_back(self, worker, lives_lost):
        ticket = self._source.take_away(worker)
        if ticket and not self._buffer and ticket[0] == self._stamp:
            self._tickets.append([*ticket[:2], ticket[2] + lives_lost])
            self._news.fire()

    def _enter(self, worker):
        """A process that ends when a worker has a ticket."""
        if self._source.has(worker):
            return
        yield self.processors.stage()
        yield self.travels.latency(worker)
        yield from self._take(worker)
        yield self.travels.latency(worker)
        yield self.processors.stage()

    def _take(self, worker):
        """A process, on the ps: waits until there is a ticket for a worker."""
        while self._updates if self._buffer else not self._tickets:
            yield self._news
        ticket = self._draw(worker) if self._buffer else self._tickets.pop(0)
        self._source.give(worker, ticket)
        self._run(self._hold, ticket, worker)

    def _push(self, worker, one, piece):
        """A process that ends when a push has arrived; see `_follow` for the answer."""
        yield from self.travels.to_ps(worker, one.push_bytes(piece.number))
        yield self.processors.stage()
        self._arrive(worker, one, piece)

    def _follow(self, worker, one, piece):
        if not self._updates or not self._buffer:
            yield from self._take(worker)
        yield self.travels.latency(worker)
        yield from super()._follow(worker, one, piece)

    def _draw(self, worker):
        hparams, number = self._player.hparams, self._drawn
        self._drawn += 1
        return [number, self._source.clients.in_passes(hparams.seed, number, hparams.clients),
                worker]

    def _arrive(self, worker, one, piece):
        pushed = self._player.push(worker, one, piece.number)
        self._source.take_away(worker)
        pushed.pop('global_step')
        figures = dict(one.figures, **pushed)
        self._record.add(figures, int(figures.pop('local_steps')))
        if not pushed['dropped']:
            self._admitted, self._sizes = self._admitted + 1, one.push_bytes()
            self._settle()

    def _settle(self):
        """Makes the step of the center if enough clients have come."""
        if self._admitted < self._needed:
            return
        # What comes now is late. For the workers the step is complete when the update is made.
        self._admitted, self._stamp = 0, None
        self._updates += 1
        self._clock.start(self._complete(self._player.complete()))

    def _complete(self, step):
        """A process: the update is made; then the chief opens the next round."""
        yield self.travels.update([0, *self._sizes])
        self.step = step
        self._updates -= 1
        self._record.reach(step)
        if self._buffer:
            self._news.fire()
            return
        yield self.travels.latency(0)
        yield self.processors.stage()
        yield self.travels.latency(0)
        self._open_round()

    def _open_round(self):
        """Opens a round, and gives out its tickets."""
        hparams, step = self._player.hparams, self.step
        mine = self._source.clients.sample(hparams.seed, step, hparams.clients, hparams.fraction)
        self._stamp, self._needed = step, len(mine)
        self._run(self._open, step, len(mine), 0)
        self._tickets = [[step, client, 0] for client in mine]
        self._news.fire()
        if self._deadline:
            self._clock.at(self._clock.now + self._deadline, lambda: self._be_content(step))

    def _be_content(self, step):
        """Closes a round at its deadline; with nobody admitted so far, the next one closes it."""
        if self._stamp == step:
            self._needed = 1
            self._run(self._content, step)
            self._settle()

    def stands(self):
        return f'{self._admitted} clients have come, of {self._needed} for this step'
