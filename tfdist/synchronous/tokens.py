"""Tokens: each tells one worker that a step is complete, and which one begins."""

from tfdist.start.quiet import tf


class Tokens:
    """A queue for each worker, on the device of the scope: no worker can take another's token."""

    def __init__(self, task_index, served):
        """Makes the queues.

        Args:
          task_index: int, the index of this worker.
          served: indices of the workers that get tokens from it: all for the chief, else none.
        """
        self._queues = {
            worker: tf.FIFOQueue(-1, tf.int64, shapes=[()], shared_name=f'tokens_{worker}')
            for worker in {task_index, *served}}
        self._task_index, self._served = task_index, served
        self._mine = self._queues[task_index]

    def give(self, stamp, also_mine):
        """Returns a list of ops that give each served worker its token.

        Args:
          stamp: int64 scalar tensor, of the step that begins.
          also_mine: bool, whether this worker gets one, too.
        """
        return [self._queues[worker].enqueue(stamp) for worker in self._served
                if also_mine or worker != self._task_index]

    def take(self, after):
        """Returns this worker's token, an int64 scalar tensor that blocks until there is one.

        If the worker is behind and has several tokens, it takes the last. The token is newer than
        `after`, an int64 scalar tensor, the worker's stamp: a worker that joins between a step and
        its tokens gets one that tells it nothing new.
        """
        first = self._mine.dequeue_many(tf.maximum(self._mine.size(), 1))
        another = self._mine.dequeue_many(tf.cast(tf.less_equal(first[-1], after), tf.int32))
        return tf.concat([first, another], axis=0)[-1]

    def forget(self):
        """Returns an op that removes this worker's tokens.

        If the worker's machine died, a run of its former life may still wait on the ps, and would
        take the next token. That run gets one that is newer than any.
        """
        with tf.control_dependencies([self._mine.enqueue(tf.int64.max)]):
            size = self._mine.size()
        return self._mine.dequeue_many(size).op
