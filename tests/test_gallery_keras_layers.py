"""The gallery's network of Keras' layers: its variables, its two modes, and that it learns."""

import importlib

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building, model_file

from conftest import digits, evaluate

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.keras_layers')


@pytest.fixture(autouse=True)
def fresh():
    """A graph of its own, and all flags at their defaults."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(), tf.Graph().as_default():
        tf.set_random_seed(0)
        yield


def the_test(batch_size):
    """Returns all batches of the test, lists of arrays."""
    iterator = tf.data.make_initializable_iterator(model.test_batches(batch_size))
    batch, batches = iterator.get_next(), []
    with tf.Session() as session:
        session.run(iterator.initializer)
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return batches


def seen(shard, num_shards, count=30, seed=0):
    """Returns the positions in the training set of the images of `count` batches of 25."""
    position_of = {image.tobytes(): i for i, image in enumerate(digits()[0])}
    with tf.Graph().as_default():
        batches = evaluate(model.train_batches(25, count, shard, num_shards, seed))
    return [position_of[image.tobytes()] for images, _ in batches for image in images]


def test_batches_are_as_promised():
    batches = model.train_batches(20, 3)
    assert len(batches) == 3
    for images, labels in batches:
        assert images.shape == [20, 64] and images.dtype == tf.float32
        assert labels.shape == [20] and labels.dtype == tf.int64
    assert all(0 <= images.min() < images.max() <= 1 for images, _ in evaluate(batches))


def test_shards_are_disjoint_and_complete():
    assert sorted(seen(0, 2) + seen(1, 2)) == list(range(1500))


def test_epochs_and_seeds_have_their_order():
    twice = seen(1, 2, count=60)
    first, second = twice[:750], twice[750:]
    assert sorted(first) == sorted(second) and first != second
    assert seen(1, 2) == first != seen(1, 2, seed=1)


def test_test_set_is_whole_and_of_new_images():
    batches = the_test(100)
    assert [len(labels) for _, labels in batches] == [100, 100, 97]
    images, labels = (np.concatenate(part) for part in zip(*batches))
    assert images.tolist() == digits()[2].tolist() and labels.tolist() == digits()[3].tolist()
    known = {image.tobytes() for image in digits()[0]}
    assert not known & {image.tobytes() for image in images}


def test_network():
    loss, metrics = model.loss_and_metrics((tf.zeros([4, 64]), tf.zeros([4], tf.int64)), True)
    assert list(metrics) == ['accuracy']
    for tensor in loss, metrics['accuracy']:
        assert tensor.shape == [] and tensor.dtype == tf.float32
    shapes = [variable.shape.as_list() for variable in tf.trainable_variables()]
    assert shapes == [[3, 3, 1, 16], [16], [16], [3, 3, 16, 32], [32], [32], [128, 10], [10]]
    averages = set(tf.global_variables()) - set(tf.trainable_variables())
    assert sorted(variable.shape.as_list() for variable in averages) == [[16], [16], [32], [32]]


def test_larger_images_have_more_pixels_at_the_end():
    model.loss_and_metrics((tf.zeros([4, 784]), tf.zeros([4], tf.int64)), True)
    assert tf.trainable_variables()[-2].shape == [7 * 7 * 32, 10]


def test_modes():
    """In the test the figures of an image depend on no other, and none of its units is dropped."""
    images, labels, _, _ = digits()
    images, labels = images[:8], labels[:8]
    network = building.Network(model_file.Model(model),
                               [(tf.constant(images), tf.constant(labels))])
    whole, _ = network.at_variables((tf.constant(images), tf.constant(labels)))
    alone = [network.at_variables((tf.constant(images[i:i + 1]), tf.constant(labels[i:i + 1])))[0]
             for i in range(8)]
    values = [tf.identity(variable) for variable in network.variables]
    _, figures = network.gradients_at(values)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(whole) == session.run(whole)
        assert session.run(whole) == pytest.approx(np.mean(session.run(alone)), rel=1e-4)
        assert session.run(figures['loss']) != session.run(figures['loss'])


def test_steps_reduce_the_loss_and_move_the_averages():
    batch, = model.train_batches(32, 1)
    loss, _ = model.loss_and_metrics(batch, True)
    averages = [variable for variable in tf.global_variables() if not variable.trainable]
    # The assignments of batch norm, which Keras puts into no collection.
    updates = [op for variable in averages for op in variable.handle.consumers()
               if op.type.startswith('Assign') and op is not variable.initializer]
    step = tf.train.GradientDescentOptimizer(.1).minimize(loss)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        before = session.run(averages)
        losses = [session.run([loss, step, updates])[0] for _ in range(60)]
        after = session.run(averages)
    assert np.mean(losses[-10:]) < .5 * np.mean(losses[:5])
    assert all((old != new).any() for old, new in zip(before, after))


def test_data_are_not_in_the_graph():
    """A graph has to fit a message of 2 GB, and travels to the server of every session."""
    model.loss_and_metrics(model.train_batches(32, 2)[0], True)
    model.test_batches(100)
    size = tf.get_default_graph().as_graph_def().ByteSize()
    assert size < 70e3 < digits()[2].nbytes
