"""In-Graph-Replication: one step of all replicas is one step on all their batches; and who dies.

The ops are those that train.py trains with, on real servers.
"""

import threading
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building
from tfdist.scheme.toy import Problem

from conftest import digits, load_program
from processes import BEGINS, DID, RESUMES, STEP, Tasks, TEST

FOLDER = 'In-Graph-Replication'


@pytest.fixture
def program():
    train = load_program(FOLDER, 'train')
    flags.FLAGS([''])
    with flagsaver.flagsaver():
        yield train


class Replicas:
    """The replicas of one graph, driven by hand."""

    def __init__(self, program, cluster, container, mode, networks, start, num_ps=1):
        """`networks` and `start` are functions: they make ops in the graph.

        The first returns the networks, one for each team, and how many replicas there are.
        """
        spec = tf.train.ClusterSpec({'ps': cluster.spec.as_dict()['ps'][:num_ps],
                                     'worker': cluster.spec.as_dict()['worker']})
        with tf.Graph().as_default() as graph, graph.container(container), tf.device(
                tf.train.replica_device_setter(cluster=spec, worker_device='/job:worker/task:3')):
            tf.set_random_seed(1)
            self.global_step = tf.train.get_or_create_global_step()
            start()
            made, replicas = networks(tf.trainable_variables())
            self.variables = tf.trainable_variables()
            devices = [f'/job:worker/task:{i}' for i in range(replicas)]
            self.scheme = program.Scheme(made, devices, self.global_step,
                                         types.SimpleNamespace(mode=mode, learning_rate=0.5))
            assert tf.trainable_variables() == self.variables
            initialize = tf.global_variables_initializer()
        self.session = tf.Session(cluster.servers['worker', 0].target, graph=graph)
        self.session.run(initialize)

    def step(self, replica=0):
        """Runs a train op; returns its result."""
        return self.session.run(self.scheme.train_ops[replica])

    def push(self, replica, pulled):
        """Runs a train op on what was read earlier; returns its result."""
        return self.session.run(self.scheme.train_ops[replica],
                                dict(zip(self.scheme.pulls[replica], pulled)))

    def values(self):
        return [value.tolist() for value in self.session.run(self.variables)]


@pytest.fixture
def replicas(program, cluster, request):
    """A function that makes replicas on the toy problem: the gradient of replica i is x - ms[i]."""
    made = []

    def make(mode, ms, start=(8.,), num_ps=1, networks=None):
        def start_at():
            for i, value in enumerate(start):
                tf.get_variable(f'x{i}', initializer=tf.constant(value, tf.float32))

        def toys(variables):
            def of_team(team):
                fresh = iter(team)

                def loss_at(values):
                    m = next(fresh)
                    return (sum(tf.reduce_sum(tf.square(value - m)) / 2 for value in values),
                            tf.constant(0.))
                return Problem(loss_at, variables)

            teams = [ms] if mode == 'sync' else [[m] for m in ms]
            return list(map(of_team, teams)), len(ms)

        made.append(Replicas(program, cluster, f'{request.node.name} {len(made)}', mode,
                             networks or toys, start if callable(start) else start_at, num_ps))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def test_sync_takes_the_mean_of_the_gradients(replicas):
    """Of 8 and 4 it is 6: one step, by 3."""
    both = replicas('sync', ms=[0, 4])
    assert len(both.scheme.train_ops) == 1
    result = both.step()
    assert both.values() == [5] and result['global_step'] == 1
    assert result['loss'] == (8 ** 2 / 2 + 4 ** 2 / 2) / 2
    assert 'staleness' not in result


def test_sync_on_the_same_batch_is_one_replica(replicas):
    alone, three = replicas('sync', ms=[0]), replicas('sync', ms=[0, 0, 0])
    for expected in 4, 2, 1:
        assert alone.step()['global_step'] == three.step()['global_step']
        assert alone.values() == three.values() == [expected]


def test_sync_on_halves_is_one_step_on_the_whole(program, replicas):
    """With the network of model.py; also a mean of means is one only for halves of one size."""
    images, labels = [array[:64] for array in digits()[:2]]

    def on(*parts):
        def networks(_):
            network = building.Network(program.model, [(tf.constant(images), tf.constant(labels))])
            return [network.again([(tf.constant(images[part]), tf.constant(labels[part]))
                                   for part in parts])], len(parts)
        return networks

    whole = replicas('sync', None, [], networks=on(slice(0, 64)))
    halves = replicas('sync', None, [], networks=on(slice(0, 32), slice(32, 64)))
    for _ in range(5):
        assert halves.step()['loss'] == pytest.approx(whole.step()['loss'], rel=1e-5)
    for half, one in zip(halves.values(), whole.values()):
        np.testing.assert_allclose(half, one, atol=1e-6)


def test_variables_of_different_shapes_on_two_ps(replicas):
    both = replicas('sync', ms=[0, 0], start=[8., [[4., 2.]], [1., 1., 1.]], num_ps=2)
    both.step()
    assert both.values() == [4, [[2, 1]], [0.5] * 3]
    assert [v.device for v in both.variables] == [
        '/job:ps/task:1', '/job:ps/task:0', '/job:ps/task:1']  # the global step is on ps 0


def test_async_replicas_do_not_wait(replicas):
    """Both read 8, then both write: as HogWild."""
    both = replicas('async', ms=[0, 0])
    assert len(both.scheme.train_ops) == 2
    pulled = [both.session.run(pull) for pull in both.scheme.pulls]
    results = [both.push(i, pulled[i]) for i in range(2)]
    assert both.values() == [0]
    assert [result['staleness'] for result in results] == [0, 1]
    assert [result['global_step'] for result in results] == [1, 2]


def test_async_replicas_in_threads_of_one_session(replicas):
    both = replicas('async', ms=[0, 0])
    results = [[], []]

    def drive(i):
        run = both.session.make_callable(both.scheme.train_ops[i])
        for _ in range(100):
            results[i].append(run())

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    steps = sorted(int(result['global_step']) for result in results[0] + results[1])
    assert steps == list(range(1, 201))


@pytest.mark.parametrize('mode', ['sync', 'async'])
def test_placement(replicas, mode):
    """Each replica computes on its worker, and nothing else does; the update is on the ps."""
    made = replicas(mode, ms=[0, 0, 0], start=[[8., 4.]])
    for train_op, team in zip(made.scheme.train_ops, [[0, 1, 2]] if mode == 'sync' else [[0], [1]]):
        metadata = tf.RunMetadata()
        made.session.run(train_op, run_metadata=metadata,
                         options=tf.RunOptions(output_partition_graphs=True))
        where = {}
        for partition in metadata.partition_graphs:
            for node in partition.node:
                device = tf.DeviceSpec.from_string(node.device)
                where.setdefault(node.op, []).append((device.job, device.task))
        assert sorted(where['Square']) == [('worker', i) for i in team]
        for op in ('VarHandleOp', 'ReadVariableOp', 'ResourceApplyGradientDescent',
                   'ResourceCountUpTo'):
            assert {job for job, _ in where[op]} == {'ps'}
        if mode == 'sync':
            assert ('ps', 0) in where['AddN'], 'the mean of the gradients'


@pytest.mark.thorough
def test_async_run(programs):
    run = programs.run_sh(FOLDER, '--mode=async', '--train_steps=1000', WORKERS=3, PS=2)
    run.ends_well()
    did, = run.matches(DID)
    assert 1000 <= int(did['local_steps']) <= 1002 and 'staleness' in did.group()
    assert float(run.wait_for(TEST)['accuracy']) > 0.9


def start(programs, *flags):
    tasks = Tasks(programs, 1, 2, FOLDER, flags=['--log_every_n_steps=50', *flags])
    servers = {(job, i): tasks.start(job, i) for job, i in
               [('ps', 0), ('worker', 0), ('worker', 1)]}
    chief = tasks.start('chief', 0)
    chief.wait_for(STEP)
    return tasks, servers, chief


def step_on(ps):
    """Returns the global step, as it is on a ps: asked from outside the cluster."""
    with tf.Graph().as_default(), tf.device('/job:ps/task:0'):
        step = tf.train.get_or_create_global_step().read_value()
        config = tf.ConfigProto(device_filters=['/job:ps/task:0'])
        with tf.Session(f'grpc://{ps}', config=config) as session:
            return int(session.run(step))


@pytest.mark.thorough
def test_all_training_ends_with_the_chief_and_its_successor_goes_on(programs):
    """The workers know no graph; what was learnt is on the ps."""
    tasks, servers, chief = start(programs, '--train_steps=3000')
    chief.kill()
    before = max(int(match['step']) for match in chief.matches(STEP))
    assert all(server.running for server in servers.values())
    # Counted up to now; a step that was under way may still end.
    stands = step_on(tasks.cluster['ps'][0])
    assert before <= stands < 3000
    assert step_on(tasks.cluster['ps'][0]) <= stands + 1
    again = tasks.start_by_flags('chief', 0)
    assert before <= int(again.wait_for(BEGINS)['step']) <= stands + 1
    for task in [again, *servers.values()]:
        task.ends_well()
    assert again.matches(TEST) and not again.matches(RESUMES)


@pytest.mark.parametrize('mode', ['sync', pytest.param('async', marks=pytest.mark.thorough)])
def test_a_worker_is_killed_and_comes_back(programs, mode):
    """All replicas wait for it, in both modes: it is one session."""
    tasks, servers, chief = start(programs, '--train_steps=600', f'--mode={mode}')
    servers['worker', 1].kill()
    before = len(chief.matches(STEP))
    servers['worker', 1] = tasks.start('worker', 1)
    chief.wait_for(STEP, before + 2)
    for task in [chief, *servers.values()]:
        task.ends_well()
    steps = [int(match['step']) for match in chief.matches(STEP)]
    assert steps == sorted(steps), 'the parameters were alive'
