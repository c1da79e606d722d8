"""Records some steps of a run, for a picture of what each task did when: --timeline=FILE.png.

Nothing is traced before all workers have made --timeline_after runs of their train op: the first
ones take longer. Then each traces some runs, so that the steps of all are of the same time. The
traces stay in memory, and are written when the process ends: see `timeline_parts`. A model's own
hooks and summaries miss the traced runs.
"""

import atexit
import collections
import os
import statistics
import time

from absl import flags
from tfdist.scheme import seam, volatile_table
from tfdist.start import directories
from tfdist.training import gantt, lanes, timeline_parts, traffic
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf

flags.DEFINE_integer('timeline_after', 50, 'runs of the train op that each worker makes before the '
                     'steps of --timeline, which all trace at the same time', lower_bound=1)

# Runs to trace beyond those to show, of which the typical ones are shown: some have gaps, see
# `traffic.is_whole`.
_MORE_RUNS = 9
_FULL = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
_MADE = []  # the `Timeline` of this process


def asked_for(task_index, num_workers, device):
    """Returns a `Timeline` with --timeline, else None.

    In a process that has several trainers, the first one is traced: the others' runs go on beside
    it. A process that trains anew, as after a loss, traces anew if it has not traced yet.

    Args:
      task_index: int, which of the workers this is; None if only this process trains.
      num_workers: int, how many workers trace; None if it is not known.
      device: string, the device of the global step, where workers tell each other that they are
        ready.

    Raises:
      SystemExit: if no picture can be written there.
    """
    if not FLAGS.timeline:
        return None
    gantt.check()
    directories.make(os.path.dirname(FLAGS.timeline) or '.', 'timeline')
    if _MADE and (_MADE[0].has_begun or _MADE[0].graph is tf.get_default_graph()):
        return None
    if _MADE:
        _MADE[0].forget()
    _MADE[:] = [Timeline(task_index, num_workers, device)]
    return _MADE[0]


class Timeline:
    """The traced steps of this process, written when it ends.

    Attributes:
      graph: `tf.Graph` that is trained.
    """

    def __init__(self, task_index, num_workers, device):
        """See `asked_for`."""
        self._number, self._of = task_index or 0, num_workers
        self._task = 'chief 0' if task_index is None else f'worker {task_index}'
        self.graph = tf.get_default_graph()
        self._ready = None  # ops of `_all_are_ready`
        self._firsts = {}  # the first trace of each train op, by the name of its loss
        self._traces, self._times = [], []  # a trace is a pair: the first one, and itself
        self._ends = collections.deque(maxlen=FLAGS.timeline_after)  # of runs that are not traced
        self._runs, self._first_step, self._step = 0, None, 0
        self._waited, self._waits = (0, 0), []  # the last wait before a run; those of the traces
        if num_workers and num_workers > 1:
            table = volatile_table.VolatileTable('timeline', device, default=0)
            self._say_ready = table.write(tf.constant([task_index], tf.int64), tf.constant(
                [1], tf.int64))
            self._ready = table.read(tf.range(num_workers, dtype=tf.int64))
            self._has_said = False
        # What a run before this one has left would be drawn with the parts of this one.
        timeline_parts.remove(timeline_parts.path_of(FLAGS.timeline, self._number))
        atexit.register(self._write)

    @property
    def has_begun(self):
        """Whether this process has traced a step."""
        return bool(self._firsts)

    def forget(self):
        """Writes nothing at the end: another one takes the place of this one."""
        atexit.unregister(self._write)

    def on(self, session, train_op, run):
        """Returns a function that does what `run` does, and traces the steps to show.

        Args:
          session: `tf.Session`.
          train_op: dict of tensors.
          run: function, the session's callable for `train_op`.
        """
        if lanes.task_of(train_op['loss'].device) == lanes.ALONE:
            self._task = lanes.ALONE

        def watched():
            if len(self._traces) >= _MORE_RUNS + FLAGS.timeline_steps:
                return run()
            if self._firsts or self._is_time(session):
                return self._trace(session, train_op)
            result = run()
            self._ends.append(time.time())
            self._runs += 1
            self._step = int(result['global_step'])
            if self._first_step is None:
                self._first_step = self._step
            return result

        return watched

    def noting(self, wait):
        """Returns a function that does what `wait` does before each run, and notes when."""
        if getattr(wait, '__func__', None) is seam.Seam.wait:
            return wait  # there is nothing to wait for

        def noted():
            began = time.time()
            wait()
            self._waited = began * 1e3, time.time() * 1e3

        return noted

    def _is_time(self, session):
        """Returns whether to trace the next run: all are ready, or half of the steps are made."""
        if self._first_step is None:
            return False
        if 2 * self._step >= self._first_step + FLAGS.train_steps:
            return True
        return self._runs >= FLAGS.timeline_after and self._all_are_ready(session)

    def _all_are_ready(self, session):
        """Tells the other workers that this one is ready; returns whether all of them are."""
        if self._ready is None:
            return True
        if not self._has_said:
            session.run(self._say_ready)
            self._has_said = True
        return session.run(self._ready).all()

    def _trace(self, session, train_op):
        """Trains a step with a trace; returns its result."""
        began = time.time()
        # The graphs of the tasks are asked for once: to transfer them takes time.
        which = train_op['loss'].name
        options = _FULL if which in self._firsts else traffic.TRACE
        result, metadata = traffic.traced_run(session, train_op, options)
        if which not in self._firsts:
            self._firsts[which] = metadata
        else:
            self._traces.append((self._firsts[which], metadata))
            self._times.append((began * 1e3, time.time() * 1e3))
            self._waits.append(self._waited)
        return result

    def _write(self):
        """Writes what this process traced, and draws the picture if it is the last one."""
        runs = []
        for (first, metadata), times, waited in zip(self._traces, self._times, self._waits):
            metadata.partition_graphs.extend(first.partition_graphs)
            runs.append(timeline_parts.Run(*times, traffic.is_whole(metadata),
                                           lanes.of(metadata, self._task, waited)))
        ends = list(self._ends)
        took = [1e3 * (end - before) for before, end in zip(ends, ends[1:])]
        untraced = statistics.median(took) if took else None
        part = timeline_parts.Part(self._task, self._number, self._of, untraced, runs)
        timeline_parts.add(FLAGS.timeline, part, FLAGS.timeline_steps)
