"""Reads TF_CONFIG in the dialects of the engines that set it."""

import json
import os
import sys


def own_job():
    """Returns the job of this process, and the jobs of its cluster, for `read`.

    Where TF_CONFIG cannot be read, `read` says why.
    """
    try:
        config = json.loads(os.environ['TF_CONFIG'])
        jobs = ('ps', 'worker') if config['cluster'].get('ps') else ('worker',)
        return 'ps' if config['task']['type'] == 'ps' else 'worker', jobs
    except (ValueError, KeyError, TypeError, AttributeError):
        return 'worker', ('ps', 'worker')


def read(task_type, jobs):
    """Reads the environment variable TF_CONFIG.

    Args:
      task_type: string, the job of this program.
      jobs: tuple of strings, the jobs of the cluster.

    Returns:
      A dict of addresses by job, and the index of this task.

    Raises:
      SystemExit: if TF_CONFIG cannot be read, or is for another program.
    """
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
    """Translates an engine's jobs into those of this folder.

    Many engines make the chief a job of its own, `chief` or `master`. Where the chief is worker 0
    here, the engine's workers count from 1, so that no two tasks share an index, and with it a
    shard of the data. An evaluator, which some engines list, is left out: no task talks to it.

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
    """Returns a dict of addresses by index as a list, if no index is missing."""
    if isinstance(addresses, dict):
        addresses = {int(index): address for index, address in addresses.items()}
        if sorted(addresses) == list(range(len(addresses))):
            return [addresses[index] for index in range(len(addresses))]
    return addresses
