"""Membership: workers come and go, and tell each ps, which knows no workers at the start."""

import time

from tfdist.cluster import awake_clock, keepalive, liveness, shutdown
from tfdist.start import console
from tfdist.start.quiet import tf

_LOST_AFTER_SECS = 10  # without an answer, a worker no longer counts


def _queue(ps):
    """Returns the queue on a ps for messages of workers."""
    with tf.device(f'/job:ps/task:{ps}/device:CPU:0'):
        return tf.FIFOQueue(-1, tf.string, shapes=[()], shared_name='members')


class Member(tf.train.SessionRunHook):
    """Tells each ps when this worker comes and when it goes. Make it the last hook.

    Attributes:
      is_done: bool to set: whether training is over when this worker goes.
    """

    def __init__(self, resolver):
        """Takes the worker's cluster resolver."""
        spec, index = resolver.cluster_spec(), resolver.task_id
        self._me = f'{index} {spec.task_address("worker", index)}'
        self._num_ps = spec.num_tasks('ps')
        self._joined = False
        self.is_done = False

    def begin(self):
        self._word = tf.placeholder(tf.string, [])
        self._say = [_queue(ps).enqueue(self._word) for ps in range(self._num_ps)]

    def _tell(self, session, word):
        session.run(self._say, {self._word: f'{self._me} {word}'})

    def after_create_session(self, session, coord):
        """Tells each ps that this worker is there, again after a ps that forgot it came back."""
        self._tell(session, 'joins' if self._joined else 'waits')

    def join(self, session):
        """Tells each ps that this worker takes part from now on."""
        self._joined = True
        self._tell(session, 'joins')

    def end(self, session):
        word = 'is done' if self.is_done else 'leaves'
        shutdown.run_at_the_end(session, self._say, {self._word: f'{self._me} {word}'})


def serve(server, resolver):
    """Keeps a ps running until training is over and all workers have gone.

    Ps 0 prints who comes and goes. If for --patience_secs none comes or answers, the ps gives up. A
    worker that was lost may be started again: for as long it finds the ps, after the end, too.

    Args:
      server: `tf.train.Server` of this ps.
      resolver: cluster resolver of this ps.
    """
    keepalive.begin()
    queue = _queue(resolver.task_id)
    size, dequeue = queue.size(), queue.dequeue()
    # Without the filter, closing this session would try workers that are gone, for up to 70 s.
    config = tf.ConfigProto(device_filters=[f'/job:ps/task:{resolver.task_id}'])
    addresses, heard, taking_part, going, is_over = {}, {}, set(), set(), False
    lost = {}  # by worker that went without a word: since when
    loneliness = shutdown.Loneliness(f'ps {resolver.task_id}', 'worker')

    def say(worker, what):
        if resolver.task_id == 0:
            take = '1 worker takes' if len(taking_part) == 1 else f'{len(taking_part)} workers take'
            console.say('ps 0', f'worker {worker} {what}, {take} part')

    with tf.Session(server.target, config=config) as session:
        while addresses or lost or not is_over:
            # Asks for the size first: a dequeue with a timeout may lose an entry.
            if session.run(size):
                worker, address, word = session.run(dequeue).decode().split(' ', 2)
                took_part = worker in taking_part
                addresses[worker], heard[worker] = address, awake_clock.seconds()
                lost.pop(worker, None)
                (taking_part.add if word == 'joins' else taking_part.discard)(worker)
                (going.discard if word in ('waits', 'joins') else going.add)(worker)
                is_over |= word == 'is done'
                if took_part != (worker in taking_part):
                    say(worker, word)
                continue
            time.sleep(0.1)
            if not is_over:
                loneliness.look(list(addresses.values()))
            for worker, address in list(addresses.items()):
                if not liveness.silence(address):
                    # A worker that goes counts, too: it needs the ps to close its session.
                    heard[worker] = awake_clock.seconds()
                elif worker in going or awake_clock.seconds() - heard[worker] > _LOST_AFTER_SECS:
                    del addresses[worker]
                    if worker not in going:
                        lost[worker] = awake_clock.seconds()
                    if worker in taking_part:
                        taking_part.discard(worker)
                        say(worker, 'does not answer')
            for worker, since in list(lost.items()):
                if awake_clock.seconds() - since > liveness.FLAGS.patience_secs:
                    del lost[worker]
                    if is_over and resolver.task_id == 0:
                        console.say('ps 0', f'worker {worker} never said that it is done, and does '
                                    'not answer')
