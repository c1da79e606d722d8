"""Free ports: nobody listens on them, and nobody else gets them."""

import socket
import subprocess
import sys

import pytest

from tfdist.start import ports

from processes import ROOT

ALL = 22768  # from 10000 to 32767


def test_they_are_free_and_may_be_listened_on():
    chosen = ports.free_ports(5)
    assert len(set(chosen)) == 5 and all(10000 <= port < 32768 for port in chosen)
    for port in chosen:
        with socket.socket() as probe, socket.socket() as server:
            assert probe.connect_ex(('localhost', port)), 'nobody listens'
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow's do
            server.bind(('', port))
            server.listen(1)


def test_a_port_in_use_is_not_chosen(monkeypatch):
    with socket.socket() as server:
        server.bind(('', 0))
        server.listen(1)
        taken = server.getsockname()[1]
        free, = ports.free_ports(1)
        ports._held.clear()
        monkeypatch.setattr(ports.random, 'sample', lambda *_: [taken, free, free])
        assert ports.free_ports(1) == [free]


@pytest.mark.skipif(sys.platform != 'linux', reason='only there they can be held')
def test_another_process_does_not_get_them(monkeypatch):
    mine = ports.free_ports(3)
    other = ('import random, sys; random.sample = lambda *_: [*map(int, sys.argv[1:])];'
             'from tfdist.start import ports; print(ports.free_ports(1))')
    monkeypatch.chdir(ROOT)
    done = subprocess.run([sys.executable, '-c', other, *map(str, mine), '0'], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert 'there are no 1 free ports' in done.stderr and not done.stdout


def test_there_are_not_so_many():
    with pytest.raises(OSError, match=f'there are no {ALL} free ports'):
        ports.free_ports(ALL)
