"""Runs a program of an example, unchanged, and notes what its train op returns.

    python observed.py DIRECTORY TRACED WORKERS_PROGRAM.py [FLAGS...]

run.sh starts programs by $PYTHON, and compare.py puts this file there. Every program trains through
the callable of a session on a dict of tensors, its train op; so that is where to look:

- when each run ended, and the staleness of its updates;
- in the chief, the accuracy on the test set, now and then while it trains. That takes about a
  fiftieth of its time;
- the bytes that one run sends from task to task, from the traces of the first TRACED runs.

At its end each process writes a JSON file into DIRECTORY.
"""

import atexit
import collections
import json
import os
import pathlib
import runpy
import sys
import time

SHARE = 50  # testing may take one part in so many of the chief's time


def is_chief():
    """Returns whether this process is the one that tests."""
    task = json.loads(os.environ.get('TF_CONFIG', '{}')).get('task', {})
    return not task or (task['index'] == 0 and task['type'] in ('worker', 'chief'))


def consumer(tensor, kind):
    """Returns the output of the op of a kind, a string, that takes a tensor; the last one built."""
    return [op for op in tensor.consumers() if op.type == kind][-1].outputs[0]


class Observer:
    """Notes of one process, which its session's callables make.

    Attributes:
      test_labels: list of int64 tensors, what the programs' test sets have as labels.
    """

    def __init__(self, traced, chief):
        self.test_labels = []
        self._tests = chief
        self._left_to_trace = traced
        self._traces = []
        self._times = []
        self._staleness = collections.Counter()
        self._curve = []
        self._began = None
        self._next_test = 0

    def callable(self, session, fetches, run, trace_options, new_metadata):
        """Returns a function that does what `run` does, and takes notes.

        Args:
          session: `tf.Session`.
          fetches: dict of tensors, a train op.
          run: function, the session's callable for these fetches.
          trace_options: `tf.RunOptions` for a run with a trace.
          new_metadata: class, `tf.RunMetadata`.
        """
        test = self._test_fetches(session.graph) if self._tests else None

        def observed():
            if self._began is None:
                self._test(session, test)  # the first takes longer: not while it trains
                self._began = time.time()
            if self._left_to_trace:
                self._left_to_trace -= 1
                self._traces.append(new_metadata())
                result = session.run(fetches, options=trace_options,
                                     run_metadata=self._traces[-1])
            else:
                result = run()
            now = time.time()
            self._times.append(now)
            if 'staleness' in result:
                values = result['staleness']
                self._staleness.update(map(int, values.ravel() if values.ndim else [values]))
            if now > self._next_test:
                self._test(session, test)
            return result

        return observed

    def _test_fetches(self, graph):
        """Returns the global step and the accuracy, mean(cast(equal(prediction, labels)))."""
        labels, = [tensor for tensor in self.test_labels if tensor.graph is graph]
        return (graph.get_collection('global_step')[0],
                consumer(consumer(consumer(labels, 'Equal'), 'Cast'), 'Mean'))

    def _test(self, session, fetches):
        """Tests the parameters as they are now, and says when to do it again."""
        if fetches is None:
            self._next_test = float('inf')
            return
        before = time.time()
        step, accuracy = session.run(fetches)
        now = time.time()
        seconds = before - (self._began or before)
        self._curve.append((int(step), round(seconds, 3), round(float(accuracy), 4)))
        self._next_test = now + (SHARE * (now - before) if self._began else 0)

    def write(self, directory, sent, tensorflow):
        """Writes the notes.

        Args:
          directory: string.
          sent: function of a list of traces, returns the bytes that one of the runs sent.
          tensorflow: string, the version.
        """
        if self._times:
            notes = {'chief': self._tests, 'curve': self._curve,
                     # By the clock that all processes share.
                     'began': self._began, 'times': [round(when, 4) for when in self._times],
                     'staleness': self._staleness, 'tensorflow': tensorflow,
                     'bytes': sent(self._traces) if self._traces else None}
            path = pathlib.Path(directory) / f'{os.getpid()}.json'
            path.write_text(json.dumps(notes), encoding='utf-8')


def main():
    """Runs the program with an Observer in place."""
    directory, traced, *sys.argv = sys.argv[1:]
    folder = pathlib.Path(sys.argv[0]).resolve().parent
    sys.path[0] = str(folder)
    # Behind the folder's own, for those without: all copies of it are the same.
    sys.path.append(str(folder.parent / 'In-Graph-Replication'))
    import console  # noqa: F401  (before TensorFlow)
    import model
    import tensorflow.compat.v1 as tf
    import traffic

    observer = Observer(int(traced), is_chief())
    test_set, make_callable = model.test_set, tf.Session.make_callable

    def noted_test_set(*args):
        images, labels = test_set(*args)
        observer.test_labels.append(labels)
        return images, labels

    def observed_callable(session, fetches, *args, **kwargs):
        run = make_callable(session, fetches, *args, **kwargs)
        if not (isinstance(fetches, dict) and 'global_step' in fetches):
            return run
        return observer.callable(session, fetches, run, traffic.TRACE, tf.RunMetadata)

    def sent(traces):
        ways = traffic.between_tasks(traces).items()
        return sum(each.bytes for (sender, receiver), each in ways if sender != receiver)

    model.test_set, tf.Session.make_callable = noted_test_set, observed_callable
    atexit.register(observer.write, directory, sent, tf.__version__)
    runpy.run_path(sys.argv[0], run_name='__main__')


if __name__ == '__main__':
    main()
