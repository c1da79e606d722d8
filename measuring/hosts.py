"""Hosts on this machine: network namespaces on a switch, each with a name and an address.

Nothing of them is on the system: they have no names there, no interface and no file, and need no
root where users may make namespaces. A namespace lives as long as a process in it. Those that hold
them end when their input is closed: at the latest when the program that made them ends, however it
does.

As a program it is what run.sh starts in place of Python: `Hosts.python` says how.
"""

import contextlib
from functools import partial
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

_WIRE = pathlib.Path(__file__).resolve().parent / 'wire.py'
_NOBODY = '02:00:00:00:00:00'  # the hardware address of no host
_WIRE_MTU = 60000  # few large frames: each costs the wire time, and TCP begins with few
_BURST, _QUEUE = '256kb', '2mb'  # of a link with a rate: what goes at once, and what may wait
_SWITCH = ['unshare', '--user', '--map-root-user', '--net', '--mount', '--uts']
_TRY = """
ip link add name switch type bridge && ip link add name port type veth peer name eth0 &&
mount --bind /etc/hostname /etc/hosts && hostname try
: | "$1" "$2" 0 0 port
"""
# $1: what the file hosts says; $2: the shared directory; $3: the name; $4: the address.
_HOST = """
mount --bind "$1" /etc/hosts && mount --bind "$2" /mnt && hostname "$3"
ip link set lo up && echo ready && read -r plugged
ip address add "$4/24" dev eth0 && ip link set eth0 up && echo ready && exec cat
"""


def missing():
    """Returns what keeps hosts from being made here; the empty string if nothing does."""
    for tool in 'unshare', 'nsenter', 'ip', 'hostname', 'tc':
        if not shutil.which(tool):
            return f'there is no {tool}'
    tried = subprocess.run([*_SWITCH, 'sh', '-ec', _TRY, 'sh', sys.executable, str(_WIRE)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30,
                           universal_newlines=True, check=False)
    return f'namespaces cannot be made: {tried.stderr.strip()}' if tried.returncode else ''


class Hosts:
    """Hosts on one switch, as a context manager.

    Each knows all of them by name, and itself by the first part of its name.

    Attributes:
      addresses: dict of strings, the IP address of each host by its name.
      shared: dict of `pathlib.Path`, what is /mnt on each.
    """

    def __init__(self, directory, names, share=True, round_trip=None, lost=0., gigabits=None):
        """Chooses addresses.

        Args:
          directory: `pathlib.Path`, for the hosts' files.
          names: list of strings.
          share: bool, whether /mnt is the same directory on all.
          round_trip: float, seconds from host to host and back, with wire.py as the switch; None:
            a switch of the system, and no delay.
          lost: float, what share of all frames that wire loses.
          gigabits: float, how many bits pass each host's link in a second, either way; None: as
            many as this machine can.
        """
        self.addresses = {name: f'10.25.0.{i}' for i, name in enumerate(names, 1)}
        self._directory = directory
        self._round_trip = round_trip
        self._lost, self._gigabits = lost, gigabits
        self._ports = {name: f'port{i}' for i, name in enumerate(names, 1)}
        self.shared = {name: directory / ('mnt' if share else f'mnt-{name}') for name in names}
        self._holders, self._is_divided = {}, False
        self._pids = directory / 'pids.json'  # for what stands in for Python

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self._holders.values():
            holder.stdin.close()
            holder.wait(10)
            holder.stdout.close()

    def _make(self):
        names = self._directory / 'hosts'
        names.write_text('127.0.0.1 localhost\n' + ''.join(
            f'{address} {name}\n' for name, address in self.addresses.items()), encoding='utf-8')
        self._hold('', [*_SWITCH, 'sh', '-c', 'echo ready && exec cat'])
        if self._round_trip is None:
            self._on_switch('ip', 'link', 'add', 'name', 'switch', 'type', 'bridge')
            self._on_switch('ip', 'link', 'set', 'switch', 'up')
        for name in self.addresses:
            self.shared[name].mkdir(exist_ok=True)
            self.power_on(name)
        if self._round_trip is not None:
            self._hold('wire.py', [*self._switch(), sys.executable, str(_WIRE),
                                   str(self._round_trip / 2), str(self._lost),
                                   *self._ports.values()])

    def power_on(self, name):
        """Makes a host; also one that lost its power, at its old address."""
        mtu, into_switch = ['mtu', str(_WIRE_MTU)], []
        if self._round_trip is None:
            mtu, into_switch = [], ['master', 'switch']
        address, port = self.addresses[name], self._ports[name]
        self._hold(name, [
            *self._switch(), 'unshare', '--net', '--mount', '--uts', 'sh', '-ec', _HOST, 'sh',
            str(self._directory / 'hosts'), str(self.shared[name]), name.partition('.')[0],
            address])
        hardware = '02:00:' + ':'.join(f'{int(part):02x}' for part in address.split('.'))
        self._on_switch('ip', 'link', 'add', 'name', port, *mtu, 'type', 'veth', 'peer', 'name',
                        'eth0', 'address', hardware, *mtu, 'netns', str(self._holders[name].pid))
        self._on_switch('ip', 'link', 'set', port, *into_switch, 'up')
        self._answer(name, 'plugged\n')
        if self._gigabits is not None:
            for run_on, end in (self._on_switch, port), (partial(self._on_host, name), 'eth0'):
                run_on('tc', 'qdisc', 'add', 'dev', end, 'root', 'tbf', 'rate',
                       f'{self._gigabits}gbit', 'burst', _BURST, 'limit', _QUEUE)
        self._pids.write_text(json.dumps({name: holder.pid for name, holder in
                                          self._holders.items()}), encoding='utf-8')

    def lose_power(self, name, *programs):
        """Ends a host as a loss of power does: nobody hears good-bye from its connections.

        What runs there are `programs`, objects with a method `kill`.
        """
        self.plug(name, 'down')
        for program in programs:
            program.kill()
        self._on_switch('ip', 'link', 'delete', self._ports[name])  # or the old host might answer
        holder = self._holders.pop(name)
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()

    def _hold(self, name, command):
        """Starts the process that keeps namespaces, and waits until it has made them."""
        self._holders[name] = subprocess.Popen(command, stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, universal_newlines=True)
        self._answer(name, '')

    def _answer(self, name, line):
        holder = self._holders[name]
        holder.stdin.write(line)
        holder.stdin.flush()
        if holder.stdout.readline() != 'ready\n':
            raise RuntimeError(f'host {name} cannot be made')

    def _switch(self):
        """Returns the beginning of a command that is to run where the switch is."""
        return _enter(self._holders[''].pid, '--user', '--net')

    def _on_switch(self, *command):
        subprocess.run([*self._switch(), *command], check=True, timeout=30)

    def _on_host(self, name, *command):
        subprocess.run(self.on(name, command, os.getcwd()), check=True, timeout=30,
                       stdout=subprocess.DEVNULL)

    def on(self, name, command, cwd):
        """Returns the command, a list of strings, that runs `command` on a host in `cwd`."""
        return [*_on(self._holders[name].pid, cwd), *command]

    def python(self, by_tunnels=False):
        """Returns the path of what may stand in for Python: each task runs on a host of its own.

        That is the host with the name of the task, such as worker-0. What has no TF_CONFIG is no
        task, and runs as it would without hosts. With `by_tunnels`, the tasks reach each other at
        the local ports that they had on one machine, and not at each other's hosts.
        """
        path = self._directory / ('python-by-tunnels' if by_tunnels else 'python')
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{self._pids}" '
                        f'{int(by_tunnels)} "$@"\n', encoding='utf-8')
        path.chmod(0o700)
        return str(path)

    def plug(self, name, state='up'):
        """Connects a host with the others again, or with the state 'down' cuts it off."""
        self._on_switch('ip', 'link', 'set', self._ports[name], state)

    def divide(self, *names):
        """Has these hosts reach each other, and no others: two networks instead of one.

        Without names all are on one network again. Only for a switch of the system.
        """
        if not self._is_divided:
            self._is_divided = True
            self._on_switch('ip', 'link', 'add', 'name', 'second', 'type', 'bridge')
            self._on_switch('ip', 'link', 'set', 'second', 'up')
        for name, port in self._ports.items():
            self._on_switch('ip', 'link', 'set', port, 'master',
                            'second' if name in names else 'switch')

    def silence(self, name, other, begins=True):
        """Loses what a host sends to another one, or no longer; the other way all arrives."""
        lost = ['lladdr', _NOBODY, 'nud', 'permanent'] if begins else []
        self._on_host(name, 'ip', 'neighbor', 'replace' if begins else 'delete',
                      self.addresses[other], *lost, 'dev', 'eth0')

    def forget(self, name):
        """Has a host know nothing of its connections any more; to the others they are whole."""
        self.plug(name, 'down')  # or they would be told
        self._on_host(name, 'ss', '--kill', '--tcp')
        self.plug(name)

    def reaches(self, name, address):
        """Returns whether something on a host can connect to `address`, a host:port."""
        host, _, port = address.rpartition(':')
        probe = f'import socket; socket.create_connection(({host!r}, {port}), timeout=3)'
        return not subprocess.run(self.on(name, [sys.executable, '-c', probe], os.getcwd()),
                                  stderr=subprocess.DEVNULL, timeout=30, check=False).returncode


@contextlib.contextmanager
def of_tasks(ps, workers, round_trip=None, gigabits=None):
    """Makes a host for each task, such as ps-0 and worker-0, and yields these `Hosts`.

    Args:
      ps: int, how many ps there are.
      workers: int.
      round_trip: see `Hosts`.
      gigabits: see `Hosts`.
    """
    names = [f'{job}-{i}' for job, number in (('ps', ps), ('worker', workers))
             for i in range(number)]
    with tempfile.TemporaryDirectory() as directory, Hosts(
            pathlib.Path(directory), names, round_trip=round_trip, gigabits=gigabits) as network:
        yield network


def _enter(pid, *namespaces):
    """Returns the beginning of a command that is to run in namespaces of a process."""
    return ['nsenter', f'--target={pid}', '--preserve-credentials', *namespaces]


def _on(pid, cwd):
    """Returns the beginning of a command that is to run in `cwd` on the host of a process."""
    return [*_enter(pid, '--user', '--net', '--mount', '--uts'), f'--wd={cwd}']


def moved(config):
    """Moves a cluster of one machine, each task to the host with its name.

    Returns:
      A new dict for `config`, one as in TF_CONFIG, and the name of the host of this task.
    """
    cluster = {job: [f'{job}-{i}:{address.rpartition(":")[2]}'
                     for i, address in enumerate(addresses)]
               for job, addresses in config['cluster'].items()}
    task = config['task']
    return dict(config, cluster=cluster), f'{task["type"]}-{task["index"]}'


def main():
    """Runs a program of Python, on its host if it is a task."""
    command = [sys.executable, *sys.argv[3:]]
    if 'TF_CONFIG' in os.environ:
        config, host = moved(json.loads(os.environ['TF_CONFIG']))
        if not int(sys.argv[2]):
            os.environ['TF_CONFIG'] = json.dumps(config)
        with open(sys.argv[1], encoding='utf-8') as file:
            command = [*_on(json.load(file)[host], os.getcwd()), *command]
    os.execvp(command[0], command)


if __name__ == '__main__':
    main()
