"""Tokens: each tells one worker that a step is complete, and with which one to go on."""

from tfdist.quiet import tf


class Tokens:
    """A queue for each worker, on the device of the scope: nobody can take another one's token."""

    def __init__(self, task_index, num_workers):
        """Takes which worker this is, and how many there are."""
        self._task_index, self._num_workers = task_index, num_workers
        self._mine = self._queue(task_index)

    def _queue(self, worker):
        return tf.FIFOQueue(-1, tf.int64, shapes=[()], shared_name=f'tokens_{worker}')

    def give(self, step, also_mine):
        """Returns a list of ops, which give all others `step`, an int64 scalar tensor.

        Args:
          step: int64 scalar tensor.
          also_mine: bool, whether this worker gets one, too.
        """
        return [self._queue(worker).enqueue(step) for worker in range(self._num_workers)
                if also_mine or worker != self._task_index]

    def take(self):
        """Returns an int64 scalar tensor, this worker's token; it blocks until there is one.

        Of several, which there may be for a worker that is behind, it is the last.
        """
        return self._mine.dequeue_many(tf.maximum(self._mine.size(), 1))[-1]

    def forget(self, step):
        """Returns an op, after which there is none for this worker.

        A run of an earlier life, which its machine did not survive, may still wait on the ps, and
        would take the next. It gets `step`, an int64 scalar tensor.
        """
        with tf.control_dependencies([self._mine.enqueue(step)]):
            size = self._mine.size()
        return self._mine.dequeue_many(size).op
