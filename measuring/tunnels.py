"""Tunnels between the hosts of hosts.py, as Clusters/several-hosts/tls.py makes them."""

import os
import shutil
import subprocess
import sys

from measuring.runs import FOREIGN, ROOT

TLS = ROOT / 'Clusters' / 'several-hosts' / 'tls.py'
LOCAL_PORT = 22000  # of the first task, as run.sh takes them with PORT=22000
_ALL_DESCRIPTORS = 'bash', '-c', 'ulimit -n hard && exec "$@"', 'bash'
_PACKAGES = 'stunnel4', 'libwrap0'  # with what a system may not have besides
_STUNNEL = """#!/bin/sh
LD_LIBRARY_PATH={libraries} exec {program} "$@"
"""


def stunnel(directory):
    """Returns the path of the command stunnel, a string.

    Where it is not installed, the distribution's package is unpacked into `directory`, a path:
    nothing is installed, and no root is needed.

    Raises:
      RuntimeError: with the reason why there is none.
    """
    installed = shutil.which('stunnel') or shutil.which('stunnel4')
    if installed:
        return installed
    for tool in 'apt-get', 'dpkg':
        if not shutil.which(tool):
            raise RuntimeError(f'there is no stunnel, and no {tool} to unpack its package')
    _do(['apt-get', 'download', *_PACKAGES], directory)
    for package in _PACKAGES:
        file, = directory.glob(f'{package}_*.deb')
        _do(['dpkg', '-x', file.name, 'unpacked'], directory)
    unpacked = directory / 'unpacked'
    library = next(unpacked.rglob('libwrap.so.0'))
    path = directory / 'stunnel'
    path.write_text(_STUNNEL.format(libraries=library.parent,
                                    program=unpacked / 'usr' / 'bin' / 'stunnel4'))
    path.chmod(0o755)
    _do([str(path), '-version'], directory)
    return str(path)


def _do(command, directory):
    """Runs a command in a directory; raises RuntimeError with what it says if it fails."""
    try:
        subprocess.run(command, cwd=str(directory), stdin=subprocess.DEVNULL, timeout=60,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True,
                       universal_newlines=True)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f'there is no stunnel, and {command[0]} takes too long') from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f'there is no stunnel, and {command[0]} fails: '
                           f'{" ".join(error.stdout.split())}') from error


class Tunnels:
    """Tunnels between the tasks of a cluster, each on a host of its own; a context manager.

    Each task reaches the others at the ports that run.sh gives them with PORT=LOCAL_PORT.
    """

    def __init__(self, network, directory, names, command, *flags):
        """Makes the certificates, in a directory, for hosts with names such as worker-0.

        Args:
          network: `hosts.Hosts` in its context.
          directory: `pathlib.Path`.
          names: list of strings.
          command: what `stunnel` returned.
          *flags: strings, more flags for the tunnels.
        """
        self._network, self._names, self._running = network, names, []
        self._command = command
        self._directory = directory / 'tls'
        jobs = {job: ','.join(f'{name}:2222' for name in names if name.startswith(job))
                for job in ('ps', 'worker')}
        for what in ['certificates'], ['tunnels', f'--local_port={LOCAL_PORT}', *flags]:
            subprocess.run([sys.executable, str(TLS), *what, str(self._directory),
                            *(f'--{job}_hosts={hosts}' for job, hosts in jobs.items() if hosts)],
                           env={name: value for name, value in os.environ.items()
                                if name not in FOREIGN},
                           stdout=subprocess.DEVNULL, timeout=60, check=True)

    def __enter__(self):
        for name in self._names:
            home = self._directory / 'hosts' / name
            self._running.append(subprocess.Popen(
                self._network.on(name, [*_ALL_DESCRIPTORS, self._command, 'stunnel.conf'], home),
                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self

    def __exit__(self, *_):
        for running in self._running:
            running.terminate()
            running.wait(10)
