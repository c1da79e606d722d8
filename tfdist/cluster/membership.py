"""Finds out which tasks the cluster has, and which of them this process is."""

import os
import socket
import sys

from absl import flags
from tfdist.cluster import tf_config
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_list('chief_hosts', None, 'host:port of the chief, if it is a task of its own: '
                  'where there is a train.py')
flags.DEFINE_list('ps_hosts', None, 'host:port of each parameter server, separated by commas')
flags.DEFINE_list('worker_hosts', None, 'host:port of each worker; the first one is the chief')
flags.DEFINE_integer('task_index', None, 'which of its hosts this process is: 0, 1, ...',
                     lower_bound=0)


def resolve(task_type, jobs=('ps', 'worker'), alone=False):
    """Makes the cluster resolver of this process.

    Reads TF_CONFIG, which schedulers and run.sh set, or the flags --ps_hosts, --worker_hosts and
    the like, and --task_index.

    Args:
      task_type: string, the job of this program, one of `jobs`.
      jobs: tuple of strings, the jobs of the cluster.
      alone: bool, whether to leave out the other tasks of this job, because they come and go. This
        task may then have any index, and jobs that are not in `jobs` are ignored.

    Returns:
      `tf.distribute.cluster_resolver.SimpleClusterResolver`.

    Raises:
      SystemExit: with what is wrong and what to do, also if the task's port is in use.
    """
    hosts = {'chief': FLAGS.chief_hosts, 'ps': FLAGS.ps_hosts, 'worker': FLAGS.worker_hosts}
    hosts = {job: addresses for job, addresses in hosts.items() if addresses is not None}
    names = ', '.join([f'--{job}_hosts' for job in jobs] + ['--task_index'])
    by_flags = hosts or FLAGS.task_index is not None
    if by_flags and os.environ.get('TF_CONFIG'):
        sys.exit(f'The cluster is given twice: by TF_CONFIG and by the flags {names}. Unset '
                 'TF_CONFIG, or leave out the flags.')
    if by_flags:
        source, task_id = names, FLAGS.task_index
    elif os.environ.get('TF_CONFIG'):
        source, (hosts, task_id) = 'TF_CONFIG', tf_config.read(task_type, jobs)
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


def _only(addresses, task_id):
    """Returns the address of this task alone, by its index, or `addresses` if it is not there."""
    if isinstance(addresses, list):
        addresses = {task_id: addresses[0]} if len(addresses) == 1 else dict(enumerate(addresses))
    if isinstance(addresses, dict) and task_id in addresses:
        return {task_id: addresses[task_id]}
    return addresses


def _check(hosts, jobs, task_type, task_id, alone):
    """Raises ValueError unless the cluster is complete and this task can listen on its port."""
    for job in jobs:
        if not hosts.get(job) or not isinstance(hosts[job], (list, dict)):
            raise ValueError(f'the cluster has no list of hosts for the job {job}')
        if isinstance(hosts[job], dict) and not (alone and job == task_type):
            raise ValueError(f'some tasks of the job {job} are missing: there are only '
                             f'{", ".join(map(str, sorted(hosts[job])))}')
    if sorted(hosts) != sorted(jobs):
        raise ValueError(f'the jobs are {" and ".join(jobs)}, not {", ".join(sorted(hosts))}')
    by_index = {job: hosts[job] if isinstance(hosts[job], dict) else dict(enumerate(hosts[job]))
                for job in jobs}
    if task_id not in by_index[task_type]:
        raise ValueError(f'the index of this {task_type} is {task_id}, but there are '
                         f'{len(hosts[task_type])} (counted from 0)')
    addresses = [address for job in jobs for address in by_index[job].values()]
    for address in addresses:
        host, _, port = str(address).rpartition(':')
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'"{address}" is not of the form host:port')
        if addresses.count(address) > 1:
            raise ValueError(f'{address} appears twice')
    port = int(by_index[task_type][task_id].rpartition(':')[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('', port))
        except OSError as error:
            raise ValueError(f'{task_type} {task_id} cannot listen on port {port}: '
                             f'{error.strerror}. Is another run using it?') from error
