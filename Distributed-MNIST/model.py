"""The data and the network: the file to replace with your own, together with prepare_data.py.

The examples are read from files of TFRecords, of which each worker has its own.
"""

import json
import os
import sys

from absl import flags
import numpy as np
import tensorflow.compat.v1 as tf
from tfdist.data import batches, layers, problem

FLAGS = flags.FLAGS
flags.DEFINE_string('records_dir', os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                'records'),
                    'where prepare_data.py puts the examples: a directory for each dataset')
flags.DEFINE_integer('num_files', 8, 'over how many files to spread the training examples',
                     lower_bound=1)

INPUTS = 'images', 'labels'  # what an exported model calls the parts of a batch
_MEND = 'Delete the directory of this dataset, if there is one, and run prepare_data.py.'
_SHUFFLED = 10000  # examples from which the next one is drawn: more than a worker has of the digits
_FEATURES = {'image': tf.io.FixedLenFeature([], tf.string),
             'label': tf.io.FixedLenFeature([], tf.int64)}


def serialize(image, label):
    """Returns a record as bytes: `image`, a uint8 array, and `label`, an int."""
    return tf.train.Example(features=tf.train.Features(feature={
        'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    })).SerializeToString()


def records_dir():
    """Returns the directory with the records of --dataset."""
    return os.path.join(FLAGS.records_dir, FLAGS.dataset)


def read_index():
    """Returns the index that prepare_data.py wrote last, when all files were whole.

    Returns:
      Dict: 'pixels', the number in an image; 'train' and 'test', dicts of [examples, bytes] by file
      name.

    Raises:
      SystemExit: if there is no index.
    """
    try:
        with open(os.path.join(records_dir(), 'index.json'), encoding='utf-8') as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f'--records_dir: there are no whole records of {FLAGS.dataset} ({error}). {_MEND}')


def check(files):
    """Returns the paths of `files`, a list of (name, [examples, bytes]).

    Raises:
      SystemExit: if a file is missing, or has another size than it was given.
    """
    paths = [os.path.join(records_dir(), name) for name, _ in files]
    for path, (_, (_, size)) in zip(paths, files):
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            sys.exit(f'--records_dir: {path} is missing or truncated. {_MEND}')
    return paths


def _next(records, shape, pixels, ahead):
    """Reads the next examples in each run.

    Args:
      records: `tf.data.Dataset` of strings, serialized examples.
      shape: list of ints, whose product is the number of examples.
      pixels: int, the number in an image.
      ahead: int, the number of runs for which to prepare examples in advance.

    Returns:
      Pair of tensors: images [*shape, pixels] float32 in [0, 1] and labels [*shape] int64.
    """
    def parse(serialized):
        batch = tf.io.parse_example(serialized, _FEATURES)  # many at once, which is much faster
        images = tf.reshape(tf.io.decode_raw(batch['image'], tf.uint8), [*shape, pixels])
        return tf.cast(images, tf.float32) / 255, tf.reshape(batch['label'], shape)

    records = records.batch(int(np.prod(shape)), drop_remainder=True)
    dataset = batches.mapped(records, parse).prefetch(ahead)
    return batches.next_of(dataset)


def train_batches(batch_size, count, shard=0, num_shards=1, seed=0):
    """Reads this worker's files of the training set endlessly, shuffled again in each epoch.

    Args:
      batch_size: int, examples in a batch.
      count: int, batches that each run of the graph takes, fetched at once.
      shard: int, this worker's index: it reads the files `shard`, `shard + num_shards`, ...
      num_shards: int, number of workers.
      seed: int, of the shuffle; the shard is mixed in.

    Returns:
      List of `count` batches, pairs of tensors: images [batch_size, pixels] float32 in [0, 1] and
      labels [batch_size] int64.

    Raises:
      SystemExit: if the files are missing, or fewer than the workers.
    """
    index = read_index()
    files = sorted(index['train'].items())
    if len(files) < num_shards:
        sys.exit(f'--records_dir: {len(files)} files are too few for {num_shards} workers, each '
                 f'needs one of its own: --num_files={num_shards}. {_MEND}')
    mine = check(files[shard::num_shards])
    seed = batches.order_seed(seed, shard, num_shards)
    records = tf.data.Dataset.from_tensor_slices(mine).shuffle(len(mine), seed=seed)
    records = records.interleave(tf.data.TFRecordDataset, cycle_length=4, block_length=16)
    records = records.shuffle(_SHUFFLED, seed=seed).repeat()
    return batches.in_pieces(_next(records, [count, batch_size], index['pixels'], ahead=8))


def test_set(part='test'):
    """Returns the whole test set, or the set to train on, as one batch as from `train_batches`."""
    index = read_index()
    files = sorted(index[part].items())
    examples = sum(count for _, (count, _) in files)
    return _next(tf.data.TFRecordDataset(check(files)).repeat(), [examples], index['pixels'], 0)


train_batches.arrays = batches.arrays_of(lambda: test_set('train'))


def logits(images):
    """Builds the network, an MLP of ReLUs.

    Args:
      images: [batch_size, pixels] float32 in [0, 1].

    Returns:
      [batch_size, 10] float32, the unnormalized log-probability of each class.
    """
    units = images
    for i, size in enumerate(problem.hidden_units()):
        units = tf.nn.relu(layers.dense(units, size, f'hidden_{i}'))
    return layers.dense(units, problem.CLASSES, 'logits')


def loss_and_accuracy(images, labels):
    """Builds the network on a batch.

    Args:
      images: [batch_size, pixels] float32.
      labels: [batch_size] int64, the classes.

    Returns:
      Two float32 scalars: the mean cross-entropy in nats, and the share of right answers.
    """
    return layers.loss_and_accuracy(logits(images), labels)


def predictions(batch):
    """Returns what an exported model says of the images of a batch."""
    scores = logits(batch[0])
    return {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
