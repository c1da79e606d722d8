"""Frozen variables are read once in a session, so that only what trains travels."""

import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.model import building, model_file
from tfdist.training import traffic

from conftest import load_program
from test_seam import defaults

SIZE = 256  # of the frozen matrix: 256 KB


def model(frozen):
    """Returns a model of a frozen matrix, or a constant one, and a trained vector."""
    def loss_and_metrics(batch, training):
        del training
        backbone = tf.get_variable('backbone', [SIZE, SIZE], trainable=False,
                                   initializer=tf.random_uniform_initializer(seed=1)
                                   ) if frozen else tf.ones([SIZE, SIZE])
        head = tf.get_variable('head', [SIZE], initializer=tf.ones_initializer())
        return tf.reduce_mean(tf.square(tf.linalg.matvec(batch @ backbone, head))), {}

    return model_file.Model(types.SimpleNamespace(
        __name__='toy', __file__='toy', test_batches=None, loss_and_metrics=loss_and_metrics,
        train_batches=lambda _, count, *__: [tf.ones([2, SIZE])] * count))


def bytes_of_a_run(cluster, folder, frozen):
    """Returns the bytes from the ps to worker 0 in a run, and the values after it."""
    program = load_program(folder)
    flags.FLAGS.mark_as_parsed()
    hparams = types.SimpleNamespace(**defaults(folder))
    hparams.learning_rate = 1e-9
    device = '/job:worker/task:0'
    with tf.Graph().as_default() as graph, graph.container(f'{folder}{frozen}'), \
            tf.device(tf.train.replica_device_setter(
                cluster=tf.train.ClusterSpec({'ps': cluster.spec.job_tasks('ps')[:1],
                                              'worker': cluster.spec.job_tasks('worker')}),
                worker_device=device)):
        global_step = tf.train.get_or_create_global_step()
        made = model(frozen)
        network = building.Network(
            made, made.train_batches(2, program.Scheme.batches(hparams)))
        scheme = program.Scheme(network, global_step, hparams, 0, 1)
        begin = tf.global_variables_initializer(), tf.local_variables_initializer()
        variables = tf.global_variables()
        local = tf.local_variables()
    with tf.Session(cluster.servers['worker', 0].target, graph=graph,
                    config=cluster.config(0)) as session:
        for op in begin:
            session.run(op)
        result = session.run(scheme.train_op)
        sent = traffic.between_tasks([traffic.whole_trace(session, scheme.train_op)])
        values = dict(zip((variable.op.name for variable in variables), session.run(variables)))
        copies = [session.run(variable) for variable in local
                  if variable.op.name == 'frozen/backbone' and variable.device == device]
    assert np.isfinite(result['loss'])
    return sum(each.bytes for (_, receiver), each in sent.items() if receiver == 'worker 0'), \
        values, copies


@pytest.mark.parametrize('folder', ['HogWild', pytest.param('AGN', marks=pytest.mark.thorough)])
def test_only_what_trains_travels(cluster, folder):
    without, _, _ = bytes_of_a_run(cluster, folder, frozen=False)
    sent, values, copies = bytes_of_a_run(cluster, folder, frozen=True)
    assert without == sent < 4 * SIZE * SIZE / 10
    copy, = copies
    assert (copy == values['backbone']).all() and len(np.unique(copy)) > SIZE
