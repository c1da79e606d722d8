"""What each task keeps, and what a run of the graph sends from task to task."""

import collections
import re

from tfdist.quiet import tf

TRACE = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
_TRANSFER = re.compile(r'.* from /job:(\w+)/replica:0/task:(\d+)/'
                       r'.* to /job:(\w+)/replica:0/task:(\d+)/')


def kept(job, task, variables):
    """Returns in words which of the variables a task keeps, and how many bytes that makes."""
    devices = [tf.DeviceSpec.from_string(v.device) for v in variables]
    here = [v for v, device in zip(variables, devices) if (device.job, device.task) == (job, task)]
    size = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in here)
    names = ', '.join(f'{v.op.name} {v.shape.as_list()}' for v in here) or 'nothing'
    return f'{job} {task} keeps {size:,} B: {names}'


class Sent(collections.namedtuple('Sent', 'bytes tensors')):
    """What one run sends on one way: how many bytes, in how many tensors."""

    def __str__(self):
        return f'{self.bytes:,} B in {self.tensors} tensor{"s" * (self.tensors != 1)}'


def trace(session, train_op, progress, train_steps, local_steps=1):
    """Trains five steps with a trace, or as many as are left.

    Args:
      session: `tf.Session`.
      train_op: dict of tensors.
      progress: `console.Progress`, gets the results.
      train_steps: int, the global step at which to stop.
      local_steps: int, how many a run of `train_op` makes.

    Returns:
      List of `tf.RunMetadata`, for `between_tasks`.
    """
    traces = []
    while len(traces) < 5 and progress.global_step < train_steps:
        traces.append(tf.RunMetadata())
        progress.add(session.run(train_op, options=TRACE, run_metadata=traces[-1]), local_steps)
    return traces


def between_tasks(traces):
    """Counts what one run sends.

    Args:
      traces: list of `tf.RunMetadata`, filled by runs of the same ops with the options TRACE. A
        trace never has too much, but is now and then closed before the last transfer is noted: so
        take some, the most of them counts.

    Returns:
      Dict of Sent by (sender, receiver), such as ('ps 0', 'worker 1'), 0 if there is nothing.
      Signals without data do not count.
    """
    most = collections.defaultdict(lambda: Sent(0, 0))
    for trace in traces:
        for way, sizes in transfers(trace).items():
            most[way] = max(most[way], Sent(sum(sizes), len(sizes)))
    return most


def transfers(trace):
    """Returns what a traced run sent: lists of the bytes of each tensor, by (sender, receiver).

    Args:
      trace: `tf.RunMetadata`, filled by a run with the options TRACE.

    Returns:
      Dict of lists of ints by pairs such as ('ps 0', 'worker 1'). No signals without data.
    """
    sizes = collections.defaultdict(list)
    for device in trace.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name == 'RecvTensor':
                job, task, to_job, to_task = _TRANSFER.match(node.timeline_label).groups()
                size = sum(output.tensor_description.allocation_description.requested_bytes
                           for output in node.output)
                if size:
                    sizes[f'{job} {task}', f'{to_job} {to_task}'].append(size)
    return sizes
