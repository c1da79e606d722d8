"""Replay: a real run writes its order of pulls and pushes, and is repeated from that alone."""

import csv
import gc
import json
import re
import shutil
import types

import numpy as np
import pytest

from tfdist.scheme import graphs
from tfdist.scheme.toy import Problem
from tfdist.training import recorder
from tfdist.start.quiet import tf

from conftest import load_program, ROOT
from processes import Programs, warm_python
import replay
from test_seam import AT_ONCE, defaults, ONE_BY_ONE

SAID = re.compile(r'\w[\w-]+: each loss is that of the run, (to the bit|but for (?P<by>\S+) of it)')


def record(programs, directory, folder, *flags, workers=2):
    """Runs a folder, and has it write its order; returns the directory with both.

    There are two ps: without a lock one of the first pulls sees one before an update, and the other
    one after it.
    """
    run = programs.run_sh(folder, '--train_steps=150', f'--order_dir={directory / "order"}',
                          f'--model_dir={directory / "model"}', *flags, WORKERS=workers, PS=2)
    run.ends_well()
    return directory


def repeat(programs, directory, *flags):
    """Repeats a run in a process that has nothing but the order; returns the process."""
    return programs.start([warm_python(), ROOT / 'Simulation' / 'simulate.py',
                           f'--replay={directory / "order"}',
                           f'--center={directory / "center.npz"}', *flags])


def distance(directory):
    """Returns the largest difference between the centers of a run and its replay, a float."""
    real = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(directory / 'model')))
    replayed = np.load(directory / 'center.npz')
    assert replayed.files
    return max(np.abs(real.get_tensor(name) - replayed[name]).max() for name in replayed.files)


@pytest.fixture(scope='module')
def run_once(tmp_path_factory):
    """The directory of a run of HogWild with two workers."""
    directory = tmp_path_factory.mktemp('recorded')
    started = Programs(directory)
    record(started, directory, 'HogWild', '--learning_rate=0.2')
    assert not started.end()
    return directory


@pytest.fixture
def recorded(run_once, tmp_path):
    """A copy of it, to do anything with."""
    return shutil.copytree(str(run_once), str(tmp_path / 'copy')) and tmp_path / 'copy'


def order_of_two_updates(directory, **changes):
    """Writes what two workers record of which each makes an update; changes are of run.json."""
    run = dict(workers=2, folder='HogWild', tensorflow=tf.__version__, flags=[])
    (directory / 'run.json').write_text(json.dumps(dict(run, **changes)), encoding='utf-8')
    np.savez(directory / 'start.npz', x=np.ones(3))
    for worker in range(2):
        np.savez(directory / f'worker-{worker}.npz', pulled=[worker], step=[worker + 1],
                 dropped=[False], loss=[1.], at=[0.])


def change(directory, worker, function):
    """Has a function change what a worker wrote, a dict of arrays."""
    path = directory / 'order' / f'worker-{worker}.npz'
    values = dict(np.load(path))
    function(values)
    np.savez(path, **values)


def test_the_replay_reaches_the_same_center(recorded, programs):
    run = repeat(programs, recorded, f'--csv={recorded / "updates.csv"}')
    run.ends_well()
    said, = run.matches(SAID)
    assert float(said['by'] or 0) < 1e-5
    assert distance(recorded) < 1e-5
    with open(recorded / 'updates.csv', newline='', encoding='utf-8') as file:
        updates = list(csv.DictReader(file))
    assert [int(each['step']) for each in updates] == list(range(1, len(updates) + 1))
    assert {each['worker'] for each in updates} == {'0', '1'} and len(updates) >= 150
    assert all(int(each['staleness']) == int(each['step']) - 1 - int(each['pulled'])
               for each in updates)


def test_another_order_is_another_run(recorded, programs):
    """One pull is said to have come one update later than it did."""
    def later(values):
        stale, = np.nonzero(values['step'] - values['pulled'] > 1)
        values['pulled'][stale[0]] += 1

    change(recorded, 1, later)
    repeat(programs, recorded).fails(r'^--replay: a loss at step \d+ is not that of the run')
    assert distance(recorded) > 1e-4


def test_a_part_of_the_run(recorded, programs):
    run = repeat(programs, recorded, '--until=20', '--look_at=10')
    run.ends_well()
    assert any(line.startswith('HogWild: test accuracy') and 'after 20 steps' in line
               for line in run.out)
    assert [int(line.split()[0]) for line in run.out if line.startswith(' ')
            and line.split()[0].isdigit()] == list(range(6, 15))
    assert distance(recorded) > 1e-2


def test_updates_are_left_out(recorded, programs):
    """All that was made before is the same, and what is left out moves nothing."""
    tables = []
    for flags in [], ['--without=11,12']:
        repeat(programs, recorded, f'--csv={recorded / "updates.csv"}', *flags).ends_well()
        with open(recorded / 'updates.csv', newline='', encoding='utf-8') as file:
            tables.append(list(csv.DictReader(file)))
    with_them, without = tables
    assert with_them[:10] == without[:10] and len(with_them) == len(without)
    ways = [float(each['way']) for each in without]
    assert ways[10] == ways[11] == 0 and all(ways[:10] + ways[12:])
    assert without[-1]['center'] != with_them[-1]['center']


def test_the_update_after_which_the_loss_explodes(tmp_path, programs):
    """It is the one that made the center of which a loss is first twice that at the beginning."""
    record(programs, tmp_path, 'HogWild', '--learning_rate=5')
    run = repeat(programs, tmp_path, f'--csv={tmp_path / "updates.csv"}')
    run.ends_well()
    said, = [match for match in map(re.compile(
        r'HogWild: the loss is \S+ after update (\d+), by worker (\d) with staleness (\d+); .+'
        ).fullmatch, run.out) if match]
    with open(tmp_path / 'updates.csv', newline='', encoding='utf-8') as file:
        updates = list(csv.DictReader(file))
    large = [int(each['pulled']) for each in updates
             if not float(each['loss']) <= 2 * float(updates[0]['loss']) and int(each['pulled'])]
    made = updates[int(said[1]) - 1]
    assert int(said[1]) == min(large)
    assert (made['worker'], made['staleness']) == (said[2], said[3])


def test_an_order_that_is_not_whole(recorded, programs):
    change(recorded, 0, lambda values: values.update(
        {name: np.delete(values[name], 3) for name in ('pulled', 'step', 'dropped', 'loss')}))
    repeat(programs, recorded).fails(r'no worker has written down update \d+')


def test_a_step_that_was_made_twice(recorded, programs):
    change(recorded, 0, lambda values: values.update(
        {name: np.append(values[name], values[name][-1:]) for name in (
            'pulled', 'step', 'dropped', 'loss', 'at')}))
    repeat(programs, recorded).fails('some updates were made twice')


def test_another_tensorflow(recorded, programs):
    path = recorded / 'order' / 'run.json'
    path.write_text(json.dumps(dict(json.loads(path.read_text(encoding='utf-8')),
                                    tensorflow='0.12')), encoding='utf-8')
    repeat(programs, recorded).fails('that run was on TensorFlow 0.12, and this is ')


def test_no_order(programs, tmp_path):
    repeat(programs, tmp_path).fails('there is no order of a run')


@pytest.mark.parametrize('name, text', [
    ('run.json', '[]'), ('run.json', '{"workers": "two", "folder": "HogWild", "tensorflow": "1"}'),
    ('worker-1.npz', 'PK')])
def test_an_order_that_cannot_be_read(recorded, programs, name, text):
    (recorded / 'order' / name).write_text(text, encoding='utf-8')
    repeat(programs, recorded).fails('there is no order of a run')


@pytest.mark.parametrize('damage, complaint', [
    (lambda data: data[:len(data) // 2], 'worker-1.npz: File is not a zip file'),
    (lambda data: re.sub(b'(PK\x01\x02.{6}).', b'\\1c', data, flags=re.DOTALL),  # no such method
     'worker-1.npz: .*compression'),
    (lambda data: b'', 'worker-1.npz: File is not a zip file')])
def test_a_file_of_an_order_that_is_damaged(tmp_path, capfd, damage, complaint):
    """One line, of which file; numpy adds nothing to it."""
    order_of_two_updates(tmp_path)
    path = tmp_path / 'worker-1.npz'
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SystemExit, match=f'there is no order of a run .{complaint}'):
        replay.Order(tmp_path)
    gc.collect()
    assert capfd.readouterr().err == ''


def test_a_flag_of_an_order_that_is_a_number(tmp_path):
    order_of_two_updates(tmp_path, flags=['--seed=2', 3])
    with pytest.raises(SystemExit, match='there is no order of a run .run.json: 3 is no flag'):
        replay.Order(tmp_path)
    order_of_two_updates(tmp_path, flags=['--seed=2'])
    assert replay.Order(tmp_path).flags == ['--seed=2']


def test_an_order_is_not_written_over(recorded, programs):
    run = programs.run_sh('HogWild', f'--order_dir={recorded / "order"}')
    run.fails('has the order of another run')


@pytest.mark.thorough
@pytest.mark.parametrize('folder, workers, flags', [
    ('AGN', 4, []), ('DOWNPOUR-Easy', 4, []), ('DynSGD', 4, []), ('SSP', 4, []),
    ('AEASGD', 4, []), ('AEAMSGD', 2, []), ('DC-ASGD', 2, ['--variance=adaptive']),
    ('DOWNPOUR', 2, []), ('Local-SGD', 2, []), ('Synchronous-SGD', 4, []),
    ('SAGN', 2, ['--learning_rate=0.1']),  # at 0.2 rounding grows by a thousand: `_ARITHMETIC`
    ('Synchronous-SGD-different-learning-rates', 3, []),
    ('HogWild', 1, []), ('Distributed-MNIST', 2, []), ('Distributed-MNIST', 2, ['--is_sync'])])
def test_schemes(programs, tmp_path, folder, workers, flags):
    record(programs, tmp_path, folder, *flags, workers=workers)
    repeat(programs, tmp_path).ends_well()
    # Where several pushes make a sum, it is that of the order in which they came, to the bit.
    assert distance(tmp_path) < (1e-9 if 'Synchronous' in folder else 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('n_fetch, n_push', [(2, 3), (5, 10), (10, 5)])
def test_several_pulls_and_pushes_in_a_run(programs, tmp_path, n_fetch, n_push):
    """Each of them is where it was. The staleness is that of the run: without one's own pushes."""
    record(programs, tmp_path, 'DOWNPOUR', f'--n_fetch={n_fetch}', f'--n_push={n_push}', workers=3)
    rows = np.load(tmp_path / 'order' / 'worker-1.npz')
    window = np.lcm(n_fetch, n_push)
    pulled, step = (rows[name].reshape(len(rows['loss']), -1) for name in ('pulled', 'step'))
    assert pulled.shape[1] == window // n_fetch and step.shape[1] == window // n_push
    assert (np.diff(pulled) >= 0).all() and (np.diff(step) > 0).all()
    run = repeat(programs, tmp_path, f'--csv={tmp_path / "updates.csv"}')
    run.ends_well()
    assert distance(tmp_path) < 1e-6
    with open(tmp_path / 'updates.csv', newline='', encoding='utf-8') as file:
        updates = list(csv.DictReader(file))
    assert [int(each['step']) for each in updates] == list(range(1, len(updates) + 1))
    for number, each in enumerate(updates):
        between = updates[int(each['pulled']):number]
        assert int(each['staleness']) == sum(one['worker'] != each['worker'] for one in between)


@pytest.mark.parametrize('folder, flags, why', [
    ('Ring-AllReduce', [], 'no center'), ('Elastic-Workers', [], 'come and go'),
    ('Synchronous-SGD', ['--replicas_to_aggregate=1'], 'backup workers'),
    ('Work-Queue', [], 'which examples')])
def test_what_is_not_recorded(programs, tmp_path, folder, flags, why):
    run = programs.run_sh(folder, f'--order_dir={tmp_path / "order"}', *flags)
    run.fails(f'--order_dir: in this scheme .*{why}.*: such a run is not recorded')


@pytest.mark.parametrize('folder, changes', [
    *ONE_BY_ONE, *(pytest.param('DOWNPOUR', dict(n_fetch=n_fetch, n_push=n_push),
                                id=f'DOWNPOUR-{n_fetch}-{n_push}')
                   for n_fetch, n_push in [(4, 2), (2, 4), (2, 3)])])
def test_pulls_and_pushes_are_whole(folder, changes, tmp_path):
    """Who touches the center in a recorded run has the lock, of the pull or of the push."""
    scheme, center = recorded_scheme(folder, changes, tmp_path)
    if scheme is None:
        return
    handles = {variable.handle.op for variable in center}
    touch = [op for op in graphs.ancestors(scheme.train_op.values())
             if handles & {tensor.op for tensor in op.inputs}]
    assert len(touch) >= 8 and len(locks_of(touch)) == len(scheme.exchanges)
    assert all(locks_of([op]) for op in touch)
    own = {op for op in graphs.ancestors(scheme.train_op.values()) if op.type == 'MutexLock'
           and op not in locks_of(touch)}
    assert all(locks_of([lock]) for lock in own), "the scheme's own lock comes after it"


@pytest.mark.parametrize('folder, changes', AT_ONCE)
def test_pushes_of_a_sum_are_whole(folder, changes, tmp_path):
    """Each sum gets them in one order; who only looks at the steps does not wait for a push."""
    scheme, _ = recorded_scheme(folder, changes, tmp_path)
    adds = [op for op in graphs.ancestors(scheme.train_op.values())
            if op.type.endswith('AccumulatorApplyGradient')]
    lock, = locks_of(adds)
    assert len(adds) == 3 and all(locks_of([op]) for op in adds)
    barrier = scheme.barrier
    assert lock not in graphs.ancestors([barrier._step_now])


def test_rows_of_a_sum_wait_for_the_lock_too():
    """Their accumulators are references, and no resources."""
    with tf.Graph().as_default():
        accumulator = tf.SparseConditionalAccumulator(tf.float32, [3, 2])
        add = accumulator.apply_grad([1], tf.ones([1, 2]))
        mutex = tf.raw_ops.MutexV2(shared_name='order')
        recorder._alone(mutex, {add}, [], [])
    assert locks_of([add])


def recorded_scheme(folder, changes, directory):
    """Returns a scheme that is recorded, or None if it cannot be; and its center and step."""
    hparams = types.SimpleNamespace(**defaults(folder, **changes))
    program = load_program(folder)
    with tf.Graph().as_default():
        center = [tf.get_variable(f'x{i}', initializer=1.) for i in range(3)]
        step = tf.train.get_or_create_global_step()

        def loss_at(values):
            return sum(tf.square(value) for value in values), tf.constant(0.)

        scheme = program.Scheme(Problem(loss_at, center), step, hparams, 0, 2)
        if scheme.not_recorded:
            with pytest.raises(SystemExit, match='is not recorded'):
                recorder.Recorder(scheme, str(directory))
            return None, None
        recorder.Recorder(scheme, str(directory))
        return scheme, [*center, step]


def locks_of(ops):
    """Returns the set of ops that get the lock of recorded runs for some ops."""
    return {lock for op in ops for lock in op.control_inputs
            if lock.type == 'MutexLock' and lock.inputs[0].op.get_attr('shared_name') == b'order'}
