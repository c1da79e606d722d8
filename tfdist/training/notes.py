"""Notes that a program takes of its own training, to compare runs by.

With --notes_dir=DIRECTORY each process that trains writes a JSON file there when it ends, or one
for each thread that trains:

- 'began' and 'times': when training began, and when each run of the train op ended, in seconds of
  the system's clock;
- 'staleness': the number of updates by staleness;
- 'bytes': what one run sends from task to task, from traces of the first --traced_runs runs; of a
  scheme whose runs are not all the same, the mean of those that were traced;
- 'chief': whether this process tests; 'curve': its tests, each the global step and the seconds at
  which it began, and the accuracy on the test set; 'tested': the seconds that each took. Other
  workers may train during a test. The tests take about --tested_share of the process's time;
- 'tensorflow': the version.
"""

import atexit
import collections
import json
import os
import time
import uuid

from absl import flags
from tfdist.training import traffic
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('notes_dir', None, 'directory for notes on each run of the train op, as JSON')
flags.DEFINE_integer('traced_runs', 0, 'of how many runs to note the bytes that travel',
                     lower_bound=0)
flags.DEFINE_float('tested_share', 0.02, 'about what share of its time the chief tests for '
                   '--notes_dir', lower_bound=0.001, upper_bound=1)


def asked_for(test):
    """Returns a `Notes`, see there for `test`; None without --notes_dir."""
    if not FLAGS.notes_dir:
        return None
    return Notes(FLAGS.notes_dir, FLAGS.traced_runs, FLAGS.tested_share, test)


class Notes:
    """Notes on each run of a train op, written when the process ends."""

    def __init__(self, directory, traced_runs, tested_share, test):
        """Begins to take notes.

        Args:
          directory: string.
          traced_runs: int, of how many runs to note the bytes that travel.
          tested_share: float, about what share of the time tests take.
          test: `evaluation.Test`, which is used if it is the chief's, or None.
        """
        self._directory = directory
        self._left_to_trace = traced_runs
        self._evaluation = test if test and test.is_chief else None
        self._traces = collections.defaultdict(list)  # by the name of the train op's loss
        self._times = []
        self._staleness = collections.Counter()
        self._tested_share = tested_share
        self._curve, self._tested = [], []
        self._began = None
        self._next_test = 0
        atexit.register(self._write)

    def on(self, session, train_op, run):
        """Returns a function that does what `run` does, and takes notes.

        Args:
          session: `tf.Session`.
          train_op: dict of tensors.
          run: function, the session's callable for `train_op`.
        """
        def noted():
            if self._began is None:
                self._test(session)  # the first test takes longer, so it precedes training
                self._began = time.time()
            if self._left_to_trace:
                self._left_to_trace -= 1
                result, metadata = traffic.traced_run(session, train_op)
                self._traces[train_op['loss'].name].append(metadata)
            else:
                result = run()
            now = time.time()
            self._times.append(now)
            if 'staleness' in result:
                values = result['staleness']
                self._staleness.update(map(int, values.ravel() if values.ndim else [values]))
            if now > self._next_test:
                self._test(session)
            return result

        return noted

    def _test(self, session):
        """Tests the current parameters, and sets the time of the next test."""
        if self._evaluation is None:
            self._next_test = float('inf')
            return
        before = time.time()
        step = session.run(tf.train.get_global_step(session.graph))
        metric = next(iter(self._evaluation.run(session).values()))  # the model's first
        now = time.time()
        seconds = before - (self._began or before)
        self._curve.append((int(step), round(seconds, 3), round(metric, 4)))
        self._tested.append(round(now - before, 4))
        self._next_test = now + ((now - before) / self._tested_share if self._began else 0)

    def _write(self):
        if not self._times:
            return
        sent = [sum(each.bytes for (sender, receiver), each in traffic.between_tasks(traces).items()
                    if sender != receiver) for traces in self._traces.values()]
        notes = {'chief': self._evaluation is not None, 'curve': self._curve,
                 'tested': self._tested, 'began': self._began,
                 'times': [round(when, 4) for when in self._times],
                 'staleness': self._staleness, 'tensorflow': tf.__version__,
                 'bytes': round(sum(sent) / len(sent)) if sent else None}
        path = os.path.join(self._directory, f'{uuid.uuid4().hex}.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(notes, file)
