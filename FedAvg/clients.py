"""Clients: the training set in parts, one for each client, and the batches of the one in turn.

A client is a part of the examples, and not a process: whichever worker has a client's ticket reads
its examples. What a client does in a round depends on the seed, the round and the client alone.
"""

import math
import sys

import numpy as np
from tfdist.data import batches
from tfdist.scheme import exchange
from tfdist.synchronous import stamps
from tfdist.start.quiet import tf

TICKET = 3  # numbers: the stamp of the round; the client; and who has it, see admissions.py
_SEEDS = 2 ** 32  # NumPy takes no others


def sample(seed, step, number, fraction):
    """Returns the clients of a round, a sorted list of ints: the same whoever asks, and whenever.

    Args:
      seed: int.
      step: int, the number of the round.
      number: int, how many clients there are.
      fraction: float, the share of them that takes part, rounded down, but at least one.
    """
    order = np.random.RandomState([seed % _SEEDS, step]).permutation(number)
    return sorted(order[:per_round(number, fraction)].tolist())


def in_passes(seed, ticket, number):
    """Returns the client of a ticket without a round, an int: each once in a pass over all.

    Args:
      seed: int.
      ticket: int, the number of the ticket, from 0.
      number: int, how many clients there are.
    """
    passes, place = divmod(ticket, number)
    return int(np.random.RandomState([seed % _SEEDS, passes]).permutation(number)[place])


def per_round(number, fraction):
    """Returns how many of a `number` of clients take part in a round, an int; see `sample`."""
    return max(int(fraction * number), 1)


def equal_parts(examples, number):
    """Returns arrays of indices, the examples of each client: as those of a worker elsewhere."""
    return [np.arange(client, examples, number) for client in range(number)]


def parts_by_class(classes, number, each, seed):
    """Deals out pieces of the examples sorted by class.

    Brendan McMahan et al., arXiv 1602.05629, section 3: sorted, cut into equal pieces, dealt.

    Args:
      classes: [n] array, the class of each example.
      number: int, how many clients there are.
      each: int, how many pieces a client gets.
      seed: int, of the deal.

    Returns:
      List of arrays of indices, the examples of each client.
    """
    pieces = np.array_split(np.argsort(classes, kind='stable'), each * number)
    dealt = np.random.RandomState([seed % _SEEDS]).permutation(each * number)
    return [np.concatenate([pieces[piece] for piece in mine])
            for mine in np.split(dealt, number)]


class Clients:
    """All clients and their examples.

    Attributes:
      parts: list of arrays of indices, the examples of each client.
      most_steps, fewest_steps: ints, the local steps in a turn of the client that makes most, and
        of the one that makes fewest.
      dtypes: list of `tf.DType`, of what `read` returns.
    """

    def __init__(self, arrays, hparams):
        """Cuts the training set into the parts of clients.

        Args:
          arrays: nest of arrays [n, ...], the examples; for parts by class the last array has the
            class of each.
          hparams: object with the attributes clients, classes_per_client (None for equal parts),
            epochs, batch_size and seed.

        Raises:
          SystemExit: if there are fewer examples than parts, or no classes to sort by.
        """
        flat = [np.asarray(array) for array in tf.nest.flatten(arrays)]
        examples, pieces = len(flat[0]), hparams.clients * (hparams.classes_per_client or 1)
        if any(len(array) != examples for array in flat):
            sys.exit("The arrays of the model's train_batches are not all of one length.")
        if pieces > examples:
            sys.exit(f'--clients={hparams.clients}: {examples} examples cannot be cut into '
                     f'{pieces} parts.')
        if not hparams.classes_per_client:
            self.parts = equal_parts(examples, hparams.clients)
        elif flat[-1].ndim != 1 or flat[-1].dtype.kind not in 'iu':
            sys.exit('--classes_per_client: the last of the arrays of train_batches has to be the '
                     f'class of each example, [n] integers, and it is {list(flat[-1].shape)} '
                     f'{flat[-1].dtype}.')
        else:
            self.parts = parts_by_class(flat[-1], hparams.clients, hparams.classes_per_client,
                                        hparams.seed)
        self._arrays, self._flat = arrays, [batches.cast(array) for array in flat]
        self._epochs, self._size, self._seed = hparams.epochs, hparams.batch_size, hparams.seed
        self._random = np.random.RandomState()  # seeded for each turn: to make one takes 70 us more
        steps = [self._steps(part) for part in self.parts]
        self.most_steps, self.fewest_steps = max(steps), min(steps)
        last = {len(part) % self._size for part in self.parts}  # 0: a whole batch
        self._static = self._size if last == {0} else None
        self.dtypes = [*[tf.int64] * 3, *(tf.as_dtype(array.dtype) for array in self._flat)]

    def _steps(self, part):
        return self._epochs * math.ceil(len(part) / self._size)

    def batches_of(self, client, step):
        """Returns the batches of a client in a round: a list of index arrays, one for each step.

        In each epoch the examples have another order, and the last batch has what is left.
        """
        self._random.seed([self._seed % _SEEDS, step, client])
        orders = [self._random.permutation(self.parts[client]) for _ in range(self._epochs)]
        return [order[begin:begin + self._size] for order in orders
                for begin in range(0, len(order), self._size)]

    def read(self, step, client):
        """Returns what a client trains on in a turn: the values of a `Turn`, a list of arrays.

        They are how many examples it has, how many steps it makes, [most_steps] how many examples
        each batch has, and the examples of all batches, one batch after the other.

        Args:
          step: int, the number of the round, or without rounds of the ticket.
          client: int.
        """
        mine = self.batches_of(client, step)
        numbers = np.int64(len(self.parts[client])), np.int64(len(mine))
        mine += mine[:1] * (self.most_steps - len(mine))
        order = np.concatenate(mine)
        return [*numbers, np.array([len(one) for one in mine], np.int64),
                *(array[order] for array in self._flat)]

    def packed(self, tensors):
        """Returns the batches of a `Turn`, of a list of tensors after the first two of `read`."""
        form = tuple(self._arrays) if isinstance(self._arrays, list) else self._arrays
        sizes, *of_all = tensors
        sizes.set_shape([self.most_steps])
        of_each = []
        for tensor, array in zip(of_all, self._flat):
            parts = tf.split(tensor, sizes)
            for part in parts:
                part.set_shape((self._static,) + array.shape[1:])
            of_each.append(parts)
        return [tf.nest.pack_sequence_as(form, batch) for batch in zip(*of_each)]


class Turn:
    """The client whose ticket a worker holds, and its batches.

    Attributes:
      ticket: int64 [3] `tf.Variable` of the worker: the stamp of the round, or without rounds the
        number of the ticket as a stamp; the client, which without rounds the number tells; and
        what `admissions` tells pushes apart by.
      examples: int64 scalar tensor, how many examples the client has.
      steps: int64 scalar tensor, how many local steps it makes in a turn.
      most_steps, fewest_steps: ints, the most and the fewest that any client makes.
      batches: list of nests of tensors [batch, ...], as many as `most_steps`; those after the
        client's last step repeat its first batch.
    """

    def __init__(self, everyone, client_of=None):
        """Makes the ops, on the device of the scope.

        Args:
          everyone: `Clients`.
          client_of: function of the number of a ticket, an int, that returns its client, if there
            are no rounds.
        """
        self.most_steps, self.fewest_steps = everyone.most_steps, everyone.fewest_steps
        self.ticket = exchange.own_variable(tf.zeros([TICKET], tf.int64), 'ticket')
        ticket = self.ticket.read_value()

        def read(step, client):
            return everyone.read(step, client_of(int(step)) if client_of else client)

        self.examples, self.steps, *tensors = tf.py_func(
            read, [stamps.step_of(ticket[0]), ticket[1]], everyone.dtypes)
        for number in self.examples, self.steps:
            number.set_shape([])
        self.batches = everyone.packed(tensors)


def client_of(hparams):
    """Returns the function of a ticket's number that says whose it is, or None with rounds."""
    if not hparams.buffer:
        return None
    return lambda ticket: in_passes(hparams.seed, ticket, hparams.clients)


def of_model(model, hparams):
    """Returns the `Clients` of a `model_file.Model`.

    Raises:
      SystemExit: if the model gives no arrays, or a flag does not fit; see `Clients`.
    """
    load = getattr(model.train_batches, 'arrays', None)
    if load is None:
        sys.exit(f'The model {model.name} reads shards, and not the examples of any client: its '
                 'train_batches has no attribute `arrays`.')
    if hparams.accumulate > 1:
        sys.exit(f'--accumulate={hparams.accumulate}: a local step of a client takes one batch: '
                 'take a larger --batch_size.')
    return Clients(load(), hparams)
