"""One chief at a time: a chief begins when nothing of the one before is left on the ps."""

import random
import threading
import time

from tfdist.scheme import volatile_table
from tfdist.start.quiet import tf
from tfdist.training import sessions


class Succession:
    """A lock on each ps, which the chief holds as long as its session lives.

    When a chief dies, the ps end its runs as soon as they find its connection dead: at once if it
    was killed, later if its machine is gone. Until then such a run may complete a step. One of
    these runs holds the locks, and so the next chief has them when all are over.
    """

    def __init__(self, devices):
        """Makes the ops on a list of devices, one on each ps."""
        locks = []
        for device in devices:
            with tf.device(device):
                mutex = tf.raw_ops.MutexV2(shared_name='chief')
                locks.append(tf.raw_ops.MutexLock(mutex=mutex))
        table = volatile_table.VolatileTable('chief', devices[0], default=0)
        with tf.device(devices[0]):
            key = tf.constant(0, tf.int64)
            self._mark = tf.placeholder(tf.int64, [])
            with tf.control_dependencies(locks):
                holds = table.write(key, self._mark)
            with tf.control_dependencies([holds]):
                never = tf.FIFOQueue(1, tf.int64, shapes=[()], shared_name='never').dequeue()
        self._hold = []
        for lock in locks:
            with tf.device(lock.device), tf.control_dependencies([never]):
                self._hold.append(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
        self._holder = table.read(key)

    def begin(self, session):
        """Waits until the locks are free, and holds them until a `tf.Session` is closed."""
        mark = random.getrandbits(62)
        threading.Thread(target=self._reign, args=(session, mark), daemon=True).start()
        while session.run(self._holder) != mark:
            time.sleep(0.01)

    def _reign(self, session, mark):
        with sessions.closed_if_it_fails(session):
            session.run(self._hold, {self._mark: mark})
