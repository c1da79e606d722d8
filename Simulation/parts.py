"""Runs parts of a graph alone: tensors that are fetched together, and what has to be fed."""

import collections
import os
import threading

import numpy as np
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tfdist.scheme import graphs
from tfdist.start.quiet import tf

_READ, _ASSIGN = 'ReadVariableOp', 'AssignVariableOp'
_READING = _READ, 'ResourceGather', 'ResourceGatherNd'
_LOCKS = 'MutexV2', 'MutexLock', 'ConsumeMutexLock'
# Of `RunOptions.inter_op_thread_pool`: the ops run in the calling thread. No other one has to wake
# up, and they run in one order: on this depends in which order AddN sums up. But they nest, so that
# very many would overflow the stack.
_HERE = -1
_FEW = 1000  # ops
_THREAD = threading.local()  # its attribute `number`, see `in_thread`


def new_session(graph):
    """Returns a `tf.Session` for parts of a `tf.Graph`.

    It has a pool of a single thread for each processor, for large parts: see `_HERE`.
    """
    config = tf.ConfigProto(intra_op_parallelism_threads=1)
    # What waits for a copy of a tensor is not to wait for what makes it: the tensor may be fed.
    config.graph_options.rewrite_options.dependency_optimization = (
        rewriter_config_pb2.RewriterConfig.OFF)
    for _ in range(os.cpu_count()):
        config.session_inter_op_thread_pool.add(num_threads=1)
    return tf.Session(graph=graph, config=config)


def in_thread(number):
    """Has the calling thread use a thread of its own in sessions; `number` is an int, from 1 on."""
    _THREAD.number = number % os.cpu_count()


class Part:
    """Tensors that one run fetches, as fast as a session can.

    Threads may run it at the same time.

    Attributes:
      feeds: list of the tensors to be fed: those of `may_be_fed` that the fetches depend on.
      ops: set of the ops that run.
    """

    def __init__(self, session, fetches, may_be_fed=(), places=None):
        """Takes the parts.

        Args:
          session: `tf.Session` of `new_session`.
          fetches: list of tensors and ops to fetch.
          may_be_fed: list of tensors that may be fed.
          places: dict of ints by op, the handle of a variable: see `run_for`.
        """
        fetches = [session.graph.as_graph_element(fetch) for fetch in fetches]
        self.ops, self.feeds, reads, assigned = planned(fetches, may_be_fed, places or {})
        self._reads = [(tensor.name, place) for tensor, place in reads]
        self._assigned = [place for _, place in assigned]
        given = self.feeds + [tensor for tensor, _ in reads]
        self._session, self._options = session, config_pb2.CallableOptions()
        self._options.feed.extend(tensor.name for tensor in given)
        self._options.fetch.extend(fetch.name for fetch in fetches if isinstance(fetch, tf.Tensor))
        self._options.fetch.extend(tensor.name for tensor, _ in assigned)
        self._options.target.extend(
            fetch.name for fetch in fetches if isinstance(fetch, tf.Operation))
        self._given = [(tensor.name, tensor.dtype.as_numpy_dtype) for tensor in given]
        self._here = len(self.ops) <= _FEW
        self._runs = {0: self._callable(_HERE if self._here else 0)}

    def _callable(self, pool):
        """Returns a function that runs the part in one of the session's pools of threads."""
        options = config_pb2.CallableOptions()
        options.CopyFrom(self._options)
        options.run_options.inter_op_thread_pool = pool
        # `Session.make_callable` takes twice as long where something is fed.
        return self._session._make_callable_from_options(options)

    def __call__(self, values):
        """Returns the list of values; `values` has those to be fed, by the tensors' names."""
        number = 0 if self._here else getattr(_THREAD, 'number', 0)
        if number not in self._runs:
            self._runs[number] = self._callable(number)
        return self._runs[number](*[np.asarray(values[name], dtype) for name, dtype in self._given])

    def run_for(self, values, kept):
        """Runs the part with a worker's values in place of those of variables.

        Args:
          values: dict of what is to be fed, to which the values that are read are added.
          kept: list of arrays by place.

        Returns:
          The list of results, and the list of arrays by place after the run.
        """
        for name, place in self._reads:
            values[name] = kept[place]
        results = self(values)
        if self._assigned:
            kept = list(kept)
            for place, value in zip(self._assigned, results[-len(self._assigned):]):
                kept[place] = value
            results = results[:-len(self._assigned)]
        return results, kept


def needed(fetches, may_be_fed):
    """Returns the set of ops that run to fetch a list, and those of the `may_be_fed` to feed."""
    may_be_fed = collections.OrderedDict((tensor.name, tensor) for tensor in may_be_fed)
    ops, used = _ancestors(fetches, set(may_be_fed))
    return ops, [tensor for name, tensor in may_be_fed.items() if name in used]


def planned(fetches, may_be_fed, places):
    """Returns what a `Part` of these arguments does.

    Returns:
      The set of ops that run; the list of tensors of `may_be_fed` that are fed; and two lists of
      pairs of a tensor and the place of a variable: those that are fed in place of reading them,
      and those that are assigned.
    """
    ops, feeds = needed(fetches, may_be_fed)
    reads, assigned = uses(ops, places)
    if reads:
        ops, _ = needed(fetches, [*feeds, *(tensor for tensor, _ in reads)])
    return ops, feeds, reads, assigned


def uses(ops, places):
    """Finds where ops read variables and assign to them.

    Args:
      ops: collection of ops.
      places: dict of ints by op, the handle of a variable.

    Returns:
      List of pairs of a tensor that is read, and the variable's place; and of pairs of a tensor
      that is assigned, and the place.
    """
    users = sorted((op for op in ops if op.inputs and op.inputs[0].op in places),
                   key=lambda op: op.name)
    return ([(op.outputs[0], places[op.inputs[0].op]) for op in users if op.type == _READ],
            [(op.inputs[1], places[op.inputs[0].op]) for op in users if op.type == _ASSIGN])


def only_reads_and_assigns(fetches, may_be_fed, places):
    """Returns whether a run reads variables, and then assigns to them at most once each.

    So what is read can be fed, and what is assigned can be fetched. The arguments are those of
    `Part`.
    """
    ops, feeds = needed(fetches, may_be_fed)
    users = {op for op in ops if any(tensor.op in places for tensor in op.inputs)}
    reads, assigned = uses(ops, places)
    before, _ = needed([tensor for tensor, _ in reads], may_be_fed)
    given = {tensor.name for tensor in [*feeds, *(tensor for tensor, _ in reads)]}
    fetched = [*fetches, *(tensor for tensor, _ in assigned)]
    return (all(op.type in (_READ, _ASSIGN) for op in users)
            and not any(op.type == _ASSIGN for op in users & before)
            and len({place for _, place in assigned}) == len(assigned)
            and not any(each.name in given for each in fetched))


def following(tensors):
    """Returns the set of ops that depend on the values of some tensors."""
    found, left = set(), list(tensors)
    while left:
        for op in left.pop().consumers():
            if op not in found:
                found.add(op)
                left.extend(op.outputs)
    return found


def changed_by(ops):
    """Returns the set of handles, ops, of the variables that a collection of ops may change."""
    return {tensor.op for op in ops if op.type not in _READING for tensor in op.inputs
            if tensor.op.type == 'VarHandleOp'}


def only_reads(ops, may_lock=True):
    """Returns whether ops, a collection, depend on variables alone, and change nothing.

    Args:
      ops: collection of ops.
      may_lock: bool, whether they may keep others off meanwhile.
    """
    return all(_reads(op) or may_lock and op.type in _LOCKS for op in _with_state(ops))


def depend_on_feeds_alone(ops, places, changed):
    """Returns whether it does not matter when ops run, nor what runs at the same time.

    Args:
      ops: collection of the ops of a `Part`.
      places: dict by op, the handle of a variable whose values are fed: see `Part.run_for`.
      changed: set of handles, see `changed_by`, of the ops of all other parts.
    """
    return all(op.type == _ASSIGN and op.inputs[0].op in places
               or _reads(op) and op.inputs[0].op not in changed for op in _with_state(ops))


def _reads(op):
    return op.type in _READING and op.inputs[0].op.type == 'VarHandleOp'


def _with_state(ops):
    """Returns those of the ops that depend on more than their inputs, but for handles; a list."""
    by_type = {op.type: op for op in ops if op.type != 'VarHandleOp'}
    types = {name for name, op in by_type.items() if op.op_def is None or op.op_def.is_stateful}
    return [op for op in ops if op.type in types]


def made_again(tensors, after, name):
    """Makes tensors once more in the default graph, by copies of the ops that make them.

    Args:
      tensors: list of tensors.
      after: tensor that the copies wait for.
      name: string, the scope of the copies.

    Returns:
      List of tensors.
    """
    graph = tf.get_default_graph()
    ops = graphs.ancestors(tensors)
    handles = [op for op in ops if not op.inputs and op.outputs
               and op.outputs[0].dtype in (tf.resource, tf.variant)]
    copies = tf.GraphDef(versions=graph.graph_def_versions)
    for op in sorted(ops.difference(handles), key=lambda op: op.name):
        node = copies.node.add()
        node.CopyFrom(op.node_def)
        if '_class' in node.attr:
            del node.attr['_class']  # beside which op: all are in one place
        node.input.append(f'^{after.op.name}')
    given = {f'{op.name}:0': op.outputs[0] for op in handles}
    given[f'^{after.op.name}'] = after
    return tf.import_graph_def(copies, given, [tensor.name for tensor in tensors], name=name)


def _ancestors(fetches, fed, made=()):
    """Returns the set of ops that run to fetch a list, and a dict by name of tensors fed to them.

    Args:
      fetches: list of tensors and ops.
      fed: set of names of tensors that may be fed.
      made: collection of ops that ran before: their outputs may be fed, too.
    """
    ops, used, left = set(), {}, [getattr(fetch, 'op', fetch) for fetch in fetches]
    while left:
        op = left.pop()
        if op not in ops:
            ops.add(op)
            left += op.control_inputs
            for tensor in op.inputs:
                if tensor.name in fed or tensor.op in made and _can_be_kept(tensor):
                    used[tensor.name] = tensor
                else:
                    left.append(tensor.op)
    return ops, used


def _can_be_kept(tensor):
    """Returns whether a tensor can be fed; if not, its op runs again, as a constant does."""
    return (len(tensor.op.inputs) > 0 and tensor.op._get_control_flow_context() is None
            and tensor.dtype not in (tf.resource, tf.variant))


def kept_between(fetches, may_be_fed):
    """Finds tensors to fetch in one run and feed in later ones, so that no op runs twice.

    Args:
      fetches: list by run of lists of tensors and ops.
      may_be_fed: list of tensors that may be fed in any run.

    Returns:
      A list by run of lists of tensors to fetch as well; and a list by run of lists of tensors
      that may be fed: those that earlier runs fetched, and `may_be_fed`.
    """
    kept, feeds, made = [[] for _ in fetches], [], {}
    tensors = {tensor.name: tensor for tensor in may_be_fed}
    for number, each in enumerate(fetches):
        ops, used = _ancestors(each, set(tensors), made)
        for name in sorted(set(used) - set(tensors)):
            tensors[name] = used[name]
            kept[made[used[name].op]].append(used[name])
        made.update((op, number) for op in ops - set(made))
        feeds.append(list(tensors.values()))
    return kept, feeds
