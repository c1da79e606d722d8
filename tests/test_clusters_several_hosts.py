"""Clusters/several-hosts: its commands, each on a host with its own address and its own files."""

from concurrent import futures
import os
import re
import shutil
import subprocess
import sys

import pytest

from measuring import hosts

from conftest import ROOT
from processes import BEGINS, checkpoints, DID, RESUMES, STEP, TEST, WAITS, wait_until

FOLDER = ROOT / 'Clusters' / 'several-hosts'
README = (FOLDER / 'README.md').read_text(encoding='utf-8')
MORE = '--log_every_n_steps=10'
# Without what other tests compile meanwhile, which comes and goes.
SCP = """#!/usr/bin/env bash
[ "$1" = -r ] && tar -c --exclude=__pycache__ "${{@:2:$#-2}}" | tar -x -C "{homes}/${{!#%:}}"
"""
# Accepts all.
LISTENS = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listening = socket.socket()
listening.bind(('', int(sys.argv[1])))
listening.listen(2000)
accepted = []
while True:
    accepted.append(listening.accept()[0])
"""
# Wants so many connections at once, prints how many it has after a while, and keeps them.
WANTS = """
import resource, select, socket, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
poll, wanted, had = select.poll(), {}, 0
for _ in range(int(sys.argv[3])):
    each = socket.socket()
    each.setblocking(False)
    each.connect_ex((sys.argv[1], int(sys.argv[2])))
    wanted[each.fileno()] = each
    poll.register(each, select.POLLOUT)
end = time.monotonic() + 5
while time.monotonic() < end:
    for descriptor, _ in poll.poll(1000):
        poll.unregister(descriptor)
        had += 1
print('has', had, flush=True)
time.sleep(1000)
"""


def _commands():
    """Returns the README's lines for each host, and a dict of commands by host."""
    each, = re.findall(r'the same lines:\n\n((?:    .+\n)+)', README)
    return ([line.strip() for line in each.splitlines()],
            dict(re.findall(r'^    (\w+)\$ +(python .*)$', README, re.MULTILINE)))


class Run:
    """The hosts of the README, and the commands that it gives for them.

    Attributes:
      hosts: `Hosts`: those of the README, and `stranger`.
    """

    def __init__(self, programs, python, share=True):
        begin, self._commands = _commands()
        self._begin = ' && '.join(begin)
        self._programs = programs
        self._path = os.pathsep.join([os.path.dirname(python), os.environ['PATH']])
        self.hosts = hosts.Hosts(programs.directory, [*self._commands, 'stranger'], share)
        self._copy()

    def _copy(self):
        """Types the README's command, with an scp for which hosts are directories here."""
        homes, tools = self._programs.directory, self._programs.directory / 'tools'
        for home in [tools, *(homes / name for name in self._commands)]:
            home.mkdir()
        (tools / 'scp').write_text(SCP.format(homes=homes))
        (tools / 'scp').chmod(0o755)
        command, = re.findall(r'^    (for host in .*)$', README, re.MULTILINE)
        path = os.pathsep.join([str(tools), os.environ['PATH']])
        subprocess.run(['bash', '-ec', command], cwd=str(ROOT), env={'PATH': path}, check=True,
                       timeout=30)

    def start(self, name, *flags):
        """Types the README's command on a host; returns a `Program`."""
        home = self._programs.directory / name
        command = f'{self._begin} && exec {self._commands[name]} {" ".join(flags)}'
        return self._programs.start(self.hosts.on(name, ['bash', '-c', command], home), home,
                                    {'PATH': self._path})

    def start_all(self, *flags):
        """Starts the ps and both workers, these with `flags` more; returns them."""
        ps, *workers = self._commands
        return [self.start(ps)] + [self.start(worker, MORE, *flags) for worker in workers]


@pytest.fixture
def run(request, programs, bare_python, needs_hosts):
    """A `Run`; a test may say in a parameter whether its hosts share a directory."""
    made = Run(programs, bare_python, getattr(request, 'param', True))
    with made.hosts:
        yield made


def steps(task):
    return [int(match['step']) for match in task.matches(STEP)]


@pytest.mark.thorough
def test_the_commands_then_again(run):
    """Each host has a copy of its own; the model directory is all that they share."""
    # Slow: they are still there when the stranger has come.
    tasks = run.start_all('--train_steps=300', '--straggler=0:0.05,1:0.05')
    chief, worker = tasks[1:]
    chief.wait_for(BEGINS)
    for name in 'alpha', 'beta', 'gamma':
        wait_until(lambda name=name: run.hosts.reaches('stranger', f'{name}:2222'),
                   'as the README says, a stranger reaches', name)
    for task in tasks:
        task.ends_well()
    # Together: one that comes late may find nothing left to do.
    assert 300 <= sum(int(task.wait_for(DID)['local_steps']) for task in (chief, worker)) <= 302
    assert float(chief.wait_for(TEST)['accuracy']) > 0.5
    end = checkpoints(run.hosts.shared['beta'] / 'model')[-1]
    assert end >= 300
    tasks = run.start_all('--train_steps=400')
    for task in tasks:
        task.ends_well()
    resumed = tasks[1].wait_for(RESUMES)
    assert (int(resumed['step']), resumed['path']) == (end, f'/mnt/model/model.ckpt-{end}')
    assert int(tasks[1].wait_for(TEST)['step']) >= 400


@pytest.mark.thorough
def test_hosts_that_die_and_come_back(run):
    ps, chief, worker = run.start_all('--train_steps=1000', '--save_checkpoint_secs=1',
                                      '--straggler=0:0.02,1:0.02')

    def dies(name, task):
        """The network first: so nobody hears that the task ends."""
        run.hosts.plug(name, 'down')
        task.kill()

    worker.wait_for(STEP, 3)
    dies('gamma', worker)
    chief.wait_for(STEP, len(steps(chief)) + 5)
    run.hosts.plug('gamma')
    before = steps(chief)[-1]
    worker = run.start('gamma', MORE, '--train_steps=1000', '--straggler=1:0.02')
    assert int(worker.wait_for(BEGINS)['step']) >= before
    assert steps(chief) == sorted(steps(chief)), 'nothing was undone'

    model_dir = run.hosts.shared['alpha'] / 'model'
    saved = checkpoints(model_dir)[-1]
    assert saved > 0
    worker.wait_for(STEP)
    dies('alpha', ps)
    for task in chief, worker:
        assert 'ps 0 at alpha:2222 does not answer' in task.wait_for(WAITS).group()
    run.hosts.plug('alpha')
    ps = run.start('alpha')
    for task in worker, chief, ps:
        task.ends_well()
    assert int(chief.wait_for(RESUMES)['step']) >= saved
    assert int(chief.wait_for(TEST)['step']) >= 1000
    assert int(worker.wait_for(DID)['local_steps']) > 0


@pytest.mark.thorough
@pytest.mark.parametrize('run', [False], indirect=True)
def test_without_a_shared_directory(run):
    ps, chief, worker = run.start_all()
    chief.fails(r'checkpoint /mnt/model/\S+ cannot be written .* a directory that all tasks see')
    for task in ps, worker:
        task.kill()


def needs_nft(its_hosts):
    """Skips the test where no firewall can be loaded on `Hosts`."""
    if not shutil.which('nft'):
        pytest.skip('there is no nft (package nftables)')
    if subprocess.run(its_hosts.on('alpha', ['nft', 'list', 'ruleset'], ROOT), timeout=30,
                      stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip('this kernel has no nftables')


def test_the_firewall(run, programs):
    needs_nft(run.hosts)
    servers = [programs.start(run.hosts.on('alpha', [sys.executable, '-m', 'http.server', port],
                                           programs.directory)) for port in ('2222', '2223')]
    names = ['alpha', 'beta', 'gamma', 'stranger']

    def reach(port):
        """Returns the names of those who can connect; all try at once, as some wait in vain."""
        with futures.ThreadPoolExecutor() as threads:
            reached = threads.map(lambda name: run.hosts.reaches(name, f'alpha:{port}'), names)
        return [name for name, yes in zip(names, reached) if yes]

    for port in 2222, 2223:
        wait_until(lambda port=port: reach(port) == names, 'does not listen:', *servers)
    command, = re.findall(r'^    (nft .*)$', README, re.MULTILINE)
    rules = (FOLDER / 'firewall.nft').read_text(encoding='utf-8')
    for left_out in '', ', gamma':  # the second time other hosts, and the first ones are forgotten
        (programs.directory / 'firewall.nft').write_text(rules.replace(left_out, ''))
        subprocess.run(run.hosts.on('alpha', command.split(), programs.directory), check=True,
                       timeout=30)
        assert reach(2222) == [name for name in names[:-1] if name not in left_out]
    assert reach(2223) == names, 'other ports stay as they are'
    for server in servers:
        server.kill()


def lets_in(its_hosts, programs, name, wants):
    """Returns how many connections to alpha:2222 a host gets, which then keeps them."""
    program = programs.start(its_hosts.on(
        name, [sys.executable, '-c', WANTS, 'alpha', '2222', str(wants)], programs.directory))
    return int(program.wait_for(r'has (\d+)')[1])


@pytest.mark.thorough
def test_the_firewall_lets_in_so_many(run, programs):
    """One host of the run that wants more keeps no other one out."""
    needs_nft(run.hosts)
    server = programs.start(run.hosts.on('alpha', [sys.executable, '-c', LISTENS, '2222'],
                                         programs.directory))
    wait_until(lambda: run.hosts.reaches('gamma', 'alpha:2222'), server)
    assert lets_in(run.hosts, programs, 'beta', 1500) == 1500, 'without it'
    shutil.copy(str(FOLDER / 'firewall.nft'), str(programs.directory))
    subprocess.run(run.hosts.on('alpha', ['nft', '-f', 'firewall.nft'], programs.directory),
                   check=True, timeout=30)
    assert 900 < lets_in(run.hosts, programs, 'gamma', 1500) <= 1000
    assert run.hosts.reaches('beta', 'alpha:2222') and not run.hosts.reaches('gamma', 'alpha:2222')
    programs.end()
