"""Runs an example as a Spark job: its parameter servers and workers are tasks of a barrier stage.

    python submit.py --example=../../AGN --master='local[3]'
    python submit.py --example=../../AGN --master=spark://alpha:7077 --model_dir=/shared/agn \
      -- --train_steps=5000

Spark starts all tasks of such a stage at once, or none. When one fails, it ends the others and
starts all of them again. Each task makes TF_CONFIG from the addresses of all tasks, and runs ps.py
or worker.py as it is. Flags after -- go to the workers. The example's folder and the library are
sent to the machines, and lie side by side there.
"""

from concurrent import futures
import contextlib
import ctypes
import json
import logging
import os
import pathlib
import random
import re
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import zipfile

from absl import app, flags
try:
    from py4j.protocol import Py4JJavaError
    from pyspark import BarrierTaskContext, SparkConf, SparkContext, SparkFiles
except ImportError:
    sys.exit('submit: there is no PySpark; pip install -r requirements.txt')

FLAGS = flags.FLAGS
flags.DEFINE_string('example', None, 'folder with ps.py and worker.py; it is sent to the machines',
                    required=True)
flags.DEFINE_integer('num_ps', 1, 'parameter servers, the first tasks', lower_bound=0)
flags.DEFINE_integer('num_workers', 2, 'workers, the other tasks', lower_bound=1)
flags.DEFINE_string('master', None, "address of Spark's master, such as spark://alpha:7077; "
                    'by default this machine: local[TASKS]')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries, seen by all '
                    'machines. Without one, what starts again starts from nothing')
flags.DEFINE_integer('max_attempts', 4, 'how often to start before giving up', lower_bound=1)
flags.DEFINE_integer('patience_secs', 300, 'how long to wait until Spark has enough slots',
                     lower_bound=1)
flags.DEFINE_boolean('verbose', False, "show Spark's log")


class Console(socketserver.ThreadingTCPServer):
    """Prints what the programs print, wherever they run.

    Each program sends its stdout and its stderr over two connections. Both begin with a secret that
    Spark has told the tasks alone: others may connect, too.

    Attributes:
      way: what a task needs to connect: host, port, secret.
      heard: `threading.Event`, set once a task has connected.
    """

    daemon_threads = True

    def __init__(self, host, bind_address):
        super().__init__((bind_address, 0), _Printer)
        self.way = host, self.server_address[1], secrets.token_hex()
        self.heard = threading.Event()
        self._printers = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request_thread(self, request, client_address):
        self._printers.append(threading.current_thread())
        super().process_request_thread(request, client_address)

    def drain(self):
        """Waits until all is printed; not for ever, as a machine may be gone."""
        for printer in self._printers:
            printer.join(timeout=5)


class _Printer(socketserver.StreamRequestHandler):
    """Prints the lines of one connection."""

    timeout = 10  # for the first line

    def handle(self):
        with contextlib.suppress(OSError):
            first = self.rfile.readline(200)
            for fd in 1, 2:
                if secrets.compare_digest(first, _first_line(self.server.way, fd)):
                    self.connection.settimeout(None)
                    self.server.heard.set()
                    for line in self.rfile:
                        os.write(fd, line)  # in one piece: others print, too


def _first_line(way, fd):
    """Returns the first line of a connection whose other lines go to stdout (1) or stderr (2)."""
    return f'{way[2]} {fd}\n'.encode()


def connect(way, fd):
    """Returns a socket: the lines sent to it are printed by the driver, see `Console`."""
    connection = socket.create_connection(way[:2])
    connection.sendall(_first_line(way, fd))
    return connection


def reserve_port():
    """Returns a socket bound to a free port.

    It is below the ports of outgoing connections, so that nobody takes it meanwhile.
    """
    for port in random.SystemRandom().sample(range(10000, 32768), 100):
        reserved = socket.socket()
        try:
            reserved.bind(('', port))
            return reserved
        except OSError:
            reserved.close()
    raise RuntimeError('no free port')


def die_with_parent(parent):
    """Has the system kill this process, a child, when its parent dies.

    Spark ends a task by killing its process, which then has no time to end what it has started.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def run_task(num_ps, worker_flags, way):
    """Runs one program of the cluster, in one task of the barrier stage, until it ends.

    Args:
      num_ps: int, how many tasks are parameter servers.
      worker_flags: list of strings.
      way: of the driver's `Console`.

    Raises:
      RuntimeError: if the program fails.
    """
    context = BarrierTaskContext.get()
    partition = context.partitionId()
    host = context.getTaskInfos()[partition].address.rpartition(':')[0]
    with reserve_port() as reserved:
        addresses = context.allGather(f'{host}:{reserved.getsockname()[1]}')
    tasks = [('ps', i) for i in range(num_ps)]
    tasks += [('worker', i) for i in range(len(addresses) - num_ps)]
    job, index = tasks[partition]
    cluster = {}
    for (name, _), address in zip(tasks, addresses):
        cluster.setdefault(name, []).append(address)
    env = dict(os.environ, TF_CONFIG=json.dumps({'cluster': cluster,
                                                 'task': {'type': job, 'index': index}}))
    command = [sys.executable, os.path.join(SparkFiles.get('sent'), 'example', f'{job}.py'),
               f'--num_threads={context.cpus()}']
    if job == 'ps':
        env['CUDA_VISIBLE_DEVICES'] = ''  # the GPUs are for the workers
    else:
        command += worker_flags
    with connect(way, 1) as out, connect(way, 2) as err:
        if not partition:
            where = ', '.join(f'{name} {i} at {address}'
                              for (name, i), address in zip(tasks, addresses))
            out.sendall(f'submit: starts {where}\n'.encode())
        task = os.getpid()
        program = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, preexec_fn=lambda: die_with_parent(task))
        status = program.wait()
        if status:
            how = f'with status {status}' if status > 0 else f'by signal {-status}'
            err.sendall(f'submit: {job} {index} ended {how}\n'.encode())
            raise RuntimeError(f'{job} {index} ended {how}')


def check(example):
    """Raises SystemExit unless a folder, a path, has the programs."""
    if not example.is_dir():
        sys.exit(f'submit: --example={FLAGS.example}: there is no such folder.')
    for program, count in ('ps.py', FLAGS.num_ps), ('worker.py', FLAGS.num_workers):
        if count and not (example / program).exists():
            sys.exit(f'submit: --example={FLAGS.example} has no {program}.')
    if (example / 'train.py').exists():
        sys.exit(f'submit: --example={FLAGS.example} has a train.py, which its workers serve; here '
                 'the workers train.')


def find_library(example):
    """Returns the path of the library, found as the programs of a folder, a path, find it.

    Raises:
      SystemExit: if they do not find it.
    """
    found = subprocess.run([sys.executable, '-c',
                            'import find_library, tfdist; print(tfdist.__path__[0])'],
                           cwd=str(example), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           universal_newlines=True, check=False)
    if found.returncode:
        sys.exit(f'submit: {found.stderr.splitlines()[-1]}')
    return pathlib.Path(found.stdout.splitlines()[-1])


def pack(archive, **folders):
    """Writes a zip file with folders, paths by the names that they are to have in it.

    Compiled Python files are left out: they come and go while other programs start.
    """
    with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as packed:
        for name, folder in folders.items():
            for path in folder.rglob('*'):
                inside = path.relative_to(folder)
                if '__pycache__' not in inside.parts:
                    packed.write(str(path), os.path.join(name, str(inside)))


@contextlib.contextmanager
def quiet():
    """Discards stderr, also that of a program that is started meanwhile, the JVM."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def start_spark(name, num_tasks):
    """Returns a `SparkContext`.

    Raises:
      SystemExit: if Spark does not start.
    """
    master = FLAGS.master or f'local[{num_tasks}]'
    os.environ.setdefault('PYSPARK_PYTHON', sys.executable)
    is_one_process = re.fullmatch(r'local(\[[^\]]*\])?', master)  # whose slots are there at once
    conf = SparkConf().setMaster(master).setAppName(name)
    conf.set('spark.stage.maxConsecutiveAttempts', str(FLAGS.max_attempts))
    slots = 'spark.scheduler.barrier.maxConcurrentTasksCheck'
    conf.set(f'{slots}.interval', '1s')
    conf.set(f'{slots}.maxFailures', '1' if is_one_process else str(FLAGS.patience_secs))
    try:
        with contextlib.nullcontext() if FLAGS.verbose else quiet():
            return SparkContext(conf=conf)
    except Exception as error:  # PySpark raises another one for each cause
        sys.exit(f'submit: Spark does not start: {reason(error)} (--verbose shows its log)')


def reason(error):
    """Returns in one line what an exception says, without the stacks of Java and Python."""
    if not isinstance(error, Py4JJavaError):
        return str(error).splitlines()[0]
    text = str(error.java_exception.getMessage())
    in_python = re.findall(r'^(?:\w+\.)*\w+(?:Error|Exception): (.+)$', text, re.MULTILINE)
    return in_python[-1] if in_python else text.splitlines()[0]


def run(spark, example, library, worker_flags):
    """Runs the stage until it succeeds.

    Args:
      spark: `SparkContext`.
      example: `pathlib.Path` of the folder.
      library: `pathlib.Path` of tfdist.
      worker_flags: list of strings.

    Raises:
      SystemExit: with what Spark says, if it gave up.
    """
    num_ps, num_tasks = FLAGS.num_ps, FLAGS.num_ps + FLAGS.num_workers
    host = spark.getConf().get('spark.driver.host')
    console = Console(host, spark.getConf().get('spark.driver.bindAddress', host))
    way = console.way  # a task can be sent this, but neither the console nor the flags
    with tempfile.TemporaryDirectory() as directory, futures.ThreadPoolExecutor(1) as thread:
        archive = os.path.join(directory, 'sent.zip')
        pack(archive, example=example, tfdist=library)
        spark.addArchive(f'{archive}#sent')
        stage = spark.parallelize(range(num_tasks), num_tasks).barrier().mapPartitions(
            lambda _: [run_task(num_ps, worker_flags, way)])
        # Spark tries a barrier stage again only if another stage follows. In a thread, as a signal
        # would otherwise interrupt PySpark while it talks to Java.
        job = thread.submit(lambda: stage.repartition(1).count())
        try:
            while not futures.wait([job], timeout=15).done:
                if not console.heard.is_set():
                    print(f'submit: waits for {num_tasks} free slots of {spark.master}', flush=True)
            job.result()
        except Py4JJavaError as error:
            cause = reason(error)
            if 'SPARK-24819' in cause:
                cause = f'{spark.master} has fewer than {num_tasks} slots, one for each task'
            sys.exit(f'submit: Spark gave up: {cause}')
        finally:
            spark.stop()
            console.drain()


def stop(signum, _):
    """Ends this program on a signal."""
    sys.exit(128 + signum)


def main(argv):
    example = pathlib.Path(FLAGS.example).resolve()
    check(example)
    library = find_library(example)
    worker_flags = argv[1:]
    if FLAGS.model_dir:
        worker_flags.insert(0, f'--model_dir={os.path.abspath(FLAGS.model_dir)}')
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    logging.getLogger('py4j').propagate = False  # it logs each connection that it closes
    spark = start_spark(example.name, FLAGS.num_ps + FLAGS.num_workers)
    signal.signal(signal.SIGINT, stop)  # PySpark has set its own
    run(spark, example, library, worker_flags)


def _parse_flags(argv):
    """Returns the name and the flags after --; ends the program if those before are wrong."""
    split = argv.index('--') if '--' in argv else len(argv)
    try:
        rest = FLAGS(argv[:split])
    except flags.Error as error:
        sys.exit(f'submit: {error} (--help lists the flags; those of the workers come after --)')
    if rest[1:]:
        sys.exit(f'submit: what is "{rest[1]}"? Flags begin with --, those of the workers come '
                 'after --.')
    return argv[:1] + argv[split + 1:]


if __name__ == '__main__':
    app.run(main, flags_parser=_parse_flags)
