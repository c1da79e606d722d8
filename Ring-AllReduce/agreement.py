"""How workers agree on the next ring, without anybody who is in charge: --min_workers.

Each worker keeps a board in its own memory, which the others read: whether it asks for a ring,
whose values it has, and which ring it is in. The lowest of those that ask shows the next ring on
its board; who finds itself in that ring goes along. Nobody has to confirm: a ring makes no step
until all of its workers take part. As each ring has more than half of all workers, two rings share
one, which is in one ring at a time; and among those who ask, somebody has the newest values.
"""

import concurrent.futures
import contextlib
import errno
import json
import os
import sys
import time
import uuid

from tfdist.cluster import awake_clock, keepalive, liveness, servers
from tfdist.start import console
from tfdist.training import checkpoints, save_lock
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf
import ring

_REFUSED = os.strerror(errno.ECONNREFUSED)  # nobody listens there: the process is gone
_ROUND_SECS, _WORD_EVERY_SECS, _LOCK_SECS, _ANSWER_MSECS = 0.2, 5, 5, 5000
_NONE = [-1, '']  # the ballot of no ring; ballots are lists, to be compared


def check(min_workers, num_workers):
    """Checks the flags.

    Raises:
      SystemExit: with what is wrong and what to do.
    """
    if not num_workers / 2 < min_workers <= num_workers:
        sys.exit(f'--min_workers={min_workers}: give more than half of the {num_workers} workers, '
                 'and not more than there are. Otherwise both halves of a cut network could go on.')
    for flag, others in (('implementation', ['sockets', 'ring']),
                         ('stop_after_evals_without_gain', [0])):
        if FLAGS[flag].value not in others:
            sys.exit(f'--min_workers works only with --{flag}={" or ".join(map(str, others))}.')


class TooFewError(Exception):
    """There can be no ring any more, for the reason that it gives."""


def next_ring(asking, known, is_lost, min_workers, num_workers):
    """Finds out which ring is next.

    Args:
      asking: dict by worker of the boards of those that ask for a ring.
      known: list of ints, the workers of the last ring; empty if there was none.
      is_lost: function of a worker that returns whether it is gone.
      min_workers: int.
      num_workers: int, how many workers there may be.

    Returns:
      The ring, a dict; or None as long as somebody is missing who may still ask.

    Raises:
      TooFewError: if too few are left, or nobody who has the last step.
    """
    if not known:  # nobody has been in a ring: all begin together
        return dict(workers=sorted(asking), source=0, step=0, batches=0, first=True,
                    new=[]) if len(asking) == num_workers else None
    holders = {worker: board for worker, board in asking.items() if board['values'] != _NONE}
    missing = [worker for worker in known if worker not in asking and not is_lost(worker)]
    if len(holders) + len(missing) < min_workers:
        lost = ', '.join(f'worker {worker}' for worker in known if worker not in asking)
        raise TooFewError(f'lost {lost or "a worker at the start"}; {len(holders)} of '
                          f'{num_workers} left with values, fewer than '
                          f'--min_workers={min_workers}')
    if missing:
        return None
    newest = max(board['values'] for board in holders.values())
    whole = [worker for worker in sorted(holders)
             if holders[worker]['values'] == newest and holders[worker]['whole']]
    if not whole:
        raise TooFewError('lost the last step, with all workers that had it')
    source = max(whole, key=lambda worker: holders[worker]['step'])
    return dict(workers=sorted(asking), source=source, step=holders[source]['step'],
                batches=holders[source]['batches'], first=False,
                new=[worker for worker in sorted(asking) if asking[worker]['values'] != newest])


class _Board:
    """What one worker shows the others."""

    def __init__(self, worker, target):
        """Takes the index of the worker, and the target of sessions on it."""
        self._place, self._graph = (target, worker), tf.Graph()
        with self._graph.as_default(), tf.container('elastic'), tf.device(
                f'/job:worker/task:{worker}/device:CPU:0'):
            board = tf.get_variable('board', [], tf.string, tf.zeros_initializer(),
                                    use_resource=True)
            self._text = tf.placeholder(tf.string, [])
            self._read = board.read_value()
            self._write = board.assign(self._text, read_value=False)

    def read(self):
        """Returns the content, a dict; None if there is none, or the worker does not answer."""
        try:
            with self._graph.as_default(), short_session(*self._place) as session:
                return json.loads(session.run(self._read).decode())
        except tf.errors.OpError:
            return None

    def write(self, **content):
        """Shows something else."""
        with self._graph.as_default(), short_session(*self._place) as session:
            session.run(self._write, {self._text: json.dumps(content)})


@contextlib.contextmanager
def short_session(target, worker):
    """A context with a short session on one worker, which may not answer."""
    config = servers.config(device_filters=[f'/job:worker/task:{worker}'],
                            operation_timeout_in_ms=_ANSWER_MSECS)
    session = tf.Session(target, config=config)
    try:
        yield session
    finally:
        with contextlib.suppress(tf.errors.OpError):
            session.close()


class Workers:
    """All workers that there may be, as one of them sees them.

    Attributes:
      me: int, this worker.
      targets: list of strings, the targets of sessions on each worker.
      is_first_ring: bool, whether this worker's ring is the first one, which begins with initial
        values or a checkpoint.
    """

    def __init__(self, resolver, server):
        """Takes a cluster resolver, and the `tf.train.Server` of this worker."""
        self._addresses = resolver.cluster_spec().job_tasks('worker')
        self.me, self._all = resolver.task_id, list(range(len(self._addresses)))
        self._name, self._life = f'worker {self.me}', uuid.uuid4().hex
        self.targets = [f'grpc://{address}' for address in self._addresses]
        self.targets[self.me] = server.target
        self._boards = [_Board(*each) for each in enumerate(self.targets)]
        self._pool = concurrent.futures.ThreadPoolExecutor(len(self._all))
        self._silent = {}  # by worker: since when, and why
        self._known, self._ring = [], None  # the workers of the newest ring seen; this one's ring
        self._tried = self._values = _NONE  # the newest ring gone along with; whose values it has
        self.is_first_ring, self._claimed = False, False
        self._lock = self._wanted = None  # on --model_dir: held; held by another worker
        keepalive.begin()

    def look(self, workers):
        """Returns which of some workers answer."""
        reasons = list(self._pool.map(
            lambda worker: liveness.silence(self._addresses[worker]), workers))
        for worker, reason in zip(workers, reasons):
            since, _ = self._silent.pop(worker, (awake_clock.seconds(), ''))
            if reason:
                self._silent[worker] = since, reason
        return [worker for worker, reason in zip(workers, reasons) if not reason]

    def have_answered(self, workers):
        """Is called when some workers have answered in another way, as by a step."""
        for worker in workers:
            self._silent.pop(worker, None)

    def is_lost(self, worker):
        """Returns whether a worker is gone, or has been silent for long."""
        since, reason = self._silent.get(worker, (0, ''))
        return reason == _REFUSED or bool(reason) and (
            awake_clock.seconds() - since > ring.LOST_AFTER_SECS)

    def _cut_off(self, boards):
        """Returns the workers of the last ring that may be there, though they have no `boards`."""
        return [worker for worker in self._known if worker not in boards
                and self._silent.get(worker, (0, ''))[1] != _REFUSED]

    def _read(self, workers):
        """Returns the boards of those workers that answer, a dict."""
        workers = self.look(workers)
        boards = zip(workers, self._pool.map(lambda worker: self._boards[worker].read(), workers))
        return {worker: board for worker, board in boards if board}

    def next_place(self, step, whole):
        """Agrees with the others on a ring. It ends this process if there cannot be one.

        Args:
          step: int, the last step of this worker.
          whole: bool, whether this worker has all values of that step.

        Returns:
          `ring.Place` of this worker.
        """
        mine = dict(asks=True, life=self._life, tried=self._tried, values=self._values, step=step,
                    whole=whole, batches=self._batches_at(step), ring=self._ring)
        self._boards[self.me].write(**mine)
        began = told = awake_clock.seconds()
        proposed = None
        while True:
            boards = dict(self._read([each for each in self._all if each != self.me]))
            boards[self.me] = mine
            rings = sorted((board['ring'] for board in boards.values() if board['ring']),
                           key=lambda each: each['ballot'])
            self._known = rings[-1]['workers'] if rings else self._known
            # Not by its place: a process that was started again is not the one that was offered it.
            offers = [each for each in rings if self._life in each['lives']
                      and each['ballot'] > self._tried and any(
                          board['ring'] == each and not board['asks']
                          for board in boards.values())]
            if offers:
                return self._go_along(offers[-1])
            asking = {each: board for each, board in boards.items() if board['asks']}
            try:
                before, proposed = proposed, next_ring(
                    asking, self._known, self.is_lost, FLAGS.min_workers, len(self._all))
            except TooFewError as error:
                proposed = None
                if not self._cut_off(boards):
                    ring.give_up(self._name, error)
            if self.me == min(asking) and proposed and proposed == before:  # the view has settled
                newest = max(board['tried'] for board in boards.values())
                return self._go_along(dict(
                    proposed, ballot=[newest[0] + 1, uuid.uuid4().hex],
                    lives=[asking[worker]['life'] for worker in proposed['workers']]))
            told = self._complain(began, told)
            time.sleep(_ROUND_SECS)

    def _batches_at(self, step):
        """Returns how many batches all workers together have trained on up to a step."""
        return self._ring['batches'] + (step - self._ring['step']) * len(
            self._ring['workers']) if self._ring else 0

    def _go_along(self, offer):
        """Returns this worker's `ring.Place` in a ring, and shows the others that it is in it."""
        workers = offer['workers']
        if self._ring:
            changes = [f'lost worker {worker}' for worker in self._ring['workers']
                       if worker not in workers]
            changes += [f'worker {worker} is back' for worker in offer['new']]
            rate = FLAGS.learning_rate * (len(workers) if FLAGS.scale_learning_rate else 1)
            console.say(self._name, f'{", ".join(changes) or "a new ring"}; {len(workers)} of '
                        f'{len(self._all)} go on from step {offer["step"]}, learning rate {rate:g}')
        self._ring, self._tried, self._known = offer, offer['ballot'], workers
        self.is_first_ring = offer['first']
        self._show()
        return ring.Place(workers, workers.index(self.me), workers.index(offer['source']),
                          f'ring-{offer["ballot"][1]}',
                          offer['batches'] - offer['step'] * len(workers))

    def _show(self):
        self._boards[self.me].write(asks=False, life=self._life, tried=self._tried,
                                    ring=self._ring)

    def _complain(self, began, told):
        """Says now and then who does not answer, and ends this process after --patience_secs."""
        now = awake_clock.seconds()
        why = [f'worker {worker} at {self._addresses[worker]} does not answer ({reason})'
               for worker, (_, reason) in sorted(dict(self._silent).items())]
        if now - began > FLAGS.patience_secs:
            console.give_up(f'{self._name}: {", ".join(why) or "the workers find no ring"}. Gave '
                            f'up after {FLAGS.patience_secs:g} s.')
        if now - told < _WORD_EVERY_SECS:
            return told
        for line in why:
            console.say(self._name, f'{line}; waiting')
        return now

    def begins(self, step):
        """Is called when this worker has the values of its ring, which begins at `step`."""
        if self.is_first_ring:  # now the step of the checkpoint is known
            self._ring = dict(self._ring, step=step, batches=step * len(self._ring['workers']))
            self._show()
        self._values = self._tried

    def has_gone_on(self, worker, asks_long):
        """Returns whether a worker of this ring has left it.

        Args:
          worker: int.
          asks_long: bool, whether the worker should know by now that it is in this ring.
        """
        board = self._read([worker]).get(worker)
        return bool(board) and (
            board['life'] not in self._ring['lives'] or board['tried'] > self._tried
            or board['asks'] and (asks_long or board['tried'] == self._tried))

    def newcomers(self):
        """Returns the workers outside of this ring that ask for one."""
        boards = self._read([each for each in self._all if each not in self._ring['workers']])
        return [worker for worker, board in boards.items() if board['asks']]

    def can_save_now(self):
        """Returns whether this worker, which was to save and could not, can from the next ring."""
        if not self._wanted or not self._wanted.take():
            return False
        self._lock, self._wanted = self._wanted, None
        return True

    def model_dir(self):
        """Returns --model_dir if this worker is the one that saves in its ring; otherwise None."""
        is_first, directory = self._ring['workers'][0] == self.me, FLAGS.model_dir
        self._wanted = None
        if self._lock and not is_first:
            self._lock.give_back()
            self._lock = None
        if not directory or not is_first:
            return None
        if self.is_first_ring:
            checkpoints.claim(directory, self._name, ' '.join(self._addresses))
            self._claimed = True
        if self._claimed or self._lock:
            return directory
        checkpoints.check_model_dir(directory, self._name)
        lock, deadline = save_lock.SaveLock(directory, ''), time.monotonic() + _LOCK_SECS
        try:
            while not lock.take():  # who saved before gives it back, if it is in this ring
                if time.monotonic() > deadline:
                    console.say(self._name, f'--model_dir={directory} is locked by a worker that '
                                'is not in the ring: nobody saves')
                    self._wanted = lock
                    return None
                time.sleep(_ROUND_SECS)
        except OSError as error:
            console.say(self._name, f'--model_dir={directory} cannot be locked ({error.strerror}): '
                        'nobody saves')
            return None
        self._lock = lock
        return directory
