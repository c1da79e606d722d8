"""The gallery's residual network: batch normalization, dropout and weight decay by layers."""

import importlib

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import datasets

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.resnet')


@pytest.fixture(autouse=True)
def fresh(tmp_path):
    """A graph of its own, all flags at their defaults, and no file in --data_dir."""
    FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(data_dir=str(tmp_path)), tf.Graph().as_default():
        tf.set_random_seed(1)
        yield


def build(batch_size=16):
    """Returns loss and metrics in training, and those in the test on the same variables."""
    batch, = model.train_batches(batch_size, 1)
    with tf.variable_scope(tf.get_variable_scope()):  # which forgets its layers' names at its end
        built = model.loss_and_metrics(batch, training=True)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        images, labels, _, _ = datasets.mnist_5k()
        fixed = tf.constant(images[:batch_size]), tf.constant(labels[:batch_size])
        return built, model.loss_and_metrics(fixed, training=False)


def session_of_all():
    """Returns a session in which everything is initialized."""
    session = tf.Session()
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])
    return session


def moving():
    """Returns the moving averages, a list of variables."""
    return [variable for variable in tf.global_variables() if not variable.trainable]


def positions(shard, num_shards, epochs=1, seed=0):
    """Returns which examples of the training set a worker sees, in order: [epochs, examples]."""
    position_of = {image.tobytes(): i for i, image in enumerate(datasets.mnist_5k()[0])}
    with tf.Graph().as_default():
        batches = model.train_batches(250, epochs * 16 // num_shards, shard, num_shards, seed)
        with session_of_all() as session:
            seen = [position_of[image.tobytes()]
                    for batch, _ in session.run(batches) for image in batch]
    return np.reshape(seen, [epochs, -1])


@pytest.mark.parametrize('num_workers', [1, 2, 4])
def test_shards_are_disjoint_and_complete(num_workers):
    seen = [positions(shard, num_workers)[0] for shard in range(num_workers)]
    assert sorted(np.concatenate(seen)) == list(range(4000))


def test_the_order_changes():
    (first, second), (other_seed,) = positions(1, 4, epochs=2), positions(1, 4, seed=1)
    assert sorted(first) == sorted(second) == sorted(other_seed)
    assert (first != second).any() and (first != other_seed).any()
    assert (positions(1, 4)[0] == first).all()


def test_batches_are_as_promised():
    for images, labels in model.train_batches(20, 3):
        assert images.shape == [20, 784] and images.dtype == tf.float32
        assert labels.shape == [20] and labels.dtype == tf.int64


def test_the_test_set_is_whole():
    iterator = tf.data.make_initializable_iterator(model.test_batches(600))
    batch = iterator.get_next()
    with tf.Session() as session:
        session.run(iterator.initializer)
        found = [session.run(batch) for _ in range(2)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    assert [len(labels) for _, labels in found] == [600, 400]
    images, labels = (np.concatenate(part) for part in zip(*found))
    assert images.tolist() == datasets.mnist_5k()[2].tolist()
    assert labels.tolist() == datasets.mnist_5k()[3].tolist()


def test_a_cut_file(tmp_path):
    (tmp_path / 'mnist.npz').write_bytes(b'PK\3\4' + b'0' * 1000)
    with pytest.raises(SystemExit, match='not a whole mnist.npz') as error:
        model.train_batches(4, 1)
    assert '\n' not in str(error.value)


def test_network():
    (loss, metrics), _ = build()
    assert list(metrics) == ['accuracy']
    assert loss.shape == metrics['accuracy'].shape == [] and loss.dtype == tf.float32
    size = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
    assert 60e3 < size < 100e3
    kernels = [variable for variable in tf.trainable_variables() if 'kernel' in variable.name]
    assert len(kernels) == 10 and len(moving()) == 14
    assert [kernel.shape.as_list() for kernel in kernels[:4]] == [
        [3, 3, 1, 16], [3, 3, 16, 16], [3, 3, 16, 16], [1, 1, 16, 32]]


def test_weight_decay_is_in_the_collection():
    model.loss_and_metrics(model.train_batches(4, 1)[0], training=True)
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    kernels = [variable for variable in tf.trainable_variables() if 'kernel' in variable.name]
    assert len(losses) == len(kernels)
    with session_of_all() as session:
        squares = sum((value ** 2).sum() for value in session.run(kernels))
        assert sum(session.run(losses)) == pytest.approx(model.WEIGHT_DECAY * squares / 2, rel=1e-4)


def test_the_test_takes_moving_averages_and_drops_nothing():
    _, (loss, _) = build()
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert len(updates) == len(moving())
    with session_of_all() as session:
        before, start = session.run([loss, moving()])
        assert session.run(loss) == before
        for value, name in zip(start, moving()):
            assert (value == ('variance' in name.name)).all()
        session.run(updates)
        assert all((new != old).any() for new, old in zip(session.run(moving()), start))
        assert session.run(loss) != before


def test_training_drops_features():
    batch = tf.constant(datasets.mnist_5k()[0][:8]), tf.constant(datasets.mnist_5k()[1][:8])
    loss, _ = model.loss_and_metrics(batch, training=True)
    with session_of_all() as session:
        assert session.run(loss) != session.run(loss)


def test_data_are_not_in_the_graph():
    model.loss_and_metrics(model.train_batches(32, 10)[0], training=True)
    model.test_batches(1000)
    assert tf.get_default_graph().as_graph_def().ByteSize() < 300e3


def test_it_learns():
    (loss, _), (test_loss, _) = build()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
    with session_of_all() as session:
        losses = [session.run([loss, step])[0] for _ in range(50)]
        assert np.mean(losses[-10:]) < 0.6 * losses[0]
        assert session.run(test_loss) < 0.6 * losses[0]
