"""Clusters/several-hosts with TLS: its commands, who gets in nevertheless, what is on the wire."""

import contextlib
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import time

import pytest

from conftest import ROOT
from processes import BEGINS, DID, RESUMES, SLOW, STEP, TEST, WAITS, wait_until
from test_clusters_several_hosts import FOLDER, lets_in, LISTENS, needs_nft, README, Run

sys.path.append(str(FOLDER))

from measuring import hosts, tunnels  # noqa: E402
import tls  # noqa: E402

SECTION, = re.findall(r'^## TLS between the hosts\n(.*?)^## ', README, re.DOTALL | re.MULTILINE)
MAKE = re.findall(r'^    (python Clusters/.*|for name in .*|  .*|done)$', SECTION, re.MULTILINE)
FIREWALL, = re.findall(r'^    sudo (nft .*)$', SECTION, re.MULTILINE)
TUNNELS, = re.findall(r'^    (cd .* stunnel .*)$', SECTION, re.MULTILINE)
TASKS = dict(re.findall(r'^    (\w+)\$ +(\. .*)$', SECTION, re.MULTILINE))
# Hosts are directories here.
SCP = """#!/usr/bin/env bash
exec cp "${{@:1:$#-1}}" "{homes}/$(tr : / <<< "${{!#}}")/"
"""
SSH = """#!/bin/sh
cd "{homes}/$1" && exec sh -c "$2"
"""
HOSTS = '--ps_hosts=alpha:2222', '--worker_hosts=beta:2222,gamma:2222'
MARK = b'WIRE'  # as a float, it is easily told from what a network learns
# Prints what it reads by each address: a file of the server's host, and a variable there.
CLIENT = """
import json, sys, threading
from tfdist.start.quiet import tf

def ask(address):
    with tf.Graph().as_default():
        content, mark = tf.read_file(sys.argv[1]), tf.fill([500], float(sys.argv[2]))
        variable = tf.get_variable('marked', initializer=mark)
        config = tf.ConfigProto(operation_timeout_in_ms=10000, device_filters=['/job:ps'])
        try:
            with tf.Session('grpc://' + address, config=config) as session:
                session.run(variable.initializer)
                assert (session.run(variable) == float(sys.argv[2])).all()
                found[address] = session.run(content).decode()
        except tf.errors.OpError:
            pass

found = dict.fromkeys(sys.argv[3:], '')
threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in found]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
print(json.dumps(found), flush=True)
"""
# Counts the frames on the switch in which there are some bytes, until its input is closed.
SNIFFER = """
import json, select, socket, sys
seen = dict.fromkeys(sys.argv[1:], 0)
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as frames:
    frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**26)
    print('ready', flush=True)
    while True:
        ready = select.select([frames, sys.stdin], [], [])[0]
        if frames in ready:
            frame = frames.recv(2**17)
            for word in seen:
                seen[word] += bytes.fromhex(word) in frame
        elif ready:
            break
print(json.dumps(seen))
"""
NOT_BY_SOCKETS = r'worker 0: worker \d cannot reach worker \d at .*, so the sums go through Tens.*'
TLS_RECORD, NAME, MARKS = b'\x17\x03\x03', b'/job:ps/replica:0/', MARK * 8


class TlsRun(Run):
    """The hosts of the README, with what its section on TLS says.

    Attributes:
      made: `pathlib.Path`, the directory with the CA and all that is for the hosts.
      plain: bool, whether the tasks are started by the commands above that section.
      said: string, what was printed when all was made.
      stunnels: dict of `Program` by host, those that were started.
    """

    def __init__(self, programs, python, stunnel):
        super().__init__(programs, python)
        homes = programs.directory
        self._tools = homes / 'tools'
        for name, text in ('scp', SCP), ('ssh', SSH):
            (self._tools / name).write_text(text.format(homes=homes))
            (self._tools / name).chmod(0o755)
        (self._tools / 'stunnel').symlink_to(stunnel)
        self._path = os.pathsep.join([str(self._tools), self._path])
        self.made = homes / 'tls'
        self.plain, self.stunnels = False, {}
        self.said = self.prepare(self._begin.rpartition(' && ')[2], *MAKE)

    def prepare(self, *commands):
        """Types commands in the root of the collection; returns what they print."""
        # LOGNAME: in a namespace of users there is root alone.
        done = subprocess.run(['bash', '-ec', '\n'.join(commands)], cwd=str(ROOT),
                              env={'PATH': self._path, 'HOME': str(self.made.parent),
                                   'LOGNAME': 'root'},
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def type(self, name, command):
        """Types a command on a host; returns a `Program`."""
        home = self._programs.directory / name
        return self._programs.start(self.hosts.on(name, ['bash', '-c', command], home), home,
                                    {'PATH': self._path, 'HOME': str(home)})

    def close(self, name):
        """Loads the firewall of a host."""
        self.type(name, FIREWALL).ends_well()

    def tunnel(self, name, port=2222):
        """Starts stunnel on a host, and waits until it listens."""
        command = TUNNELS.replace('stunnel ', 'exec stunnel ')
        started = self.stunnels[name] = self.type(name, command)
        wait_until(lambda: self.hosts.reaches(name, f'127.0.0.1:{port}') or not started.running)
        assert started.running, str(started)

    def start(self, name, *flags):
        """Types the README's command for the task of a host; returns a `Program`."""
        if self.plain:
            return super().start(name, *flags)
        command = TASKS[name].replace('&& python', '&& exec python')
        return self.type(name, f'cd HogWild && {command} {" ".join(flags)}')

    def begin(self, *flags):
        """Starts all, the workers with `flags` more; returns the tasks."""
        for name in TASKS:
            self.close(name)
            self.tunnel(name)
        return self.start_all(SLOW, *flags)

    @contextlib.contextmanager
    def on_the_wire(self):
        """Looks at all that comes to the switch; yields a dict, which then says how often."""
        words = [word.hex() for word in (TLS_RECORD, NAME, MARKS)]
        sniffer = subprocess.Popen(
            self.hosts.on('', [sys.executable, '-c', SNIFFER, *words], ROOT),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        assert sniffer.stdout.readline() == 'ready\n'
        seen = {}
        try:
            yield seen
        finally:
            out, _ = sniffer.communicate(timeout=30)
        seen.update((bytes.fromhex(word), count) for word, count in json.loads(out).items())

    def reads(self, name, path, *addresses):
        """Has a client of TensorFlow on a host ask by each address; returns what it could read."""
        mark, = struct.unpack('<f', MARK)
        client = self._programs.start(self.hosts.on(
            name, [sys.executable, '-c', CLIENT, str(path), repr(mark), *addresses], ROOT))
        found = json.loads(client.wait_for(r'\{.*\}').group())
        client.wait()
        return found


@pytest.fixture
def run(programs, bare_python, stunnel):
    """A `TlsRun`."""
    reason = hosts.missing()
    if reason:
        pytest.skip(reason)
    made = TlsRun(programs, bare_python, stunnel)
    with made.hosts:
        needs_nft(made.hosts)
        yield made
        for program in made.stunnels.values():
            program.end()


def test_training(run):
    """By the commands of the README; meanwhile nothing can be read on the wire."""
    with run.on_the_wire() as seen:
        tasks = run.begin('--train_steps=300')
        for task in tasks:
            task.ends_well()
    assert 300 <= sum(int(task.wait_for(DID)['local_steps']) for task in tasks[1:]) <= 302
    assert float(tasks[1].wait_for(TEST)['accuracy']) > 0.5
    assert seen[TLS_RECORD] > 300 and not seen[NAME]


@pytest.mark.thorough
def test_without_tunnels_names_can_be_read(run):
    """That they are not seen above says something."""
    run.plain = True
    with run.on_the_wire() as seen:
        for task in run.start_all('--train_steps=50'):
            task.ends_well()
    assert seen[NAME]


def test_keys_are_for_their_owner_only(run):
    """And the CA's goes nowhere."""
    homes = run.made.parent
    places = [run.made, *(homes / name / 'tunnel' for name in TASKS)]
    paths = [path for place in places for path in [place, *place.rglob('*')]]
    assert len([path for path in paths if path.name == 'key.pem']) == 2 * len(TASKS) + 1
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for name in TASKS:
        there = sorted(path.name for path in (homes / name / 'tunnel').iterdir())
        assert [file for file in there if not file.endswith('.env')] == [
            'ca.pem', 'cert.pem', 'firewall.nft', 'key.pem', 'stunnel.conf']
    keys = {path.read_text() for path in paths if path.name == 'key.pem'}
    assert len(keys) == len(TASKS) + 1 and all('PRIVATE KEY' in key for key in keys)
    for path in paths:
        assert path.is_dir() or path.name == 'key.pem' or 'PRIVATE' not in path.read_text(), path
    assert len(run.said.splitlines()) == 1 + len(TASKS) and 'PRIVATE' not in run.said


def test_who_copies_again_has_what_is_new(run):
    """And no task that is no longer there; what one host has, no other one gets."""
    tunnels_command, = [line for line in MAKE if 'tls.py tunnels' in line]
    swapped = '--ps_hosts=beta:2222', '--worker_hosts=alpha:2222,gamma:2222'
    run.prepare(tunnels_command.replace('$hosts', ' '.join(swapped)), *MAKE[2:])
    for name, task in ('alpha', 'worker-0'), ('beta', 'ps-0'), ('gamma', 'worker-1'):
        made = run.made / 'hosts' / name
        there = run.made.parent / name / 'tunnel'
        assert sorted(path.name for path in there.iterdir()) == sorted([
            'ca.pem', 'cert.pem', 'firewall.nft', 'key.pem', f'{task}.env', 'stunnel.conf'])
        for path in there.iterdir():
            assert path.read_text() == (made / path.name).read_text()


def stranger(run):
    """Starts a stunnel of the stranger; returns its addresses, by whose certificate it shows."""
    place, other = run.made.parent / 'stranger', run.made.parent / 'other'
    place.mkdir()
    other.mkdir()
    tls.make_authority(other, 1)
    tls.certify(other, 'beta', 1)
    tls.certify(run.made, 'late', 0)  # good for no time at all
    certificates = {'right': run.made / 'hosts' / 'beta', 'expired': run.made / 'hosts' / 'late',
                    'of another CA': other / 'hosts' / 'beta', 'none': None}
    lines, found = ['foreground = yes', 'pid ='], {}
    for port, (name, directory) in enumerate(certificates.items(), 23000):
        lines += [f'[{port}]', 'client = yes', f'accept = 127.0.0.1:{port}', 'connect = alpha:2222']
        if directory:
            lines += [f'cert = {directory}/cert.pem', f'key = {directory}/key.pem']
        found[name] = f'127.0.0.1:{port}'
    (place / 'tunnel').mkdir()
    (place / 'tunnel' / 'stunnel.conf').write_text('\n'.join(lines + ['']))
    run.tunnel('stranger', 23000)
    return found


def test_a_stranger_gets_nothing(run):
    """He has a client of TensorFlow; first, that it could read a file, if nothing were done."""
    secret = run.made.parent / 'secret'
    secret.write_text('of alpha')
    ps = run.start('alpha')
    wait_until(lambda: run.hosts.reaches('stranger', 'alpha:22000'), ps)
    with run.on_the_wire() as seen:
        assert run.reads('stranger', secret, 'alpha:22000') == {'alpha:22000': 'of alpha'}
    assert seen[MARKS]

    run.close('alpha')
    run.tunnel('alpha')
    certificates = stranger(run)
    right = certificates.pop('right')
    with run.on_the_wire() as seen:
        found = run.reads('stranger', secret, 'alpha:22000', 'alpha:2222', right,
                          *certificates.values())
    assert found.pop(right) == 'of alpha', 'with a certificate one is in'
    assert len(found) == 5 and not any(found.values())
    assert seen[TLS_RECORD] and not seen[MARKS]
    said = '\n'.join(run.stunnels['alpha'].err)
    for reason in ('wrong version number|http request', 'peer did not return a certificate',
                   'unable to get (local )?issuer|self.signed|certificate signature failure',
                   'certificate has expired'):
        assert re.search(reason, said), f'{reason} is not in\n{said}'
    ps.kill()


def test_a_host_that_shows_the_certificate_of_another(run, programs):
    """It is of this run, and yet refused: who has the key of gamma cannot pass for alpha."""
    task = run.type('alpha', f'exec {sys.executable} -m http.server 22000')
    wait_until(lambda: run.hosts.reaches('alpha', '127.0.0.1:22000'), task)
    ask = [sys.executable, '-c', 'from urllib import request; '
           'print(request.urlopen("http://127.0.0.1:22000", timeout=20).status)']
    run.tunnel('beta')
    for name in 'alpha', 'gamma':
        for file in 'cert.pem', 'key.pem':
            shutil.copy(str(run.made / 'hosts' / name / file),
                        str(run.made.parent / 'alpha' / 'tunnel'))
        run.tunnel('alpha')
        asked = programs.start(run.hosts.on('beta', ask, ROOT))
        assert (asked.wait() == 0) == (name == 'alpha'), str(asked)
        run.stunnels['alpha'].kill()
    assert 'Subject checks failed' in str(run.stunnels['beta'])
    task.kill()


def test_who_reaches_the_local_ports(run, programs):
    """With the firewall those of the host itself; and there one user alone."""
    ports = '22000', '22003'
    servers = [programs.start(run.hosts.on('alpha', [sys.executable, '-m', 'http.server', port],
                                           programs.directory)) for port in ports]

    def reached():
        return [(name, port) for port in ports for name in ('alpha', 'beta')
                if run.hosts.reaches(name, f'alpha:{port}')]

    def close(user):
        subprocess.run([sys.executable, str(FOLDER / 'tls.py'), 'tunnels', str(run.made), *HOSTS,
                        f'--user={user}'], timeout=60, stdout=subprocess.DEVNULL, check=True)
        shutil.copy(str(run.made / 'hosts' / 'alpha' / 'firewall.nft'),
                    str(programs.directory / 'alpha' / 'tunnel'))
        run.close('alpha')

    everybody = [(name, port) for port in ports for name in ('alpha', 'beta')]
    wait_until(lambda: reached() == everybody, *servers)
    close('root')
    assert reached() == [everybody[0], *everybody[2:]], 'other ports stay as they are'
    close('daemon')
    assert reached() == everybody[2:]
    for server in servers:
        server.kill()


@pytest.mark.thorough
def test_how_many_connections_a_stranger_gets(run, programs):
    """With the firewall; whoever is at another address gets in nevertheless."""
    server = programs.start(run.hosts.on('alpha', [sys.executable, '-c', LISTENS, '2222'],
                                         programs.directory))
    run.close('alpha')
    wait_until(lambda: run.hosts.reaches('beta', 'alpha:2222'), server)
    assert 900 < lets_in(run.hosts, programs, 'stranger', 1500) <= 1000
    assert run.hosts.reaches('beta', 'alpha:2222')
    assert not run.hosts.reaches('stranger', 'alpha:2222')
    programs.end()


@pytest.mark.thorough
def test_stunnel_ends_and_is_started_again(run):
    ps, chief, worker = run.begin('--train_steps=1000000')
    for task in chief, worker:
        task.wait_for(STEP, 3)
    timers = subprocess.check_output(
        run.hosts.on('beta', ['ss', '-Htno', 'state', 'established', 'dport = :2222'], ROOT),
        universal_newlines=True)
    assert re.search(r'keepalive,\d(\.\d+)?(sec|ms)', timers), timers  # at most 10 s
    run.stunnels['alpha'].kill()
    for task in chief, worker:
        assert 'ps 0 at 127.0.0.1:22000 does not answer' in task.wait_for(WAITS).group()
    run.tunnel('alpha')
    began, before = time.monotonic(), {task: len(task.matches(STEP)) for task in (chief, worker)}
    for task in chief, worker:
        task.wait_for(STEP, before[task] + 3)
    assert time.monotonic() - began < 30
    for task in ps, chief, worker:
        assert not task.err, str(task)
        task.kill()


@pytest.mark.thorough
def test_the_host_of_the_ps_loses_its_power(run):
    """Nobody hears good-bye; it comes back at its address, and all starts there anew."""
    flags = '--train_steps=1000000', '--save_checkpoint_secs=1'
    ps, chief, worker = run.begin(*flags)
    for task in chief, worker:
        task.wait_for(STEP, 5)
    run.hosts.lose_power('alpha', ps, run.stunnels['alpha'])
    for task in chief, worker:
        task.wait_for(WAITS)
    run.hosts.power_on('alpha')
    run.close('alpha')
    run.tunnel('alpha')
    ps = run.start('alpha')
    began, before = time.monotonic(), {task: len(task.matches(STEP)) for task in (chief, worker)}
    chief.wait_for(RESUMES)
    for task in chief, worker:
        task.wait_for(STEP, before[task] + 3)
    assert time.monotonic() - began < 30
    for task in ps, chief, worker:
        task.kill()


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['Synchronous-SGD', 'Ring-AllReduce'])
def test_other_schemes(programs, stunnel, folder):
    """Workers reach each other, too."""
    names = ['worker-0', 'worker-1'] + ['ps-0'] * (folder != 'Ring-AllReduce')
    with hosts.Hosts(programs.directory, names) as network:
        with tunnels.Tunnels(network, programs.directory, names, stunnel):
            task = programs.run_sh(folder, '--train_steps=200', PORT=tunnels.LOCAL_PORT,
                                   PYTHON=network.python(by_tunnels=True))
            task.ends_well()
    assert len(task.matches(BEGINS)) == len(task.matches(DID)) == 2
    assert float(task.wait_for(TEST)['accuracy']) > 0.5
    assert len(task.matches(NOT_BY_SOCKETS)) == (folder == 'Ring-AllReduce')


@pytest.mark.thorough
def test_a_ring_over_sockets(programs, stunnel):
    """The workers have a second tunnel each."""
    names = ['worker-0', 'worker-1', 'worker-2']
    with hosts.Hosts(programs.directory, names) as network:
        with tunnels.Tunnels(network, programs.directory, names, stunnel, '--sockets_port=2300'):
            task = programs.run_sh(
                'Ring-AllReduce', '--train_steps=200',
                f'--sockets_port={tunnels.LOCAL_PORT + len(names)}', PORT=tunnels.LOCAL_PORT,
                WORKERS=3,
                PYTHON=network.python(by_tunnels=True))
            task.ends_well()
    assert len(task.matches(DID)) == 3 and not task.matches(NOT_BY_SOCKETS), str(task)


@pytest.mark.parametrize('words, env, complaint', [
    (['certificates', '{here}/tls'], {}, 'no cluster is given'),
    (['certificates', '{here}/tls'], {'TF_CONFIG': '{"cluster": 1}'}, 'no cluster is given'),
    (['certificates', '{here}/tls', *HOSTS], {'TF_CONFIG': '{}'}, 'given twice'),
    (['certificates', '{here}/tls', '--ps_hosts=a b:1'], {}, '"a b:1" is not of the form'),
    (['certificates', '{here}/tls', '--ps_hosts=../a:1'], {}, 'is not of the form host:port'),
    (['certificates', '{here}/tls', '--ps_hosts=a:1,a:1'], {}, 'a:1 appears twice'),
    (['certificates', '{here}/tls', *HOSTS, '--days=0'], {}, '--days=0 is not from 1'),
    (['certificates', '{here}', *HOSTS], {}, 'is there already'),
    (['certificates', '{here}/tree/sub/tls', *HOSTS], {}, '/tree is a git work tree'),
    (['certificates', '{here}/tls', *HOSTS], {'PATH': '/nowhere'}, 'there is no openssl'),
    (['tunnels', '{here}/tls', *HOSTS], {}, 'there is no certificate of alpha'),
    (['tunnels', '{here}/tls', *HOSTS, '--local_port=2221'], {}, 'port 2222 is that of a tunnel'),
    (['tunnels', '{here}/tls', *HOSTS, '--user=a"b'], {}, 'is no name of a user'),
    (['tunnels', '{here}/tls', '--worker_hosts=a:1,a:3', '--sockets_port=2'], {},
     'a:3 appears twice'),
    (['certificates', '{here}/tls', *HOSTS, '--sockets_port=2'], {}, 'is a flag of tunnels'),
])
def test_mistakes(tmp_path, words, env, complaint):
    """One line, and nothing is made."""
    (tmp_path / 'tree' / 'sub').mkdir(parents=True)
    (tmp_path / 'tree' / '.git').mkdir()
    before = sorted(tmp_path.rglob('*'))
    own = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
    done = subprocess.run(
        [sys.executable, str(FOLDER / 'tls.py'), *(word.format(here=tmp_path) for word in words)],
        env={**own, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
        universal_newlines=True, check=False)
    assert done.returncode == 1 and not done.stdout
    line, = done.stderr.splitlines()
    assert complaint in line
    assert sorted(tmp_path.rglob('*')) == before


def test_tf_config_says_the_same_as_flags(tmp_path):
    config = {'cluster': {'ps': ['alpha:2222'], 'worker': ['beta:2222', '10.0.0.1:2222']}}
    env = {**os.environ, 'TF_CONFIG': json.dumps(config)}
    for what in 'certificates', 'tunnels':
        subprocess.run([sys.executable, str(FOLDER / 'tls.py'), what, str(tmp_path / 'tls'),
                        *(['--days=3'] if what == 'certificates' else [])],
                       env=env, stdout=subprocess.DEVNULL, timeout=60, check=True)
    place = tmp_path / 'tls' / 'hosts' / '10.0.0.1'
    said = subprocess.run(['bash', '-c', '. ./worker-1.env && echo "$TF_CONFIG"'], check=True,
                          cwd=str(place), stdout=subprocess.PIPE, universal_newlines=True)
    assert json.loads(said.stdout) == {
        'cluster': {'ps': ['127.0.0.1:22000'], 'worker': ['127.0.0.1:22001', '127.0.0.1:22002']},
        'task': {'type': 'worker', 'index': 1}}
    for check, status in (['-verify_ip', '10.0.0.1'], 0), (['-verify_ip', '10.0.0.2'], 2):
        checked = subprocess.run(['openssl', 'verify', '-CAfile', 'ca.pem', *check, 'cert.pem'],
                                 cwd=str(place), stdout=subprocess.DEVNULL, check=False,
                                 stderr=subprocess.DEVNULL)
        assert checked.returncode == status
    for days, status in (2, 0), (4, 1):
        checked = subprocess.run(['openssl', 'x509', '-in', 'cert.pem', '-noout', '-checkend',
                                  str(days * 86400)], cwd=str(place), stdout=subprocess.DEVNULL,
                                 check=False)
        assert checked.returncode == status
