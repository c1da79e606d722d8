"""The data and the network: every worker sees its own examples, all of them, in its own order."""

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import sklearn.datasets
import tensorflow.compat.v1 as tf

from tfdist.data import datasets

from conftest import digits, evaluate, load_program

FLAGS = flags.FLAGS
model = load_program('HogWild', 'model')
BATCH = 125  # divides the 1,500 examples, and the shards of 2, 3 and 4 workers


@pytest.fixture(autouse=True)
def fresh():
    """A graph of its own, and all flags at their defaults."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(), tf.Graph().as_default():
        yield


@pytest.fixture
def mnist(tmp_path):
    """A tiny file of random images in the place of MNIST: 40 to train on, 8 to test on."""
    random = np.random.RandomState(0)
    arrays = {}
    for part, count in ('train', 40), ('test', 8):
        arrays[f'x_{part}'] = random.randint(256, size=(count, 28, 28)).astype(np.uint8)
        arrays[f'y_{part}'] = random.randint(10, size=count).astype(np.uint8)
    np.savez(str(tmp_path / 'mnist.npz'), **arrays)
    FLAGS.dataset, FLAGS.data_dir = 'mnist', str(tmp_path)
    return arrays


def positions(shard, num_shards, epochs=1, seed=0):
    """Returns which examples of the training set a worker sees, in order: [epochs, examples]."""
    images, _, _, _ = digits()
    position_of = {image.tobytes(): i for i, image in enumerate(images)}
    assert len(position_of) == len(images), 'each image is there once'
    with tf.Graph().as_default():
        count = epochs * len(images) // num_shards // BATCH
        batches = model.train_batches(BATCH, count, shard, num_shards, seed)
        seen = [position_of[image.tobytes()] for batch, _ in evaluate(batches) for image in batch]
    return np.reshape(seen, [epochs, -1])


@pytest.mark.parametrize('num_workers', [1, 2, 3, 4])
def test_shards_are_disjoint_and_complete(num_workers):
    epoch = [position for shard in range(num_workers)
             for position in positions(shard, num_workers)[0]]
    assert sorted(epoch) == list(range(1500))


def test_each_epoch_has_another_order():
    first, second = positions(1, 4, epochs=2)
    assert sorted(first) == sorted(second)
    assert list(first) != list(second) and list(first) != sorted(first)


def test_the_seed_decides_the_order():
    order = positions(1, 2, epochs=2, seed=5)
    assert (positions(1, 2, epochs=2, seed=5) == order).all()
    assert (positions(1, 2, epochs=2, seed=6) != order).any()


def test_workers_have_different_orders():
    """Worker 1 does not go through its shard as worker 0 does through its own."""
    assert (positions(0, 2, seed=1) != positions(1, 2, seed=1) - 1).any()


def test_labels_belong_to_their_images():
    images, labels, _, _ = digits()
    label_of = {image.tobytes(): label for image, label in zip(images, labels)}
    for batch, its_labels in evaluate(model.train_batches(32, 3, shard=1, num_shards=2)):
        assert [label_of[image.tobytes()] for image in batch] == list(its_labels)


@pytest.mark.parametrize('count', [1, 7])
def test_batches_are_as_promised(count):
    batches = model.train_batches(20, count, seed=3)
    assert len(batches) == count
    for images, labels in batches:
        assert images.shape == [20, 64] and images.dtype == tf.float32
        assert labels.shape == [20] and labels.dtype == tf.int64
    values = evaluate(batches)
    assert all(0 <= images.min() < images.max() <= 1 for images, _ in values)
    assert {label for _, labels in values for label in labels} <= set(range(10))


def test_test_set_is_whole_and_of_new_images():
    images, labels = model.test_set()
    assert images.shape == [297, 64] and labels.shape == [297]
    images, labels = evaluate((images, labels))
    assert images.dtype == np.float32 and labels.dtype == np.int64
    known = {image.tobytes() for image in digits()[0]}
    assert not known & {image.tobytes() for image in images}


def test_digits_are_those_of_scikit_learn():
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(1797)
    for ours, theirs in zip(datasets.digits(), [
            (images / 16)[order[:1500]], labels[order[:1500]],
            (images / 16)[order[1500:]], labels[order[1500:]]]):
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()


def test_mnist_is_read_from_data_dir(mnist):
    images, labels = model.test_set()
    images, labels = evaluate((images, labels))
    assert images.tolist() == (mnist['x_test'].reshape(8, 784) / 255).astype(np.float32).tolist()
    assert labels.tolist() == mnist['y_test'].tolist()
    (batch, _), = model.train_batches(40, 1)
    assert batch.shape == [40, 784]


@pytest.mark.parametrize('dataset, sizes', [('digits', [64, 128, 10]),
                                            ('mnist', [784, 500, 500, 10])])
def test_network(dataset, sizes):
    FLAGS.dataset = dataset
    loss, accuracy = model.loss_and_accuracy(tf.zeros([3, sizes[0]]), tf.zeros([3], tf.int64))
    assert loss.shape == accuracy.shape == [] and loss.dtype == accuracy.dtype == tf.float32
    shapes = [variable.shape.as_list() for variable in tf.trainable_variables()]
    assert shapes == [shape for pair in zip(sizes, sizes[1:]) for shape in (list(pair), [pair[1]])]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        # On an empty image all classes are equally likely, and class 0 is the first of the best.
        assert session.run([loss, accuracy]) == pytest.approx([np.log(10), 1])


def test_data_are_not_in_the_graph():
    """A graph has to fit a message of 2 GB, and travels to the server of every session."""
    images, _, test_images, _ = digits()
    model.loss_and_accuracy(*model.test_set())
    model.train_batches(32, 10)
    size = tf.get_default_graph().as_graph_def().ByteSize()
    assert size < 50e3 < test_images.nbytes < images.nbytes
