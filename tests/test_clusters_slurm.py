"""Clusters/slurm, on a real Slurm: its daemons run on this machine, confined, for these tests."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import psutil
import pytest

from conftest import ROOT, tf
from processes import BEGINS, DID, PATIENCE, Program, RESUMES, STEP, TEST, wait_until

FOLDER = ROOT / 'Clusters' / 'slurm'
TRAIN, TRAIN_WITH_RESTARTS, TRAIN_WITH_CHECKPOINTS, REQUEUE, START_NOW, CANCEL = re.findall(
    r'^    ((?:RESTARTS=\d )?(?:sbatch|scontrol|scancel) .+)$',
    (FOLDER / 'README.md').read_text(encoding='utf-8'), re.MULTILINE)
PATH = os.pathsep.join([os.environ['PATH'], '/usr/sbin', '/sbin'])  # where daemons are
# One process has all of them: they share one Slurm.
pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group('slurm')]
# As text, n10 comes before n9.
NODES = {name: f'10.25.0.{name[1:]}' for name in ('n9', 'n10', 'n11')}
CONFIGURATION = """
ClusterName=test
SlurmctldHost={machine}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
"""
# The init process of the namespaces: when it ends, the system ends all others in them.
INIT = """
set -e
ip link set lo up
for node in "$@"; do ip address add "${node#*=}/32" dev lo; done
mount --bind hosts /etc/hosts
munged --force --key-file=munge.key --socket=munge.socket --pid-file=munged.pid \
  --log-file=munged.log --seed-file=munged.seed
slurmctld -D &
for node in "$@"; do slurmd -D -N "${node%=*}" & done
wait -n
"""


class Slurm:
    """A Slurm of three nodes, in namespaces of its own: nothing of it is seen outside, or is left.

    It has a network of its own, with the nodes' addresses on its loopback, and processes and mounts
    of its own. All of that ends with the process that started them, even if it is killed.
    """

    def __init__(self, directory, python):
        machine = socket.gethostname().partition('.')[0]
        (directory / 'state').mkdir()
        (directory / 'munge.key').write_bytes(os.urandom(1024))
        (directory / 'munge.key').chmod(0o600)
        lines = [f'127.0.0.1 localhost {machine}']
        lines += [f'{address} {name}' for name, address in NODES.items()]
        (directory / 'hosts').write_text('\n'.join(lines + ['']), encoding='utf-8')
        lines = [CONFIGURATION.format(machine=machine, directory=directory)]
        lines += [f'NodeName={name} NodeHostname={machine} NodeAddr={address} Port={7000 + i} '
                  'CPUs=2' for i, (name, address) in enumerate(NODES.items())]
        lines += ['PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP', '']
        (directory / 'slurm.conf').write_text('\n'.join(lines), encoding='utf-8')
        self._env = {'SLURM_CONF': str(directory / 'slurm.conf'), 'PATH': PATH, 'PYTHON': python}
        self.daemons = Program(
            ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--net', '--mount', '--pid', '--fork',
             '--mount-proc', '--kill-child', 'bash', '-c', INIT, 'init',
             *(f'{name}={address}' for name, address in NODES.items())],
            directory, cwd=directory, env=self._env)

    def command(self, words, **env):
        """Returns the arguments of `Programs.start` for a command that Slurm's users may give."""
        init = psutil.Process(self.daemons.pid).children()[0].pid
        return {'command': ['nsenter', f'--net=/proc/{init}/ns/net', *words],
                'env': dict(self._env, **env)}

    def ask(self, *words):
        """Runs a command of Slurm; returns what it prints."""
        start = self.command(words)
        return subprocess.run(start['command'], env=dict(os.environ, **start['env']), timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              universal_newlines=True).stdout

    def is_up(self):
        """Returns whether all nodes are free; fails if a daemon cannot start."""
        assert self.daemons.running, str(self.daemons)
        return (bool(psutil.Process(self.daemons.pid).children())
                and self.ask('sinfo', '--noheader', '--format=%D %T').split() == ['3', 'idle'])


def missing():
    """Returns what this machine lacks, a sentence; the empty string if nothing."""
    if sys.platform != 'linux':
        return 'network namespaces are of Linux'
    programs = ['slurmctld', 'slurmd', 'munged', 'srun', 'ip', 'unshare', 'nsenter', 'setpriv']
    absent = [name for name in programs if not shutil.which(name, path=PATH)]
    if absent:
        return f'there is no {", ".join(absent)} (Debian: slurmctld slurmd slurm-client munge)'
    if os.geteuid():
        return "Slurm's daemons are started by root, and this is another user"
    tried = subprocess.run(['unshare', '--net', '--mount', '--pid', '--fork', '--mount-proc',
                            'true'], stderr=subprocess.PIPE, check=False, timeout=60)
    return tried.stderr.decode().strip()


@pytest.fixture(scope='module')
def slurm(tmp_path_factory, bare_python):
    """A `Slurm`; when it ends, no process of it is left."""
    lack = missing()
    if lack:
        pytest.skip(lack)
    started = Slurm(tmp_path_factory.mktemp('slurm'), bare_python)
    try:
        wait_until(started.is_up, 'Slurm does not start:', started.daemons)
        yield started
    finally:
        started.daemons.end()


class Job:
    """A job, submitted by a command of the README in a copy of the folder.

    Attributes:
      id: string.
      program: `Program` that submitted it; the job's processes have its mark.
    """

    def __init__(self, slurm, programs, project, command, **env):
        self._slurm = slurm
        self._project = project
        self.program = programs.start(cwd=project, **slurm.command(['bash', '-c', command], **env))
        self.program.ends_well()
        self.id = self.program.wait_for(r'Submitted batch job (\d+)')[1]

    def control(self, command):
        """Runs a command of the README for this job; returns what it prints."""
        return self._slurm.ask(*command.replace('JOB', self.id).split())

    @property
    def fields(self):
        """What `scontrol show job` says, a dict."""
        text = self._slurm.ask('scontrol', '--oneliner', 'show', 'job', self.id)
        return dict(word.partition('=')[::2] for word in text.split())

    @property
    def lines(self):
        """The lines of its output file so far."""
        path = self._project / f'train-{self.id}.out'
        return path.read_text(encoding='utf-8').splitlines() if path.exists() else []

    def matches(self, form):
        return [match for match in map(re.compile(form).fullmatch, self.lines) if match]

    def wait_for(self, form, count=1):
        wait_until(lambda: len(self.matches(form)) >= count or self.is_over(), form, self)
        assert len(self.matches(form)) >= count, f'{form}\n{self}'
        return self.matches(form)[count - 1]

    def is_over(self):
        return self.fields['JobState'] in ('COMPLETED', 'FAILED', 'CANCELLED', 'NODE_FAIL',
                                           'TIMEOUT')

    def ends(self, state):
        """Waits for its end; asserts what it was, and that no process is left."""
        wait_until(self.is_over, 'does not end:', self)
        assert self.fields['JobState'] == state, str(self)
        wait_until(lambda: not self.program.left(), 'leaves processes:', self)

    def __str__(self):
        return '\n'.join([str(self.fields), *self.lines])


@pytest.fixture
def project(tmp_path):
    """A copy of Clusters/slurm, in a collection with one example and the library."""
    for folder in 'Clusters/slurm', 'HogWild', 'tfdist':
        shutil.copytree(str(ROOT / folder), str(tmp_path / 'collection' / folder),
                        ignore=shutil.ignore_patterns('__pycache__'))
    return tmp_path / 'collection' / 'Clusters' / 'slurm'


def test_command_of_the_readme(slurm, programs, project):
    job = Job(slurm, programs, project, TRAIN)
    job.ends('COMPLETED')
    assert len(job.matches(BEGINS)) == 2
    assert len(job.matches(DID)) == 2
    test, = job.matches(TEST)
    assert int(test['step']) >= 2000 and float(test['accuracy']) > 0.9


def test_requeue_and_cancel(slurm, programs, project):
    """Started again, the job goes on from its checkpoint. Cancelled, it leaves nothing."""
    job = Job(slurm, programs, project, TRAIN_WITH_CHECKPOINTS)
    job.wait_for(BEGINS, 2)
    wait_until(lambda: saved_step(project) > 0 or job.is_over(), 'saves nothing:', job)
    assert job.control(REQUEUE) == ''
    wait_until(lambda: job.fields['JobState'] == 'PENDING', 'is not queued again:', job)
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second)  # as the README says
    saved = saved_step(project)
    assert saved > 0
    assert job.control(START_NOW) == ''
    resumed = int(job.wait_for(RESUMES)['step'])
    assert resumed >= saved  # tasks that are being ended may still save
    job.wait_for(BEGINS, 4)
    assert all(int(begins['step']) >= resumed for begins in job.matches(BEGINS)[2:])
    steps = len(job.matches(STEP))
    assert int(job.wait_for(STEP, steps + 1)['step']) > resumed
    assert job.fields['Restarts'] == '1'
    assert len(tasks_of(job)) == 3
    assert job.control(CANCEL) == ''
    job.ends('CANCELLED')


def test_restarts(slurm, programs, project):
    """After each failure all start again, from the last checkpoint; then the job has failed."""
    job = Job(slurm, programs, project, TRAIN_WITH_RESTARTS.replace('RESTARTS=3', 'RESTARTS=1'))
    job.wait_for(BEGINS, 2)
    wait_until(lambda: saved_step(project) > 0 or job.is_over(), 'saves nothing:', job)
    saved = saved_step(project)
    tasks_of(job)['worker', 1].kill()
    job.wait_for(r'train\.sbatch: a task failed; restart 1 of 1')
    assert int(job.wait_for(RESUMES)['step']) >= saved > 0
    job.wait_for(BEGINS, 4)
    assert job.fields['Restarts'] == '0'
    tasks_of(job)['ps', 0].kill()
    job.ends('FAILED')
    assert len([line for line in job.lines if line.startswith('train.sbatch: ')]) == 1


def test_what_is_cancelled_does_not_start_again(slurm, programs, project, example):
    job = Job(slurm, programs, project, f'RESTARTS=3 sbatch train.sbatch {make_idle(example)}')
    job.wait_for('starts', 3)
    assert job.control(CANCEL) == ''
    job.ends('CANCELLED')
    assert len(job.matches('starts')) == 3 and not job.matches('train.sbatch: .*'), str(job)


def test_restarts_that_are_no_number(slurm, programs, project, example):
    job = Job(slurm, programs, project, f'RESTARTS=x sbatch train.sbatch {example}')
    job.ends('FAILED')
    assert job.lines == ['train.sbatch: RESTARTS=x is not a number of restarts, such as 3']


def saved_step(project):
    """Returns the global step of the checkpoint that a run would restore; 0 if there is none."""
    path = tf.train.latest_checkpoint(str(project / 'model'))
    return int(path.rpartition('-')[2]) if path else 0


def test_a_failed_task_ends_all(slurm, programs, project, example):
    job = Job(slurm, programs, project, f'sbatch train.sbatch {make_idle(example)}')
    job.wait_for('starts', 3)
    tasks_of(job)['worker', 1].kill()
    job.ends('FAILED')


def make_idle(example):
    """Has the tasks of an example say that they start, and then do nothing; returns its path."""
    for name in 'ps', 'worker':
        (example / f'{name}.py').write_text(
            f'import time\nprint("starts", flush=True)\ntime.sleep({10 * PATIENCE})\n',
            encoding='utf-8')
    return example


def tasks_of(job):
    """Returns the processes of a job's tasks, a dict by job and index in TF_CONFIG."""
    found = {}
    for process in job.program.left():
        if re.search(r'/(ps|worker)\.py', ' '.join(process.cmdline())):
            task = json.loads(process.environ()['TF_CONFIG'])['task']
            found[task['type'], task['index']] = process
    return found


@pytest.fixture
def example(tmp_path):
    """A folder of which the programs print what they are given, and not more."""
    folder = tmp_path / 'example'
    folder.mkdir()
    for name in 'ps', 'worker':
        (folder / f'{name}.py').write_text(
            'import json, os, sys\n'
            f'print(json.dumps({{"program": "{name}", "flags": sys.argv[1:], **{{name: '
            'os.environ.get(name) for name in ("TF_CONFIG", "SLURMD_NODENAME", "SLURM_PROCID", '
            '"CUDA_VISIBLE_DEVICES")}}))', encoding='utf-8')
    return folder


def start_tasks(slurm, programs, example, *options, flags=(), **env):
    """Starts tasks by srun, as train.sbatch does; returns the `Program`."""
    return programs.start(cwd=FOLDER, **slurm.command(
        ['srun', '--quiet', *options, sys.executable, 'start_task.py', example, *flags], **env))


def told(run):
    """Waits for the end of `start_tasks`; returns by rank what each was given, and its task."""
    run.ends_well()
    ranks = sorted(map(json.loads, run.out), key=lambda rank: int(rank['SLURM_PROCID']))
    for rank in ranks:
        config = json.loads(rank['TF_CONFIG'])
        rank.update(cluster=config['cluster'], **config['task'])
    return ranks


def test_tasks_are_where_they_are_said_to_be(slurm, programs, example):
    """Five tasks on three nodes, n10 after n9."""
    run = start_tasks(slurm, programs, example, '--nodes=3', '--ntasks=5', '--cpus-per-task=1',
                      '--distribution=block', flags=['--train_steps=7'], PS='2')
    ranks = told(run)
    assert [(rank['type'], rank['index']) for rank in ranks] == [
        ('ps', 0), ('ps', 1), ('worker', 0), ('worker', 1), ('worker', 2)]
    assert [rank['program'] for rank in ranks] == ['ps'] * 2 + ['worker'] * 3
    assert {rank['SLURMD_NODENAME'] for rank in ranks} == set(NODES)
    addresses = [rank['cluster'][rank['type']][rank['index']] for rank in ranks]
    assert ([address.partition(':')[0] for address in addresses]
            == [rank['SLURMD_NODENAME'] for rank in ranks])
    ports = [int(address.partition(':')[2]) for address in addresses]
    assert ports == list(range(ports[0], ports[0] + 5))
    assert 10000 <= ports[0] and ports[-1] < 32768
    assert all(rank['cluster'] == ranks[0]['cluster'] for rank in ranks)
    assert [rank['flags'] for rank in ranks] == [['--num_threads=1']] * 2 + [
        ['--num_threads=1', '--train_steps=7']] * 3
    assert [rank['CUDA_VISIBLE_DEVICES'] for rank in ranks[:3]] == ['', '', None]


def test_another_job_has_other_ports(slurm, programs, example):
    jobs = [told(start_tasks(slurm, programs, example, '--ntasks=2'))[0] for _ in range(2)]
    first, second = ({int(address.partition(':')[2]) for job in ('ps', 'worker')
                      for address in rank['cluster'][job]} for rank in jobs)
    assert len(first) == len(second) == 2 and not first & second
    rank = told(start_tasks(slurm, programs, example, '--ntasks=2', PORT='2222'))[0]
    assert rank['cluster'] == {'ps': [f'{rank["SLURMD_NODENAME"]}:2222'],
                               'worker': [f'{rank["SLURMD_NODENAME"]}:2223']}


def test_a_folder_without_ps(slurm, programs, example):
    (example / 'ps.py').unlink()
    ranks = told(start_tasks(slurm, programs, example, '--ntasks=2'))
    assert [(rank['type'], rank['index']) for rank in ranks] == [('worker', 0), ('worker', 1)]
    assert sorted(ranks[0]['cluster']) == ['worker']


def test_bad_input(slurm, programs, example, tmp_path):
    """One line from each task says what is wrong, and what to do."""
    exits = '|srun: error: .* Exited with exit code 1'  # srun's own line, after that
    run = start_tasks(slurm, programs, example, '--nodes=3', '--ntasks=4', '--distribution=cyclic')
    run.fails('rank . is on n.* and not on n.* Start it by srun --distribution=block' + exits,
              lines=range(2, 9))
    start_tasks(slurm, programs, example).fails(
        'of 1 tasks 1 cannot be parameter servers.* Give --ntasks or PS=' + exits, lines=2)
    start_tasks(slurm, programs, example, PS='one').fails('PS=one is not a number' + exits, lines=2)
    start_tasks(slurm, programs, tmp_path).fails('there is no worker.py in ' + exits, lines=2)


def test_bad_input_without_slurm(programs, example):
    start_task = [sys.executable, FOLDER / 'start_task.py']
    programs.start([*start_task, example]).fails('SLURM_PROCID is not set. Start it by srun')
    programs.start(start_task).fails('name the folder of an example')


def test_the_resolver_of_tensorflow_is_of_no_use(monkeypatch):
    """What the README says of it: once this fails, it can be used."""
    for name, value in {'PROCID': 0, 'STEP_NUM_TASKS': 4, 'STEP_NODELIST': 'n[9-10]',
                        'STEP_TASKS_PER_NODE': '3,1', 'NTASKS': 4}.items():
        monkeypatch.setenv(f'SLURM_{name}', str(value))
    monkeypatch.delenv('SLURM_NTASKS_PER_NODE', raising=False)
    make = tf.distribute.cluster_resolver.SlurmClusterResolver
    options = {'jobs': {'ps': 1, 'worker': 3}, 'gpus_per_node': 3, 'gpus_per_task': 1,
               'auto_set_gpu': False}
    if sys.version_info < (3, 8):  # TensorFlow 1.15
        with pytest.raises(RuntimeError, match='NTASKS_PER_NODE'):
            make(**options)
    else:
        # Rank 0 is on n9.
        assert make(**options).cluster_spec().task_address('ps', 0).startswith('n10:')
