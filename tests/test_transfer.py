"""Small tensors travel as one, and arrive as they were."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import transfer
from tfdist.start import ports

LARGE = [[3.] * 1000] * 20  # 80 kB


@pytest.mark.parametrize('folder, hparams', [
    ('HogWild', dict(use_locking=False)),
    ('AGN', dict(communication_window=2)),
    ('Synchronous-SGD', dict(scale_learning_rate=False, warmup_steps=0, replicas_to_aggregate=None,
                             train_steps=100, patience_secs=60.)),
])
def test_in_a_step_small_parameters_travel_as_one_and_large_ones_alone(toy, folder, hparams):
    worker, = toy(folder, [0], start=[8., LARGE, [[1., 2.], [3., 4.]]], **hparams)
    worker.step()
    received = worker.transfers()
    assert sorted(received['worker']) == [16, 20, 80000], 'two counters are the first'
    assert sorted(received['ps']) == [20, 80000], 'no step size, and no mere signals'


def test_they_arrive_as_they_were(cluster):
    """Of any shape and dtype; what is no tensor is left alone."""
    ps = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
    rows = tf.IndexedSlices(tf.constant([[1.]]), tf.constant([0]))
    values = [np.float32(8), np.ones([2, 3], np.float32), np.arange(3), np.zeros([0], np.float32),
              np.array(LARGE, np.float32), np.float32([1, 2]), np.float32([[3]])]
    homes = [ps[0], ps[0], ps[0], ps[1], ps[1], ps[0], ps[1]]
    with tf.Graph().as_default(), tf.device('/job:worker/task:0'):
        variables = []
        for i, (value, home) in enumerate(zip(values, homes)):
            with tf.device(home):
                variables.append(tf.get_variable(f'v{i}', initializer=value))
        read = []
        for variable in variables:
            with tf.device(variable.device):
                read.append(variable.read_value())
        there = transfer.to_worker(read)
        back = transfer.to_ps(there, variables)
        packed = [0, 1, 3, 5, 6]
        assert all(there[i].device == '/job:worker/task:0' for i in packed)
        assert all(back[i].device == homes[i] for i in packed)
        assert transfer.to_ps([None, rows], variables[:2]) == [None, rows]
        assert [len(op.inputs) - 1 for op in tf.get_default_graph().get_operations()
                if op.type == 'ConcatV2'] == [3, 2] * 2, 'by ps and dtype'
        with tf.Session(cluster.servers['worker', 0].target, config=cluster.config(0)) as session:
            session.run(tf.global_variables_initializer())
            for got in session.run(there), session.run(back):
                for tensor, value in zip(got, values):
                    np.testing.assert_array_equal(tensor, value)
                    assert tensor.dtype == value.dtype and tensor.shape == value.shape


def test_the_bytes_of_tensors():
    with tf.Graph().as_default():
        known, unknown = tf.zeros([2, 3], tf.int64), tf.placeholder(tf.float32, [None, 2])
        assert transfer.size_of([known, tf.get_variable('x', [5])]) == 48 + 20
        assert transfer.size_of([known, unknown]) is None and transfer.size_of([]) == 0


ONE_THREAD = """
import sys, time
from absl import flags
from tfdist.cluster import servers
from tfdist.scheme import exchange, transfer
from tfdist.start.quiet import tf
from tfdist.training import traffic

job, *hosts = sys.argv[1:]
flags.FLAGS(['', '--num_threads=1'])
config = servers.config()
server = tf.train.Server({'ps': hosts[:1], 'worker': hosts[1:]}, job, 0, config=config)
if job == 'ps':
    sys.stdin.read()
    sys.exit()

takes = 0.

def compute(x):
    time.sleep(takes)
    return x

with tf.device('/job:ps'):
    center = tf.get_variable('center', [200, 1000], initializer=tf.zeros_initializer())
with tf.device('/job:worker'):
    y = own = tf.get_variable('own', [200, 1000], initializer=tf.ones_initializer())
    moves = 0.5 * (own - center)
    x, = exchange.add([own], [moves], -1)
    for i in range(3):  # the first gradient does not need the center
        gradient, = tf.py_func(compute, [y], [tf.float32], name=f'gradient_{i}')
        x = y = x - 0.1 * gradient
push = exchange.add_to([center], transfer.to_ps([moves], [center]))
with tf.Session(server.target, config=config) as session:
    session.run(tf.global_variables_initializer())
    for attempt in range(20):
        takes = 0.
        for _ in range(200):  # meanwhile TensorFlow 2.21 finds out what is cheap
            session.run([x, push])
        takes = 0.1
        trace = traffic.whole_trace(session, [x, push])
        pushed, = (one for one in traffic.transfers(trace)
                   if one.bytes and one.receiver == 'ps 0')
        computed = {one.name: one for one in traffic.work(trace)}
        if pushed.begin < computed['gradient_2'].begin:
            print(attempt)
            break
"""


def test_what_a_worker_pushes_leaves_before_it_computes_on():
    """With one thread, too: the ps and the worker have one process each.

    Not always with TensorFlow 2.21, which takes an op for dear while something interrupts it. But
    if it left last by design, it would leave last in all of the twenty attempts.
    """
    hosts = [f'localhost:{port}' for port in ports.free_ports(2)]
    ps = subprocess.Popen([sys.executable, '-c', ONE_THREAD, 'ps', *hosts], stdin=subprocess.PIPE)
    try:
        worker = subprocess.run([sys.executable, '-c', ONE_THREAD, 'worker', *hosts], timeout=120,
                                stdout=subprocess.PIPE, universal_newlines=True, check=True)
    finally:
        ps.stdin.close()
        ps.wait(30)
    assert worker.stdout, 'it left last each time'
    if tf.__version__.startswith('1.'):
        assert worker.stdout == '0\n'
