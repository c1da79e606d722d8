"""Looks at the hosts of TF_CONFIG, and at the network between them, by TensorFlow's own servers.

    TF_CONFIG=... python -m measuring.between_hosts --step=SECONDS --found=FILE

All tasks of TF_CONFIG start it. Worker 0 asks: it has one task on each other host run nothing, and
send bytes to and fro, and writes what it found into the file, as JSON. The others tell how fast
their host is, serve, and end with worker 0.
"""

import json
import os
import statistics
import time

from absl import flags
import numpy as np
from tfdist.cluster import liveness, membership, patience, servers, shutdown, tf_config
from tfdist.start import console
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_float('step', None, 'seconds of a local step on this host', lower_bound=0)
flags.DEFINE_string('found', None, 'the file that worker 0 writes')

_ASKS = '/job:worker/task:0'
_EMPTY_RUNS, _EMPTY_SECONDS = 200, 1
_SMALL, _LARGE = 2 ** 12, 2 ** 26  # bytes
_ENOUGH = 0.3  # seconds that a trip of many bytes is to take
_TRIPS = 5


def host_of(address):
    """Returns the host of a host:port."""
    return address.rpartition(':')[0]


def in_order(spec):
    """Returns the tasks of a `tf.train.ClusterSpec`: worker 0, the other workers, and the ps.

    Returns:
      Dict of addresses, strings, by pairs of a job and an index.
    """
    return {(job, index): spec.task_address(job, index) for job in ('worker', 'ps')
            if job in spec.jobs for index in range(spec.num_tasks(job))}


def one_on_each(tasks):
    """Returns the first task on each host, a list; the argument is a dict as of `in_order`."""
    found = {}
    for task, address in tasks.items():
        found.setdefault(host_of(address), task)
    return list(found.values())


def _device(task):
    return '/job:{}/task:{}'.format(*task)


class _Trips:
    """Runs of a session on a task that serves, timed.

    Attributes:
      empty: float, seconds of a run that does nothing there.
      byte: float, seconds for each byte that goes there or comes from there.
    """

    def __init__(self, target, task, heard):
        """Makes them.

        Args:
          target: string, of the session.
          task: pair of a job and an index.
          heard: function to call after each.
        """
        there = f'{_device(task)}/device:CPU:0'
        with tf.Graph().as_default() as graph:
            with tf.device(there):
                nothing, size = tf.no_op(), tf.placeholder(tf.int32, [1])
                sent = tf.fill(size, 1.)
            with tf.device(f'{_ASKS}/device:CPU:0'):
                here = tf.identity(sent)
            with tf.device(there):
                back = tf.identity(here).op
        config = servers.config(device_filters=[_ASKS, _device(task)])
        # Else nothing travels, because nothing is made of what arrives.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._heard = heard
        with tf.Session(target, graph=graph, config=config) as session:
            def carry(number):
                return lambda: session.run(back, {size: [number // 4]})

            self._median(lambda: session.run(nothing), 10)  # in the first ones the tasks meet
            self.empty = self._median(lambda: session.run(nothing), _EMPTY_RUNS)
            few = self._median(carry(_SMALL), _TRIPS)
            number, many = _SMALL, few
            while many < _ENOUGH and number < _LARGE:
                number *= 4
                many = self._median(carry(number), 1)
            many = self._median(carry(number), _TRIPS)
        self.byte = max(0., many - few) / 2 / (number - _SMALL)

    def _median(self, run, most):
        """Returns the median of the seconds of some runs, as many as there is time for."""
        times, end = [], time.monotonic() + _EMPTY_SECONDS
        while not times or len(times) < most and time.monotonic() < end:
            began = time.monotonic()
            run()
            times.append(time.monotonic() - began)
            self._heard()
        return statistics.median(times)


def _told():
    """Returns the queue on worker 0 where the others put job, index, cores, and local step."""
    with tf.device(f'{_ASKS}/device:CPU:0'):
        return tf.FIFOQueue(-1, [tf.string, tf.int32, tf.int32, tf.float32], shapes=[()] * 4,
                            shared_name='told')


def _cores():
    return len(os.sched_getaffinity(0))


def _ask(resolver, server, tasks):
    """Returns what is found, a list of dicts, one for each host; this one comes first."""
    stop = liveness.watch(resolver, *resolver.cluster_spec().jobs)
    heard = patience.PATIENCE.heard
    mine, *others = one_on_each(tasks)
    found = {mine: {'address': tasks[mine], 'cores': _cores(), 'step': FLAGS.step}}
    done = shutdown.SayDone(resolver, jobs=resolver.cluster_spec().jobs)
    done.begin()
    told = _told().dequeue()
    with tf.Session(server.target, config=servers.config()) as session:
        patience.PATIENCE.expect('not every task has told about its host')
        for _ in range(len(tasks) - 1):
            job, index, cores, step = session.run(told)
            heard()
            task = job.decode(), int(index)
            found[task] = {'address': tasks[task], 'cores': int(cores), 'step': float(step)}
        for task in others:
            patience.PATIENCE.expect(f'{tasks[task]} has sent nothing back')
            trips = _Trips(server.target, task, heard)
            found[task].update(empty=trips.empty, byte=trips.byte)
        stop.set()
        done.end(session)
    return [found[task] for task in (mine, *others)]


def _serve(resolver, server, asks):
    """Tells about this host, and serves until worker 0, at an address, has asked all."""
    job, index = resolver.task_type, resolver.task_id
    stop = liveness.watch(resolver, 'worker')
    tell = _told().enqueue([job, np.int32(index), np.int32(_cores()), np.float32(FLAGS.step)])
    config = servers.config(device_filters=[_ASKS, _device((job, index))])
    with tf.Session(server.target, config=config) as session:
        session.run(tell)
    stop.set()
    with tf.Graph().as_default():
        shutdown.wait_until_done(server, tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({'worker': [asks]}), task_type=job, task_id=index))


def main(_):
    job, jobs = tf_config.own_job()
    resolver = membership.resolve(job, jobs)
    spec = resolver.cluster_spec()
    tasks = in_order(spec)
    server = tf.train.Server(spec, job, resolver.task_id, config=servers.config())
    if (job, resolver.task_id) != ('worker', 0):
        _serve(resolver, server, tasks['worker', 0])
        return
    found = _ask(resolver, server, tasks)
    with open(FLAGS.found, 'w', encoding='utf-8') as file:
        json.dump(found, file)


if __name__ == '__main__':
    console.run(main)
