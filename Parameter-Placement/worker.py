"""Parameter placement: which parameter server keeps which part of the center.

    c <- c - learning_rate * g(c)

The rule is that of Distributed-Setup, and so is what this worker keeps and sends in each step. What
differs is where it goes: --strategy spreads the center over the parameter servers. The one that has
the most to read and to write is the one that all workers wait for.
"""

import sys
import time

from absl import flags
from tfdist import (averages, building, checkpoints, chief, cluster, console, ending, evaluation,
                    exchange, liveness, models, report, seam, sessions, tables, traffic,
                    training_flags)
from tfdist.quiet import tf

import networks

model = models.Model(networks)  # model.py, and other networks to choose from
FLAGS = flags.FLAGS
training_flags.define(train_steps=3000, learning_rate=0.1)
flags.DEFINE_enum('strategy', 'greedy', ['round_robin', 'greedy', 'partitioned', 'fused'],
                  'round_robin: one variable each, in turn; greedy: each to the ps that has the '
                  'fewest bytes; partitioned: of each variable a part to each ps; fused: all '
                  'variables in one vector, of which each ps has a part')


class Greedy:
    """A `ps_strategy` for `tf.train.replica_device_setter`: the emptiest ps gets the next variable.

    Workers that do not agree where a variable is train different ones. So each must make the same
    variables in the same order, with a Greedy of its own.

    Attributes:
      loads: list of ints, the bytes that each ps has so far.
    """

    def __init__(self, num_ps):
        self.loads = [0] * num_ps

    def __call__(self, op):
        """Returns the index of the ps for what `op` makes: the first of those with least bytes."""
        ps = self.loads.index(min(self.loads))
        if op.type == 'VarHandleOp':  # nobody knows how large tables become
            self.loads[ps] += (tf.TensorShape(op.get_attr('shape')).num_elements()
                               * tf.as_dtype(op.get_attr('dtype')).size)
        return ps


def device_setter(strategy, cluster_spec, worker_device):
    """Returns a device function: variables go where `strategy` says, other ops to this worker."""
    # None is TensorFlow's own: in turn.
    ps_strategy = (None if strategy == 'round_robin' else Greedy(cluster_spec.num_tasks('ps')))
    return tf.train.replica_device_setter(cluster=cluster_spec, worker_device=worker_device,
                                          ps_strategy=ps_strategy)


class Placement:
    """The parameters of a network as they are kept: whole, cut, or fused into one vector and cut.

    Attributes:
      variables: list of `tf.Variable`, what is kept, in order.
    """

    def __init__(self, strategy, initial_values, num_ps):
        """Makes the variables, on the devices that the scope gives them.

        Args:
          strategy: a value of --strategy.
          initial_values: dict of tensors by name; all strategies start from these.
          num_ps: int, into how many parts to cut.

        Raises:
          SystemExit: if they cannot be fused.
        """
        self._shapes = {name: value.shape for name, value in initial_values.items()}
        self._fused = strategy == 'fused'
        if self._fused:
            dtypes = sorted({value.dtype.base_dtype.name for value in initial_values.values()})
            if len(dtypes) > 1:
                sys.exit(f'--strategy=fused: the parameters are of several dtypes '
                         f'({", ".join(dtypes)}), and one vector has one. Take another strategy.')
            initial_values = {'fused': tf.concat(
                [tf.reshape(value, [-1]) for value in initial_values.values()], axis=0)}
        cut = self._fused or strategy == 'partitioned'
        self._parts = []
        for name, value in initial_values.items():
            if cut and value.shape.rank:
                # Along axis 0; the first parts are longer by one if it has to be.
                self._parts.append(list(tf.get_variable(
                    name, initializer=value, partitioner=tf.fixed_size_partitioner(num_ps))))
            else:
                self._parts.append([tf.get_variable(name, initializer=value)])
        self.variables = [part for parts in self._parts for part in parts]

    def whole(self, values):
        """Puts together what the network is built on.

        Args:
          values: list of tensors, values for `variables`.

        Returns:
          List of tensors, of the names and shapes of the initial values.
        """
        rest = iter(values)
        pieces = [[next(rest) for _ in parts] for parts in self._parts]
        whole = [piece[0] if len(piece) == 1 else tf.concat(piece, axis=0) for piece in pieces]
        if self._fused:
            shapes = self._shapes.values()
            flat = tf.split(whole[0], [shape.num_elements() for shape in shapes])
            whole = [tf.reshape(value, shape) for value, shape in zip(flat, shapes)]
        return whole


class Scheme(seam.Seam):
    """Plain SGD on a center that lives on the ps: one pull and one push in each local step."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = exchange.pull(variables, global_step)
        gradients, self.computed = network.gradients_at(self.pull[1:])
        # Not an optimizer's update on the ps: on TensorFlow 1.15 the step size would travel, too.
        self.pushed = [-hparams.learning_rate * gradient for gradient in gradients]
        push = exchange.add_to(variables, self.pushed)
        with tf.control_dependencies([push]):
            self.push = {'global_step': exchange.count(global_step, self.pull[0])['global_step']}


def table_names(scope):
    """Returns a set of strings: which variables of the model, below a scope, are tables."""
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        with tf.variable_scope(scope):
            network = building.Network(model, model.train_batches(FLAGS.batch_size, 1))
        return {name.table.op.name for name in network.variables if isinstance(name, tables.Rows)}


class Placed:
    """A network whose variables are kept as --strategy says.

    Tables are kept as the model made them: in parts, if it says so, each where the device setter
    puts it.

    Attributes:
      variables: list of `tf.Variable`, and of `tables.Rows` at its end: the center.
      state, averages: see `building.Network`.
    """

    def __init__(self, batches, delay, cluster_spec, worker_device):
        """Builds the network for its variables' initial values, and makes the center of these.

        Args:
          batches: list of nests of tensors, to train on.
          delay: float, seconds to waste on each batch.
          cluster_spec: `tf.train.ClusterSpec`.
          worker_device: string, this worker.
        """
        scope = 'network'
        where_made = table_names(scope)

        def never_used(next_creator, **kwargs):
            if not kwargs.get('trainable', True) or kwargs['name'] in where_made:
                return next_creator(**kwargs)
            with tf.device(worker_device):  # on a ps it would count as load
                return next_creator(**kwargs)

        with tf.variable_scope(scope), tf.variable_creator_scope(never_used):
            self._network = building.Network(model, batches, delay)
        wanted = [variable for variable in self._network.variables
                  if not isinstance(variable, tables.Rows)]
        rows = [variable for variable in self._network.variables if variable not in wanted]
        for name in tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES:
            kept = tf.get_collection_ref(name)
            kept[:] = [variable for variable in kept if variable not in wanted]
        self._placement = Placement(
            FLAGS.strategy, {variable.op.name[len(scope) + 1:]: variable.initial_value
                             for variable in wanted}, cluster_spec.num_tasks('ps'))
        self.variables = self._placement.variables + rows
        self.state = self._network.state
        self.averages = averages.asked_for(self.variables)

    def gradients_at(self, values):
        """See `building.Network`."""
        return self._network.gradients_at(self._in_order(values), values)

    def _in_order(self, values):
        """Returns what the network is built on: values in the order in which it has variables."""
        kept = len(self._placement.variables)
        whole, rows = iter(self._placement.whole(values[:kept])), iter(values[kept:])
        return [next(rows if isinstance(variable, tables.Rows) else whole)
                for variable in self._network.variables]

    def finish(self):
        """See `building.Network`."""
        self._network.finish()

    def at_variables(self, batch):
        """See `building.Network`."""
        values = self.averages.values() if self.averages else [
            None if isinstance(variable, tables.Rows) else exchange.read(variable)
            for variable in self.variables]
        return self._network.at_variables(batch, self._in_order(values))


def place_and_train(_):
    resolver = cluster.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_ps = cluster_spec.num_tasks('ps')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Without filters a session waits for all tasks of the cluster, and not only for the ps.
    config = sessions.config(device_filters=['/job:ps', worker_device])
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(device_setter(FLAGS.strategy, cluster_spec, worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        batches = model.train_batches(FLAGS.batch_size, local_steps, task_index,
                                      cluster_spec.num_tasks('worker'), FLAGS.seed)
        network = Placed(batches, training_flags.straggler_delay(task_index), cluster_spec,
                         worker_device)
        test = evaluation.Test(model, network.at_variables, is_chief)
        scheme = Scheme(network, global_step, FLAGS, task_index, cluster_spec.num_tasks('worker'))

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, scheme.wait, test)
    duties = chief.Duties(resolver, test)
    hooks = scheme.hooks + [past_the_hooks, duties, ending.SayDone(resolver)]
    liveness.watch(resolver)
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief)
        if is_chief:
            for ps in range(num_ps):
                progress.say(traffic.kept('ps', ps, tf.global_variables()))
            sent = sessions.traced(session, scheme.train_op, progress)
            for ps in range(num_ps if sent else 0):
                read, written = sent[f'ps {ps}', 'worker 0'], sent['worker 0', f'ps {ps}']
                progress.say(f'in a step ps {ps} sends {read} and gets {written}')

        def train(step_context):
            """Trains past the hooks for a second, and then runs them: checkpoints."""
            until = time.time() + 1
            with sessions.failures_of_ps():
                while time.time() < until and progress.goes_on():
                    progress.add(past_the_hooks.run(), local_steps)
                step_context.run_with_hooks(global_step)
                duties.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        duties.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(place_and_train)
