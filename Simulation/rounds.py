"""A worker's round: its pieces, and what the worker has between them."""

import collections
import itertools

from tfdist.scheme import schedule


class Round(collections.namedtuple('Round', 'step fed pushed figures pull_bytes')):
    """What a worker has between a pull and what comes after it.

    Attributes:
      step: int, the global step that the worker pulled.
      fed: dict of arrays by tensors' names: what later runs are fed of its pull and its batches.
      pushed: list by push of lists of arrays, what the worker pushes, as far as that is known.
      figures: dict of floats, of its batches; empty until all of them are computed.
      pull_bytes: list of ints, the size of each tensor that it pulled.
    """

    def push_bytes(self, number=0):
        """Returns the size of each tensor of push `number`, a list of ints."""
        return [array.nbytes for array in self.pushed[number]]


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
