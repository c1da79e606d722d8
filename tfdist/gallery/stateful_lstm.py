"""The LSTM of `lstm`, which carries its state on from batch to batch.

A batch has a window from each of several streams of text; the next batch has the windows that
follow. The state at the end of a batch belongs to the streams of this worker. So the model keeps it
in local variables, which are the worker's own: no other worker sees them, and they do not travel.
The test begins each window without state.
"""

import numpy as np
from tfdist.data import batches
from tfdist.gallery import lstm
import tensorflow.compat.v1 as tf

LEARNING_RATE, LOCAL_STEPS = 2.0, 1000  # defaults of the flags, for plain SGD
INPUTS = lstm.INPUTS
test_batches, predictions = lstm.test_batches, lstm.predictions


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training text endlessly: `batch_size` streams beside each other.

    Args:
      batch_size: int, streams, and so windows in a batch.
      count: int, batches that each run of the graph takes, one after the other.
      shard: int, which shard: one stretch of the text out of `num_shards`.
      num_shards: int, number of shards, one for each worker.
      seed: int, where in its stretch each stream begins, see `batches.order_seed`.

    Returns:
      List of `count` batches as `lstm.train_batches` has them.

    Raises:
      SystemExit: if the text is too short for so many streams.
    """
    train, _ = lstm.windows()
    length = len(train) // (num_shards * batch_size)
    if not length:
        raise SystemExit(f'--lstm_characters: {len(train)} windows of text are too few for '
                         f'{num_shards} workers with {batch_size} streams each. Take more.')
    mine = train[shard * batch_size * length:][:batch_size * length]
    by_time = np.swapaxes(mine.reshape([batch_size, length, -1]), 0, 1)
    begin = batches.order_seed(seed, shard, num_shards) % length
    windows = tf.data.Dataset.from_tensor_slices(batches.tensors([by_time])[0])
    windows = windows.repeat().skip(begin).batch(count, drop_remainder=True)
    return [(window[:, :-1], window[:, 1:])
            for window in batches.in_pieces(batches.next_of(windows))]


def loss_and_metrics(batch, training):
    """See `lstm.loss_and_metrics`; in training, with the state that the last batch left."""
    characters, next_ones = batch
    if not training:
        return lstm.judged(lstm.network(characters)[0], next_ones)
    kept = [tf.get_variable(name, [characters.shape[0], lstm.UNITS], trainable=False,
                            initializer=tf.zeros_initializer(),
                            collections=[tf.GraphKeys.LOCAL_VARIABLES]) for name in ('c', 'h')]
    begin = tf.nn.rnn_cell.LSTMStateTuple(*map(tf.convert_to_tensor, kept))
    scores, end = lstm.network(characters, begin)
    for variable, value in zip(kept, end):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, variable.assign(value))
    return lstm.judged(scores, next_ones)
