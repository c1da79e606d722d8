"""A step of all workers together, on `tf.train.SyncReplicasOptimizer`: a strict barrier, an end."""

import threading
import time

from absl import flags
from tfdist import (ballots, exchange, gate, ledger, overtaken, patience, seam, sessions,
                    stopping, tables, tokens, transfer)
from tfdist.quiet import tf

flags.DEFINE_integer('replicas_to_aggregate', None, 'how many pushes make a step; by default as '
                     'many as there are workers, with fewer the others are backups', lower_bound=1)
_TOKENS_SECS = 10  # to give them takes far less


def pushes_per_step(hparams, num_workers):
    """Returns how many workers' pushes make a step, an int.

    Args:
      hparams: object with the attribute replicas_to_aggregate, an int or None for all workers.
      num_workers: int, how many there are.

    Raises:
      SystemExit: if there are fewer workers than that.
    """
    if (hparams.replicas_to_aggregate or 0) > num_workers:
        raise SystemExit(f'--replicas_to_aggregate={hparams.replicas_to_aggregate}, and there are '
                         f'{num_workers} workers: no step would ever be complete.')
    return hparams.replicas_to_aggregate or num_workers


class Barrier(tf.train.SessionRunHook):
    """The push of a synchronous scheme, and the wait for the others'. Give it as a hook.

    A worker adds its gradients, stamped with its local step, to accumulators on the ps, and waits
    for a token: the step that it goes on with. The chief takes the mean of enough gradients,
    applies it, counts a step, and gives each worker its token. Gradients with an old stamp are
    dropped, and so is the second push of a worker in a step.

    TensorFlow's own hook for this class has three faults, which this one mends. It puts tokens into
    the queue before the first step, so that nobody waits in it. All wait for the same tokens: a
    worker may take a slower one's, and push twice in one step. And its queue runner does the
    chief's part for ever, and keeps the program from its end. Here the chief does it in the same
    run as its own push, one run less for each step. With backup workers, who may complete a step
    without the chief's push, a thread does it, up to the last step.

    Attributes:
      pushed: list of tensors, this worker's gradients.
      stamps: list of integer scalar tensors, the step to which each of them belongs: this worker's
        local step, or -1 if it has pushed in that. Those that are older than the global step are
        dropped.
      push: dict of tensors to run, which adds them, without a wait: 'dropped', float32, 1 if they
        came too late, else 0; just before they came.
      complete: integer scalar tensor. To run it completes a step; it is the global step then. It
        blocks until enough have pushed, and gives nobody a token.
      finish: dict of tensors to run, which pushes and returns when the step is complete:
        'global_step' after it, and 'dropped': whether the push has not counted in it.
    """

    def __init__(self, optimizer, gradients, variables, global_step, hparams, task_index,
                 num_workers, before=(), averages=None):
        """Makes the ops.

        Args:
          optimizer: `tf.train.Optimizer`, applies the mean on the ps.
          gradients: list of tensors, one for each variable.
          variables: list of `tf.Variable` and `tables.Rows`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes replicas_to_aggregate (None for all) and train_steps.
          task_index: int, which worker this is; 0 is the chief.
          num_workers: int, how many there are.
          before: list of ops that have run before a push counts.
          averages: `averages.Averages` that follow each step, or None.
        """
        self._train_steps = hparams.train_steps
        self._board = (stopping.Board(global_step)
                       if getattr(hparams, 'stop_after_evals_without_gain', 0) else None)
        self._is_chief = task_index == 0
        self._thread = None  # of the chief, see `after_create_session`
        needed = pushes_per_step(hparams, num_workers)
        self._backups = num_workers - needed
        sync = tf.train.SyncReplicasOptimizer(tables.MeansOfSums(optimizer, needed), needed,
                                              num_workers)
        self.pushed = gradients
        gradients = transfer.to_ps(gradients, variables)
        if before:
            with tf.control_dependencies(before):
                gradients = exchange.arrive(gradients, variables)
        with tf.device(variables[0].device):
            arrived = tf.identity(gradients[0])
            with tf.device(global_step.device), tf.control_dependencies([arrived]):
                step_at_push = global_step.read_value()
            with tf.control_dependencies([step_at_push]):
                gradients[0] = tf.identity(arrived)
        local_steps = []

        # The local step lives on the ps, where all that reads and writes it is; by a name of this
        # worker's own, or all would share one.
        def create(next_creator, **kwargs):
            if kwargs['name'] != 'sync_rep_local_step':
                return next_creator(**kwargs)
            local_steps.append(next_creator(**dict(kwargs, name=f'{kwargs["name"]}_{task_index}')))
            return local_steps[0]

        others = set(tf.get_default_graph().get_operations())
        with tf.device(global_step.device):
            with tf.variable_creator_scope(create):
                sync.apply_gradients(tables.of_optimizer(gradients, variables), global_step)
            made = [op for op in tf.get_default_graph().get_operations() if op not in others]
            pushes = [op for op in made if op.type.endswith('AccumulatorApplyGradient')]
            takes = [op for op in made if op.type.endswith('AccumulatorTakeGradient')]
            for op in made:
                if op.type == 'SparseConditionalAccumulator':  # see tables.MeansOfSums
                    op._set_attr('reduction_type', tf.AttrValue(s=b'SUM'))
            local_step, = local_steps
            # For runs that do not push: `order` has the reads of a push wait.
            self._local_step, self._global_step = local_step.read_value(), global_step.read_value()
            step_to_push = local_step.read_value()
            me = tf.constant(task_index, tf.int64)
            voted = ledger.Ledger('voted', global_step.device, default=-1)
            stamp = tf.where(tf.less(voted.read(me), step_to_push), step_to_push,
                             -tf.ones_like(step_to_push))
            for op in pushes:
                op._update_input(1, stamp)  # in the place of the local step
            self.stamps = [stamp] * len(pushes)
            with tf.control_dependencies(pushes):
                vote = voted.write(me, step_to_push)
            self.complete = sync.get_chief_queue_runner().enqueue_ops[0].inputs[1][0]
            if averages:
                self.complete = averages.follow(self.complete)
            accumulators = [accumulator for accumulator, _ in sync._accumulator_list]
            if self._backups:
                box = ballots.Box(me, stamp, num_workers)
                accumulators.append(box.accumulator)
                with tf.control_dependencies([vote]):
                    vote = box.vote()
                self.complete = box.count(needed, self.complete, takes)
            late = tf.less(stamp, step_at_push)
            with tf.control_dependencies([vote]):
                self.push = {'dropped': tf.cast(late, tf.float32)}

            own_tokens = tokens.Tokens(task_index, range(num_workers) if self._is_chief else ())
            with_token = not self._is_chief or self._backups
            self._complete = own_tokens.give(self.complete, also_mine=with_token)
            if with_token:
                with tf.control_dependencies([vote]):
                    step = own_tokens.take()
            else:  # the step is complete when this run is
                with tf.control_dependencies([vote, self.complete, *self._complete]):
                    step = global_step.read_value()
            with tf.control_dependencies([local_step.assign(step)]):
                if self._backups:
                    late = box.has_not_counted()
                both = tf.stack([local_step.read_value(), tf.cast(late, tf.int64)])  # as one
            with tf.control_dependencies([own_tokens.forget(global_step.read_value())]):
                self._join = local_step.assign(global_step.read_value())
            # Who waits on a ps that lives, in a run that another one's loss has spoiled, goes on.
            release = own_tokens.give(global_step.read_value(), also_mine=False)
        step, late = tf.unstack(both)
        self.finish = {'global_step': step, 'dropped': tf.cast(late, tf.float32)}
        # TensorFlow complains of some of these if they are never used.
        self._gate = gate.Gate(accumulators, global_step, [
            sync.ready_for_local_init_op, sync.chief_init_op, voted.clear(), *release])

    def after_create_session(self, session, coord):
        """Joins at the current step, when the gate is open; the chief begins its part, too."""
        if self._is_chief:
            self._gate.open(session)
        else:
            patience.PATIENCE.expect('the chief, worker 0, has not opened the gate')
            while not self._gate.is_open(session):
                time.sleep(0.05)
        session.run(self._join)
        if self._is_chief:
            self._thread = threading.Thread(target=self._beside, args=(session,), daemon=True)
            self._thread.start()

    def _beside(self, session):
        """What the chief does beside its own steps."""
        with sessions.until_it_ends():
            if self._backups:
                self._complete_steps(session)
            else:
                overtaken.watch(session, self._local_step, self._global_step)

    def _complete_steps(self, session):
        """The chief's part, up to the last step."""
        step, last_step = session.run(self._global_step), self._train_steps
        ops = [self.complete, self._complete] + ([self._board.last_step] if self._board else [])
        complete = session.make_callable(ops)
        while step < last_step:
            step, _, *rest = complete()
            last_step = min([last_step, *rest])

    def end(self, session):
        """The chief sees to it that everybody gets the tokens of the last step."""
        if self._backups and self._thread:
            self._thread.join(_TOKENS_SECS)


class Synchronous(seam.Seam):
    """A scheme of which all workers take each step together: `make` calls `meet` at its end.

    Attributes:
      barrier: the `Barrier`, the first of the hooks, or None without one.
      stamps: see `Barrier`.
    """

    barrier = None

    def meet(self, optimizer, gradients, network, global_step, hparams, task_index, num_workers):
        """Makes the barrier, and of it the parts that push and complete; see `Barrier`."""
        # What the model itself assigns to becomes the mean of what all workers make of it.
        before = [network.state.push(1 / num_workers)] if network.state else []
        self.barrier = Barrier(optimizer, gradients, network.variables, global_step, hparams,
                               task_index, num_workers, before, network.averages)
        self.pushed, self.stamps = self.barrier.pushed, self.barrier.stamps
        self.push, self.complete = self.barrier.push, self.barrier.complete
        self.finish = self.barrier.finish
        self.hooks = [self.barrier]
