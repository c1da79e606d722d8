"""Batches: the order of examples, by seed, worker and global step; in pieces; what fails."""

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches, problem
from tfdist.training import evaluation

from conftest import load_program

FLAGS = flags.FLAGS
EPOCH = 750  # examples of one of two shards


def of_problem(tmp_path, monkeypatch):
    return lambda shard, seed: problem.train_batches(EPOCH, 1, shard, 2, seed)


def of_records(tmp_path, monkeypatch):
    program = load_program('Distributed-MNIST', 'prepare_data')
    monkeypatch.setattr(FLAGS, 'records_dir', str(tmp_path / 'records'))
    program.write(program.model.records_dir(), num_files=8)
    return lambda shard, seed: program.model.train_batches(EPOCH, 1, shard, 2, seed)


def of_towers(tmp_path, monkeypatch):
    model = load_program('Multiple-GPUs-Single-Machine', 'model')
    return lambda shard, seed: model.train_batches(EPOCH, 1, shard, 2, seed)


@pytest.fixture(params=[of_problem, of_records, of_towers], ids=lambda make: make.__name__)
def orders(request, tmp_path, monkeypatch):
    """A function that returns the examples of the first epoch of each session, one after the other.

    Args (of the function):
      steps: list of ints, the global step at which each of the sessions begins.
      shard, seed: of the worker.
    """
    FLAGS.mark_as_parsed()
    train_batches = request.param(tmp_path, monkeypatch)

    def make(steps, shard=1, seed=3):
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            global_step = tf.train.get_or_create_global_step()
            (images, _), = train_batches(shard, seed)
            begin = tf.tables_initializer()
            epochs = []
            for step in steps:
                with tf.Session() as session:
                    session.run(global_step.initializer)
                    global_step.load(step, session)
                    session.run(begin)
                    epochs.append([image.tobytes() for image in session.run(images)])
        return epochs
    return make


def test_each_start_has_an_order_of_its_own(orders):
    fresh, resumed, again, later = orders([0, 500, 500, 501])
    assert resumed == again
    assert sorted(fresh) == sorted(resumed) == sorted(later)
    for one, other in (fresh, resumed), (fresh, later), (resumed, later):
        assert sum(a == b for a, b in zip(one, other)) < EPOCH / 10


def test_fresh_runs_of_one_seed_have_one_order(orders):
    first, = orders([0])
    assert orders([0]) == [first]
    other_seed, = orders([0], seed=4)
    assert sorted(other_seed) == sorted(first) and other_seed != first
    other_shard, = orders([0], shard=0)
    assert not set(other_shard) & set(first)


def test_a_fresh_run_is_shuffled_by_the_seed_and_the_shard(orders, monkeypatch):
    fresh = orders([0])
    monkeypatch.setattr(batches, 'order_seed', lambda seed, shard, num_shards: seed * 2 + shard)
    assert orders([0, 500]) == fresh * 2, 'nothing else decides'


def test_steps_and_workers_do_not_meet():
    """Neighbours in seed, worker and step have different seeds of their orders."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        session.run(step.initializer)
        seeds = [batches.order_seed(seed, shard, 8) for seed in range(10) for shard in range(8)]
        found = []
        for value in range(20):
            step.load(value, session)
            found += session.run(seeds)
    assert len(set(found)) == len(found) == 20 * 80


def tags(shape=(12, 5)):
    """Returns random 0s and numbers: some examples have no number, and others several."""
    random = np.random.RandomState(0)
    return random.randint(1, 9, shape) * (random.uniform(size=shape) < 0.3)


def sparse(array):
    """Returns an array as a `tf.SparseTensor` of what in it is not 0."""
    return tf.SparseTensor(np.transpose(np.nonzero(array)), array[array != 0], array.shape)


def stacked(nest, drop_remainder=True):
    """Returns a nest of examples, batched by 2 and then by 3."""
    dataset = tf.data.Dataset.from_tensor_slices(nest)
    for size in 2, 3:
        dataset = dataset.batch(size, drop_remainder=drop_remainder)
    return batches.next_of(dataset)


@pytest.mark.parametrize('shape', [(12, 5), (12, 2, 3), (12, 1)])
def test_sparse_tensors_in_pieces(shape):
    """In a nest with dense ones; each batch has the shape, and the numbers, of a slice."""
    array = tags(shape)
    with tf.Graph().as_default():
        pieces = batches.in_pieces(stacked({'tags': sparse(array), 'more': (np.arange(12),)}))
        assert all(isinstance(piece['tags'], tf.SparseTensor) for piece in pieces)
        assert [piece['tags'].shape.ndims for piece in pieces] == [len(shape)] * 3
        dense = [tf.sparse.to_dense(piece['tags']) for piece in pieces]
        with tf.Session() as session:
            session.run(tf.tables_initializer())
            for first in 0, 6:
                values, rest, raw = session.run([dense, [piece['more'][0] for piece in pieces],
                                                 [piece['tags'] for piece in pieces]])
                np.testing.assert_array_equal(values, array[first:first + 6].reshape(
                    3, 2, *shape[1:]))
                np.testing.assert_array_equal(np.ravel(rest), np.arange(first, first + 6))
                for i, piece in enumerate(raw):
                    part = array[first + 2 * i:first + 2 * i + 2]
                    assert piece.indices.tolist() == np.transpose(np.nonzero(part)).tolist()
                    assert tuple(piece.dense_shape) == part.shape


@pytest.mark.parametrize('nest', [lambda: sparse(tags()), lambda: np.arange(12)])
def test_how_many_pieces_has_to_be_known(nest):
    with tf.Graph().as_default(), pytest.raises(
            SystemExit, match='has a shape that gives the number of batches: batch with drop_rem'):
        batches.in_pieces(stacked(nest(), drop_remainder=False))


def fails_by_itself():
    def examples():
        raise KeyError('of the model')
        yield

    return tf.data.Dataset.from_generator(examples, tf.int64)


@pytest.mark.parametrize('dataset, complaint', [
    (lambda: tf.data.TextLineDataset('/no/such.txt').repeat(),
     r'^The data cannot be read: /no/such.txt; No such file or directory\. Repair the data'),
    (lambda: batches.mapped(tf.data.Dataset.range(9), lambda i: 1 // (i - 1)).prefetch(1),
     r'^The data cannot be read: Integer division by zero\. Repair'),
    (lambda: tf.data.Dataset.range(1), "^The model's train_batches came to an end: it has to"),
])
@pytest.mark.parametrize('device', [None, '/job:worker/task:1'])
def test_data_that_cannot_be_read(cluster, dataset, complaint, device):
    """One line, in one process and on a worker whose session is of another task."""
    with tf.Graph().as_default(), tf.device(device):
        result = batches.next_of(dataset())
        if result.dtype == tf.int64:
            result += 1
        with tf.Session(cluster.servers['worker', 0].target if device else '') as session:
            session.run(tf.tables_initializer())
            with pytest.raises(SystemExit, match=complaint) as error, batches.failures():
                for _ in range(2):
                    session.run(result)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('make, kind', [
    (lambda: batches.next_of(fails_by_itself()), tf.errors.OpError),
    (lambda: tf.debugging.assert_greater(batches.next_of(tf.data.Dataset.range(9)),
                                         tf.constant(9, tf.int64)), tf.errors.InvalidArgumentError),
])
def test_other_failures_are_left_as_they_are(make, kind):
    """What Python raised in a function of the model, and what failed on data that were read."""
    with tf.Graph().as_default(), tf.Session() as session:
        result = make()
        session.run(tf.tables_initializer())
        with pytest.raises(kind), batches.failures():
            session.run(result)


@pytest.mark.skipif(not hasattr(tf.data.Options(), 'autotune'), reason='TensorFlow 1.15 tunes '
                    'nothing that keeps a session from its end')
@pytest.mark.parametrize('folder', ['HogWild', 'Work-Queue'])
def test_no_session_waits_for_what_tunes_an_iterator(folder):
    """To close it took seconds where a run was long: what tunes sleeps up to a minute."""
    from tensorflow.core.framework import dataset_options_pb2
    FLAGS.mark_as_parsed()
    model = load_program(folder).model
    with tf.Graph().as_default() as graph:
        ticket = () if folder == 'HogWild' else ((tf.constant(0), tf.constant(0)), 2)
        model.train_batches(4, 1, *ticket)
        evaluation.Test(model, lambda batch: (tf.reduce_mean(batch[0]), {}))
        makers = [op for op in graph.get_operations() if op.type == 'MakeIterator']
        assert len(makers) == 2, 'to train and to test'
        for op in makers:
            tuned = dataset_options_pb2.Options.FromString(
                op.inputs[0].op.get_attr('serialized_options')).autotune_options
            assert tuned.WhichOneof('optional_enabled') and not tuned.enabled
