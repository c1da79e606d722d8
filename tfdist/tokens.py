"""Tokens: each tells one worker that a step is complete, and with which one to go on."""

from tfdist.quiet import tf


class Tokens:
    """A queue for each worker, on the device of the scope: nobody can take another one's token."""

    def __init__(self, task_index, served):
        """Makes the queues.

        Args:
          task_index: int, which worker this is.
          served: indices of those that get tokens from it: of all if it is the chief, else none.
        """
        self._queues = {worker: tf.FIFOQueue(-1, tf.int64, shapes=[()],
                                             shared_name=f'tokens_{worker}')
                        for worker in {task_index, *served}}
        self._task_index, self._served = task_index, served
        self._mine = self._queues[task_index]

    def give(self, step, also_mine):
        """Returns a list of ops, which give all others that it serves their token.

        Args:
          step: int64 scalar tensor.
          also_mine: bool, whether this worker gets one, too.
        """
        return [self._queues[worker].enqueue(step) for worker in self._served
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
