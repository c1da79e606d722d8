"""What each task keeps, what a run of the graph sends from task to task, and what ran when."""

import collections
import re

from tfdist.quiet import tf

# With the graphs of the tasks: they say what a trace should have, see `is_whole`.
TRACE = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
_TASK = re.compile(r'/job:(\w+)(?:/replica:\d+)?/task:(\d+)')
_TRANSFER = re.compile(r'.* (\S+) from (\S+) to (\S+)')
_RECEIVED = 'RecvTensor'  # what a trace calls a transfer
# A run whose trace is not whole is made again. Every second one is, even on a busy machine.
_MOST_RUNS = 1000

# What one transfer brought: the `tensor`'s name, `bytes` (0 for a mere signal), from which task to
# which, such as 'ps 0' and 'worker 1', and from when to when, in milliseconds of the clock.
Transfer = collections.namedtuple('Transfer', 'tensor bytes sender receiver begin end')
# An operation that ran: on which `device`, its `name`, and from when to when, in milliseconds.
Work = collections.namedtuple('Work', 'device name begin end')


def task_of(device):
    """Returns the task of a device, such as 'worker 0'; 'local' if its name has none."""
    found = _TASK.search(device)
    return ' '.join(found.groups()) if found else 'local'


def kept(job, task, variables):
    """Returns in words which of the variables a task keeps, and how many bytes that makes."""
    here = [v for v in variables if task_of(v.device) == f'{job} {task}']
    size = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in here)
    names = ', '.join(f'{v.op.name} {v.shape.as_list()}' for v in here) or 'nothing'
    return f'{job} {task} keeps {size:,} B: {names}'


class Sent(collections.namedtuple('Sent', 'bytes tensors')):
    """What one run sends on one way: how many bytes, in how many tensors."""

    def __str__(self):
        return f'{self.bytes:,} B in {self.tensors} tensor{"s" * (self.tensors != 1)}'


def trace(session, train_op, progress, train_steps, local_steps=1):
    """Trains with a trace until one is whole: at most twenty steps, or as many as are left.

    Args:
      session: `tf.Session`.
      train_op: dict of tensors.
      progress: `report.Progress`, gets the results.
      train_steps: int, the global step at which to stop.
      local_steps: int, how many a run of `train_op` makes.

    Returns:
      List of `tf.RunMetadata`, for `between_tasks`.
    """
    traces = []
    while len(traces) < 20 and progress.global_step < train_steps and not (
            traces and is_whole(traces[-1])):
        traces.append(tf.RunMetadata())
        progress.add(session.run(train_op, options=TRACE, run_metadata=traces[-1]), local_steps)
    return traces


def whole_trace(session, fetches):
    """Runs `fetches` in a `tf.Session` with a trace, again and again until it is whole.

    Returns:
      `tf.RunMetadata`, of the last run.

    Raises:
      RuntimeError: if none of very many traces was whole.
    """
    for _ in range(_MOST_RUNS):
        metadata = tf.RunMetadata()
        session.run(fetches, options=TRACE, run_metadata=metadata)
        if is_whole(metadata):
            return metadata
    raise RuntimeError(f'none of {_MOST_RUNS} traces has all transfers')


def is_whole(trace):
    """Returns whether a trace has all transfers.

    Takes a `tf.RunMetadata`, filled by a run with the options TRACE. TensorFlow tells the other
    tasks to take notes, and does not wait until they heard it: what they ask for before that is not
    in the trace. But their graphs say what they receive.
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
      traces: list of `tf.RunMetadata`, filled by runs of the same ops with the options TRACE. The
        most of them counts: a trace that is not whole has too little, and none has too much.

    Returns:
      Dict of Sent by (sender, receiver), such as ('ps 0', 'worker 1'), 0 if there is nothing.
      Signals without data do not count.
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
    """Returns a list of Transfer: what a traced run, a `tf.RunMetadata`, sent between tasks."""
    found = []
    for _, node, begin, end in _noted(trace):
        if node.node_name == _RECEIVED:
            tensor, sender, receiver = _TRANSFER.fullmatch(node.timeline_label).groups()
            size = sum(output.tensor_description.allocation_description.requested_bytes
                       for output in node.output)
            found.append(Transfer(tensor, size, task_of(sender), task_of(receiver), begin, end))
    return found


def work(trace):
    """Returns a list of Work: which operations a traced run ran where, and when.

    Takes a `tf.RunMetadata`. Those that move tensors are not among them, see `transfers`. An
    operation that waits, as for the next batch, is at work in the eyes of the trace.
    """
    return [Work(device, node.node_name.split(':')[0], begin, end)
            for device, node, begin, end in _noted(trace)
            if node.node_name != _RECEIVED and not node.node_name.startswith('_')]


def _noted(trace):
    """Yields a device, what a trace noted of it, and its begin and end in milliseconds."""
    for device in trace.step_stats.dev_stats:
        if device.device.startswith('/job:'):  # else it is a second account of the same
            for node in device.node_stats:
                begin = node.all_start_micros / 1e3
                yield device.device, node, begin, begin + node.all_end_rel_micros / 1e3
