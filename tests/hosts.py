"""Hosts for tests: network namespaces on a switch of their own, each with a name and an address.

Nothing of them is on the system: they have no names there, no interface and no file, and need no
root where users may make namespaces. A namespace lives as long as a process in it. Those that hold
them end when their input is closed: at the latest when the test itself ends, however it does.
"""

import os
import shutil
import subprocess
import sys

_SWITCH = ['unshare', '--user', '--map-root-user', '--net', '--mount', '--uts']
_TRY = """
ip link add name switch type bridge && ip link add name port type veth peer name eth0 &&
mount --bind /etc/hostname /etc/hosts && hostname try
"""
# $1: what the file hosts says; $2: the shared directory; $3: the name; $4: the address.
_HOST = """
mount --bind "$1" /etc/hosts && mount --bind "$2" /mnt && hostname "$3"
ip link set lo up && echo ready && read -r plugged
ip address add "$4/24" dev eth0 && ip link set eth0 up && echo ready && exec cat
"""


def missing():
    """Returns what keeps hosts from being made here; the empty string if nothing does."""
    for tool in 'unshare', 'nsenter', 'ip', 'hostname':
        if not shutil.which(tool):
            return f'there is no {tool}'
    tried = subprocess.run([*_SWITCH, 'sh', '-ec', _TRY], stdout=subprocess.DEVNULL, timeout=30,
                           stderr=subprocess.PIPE, universal_newlines=True, check=False)
    return f'namespaces cannot be made: {tried.stderr.strip()}' if tried.returncode else ''


class Hosts:
    """Hosts on one switch, as a context manager.

    Each knows all of them by name, and itself by the first part of its name.

    Attributes:
      addresses: dict of strings, the IP address of each host by its name.
      shared: dict of `pathlib.Path`, what is /mnt on each.
    """

    def __init__(self, directory, names, share=True):
        """Chooses addresses.

        Args:
          directory: `pathlib.Path`, for the hosts' files.
          names: list of strings.
          share: bool, whether /mnt is the same directory on all.
        """
        self.addresses = {name: f'10.25.0.{i}' for i, name in enumerate(names, 1)}
        self._names = directory / 'hosts'
        self.shared = {name: directory / ('mnt' if share else f'mnt-{name}') for name in names}
        self._holders = {}

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
        self._names.write_text('127.0.0.1 localhost\n' + ''.join(
            f'{address} {name}\n' for name, address in self.addresses.items()), encoding='utf-8')
        self._hold('', [*_SWITCH, 'sh', '-c', 'echo ready && exec cat'])
        self._on_switch('ip', 'link', 'add', 'name', 'switch', 'type', 'bridge')
        self._on_switch('ip', 'link', 'set', 'switch', 'up')
        for i, (name, address) in enumerate(self.addresses.items(), 1):
            self.shared[name].mkdir(exist_ok=True)
            self._hold(name, [
                *self._enter('', '--user', '--net'), 'unshare', '--net', '--mount', '--uts',
                'sh', '-ec', _HOST, 'sh', str(self._names), str(self.shared[name]),
                name.partition('.')[0], address])
            self._on_switch('ip', 'link', 'add', 'name', f'port{i}', 'type', 'veth',
                            'peer', 'name', 'eth0', 'netns', str(self._holders[name].pid))
            self._on_switch('ip', 'link', 'set', f'port{i}', 'master', 'switch', 'up')
            self._answer(name, 'plugged\n')

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

    def _enter(self, name, *namespaces):
        """Returns the beginning of a command that is to run in namespaces of a host."""
        return ['nsenter', f'--target={self._holders[name].pid}', '--preserve-credentials',
                *namespaces]

    def _on_switch(self, *command):
        subprocess.run([*self._enter('', '--user', '--net'), *command], check=True, timeout=30)

    def on(self, name, command, cwd):
        """Returns the command, a list of strings, that runs `command` on a host in `cwd`."""
        return [*self._enter(name, '--user', '--net', '--mount', '--uts'), f'--wd={cwd}', *command]

    def plug(self, name, state='up'):
        """Connects a host with the others again, or with the state 'down' cuts it off."""
        self._on_switch('ip', 'link', 'set', f'port{list(self.addresses).index(name) + 1}', state)

    def reaches(self, name, address):
        """Returns whether something on a host can connect to `address`, a host:port."""
        host, _, port = address.rpartition(':')
        probe = f'import socket; socket.create_connection(({host!r}, {port}), timeout=3)'
        return not subprocess.run(self.on(name, [sys.executable, '-c', probe], os.getcwd()),
                                  stderr=subprocess.DEVNULL, timeout=30, check=False).returncode
