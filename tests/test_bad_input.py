"""What a user gets wrong ends each task in one clear line on stderr; nothing stays.

Bad addresses and the like are in test_cluster.py.
"""

import json
import shutil
import signal
import socket
import threading

from absl import flags
from absl.testing import flagsaver
import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import problem
from tfdist.start import console
from tfdist.start.ports import free_ports
from tfdist.training import checkpoints, training_flags

from conftest import load_program
import processes
from processes import (examples, listens, Programs, ROOT, STEP, Tasks, TEST,
                       trainer, wait_until)

PROGRAMS = [(folder, trainer(ROOT / folder)) for folder in examples()]
ENDLESS = ['--train_steps=1000000', '--log_every_n_steps=2', '--straggler=0:0.05,1:0.05']
ONE_PS = '--ps_hosts=localhost:1 --worker_hosts=localhost:2 --task_index=0'.split()


# Flags.

@pytest.mark.parametrize('argument, complaint', [
    ('--lerning_rate=1', "Unknown command line flag 'lerning_rate'"),
    ('train_steps=5', r'what is "train_steps=5"\? Flags begin with --'),
    ('--batch_size=many', 'flag --batch_size=many: .*int'),
    ('--dataset=letters', 'flag --dataset=letters: value should be one of <digits\\|mnist>'),
])
def test_flags(argument, complaint):
    load_program('HogWild')
    with flagsaver.flagsaver(), pytest.raises(SystemExit, match=complaint) as error:
        console._parse_flags(['worker.py', argument])
    assert '\n' not in str(error.value) and '--help' in str(error.value)


@pytest.mark.parametrize('folder, program', PROGRAMS)
def test_sizes(folder, program):
    """No number that a program takes may be negative, but for the seed; sizes may not be 0."""
    load_program(folder, program)
    numbers = {name for name in load_program.flags if name != 'seed' and isinstance(
        flags.FLAGS[name].parser, (flags.IntegerParser, flags.FloatParser))}
    sizes = {'train_steps', 'batch_size', 'log_every_n_steps', 'save_checkpoint_secs'}
    assert sizes <= numbers
    sizes |= numbers & {'communication_window'}
    for name, value in [(name, -1) for name in numbers] + [(name, 0) for name in sizes]:
        with flagsaver.flagsaver(), pytest.raises(SystemExit, match=f'flag --{name}={value}: '):
            console._parse_flags(['worker.py', f'--{name}={value}'])
            pytest.fail(f'--{name}={value} is taken')


@pytest.mark.parametrize('flag', ['--patience_secs=nan', '--save_checkpoint_secs=nan',
                                  '--learning_rate=nan', '--train_steps=1' + 20 * '0',
                                  '--save_checkpoint_secs=0.5'])
def test_numbers_that_are_none(flag):
    load_program('HogWild')
    with flagsaver.flagsaver(), pytest.raises(SystemExit, match=f'flag {flag}: '):
        console._parse_flags(['worker.py', flag])


@pytest.mark.parametrize('straggler', ['1', '1:', ':1', '1:2:3', 'one:1', '1:long', '0:1,1',
                                       '1:-1', '1:nan', '1:inf'])
def test_straggler(straggler):
    load_program('HogWild')
    flags.FLAGS([''])
    with flagsaver.flagsaver():
        flags.FLAGS['straggler'].parse(straggler)
        with pytest.raises(SystemExit, match=f'^--straggler={straggler} is not of the form'):
            training_flags.straggler_delay(0)


def test_a_straggler_is_one_or_several():
    load_program('HogWild')
    flags.FLAGS([''])
    with flagsaver.flagsaver():
        assert training_flags.straggler_delay(0) == 0
        flags.FLAGS['straggler'].parse('0:0.5,2:1')
        assert [training_flags.straggler_delay(i) for i in range(3)] == [0.5, 0, 1]


def test_tasks_say_what_is_wrong(programs):
    """Real processes: one line, whoever finds the mistake, and where."""
    port, = free_ports(1)
    config = {'cluster': {'ps': [f'localhost:{port}'], 'worker': ['localhost:2']},
              'task': {'type': 'ps', 'index': 0}}
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it is held for a server
        other.bind(('', port))
        other.listen(1)
        cases = [
            (programs.task('worker', '--batch_size=0', *ONE_PS), 'flag --batch_size=0'),
            (programs.task('ps', '--lerning_rate=1', *ONE_PS), "Unknown .* 'lerning_rate'"),
            (programs.task('train', 'help', folder='Non-Distributed-Setup'), 'what is "help"?'),
            (programs.task('worker'), 'No cluster is given. `bash run.sh`'),
            (programs.task('ps', TF_CONFIG='{'), 'TF_CONFIG cannot be read'),
            (programs.task('worker', *ONE_PS, TF_CONFIG=json.dumps(config)), 'given twice'),
            (programs.task('ps', TF_CONFIG=json.dumps(config)), f'cannot listen on port {port}'),
        ]
        for program, complaint in cases:
            program.fails(complaint)
            assert not program.out


def test_a_mistake_of_the_model_is_told_once(programs, tmp_path):
    """With the trace of the model's code in one worker; the others end without a word."""
    folder = tmp_path / 'HogWild'
    shutil.copytree(str(ROOT / 'HogWild'), str(folder))
    path = folder / 'model.py'
    path.write_text(path.read_text(encoding='utf-8').replace(
        '    units = images\n', "    raise RuntimeError(f'mine, on {images.device}')\n"),
        encoding='utf-8')
    run = programs.run_sh(folder, WORKERS=3)
    assert run.wait() == 1
    assert [line for line in run.err if line.startswith('RuntimeError: mine, on /job:worker/task:')]
    assert run.err[0] == "The model's loss_and_metrics fails:" and len(run.err) <= 6, str(run)
    assert not run.left()


# Tasks that do not answer.

def test_a_ps_that_does_not_answer(programs):
    dead, = free_ports(1)
    with socket.socket() as mute, socket.socket() as other, socket.socket() as curt:
        for server in mute, other, curt:
            server.bind(('localhost', 0))
            server.listen(20)
        for server, greeting in (other, b'SSH-2.0-server\r\n'), (curt, b''):
            threading.Thread(target=_greet, args=(server, greeting), daemon=True).start()
        cases = [
            (f'localhost:{dead}', 'Connection refused'),
            (f'localhost:{mute.getsockname()[1]}', 'timed out'),
            (f'localhost:{other.getsockname()[1]}', 'it is not a TensorFlow server'),
            (f'localhost:{curt.getsockname()[1]}', 'it closes the connection'),
            ('no-such-host.invalid:2222', '.+'),
        ]
        me = free_ports(len(cases))
        workers = [programs.task('worker', f'--ps_hosts={address}', '--task_index=0',
                                 f'--worker_hosts=localhost:{port}', '--patience_secs=3')
                   for (address, _), port in zip(cases, me)]
        for (address, reason), worker in zip(cases, workers):
            worker.fails(rf'^worker 0: ps 0 at {address} does not answer \({reason}\)\. Gave up '
                         r'after 3 s\.$')
            assert all(processes.WAITS.fullmatch(line) for line in worker.out)


def _greet(server, greeting):
    """Answers as servers of mail or shells do; without a word, as tunnels that lead nowhere."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(100)  # what is not read makes the end a rude one
            connection.sendall(greeting)


def test_a_chief_that_never_comes(programs):
    tasks = Tasks(programs)
    ps = tasks.start('ps', 0)
    tasks.start('worker', 1, '--patience_secs=3').fails(
        r'^worker 1: the chief, worker 0, has not initialized the parameters \(worker 0 at \S+ '
        r'does not answer \(Connection refused\)\)\. Gave up after 3 s\.$')
    assert ps.running, 'it waits for workers that are late'
    ps.kill()


# Checkpoints.

def _cut(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def _of_other_shapes(model_dir):
    """Puts a checkpoint of another network into a directory."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        for name in 'hidden_0/weights', 'hidden_0/biases', 'logits/weights', 'logits/biases':
            tf.get_variable(name, [3, 3])
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(model_dir / 'model.ckpt'), global_step=7)


def _of_other_names(model_dir):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable('my_weights', [3, 3])
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(model_dir / 'model.ckpt'), global_step=7)


def _of_no_checkpoint(list_of_them):
    """Returns a function that damages the list, and leaves nothing from which to make it again."""
    def damage(model_dir):
        (model_dir / 'checkpoint').write_bytes(list_of_them)
        for path in model_dir.glob('model.ckpt-*.index'):
            path.unlink()
    return damage


def _only(model_dir, pattern):
    path, = model_dir.glob(pattern)
    return path


DAMAGES = {
    'data cut': (lambda d: _cut(_only(d, 'model.ckpt-20.data*')), 'is damaged'),
    'data empty': (lambda d: _only(d, 'model.ckpt-20.data*').write_bytes(b''), 'is damaged'),
    'data missing': (lambda d: _only(d, 'model.ckpt-20.data*').unlink(), 'is damaged'),
    'index cut': (lambda d: _cut(d / 'model.ckpt-20.index'), 'is damaged'),
    'all missing': (lambda d: [path.unlink() for path in d.glob('model.ckpt-*.index')],
                    '"checkpoint" is damaged'),
    'list of noise': (_of_no_checkpoint(b'\xff\0\xfe' * 9), '"checkpoint" is damaged'),
    'list of words': (_of_no_checkpoint(b'model.ckpt'), '"checkpoint" is damaged'),
    'other shapes': (_of_other_shapes, 'is of another model'),
    'other names': (_of_other_names, 'is of another model'),
}


@pytest.fixture(scope='module', params=[
    'Distributed-Setup', pytest.param('Non-Distributed-Setup', marks=pytest.mark.thorough)])
def trained(request, tmp_path_factory):
    """A folder, and a model directory with its checkpoints at step 0 and 20."""
    directory = tmp_path_factory.mktemp('trained')
    programs = Programs(directory)
    run = programs.run_sh(request.param, '--train_steps=20', '--model_dir=model', cwd=directory)
    run.ends_well()
    return request.param, directory / 'model'


def test_checkpoints(programs, trained, tmp_path):
    folder, model_dir = trained
    # The code is the same; with a cluster it takes three times as long.
    names = ['data cut', 'other shapes', 'list of noise'] if 'Non' not in folder else DAMAGES
    runs = []
    for name in names:
        damage, complaint = DAMAGES[name]
        copy = tmp_path / name
        shutil.copytree(str(model_dir), str(copy))
        damage(copy)
        runs.append((programs.run_sh(folder, '--train_steps=30', f'--model_dir={copy}'), complaint))
        if len(runs) % 3 == 0:  # not all at once
            runs[-3][0].wait()
    for run, complaint in runs:
        run.fails(complaint)
        assert not run.out and not run.left()


@pytest.mark.parametrize('path', ['file', 'file/below', '/proc/below'])
def test_model_dir(tmp_path, path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SystemExit, match='^--model_dir=.* cannot be made or written to') as error:
        checkpoints.check_model_dir(str(tmp_path / path), 'evaluator')
    assert '\n' not in str(error.value)


def test_model_dir_is_a_file(programs, tmp_path):
    (tmp_path / 'file').write_text('')
    for run in [programs.run_sh(folder, f'--model_dir={tmp_path / "file"}')
                for folder in ('Distributed-Setup', 'Non-Distributed-Setup')]:
        run.fails('--model_dir=.*/file cannot be made or written to: File exists')
        assert not run.out and not run.left()


# Data.

@pytest.fixture
def mnist(tmp_path):
    """A function that puts a file in the place of mnist.npz, and then reads it."""
    flags.FLAGS.mark_as_parsed()

    def read(content):
        (tmp_path / 'mnist.npz').write_bytes(content)
        with flagsaver.flagsaver(dataset='mnist', data_dir=str(tmp_path)):
            return problem.load()
    return read


def _npz(tmp_path, **arrays):
    np.savez_compressed(str(tmp_path / 'arrays.npz'), **arrays)
    return (tmp_path / 'arrays.npz').read_bytes()


@pytest.mark.parametrize('damage', [
    lambda whole: whole[:len(whole) // 2],
    lambda whole: whole[:-1],
    lambda whole: b'',
    lambda whole: b'<html>not found</html>',
    lambda whole: whole[:200] + bytes(100) + whole[300:],
    lambda whole: whole.replace(b'x_test', b'z_test'),
])
def test_mnist_is_damaged(mnist, tmp_path, damage):
    whole = _npz(tmp_path, x_train=np.random.randint(256, size=(9, 28, 28)), y_train=np.arange(9),
                 x_test=np.zeros([2, 28, 28]), y_test=np.arange(2))
    assert [len(array) for array in mnist(whole)] == [9, 9, 2, 2]
    with pytest.raises(SystemExit, match='mnist.npz is not a whole mnist.npz .*Delete it') as error:
        mnist(damage(whole))
    assert '\n' not in str(error.value)


def test_mnist_is_missing_and_there_is_no_network(programs, tmp_path):
    offline = {f'{scheme}_proxy': 'http://localhost:1' for scheme in ('http', 'https')}
    (tmp_path / 'half').mkdir()
    (tmp_path / 'half' / 'mnist.npz').write_bytes(b'PK\3\4')
    missing, half = [
        programs.run_sh(folder, '--dataset=mnist', f'--data_dir={tmp_path / name}', **offline)
        for folder, name in [('Distributed-Setup', 'none'), ('Non-Distributed-Setup', 'half')]]
    missing.fails('--dataset=mnist: there is no .*none/mnist.npz, and downloading https://.* '
                  r'failed \(.*refused.*\). Put the file there, or name its directory with')
    half.fails('half/mnist.npz is not a whole mnist.npz')
    assert not list((tmp_path / 'none').iterdir())
    assert not missing.left() and not half.left()


# Training.

def test_a_learning_rate_that_diverges(programs):
    for run in [programs.run_sh(folder, '--learning_rate=1e30')
                for folder in ('HogWild', 'Non-Distributed-Setup')]:
        run.fails('(worker .|train): the loss is (nan|inf) at step .*Try a smaller --learning_rate')
        assert not run.left() and not run.matches(TEST)


# run.sh.

@pytest.mark.parametrize('setting, complaint', [
    ({'WORKERS': 0}, 'WORKERS=0 is not a positive number'),
    ({'WORKERS': -1}, 'WORKERS=-1 is not a positive number'),
    ({'PS': 'x'}, 'PS=x is not a positive number'),
    ({'PS': '1 2'}, 'PS=1 2 is not a positive number'),
    ({'PORT': 'abc'}, 'PORT=abc is not a positive number'),
    ({'PORT': 65535}, 'the ports from PORT=65535 on'),
    ({'PYTHON': 'no-such-python'}, 'there is no no-such-python'),
])
def test_settings(programs, setting, complaint):
    run = programs.run_sh('HogWild', **setting)
    run.fails(f'^run.sh: {complaint}')
    assert not run.out and not run.left()


def test_port_in_use(programs):
    port, = free_ports(1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it is held for a server
        other.bind(('', port))
        other.listen(1)
        run = programs.run_sh('HogWild', PORT=port)
        run.fails(f'ps 0 cannot listen on port {port}')
        assert not run.left()


def task_of(process):
    """Returns the cluster and the task of a process, or None if it is no task."""
    try:
        return json.loads(process.environ().get('TF_CONFIG', 'null'))
    except psutil.NoSuchProcess:
        return None


def test_fixed_ports_and_a_model_dir_seen_from_where_the_user_is(programs):
    port = next(port for port in free_ports(100)
                if not any(listens(f'localhost:{port + i}') for i in (1, 2)))
    run = programs.run_sh('HogWild', '--train_steps=50', '--model_dir=sub/model', PORT=port)
    wait_until(lambda: sum(map(bool, map(task_of, run.left()))) == 3 or not run.running, run)
    configs = list(filter(None, map(task_of, run.left())))
    hosts = [f'localhost:{port + i}' for i in range(3)]
    assert [config['cluster'] for config in configs] == [{'ps': hosts[:1], 'worker': hosts[1:]}] * 3
    run.ends_well()
    assert processes.checkpoints(run.cwd / 'sub' / 'model')[-1] >= 50


def test_one_task_fails(programs):
    run = programs.run_sh('HogWild', *ENDLESS)
    run.wait_for(STEP, 2)
    victim, = [process for process in run.left()
               if (task_of(process) or {}).get('task') == {'type': 'worker', 'index': 1}]
    victim.kill()
    assert run.wait() == 128 + signal.SIGKILL, str(run)
    assert len(run.err) <= 1, str(run)  # what bash says of a process that was killed
    assert not run.left()


def test_signals(programs):
    """They end one run, and no other."""
    runs = [programs.run_sh('HogWild', *ENDLESS, WORKERS=1) for _ in range(2)]
    for run in runs:
        run.wait_for(STEP)
    beginning = programs.run_sh('HogWild', *ENDLESS)
    wait_until(lambda: any(map(task_of, beginning.left())), beginning)
    beginning.send(signal.SIGTERM)
    other = programs.run_sh('HogWild', '--train_steps=500', '--log_every_n_steps=10',
                            '--straggler=0:0.02,1:0.02')
    other.wait_for(STEP)
    runs[0].send(signal.SIGINT, group=True)  # Ctrl-C
    runs[1].send(signal.SIGTERM)
    for run, status in [(beginning, 143), (runs[0], 130), (runs[1], 143)]:
        assert run.wait() == status and not run.err, str(run)
        assert not run.left()
    other.wait_for(STEP, len(other.matches(STEP)) + 1)
    other.ends_well()


def test_ctrl_c_without_a_cluster(programs):
    run = programs.run_sh('Non-Distributed-Setup', '--train_steps=1000000000')
    run.wait_for(STEP)
    run.send(signal.SIGINT, group=True)
    assert run.wait() == -signal.SIGINT and not run.err, str(run)
    assert not run.left()
