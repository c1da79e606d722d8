"""Feature columns: records that are written once, and a network that looks words up."""

import importlib
import os

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import sklearn.metrics
import tensorflow.compat.v1 as tf

from conftest import evaluate

FLAGS = flags.FLAGS
columns = importlib.import_module('tfdist.gallery.feature_columns')
NAMES = ['age', 'city', 'hours', 'label', 'occupation']
FILES = sorted([f'train-{i}.tfrecords' for i in range(8)] +
               [f'test-{i}.tfrecords' for i in range(2)])


@pytest.fixture(scope='module')
def written(tmp_path_factory):
    """A directory with the records."""
    directory = tmp_path_factory.mktemp('data') / 'new' / 'records'
    columns.write_records(str(directory))
    return directory


@pytest.fixture(autouse=True)
def fresh(written):
    """A graph of its own, and all flags at their defaults, but for the directory."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(data_dir=str(written)), tf.Graph().as_default():
        yield


@pytest.fixture
def own(written, tmp_path):
    """A directory with links to the records, of which a test may replace one."""
    for path in written.iterdir():
        (tmp_path / path.name).symlink_to(path)
    FLAGS.data_dir = str(tmp_path)
    return tmp_path


def people(names):
    """Returns the people of files, as from `as_rows`."""
    return [person for name in names for person in as_rows(columns.people(name)[0])]


def as_rows(batch):
    """Returns a list of tuples in the order of NAMES, from a dict of arrays."""
    return list(zip(*(np.asarray(batch[name], np.float32 if batch[name].dtype.kind == 'f' else 'S')
                      for name in NAMES)))


def read(shard=0, num_shards=1, seed=0, epochs=1):
    """Returns whom a worker sees, in order: a list for each epoch."""
    with tf.Graph().as_default():
        size = 20000 // num_shards
        batches = columns.train_batches(size // 20, 20 * epochs, shard, num_shards, seed)
        rows = [row for batch in evaluate(batches) for row in as_rows(batch)]
    return [rows[i * size:(i + 1) * size] for i in range(epochs)]


def whole(dataset):
    """Returns the batches of a dataset that ends, as a list of dicts of arrays."""
    iterator = tf.data.make_initializable_iterator(dataset)
    following, found = iterator.get_next(), []
    with tf.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


@pytest.mark.parametrize('count', [1, 7])
def test_batches_are_as_promised(count):
    batches = columns.train_batches(20, count, seed=3)
    assert len(batches) == count
    for batch in batches:
        assert sorted(batch) == NAMES
        assert all(tensor.shape == [20] for tensor in batch.values())
        assert [batch[name].dtype for name in NAMES] == [
            tf.float32, tf.string, tf.float32, tf.float32, tf.string]
    for batch in evaluate(batches):
        assert (18 <= batch['age']).all() and (batch['age'] < 67).all()
        assert set(batch['label']) <= {0, 1}
        assert all(word.startswith(b'city ') for word in batch['city'])


@pytest.mark.parametrize('num_workers', [1, 2, 4])
def test_shards_are_disjoint_and_complete(num_workers):
    for shard in range(num_workers):
        epoch, = read(shard, num_workers)
        assert sorted(epoch) == sorted(people(
            f'train-{i}.tfrecords' for i in range(shard, 8, num_workers)))


def test_shards_of_different_sizes():
    """Of three workers the last has two files, and the others three."""
    batches = columns.train_batches(1000, 5, 2, 3)
    rows = [row for batch in evaluate(batches) for row in as_rows(batch)]
    assert sorted(rows) == sorted(people(['train-2.tfrecords', 'train-5.tfrecords']))


def test_more_workers_than_files():
    columns.train_batches(10, 1, 7, 8)
    with pytest.raises(SystemExit, match='8 files are too few for 9 workers'):
        columns.train_batches(10, 1, 0, 9)


def test_the_order_is_of_the_epoch_and_the_seed():
    first, second = read(1, 4, seed=5, epochs=2)
    assert sorted(first) == sorted(second) and first != second
    assert first != people(['train-1.tfrecords', 'train-5.tfrecords'])
    assert read(1, 4, seed=5)[0] == first and read(1, 4, seed=6)[0] != first


def test_test_set_is_whole_and_of_new_people():
    batches = whole(columns.test_batches(1500))
    assert [len(batch['label']) for batch in batches] == [1500, 1500, 1500, 500]
    rows = [row for batch in batches for row in as_rows(batch)]
    assert rows == people(['test-0.tfrecords', 'test-1.tfrecords'])
    assert len(set(rows)) == 5000 and not set(rows) & set(people(columns._TRAIN))


def test_the_best_possible():
    accuracy, auc = columns.best_possible()
    parts = [columns.people(name) for name in columns._TEST]
    labels = np.concatenate([values['label'] for values, _ in parts])
    logits = np.concatenate([logits for _, logits in parts])
    assert accuracy == sklearn.metrics.accuracy_score(labels, logits > 0)
    assert auc == pytest.approx(sklearn.metrics.roc_auc_score(labels, logits))
    assert 0.8 < accuracy < 0.85 and 0.88 < auc < 0.93


def test_records_are_written_once(own):
    """What is there stays as it is; what is missing is made as it was."""
    before = (own / 'train-3.tfrecords').stat().st_mtime_ns
    content = (own / 'test-1.tfrecords').read_bytes()
    (own / 'test-1.tfrecords').unlink()
    columns.test_batches(10)
    assert sorted(os.listdir(str(own))) == FILES, 'and nothing else'
    assert (own / 'train-3.tfrecords').stat().st_mtime_ns == before
    assert len((own / 'test-1.tfrecords').read_bytes()) == len(content)
    rows = [row for batch in whole(columns.test_batches(2500)) for row in as_rows(batch)]
    assert rows == people(columns._TEST)


def test_a_file_is_whole_under_its_name(own, monkeypatch):
    """Who dies while it writes leaves no half of a file that another would read."""
    (own / 'test-1.tfrecords').unlink()

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(columns, 'serialize', interrupted)
    with pytest.raises(KeyboardInterrupt):
        columns.test_batches(10)
    assert not (own / 'test-1.tfrecords').exists()


@pytest.mark.parametrize('damage', ['cut', 'cut between records', 'changed', 'something else'])
def test_damaged_files(own, damage):
    path = own / 'train-1.tfrecords'
    content = bytearray(path.read_bytes())
    if damage == 'changed':
        content[5000] ^= 1
    path.unlink()
    if damage == 'cut between records':
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(b'')
    else:
        path.write_bytes({'cut': content[:-5], 'changed': content,
                          'something else': b'Not records at all.'}[damage])
    columns.train_batches(10, 1, 0, 2)  # the other worker does not read it
    with pytest.raises(SystemExit, match='does not have 2500 whole records') as error:
        columns.train_batches(10, 1, 1, 2)
    assert str(path) in str(error.value) and '\n' not in str(error.value)


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / 'file').write_text('')
    FLAGS.data_dir = str(tmp_path / 'file' / 'directory')
    with pytest.raises(SystemExit, match='the records cannot be written to') as error:
        columns.train_batches(10, 1)
    assert '\n' not in str(error.value)


def test_network():
    """Each build has the same variables, and tables of words of its own."""
    batch, = columns.train_batches(4, 1)
    loss, metrics = columns.loss_and_metrics(batch, True)
    assert loss.shape == [] and loss.dtype == tf.float32
    assert list(metrics) == ['accuracy'] and metrics['accuracy'].shape == []
    variables = tf.trainable_variables()
    # Seven brackets, the hours, twelve occupations, and two embeddings.
    assert sorted((variable.shape.as_list() for variable in variables), key=str) == [
        [100, 8], [1000, 8], [1], [32, 1], [32], [36, 32]]
    assert tf.global_variables() == variables and not tf.local_variables()
    with tf.variable_scope('', reuse=True):
        columns.loss_and_metrics(batch, True)
        loss, metrics = columns.loss_and_metrics(batch, False)
    assert tf.trainable_variables() == variables
    assert list(metrics) == ['accuracy', 'auc'] and len(metrics['auc']) == 2
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        assert session.run(loss) == pytest.approx(np.log(2), abs=0.5)


def test_data_are_not_in_the_graph(written):
    """A graph has to fit a message of 2 GB, and travels to the server of every session."""
    columns.test_batches(1000)
    columns.train_batches(32, 10)
    size = tf.get_default_graph().as_graph_def().ByteSize()
    assert size < 30e3 < sum(path.stat().st_size for path in written.iterdir())


def test_plain_sgd_learns():
    """A test in batches, too, in inference mode, on the variables that were trained."""
    tf.set_random_seed(0)
    batch, = columns.train_batches(64, 1)
    test = tf.data.make_initializable_iterator(columns.test_batches(1000))
    loss, _ = columns.loss_and_metrics(batch, True)
    train = tf.train.GradientDescentOptimizer(0.3).minimize(loss)
    with tf.variable_scope('', reuse=True):
        _, metrics = columns.loss_and_metrics(test.get_next(), False)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                     tf.tables_initializer(), test.initializer])
        losses = [session.run([loss, train])[0] for _ in range(600)]
        for _ in range(5):
            session.run(metrics['auc'][1])
        auc = session.run(metrics['auc'][0])
    assert np.mean(losses[-50:]) < np.mean(losses[:10]) - 0.15
    assert 0.85 < auc < columns.best_possible()[1]
