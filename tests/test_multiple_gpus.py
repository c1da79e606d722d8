"""Towers: their numbers, and where their ops are, from the code that the folder trains with."""

import functools
import io
import re
import tarfile
import sys
import threading
import time
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches as pipelines
from tfdist.model import building, model_file
from tfdist.scheme import graphs
from tfdist.start.ports import free_ports
from tfdist.training import evaluation
from tfdist.training.traffic import Work

from conftest import load_program
from processes import DEVICES, DID, RESUMES, STEP, TEST, wait_until

FOLDER = 'Multiple-GPUs-Single-Machine'
FLAGS = flags.FLAGS
# Step size 1/2 as in all worked examples, and no decay.
HPARAMS = types.SimpleNamespace(learning_rate=0.5, decay_rate=1., decay_steps=1, use_locking=True)


@pytest.fixture
def program(request):
    """A program of the folder, its flags at their defaults, and a graph of its own."""
    module = load_program(FOLDER, getattr(request, 'param', 'towers'))
    FLAGS([''])
    with flagsaver.flagsaver(), tf.Graph().as_default():
        yield module


def cpus(count):
    return [f'/device:CPU:{i}' for i in range(count)]


def made_of(loss_and_metrics, **others):
    """Returns the model of a function of a batch, and whether it is of training."""
    functions = dict({'train_batches': None, 'test_batches': None}, **others)
    return model_file.Model(types.SimpleNamespace(
        __name__='made', loss_and_metrics=loss_and_metrics, **functions))


def toy(m, training):
    """The toy problem of half squares: a variable x from 8 on, gradient x - m; m is the batch."""
    del training
    x = tf.get_variable('x', initializer=tf.constant(8.))
    return tf.reduce_mean(tf.square(x.read_value() - m)) / 2, {'accuracy': tf.constant(0.)}


def build_towers(towers, model, batches, devices=None, placement=None, together=True):
    """Returns the global step, and the towers of some batches."""
    with tf.device('/device:CPU:0'):
        global_step = tf.train.get_or_create_global_step()
        network = building.Network(model, batches, tables_stay_on_ps=False)
        networks = [network if together else network.again([batch]) for batch in batches]
        return global_step, towers.build_towers(networks, devices or cpus(len(batches)),
                                                placement or towers.local_placement)


def build(towers, model, batches, devices=None, placement=None):
    """Returns the towers of some batches, with a step of all of them."""
    global_step, made = build_towers(towers, model, batches, devices, placement)
    with tf.device('/device:CPU:0'):
        return made, towers.make_step(made, global_step, HPARAMS)


def local_session(count=2):
    """Returns a session with `count` virtual CPU devices, initialized."""
    session = tf.Session(config=tf.ConfigProto(device_count={'CPU': count}))
    session.run(tf.global_variables_initializer())
    session.run(tf.tables_initializer())  # these are the batches' iterators: at the global step
    return session


# What a step of all towers does.

@pytest.mark.parametrize('batches, x', [
    ([[0.], [4.]], 5),        # gradients 8 and 4, mean 6
    ([[0., 4.]], 5),          # one tower on the union
    ([[0., 4.]] * 2, 5),      # the same batch twice
    ([[0.], [0.]], 4),
    ([[0.], [4.], [8.]], 6),  # gradients 8, 4, 0
])
def test_mean_of_towers(program, batches, x):
    _, step = build(program, made_of(toy), [tf.constant(m) for m in batches])
    with local_session(len(batches)) as session:
        assert session.run(step)['global_step'] == 1, 'one step, by all together'
        assert session.run(tf.trainable_variables()) == [x]


def digits(program, count, batch_size):
    """Returns `count` batches of the digits: fixed tensors."""
    arrays = [pipelines.cast(array) for array in program.model.load()[:2]]
    return [tuple(tf.constant(array[i * batch_size:(i + 1) * batch_size]) for array in arrays)
            for i in range(count)]


def trained(program, batches, steps=3):
    """Returns the variables after some steps of the real network, from the same start."""
    with tf.Graph().as_default():
        _, step = build(program, program.model, batches())
        session = local_session(4)
    with session:
        for variable in tf.trainable_variables():
            random = np.random.RandomState(variable.shape.num_elements())
            variable.load(random.normal(scale=0.1, size=variable.shape.as_list()), session)
        for _ in range(steps):
            session.run(step)
        return session.run(tf.trainable_variables())


def test_towers_on_half_batches_equal_one_on_the_union(program):
    one = trained(program, lambda: digits(program, 1, 64))
    for count in 2, 4:
        several = trained(program, lambda count=count: digits(program, count, 64 // count))
        assert len(several) == len(one) == 8
        for a, b in zip(one, several):
            assert np.abs(a - b).max() < 1e-6


def test_towers_on_the_same_batch_equal_one(program):
    one = trained(program, lambda: digits(program, 1, 32), steps=1)
    two = trained(program, lambda: digits(program, 1, 32) * 2, steps=1)
    for a, b in zip(one, two):
        assert np.abs(a - b).max() < 1e-7


@pytest.mark.parametrize('count', [1, 2, 3])
def test_variables_are_shared(program, count):
    towers, _ = build(program, program.model, digits(program, count, 4))
    assert len(towers) == count
    assert len(tf.trainable_variables()) == 8, 'independent of the number of towers'
    assert len(tf.global_variables()) == 9


def test_weight_decay_counts_once(program):
    """Loss x^2/2 and as much again: gradient 16, also with three towers."""
    def decaying(m, training):
        del training
        x = tf.get_variable('x', initializer=tf.constant(8.))
        tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.square(x) / 2)
        return tf.reduce_mean(tf.square(x - m)) / 2, {}

    towers, _ = build(program, made_of(decaying), [tf.constant([0.])] * 3)
    with local_session(3) as session:
        assert session.run([tower.gradients for tower in towers]) == [[16]] * 3
        assert session.run([tower.figures['loss'] for tower in towers]) == [64] * 3


def test_weight_decay_of_the_network(program):
    FLAGS.weight_decay = 0.5

    def loss_and_metrics(batch, training):
        loss, _ = program.model.loss_and_metrics(batch, training)
        return loss, {'cross_entropy': loss}

    towers, _ = build(program, made_of(loss_and_metrics), digits(program, 2, 4))
    with local_session() as session:
        figures, weights = session.run([
            [tower.figures for tower in towers],
            [v for v in tf.trainable_variables() if 'weights' in v.name]])
    assert len(weights) == 4
    decay = 0.5 * sum(np.square(w).sum() / 2 for w in weights)
    assert [each['loss'] for each in figures] == pytest.approx(
        [each['cross_entropy'] + decay for each in figures], rel=1e-5)


def test_gradients_that_are_sparse(program):
    """A table of which each tower touches a row: what is averaged is dense."""
    def loss_and_metrics(row, training):
        del training
        return tf.reduce_sum(tf.gather(tf.get_variable('table', initializer=tf.ones([3, 2])),
                                       row)), {}

    towers, step = build(program, made_of(loss_and_metrics), [tf.constant([0]), tf.constant([2])])
    assert all(isinstance(tower.gradients[0], tf.Tensor) for tower in towers)
    with local_session() as session:
        session.run(step)
        table, = session.run(tf.trainable_variables())
    assert table.tolist() == [[0.75] * 2, [1] * 2, [0.75] * 2]


def test_gradients_that_are_not_there(program):
    def loss_and_metrics(m, training):
        tf.get_variable('unused', initializer=tf.constant(7.))
        return toy(m, training)

    with pytest.raises(SystemExit, match='^The loss does not .*unused') as error:
        build(program, made_of(loss_and_metrics), [tf.constant([0.])] * 2)
    assert '\n' not in str(error.value)


def test_all_towers_are_at_the_same_x(program):
    """The gradient of each of two variables is the other: neither is written before it is read."""
    def product(batch, training):
        del batch, training
        x, y = [tf.get_variable(name, initializer=tf.fill([1000], value))
                for name, value in (('x', 8.), ('y', 4.))]
        return tf.reduce_sum(x * y), {}

    towers, step = build(program, made_of(product), [tf.zeros([])] * 2)
    for variable, *reads in zip(tf.trainable_variables(), *[tower.values for tower in towers]):
        update, = [op for op in variable.handle.consumers() if 'ResourceApply' in op.type]
        assert {read.op for read in reads} <= graphs.ancestors([update])
    with local_session() as session:
        session.run(step)
        x, y = session.run(tf.trainable_variables())
    assert set(x) == {8 - 4 / 2} and set(y) == {4 - 8 / 2}


def test_the_optimizer_is_that_of_the_model(program):
    """Momentum: from 8 by half of 8, then by half of 8 / 2 + 4."""
    model = made_of(toy, optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.5))
    _, step = build(program, model, [tf.zeros([1])] * 2)
    with local_session() as session:
        xs = []
        for _ in range(2):
            session.run(step)
            xs += session.run(tf.trainable_variables())
    assert xs == [4, 0]


# What a model keeps besides its parameters.

def normalizing(batch, training):
    """Batch norm: its moving average goes half the way to the mean of each batch."""
    units = tf.layers.batch_normalization(batch, momentum=0.5, training=training)
    weight = tf.get_variable('weight', initializer=tf.constant(1.))
    return tf.reduce_mean(tf.square(weight * units - 1)), {'normalized': tf.reduce_mean(units)}


def averages():
    """Returns the moving averages of the mean and the variance, as they are."""
    return [v for v in tf.global_variables() if 'moving' in v.name]


def normalized(of_test):
    """Returns a model with batch norm, which is tested on these values."""
    return made_of(normalizing, test_batches=lambda batch_size: (
        tf.data.Dataset.from_tensor_slices(tf.constant(of_test)).batch(batch_size)))


BATCHES = [[[4.], [4.]], [[8.], [8.]]]  # the average comes from 0 to 2, and from there to 5
OF_TEST = [[5.], [5.], [9.]]


def check_the_test(session, test):
    """Checks that it normalizes by the moving averages, which have come to 5 and 1/4."""
    gamma, beta = session.run([v for v in tf.trainable_variables() if 'norm' in v.name])
    expected = gamma * (np.mean(OF_TEST) - 5) / (0.25 + 1e-3) ** 0.5 + beta
    assert test.run(session)['normalized'] == pytest.approx(expected.item(), rel=1e-5)


def test_moving_averages_go_through_the_towers(program):
    model = normalized(OF_TEST)
    towers, step = build(program, model, [tf.constant(batch) for batch in BATCHES])
    test = evaluation.Test(model, towers[0].network.at_variables)
    assert len(tf.global_variables()) == 1 + 3 + 2
    with local_session() as session:
        assert test.run(session)['normalized'] == pytest.approx(np.mean(OF_TEST), rel=1e-3)
        session.run(step)
        assert session.run(averages()) == [5, 0.25]
        check_the_test(session, test)


@pytest.mark.parametrize('program', ['threads'], indirect=True)
def test_moving_averages_in_threads(program):
    """Each tower reads them, and adds what its own batch changes: here one after the other."""
    model = normalized(OF_TEST)
    global_step, towers = build_towers(program.towers, model,
                                       [tf.constant(batch) for batch in BATCHES], together=False)
    steps = program.make_steps(towers, global_step, HPARAMS)
    test = evaluation.Test(model, towers[0].network.at_variables)
    with local_session() as session:
        for step, means in zip(steps, [[2, 0.5], [5, 0.25]]):
            session.run(step)
            assert session.run(averages()) == means
        assert session.run(global_step) == 2
        check_the_test(session, test)


def test_learning_rate_decays(program):
    hparams = types.SimpleNamespace(learning_rate=0.4, decay_rate=0.5, decay_steps=10)
    step = tf.train.get_or_create_global_step()
    rate = program.decayed_learning_rate(hparams, step)
    rates = []
    with tf.Session() as session:
        for value in 0, 5, 10, 20:
            step.load(value, session)
            rates.append(session.run(rate))
    assert rates == pytest.approx([0.4, 0.4 / 2 ** 0.5, 0.2, 0.1])


# Where things are.

def placed(session, fetches):
    """Returns the types of the ops that ran, a set by device, and the names, too."""
    metadata = tf.RunMetadata()
    session.run(fetches, run_metadata=metadata,
                options=tf.RunOptions(output_partition_graphs=True))
    ops = {}
    for partition in metadata.partition_graphs:
        for node in partition.node:
            ops.setdefault(node.device, []).append(node)
    return ops


STATE = {'VarHandleOp', 'ReadVariableOp', 'ResourceApplyGradientDescent', 'AssignAddVariableOp'}
COMPUTING = {'Conv2D', 'Conv2DBackpropFilter', 'MatMul', 'MaxPoolGrad', 'BiasAddGrad'}


def type_of(node):
    """Returns the type of an op, also where the runtime put another one, or one for several."""
    return re.sub('^_(Mkl(Native)?)?(Fused)?|WithBias$', '', node.op)


def types_of(nodes):
    return set(map(type_of, nodes))


def test_placement_on_one_machine(program):
    """Each tower's forward and backward ops on its device, the variables on the CPU."""
    _, step = build(program, program.model, digits(program, 3, 4), cpus(4)[1:])
    with local_session(4) as session:
        ops = placed(session, step)
    local = '/job:localhost/replica:0/task:0'
    at_variables = ops.pop(local + '/device:CPU:0')
    assert STATE <= types_of(at_variables) and not COMPUTING & types_of(at_variables)
    assert sorted(ops) == [local + device for device in cpus(4)[1:]]
    for k, device in enumerate(sorted(ops)):
        assert COMPUTING <= types_of(ops[device]) and not STATE & types_of(ops[device])
        assert all(node.name.startswith(f'tower_{k}/') for node in ops[device]
                   if type_of(node) in COMPUTING)


def test_placement_on_gpus(program):
    """What is asked for; there may be no GPU here to place it on."""
    _, step = build(program, program.model, digits(program, 2, 4),
                    ['/device:GPU:0', '/device:GPU:1'])
    for variable in tf.global_variables():
        assert variable.device == '/device:CPU:0'
    ops = graphs.ancestors(step.values())
    assert STATE | COMPUTING <= {op.type for op in ops}
    for op in ops:
        if op.type in COMPUTING:
            assert op.device == f'/device:GPU:{op.name[len("tower_")]}', op.name
        if op.type in STATE:
            assert op.device == '/device:CPU:0', op.name


@pytest.mark.parametrize('program', ['worker'], indirect=True)
def test_placement_in_a_cluster(program):
    """Variables on the ps in turn, towers on the worker's devices."""
    hosts = [f'localhost:{port}' for port in free_ports(3)]
    spec = tf.train.ClusterSpec({'ps': hosts[:2], 'worker': hosts[2:]})
    config = tf.ConfigProto(device_count={'CPU': 2})
    servers = [tf.train.Server(spec, job, i, config=config)
               for job, i in (('ps', 0), ('ps', 1), ('worker', 0))]
    place = program.placement(spec, '/job:worker/task:0')
    global_step, towers, _ = program.towers.build(cpus(2), place)
    with tf.device(place('/device:CPU:0')):
        step = program.towers.make_step(towers, global_step, HPARAMS)
    with tf.Session(servers[-1].target) as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())
        ops = placed(session, step)
    worker = '/job:worker/replica:0/task:0'
    for i in range(2):
        on_ps = ops.pop(f'/job:ps/replica:0/task:{i}/device:CPU:0')
        assert STATE - {'AssignAddVariableOp'} <= types_of(on_ps)
        assert not COMPUTING & types_of(on_ps)
    assert sorted(ops) == [worker + device for device in cpus(2)]
    for k, device in enumerate(sorted(ops)):
        assert COMPUTING <= types_of(ops[device]) and not STATE & types_of(ops[device])
        assert all(node.name.startswith(f'tower_{k}/') for node in ops[device]
                   if type_of(node) in COMPUTING)


@pytest.mark.parametrize('gpus, asked, devices', [
    (0, None, ['CPU:0', 'CPU:1']), (0, 1, ['CPU:0']), (0, 3, ['CPU:0', 'CPU:1', 'CPU:2']),
    (1, None, ['GPU:0']), (4, None, ['GPU:0', 'GPU:1', 'GPU:2', 'GPU:3']),
    (4, 2, ['GPU:0', 'GPU:1']),
])
def test_devices(program, monkeypatch, gpus, asked, devices):
    monkeypatch.setattr(tf.config.experimental, 'list_physical_devices', lambda _: [None] * gpus)
    found, options, words = program.find_devices(asked)
    assert found == [f'/device:{device}' for device in devices]
    assert ('there is no GPU' in words) == (gpus == 0)
    config = tf.ConfigProto(**options)
    assert config.device_count.get('CPU', 0) == (0 if gpus else len(devices))
    assert config.allow_soft_placement == config.gpu_options.allow_growth == bool(gpus)


def test_more_gpus_than_there_are(program, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, 'list_physical_devices', lambda _: [None] * 2)
    with pytest.raises(SystemExit, match='^--num_gpus=3, but this process sees 2') as error:
        program.find_devices(3)
    assert '\n' not in str(error.value)


# The input and the summaries.

def test_each_tower_reads_a_shard_of_its_own(program):
    """Four towers: disjoint and complete."""
    arrays = [pipelines.cast(array) for array in program.model.load()]
    position_of = {image.tobytes(): i for i, image in enumerate(arrays[0])}
    batches = [program.model.train_batches(375, 1, shard, 4, seed=3)[0] for shard in range(4)]
    with local_session() as session:
        epochs = [session.run(batches) for _ in range(2)]
    for epoch in epochs:
        seen = [[position_of[image.tobytes()] for image in images] for images, _ in epoch]
        assert [{position % 4 for position in positions} for positions in seen] == [
            {0}, {1}, {2}, {3}]
        assert sorted(sum(seen, [])) == list(range(1500))
        for images, labels in epoch:
            assert [arrays[1][position_of[image.tobytes()]] for image in images] == labels.tolist()
    assert (epochs[0][0][0] != epochs[1][0][0]).any(), 'another order'


def test_no_two_processes_read_one_shard(program, monkeypatch):
    asked = []

    def train_batches(batch_size, count, shard, num_shards, seed):
        asked.append((count, shard, num_shards))
        return digits(program, 1, 4)

    monkeypatch.setattr(program.model, 'train_batches', train_batches)
    program.build(cpus(2), program.local_placement)
    for task_index in range(3):
        with tf.Graph().as_default():
            program.build(cpus(2), program.local_placement, task_index, num_workers=3)
    assert asked == [(1, 0, 2), (1, 1, 2)] + [(1, shard, 6) for shard in range(6)]


def test_towers_take_different_batches_in_a_step(program):
    """One run of the step takes one batch from each pipeline, not one for all."""
    batches = [program.model.train_batches(4, 1, shard, 2)[0] for shard in range(2)]
    towers, step = build(program, program.model, batches)
    with local_session() as session:
        values = session.run([step, batches, [tower.figures['loss'] for tower in towers]])
    (first, _), (second, _) = values[1]
    assert (first != second).any() and values[2][0] != values[2][1]
    assert values[0]['loss'] == pytest.approx(np.mean(values[2]))


def test_summaries_are_of_the_last_tower_without_its_name(program):
    towers, _ = build(program, program.model, digits(program, 2, 4))
    units = [units for units in towers[-1].network.collected[-1][tf.GraphKeys.ACTIVATIONS]
             if units.op.name.startswith('tower_1/dense')]
    with local_session() as session:
        text, losses, (units,) = session.run(
            [program.summarize(towers), [t.figures['loss'] for t in towers], units])
    values = {value.tag: value for value in tf.Summary.FromString(text).value}
    layers = ['convolution_0', 'convolution_1', 'dense']
    assert sorted(values) == sorted(
        ['total_loss'] + [f'{layer}/Relu/{what}' for layer in layers
                          for what in ('activations', 'sparsity')])
    assert values['total_loss'].simple_value == pytest.approx(losses[1]) != losses[0]
    assert values['dense/Relu/activations'].histo.num == 4 * 64
    assert values['dense/Relu/activations'].histo.sum == pytest.approx(float(units.sum()))
    assert 0 < values['dense/Relu/sparsity'].simple_value < 1


def archive(size=20, names=('data_batch_1', 'data_batch_2', 'test_batch')):
    """Returns a small cifar-10-binary.tar.gz, and the records in it."""
    data, records = io.BytesIO(), {}
    with tarfile.open(fileobj=data, mode='w:gz') as tar:
        for i, name in enumerate(names):
            records[name] = np.random.RandomState(i).randint(256, size=(size, 3073), dtype=np.uint8)
            records[name][:, 0] %= 10
            info = tarfile.TarInfo(f'cifar-10-batches-bin/{name}.bin')
            info.size = records[name].size
            tar.addfile(info, io.BytesIO(records[name].tobytes()))
    return data.getvalue(), records


def test_cifar10(program, tmp_path):
    data, records = archive()
    (tmp_path / 'cifar-10-binary.tar.gz').write_bytes(data)
    FLAGS.dataset, FLAGS.data_dir = 'cifar10', str(tmp_path)
    images, labels, test_images, test_labels = program.model.load()
    assert images.shape == (40, 32, 32, 3) and test_images.shape == (20, 32, 32, 3)
    assert labels[20:].tolist() == records['data_batch_2'][:, 0].tolist()
    assert test_labels.tolist() == records['test_batch'][:, 0].tolist()
    green_of_row_2_column_5 = 1 + 1024 + 2 * 32 + 5
    assert test_images[7, 2, 5, 1] == pytest.approx(
        records['test_batch'][7, green_of_row_2_column_5] / 255)
    assert program.model.load()[0] is images, 'read once for all towers'
    batches = [program.model.train_batches(4, 1, shard, 2)[0] for shard in range(2)]
    _, step = build(program, program.model, batches)
    with local_session() as session:
        assert np.isfinite(session.run(step)['loss'])


def test_the_test_set_is_whole(program):
    """In batches of any size, with a rest."""
    _, _, images, labels = program.model.load()
    with flagsaver.flagsaver(test_batch_size=100):
        _, _, test = program.build(cpus(2), program.local_placement)
        alone = evaluation.Test(program.model, lambda batch: (
            tf.zeros([]), {'label': tf.reduce_mean(tf.cast(batch[1], tf.float32)),
                           'pixel': tf.reduce_mean(batch[0])}))
    with local_session() as session:
        assert set(test.run(session)) == {'accuracy', 'loss'}
        figures = alone.run(session)
    assert figures['label'] == pytest.approx(labels.mean(), rel=1e-5)
    assert figures['pixel'] == pytest.approx(images.mean(), rel=1e-5)


@pytest.mark.parametrize('damage', [lambda whole: whole[:len(whole) // 2], lambda whole: b'',
                                    lambda whole: b'<html>not found</html>',
                                    lambda whole: whole[:900] + bytes(100) + whole[1000:],
                                    lambda whole: archive(names=['data_batch_1'])[0]])
def test_cifar10_is_damaged(program, tmp_path, damage):
    (tmp_path / 'cifar-10-binary.tar.gz').write_bytes(damage(archive()[0]))
    FLAGS.dataset, FLAGS.data_dir = 'cifar10', str(tmp_path)
    with pytest.raises(SystemExit, match='not a whole cifar-10-binary.tar.gz .*Delete') as error:
        program.model.load()
    assert '\n' not in str(error.value)


# Threads.

def falling(batch, training):
    """A gradient of -1 everywhere, for each tower: with step size 1, x counts the updates."""
    del batch, training
    x = tf.get_variable('x', initializer=tf.zeros([10000]))
    return -tf.reduce_sum(x.read_value()), {'accuracy': tf.constant(0.)}


@pytest.mark.parametrize('program', ['threads'], indirect=True)
def test_threads_update_without_coordination_and_lose_nothing(program):
    hparams = types.SimpleNamespace(learning_rate=1., decay_rate=1., decay_steps=1,
                                    use_locking=True)
    global_step, made = build_towers(program.towers, made_of(falling), [tf.zeros([])] * 3,
                                     together=False)
    with tf.device('/device:CPU:0'):
        steps = program.make_steps(made, global_step, hparams)
    counts, coord, together = [0] * 3, tf.train.Coordinator(), threading.Barrier(3)
    with local_session(3) as session:
        calls = [session.make_callable(step) for step in steps]

        def run(i):
            if not counts[i]:
                together.wait(20)  # else one thread may be done before another has begun
            counts[i] += 1
            return calls[i]()

        threads = program.train([functools.partial(run, i) for i in range(3)], lambda _: None, 200,
                                0, coord)
        coord.join(threads)
        x, = session.run(tf.trainable_variables())
        assert 200 <= session.run(global_step) == sum(counts) < 200 + 3
    assert all(counts), 'each thread had a share'
    assert set(x) == {sum(counts)}


@pytest.mark.parametrize('program', ['threads'], indirect=True)
def test_a_thread_that_fails_ends_the_others(program):
    coord, going, deadline = tf.train.Coordinator(), threading.Event(), time.monotonic() + 10

    def fails():
        going.wait(10)
        raise ValueError('broken')

    def works():
        going.set()
        return {'global_step': 1 if time.monotonic() < deadline else 10}

    threads = program.train([fails, works], lambda _: None, 10, 0, coord)
    with pytest.raises(ValueError, match='broken'):
        coord.join(threads, stop_grace_period_secs=10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize('program', ['threads'], indirect=True)
def test_no_thread_trains_past_the_end(program):
    """A run that resumes at its last step."""
    coord, took = tf.train.Coordinator(), []
    coord.join(program.train([lambda: {'global_step': 11}], took.append, 10, 10, coord))
    assert not took


# Who computes when.

timeline = pytest.mark.parametrize('program', ['timeline'], indirect=True)


@timeline
def test_towers_compute_at_the_same_time(program):
    """With two threads, once a busy machine gives them two cores; with one they take turns."""
    towers, deadline = program.towers, time.monotonic() + 60
    global_step, made, _ = towers.build(cpus(2), towers.local_placement)
    with tf.device('/device:CPU:0'):
        step = towers.make_step(made, global_step, HPARAMS)
    options = {'device_count': {'CPU': 2}}
    local = '/job:localhost/replica:0/task:0'
    traces = {threads: program.trace_steps(step, options, threads, 7) for threads in (1, 2)}

    def together():
        return [program.at_once(rows)[2] for rows in traces[2]]

    while sum(map(bool, together())) < 2 and time.monotonic() < deadline:
        traces[2] += program.trace_steps(step, options, 2, 7)
    for rows in traces[1] + traces[2]:
        assert {tower: {work.device for work in works} for tower, works in rows.items()
                if tower.startswith('tower')} == {
                    f'tower_{k}': {local + device} for k, device in enumerate(cpus(2))}
        for k in range(2):  # forward and backward
            names = {work.name for work in rows[f'tower_{k}']}
            assert f'tower_{k}/convolution_0/Relu' in names
            assert any('gradients' in name and 'BackpropFilter' in name for name in names)
    assert sum(map(bool, together())) >= 2, together()
    assert all(program.at_once(rows)[1] > 0 for rows in traces[1])
    assert not any(program.at_once(rows)[2] for rows in traces[1])


@timeline
def test_at_once(program):
    """Operations of one tower that overlap or follow each other count once; others do not count."""
    def works(*times):
        return [Work('', '', begin, end) for begin, end in times]

    rows = {'tower_0': works((0, 3), (2, 4), (4, 5), (8, 9)), 'tower_1': works((8, 12), (1, 2)),
            'tower_2': works((8.5, 8.75)), 'all others': works((0, 100))}
    assert program.at_once(rows) == {1: 4 + 3, 2: 1 + 0.75, 3: 0.25}
    assert program.share_together(rows) == 2 / 9
    assert program.at_once({'tower_0': works((0, 1)), 'tower_1': works((1, 2))}) == {1: 2}


@timeline
def test_the_picture_is_of_the_trace_in_the_middle(program):
    """As many have less together as have more."""
    traces = [{'tower_0': [Work('', '', 0, 4)], 'tower_1': [Work('', '', begin, begin + 4)]}
              for begin in (4, 1, 0, 3, 2)]
    assert program.in_the_middle(traces) is traces[4]


# Runs.

SMALL = ['--train_steps=300', '--log_every_n_steps=50', '--decay_steps=300']


@pytest.mark.thorough
def test_threads_resume(programs, tmp_path):
    first = programs.run_sh(FOLDER, *SMALL, '--model_dir=model', MODE='threads', cwd=tmp_path)
    first.ends_well()
    assert first.matches(DEVICES) and float(first.wait_for(TEST)['accuracy']) > 0.8
    losses = [float(match['loss']) for match in first.matches(STEP)]
    assert losses[-1] < losses[0]
    again = programs.run_sh(FOLDER, '--train_steps=400', '--use_locking', '--model_dir=model',
                            MODE='threads', cwd=tmp_path)
    again.ends_well()
    assert int(again.wait_for(RESUMES)['step']) >= 300
    assert 0 < int(again.wait_for(DID)['local_steps']) <= 101
    assert (tmp_path / 'model' / 'last-tower').is_dir()


def seen_gpus(run):
    """Returns the names of the programs of a run, each with the GPUs that it sees, in order."""
    found = []
    for process in run.left():
        try:
            name = ' '.join(process.cmdline()[1:2]).rpartition('/')[2]
            if name in ('ps.py', 'worker.py', 'towers.py'):
                found.append((name, process.environ()['CUDA_VISIBLE_DEVICES']))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            pass
    return sorted(found)


def sees(run, expected):
    """Asserts that the programs of a run see certain GPUs, as soon as all of them are there."""
    found = []
    wait_until(lambda: found.append(seen_gpus(run)) or expected in found or not run.running, run)
    assert expected in found


@pytest.mark.thorough
def test_workers_see_one_gpu_each(programs):
    """Those that the user lists; the ps sees none. Towers see all of them."""
    run = programs.run_sh(FOLDER, '--train_steps=400', '--log_every_n_steps=20', MODE='workers',
                          CUDA_VISIBLE_DEVICES='5,7', PYTHON=sys.executable)
    towers = programs.run_sh(FOLDER, '--train_steps=1', '--gpus=5,7', PYTHON=sys.executable)
    sees(run, [('ps.py', ''), ('worker.py', '5'), ('worker.py', '7')])
    sees(towers, [('towers.py', '5,7')])
    run.ends_well()
    towers.ends_well()
    assert [match['name'] for match in run.matches(TEST)] == ['worker 0']
    assert all('/device:CPU:0:' in match.group() for match in run.matches(DEVICES))
    assert len(run.matches(DID)) == 2


def test_towers_in_two_workers(programs):
    run = programs.run_sh(FOLDER, *SMALL, '--num_gpus=2', WORKERS=2)
    run.ends_well()
    assert float(run.wait_for(TEST)['accuracy']) > 0.7
    assert len(run.matches(DID)) == 2
    assert all(int(match['local_steps']) % 2 == 0 for match in run.matches(DID))
    assert all('CPU:0, /device:CPU:1: there is no GPU' in match.group()
               for match in run.matches(DEVICES))


@pytest.mark.parametrize('mode', ['threads', *(
    pytest.param(mode, marks=pytest.mark.thorough) for mode in ('towers', 'workers'))])
def test_another_model(programs, mode):
    """One with batch norm, whose moving averages have to be right in the test."""
    run = programs.run_sh(FOLDER, '--model=keras_layers', '--train_steps=150', MODE=mode)
    run.ends_well()
    assert float(run.wait_for(TEST)['accuracy']) > 0.8


def test_timeline(programs):
    run = programs.task('timeline', '--traces=3', '--picture=made.png', folder=FOLDER)
    run.ends_well()
    said = [match['words'] for match in run.matches('timeline: (?P<words>.+)')]
    assert len(said) == len(run.out) == 4 and said[3] == 'drawn in made.png'
    assert '256 examples' in said[0] and said[1].startswith('a thread for each core: several tow')
    assert said[2] == ('a single thread: several towers at work in 0% of the time '
                       '(0% to 0% in 3 steps)')
    assert (run.cwd / 'made.png').read_bytes().startswith(b'\x89PNG')


def test_what_is_wrong(programs, tmp_path):
    offline = {f'{scheme}_proxy': 'http://localhost:1' for scheme in ('http', 'https')}
    cases = [
        (programs.run_sh(FOLDER, MODE='gpus'), '^run.sh: MODE=gpus is none of towers, threads, wo'),
        (programs.run_sh(FOLDER, MODE='workers', WORKERS=3, CUDA_VISIBLE_DEVICES='0,1'),
         '^run.sh: WORKERS=3, but there are 2 GPUs'),
        (programs.run_sh(FOLDER, '--learning_rate=1e30'), '^towers: the loss is .* at step'),
        (programs.run_sh(FOLDER, '--learning_rate=1e30', MODE='threads'), '^threads: the loss is'),
        (programs.run_sh(FOLDER, '--use_locking'), "Unknown command line flag 'use_locking'"),
        (programs.run_sh(FOLDER, '--num_threads=2'), "Unknown command line flag 'num_threads'"),
        (programs.run_sh(FOLDER, '--patience_secs=2', MODE='threads'), "flag 'patience_secs'"),
        (programs.run_sh(FOLDER, '--dataset=cifar10', f'--data_dir={tmp_path}', **offline),
         '--dataset=cifar10: there is no .*, and downloading https://.* failed'),
    ]
    for run, complaint in cases:
        run.fails(complaint)
        assert not run.left() and not run.matches(TEST)
