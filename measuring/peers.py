"""The peers that stand beside the examples in bench.py: where they are installed, and their runs.

The programs are in Comparison/peers. An interpreter that has what one of them needs is looked for
in the environment variable PEERS_PYTHON, paths with a `:` between them; then in the environments
that the Makefile makes; then it is this one.
"""

import collections
import functools
import os
import re
import signal
import statistics
import subprocess
import sys

from measuring.runs import FOREIGN, ROOT, TIME_LIMIT

PORT = 29500  # of the first worker on hosts
ENVIRONMENTS = '.venv-peers', '.venv-horovod', '.venv-tf2'
RATE = re.compile(r'([\d.]+) steps/s per worker')
_ASK = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sys.modules[sys.argv[1].split('.')[0]].__version__)
"""


class Peer(collections.namedtuple('Peer', 'program framework module version')):
    """A program beside which examples are measured.

    Attributes:
      program: string, a file in Comparison/peers.
      framework: string, what it is made with, in words.
      module: string, what it imports.
      version: string, how the version of that has to begin.
    """


PEERS = {
    'DDP': Peer('ddp.py', 'PyTorch', 'torch', ''),
    'local SGD in PyTorch': Peer('local_sgd.py', 'PyTorch', 'torch', ''),
    'Horovod': Peer('horovod_sgd.py', 'Horovod', 'horovod.tensorflow', ''),
    'ParameterServerStrategy': Peer('parameter_server.py', 'TensorFlow', 'tensorflow', '2.'),
    'MultiWorkerMirroredStrategy': Peer('multi_worker_mirrored.py', 'TensorFlow', 'tensorflow',
                                        '2.'),
}


def interpreters():
    """Returns the interpreters that may have a peer, a list of paths, each once."""
    named = [path for path in os.environ.get('PEERS_PYTHON', '').split(os.pathsep) if path]
    made = [str(ROOT / name / 'bin' / 'python') for name in ENVIRONMENTS]
    return list(dict.fromkeys([*named, *filter(os.path.exists, made), sys.executable]))


@functools.lru_cache(maxsize=None)
def version(interpreter, module):
    """Returns the version of the package of a module in an interpreter; None if it has none."""
    try:
        asked = subprocess.run([interpreter, '-c', _ASK, module], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, universal_newlines=True, timeout=120,
                               check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.split()[-1] if asked.returncode == 0 else None


def installed(names):
    """Finds peers by their names in PEERS.

    Returns:
      Dict of the interpreters of those that are there, and the frameworks of these with their
      versions, a sorted list of strings.
    """
    found, frameworks = {}, set()
    for name in names:
        peer = PEERS[name]
        for interpreter in interpreters():
            its = version(interpreter, peer.module)
            if its and its.startswith(peer.version):
                found[name] = interpreter
                frameworks.add(f'{peer.framework} {its}')
                break
    return found, sorted(frameworks)


def steps_per_second(name, interpreter, *flags, network=None):
    """Runs a peer; returns how many steps a second each of its workers makes, the mean of them.

    Args:
      name: string, a key of `PEERS`.
      interpreter: string, a path.
      *flags: strings, for the program.
      network: `hosts.Hosts`, each of whose hosts with a name such as worker-0 gets a worker; None:
        the program starts all of them on this machine. Only DDP runs on hosts.

    Raises:
      SystemExit: if it fails, or does not end.
    """
    command = [interpreter, str(ROOT / 'Comparison' / 'peers' / PEERS[name].program), *flags]
    env = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    starts = [(command, env)]
    if network:
        workers = [host for host in network.addresses if host.startswith('worker-')]
        starts = [(network.on(host, command, str(ROOT)),
                   dict(env, RANK=str(i), MASTER_ADDR=workers[0], MASTER_PORT=str(PORT),
                        GLOO_SOCKET_IFNAME='eth0')) for i, host in enumerate(workers)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  universal_newlines=True, env=env, start_new_session=True)
                 for command, env in starts]
    try:
        said = ''.join(process.communicate(timeout=TIME_LIMIT)[0] for process in processes)
    except subprocess.TimeoutExpired:
        sys.exit(f'{name}: it has not ended after {TIME_LIMIT} s')
    finally:  # also when this program is told to end
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # and what it started
            except ProcessLookupError:
                pass
    rates = [float(rate) for rate in RATE.findall(said)]
    status = max(abs(process.returncode) for process in processes)
    if status or not rates:
        sys.exit(f'{said}\n{name}: status {status}')
    return statistics.mean(rates)
