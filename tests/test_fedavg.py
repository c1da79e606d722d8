"""FedAvg: its worked numbers, who has which examples, tickets and admissions.

The toy problem: an example is a number m, and the loss of a batch is the mean of the half squares
of x - m. So the gradient is x less the mean of the batch; x starts at 8, the learning rate is 1/2.
"""

import re
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme.toy import Problem

from conftest import load_program
import test_synchronous
from test_synchronous import Call

FOLDER = 'FedAvg'
THREE = [0., 4., 16., 0.]  # of three clients the first one has two: 0 and 0, 4, 16
FLAGS = dict(learning_rate=0.5, batch_size=2, accumulate=1, clients=3, fraction=1., epochs=2,
             classes_per_client=None, server_optimizer='sgd', server_learning_rate=None,
             server_momentum=0.5, deadline_secs=0., train_steps=10, seed=1)


class Worker:
    """A worker of the toy problem on real servers; see `test_synchronous`.

    Attributes:
      scheme, rounds: those of worker.py.
      session: a plain session on this worker's server.
    """

    def __init__(self, cluster, container, task_index, num_workers, examples, hparams, start):
        self.program, self._config = load_program(FOLDER), cluster.config(task_index)
        clients = self.program.clients
        self.graph, device = tf.Graph(), f'/job:worker/task:{task_index}'
        hosts = cluster.spec.as_dict()
        with self.graph.as_default(), self.graph.container(container), tf.device(
                tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(hosts),
                                               worker_device=device)):
            global_step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(value, tf.float32))
                for i, value in enumerate(start)]
            with tf.device(device):
                turn = clients.Clients([np.array(examples)], hparams).in_turn()
            left = iter(turn.batches)

            def loss_at(values):
                batch, = next(left)
                return sum(tf.reduce_mean(tf.square(
                    value - tf.reshape(batch, [-1] + [1] * value.shape.ndims)))
                           * int(np.prod(value.shape.as_list())) / 2
                           for value in values), tf.constant(0.)

            self.scheme = self.program.Scheme(Problem(loss_at, self.variables), global_step,
                                              hparams, task_index, num_workers, turn)
            self.rounds = self.program.rounds.Rounds(self.scheme, global_step, hparams, task_index)
            self.initialize = tf.global_variables_initializer(), tf.local_variables_initializer()
            self._progress = types.SimpleNamespace(end_at=lambda step: None)
        self._target = cluster.servers['worker', task_index].target
        self.session = self.new_session()
        for op in self.initialize[task_index > 0:]:
            self.session.run(op)

    def new_session(self):
        self.session = tf.Session(self._target, graph=self.graph, config=self._config)
        return self.session

    def begin(self):
        self.rounds.after_create_session(self.session, None)

    def take(self):
        """Takes a ticket; returns whether there is one."""
        return self.rounds.take(self._progress)

    def train(self):
        """Trains the client whose ticket it has; returns the figures."""
        return self.session.run(self.scheme.train_op)

    def run(self):
        """Trains clients to the end of the run."""
        while self.take():
            self.train()

    def center(self):
        return self.session.run(self.variables[0]).tolist()


@pytest.fixture
def workers(cluster, request):
    """Makes workers that have not begun: so many, with these examples, and changes of the flags."""
    made = []

    def make(number=1, examples=THREE, start=(8.,), **changes):
        container = re.sub(r'[^A-Za-z0-9]', '.', f'{request.node.name}-{len(made)}')
        hparams = types.SimpleNamespace(**dict(FLAGS, **changes))
        mine = [Worker(cluster, container, i, number, examples, hparams, start)
                for i in range(number)]
        made.extend(mine)
        return mine

    yield make
    for worker in made:
        worker.session.close()


def test_one(workers):
    worker, = workers(train_steps=1)
    worker.begin()
    for _ in range(3):
        assert worker.take()
        print(worker.session.run(worker.scheme.turn.ticket))
        print(worker.train())
    assert not worker.take()
    assert worker.center() == 5.75
