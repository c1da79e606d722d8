"""A worker's round: its pieces, and what the worker has between them."""

import collections
import itertools

from tfdist.scheme import schedule


class Computed(collections.namedtuple('Computed', 'fed pushed figures kept')):
    """What a worker has computed with its last pull, and what it had before.

    Attributes:
      fed, pushed, figures: see `Round`.
      kept: list of arrays, what the worker keeps, see `own`; None if that is loaded.
    """


class Kind(collections.namedtuple('Kind', 'number fragment variables share')):
    """Which one of a scheme's kinds of rounds it is, and how much of the center that exchanges.

    Attributes:
      number: int, 0 for the scheme's own and 1, 2, ... for its `others`.
      fragment: list of ints, which variables of the center it exchanges; None for all.
      variables: int, how many the center has.
      share: float, the share of the center's bytes that these variables have.
    """

    def in_place(self, sizes):
        """Returns the sizes of the tensors of a fragment by variable, 0 for those of the others."""
        if self.fragment is None:
            return sizes
        placed = [0] * self.variables
        for place, size in zip(self.fragment, sizes):
            placed[place] = size
        return placed


WHOLE = Kind(0, None, 0, 1.)


class Round:
    """What a worker has between a pull and what comes after it.

    It knows at once what it has pulled. The rest is computed before it is first asked for.

    Attributes:
      step: int, the global step that the worker pulled.
      pull_bytes: list of ints, the size of each tensor that it pulled: of the global step, and of
        each variable.
      kind: `Kind`.
    """

    __slots__ = 'step', 'pull_bytes', '_computation', 'kind'

    def __init__(self, step, pull_bytes, computation, kind=WHOLE):
        """Takes the attributes, and a `gathering.Computation` of a `Computed`."""
        self.step, self.pull_bytes, self.kind = step, pull_bytes, kind
        self._computation = computation

    @property
    def fed(self):
        """Dict of arrays by tensors' names: what later runs are fed of its pulls and batches."""
        return self._computation.result().fed

    @property
    def pushed(self):
        """List by push of lists of arrays, what the worker pushes, as far as that is known."""
        return self._computation.result().pushed

    @property
    def figures(self):
        """Dict of floats, of its batches; empty until all of them are computed."""
        return self._computation.result().figures

    def push_bytes(self, number=0):
        """Returns the size of what push `number` has for each variable, a list of ints."""
        return self.kind.in_place([array.nbytes for array in self.pushed[number]])


class Piece(collections.namedtuple('Piece', 'what number local_steps')):
    """A piece of a round.

    Attributes:
      what: string, what a worker does: 'pulls', 'computes', 'pushes' or 'waits'.
      number: int, which pull or push of the round it is.
      local_steps: int, how many are computed in this piece, or sent with this push.
    """


def pieces_of(exchanges):
    """Returns the pieces of a round, a list of `Piece`.

    A worker that computes after a push hears of the push meanwhile; any other waits to hear of it.

    Args:
      exchanges: list of `schedule.Pull` and `schedule.Push`.
    """
    pieces, at, pulls, pushed = [], 0, itertools.count(), [0]
    for exchange in exchanges:
        if exchange.after > at:
            pieces.append(Piece('computes', 0, exchange.after - at))
        elif pieces:
            pieces.append(Piece('waits', 0, 0))
        at = exchange.after
        if isinstance(exchange, schedule.Pull):
            pieces.append(Piece('pulls', next(pulls), 0))
        else:
            pieces.append(Piece('pushes', len(pushed) - 1, at - pushed[-1]))
            pushed.append(at)
    return [*pieces, Piece('waits', 0, 0)]
