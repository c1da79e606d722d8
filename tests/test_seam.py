"""The seam: a scheme does part by part what it does in training, and one plays any number of workers.

The toy problem: half squares around an optimum m, so that the gradient at x is x - m.
"""

import concurrent.futures
import functools

from absl import flags
from conftest import load_program, ROOT
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tfdist import building, seam
from tfdist.seam import feed

FOLDERS = sorted(path.parent.name for path in ROOT.glob('*/worker.py')
                 if 'class Scheme(' in path.read_text(encoding='utf-8'))
# By what a scheme becomes another one, besides its own defaults.
MODES = {
    'DC-ASGD': [dict(variance='adaptive'), dict(variance='adaptive', first_square=True)],
    'Distributed-MNIST': [dict(is_sync=True)],
    'DynSGD': [dict(constant=True)],
    'Ring-AllReduce': [dict(implementation='collective')],
    'Synchronous-SGD': [dict(scale_learning_rate=True, warmup_steps=2)],
}
CASES = [pytest.param(folder, changes, id='-'.join([folder, *map(str, changes)]))
           for folder in FOLDERS for changes in [{}, *MODES.get(folder, [])]]
SYNCHRONOUS = {'Synchronous-SGD': {}, 'Synchronous-SGD-different-learning-rates': {}, 'SAGN': {},
               'Local-SGD': {}, 'Distributed-MNIST': dict(is_sync=True)}
WINDOW = 2
RATE = 0.25


def defaults(folder, **changes):
    """Returns the hyperparameters of a folder, a dict: its flags, windows of WINDOW, `changes`."""
    load_program(folder)
    values = {name: flags.FLAGS[name].default for name in flags.FLAGS}
    for name in {'communication_window', 'n_fetch', 'n_push'} & load_program.flags:
        values[name] = WINDOW
    return dict(values, learning_rate=RATE, **changes)


def is_together(scheme):
    """Returns whether all workers take each step together."""
    return scheme.complete is not None or hasattr(scheme, 'sums')


# In a session without servers.

class Player:
    """One scheme in a session of its own, which plays any number of workers.

    Attributes:
      scheme: the Scheme, of task 0.
      variables: the center.
      ran: how many batches have been computed on.
      own: list, for each worker the values of the scheme's `own` variables.
    """

    def __init__(self, folder, ms=(0.,), start=(8.,), dtypes=(tf.float32,), **changes):
        """Makes the graph.

        Args:
          folder: string.
          ms: the optimum of each worker, and so how many there are.
          start: values at which the variables start.
          dtypes: of the variables, in turn.
          **changes: of the hyperparameters.
        """
        program = load_program(folder)
        hparams = type('', (), defaults(folder, **changes))
        self.ran, self._ms = 0, ms
        with tf.Graph().as_default() as graph:
            global_step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(value, dtypes[i % len(dtypes)]))
                for i, value in enumerate(start)]
            self._m = tf.placeholder_with_default(ms[0], [])
            self.scheme = program.Scheme(self._loss_at, self.variables, global_step, hparams, 0,
                                         len(ms))
            self.state = tf.global_variables()
            initialize = tf.global_variables_initializer(), tf.local_variables_initializer()
        self.session = tf.Session(graph=graph)
        for op in initialize:
            self.session.run(op)
        self.own = [self.session.run(self.scheme.own) for _ in ms]

    def _loss_at(self, values):
        def count(m):
            self.ran += 1
            return m

        m = tf.py_func(count, [self._m], tf.float32)
        m.set_shape([])
        losses = [tf.reduce_sum(tf.square(value - tf.cast(m, value.dtype))) / 2 for value in values]
        return sum(tf.cast(loss, tf.float32) for loss in losses), tf.constant(0.)

    def close(self):
        self.session.close()

    def center(self):
        """Returns the values of the variables."""
        return self.session.run(self.variables)

    def pull(self):
        return self.session.run(self.scheme.pull)

    def compute(self, worker, pulled):
        """Returns what a worker pushes, and the figures of its batches."""
        self._put(worker)
        result = self.session.run(
            [self.scheme.pushed, self.scheme.computed],
            {self._m: self._ms[worker], **feed(self.scheme.pull, pulled)})
        self._take(worker)
        return result

    def push(self, worker, pulled, pushed, stamp=None, sums=None):
        """Pushes; returns the figures of it.

        Args:
          worker: int, who does it.
          pulled, pushed: from `pull` and `compute`.
          stamp: int, the step that it is stamped with; by default the one pulled.
          sums: what `pushed` is over all workers, for a ring.
        """
        scheme = self.scheme
        fed = feed(scheme.pull + scheme.pushed, pulled + pushed)
        fed.update(feed(scheme.stamps, [pulled[0] if stamp is None else stamp] * len(scheme.stamps)))
        if hasattr(scheme, 'sums'):
            fed.update(feed(scheme.sums, sums or pushed))
        self._put(worker)
        result = self.session.run(scheme.push, fed)
        self._take(worker)
        return result

    def step(self, worker):
        """A worker takes a step by itself; returns the figures of it."""
        pulled = self.pull()
        pushed, figures = self.compute(worker, pulled)
        return dict(figures, **self.push(worker, pulled, pushed))

    def together(self):
        """All workers take a step together; returns the figures of each."""
        pulled = self.pull()
        computed = [self.compute(worker, pulled) for worker in range(len(self.own))]
        if hasattr(self.scheme, 'sums'):  # each has a center of its own: they are all the same
            sums = [sum(parts) for parts in zip(*[pushed for pushed, _ in computed])]
            pushes = [self.push(0, pulled, computed[0][0], sums=sums)] * len(self.own)
        else:
            pushes = [self.push(worker, pulled, pushed)
                      for worker, (pushed, _) in enumerate(computed)]
            step = self.session.run(self.scheme.complete)
            pushes = [dict(push, global_step=step) for push in pushes]
        return [dict(figures, **push) for (_, figures), push in zip(computed, pushes)]

    def _put(self, worker):
        for variable, value in zip(self.scheme.own, self.own[worker]):
            variable.load(value, self.session)

    def _take(self, worker):
        self.own[worker] = self.session.run(self.scheme.own)


@pytest.fixture
def player(monkeypatch):
    """A function that makes a `Player`; it has no devices of workers."""
    made = []

    def make(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(seam.Seam, 'worker_device', staticmethod(lambda task_index: None))
            made.append(Player(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Parts and the whole.

def at_once(functions):
    """Calls all functions at the same time; returns their results."""
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(60) for future in [pool.submit(f) for f in functions]]


def in_turn(functions):
    """Calls all functions one after the other; returns their results."""
    return [function() for function in functions]


@pytest.mark.parametrize('folder, changes', CASES)
def test_parts_do_what_training_does(toy, player, folder, changes):
    """Two workers of different data, three rounds: figures, center, and what each one keeps.

    Two train, each in a graph and a session of its own on real servers. One plays them.
    """
    ms, start = (0., 4.), [8., [[1., 2., 3.]]]
    workers = toy(folder, ms, start, **defaults(folder, **changes))
    played = player(folder, ms, start, **changes)
    together = is_together(played.scheme)
    for step in range(1, 4):
        expected = (at_once if together else in_turn)([worker.step for worker in workers])
        results = played.together() if together else in_turn(
            [functools.partial(played.step, i) for i in range(len(ms))])
        assert [result['global_step'] for result in results] == (
            [step, step] if together else [2 * step - 1, 2 * step])
        for worker, own, figures, same in zip(workers, played.own, expected, results):
            assert set(figures) == set(same)
            for name in figures:
                assert same[name] == pytest.approx(figures[name], rel=1e-5), name
            assert len(own) == len(worker.scheme.own)
            for value, other in zip(worker.session.run(worker.scheme.own), own):
                assert value == pytest.approx(other, rel=1e-5)
    for value, other in zip(workers[0].session.run(workers[0].variables), played.center()):
        assert value == pytest.approx(other, rel=1e-5)
        assert (value != 8).all()


@pytest.mark.parametrize('folder, changes', CASES)
def test_each_part_does_its_own(player, folder, changes):
    """Pushing computes nothing, and computing changes nothing but what is the worker's own."""
    played = player(folder, [0., 4.], start=[8., [1., 2.]], **changes)
    scheme, session = played.scheme, played.session
    before = session.run(played.state + scheme.own)
    pulled = played.pull()
    assert played.ran == 0
    pushed, _ = played.compute(1, pulled)
    assert played.ran == scheme.local_steps(type('', (), defaults(folder, **changes)))
    state = session.run(played.state)
    for value, same in zip(before, state):
        assert (value == same).all()
    played.ran = 0
    played.push(1, pulled, pushed)
    if scheme.complete is not None:
        for value, same in zip(state, session.run(played.state)):
            assert (value == same).all()
        played.push(0, pulled, pushed)
        assert session.run(scheme.complete) == 1
    assert played.ran == 0
    assert session.run(played.state[0]) == 1 and played.state[0].op.name == 'global_step'


@pytest.mark.parametrize('folder, changes', CASES)
def test_staleness_comes_out_as_driven(player, folder, changes):
    played = player(folder, [0., 0., 0.], **changes)
    if is_together(played.scheme):
        assert 'staleness' not in played.scheme.train_op
        return
    pulled = [played.pull() for _ in range(3)]
    pushed = [played.compute(i, pulled[i])[0] for i in range(3)]
    figures = [played.push(i, pulled[i], pushed[i]) for i in (1, 0, 2)]
    assert [result['global_step'] for result in figures] == [1, 2, 3]
    if 'staleness' in figures[0]:
        assert [np.ravel(result['staleness']).tolist() for result in figures] == [[0], [1], [2]]
