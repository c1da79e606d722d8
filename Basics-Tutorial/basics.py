"""What the notebooks use but do not teach: ports, pictures of graphs and traces, processes."""

import collections
import contextlib
import fcntl
import functools
import json
import logging
import multiprocessing.pool
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time

from matplotlib.patches import Patch
import matplotlib.pyplot as plt
import psutil

os.environ['CUDA_VISIBLE_DEVICES'] = ''  # before TensorFlow: what the notebooks compute is small

import find_library  # noqa: E402, F401  (finds tfdist)
from tfdist.training import traffic  # noqa: E402
from tfdist.start.ports import free_ports  # noqa: E402
from tfdist.start.quiet import tf  # noqa: E402
from tfdist.training.traffic import task_of  # noqa: E402

# Each task has one colour in all pictures; the colour-blind can tell them apart. What is not a task
# is black, purple or grey: 'C0', 'C1', 'C2'.
plt.rcParams.update({'figure.dpi': 80, 'axes.spines.top': False, 'axes.spines.right': False,
                     'figure.constrained_layout.use': True,
                     'axes.prop_cycle': plt.cycler(color=['#000000', '#882255', '#777777'])})
_PALETTE = {'ps': ['#0072b2', '#56b4e9'],
            'worker': ['#d55e00', '#e69f00', '#cc79a7', '#009e73'],
            'local': ['#666666']}

# Types of operations that say nothing about a graph.
BOOKKEEPING = {'Cast', 'Const', 'Fill', 'FloorDiv', 'Identity', 'Maximum', 'NoOp', 'Prod',
               'Reshape', 'Shape', 'Size', 'Tile', 'VarHandleOp'}
Node = collections.namedtuple('Node', 'name op task inputs')
RUN_SECS = 30  # that a run may take; the longest ones wait for a slow worker, and take a second


def start_servers(**tasks):
    """Starts a cluster of servers in this process, as Servers.ipynb does by hand.

    Args:
      **tasks: how many tasks each job has, such as `ps=1, worker=2`.

    Returns:
      A `tf.train.ClusterSpec`, and a dict of `tf.train.Server` by names such as 'worker 0'.
    """
    ports = iter(free_ports(sum(tasks.values())))
    spec = tf.train.ClusterSpec({job: [f'localhost:{next(ports)}' for _ in range(count)]
                                 for job, count in tasks.items()})
    config = tf.ConfigProto(intra_op_parallelism_threads=1,
                            operation_timeout_in_ms=RUN_SECS * 1000)  # then a run fails
    return spec, {f'{job} {i}': tf.train.Server(spec, job, i, config=config)
                  for job, count in tasks.items() for i in range(count)}


def at_once(*functions):
    """Calls functions at the same time, each in a thread; returns a list of what they return.

    What one of them raises is raised at once, because the others may wait for that one for ever.
    """
    threads = multiprocessing.pool.ThreadPool(len(functions))
    try:
        results = dict(threads.imap_unordered(lambda i: (i, functions[i]()), range(len(functions))))
    finally:
        threads.close()
    return [results[i] for i in range(len(functions))]


def steady(session, op):
    """Returns a function that runs `op` in a session, again if TensorFlow loses the run.

    TensorFlow 2.21 draws the number of each run from 2 ** 32, and a task refuses a run whose number
    is that of one of its last 100,000. Then the run fails, or stands still because another task
    waits for the one that refused. In 256,000 runs this happened four times; without this function,
    all that wait for this worker would stand still, too. `tf.train.MonitoredSession` recovers from
    such failures by itself.
    """
    run = session.make_callable(op)

    def run_until_taken():
        while True:
            try:
                return run()
            except (tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
                print(f'TensorFlow lost a run ({type(error).__name__}): it is made again')

    return run_until_taken


def colour_of(task):
    """Returns the colour of a task such as 'worker 0'."""
    job, _, index = task.partition(' ')
    colours = _PALETTE.get(job, _PALETTE['local'])
    return colours[int(index or 0) % len(colours)]


# --- Traces -------------------------------------------------------------------

trace = traffic.whole_trace


def sent(metadata):
    """Returns what travelled between tasks in a traced run, largest first.

    Returns:
      List of `traffic.Transfer`, without those that only signal that something is done.
    """
    found = [one._replace(tensor=re.sub(r'^edge_\d+_', '', one.tensor))
             for one in traffic.transfers(metadata) if one.bytes]
    return sorted(found, key=lambda one: -one.bytes)


def nodes_of(metadata):
    """Returns a list of `Node`: the operations of a traced run, without the sends and receives."""
    nodes, behind = {}, {}
    partitions = [node for partition in metadata.partition_graphs for node in partition.node]
    for node in partitions:
        if node.op in ('_Send', '_HostSend'):
            behind[node.attr['tensor_name'].s] = node.input[0]
    received = {node.name: behind.get(node.attr['tensor_name'].s) for node in partitions
                if node.op in ('_Recv', '_HostRecv')}

    def producer(name):
        name = name.lstrip('^').split(':')[0]
        while name in received:
            name = (received[name] or '').lstrip('^').split(':')[0]
        return name

    for node in partitions:
        if not node.name.startswith('_') and node.op not in ('_Send', '_Recv', '_HostSend',
                                                             '_HostRecv'):
            nodes[node.name] = Node(node.name, node.op, task_of(node.device),
                                    [producer(name) for name in node.input])
    return [node._replace(inputs=[name for name in node.inputs if name in nodes])
            for node in nodes.values()]


# --- Pictures -----------------------------------------------------------------


def draw_graph(nodes, hide=BOOKKEEPING, title='', axes=None):
    """Draws operations, a column for each task, inputs at the top; bold arrows cross the network.

    Args:
      nodes: list of `Node`, from `nodes_of`.
      hide: types of operations to leave out; arrows then connect what is before and after them.
      title: string.
      axes: `matplotlib.axes.Axes` to draw on; by default, those of a new figure.
    """
    by_name = {node.name: node for node in nodes}

    def visible_inputs(node):
        for name in node.inputs:
            if by_name[name].op in hide:
                yield from visible_inputs(by_name[name])
            else:
                yield name

    shown = {node.name: node for node in nodes if node.op not in hide}
    inputs = {name: sorted(set(visible_inputs(node))) for name, node in shown.items()}

    @functools.lru_cache(maxsize=None)
    def depth(name):
        return 1 + max(map(depth, inputs[name]), default=-1)

    deepest = max(map(depth, shown))
    rows = collections.defaultdict(list)  # by task and depth
    for name in sorted(shown, key=depth):
        rows[shown[name].task, depth(name)].append(name)
    tasks = sorted({node.task for node in shown.values()})
    widths = {task: max(len(row) for (of, _), row in rows.items() if of == task) for task in tasks}
    left, place = {}, {}
    for task in tasks:
        left[task] = sum(widths[before] + 0.4 for before in left)
        for (of, level), row in rows.items():
            for i, name in enumerate(row if of == task else ()):
                place[name] = left[task] + (i + 0.5) * widths[task] / len(row), -level
    total = sum(widths.values()) + 0.4 * (len(tasks) - 1)
    if axes is None:
        _, axes = plt.subplots(figsize=(min(2.1 * total, 12), 0.75 * (deepest + 2)))
    for task in tasks:
        axes.axvspan(left[task] - 0.1, left[task] + widths[task] + 0.1, color=colour_of(task),
                     alpha=0.12, lw=0)
        axes.text(left[task] + widths[task] / 2, 0.75, task, ha='center', weight='bold',
                  color=colour_of(task))
    axes.set(xlim=(-0.2, total + 0.2), ylim=(-deepest - 0.6, 1.2), title=title)
    axes.axis('off')
    boxes = {name: _box(axes, place[name], f'{name.split("/")[-1]}\n{node.op}',
                        colour_of(node.task), 7.5) for name, node in shown.items()}
    arrows = []
    for name, node in shown.items():
        for source in inputs[name]:
            crosses = shown[source].task != node.task
            arrows.append((boxes[source], boxes[name],
                           {'color': colour_of(shown[source].task), 'lw': 2.2} if crosses else {}))
    _arrows(axes, arrows)


def _box(axes, place, text, colour, size=9, **kwargs):
    """Draws a text in a box; returns it."""
    return axes.text(*place, text, ha='center', va='center', color='white', fontsize=size,
                     zorder=3, linespacing=1.1,
                     bbox={'boxstyle': 'round', 'fc': colour, 'ec': 'none'}, **kwargs)


def _arrows(axes, arrows):
    """Draws arrows from box to box, given as (from, to, style)."""
    axes.figure.canvas.draw()  # before that it is not known where the boxes end
    for source, target, style in arrows:
        # Drawn after the boxes, because the layout may still move their ends.
        axes.annotate('', target.get_position(), source.get_position(), zorder=4, arrowprops={
            'arrowstyle': '-|>', 'patchA': source.get_bbox_patch(), 'shrinkA': 0, 'shrinkB': 1,
            'patchB': target.get_bbox_patch(), 'color': '#888888', 'lw': 0.8, **style})


def draw_timeline(metadata, at_least_ms=0.05):
    """Draws when and where each operation of a traced run worked, if for at least so long."""
    bars = [(task_of(one.device), one.begin, one.end - one.begin, one.name, None)
            for one in traffic.work(metadata)]
    bars += [(one.receiver, one.begin, one.end - one.begin, '', '////')
             for one in traffic.transfers(metadata)]
    bars = [bar for bar in bars if bar[2] >= at_least_ms]
    origin = min(begin for _, begin, *_ in bars)
    whole = max(begin + length for _, begin, length, *_ in bars) - origin
    tasks = sorted({bar[0] for bar in bars}, reverse=True)
    _, axes = plt.subplots(figsize=(9, 0.8 * len(tasks) + 1))
    for task, begin, length, label, hatch in sorted(bars, key=lambda bar: bar[:2]):
        row = tasks.index(task)
        axes.broken_barh([(begin - origin, length)],
                         (row - 0.42, 0.3) if hatch else (row - 0.1, 0.5),
                         facecolor='white' if hatch else colour_of(task), hatch=hatch,
                         edgecolor=colour_of(task) if hatch else 'white')
        if length > whole / 12:
            axes.text(begin - origin + length / 2, row + 0.15, label, ha='center', va='center',
                      fontsize=8, color='white')
    axes.set(yticks=range(len(tasks)), yticklabels=tasks, xlabel='milliseconds since the first')
    axes.legend(handles=[Patch(fc='#666666', label='computes'),
                         Patch(fc='white', ec='#666666', hatch='////', label='receives')],
                ncol=2, loc='lower left', bbox_to_anchor=(0, 1), frameon=False)


def draw_cluster(spec, client):
    """Draws a `tf.train.ClusterSpec`, and a client with a session on a task such as 'worker 0'."""
    tasks = [f'{job} {i}' for job in sorted(spec.jobs) for i in range(spec.num_tasks(job))]
    _, axes = plt.subplots(figsize=(9, 3.4))
    axes.set(xlim=(-0.6, len(tasks) - 0.4), ylim=(-0.5, 3.9))
    axes.axis('off')
    masters, workers = [], []
    for i, task in enumerate(tasks):
        job, index = task.split()
        axes.axvspan(i - 0.44, i + 0.44, ymax=0.72, color=colour_of(task), alpha=0.12, lw=0)
        axes.text(i, 0, f'server of {task}\n{spec.task_address(job, int(index))}', ha='center',
                  va='center', weight='bold', color=colour_of(task), fontsize=9)
        workers.append(_box(axes, (i, 1), 'worker service', colour_of(task)))
        masters.append(_box(axes, (i, 2), 'master service', colour_of(task),
                            alpha=1 if task == client else 0.35))
    chosen = tasks.index(client)
    program = _box(axes, (chosen, 3.4), 'client: your program, tf.Session', '#444444')
    axes.text(chosen + 0.04, 2.85, 'graph, feeds; fetches', fontsize=8.5)
    dark = {'color': '#444444', 'lw': 1.2}
    _arrows(axes, [(program, masters[chosen], dark)]
            + [(masters[chosen], worker, dark) for worker in workers]
            + [(one, other, {'arrowstyle': '<|-|>', **dark})
               for one, other in zip(workers, workers[1:])])


# --- Processes of their own --------------------------------------------------

_SERVER = """
import sys
sys.path.insert(0, {folder!r})
from basics import tf
tf.train.Server({cluster!r}, {job!r}, {index})
sys.stdin.read()  # until the notebook, which has the other end, is gone
"""


@contextlib.contextmanager
def server_process(spec, job, index):
    """Runs a server of a `tf.train.ClusterSpec` in a process of its own; kills it after the block.

    Yields:
      A `subprocess.Popen`.
    """
    code = _SERVER.format(folder=os.path.dirname(os.path.abspath(__file__)), cluster=spec.as_dict(),
                          job=job, index=index)
    with subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE,
                          env=_as_a_user_has_it()) as process:
        try:
            yield process
        finally:
            process.kill()


def _as_a_user_has_it():
    """Returns the environment without the log level, which the library has set for this process."""
    return {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}


class _Program(subprocess.Popen):
    """A Python program under way, whose lines are printed here as they come."""

    def __init__(self, path, flags, cwd):
        super().__init__([sys.executable, os.path.abspath(path), *flags], cwd=cwd,
                         env=_as_a_user_has_it(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         universal_newlines=True)
        self._lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.stdout:
            self._lines.append(line)
            print(line, end='')

    def says(self, words):
        """Returns whether it has printed `words`, a string, in one line."""
        return any(words in line for line in self._lines)

    def wait(self, timeout=None):
        """See `subprocess.Popen`; all of its lines are printed then."""
        status = super().wait(timeout)
        self._reader.join(timeout)
        return status


@contextlib.contextmanager
def program(path, *flags, cwd=None):
    """Runs a Python program in a process of its own; kills it after the block.

    Args:
      path: string, the program.
      *flags: strings, its flags.
      cwd: string, the directory to run it in; by default this one.

    Yields:
      A `subprocess.Popen` with a further method, `says(words)`.
    """
    process = _Program(path, flags, cwd)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(condition, patience_secs=60, complaint='what this cell waits for has not come'):
    """Waits until a function returns something true.

    Raises:
      TimeoutError: with the complaint, after `patience_secs`.
    """
    deadline = time.monotonic() + patience_secs
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.05)


def show_log(hide, skip='^$'):
    """Prints what TensorFlow logs, such as the lines of hooks; long lines are cut short.

    Args:
      hide: string to leave out of the lines: the name of a directory.
      skip: regular expression; lines that contain a match are not printed.
    """

    class Printer(logging.Handler):
        def emit(self, record):
            text = record.getMessage().replace(hide, '')
            # Warnings are about what a version deprecates, not about what the user does.
            if record.levelno == logging.INFO and not re.search(skip, text):
                print('log:', textwrap.shorten(text, 130))

    logger = logging.getLogger('tensorflow')
    logger.handlers, logger.propagate = [Printer()], False
    tf.logging.set_verbosity(tf.logging.INFO)


# --- Notebooks that are one cluster -------------------------------------------


def meet(job, index, path='cluster.json'):
    """Agrees with other notebooks of this folder on the addresses of a cluster.

    The first one to call this writes them into a file, where the others find them. A file that an
    earlier run has left is replaced: one that has this task already, or a process that has ended.

    Returns:
      A `tf.train.ClusterSpec` of one ps and two workers.
    """
    me = f'{job} {index}'
    with open(path, 'a+', encoding='utf-8') as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        found = json.loads(file.read() or '{}')
        here = found.get('processes', {})
        if not here or me in here or not all(map(psutil.pid_exists, here.values())):
            ps, *workers = [f'localhost:{port}' for port in free_ports(3)]
            found, here = {'cluster': {'ps': [ps], 'worker': workers}}, {}
        found['processes'] = dict(here, **{me: os.getpid()})
        file.seek(0)
        file.truncate()
        json.dump(found, file, indent=2)
    return tf.train.ClusterSpec(found['cluster'])


def wait_for(address, hint, patience_secs=600):
    """Waits as `until` until something listens at a host:port; prints `hint` if that takes time."""
    host, port = address.split(':')

    def listens():
        with socket.socket() as probe:
            return not probe.connect_ex((host, int(port)))

    if not listens():
        print(hint)
        until(listens, patience_secs, f'nothing listens at {address}: {hint}')
