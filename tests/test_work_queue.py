"""Work-Queue: every ticket is finished in every epoch, whoever is slow or dies."""

import threading

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import digits, load_program
from processes import DID, STEP, Tasks, TEST, TOOK

FOLDER = 'Work-Queue'
NONE = [-1, -1]


@pytest.fixture
def queue(cluster, request):
    """A function that makes the queue as `count` workers see it, each by a function to exchange."""
    sessions = []

    def make(count, number):
        exchanges = []
        for task_index in range(count):
            with tf.Graph().as_default() as graph, graph.container(request.node.name):
                tickets = load_program(FOLDER, 'tickets').Tickets(number, 1, '/job:ps/task:0')
                session = tf.Session(cluster.servers['worker', task_index].target,
                                     config=cluster.config(task_index))
                sessions.append(session)
                if not task_index:
                    session.run(tf.global_variables_initializer())
                run = session.make_callable(tickets.exchange, [tickets.mine])
                exchanges.append(lambda mine, run=run: run(mine).tolist())
        return exchanges

    yield make
    for session in sessions:
        session.close()


def test_tickets_are_taken_in_order_and_by_whoever_is_free(queue):
    slow, fast = queue(2, 4)
    assert slow(NONE) == [0, 0]
    assert [fast(mine) for mine in (NONE, [0, 1], [0, 2])] == [[0, 1], [0, 2], [0, 3]]


def test_a_ticket_that_nobody_finished_is_taken_again(queue):
    dead, alive = queue(2, 3)
    assert dead(NONE) == [0, 0]
    assert [alive(mine) for mine in (NONE, [0, 1])] == [[0, 1], [0, 2]]
    assert alive([0, 2]) == [0, 0], 'all are taken, this one is not finished'
    assert alive([0, 0]) == [1, 0], 'the next epoch'
    assert dead([0, 0]) == [1, 1], 'it was late: that finishes nothing in this epoch'
    assert [dead(mine) for mine in ([1, 1], [1, 2])] == [[1, 2], [1, 0]]
    assert dead([1, 0]) == [2, 0]


def test_the_ticket_that_the_fewest_took_is_next(queue):
    workers = queue(3, 2)
    assert [worker(NONE) for worker in workers] == [[0, 0], [0, 1], [0, 0]]
    assert workers[0](NONE) == [0, 1]
    assert workers[0]([0, 1]) == [0, 0]
    assert workers[1]([0, 0]) == [1, 0]


def test_no_ticket_lacks_when_workers_run_freely(queue):
    workers = queue(4, 5)
    finished = [[] for _ in workers]

    def run(i):
        mine = workers[i](NONE)
        for _ in range(100):
            finished[i].append(tuple(mine))
            mine = workers[i](mine)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for mine in finished:
        assert mine == sorted(mine, key=lambda ticket: ticket[0]), 'epochs do not go back'
    seen = set().union(*finished)
    last = max(epoch for epoch, _ in seen)
    assert last >= 400 / (5 + 4 - 1) / 2, 'few are taken more often than once'
    assert {(epoch, i) for epoch in range(last) for i in range(5)} <= seen


@pytest.fixture
def model():
    program = load_program(FOLDER, 'model')
    flags.FLAGS([''])
    with tf.Graph().as_default():
        yield program


def examples_of(model, tickets, batch_size=50, num_steps=4, seed=1):
    """Returns the indexes of the examples in each of some tickets: [tickets, examples]."""
    images = digits()[0]
    index_of = {image.tobytes(): i for i, image in enumerate(images)}
    assert len(index_of) == model.num_examples() == 1500
    mine = tf.placeholder(tf.int64, [2])
    batches, make_ready = model.train_batches(batch_size, 1, mine, num_steps, seed)
    with tf.Session() as session:
        found = []
        for ticket in tickets:
            session.run(make_ready, {mine: ticket})
            found.append([index_of[image.tobytes()] for _ in range(num_steps)
                          for image in session.run(batches)[0][0]])
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(batches)
    return np.array(found)


def test_the_tickets_of_an_epoch_have_every_example(model):
    first, second = (examples_of(model, [(epoch, i) for i in range(8)]) for epoch in (0, 1))
    for epoch in first, second:
        assert sorted(epoch.ravel()[:1500]) == list(range(1500))
        assert (epoch.ravel()[1500:] == epoch[0][:100]).all(), 'the last is filled up'
    assert (first != second).mean() > 0.9, 'an order of its own'
    assert (examples_of(model, [(1, 3)]) == second[3]).all(), 'the same for each worker'
    assert (examples_of(model, [(1, 3)], seed=2) != second[3]).mean() > 0.9


def test_labels_belong_to_their_images(model):
    images, labels, _, _ = digits()
    label_of = {image.tobytes(): label for image, label in zip(images, labels)}
    mine = tf.placeholder(tf.int64, [2])
    batches, make_ready = model.train_batches(20, 2, mine, 4)
    with tf.Session() as session:
        session.run(make_ready, {mine: (0, 0)})
        for batch in session.run(batches):
            assert [label_of[image.tobytes()] for image in batch[0]] == batch[1].tolist()


@pytest.mark.thorough
def test_a_straggler_takes_few_and_a_dead_one_stops_nobody(programs, tmp_path):
    tasks = Tasks(programs, num_workers=3, folder=FOLDER, flags=[
        '--train_steps=1500', '--log_every_n_steps=5', '--straggler=0:0.005,1:0.2,2:0.2',
        f'--model_dir={tmp_path}'])
    ps = tasks.start('ps', 0, '--patience_secs=3')
    chief, slow, dead = (tasks.start('worker', i) for i in range(3))
    dead.wait_for(STEP)
    dead.kill()
    for task in chief, slow, ps:
        task.ends_well()
    took = [task.wait_for(TOOK) for task in (chief, slow)]
    tickets, epochs = ([int(match[name]) for match in took] for name in ('tickets', 'epoch'))
    assert tickets[0] > 3 * tickets[1] > 0
    assert max(epochs) >= 10, 'ten tickets make an epoch, and some are taken twice'
    assert sum(int(task.wait_for(DID)['local_steps']) for task in (chief, slow)) < 1510
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert reader.get_tensor('tickets/epoch') >= epochs[0] and chief.matches(TEST)
