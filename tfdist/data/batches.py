"""Batches of arrays as tensors: a worker's shard, endlessly, or a whole test set."""

import contextlib
import re
import sys

import numpy as np
from tfdist.start.quiet import tf

# In TensorFlow's message: a line with the reason, then the ops that failed, the iterator last. The
# name of an op on another device, which merely got no batch, has a suffix such as /_5.
_FAILED = re.compile(r'(.+)\n(?:\s*\[\[.*\]\]\n)*?\s*\[\[[^]]*IteratorGetNext(?:_\d+)?[ }\]]')
_WHERE = re.compile(r'.*(?:\}\}|Iterator::\S+) ')  # a place in the dataset, of no help


def tensors(arrays):
    """Returns a list of arrays as a tuple of tensors of their shapes, float32 or int64: see `cast`.

    The values stay out of the graph, which has to fit a message.
    """
    arrays = [cast(array) for array in arrays]
    made = tf.py_func(lambda: arrays, [], [tf.as_dtype(array.dtype) for array in arrays])
    for tensor, array in zip(made, arrays):
        tensor.set_shape(array.shape)
    return tuple(made)


def cast(array):
    """Returns an array of floats as float32, any other array as int64."""
    return array.astype(np.float32 if array.dtype.kind == 'f' else np.int64)


def forever(arrays, batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of arrays endlessly, shuffled again in each epoch.

    Args:
      arrays: list of arrays of one length, such as images and labels.
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes. They are fetched at once: a fetch takes
        about as long as a step of a small network.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, number of shards, one for each worker.
      seed: int, of the shuffle; the shard is mixed in, see `order_seed`.

    Returns:
      List of `count` batches, tuples of tensors [batch_size, ...], see `tensors`.
    """
    dataset = shuffled(arrays, shard, num_shards, seed)
    for size in batch_size, count:
        dataset = dataset.batch(size, drop_remainder=True)
    return in_pieces(next_of(dataset))


def of_arrays(load):
    """Makes the functions `train_batches` and `test_batches` of a model, see `model_file`.

    Args:
      load: function without arguments that returns arrays to train on, then to test on: images,
        labels, images, labels.

    Returns:
      The two functions. Their batches are pairs of tensors, see `tensors`. The attribute `arrays`
      of `train_batches` is a function that returns the arrays to train on, to make other batches.
    """
    def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
        return forever(load()[:2], batch_size, count, shard, num_shards, seed)

    def test_batches(batch_size):
        return tf.data.Dataset.from_tensor_slices(tensors(load()[2:])).batch(batch_size)

    train_batches.arrays = lambda: load()[:2]
    return train_batches, test_batches


def arrays_of(whole):
    """Makes the attribute `arrays` of a `train_batches` that reads no arrays, see `of_arrays`.

    Args:
      whole: function without arguments that returns all examples as one batch, a nest of tensors.

    Returns:
      Function that returns the examples as arrays, which more workers can share than files.
    """
    def load():
        with tf.Graph().as_default(), tf.Session() as session:
            batch = whole()
            session.run(tf.tables_initializer())  # initializes the iterators
            return session.run(batch)

    return load


def shuffled(arrays, shard, num_shards, seed):
    """Returns one shard of arrays as an endless `tf.data.Dataset` of examples; see `forever`."""
    mine = [array[shard::num_shards] for array in arrays]
    dataset = tf.data.Dataset.from_tensor_slices(tensors(mine))
    return dataset.shuffle(len(mine[0]), seed=order_seed(seed, shard, num_shards)).repeat()


def order_seed(seed, shard, num_shards):
    """Returns the seed for the order of a worker's examples, an int64 scalar tensor.

    It depends on the global step at which the session starts, so that a resumed run, or a worker
    that joins later, does not repeat the order of the start. At step 0 it depends on the run's
    `seed`, this worker's `shard` and `num_shards` alone, all ints.
    """
    own = tf.constant(seed * num_shards + shard, tf.int64)
    global_step = tf.train.get_global_step()
    if global_step is None:
        return own
    with tf.device(global_step.device):
        return own + (2 ** 20 + 7) * tf.cast(global_step.read_value(), tf.int64)


def mapped(dataset, function):
    """Returns `dataset.map(function)` without AutoGraph, which takes a second to load."""
    return dataset.map(tf.autograph.experimental.do_not_convert(function))


def make_iterator(dataset):
    """Returns an initializable iterator of a `tf.data.Dataset`, without autotuning.

    TensorFlow 2's autotuning delays the closing of a session by seconds, up to a minute after a
    long run.
    """
    options = tf.data.Options()
    if hasattr(options, 'autotune'):
        options.autotune.enabled = False
    return tf.data.make_initializable_iterator(dataset.with_options(options))


def next_of(dataset):
    """Returns the next element of a `tf.data.Dataset`, whose iterator sessions initialize."""
    iterator = make_iterator(dataset)
    # Sessions run this collection when they start.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def in_pieces(stacked):
    """Splits an element of a `tf.data.Dataset` that was batched twice into batches.

    Args:
      stacked: nest of tensors [count, ...], dense or sparse.

    Returns:
      List of `count` nests of tensors [...].

    Raises:
      SystemExit: if no tensor's shape has the count.
    """
    flat = tf.nest.flatten(stacked)
    counts = [tf.compat.dimension_value(tensor.shape[0]) for tensor in flat]
    count = next(filter(None, counts), None)
    if count is None:
        sys.exit('No tensor of train_batches has a shape that gives the number of batches: batch '
                 'with drop_remainder=True, and have a dense tensor, such as labels.')
    pieces = zip(*(_unstack(tensor, count) for tensor in flat))
    return [tf.nest.pack_sequence_as(stacked, piece) for piece in pieces]


def _unstack(tensor, count):
    """Returns a list of `count` tensors [...] for a tensor [count, ...], dense or sparse."""
    if not isinstance(tensor, tf.SparseTensor):
        return tf.unstack(tensor, count)
    parts = tf.sparse.split(sp_input=tensor, num_split=count, axis=0)  # each [1, ...]
    return [tf.SparseTensor(part.indices[:, 1:], part.values, part.dense_shape[1:])
            for part in parts]


@contextlib.contextmanager
def failures():
    """Ends the program in one line if an iterator fails in the block.

    An exception of Python in a model's own function keeps its traceback.

    Raises:
      SystemExit: with TensorFlow's reason.
    """
    try:
        yield
    except tf.errors.OpError as error:
        check(error)
        raise


def check(error):
    """Ends the program in one line if `error`, a `tf.errors.OpError`, is an iterator's.

    Raises:
      SystemExit: see `failures`.
    """
    if isinstance(error, tf.errors.CancelledError):  # for a failure elsewhere, as of a lost ps
        return
    failed = _FAILED.search(error.message)
    if not failed or 'Traceback (most recent' in error.message:
        return
    if isinstance(error, tf.errors.OutOfRangeError):
        sys.exit("The model's train_batches came to an end: it has to return fresh batches for "
                 'ever. Let its Dataset repeat().')
    sys.exit(f'The data cannot be read: {_WHERE.sub("", failed.group(1)).strip()[:500]}. '
             'Repair the data, or the way the model reads them.')
