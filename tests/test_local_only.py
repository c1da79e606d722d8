"""Who can connect to a run: everybody who reaches the machine, and with LOCAL_ONLY=1 nobody."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import psutil
import pytest

from tfdist.start.ports import free_ports

import processes
from processes import EVALUATED, PREPARED, ROOT, STEP, TEST

ENDLESS = ['--train_steps=1000000', '--log_every_n_steps=2', '--straggler=0:0.05,1:0.05']
OTHER_USER = 65534
ROOTLESS = ['unshare', '--user', '--map-root-user', '--net']
# Root, but without the right to make a network: as any user, it needs a user namespace.
AS_ANY_USER = ['setpriv', '--bounding-set=-sys_admin'] if os.geteuid() == 0 else []


@pytest.fixture
def _networks():
    """Skips a test that needs a network of its own where no user may have one."""
    for tool in 'unshare', 'ip':
        if not shutil.which(tool):
            pytest.skip(f'there is no {tool} here')
    trial = subprocess.run([*AS_ANY_USER, *ROOTLESS, 'ip', 'link', 'set', 'lo', 'up'],
                           stderr=subprocess.PIPE, universal_newlines=True, check=False)
    if trial.returncode:
        pytest.skip(f'users may make no network here: {trial.stderr.strip()}')


def own_addresses():
    """Returns the addresses of this machine, on all its networks."""
    found = [address.address for addresses in psutil.net_if_addrs().values()
             for address in addresses if address.family in (socket.AF_INET, socket.AF_INET6)]
    assert '127.0.0.1' in found
    return found


def that_answer(ports):
    """Returns those (address, port) of this machine that accept connections."""
    found = set()
    for address in own_addresses():
        for port in ports:
            try:
                socket.create_connection((address, port), timeout=5).close()
            except OSError:
                continue
            found.add((address, port))
    return found


def start(programs, folder, *flags, prefix=(), **env):
    """Starts `bash run.sh`, by way of another command."""
    env = {'PYTHON': sys.executable, **env}
    return programs.start([*prefix, 'bash', ROOT / folder / 'run.sh', *flags], env=env)


@pytest.mark.usefixtures('_networks')
def test_from_outside(programs):
    """Two runs at once, with the same ports: they are those of two networks."""
    ports = next((port, port + 1) for port in free_ports(100) if not that_answer([port + 1]))
    env = {'PORT': str(ports[0]), 'WORKERS': '1'}
    confined = start(programs, 'HogWild', *ENDLESS, prefix=AS_ANY_USER, LOCAL_ONLY='1', **env)
    confined.wait_for(STEP)
    assert not that_answer(ports)
    normal = start(programs, 'HogWild', *ENDLESS, **env)
    normal.wait_for(STEP)
    assert that_answer(ports) == {(address, port) for address in own_addresses() for port in ports}
    confined.wait_for(STEP, len(confined.matches(STEP)) + 1)  # it trained on, all the time
    confined.send(signal.SIGTERM)
    assert confined.wait() == 143 and not confined.err, str(confined)
    assert not confined.left()
    normal.wait_for(STEP, len(normal.matches(STEP)) + 1)
    normal.send(signal.SIGTERM)
    assert normal.wait() == 143 and not normal.left()
    assert not that_answer(ports)


@pytest.mark.thorough
@pytest.mark.usefixtures('_networks')
def test_folders_run_as_without(programs):
    """One with files made before and an evaluator, and one whose train.py is a task."""
    runs = [start(programs, folder, '--train_steps=50', '--model_dir=sub/model',
                  prefix=AS_ANY_USER, LOCAL_ONLY='1', PS='1', WORKERS='1')
            for folder in ('Distributed-MNIST', 'Model-Parallel')]
    for run in runs:
        run.ends_well()
        assert run.matches(TEST) and not run.left()
        made = [path for path in run.cwd.glob('**/*') if path.is_file()]
        assert len(made) > 3 and {path.stat().st_uid for path in made} == {os.geteuid()}
        assert processes.checkpoints(run.cwd / 'sub' / 'model')[-1] >= 50
    assert runs[0].matches(PREPARED) and runs[0].matches(EVALUATED)


@pytest.fixture(params={os.geteuid(), OTHER_USER if os.geteuid() == 0 else os.geteuid()})
def start_script(programs, request):
    """A function that starts run.sh with a script of the shell in the place of worker.py.

    It is in a directory that is closed to others: when root tests, that of another user. To start
    it there is for both of them.

    Args (of the function):
      script: string.
      *flags: strings.

    Returns (of the function):
      A `Program`, in its directory, and the id of the user who started it.
    """
    user = request.param
    switch = ['setpriv', f'--reuid={user}', '--clear-groups'] if user != os.geteuid() else []
    # That of the tests may be closed to others.
    python = sys.executable if user == os.geteuid() else shutil.which('python3', path='/usr/bin')
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are closed to other users
        project = pathlib.Path(directory, 'Ring-AllReduce')
        project.mkdir()
        for file in 'run.sh', 'find_library.py':
            shutil.copy(str(ROOT / 'Ring-AllReduce' / file), str(project))  # it has no ps
        shutil.copytree(str(ROOT / 'tfdist'), str(project.parent / 'tfdist'),
                        ignore=shutil.ignore_patterns('*.pyc.*'))
        (project / 'interpreter').write_text(
            f'#!/bin/sh\ncase $1 in */worker.py) exec sh "$@";; *) exec {python} "$@";; esac\n')
        (project / 'interpreter').chmod(0o755)
        if os.geteuid() == 0:
            for path in project, project.parent:
                os.chown(str(path), OTHER_USER, -1)

        def start_script(script, *flags):
            (project / 'worker.py').write_text(script)
            env = {'LOCAL_ONLY': '1', 'PYTHON': str(project / 'interpreter'), 'WORKERS': '1',
                   'PORT': '2', 'PYTHONDONTWRITEBYTECODE': '1'}
            run = programs.start([*switch, 'bash', 'run.sh', *flags], cwd=project, env=env)
            return run, user
        yield start_script


@pytest.mark.usefixtures('_networks')
def test_flags_files_and_status(start_script):
    script = ('touch made; readlink /proc/self/ns/net; ip -o -4 address; printf "%s\\n" "$@"; '
              'exit 7')
    run, user = start_script(script, '--flag', 'two words')
    assert run.wait() == 7 and not run.err, str(run)
    network, address, *flags = run.out
    assert network.startswith('net:') and network != os.readlink('/proc/self/ns/net')
    assert ' 127.0.0.1/8 ' in address
    assert flags[0].startswith('--num_threads=') and flags[1:] == ['--flag', 'two words']
    assert (run.cwd / 'made').stat().st_uid == user


@pytest.mark.usefixtures('_networks')
@pytest.mark.parametrize('signum, group, status', [
    (signal.SIGINT, True, 130),  # Ctrl-C
    (signal.SIGTERM, False, 143),
    (signal.SIGHUP, False, 129),
])
def test_signals(start_script, signum, group, status):
    run, _ = start_script('echo begins; exec sleep 1000')
    run.wait_for('begins')
    run.send(signum, group)
    assert run.wait() == status and not run.err, str(run)
    assert not run.left()


@pytest.mark.parametrize('value', ['0', '2', 'yes', ' 1'])
def test_other_values(programs, value):
    for folder in 'HogWild', 'Non-Distributed-Setup':
        run = start(programs, folder, LOCAL_ONLY=value)
        run.fails(f'^run.sh: LOCAL_ONLY={value} is neither 1 nor empty$')
        assert not run.out


@pytest.mark.parametrize('tools, missing', [('', 'unshare'), ('unshare', 'ip')])
def test_a_tool_is_missing(programs, tmp_path, tools, missing):
    for tool in tools.split():
        (tmp_path / tool).symlink_to(shutil.which('true'))
    run = programs.start([shutil.which('bash'), ROOT / 'HogWild' / 'run.sh'],
                         env={'PATH': str(tmp_path), 'LOCAL_ONLY': '1', 'PYTHON': sys.executable})
    run.fails(f'^run.sh: LOCAL_ONLY=1 needs Linux and its command {missing}, which is missing$')
    assert not run.out


@pytest.mark.usefixtures('_networks')
def test_a_system_that_forbids_it(programs):
    """In a user namespace the limits are its own, and may be set."""
    forbid = 'for kind in user net; do echo 0 >/proc/sys/user/max_${kind}_namespaces; done; "$@"'
    run = start(programs, 'HogWild', prefix=[*ROOTLESS, 'bash', '-c', forbid, '-'], LOCAL_ONLY='1')
    run.fails(r'^run.sh: LOCAL_ONLY=1: this system does not let you make a network \(unshare')
    assert not run.out
