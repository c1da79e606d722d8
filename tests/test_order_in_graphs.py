"""What has to come before what in the graphs of schemes: a race would show it once in a while only.

Mostly a wrong order gives the right numbers, as long as nobody else comes in between.
"""

import types

import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import exchange, graphs
from tfdist.scheme.toy import Problem

from conftest import load_program
from test_seam import defaults

UPDATES = 'ResourceApplyGradientDescent', 'AssignAddVariableOp', 'AssignSubVariableOp'


@pytest.fixture
def make():
    """A function that makes a scheme on two variables, in a graph of its own; and these."""
    def made(folder, num_workers=2, **changes):
        program = load_program(folder)
        hparams = types.SimpleNamespace(**defaults(folder, **changes))
        center = [tf.get_variable(f'x{i}', initializer=1.) for i in range(2)]

        def loss_at(values):
            return sum(tf.square(value) for value in values), tf.constant(0.)

        step = tf.train.get_or_create_global_step()
        return program.Scheme(Problem(loss_at, center), step, hparams, 0, num_workers), center

    with tf.Graph().as_default():
        yield made


def touching(variables, fetches):
    """Returns the ops that read or write some variables for fetches."""
    handles = {variable.handle.op for variable in variables}
    return [op for op in graphs.ancestors(fetches) if handles & {each.op for each in op.inputs}]


def locks(fetches):
    """Returns the ops that take the lock of a critical section before fetches are there."""
    return {op for op in graphs.ancestors(fetches) if op.type == 'MutexLock'}


def test_a_pull_reads_the_step_first():
    """Else updates between the two reads would not count as staleness: it would be too low."""
    with tf.Graph().as_default():
        variables = [tf.get_variable(f'x{i}', initializer=1.) for i in range(2)]
        step, *values = exchange.pull(variables, tf.train.get_or_create_global_step())
        assert len(values) == 2
        assert all(step.op in graphs.ancestors([value]) for value in values)
        assert not any(value.op in graphs.ancestors([step]) for value in values)


@pytest.mark.parametrize('folder, part', [('DynSGD', 'pull'), ('DynSGD', 'push'),
                                          ('DC-ASGD', 'push')])
def test_critical_sections_have_all_that_touches_the_center(make, folder, part):
    scheme, center = make(folder)
    before = [] if part == 'pull' else touching(center, scheme.pull)
    fetches = scheme.pull if part == 'pull' else list(scheme.push.values())
    mine = [op for op in touching([*center, tf.train.get_global_step()], fetches)
            if op not in before and op not in graphs.ancestors(scheme.pull) or part == 'pull']
    assert len(mine) >= 3
    earlier = set() if part == 'pull' else locks(scheme.pull)
    assert all(locks([op]) - earlier for op in mine)


def test_ssp_ticks_after_its_push(make):
    """Whoever the tick lets go on pulls what was pushed."""
    scheme, center = make('SSP')
    clocks = {op for op in graphs.ancestors(list(scheme.push.values()))
              if op.type == 'ResourceScatterAdd'}
    updates = {op for op in touching(center, list(scheme.push.values())) if op.type in UPDATES}
    assert len(clocks) == 1 and len(updates) == len(center)
    assert all(updates <= graphs.ancestors([tick]) for tick in clocks)


def test_contributions_are_the_last_part_of_a_push_and_are_taken_first(make):
    """So whoever is noted as a contributor is in each of the means."""
    scheme, center = make('Synchronous-SGD', num_workers=3, replicas_to_aggregate=2)
    noted = scheme.barrier._contributions.accumulator.accumulator_ref.op

    def of_kind(kind, fetches):
        found = [op for op in graphs.ancestors(fetches) if op.type.endswith(kind)]
        return ([op for op in found if op.inputs[0].op is noted],
                [op for op in found if op.inputs[0].op is not noted])

    (note,), pushes = of_kind('AccumulatorApplyGradient', list(scheme.push.values()))
    (take,), takes = of_kind('AccumulatorTakeGradient', [scheme.complete])
    assert len(pushes) == len(takes) == len(center)
    assert set(pushes) <= graphs.ancestors([note])
    assert all(take in graphs.ancestors([each]) for each in takes)
