"""The interpreter from which the tests fork programs."""

import pathlib
import signal
import socket

import pytest

from processes import listens, Tasks, wait_until, warm_python


def test_who_ends_before_it_asks_for_a_program_keeps_nobody_waiting(programs, tmp_path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pathlib.Path(warm_python()).parent / 'socket'))
    (tmp_path / 'program.py').write_text('print("runs")\n', encoding='utf-8')
    program = programs.start([warm_python(), tmp_path / 'program.py'])
    assert program.wait() == 0 and program.out == ['runs']


@pytest.mark.parametrize('_', range(3))
def test_who_is_killed_leaves_its_port_free(programs, _):
    tasks = Tasks(programs, num_workers=1)
    ps = tasks.start('ps', 0)
    address = tasks.cluster['ps'][0]
    wait_until(lambda: listens(address) or not ps.running, ps)
    ps.kill()
    assert ps.wait() == -signal.SIGKILL and not ps.err
    with socket.socket() as another:
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(('', int(address.rpartition(':')[2])))
