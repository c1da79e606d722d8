"""Tables: in each scheme they are trained row by row as if they were dense, and never travel."""

import functools
import sys
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.data import batches
from tfdist.model import building, model_file
from tfdist.scheme import seam, tables

from cases import briefly
from conftest import load_program
from test_seam import at_once, CASES, defaults, in_turn, is_together, of_each_kind

ROWS, DIMENSION, BATCH = 7, 2, 4
WHOLE = ['AEASGD', 'AEAMSGD', 'DiLoCo', 'Ring-AllReduce']  # in these each worker has all
KEPT = [case for case in CASES
        if case.values[0] not in WHOLE and 'aggregate' not in case.values[1]]
BRIEF = 'AGN', 'DOWNPOUR', 'HogWild', 'Synchronous-SGD'


def loss_and_metrics(batch, training, parts=1):
    """A table of which rows are looked up, two at a time, and a dense layer on them."""
    del training
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    table = tf.get_variable('table', [ROWS, DIMENSION], partitioner=partitioner,
                            initializer=tf.random_uniform_initializer(-1, 1, seed=3))
    weights = tf.get_variable('weights', initializer=tf.constant([[0.5], [-1.5]]))
    if isinstance(batch['ids'], tf.SparseTensor):
        units = tf.nn.embedding_lookup_sparse(table, batch['ids'], None, combiner='sum')
    else:
        units = tf.reduce_sum(tf.nn.embedding_lookup(table, batch['ids']), axis=1)
    error = tf.matmul(units, weights)[:, 0] - batch['target']
    return tf.reduce_mean(tf.square(error)), {}


def batches_of(worker, count, num_rows=ROWS, sparse=False):
    """Returns the batches of a worker: with ids that come twice, and others that never come.

    If they are sparse, some examples have two, and others one.
    """
    random = np.random.RandomState(worker)
    examples = {'ids': random.randint(num_rows, size=(60, 2)),
                'target': random.normal(size=60).astype(np.float32)}
    if sparse:
        where = np.argwhere((examples['ids'] < num_rows - 2) | [True, False])
        examples['ids'] = tf.SparseTensor(where, examples['ids'][tuple(where.T)], [60, 2])
    dataset = tf.data.Dataset.from_tensor_slices(examples).repeat()
    for size in BATCH, count:
        dataset = dataset.batch(size, drop_remainder=True)
    return batches.in_pieces(batches.next_of(dataset))


def a_model(**kwargs):
    """Returns a model of the function above, with its arguments by name."""
    return model_file.Model(types.SimpleNamespace(
        __name__='toy', __file__='toy', train_batches=None, test_batches=None,
        loss_and_metrics=lambda batch, training: loss_and_metrics(batch, training, **kwargs)))


class Trained:
    """All workers of a scheme, in one graph and one session."""

    def __init__(self, folder, num_workers, changes, tables_stay_on_ps, parts=1, num_rows=ROWS,
                 sparse=False):
        if folder == 'SSP':
            num_workers = 1  # there is one gate in a graph
        program = load_program(folder)
        hparams = types.SimpleNamespace(**defaults(folder, **changes))
        hparams.learning_rate = 0.05
        with tf.Graph().as_default() as graph:
            tf.set_random_seed(1)
            global_step = tf.train.get_or_create_global_step()
            count = program.Scheme.local_steps(hparams)
            self.network = building.Network(
                a_model(parts=parts), batches_of(0, count, sparse=sparse),
                tables_stay_on_ps=tables_stay_on_ps)
            self.batches = [batches_of(i, count, num_rows, sparse) for i in range(num_workers)]
            self.schemes = [
                program.Scheme(self.network.again(own), global_step, hparams, i, num_workers)
                for i, own in enumerate(self.batches)]
            self.table = [variable for variable in tf.global_variables()
                          if variable.op.name.split('/')[0] == 'table']
            self.variables = tf.trainable_variables()
            initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                          tf.tables_initializer()]
        self.session = tf.Session(graph=graph, config=tf.ConfigProto(operation_timeout_in_ms=20000))
        for op in initialize:
            self.session.run(op)
        for scheme in self.schemes:
            for hook in scheme.hooks:
                hook.after_create_session(self.session, None)

    def rounds(self, count):
        """All workers run `count` times, one after the other or at once; returns the losses."""
        together = at_once if is_together(self.schemes[0]) else in_turn
        runs = [lambda scheme=scheme: self.session.run(scheme.train_op) for scheme in self.schemes]
        return [[result['loss'] for result in together(runs)] for _ in range(count)]

    def values(self):
        return self.session.run(self.variables)


@pytest.fixture
def trained(monkeypatch):
    """A function that makes a `Trained`; it has no devices of workers."""
    made = []
    flags.FLAGS.mark_as_parsed()

    def make(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
            made.append(Trained(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.session.close()


@pytest.mark.parametrize('num_workers, parts, num_rows', [
    pytest.param(1, 1, ROWS, marks=pytest.mark.thorough), (2, 3, ROWS),
    pytest.param(2, 3, 2, id='nothing of a part', marks=pytest.mark.thorough)])
@pytest.mark.parametrize('folder, changes', briefly(KEPT, BRIEF))
def test_rows_are_trained_as_if_the_table_were_dense(trained, monkeypatch, folder, changes,
                                                     num_workers, parts, num_rows):
    def load(folder, load_program=load_program):
        program = load_program(folder)
        if folder == 'Distributed-MNIST':  # lazily is not the same; see below
            program.optimizers.LazyAdam = tf.train.AdamOptimizer
        return program

    monkeypatch.setattr(sys.modules[__name__], 'load_program', load)
    as_if_dense(trained, folder, num_workers, changes, parts, num_rows)


@pytest.mark.parametrize('folder, changes', [case for case in KEPT if case.values[0] == 'AGN'])
def test_rows_of_sparse_ids(trained, folder, changes):
    as_if_dense(trained, folder, 2, changes, 3, sparse=True)


def as_if_dense(trained, folder, num_workers, changes, parts, num_rows=ROWS, sparse=False):
    """Asserts that a table is trained in the same way if it is left where it is."""
    rows, dense = [trained(folder, num_workers, changes, tables_stay_on_ps, parts, num_rows, sparse)
                   for tables_stay_on_ps in (True, False)]
    kinds = [type(variable) for variable in rows.network.variables]
    assert kinds.count(tables.Rows) == parts and tables.Rows not in map(
        type, dense.network.variables)
    begin = rows.values()
    for losses, same in zip(rows.rounds(4), dense.rounds(4)):
        np.testing.assert_allclose(losses, same, rtol=1e-5)
    moved = []
    for value, same, first in zip(rows.values(), dense.values(), begin):
        np.testing.assert_allclose(value, same, atol=1e-6)
        moved.append((value != first).any())
    assert moved == [True] * min(parts, num_rows) + [False] * (parts > num_rows) + [True]


@pytest.mark.parametrize('folder', ['HogWild', pytest.param('AGN', marks=pytest.mark.thorough)])
def test_a_straggler_has_tables(trained, monkeypatch, folder):
    """Its delay begins when the rows are there: so it is not the ids that wait."""
    monkeypatch.setattr(building, 'Network', functools.partial(building.Network, delay=0.001))
    late = trained(folder, 1, {}, True)
    assert np.isfinite(late.rounds(2)).all()


@pytest.mark.parametrize('folder, changes', of_each_kind(KEPT))
def test_rows_that_nobody_asks_for_are_left_alone(trained, folder, changes):
    """Rows 5 and 6 are in no batch."""
    both = trained(folder, 2, changes, True, num_rows=5)
    first = both.session.run(both.table[0])
    both.rounds(3)
    now = both.session.run(both.table[0])
    assert (now[5:] == first[5:]).all() and (now[:5] != first[:5]).any(axis=1).all()


@pytest.mark.parametrize('folder, changes', of_each_kind(KEPT))
def test_nobody_reads_a_table_as_a_whole(trained, folder, changes):
    """Nor writes it: of all ops on its handle there are only those on rows."""
    both = trained(folder, 2, changes, True)
    found = {op.type for variable in both.table for scheme in both.schemes
             for op in needed(scheme.train_op) if variable.handle in op.inputs}
    assert 'ResourceGather' in found
    assert not {name for name in found if 'Gather' not in name and 'Scatter' not in name
                and 'Sparse' not in name}


def needed(train_op):
    """Returns the ops that run for a dict of tensors."""
    return building.inventory.graphs.ancestors(train_op.values())


@pytest.mark.parametrize('folder, changes', briefly(KEPT, BRIEF))
def test_parts_with_the_batch_fed(trained, folder, changes):
    """Who plays a scheme part by part feeds the batch that it pulled for, and gets the same."""
    whole, played = [trained(folder, 1, changes, True) for _ in range(2)]
    scheme, session = played.schemes[0], played.session
    whole.rounds(3)
    drawn = tf.nest.flatten(played.batches[0])
    for _ in range(3):
        batch = session.run(drawn)
        fed = dict(zip(drawn, batch))
        pulled = session.run(scheme.pull, fed)
        fed.update(seam.feed(scheme.pull, pulled))
        pushed, _ = session.run([scheme.pushed, scheme.computed], fed)
        fed.update(seam.feed(scheme.pushed + scheme.stamps,
                             pushed + [pulled[0]] * len(scheme.stamps)))
        session.run(scheme.push, fed)
        if scheme.complete is not None:
            session.run(scheme.complete, fed)
    for value, same in zip(whole.values(), played.values()):
        np.testing.assert_allclose(value, same, atol=1e-6)


def test_a_lazy_adam_is_adam_on_the_steps_of_each_row():
    """In numpy, with a row that has a gradient in each second step, and one that has none."""
    gradients = np.random.RandomState(0).normal(size=(6, 3, 2)).astype(np.float32)
    table = tf.get_variable('table', initializer=tf.ones([3, 2]))
    pushed, asked = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.int64, [None])
    optimizers = load_program('Distributed-MNIST', 'optimizers')
    step = optimizers.LazyAdam(0.1).apply_gradients([(tf.IndexedSlices(pushed, asked), table)])
    expected, m, v = np.ones([3, 2]), np.zeros([3, 2]), np.zeros([3, 2])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for t, gradient in enumerate(gradients, 1):
            rows = [0, 1] if t % 2 else [0]
            session.run(step, {pushed: gradient[rows], asked: rows})
            m[rows] = 0.9 * m[rows] + 0.1 * gradient[rows]
            v[rows] = 0.999 * v[rows] + 0.001 * gradient[rows] ** 2
            rate = 0.1 * np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
            expected[rows] -= rate * m[rows] / (np.sqrt(v[rows]) + 1e-8)
        np.testing.assert_allclose(session.run(table), expected, rtol=1e-4)
    assert (expected[2] == 1).all()


def test_a_row_that_one_of_two_workers_pushes_counts_half(trained):
    """As in the mean of dense gradients, of which one is 0 there."""
    both = trained('Synchronous-SGD', 2, {}, True)
    with both.session.graph.as_default():
        ids = [scheme_batches[0]['ids'] for scheme_batches in both.batches]
    scheme = both.schemes[0]
    first = both.session.run(both.table[0])
    drawn = [tf.nest.flatten(own) for own in both.batches]
    fed = {}
    for worker, rows in enumerate(([[0, 1]] * BATCH, [[1, 2]] * BATCH)):
        fed.update({ids[worker]: rows, both.batches[worker][0]['target']: [1.] * BATCH})
    assert len(drawn) == 2
    pushed = [both.session.run([own.pushed, own.pull], fed) for own in both.schemes]
    for own, (gradients, pulled) in zip(both.schemes, pushed):
        both.session.run(own.push, {**fed, **seam.feed(own.pull, pulled), **seam.feed(
            own.pushed + own.stamps, gradients + [0] * len(own.stamps))})
    both.session.run(scheme.complete, fed)
    moved = first - both.session.run(both.table[0])
    (own, other) = [gradients[0] for gradients, _ in pushed]
    expected = np.array([own[0] / 2, (own[1] + other[0]) / 2, other[1] / 2])
    np.testing.assert_allclose(moved[:3], 0.05 * expected, rtol=1e-4)
    assert not moved[3:].any()
