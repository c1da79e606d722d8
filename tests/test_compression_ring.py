"""Compression in a ring: each worker's encoded gradient goes around, and all add up the same.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m.
"""

import functools
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import graphs, seam
from tfdist.scheme.toy import Problem
from tfdist.training import traffic

from cases import briefly
from conftest import at_once, load_program
import parts
from processes import ROOT
import test_compression
from test_compression import NAMES, size_of
import test_ring
import test_seam
import test_simulation

run_ring, connect, workers = test_ring.run_ring, test_ring.connect, test_ring.workers  # fixtures
simulated, simulate = test_simulation.toy, test_simulation.simulate  # fixtures, too
START = [[8., -3., 0.5], [[0.1, 0.2, 0.3, 0.7]] * 2, [0.7]]


def exchanges_of(num_workers, connect):
    """Returns the `sockets.Exchange` of each worker of a ring."""
    program = load_program('Ring-AllReduce', 'sockets')
    exchanges = [program.Exchange(i, num_workers) for i in range(num_workers)]
    connect(exchanges)
    return exchanges


# What goes around.

@pytest.mark.parametrize('num_workers', [1, 2, 3, 4])
def test_all_get_what_each_has_in_the_order_of_the_workers(run_ring, connect, num_workers):
    vectors = [[i, 10 + i, 20 + i] for i in range(num_workers)]
    for rows in run_ring(lambda ring, vector: ring.gather(tf.cast(vector, tf.uint8)), vectors):
        assert rows.dtype == np.uint8 and rows.tolist() == vectors
    rows = at_once([functools.partial(each.gather, np.array(vector, np.uint8)) for each, vector in
                    zip(exchanges_of(num_workers, connect), vectors)])
    assert [each.tolist() for each in rows] == [sum(vectors, [])] * num_workers


def test_what_came_stays_while_somebody_has_it(connect):
    """Its memory is used again afterwards."""
    exchanges, kept = exchanges_of(2, connect), []
    for i in range(3):
        kept.append(at_once([functools.partial(each.gather, np.full(100, 10 * i + j, np.uint8))
                             for j, each in enumerate(exchanges)])[0])
    for i, rows in enumerate(kept):
        assert rows.tolist() == [10 * i] * 100 + [10 * i + 1] * 100
    del rows, kept
    for _ in range(3):
        at_once([functools.partial(each.gather, np.zeros(100, np.uint8)) for each in exchanges])
    assert len(exchanges[0]._results[0, 200, np.dtype(np.uint8)]) == 3


@pytest.mark.parametrize('num_workers', [1, 2, 3])
def test_what_is_sent_by_sockets_is_in_a_trace(connect, num_workers):
    exchanges = exchanges_of(num_workers, connect)
    threads = tf.ConfigProto(inter_op_parallelism_threads=num_workers, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=threads) as session:
        rows = [each.gathered(tf.fill([30], tf.constant(i, tf.uint8)),
                              f'worker {(i + 1) % num_workers}')
                for i, each in enumerate(exchanges)]
        trace = tf.RunMetadata()
        for each in session.run(rows, options=traffic.TRACE, run_metadata=trace):
            assert each.tolist() == [[i] * 30 for i in range(num_workers)]
        sent = {one.receiver: one.bytes for one in traffic.transfers(trace)}
    others = 30 * (num_workers - 1)
    assert {each.sent for each in exchanges} == {others}
    assert sent == ({f'worker {i}': others for i in range(num_workers)} if others else {})


@pytest.mark.parametrize('name', briefly(['bf16', 'int8', 'sign', 'topk:0.01'],
                                         ['topk:0.01']))
@pytest.mark.parametrize('num_workers', briefly([1, 2, 3], [2]))
def test_a_step_sends_as_many_bytes_as_computed(workers, num_workers, name):
    """Within 2 %: what N - 1 workers have encoded, to the next worker."""
    size, rows = 250000, 1000
    made = workers([0] * num_workers, start=[[1.] * size, [[2.] * rows]], compression=name)
    at_once([worker.step for worker in made])
    for to_workers, to_ps in at_once([functools.partial(worker.traffic, runs=5)
                                      for worker in made]):
        assert to_ps == 0
        assert to_workers == pytest.approx(
            (num_workers - 1) * (size_of(name, size) + size_of(name, rows)), rel=0.02)


# What it comes to.

def test_where_all_is_sent_two_workers_have_the_bits_of_the_plain_ring(workers):
    """At numbers that have to be rounded in each operation."""
    start, values = [0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]], []
    for changes in {}, dict(compression='none'), dict(compression='topk:1'):
        made = workers((0.3, 1.7), start=start, learning_rate=0.3, **changes)
        assert len(made[0].scheme.own) == (4 if 'topk:1' in changes.values() else 0)
        for _ in range(5):
            at_once([worker.step for worker in made])
        values.append(made[1].session.run(made[1].variables))
    for plain, none, all_ in zip(*values):
        assert np.array_equal(plain, none)
        assert np.array_equal(plain, all_)
        assert np.array_equal(plain, plain)  # no NaN


@pytest.mark.parametrize('name', briefly(NAMES, ['int8', 'topk:0.25']))
def test_replicas_stay_the_same_bit_for_bit_and_nothing_is_lost(workers, name):
    """Three workers of different data; what they left out is in the three residuals."""
    ms = np.random.RandomState(0).normal(size=3).tolist()
    made = workers(ms, start=START, learning_rate=0.125, compression=name)
    given = 0
    for _ in range(20):
        given += sum(window[0] for window in at_once([worker.window for worker in made]))
    values = [worker.session.run(worker.variables) for worker in made]
    for value in values[1:]:
        assert [v.tobytes() for v in value] == [v.tobytes() for v in values[0]]
    left = sum(worker.session.run(worker.scheme.own[0]) for worker in made)
    assert np.array(START[0]) - values[0][0] == pytest.approx(0.125 / 3 * (given - left), abs=1e-5)
    assert np.any(left) == (name != 'topk:1')


@pytest.mark.parametrize('third, centers, bare', [
    ([], [[0, 4], [0, 0], [0, 0]], [[0, 4], [0, 4], [0, 4]]),
    pytest.param([(0., 3.)], [[0, 3.8333333], [0, 1.0833333], [0, 1.4027778], [0, 1.6689815]],
                 [[0, 3.8333333], [0, 3.6944444], [0, 3.5787037]], marks=pytest.mark.thorough),
])
def test_what_is_large_on_each_worker_but_cancels(workers, third, centers, bare):
    """Each sends the larger of two coordinates, and these cancel: the other one never moves."""
    def after(made, number):
        steps = []
        for _ in range(number):
            at_once([worker.step for worker in made])
            steps.append(pytest.approx(made[0].center(), abs=1e-6))
        return steps

    ms = [np.array(m, np.float32) for m in [(6., 0.), (-6., 0.), *third]]
    options = dict(start=[[0., 4.]], compression='topk:0.5')
    made = workers(ms, error_feedback=False, **options)
    assert after(made, len(bare)) == bare
    after(made, 60 - len(bare))
    assert made[0].center() == pytest.approx([0, 3 if third else 4], abs=1e-3)
    made = workers(ms, **options)
    assert after(made, len(centers)) == centers
    if third:  # it goes around the optimum, which is (0, 1)
        after(made, 400 - len(centers))
        assert made[2].center() == pytest.approx([0, 0.99837184], abs=5e-4)  # rounded 400 times


def test_a_residual_is_the_workers_own_and_changes_after_the_step(workers):
    made = workers((0, 4), start=[[8., 1., 2., 3.]], compression='topk:0.25')
    at_once([worker.step for worker in made])
    residuals = [worker.session.run(worker.scheme.own[0]).tolist() for worker in made]
    assert residuals == [[0, 1, 2, 3], [0, -3, -2, -1]]
    for worker in made:
        assert {each.device for each in worker.scheme.own} == {
            seam.Seam.worker_device(worker.task_index)}
        with worker.graph.as_default():
            assert not {*worker.scheme.own} & {*tf.global_variables()}
        applied = {op for op in graphs.ancestors(worker.scheme.train_op.values())
                   if op.type in ('ResourceApplyGradientDescent', 'AssignAddVariableOp')}
        assert len(applied) == 2 and applied <= test_compression.keeping(worker)


class BySockets:
    """A worker of a ring of sockets, on the toy problem, without servers."""

    def __init__(self, exchange, index, m, hparams, start=START):
        with tf.Graph().as_default() as graph:
            global_step = tf.train.get_or_create_global_step()
            variables = [tf.get_variable(f'x{i}', initializer=tf.constant(value))
                         for i, value in enumerate(start)]
            problem = Problem(lambda values: (
                sum(tf.reduce_sum(tf.square(value - m)) / 2 for value in values),
                tf.constant(0.)), variables)
            scheme = load_program('Ring-AllReduce').Scheme(
                problem, global_step, hparams, index, 3, None, exchange)
            initialize = tf.global_variables_initializer(), tf.local_variables_initializer()
        # A sum waits in a thread of the session's own.
        self.session = tf.Session(graph=graph, config=tf.ConfigProto(
            inter_op_parallelism_threads=1, use_per_session_threads=True))
        for op in initialize:
            self.session.run(op)
        self.step = functools.partial(self.session.run, scheme.train_op)
        self.values = functools.partial(self.session.run, variables)


@pytest.mark.parametrize('name', briefly(['int8', 'topk:0.25', 'powersgd:1'],
                                         ['int8', 'powersgd:1']))
def test_sockets_train_as_queues_do(workers, connect, monkeypatch, name):
    """To the same bits, on each of three workers."""
    ms = 0.3, 1.7, -0.4
    queues = workers(ms, start=START, learning_rate=0.3, compression=name)
    monkeypatch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
    hparams = types.SimpleNamespace(**dict(test_ring.HPARAMS, implementation='sockets',
                                           learning_rate=0.3, compression=name))
    sockets = [BySockets(exchange, i, m, hparams)
               for i, (exchange, m) in enumerate(zip(exchanges_of(3, connect), ms))]
    for _ in range(20):
        at_once([worker.step for worker in [*queues, *sockets]])
    values = [worker.session.run(worker.variables) for worker in queues] + [
        worker.values() for worker in sockets]
    for value in values[1:]:
        assert [v.tobytes() for v in value] == [v.tobytes() for v in values[0]]
    for worker in sockets:
        worker.session.close()


# One scheme plays all workers of a ring.

@pytest.mark.parametrize('implementation, seconds', [
    ('sockets', 2e-3 + 3 * (24e-3 + 1e-3)), ('ring', 2e-3 + 3 * 24e-3 + 8 * 1e-3)])
def test_a_simulated_ring(simulated, implementation, seconds):
    """Each worker has its own residual, and all of what is encoded goes around in N - 1 hops."""
    toy = simulated('Ring-AllReduce', 4, train_steps=20, step=['2ms', '1ms'], latency=['1ms'],
                    bandwidth=['8kbit'], changes=dict(compression='topk:0.5',
                                                      implementation=implementation))
    center, residuals = test_seam.flat(test_simulation.START), np.zeros((4, 3))
    for _ in range(20):
        pushes = [test_compression.largest_of_each(*each)
                  for each in zip(residuals, center - toy.ms[:, np.newaxis])]
        arrive, residuals = map(np.array, zip(*pushes))
        center = center - test_seam.RATE * arrive.mean(axis=0)
    assert test_seam.flat(toy.player.center()) == pytest.approx(center, rel=1e-9, abs=1e-9)
    kept = [test_seam.flat(toy.player._own.of(worker)[:2]) for worker in range(4)]
    assert np.array(kept) == pytest.approx(residuals, abs=1e-9) and abs(residuals).max() > 0.01
    assert toy.clock.now == pytest.approx(20 * seconds)


def test_a_simulated_ring_of_all_elements_has_the_bits_of_the_plain_one(simulated):
    """Two workers: whoever is first, the sum is the same."""
    values = [[value.tobytes() for value in simulated(
        'Ring-AllReduce', 2, train_steps=20, step='lognormal:1ms:1',
        changes=dict(compression=name)).player.center()] for name in ('none', 'topk:1')]
    assert values[0] == values[1]


def test_state_that_cannot_be_fed_is_refused_in_a_simulated_ring(simulated, monkeypatch):
    """The push that is made for all would change it for all."""
    monkeypatch.setattr(parts, 'only_reads_and_assigns', lambda *_: False)
    with pytest.raises(SystemExit, match='^The model keeps state of a worker in local [^\n]*$'):
        simulated('Ring-AllReduce', 2, changes=dict(compression='sign'))


# What is said, and what is refused.

@pytest.mark.parametrize('num_workers, name, line', [
    (1, 'bf16', ''), (3, 'bf16', ''), (7, 'int8', ''), (63, 'sign', ''), (99, 'topk:0.01', ''),
    (4, 'none', ''),
    (4, 'bf16', 'worker 0: --compression=bf16 saves nothing with 4 workers: each sends 60,000 B in '
                'a step, and 60,000 B without it; r is 0.5, and has to be below 2 / 4\n'),
    (64, 'sign', 'worker 0: --compression=sign saves nothing with 64 workers: each sends 79,002 B '
                 'in a step, and 78,750 B without it; r is 0.0314, and has to be below 2 / 64\n'),
])
def test_it_says_when_nothing_is_saved(capsys, num_workers, name, line):
    compressing = load_program('Ring-AllReduce', 'compressing')
    hparams = types.SimpleNamespace(compression=name)
    with tf.Graph().as_default():
        variable = tf.get_variable('x', [10000])
        for task_index in 0, 1:  # only the first says it
            compressing.tell(types.SimpleNamespace(
                task_index=task_index, num_workers=num_workers,
                pushed=[tf.zeros([size_of(name, 10000)], tf.uint8)],
                network=types.SimpleNamespace(variables=[variable])), hparams)
    assert capsys.readouterr().out == line


@pytest.mark.parametrize('changes, complaint', [
    (dict(implementation='collective'), "--compression=sign: TensorFlow's own all-reduce adds up"),
    (dict(min_workers=2), '--compression=sign: each new ring of --min_workers would lose'),
    (dict(compression='powersgd:2', min_workers=2), '--compression=powersgd:2: each new ring of'),
])
def test_where_it_is_refused(changes, complaint):
    check = load_program('Ring-AllReduce', 'compressing').check
    settings = dict(dict(compression='sign', implementation='sockets', min_workers=None), **changes)
    with pytest.raises(SystemExit, match=f'^{complaint}[^\n]*$'):
        check(types.SimpleNamespace(**settings))
    check(types.SimpleNamespace(**dict(settings, compression='none')))


def test_what_is_refused_is_not_simulated(programs):
    run = programs.start([sys.executable, 'Simulation/simulate.py', '--scheme=Ring-AllReduce',
                          '--compression=sign', '--implementation=collective'], cwd=ROOT)
    run.fails('^With these flags the scheme is not simulated: --compression does not go with ')


def test_it_is_simulated_without_feedback(simulate):
    """There the others keep nothing after a push."""
    status, out, err = simulate('--scheme=Ring-AllReduce', '--workers=2', '--train_steps=20',
                                '--tests=1', '--compression=topk:0.1', '--error_feedback=false')
    assert status == 0 and not err and any(' after 20 steps' in line for line in out)


# Real processes.

@pytest.mark.thorough
def test_a_run(programs):
    """Queues and sockets come to the same bits, and no worker has others when the next begins."""
    def trained(implementation):
        directory = programs.directory / implementation
        run = programs.run_sh(
            'Ring-AllReduce', f'--implementation={implementation}', '--compression=bf16',
            '--train_steps=20', f'--model_dir={directory}', WORKERS=4)
        run.ends_well()
        assert run.matches('worker 0: --compression=bf16 saves nothing with 4 workers: .*')
        reader = tf.train.load_checkpoint(str(directory))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    queues, sockets = trained('ring'), trained('sockets')
    assert len(queues) == 5 and queues['global_step'] == 20  # no residuals
    for name, value in queues.items():
        assert value.tobytes() == sockets[name].tobytes(), name


def test_a_run_that_is_refused(programs):
    run = programs.run_sh('Ring-AllReduce', '--implementation=collective', '--compression=sign')
    run.fails('^--compression=sign: .* Take another --implementation[.]$')
