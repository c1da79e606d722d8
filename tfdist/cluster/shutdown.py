"""The end of a run: workers say that they are done, and parameter servers wait for that."""

import time

from tfdist.cluster import awake_clock, keepalive, liveness
from tfdist.start import console
from tfdist.start.quiet import tf

_LOOK_EVERY_SECS, _WORD_EVERY_SECS = 1, 10
_GONE_AFTER_SECS = 10  # without an answer or a refusal


def _done_queue(job, task):
    """Returns the queue on a task into which its clients put their index when they are done."""
    with tf.device(f'/job:{job}/task:{task}/device:CPU:0'):
        return tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name='done')


class SayDone(tf.train.SessionRunHook):
    """Tells each ps that this worker is done. Make it the last hook.

    It does not require a ps that listens: some engines have their own ps program.
    """

    def __init__(self, resolver, jobs=('ps',)):
        """Takes a cluster resolver, and the jobs whose tasks serve this process."""
        self._task_id = resolver.task_id
        self._tasks = [(job, task) for job in jobs
                       for task in range(resolver.cluster_spec().num_tasks(job))]

    def begin(self):
        self._say = [_done_queue(*task).enqueue(self._task_id) for task in self._tasks]

    def end(self, session):
        run_at_the_end(session, self._say)


def run_at_the_end(session, ops, feed_dict=None):
    """Runs what a hook's `end` has to run: in another session if a ps was lost meanwhile.

    TensorFlow replaces a session that fails as long as training goes on, but not while it ends.

    Args:
      session: `tf.Session`.
      ops: what to run.
      feed_dict: what to feed, or None.
    """
    try:
        session.run(ops, feed_dict)
    except (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError):
        with tf.Session(session.sess_str, session.graph, session._config) as another:
            another.run(ops, feed_dict)


def wait_until_done(server, resolver, job='worker'):
    """Keeps a ps running until every worker has said that it is done.

    After the first has, a worker that does not answer for --patience_secs is given up: a restarted
    ps does not know who was done before. If none has, and none answers for as long, this process
    ends with a message.

    Args:
      server: `tf.train.Server` of this ps, or of another task that serves.
      resolver: cluster resolver.
      job: string, the job that it serves.
    """
    name = f'{resolver.task_type} {resolver.task_id}'
    keepalive.begin()
    addresses = resolver.cluster_spec().job_tasks(job)
    missing = set(range(len(addresses)))
    heard = {}
    loneliness = Loneliness(name, job)
    queue = _done_queue(resolver.task_type, resolver.task_id)
    size, dequeue = queue.size(), queue.dequeue()
    # Without the filter, closing this session would try workers that are gone, for up to 70 s.
    config = tf.ConfigProto(device_filters=[f'/job:{resolver.task_type}/task:{resolver.task_id}'])
    with tf.Session(server.target, config=config) as session:
        while missing:
            # Asks for the size first: a dequeue with a timeout may lose an entry.
            if session.run(size):
                missing.discard(int(session.run(dequeue)))
                continue
            time.sleep(0.1)
            if len(missing) == len(addresses):
                loneliness.look(addresses)
                continue  # as long as no worker is done, none is given up
            for worker in list(missing):
                silent_since = heard.setdefault(worker, awake_clock.seconds())
                if not liveness.silence(addresses[worker]):
                    heard[worker] = awake_clock.seconds()
                elif awake_clock.seconds() - silent_since > liveness.FLAGS.patience_secs:
                    missing.discard(worker)
                    console.say(name, f'{job} {worker} never said that it is done, and does not '
                                'answer')
    # A worker says that it is done before it closes its session, and would hang if the ps were gone
    # by then. On a busy machine closing takes more than a moment.
    deadline = time.monotonic() + liveness.FLAGS.patience_secs
    is_gone = _Gone()
    while time.monotonic() < deadline and not all(map(is_gone, addresses)):
        time.sleep(0.05)


class _Gone:
    """Tells a task that is gone from one that is late with its answer, as on a busy machine."""

    def __init__(self):
        self._late_since = {}

    def __call__(self, address):
        """Returns whether the task at `address`, a host:port, is gone."""
        reason = liveness.silence(address)
        if reason != liveness.LATE:
            self._late_since.pop(address, None)
            return bool(reason)
        late_since = self._late_since.setdefault(address, awake_clock.seconds())
        return awake_clock.seconds() - late_since > _GONE_AFTER_SECS  # its host has no power


class Loneliness:
    """Says when no client answers a task that serves, and ends the task when none does for long."""

    def __init__(self, name, job):
        """Takes the name of the task, such as 'ps 0', and the job of its clients."""
        self._name, self._job = name, job
        self._heard = self._told = self._looked = awake_clock.seconds()

    def look(self, addresses):
        """Checks, if it is time to.

        Args:
          addresses: list of strings, the host:port of each client, as far as they are known.
        """
        now = awake_clock.seconds()
        if now - self._looked < _LOOK_EVERY_SECS:
            return
        self._looked = now
        if not all(map(liveness.silence, addresses)):
            self._heard = self._told = now
            return
        line = f'no {self._job} answers, and none has said that it is done'
        if now - self._heard > liveness.FLAGS.patience_secs:
            console.give_up(f'{self._name}: {line}. Gave up after '
                            f'{liveness.FLAGS.patience_secs:g} s.')
        if now - self._told > _WORD_EVERY_SECS:
            self._told = now
            console.say(self._name, f'{line}; waiting')
