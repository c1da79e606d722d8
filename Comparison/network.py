"""A network with an artificial round-trip time for the tasks of one run.

Each task gets a host of its own: a network namespace with one interface, a TAP device. The wire
between them is a process, which reads each frame, holds it for half the round-trip time and gives
it to the host that it is for. That takes its share of the processor, so compare with a round trip
of 0. Needs Linux, root and /dev/net/tun; it touches no interface that was there before.

As a program it is what run.sh starts in place of Python:

    python network.py NAME PROGRAM.py [FLAGS...]

replaces the addresses in TF_CONFIG by those of the hosts of the network NAME, and runs the program
on its own host.
"""

import collections
import fcntl
import json
import multiprocessing
import os
import select
import shutil
import struct
import subprocess
import sys
import time

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454ca, 2, 0x1000
_MTU = 60000  # few large frames: each costs the wire time


def _ip(*words):
    """Runs `ip`, from a list of what can be made a string; raises OSError if it fails."""
    done = subprocess.run(['ip', *map(str, words)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        raise OSError(f'ip {" ".join(map(str, words))}: {done.stdout.strip()}')


def carry(taps, seconds):
    """Carries frames between TAP devices, for ever.

    Args:
      taps: list of file descriptors; the MAC address of device i ends with i + 1.
      seconds: float, how long each frame is under way.
    """
    under_way = collections.deque()  # (when it arrives, to whom, frame): in this order
    while True:
        wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select(taps, [], [], wait)
        now = time.monotonic()
        for tap in readable:
            frame = os.read(tap, 2 * _MTU)
            to_all = frame[0] & 1
            under_way.extend((now + seconds, other, frame) for i, other in enumerate(taps)
                             if other != tap and (to_all or frame[5] == i + 1))
        while under_way and under_way[0][0] <= now:
            os.write(*under_way.popleft()[1:])


class Network:
    """Hosts that live as long as a `with` statement.

    Attributes:
      name: string, of the network.
    """

    def __init__(self, round_trip, hosts=3):
        """Takes the round-trip time in seconds, and the number of hosts."""
        self.name = f'cmp{os.getpid()}'
        self._seconds = round_trip / 2
        self._hosts = [f'{self.name}-{i}' for i in range(hosts)]
        self._taps = []
        self._made = []
        self._wire = None

    def __enter__(self):
        """Makes the hosts.

        Raises:
          OSError: if that is not permitted.
        """
        try:
            for i, host in enumerate(self._hosts):
                self._taps.append(os.open('/dev/net/tun', os.O_RDWR))
                fcntl.ioctl(self._taps[-1], _TUNSETIFF,
                            struct.pack('16sH', host.encode(), _IFF_TAP | _IFF_NO_PI))
                _ip('netns', 'add', host)
                self._made.append(host)
                _ip('link', 'set', host, 'netns', host)  # the descriptor stays with the device
                _ip('-n', host, 'link', 'set', 'lo', 'up')
                _ip('-n', host, 'link', 'set', host, 'address', f'02:00:00:00:00:{i + 1:02x}')
                _ip('-n', host, 'link', 'set', host, 'mtu', _MTU, 'up')
                _ip('-n', host, 'addr', 'add', f'{address(i)}/24', 'dev', host)
            self._wire = multiprocessing.get_context('fork').Process(
                target=carry, args=(self._taps, self._seconds), daemon=True)
            self._wire.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._wire:
            self._wire.kill()  # it holds nothing, and heeds the handlers of this program
            self._wire.join()
        for host in self._made:
            _ip('netns', 'del', host)
        for tap in self._taps:
            os.close(tap)


def address(i):
    """Returns the address of host i, counted from 0."""
    return f'10.77.0.{i + 1}'


def obstacle():
    """Returns why there can be no `Network` here; the empty string if there can be one."""
    if not shutil.which('ip'):
        return 'there is no program `ip`'
    if os.geteuid():
        return 'it needs root'
    try:
        with Network(0, hosts=2):
            return ''
    except OSError as error:
        return str(error)


def on_hosts(config):
    """Moves a cluster of one machine to the hosts of a network, each task to its own.

    Args:
      config: dict, as in TF_CONFIG.

    Returns:
      A new dict, and the number of the host of this task.
    """
    jobs = sorted(config['cluster'])  # ps before worker
    first, cluster = {}, {}
    for job in jobs:
        first[job] = sum(len(cluster[other]) for other in cluster)
        cluster[job] = [f'{address(first[job] + i)}:{each.rpartition(":")[2]}'
                        for i, each in enumerate(config['cluster'][job])]
    task = config['task']
    return dict(config, cluster=cluster), first[task['type']] + task['index']


def main():
    """Runs a program on its host."""
    name, *command = sys.argv[1:]
    config, host = on_hosts(json.loads(os.environ['TF_CONFIG']))
    os.environ['TF_CONFIG'] = json.dumps(config)
    os.execvp('ip', ['ip', 'netns', 'exec', f'{name}-{host}', sys.executable, *command])


if __name__ == '__main__':
    main()
