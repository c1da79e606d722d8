"""Finds what each task keeps, what a run sends from task to task, and what ran when."""

import collections
import re
import threading

from tfdist.scheme import transfer
from tfdist.start.quiet import tf

# With the graphs of the tasks, from which `is_whole` knows what a trace should contain.
TRACE = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
_TRACING = threading.Lock()  # TensorFlow 2.21 traces one run of a process at a time
_TASK = re.compile(r'/job:(\w+)(?:/replica:\d+)?/task:(\d+)')
_TRANSFER = re.compile(r'.* (\S+) from (\S+) to (\S+)')
_RECEIVED = 'RecvTensor'  # the name of a transfer in a trace
# Of an operation that sends past TensorFlow's servers, which leave no transfer in a trace.
_PAST_SERVERS = re.compile(r'(?:.*/)?sends_(\d+)_bytes_to_([a-z]+)_(\d+)(?:_\d+)?')
_OP = re.compile(r' = (\w+)\(')  # in the label of an operation: 'x = MatMul(a, b)'
# Runs to try for a whole trace. Every second trace is whole, even on a busy machine.
_MOST_RUNS = 1000

# A transfer: the `tensor`'s name, `bytes` (0 for a mere signal), its `sender` and `receiver`, such
# as 'ps 0' and 'worker 1', and its `begin` and `end`, in milliseconds of the clock of the task that
# noted it: as a rule the receiver.
Transfer = collections.namedtuple('Transfer', 'tensor bytes sender receiver begin end noted_by')
# An operation that ran: its `device` and `name`; its `begin` and `end`, in milliseconds; its type
# `op`, such as 'MatMul'; and the `bytes` of its results, as far as they are noted.
Work = collections.namedtuple('Work', 'device name begin end op bytes', defaults=('', 0))


def task_of(device):
    """Returns the task of a device, such as 'worker 0'; 'local' if its name contains none."""
    found = _TASK.search(device)
    return ' '.join(found.groups()) if found else 'local'


def kept(job, task, variables):
    """Returns in words which of the variables a task keeps, and their bytes."""
    here = [v for v in variables if task_of(v.device) == f'{job} {task}']
    names = ', '.join(f'{v.op.name} {v.shape.as_list()}' for v in here) or 'nothing'
    return f'{job} {task} keeps {transfer.size_of(here):,} B: {names}'


def name_of_sender(size, receiver):
    """Returns the name for an operation that sends `size` bytes to a task past the servers.

    By its name `transfers` finds it in a trace. The `receiver` is a task, such as 'worker 1'.
    """
    return f'sends_{size}_bytes_to_{receiver.replace(" ", "_")}'


class Sent(collections.namedtuple('Sent', 'bytes tensors')):
    """The bytes, and the number of tensors, that one run sends from one task to another."""

    def __str__(self):
        return f'{self.bytes:,} B in {self.tensors} tensor{"s" * (self.tensors != 1)}'


def trace(session, train_op, progress, local_steps=1):
    """Trains with traces until one is whole, for at most twenty runs, or as many as are left.

    Args:
      session: `tf.Session`.
      train_op: dict of tensors.
      progress: `report.Progress` that gets the results.
      local_steps: int, the number of local steps in a run of `train_op`.

    Returns:
      List of `tf.RunMetadata`, for `between_tasks`.
    """
    traces = []
    while len(traces) < 20 and progress.goes_on() and not (
            traces and is_whole(traces[-1])):
        traces.append(tf.RunMetadata())
        progress.add(session.run(train_op, options=TRACE, run_metadata=traces[-1]), local_steps)
    return traces


def traced_run(session, fetches, options=TRACE):
    """Runs `fetches` in a `tf.Session` with a trace, one of a process after the other.

    Returns:
      The values, and `tf.RunMetadata`.
    """
    metadata = tf.RunMetadata()
    with _TRACING:
        return session.run(fetches, options=options, run_metadata=metadata), metadata


def whole_trace(session, fetches):
    """Runs `fetches` in a `tf.Session` with traces until one is whole; returns `tf.RunMetadata`.

    Raises:
      RuntimeError: if none of very many traces is whole.
    """
    for _ in range(_MOST_RUNS):
        metadata = tf.RunMetadata()
        session.run(fetches, options=TRACE, run_metadata=metadata)
        if is_whole(metadata):
            return metadata
    raise RuntimeError(f'none of {_MOST_RUNS} traces has all transfers')


def is_whole(trace):
    """Returns whether a trace, a `tf.RunMetadata` of a run with the options TRACE, is complete.

    TensorFlow tells the other tasks to trace, but does not wait until they do, so that their first
    transfers may be missing. But their graphs list all that they receive.
    """
    noted = {(one.tensor, one.sender, one.receiver) for one in transfers(trace)}
    for graph in trace.partition_graphs:
        for node in graph.node:
            if node.op in ('_Recv', '_HostRecv'):
                tensor, sender, receiver = (node.attr[name].s.decode() for name in (
                    'tensor_name', 'send_device', 'recv_device'))
                way = task_of(sender), task_of(receiver)
                if way[0] != way[1] and (tensor, *way) not in noted:
                    return False
    return True


def between_tasks(traces):
    """Counts what one run sends.

    Args:
      traces: list of `tf.RunMetadata` of runs of the same ops with the options TRACE. The largest
        figure counts: incomplete traces have too little, and none has too much.

    Returns:
      Dict of `Sent` by (sender, receiver), such as ('ps 0', 'worker 1'), zero by default. Signals
      without data do not count.
    """
    most = collections.defaultdict(lambda: Sent(0, 0))
    for trace in traces:
        sizes = collections.defaultdict(list)
        for one in transfers(trace):
            if one.bytes:
                sizes[one.sender, one.receiver].append(one.bytes)
        for way, each in sizes.items():
            most[way] = max(most[way], Sent(sum(each), len(each)))
    return most


def transfers(trace):
    """Returns a list of `Transfer`, between the tasks of a traced run, a `tf.RunMetadata`."""
    found = []
    for device, node, begin, end in _noted(trace):
        if node.node_name == _RECEIVED:
            tensor, sender, receiver = _TRANSFER.fullmatch(node.timeline_label).groups()
            found.append(Transfer(tensor, _bytes(node), task_of(sender), task_of(receiver), begin,
                                  end, task_of(receiver)))
            continue
        past = _PAST_SERVERS.fullmatch(_name(node))
        if past:
            found.append(Transfer(_name(node), int(past[1]), task_of(device),
                                  f'{past[2]} {past[3]}', begin, end, task_of(device)))
    return found


def work(trace):
    """Returns a list of `Work`, the operations of a traced run, without the transfers.

    Takes a `tf.RunMetadata`. To it, an operation that waits, as for the next batch, is at work.
    """
    return [Work(device, _name(node), begin, end, _op(node), _bytes(node))
            for device, node, begin, end in _noted(trace)
            if node.node_name != _RECEIVED and not node.node_name.startswith('_')
            and not _PAST_SERVERS.fullmatch(_name(node))]


def _name(node):
    """Returns the name of the operation of an entry of a trace, without the number of a result."""
    return node.node_name.split(':')[0]


def _op(node):
    """Returns the type of the operation of an entry of a trace; the empty string if not noted."""
    found = _OP.search(node.timeline_label)
    return found.group(1) if found else ''


def _bytes(node):
    """Returns the bytes of the results of an entry of a trace."""
    return sum(output.tensor_description.allocation_description.requested_bytes
               for output in node.output)


def _noted(trace):
    """Yields the device of each entry of a trace, the entry, and its begin and end in ms."""
    for device in trace.step_stats.dev_stats:
        if device.device.startswith('/job:'):  # others repeat the same entries
            for node in device.node_stats:
                begin = node.all_start_micros / 1e3
                yield device.device, node, begin, begin + node.all_end_rel_micros / 1e3
