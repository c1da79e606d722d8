"""A step that all workers make together: a strict barrier on the parameter servers."""

import copy
import threading
import time

from absl import flags
from tfdist.cluster import patience
from tfdist.scheme import compression, exchange, seam, tables, transfer, volatile_table
from tfdist.synchronous import (accumulators, contributions, entrance, liars, robust_means, stamps,
                                succession, tokens)
from tfdist.training import sessions, stopping
from tfdist.start.quiet import tf

flags.DEFINE_integer('replicas_to_aggregate', None, 'how many pushes make a step; by default as '
                     'many as there are workers, with fewer the others are backups', lower_bound=1)
_TOKENS_SECS = 10  # far more than it takes to give them


def pushes_per_step(hparams, num_workers):
    """Returns how many workers' pushes make a step, an int.

    Args:
      hparams: object with the attribute replicas_to_aggregate, an int or None for all workers.
      num_workers: int, the number of workers.

    Raises:
      SystemExit: if there are fewer workers than pushes are needed.
    """
    if (hparams.replicas_to_aggregate or 0) > num_workers:
        raise SystemExit(f'--replicas_to_aggregate={hparams.replicas_to_aggregate}, but there are '
                         f'{num_workers} workers: no step would ever be complete.')
    return hparams.replicas_to_aggregate or num_workers


class Barrier(tf.train.SessionRunHook):
    """The push of a synchronous scheme, and the wait for the other workers: a hook.

    A worker adds its gradients, with the stamp of its step, to accumulators on the ps, and waits
    for a token, which is its next stamp. The chief takes the mean of enough gradients, applies it,
    counts a step, and gives each worker a token. Gradients with an old stamp are dropped, as is a
    worker's second push in a step. The chief does this in the same run as its own push; with backup
    workers, which may complete a step without the chief's push, a thread does it, up to the last
    step.

    Attributes:
      worker: int64 scalar tensor, the index of this worker.
      stamps: list of integer scalar tensors, the step to which each gradient belongs: that of this
        worker's stamp, or -1 if it has pushed in that step already, or the step is none of its
        turn. A gradient of an older step than the global step is dropped.
      push: dict of tensors that adds the gradients without waiting: 'dropped', float32, 1 if they
        came too late, else 0, as of just before they came.
      complete: integer scalar tensor. Running it completes a step, and returns the global step. It
        blocks until enough workers have pushed, and gives no tokens.
      finish: dict of tensors that pushes, and is there when the step is complete: 'global_step'
        after the step; 'dropped': whether the push did not count in it; and 'last_step', see
        `stopping.LastStep`, if training may end early.
      done: tensor on the ps, of `finish`: what is read after it is as the step has left it.
    """

    def __init__(self, optimizer, gradients, variables, global_step, hparams, task_index,
                 num_workers, before=(), averages=None, turn=None):
        """Makes the ops.

        Args:
          optimizer: `tf.train.Optimizer` that applies the mean on the ps.
          gradients: list of tensors, one for each variable.
          variables: list of `tf.Variable` and `tables.Rows`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes replicas_to_aggregate (None for all) and train_steps;
            stop_after_evals_without_gain, if training may end early; and aggregate, if the ps makes
            something else of the pushes than their mean.
          task_index: int, the index of this worker; 0 is the chief.
          num_workers: int, the number of workers.
          before: list of ops to run before a push counts.
          averages: `averages.Averages` that follow each step, or None.
          turn: `stamps.Turn`, the steps that this barrier makes, by default all. If barriers take
            turns, the first one is the hook for all.
        """
        self._train_steps = hparams.train_steps
        self._last_step = (stopping.LastStep(global_step).value
                           if getattr(hparams, 'stop_after_evals_without_gain', 0) else None)
        self._is_chief = task_index == 0
        self._thread = None  # the chief's, see `after_create_session`
        self._turn = turn
        self._number = pushes_per_step(hparams, num_workers)
        self._contributions = None  # without backups all workers contribute to each step
        self._robust_mean = robust_means.asked_for(getattr(hparams, 'aggregate', 'mean'),
                                                   self._number)
        self._accumulators = accumulators.Accumulators(variables, self._robust_mean)
        self._variables, self._step = variables, global_step
        self._clock = stamps.Clock(global_step)
        with tf.device(global_step.device):
            self.worker = tf.constant(task_index, tf.int64)
            self._tokens = tokens.Tokens(task_index, range(num_workers) if self._is_chief else ())
            self._local = stamps.Local(task_index, global_step.device)
            # A read apart from those of a push, which wait in a recorded run.
            self._step_now = global_step.read_value()
            pushed = self._make_push(gradients, before, num_workers)
            self._make_complete(optimizer, averages)
            self.done = self._make_result(pushed)
            if not turn or not turn.number:
                self._make_join()
        self.finish = self._unpacked(self.done)

    def again(self, gradients, before, num_workers):
        """Returns a `Barrier` of the same steps for a run that pushes other gradients.

        A worker makes either run in a step. Both share `complete`, and one of the two is the hook.
        See the constructor for the arguments.
        """
        other = copy.copy(self)
        with tf.device(self._step.device):
            other.done = other._make_result(other._make_push(gradients, before, num_workers))
        other.finish = self._unpacked(other.done)
        return other

    def _make_push(self, gradients, before, num_workers):
        """Makes `push`; returns the op after which all of it has arrived. See the constructor."""
        gradients = transfer.to_ps(gradients, self._variables)
        if before:
            with tf.control_dependencies(before):
                gradients = exchange.arrive(gradients, self._variables)
        with tf.device(self._variables[0].device):
            arrived = tf.identity(gradients[0])
            with tf.device(self._step.device), tf.control_dependencies([arrived]):
                stamp_at_push = self._clock.read()
            with tf.control_dependencies([stamp_at_push]):
                gradients[0] = tf.identity(arrived)
        # The last stamp with which each worker has pushed.
        self._pushed_at = volatile_table.VolatileTable('pushed_at', self._step.device, default=-1)
        step, noted = stamps.step_of(self._local.value), self._local.value
        counts = tf.less(self._pushed_at.read(self.worker), self._local.value)
        if self._turn:  # a push in the turn of another is none
            counts = tf.logical_and(counts, self._turn.has(step))
            noted = tf.where(counts, noted, self._pushed_at.read(self.worker))
        step_to_push = tf.where(counts, step, -tf.ones_like(step))
        stamp = self._local.value - step + step_to_push  # with -1 older than all of its epoch
        pushes = self._accumulators.push(gradients, stamp, self.worker)
        self.stamps = [step_to_push] * len(pushes)
        with tf.control_dependencies(pushes):
            pushed = self._pushed_at.write(self.worker, noted)
        if self._number < num_workers:
            self._contributions = contributions.Contributions(
                self.worker, stamp, num_workers, self._number)
            with tf.control_dependencies([pushed]):
                pushed = self._contributions.note()
        self._late = tf.less(stamp, stamp_at_push)
        with tf.control_dependencies([pushed]):
            self.push = {'dropped': tf.cast(self._late, tf.float32)}
        return pushed

    def _make_complete(self, optimizer, averages):
        """Makes `complete`, and the ops that then give the workers their tokens."""
        count = self._contributions.count if self._contributions else self._number
        ready = [count] if self._contributions else []
        if self._turn:  # an accumulator counts only the steps that are taken from it
            ready += accumulators.refuse_older(self._accumulators.all, self._clock.read())
        with tf.control_dependencies(ready):
            means = self._accumulators.take(
                self._number, count, self._contributions and self._contributions.workers)
        update = optimizer.apply_gradients(
            [(mean, variable.table if isinstance(variable, tables.Rows) else variable)
             for mean, variable in zip(means, self._variables)])
        with tf.control_dependencies([update]):  # not by the optimizer: some count for themselves
            self.complete = self._step.assign_add(1)
        if averages:
            self.complete = averages.follow(self.complete)
        self._next_stamp = self._clock.of(self.complete)
        if self._contributions:
            with tf.control_dependencies([self._contributions.publish(self._next_stamp)]):
                self.complete = tf.identity(self.complete)
                self._next_stamp = tf.identity(self._next_stamp)
        self._give_tokens = self._tokens.give(self._next_stamp, also_mine=self._waits_for_token())

    def _waits_for_token(self):
        """Returns whether this worker's own pushes complete no steps, so that it needs a token."""
        return not self._is_chief or self._contributions is not None

    def _make_result(self, pushed):
        """Returns the tensors of `finish` as one on the ps, so that only one travels.

        Args:
          pushed: the op that `_make_push` returns.
        """
        if self._waits_for_token():
            with tf.control_dependencies([pushed]):
                stamp = self._tokens.take(self._local.value)
        else:  # this run completes the step
            with tf.control_dependencies([pushed, *self._give_tokens]):
                stamp = tf.identity(self._next_stamp)
        with tf.control_dependencies([self._local.write(stamp)]):
            late = self._contributions.is_missing() if self._contributions else self._late
            result = [stamps.step_of(stamp), tf.cast(late, tf.int64)]
            if self._last_step is not None:  # as of now, after the wait
                result.append(stopping.LastStep(self._step).value)
            return tf.stack(result)

    @staticmethod
    def _unpacked(result):
        """Returns `finish` for what `_make_result` returns, on the worker."""
        step, late, *last_step = tf.unstack(result)
        finish = {'global_step': step, 'dropped': tf.cast(late, tf.float32)}
        if last_step:
            finish['last_step'], = last_step
        return finish

    def _make_join(self):
        """Makes the ops that a worker runs when it begins."""
        with tf.control_dependencies([self._tokens.forget()]):
            self._join = self._local.begin_life(self._clock.read())
        of_center = self._accumulators if not self._turn else accumulators.Accumulators(
            self._turn.center, self._robust_mean)
        every = [*of_center.all,
                 *([self._contributions.accumulator] if self._contributions else [])]
        devices = {each.accumulator_ref.device for each in every} | {self._step.device}
        self._succession = succession.Succession(sorted(devices))
        self._entrance = entrance.Entrance(every, self._clock, lambda: self._tokens.give(
            self._clock.read(), also_mine=False))

    def after_create_session(self, session, coord):
        """Joins at the current step when the entrance is open; the chief opens it."""
        if self._is_chief:
            patience.PATIENCE.expect('a run of an earlier chief has not ended')
            self._succession.begin(session)
            self._entrance.open(session)
        else:
            patience.PATIENCE.expect('the chief, worker 0, has not let this worker begin')
            while not self._entrance.is_open(session):
                if self._is_over(session):
                    return  # the chief may have ended
                time.sleep(0.05)
        session.run(self._join)
        if self._is_chief and self._contributions:
            self._thread = threading.Thread(target=self._complete_steps, args=(session,),
                                            daemon=True)
            self._thread.start()

    def _is_over(self, session):
        """Returns whether the last step is complete."""
        ops = [self._step_now] + ([] if self._last_step is None else [self._last_step])
        step, *last_step = session.run(ops)
        return step >= min([self._train_steps, *last_step])

    def _complete_steps(self, session):
        """Completes steps for all workers, up to the last step."""
        with sessions.closed_if_it_fails(session):
            step, last_step = session.run(self._step_now), self._train_steps
            ops = [self.complete, self._give_tokens]
            ops += [] if self._last_step is None else [self._last_step]
            complete = session.make_callable(ops)
            while step < last_step:
                step, _, *rest = complete()
                last_step = min([last_step, *rest])

    def end(self, session):
        """Lets the chief give all workers the tokens of the last step."""
        if self._thread:
            self._thread.join(_TOKENS_SECS)


class Synchronous(seam.Seam):
    """A scheme in which all workers make each step together: `make` calls `meet` at its end.

    Attributes:
      barrier: `Barrier`, the first of the hooks; None if there is none.
      pushes_gradients: bool, whether what the workers push is the gradient of one step each.
      stamps: see `Barrier`.
    """

    barrier = None
    pushes_gradients = False

    def local_steps_per_count(self, hparams):
        pushes = pushes_per_step(hparams, self.num_workers)
        return pushes * self.local_steps(hparams)

    def meet(self, optimizer, gradients, network, global_step, hparams, task_index, num_workers,
             variables=None, turn=None):
        """Makes the barrier, and from it the parts that push and complete; see `Barrier`.

        The `variables` are by default those of the network. Called again, it makes these parts for
        other gradients, at the same barrier: see `others`.
        """
        variables = network.variables if variables is None else variables
        # The state that the model assigns to becomes the mean of all workers' states.
        before = [network.state.push(1 / num_workers)] if network.state else []
        if not self.barrier:
            self._compressed = compression.of(self, hparams, variables,
                                              optimizer if self.pushes_gradients else None)
            self.own = self.own + self._compressed.own
        self.pushed, gradients = self._compressed.sent(liars.lie(self, gradients, hparams))
        if self.barrier:
            self.barrier = self.barrier.again(gradients, before, num_workers)
        else:
            self.barrier = Barrier(optimizer, gradients, variables, global_step, hparams,
                                   task_index, num_workers, before, network.averages, turn)
            self.workers = self.workers + [self.barrier.worker]
        network.constrains = True
        self.stamps, self.complete = self.barrier.stamps, self.barrier.complete
        # Each by itself: in training only the second one knows whether the push was dropped.
        self.push = self._compressed.arrived(self.barrier.push)
        self.finish = self._compressed.arrived(self.barrier.finish)
        self.hooks = [self.barrier]
        if pushes_per_step(hparams, num_workers) < num_workers:
            self.not_recorded = ('a worker may pull while backup workers complete a step, and see '
                                 'half of it')
