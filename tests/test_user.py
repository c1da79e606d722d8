"""Every folder as its user has it: copied elsewhere, run with small flags, run again."""

import os
import shutil

from absl import flags
import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from conftest import load_program, ROOT
from processes import (BEGINS, checkpoints, DID, examples, GOOD_LINES, RESUMES, STEP,
                       TEST, warm_python)

CHANCE = 0.5  # one of ten digits: to guess this many of the 297 right is out of reach
STEPS = 500
MORE_STEPS = 600


@pytest.fixture(params=examples())
def copy(request, tmp_path):
    """A copy of a folder and of the library, alone in a directory with a space in its name."""
    project = tmp_path / 'my project'
    for name in request.param, 'tfdist':  # with what is compiled: else each process compiles all
        shutil.copytree(str(ROOT / name), str(project / name),
                        ignore=shutil.ignore_patterns('*.pyc.*', 'records', 'runs'))
    return project / request.param


def start(programs, copy, *flags):
    """Starts `bash run.sh` as in the README, with `python` on the PATH."""
    path = os.pathsep.join([os.path.dirname(warm_python()), os.environ['PATH']])
    return programs.start(['bash', 'run.sh', '--log_every_n_steps=25', *flags], cwd=copy,
                          env={'PATH': path})


def has_scheme(copy):
    """Returns whether the workers train, by a scheme; in other folders one process does."""
    return (copy / 'worker.py').exists() and hasattr(load_program(copy.name), 'Scheme')


def slow_flags(copy):
    """Returns flags for a run in which a worker that comes seconds late finds work left."""
    if not has_scheme(copy):
        return []
    worker = load_program(copy.name)
    flags.FLAGS([''])
    delay = 0.005 / worker.Scheme.local_steps(flags.FLAGS)  # so much for each update
    return ['--straggler=' + ','.join(f'{i}:{delay}' for i in range(9))]


def check(run, copy, steps):
    """Asserts that a run ended well, and that it says so in the way that all folders do."""
    run.ends_well()
    assert not run.left()
    foreign = [line for line in run.out if not any(form.fullmatch(line) for form in GOOD_LINES)]
    assert not foreign, str(run)
    test, = run.matches(TEST)
    assert int(test['step']) >= steps
    assert float(test['accuracy']) > CHANCE, str(run)
    names = sorted(match['name'] for match in run.matches(DID))
    assert names == sorted(match['name'] for match in run.matches(BEGINS))
    assert test['name'] == names[0]
    if has_scheme(copy):
        assert names == [f'worker {i}' for i in range(len(names))]
    else:
        assert len(names) == 1


def scalars(directory):
    """Returns a dict: the set of scalars that TensorBoard finds, by the name of the run."""
    board = EventMultiplexer().AddRunsFromDirectory(str(directory))
    board.Reload()
    return {run: set(tags['scalars']) for run, tags in board.Runs().items()}


def train(programs, copy, *directories):
    """Starts a run for each of the directories at the same time, and checks them.

    Returns:
      List of floats, the losses that the last one printed.
    """
    runs = {directory: start(programs, copy, f'--model_dir={directory}', f'--train_steps={STEPS}',
                             *slow_flags(copy))
            for directory in directories}
    for directory, run in runs.items():
        check(run, copy, STEPS)
        assert all(int(match['local_steps']) > 0 for match in run.matches(DID)), str(run)
        losses = [float(match['loss']) for match in run.matches(STEP)]
        assert losses[-1] < losses[0], str(run)
        assert not run.matches(RESUMES)
        assert {'loss', 'accuracy', 'steps/s', 'test_accuracy'} <= scalars(copy / directory)['.']
    return losses


# With a ps, without one, and with a chief of its own: each has to find free ports.
@pytest.mark.thorough
@pytest.mark.parametrize('copy', ['HogWild', 'Ring-AllReduce', 'Model-Parallel'], indirect=True)
def test_two_runs_at_the_same_time(programs, copy):
    train(programs, copy, 'first', 'beside')


# In `make test`, one of each kind: the others are started by tests of their own.
@pytest.mark.brief
@pytest.mark.parametrize('copy', sorted(set(examples()) - {
    'AEAMSGD', 'AEASGD', 'AGN', 'DC-ASGD', 'DiLoCo', 'Distributed-MNIST', 'Distributed-Setup',
    'DOWNPOUR', 'DOWNPOUR-Easy', 'DynSGD', 'Elastic-Workers', 'FedAvg', 'Gossip',
    'In-Graph-Replication', 'Local-SGD', 'Model-Parallel', 'Multiple-GPUs-Single-Machine',
    'Parameter-Placement', 'Ring-AllReduce', 'SAGN', 'SSP', 'Synchronous-SGD',
    'Synchronous-SGD-different-learning-rates', 'Work-Queue'}),
                         indirect=True)
def test_run(programs, copy):
    train(programs, copy, 'first')


@pytest.mark.thorough
def test_run_then_resume(programs, copy):
    losses = train(programs, copy, 'first')
    end = checkpoints(copy / 'first')[-1]
    assert end >= STEPS
    again = start(programs, copy, '--model_dir=first', f'--train_steps={MORE_STEPS}')
    check(again, copy, MORE_STEPS)
    resumed, = again.matches(RESUMES)
    assert int(resumed['step']) == end
    assert all(int(match['step']) >= end for match in again.matches(BEGINS))
    assert float(again.matches(STEP)[0]['loss']) < losses[0], 'what was learnt is kept'
    assert checkpoints(copy / 'first')[-1] >= MORE_STEPS
