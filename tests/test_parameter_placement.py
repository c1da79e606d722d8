"""Parameter-Placement: where each strategy puts what, what that costs, and that all learn the same.

The graphs are made by the functions that worker.py trains with, and run on real servers.
"""

import contextlib
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import model_file
from tfdist.scheme.toy import Problem

from conftest import digits, load_program
from processes import KEEPS, RESUMES, SENDS, TEST

FOLDER = 'Parameter-Placement'
STRATEGIES = ['round_robin', 'greedy', 'partitioned', 'fused']
WORKER = '/job:worker/task:0'
LENGTHS = [8, 1, 8, 1]  # float32 vectors


@pytest.fixture
def program():
    worker = load_program(FOLDER)
    flags.FLAGS([''])
    with flagsaver.flagsaver():
        yield worker


@contextlib.contextmanager
def placing(program, cluster, strategy, container='', worker_device=WORKER):
    """A graph whose ops are placed as worker.py does it."""
    with tf.Graph().as_default() as graph, graph.container(container):
        tf.set_random_seed(1)
        with tf.device(program.device_setter(strategy, cluster.spec, worker_device)):
            yield graph


def tasks(variables):
    """Returns on which ps each variable is."""
    return [tf.DeviceSpec.from_string(variable.device).task for variable in variables]


def loads(variables, num_ps=2):
    """Returns the bytes on each ps."""
    sizes = [v.shape.num_elements() * v.dtype.base_dtype.size for v in variables]
    return [sum(size for size, task in zip(sizes, tasks(variables)) if task == ps)
            for ps in range(num_ps)]


def vectors():
    """Returns initial values: ones, twos, ..."""
    return {f'v{i}': tf.fill([length], i + 1.) for i, length in enumerate(LENGTHS)}


@pytest.mark.parametrize('strategy, where, sizes', [
    ('round_robin', [0, 1, 0, 1], [64, 8]),
    ('greedy', [0, 1, 1, 0], [36, 36]),
    ('partitioned', [0, 1, 0, 1, 0, 1], [36, 36]),  # a vector of one number stays whole
    ('fused', [0, 1], [36, 36]),
])
def test_who_gets_what(program, cluster, strategy, where, sizes):
    with placing(program, cluster, strategy):
        variables = program.Placement(strategy, vectors(), 2).variables
    assert tasks(variables) == where
    assert loads(variables) == sizes
    assert sum(sizes) == 4 * sum(LENGTHS)


def test_greedy_counts_slots_and_keeps_them_with_their_variable(program, cluster):
    setter = program.Greedy(2)
    device = tf.train.replica_device_setter(cluster=cluster.spec, worker_device=WORKER,
                                            ps_strategy=setter)
    with tf.Graph().as_default(), tf.device(device):
        variables = program.Placement('greedy', vectors(), 2).variables
        assert setter.loads == [36, 36]
        optimizer = tf.train.MomentumOptimizer(1., 0.5)
        optimizer.minimize(tf.add_n([tf.reduce_sum(v) for v in variables]), var_list=variables)
        assert setter.loads == [72, 72]
        for variable in variables:
            assert optimizer.get_slot(variable, 'momentum').device == variable.device


def test_tables_are_no_load(program):
    greedy = program.Greedy(2)
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(
            ps_tasks=2, ps_strategy=greedy)):
        table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)
        assert 'ps' in table.resource_handle.device
        assert greedy.loads == [0, 0]


def test_ten_rows_in_three_parts(program, cluster):
    """On two ps, in turn."""
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    with placing(program, cluster, 'round_robin', 'ten rows') as graph:
        placement = program.Placement('partitioned', {'rows': tf.constant(rows)}, 3)
        whole, = placement.whole([v.read_value() for v in placement.variables])
        initialize = tf.global_variables_initializer()
    assert [v.shape.as_list() for v in placement.variables] == [[4, 3], [3, 3], [3, 3]]
    assert tasks(placement.variables) == [0, 1, 0]
    with tf.Session(cluster.servers['worker', 0].target, graph=graph,
                    config=cluster.config(0)) as session:
        session.run(initialize)
        np.testing.assert_array_equal(session.run(whole), rows)


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_workers_agree(program, cluster, strategy):
    maps = []
    for worker in range(2):
        with placing(program, cluster, strategy, worker_device=f'/job:worker/task:{worker}'):
            variables = program.Placement(strategy, vectors(), 2).variables
            maps.append([(v.op.name, v.device) for v in variables])
    assert maps[0] == maps[1]


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_each_step_is_sgd(program, cluster, strategy):
    """Half squares: each value is halved in a step, wherever it lives; a scalar cannot be cut."""
    initial = {'a': tf.TensorShape([5, 2]), 'b': tf.TensorShape([]), 'c': tf.TensorShape([3])}
    flags.FLAGS.learning_rate = 0.5
    with placing(program, cluster, strategy, f'sgd {strategy}') as graph:
        step = tf.train.get_or_create_global_step()
        placement = program.Placement(
            strategy, {name: tf.fill(shape, 8.) for name, shape in initial.items()}, 2)

        def loss_at(values):
            whole = placement.whole(values)
            assert [value.shape for value in whole] == list(initial.values())
            return tf.add_n([tf.reduce_sum(v ** 2) / 2 for v in whole]), tf.constant(0.)

        scheme = program.Scheme(Problem(loss_at, placement.variables), step, flags.FLAGS, 0, 1)
        initialize = tf.global_variables_initializer()
    with tf.Session(cluster.servers['worker', 0].target, graph=graph,
                    config=cluster.config(0)) as session:
        session.run(initialize)
        for expected in 4, 2, 1:
            session.run(scheme.train_op)
            numbers = np.concatenate([np.ravel(v) for v in session.run(scheme.pull[1:])])
            assert numbers.tolist() == [expected] * 14


def run_network(program, cluster, strategy, network, traced=0):
    """Trains a network of the folder; returns the losses, the variables, and the traces."""
    flags.FLAGS.strategy, flags.FLAGS.network = strategy, network
    with placing(program, cluster, strategy, f'{network} {strategy} {traced}') as graph:
        step = tf.train.get_or_create_global_step()
        batches = [tuple(tf.constant(array[:32]) for array in arrays)
                   for arrays in [digits()[:2]]]
        network = program.Placed(batches, 0, cluster.spec, WORKER)
        scheme = program.Scheme(network, step, flags.FLAGS, 0, 1)
        variables = tf.global_variables()
        initialize = tf.global_variables_initializer()
    with tf.Session(cluster.servers['worker', 0].target, graph=graph,
                    config=cluster.config(0)) as session:
        session.run(initialize)
        traces = [tf.RunMetadata() for _ in range(traced)]
        for trace in traces:
            session.run(scheme.train_op, options=program.traffic.TRACE, run_metadata=trace)
        losses = [session.run(scheme.train_op)['loss'] for _ in range(5 - traced)]
    return losses, variables, traces


def test_strategies_learn_the_same(program, cluster):
    """From the same seed: they begin at the same values."""
    losses = {strategy: run_network(program, cluster, strategy, 'uneven')[0]
              for strategy in STRATEGIES}
    assert losses['greedy'][-1] < losses['greedy'][0]
    for strategy in STRATEGIES:
        np.testing.assert_allclose(losses[strategy], losses['greedy'], rtol=1e-5)


@pytest.mark.parametrize('strategy, tensors', [
    pytest.param('greedy', 100, marks=pytest.mark.thorough), ('fused', 2)])
def test_tensors_that_travel(program, cluster, strategy, tensors):
    """The deep network: all its bytes go there and back; fused, in one tensor for each ps."""
    _, variables, traces = run_network(program, cluster, strategy, 'deep', traced=5)
    center = [v for v in variables if v.op.name != 'global_step']
    assert len(center) == tensors
    sent = program.traffic.between_tasks(traces)
    for ps, load in enumerate(loads(center)):
        here = tasks(center).count(ps)
        counted = [0, 16][ps == 0]  # of the global step: two int64 in one tensor
        assert sent[f'ps {ps}', 'worker 0'] == (load + counted, here + bool(counted))
        assert sent['worker 0', f'ps {ps}'] == (load, here)
    assert not any('ps' in one and 'ps' in other for one, other in sent)


def test_greedy_takes_load_off_the_hottest_ps(program, cluster):
    hottest = {}
    for strategy in 'round_robin', 'greedy':
        _, variables, _ = run_network(program, cluster, strategy, 'uneven', traced=1)
        assert sum(loads(variables)) == 88240
        hottest[strategy] = max(loads(variables))
    assert hottest['greedy'] <= 0.6 * hottest['round_robin']


def test_what_is_not_trained_stays_as_the_network_made_it(program, cluster):
    flags.FLAGS.strategy = 'round_robin'
    with placing(program, cluster, 'round_robin', 'state'), pytest.MonkeyPatch.context() as patch:
        def loss_and_metrics(batch, training):
            del training
            mean = tf.get_variable('mean', [3], trainable=False)
            return tf.reduce_sum((tf.get_variable('weights', [3]) + mean) * batch), {}

        patch.setattr(program, 'model', model_file.Model(types.SimpleNamespace(
            __name__='toy', loss_and_metrics=loss_and_metrics, test_set=None,
            train_batches=lambda *_: [tf.ones([3])])))
        network = program.Placed([tf.ones([3])], 0, cluster.spec, WORKER)
        assert [v.op.name for v in network.variables] == ['weights']
        assert [v.op.name for v in tf.global_variables()] == ['network/mean', 'weights']
        assert tf.trainable_variables() == network.variables
        assert '/job:ps' in network.variables[0].device


def test_several_dtypes_cannot_be_fused(program, cluster):
    values = {'a': tf.ones([2]), 'b': tf.ones([2], tf.float64)}
    with pytest.raises(SystemExit, match=r'^--strategy=fused: .*\(float32, float64\).*another'):
        program.Placement('fused', values, 2)


@pytest.mark.thorough
def test_the_run_says_so_and_others_go_on_with_its_checkpoint(programs, tmp_path):
    model_dir = f'--model_dir={tmp_path / "model"}'
    first = programs.run_sh(FOLDER, '--strategy=partitioned', '--train_steps=300', model_dir)
    first.ends_well()
    kept = [int(match['bytes'].replace(',', '')) for match in first.matches(KEEPS)]
    assert kept == [19228, 19220]
    sends = [int(match['bytes'].replace(',', '')) for match in first.matches(SENDS)]
    assert sends == [19220 + 16, 19220]  # the count of the step, and no step itself
    other = programs.run_sh(FOLDER, '--strategy=greedy', '--train_steps=400', model_dir, PS=3)
    other.ends_well()
    assert int(other.wait_for(RESUMES)['step']) >= 300
    fused = programs.run_sh(FOLDER, '--strategy=fused', '--train_steps=500', model_dir)
    fused.fails('is of another model')
    assert not fused.matches(TEST) and not fused.left()
