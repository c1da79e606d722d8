"""The seam: the interface between a scheme and the programs that train, test or simulate it.

A scheme is divided into parts by what travels. Training runs all parts at once. Tests and
simulations run them one by one, and feed what they fetched before:

    pulled = session.run(scheme.pull)
    pushed, figures = session.run([scheme.pushed, scheme.computed], feed(scheme.pull, pulled))
    session.run(scheme.push, feed(scheme.pull + scheme.pushed, pulled + pushed))

If all workers take each step together, a push is stamped with the step that its worker pulled, and
`complete` makes the step for all:

    stamps = [pulled[0]] * len(scheme.stamps)
    session.run(scheme.push, feed(scheme.pushed + scheme.stamps, pushed + stamps))
    session.run(scheme.complete)

In this way one scheme in one session can play any number of workers: the state of each worker is in
what is fed, and in `own`, to be read after each of its runs and restored before the next.
"""

import copy
import sys
from typing import Optional

from tfdist.scheme import schedule
from tfdist.start.quiet import tf


def feed(tensors, values):
    """Returns a feed for `tf.Session.run` of a list of tensors and a list of their values."""
    return dict(zip(tensors, values))


class Gate(tf.train.SessionRunHook):
    """Holds back a worker that is too far ahead: the base class of the gate of a `Seam`.

    Attributes:
      clocks: int64 [num_workers] tensor, how far each worker has come.
      worker: int64 scalar tensor, the worker whose clock joins, leaves, and ticks with a push. Feed
        it to play another worker.
      join: op to run when a worker begins.
      leave: op to run when a worker ends.
    """

    clocks = worker = join = leave = None

    def holds(self, clocks, worker):
        """Returns a bool for each of the `clocks`, an array: whether it holds back `worker`."""
        raise NotImplementedError


class Seam:
    """The parts of a scheme for one worker: the base class of each folder's `Scheme`.

    `make` sets the parts that a scheme has; the others keep their defaults. A scheme opens no
    files, reads no flags and knows no cluster.

    Attributes:
      pull: list of tensors, the global step and the variables' values as read.
      pushed: list of tensors that this worker pushes. They depend on `pull` and on `own`.
      computed: dict of float32 scalar tensors, 'loss' and the model's metrics, means over the
        batches. Running it updates `own`, unless the push does.
      push: dict of tensors that makes the update with `pushed`, and its figures. It depends on
        nothing else that this worker computes.
      stamps: list of integer scalar tensors, the stamp of each part of a push, which is a step;
        empty if pushes have no stamp.
      complete: tensor that makes a step of what all have pushed; it blocks until enough workers
        have. None if each push is an update by itself.
      finish: dict of tensors that takes the place of `push` in training and waits until the step is
        complete; None if there is nothing to wait for. If it has the figures of `computed`, too, it
        takes their place, and updates `own` at another time.
      own: list of `tf.Variable` that this worker keeps from one run to the next.
      workers: list of int64 scalar tensors, each the index of this worker, on which `pushed` or
        `push` depends. Feed all of them to play another worker.
      sums: list of tensors, sums over all workers of what they push, which `push` waits for; empty
        if the workers do not sum up among themselves.
      asks_for_sums: bool, whether a worker asks another one for each piece of a sum, as TensorFlow
        does, and so waits for a round trip; otherwise the pieces come unasked.
      gathered: tensor, what all workers send each other, [num_workers, ...], from which `sums` are
        made; None if sums themselves go around.
      gate: `Gate` of this worker, or None.
      pulls: list of lists of tensors, one for each pull in a run; None if `pull` is the only one.
        `pull` is the first; run by itself, it also reads what to feed to the others.
      pushes: list of triples, one for each push in a run: the tensors that this worker pushes; the
        same on the ps, after the pushes before, to be fed when this push is run alone; and its
        dict of tensors, as `push`. None if `push` is the only one.
      not_recorded: string, why the order of pulls and pushes does not determine a run of this
        scheme, so that `recorder` cannot record it; None if it does.
      not_simulated: string, why one scheme in one session cannot play all workers, so that the
        simulation leaves it out; None if it can.
      not_compared: string, why the advisor leaves it out, which compares schemes whose workers
        train a common center on examples of their own, and so does most of the study; None if not.
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      tables_stay_on_ps: bool, whether the scheme can leave a table on the ps and read its rows.
        Otherwise each worker has the whole table.
      train_op: dict of tensors to run again and again, all parts at once: 'global_step' after the
        run's update, the figures of `computed`, and others: 'staleness' of each update, the number
        of updates by other workers between its pull and its push; or 'dropped', the share of its
        pushes that came too late to count.
      exchanges: list of `schedule.Pull` and `schedule.Push`, all of a run in order; by default as
        `schedule.of` spreads them.
      fragment: list of ints, the places of the network's variables that a run exchanges, in
        ascending order; None for all.
      beginning: `Beginning`, or None.
      others: list of further `Seam`, if not every run of the scheme is the same one: see `at`.
      network, task_index, num_workers: as given.
    """

    complete: Optional[tf.Tensor] = None
    finish: Optional[dict] = None
    gathered: Optional[tf.Tensor] = None
    gate: Optional[Gate] = None
    pulls: Optional[list] = None
    pushes: Optional[list] = None
    exchanges: Optional[list] = None
    fragment: Optional[list] = None
    beginning: Optional['Beginning'] = None
    not_recorded: Optional[str] = None
    not_simulated: Optional[str] = None
    not_compared: Optional[str] = None
    asks_for_sums = True
    tables_stay_on_ps = True

    @staticmethod
    def local_steps(hparams):
        """Returns the number of local steps, each on a fresh batch, in one run of `train_op`."""
        return getattr(hparams, 'communication_window', 1)

    @staticmethod
    def worker_device(task_index):
        """Returns the device of a worker, for ops that belong there whatever the scope says."""
        return f'/job:worker/task:{task_index}'

    @staticmethod
    def why_not_simulated(hparams):
        """Returns why a scheme that is simulated is not with these hyperparameters; or None."""
        del hparams

    @classmethod
    def batches(cls, hparams):
        """Returns the number of batches that one run of `train_op` takes."""
        return cls.local_steps(hparams) * getattr(hparams, 'accumulate', 1)

    def local_steps_per_count(self, hparams):
        """Returns how many local steps, of all workers, there are to one global step.

        It may be a function of the global step, see `recipe.Pace`.
        """
        return self.local_steps(hparams)

    def __init__(self, network, global_step, hparams, task_index, num_workers):
        """Makes the ops.

        Args:
          network: `building.Network` or `toy.Problem` to train.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the scheme's hyperparameters as attributes, named as its flags.
          task_index: int, the index of this worker.
          num_workers: int, the number of workers; None if it is not known.

        Raises:
          SystemExit: naming an attribute that `make` has set to a value of another type.
        """
        self.task_index, self.num_workers = task_index, num_workers
        self._have_none()
        self.network = network
        network.shared_by(num_workers)
        network.set_pace(global_step, hparams, self.local_steps_per_count(hparams))
        self.make(network, global_step, hparams, task_index, num_workers)
        self._check()
        network.check_constraints()
        network.finish()
        self._keep_own_state()
        if network.state:
            self._with_state(network.state, global_step)
        if network.averages and self.complete is None:
            self.push['global_step'] = network.averages.follow(self.push['global_step'])
        if self.exchanges is None:
            self.exchanges = schedule.of(self, self.local_steps(hparams))
        self.train_op = dict(self.computed, **(self.finish or self.push))

    def make(self, network, global_step, hparams, task_index, num_workers):
        """Makes the parts of a scheme; the arguments are those of the constructor."""
        raise NotImplementedError

    def index_to_feed(self):
        """Returns the index of this worker as a tensor, one of `workers`, on the scope's device."""
        worker = tf.constant(self.task_index, tf.int64)
        self.workers = self.workers + [worker]
        return worker

    def _have_none(self):
        """Makes the lists of parts, without any."""
        self.stamps, self.own, self.workers, self.sums, self.hooks = [], [], [], [], []
        self.others = []

    def _check(self):
        """Ends the program if an attribute has another type than this class documents."""
        lists = dict.fromkeys(('pull', 'pushed', 'stamps', 'own', 'workers', 'sums', 'hooks',
                               'others'), list)
        optional = dict(gathered=tf.Tensor, gate=Gate, pulls=list, pushes=list, fragment=list,
                        beginning=Beginning, not_recorded=str, not_simulated=str, not_compared=str,
                        finish=dict)
        for name, kind in dict(lists, computed=dict, push=dict, **optional).items():
            value = getattr(self, name, None)
            if not isinstance(value, kind) and not (value is None and name in optional):
                sys.exit(f'{type(self).__name__}.{name} is {value!r}, but this is the name of a '
                         'part of every scheme: see tfdist/scheme/seam.py. Set it to such a part, '
                         'or use another name.')
        if (self.pulls is None) != (self.pushes is None):
            sys.exit(f'{type(self).__name__} has only one of `pulls` and `pushes`. A scheme that '
                     'pulls or pushes several times in a run needs both: see '
                     'tfdist/scheme/seam.py.')

    def so_far(self, local_steps):
        """Returns a `Seam` for `others`, whose run ends with what `make` has made until now.

        Args:
          local_steps: int, how many local steps the run has, which its train op tells.
        """
        other = copy.copy(self)
        other._keep_own_state()
        state = self.network.state
        if state:  # as of the last batch so far
            other.pull, other.pushed = self.pull + state.pull, self.pushed + state.pushed
        other.exchanges = schedule.of(other, local_steps)
        other.train_op = dict(other.computed, **(other.finish or other.push),
                              local_steps=tf.constant(local_steps))
        return other

    def _keep_own_state(self):
        """Has a run keep the local variables of the model, as the last batch so far left them."""
        own = self.network.own
        if own:
            self.own = self.own + own.variables
            with tf.control_dependencies([own.push()]):
                for figures in self.computed, self.finish or {}:
                    if 'loss' in figures:
                        figures['loss'] = tf.identity(figures['loss'])

    def _with_state(self, state, global_step):
        """Adds the state that the model itself assigns to, unless `make` has pushed it."""
        if not state.pushed:
            # Whole changes of all, each from a value read before the others', would overshoot.
            with tf.control_dependencies([state.push(1 / (self.num_workers or 1))]):
                with tf.device(global_step.device):
                    self.push['global_step'] = tf.identity(self.push['global_step'])
        self.pull = self.pull + state.pull
        self.pushed = self.pushed + state.pushed

    def at(self, step):
        """Returns the `Seam` whose parts a run has that begins at a global step, an int.

        It is this one, unless overridden, or one of `others`. All of them have the same `wait`.
        """
        del step
        return self

    def wait(self):
        """Returns when this worker may begin its next run: at once, unless overridden."""


class Beginning(Seam):
    """What a worker does once in each session, before its first run: it reads the center.

    Of a `Seam` it has `pull`, all that it reads; `computed`, which updates `own`; and `exchanges`.
    """

    def __init__(self, pull, computed):
        """Takes a list and a dict of tensors."""
        self._have_none()
        self.pull, self.pushed, self.computed, self.push = pull, [], computed, {}
        self.exchanges = [schedule.Pull(0, pull)]
