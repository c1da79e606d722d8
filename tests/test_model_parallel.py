"""Model-Parallel: the losses of one device, each part where it belongs, and nothing else travels.

The graphs are made by the functions that train.py trains with, and run on real servers.
"""

import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import digits, load_program
from processes import (BEGINS, checkpoints, KEEPS, RESUMES, SENDS, STEP, Tasks, TEST,
                       wait_until)

FOLDER = 'Model-Parallel'
CHIEF = '/job:worker/task:3'  # a stand-in: the fixture's cluster has none


@pytest.fixture
def program():
    train = load_program(FOLDER, 'train')
    flags.FLAGS([''])
    with flagsaver.flagsaver():
        yield train


class Network:
    """The network of train.py, split as told, on digits, in a session."""

    def __init__(self, program, cluster, split, num_workers=2, sizes=(128, 100, 64, 10), batch=32):
        hparams = types.SimpleNamespace(split=split, learning_rate=0.02, momentum=0.9)
        name = f'{split} {num_workers} {sizes} {batch}'
        with tf.Graph().as_default() as graph, graph.container(name):
            tf.set_random_seed(1)
            with tf.device(program.worker_device(0)):
                global_step = tf.train.get_or_create_global_step()
            with tf.device(CHIEF):
                images, labels = [tf.constant(a) for a in digits()[:2]]
                start = tf.cast(global_step * batch % 1000, tf.int32)
                images = tf.slice(images, [start, 0], [batch, 64])
                labels = tf.slice(labels, [start], [batch])
            loss, metrics = program.loss_and_metrics((images, labels), hparams, list(sizes),
                                                     num_workers)
            self.variables = tf.trainable_variables()
            self.scheme = program.Scheme(loss, metrics, self.variables, global_step, hparams)
            initialize = tf.global_variables_initializer()
        self.session = tf.Session(cluster.servers['worker', int(CHIEF[-1])].target, graph=graph)
        self.session.run(initialize)
        self._traffic = program.traffic

    def losses(self, steps):
        return [self.session.run(self.scheme.train_op)['loss'] for _ in range(steps)]

    def sent(self):
        """Returns what workers 0, 1 and 2 send each other in a step."""
        traces = [tf.RunMetadata() for _ in range(5)]
        for trace in traces:
            self.session.run(self.scheme.train_op, options=self._traffic.TRACE, run_metadata=trace)
        return {(int(one[-1]), int(other[-1])): sent
                for (one, other), sent in self._traffic.between_tasks(traces).items()
                if CHIEF[-1] not in (one[-1], other[-1])}

    def operations(self):
        """Returns the types of the ops that a step runs, lists by worker."""
        metadata = tf.RunMetadata()
        self.session.run(self.scheme.train_op, run_metadata=metadata,
                         options=tf.RunOptions(output_partition_graphs=True))
        found = {}
        for partition in metadata.partition_graphs:
            for node in partition.node:
                task = tf.DeviceSpec.from_string(node.device).task
                found.setdefault(task, []).append(node.op)
        return found


@pytest.fixture
def network(program, cluster):
    made = []

    def make(*args, **kwargs):
        made.append(Network(program, cluster, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


@pytest.mark.parametrize('split, num_workers', [('layers', 2), ('layers', 3), ('columns', 2),
                                                ('columns', 3)])
def test_losses_are_those_of_one_device(network, split, num_workers):
    alone = network('none').losses(15)
    assert alone[-1] < alone[0]
    np.testing.assert_allclose(network(split, num_workers).losses(15), alone, rtol=1e-5)


@pytest.mark.parametrize('split, where', [
    ('layers', [0, 0, 0, 0, 1, 1, 1, 1]),
    ('columns', [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]),  # the first layer is in two parts
])
def test_each_part_is_where_it_belongs(network, split, where):
    made = network(split)
    devices = [f'/job:worker/task:{task}' for task in where]
    assert [v.device for v in made.variables] == devices
    assert [g.device for g in made.scheme.gradients] == devices
    slots = [made.scheme.optimizers[v.device].get_slot(v, 'momentum') for v in made.variables]
    assert [slot.device for slot in slots] == devices


@pytest.mark.parametrize('split, products', [
    # For each layer: forward, and the gradients of its weights and, past the first, of its input.
    ('layers', {0: 2 + 3, 1: 3 + 3}),
    ('columns', {0: 2 + 3 + 3 + 3, 1: 2}),
    ('none', {0: 2 + 3 + 3 + 3}),
])
def test_who_computes(network, split, products):
    operations = network(split).operations()
    counts = {task: sum(op.endswith('MatMul') for op in ops)  # some are fused with their biases
              for task, ops in operations.items()}
    assert {task: count for task, count in counts.items() if count} == products
    updates = {task: ops.count('ResourceApplyMomentum') for task, ops in operations.items()}
    variables = {'layers': {0: 4, 1: 4}, 'columns': {0: 8, 1: 2}, 'none': {0: 8}}[split]
    assert {task: count for task, count in updates.items() if count} == variables


@pytest.mark.parametrize('sizes', [(128, 100, 64, 10), (300, 100, 64, 10), (128, 100, 333, 10)])
def test_bytes_between_layers_are_those_of_the_boundary(network, sizes):
    """2 * 32 * 100 * 4, whatever the size of the others."""
    assert network('layers', sizes=sizes).sent() == {(0, 1): (12800, 1), (1, 0): (12800, 1)}


def test_bytes_follow_the_boundary_and_the_batch(network):
    one_way = 16 * 40 * 4
    assert network('layers', sizes=(128, 40, 64, 10), batch=16).sent() == {
        (0, 1): (one_way, 1), (1, 0): (one_way, 1)}
    assert network('layers', 3, sizes=(64, 40, 10), batch=16).sent() == {
        (0, 1): (16 * 64 * 4, 1), (1, 0): (16 * 64 * 4, 1),
        (1, 2): (one_way, 1), (2, 1): (one_way, 1)}


def test_bytes_between_columns_are_those_of_the_other_workers_columns(network):
    assert network('columns').sent() == {(0, 1): (32 * 64 * 4, 1), (1, 0): (32 * 64 * 4, 1)}
    assert network('columns', sizes=(101, 30, 10)).sent() == {
        (0, 1): (32 * 51 * 4, 1), (1, 0): (32 * 51 * 4, 1)}


@pytest.mark.parametrize('sizes', ['', '0', '128,', '128,many', '128,-1', '1.5'])
def test_sizes_that_are_none(program, sizes):
    flags.FLAGS['hidden_units'].parse(sizes)
    with pytest.raises(SystemExit, match=f'^--hidden_units={sizes} is not of the form'):
        program.layer_sizes()


def test_more_workers_than_columns(network):
    """Those without a part do not take part."""
    assert len(network('layers', 3, sizes=(20, 10)).variables) == 4


def test_what_is_not_trained(program):
    """A trainable variable that the loss does not depend on."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        used, unused = [tf.get_variable(name, []) for name in ('used', 'unused')]
        with pytest.raises(SystemExit, match='^The loss does not .* trainable unused, ') as error:
            program.Scheme(tf.square(used), {}, [used, unused], step, flags.FLAGS)
    assert '\n' not in str(error.value)


def test_another_model_is_not_split_by_itself(programs):
    run = programs.run_sh(FOLDER, '--model=resnet')
    run.fails('^--model=resnet: a network has to be split by hand')
    assert not run.left() and not run.matches(TEST)


def test_the_run_says_so(programs):
    run = programs.run_sh(FOLDER, '--split=columns', '--train_steps=300', WORKERS=3)
    run.ends_well()
    assert [match['task'] for match in run.matches(KEEPS)] == [f'worker {i}' for i in range(3)]
    assert [int(match['bytes'].replace(',', '')) for match in run.matches(SENDS)] == [
        32 * 43 * 4, 32 * 43 * 4, 32 * 43 * 4, 32 * 43 * 4]


@pytest.mark.thorough
def test_a_worker_is_killed_and_comes_back(programs):
    """Its part of the network is lost: all go on from the last checkpoint."""
    model_dir = programs.directory / 'model'
    tasks = Tasks(programs, 0, 2, FOLDER, flags=[
        '--train_steps=6000', '--log_every_n_steps=100', f'--model_dir={model_dir}',
        '--save_checkpoint_secs=1'])
    workers = [tasks.start('worker', i) for i in range(2)]
    chief = tasks.start_by_flags('chief', 0)
    wait_until(lambda: len(checkpoints(model_dir)) >= 2 or not chief.running, chief)
    workers[1].kill()
    saved = checkpoints(model_dir)[-1]
    workers[1] = tasks.start('worker', 1)
    resumed = int(chief.wait_for(RESUMES)['step'])
    assert resumed >= saved > 0
    for task in [chief] + workers:
        task.ends_well()
    assert float(chief.wait_for(TEST)['accuracy']) > 0.9
    assert int(chief.wait_for(BEGINS)['step']) == 0 and chief.matches(STEP)
