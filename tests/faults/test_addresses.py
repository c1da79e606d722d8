"""Addresses, numbers and limits that are odd, or lead nowhere."""

import re
import socket
import sys

import pytest

from measuring import hosts
from tfdist.start import ports

from processes import BEGINS, ROOT, Tasks, TEST


@pytest.mark.thorough
@pytest.mark.parametrize('host, reason', [
    ('no.such.host.invalid', '(Name or service not known|.*name resolution)'),
    (f'{70 * "a"}.b', 'that is not a host name')], ids=['nobody has it', 'nobody can have it'])
def test_a_name_that_does_not_resolve(programs, host, reason):
    port, = ports.free_ports(1)
    flags = f'--ps_hosts={host}:2222', f'--worker_hosts=localhost:{port}', '--task_index=0'
    programs.task('worker', *flags, '--patience_secs=3').fails(
        rf'^worker 0: ps 0 at \S+ does not answer \({reason}\)\. Gave up after 3 s\.$')


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
@pytest.mark.parametrize('folder', ['HogWild', 'Synchronous-SGD'])
def test_a_task_that_is_started_on_two_hosts(programs, folder):
    """The one that is not at the address of the task ends; the run goes on without it."""
    with hosts.Hosts(programs.directory, ['ps-0', 'worker-0', 'other']) as network:
        def start(name, job):
            flags = ['--ps_hosts=ps-0:2222', '--worker_hosts=worker-0:2223', '--task_index=0']
            flags += ['--train_steps=400', '--straggler=0:0.02'] if job == 'worker' else []
            return programs.start(network.on(
                name, [sys.executable, str(ROOT / folder / f'{job}.py'), *flags],
                str(programs.directory)))

        ps, worker = start('ps-0', 'ps'), start('worker-0', 'worker')
        worker.wait_for(BEGINS)
        start('other', 'worker').fails(
            '^worker 0: another worker 0 is at worker-0:2223, the address of this one. Is it '
            'started on two hosts')
        for program in worker, ps:
            program.ends_well()


@pytest.mark.thorough
@pytest.mark.parametrize('folder', ['HogWild', 'AGN', 'Synchronous-SGD', 'Ring-AllReduce'])
def test_addresses_of_ip_version_6(programs, folder):
    try:
        socket.socket(socket.AF_INET6).bind(('::1', 0))
    except OSError as error:
        pytest.skip(f'no IPv6 here: {error}')
    tasks = Tasks(programs, num_ps=folder != 'Ring-AllReduce', folder=folder,
                  flags=['--train_steps=20'])
    tasks.cluster = {job: [address.replace('localhost', '[::1]') for address in addresses]
                     for job, addresses in tasks.cluster.items()}
    running = [tasks.start_by_flags(job, i)
               for job in tasks.cluster for i in range(len(tasks.cluster[job]))]
    for program in running:
        program.ends_well()
    assert any(program.matches(TEST) for program in running)


@pytest.mark.thorough
@pytest.mark.parametrize('flag, line', [
    ('--straggler=0:1e7', r'^--straggler=0:1e7 is not of the form worker:seconds'),
    ('--straggler=0:inf', r'^--straggler=0:inf is not of the form worker:seconds'),
    ('--num_threads=10000', r'--num_threads=10000: 10000 is not an integer in the range')])
def test_numbers_that_make_no_sense(programs, flag, line):
    run = programs.run_sh('HogWild', flag)
    run.fails(line)
    assert not run.left()


@pytest.mark.thorough
def test_a_step_that_takes_longer_than_the_patience(programs):
    """By a huge --straggler, or because the model is: it says so, and ends in one line."""
    run = programs.run_sh('HogWild', '--straggler=1:100000', '--patience_secs=12',
                          '--train_steps=1000000')
    run.fails(r'^worker 1: the step is not complete \(all tasks answer\)\. Gave up after 12 s\.$')
    assert not run.left()
    assert any(re.match(r'worker 1: the step is not complete after 1\d s ', line)
               for line in run.out)


@pytest.mark.thorough
def test_too_little_memory(programs):
    """TensorFlow ends itself, in words of its own; nobody is left waiting for it."""
    run = programs.start(['bash', '-c', f'ulimit -v 1500000; bash {ROOT}/HogWild/run.sh'],
                         env={'PYTHON': sys.executable})
    assert run.wait() and run.err
    assert not run.left()
