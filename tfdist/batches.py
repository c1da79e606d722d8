"""Batches of arrays, as tensors: a worker's shard for ever, or a test set as a whole."""

import contextlib
import re
import sys

import numpy as np
from tfdist.quiet import tf

# In TensorFlow's message: a line that says why, and below it which op failed, an iterator in the
# end. An op on another device that only got no batch has a name that goes on, such as /_5.
_FAILED = re.compile(r'(.+)\n(?:\s*\[\[.*\]\]\n)*?\s*\[\[[^]]*IteratorGetNext(?:_\d+)?[ }\]]')
_WHERE = re.compile(r'.*(?:\}\}|Iterator::\S+) ')  # in the dataset, and of no help


def tensors(arrays):
    """Returns arrays as tensors that stay out of the graph, which has to fit a message.

    Args:
      arrays: list of arrays; those of floats become float32, the others int64.

    Returns:
      Tuple of tensors of the arrays' shapes.
    """
    arrays = [cast(array) for array in arrays]
    made = tf.py_func(lambda: arrays, [], [tf.as_dtype(array.dtype) for array in arrays])
    for tensor, array in zip(made, arrays):
        tensor.set_shape(array.shape)
    return tuple(made)


def cast(array):
    """Returns an array of floats as float32, any other as int64."""
    return array.astype(np.float32 if array.dtype.kind == 'f' else np.int64)


def forever(arrays, batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of arrays for ever, shuffled anew in each epoch.

    Args:
      arrays: list of arrays of one length, such as images and labels.
      batch_size: int, examples in a batch.
      count: int, how many batches each run of the graph takes. They come in one piece: to fetch a
        batch takes about as long as a step of a small network.
      shard: int, which shard: examples `shard`, `shard + num_shards`, ...
      num_shards: int, how many shards there are, one for each worker.
      seed: int, of the shuffle; the shard is mixed in, see `order_seed`.

    Returns:
      List of `count` batches, tuples of tensors [batch_size, ...], see `tensors`.
    """
    dataset = shuffled(arrays, shard, num_shards, seed)
    for size in batch_size, count:
        dataset = dataset.batch(size, drop_remainder=True)
    return in_pieces(next_of(dataset))


def of_arrays(load):
    """Makes the functions `train_batches` and `test_batches` of a model, see `models`.

    Args:
      load: function without arguments; it returns arrays to train on and to test on: images,
        labels, images, labels.

    Returns:
      The two functions. Their batches are pairs of tensors, see `tensors`. The attribute `arrays`
      of the first is a function that returns what it reads, for who feeds batches.
    """
    def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
        return forever(load()[:2], batch_size, count, shard, num_shards, seed)

    def test_batches(batch_size):
        return tf.data.Dataset.from_tensor_slices(tensors(load()[2:])).batch(batch_size)

    train_batches.arrays = lambda: load()[:2]
    return train_batches, test_batches


def arrays_of(whole):
    """Makes the attribute `arrays` of a `train_batches` that reads something else, see `of_arrays`.

    Args:
      whole: function without arguments; it returns all examples as one batch, a nest of tensors.

    Returns:
      A function that returns them as arrays: so they can be given to more workers than there are
      files.
    """
    def load():
        with tf.Graph().as_default(), tf.Session() as session:
            batch = whole()
            session.run(tf.tables_initializer())  # these are the iterators
            return session.run(batch)

    return load


def shuffled(arrays, shard, num_shards, seed):
    """Returns one shard of arrays as an endless `tf.data.Dataset` of examples; see `forever`."""
    mine = [array[shard::num_shards] for array in arrays]
    dataset = tf.data.Dataset.from_tensor_slices(tensors(mine))
    return dataset.shuffle(len(mine[0]), seed=order_seed(seed, shard, num_shards)).repeat()


def order_seed(seed, shard, num_shards):
    """Returns the seed of the order in which a worker's examples come, an int64 scalar tensor.

    It depends on the global step at which the session begins: a run that is resumed goes on in
    another order, and does not begin again with the examples that it began with. At step 0, where
    a run begins, it is of the seed and the worker alone; who joins a run later has the order of the
    step at which it does.

    Args:
      seed: int, the run's.
      shard: int, which shard of the data this worker has.
      num_shards: int, how many there are.
    """
    own = tf.constant(seed * num_shards + shard, tf.int64)
    global_step = tf.train.get_global_step()
    if global_step is None:
        return own
    with tf.device(global_step.device):
        return own + (2 ** 20 + 7) * tf.cast(global_step.read_value(), tf.int64)


def mapped(dataset, function):
    """Returns `dataset.map(function)`, without AutoGraph: to load it takes a second."""
    return dataset.map(tf.autograph.experimental.do_not_convert(function))


def make_iterator(dataset):
    """Returns an iterator of a `tf.data.Dataset`, which is to be initialized.

    Nothing is tuned while it runs: what TensorFlow 2 tunes it with keeps a session that is to be
    closed waiting for seconds, up to a minute after a long run.
    """
    options = tf.data.Options()
    if hasattr(options, 'autotune'):
        options.autotune.enabled = False
    return tf.data.make_initializable_iterator(dataset.with_options(options))


def next_of(dataset):
    """Returns the next element of a `tf.data.Dataset`, from an iterator that sessions initialize.

    They initialize tables, and so this iterator, whenever they begin.
    """
    iterator = make_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def in_pieces(stacked):
    """Splits a nest of tensors, as of a `tf.data.Dataset` that was batched twice, into batches.

    Args:
      stacked: nest of tensors [count, ...], dense or sparse.

    Returns:
      List of `count` such nests of tensors [...].

    Raises:
      SystemExit: if no tensor has a shape that says how many there are.
    """
    flat = tf.nest.flatten(stacked)
    counts = [tf.compat.dimension_value(tensor.shape[0]) for tensor in flat]
    count = next(filter(None, counts), None)
    if count is None:
        sys.exit('No tensor of train_batches says by its shape how many batches there are: batch '
                 'with drop_remainder=True, and have one tensor that is dense, such as labels.')
    pieces = zip(*(_unstack(tensor, count) for tensor in flat))
    return [tf.nest.pack_sequence_as(stacked, piece) for piece in pieces]


def _unstack(tensor, count):
    """Returns a list of `count` tensors [...] from one, dense or sparse, of [count, ...]."""
    if not isinstance(tensor, tf.SparseTensor):
        return tf.unstack(tensor, count)
    parts = tf.sparse.split(sp_input=tensor, num_split=count, axis=0)  # each [1, ...]
    return [tf.SparseTensor(part.indices[:, 1:], part.values, part.dense_shape[1:])
            for part in parts]


@contextlib.contextmanager
def failures():
    """Ends the program in one line if an iterator fails in what it runs.

    What Python raised in a model's own function keeps its traceback.

    Raises:
      SystemExit: saying what TensorFlow says of the data.
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
    failed = _FAILED.search(error.message)
    if not failed or 'Traceback (most recent' in error.message:
        return
    if isinstance(error, tf.errors.OutOfRangeError):
        sys.exit("The model's train_batches came to an end: it has to bring fresh batches for "
                 'ever. Let its Dataset repeat().')
    sys.exit(f'The data cannot be read: {_WHERE.sub("", failed.group(1)).strip()[:500]}. Mend '
             'them, or what the model reads them by.')
