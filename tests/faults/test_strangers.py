"""Who is no task of the run: it connects and says nothing, garbage, too much, or has an address."""

import contextlib
import os
import resource
import signal
import socket
import sys
import time

import psutil
import pytest

from clusters import seconds_until_all_train, training
from measuring import hosts, tunnels
from tfdist.cluster import liveness
from tfdist.start import ports
from processes import listens, ROOT, SLOW, STEP, Tasks, wait_until, warm_python

sys.path.append(str(ROOT / 'Clusters' / 'several-hosts'))

import tls  # noqa: E402

SOON_SECS = 20
SETTINGS = b'\0\0\0\4\0\0\0\0\0'
GREETING = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + SETTINGS
PING = b'\0\0\x08\6\0\0\0\0\0' + bytes(8)
LARGEST = b'\xff\xff\xff\0\0\0\0\0\1' + bytes(2 ** 24 - 1)  # a frame of data
FOLDERS = 'HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'
# What TensorFlow 1.15 writes when it is pinged too much, and nothing keeps it from that.
FLOODED = 'is full, dropping'
LINES = 400  # for each connection that floods

# A stranger: does harm of a kind at a host and port, until it is told to end.
FLOOD = """
import os, resource, signal, socket, ssl, struct, sys, time
kind, host, port, *words = sys.argv[1:]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
GREETING = %r

def connect():
    try:
        return socket.create_connection((host, int(port)), timeout=3)
    except OSError:
        return None

def end(*_):  # the greeting: without, a server keeps a connection that is closed for 120 s
    for connection in held:
        try:
            connection.sendall(GREETING)
        except (OSError, AttributeError):
            pass
    os._exit(0)

def hold(word=b''):  # many connections; now and then each says a byte of a word, if there is one
    held.extend(connect() for _ in range(int(words[0])))
    print('ready', flush=True)
    said = [0] * len(held)
    while True:
        time.sleep(1)
        for i, connection in enumerate(held):
            try:
                connection.setblocking(False)
                connection.send(word[said[i]:said[i] + 1])
                said[i] += 1
                if not connection.recv(100):
                    raise ConnectionError
            except BlockingIOError:
                pass
            except (OSError, AttributeError):
                held[i], said[i] = connect(), 0

def repeat(do):
    print('ready', flush=True)
    while True:
        connection = connect()
        if connection:
            try:
                with connection:
                    do(connection)
            except OSError:
                pass

def handshake(connection):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if words:
        context.load_cert_chain(*words)
    with context.wrap_socket(connection) as connection:
        connection.recv(100)

held = []
signal.signal(signal.SIGTERM, end)
HELLO = bytes.fromhex('160301020001 0001fc0303') + bytes(500)
if kind == 'idle':
    hold()
elif kind == 'slow':
    hold(GREETING[:-1] if words[1:] else HELLO)
elif kind == 'garbage':
    repeat(lambda connection: connection.sendall(os.urandom(2**16)))
elif kind == 'hurry':
    repeat(lambda connection: connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)))
elif kind == 'handshake':
    repeat(handshake)
""" % GREETING
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
from tfdist.start.quiet import tf
server = tf.train.Server({'worker': {7: 'localhost:' + sys.argv[1]}}, 'worker', 7)
print('ready', flush=True)
server.join()
"""
# It accepts all, and closes them when it is told to; prints how many there are when none comes.
SERVES = """
import resource, signal, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))
signal.signal(signal.SIGHUP, lambda *_: (accepted.clear(), print('closed', flush=True)))
from tfdist.cluster import descriptors
descriptors.begin()
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(('localhost', int(sys.argv[1])))
listening.listen(1000)
listening.settimeout(1)
accepted = []
print('may have', resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
while True:
    try:
        accepted.append(listening.accept()[0])
        time.sleep(0.001)
    except socket.timeout:
        print('accepted', len(accepted), flush=True)
"""
# It connects ten times, and prints how often a server of TensorFlow answers.
ASKS = """
import socket, sys
count = 0
for _ in range(10):
    try:
        with socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=3) as connection:
            connection.sendall(%r)
            count += connection.recv(9)[3:4] == bytes([4])
    except OSError:
        pass
print(count, 'answers', flush=True)
""" % GREETING
# Who notices first: a session that is made anew, or who keeps an eye on the tasks.
IS_ANOTHER = (r'^Another task, of this cluster or another, is now at the address of ps 0\.$|'
              r'ps 0 at \S+ does not answer \(that is worker 7\)\. Gave up after 6 s\.$')
NO_SERVER = 'it is not a TensorFlow server'


def start(programs, folder, *flags):
    """Starts all tasks of a folder; returns them, and the address of one that strangers know."""
    tasks = Tasks(programs, num_ps=folder != 'Ring-AllReduce', folder=folder,
                  python=sys.executable, flags=[
                      '--train_steps=1000000', '--log_every_n_steps=20', '--patience_secs=60',
                      SLOW, *flags])
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
def flood(programs, kind, address, *words, on=()):
    """Has a program, started by the command `on`, do `kind` of harm at `address` all the time."""
    host, _, port = address.rpartition(':')
    stranger = programs.start([*on, sys.executable, '-c', FLOOD, kind, host, port, *words])
    stranger.wait_for('ready')
    yield
    assert stranger.running, str(stranger)
    stranger.send(signal.SIGTERM)
    stranger.wait()


@pytest.fixture
def usual_limit():
    """A limit of 1,024 descriptors for what a test starts, which may raise it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Speed:
    """How fast a run is, by what its `programs` print: steps in a second."""

    def __init__(self, *programs):
        self._programs = programs
        self.before = self.now()

    def _step(self):
        return max(int(match['step']) for program in self._programs
                   for match in program.matches(STEP))

    def now(self, seconds=10):
        """Returns the speed over some seconds from now on."""
        began, first = time.monotonic(), self._step()
        time.sleep(seconds)
        return (self._step() - first) / (time.monotonic() - began)


@pytest.mark.thorough
@pytest.mark.parametrize('folder', FOLDERS)
def test_who_connects_does_no_harm(programs, usual_limit, folder):
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
    with flood(programs, 'idle', address, '3000'):
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


@pytest.mark.thorough
def test_descriptors_are_never_used_up(programs, tmp_path):
    """Of three quarters in use on nobody gets in, until half of them are free."""
    (tmp_path / 'serves.py').write_text(SERVES)
    port, = ports.free_ports(1)
    server = programs.start([warm_python(), tmp_path / 'serves.py', port],
                            env={'PYTHONPATH': str(ROOT)})
    server.wait_for('may have 400')
    time.sleep(0.3)  # it looks for what listens
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(('localhost', port))
            time.sleep(0.003)  # or it has too many in its queue, and forgets them
        server.wait_for(r'process \d+: 300 of 400 descriptors are in use; it accepts no .* free')
        server.wait_for(r'accepted \d+', len(server.matches(r'accepted \d+')) + 2)
        most = int(server.matches(r'accepted (\d+)')[-1][1])
        server.send(signal.SIGHUP)
        server.wait_for('closed')
        wait_until(lambda: listens(f'localhost:{port}'), server)
    assert 250 < most < 390 and not server.err, str(server)
    server.end()


@pytest.mark.thorough
@pytest.mark.parametrize('kind', ['idle 10000', 'slow 2000 http', 'garbage', 'hurry'])
def test_a_flood_slows_nobody_down(programs, usual_limit, kind):
    """It ends nothing, and leaves nothing. Some may keep out who wants to connect anew."""
    running, ps, address = start(programs, 'HogWild', '--patience_secs=15')
    process = psutil.Process(ps.pid)
    descriptors, memory = process.num_fds(), process.memory_info().rss
    speed = Speed(*(running[task] for task in training(running)))
    for _ in range(2):
        with flood(programs, *kind.split()[:1], address, *kind.split()[1:]):
            during = speed.now(30)
            if kind not in ('garbage', 'hurry'):
                assert process.num_fds() > 1100 and not liveness.silence(address), str(ps)
        wait_until(lambda: process.num_fds() < descriptors + 30, process)
        time.sleep(5)  # it gives memory back
    after = speed.now()
    print(f'{kind}: {speed.before:.0f}, {during:.0f}, {after:.0f} steps/s')
    assert during > speed.before / 2 and after > speed.before / 2
    assert process.memory_info().rss < memory + 1e8
    wait_until(lambda: liveness.silence(address) == '', ps)
    for program in running.values():
        assert program.running and not program.err, str(program)
        program.end()


@pytest.mark.thorough
@pytest.mark.parametrize('kind', ['idle 3000', 'slow 2000', 'garbage', 'hurry', 'handshake none',
                                  'handshake foreign', 'handshake expired'])
def test_a_flood_at_a_tunnel(programs, usual_limit, needs_hosts, stunnel, kind):
    """Without the firewall of the tunnels, which would let in less of it."""
    names = ['ps-0', 'worker-0', 'worker-1']
    other, made = programs.directory / 'other', programs.directory / 'tls'
    with hosts.Hosts(programs.directory, [*names, 'stranger']) as network, \
            tunnels.Tunnels(network, programs.directory, names, stunnel):
        kind, *words = kind.split()
        if kind == 'handshake':
            words = {'none': lambda: [], 'expired': lambda: certificate(made, 0),
                     'foreign': lambda: certificate(other, 1)}[words[0]]()
        task = programs.run_sh('HogWild', '--train_steps=1000000', '--log_every_n_steps=20',
                               '--patience_secs=15', SLOW, PORT=tunnels.LOCAL_PORT,
                               PYTHON=network.python(by_tunnels=True))
        task.wait_for(STEP, 6)
        speed = Speed(task)
        with flood(programs, kind, 'ps-0:2222', *words, on=network.on('stranger', [], ROOT)):
            during = speed.now(25)
            asked = programs.start(network.on('worker-0', [
                sys.executable, '-c', ASKS, str(tunnels.LOCAL_PORT)], ROOT))
            assert int(asked.wait_for(r'(\d+) answers')[1]) > 7, str(asked)
        after = speed.now(20)
        print(f'{kind}: {speed.before:.0f}, {during:.0f}, {after:.0f} steps/s')
        assert during > speed.before / 4 and after > speed.before / 2
        assert task.running and not task.err, str(task)
        task.end()


def certificate(directory, days):
    """Returns the files of a stranger's certificate, by the CA in a directory, or a new one."""
    if not directory.exists():
        directory.mkdir()
        tls.make_authority(directory, 1)
    tls.certify(directory, 'stranger', days)
    place = directory / 'hosts' / 'stranger'
    return [place / 'cert.pem', place / 'key.pem']


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
