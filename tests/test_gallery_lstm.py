"""The gallery's language model: windows of a text, the same in each run, and a network on them."""

import importlib

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import evaluate

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.lstm')
WINDOWS = 40  # of the text that is made here, in its training part


@pytest.fixture(autouse=True)
def fresh():
    """A graph of its own, and all flags at their defaults."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(), tf.Graph().as_default():
        tf.set_random_seed(0)
        yield


@pytest.fixture
def text(tmp_path):
    """Ten small files of random letters; those of the last, the test, are capital ones."""
    random = np.random.RandomState(0)
    for i in range(9):
        count = WINDOWS * 50 + 1 - 8 * 200 if i == 8 else 200
        (tmp_path / f'{i}.py').write_bytes(bytes(random.randint(97, 123, size=count).tolist()))
    (tmp_path / '9.py').write_bytes(bytes(random.randint(65, 91, size=251).tolist()))
    (tmp_path / '0.txt').write_text('not of the text')
    FLAGS.data_dir = str(tmp_path)
    return tmp_path


def the_test(batch_size):
    """Returns all batches of the test, pairs of arrays."""
    iterator = tf.data.make_initializable_iterator(model.test_batches(batch_size))
    batch, batches = iterator.get_next(), []
    with tf.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return batches


def seen(shard, num_shards, epochs=1, seed=0):
    """Returns the windows that a worker sees, as strings in order."""
    count = epochs * WINDOWS // num_shards // 5
    with tf.Graph().as_default():
        batches = evaluate(model.train_batches(5, count, shard, num_shards, seed))
    return [bytes(window.tolist()).decode() for characters, _ in batches for window in characters]


def training_text(directory):
    return ''.join((directory / f'{i}.py').read_text() for i in range(9))


def test_batches_are_as_promised(text):
    batches = model.train_batches(6, 3)
    assert len(batches) == 3
    for batch in batches:
        assert [tensor.shape.as_list() for tensor in batch] == [[6, 50], [6, 50]]
        assert [tensor.dtype for tensor in batch] == [tf.int64, tf.int64]
    whole = training_text(text)
    for characters, next_ones in evaluate(batches):
        assert (characters[:, 1:] == next_ones[:, :-1]).all()
        for window in np.concatenate([characters, next_ones[:, -1:]], axis=1):
            assert bytes(window.tolist()).decode() in whole


@pytest.mark.parametrize('num_workers', [1, 2, 4])
def test_shards_are_disjoint_and_complete(text, num_workers):
    whole = training_text(text)
    windows = [whole[50 * i:50 * (i + 1)] for i in range(WINDOWS)]
    for shard in range(num_workers):
        assert sorted(seen(shard, num_workers)) == sorted(windows[shard::num_workers])


def test_epochs_and_seeds_have_their_order(text):
    twice = seen(1, 2, epochs=2)
    first, second = twice[:WINDOWS // 2], twice[WINDOWS // 2:]
    assert sorted(first) == sorted(second) and first != second
    assert seen(1, 2) == first != seen(1, 2, seed=1)


def test_test_set_is_whole_and_of_another_file(text):
    batches = the_test(3)
    assert [len(characters) for characters, _ in batches] == [3, 2]
    windows = [window for characters, _ in batches for window in characters]
    assert bytes(np.concatenate(windows).tolist()) == (text / '9.py').read_bytes()[:250]
    last = batches[-1][1][-1]
    assert bytes(last.tolist()) == (text / '9.py').read_bytes()[-50:]


def test_the_library_is_on_every_machine():
    train, test = model.windows()
    assert 34000 < len(train) + len(test) <= 40000 and .03 < len(test) / len(train) < .2
    assert train.max() <= 128 and test.max() <= 128
    counts = np.bincount(train[:, :-1].ravel(), minlength=129)
    assert counts.argmax() == ord(' ') and counts[128] < 1e-2 * counts.sum()


def test_bytes_beyond_ascii_are_one_character(text):
    (text / '9.py').write_bytes('aä€'.encode('latin-1', 'replace') * 17)
    (characters, _), = the_test(10)
    assert characters[0, :3].tolist() == [ord('a'), 128, ord('?')]


def test_the_network():
    batch = tf.zeros([4, 50], tf.int64), tf.zeros([4, 50], tf.int64)
    loss, metrics = model.loss_and_metrics(batch, True)
    assert list(metrics) == ['accuracy']
    for tensor in loss, metrics['accuracy']:
        assert tensor.shape == [] and tensor.dtype == tf.float32
    shapes = [variable.shape.as_list() for variable in tf.global_variables()]
    assert shapes == [[129, 32], [32 + 128, 4 * 128], [4 * 128], [128, 129], [129]]
    assert tf.trainable_variables() == tf.global_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(loss) == pytest.approx(np.log(129), abs=.3)


def test_the_future_does_not_help():
    """The guesses in the first half of a window are the same, whatever its second half is."""
    ids = np.random.RandomState(0).randint(129, size=[1, 50])
    differences = []
    for second_half in 1, 2:
        ids[:, 25:] = second_half
        losses = []
        for guessed in 0, 1:  # in the first half: so what the losses differ by is of it alone
            next_ones = np.repeat([[guessed, 0]], 25, axis=1)
            with tf.variable_scope(tf.get_variable_scope(), reuse=bool(tf.global_variables())):
                losses.append(model.loss_and_metrics((tf.constant(ids), tf.constant(next_ones)),
                                                     False)[0])
        differences.append(losses[0] - losses[1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first, second = session.run(differences)
    assert first == pytest.approx(second, abs=1e-5) and abs(first) > 1e-4


def test_steps_reduce_the_loss(text):
    """Those of the real text would take too long: the letters of this one are to be learned."""
    batch, = model.train_batches(8, 1)
    loss, _ = model.loss_and_metrics(batch, True)
    step = tf.train.GradientDescentOptimizer(2).minimize(loss)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        losses = [session.run([loss, step])[0] for _ in range(40)]
    assert losses[0] > 4.5 and np.mean(losses[-5:]) < 3.5  # nats; a random letter has log(26): 3.3


def test_a_second_build_has_the_same_variables():
    batch = tf.zeros([4, 50], tf.int64), tf.zeros([4, 50], tf.int64)
    first, _ = model.loss_and_metrics(batch, True)
    before = tf.global_variables()
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        second, _ = model.loss_and_metrics(batch, False)
    assert tf.global_variables() == before
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert len(set(session.run([first, second]))) == 1


@pytest.mark.parametrize('files', [0, 9])
def test_too_few_files(tmp_path, files):
    for i in range(files):
        (tmp_path / f'{i}.py').write_text('pass\n' * 20)
    FLAGS.data_dir = str(tmp_path)
    with pytest.raises(SystemExit) as error:
        model.train_batches(4, 1)
    assert f'{tmp_path} has too little text' in str(error.value)
    assert '\n' not in str(error.value)


def test_a_directory_is_no_text(text):
    (text / '5.py').unlink()
    (text / '5.py').mkdir()
    with pytest.raises(SystemExit, match=r'^--data_dir: .*5\.py cannot be read.*\.$'):
        model.test_batches(4)


def test_more_workers_than_windows(text):
    with pytest.raises(SystemExit, match='40 windows of text are too few for 41 workers'):
        model.train_batches(4, 1, shard=40, num_shards=41)


def test_data_are_not_in_the_graph():
    """A graph has to fit a message of 2 GB, and travels to the server of every session."""
    model.loss_and_metrics(model.train_batches(32, 2)[0], True)
    model.test_batches(100)
    size = tf.get_default_graph().as_graph_def().ByteSize()
    assert size < 120e3 < model.windows()[1].nbytes
