"""Sessions: what they are configured with, how a worker gets one, and how it trains in it."""

import contextlib

from absl import flags
from tfdist import batches, notes, patience, stopping, traffic
from tfdist.quiet import tf

FLAGS = flags.FLAGS  # those of task_flags, too: a program that asks for a `config` has them


def config(**options):
    """Makes the `tf.ConfigProto` of a server and of its sessions.

    Args:
      **options: fields of `tf.ConfigProto`, besides the pools of --num_threads threads.
    """
    options.setdefault('gpu_options', tf.GPUOptions(allow_growth=True))
    return tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                          inter_op_parallelism_threads=FLAGS.num_threads, **options)


@contextlib.contextmanager
def failures_of_ps():
    """Lets a session recover from all that TensorFlow raises when a call to a ps fails.

    `tf.train.MonitoredSession` makes a new session after `AbortedError` and `UnavailableError`.
    TensorFlow 2.21 may say `CancelledError` instead, for another part of the same call. One that
    was closed meanwhile, see `overtaken`, is made anew, too.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error
    except RuntimeError as error:
        if 'closed Session' not in str(error):
            raise
        raise tf.errors.AbortedError(None, None, str(error)) from error


@contextlib.contextmanager
def until_it_ends():
    """Ends what a thread does in a session when a ps fails, or the session is closed."""
    with contextlib.suppress(tf.errors.AbortedError, tf.errors.UnavailableError):
        with failures_of_ps():
            yield


class WorkerSessionCreator(tf.train.SessionCreator):
    """Gives a worker its session as soon as the chief has initialized the parameters.

    TensorFlow's own looks again only after 30 s, at the start and when a ps came back.
    """

    def __init__(self, master, config):
        """See `tf.train.WorkerSessionCreator`; the graph must be complete."""
        self._master = master
        self._config = config
        global_variables = tf.global_variables()
        self._manager = tf.train.SessionManager(
            ready_for_local_init_op=tf.report_uninitialized_variables(global_variables),
            local_init_op=tf.group(tf.local_variables_initializer(), tf.tables_initializer()),
            ready_op=tf.report_uninitialized_variables(global_variables + tf.local_variables()),
            graph=tf.get_default_graph(), recovery_wait_secs=0.2)

    def create_session(self):
        """Returns a `tf.Session`."""
        tf.get_default_graph().finalize()
        patience.PATIENCE.expect('the chief, worker 0, has not initialized the parameters')
        return self._manager.wait_for_session(self._master, config=self._config)


class PastTheHooks(tf.train.SessionRunHook):
    """Trains past the hooks, which ask the ps for the global step in every run.

    It is a hook to get hold of each new session: there is one after each failure of a ps.
    """

    def __init__(self, train_op, wait=None, test=None, board=None):
        """Takes what to run.

        Args:
          train_op: dict of tensors.
          wait: function to call before each run, which returns when it may begin; or None.
          test: `evaluation.Test`, for the notes of the process that tests; or None.
          board: string, the device of `stopping.Board`; by default that of the global step.
        """
        self._train_op = dict(train_op)
        if FLAGS.stop_after_evals_without_gain:
            step = tf.train.get_global_step()
            self._train_op['last_step'] = stopping.Board(step, board).last_step
        self._wait = wait
        self._notes = notes.asked_for(test)

    def begin(self):
        patience.PATIENCE.expect('the parameters are not initialized')

    def after_create_session(self, session, coord):
        patience.PATIENCE.expect('the step is not complete')
        run = session.make_callable(self._train_op)
        self._run = self._notes.on(session, self._train_op, run) if self._notes else run

    def run(self):
        """Waits until this worker may go on, and returns the values of one run of `train_op`."""
        if self._wait:
            self._wait()
        try:
            result = self._run()
        except tf.errors.OpError as error:  # no context manager: this is the hot path
            batches.check(error)
            raise
        patience.PATIENCE.heard()
        return result

    def end(self, session):
        patience.PATIENCE.expect('the session is not closed')


def traced(session, train_op, progress, local_steps=1):
    """Trains a few steps with a trace.

    Args:
      session: `tf.train.MonitoredSession`.
      train_op: dict of tensors.
      progress: `report.Progress`, gets the results.
      local_steps: int, how many a run of `train_op` makes.

    Returns:
      What one run sends, see `traffic.between_tasks`; nothing if there are no steps left to train.
    """
    def train(step_context):
        with failures_of_ps(), batches.failures():
            return traffic.trace(step_context.session, train_op, progress, FLAGS.train_steps,
                                 local_steps)

    return traffic.between_tasks(session.run_step_fn(train))
