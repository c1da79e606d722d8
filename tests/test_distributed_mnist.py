"""Distributed-MNIST: records, Adam, recovery, evaluator, export, by the code it trains with."""

import json
import os
import shutil
import sys
import threading

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import sklearn.datasets
import tensorflow.compat.v1 as tf

from tfdist.training import predict

from conftest import evaluate, load_program, ROOT
from processes import (BEGINS, checkpoints, DID, EVALUATED, EXPORTED, PREPARED, Programs, RESUMES,
                       STEP, Tasks, TEST, wait_until)

FOLDER = 'Distributed-MNIST'
FLAGS = flags.FLAGS
BATCH = 25  # divides the examples of each file: 187 or 188 of 1,500 in 8 files


@pytest.fixture
def program(request, tmp_path):
    """A program of the folder, its flags at their defaults but for the directory of the records."""
    module = load_program(FOLDER, getattr(request, 'param', 'prepare_data'))
    FLAGS([''])
    with flagsaver.flagsaver(records_dir=str(tmp_path)), tf.Graph().as_default():
        yield module


@pytest.fixture
def prepared(program):
    """The program, with the records of the digits in 6 files of 250 examples."""
    program.write(program.model.records_dir(), 6)
    return program


# Records.

def positions(model, shard, num_shards, epochs=1, seed=0):
    """Returns which training examples a worker sees, in order: [epochs, examples of the shard]."""
    images, _ = sklearn.datasets.load_digits(return_X_y=True)
    # Bytes 0 to 255 tell the values 0 to 16 apart.
    position_of = {image.astype(int).tobytes(): i for i, image in enumerate(images)}
    assert len(position_of) == len(images), 'each image is there once'
    with tf.Graph().as_default():
        count = epochs * 1500 // num_shards // BATCH
        batches = model.train_batches(BATCH, count, shard, num_shards, seed)
        seen = [position_of[np.round(image * 16).astype(int).tobytes()]
                for batch, _ in evaluate(batches) for image in batch]
    return np.reshape(seen, [epochs, -1])


@pytest.mark.parametrize('num_workers', [1, 2, 3, 6])
def test_workers_read_all_records_and_none_twice(prepared, num_workers):
    order = np.random.RandomState(0).permutation(1797)[:1500]
    epoch = [position for shard in range(num_workers)
             for position in positions(prepared.model, shard, num_workers)[0]]
    assert sorted(epoch) == sorted(order)


def test_workers_read_their_own_files_only(prepared):
    directory = prepared.model.records_dir()
    for name in os.listdir(directory):
        if name.startswith('train') and int(name[6:11]) % 2 == 0:
            os.remove(os.path.join(directory, name))
    assert len(positions(prepared.model, 1, 2)[0]) == 750
    with pytest.raises(SystemExit, match='00000-of-00006.tfrecord is missing or truncated. Delete'):
        prepared.model.train_batches(BATCH, 1, 0, 2)


def test_each_epoch_has_another_order_and_the_seed_decides_it(prepared):
    first, second = positions(prepared.model, 1, 2, epochs=2)
    assert sorted(first) == sorted(second)
    assert list(first) != list(second) and list(first) != sorted(first)
    assert (positions(prepared.model, 1, 2) == first).all()
    assert (positions(prepared.model, 1, 2, seed=6) != first).any()
    half = len(set(first[:len(first) // 2]) & set(second[:len(second) // 2])) / (len(first) // 2)
    assert 0.4 < half < 0.6, 'the order across files is another one, not only that within'


def test_records_hold_the_images_and_their_labels(prepared):
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    label_of = {image.astype(int).tobytes(): label for image, label in zip(images, labels)}
    batches = prepared.model.train_batches(32, 3, shard=1, num_shards=2)
    for batch, its_labels in batches:
        assert batch.shape == [32, 64] and batch.dtype == tf.float32
        assert its_labels.shape == [32] and its_labels.dtype == tf.int64
    test = prepared.model.test_set()
    assert test[0].shape == [297, 64]
    values = evaluate([*batches, test, test])
    assert (values[-1][0] == values[-2][0]).all(), 'it is the whole set each time'
    for batch, its_labels in values:
        assert 0 <= batch.min() < batch.max() <= 1
        found = [label_of[np.round(image * 16).astype(int).tobytes()] for image in batch]
        assert found == its_labels.tolist()


def test_mnist(program, tmp_path):
    random = np.random.RandomState(0)
    arrays = {}
    for part, count in ('train', 40), ('test', 8):
        arrays[f'x_{part}'] = random.randint(256, size=(count, 28, 28)).astype(np.uint8)
        arrays[f'y_{part}'] = random.randint(10, size=count).astype(np.uint8)
    np.savez(str(tmp_path / 'mnist.npz'), **arrays)
    FLAGS.dataset, FLAGS.data_dir = 'mnist', str(tmp_path)
    program.write(program.model.records_dir(), 3)
    images, labels = evaluate(program.model.test_set())
    assert images == pytest.approx(arrays['x_test'].reshape(8, 784) / 255.)
    assert labels.tolist() == arrays['y_test'].tolist()
    index = program.model.read_index()
    assert [count for count, _ in index['train'].values()] == [14, 13, 13]
    program.model.loss_and_accuracy(images, labels)
    assert [v.shape.as_list() for v in tf.trainable_variables()][::2] == [
        [784, 500], [500, 500], [500, 10]]


def test_to_prepare_again_changes_nothing(program, capsys):
    for _ in range(2):
        program.main([''])
        path = os.path.join(program.model.records_dir(), 'train-00000-of-00008.tfrecord')
        written = os.stat(path).st_mtime_ns
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and PREPARED.fullmatch(first)
    program.main([''])
    assert os.stat(path).st_mtime_ns == written


def test_another_run_prepares_meanwhile(program, monkeypatch):
    """It was faster: its files are taken, and nothing is left of one's own."""
    write = program.write

    def slow_write(directory, num_files):
        write(directory, num_files)
        write(program.model.records_dir(), 3)

    monkeypatch.setattr(program, 'write', slow_write)
    program.main([''])
    assert len(program.model.read_index()['train']) == 3
    assert os.listdir(FLAGS.records_dir) == ['digits']
    names = os.listdir(program.model.records_dir())
    assert all(name.endswith(('.tfrecord', '.json')) for name in names)


@pytest.mark.parametrize('damage, complaint', [
    (lambda path: shutil.rmtree(path), r'no whole records of digits \(.*No such file'),
    (lambda path: os.remove(os.path.join(path, 'index.json')), 'no whole records of digits'),
    (lambda path: open(os.path.join(path, 'index.json'), 'w').close(), 'no whole records'),
    (lambda path: os.truncate(os.path.join(path, 'test-00000-of-00001.tfrecord'), 99),
     'test-00000-of-00001.tfrecord is missing or truncated'),
])
def test_damaged_records(prepared, damage, complaint):
    damage(prepared.model.records_dir())
    with pytest.raises(SystemExit, match=complaint + '.* and run prepare_data.py') as error:
        prepared.model.test_set()
    assert '\n' not in str(error.value)


def test_more_workers_than_files(prepared):
    with pytest.raises(SystemExit, match='6 files are too few for 7 workers.*--num_files=7'):
        prepared.model.train_batches(BATCH, 1, 0, 7)


def test_records_dir_is_a_file(program, tmp_path):
    (tmp_path / 'file').write_text('')
    FLAGS.records_dir = str(tmp_path / 'file')
    with pytest.raises(SystemExit, match='file cannot be written to: Not a directory'):
        program.main([''])


# The scheme.

def hparams(is_sync, train_steps=100):
    return dict(is_sync=is_sync, train_steps=train_steps, replicas_to_aggregate=None,
                patience_secs=60, aggregate='mean', liar=[])


@pytest.mark.parametrize('different', [dict(aggregate='median'), dict(liar=['1:10'])])
def test_robust_means_are_of_steps_taken_together(toy, different):
    with pytest.raises(SystemExit, match='--aggregate, --liar: without --is_sync each push is'):
        toy(FOLDER, **dict(hparams(is_sync=False), **different))


def moment(worker, index=0):
    """Returns Adam's first moment of a variable; after one step it is a tenth of the gradient."""
    slot, = [v for v in worker.graph.get_collection('variables')
             if v.op.name == f'{worker.variables[index].op.name}/Adam']
    return worker.session.run(slot).tolist()


def test_adam(toy):
    """Its first step is of the size of the learning rate, whatever the gradient."""
    worker, = toy(FOLDER, ms=[0], start=[8., [4., -2.]], **hparams(is_sync=False))
    assert worker.step()['global_step'] == 1
    values = worker.session.run(worker.variables)
    assert values[0] == pytest.approx(7.5) and values[1] == pytest.approx([3.5, -1.5])
    assert moment(worker) == pytest.approx(0.8) and moment(worker, 1) == pytest.approx([0.4, -0.2])


def test_asynchronous(toy):
    first, second = toy(FOLDER, ms=[0, 4], **hparams(is_sync=False))
    pulled = first.pull(), second.pull()
    results = [first.push(pulled[0]), second.push(pulled[1])]
    assert [r['global_step'] for r in results] == [1, 2]
    assert [r['staleness'] for r in results] == [0, 1]
    assert moment(first) == pytest.approx(0.9 * 0.8 + 0.1 * 4), 'gradients 8 and 4, one by one'


def test_synchronous(toy):
    """Both gradients, 8 and 4, make one step with their mean, 6."""
    workers = toy(FOLDER, ms=[0, 4], **hparams(is_sync=True, train_steps=1))
    results = [None, None]

    def step(i):
        results[i] = workers[i].step()

    threads = [threading.Thread(target=step, args=(i,)) for i in range(2)]
    threads[0].start()
    threads[0].join(1)
    assert threads[0].is_alive() and workers[1].center() == 8, 'it waits for the other one'
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert [r['global_step'] for r in results] == [1, 1]
    assert [r['dropped'] for r in results] == [0, 0]
    assert workers[0].center() == pytest.approx(7.5)
    assert moment(workers[0]) == pytest.approx(0.6)


@pytest.mark.parametrize('is_sync', [False, True])
def test_placement(toy, is_sync):
    """Variables over both ps, Adam's moments with them, forward and backward on the worker."""
    worker, = toy(FOLDER, ms=[0], start=[[8.], [4., 2.], [1.]], num_ps=2, **hparams(is_sync, 1))
    assert [v.device for v in worker.variables] == [f'/job:ps/task:{i}' for i in (1, 0, 1)]
    for variable in worker.variables:
        slots = [v for v in worker.graph.get_collection('variables')
                 if v.op.name.startswith(variable.op.name + '/Adam')]
        assert [slot.device for slot in slots] == [variable.device] * 2
    metadata = tf.RunMetadata()
    worker.session.run(worker.scheme.train_op, run_metadata=metadata,
                       options=tf.RunOptions(output_partition_graphs=True))
    ops = {}
    for partition in metadata.partition_graphs:
        for node in partition.node:
            ops.setdefault(node.device.partition('/device')[0], set()).add(node.op)
    me = ops['/job:worker/replica:0/task:0'] if is_sync else ops.pop('/job:worker/replica:0/task:0')
    assert {'Square', 'Mul'} <= me and 'ResourceApplyAdam' not in me
    if not is_sync:
        assert set(ops) == {'/job:ps/replica:0/task:0', '/job:ps/replica:0/task:1'}
        assert all('ResourceApplyAdam' in on_ps and 'Square' not in on_ps for on_ps in ops.values())


# Runs.

RATE = '--straggler=0:0.02,1:0.02'  # not even 50 steps per second and worker: time to kill one


@pytest.fixture(scope='module')
def records(tmp_path_factory):
    """The flag that names a directory with records."""
    directory = tmp_path_factory.mktemp('records')
    programs = Programs(directory)
    programs.task('prepare_data', f'--records_dir={directory / "made"}', folder=FOLDER).ends_well()
    return f'--records_dir={directory / "made"}'


def steps(task):
    """Returns the global steps in the lines of a worker."""
    return [int(match['step']) for match in task.matches(STEP)]


@pytest.mark.thorough
def test_chief_and_ps_are_killed(programs, records):
    """With kill -9 in mid-training; started again, they reach the accuracy; it is exported."""
    model_dir = programs.directory / 'model'
    common = ['--train_steps=700', f'--model_dir={model_dir}', records]
    tasks = Tasks(programs, 2, folder=FOLDER, flags=[
        *common, RATE, '--log_every_n_steps=5', '--save_checkpoint_secs=1',
        '--learning_rate=0.003'])
    servers = [tasks.start('ps', i) for i in range(2)]
    workers = [tasks.start('worker', i) for i in range(2)]
    evaluator = programs.task('evaluator', *common, '--num_threads=1', folder=FOLDER)
    wait_until(lambda: len(checkpoints(model_dir)) >= 2, 'no checkpoints by', *workers)

    workers[0].kill()
    before = max(steps(workers[1]))
    killed, workers[0] = workers[0], tasks.start('worker', 0)
    assert int(workers[0].wait_for(BEGINS)['step']) >= before, "the other's work is kept"

    have = len(checkpoints(model_dir))
    wait_until(lambda: len(checkpoints(model_dir)) > have or checkpoints(model_dir)[0] > 0,
               'no checkpoint by', workers[0])
    saved = checkpoints(model_dir)[-1]
    wait_until(lambda: max(steps(workers[1])) > saved + 20, 'no progress of', workers[1])
    servers[1].kill()
    servers[1] = tasks.start('ps', 1)
    assert int(workers[0].wait_for(RESUMES)['step']) >= saved
    for task in workers + servers + [evaluator]:
        assert task.wait() == 0, str(task)
    assert not killed.matches(TEST)
    test = workers[0].wait_for(TEST)
    assert float(test['accuracy']) > 0.9

    tested = evaluator.matches(EVALUATED)
    assert len(tested) > 2, str(evaluator)
    assert float(tested[-1]['accuracy']) > 0.9 > float(tested[0]['accuracy'])
    assert int(tested[-1]['step']) >= 700
    events = [path.name for path in (model_dir / 'evaluator').iterdir()]
    assert len(events) == 1 and written(model_dir / 'evaluator' / events[0]) == {
        int(match['step']): pytest.approx(float(match['accuracy']), abs=1e-3) for match in tested}

    exported = evaluator.wait_for(EXPORTED)
    assert exported['step'] == tested[-1]['step']
    predictions_equal_the_evaluation(exported['path'], tested[-1], records)


def written(path):
    """Returns the test accuracies by step in a file of events."""
    return {event.step: value.simple_value for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value if value.tag == 'test_accuracy'}


def predictions_equal_the_evaluation(path, tested, records):
    """Asserts that the SavedModel's answers on the test set give the evaluator's figures."""
    model = load_program(FOLDER, 'prepare_data').model
    FLAGS(['', records])
    with tf.Graph().as_default():
        images, labels = evaluate(model.test_set())
    answers = predict.Model(path)({'images': images})
    accuracy = np.mean(answers['classes'] == labels)
    assert accuracy == pytest.approx(float(tested['accuracy']), abs=6e-4)
    losses = -np.log(answers['probabilities'][np.arange(len(labels)), labels])
    assert np.mean(losses) == pytest.approx(float(tested['loss']), abs=6e-4)


@pytest.mark.thorough
def test_synchronous_by_one_command_for_all(programs, records, tmp_path):
    """task.py finds out what it is: by --job_name, or by TF_CONFIG."""
    common = ['--train_steps=200', '--model_dir=model', records, '--is_sync', '--num_threads=1']
    hosts = Tasks(programs, 2, folder=FOLDER).cluster

    def by_flags(job, index):
        return programs.start(
            [*python(), '--job_name=' + job, f'--ps_hosts={",".join(hosts["ps"])}',
             f'--worker_hosts={",".join(hosts["worker"])}', f'--task_index={index}', *common],
            cwd=tmp_path)

    def by_tf_config(job, index):
        """In the dialect of TFJob: the chief is a job of its own, the evaluator is listed."""
        cluster = {'ps': hosts['ps'], 'chief': hosts['worker'][:1], 'worker': hosts['worker'][1:],
                   'evaluator': ['evaluator-0:2222']}
        config = {'cluster': cluster, 'task': {'type': job, 'index': index}, 'environment': 'cloud'}
        return programs.start([*python(), *common], cwd=tmp_path,
                              env={'TF_CONFIG': json.dumps(config)})

    tasks = [by_flags('ps', 0), by_tf_config('ps', 1), by_tf_config('chief', 0),
             by_flags('worker', 1), by_tf_config('evaluator', 0)]
    for task in tasks:
        task.ends_well()
    _, _, chief, worker, evaluator = tasks
    assert [int(task.wait_for(DID)['local_steps']) for task in (chief, worker)] == [200, 200]
    assert chief.wait_for(TEST)['accuracy'] == evaluator.matches(EVALUATED)[-1]['accuracy']
    assert evaluator.wait_for(EXPORTED)['path'] == 'model/export/200'


@pytest.mark.parametrize('program', ['evaluator'], indirect=True)
@pytest.mark.parametrize('damage, complaint', [
    (lambda path: os.truncate(path, 50), 'is damaged'),
    (os.remove, 'is damaged'),
    (lambda path: None, r'of another model \(hidden_0/weights has shape'),
])
def test_a_checkpoint_that_is_of_no_use(program, records, tmp_path, damage, complaint):
    """Of another model, and then also damaged."""
    FLAGS.model_dir, FLAGS.records_dir = str(tmp_path), records.partition('=')[2]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        for name in 'hidden_0/weights', 'hidden_0/biases', 'logits/weights', 'logits/biases':
            tf.get_variable(name, [3, 3])
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), global_step=7)
    damage(path + '.data-00000-of-00001')
    with pytest.raises(SystemExit, match=complaint) as error:
        program.main([''])
    assert '\n' not in str(error.value)


def loss_by(checkpoint, suffix, records):
    """Returns the loss on the test set of what has a suffix to its name in a checkpoint."""
    model = load_program(FOLDER, 'prepare_data').model
    FLAGS(['', records])
    with tf.Graph().as_default():
        images, labels = evaluate(model.test_set())
    read = tf.train.load_checkpoint(checkpoint).get_tensor
    hidden, hidden_biases, weights, biases = [read(f'{name}{suffix}') for name in (
        'hidden_0/weights', 'hidden_0/biases', 'logits/weights', 'logits/biases')]
    scores = np.maximum(images.dot(hidden) + hidden_biases, 0).dot(weights) + biases
    of_labels = scores[np.arange(len(labels)), labels]
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - of_labels)


@pytest.mark.thorough  # tests/test_user.py runs the folder
def test_moving_averages_are_evaluated_and_exported(programs, records):
    """As by the chief's test; and they are not the parameters."""
    model_dir = programs.directory / 'model'
    run = programs.run_sh(FOLDER, '--train_steps=150', '--moving_average_decay=0.999', '--is_sync',
                          f'--model_dir={model_dir}', records)
    run.ends_well()
    tested = run.matches(EVALUATED)[-1]
    assert tested['step'] == '150' and tested['accuracy'] == run.wait_for(TEST)['accuracy']
    plain, averaged = [loss_by(str(model_dir / 'model.ckpt-150'), suffix, records)
                       for suffix in ('', '/ExponentialMovingAverage')]
    assert float(tested['loss']) == pytest.approx(averaged, abs=6e-4)
    assert abs(plain - averaged) > 0.01
    predictions_equal_the_evaluation(run.wait_for(EXPORTED)['path'], tested, records)


def python():
    """Returns the command that starts the program that is all of the folder's."""
    return [sys.executable, ROOT / FOLDER / 'task.py']


def test_what_is_wrong(programs, records):
    cases = [(programs.task(program, *arguments, folder=FOLDER), complaint)
             for program, arguments, complaint in [
                 ('evaluator', [records], '^evaluator: give the --model_dir of a run'),
                 ('evaluator', [records, '--model_dir=none', '--patience_secs=1'],
                  'no new checkpoint in none for 1 s'),
                 ('evaluator', [records, '--model_dir=/proc/below'],
                  '^--model_dir=/proc/below cannot be made'),
                 ('task', [], '^task: give --job_name, or a task in TF_CONFIG'),
                 ('task', ['--job_name=boss'],
                  'flag --job_name=boss: .*<ps\\|worker\\|evaluator>')]]
    for program, complaint in cases:
        program.fails(complaint)
