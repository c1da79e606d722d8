"""Who takes part: workers come and go, and say so to each ps, which knows of none at the start."""

import time

from tfdist import awake, console, keepalive, liveness
from tfdist.quiet import tf

_LOST_AFTER_SECS = 10  # a worker that answers nobody for so long is not counted any more


def _queue(ps):
    """Returns the queue on a ps into which workers put what they have to say."""
    with tf.device(f'/job:ps/task:{ps}/device:CPU:0'):
        return tf.FIFOQueue(-1, tf.string, shapes=[()], shared_name='members')


class Member(tf.train.SessionRunHook):
    """Tells each ps when this worker comes, and when it goes. Give it as the last hook.

    Attributes:
      is_done: bool to set, whether training is over when it goes.
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
        """Says that it is there; again when a ps came back, which has forgotten."""
        self._tell(session, 'joins' if self._joined else 'waits')

    def join(self, session):
        """Takes part from now on."""
        self._joined = True
        self._tell(session, 'joins')

    def end(self, session):
        self._tell(session, 'is done' if self.is_done else 'leaves')


def serve(server, resolver):
    """Keeps a ps until training is over and all workers have gone. Ps 0 says who comes and goes.

    Args:
      server: `tf.train.Server` of this ps.
      resolver: its cluster resolver.
    """
    keepalive.begin()
    queue = _queue(resolver.task_id)
    size, dequeue = queue.size(), queue.dequeue()
    # Without the filter this session would say good-bye to workers that are gone, for up to 70 s.
    config = tf.ConfigProto(device_filters=[f'/job:ps/task:{resolver.task_id}'])
    addresses, heard, taking_part, going, is_over = {}, {}, set(), set(), False

    def say(worker, what):
        if resolver.task_id == 0:
            console.say('ps 0', f'worker {worker} {what}, {len(taking_part)} take part')

    with tf.Session(server.target, config=config) as session:
        while addresses or not is_over:
            # Looks before it takes: a dequeue that is given up after a while may swallow an entry.
            if session.run(size):
                worker, address, word = session.run(dequeue).decode().split(' ', 2)
                took_part = worker in taking_part
                addresses[worker], heard[worker] = address, awake.seconds()
                (taking_part.add if word == 'joins' else taking_part.discard)(worker)
                (going.discard if word in ('waits', 'joins') else going.add)(worker)
                is_over |= word == 'is done'
                if took_part != (worker in taking_part):
                    say(worker, word)
                continue
            time.sleep(0.1)
            for worker, address in list(addresses.items()):
                if not liveness.silence(address):
                    # Also one that goes: to close its session it needs the ps.
                    heard[worker] = awake.seconds()
                elif worker in going or awake.seconds() - heard[worker] > _LOST_AFTER_SECS:
                    del addresses[worker]
                    if worker in taking_part:
                        taking_part.discard(worker)
                        say(worker, 'does not answer')
