"""The elastic ring: workers are lost and come back, and one ring at a time goes on from the newest.

The code that agrees on the next ring, and that breaks a ring up, is the folder's. What lies below
it is played: queues and boards in the memory of each worker, and connections between them.
"""

import collections
import contextlib
import functools
import itertools
import types
from unittest import mock

from conftest import load_program
from tfdist.cluster import keepalive, liveness, patience
from tfdist.start import console
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must
from searching.world import Died

elastic = load_program('Ring-AllReduce', 'elastic')
agreement, ring = elastic.agreement, elastic.ring
_PATIENCE_SECS = 60.  # of a worker that finds no ring
_APPLY_SECS = 3.
_BROKEN_AFTER_SECS = 20.  # without an answer a call fails
_SOON = 20  # looks at the others in which workers that all answer have found a ring
# What a worker trained: the last step; the batches of all workers up to it; the ring that made it;
# and what was there before, without which it is something else.
Values = collections.namedtuple('Values', 'step batches made_in before')
_INITIAL = Values(0, 0, '', 0)


class _Memory:
    """What a worker shows the others: it dies with its process."""

    def __init__(self):
        self.board, self.queues, self.closed = None, collections.defaultdict(list), set()


class _Board:
    """Stands for `agreement._Board`."""

    def __init__(self, world, worker):
        self._world, self._task = world, f'worker {worker}'

    def read(self):
        """Returns what another worker shows, after the way there, before the way back."""
        self._world.current.pause()
        memory = reachable(self._world, self._world.current.process, self._task)
        board = memory and memory.board
        self._world.current.pause()
        return board

    def write(self, **content):
        process = self._world.current.process
        self._world.current.pause()
        process.memory.board = dict(content)
        self._world.changes += 1


def reachable(world, me, task):
    """Returns the `_Memory` of a task that answers the process `me`; otherwise None."""
    process = world.processes.get(task)
    if not process or not process.alive or (
            process is not me and {me.name, task} & world.isolated):
        return None
    return getattr(process, 'memory', None)  # None: its server has not started


class _Session:
    """Stands for a `tf.Session`, whose fetches are functions here."""

    def __init__(self, world):
        self._world, self.is_closed = world, False

    def run(self, fetch):
        if self.is_closed:
            raise RuntimeError('Attempted to use a closed Session.')
        return fetch() if fetch else self._world.current.process.values.step

    def close(self):
        self.is_closed = True
        self._world.changes += 1


class Ring(elastic.Ring):
    """The folder's, with functions in the place of ops."""

    def __init__(self, world, place, attempt):
        self._world, self._process = world, world.current.process
        self._place, self._attempt, self._workers = place, attempt, attempt.workers
        self._name = self._process.name
        self._others = [worker for worker in place.workers if worker != self._workers.me]
        self._lock, self._session = world.lock(), None
        self._broken, self._stop_watching = attempt.broken, world.event()
        self._exchange = None
        self._stepped, self._newcomers = world.clock, []
        self._memories, self._tried = {}, self._workers._tried
        self._start, self._begin_batches = self._take_over, lambda: None
        self._say_done = lambda: self._put(0, 'done', self._place.index)
        self._hear_done, self._may_leave = (
            lambda: self._get('done'), lambda: self._get('leave', 0))
        self._raw = None

    def session(self):
        """Returns a session, once all tasks that it sees answer; TensorFlow waits for ever."""
        for place in {0, self._place.index, (self._place.index + 1) % len(self._place.workers)}:
            look = functools.partial(
                reachable, self._world, self._process, f'worker {self._place.workers[place]}')
            while not look():
                self._world.current.wait_for(look, 1.)
            self._memories[place] = look()
        self._process.values = self._process.values or _INITIAL
        self._process.marks = self._process.marks or (0, 0)
        self._raw = _Session(self._world)
        self.after_create_session(self._raw, None)
        return types.SimpleNamespace(run=self._raw.run,
                                     close=lambda: self.finish(self._raw, None))

    # Queues, in the memory of who takes from them.

    def _wait(self, find):
        """Returns what a function finds, as soon as that is not None."""
        while True:
            if self._raw.is_closed:
                raise tf.errors.CancelledError(None, None, 'its session was closed')
            found = find()
            if found is not None:
                return found
            self._world.current.wait_for(
                lambda: self._raw.is_closed or find() is not None, 1.)

    def _is_gone(self, place, since):
        """Returns whether a call to a worker fails that was made at a time of the world's clock."""
        memory, task = self._memories[place], f'worker {self._place.workers[place]}'
        process = self._world.processes[task]
        if getattr(process, 'memory', None) is not memory or not (
                process.alive or process.is_silent):
            return True
        return reachable(self._world, self._process, task) is not memory and (
            self._world.clock - since > _BROKEN_AFTER_SECS)

    def _put(self, place, name, value):
        memory, sent = self._memories[place], self._world.clock
        key, task = (self._place.container, name), f'worker {self._place.workers[place]}'
        self._world.current.pause()

        def find():
            if self._is_gone(place, sent):
                return 'gone'
            if reachable(self._world, self._process, task) is not memory:
                return None
            if self._place.container in memory.closed:
                return 'closed'
            return 'room' if name in ('done', 'leave') or not memory.queues[key] else None

        found = self._wait(find)
        if found == 'gone':
            raise tf.errors.UnavailableError(None, None, 'Socket closed')
        if found == 'closed':
            raise tf.errors.CancelledError(None, None, 'the queue was closed')
        memory.queues[key].append(value)
        self._world.changes += 1

    def _get(self, name, place=None, open_to=None):
        """Takes from a queue; `open_to` is a place to which the run that does so sends later."""
        place = self._place.index if place is None else place
        memory, task = self._memories[place], f'worker {self._place.workers[place]}'
        key, began = (self._place.container, name), self._world.clock

        def find():
            if self._is_gone(place, began) or (
                    open_to is not None and self._is_gone(open_to, began)):
                return 'gone'
            if reachable(self._world, self._process, task) is not memory:
                return None
            if memory.queues[key]:
                return 'there'
            return 'closed' if self._place.container in memory.closed else None

        self._world.current.pause()
        found = self._wait(find)
        if found == 'gone':
            raise tf.errors.UnavailableError(None, None, 'Socket closed')
        if found == 'closed':
            raise tf.errors.OutOfRangeError(None, None, 'the queue is closed and empty')
        self._world.changes += 1
        return memory.queues[key].pop(0)

    def _close_queues(self, worker):
        self._world.current.pause()
        memory = reachable(self._world, self._process, f'worker {worker}')
        if memory:
            memory.closed.add(self._place.container)
            for key in [key for key in memory.queues if key[0] == self._place.container]:
                del memory.queues[key][:]
            self._world.changes += 1

    def let_leave(self, server):
        for _ in self._others:
            self._put(0, 'leave', 0)

    # What a session runs.

    def _set(self, values, mark):
        """Sets the values, and tells before and after that they are not whole."""
        must(self._workers._tried == self._tried, 'a ring that was left changes values:',
             f'{self._name}, {self._place.container}')
        self._process.marks = mark, self._process.marks[1]
        self._world.current.pause()
        if self._raw.is_closed:
            raise tf.errors.CancelledError(None, None, 'its session was closed')
        must(self._workers._tried == self._tried, 'a ring that was left changes values:',
             f'{self._name}, {self._place.container}')
        self._process.values = values
        self._world.current.pause()
        if self._raw.is_closed:
            raise tf.errors.CancelledError(None, None, 'its session was closed')
        self._process.marks = values.step, values.step
        self._world.changes += 1

    def _take_over(self):
        place = self._place
        if place.index != place.source:
            following = (place.index + 1) % len(place.workers)
            values = self._get('start', open_to=None if following == place.source else following)
            mine, had = self._process.values, self._process.had
            must(had is None or had < (values[1] or []) or mine.step <= values[0].step,
                 'a step is lost that a worker of the ring has:', f'{mine.step} of {self._name}')
            self._set(values[0], -1)
            self._process.had = values[1]
        elif not self._workers.is_first_ring:
            self._process.marks = (self._process.values.step,) * 2
        following = (place.index + 1) % len(place.workers)
        if following != place.source:
            self._put(following, 'start', (self._process.values, self._process.had))
        values, workers = self._process.values, len(place.workers)
        must(values.batches == place.before + values.step * workers,
             'a ring counts other batches than were trained on:',
             f'{place.before + values.step * workers}, not {values.batches}')

    def step(self):
        """Makes a step: sums around the ring, and applies the sum."""
        self._session.run(self._step)

    def _step(self):
        me, size = self._place.index, len(self._place.workers)
        base = self._process.values
        chunks = [frozenset([(me, base)])] * size
        following = (me + 1) % size
        for i in range(size - 1):
            self._put(following, f'scatter {i}', chunks[(me - i) % size])
            chunks[(me - i - 1) % size] |= self._get(f'scatter {i}', open_to=following)
        for i in range(size - 1):
            self._put(following, f'gather {i}', chunks[(me + 1 - i) % size])
            chunks[(me - i) % size] = self._get(
                f'gather {i}', open_to=following if i < size - 2 else None)
        for chunk in chunks:
            must(chunk == {(place, base) for place in range(size)},
                 'a step is not the sum of all workers:', f'step {base.step + 1} of {self._name}')
        values = Values(base.step + 1, base.batches + size, self._place.container, hash(base))
        self._set(values, values.step)
        self._process.had = self._tried
        before = self._world.made.setdefault((self._place.container, values.step), values)
        must(before == values, 'two workers of a ring have other values:', f'step {values.step}')
        self._world.newest = max(self._world.newest, (self._tried[0], values.step))
        self._world.tell(self._name, f'completes step {values.step}')


class Rings(protocol.Protocol):
    """Workers that agree on rings, and train in them."""

    name = 'ring'
    # Faults from the start; or only when a step is complete, so that there is something to lose.
    settings = [
        dict(workers=2, least=2, steps=3, calm=0), dict(workers=3, least=2, steps=8, calm=1),
        dict(workers=3, least=2, steps=3, calm=0), dict(workers=5, least=3, steps=5, calm=1)]
    modules = (elastic, agreement, ring)
    may_be_killed = may_be_lost = True
    verbs = 'isolate', 'reconnect'

    def graphs(self, setting):
        return {}

    @contextlib.contextmanager
    def more(self, world):
        world.isolated, world.made, world.newest = set(), {}, (0, 0)
        world.looks = collections.Counter()  # at the others, by worker, since the last fault
        number = itertools.count(1)
        flags = types.SimpleNamespace(
            min_workers=world.setting['least'], learning_rate=1., scale_learning_rate=False,
            model_dir=None, patience_secs=_PATIENCE_SECS)
        in_turn = types.SimpleNamespace(map=lambda function, each: list(map(function, each)))
        pool = types.SimpleNamespace(
            futures=types.SimpleNamespace(ThreadPoolExecutor=lambda _: in_turn))
        with contextlib.ExitStack() as stack:
            for place, name, value in (
                    (agreement, 'FLAGS', flags), (elastic, 'FLAGS', flags),
                    (elastic, '_APPLY_SECS', _APPLY_SECS),
                    (agreement, '_Board', lambda worker, _: _Board(world, worker)),
                    (agreement, 'concurrent', pool),
                    (agreement, 'uuid', types.SimpleNamespace(uuid4=lambda: types.SimpleNamespace(
                        hex=f'{next(number)}'))),
                    (elastic, 'os', types.SimpleNamespace(_exit=lambda _: self._exit(world))),
                    (elastic.Marks, 'read', lambda *_: self._marks(world)),
                    (keepalive, 'begin', lambda: None), (patience, 'PATIENCE', mock.Mock()),
                    (liveness, 'silence', lambda task: self._silence(world, task)),
                    (console, 'say', lambda who, what: world.tell(who, f'says "{what}"')),
                    (console, 'give_up', lambda line, status=75: self._give_up(world, line))):
                stack.enter_context(mock.patch.object(place, name, value))
            yield

    def body(self, world, process):
        tasks = self.tasks(world)
        process.memory, process.values, process.marks, process.had = _Memory(), None, None, None
        me, steps = tasks.index(process.name), world.setting['steps']
        spec = types.SimpleNamespace(job_tasks=lambda _: tasks)
        workers = process.workers = agreement.Workers(
            types.SimpleNamespace(cluster_spec=lambda: spec, task_id=me),
            types.SimpleNamespace(target=process.name))
        while True:
            world.looks.clear()  # whoever asks changes what the others have to find
            place = workers.next_place(*self._marks(world))
            attempt = process.attempt = elastic.Attempt(workers)
            with contextlib.suppress(elastic.BrokenError):
                attempt.run(functools.partial(self._train, world, place, attempt, steps))

    def begin(self, world):
        super().begin(world)
        world.settle(lambda: world.newest[1] >= world.setting['calm'])

    @staticmethod
    def _train(world, place, attempt, steps):
        world.current.attempt = attempt
        together = Ring(world, place, attempt)
        with together.opened(together.session):
            while world.current.process.values.step < steps:
                with together.failures():
                    together.step()
                together.take_in()

    @staticmethod
    def _marks(world):
        """Stands for `elastic.Marks.read`."""
        marks = world.current.process.marks
        return (marks[0], marks[0] == marks[1]) if marks else (0, False)

    @staticmethod
    def _exit(world):
        must(not world.current.attempt._abandoned, 'a thread that was left alone ends its process:',
             world.current.name)
        raise Died

    @staticmethod
    def _silence(world, task):
        process, me = world.processes.get(task), world.current.process
        world.looks[me.name] += 1
        if process is not me and {me.name, task} & world.isolated or (
                process and process.is_silent):
            return liveness.LATE
        return '' if reachable(world, me, task) else agreement._REFUSED

    def _give_up(self, world, line):
        process = world.current.process
        world.tell(process.name, f'gives up: "{line}"')
        there = [each for each in world.processes.values() if each is process or each.alive
                 and not {each.name, process.name} & world.isolated]
        if 'find no ring' in line or 'does not answer' in line:
            must(len(there) < world.setting['workers'] or min(
                world.looks[each.name] for each in there) < _SOON * len(there),
                 'no ring is found though all workers are there:', line)
        elif 'fewer than' in line:
            holders = [each.name for each in there if getattr(each, 'had', None)]
            must(len(holders) < world.setting['least'], 'enough workers are left:',
                 f'{", ".join(holders)}; but {line}')
        raise Died

    def faults(self, world):
        found = super().faults(world)
        for task in self.tasks(world):
            found.append(f'reconnect {task}' if task in world.isolated else f'isolate {task}')
        return found

    def do(self, world, verb, what):
        world.looks.clear()
        if verb == 'isolate':
            world.isolated.add(what)
            world.tell(what, 'is cut off from the others')
        else:
            world.isolated.remove(what)
            world.tell(what, 'is connected again')

    def gone(self, world, process):
        world.looks.clear()

    def calm(self, world):
        for task in sorted(world.isolated):
            self.do(world, 'reconnect', task)
        super().calm(world)

    def at_the_end(self, world):
        last = {process.values for process in world.processes.values()
                if process.is_done and process.values
                and process.values.step == world.setting['steps']}
        must(len(last) <= 1, 'workers end with other values:', f'{len(last)}')
