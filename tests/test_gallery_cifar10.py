"""The gallery's CIFAR-10: files of records, distortions, the network and its schedule."""

import importlib

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import evaluate, load_program

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.cifar10')
RECORD = 3073


def records(random, count):
    """Returns records whose class is the color that all pixels tend to: [count, 3073] uint8."""
    labels = random.randint(10, size=count)
    colors = np.random.RandomState(1).randint(256, size=(10, 3))[labels]
    pixels = 0.6 * colors[:, :, np.newaxis] + 0.4 * random.randint(256, size=(count, 3, 1024))
    return np.column_stack([labels, pixels.reshape(count, -1)]).astype(np.uint8)


@pytest.fixture(autouse=True)
def files(tmp_path):
    """A small data set, a graph of its own, and all flags at their defaults; returns the records.

    There are 60 to train on, in files of different sizes, and 30 to test on.
    """
    random = np.random.RandomState(0)
    found = {'train': []}
    for i, count in enumerate([10, 5, 20, 1, 24], 1):
        found['train'].append(records(random, count))
        found['train'][-1].tofile(str(tmp_path / f'data_batch_{i}.bin'))
    found['train'] = np.concatenate(found['train'])
    found['test'] = records(random, 30)
    found['test'].tofile(str(tmp_path / 'test_batch.bin'))
    load_program('HogWild')  # --batch_size is of the programs
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(data_dir=str(tmp_path)), tf.Graph().as_default():
        tf.set_random_seed(1)
        yield found


def images_of(rows):
    """Returns images [n, 32, 32, 3] uint8 from records."""
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


@pytest.fixture
def epochs(files, monkeypatch):
    """A function that returns which examples a worker sees, in order: [count, examples].

    Args (of the function):
      count, shard, num_shards, seed: ints.
    """
    monkeypatch.setattr(model, 'distort', lambda images: tf.cast(images[:, 4:28, 4:28], tf.float32))
    middles = images_of(files['train'])[:, 4:28, 4:28].astype(np.float32)
    position_of = {image.tobytes(): i for i, image in enumerate(middles)}

    def make(count, shard, num_shards, seed=0):
        with tf.Graph().as_default():
            found = evaluate(model.train_batches(5, count * 12 // num_shards, shard, num_shards,
                                                 seed))
        seen = [position_of[image.tobytes()] for images, _ in found for image in images]
        labels = np.concatenate([labels for _, labels in found])
        assert labels.tolist() == files['train'][seen, 0].tolist()
        return np.reshape(seen, [count, -1])
    return make


@pytest.mark.parametrize('num_workers', [1, 2, 3, 4])
def test_shards_are_disjoint_and_complete(epochs, num_workers):
    seen = [epochs(1, shard, num_workers)[0] for shard in range(num_workers)]
    for shard, positions in enumerate(seen):
        assert sorted(positions) == list(range(60))[shard::num_workers]


def test_the_order_changes(epochs):
    first, second = epochs(2, shard=1, num_shards=2).tolist()
    other_seed = epochs(1, shard=1, num_shards=2, seed=1)[0].tolist()
    assert sorted(first) == sorted(second) == sorted(other_seed)
    assert len({tuple(order) for order in (first, second, other_seed, sorted(first))}) == 4
    assert epochs(2, shard=1, num_shards=2).tolist() == [first, second]


def test_batches_are_as_promised():
    batches = model.train_batches(6, 3)
    assert len(batches) == 3
    for images, labels in batches:
        assert images.shape == [6, 24, 24, 3] and images.dtype == tf.float32
        assert labels.shape == [6] and labels.dtype == tf.int64
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        first, second = session.run(batches), session.run(batches)
    for images, _ in first + second:
        assert images.mean(axis=(1, 2, 3)) == pytest.approx(0, abs=1e-4)
        assert images.std(axis=(1, 2, 3)) == pytest.approx(1, abs=1e-3)
    assert (first[0][0] != second[0][0]).any()
    again = evaluate(batches)
    assert (again[2][0] == first[2][0]).all(), 'distortions, too, are of the seed'


def test_distortions(files):
    """Each image is a part of its original, maybe mirrored; only the contrast within it changes.

    Standardization takes back the change in brightness. The means of the channels do not come
    nearer to each other with less contrast, what is within a channel does.
    """
    originals = images_of(files['train'])[:24]
    distorted = evaluate(model.distort(tf.constant(originals)))
    assert distorted.shape == (24, 24, 24, 3)
    found, factors = [], []
    for original, image in zip(originals.astype(float), distorted):
        fits = []
        for top in range(9):
            for left in range(9):
                part = original[top:top + 24, left:left + 24]
                for mirrored in False, True:
                    candidate = part[:, ::-1] if mirrored else part
                    within = candidate - candidate.mean(axis=(0, 1))
                    fit = np.corrcoef(within.ravel(), (image - image.mean(axis=(0, 1))).ravel())
                    if fit[0, 1] > 0.999:
                        fits.append((top, left, mirrored))
                        factors.append(np.ptp(candidate.mean(axis=(0, 1))) / within.std() *
                                       (image - image.mean(axis=(0, 1))).std() /
                                       np.ptp(image.mean(axis=(0, 1))))
        (fit,) = fits
        found.append(fit)
    assert len({top for top, _, _ in found}) > 4 < len({left for _, left, _ in found})
    assert 4 < sum(mirrored for _, _, mirrored in found) < 20
    assert 0.2 <= min(factors) < 0.6 and 1.4 < max(factors) <= 1.8


def test_the_test_set_is_whole_and_not_distorted(files):
    batch = tf.data.make_one_shot_iterator(model.test_batches(20)).get_next()
    with tf.Session() as session:
        found = [session.run(batch) for _ in range(2)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    assert [len(labels) for _, labels in found] == [20, 10]
    images, labels = (np.concatenate(part) for part in zip(*found))
    assert labels.tolist() == files['test'][:, 0].tolist()
    middles = images_of(files['test'])[:, 4:28, 4:28].astype(float)
    expected = ((middles - middles.mean(axis=(1, 2, 3), keepdims=True)) /
                middles.std(axis=(1, 2, 3), keepdims=True))
    assert np.abs(images - expected).max() < 1e-3


def test_files_may_lie_in_the_directory_of_the_archive(tmp_path):
    inner = tmp_path / 'cifar-10-batches-bin'
    inner.mkdir()
    for path in tmp_path.glob('*.bin'):
        path.rename(inner / path.name)
    paths, examples = model.find([f'data_batch_{i}.bin' for i in range(1, 6)])
    assert examples == 60 and paths[0] == str(inner / 'data_batch_1.bin')
    model.test_batches(10)


@pytest.mark.parametrize('damage, complaint', [
    (lambda path: path.unlink(), 'cannot be read'),
    (lambda path: path.write_bytes(b''), 'cannot be read'),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), 'is truncated'),
    (lambda path: path.write_bytes(b'\xff' * RECORD), 'not of the binary version'),
], ids=['missing', 'empty', 'cut', 'other'])
def test_bad_files(tmp_path, damage, complaint):
    for name, use in ('data_batch_4.bin', lambda: model.train_batches(4, 1)), \
            ('test_batch.bin', lambda: model.test_batches(4)):
        damage(tmp_path / name)
        with pytest.raises(SystemExit, match=f'{name} .*{complaint}.*--data_dir') as error:
            use()
        assert '\n' not in str(error.value)


def test_too_many_workers():
    with pytest.raises(SystemExit, match='60 examples .* too few for 61 workers'):
        model.train_batches(4, 1, shard=60, num_shards=61)


def test_network():
    images = tf.zeros([2, 24, 24, 3])
    loss, metrics = model.loss_and_metrics((images, tf.zeros([2], tf.int64)), training=True)
    assert list(metrics) == ['accuracy'] and loss.shape == metrics['accuracy'].shape == []
    made = tf.trainable_variables()
    penalties = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        model.loss_and_metrics((images, tf.zeros([2], tf.int64)), training=False)
    assert tf.global_variables() == made
    names = ['conv1', 'conv2', 'local3', 'local4', 'softmax_linear']
    shapes = [[5, 5, 3, 64], [5, 5, 64, 64], [2304, 384], [384, 192], [192, 10]]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({variable.op.name: variable for variable in made})
        decay = 0.002 * sum((values[f'{name}/weights'] ** 2).sum() for name in names[2:4])
        assert len(penalties) == 2 and sum(session.run(penalties)) == pytest.approx(decay, rel=1e-4)
    assert len(values) == 10
    for name, shape, stddev, bias in zip(names, shapes, [5e-2, 5e-2, 0.04, 0.04, 1 / 192],
                                         [0, 0.1, 0.1, 0.1, 0]):
        weights, biases = values[f'{name}/weights'], values[f'{name}/biases']
        assert list(weights.shape) == shape and list(biases.shape) == shape[-1:]
        assert weights.std() == pytest.approx(0.88 * stddev, rel=0.1)  # it is cut at twice stddev
        assert np.abs(weights).max() < 2.01 * stddev
        assert biases == pytest.approx(bias)


def test_the_learning_rate_falls():
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(batch_size=10):
        global_step = tf.train.get_or_create_global_step()
        optimizer = model.optimizer(0.5)
        weight = tf.get_variable('weight', initializer=0.0)
        step = optimizer.apply_gradients([(tf.constant(1.0), weight)])
        with tf.Session() as session:
            for at, rate in (0, 0.5), (2099, 0.5), (2100, 0.05), (4200, 0.005):
                session.run(tf.global_variables_initializer())
                global_step.load(at, session)
                session.run(step)
                assert session.run(weight) == pytest.approx(-rate)
    assert model.MOVING_AVERAGE_DECAY == 0.9999


def test_data_are_not_in_the_graph(files):
    model.loss_and_metrics(model.train_batches(8, 10)[0], training=True)
    model.test_batches(10)
    assert tf.get_default_graph().as_graph_def().ByteSize() < 100e3 < files['train'].nbytes


def test_it_learns():
    (batch,) = model.train_batches(8, 1)
    loss, _ = model.loss_and_metrics(batch, training=True)
    step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        losses = [session.run([loss, step])[0] for _ in range(80)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
