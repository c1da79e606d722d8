"""A step of all workers together, on `tf.train.SyncReplicasOptimizer`: a strict barrier, an end."""

import threading

from absl import flags
from tfdist import exchange, seam, sessions, stopping, tables, transfer
from tfdist.quiet import tf

flags.DEFINE_integer('replicas_to_aggregate', None, 'how many pushes make a step; by default as '
                     'many as there are workers, with fewer the others are backups', lower_bound=1)


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

    A worker adds its gradients, stamped with its local step, to accumulators on the ps and waits
    for a token. The chief takes the mean of enough gradients, applies it, counts a step, and puts
    tokens into a queue. Gradients with an old stamp are dropped.

    TensorFlow's own hook for this class has two faults, which this one mends. It puts tokens into
    the queue before the first step, so that nobody waits in it. And its queue runner does the
    chief's part for ever: after the last step it waits for gradients that nobody will send, and
    keeps the program from its end. Here the chief does it in the same run as its own push, which is
    one run less for each step. With backup workers, who may complete a step without the chief's
    push, a thread does it, up to the last step.

    Attributes:
      pushed: list of tensors, this worker's gradients.
      stamps: list of integer scalar tensors, the step to which each of them belongs: this worker's
        local step. Those that are older than the global step are dropped.
      push: dict of tensors to run, which adds them, without a wait: 'dropped', float32, 1 if the
        first gradient came too late, else 0.
      complete: integer scalar tensor. To run it completes a step; it is the global step then. It
        blocks until enough have pushed, and gives nobody a token.
      finish: dict of tensors to run, which pushes and returns when the step is complete:
        'global_step' after it, and 'dropped'.
    """

    def __init__(self, optimizer, gradients, variables, global_step, hparams, task_index,
                 num_workers, before=(), averages=None):
        """Makes the ops.

        Args:
          optimizer: `tf.train.Optimizer`, applies the mean on the ps.
          gradients: list of tensors, one for each variable.
          variables: list of `tf.Variable` and `tables.Rows`, the center.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the attributes replicas_to_aggregate (None for all), train_steps and
            patience_secs.
          task_index: int, which worker this is; 0 is the chief.
          num_workers: int, how many there are.
          before: list of ops that have run before a push counts.
          averages: `averages.Averages` that follow each step, or None.
        """
        self._train_steps = hparams.train_steps
        self._board = (stopping.Board(global_step)
                       if getattr(hparams, 'stop_after_evals_without_gain', 0) else None)
        self._patience_secs = hparams.patience_secs
        self._is_chief = task_index == 0
        self._joined = False
        self._thread = None  # does the chief's part if there are backup workers
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
                wait = sync.apply_gradients(tables.of_optimizer(gradients, variables), global_step)
            made = [op for op in tf.get_default_graph().get_operations() if op not in others]
            pushes = [op for op in made if op.type.endswith('AccumulatorApplyGradient')]
            for op in made:
                if op.type == 'SparseConditionalAccumulator':  # see tables.MeansOfSums
                    op._set_attr('reduction_type', tf.AttrValue(s=b'SUM'))
            self.stamps = [op.inputs[1] for op in pushes]
            late = tf.cast(tf.less(self.stamps[0], step_at_push), tf.int64)
            with tf.control_dependencies(pushes):
                self.push = {'dropped': tf.cast(late, tf.float32)}
            local_step, = local_steps
            self._complete, = sync.get_chief_queue_runner().enqueue_ops
            queue, tokens = self._complete.inputs
            if averages:
                tokens = averages.follow(tokens)
                self._complete = tf.raw_ops.QueueEnqueueManyV2(handle=queue, components=[tokens])
            self.complete = tokens[0]
            if self._is_chief and not self._backups:
                # It needs no token: the step is complete when this run is.
                for_the_others = tf.raw_ops.QueueEnqueueManyV2(handle=queue,
                                                               components=[tokens[1:]])
                with tf.control_dependencies([*pushes, for_the_others]):
                    wait = local_step.assign(global_step.read_value())
            with tf.control_dependencies([wait]):
                both = tf.stack([local_step.read_value(), late])  # they travel as one
        step, late = tf.unstack(both)
        self.finish = {'global_step': step, 'dropped': tf.cast(late, tf.float32)}
        # TensorFlow complains of its ready op if that is never used.
        with tf.control_dependencies([sync.ready_for_local_init_op]):
            self._join = tf.group(sync.chief_init_op if self._is_chief
                                  else sync.local_step_init_op)
        self._release = sync.get_init_tokens_op(num_workers if self._backups else num_workers - 1)
        self._global_step = global_step

    def after_create_session(self, session, coord):
        """Joins at the current step; the chief begins its part, too."""
        session.run(self._join)  # puts no tokens into the queue: the barrier holds from now on
        if self._is_chief and self._joined:
            # A ps died. What some pushed is lost with it, or was dropped before accumulators on
            # another ps were set back: they would wait for ever. They push again.
            session.run(self._release)
        self._joined = True
        if self._is_chief and self._backups:
            self._thread = threading.Thread(target=self._complete_steps, args=(session,),
                                            daemon=True)
            self._thread.start()

    def _complete_steps(self, session):
        """The chief's part, up to the last step."""
        try:
            with sessions.failures_of_ps():
                step, last_step = session.run(self._global_step), self._train_steps
                ops = [self._complete] + ([self._board.last_step] if self._board else [])
                complete = session.make_callable(ops)
                while step < last_step:
                    last_step = min([last_step, *complete()[1:]])
                    step += 1  # nobody else counts, and to fetch it would be one more transfer
        except (tf.errors.AbortedError, tf.errors.UnavailableError, RuntimeError):
            pass  # a ps died, or the session was closed: with a new one comes a new thread

    def end(self, session):
        """The chief sees to it that everybody gets the tokens of the last step."""
        if self._thread:
            self._thread.join(self._patience_secs)


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
