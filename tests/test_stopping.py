"""Tests while training goes on: the best is kept, and all stop when nothing is gained."""

import json
import re

from absl import flags
from absl.testing import flagsaver
import pytest
import tensorflow.compat.v1 as tf

from tfdist.training import evaluation, stopping

from conftest import load_program
from processes import DID, ROOT, STOPS, TEST, TESTED

ENDLESS = ['--train_steps=10000000', '--log_every_n_steps=10000000', '--eval_every_secs=0.4',
           '--stop_after_evals_without_gain=2']


@pytest.mark.parametrize('folder, more, env', [
    pytest.param('HogWild', [], {}, marks=pytest.mark.thorough),
    ('Synchronous-SGD', [], {}),
    pytest.param('Synchronous-SGD', ['--replicas_to_aggregate=2'], {'WORKERS': 3},
                 marks=pytest.mark.thorough),
    pytest.param('Ring-AllReduce', [], {}, marks=pytest.mark.thorough),
    pytest.param('AGN', [], {'PS': 2}, marks=pytest.mark.thorough),
    pytest.param('SSP', [], {}, marks=pytest.mark.thorough),
    pytest.param('Elastic-Workers', [], {}, marks=pytest.mark.thorough),
    pytest.param('In-Graph-Replication', [], {}, marks=pytest.mark.thorough),
    pytest.param('In-Graph-Replication', ['--mode=async'], {}, marks=pytest.mark.thorough),
    pytest.param('Non-Distributed-Setup', [], {}, marks=pytest.mark.thorough),
    pytest.param('Distributed-MNIST', [], {}, marks=pytest.mark.thorough),
    pytest.param('Multiple-GPUs-Single-Machine', [], {'MODE': 'towers'},
                 marks=pytest.mark.thorough),
    pytest.param('Multiple-GPUs-Single-Machine', [], {'MODE': 'threads'},
                 marks=pytest.mark.thorough),
], ids=str)
def test_all_stop_and_the_best_is_kept(programs, tmp_path, folder, more, env):
    run = programs.run_sh(folder, *ENDLESS, *more, f'--model_dir={tmp_path}', **env)
    run.ends_well()
    assert not run.left()
    stop, = run.matches(STOPS)
    tests = [(float(re.search(r'accuracy ([\d.]+)', line).group(1)), int(match['step']))
             for line, match in ((line, TESTED.fullmatch(line)) for line in run.out) if match]
    best = max(accuracy for accuracy, _ in tests)
    assert max(accuracy for accuracy, _ in tests[-2:]) <= best, 'no gain'
    assert int(stop['step']) >= tests[-1][1]
    last = int(run.wait_for(TEST)['step'])
    assert int(stop['step']) <= last < int(stop['step']) + 100
    assert len(run.matches(DID)) >= 1
    kept = json.loads((tmp_path / 'best' / 'figures.json').read_text(encoding='utf-8'))
    assert round(kept['accuracy'], 3) == best
    checkpoint = tf.train.latest_checkpoint(str(tmp_path / 'best'))
    first_best = next(step for accuracy, step in tests if accuracy == best)
    assert first_best <= tf.train.load_checkpoint(checkpoint).get_tensor('global_step') <= (
        int(stop['step']))


def test_without_tests_there_is_nothing_to_gain(programs):
    run = programs.run_sh('HogWild', '--stop_after_evals_without_gain=2')
    run.fails('--stop_after_evals_without_gain: without --eval_every_secs there are no such tests.')


@pytest.fixture
def model_dir(tmp_path):
    load_program('HogWild')
    flags.FLAGS.mark_as_parsed()
    with tf.Graph().as_default(), flagsaver.flagsaver(model_dir=str(tmp_path)):
        tf.train.get_or_create_global_step()
        tf.get_variable('x', initializer=1.)
        yield tmp_path


@pytest.mark.parametrize('names, tests, without_gain', [
    (['auc', 'accuracy'], [0.5, 0.7, 0.7, 0.6, 0.8], [0, 0, 1, 2, 0]),
    ([], [0.5, 0.4, 0.4, 0.3], [0, 0, 1, 0])])
def test_what_is_a_gain(model_dir, names, tests, without_gain):
    """More of the first metric, or less of the loss; also after the run was resumed."""
    best = evaluation._Best(names)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = [best.compare(session, {**dict.fromkeys(names, 0.1), (names or ['loss'])[0]: test})
                 for test in tests]
        assert found == without_gain
        assert evaluation._Best(names).compare(session, {(names or ['loss'])[0]: tests[-1]}) == 1
    assert len(list((model_dir / 'best').glob('*.index'))) == 1, 'the best, and no other'


def test_the_flags_are_those_of_all_folders():
    for path in ROOT.glob('*/worker.py'):
        text = path.read_text(encoding='utf-8')
        assert 'Scheme' not in text or '.now_and_then' in text


def test_the_last_step_is_decided_once():
    """A chief that is started again, after others have heard of the end, does not move it."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        last = stopping.LastStep(step, '/device:CPU:0')
        session.run(step.initializer)
        decided = last.write(session)
        session.run(step.assign_add(3))
        assert last.write(session) == decided == session.run(last.value)
