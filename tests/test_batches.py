"""The order of examples: of the seed, the worker, and the global step at which a session begins."""

from absl import flags
from conftest import load_program
import pytest
import tensorflow.compat.v1 as tf
from tfdist import batches, problem

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
