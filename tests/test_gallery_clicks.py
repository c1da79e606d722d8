"""Clicks: examples from a known model or from a file, and tables of which rows are read."""

import importlib
import re

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import sklearn.metrics
import tensorflow.compat.v1 as tf

from tfdist.data.batches import failures
from tfdist.scheme import graphs

import processes

FLAGS = flags.FLAGS
clicks = importlib.import_module('tfdist.gallery.clicks')
TRAIN, TEST = 60, 25  # lines in the files


@pytest.fixture(autouse=True)
def fresh():
    """A graph of its own, and all flags at their defaults, but for smaller tables."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(clicks_rows=10000), tf.Graph().as_default():
        yield


def line(number, label, numbers=None):
    """Returns a line in the format of Criteo; its first number tells which it is."""
    numbers = numbers or [str(number)] + [''] * 11 + ['-2']
    ids = [f'{number % 7:08x}'] * 24 + ['', f'{number:08x}']
    return '\t'.join([str(label), *numbers, *ids]) + '\n'


@pytest.fixture
def criteo(tmp_path):
    """The directory with small files in the format of Criteo."""
    for name, start, count in ('train.txt', 0, TRAIN), ('test.txt', TRAIN, TEST):
        lines = [line(i, i % 2) for i in range(start, start + count)]
        (tmp_path / name).write_text(''.join(lines))
    FLAGS.data_dir = str(tmp_path)
    return tmp_path


def evaluate(fetches, runs=1):
    """Returns the values of tensors in several runs of one session."""
    with tf.Session() as session:
        session.run(tf.tables_initializer())  # these are the batches' iterators
        return [session.run(fetches) for _ in range(runs)]


def drawn(shard=0, num_shards=1, seed=0, runs=1):
    """Returns the ids that a worker draws, as a list of tuples, over several runs."""
    with tf.Graph().as_default():
        batches = clicks.train_batches(100, 3, shard, num_shards, seed)
        values = evaluate(batches, runs)
    return [tuple(row) for run in values for batch in run for row in batch['ids']]


def draw(count, seeds):
    """Returns examples as arrays: ids, labels, and the log-odds of the true model."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = clicks.draw(count, seeds)
        return session.run([batch['ids'], batch['label'], clicks.true_logits(batch['ids'])])


def whole(dataset):
    """Returns the batches of a dataset that ends, as a list of dicts of arrays."""
    batch = tf.data.make_initializable_iterator(dataset)
    following, found = batch.get_next(), []
    with tf.Session() as session:
        session.run(batch.initializer)
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


def numbers_of(batches):
    """Returns which lines of the files batches are of, in order."""
    return [int(np.rint(np.expm1(x))) for batch in batches for x in batch['numbers'][:, 0]]


def read(shard=0, num_shards=1, seed=0, epochs=1):
    """Returns which lines a worker reads, in order: [epochs, lines]."""
    with tf.Graph().as_default():
        count = epochs * TRAIN // num_shards // 5
        batches, = evaluate(clicks.train_batches(5, count, shard, num_shards, seed))
    return np.reshape(numbers_of(batches), [epochs, -1])


@pytest.mark.parametrize('count', [1, 7])
def test_drawn_batches_are_as_promised(count):
    batches = clicks.train_batches(20, count, seed=3)
    assert len(batches) == count
    for batch in batches:
        assert set(batch) == {'ids', 'label'}
        assert batch['ids'].shape == [20, 8] and batch['ids'].dtype == tf.int64
        assert batch['label'].shape == [20] and batch['label'].dtype == tf.float32
    for batch in evaluate(batches)[0]:
        assert (batch['ids'] // 1250 == np.arange(8)).all(), 'each field has its own rows'
        assert set(batch['label']) <= {0, 1}


def test_workers_draw_other_examples_and_go_on_doing_so():
    """In 20 runs of 300, which is more than is drawn at once."""
    streams = [drawn(0, 2, runs=20), drawn(1, 2, runs=20), drawn(0, 2, seed=1, runs=20)]
    tuples = [each for stream in streams for each in stream]
    assert len(tuples) == 18000 and len(set(tuples)) > 17900, 'none is drawn again, but by chance'
    assert streams[0] == drawn(0, 2, runs=20), 'the seed decides'


def test_ids_follow_zipf_s_law():
    ids, labels, logits = draw(200000, [5, 0])
    counts = np.bincount(ids[:, 3] - 3 * 1250, minlength=1250)
    ranks = np.arange(1, 1251)
    expected = 200000 * np.log1p(1 / ranks) / np.log(1251)
    assert (abs(counts - expected) < 6 * np.sqrt(expected)).all()
    assert abs(labels.mean() - (1 / (1 + np.exp(-logits))).mean()) < 0.005


def test_ids_that_are_drawn_as_often_as_any_other():
    FLAGS.clicks_uniform = True
    ids, _, _ = draw(100000, [5, 0])
    counts = np.bincount(ids[:, 7] - 7 * 1250, minlength=1250)
    assert len(counts) == 1250 and abs(counts - 80).max() < 6 * np.sqrt(80)


def test_what_is_hidden_looks_like_chance():
    ids = np.arange(100000).reshape(-1, 8)
    with tf.Session() as session:
        numbers = np.reshape(session.run(clicks._hidden(tf.constant(ids))), [2, -1])
    assert abs(numbers.mean(axis=1)).max() < 0.02 and abs(numbers.std(axis=1) - 1).max() < 0.02
    for i, j, shift in [(0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 0, 8), (1, 1, 8), (0, 1, 1)]:
        products = numbers[i, shift:] * numbers[j, :100000 - shift]
        assert abs(products.mean()) < 0.02


def test_rows_that_do_not_divide():
    FLAGS.clicks_rows = 107
    ids, _, _ = draw(5000, [5, 0])
    assert (ids.min(axis=0) == 13 * np.arange(8)).all()
    assert (ids.max(axis=0) == 13 * np.arange(1, 9) - 1).all()


def test_drawn_test_set():
    FLAGS.clicks_test_examples = 1234
    batches = whole(clicks.test_batches(500))
    assert [len(batch['label']) for batch in batches] == [500, 500, 234]
    ids = np.concatenate([batch['ids'] for batch in batches])
    assert batches[0]['ids'].dtype == np.int64 and batches[0]['label'].dtype == np.float32
    assert (ids == draw(1234, [1, 1])[0]).all(), 'it is always the same'
    assert len(set(drawn(runs=10)) & set(map(tuple, ids))) < 10, 'few by chance'


def test_the_best_possible():
    auc, loss = clicks.best_possible()
    _, labels, logits = draw(20000, [1, 1])
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert auc == pytest.approx(sklearn.metrics.roc_auc_score(labels, probabilities), abs=1e-5)
    assert loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities), abs=1e-5)
    assert 0.84 < auc < 0.88


@pytest.mark.parametrize('num_workers', [1, 3])
def test_shards_of_a_file_are_disjoint_and_complete(criteo, num_workers):
    epoch = [number for shard in range(num_workers) for number in read(shard, num_workers)[0]]
    assert sorted(epoch) == list(range(TRAIN))


def test_a_file_is_shuffled_anew(criteo):
    first, second = read(seed=1, epochs=2)
    assert sorted(first) == sorted(second)
    assert list(first) != list(second) and list(first) != sorted(first)
    assert (read(seed=1) == first).all() and (read(seed=2) != first).any()


def test_batches_of_a_file(criteo):
    batches = clicks.train_batches(4, 3)
    for batch in batches:
        assert batch['ids'].shape == [4, 26] and batch['ids'].dtype == tf.int64
        assert batch['label'].shape == [4] and batch['label'].dtype == tf.float32
        assert batch['numbers'].shape == [4, 13] and batch['numbers'].dtype == tf.float32
    values, = evaluate(batches)
    for batch in values:
        assert batch['label'].tolist() == [number % 2 for number in numbers_of([batch])]
        assert not batch['numbers'][:, 1:].any(), 'what is missing, or negative, is 0'
        assert ((0 <= batch['ids']) & (batch['ids'] < 10000)).all()
        # The same words in 24 columns, and yet other rows.
        assert all(len(set(row)) > 20 for row in batch['ids'])
        # Without a word there is a row, too, and it is the same in all lines.
        assert len(set(batch['ids'][:, 24])) == 1


def test_test_set_of_a_file(criteo):
    batches = whole(clicks.test_batches(10))
    assert [len(batch['label']) for batch in batches] == [10, 10, 5]
    assert numbers_of(batches) == list(range(TRAIN, TRAIN + TEST))


@pytest.mark.parametrize('text, complaint', [
    (None, 'cannot be read'),
    ('', 'has 0 lines, too few for 2 workers'),
    (line(1, 0), 'has 1 lines, too few for 2 workers'),
    ('\n'.join(['1,2,3'] * 3), 'not in the format of Criteo'),
    (line(1, 0) + line(2, 'a'), 'not in the format of Criteo'),
    (line(1, 0) + line(2, 1)[2:], 'not in the format of Criteo'),
    ('\xff\n\n', 'cannot be read')])
def test_a_file_that_is_none(criteo, text, complaint):
    path = criteo / 'train.txt'
    path.unlink() if text is None else path.write_bytes(text.encode('latin-1'))
    with pytest.raises(SystemExit, match=complaint) as error:
        clicks.train_batches(4, 1, 0, 2)
    assert str(path) in str(error.value) and '\n' not in str(error.value)


DAMAGED = {'no label': line(2, ''), 'a label of its own': line(2, 2), 'a column less':
           line(2, 1).replace('\t-2', ''), 'a column more': line(2, 1)[:-1] + '\tmore\n',
           'no number': line(2, 1, ['x'] * 13), 'empty': '\n'}


@pytest.mark.parametrize('name', ['train.txt', 'test.txt'])
@pytest.mark.parametrize('damaged', DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line(criteo, name, damaged):
    """It is said by name of the file, what it begins with, and in one line."""
    (criteo / name).write_text(line(1, 0) + line(7, 1, ['-1.5'] + [''] * 12) + damaged)
    with pytest.raises(SystemExit) as error, failures():
        if name == 'train.txt':
            evaluate(clicks.train_batches(3, 1))
        else:
            whole(clicks.test_batches(3))
    begin = damaged[:40].rstrip('\n').replace('\t', '\\t')
    assert str(error.value) == (
        f'The data cannot be read: assertion failed: [{criteo / name} has a line that is not in '
        'the format of Criteo: a label, 0 or 1, 13 numbers and 26 ids, with tabs in between: '
        f'{begin}]. Repair the data, or the way the model reads them.')


@pytest.mark.parametrize('folder, name', [
    ('HogWild', 'train.txt'), ('Non-Distributed-Setup', 'test.txt'), *(
        pytest.param(folder, 'train.txt', marks=pytest.mark.thorough)
        for folder in ('Synchronous-SGD', 'Ring-AllReduce', 'In-Graph-Replication'))])
def test_a_run_on_a_damaged_file(programs, criteo, folder, name):
    """Who finds the damage says so, and the others are ended."""
    lines = (criteo / name).read_text().splitlines(keepends=True)
    lines[11:13] = DAMAGED['a column less'], DAMAGED['no label']  # one for each of two workers
    (criteo / name).write_text(''.join(lines))
    run = programs.run_sh(folder, '--model=clicks', '--clicks_rows=1000', f'--data_dir={criteo}',
                          '--train_steps=20', '--batch_size=10')
    said = f'^The data cannot be read: .*{criteo / name} has a line that is not in the format'
    run.fails(f'{said}|^worker .: lost another worker', lines=range(1, 3))
    assert any(re.search(said, line) for line in run.err) and not run.matches(processes.TEST)


@pytest.mark.parametrize('from_file, width', [(False, 8 * 32), (True, 26 * 32 + 13)])
def test_network(from_file, width, request):
    if from_file:
        request.getfixturevalue('criteo')
    batch, = clicks.train_batches(4, 1)
    loss, metrics = clicks.loss_and_metrics(batch, True)
    assert loss.shape == [] and loss.dtype == tf.float32 and not metrics
    assert [(variable.op.name, variable.shape.as_list()) for variable in tf.trainable_variables()
            ] == [('tables/deep', [10000, 32]), ('tables/wide', [10000, 1]),
                  ('hidden_0/weights', [width, 64]), ('hidden_0/biases', [64]),
                  ('hidden_1/weights', [64, 32]), ('hidden_1/biases', [32]),
                  ('logit/weights', [32, 1]), ('logit/biases', [1])]
    assert tf.global_variables() == tf.trainable_variables() and not tf.local_variables()
    with tf.variable_scope('', reuse=True):
        _, metrics = clicks.loss_and_metrics(batch, False)
    assert len(metrics['auc']) == 2 and len(tf.trainable_variables()) == 8


@pytest.mark.parametrize('from_file, dense', [
    (False, []), (True, ['logit/weights', 'logit/biases'])])
def test_without_the_deep_part(from_file, dense, request):
    """What is drawn has no parameter that is in each update."""
    if from_file:
        request.getfixturevalue('criteo')
    FLAGS.clicks_deep = False
    loss, _ = clicks.loss_and_metrics(clicks.train_batches(4, 1)[0], True)
    assert [variable.op.name for variable in tf.trainable_variables()] == ['tables/wide', *dense]
    assert isinstance(*tf.gradients(loss, tf.trainable_variables()[:1]), tf.IndexedSlices)


def test_tables_are_read_by_rows():
    """No step may have a whole table: neither to read it, nor for its gradient."""
    loss, _ = clicks.loss_and_metrics(clicks.train_batches(4, 1)[0], True)
    deep, wide = tf.trainable_variables()[:2]
    for gradient in tf.gradients(loss, [deep, wide]):
        assert isinstance(gradient, tf.IndexedSlices)
    assert [graphs.readers([loss])[table.handle.op] for table in (deep, wide)] == 2 * [
        {'ResourceGather'}]


def test_parts_of_tables_are_the_tables():
    """Cut into parts, the same rows are looked up."""
    batch, = clicks.train_batches(50, 1)
    FLAGS.clicks_table_parts = 3
    loss, _ = clicks.loss_and_metrics(batch, True)
    parts = tf.trainable_variables()[:6]
    assert [part.shape.as_list() for part in parts] == [
        [rows, width] for width in (32, 1) for rows in (3334, 3333, 3333)]
    FLAGS.clicks_table_parts = 1
    with tf.variable_scope('whole'):
        other, _ = clicks.loss_and_metrics(batch, True)
    wholes = tf.trainable_variables('whole')
    random = np.random.RandomState(0)
    values = [random.randn(*variable.shape) for variable in wholes]
    cut = [row for table in values[:2] for row in np.split(table, [3334, 6667])]
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        # In the order in which they were made: in parts, and then whole.
        for variable, value in zip(tf.trainable_variables(), [*cut, *values[2:], *values]):
            variable.load(value, session)
        assert session.run(loss - other) == pytest.approx(0, abs=1e-4)


def test_data_are_not_in_the_graph():
    """A graph has to fit a message of 2 GB, and travels to the server of every session."""
    FLAGS.clicks_test_examples = 100000
    clicks.test_batches(1000)
    clicks.train_batches(32, 10)
    assert tf.get_default_graph().as_graph_def().ByteSize() < 50e3


def test_plain_sgd_learns():
    """A test in batches, too, in inference mode, on the variables that were trained."""
    FLAGS.clicks_test_examples = 5000
    tf.set_random_seed(0)
    batches = clicks.train_batches(64, 5)
    test = tf.data.make_initializable_iterator(clicks.test_batches(1000))
    before = []
    for i, batch in enumerate(batches):
        with tf.variable_scope('', reuse=i > 0), tf.control_dependencies(before):
            loss, _ = clicks.loss_and_metrics(batch, True)
            before = [tf.train.GradientDescentOptimizer(0.5).minimize(loss)]
    with tf.variable_scope('', reuse=True):
        _, metrics = clicks.loss_and_metrics(test.get_next(), False)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                     tf.tables_initializer(), test.initializer])
        for _ in range(200):
            session.run(before)
        for _ in range(5):
            session.run(metrics['auc'][1])
        assert 0.7 < session.run(metrics['auc'][0]) < clicks.best_possible()[0]
