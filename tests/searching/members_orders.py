"""Elastic-Workers' membership: workers come and go, and each ps stays as long as it is needed.

What the ps and the workers say is the folder's code. The queues are played: they lie in the memory
of a ps, and are empty when it comes back.
"""

import contextlib
import types
from unittest import mock

from conftest import load_program
from tfdist.cluster import keepalive, liveness, shutdown
from tfdist.start import console
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must
from searching.world import Died

members = load_program('Elastic-Workers', 'members')
_PATIENCE_SECS = 20.
_REFUSED = 'Connection refused'


class _Queue:
    """Stands for the queue on a ps: its ops are functions."""

    def __init__(self, world, ps):
        self._world, self._task = world, f'ps {ps}'

    def enqueue(self, word):
        del word  # it is fed
        return lambda session, given: session.put(self._task, given)

    def size(self):
        return lambda session, _: len(session.words(self._task))

    def dequeue(self):
        def take(session, _):
            self._world.changes += 1
            word = session.words(self._task).pop(0)
            process = self._world.processes[f'worker {word.split()[0]}']
            self._world.processes[self._task].known[process.name] = process
            return word.encode()
        return take


class _Session:
    """Stands for a `tf.Session` on all ps, each in the life that it had at the beginning."""

    def __init__(self, world):
        self._world, self.closed = world, False
        self._lives = {task: process.life for task, process in world.processes.items()}
        self.sess_str = self.graph = self._config = None

    def run(self, ops, feed_dict=None):
        given, = (feed_dict or {None: None}).values()
        self._world.current.pause()
        if callable(ops):
            return ops(self, given)
        return [op(self, given) for op in ops]

    def words(self, task):
        """Returns the words on a ps, a list."""
        process = self._world.processes[task]
        if not process.alive or process.life != self._lives[task]:
            raise tf.errors.UnavailableError(None, None, 'Socket closed')
        return process.words

    def put(self, task, word):
        """Puts a word into the queue of a ps."""
        self._world.current.pause()  # on its way
        self.words(task).append(word)
        self._world.changes += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Members(protocol.Protocol):
    """Workers that come and go, and the ps that they tell."""

    name = 'members'
    settings = [dict(workers=1, ps=1, steps=3), dict(workers=2, ps=1, steps=4),
                dict(workers=3, ps=2, steps=5), dict(workers=2, ps=2, steps=3)]
    modules = (members, shutdown)
    may_be_killed = may_be_lost = True

    def graphs(self, setting):
        return {}

    def tasks(self, world):
        return [f'ps {i}' for i in range(world.setting['ps'])] + super().tasks(world)

    @contextlib.contextmanager
    def more(self, world):
        world.steps = 0
        flags = types.SimpleNamespace(patience_secs=_PATIENCE_SECS)
        fake = types.SimpleNamespace(
            Session=lambda *_, **__: _Session(world), ConfigProto=lambda **_: None,
            placeholder=lambda *_: 'word', string=None, errors=tf.errors)
        with contextlib.ExitStack() as stack:
            for place, name, value in (
                    (members, 'tf', fake), (shutdown, 'tf', fake),
                    (members, '_queue', lambda ps: _Queue(world, ps)),
                    (keepalive, 'begin', lambda: None), (liveness, 'FLAGS', flags),
                    (liveness, 'silence', lambda task: self._silence(world, task)),
                    (console, 'say', lambda who, what: self._says(world, who, what)),
                    (console, 'give_up', lambda line, status=75: self._give_up(world, line))):
                stack.enter_context(mock.patch.object(place, name, value))
            yield

    def start(self, world, task):
        super().start(world, task)
        process = world.processes[task]
        process.words, process.known, process.said = [], {}, ''

    def body(self, world, process):
        job, index = process.name.split()
        spec = types.SimpleNamespace(task_address=lambda job, i: f'{job}-{i}',
                                     num_tasks=lambda _: world.setting['ps'])
        resolver = types.SimpleNamespace(cluster_spec=lambda: spec, task_id=int(index))
        if job == 'ps':
            members.serve(types.SimpleNamespace(target=''), resolver)
            self._leaves(world, process)
        else:
            self._work(world, process, members.Member(resolver))

    def _work(self, world, process, member):
        """What a worker does: it waits, joins, trains for some steps, and goes."""
        member.begin()
        session = self._session(world, member)
        session = self._retried(world, member, session, member.join)
        for _ in range(world.setting['steps'] - 1):  # one worker alone does not end the run
            session = self._retried(world, member, session, lambda each: each.run([]))
            world.steps += 1
            if world.steps >= world.setting['steps']:
                break
        member.is_done = world.steps >= world.setting['steps']
        try:
            member.end(session)
        except tf.errors.UnavailableError:  # ended by TensorFlow's own lines
            world.tell(process.name, 'ends without a good-bye')

    def _session(self, world, member):
        """Returns a session, as soon as all ps are there; or ends after a while."""
        name, began = world.current.name, world.clock
        while True:
            there = [world.processes[f'ps {i}'] for i in range(world.setting['ps'])]
            if all(each.alive for each in there):
                session = _Session(world)
                with contextlib.suppress(tf.errors.UnavailableError):
                    member.after_create_session(session, None)
                    return session
            if world.clock - began > _PATIENCE_SECS:
                self._give_up(world, f'{name}: a ps does not answer')
            world.sleep(1)

    def _retried(self, world, member, session, function):
        """Calls a function with a session, with another one after each loss of a ps."""
        while True:
            try:
                function(session)
                for i in range(world.setting['ps']):
                    session.words(f'ps {i}')
                return session
            except tf.errors.UnavailableError:
                session = self._session(world, member)

    @staticmethod
    def _silence(world, address):
        process = world.processes[address.replace('-', ' ')]
        if process.is_silent:
            return liveness.LATE
        return '' if process.alive else _REFUSED

    @staticmethod
    def _says(world, who, what):
        world.tell(who, f'says "{what}"')
        if what.endswith(' part'):
            world.current.process.said = what

    def _give_up(self, world, line):
        process = world.current.process
        world.tell(process.name, f'gives up: "{line}"')
        there = self._known(world, process)
        must(not there, 'a ps gives up though it knows a worker that is there:', f'{there}')
        raise Died

    @staticmethod
    def _known(world, process):
        """Returns the names of those workers that are there and that a ps has heard."""
        return [name for name, worker in process.known.items()
                if worker is world.processes[name] and worker.alive]

    def _leaves(self, world, process):
        """A ps ends: training is over, and nobody that it knows is there."""
        must(world.steps >= world.setting['steps'], 'a ps ends before training is over:',
             f'{world.steps}')
        there = self._known(world, process)
        must(not there, 'a ps ends though a worker needs it:', f'{process.name}, {there}')
        must(not process.said or '0 workers take part' in process.said,
             'a worker that has gone takes part:', process.said)
