"""A worker's round: the pieces that it is made of, and what the worker has in its course."""

import collections
import itertools

from tfdist import runs


class Round(collections.namedtuple('Round', 'step fed pushed figures pull_bytes')):
    """What a worker has between a pull and what comes after it.

    Attributes:
      step: int, the global step that it pulled.
      fed: dict of arrays by tensors' names, of what it pulled and its batches what is to be fed.
      pushed: list of lists of arrays, what it pushes, by push, as far as that is known.
      figures: dict of floats, of its batches; empty until all are computed.
      pull_bytes: list of ints, the sizes of what it pulled, by tensor.
    """

    def push_bytes(self, number=0):
        """Returns the sizes of what it pushes, a list of ints; `number` is which push it is."""
        return [array.nbytes for array in self.pushed[number]]


class Piece(collections.namedtuple('Piece', 'what number local_steps')):
    """A piece of a round.

    Attributes:
      what: string, what a worker does: 'pulls', 'computes', 'pushes' or 'waits'.
      number: int, which pull or push of the round it is.
      local_steps: int, how many it computes; or how many those are whose push it is.
    """


def pieces_of(exchanges):
    """Returns the pieces of a round, a list of `Piece`, of a list of `runs.Pull` and `runs.Push`.

    A worker hears of its push as it computes, or else waits for that.
    """
    pieces, at, pulls, pushed = [], 0, itertools.count(), [0]
    for exchange in exchanges:
        if exchange.after > at:
            pieces.append(Piece('computes', 0, exchange.after - at))
        elif pieces:
            pieces.append(Piece('waits', 0, 0))
        at = exchange.after
        if isinstance(exchange, runs.Pull):
            pieces.append(Piece('pulls', next(pulls), 0))
        else:
            pieces.append(Piece('pushes', len(pushed) - 1, at - pushed[-1]))
            pushed.append(at)
    return [*pieces, Piece('waits', 0, 0)]
