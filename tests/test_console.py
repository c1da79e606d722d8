"""What a run prints and what it writes for TensorBoard."""

import sys
import types

from absl import flags
from absl.testing import flagsaver
from conftest import load_program
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tfdist import quiet, report

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
        time=lambda: quiet.START + clock.now))
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
