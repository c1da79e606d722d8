"""The interpreter from which the tests fork programs."""

import pathlib
import socket

from processes import warm_python


def test_who_ends_before_it_asks_for_a_program_keeps_nobody_waiting(programs, tmp_path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pathlib.Path(warm_python()).parent / 'socket'))
    (tmp_path / 'program.py').write_text('print("runs")\n', encoding='utf-8')
    program = programs.start([warm_python(), tmp_path / 'program.py'])
    assert program.wait() == 0 and program.out == ['runs']
