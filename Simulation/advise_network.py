"""Finds out what cluster TF_CONFIG has: how fast its hosts are, and the network between them.

All tasks of TF_CONFIG start this. It writes what worker 0 found as a file for --cluster=, which a
person may edit.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tfdist.cluster import tf_config
from tfdist.start import ports
import advise_costs
import advise_measure

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# Times: figures of hosts that differ by less are alike. The file has one figure for all of them.
_ALIKE = 1.25
_LEAST_TRIP = 1e-4  # seconds: that differ by less are alike, too
_TIME_LIMIT = 300  # seconds, for two tasks on this host


def file_for(folder, place, fresh, say):
    """Returns the path of the file about the cluster; None if this task is not worker 0.

    Args:
      folder: `advise_folders.Folder`.
      place: `pathlib.Path`, the directory of the file, which the tasks may share. If the file is
        there, nothing is measured.
      fresh: bool, whether to measure even then.
      say: function of a string that tells what is being measured.

    Raises:
      SystemExit: if TF_CONFIG cannot be read, a task is missing, or the local steps cannot be
        timed.
    """
    path, is_first = place / 'cluster.json', _is_first()
    if path.exists() and not fresh:
        say(f'takes the cluster in {path}; --fresh, for all tasks, measures it again')
        return path if is_first else None
    say('times local steps in one process, for the speed of this host')
    hosts = _of_tasks(os.environ['TF_CONFIG'], advise_measure.local_step(folder), say)
    if hosts is None:
        return None
    own = None
    if hosts[1:]:
        say('sends bytes between two processes of this host, for what TensorFlow takes')
        own = _of_this_host()
    described, unlike = description(hosts, own)
    path.write_text(json.dumps(described, indent=2) + '\n', encoding='utf-8')
    for line in unlike:
        say(line)
    say(f'wrote the cluster into {path}')
    return path


def _is_first():
    """Returns whether this task of TF_CONFIG is worker 0."""
    job, jobs = tf_config.own_job()
    return (job, tf_config.read(job, jobs)[1]) == ('worker', 0)


def _start(config, step, path):
    return subprocess.Popen(
        [sys.executable, '-m', 'measuring.between_hosts', f'--step={step:.6g}', f'--found={path}'],
        cwd=str(_ROOT), env=dict(os.environ, TF_CONFIG=config))


def _of_tasks(config, step, say):
    """Returns what `measuring.between_hosts` finds; None in a task that has served it.

    Args:
      config: string, TF_CONFIG.
      step: float, seconds of a local step on this host.
      say: see `file_for`.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / 'found'
        say('looks at the hosts of TF_CONFIG, where this command is to run for each task')
        status = _start(config, step, path).wait()
        if status:
            sys.exit(max(1, status))  # it has said why
        return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def _of_this_host():
    """Returns the figures of `measuring.between_hosts` for two tasks on this host, a dict."""
    names = 'localhost', '127.0.0.1'  # two names, as for two hosts
    addresses = [f'{name}:{port}' for name, port in zip(names, ports.free_ports(2))]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / 'found'
        tasks = [_start(json.dumps({'cluster': {'worker': addresses},
                                    'task': {'type': 'worker', 'index': index}}), 0, path)
                 for index in range(2)]
        try:
            if any([task.wait(_TIME_LIMIT) for task in tasks]):
                sys.exit(1)  # it has said why
        finally:
            for task in tasks:
                task.kill()
        return json.loads(path.read_text(encoding='utf-8'))[1]


def _are_alike(value, other):
    return other / _ALIKE <= value <= other * _ALIKE


def _rate(byte):
    """Returns a rate as `description.bandwidth` takes it, by the seconds for a byte."""
    return f'{8e-6 / byte:.4g}Mbit' if byte > 0 else 'inf'


def description(hosts, own):
    """Describes a cluster as `advise_cluster.Cluster` takes it.

    Args:
      hosts: list of dicts, one for each host, as of `measuring.between_hosts`: 'address', 'cores',
        'step'; and 'empty' and 'byte', but for the first one.
      own: dict, 'empty' and 'byte' between two processes of one host; None if there is one host.

    Returns:
      The description, a dict, in which the slow hosts come last; and a list of strings, what is not
      in it since it has one figure for all hosts.
    """
    first, *others = hosts
    if not others:
        return {'hosts': 1, 'about': 'TF_CONFIG has no other host.'}, []
    trips = {each['address']: max(0., each['empty'] - own['empty']) for each in others}
    trip = statistics.median(trips.values())
    found = {'hosts': len(hosts), 'cores': min(each['cores'] for each in hosts),
             'round_trip': advise_costs.time(trip)}
    unlike = [f'{each["address"]} has {each["cores"]} cores; {found["cores"]} are taken for all'
              for each in hosts if each['cores'] > found['cores']]
    unlike += [f'to {address} and back a message takes {advise_costs.time(value)}; '
               f'{found["round_trip"]} are taken for all' for address, value in trips.items()
               if abs(value - trip) > _LEAST_TRIP and not _are_alike(value, trip)]
    each_byte = {each['address']: each['byte'] - own['byte'] for each in others}
    byte = statistics.median(each_byte.values())
    if byte > own['byte'] / 4:  # else TensorFlow takes the time, and not the network
        found['rate'] = _rate(byte)
        unlike += [f'{address} is reached at {_rate(value)}/s; {found["rate"]}/s are taken for all'
                   for address, value in each_byte.items() if not _are_alike(value, byte)]
    factors = {each['address']: each['step'] / first['step'] for each in hosts}
    slow = [address for address, factor in factors.items() if factor > _ALIKE]
    by = statistics.median(factors[address] for address in slow) if slow else 1.
    if slow:
        found.update(slow=len(slow), slow_by=f'{by:.3g}')
    taken = {address: by if address in slow else 1. for address in factors}
    unlike += [f'local steps on {address} take {factor:.3g} times as long as here; '
               f'{taken[address]:.3g} is taken' for address, factor in factors.items()
               if not _are_alike(factor, taken[address])]
    found['addresses'] = sorted(factors, key=slow.__contains__)
    found['about'] = (f'Measured by {first["address"]}, {time.strftime("%Y-%m-%d")}, with '
                      "TensorFlow's own servers, less what these take on one host.")
    return found, unlike
