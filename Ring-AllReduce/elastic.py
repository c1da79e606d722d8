"""A ring that breaks up when a worker is lost, or when another one asks to join: --min_workers."""

import contextlib
import os
import sys
import threading
import time

from tfdist.cluster import awake_clock, patience
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf
import agreement
import ring

# Of a step that takes longer than the first number of seconds, the others are asked whether they
# are alive; than the second one, whether they are still in this ring.
_LOOK_SECS, _ASK_SECS = 2, 4
# When the queues are closed, runs return; later the session is closed, and at last left alone.
_CLOSE_SECS, _ABANDON_SECS, _APPLY_SECS = 3, 4, 30
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
         tf.errors.OutOfRangeError, tf.errors.DeadlineExceededError)
_BUSY = 0.5  # of a core: a process that uses more is computing, not waiting


class BrokenError(Exception):
    """The ring is no more: this worker needs a new one."""


@contextlib.contextmanager
def failures():
    """Raises `BrokenError` for what TensorFlow raises when a worker of the ring is lost."""
    try:
        yield
    except _LOST as error:
        raise BrokenError from error


class Marks:
    """Tell whether this worker's values are whole: a run may end while a step is applied."""

    def __init__(self, device):
        """Makes two numbers in the memory of the worker on `device`, which outlive sessions."""
        with tf.container('elastic'), tf.device(device), tf.device('/device:CPU:0'):
            self._begun, self._ended = (
                tf.get_variable(name, [], tf.int64, tf.zeros_initializer(), trainable=False,
                                collections=[], use_resource=True)
                for name in ('step_begun', 'step_ended'))
            self._state = self._begun.read_value(), self._ended.read_value()

    def begin(self, inputs, step):
        """Returns a list of ops to run when the inputs of a step are there, before it changes x."""
        with tf.control_dependencies(inputs):
            return [self._begun.assign(step, read_value=False)]

    def end(self, ops, step):
        """Returns the tensor `step`, which is there when `ops` have run and x is whole."""
        with tf.control_dependencies(ops):
            step = tf.identity(step)
            with tf.control_dependencies([self._begun.assign(step, read_value=False),
                                          self._ended.assign(step, read_value=False)]):
                return tf.identity(step)

    @classmethod
    def read(cls, target, worker):
        """Returns the last step that a worker has begun, and whether its values are whole."""
        with tf.Graph().as_default():
            marks = cls(f'/job:worker/task:{worker}')
            try:
                with agreement.short_session(target, worker) as session:
                    begun, ended = session.run(marks._state)
            except tf.errors.FailedPreconditionError:  # it has no values
                return 0, False
        return int(begun), bool(begun == ended)


class Attempt:
    """Training in one ring, in a thread that can be left alone: a lost worker may hold it for ever.

    So does TensorFlow where it makes a session, or runs something for the first time. A run that
    was left alone changes nothing: it needs what comes through queues that are closed.

    Attributes:
      workers: `agreement.Workers`.
      broken: `threading.Event`, whether the ring has broken up.
      left: `threading.Event`, whether the thread has noticed.
    """

    def __init__(self, workers):
        self.workers = workers
        self.broken, self.left = threading.Event(), threading.Event()
        self._lock, self._abandoned = threading.Lock(), False

    @contextlib.contextmanager
    def goes_on(self):
        """A context for what must not happen when this thread was left alone."""
        with self._lock:
            if self._abandoned:
                raise BrokenError
            yield

    def run(self, train):
        """Calls a function in the thread, and raises what it raises; or `BrokenError`."""
        raised = []

        def work():
            try:
                with tf.Graph().as_default():
                    train()
            except BaseException as error:  # for the main thread
                raised.append(error)
            self.left.set()

        threading.Thread(target=work, daemon=True).start()
        while not self.left.wait(0.1):
            if self.broken.is_set() and not self.left.wait(_ABANDON_SECS):
                self._abandon()
                raise BrokenError
        raise raised[0]

    def _abandon(self):
        """Waits until nothing is half applied, and leaves the thread alone."""
        end = time.monotonic() + _APPLY_SECS
        own = self.workers.targets[self.workers.me], self.workers.me
        while not (self.left.wait(0.1) or Marks.read(*own)[1] or time.monotonic() > end):
            pass
        with self._lock:
            self._abandoned = True


class Ring(ring.Ring):
    """A ring that can break up: then its methods raise `BrokenError`.

    Whoever finds out that it has to closes the queues of this ring in its own memory and in that of
    the next worker. So the runs that wait there return, on one worker after the other.
    """

    def __init__(self, resolver, place, variables, exchange, attempt, marks):
        """Makes the ops: see `ring.Ring`; with `Attempt` and `Marks`."""
        self._attempt, self._workers, self._marks = attempt, attempt.workers, marks
        super().__init__(resolver, place, variables, exchange)
        with tf.control_dependencies([self._start]):
            step = tf.train.get_global_step().read_value()
        self._start = marks.end([step], step)
        self._graph = tf.get_default_graph()
        self._others = [worker for worker in place.workers if worker != self._workers.me]
        self._lock, self._session = threading.Lock(), None
        self._broken = attempt.broken
        self._stepped, self._newcomers = awake_clock.seconds(), []

    def take_over(self, variables, values):
        """See `ring.Ring`: while they are taken over, the values are not whole."""
        with tf.control_dependencies(self._marks.begin(values, tf.constant(-1, tf.int64))):
            return super().take_over(variables, values)

    @contextlib.contextmanager
    def failures(self):
        """Raises `BrokenError` for what a run raises when the ring breaks up."""
        try:
            with failures():
                yield
        except (tf.errors.OpError, RuntimeError) as error:
            if self._broken.is_set() or self._exchange and self._exchange.lost:
                raise BrokenError from error
            raise

    def session_options(self, saver, server):
        """See `ring.Ring`: after the first ring nothing is restored, as the values are alive."""
        model_dir, scaffold = self._workers.model_dir(), tf.train.Scaffold(saver=saver)
        if not self._workers.is_first_ring:
            lost = tf.report_uninitialized_variables(tf.global_variables())
            initialize = tf.global_variables_initializer()

            def initialize_lost(_, session):
                with self._attempt.goes_on():
                    if session.run(lost).size:
                        session.run(initialize)

            scaffold = tf.train.Scaffold(saver=saver, init_op=tf.no_op(), init_fn=initialize_lost)
        saves = [tf.train.CheckpointSaverHook(model_dir, FLAGS.save_checkpoint_secs,
                                              scaffold=scaffold)] if model_dir else []
        return dict(checkpoint_dir=model_dir if self._workers.is_first_ring else None,
                    save_checkpoint_secs=None, scaffold=scaffold,
                    hooks=[self, *saves, _End(self, server)])  # saves after the values have come

    def after_create_session(self, session, coord):
        with self._attempt.goes_on():
            self._session = session
        super().after_create_session(session, coord)

    def end(self, session):
        """The end comes after that of the other hooks: see `_End`."""

    @contextlib.contextmanager
    def opened(self, make_session):
        """A context with the session that a function makes, which stays open if the ring breaks up.

        To close it takes as long as one of its workers does not answer.
        """
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            session = make_session()
            with self.failures():
                step = int(session.run(tf.train.get_global_step()))
            with self._attempt.goes_on():
                self._workers.begins(step)
            yield session
            with self.failures():
                session.close()
        except BrokenError:
            self._break_up()
            raise

    def take_in(self):
        """Ends this ring if there is reason for another one. Call it between two steps."""
        self._stepped = awake_clock.seconds()
        if self._newcomers or self._workers.can_save_now():
            raise BrokenError

    def _watch(self):
        """Looks after the other workers until this ring ends."""
        rounds, computed = 0, time.process_time()
        while not self._stop_watching.wait(1) and not self._broken.is_set():
            before, computed = computed, time.process_time()
            rounds += 1
            waits = awake_clock.seconds() - self._stepped
            if waits < _LOOK_SECS:
                self._workers.have_answered(self._others)
            elif self._workers.look(self._others) == self._others and computed - before < _BUSY:
                patience.PATIENCE.count(1., FLAGS.patience_secs, self._name,
                                        lambda: 'all workers answer')
            if any(map(self._workers.is_lost, self._others)) or (
                    waits > _ASK_SECS and self._others and self._workers.has_gone_on(
                        self._others[rounds % len(self._others)], waits > ring.LOST_AFTER_SECS)):
                self._break_up()
            elif not self._place.index:
                self._newcomers = self._workers.newcomers()

    def _break_up(self):
        """Has all runs of this ring return."""
        with self._lock:
            if not self._broken.is_set():
                self._broken.set()
                threading.Thread(target=self._close, daemon=True).start()

    def _close(self):
        """Closes queues, and then the session: in a thread of its own, as it may take long."""
        if self._exchange:
            self._exchange.close()
        following = self._place.workers[(self._place.index + 1) % len(self._place.workers)]
        for worker in [self._workers.me, *self._workers.look([following])]:
            self._close_queues(worker)
        self._attempt.left.wait(_CLOSE_SECS)
        if self._session:
            with contextlib.suppress(tf.errors.OpError):
                self._session.close()

    def _close_queues(self, worker):
        """Closes and empties the queues of this ring in the memory of a worker."""
        with tf.Graph().as_default(), self._place.own_queues():
            queues = []
            for op in self._graph.get_operations():
                if op.type == 'FIFOQueueV2' and f'/task:{worker}/' in op.device and (
                        op.get_attr('container').decode() == self._place.container):
                    with tf.device(op.device):
                        queues.append(tf.FIFOQueue(
                            op.get_attr('capacity'), op.get_attr('component_types'),
                            op.get_attr('shapes'), shared_name=op.get_attr('shared_name').decode()))
            close = [queue.close(cancel_pending_enqueues=True) for queue in queues]
            empty = [tf.nest.flatten(queue.dequeue_up_to(queue.size()))[0].op for queue in queues]
            with contextlib.suppress(tf.errors.OpError), agreement.short_session(
                    self._workers.targets[worker], worker) as session:
                session.run(close)
                session.run(empty)

    def finish(self, session, server):
        """Ends the program when all are done, past its sessions: see `opened`."""
        super().end(session)
        if not self._place.index:
            self.let_leave(server)
            deadline = time.monotonic() + ring.LOST_AFTER_SECS
            while time.monotonic() < deadline and self._workers.look(self._others):
                time.sleep(0.05)
        sys.stdout.flush()
        os._exit(0)


class _End(tf.train.SessionRunHook):
    """Ends the program with the other workers: the last hook."""

    def __init__(self, together, server):
        """Takes the `Ring` and this worker's `tf.train.Server`."""
        self._together, self._server = together, server

    def end(self, session):
        self._together.finish(session, self._server)


class Pace:
    """A `recipe.Pace` that knows how many batches other rings have trained on.

    Attributes:
      accumulate: as of `recipe.Pace`.
    """

    def __init__(self, pace, before):
        """Takes a `recipe.Pace`, and how many batches more there were than it would count."""
        self._pace, self._before, self.accumulate = pace, before, pace.accumulate

    def rate(self, learning_rate, step=None, done=0):
        """See `recipe.Pace`."""
        return self._pace.rate(learning_rate, step, done + self._before)
