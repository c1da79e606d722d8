"""HogWild!: the numbers of its equations come out of the ops that worker.py trains with."""

import threading

import pytest
import tensorflow.compat.v1 as tf

FOLDERS = ['Distributed-Setup', 'HogWild', 'Work-Queue', 'Elastic-Workers']


@pytest.fixture(params=FOLDERS)
def folder(request):
    return request.param


@pytest.fixture
def hogwild(toy):
    def make(*args, folder='HogWild', use_locking=False, **kwargs):
        return toy(folder, *args, use_locking=use_locking, **kwargs)
    return make


def test_one_worker_is_serial_sgd(hogwild, folder):
    worker, = hogwild(ms=[0], folder=folder)
    steps = [(worker.step()['global_step'], worker.center()) for _ in range(3)]
    assert steps == [(1, 4), (2, 2), (3, 1)]


def test_forced_staleness(hogwild, folder):
    first, second = hogwild(folder=folder)
    pulled = first.pull(), second.pull()
    first.push(pulled[0])
    assert first.center() == 4
    second.push(pulled[1])
    assert second.center() == 0


def test_staleness_is_the_number_of_updates_between_read_and_write(hogwild):
    workers = hogwild(ms=[0, 0, 0])
    pulled = [worker.pull() for worker in workers]
    results = [worker.push(values) for worker, values in zip(workers, pulled)]
    assert [result['staleness'] for result in results] == [0, 1, 2]
    assert [result['global_step'] for result in results] == [1, 2, 3]
    assert workers[0].step()['staleness'] == 0
    late = workers[1].pull()
    for _ in range(4):
        workers[2].step()
    assert workers[1].push(late)['staleness'] == 4


def test_staleness_of_a_run_counts_what_came_between(hogwild):
    """Free-running workers: no two updates share a number, and each result adds up."""
    workers = hogwild(ms=[0, 0])
    results = [[], []]

    def run(i):
        for _ in range(100):
            results[i].append(workers[i].step())

    _in_threads(run, 2)
    steps = sorted(int(r['global_step']) for r in results[0] + results[1])
    assert steps == list(range(1, 201))
    for mine in results:
        for before, after in zip(mine, mine[1:]):
            foreign = int(after['global_step'] - before['global_step']) - 1
            assert 0 <= after['staleness'] <= foreign


def test_locking_loses_nothing(hogwild):
    """A gradient of -1 everywhere, learning rate 1: four workers push 100 times each."""
    size = 10000
    workers = hogwild(ms=[0, 0, 0, 0], start=[[0.] * size], learning_rate=1., use_locking=True)
    # The gradient is x - m: a pull of x = -1 makes it -1.
    own = [0] * 4

    def run(i):
        for _ in range(100):
            workers[i].push([0, [-1.] * size])
            own[i] += 1

    _in_threads(run, 4)
    assert set(workers[0].center()) == {400.}
    assert own == [100] * 4
    assert workers[0].session.run(workers[0].global_step) == 400


def test_variables_of_different_shapes_on_two_ps(hogwild, folder):
    worker, other = hogwild(start=[8., [[4., 2.]], [1., 1., 1.]], num_ps=2, folder=folder)
    other.step()
    worker.step()
    values = worker.session.run(worker.variables)
    assert [v.tolist() for v in values] == [2, [[1, 0.5]], [0.25] * 3]
    assert [v.device for v in worker.variables] == [
        '/job:ps/task:1', '/job:ps/task:0', '/job:ps/task:1']  # the global step is on ps 0


def test_placement(hogwild, folder):
    """Variables and their updates on the ps; forward and backward on the worker."""
    _, worker = hogwild(start=[[8., 4.]], folder=folder)
    metadata = tf.RunMetadata()
    worker.session.run(worker.scheme.train_op, run_metadata=metadata,
                       options=tf.RunOptions(output_partition_graphs=True))
    ops = {}
    for partition in metadata.partition_graphs:
        for node in partition.node:
            ops.setdefault(node.device, set()).add(node.op)
    ps = ops.pop('/job:ps/replica:0/task:0/device:CPU:0')
    me = ops.pop('/job:worker/replica:0/task:1/device:CPU:0')
    assert not ops, 'no other task takes part'
    bookkeeping = {'Const', 'Identity', 'NoOp', '_Send', '_Recv', 'Add', 'AddV2', 'Sub', 'Pack',
                   'Squeeze'}
    state = {'VarHandleOp', 'ReadVariableOp', 'ResourceApplyGradientDescent', 'ResourceCountUpTo'}
    assert state <= ps <= state | bookkeeping
    assert {'Square', 'Mul'} <= me and not me & state


def _in_threads(run, count):
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
