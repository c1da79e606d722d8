"""Sorts what a traced run did into lanes: computing, reading, transfers, waiting and updates."""

import collections
import re

from tfdist.training import traffic

# In the order in which a moment counts if several are under way: work hides what waits for it.
KINDS = 'computes', 'reads', 'updates', 'transfers', 'waits'

# What happened in a run: on which `task`, see `of`; its `kind`; the `name` of the operation, or of
# the tensor that travels; its `begin` and `end`, in milliseconds of the clock of the task that
# noted it, `clock`; and of a transfer, the `bytes` and the `sender`.
Event = collections.namedtuple('Event', 'task kind name begin end clock bytes sender')

ALONE = 'this process'  # the task, if there is no cluster
_WAITED_MS = 0.1  # what is shorter is the call itself

# By the type of an operation. What none of these matches computes.
_READS = re.compile(r'ReadVariable|IteratorGetNext|(Resource)?Gather|LookupTableFind|VariableV2')
_UPDATES = re.compile(r'(Resource)?(Sparse)?(Apply|Accumulator(Apply|Set))|Assign|'
                      r'(Resource)?(CountUpTo|Scatter)|LookupTable(Insert|Import)')
_WAITS = re.compile(r'Queue(Dequeue|Enqueue)|(Resource|Sparse)?AccumulatorTake|Barrier')
_EXCHANGES = re.compile(r'Collective')
# These name what others work on, and take no time themselves.
_NOTHING = re.compile(r'(Const|NoOp|VarHandleOp|Placeholder\w*|Iterator(V2)?|OneShotIterator|'
                      r'AnonymousIterator\w*|\w*HashTable(V2)?|\w*Queue(V2)?|\w*Accumulator|'
                      r'_(Host)?(Send|Recv)|_Arg|_Retval)?')


def of(trace, task, waited=(0, 0)):
    """Returns what a traced run did, a list of `Event` in the order of their beginnings.

    An operation is on the task on which it runs, and a transfer on the task that receives it. But
    to wait in a queue that lies on another task is what the task does that asked for the run.

    Args:
      trace: `tf.RunMetadata` of a run with a full trace.
      task: string, the task that asked for the run, such as 'worker 0'.
      waited: pair of floats, from when to when it waited before the run, in milliseconds.
    """
    found = []
    if waited[1] - waited[0] > _WAITED_MS:
        found.append(Event(task, 'waits', 'until it may begin', *waited, task, 0, ''))
    for one in traffic.transfers(trace):
        name = re.sub(r'^edge_\d+_', '', one.tensor)
        # Past the servers it is the sender who notes it, and receives in the same call.
        sender = one.sender if one.noted_by == one.receiver else ''
        found.append(Event(one.noted_by, 'transfers', name, one.begin, one.end, one.noted_by,
                           one.bytes, sender))
    for one in traffic.work(trace):
        kind = _kind_of(one)
        if kind and one.end > one.begin:
            where = task_of(one.device)
            found.append(Event(task if kind == 'waits' else where, kind, one.name, one.begin,
                               one.end, where, one.bytes if kind == 'transfers' else 0, ''))
    return sorted(found, key=lambda event: event.begin)


def task_of(device):
    """Returns the task of a device, such as 'worker 0'; without a cluster it is `ALONE`."""
    task = traffic.task_of(device)
    return ALONE if task in ('local', 'localhost 0') else task


def _kind_of(work):
    """Returns the kind of a `traffic.Work`; None for what only names what others work on."""
    if _NOTHING.fullmatch(work.op):
        return None
    if _EXCHANGES.match(work.op):
        return 'transfers'
    for kind, form in ('reads', _READS), ('updates', _UPDATES), ('waits', _WAITS):
        if form.match(work.op):
            return kind
    return 'computes'


def shares(events):
    """Returns the milliseconds of a run by kind: a moment counts for the first of KINDS under way.

    Args:
      events: list of `Event` of one run.

    Returns:
      dict of floats by kind, and by 'between', when nothing was under way: what TensorFlow's
      runtime took to get from one to the next. Together they are the run, from its first event to
      its last one.
    """
    edges = sorted([(event.begin, 1, event.kind) for event in events]
                   + [(event.end, -1, event.kind) for event in events])
    under_way, lengths = collections.Counter(), dict.fromkeys([*KINDS, 'between'], 0.)
    last = edges[0][0] if edges else 0
    for when, change, kind in edges:
        first = next((each for each in KINDS if under_way[each]), 'between')
        lengths[first] += when - last
        under_way[kind] += change
        last = when
    return lengths
