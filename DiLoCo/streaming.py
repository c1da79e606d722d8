"""Streaming DiLoCo: the center in fragments, exchanged in turn while the workers go on training.

    communication_window / fragments - fragment_delay times:  x_i <- a step from x_i
    barrier
    G <- c - mean over the workers of the x_i                            push of one fragment
    u, c <- as in worker.py                                              of this fragment
    meanwhile, fragment_delay times:  x_i <- a step from x_i
    x_i <- fragment_alpha * x_i + (1 - fragment_alpha) * c               pull of this fragment

These are the runs of a worker, each for one exchange: step s of the center is of fragment s mod
`fragments`. What a worker keeps from run to run: x_i, and c as it has last read it. It begins with
x_i = c, and takes `fragment_delay` local steps before its first run, so that each exchange follows
on as many local steps as the rule asks for.

Arthur Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed
Free Lunch", arXiv 2501.18512.
"""

import sys

from absl import flags
from tfdist.data import batches
from tfdist.scheme import exchange, graphs, schedule, seam, transfer
from tfdist.synchronous import barrier, stamps
from tfdist.start.quiet import tf


def define():
    """Defines the flags."""
    flags.DEFINE_integer('fragments', 1, 'into how many fragments the center is cut, each of whole '
                         'variables, of which one is exchanged after communication_window / '
                         'fragments local steps', lower_bound=1)
    flags.DEFINE_integer('fragment_delay', 0, 'local steps that a worker makes during an exchange',
                         lower_bound=0)
    flags.DEFINE_float('fragment_alpha', 0., 'share of its own values that a worker keeps when it '
                       'takes over what the center has come to', lower_bound=0, upper_bound=1)


def is_asked_for(hparams):
    """Returns whether hyperparameters, an object, ask for more than whole exchanges."""
    return any(getattr(hparams, name, default) != default for name, default in (
        ('fragments', 1), ('fragment_delay', 0), ('fragment_alpha', 0)))


def local_steps(hparams):
    """Returns how many local steps there are from one exchange to the next, an int.

    Raises:
      SystemExit: if hyperparameters, an object, do not go together.
    """
    fragments = getattr(hparams, 'fragments', 1)
    steps, rest = divmod(hparams.communication_window, fragments)
    if rest:
        sys.exit(f'--communication_window={hparams.communication_window} is no multiple of '
                 f'--fragments={fragments}: as many local steps have to precede each exchange.')
    if getattr(hparams, 'fragment_delay', 0) > steps:
        sys.exit(f'--fragment_delay={hparams.fragment_delay}, but from one exchange to the next '
                 f'there are {steps} local steps, and one has to end before the next begins.')
    return steps


def cut(variables, number):
    """Cuts the center into fragments of about the same size: the largest variables first.

    Args:
      variables: list of `tf.Variable`.
      number: int, how many fragments.

    Returns:
      List of lists of ints, indices of variables in ascending order.

    Raises:
      SystemExit: if there are more fragments than variables.
    """
    if number > len(variables):
        sys.exit(f'--fragments={number}, but the model has {len(variables)} variables, and a '
                 'fragment is made of whole ones.')
    sizes = [transfer.size_of([variable]) for variable in variables]
    fragments = [[] for _ in range(number)]
    for i in sorted(range(len(variables)), key=lambda i: -sizes[i]):
        min(fragments, key=lambda each: (sum(sizes[k] for k in each), len(each))).append(i)
    return [sorted(each) for each in fragments]


def make(scheme, *args):
    """Makes the parts of a `barrier.Synchronous`, and its `others`.

    It gets an attribute `replica`: list of `tf.Variable`, the worker's own values.

    Args:
      scheme: `barrier.Synchronous`, whose own runs exchange the first fragment.
      *args: those of `Worker`, after the scheme.
    """
    worker = Worker(scheme, *args)
    worker.make(scheme, scheme.network, 0)
    scheme.hooks = scheme.hooks + [Begin(worker.beginning)]
    scheme.others = [_OfFragment(scheme, worker, i) for i in range(1, worker.fragments)]
    scheme.replica, scheme.beginning = worker.replica, worker.beginning


class Worker:
    """One worker's part in the exchanges of all fragments.

    Attributes:
      fragments: int, how many there are.
      replica: list of `tf.Variable` on the worker, x.
      beginning: `seam.Beginning`: the center is read, and local steps of the delay are made.
      global_step, hparams: as given.
    """

    def __init__(self, scheme, rule, outer, global_step, hparams):
        """Makes what the worker keeps.

        Args:
          scheme: `barrier.Synchronous` that has its network.
          rule: `local_rules.Rule` for the local steps.
          outer: `tf.train.Optimizer` that moves the center.
          global_step: integer `tf.Variable`.
          hparams: object with the hyperparameters as attributes.

        Raises:
          SystemExit: if the model, or another flag, asks for what cannot be had in fragments.
        """
        network, self._number = scheme.network, scheme.num_workers
        _check(network, hparams, self._number)
        self.fragments, self._delay = hparams.fragments, hparams.fragment_delay
        self._alpha, self._steps = hparams.fragment_alpha, local_steps(hparams)
        self._rule, self._outer, self.hparams = rule, outer, hparams
        self.global_step, self._task_index = global_step, scheme.task_index
        self._variables = network.variables
        self._indices = cut(self._variables, self.fragments)
        with tf.device(scheme.worker_device(scheme.task_index)):
            self.replica, self._center = (
                [exchange.own_variable(variable.read_value(), f'{name}/{variable.op.name}')
                 for variable in self._variables]
                for name in ('replica', 'center'))
        self.beginning = self._make_beginning(network)

    def _make_beginning(self, network):
        """Returns the `seam.Beginning`."""
        pull = step, *values = exchange.pull(self._variables, self.global_step)
        # What is read, and each that is kept, are tensors of their own, to be fed and fetched.
        center = [tf.identity(value) for value in transfer.to_worker(values)]
        x, keep = [tf.identity(value) for value in center], []
        if self._delay:
            network = network.again(count=self._delay * network.pace.accumulate)
            rule = self._rule.again()
            rule.pulled(step, self._number)
            x, _ = _train(network, rule, x, self._delay)
            network.finish()
            keep = [rule.keep()] + ([network.own.push()] if network.own else [])
        keep += [exchange.assign(self.replica, x), exchange.assign(self._center, center)]
        with tf.control_dependencies(keep):
            return seam.Beginning(pull, {'global_step': tf.identity(step)})

    def make(self, scheme, network, fragment):
        """Makes the parts of the runs that exchange a fragment.

        Args:
          scheme: `barrier.Synchronous`.
          network: its `trainee.Trainee`.
          fragment: int.
        """
        indices, rule = self._indices[fragment], self._rule.again()
        variables = [self._variables[i] for i in indices]
        center = [self._center[i] for i in indices]
        scheme.own = [*self.replica, *self._center, *rule.own]
        scheme.fragment, scheme.pull = indices, exchange.pull(variables, self.global_step)
        rule.pulled(scheme.pull[0], self._number, self._delay)
        x, figures = _train(network, rule, [variable.read_value() for variable in self.replica],
                            self._steps - self._delay)
        way = exchange.add([variable.read_value() for variable in center],
                           [x[i] for i in indices], -1)
        turn = None  # each step is this one's
        if self.fragments > 1:
            turn = stamps.Turn(fragment, self.fragments, self._variables)
        scheme.meet(self._outer, way, network, self.global_step, self.hparams, self._task_index,
                    self._number, variables, turn)
        with tf.control_dependencies([scheme.barrier.done]):
            completed = exchange.pull(variables, self.global_step)
        # The local steps beside the exchange begin when the push is on its way. Otherwise a single
        # thread may make them all before it packs that.
        with tf.control_dependencies(_leaving(scheme.barrier.push)):
            x, more = _train(network, rule, [tf.identity(value) for value in x], self._delay)
        # The center as read is to be fed: nothing but these may wait for that.
        found = [tf.identity(value) for value in transfer.to_worker(completed[1:])]
        for i, value in zip(indices, found):
            x[i] = self._alpha * x[i] + (1 - self._alpha) * value
        with tf.control_dependencies(found):  # a run whose exchange fails leaves no trace
            kept = tf.group(exchange.assign(self.replica, x), exchange.assign(center, found),
                            rule.keep())
        with tf.control_dependencies([kept]):
            scheme.computed = exchange.mean(figures + more)
        scheme.exchanges = [
            schedule.Pull(0, scheme.pull[:1]),
            schedule.Push(self._steps - self._delay, scheme.pushed, scheme.pushed, scheme.push),
            schedule.Pull(self._steps, completed)]
        scheme.not_recorded = 'a worker begins with the center, and goes on from its own values'


class Begin(tf.train.SessionRunHook):
    """Has a worker begin, in each new session, with the center as it is then.

    It comes after the barrier among the hooks: by then the worker has joined.
    """

    def __init__(self, beginning):
        """Takes a `seam.Beginning`."""
        self._beginning = beginning

    def after_create_session(self, session, coord):
        with batches.failures():
            session.run(self._beginning.computed)


class _OfFragment(barrier.Synchronous):
    """The runs that exchange another fragment than the first."""

    def __init__(self, first, worker, fragment):
        """Takes the scheme of the first fragment, the `Worker`, and an int."""
        self.worker_device, self.local_steps = first.worker_device, first.local_steps
        self._worker, self._fragment = worker, fragment
        super().__init__(first.network.again(), worker.global_step, worker.hparams,
                         first.task_index, first.num_workers)

    def make(self, network, global_step, hparams, task_index, num_workers):
        self._worker.make(self, network, self._fragment)


def _check(network, hparams, num_workers):
    """Ends the program if something is asked for that cannot be had in fragments."""
    if network.state:
        sys.exit('The model keeps state on the ps, such as the averages of batch norm, which no '
                 'fragment exchanges: leave out --fragments, --fragment_delay and '
                 '--fragment_alpha.')
    if barrier.pushes_per_step(hparams, num_workers) < num_workers:
        sys.exit(f'--replicas_to_aggregate={hparams.replicas_to_aggregate}: with backup workers '
                 'one would be left behind in a fragment, and not know it. Leave it out, or '
                 '--fragments, --fragment_delay and --fragment_alpha.')


def _leaving(push):
    """Returns the ops of the worker whose results a push sends to the ps, a list.

    Args:
      push: dict of tensors, see `barrier.Barrier`.
    """
    return [tensor.op for op in graphs.ancestors(push.values()) for tensor in op.inputs
            if '/job:worker' in tensor.device and '/job:worker' not in op.device]


def _train(network, rule, x, number):
    """Returns the values after a number of local steps from x, lists of tensors; and figures."""
    figures = []
    for _ in range(number):
        gradients, of_batch = network.gradients_at(x)
        x = rule.step(x, gradients)
        figures.append(of_batch)
    return list(x), figures
