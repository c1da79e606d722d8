"""What a run prints and what it writes for TensorBoard."""

import sys
import types

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.start import console, quiet
from tfdist.training import report

from conftest import load_program
from processes import ROOT

FLAGS = flags.FLAGS


@pytest.fixture(autouse=True)
def program_flags(tmp_path, monkeypatch):
    """The flags of a worker at their defaults, in an empty directory."""
    load_program('HogWild')
    FLAGS.mark_as_parsed()
    monkeypatch.chdir(tmp_path)
    with flagsaver.flagsaver(train_steps=100, log_every_n_steps=4):
        yield


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets by hand: `clock.now`, in seconds since the program began."""
    clock = types.SimpleNamespace(now=2.)
    monkeypatch.setattr(report, 'time', types.SimpleNamespace(
        monotonic=lambda: quiet.START + clock.now))
    return clock


def result(global_step, loss, accuracy=0.5, **others):
    """Returns what one run of a train op returns."""
    others = {key: np.int64(value) for key, value in others.items()}
    return dict(global_step=np.int64(global_step), loss=np.float32(loss),
                accuracy=np.float32(accuracy), **others)


def events(directory):
    """Returns what TensorBoard finds in a directory itself: (tag, step) -> value."""
    found = {}
    for path in directory.glob('events.*'):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_a_port_that_is_taken_in_the_last_moment(programs):
    """`membership` has looked, and found it free."""
    program = programs.directory / 'late.py'
    program.write_text("""
import socket
from tfdist.start import console
from tfdist.start.quiet import tf


def main(_):
    with socket.socket() as other:
        other.bind(('', 0))
        other.listen()
        tf.train.Server({'ps': [f'localhost:{other.getsockname()[1]}']}, 'ps', 0)


console.run(main)
""", encoding='utf-8')
    programs.start([sys.executable, program], env={'PYTHONPATH': str(ROOT)}).fails(
        '^Another process has taken the port of this task meanwhile|'
        r'^E\d+ .*Address already in use',  # gRPC's own word, in 1.15
        lines=range(1, 3))


def test_lines(clock, capsys):
    """Means and maxima of what came since the last line; in the end, of all that came."""
    progress = report.Progress('worker 1', 0)
    for i, (loss, staleness) in enumerate([(1, 0), (2, 1), (3, 6), (6, 1)]):
        clock.now += 0.5
        progress.add(result(2 * i + 1, loss, i / 4, staleness=staleness))
    for step in range(8, 12):
        clock.now += 0.25
        progress.add(result(step, 1, 1, staleness=2))
    clock.now += 1.5
    progress.add(result(12, 0, 0, staleness=0))
    progress.done()
    progress.test({'accuracy': 0.98765, 'loss': 0.1})
    assert capsys.readouterr().out.splitlines() == [
        'worker 1: starts at step 0 of 100, after 2.0 s',
        'worker 1: step 7 of 100, loss 3.000, accuracy 0.375, staleness 2.0 (max 6), 2 steps/s',
        'worker 1: step 11 of 100, loss 1.000, accuracy 1.000, staleness 2.0 (max 2), 4 steps/s',
        'worker 1: did 9 local steps, staleness 1.8 (max 6), 2 steps/s',
        'worker 1: test accuracy 0.988 after 12 steps, 6.5 s']
    assert progress.global_step == 12


def test_windows_of_local_steps(clock, capsys):
    """A run may be of many local steps: lines and rates go by those, means by runs."""
    progress = report.Progress('worker 0', 0)
    for window in range(1, 5):
        clock.now += 1
        progress.add(result(window, window), local_steps=2)
    progress.done()
    assert capsys.readouterr().out.splitlines()[1:] == [
        'worker 0: step 2 of 100, loss 1.500, accuracy 0.500, 2 steps/s',
        'worker 0: step 4 of 100, loss 3.500, accuracy 0.500, 2 steps/s',
        'worker 0: did 8 local steps, 2 steps/s']


@pytest.mark.parametrize('seconds, rate', [(0.0625, '128'), (0.25, '32'), (3, '2.67'),
                                           (100, '0.08'), (30000, '0.000267')])
def test_the_rate_of_slow_models_is_told(clock, capsys, seconds, rate):
    progress = report.Progress('worker 0', 0)
    clock.now += seconds
    progress.add(result(1, 1), local_steps=8)
    assert capsys.readouterr().out.endswith(f', {rate} steps/s\n')


def test_a_run_may_bring_several_figures(clock, capsys):
    """Such as the staleness of each gradient in an update."""
    clock.now += 1
    progress = report.Progress('worker 0', 0)
    clock.now += 1
    for step, staleness in enumerate([[0, 4], [1, 3]]):
        progress.add(dict(result(step, 1), staleness=np.array(staleness)), local_steps=2)
    assert 'staleness 2.0 (max 4)' in capsys.readouterr().out


@pytest.mark.parametrize('step, is_chief, word', [
    (0, True, 'starts'), (0, False, 'starts'), (7, True, 'starts'), (7, False, 'joins')])
def test_first_line(clock, capsys, step, is_chief, word):
    report.Progress('worker 3', step, is_chief)
    assert capsys.readouterr().out == f'worker 3: {word} at step {step} of 100, after 2.0 s\n'


def test_dropped_updates_are_counted(clock, capsys):
    progress = report.Progress('worker 1', 0)
    for step, dropped in enumerate([0, 1, 0, 0, 1]):
        clock.now += 0.25
        progress.add(result(step, 1, 1, dropped=np.float32(dropped)))
    clock.now += 0.75
    progress.done()
    assert capsys.readouterr().out.splitlines()[1:] == [
        'worker 1: step 3 of 100, loss 1.000, accuracy 1.000, accepted 3, dropped 1, 4 steps/s',
        'worker 1: did 5 local steps, accepted 3, dropped 2, 2.5 steps/s']


@pytest.mark.parametrize('loss', ['nan', 'inf', '-inf'])
def test_a_loss_that_is_not_finite_ends_the_program(loss):
    progress = report.Progress('worker 1', 0)
    progress.add(result(1, 2.5))
    with pytest.raises(SystemExit) as error:
        progress.add(result(2, loss))
    assert str(error.value) == (f'worker 1: the loss is {loss} at step 2: training diverged. '
                                'Try a smaller --learning_rate.')


def test_tensorboard(clock, tmp_path):
    """Of each line: the figures under their names, at its step. A file for each process."""
    FLAGS.model_dir = str(tmp_path / 'model')
    chief = report.Progress('worker 0', 0, is_chief=True)
    worker = report.Progress('worker 1', 0, is_chief=False)
    for step in range(1, 9):
        clock.now += 0.5
        chief.add(result(10 * step, step, staleness=step % 2))
    worker.add(result(21, 3.5, 0.25, staleness=7), local_steps=8)
    chief.test({'accuracy': 0.75, 'loss': 0.5})
    assert events(tmp_path / 'model') == {
        ('loss', 40): 2.5, ('accuracy', 40): 0.5, ('staleness', 40): 0.5, ('steps/s', 40): 2,
        ('loss', 80): 6.5, ('accuracy', 80): 0.5, ('staleness', 80): 0.5, ('steps/s', 80): 2,
        ('test_accuracy', 80): 0.75, ('test_loss', 80): 0.5}
    assert events(tmp_path / 'model' / 'worker-1') == {
        ('loss', 21): 3.5, ('accuracy', 21): 0.25, ('staleness', 21): 7, ('steps/s', 21): 2}


def test_nothing_is_written_without_a_model_dir(tmp_path):
    progress = report.Progress('train', 0)
    for step in range(8):
        progress.add(result(step, 1))
    progress.done()
    progress.test({'accuracy': 1., 'loss': 0.})
    assert not list(tmp_path.iterdir())


def test_tensorflow_comes_without_keras():
    """It would take a third of the start on TensorFlow 2.21; these tests import console, too."""
    assert 'tensorflow' in sys.modules and 'keras' not in sys.modules


@pytest.mark.parametrize('message', [
    "No OpKernel was registered to support Op 'Inv' used by {{node a}}with: [T=DT_HALF]",
    "No registered 'Inv' OpKernel for 'CPU' devices compatible with node {{node a}}\n\t "
    "(OpKernel was found) Requested Attributes: T=DT_HALF, _device=\"/job:worker\"\n"])
def test_a_type_that_tensorflow_lacks(programs, tmp_path, message):
    """One line, not the trace of what happened to meet it first."""
    path = tmp_path / 'program.py'
    path.write_text('from tfdist.start import console\n\n\ndef main(_):\n'
                    f'    raise ValueError({message!r})\n\n\nconsole.run(main)\n')
    run = programs.start([sys.executable, path], env={'PYTHONPATH': str(ROOT)})
    run.fails('^This version of TensorFlow has no Inv for half: use another type in the model')


@pytest.fixture
def given_up(monkeypatch):
    """A function that runs a main function as a program does; returns the line of its end."""
    class End(BaseException):
        pass

    def end(line, status):
        assert status == 1, 'to start again does not help'
        raise End(line)

    def run(main):
        with pytest.raises(End) as error, tf.Graph().as_default():
            console.run(main)
        return str(error.value)

    monkeypatch.setattr(console, 'give_up', end)
    monkeypatch.setattr(console.signal, 'getsignal', lambda _: None)
    monkeypatch.setattr(console.app, 'run', lambda main, flags_parser: main([]))
    return run


@pytest.mark.parametrize('words', [
    "NodeDef mentions attr 'debug_name' not in Op<name=VarHandleOp; signature= -> resource:reso",
    "NodeDef missing attrs 'container', 'capacity' from Op<name=VarHandleOp; signature= -> handl"])
def test_a_task_with_another_tensorflow(given_up, words):
    """TensorFlow's words, shortened; see all of them in a run of both."""
    def main(_):
        raise tf.errors.InvalidArgumentError(
            None, None, f"Graph execution error:\nNode: 'x'\n{words}\nAdditional GRPC error "
            'information from remote target /job:ps/replica:0/task:3 while calling '
            '/tensorflow.WorkerService/RegisterGraph:\n:UNKNOWN:Error received from peer')

    assert given_up(main) == (
        f'ps 3 runs another TensorFlow than this task, which runs {tf.__version__}: it does not '
        'know VarHandleOp in this form. Give all tasks the same TensorFlow.')


@pytest.mark.parametrize('resource', [False, True])
def test_a_task_with_another_model(given_up, cluster, resource):
    """The variables' own task is asked; another failure is told as before."""
    def variables(size):
        with tf.device('/job:ps/task:1'):
            return [tf.get_variable(f'{name}_{resource}', shape, use_resource=resource)
                    for name, shape in (('same', [2, 3]), ('other', [size, 1]))]

    def session(worker):
        return tf.Session(cluster.servers['worker', worker].target, config=cluster.config(worker))

    def main(size):
        made = variables(size)
        padded = tf.stack([made[1], tf.zeros([size, 1])], name='padded')
        failing = tf.verify_tensor_all_finite(made[1], 'not finite')
        with session(1) as own:
            own.run(failing if size == 5 else padded)

    with tf.Graph().as_default():
        made = variables(5)
        with session(0) as first:
            first.run(tf.global_variables_initializer())
            assert given_up(lambda _: main(4)) == (
                f'The variable other_{resource} has shape [5, 1] on ps 1, and shape [4, 1] in the '
                'model of this task. Give all tasks the same model and the same flags.')
            first.run(made[1].assign(np.full([5, 1], np.nan)))
            line = given_up(lambda _: main(5))
            assert 'not finite' in line and 'in an operation made by' in line
