"""Ring all-reduce: what its pieces are after each phase, what travels, and that all have the same.

The toy problem as in the other schemes: one parameter that starts at 8, gradient x - m, learning
rate 1/2. Each worker's step needs the others', so each runs in a thread of its own.
"""

import concurrent.futures
import contextlib
import functools
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.cluster import connections
from tfdist.data import batches
from tfdist.scheme import seam
from tfdist.training import traffic

from cases import briefly
from conftest import at_once, load_program, ROOT
from processes import BEGINS, DID, RESUMES, STEP, Tasks, TEST, wait_until

HPARAMS = dict(implementation='ring', scale_learning_rate=False, warmup_steps=0)


@pytest.fixture
def run_ring(cluster, request):
    """A function that runs a part of the ring on one vector for each worker."""
    def run(part, vectors):
        """Args: part: function (AllReduce, vector tensor) -> tensors."""
        sessions, fetches = [], []
        for i, vector in enumerate(vectors):
            graph = tf.Graph()
            container = re.sub(r'[\W_]', '-', request.node.name)
            with graph.as_default(), graph.container(container), tf.device(f'/job:worker/task:{i}'):
                all_reduce = load_program('Ring-AllReduce').AllReduce(
                    i, len(vectors), seam.Seam.worker_device)
                fetches.append(part(all_reduce, tf.constant(vector, tf.float32)))
            sessions.append(tf.Session(cluster.servers['worker', i].target, graph=graph))
        try:
            return at_once([lambda s=s, f=f: s.run(f) for s, f in zip(sessions, fetches)])
        finally:
            for session in sessions:
                session.close()
    return run


THREE = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]


def test_scatter_reduce(run_ring):
    """Worker j has the whole sum of piece j + 1."""
    def part(all_reduce, vector):
        return all_reduce.scatter_reduce(tf.split(vector, 3))

    results = run_ring(part, THREE)
    assert [np.concatenate(chunks).tolist() for chunks, _ in results] == [
        [1, 222, 303], [11, 20, 333], [111, 220, 300]]


@pytest.mark.parametrize('vectors', [
    THREE,
    [[1, 2, 3, 4, 5, 6, 7], [10] * 7, [100] * 7],
    [[1, 2], [10, 20], [100, 200]],
    [[5]] * 4,
    [[1, 2, 3]] * 2,
    [[1, 2, 3]],
])
def test_ring_sum(run_ring, vectors):
    """Also of lengths that do not divide, and of fewer entries than workers."""
    results = run_ring(lambda all_reduce, vector: all_reduce.sum(vector), vectors)
    for result in results:
        assert result.tolist() == np.sum(vectors, axis=0).tolist()


def test_the_sum_is_the_same_on_all_bit_for_bit(run_ring):
    vectors = np.random.RandomState(0).normal(size=[4, 1001]) * 10. ** np.arange(4)[:, None]
    results = run_ring(lambda all_reduce, vector: all_reduce.sum(vector), vectors)
    for result in results:
        assert result.tobytes() == results[0].tobytes()
    assert results[0] == pytest.approx(vectors.sum(axis=0), rel=1e-5)


@pytest.fixture
def workers(toy):
    """Makes workers of the scheme; hyperparameters not given are those above."""
    def make(ms=(0, 4), **changes):
        return toy('Ring-AllReduce', ms, **dict(HPARAMS, **changes))
    return make


@pytest.fixture
def connect():
    """A function that makes a ring of a list of `sockets.Exchange`; returns all connections."""
    def ring_of(exchanges):
        pairs = [socket.socketpair() for _ in exchanges]  # from each to the next one
        for i, exchange in enumerate(exchanges):
            exchange.connect(pairs[i][0], pairs[i - 1][1])
        made.extend(each for pair in pairs for each in pair)
        return pairs

    made = []
    yield ring_of
    for each in made:
        each.close()


@pytest.fixture
def sum_by_sockets(connect):
    """A function of arrays, one for each worker: their sums, and the exchanges."""
    def sums(vectors, times=1):
        exchange = load_program('Ring-AllReduce', 'sockets').Exchange
        exchanges = [exchange(i, len(vectors)) for i in range(len(vectors))]
        connect(exchanges)
        for _ in range(times):
            results = at_once([functools.partial(each.sum, vector)
                               for each, vector in zip(exchanges, vectors)])
        return results, exchanges
    return sums


@pytest.mark.parametrize('vectors', [THREE, [[1, 2, 3, 4, 5, 6, 7], [10] * 7, [100] * 7],
                                     [[1, 2], [10, 20], [100, 200]], [[5]] * 4, [[1, 2, 3]] * 2])
@pytest.mark.parametrize('dtype', [
    np.float32, np.float16, np.int64, np.complex64])
def test_sum_by_sockets(sum_by_sockets, vectors, dtype):
    results, _ = sum_by_sockets(np.array(vectors, dtype))
    for result in results:
        assert result.dtype == dtype and result.tolist() == np.sum(vectors, axis=0).tolist()


@pytest.mark.parametrize('num_workers, size', [(2, 1001), (3, 1001), (4, 1001), (3, 500000)])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float16, tf.bfloat16])
def test_sockets_and_queues_have_the_same_bits(run_ring, sum_by_sockets, num_workers, size, dtype):
    """Also where a piece is added in parts, as they come."""
    normal = np.random.RandomState(0).normal(size=[num_workers, size])
    vectors = (normal * 10. ** (np.arange(num_workers) - 2)[:, None]).astype(np.float32)
    queues = run_ring(lambda ring, vector: ring.sum(tf.cast(vector, dtype)), vectors)
    results, _ = sum_by_sockets(vectors.astype(dtype.as_numpy_dtype))
    for one, other in zip(results, queues):
        assert one.tobytes() == other.tobytes()


def test_which_gradients_travel_together(monkeypatch):
    """Those of the last layers first; a large one alone, small ones until there are enough."""
    program = load_program('Ring-AllReduce', 'grouping')
    shapes = [[3], [9, 2], [4], [2, 2], [5], [20], [3]]
    dtypes = [tf.float32] * 4 + [tf.float64, tf.float32, tf.float32]
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.constant(np.arange(np.prod(shape)).reshape(shape) + 100 * i, dtype)
                   for i, (shape, dtype) in enumerate(zip(shapes, dtypes))]
        assert program.groups_of(tensors) == [[0, 1, 2, 3, 5, 6], [4]]
        monkeypatch.setattr(program.sockets, 'LARGE', 72)
        monkeypatch.setattr(program, '_ENOUGH', 44)
        assert program.groups_of(tensors) == [[5], [2, 3, 6], [1], [0], [4]]
        vectors = program.flatten(tensors)
        assert [vector.shape.as_list() for vector in vectors] == [[20], [11], [18], [3], [5]]
        for tensor, same in zip(*session.run(
                [tensors, program.unflatten(vectors, tensors)])):
            assert tensor.dtype == same.dtype and np.array_equal(tensor, same)


def sums_of_large(sockets, exchanges, sessions):
    """Has each worker sum four vectors, of which two are large; returns what each of them has."""
    fetches = []
    for i, (exchange, session) in enumerate(zip(exchanges, sessions)):
        with session.graph.as_default():
            vectors = [tf.fill([size], tf.constant(i + 1, dtype)) for size, dtype in (
                (100, tf.float32), (7, tf.float64), (200, tf.float32), (3, tf.float32))]
            fetches.append(exchange.sums(vectors, f'worker {(i + 1) % len(exchanges)}'))
    return [functools.partial(session.run, fetch) for session, fetch in zip(sessions, fetches)]


@pytest.fixture
def large(connect, monkeypatch):
    """The module sockets, three connected exchanges, and a session with one thread for each."""
    sockets = load_program('Ring-AllReduce', 'sockets')
    monkeypatch.setattr(sockets, 'LARGE', 400)
    exchanges = [sockets.Exchange(i, 3) for i in range(3)]
    connect(exchanges)
    thread = tf.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with contextlib.ExitStack() as stack:
        yield sockets, exchanges, [
            stack.enter_context(tf.Session(graph=tf.Graph(), config=thread)) for _ in range(3)]


def test_large_vectors_are_summed_beside_what_tensorflow_computes(large, monkeypatch):
    """In threads of their own, in one order; the sums are those of all workers, also again."""
    sockets, exchanges, _ = large
    sums, order = sockets.Exchange.sum, []

    def noting(self, vector, number=0):
        order.append((self, number, threading.current_thread().name.startswith('Sum')))
        return sums(self, vector, number)

    monkeypatch.setattr(sockets.Exchange, 'sum', noting)
    runs = sums_of_large(*large)
    for _ in range(3):
        for results in at_once(runs):
            assert [result.tolist() for result in results] == [
                [6] * size for size in (100, 7, 200, 3)]
    for exchange in exchanges:
        assert [each[1:] for each in order if each[0] is exchange] == 3 * [
            (0, True), (1, True), (2, True), (3, False)]


def test_a_neighbour_that_is_gone_while_a_large_vector_is_summed(large):
    _, exchanges, _ = large
    runs = sums_of_large(*large)
    exchanges[1].close()
    with pytest.raises(tf.errors.UnknownError, match='the next one|the one before'):
        runs[0]()
    assert exchanges[0].lost


@pytest.mark.parametrize('num_workers', [2, 3, 4])
def test_bytes_by_sockets(sum_by_sockets, num_workers):
    """Pieces are larger than what a socket takes at once."""
    size = 600000 * num_workers
    results, exchanges = sum_by_sockets(np.ones([num_workers, size], np.float32), times=2)
    for result, exchange in zip(results, exchanges):
        assert (result == num_workers).all()
        assert exchange.sent == 2 * 2 * (num_workers - 1) / num_workers * 4 * size


@pytest.mark.parametrize('large', [2 ** 22, 1])
@pytest.mark.parametrize('num_workers', [1, 2, 3])
@pytest.mark.parametrize('size', [7, 30])
def test_what_is_sent_by_sockets_is_in_a_trace(connect, monkeypatch, num_workers, size, large):
    """As many bytes as were really sent, of vectors whose pieces are not all as large."""
    sockets = load_program('Ring-AllReduce', 'sockets')
    monkeypatch.setattr(sockets, 'LARGE', large)
    exchange = sockets.Exchange
    exchanges = [exchange(i, num_workers) for i in range(num_workers)]
    connect(exchanges)
    threads = tf.ConfigProto(inter_op_parallelism_threads=num_workers, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=threads) as session:
        sums = [exchanges[i].sums([tf.ones([size]), tf.ones([size + 1], tf.float64)],
                                  f'worker {(i + 1) % num_workers}') for i in range(num_workers)]
        trace = tf.RunMetadata()
        for total, longer in session.run(sums, options=traffic.TRACE, run_metadata=trace):
            assert (total == num_workers).all() and (longer == num_workers).all()
        sent = {one.receiver: one.bytes for one in traffic.transfers(trace)}
    assert sent == ({f'worker {(i + 1) % num_workers}': each.sent
                     for i, each in enumerate(exchanges)} if num_workers > 1 else {})
    assert num_workers == 1 or sum(sent.values()) == 2 * (num_workers - 1) * (4 * size
                                                                             + 8 * (size + 1))


WAITS_IN_AN_OP = """
import os, socket, sys, threading
from absl import flags
from tfdist.cluster import servers
from tfdist.start.quiet import tf

flags.FLAGS(['', '--num_threads=1'])
config = servers.config(waiting_ops=int(sys.argv[1]))
with socket.socket() as free:
    free.bind(('localhost', 0))
    spec = {'worker': [f'localhost:{free.getsockname()[1]}']}
server = tf.train.Server(spec, config=config)
begun, may_end = threading.Event(), threading.Event()

def wait():
    begun.set()
    may_end.wait(60)
    return 0.

def run(make):
    with tf.Graph().as_default(), tf.device('/job:worker'):
        op = make()
        with tf.Session(server.target, config=config) as session:
            session.run(op)

threading.Thread(target=run, args=(lambda: tf.py_func(wait, [], tf.float64),), daemon=True).start()
begun.wait(30)
other = threading.Thread(target=run, args=(lambda: tf.constant(1) + 1,), daemon=True)
other.start()
other.join(5)
print('waits' if other.is_alive() else 'answers', flush=True)
os._exit(0)
"""


@pytest.mark.parametrize('waiting_ops, then', [
    (1, 'answers'), pytest.param(0, 'waits', marks=pytest.mark.thorough)])
def test_a_server_answers_while_an_op_waits(waiting_ops, then):
    """A sum over sockets waits so, and the process has one thread."""
    done = subprocess.run([sys.executable, '-c', WAITS_IN_AN_OP, str(waiting_ops)], timeout=60,
                          stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert done.stdout == f'{then}\n'


def test_a_sum_stays_while_somebody_has_it(sum_by_sockets, connect):
    """Its memory is used again afterwards."""
    results, exchanges = sum_by_sockets(np.ones([2, 1000], np.float32))
    for i in range(2, 5):
        kept, before = results[0], results[0].ctypes.data
        results = at_once([functools.partial(each.sum, np.full(1000, i, np.float32))
                           for each in exchanges])
        assert (kept == 2 * (i - 1 if i > 2 else 1)).all() and results[0].ctypes.data != before
    assert len(exchanges[0]._results[0, 1000, np.dtype(np.float32)]) == 2


def listening():
    """Returns a socket that listens on any port."""
    server = socket.socket()
    server.bind(('localhost', 0))
    server.listen(100)
    return server


def test_strangers_are_not_let_in_and_keep_nobody_out():
    """Some say nothing, some say something else, one goes at once; 200 before the right one."""
    token = bytes(range(32))
    with listening() as server, contextlib.ExitStack() as stack:
        def come(says):
            one = stack.enter_context(socket.create_connection(server.getsockname(), 10))
            one.sendall(says)
            return one

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(connections.accept, server, token, 30)
            come(b'').close()
            strangers = [come([b'', bytes(16), token[16:]][i % 3]) for i in range(200)]
            right = come(token[:16])
            accepted = stack.enter_context(found.result(30))
        assert right.recv(16) == token[16:] and accepted.getpeername() == right.getsockname()
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):
                assert not stranger.recv(16)
        with pytest.raises(OSError, match='has not connected in 0.1 s'):
            connections.accept(server, token, 0.1)


def test_a_port_of_the_ring_that_is_in_use(programs):
    with listening() as server:
        port = server.getsockname()[1]
        run = programs.run_sh('Ring-AllReduce', '--implementation=sockets',
                              f'--sockets_port={port}')
        run.fails('worker [01] cannot listen on port .* give another --sockets_port'
                  '|worker 1: lost another worker|worker 1: worker 0', lines=range(1, 3))


def test_a_neighbour_that_is_gone(connect):
    sockets = load_program('Ring-AllReduce', 'sockets')
    exchanges = [sockets.Exchange(i, 2) for i in range(2)]
    connect(exchanges)
    exchanges[1].close()
    for each in exchanges:
        assert not each.lost
        with pytest.raises(connections.LostError):
            each._finish(np.ones(10, np.float32))
    assert exchanges[0].lost == 'the next one: Broken pipe'


def test_a_neighbour_that_ends_while_it_is_waited_for(connect):
    sockets = load_program('Ring-AllReduce', 'sockets')
    exchanges = [sockets.Exchange(i, 2) for i in range(2)]
    connect(exchanges)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(exchanges[0].sum, np.ones(10, np.float32))
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(0.2)
        exchanges[1].close()
        with pytest.raises(connections.LostError, match='the one before has closed'):
            waits.result(10)


def test_nobody_steps_before_all_are_there(connect):
    sockets = load_program('Ring-AllReduce', 'sockets')
    exchanges = [sockets.Exchange(i, 3) for i in range(3)]
    connect(exchanges)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        there = [pool.submit(exchanges[i].wait_for_all) for i in (0, 2)]
        assert len(concurrent.futures.wait(there, 0.5).not_done) == 2
        there.append(pool.submit(exchanges[1].wait_for_all))
        for each in there:
            each.result(10)
    sockets.Exchange(0, 1).wait_for_all()


@pytest.fixture
def meet(cluster, request):
    """A function that has workers meet; returns the `sockets.Exchange` of each, or None."""
    def all_meet(addresses):
        sockets, ring = (load_program('Ring-AllReduce', name) for name in ('sockets', 'ring'))
        flags.FLAGS.mark_as_parsed()
        spec = tf.train.ClusterSpec({'worker': addresses})
        workers = list(range(len(addresses)))
        container = re.sub(r'[\W_]', '-', request.node.name)

        def one(worker):
            return sockets.meet(
                ring.Place(workers, worker, 0, container, 0),
                types.SimpleNamespace(task_id=worker, cluster_spec=lambda: spec),
                cluster.servers['worker', worker], tf.ConfigProto())

        return at_once([functools.partial(one, worker) for worker in workers])
    return all_meet


@pytest.mark.parametrize('num_workers', [2, 3, 4])
def test_workers_meet(meet, num_workers):
    exchanges = meet(['localhost:1'] * num_workers)
    vectors = np.random.RandomState(0).normal(size=[num_workers, 10])
    for total in at_once([functools.partial(each.sum, vector)
                          for each, vector in zip(exchanges, vectors)]):
        assert total == pytest.approx(vectors.sum(axis=0))


@pytest.mark.parametrize('lost', [0, 1, 2])
def test_where_one_cannot_be_reached_all_take_the_servers(meet, capsys, lost):
    """Then nobody has a connection, and nobody waits."""
    began = time.monotonic()
    assert meet(['nowhere.invalid:1' if i == lost else 'localhost:1' for i in range(3)]) == [
        None] * 3
    assert re.fullmatch(
        rf'worker 0: worker {(lost + 1) % 3} cannot reach worker {lost} at nowhere\.invalid:\d+ '
        r"\(.+\), so the sums go through TensorFlow's servers, which is slower\. Open that port "
        r'between the workers: see --sockets_port\.\n', capsys.readouterr().out)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize('ms, centers', [
    ((0, 4), [5, 3.5]), ((0, 4, 8, 12), [7, 6.5]), ((0,), [4, 2])])
def test_all_are_where_synchronous_sgd_would_be(workers, ms, centers):
    made = workers(ms)
    for step, center in enumerate(centers, 1):
        results = at_once([worker.step for worker in made])
        assert [worker.center() for worker in made] == [center] * len(ms)
        assert [result['global_step'] for result in results] == [step] * len(ms)


def test_the_collective_of_tensorflow_does_the_same(workers):
    made = workers(implementation='collective')
    for center in 5, 3.5:
        at_once([worker.step for worker in made])
        assert [worker.center() for worker in made] == [center, center]


@pytest.mark.parametrize('num_workers', briefly([2, 3, 4], [3]))
def test_replicas_stay_the_same_bit_for_bit(workers, num_workers):
    """In 100 steps with different data, and variables of several shapes."""
    made = workers(np.random.RandomState(0).normal(size=num_workers).tolist(), learning_rate=0.01,
                   start=[8., [[0.1, 0.2, 0.3]] * 2, [0.7]])
    for _ in range(100):
        at_once([worker.step for worker in made])
    values = [worker.session.run(worker.variables) for worker in made]
    for value in values[1:]:
        assert [v.tobytes() for v in value] == [v.tobytes() for v in values[0]]


@pytest.mark.parametrize('num_workers', [1, 2, *(
    pytest.param(number, marks=pytest.mark.thorough) for number in (3, 4))])
def test_bytes(workers, num_workers):
    """Each worker sends 2 (N - 1) / N of the parameters, to the next one and to nobody else."""
    size = 250000 * num_workers  # pieces of 1 MB: a trace says sizes with one decimal
    made = workers([0] * num_workers, start=[[1.] * size])
    at_once([worker.step for worker in made])
    sent = at_once([functools.partial(worker.traffic, runs=5) for worker in made])
    expected = 2 * (num_workers - 1) / num_workers * 4 * size
    for to_workers, to_ps in sent:
        assert to_ps == 0
        assert expected <= to_workers <= 1.001 * expected


def test_linear_scaling(workers):
    made = workers((0, 0), learning_rate=0.25, scale_learning_rate=True)
    at_once([worker.step for worker in made])
    assert made[0].center() == made[1].center() == 4


def test_all_take_the_order_of_examples_that_is_due_at_the_step_of_worker_0(cluster):
    """A worker without a checkpoint begins at step 0, and then gets another one."""
    flags.FLAGS.mark_as_parsed()
    spec = tf.train.ClusterSpec({'worker': cluster.spec.as_dict()['worker'][:2]})

    ring = load_program('Ring-AllReduce', 'ring')  # two threads cannot import it at a time

    def read(task, step, meets=True):
        """Returns the step and the examples of a session that begins at `step`."""
        graph = tf.Graph()
        with graph.as_default(), graph.container(f'order-{meets}'), tf.device(
                seam.Seam.worker_device(task)):
            global_step = tf.train.get_or_create_global_step()
            (examples,), = batches.forever([np.arange(100)], batch_size=100, count=1, seed=3)
            begin = tf.tables_initializer()
            of_this_task = types.SimpleNamespace(task_id=task, cluster_spec=lambda: spec)
            parameter = tf.get_variable('x', initializer=0.)
            met = ring.Ring(of_this_task, ring.Place.among_all(task, 2), [global_step, parameter])
            with tf.Session(cluster.servers['worker', task].target) as session:
                session.run([global_step.initializer, parameter.initializer])
                global_step.load(step, session)
                session.run(begin)
                if meets:
                    met.after_create_session(session, None)
                return session.run([global_step, examples])

    alone = [read(0, step, meets=False) for step in (0, 500)]
    both = at_once([lambda: read(0, 500), lambda: read(1, 0)])
    for step, examples in both:
        assert step == 500
        assert examples.tolist() == alone[1][1].tolist() != alone[0][1].tolist()


def test_sums_of_several_dtypes(run_ring):
    """Vectors of each dtype go around by themselves, at the same time."""
    dtypes = tf.float32, tf.float64, tf.float16
    results = run_ring(lambda all_reduce, vector: [
        all_reduce.sum(tf.cast(vector, dtype)) for dtype in dtypes], THREE)
    for result in results:
        assert [vector.dtype for vector in result] == [dtype.as_numpy_dtype for dtype in dtypes]
        assert [vector.tolist() for vector in result] == [[111, 222, 333]] * 3


# Real processes.

@pytest.fixture
def started(programs):
    """Starts slow workers; returns them when they are training."""
    def start(num_workers, *flags):
        tasks = Tasks(programs, num_ps=0, num_workers=num_workers, folder='Ring-AllReduce', flags=[
            '--train_steps=300', '--log_every_n_steps=5', '--straggler=0:0.02', *flags])
        workers = [tasks.start('worker', i) for i in range(num_workers)]
        for worker in workers:
            worker.wait_for(STEP)
        return tasks, workers
    return start


@pytest.mark.parametrize('victim, implementation', [
    (0, 'sockets'), *(pytest.param(*each, marks=pytest.mark.thorough) for each in (
        (1, 'sockets'), (0, 'ring'), (2, 'ring'), (1, 'collective')))])
def test_when_one_dies_all_end_and_a_new_start_resumes(started, programs, victim, implementation):
    flags = [f'--model_dir={programs.directory / "model"}', '--save_checkpoint_secs=1',
             f'--implementation={implementation}']
    tasks, workers = started(3, *flags)
    # As the file says that a new start reads: it is written after the checkpoint itself.
    wait_until(lambda: not (tf.train.latest_checkpoint(str(programs.directory / 'model'))
                            or '-0').endswith('-0'), 'none by', *workers)
    died = time.monotonic()
    workers[victim].kill()
    for i, worker in enumerate(workers):
        if i != victim:
            assert worker.wait() == 75, str(worker)
            form = rf'worker {i}: (lost another worker|worker \d at .* Gave up after 10 s)'
            assert re.match(form, worker.err[-1]), str(worker)
            # TensorFlow's own operation logs, on 2.21, what went wrong in it.
            assert len(worker.err) == 1 or implementation == 'collective', str(worker)
    assert time.monotonic() - died < 30
    workers = [tasks.start('worker', i) for i in range(3)]
    resumed = int(workers[0].wait_for(RESUMES)['step'])
    assert resumed > 0
    for worker in workers:
        worker.ends_well()
        assert int(worker.wait_for(BEGINS)['step']) == resumed, 'all go on from there'
        assert int(worker.wait_for(DID)['local_steps']) == 300 - resumed
    assert workers[0].matches(TEST)


@pytest.mark.thorough
@pytest.mark.parametrize('victim', [0, 1, 2])
def test_one_that_dies_before_all_have_met(programs, victim):
    """Who waits for what it would have said ends soon, to be started again with it."""
    folder = programs.directory / 'Ring-AllReduce'
    shutil.copytree(str(ROOT / 'Ring-AllReduce'), str(folder))
    (programs.directory / 'tfdist').symlink_to(ROOT / 'tfdist')
    text = (folder / 'sockets.py').read_text(encoding='utf-8')
    silent = text.replace('        token, made =',
                          f'        while self._name == "worker {victim}":\n'
                          '            time.sleep(1)\n'
                          '        token, made =')
    assert silent != text
    (folder / 'sockets.py').write_text(silent, encoding='utf-8')
    tasks = Tasks(programs, num_ps=0, num_workers=3, folder=folder, flags=['--train_steps=50'])
    workers = [tasks.start('worker', i) for i in range(3)]
    workers[(victim + 1) % 3].wait_for(r'worker \d: the workers have not met after 1\d s .*')
    workers[victim].kill()
    tasks.start('worker', victim)
    died = time.monotonic()
    for i, worker in enumerate(workers):
        assert i == victim or worker.wait() == 75, str(worker)
    assert time.monotonic() - died < 30


@pytest.mark.parametrize('num_workers', [
    2, pytest.param(4, marks=pytest.mark.thorough)])
def test_sockets_train_as_queues_do(programs, num_workers):
    """To the same bits, with one thread a process: a sum keeps that thread until it is there."""
    def trained(implementation):
        directory = programs.directory / implementation
        run = programs.run_sh('Ring-AllReduce', f'--implementation={implementation}',
                              '--train_steps=100', f'--model_dir={directory}', WORKERS=num_workers)
        run.ends_well()
        reader = tf.train.load_checkpoint(str(directory))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    queues, sockets = trained('ring'), trained('sockets')
    assert len(queues) > 4 and queues['global_step'] == 100
    for name, value in queues.items():
        assert value.tobytes() == sockets[name].tobytes(), name


@pytest.mark.thorough
def test_a_worker_that_comes_late(programs):
    tasks = Tasks(programs, num_ps=0, num_workers=3, folder='Ring-AllReduce',
                  flags=['--train_steps=50'])
    early = [tasks.start_by_flags('worker', i) for i in (0, 2)]
    early[0].wait_for(r'worker 0: worker 1 at \S+ does not answer \(.+\); waiting')
    assert not early[0].matches(BEGINS)
    late = tasks.start_by_flags('worker', 1)
    for task in [late] + early:
        task.ends_well()
        assert int(task.wait_for(DID)['local_steps']) == 50


def test_a_worker_that_never_comes(programs):
    tasks = Tasks(programs, num_ps=0, num_workers=2, folder='Ring-AllReduce',
                  flags=['--patience_secs=3'])
    tasks.start('worker', 0).fails('worker 0: worker 1 at .* does not answer .* Gave up after 3 s.')


def test_a_learning_rate_that_diverges(programs):
    run = programs.run_sh('Ring-AllReduce', '--learning_rate=1e30')
    run.fails(r'worker .: (the loss is (nan|inf) at step|lost another worker|worker . at)',
              lines=range(1, 3))
    assert not run.left() and not run.matches(TEST)
    assert any('Try a smaller --learning_rate' in line for line in run.err)
