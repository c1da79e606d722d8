"""Feeds each worker the batches of its own shard.

A source of batches has two attributes: `batches`, a list of nests of placeholders, which a scheme
takes in a run; and `placeholders`, the list of all of them. `next(worker)` returns an array for
each placeholder.

A source that is faster for several workers at once does the same in two steps: `ask(worker)` says
what comes next for the worker, and `draw(asked)` takes a list of what was said, and returns a list
of lists of arrays. Several threads may draw at the same time.
"""

import collections
import functools
import itertools
import sys

import numpy as np
from tfdist.data import batches
from tfdist.model import state
from tfdist.scheme import graphs
from tfdist.start.quiet import tf
from constants import Constants

_AHEAD = 1024  # examples whose order is drawn at once, at least


def to_be_fed(dtype, shape):
    """Returns a placeholder. What a model assigns to a variable may depend on it, too."""
    tensor = tf.placeholder(dtype, shape)
    tf.add_to_collection(state.FED, tensor)
    return tensor


class Arrays:
    """Reads shards of arrays, each shuffled anew in every epoch, as by `batches.forever`."""

    def __init__(self, arrays, batch_size, count, shards, seeds):
        """Makes the placeholders.

        Args:
          arrays: list of arrays of one length, such as images and labels.
          batch_size: int, examples in a batch.
          count: int, how many batches each run of the graph takes.
          shards: list of pairs of ints by worker: which shard, and of how many.
          seeds: list of ints by worker, of the shuffle.
        """
        self._arrays, self._shards = [batches.cast(array) for array in arrays], shards
        self._shape = count, batch_size
        self.placeholders = [to_be_fed(array.dtype, self._shape + array.shape[1:])
                             for array in self._arrays]
        self.batches = batches.in_pieces(tuple(self.placeholders))
        self._random = [np.random.RandomState([seed % 2 ** 32, *shard])
                        for seed, shard in zip(seeds, shards)]
        self._left, self._at = [np.array([], np.int64) for _ in shards], [0] * len(shards)

    def ask(self, worker):
        """Returns indices of the worker's next examples."""
        wanted, left, at = self._shape[0] * self._shape[1], self._left[worker], self._at[worker]
        if len(left) - at < wanted:
            left = np.concatenate([left[at:], self._epochs(worker, max(wanted, _AHEAD))])
            self._left[worker], at = left, 0
        self._at[worker] = at + wanted
        return left[at:at + wanted]

    def draw(self, asked):
        """Returns what `next` does for each array of indices in a list."""
        places, shape = np.concatenate(asked), (len(asked), *self._shape)
        return list(zip(*(array[places].reshape(shape + array.shape[1:])
                          for array in self._arrays)))

    def next(self, worker):
        """Returns arrays [count, batch_size, ...], the worker's next examples."""
        return self.draw([self.ask(worker)])[0]

    def _epochs(self, worker, wanted):
        """Returns indices of a worker's next examples: whole epochs, at least `wanted` of them."""
        shard, num_shards = self._shards[worker]
        mine = np.arange(shard, len(self._arrays[0]), num_shards)
        if not len(mine):  # more workers than examples: examples are used twice
            mine = np.array([shard % len(self._arrays[0])])
        orders = self._random[worker].random_sample((-(-wanted // len(mine)), len(mine)))
        return mine[np.argsort(orders, axis=1)].ravel()


class Iterators:
    """Reads the batches of a model's `train_batches`, in exactly the order of a real run."""

    def __init__(self, make, seed=1):
        """Makes the placeholders.

        Args:
          make: list of functions by worker that return the worker's batches, a list of nests.
          seed: int, that of the run: a shuffle also depends on the seed of its graph.
        """
        # Each worker's batches have a graph of their own, as in a run. A session prunes its whole
        # graph before its first run: with one graph for all workers, that takes time quadratic in
        # their number, and as much memory.
        self._next, data = [], Constants()
        for make_own in make:
            with tf.Graph().as_default() as graph:
                tf.set_random_seed(seed)
                nest = make_own()
                fetches = tf.nest.flatten(nest, expand_composites=True)
                begin = tf.tables_initializer()  # it initializes the iterator
            graph, fed = data.taken_out(graph)
            self._next.append(self._reader(graph, begin.name, [each.name for each in fetches], fed))
        self.placeholders = [to_be_fed(tensor.dtype, tensor.shape) for tensor in fetches]
        self.batches = tf.nest.pack_sequence_as(nest, self.placeholders, expand_composites=True)

    @staticmethod
    def _reader(graph, begin, fetches, fed):
        """Returns a function that returns a worker's next batches, from a session of its own.

        Args:
          graph: `tf.Graph`.
          begin: string, the name of the op that initializes the iterator.
          fetches: list of strings, the names of the batches' tensors.
          fed: dict of arrays, the data, by names of tensors.
        """
        session = tf.Session(graph=graph, config=tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        session.run(begin, fed)
        used = {op.name for op in graphs.ancestors(map(graph.get_tensor_by_name, fetches))}
        needed = [name for name in fed if name.partition(':')[0] in used]
        return functools.partial(session.make_callable(fetches, needed),
                                 *(fed[name] for name in needed))

    def next(self, worker):
        """Returns arrays, the worker's next batches."""
        with batches.failures():
            return self._next[worker]()


class Drawn:
    """Draws the batches of a model that needs no graph for it, in exactly the order of a real run.

    Its `train_batches` has the attribute `drawn`, a function that draws those of several runs of
    the graph:

        drawn(batch_size, count, num_shards, [(shard, seed, number_of_the_run), ...])

    It returns a list of arrays [runs, count, batch_size, ...].
    """

    def __init__(self, drawn, batch_size, count, shards, seeds):
        """Makes the placeholders; the arguments are those of `Arrays`, but for the function."""
        (_, num_shards), *_ = shards
        self._draw = functools.partial(drawn, batch_size, count, num_shards)
        self._streams = [(shard, seed) for (shard, _), seed in zip(shards, seeds)]
        self._runs = [itertools.count() for _ in shards]
        self.placeholders = [to_be_fed(array.dtype, array.shape[1:])
                             for array in self._draw([(*self._streams[0], 0)])]
        self.batches = batches.in_pieces(tuple(self.placeholders))

    def ask(self, worker):
        """Returns which run comes next for the worker."""
        return (*self._streams[worker], next(self._runs[worker]))

    def draw(self, asked):
        """Returns what `next` does for each run of a list."""
        return list(zip(*self._draw(asked)))

    def next(self, worker):
        """Returns arrays, the worker's next batches."""
        return self.draw([self.ask(worker)])[0]


class Tickets:
    """Reads the tickets that a scheme's own queue gives to the workers, as in Work-Queue."""

    def __init__(self, make_queue, model, batch_size, count, per_ticket, seed):
        """Makes the queue, in a session of its own, and the placeholders.

        Args:
          make_queue: class `Tickets` of the scheme's folder.
          model: `model_file.Model` whose `train_batches` reads tickets.
          batch_size: int, examples in a batch.
          count: int, how many batches each run of the graph takes.
          per_ticket: int, batches in a ticket.
          seed: int, of the order of the examples.
        """
        if not hasattr(model, 'num_examples'):
            sys.exit(f'The model {model.name} reads shards, and not tickets: it has no '
                     'num_examples().')
        with tf.Graph().as_default() as graph:
            queue = make_queue(-(-model.num_examples() // (batch_size * per_ticket)), per_ticket,
                               device='')
            nest, make_ready = model.train_batches(batch_size, count, queue.mine, per_ticket, seed)
            fetches = tf.nest.flatten(nest, expand_composites=True)
            begin = tf.global_variables_initializer()
        session = tf.Session(graph=graph, config=tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        session.run(begin)
        self._exchange = session.make_callable(queue.exchange, [queue.mine])
        self._make_ready = session.make_callable(make_ready, [queue.mine])
        self._next = session.make_callable(fetches)
        self._runs = per_ticket // count
        self._held, self._left = {}, collections.defaultdict(list)
        self.placeholders = [to_be_fed(tensor.dtype, tensor.shape) for tensor in fetches]
        self.batches = tf.nest.pack_sequence_as(nest, self.placeholders, expand_composites=True)

    def begin(self, worker):
        """Lets a worker begin without a ticket. Another worker takes over the one that it had."""
        self._held.pop(worker, None)
        self._left.pop(worker, None)

    def is_empty(self, worker):
        """Returns whether a worker has trained on all of its ticket."""
        return not self._left[worker]

    def take(self, worker):
        """Finishes the worker's ticket and takes its next one."""
        self._held[worker] = self._exchange(self._held.get(worker, (-1, -1)))
        self._make_ready(self._held[worker])
        self._left[worker] = [self._next() for _ in range(self._runs)]

    def next(self, worker):
        """Returns arrays, the next batches of the worker's ticket."""
        return self._left[worker].pop(0)


def of_model(model, batch_size, count, shards, seeds):
    """Returns the fastest source of a model's batches: `Iterators` need a session per worker."""
    load = getattr(model.train_batches, 'arrays', None)
    if load:
        return Arrays(load(), batch_size, count, shards, seeds)
    drawn = getattr(model.train_batches, 'drawn', None)
    if drawn:
        return Drawn(drawn, batch_size, count, shards, seeds)
    return in_the_order_of_a_run(model, batch_size, count, shards, seeds)


def in_the_order_of_a_run(model, batch_size, count, shards, seeds):
    """Returns `Iterators` of a model's batches."""
    return Iterators([
        lambda shard=shard, seed=seed: model.train_batches(batch_size, count, *shard, seed)
        for shard, seed in zip(shards, seeds)], seeds[0])
