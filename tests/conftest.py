"""Fixtures: a cluster of real servers in this process, and workers that a test drives by hand."""

import collections
import concurrent.futures
import functools
import importlib
import itertools
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import types

from absl import flags
import pytest

from measuring import hosts, tunnels
from tfdist.data import batches, datasets
from tfdist.scheme import seam
from tfdist.scheme.toy import Problem
from tfdist.start import ports
from tfdist.training import traffic
from tfdist.start.quiet import tf

from processes import Programs, ROOT

# What ignores a signal, as below nohup or in the background, makes all that it starts ignore it.
# With a function in its place it does not.
for signum in signal.SIGHUP, signal.SIGINT:
    if signal.getsignal(signum) == signal.SIG_IGN:
        signal.signal(signum, lambda *_: None)

for path in sorted((ROOT / 'tfdist').glob('*/[!_]*.py')):
    if path.parent.name != 'gallery':
        # Its flags stay, whichever program comes and goes.
        importlib.import_module(f'tfdist.{path.parent.name}.{path.stem}')


def _without_optimizing(init):
    """Returns the constructor of sessions whose graphs TensorFlow leaves as they are.

    Optimizing them took a tenth of the processor time of such tests. TensorFlow still optimizes
    where the config says how, as in a simulation, and in the programs that tests start.
    """
    @functools.wraps(init)
    def make(self, target='', graph=None, config=None):
        own = tf.ConfigProto()
        if config:
            own.CopyFrom(config)
        if not own.graph_options.HasField('rewrite_options'):
            own.graph_options.rewrite_options.disable_meta_optimizer = True
        init(self, target, graph, own)

    return make


tf.Session.__init__ = _without_optimizing(tf.Session.__init__)


def load_program(folder, name='worker'):
    """Imports a folder's program as a module, with its flags in place of the last one's.

    The files of the folder are imported for this program, and then forgotten: folders share their
    names. Those of the library stay, with the defaults that they give their flags.
    """
    for flag in load_program.flags:
        delattr(flags.FLAGS, flag)
    for flag, original in load_program.replaced.items():
        flags.FLAGS[flag] = original
    for flag, default in load_program.defaults.items():
        flags.FLAGS.set_default(flag, default)
    load_program.flags, load_program.replaced = set(), {}  # also if the import fails
    before = {flag: flags.FLAGS[flag] for flag in flags.FLAGS}
    defaults = {name: flag.default for name, flag in before.items()}
    for flag in before.values():
        flag.allow_override = True  # a folder may have its own --dataset
    own = {path.stem for path in (ROOT / folder).glob('*.py')}
    hidden = {module: sys.modules.pop(module) for module in own if module in sys.modules}
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))
        for module in own:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)
        load_program.flags = set(flags.FLAGS) - set(before)
        load_program.replaced = {name: flag for name, flag in before.items()
                                 if flags.FLAGS[name] is not flag}
        load_program.defaults = {name: defaults[name] for name, flag in before.items()
                                 if flag.default != defaults[name]}


load_program.flags, load_program.replaced, load_program.defaults = set(), {}, {}


def digits():
    """Returns the digits to train on and to test on, in the dtypes in which programs have them."""
    return [batches.cast(array) for array in datasets.digits()]


def at_once(functions):
    """Calls all functions at the same time; returns their results. None may take a minute.

    A pool of threads would wait for one that hangs in TensorFlow, for ever.
    """
    def call(function, result):
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    results = [concurrent.futures.Future() for _ in functions]
    for each in zip(functions, results):
        threading.Thread(target=call, args=each, daemon=True).start()
    return [result.result(60) for result in results]


def evaluate(fetches):
    """Returns the values of tensors in a session of their own."""
    with tf.Session() as session:
        session.run(tf.tables_initializer())  # these are the batches' iterators
        return session.run(fetches)


class Cluster:
    """Servers on loopback in this process; they live as long as it does."""

    def __init__(self, num_ps=2, num_workers=5):
        hosts = [f'localhost:{port}' for port in ports.free_ports(num_ps + num_workers)]
        self.spec = tf.train.ClusterSpec({'ps': hosts[:num_ps], 'worker': hosts[num_ps:]})
        # Exchanges past the servers wait in threads, those of all workers in this one process.
        config = tf.ConfigProto(inter_op_parallelism_threads=8, intra_op_parallelism_threads=1,
                                experimental=tf.ConfigProto.Experimental(
                                    collective_group_leader='/job:worker/replica:0/task:0'))
        self.servers = {(job, i): tf.train.Server(self.spec, job, i, config=config)
                        for job, count in (('ps', num_ps), ('worker', num_workers))
                        for i in range(count)}

    def config(self, task_index):
        """Returns the session config of a worker, as in worker.py."""
        return tf.ConfigProto(device_filters=['/job:ps', f'/job:worker/task:{task_index}'])


@pytest.fixture(scope='session')
def cluster():
    """Two parameter servers and five workers."""
    return Cluster()


class ToyWorker:
    """One worker on the toy problem of half squares: loss (x - m)^2 / 2, so the gradient is x - m.

    A loss_scale multiplies both. If m is a list, each batch has the next one.

    Its ops are the very ones of worker.py's Scheme. A test interleaves workers by hand: `pull`
    reads, `push` trains on what was read and writes.

    Attributes:
      program: the module worker.py.
      scheme: the Scheme.
      session: a plain session on this worker's server.
      variables: the center.
      hparams: the scheme's hyperparameters.
      task_index: int, which worker it is.
    """

    def __init__(self, cluster, folder, task_index, container, start, m, num_ps, num_workers,
                 loss_scale, its_recipe, hparams, more=()):
        self.program = load_program(folder)
        hosts = cluster.spec.as_dict()
        some_ps = tf.train.ClusterSpec({'ps': hosts['ps'][:num_ps], 'worker': hosts['worker']})
        device, config = f'/job:worker/task:{task_index}', None
        if (ROOT / folder / 'ps.py').exists():
            device = tf.train.replica_device_setter(cluster=some_ps, worker_device=device)
            config = cluster.config(task_index)
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.container(container), tf.device(device):
            global_step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(value, tf.float32))
                for i, value in enumerate(start)]
            self.gradients = []  # of each batch in train_op, for tests that look inside
            its_ms = itertools.cycle(m if isinstance(m, list) else [m])

            def loss_at(values):
                own = next(its_ms)
                self.gradients.append(loss_scale * (values[0] - own))
                loss = sum(loss_scale * tf.reduce_sum(tf.square(v - own)) / 2 for v in values)
                return loss, tf.constant(0.)

            self.task_index = task_index
            self.hparams = types.SimpleNamespace(**hparams)
            self.scheme = self.program.Scheme(
                Problem(loss_at, self.variables, its_recipe), global_step, self.hparams,
                task_index, num_workers, *more)
            self.global_step = global_step
            self._init = tf.global_variables_initializer()
            self._init_local = tf.local_variables_initializer()
        self._new_session = lambda: tf.Session(
            cluster.servers['worker', task_index].target, graph=self.graph, config=config)
        self.session = self._new_session()
        self._center_is_own = config is None

    def initialize(self, center):
        """Initializes the center, if told so, and this worker's own variables."""
        if center or self._center_is_own:
            self.session.run(self._init)
        self.session.run(self._init_local)
        self._begin()

    def begin_again(self):
        """Begins with a new session, as when it is started again; leaves the one before open."""
        self.session = self._new_session()
        self._begin()

    def _begin(self):
        for hook in self.scheme.hooks:
            hook.after_create_session(self.session, tf.train.Coordinator())

    def pull(self):
        """Reads, as the beginning of a step would, and returns what was read."""
        return self.session.run(self.scheme.pull)

    def push(self, pulled):
        """Runs a step on what was read earlier, part by part; returns its result."""
        scheme = self.scheme
        fed = seam.feed(scheme.pull, pulled)
        pushed, result = self.session.run([scheme.pushed, scheme.computed], fed)
        fed.update(seam.feed(scheme.pushed, pushed))
        result.update(self.session.run(scheme.push, fed))
        return result

    def step(self):
        """Runs a whole step; returns its result."""
        return self.session.run(self.scheme.train_op)

    def center(self):
        """Returns the first variable as it is on the ps now."""
        return self.session.run(self.variables[0]).tolist()

    def window(self):
        """Runs a step; returns the gradients in it, of the first variable, in order."""
        return self.session.run([self.gradients, self.scheme.train_op])[0]

    def set(self, variable, value):
        """Gives a variable a value."""
        with self.graph.as_default():
            self.session.run(variable.assign(value))

    def traffic(self, runs=None):
        """Returns the bytes that a run sends to this worker, and those it sends to the ps.

        A worker that steps alone runs until a trace is whole. Workers that step together all have
        to run as often, so many `runs`, of which the most counts.
        """
        if runs is None:
            traces = [traffic.whole_trace(self.session, self.scheme.train_op)]
        else:
            traces = [tf.RunMetadata() for _ in range(runs)]
            for trace in traces:
                self.session.run(self.scheme.train_op, options=traffic.TRACE, run_metadata=trace)
        sent = traffic.between_tasks(traces)
        return tuple(sum(each.bytes for (_, receiver), each in sent.items()
                         if receiver.startswith(job)) for job in ('worker', 'ps'))

    def transfers(self):
        """Returns what a run sends: bytes of each tensor, by the job that gets it."""
        received = {'worker': [], 'ps': []}
        for one in traffic.transfers(traffic.whole_trace(self.session, self.scheme.train_op)):
            if one.bytes:
                received[one.receiver.split()[0]].append(one.bytes)
        return received


@pytest.fixture
def toy(cluster, request):
    """A function that makes workers of a folder's scheme on the toy problem, ready to step.

    Args (of the function):
      folder: string.
      ms: the optimum m of each worker, and so how many workers there are.
      start: the values at which the variables of the center start; by default one scalar, 8.
      num_ps: over how many parameter servers they are spread.
      loss_scale: factor of every loss.
      its_recipe: `recipe.Recipe`, or None.
      more: list of tuples by worker, further arguments of the scheme; or None.
      hparams: the scheme's hyperparameters.
    """
    workers = []

    def make(folder, ms=(0, 0), start=(8.,), num_ps=1, loss_scale=1, its_recipe=None, more=None,
             **hparams):
        container = re.sub(r'[^A-Za-z0-9]', '.', f'{request.node.name}-{len(workers)}')
        hparams.setdefault('learning_rate', 0.5)
        # Servers never forget which members and shapes a collective had.
        servers = Cluster(1, len(ms)) if hparams.get('implementation') == 'collective' else cluster
        made = [ToyWorker(servers, folder, i, container, start, m, num_ps, len(ms), loss_scale,
                          its_recipe, hparams, more[i] if more else ())
                for i, m in enumerate(ms)]
        for i, worker in enumerate(made):
            worker.initialize(center=i == 0)
        workers.extend(made)
        return made

    yield make
    for worker in workers:
        worker.session.close()


@pytest.fixture(scope='session')
def bare_python(tmp_path_factory):
    """An interpreter with all that the tests' own has, but for the library."""
    place = tmp_path_factory.mktemp('environment') / 'bare'
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(place)], check=True)
    site, = place.glob('lib/python*/site-packages')
    # An editable installation is a file of this kind in there, which is not read from here.
    (site / 'others.pth').write_text(sysconfig.get_paths()['purelib'] + '\n')
    return str(place / 'bin' / 'python')


@pytest.fixture(scope='session')
def needs_hosts():
    """Skips a test where no hosts can be made, see `hosts`, and says why."""
    reason = hosts.missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope='module')
def stunnel(tmp_path_factory):
    """The path of the command stunnel."""
    try:
        return tunnels.stunnel(tmp_path_factory.mktemp('stunnel'))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def programs(tmp_path):
    """Starts real processes; none may be left at the end of the test."""
    started = Programs(tmp_path)
    yield started
    left = started.end()
    print(started)  # pytest shows it if the test fails
    assert not left


@pytest.hookimpl(trylast=True)  # of those that are not deselected
def pytest_collection_modifyitems(items):
    """Spreads the files of faults/ among the others: they wait, and the others compute."""
    files = [list(group) for _, group in itertools.groupby(items, key=lambda item: item.path)]
    waiting = [group for group in files if group[0].path.parent.name == 'faults']
    spread = [group for group in files if group not in waiting]
    places = [i * len(spread) // len(waiting) for i in range(len(waiting))]
    for place, group in reversed(list(zip(places, waiting))):
        spread.insert(place, group)
    items[:] = itertools.chain.from_iterable(spread)


def pytest_terminal_summary(terminalreporter):
    """Says in one line what was not tested here, and why."""
    reasons = collections.Counter(
        re.sub('^Skipped: ', '', report.longrepr[2])
        for report in terminalreporter.stats.get('skipped', []) if isinstance(
            report.longrepr, tuple))
    if reasons:
        terminalreporter.write_line('Not tested here: ' + '; '.join(
            f'{count} ({reason})' for reason, count in sorted(reasons.items())))
