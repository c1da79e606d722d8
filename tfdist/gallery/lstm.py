"""A character language model: an LSTM reads Python's standard library, and guesses what follows.

Every machine has this text, in the files of Python itself. It differs between versions of Python,
and so do the results. --data_dir=DIRECTORY takes the files *.py of another directory. Every tenth
file is for the test.
"""

import functools
import glob
import os
import sys
import sysconfig

from absl import flags
import numpy as np
from tfdist.data import batches, datasets
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('lstm_characters', 2000000, 'the most characters of the text to read',
                     lower_bound=1000)
LEARNING_RATE, LOCAL_STEPS = 2.0, 1000  # defaults of the flags, for plain SGD

INPUTS = 'characters', 'next_ones'  # what an exported model calls the parts of a batch
VOCABULARY = 129  # the characters of ASCII, and one for all other bytes
WINDOW = 50  # characters in an example, and the steps back through which the gradient goes
EMBEDDING, UNITS = 32, 128


def windows():
    """Returns the examples to train on and to test on, two arrays [n, WINDOW + 1] of uint8.

    The last character of an example is only guessed; it is also the first of the next example.

    Raises:
      SystemExit: if the text is missing or too short.
    """
    return _windows(datasets.FLAGS.data_dir or sysconfig.get_path('stdlib'), FLAGS.lstm_characters)


@functools.lru_cache(maxsize=None)  # for training and for the test
def _windows(directory, characters):
    """Returns the same for a directory, and the most characters to read there."""
    paths = sorted(glob.glob(os.path.join(os.path.expanduser(directory), '*.py')))
    parts = ([], [])  # to train on, to test on
    for i, path in enumerate(paths):
        try:
            with open(path, 'rb') as file:
                parts[i % 10 == 9].append(file.read(characters))
        except OSError as error:
            sys.exit(f'--data_dir: {path} cannot be read ({error}). Repair it, or remove it.')
        characters -= len(parts[i % 10 == 9][-1])
        if not characters:
            break
    return tuple(_cut(b''.join(part), directory) for part in parts)


def _cut(text, directory):
    """Returns an array of windows of `text`, bytes."""
    count = (len(text) - 1) // WINDOW
    if count < 1:
        sys.exit(f'--data_dir: {directory} has too little text to train on or to test on: it needs '
                 'ten files *.py at least, and --lstm_characters has to reach the tenth.')
    ids = np.minimum(np.frombuffer(text, np.uint8), VOCABULARY - 1)
    starts = WINDOW * np.arange(count)
    return ids[starts[:, np.newaxis] + np.arange(WINDOW + 1)]


def _example(window):
    """Returns windows [batch_size, WINDOW + 1] as a batch: characters, and those that follow."""
    return window[:, :-1], window[:, 1:]


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads one shard of the training text endlessly, shuffled again in each epoch.

    Args:
      batch_size: int, windows in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, which shard: windows `shard`, `shard + num_shards`, ...
      num_shards: int, number of shards, one for each worker.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of int64 tensors [batch_size, WINDOW]: characters, and for each
      the next character of the text.

    Raises:
      SystemExit: if there are fewer windows than workers.
    """
    train, _ = windows()
    if len(train) < num_shards:
        sys.exit(f'--lstm_characters: {len(train)} windows of text are too few for {num_shards} '
                 'workers. Take more.')
    return [_example(window) for window, in
            batches.forever([train], batch_size, count, shard, num_shards, seed)]


def test_batches(batch_size):
    """Returns the test text, a `tf.data.Dataset` of batches as from `train_batches`."""
    _, test = windows()
    windows_of_text = tf.data.Dataset.from_tensor_slices(batches.tensors([test])[0])
    return batches.mapped(windows_of_text.batch(batch_size), _example)


def network(characters, state=None):
    """Builds the network: an embedding of each character, an LSTM, and a classifier.

    Args:
      characters: [batch_size, WINDOW] int64.
      state: `tf.nn.rnn_cell.LSTMStateTuple` of tensors [batch_size, UNITS] float32, with which the
        LSTM begins; by default zeros.

    Returns:
      [batch_size * WINDOW, VOCABULARY] float32, for each character what may follow; and the state
      at the end.
    """
    table = tf.get_variable('embedding', [VOCABULARY, EMBEDDING],
                            initializer=tf.random_uniform_initializer(-1, 1))
    # A loop in the graph. Unrolled by static_rnn: eight times the ops, for a tenth more speed.
    outputs, state = tf.nn.dynamic_rnn(
        tf.nn.rnn_cell.LSTMCell(UNITS), tf.nn.embedding_lookup(table, characters),
        initial_state=state, dtype=tf.float32)
    weights = tf.get_variable('weights', [UNITS, VOCABULARY])
    biases = tf.get_variable('biases', [VOCABULARY], initializer=tf.zeros_initializer())
    # One product for all characters of all windows.
    return tf.nn.bias_add(tf.matmul(tf.reshape(outputs, [-1, UNITS]), weights), biases), state


def loss_and_metrics(batch, training):
    """Builds the network on a batch.

    Args:
      batch: pair of int64 tensors [batch_size, WINDOW], see `train_batches`.
      training: bool; the network is the same in training and in the test.

    Returns:
      The mean cross-entropy per character in nats, a float32 scalar; and a dict with the
      'accuracy', the share of characters for which the likeliest guess is right.
    """
    del training
    characters, next_ones = batch
    return judged(network(characters)[0], next_ones)


def judged(scores, next_ones):
    """Returns what `loss_and_metrics` does, for scores as from `network`."""
    labels = tf.reshape(next_ones, [-1])
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
    right = tf.cast(tf.equal(tf.argmax(scores, axis=1), labels), tf.float32)
    return loss, {'accuracy': tf.reduce_mean(right)}


def predictions(batch):
    """Returns what an exported model says of characters, see --export_dir: what follows them."""
    last = tf.reshape(network(batch[0])[0], [-1, WINDOW, VOCABULARY])[:, -1]
    return {'characters': tf.argmax(last, axis=1), 'probabilities': tf.nn.softmax(last)}
