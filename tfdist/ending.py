"""The end: workers say that they are done, and a parameter server waits for it."""

import time

from tfdist import awake, console, keepalive, liveness
from tfdist.quiet import tf
from tfdist.task_flags import FLAGS

_LOOK_EVERY_SECS, _WORD_EVERY_SECS = 1, 10
_GONE_AFTER_SECS = 10  # of no answer, where nobody says that the port is closed


def _done_queue(job, task):
    """Returns the queue on a task into which those it serves put their index at their end."""
    with tf.device(f'/job:{job}/task:{task}/device:CPU:0'):
        return tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name='done')


class SayDone(tf.train.SessionRunHook):
    """Tells each ps that this worker came to a good end. Give it as the last hook.

    It does not wait for a ps to listen: some engines bring their own.
    """

    def __init__(self, resolver, jobs=('ps',)):
        """Takes a cluster resolver, and the jobs whose tasks serve this process."""
        self._task_id = resolver.task_id
        self._tasks = [(job, task) for job in jobs
                       for task in range(resolver.cluster_spec().num_tasks(job))]

    def begin(self):
        self._say = [_done_queue(*task).enqueue(self._task_id) for task in self._tasks]

    def end(self, session):
        session.run(self._say)


def wait_until_done(server, resolver, job='worker'):
    """Keeps a ps until it is needed no longer.

    That is, until each worker has said that it is done. Once one has, others that do not answer for
    --patience_secs are given up: a ps that was restarted has not heard who was done before. When
    none has, and none answers for so long, it ends this process, and says so.

    Args:
      server: `tf.train.Server` of this ps, or of another task that serves.
      resolver: a cluster resolver.
      job: string, whom it serves.
    """
    name = f'{resolver.task_type} {resolver.task_id}'
    keepalive.begin()
    addresses = resolver.cluster_spec().job_tasks(job)
    missing = set(range(len(addresses)))
    heard = {}
    loneliness = _Loneliness(name, job, addresses)
    queue = _done_queue(resolver.task_type, resolver.task_id)
    size, dequeue = queue.size(), queue.dequeue()
    # Without the filter this session would say good-bye to workers that are gone, for up to 70 s.
    config = tf.ConfigProto(device_filters=[f'/job:{resolver.task_type}/task:{resolver.task_id}'])
    with tf.Session(server.target, config=config) as session:
        while missing:
            # Looks before it takes: a dequeue that is given up after a while may swallow an entry.
            if session.run(size):
                missing.discard(int(session.run(dequeue)))
                continue
            time.sleep(0.1)
            if len(missing) == len(addresses):
                loneliness.look()
                continue  # nobody is done: one that is late is not given up
            for worker in list(missing):
                silent_since = heard.setdefault(worker, awake.seconds())
                if not liveness.silence(addresses[worker]):
                    heard[worker] = awake.seconds()
                elif awake.seconds() - silent_since > FLAGS.patience_secs:
                    missing.discard(worker)
                    console.say(name, f'{job} {worker} never said that it is done, and does not '
                                'answer')
    # A worker closes its session after it said done, and would hang if the ps were gone by then. On
    # a busy machine that takes more than a moment.
    deadline = time.monotonic() + FLAGS.patience_secs
    is_gone = _Gone()
    while time.monotonic() < deadline and not all(map(is_gone, addresses)):
        time.sleep(0.05)


class _Gone:
    """Says who is gone, and not merely late with an answer, as on a busy machine."""

    def __init__(self):
        self._late_since = {}

    def __call__(self, address):
        """Returns whether nobody is at `address`, a host:port, any more."""
        reason = liveness.silence(address)
        if reason != liveness.LATE:
            self._late_since.pop(address, None)
            return bool(reason)
        late_since = self._late_since.setdefault(address, awake.seconds())
        return awake.seconds() - late_since > _GONE_AFTER_SECS  # its host has no power


class _Loneliness:
    """Says when nobody at all answers a task that serves, and ends it when that lasts too long."""

    def __init__(self, name, job, addresses):
        self._name, self._job, self._addresses = name, job, addresses
        self._heard = self._told = self._looked = awake.seconds()

    def look(self):
        """Looks, if it is time to."""
        now = awake.seconds()
        if now - self._looked < _LOOK_EVERY_SECS:
            return
        self._looked = now
        if not all(map(liveness.silence, self._addresses)):
            self._heard = self._told = now
            return
        line = f'no {self._job} answers, and none has said that it is done'
        if now - self._heard > FLAGS.patience_secs:
            console.give_up(f'{self._name}: {line}. Gave up after {FLAGS.patience_secs:g} s.')
        if now - self._told > _WORD_EVERY_SECS:
            self._told = now
            console.say(self._name, f'{line}; waiting')
