"""Parameter placement: which parameter server keeps which part of the center.

    c <- c - learning_rate * g(c)

The rule is the one of Distributed-Setup, and this worker keeps and sends the same in each step. But
--strategy spreads the center over the parameter servers. All workers wait for the parameter server
that has the most to read and to write.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--ps_hosts=alpha:2222 --worker_hosts=alpha:2223,beta:2223"
    python ps.py $HOSTS --task_index=0         # on alpha
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
"""

import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import liveness, membership, servers, shutdown
from tfdist.model import averages, building, model_file
from tfdist.scheme import exchange, recipe, seam, tables, trainee
from tfdist.start import console
from tfdist.training import (checkpoints, chief, evaluation, report, sessions, traffic,
                             training_flags)
from tfdist.start.quiet import tf
import networks

model = model_file.Model(networks)  # model.py, and other networks to choose from
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1)
flags.DEFINE_enum('strategy', 'greedy', ['round_robin', 'greedy', 'partitioned', 'fused'],
                  'round_robin: variables go to the ps in turn; greedy: each to the ps with the '
                  'fewest bytes; partitioned: a part of each variable to each ps; fused: all '
                  'variables form one vector, a part of which goes to each ps')


class Greedy:
    """A `ps_strategy` for `tf.train.replica_device_setter`: the emptiest ps gets the next variable.

    Workers that disagree on where a variable is train different variables. So each worker must make
    the same variables in the same order, with a Greedy of its own.

    Attributes:
      loads: list of ints, the bytes on each ps so far.
    """

    def __init__(self, num_ps):
        self.loads = [0] * num_ps

    def __call__(self, op):
        """Returns the index of the ps for `op`: the first with the fewest bytes."""
        ps = self.loads.index(min(self.loads))
        if op.type == 'VarHandleOp':  # the final size of hash tables is unknown
            self.loads[ps] += (tf.TensorShape(op.get_attr('shape')).num_elements()
                               * tf.as_dtype(op.get_attr('dtype')).size)
        return ps


def device_setter(strategy, cluster_spec, worker_device):
    """Returns a device function: variables go where `strategy` says, other ops to this worker."""
    # None is TensorFlow's own strategy: in turn.
    ps_strategy = (None if strategy == 'round_robin' else Greedy(cluster_spec.num_tasks('ps')))
    return tf.train.replica_device_setter(cluster=cluster_spec, worker_device=worker_device,
                                          ps_strategy=ps_strategy)


class Placement:
    """The parameters of a network as stored: whole, cut, or fused into one vector and cut.

    Attributes:
      variables: list of the stored `tf.Variable`, in order.
    """

    def __init__(self, strategy, initial_values, num_ps):
        """Makes the variables, on the devices that the scope gives them.

        Args:
          strategy: a value of --strategy.
          initial_values: dict of tensors by name, the same for all strategies.
          num_ps: int, the number of parts to cut into.

        Raises:
          SystemExit: if the values cannot be fused.
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
                # Along axis 0; the first parts are longer by one if the rest demands it.
                self._parts.append(list(tf.get_variable(
                    name, initializer=value, partitioner=tf.fixed_size_partitioner(num_ps))))
            else:
                self._parts.append([tf.get_variable(name, initializer=value)])
        self.variables = [part for parts in self._parts for part in parts]

    def whole(self, values):
        """Reassembles the network's parameters.

        Args:
          values: list of tensors, values for `variables`.

        Returns:
          List of tensors in the order and shapes of the initial values.
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
        gradients = network.decayed(gradients, self.pull[1:])
        rate = network.rate(hparams.learning_rate, self.pull[0])
        # Not an optimizer's update on the ps: on TensorFlow 1.15 the step size would travel, too.
        self.pushed = [recipe.scaled(-rate, gradient) for gradient in gradients]
        push = exchange.add_to(variables, self.pushed)
        with tf.control_dependencies([push]):
            self.push = {'global_step': exchange.count(global_step, self.pull[0])['global_step']}


def table_names(scope):
    """Returns the names of the model's variables in a scope that are tables, a set of strings."""
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        with tf.variable_scope(scope):
            network = building.Network(model, model.train_batches(FLAGS.batch_size, 1))
        return {name.table.op.name for name in network.variables if isinstance(name, tables.Rows)}


class Placed(trainee.Trainee):
    """A network whose variables are stored as --strategy says.

    Tables are stored as the model makes them, whole or in parts, where the device setter puts them.

    Attributes:
      variables: list of `tf.Variable`, then `tables.Rows`: the center.
      state, own, averages: see `building.Network`.
    """

    def __init__(self, batches, delay, cluster_spec, worker_device):
        """Builds the network for the initial values of its variables, and makes the center of them.

        Args:
          batches: list of nests of tensors to train on.
          delay: float, seconds to waste on each batch.
          cluster_spec: `tf.train.ClusterSpec`.
          worker_device: string, this worker.
        """
        scope = 'network'
        where_made = table_names(scope)

        def never_used(next_creator, **kwargs):
            name = kwargs['name']
            if (not kwargs.get('trainable', True) or name in where_made
                    or not model.trains(name[len(scope) + 1:])):
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
        self.state, self.own = self._network.state, self._network.own
        self.recipe = self._network.recipe.within(scope)
        self.averages = averages.asked_for(self.variables, model)

    def set_pace(self, *args):
        """See `trainee.Trainee`."""
        super().set_pace(*args)
        self._network.set_pace(*args)

    def gradients_at(self, values):
        """See `building.Network`."""
        return self._network.gradients_at(self._in_order(values), values)

    def decayed(self, gradients, values):
        """See `trainee.Trainee`: by the names in the model, also if two share a stored variable."""
        if not self.recipe.weight_decay:
            return gradients
        whole = self._in_order(values)
        decays = self.recipe.decayed(list(map(tf.zeros_like, whole)), self._network.variables,
                                     whole)
        return exchange.add(gradients, tf.gradients(whole, values, decays))

    def _in_order(self, values):
        """Returns values for the network, in the order of its variables."""
        kept = len(self._placement.variables)
        whole, rows = iter(self._placement.whole(values[:kept])), iter(values[kept:])
        return [next(rows if isinstance(variable, tables.Rows) else whole)
                for variable in self._network.variables]

    @property
    def summaries(self):
        """See `building.Network`."""
        return self._network.summaries

    def hooks(self):
        """See `building.Network`."""
        return self._network.hooks()

    def shared_by(self, num_workers):
        """See `building.Network`."""
        self._network.shared_by(num_workers)

    def check_constraints(self):
        """See `trainee.Trainee`."""
        super().check_constraints(self._network.variables)

    def finish(self):
        """See `building.Network`."""
        self._network.finish()

    def _tested(self):
        """Returns what is tested, in the order of the network's variables; None for a table."""
        return self._in_order(self.averages.values() if self.averages else [
            None if isinstance(variable, tables.Rows) else exchange.read(variable)
            for variable in self.variables])

    def at_variables(self, batch):
        """See `building.Network`."""
        return self._network.at_variables(batch, self._tested())

    def tested_values(self):
        """See `building.Network`; the names are those without the scope of the constructor."""
        return {name.partition('/')[2]: value
                for name, value in self._network.tested_values(self._tested()).items()}


def place_and_train(_):
    resolver = membership.resolve('worker')
    cluster_spec, task_index = resolver.cluster_spec(), resolver.task_id
    num_ps = cluster_spec.num_tasks('ps')
    is_chief = task_index == 0
    worker_device = f'/job:worker/task:{task_index}'
    # Distributed: a session waits for all tasks that it sees. These see the ps and this worker.
    config = servers.config(device_filters=['/job:ps', worker_device])
    # Distributed: the ps and this worker reach each other through their servers.
    server = tf.train.Server(cluster_spec, 'worker', task_index, config=config)

    tf.set_random_seed(FLAGS.seed)
    with tf.device(device_setter(FLAGS.strategy, cluster_spec, worker_device)):
        global_step = tf.train.get_or_create_global_step()
        local_steps = Scheme.local_steps(FLAGS)
        batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS), task_index,
                                      cluster_spec.num_tasks('worker'), FLAGS.seed)
        network = Placed(batches, training_flags.straggler_delay(task_index), cluster_spec,
                         worker_device)
        test = evaluation.Test(model, network.at_variables, is_chief, network.tested_values)
        scheme = Scheme(network, global_step, FLAGS, task_index, cluster_spec.num_tasks('worker'))

    trainer = sessions.Trainer.of(scheme, test)
    # Distributed: worker 0, the chief, saves and tests; another worker does while it is away.
    chief_role = chief.Role(resolver, test)
    # Distributed: the ps end when every worker has said that it is done.
    hooks = scheme.hooks + [trainer, chief_role, shutdown.SayDone(resolver)]
    # Distributed: no silent wait for a ps that does not answer.
    liveness.watch(resolver, over=test.is_over)
    # Distributed: the chief makes or restores the parameters; the others wait for these.
    if is_chief:
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, checkpoint_dir=FLAGS.model_dir,
            scaffold=checkpoints.chief_scaffold(FLAGS.model_dir, resolver), hooks=hooks,
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    else:
        session = tf.train.MonitoredSession(
            sessions.WorkerSessionCreator(server.target, config, chief_role), hooks)

    with session:
        progress = report.Progress(f'worker {task_index}', session.run(global_step), is_chief,
                                   model)
        if is_chief:
            for ps in range(num_ps):
                progress.say(traffic.kept('ps', ps, tf.global_variables()))
            sent = sessions.traced(session, scheme.train_op, progress)
            for ps in range(num_ps if sent else 0):
                read, written = sent[f'ps {ps}', 'worker 0'], sent['worker 0', f'ps {ps}']
                progress.say(f'in a step ps {ps} sends {read} and gets {written}')
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, local_steps, chief_role.now_and_then)
        progress.done()
        chief_role.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(place_and_train)
