"""Who is no task of the run: it connects and says nothing, garbage, too much, or has an address."""

import contextlib
import os
import resource
import socket
import sys

from clusters import seconds_until_all_train, training
from processes import ROOT, SLOW, STEP, Tasks, wait_until
import psutil
import pytest

IDLE = 5000  # connections
SOON_SECS = 20
SETTINGS = b'\0\0\0\4\0\0\0\0\0'
GREETING = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + SETTINGS
PING = b'\0\0\x08\6\0\0\0\0\0' + bytes(8)
LARGEST = b'\xff\xff\xff\0\0\0\0\0\1' + bytes(2 ** 24 - 1)  # a frame of data
FOLDERS = 'HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'
# What TensorFlow 1.15 writes when it is pinged too much, and nothing keeps it from that.
FLOODED = 'is full, dropping'
LINES = 400  # for each connection that floods

# Programs that listen on the port that they are given.
LISTENS = """
import socket, sys
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(('localhost', int(sys.argv[1])))
listening.listen(100)
print('ready', flush=True)
accepted = []
while True:
    accepted.append(listening.accept()[0])
"""
READS = LISTENS + """
    accepted[-1].recv(1000)
"""
ENDLESS = LISTENS + """
    try:
        while True:
            accepted[-1].sendall(b'endless ')
    except OSError:
        pass
"""
GRPC = """
import concurrent.futures, grpc, sys, time
server = grpc.server(concurrent.futures.ThreadPoolExecutor())
server.add_insecure_port('localhost:' + sys.argv[1])
server.start()
print('ready', flush=True)
time.sleep(1000)
"""
TASK = """
import sys
from tfdist.quiet import tf
server = tf.train.Server({'worker': {7: 'localhost:' + sys.argv[1]}}, 'worker', 7)
print('ready', flush=True)
server.join()
"""
# Who notices first: a session that is made anew, or who keeps an eye on the tasks.
IS_ANOTHER = (r'^At the address of ps 0 is another task now, of this cluster or of another\.$|'
              r'ps 0 at \S+ does not answer \(that is worker 7\)\. Gave up after 6 s\.$')
NO_SERVER = 'it is no server of TensorFlow'


def start(programs, folder, *flags):
    """Starts all tasks of a folder; returns them, and the address of one that strangers know."""
    tasks = Tasks(programs, num_ps=folder != 'Ring-AllReduce', folder=folder, flags=[
        '--train_steps=1000000', '--log_every_n_steps=20', '--patience_secs=60', SLOW, *flags])
    running = {(job, i): tasks.start(job, i)
               for job in sorted(tasks.cluster) for i in range(len(tasks.cluster[job]))}
    for task in training(running):
        running[task].wait_for(STEP, 2)
    job = 'ps' if ('ps', 0) in running else 'worker'
    return running, running[job, 0], tasks.cluster[job][0]


def connect(address):
    host, _, port = address.rpartition(':')
    return socket.create_connection((host, int(port)), timeout=3)


def say(address, *words):
    """Says something to a server, also when it has closed the connection meanwhile."""
    with contextlib.suppress(OSError), connect(address) as connection:
        for word in words:
            connection.sendall(word)
        connection.recv(1000)


@contextlib.contextmanager
def idle(address):
    """Connects many times, as often as the system lets this process.

    The greeting is for the end: without, a server keeps a connection that is closed for 120 s.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        connections = [stack.enter_context(connect(address))
                       for _ in range(min(IDLE, limits[1] // 2))]
        yield
        for connection in connections:
            connection.sendall(GREETING)


@pytest.mark.parametrize('folder', [
    FOLDERS[0], *(pytest.param(folder, marks=pytest.mark.thorough) for folder in FOLDERS[1:])])
def test_who_connects_does_no_harm(programs, folder):
    """Training goes on, and what was spent on strangers is free again when they are gone."""
    running, served, address = start(programs, folder)
    process = psutil.Process(served.pid)
    memory, descriptors, threads = (process.memory_info().rss, process.num_fds(),
                                    process.num_threads())
    for _ in range(3):
        say(address, os.urandom(2 ** 16))
        say(address, GREETING, os.urandom(2 ** 16))
        say(address, LARGEST)
        say(address, GREETING, LARGEST)
    say(address, GREETING + 20000 * PING)
    with idle(address):
        seconds_until_all_train(running, SOON_SECS)
    wait_until(lambda: process.num_fds() < descriptors + 30, process)
    assert process.num_threads() < threads + 20 and process.memory_info().rss < memory + 2e8
    seconds_until_all_train(running, SOON_SECS)
    for program in running.values():
        lines = program.err
        assert len(lines) <= LINES * (program is served), str(program)
        assert all(FLOODED in line for line in lines), str(program)
    for program in running.values():
        program.end()


@pytest.mark.parametrize('folder, false, reason', [
    ('HogWild', TASK, 'that is worker 7'),
    *(pytest.param(*case, marks=pytest.mark.thorough) for case in (
        ('HogWild', LISTENS, 'timed out'),
        ('HogWild', READS, 'timed out'),
        ('HogWild', GRPC, NO_SERVER),
        ('AGN', ENDLESS, NO_SERVER),
        ('Synchronous-SGD', TASK, 'that is worker 7'),
        ('Ring-AllReduce', TASK, 'that is worker 7'),
        ('Ring-AllReduce', LISTENS, 'timed out')))])
def test_somebody_else_has_the_address_of_a_task(programs, folder, false, reason):
    """All workers say who does not answer, and why, and end."""
    ring = folder == 'Ring-AllReduce'
    tasks = Tasks(programs, num_ps=not ring, folder=folder, flags=['--patience_secs=6'])
    job, index = ('worker', 1) if ring else ('ps', 0)
    address = tasks.cluster[job][index]
    server = programs.start([sys.executable, '-c', false, address.rpartition(':')[2]],
                            env={'PYTHONPATH': str(ROOT)})
    server.wait_for('ready')
    for worker in [tasks.start('worker', i) for i in range(1 if ring else 2)]:
        worker.fails(rf'^worker \d: {job} {index} at {address} does not answer \({reason}\)\. '
                     r'Gave up after 6 s\.$')
    server.end()


@pytest.mark.thorough
@pytest.mark.parametrize('folder, false, line', [
    ('HogWild', TASK, IS_ANOTHER),
    ('AGN', LISTENS, r'ps 0 at \S+ does not answer \(timed out\)\. Gave up after 6 s'),
    ('Synchronous-SGD', TASK, IS_ANOTHER)])
def test_somebody_else_takes_the_address_of_a_task(programs, folder, false, line):
    """The ps is dead, and there is another server before it is started again."""
    running, served, address = start(programs, folder, '--patience_secs=6')
    served.kill()
    server = programs.start([sys.executable, '-c', false, address.rpartition(':')[2]],
                            env={'PYTHONPATH': str(ROOT)})
    for task in training(running):
        running[task].fails(line)
    server.end()
