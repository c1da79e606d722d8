"""A worker's replica as its partners in AD-PSGD find it, past TensorFlow's servers.

A partner's exchange must not wait for TensorFlow. So while a worker trains, its replica stands here
once more, as it was when the step began. What partners add is added here at once, and to
TensorFlow's variables when the next step begins. While it does not train, to these at once.
"""

import threading

import numpy as np

from tfdist.start.quiet import tf
import others
import pairs


class Replica:
    """The replica of one worker, a list of arrays."""

    def __init__(self, variables, worker):
        """Takes a list of `tf.Variable`, and the worker that has them, an int."""
        self._lock = threading.Lock()
        self._now = self._added = None  # since the step began; None: nobody steps, nothing is added
        with tf.Graph().as_default() as graph, tf.device(others.device_of(worker)):
            handles = [others.handle_of(variable, worker) for variable in variables]
            self._given = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                           for variable in variables]
            self._halves = pairs.add_half(handles, self._given)
            self._add = tf.group(*[tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)
                                   for handle, value in zip(handles, self._given)])
        self._worker, self._graph, self._link = worker, graph, None

    def begin(self, target):
        """Takes the target of sessions on the server of this process, a string."""
        self._link = others.Link(self._worker, target, self._graph, [self._worker])

    def empty(self):
        """Returns arrays for another replica, a list."""
        return [np.empty(value.shape.as_list(), value.dtype.as_numpy_dtype)
                for value in self._given]

    def begin_step(self, now):
        """Takes the replica as TensorFlow has it; returns what partners have added, not yet there.

        Args:
          now: sequence of arrays.

        Returns:
          List of arrays, for TensorFlow to add.
        """
        with self._lock:
            added, self._added = self._added, None
            if added is None:
                self._now = [np.array(_wide(value)) for value in now]
                return [np.zeros_like(value) for value in now]
            self._now = [np.asarray(_wide(value) + more) for value, more in zip(now, added)]
            return [more.astype(value.dtype, copy=False) for value, more in zip(now, added)]

    def add_half(self, other):
        """Adds half of the difference to another replica, as one action, and returns that half.

        Args:
          other: list of arrays.

        Returns:
          List of arrays; None if this worker is about to end.
        """
        with self._lock:
            if self._now is None:
                return self._link.run(self._halves, dict(zip(self._given, other)))
            halves = [((_wide(value) - now) / 2).astype(value.dtype, copy=False)
                      for value, now in zip(other, self._now)]
            for now, half in zip(self._now, halves):
                now += _wide(half)
            self._added = [before + _wide(half) for before, half in zip(
                self._added or [0] * len(halves), halves)]
            return halves

    def subtract(self, halves):
        """Takes note of what TensorFlow will subtract in this step, a list of arrays."""
        with self._lock:
            for now, half in zip(self._now, halves):
                now -= _wide(half)

    def end_steps(self):
        """Adds what partners have added; from now on they add to TensorFlow's variables at once."""
        with self._lock:
            if self._added:
                self._link.run(self._add, dict(zip(self._given, self._added)))
            self._now = self._added = None

    def close(self):
        """Closes its session."""
        self._link.close()


def _wide(array):
    """Returns an array as one of a dtype with which NumPy reckons."""
    return array.astype(np.float32) if array.dtype.name == 'bfloat16' else array
