"""Clusters/spark: what its README says, on Spark in one process and in several."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket

import psutil
import pytest

from conftest import load_program
from processes import (checkpoints, DID, GOOD_LINES, PATIENCE, RESUMES, ROOT, STEP, TEST,
                       wait_until)

FOLDER = ROOT / 'Clusters' / 'spark'
STARTS = r'submit: starts ps 0 at \S+:\d+, worker 0 at \S+:\d+, worker 1 at \S+:\d+'
WAITS = r'submit: waits for 3 free slots of .+'

MISSING = [name for name, is_there in (
    ('PySpark: pip install -r Clusters/spark/requirements.txt',
     importlib.util.find_spec('pyspark')),
    ('Java', shutil.which('java') or os.environ.get('JAVA_HOME'))) if not is_there]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f'there is no {", and no ".join(MISSING)}')]


def command_for(master):
    """Returns the words of the README's command for a master."""
    text = (FOLDER / 'README.md').read_text(encoding='utf-8').replace('\\\n', '')
    commands = map(shlex.split, re.findall(r'^    (python submit\.py .*)$', text, re.MULTILINE))
    command, = [words for words in commands if f'--master={master}' in words]
    return command


@pytest.fixture
def submit(programs, tmp_path, bare_python):
    """Starts submit.py, without the library installed; Spark writes into the test's directory."""
    import pyspark
    home = tmp_path / 'spark-home'  # the executors of local-cluster write into Spark's own folder
    home.mkdir()
    for path in pathlib.Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    # The second and third: four of Java on this machine start in half the time.
    java = f'-Djava.io.tmpdir={tmp_path} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
    env = {'SPARK_HOME': str(home), 'SPARK_LOCAL_DIRS': str(tmp_path), 'TMPDIR': str(tmp_path),
           'PYSPARK_SUBMIT_ARGS': '--conf spark.ui.enabled=false '
                                  f'--conf "spark.driver.extraJavaOptions={java}" '
                                  f'--conf "spark.executor.extraJavaOptions={java}" pyspark-shell'}

    runs = []

    def start(*words, **more_env):
        runs.append(programs.start([bare_python, 'submit.py', *words], cwd=FOLDER,
                                   env=dict(env, **more_env)))
        return runs[-1]

    yield start
    for run in runs:  # Java ends a moment after the driver
        wait_until(lambda run=run: run.running or not run.left(), 'something is left of', run)


def check(run):
    """Asserts that the last attempt ended as a run of the example does."""
    assert run.wait() == 0, str(run)
    forms = [*GOOD_LINES, re.compile(STARTS), re.compile(WAITS)]
    assert not [line for line in run.out if not any(form.fullmatch(line) for form in forms)], run
    assert sorted(match['name'] for match in run.matches(DID)) == ['worker 0', 'worker 1'], str(run)
    assert len(run.matches(TEST)) == 1


def tasks(run):
    """Returns the processes of the example that run, by job and index."""
    found = {}
    for process in run.left():
        try:
            if re.fullmatch('(ps|worker).py', os.path.basename((process.cmdline() + [''] * 2)[1])):
                task = json.loads(process.environ()['TF_CONFIG'])['task']
                found[task['type'], task['index']] = process
        except psutil.NoSuchProcess:
            pass  # it ended meanwhile
    return found


def test_in_one_process(submit):
    program, script, *words = command_for('local[3]')
    assert (program, script) == ('python', 'submit.py')
    run = submit(*words)
    check(run)
    assert not run.err and len(run.matches(STARTS)) == 1, str(run)


def test_a_killed_worker_restarts_the_stage(submit, tmp_path):
    """On executors of their own, and from the last checkpoint."""
    words = command_for('spark://alpha:7077')[2:]
    here = {'--master=spark://alpha:7077': '--master=local-cluster[3,1,1024]',
            '--model_dir=/shared/agn': f'--model_dir={tmp_path / "agn"}'}
    assert set(here) < set(words)
    run = submit(*[here.get(word, word) for word in words], '--train_steps=200',
                 '--straggler=0:0.003,1:0.003')
    wait_until(lambda: checkpoints(tmp_path / 'agn')[1:], 'no checkpoints by', run)
    saved = checkpoints(tmp_path / 'agn')[-1]
    first = tasks(run)
    assert sorted(first) == [('ps', 0), ('worker', 0), ('worker', 1)]
    first['worker', 1].kill()
    run.wait_for(STARTS, 2)
    assert not set(first.values()) & set(run.left()), 'one outlived its task'
    assert int(run.wait_for(RESUMES)['step']) >= saved > 0
    check(run)
    assert run.err == ['submit: worker 1 ended by signal 9']
    assert len(run.matches(STARTS)) == 2


def test_ctrl_c_ends_all(submit):
    run = submit('--example=../../AGN', '--', '--train_steps=1000000')
    run.wait_for(STEP)
    assert len(tasks(run)) == 3
    run.send(signal.SIGINT, group=True)
    assert run.wait() == 130 and not run.err, str(run)
    wait_until(lambda: not run.left(), 'it goes on:', run)


def test_only_what_the_programs_say_is_printed(capfd):
    """Others who find the driver's port are not heard."""
    submit = load_program('Clusters/spark', 'submit')
    console = submit.Console('localhost', 'localhost')
    with socket.create_connection(console.way[:2]) as stranger:
        stranger.sendall(b'0123456789abcdef 1\nspoof\n')
        with submit.connect(console.way, 1) as out, submit.connect(console.way, 2) as err:
            out.sendall(b'said\n')
            err.sendall(b'complained\n')
        printed = []
        wait_until(lambda: printed.append(capfd.readouterr()) or all(map(any, zip(*printed))),
                   'not both are printed')
    console.drain()
    console.shutdown()
    console.server_close()
    printed.append(capfd.readouterr())
    assert [''.join(parts) for parts in zip(*printed)] == ['said\n', 'complained\n']


def test_too_few_slots(submit):
    submit('--example=../../AGN', '--master=local[2]').fails(
        r'^submit: Spark gave up: local\[2\] has fewer than 3 slots, one for each task$')


PROGRAM = """import sys, time, find_library, tfdist
print('library', tfdist.__path__[0], *sys.argv, flush=True)
time.sleep({})
sys.exit('fails')
"""


@pytest.fixture
def alone(tmp_path):
    """A folder of programs that find the library and not more, which is not beside it."""
    folder = tmp_path / 'alone' / 'example'
    folder.mkdir(parents=True)
    shutil.copy(str(ROOT / 'AGN' / 'find_library.py'), str(folder))
    for name, secs in ('ps', 10 * PATIENCE), ('worker', 0):
        (folder / f'{name}.py').write_text(PROGRAM.format(secs), encoding='utf-8')
    return folder


def test_a_program_that_fails_each_time(submit, alone, tmp_path):
    """Each time its own line and that of its task, and in the end that of the driver.

    On the machine the library, which is installed here, is beside the folder, as its own.
    """
    shutil.copytree(str(ROOT / 'tfdist'), str(tmp_path / 'installed' / 'tfdist'))
    run = submit(f'--example={alone}', '--num_workers=1', '--max_attempts=2', '--', '--flag',
                 PYTHONPATH=str(tmp_path / 'installed'))
    assert run.wait() == 1
    assert run.err == ['fails', 'submit: worker 0 ended with status 1'] * 2 + [
        'submit: Spark gave up: worker 0 ended with status 1'], str(run)
    found = run.matches(r'library (?P<sent>.+)/tfdist (?P=sent)/example/(?:(?P<ps>ps)|worker).py '
                        r'--num_threads=1(?(ps)| --flag)')
    assert [match['ps'] for match in found].count(None) == 2, str(run)
    assert not any(match['sent'].startswith((str(tmp_path / 'installed'), str(alone.parent)))
                   for match in found)


def test_a_folder_without_the_library(submit, alone):
    submit(f'--example={alone}').fails(
        f"^submit: No module named 'tfdist'. Put the folder tfdist .* beside {alone}, or install")


@pytest.mark.parametrize('words, complaint', [
    (['--example=../../Nowhere'],
     r'^submit: --example=../../Nowhere: there is no such folder\.$'),
    (['--example=../../Ring-AllReduce'], r'^submit: --example=../../Ring-AllReduce has no ps\.py'),
    (['--example=../../In-Graph-Replication'], r'has a train\.py'),
    (['--example=../../AGN', '--num_workers=0'], r'num_workers.*--help'),
    (['--example=../../AGN', '--train_steps=5'], r"'train_steps'.* come after --"),
    (['../../AGN', '--example=../../AGN'], r'what is "../../AGN"\?'),
    ([], r'--example'),
], ids=lambda value: ' '.join(value)[:40] if isinstance(value, list) else '')
def test_wrong_input_is_one_line(submit, words, complaint):
    submit(*words).fails(complaint)
