"""The graphs of several tasks as one machine: each op that touches state can be run alone.

The ops are those that the library's code made, each task's in a graph of its own. Here they are
brought into one graph in one session, without their control dependencies and devices. What these
said, the order and the place of each op, is kept beside it: a run of some fetches is divided into
its atoms, the ops that read or write state on a parameter server, and the arrivals of tensors on
another device. Whoever runs the atoms chooses among those whose turn may be next.
"""

import re

import numpy as np
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tfdist.start.quiet import tf

# Ops that make a handle. Two with the same shared name on the same device have the same state.
_HANDLES = ('VarHandleOp', 'FIFOQueueV2', 'MutableHashTableV2', 'ResourceConditionalAccumulator',
            'MutexV2')
_WAITING = ('QueueDequeueV2', 'QueueDequeueManyV2', 'ResourceAccumulatorTakeGradient')
LOCK, UNLOCK = 'MutexLock', 'ConsumeMutexLock'
ARRIVAL = 'arrival'


def place_of(device, otherwise):
    """Returns a device's task, such as 'ps 0'; `otherwise` if it has none."""
    found = re.search(r'/job:(\w+)/(?:replica:\d+/)?task:(\d+)', device)
    return f'{found[1]} {found[2]}' if found else otherwise


class Atom:
    """What one choice of an order runs: an op that touches state, or the arrival of a tensor.

    Attributes:
      number: int, in its program.
      kind: string, the op's type, or ARRIVAL.
      name: string, the op's name in its task's graph.
      state: string, what it touches, with its place, such as 'tokens_1@ps 0'; None for an arrival.
      place: string, the task on which it runs.
      source: string, the task from which an arrival comes; else None.
      waits: bool, whether it may have to wait: for an element, for gradients, for a lock.
      after: list of numbers of the atoms that come next once it is done.
      before: list of numbers of the atoms that have to be done.
    """

    __slots__ = ('number', 'kind', 'name', 'state', 'place', 'source', 'waits', 'after', 'before',
                 'run', 'feeds', 'made', 'given', 'asks', 'asks_feeds')

    def __init__(self, number, kind, name, place, before, source=None):
        self.number, self.kind, self.name, self.place = number, kind, name, place
        self.before, self.after, self.source = sorted(before), [], source
        self.state = None
        self.waits = kind in _WAITING or kind == LOCK
        self.run = self.asks = None
        self.feeds, self.made, self.given, self.asks_feeds = [], [], [], []


class Program:
    """A run of some fetches, in atoms.

    Attributes:
      atoms: list of `Atom`.
      places: set of strings, the tasks on which it runs.
    """

    def __init__(self, machine, owner, fetches, fed):
        """Divides it.

        Args:
          machine: `Machine`.
          owner: string, the task whose run it is.
          fetches: list of tensors and ops of the owner's graph.
          fed: list of tensors of that graph that are fed.
        """
        self._machine, self._owner = machine, owner
        self._fed = {tensor.name for tensor in fed}
        self.atoms, self._of_op, self._arrivals, self._frontiers = [], {}, {}, {}
        for fetch in fetches:
            self._frontier(getattr(fetch, 'op', fetch))
        for atom in self.atoms:
            for number in atom.before:
                self.atoms[number].after.append(atom.number)
        self.places = {atom.place for atom in self.atoms} - {owner}
        tensors = [fetch for fetch in fetches if isinstance(fetch, tf.Tensor)]
        self._slots = [isinstance(fetch, tf.Tensor) for fetch in fetches]
        self._result, self._result_feeds, self._direct = machine.callable(
            owner, tensors, self._stops)

    def _stops(self, tensor):
        """Whether a tensor's value is known: it was fed, or made by an atom."""
        return tensor.name in self._fed or tensor.op in self._of_op

    def _place(self, op):
        """Where an op runs: if it touches state, there."""
        if is_atom(op):
            return self._machine.state_of(op, self._owner).rpartition('@')[2]
        return place_of(op.device, self._owner)

    def _frontier(self, op):
        """Returns the set of atoms that are the last before an op's outputs: itself, if an atom."""
        stack = [op]
        while stack:  # no recursion: graphs are deep
            now = stack[-1]
            if now in self._frontiers:
                stack.pop()
                continue
            inputs = [tensor.op for tensor in now.inputs if tensor.name not in self._fed]
            missing = [each for each in inputs + list(now.control_inputs)
                       if each not in self._frontiers]
            if missing:
                stack += missing
                continue
            stack.pop()
            before = set()
            for tensor in now.inputs:
                before |= self._across(tensor.op, now, tensor.name in self._fed)
            for each in now.control_inputs:
                before |= self._across(each, now, False)
            self._frontiers[now] = self._atom(now, before) if is_atom(now) else before
        return self._frontiers[op]

    def _across(self, source, target, is_fed):
        """Returns the last atoms before an edge's end: an arrival, if it joins two places."""
        before = set() if is_fed else self._frontiers[source]
        here, there = self._place(source), self._place(target)
        if here == there or not (before or is_fed):
            return before
        if (source, there) not in self._arrivals:
            atom = Atom(len(self.atoms), ARRIVAL, source.name, there, before, here)
            self.atoms.append(atom)
            self._arrivals[source, there] = {atom.number}
        return self._arrivals[source, there]

    def _atom(self, op, before):
        atom = Atom(len(self.atoms), op.type, op.name, self._place(op), before)
        atom.state = self._machine.state_of(op, self._owner)
        self.atoms.append(atom)
        if op.type not in (LOCK, UNLOCK):
            self._machine.prepare(self._owner, atom, op, self._stops)
        self._of_op[op] = atom
        return {atom.number}

    def results(self, values):
        """Returns what the fetches are, None for ops, once all atoms are done."""
        found = iter(self._machine.evaluate(self._result, self._result_feeds, self._direct, values))
        return [next(found) if is_tensor else None for is_tensor in self._slots]


def is_atom(op):
    """Returns whether an op reads or writes state."""
    return op.type not in _HANDLES and op.type != 'Identity' and any(
        tensor.dtype in (tf.resource, tf.variant) for tensor in op.inputs) or op.type == LOCK


class Machine:
    """All tasks' graphs in one session.

    Attributes:
      states: list of strings, all states, such as 'x@ps 1'.
    """

    def __init__(self, graphs):
        """Takes a dict of `tf.Graph` by task, such as 'worker 1'."""
        merged = graph_pb2.GraphDef()
        self._programs, self._handles = {}, {}
        for owner, graph in graphs.items():
            source = graph.as_graph_def()
            merged.versions.CopyFrom(source.versions)
            merged.library.MergeFrom(source.library)
            for node in source.node:
                self._add(merged, owner, node)
        with tf.Graph().as_default() as self._graph:
            tf.import_graph_def(merged, name='')
            self._sizes, self._empty, self._rest = {}, {}, {}
            for state, (name, kind) in sorted(self._handles.items()):
                self._prepare_rest(state, self._graph.get_tensor_by_name(f'{name}:0'), kind)
        config = tf.ConfigProto(inter_op_parallelism_threads=-1,  # all in the caller's thread
                                intra_op_parallelism_threads=1)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        self._session = tf.Session(graph=self._graph, config=config)
        self._callables, self._initial = {}, self._initial_values(graphs)
        self.states = sorted(self._handles)

    def _add(self, merged, owner, node):
        """Adds a node to the graph of all, without its order and its place."""
        place = place_of(node.device, owner)
        new = merged.node.add()
        new.CopyFrom(node)
        new.name = _in(owner, node.name)
        new.device = ''
        del new.input[:]
        new.input.extend(_in(owner, name) for name in node.input if name[0] != '^')
        new.attr.pop('_class', None)
        if node.op in _HANDLES:
            state = f'{node.attr["shared_name"].s.decode() or node.name}@{place}'
            new.attr['shared_name'].s = state.encode()
            self._handles.setdefault(state, (new.name, node.op))

    def _prepare_rest(self, state, handle, kind):
        """Makes the ops that bring a state to its beginning."""
        if kind == 'VarHandleOp':
            value = tf.placeholder(tf.as_dtype(handle.op.get_attr('dtype')))
            self._rest[state] = tf.raw_ops.AssignVariableOp(resource=handle, value=value), value
        elif kind == 'FIFOQueueV2':
            self._sizes[state] = size = tf.raw_ops.QueueSizeV2(handle=handle)
            types = [tf.as_dtype(each) for each in handle.op.get_attr('component_types')]
            self._empty[state] = tf.raw_ops.QueueDequeueManyV2(
                handle=handle, n=size, component_types=types)[0].op
        elif kind == 'ResourceConditionalAccumulator':
            self._sizes[state] = tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=handle)
            self._empty[state] = tf.raw_ops.ResourceAccumulatorTakeGradient(
                handle=handle, num_required=tf.constant(1),
                dtype=tf.as_dtype(handle.op.get_attr('dtype'))).op
            self._rest[state] = tf.raw_ops.ResourceAccumulatorSetGlobalStep(
                handle=handle, new_global_step=tf.constant(0, tf.int64)), None
        elif kind == 'MutableHashTableV2':
            nothing = tf.constant([], tf.int64)
            self._rest[state] = tf.raw_ops.LookupTableImportV2(
                table_handle=handle, keys=nothing, values=nothing), None

    def _initial_values(self, graphs):
        """Returns a dict by state of what the variables are at the beginning."""
        values = {}
        for owner, graph in graphs.items():
            with graph.as_default(), tf.Session(graph=graph) as session:
                for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) + (
                        graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)):
                    state = self.state_of(variable.handle.op, owner)
                    if state not in values:
                        values[state] = self._constant(session, variable)
        return values

    @staticmethod
    def _constant(session, variable):
        """Returns a variable's initial value, which depends on no other's."""
        copy = graph_pb2.GraphDef()
        copy.CopyFrom(variable.graph.as_graph_def())
        for node in copy.node:
            node.device = ''
        with tf.Graph().as_default(), tf.Session() as session:
            value, = tf.import_graph_def(
                copy, return_elements=[variable.initializer.inputs[1].name])
            return session.run(value)

    def reset(self, place=None):
        """Brings all states to their beginning, or those of one place, which has been lost."""
        def here(states):
            return [state for state in sorted(states)
                    if place is None or state.endswith(f'@{place}')]

        sized, resting = here(self._sizes), here(self._rest)
        if sized:
            for state, size in zip(sized, self._run([self._sizes[each] for each in sized], [])()):
                if size:
                    self._run([self._empty[state]], [])()
        feeds = [(self._rest[state][1], self._initial[state]) for state in resting
                 if self._rest[state][1] is not None]
        if resting:
            self._run([self._rest[state][0] for state in resting],
                      [tensor for tensor, _ in feeds])(*[value for _, value in feeds])

    def state_of(self, op, owner):
        """Returns the state that an op of a task's graph touches."""
        while op.type not in _HANDLES:
            op = next(tensor.op for tensor in op.inputs
                      if tensor.dtype in (tf.resource, tf.variant))
        return f'{op.get_attr("shared_name").decode() or op.name}@{place_of(op.device, owner)}'

    def size(self, state):
        """Returns how many elements a queue has, or gradients an accumulator."""
        return int(self._run([self._sizes[state]], [])()[0])

    def value(self, state):
        """Returns the value of a variable."""
        key = 'value', state
        if key not in self._callables:
            name, _ = self._handles[state]
            handle = self._graph.get_tensor_by_name(f'{name}:0')
            with self._graph.as_default():
                self._callables[key] = self._run([tf.raw_ops.ReadVariableOp(
                    resource=handle, dtype=tf.as_dtype(handle.op.get_attr('dtype')))], [])
        return self._callables[key]()[0]

    def program(self, owner, fetches, fed):
        """Returns the `Program` of a run; the arguments are its constructor's."""
        key = owner, tuple(each.name for each in fetches), tuple(each.name for each in fed)
        if key not in self._programs:
            self._programs[key] = Program(self, owner, fetches, fed)
        return self._programs[key]

    def prepare(self, owner, atom, op, stops):
        """Makes what runs an atom, and what tells whether it would have to wait."""
        inputs = [tensor for tensor in op.inputs if tensor.dtype not in (tf.resource, tf.variant)]
        outputs = [tensor for tensor in op.outputs
                   if tensor.dtype not in (tf.resource, tf.variant)]
        atom.run, atom.feeds, atom.given = self.callable(owner, inputs, stops, op, outputs)
        atom.made = [_in(owner, tensor.name) for tensor in outputs]
        if atom.waits:
            wanted = inputs[:1]
            atom.asks = self.callable(owner, wanted, stops) if wanted else None

    def callable(self, owner, tensors, stops, op=None, outputs=()):
        """Makes what computes tensors from what is known.

        Args:
          owner: string, the task.
          tensors: list of tensors of its graph.
          stops: function of a tensor of its graph: whether it is known.
          op: an op to run as well; or None.
          outputs: list of its outputs, which come after the tensors.

        Returns:
          What `evaluate` takes: a function, the names of the tensors that are fed to it, and what
          of `tensors` is known: a list of names, None where it is computed.
        """
        fed, seen = {}, set()
        stack = [tensor for tensor in tensors]
        stack += list(op.inputs) if op else []
        while stack:
            tensor = stack.pop()
            if stops(tensor):
                fed[_in(owner, tensor.name)] = tensor
            elif tensor.op not in seen:
                seen.add(tensor.op)
                stack += list(tensor.op.inputs)
        known = [_in(owner, tensor.name) if stops(tensor) else None for tensor in tensors]
        named = self._graph.get_tensor_by_name
        fetches = [named(_in(owner, tensor.name)) for tensor, name in zip(tensors, known)
                   if name is None]
        if op:
            fetches += [named(_in(owner, tensor.name)) for tensor in outputs] or [
                self._graph.get_operation_by_name(_in(owner, op.name))]
        feeds = [named(name) for name in sorted(fed)]
        return self._run(fetches, feeds) if fetches else None, sorted(fed), known

    @staticmethod
    def evaluate(run, feeds, known, values):
        """Returns the values of what `callable` was asked for: the tensors, then the outputs."""
        found = iter(run(*[values[name] for name in feeds]) if run else ())
        return [next(found) if name is None else values[name] for name in known] + list(found)

    def _run(self, fetches, feeds):
        key = tuple(each.name for each in fetches), tuple(each.name for each in feeds)
        if key not in self._callables:
            options = config_pb2.CallableOptions()
            options.feed.extend(tensor.name for tensor in feeds)
            for each in fetches:
                (options.fetch if isinstance(each, tf.Tensor) else options.target).append(each.name)
            self._callables[key] = self._session._make_callable_from_options(options)
        return self._callables[key]

    def fed(self, owner, values):
        """Returns values by names for a run of a task, of a dict by the tensors of its graph."""
        return {_in(owner, tensor.name): np.asarray(value, tensor.dtype.as_numpy_dtype)
                for tensor, value in values.items()}


def _in(owner, name):
    """Returns a name of a task's graph in the graph of all."""
    return f'{owner.replace(" ", "_").replace(chr(39), "")}/{name}'
