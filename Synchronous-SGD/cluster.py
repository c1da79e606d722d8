"""Membership, start and stop: who is in the cluster, who is not there yet, and who is done."""

import contextlib
import json
import os
import socket
import sys
import threading
import time

from absl import flags
import console
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_list('chief_hosts', None, 'host:port of the chief, if it is a task of its own: '
                  'where there is a train.py')
flags.DEFINE_list('ps_hosts', None, 'host:port of each parameter server, by commas')
flags.DEFINE_list('worker_hosts', None, 'host:port of each worker; the first one is the chief')
flags.DEFINE_integer('task_index', None, 'which of its hosts this process is: 0, 1, ...',
                     lower_bound=0)
flags.DEFINE_integer('num_threads', 0, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0)
flags.DEFINE_float('patience_secs', 300, 'how long to wait for a task that does not answer',
                   lower_bound=0)


def resolve(task_type, jobs=('ps', 'worker'), alone=False):
    """Finds out who is in the cluster and which of its tasks this process is.

    Reads TF_CONFIG, which schedulers and run.sh set, or the flags --ps_hosts, --worker_hosts and
    the like, and --task_index.

    Args:
      task_type: one of the jobs, which program this is.
      jobs: tuple of strings, what jobs the cluster has.
      alone: bool, whether this task is to know no other of its job, where they come and go. It may
        have any index then, and jobs that are not in `jobs` are passed over.

    Returns:
      A `tf.distribute.cluster_resolver.SimpleClusterResolver`.

    Raises:
      SystemExit: with what is wrong, and what to do; also when the task's port is in use.
    """
    hosts = {'chief': FLAGS.chief_hosts, 'ps': FLAGS.ps_hosts, 'worker': FLAGS.worker_hosts}
    hosts = {job: addresses for job, addresses in hosts.items() if addresses is not None}
    names = ', '.join([f'--{job}_hosts' for job in jobs] + ['--task_index'])
    by_flags = hosts or FLAGS.task_index is not None
    if by_flags and os.environ.get('TF_CONFIG'):
        sys.exit(f'The cluster is given twice: by TF_CONFIG and by the flags {names}. Unset the '
                 'one or leave out the others.')
    if by_flags:
        source, task_id = names, FLAGS.task_index
    elif os.environ.get('TF_CONFIG'):
        source, (hosts, task_id) = 'TF_CONFIG', _from_tf_config(task_type, jobs)
    else:
        sys.exit('No cluster is given. `bash run.sh` starts one on this machine; on several hosts '
                 f'give {names}, or set TF_CONFIG.')
    if alone:
        hosts = {job: hosts[job] for job in jobs if job in hosts}
        hosts[task_type] = _only(hosts.get(task_type), task_id)
    try:
        _check(hosts, jobs, task_type, task_id, alone)
    except ValueError as error:
        sys.exit(f'{source}: {error}')
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(hosts), task_type=task_type, task_id=task_id)


def _from_tf_config(task_type, jobs):
    """Returns a dict of hosts by job, and the index of this task."""
    example = json.dumps({'cluster': {job: [f'host{i}:2222'] for i, job in enumerate(jobs)},
                          'task': {'type': task_type, 'index': 0}})
    try:
        config = json.loads(os.environ['TF_CONFIG'])
        hosts, task = dict(config['cluster']), config['task']
        job, task_id = task['type'], int(task['index'])
        hosts, job, task_id = _in_jobs(jobs, hosts, job, task_id)
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f'TF_CONFIG cannot be read ({type(error).__name__}: {error}). It looks like '
                 f'{example}')
    if job != task_type:
        program = 'train' if job == 'chief' else job
        sys.exit(f'TF_CONFIG says that this is a task of the job {job}: start {program}.py.')
    return hosts, task_id


def _in_jobs(jobs, hosts, job, task_id):
    """Says in the jobs of this folder what an engine calls the tasks.

    Many engines make the chief a job of its own, `chief` or `master`. Where the chief is worker 0,
    the engine's workers then count from 1: no two have one index, and so one shard of the data. An
    evaluator, which some engines list, is in no cluster: nobody talks to it.

    Returns:
      The dict of hosts by job, and the job and the index of this task.
    """
    words = {} if 'chief' in hosts else {'master': 'chief'}
    hosts = {words.get(name, name): _by_index(addresses) for name, addresses in hosts.items()
             if name != 'evaluator'}
    job = words.get(job, job)
    if 'chief' not in jobs and ('chief' in hosts or job == 'chief'):
        if job in ('chief', 'worker') and not 0 <= task_id < len(hosts.get(job, [])):
            raise ValueError(f'there is no {job} {task_id}')
        chiefs = hosts.pop('chief')
        hosts['worker'] = chiefs + hosts.get('worker', [])
        if job == 'worker':
            task_id += len(chiefs)
        elif job == 'chief':
            job = 'worker'
    return hosts, job, task_id


def _by_index(addresses):
    """Returns a list for a dict of addresses by index, unless indexes are missing in it."""
    if isinstance(addresses, dict):
        addresses = {int(index): address for index, address in addresses.items()}
        if sorted(addresses) == list(range(len(addresses))):
            return [addresses[index] for index in range(len(addresses))]
    return addresses


def _only(addresses, task_id):
    """Returns a dict of one address by its index, if there is one for this task."""
    if isinstance(addresses, list):
        addresses = {task_id: addresses[0]} if len(addresses) == 1 else dict(enumerate(addresses))
    if isinstance(addresses, dict) and task_id in addresses:
        return {task_id: addresses[task_id]}
    return addresses


def _check(hosts, jobs, task_type, task_id, alone):
    """Raises ValueError unless the cluster is whole and this task can listen in it."""
    for job in jobs:
        if not hosts.get(job) or not isinstance(hosts[job], (list, dict)):
            raise ValueError(f'the cluster has no list of hosts for the job {job}')
        if isinstance(hosts[job], dict) and not (alone and job == task_type):
            raise ValueError(f'some tasks of the job {job} are missing, there are only '
                             f'{", ".join(map(str, sorted(hosts[job])))}')
    if sorted(hosts) != sorted(jobs):
        raise ValueError(f'the jobs are {" and ".join(jobs)}, not {", ".join(sorted(hosts))}')
    by_index = {job: hosts[job] if isinstance(hosts[job], dict) else dict(enumerate(hosts[job]))
                for job in jobs}
    if task_id not in by_index[task_type]:
        raise ValueError(f'the index of this {task_type} is {task_id}, and there are '
                         f'{len(hosts[task_type])} (counted from 0)')
    addresses = [address for job in jobs for address in by_index[job].values()]
    for address in addresses:
        host, _, port = str(address).rpartition(':')
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'"{address}" is not of the form host:port')
        if addresses.count(address) > 1:
            raise ValueError(f'{address} is there twice')
    port = int(by_index[task_type][task_id].rpartition(':')[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('', port))
        except OSError as error:
            raise ValueError(f'{task_type} {task_id} cannot listen on port {port}: '
                             f'{error.strerror}. Is another run using it?') from error


def silence(address):
    """Returns why no task answers at `address`, a host:port; the empty string if one does."""
    host, _, port = address.rpartition(':')
    try:
        with socket.create_connection((host.strip('[]'), int(port)), timeout=2) as connection:
            # The system accepts connections for a process that is stuck, and other programs listen
            # too. Servers of TensorFlow speak HTTP/2, which begins with settings (type 4).
            connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0')
            is_server = connection.recv(9)[3:4] == b'\4'
        return '' if is_server else 'it is no server of TensorFlow'
    except OSError as error:
        return error.strerror or str(error)


def give_up(line):
    """Ends this process with a line, a string, on stderr and status 1, whatever its threads do.

    The main thread may be deep in the runtime, and heed no exception.
    """
    sys.stderr.write(f'{line}\n')
    sys.stderr.flush()
    os._exit(1)


def watch(resolver, job='ps', patience_secs=None):
    """Waits until each task of a job answers, and from then on keeps an eye on them.

    Ends this process when one has not answered for some time, and says so. TensorFlow itself waits
    for a task for ever and in silence: for one that is not there yet, and for one that died and
    should come back.

    Args:
      resolver: a cluster resolver, of a worker or of the chief.
      job: 'ps' or 'worker', whom to watch.
      patience_secs: float, how long to wait for one that answered before; --patience_secs if None,
        and always for those that are not there yet.

    Returns:
      A `threading.Event`: set it to stop.
    """
    me = 'train' if resolver.task_type == 'chief' else f'worker {resolver.task_id}'
    addresses = dict(enumerate(resolver.cluster_spec().job_tasks(job)))
    if job == resolver.task_type:
        del addresses[resolver.task_id]
    heard = dict.fromkeys(addresses, time.monotonic())
    told = dict(heard)

    def all_answer(patience_secs):
        silent = False
        for i, address in addresses.items():
            reason = silence(address)
            if not reason:
                heard[i] = told[i] = time.monotonic()
                continue
            silent = True
            line = f'{me}: {job} {i} at {address} does not answer ({reason})'
            if time.monotonic() - heard[i] > patience_secs:
                give_up(f'{line}. Gave up after {patience_secs:g} s.')
            if time.monotonic() - told[i] > 5:
                told[i] = time.monotonic()
                print(f'{line}; waiting', flush=True)
        return not silent

    def keep_looking():
        while not stop.wait(1):
            all_answer(FLAGS.patience_secs if patience_secs is None else patience_secs)

    while not all_answer(FLAGS.patience_secs):
        time.sleep(0.1)
    stop = threading.Event()
    threading.Thread(target=keep_looking, daemon=True).start()
    return stop


@contextlib.contextmanager
def failures_of_ps():
    """Lets a session recover from all that TensorFlow raises when a call to a ps fails.

    `tf.train.MonitoredSession` makes a new session after `AbortedError` and `UnavailableError`.
    TensorFlow 2.21 may say `CancelledError` instead, for another part of the same call.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error


class WorkerSessionCreator(tf.train.SessionCreator):
    """Gives a worker its session as soon as the chief has initialized the parameters.

    TensorFlow's own looks again only after 30 s, at the start and when a ps came back.
    """

    def __init__(self, master, config):
        """See `tf.train.WorkerSessionCreator`; the graph must be complete."""
        self._master = master
        self._config = config
        global_variables = tf.global_variables()
        self._manager = tf.train.SessionManager(
            ready_for_local_init_op=tf.report_uninitialized_variables(global_variables),
            local_init_op=tf.group(tf.local_variables_initializer(), tf.tables_initializer()),
            ready_op=tf.report_uninitialized_variables(global_variables + tf.local_variables()),
            graph=tf.get_default_graph(), recovery_wait_secs=0.2)

    def create_session(self):
        """Returns a `tf.Session`.

        Raises:
          SystemExit: after --patience_secs without a chief.
        """
        tf.get_default_graph().finalize()
        try:
            return self._manager.wait_for_session(self._master, config=self._config,
                                                  max_wait_secs=FLAGS.patience_secs)
        except tf.errors.DeadlineExceededError:
            sys.exit('The chief, worker 0, has not initialized the parameters within '
                     f'{FLAGS.patience_secs:g} s. Is it running?')


class _Saver(console.Saver):
    """Restores only parameters that are lost."""

    def __init__(self, name, lost):
        super().__init__(name, sharded=True)  # each ps writes its own
        self._lost = lost

    def restore(self, sess, save_path):
        if sess.run(self._lost).size:
            super().restore(sess, save_path)


def chief_scaffold(model_dir, name='worker 0'):
    """Makes the `tf.train.Scaffold` of a chief that undoes nobody's work.

    A chief that died and comes back finds the parameters alive on the ps, and the others at work on
    them. TensorFlow's own Scaffold would put the last checkpoint, or random values, in their place.

    Args:
      model_dir: string or None, where the checkpoints are.
      name: string, who is speaking when it restores.

    Raises:
      SystemExit: if `model_dir` cannot be used.
    """
    console.check_model_dir(model_dir)
    lost = tf.report_uninitialized_variables(tf.global_variables())
    initialize = tf.global_variables_initializer()

    def initialize_lost(_, session):
        if session.run(lost).size:
            session.run(initialize)

    return tf.train.Scaffold(init_op=tf.no_op(), init_fn=initialize_lost, saver=_Saver(name, lost))


def _done_queue(job, task):
    """Returns the queue on a task into which those it serves put their index at their end."""
    with tf.device(f'/job:{job}/task:{task}/device:CPU:0'):
        return tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name='done')


class SayDone(tf.train.SessionRunHook):
    """Tells each ps that this worker came to a good end. Give it as the last hook.

    It does not wait for a ps to listen: some engines bring their own.
    """

    def __init__(self, resolver, jobs=('ps',)):
        """Takes a cluster resolver, and the jobs whose tasks serve this process."""
        self._task_id = resolver.task_id
        self._tasks = [(job, task) for job in jobs
                       for task in range(resolver.cluster_spec().num_tasks(job))]

    def begin(self):
        self._say = [_done_queue(*task).enqueue(self._task_id) for task in self._tasks]

    def end(self, session):
        session.run(self._say)


def wait_until_done(server, resolver, job='worker'):
    """Keeps a ps until it is needed no longer.

    That is, until each worker has said that it is done. Once one has, others that do not answer for
    --patience_secs are given up: a ps that was restarted has not heard who was done before.

    Args:
      server: `tf.train.Server` of this ps, or of another task that serves.
      resolver: a cluster resolver.
      job: string, whom it serves.
    """
    addresses = resolver.cluster_spec().job_tasks(job)
    missing = set(range(len(addresses)))
    heard = {}
    queue = _done_queue(resolver.task_type, resolver.task_id)
    size, dequeue = queue.size(), queue.dequeue()
    # Without the filter this session would say good-bye to workers that are gone, for up to 70 s.
    config = tf.ConfigProto(device_filters=[f'/job:{resolver.task_type}/task:{resolver.task_id}'])
    with tf.Session(server.target, config=config) as session:
        while missing:
            # Looks before it takes: a dequeue that is given up after a while may swallow an entry.
            if session.run(size):
                missing.discard(int(session.run(dequeue)))
                continue
            time.sleep(0.1)
            if len(missing) == len(addresses):
                continue  # nobody is done: one that is late is not given up
            for worker in list(missing):
                silent_since = heard.setdefault(worker, time.monotonic())
                if not silence(addresses[worker]):
                    heard[worker] = time.monotonic()
                elif time.monotonic() - silent_since > FLAGS.patience_secs:
                    missing.discard(worker)
                    print(f'{resolver.task_type} {resolver.task_id}: {job} {worker} never said '
                          'that it is done, and does not answer', flush=True)
    # A worker closes its session after it said done, and would hang if the ps were gone by then. On
    # a busy machine that takes more than a moment.
    deadline = time.monotonic() + FLAGS.patience_secs
    while time.monotonic() < deadline and not all(map(silence, addresses)):
        time.sleep(0.05)
