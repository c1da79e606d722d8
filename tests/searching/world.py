"""A world in which one thing happens at a time: processes, their threads and runs, and a clock.

The code of the library runs in it unchanged, each thread of it in a thread of its own. It stops
where it runs a session, sleeps or waits, and goes on when it is chosen. A run goes on atom by atom.
"""

import contextlib
import queue
import re
import threading
import types
from unittest import mock

from tfdist.start.quiet import tf

from searching import machine as machines

_MOST_ACTIONS = 6000  # after the faults have ended; a schedule has some hundreds
_MOST_LOOKS = 100  # by each that sleeps and looks again, while nothing changes
_READS = ('ReadVariableOp', 'LookupTableFindV2', 'QueueSizeV2', machines.ARRIVAL, machines.LOCK,
          machines.UNLOCK, 'ResourceAccumulatorNumAccumulated')
_THREAD = threading.local()
_LEAST_SLEEP = 1.  # seconds of the world's clock: nothing happens sooner than that by sleeping


class ViolationError(Exception):
    """Something that must not happen; `kind` is what it is called whoever it happens to."""

    def __init__(self, kind, details=''):
        super().__init__(f'{kind} {details}'.strip())
        self.kind = kind


class TooLongError(Exception):
    """Ends a schedule that cannot go on, though nothing is wrong with it."""


class Died(BaseException):
    """Ends the code of a process that was killed. Nothing catches it."""


class Run:
    """A run of a session, some atoms of which are done.

    Attributes:
      ready: list of numbers of the atoms whose turn it may be.
      values: dict of what is known by name.
      info: dict for those who check.
    """

    def __init__(self, agent, program, values, info):
        self.agent, self.program, self.values, self.info = agent, program, values, info
        self.needs = [len(atom.before) for atom in program.atoms]
        self.ready = [atom.number for atom in program.atoms if not atom.before]
        self.done = [False] * len(program.atoms)
        self.left = len(program.atoms)
        self.waiting, self.failed, self.lost = set(), False, None

    def choices(self):
        """Returns the numbers of atoms that can be chosen."""
        return [number for number in self.ready if number not in self.waiting]

    def finish(self, number):
        """Counts an atom as done."""
        self.done[number] = True
        self.left -= 1
        self.ready.remove(number)
        self.waiting.discard(number)
        for later in self.program.atoms[number].after:
            self.needs[later] -= 1
            if not self.needs[later]:
                self.ready.append(later)
        self.ready.sort()

    def keep(self, holds):
        """Forgets the atoms that will never run, and those after them.

        Args:
          holds: function of an `Atom` that is not done: whether it can still be done, if what is
            before it is.

        Returns:
          Whether any is left.
        """
        kept = []
        for atom in self.program.atoms:  # those before come first
            kept.append(self.done[atom.number] or (
                holds(atom) and all(kept[number] for number in atom.before)))
        self.cut = [number for number, stays in enumerate(kept) if not stays]
        self.ready = [number for number in self.ready if kept[number]]
        self.waiting &= set(self.ready)
        for number in self.cut:
            self.needs[number] = -1  # never zero
        self.left = sum(kept) - sum(self.done)
        return self.left > 0


class Agent:
    """A thread of a process, or a run that its process has left behind.

    Attributes:
      name: string, such as 'worker 1'.
      process: `Process`.
      run: `Run` under way, or None.
      sleeps: the time until which it sleeps, or None.
      ended: bool.
    """

    def __init__(self, world, name, process, body=None):
        self.world, self.name, self.process = world, name, process
        self.run = self.sleeps = self.until = None
        self.ended, self._body, self.is_code, self.error = False, body, body is not None, None
        if body:
            self._go, self._back = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(target=self._live, daemon=True).start()

    def _live(self):
        _THREAD.world = self.world
        try:
            if self._go.get() is None:
                self._body()
        except Died:
            pass
        except BaseException as error:  # the world tells of it
            self.error = error
        self.ended = True
        self._back.put(None)

    def resume(self, value=None):
        """Lets its code go on until it stops again."""
        self.world.current, before = self, self.world.current
        self._go.put(value)
        self._back.get()
        self.world.current = before
        if self.ended:
            self.world.end(self)

    def stop(self):
        """Is called by its own code: waits until it is chosen to go on; returns what it is told."""
        self._back.put(None)
        told = self._go.get()
        if isinstance(told, BaseException):
            raise told
        return told

    def runs(self, run):
        """Is called by its own code: makes a run; returns its results."""
        self.run = run
        if run.left:
            self.stop()
        self.run = None
        return run.program.results(run.values)

    def sleep(self, seconds):
        """Is called by its own code."""
        self.sleeps = self.world.clock + max(seconds, _LEAST_SLEEP)
        self.stop()

    def pause(self):
        """Is called by its own code: others may come first."""
        self.stop()

    def wait_for(self, condition, seconds):
        """Is called by its own code: waits until `condition` holds, or for some time."""
        self.until, self.sleeps = condition, self.world.clock + seconds
        self.stop()

    def can_go_on(self):
        """Returns whether it can be chosen."""
        if self.ended:
            return False
        return bool(self.run.choices()) if self.run else True

    def is_idle(self):
        """Returns whether it only sleeps."""
        return self.sleeps is not None and not (self.until and self.until())


class Process:
    """A process: it lives until it ends or dies, and has threads and sessions.

    Attributes:
      name: string, such as 'worker 1'.
      life: int, which life of the task it is, from 1.
      alive: bool.
      is_silent: bool, whether it is dead, and nothing tells the others.
    """

    def __init__(self, world, name, life):
        self.world, self.name, self.life, self.alive = world, name, life, True
        self.agents, self.is_done, self.is_silent = [], False, False

    def thread(self, body, name=None):
        """Starts a thread that runs a function without arguments."""
        agent = Agent(self.world, name or self.name, self, body)
        self.agents.append(agent)
        self.world.add(agent)
        return agent


class Session:
    """What the code of a process gets as its `tf.Session`."""

    def __init__(self, world, process):
        self._world, self._process, self._owner = world, process, process.name
        self._closed, self._known = False, dict(world.incarnations)

    def run(self, fetches, feed_dict=None, info=None):
        if self._closed:
            raise RuntimeError('Attempted to use a closed Session.')
        flat = []
        _flatten(fetches, flat)
        feed = feed_dict or {}
        program = self._world.machine.program(self._owner, flat, list(feed))
        self._world.check_places(program, self._known)
        run = Run(self._world.current, program, self._world.machine.fed(self._owner, feed),
                  dict(info or {}))
        run.session = self
        found = iter(self._world.current.runs(run))
        return _like(fetches, found)

    def make_callable(self, fetches, feed_list=()):
        return lambda *values: self.run(fetches, dict(zip(feed_list, values)))

    def close(self):
        self._closed = True
        for agent in self._process.agents:
            if agent.run and agent.run.session is self:
                self._world.abort(agent, tf.errors.CancelledError(None, None, 'closed'))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def _flatten(fetches, flat):
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            _flatten(each, flat)
    else:
        flat.append(fetches)


def _like(fetches, found):
    if isinstance(fetches, dict):
        return {key: _like(each, found) for key, each in fetches.items()}
    if isinstance(fetches, (list, tuple)):
        return [_like(each, found) for each in fetches]
    return next(found)


class World:
    """All that happens in one schedule.

    Attributes:
      machine: `machine.Machine`.
      protocol: the protocol that is played, which checks what happens.
      agents: list of `Agent`, those that have not ended.
      processes: dict of the `Process` by task, dead or alive.
      clock: float, seconds.
      incarnations: dict by ps of how often it was lost.
      story: list of pairs (who, what).
    """

    def __init__(self, machine, protocol):
        self.machine, self.protocol = machine, protocol
        self.agents, self.processes, self.lives = [], {}, {}
        self.clock, self.current, self.last = 0., None, None
        self.incarnations = {}
        self.story, self.waiters, self.locks = [], {}, {}
        self.changes, self.left_behind, self._closing = 0, 0, False

    # What the code of the library calls in place of time and threading.

    def sleep(self, seconds):
        if getattr(_THREAD, 'world', None) is not self:
            raise RuntimeError('A thread that is not of this world calls a function of the library '
                               'in which the world is in the place of time.')
        self.current.sleep(seconds)

    def monotonic(self):
        return self.clock

    time = seconds = monotonic

    def process_time(self):
        return 0.

    def event(self):
        """Stands for `threading.Event`."""
        return _Event(self)

    def lock(self):
        """Stands for `threading.Lock`."""
        return _Lock(self)

    def thread(self, target, args=(), daemon=None):
        """Stands for `threading.Thread`."""
        return _Thread(self, lambda: target(*args))

    def timer(self, seconds, function, args=()):
        """Stands for `threading.Timer`."""
        return _Timer(self, seconds, lambda: function(*args))

    def session(self, process):
        return Session(self, process)

    @contextlib.contextmanager
    def patched(self, *places):
        """Puts the world in the place of modules' names `time`, `threading` and `awake_clock`."""
        with contextlib.ExitStack() as stack:
            shim = types.SimpleNamespace(Thread=self.thread, Timer=self.timer, Event=self.event,
                                         Lock=self.lock, RLock=threading.RLock)
            for module in places:
                for name, value in (('time', self), ('threading', shim), ('awake_clock', self)):
                    if hasattr(module, name):
                        stack.enter_context(mock.patch.object(module, name, value))
            yield

    # Processes.

    def start(self, task, body):
        """Starts a process of a task, whose code is `body`, a function of the `Process`."""
        for agent in list(self.agents):  # what an earlier life had sent has arrived by now
            if agent.process.name == task and not agent.process.alive:
                self._let_it_arrive(agent)
        self.lives[task] = self.lives.get(task, 0) + 1
        process = self.processes[task] = Process(self, task, self.lives[task])
        self.tell(task, 'starts' if process.life == 1 else 'is started again')
        process.thread(lambda: body(process))
        return process

    def kill(self, task, silently=False):
        """Ends a process. If its machine is lost silently, the ps do not know, and go on for it."""
        process = self.processes[task]
        self.tell(task, 'loses its machine' if silently else 'is killed')
        process.alive, process.is_silent = False, silently
        self._end_all(process, silently)

    def _end_all(self, process, silently):
        """Ends the threads of a process, and its runs as far as the ps know of its end."""
        self.changes += 1
        for agent in process.agents:
            if not agent.ended:
                if agent.run:
                    self._leave_behind(agent, silently)
                    agent.run = None
                agent.resume(Died())
        self.protocol.gone(self, process)

    def _leave_behind(self, agent, silently):
        """Makes what a run can still do on the ps without its worker an agent of its own."""
        run, mine = agent.run, agent.process.name

        def goes_on(atom):
            if mine in (atom.place, atom.source):
                return False
            return silently or not (atom.waits or atom.kind == machines.ARRIVAL)

        is_left = run.keep(goes_on)
        self._stop_waiting(run)
        self.protocol.left_behind(self, run)
        if not is_left:
            self._release(run)
        else:
            self.left_behind += 1
            left = Agent(self, f'{mine} left behind {self.left_behind}', agent.process)
            left.run, run.agent = run, left
            self.agents.append(left)

    def _let_it_arrive(self, agent, goes_on=lambda atom: True):
        """Does all of a run that is on its way, as far as it does not wait."""
        run = agent.run
        while run and agent.run is run and not agent.ended:
            able = [number for number in run.choices() if goes_on(run.program.atoms[number])]
            if not able:
                return
            self._do(agent, able[0])

    def cut(self, agent):
        """Ends what a lost machine left behind: its connection was found dead."""
        self.tell(agent.name, 'is found dead')
        agent.run.keep(lambda atom: not (atom.waits or atom.kind == machines.ARRIVAL))
        self._stop_waiting(agent.run)
        self.protocol.left_behind(self, agent.run)
        self._let_it_arrive(agent)
        self.end(agent)

    def lose(self, ps):
        """Loses a ps and what it had; it comes back empty."""
        self.tell(ps, 'is lost, and comes back empty')
        self.incarnations[ps] = self.incarnations.get(ps, 0) + 1
        self.machine.reset(ps)
        spoiled = []
        for agent in list(self.agents):
            run = agent.run
            if run and any(not run.done[atom.number] and ps in (atom.place, atom.source)
                           for atom in run.program.atoms):
                run.lost, run.failed = ps, True
                run.keep(lambda atom: ps not in (atom.place, atom.source))
                self._stop_waiting(run)
                spoiled.append((agent, run))
            else:
                self._let_it_arrive(agent, lambda atom: atom.kind != machines.ARRIVAL)
        for agent, run in spoiled:
            if agent.run is run:  # no other has closed its session
                self.abort(agent, tf.errors.AbortedError(None, None, f'{ps} is lost'))
        for key in [key for key in self.locks if key.endswith(f'@{ps}')]:
            del self.locks[key]

    def abort(self, agent, error):
        """Has a run fail. What the other ps have begun, they end."""
        run = agent.run
        run.failed = True
        is_left = run.keep(lambda atom: not (
            atom.place == run.lost or atom.waits or atom.kind == machines.ARRIVAL))
        self._stop_waiting(run)
        if is_left:
            self._let_it_arrive(agent)
        self.protocol.left_behind(self, run)
        self._release(run)
        if agent.is_code:
            agent.run = None
            agent.resume(error)
        else:
            self.end(agent)

    def check_places(self, program, known):
        """Raises an error if a ps of a run was lost since its session began."""
        for place in program.places:
            if self.incarnations.get(place, 0) != known.get(place, 0):
                raise tf.errors.AbortedError(None, None, f'{place} was lost')

    def add(self, agent):
        self.agents.append(agent)

    def end(self, agent):
        """Takes out an agent that has ended."""
        agent.ended = True
        if agent in self.agents:
            self.agents.remove(agent)
        if agent.run:
            self._release(agent.run)
            agent.run = None
        process = agent.process
        if self._closing:
            return
        if isinstance(agent.error, (ViolationError, TooLongError)):
            raise agent.error
        if agent.error:
            raise ViolationError('a process fails:', f'{agent.name}: {agent.error!r}')
        if process.alive and process.agents and agent is process.agents[0]:
            process.alive, process.is_done = False, True
            self.tell(process.name, 'ends')
            self._end_all(process, silently=False)

    # What happens.

    def tell(self, who, what):
        self.story.append((who, what))

    def options(self):
        """Returns the agents that can be chosen."""
        return [agent for agent in self.agents if agent.can_go_on()]

    def faults(self):
        """Returns the faults that are possible now, a list of actions."""
        return [each for each in self.protocol.faults(self)
                if re.match(self.protocol.only_faults, each)]

    def can(self, action):
        """Returns whether an action is possible."""
        name = action.partition('.')[0]
        return any(agent.name == name and agent.can_go_on() for agent in self.agents) or (
            action in self.faults())

    def act(self, action):
        """Does an action: the name of an agent that goes on, maybe with a choice; or a fault."""
        name, _, choice = action.partition('.')
        for agent in self.agents:
            if agent.name == name:
                self.go_on(agent, int(choice or 0))
                return
        verb, _, what = action.partition(' ')
        if verb == 'start':
            self.protocol.start(self, what)
        elif verb == 'cut':
            name = what.partition(' off')[0]
            self.cut(next(agent for agent in self.agents if agent.name == name))
        elif verb in self.protocol.verbs:
            self.protocol.do(self, verb, what)
        elif what in self.processes:
            self.kill(what, silently=verb == 'lose')
        else:
            self.lose(what)

    def go_on(self, agent, choice=0):
        """Lets an agent do its next thing."""
        self.last = agent
        if agent.run:
            choices = agent.run.choices()
            self._do(agent, choices[choice % len(choices)])
            return
        if agent.sleeps is not None:
            if agent.is_idle():
                self.clock = max(self.clock, agent.sleeps)
            agent.sleeps = agent.until = None
        agent.resume()

    def _do(self, agent, number):
        """Runs an atom, or has it wait."""
        run, atom = agent.run, agent.run.program.atoms[number]
        if atom.waits:
            line = self.waiters.setdefault(atom.state, [])
            if not self._is_ready(run, atom) or line and run.info.get('wanted'):
                line.append((run, number))
                run.waiting.add(number)
                return
        self._execute(agent, run, atom)
        if atom.state:
            self._serve(atom.state)

    def _serve(self, state):
        """Runs what waits for a state and can run now, first come, first served."""
        line = self.waiters.get(state)
        while line:
            run, number = line[0]
            if not self._is_ready(run, run.program.atoms[number]):
                return
            line.pop(0)
            self._execute(run.agent, run, run.program.atoms[number])

    def _is_ready(self, run, atom):
        if atom.kind == machines.LOCK:
            run.info['wanted'] = 1
            return atom.state not in self.locks
        wanted = 1  # none at all: that does not wait in line
        if atom.asks:
            wanted = int(self.machine.evaluate(*atom.asks, run.values)[0])
        run.info['wanted'], run.info['available'] = wanted, self.machine.size(atom.state)
        return run.info['available'] >= wanted

    def _execute(self, agent, run, atom):
        given, made = [], []
        if atom.kind == machines.LOCK:
            self.locks[atom.state] = run
        elif atom.kind == machines.UNLOCK:
            self.locks.pop(atom.state, None)
        elif atom.kind != machines.ARRIVAL:
            try:
                found = self.machine.evaluate(atom.run, atom.feeds, atom.given, run.values)
            except tf.errors.OpError as error:
                raise ViolationError('an op fails:', f'{atom.name}: {error.message}') from error
            given, made = found[:len(atom.given)], found[len(atom.given):]
            run.values.update(zip(atom.made, made))
        run.finish(atom.number)
        self.changes += atom.kind not in _READS
        self.story.append((agent.name, (atom, given, made)))
        self.protocol.observe(self, agent, run, atom, given, made)
        if atom.kind == machines.UNLOCK:
            self._serve(atom.state)
        if not run.left:
            self._release(run)
            if not agent.is_code:
                self.end(agent)
            elif not run.failed:
                agent.resume()

    def _release(self, run):
        for state in [state for state, held in self.locks.items() if held is run]:
            del self.locks[state]
            self._serve(state)

    def _stop_waiting(self, run):
        """Takes those atoms of a run out of all lines that will never run."""
        for state, line in self.waiters.items():
            line[:] = [each for each in line if each[0] is not run or each[1] in run.ready]
            self._serve(state)

    def settle(self, is_settled=lambda: False):
        """Lets all go on without faults, each as far as it comes, until a condition holds.

        At the latest it returns when all have ended.
        """
        agent, changes, idle = None, 0, 0
        for _ in range(_MOST_ACTIONS):
            if not self.agents or is_settled():
                return
            if agent not in self.agents or not agent.can_go_on() or agent.is_idle():
                options = self.options()
                awake = [each for each in options if not each.is_idle()]
                lost = [each for each in self.agents if not each.is_code]
                if not awake and lost:
                    self.cut(lost[0])
                    continue
                idle = 0 if awake or changes < self.changes else idle + 1
                if not options or idle > _MOST_LOOKS * len(options):
                    raise ViolationError('all stand still:', self._who_waits())
                changes = self.changes
                agent = awake[0] if awake else min(options, key=lambda each: each.sleeps)
            self.go_on(agent)
        raise ViolationError('it never ends:', self._who_waits())

    def _who_waits(self):
        return '; '.join(f'{agent.name} ' + (
            'waits at ' + ', '.join(agent.run.program.atoms[number].state or 'nothing'
                                    for number in sorted(agent.run.waiting))
            if agent.run else 'looks again and again') for agent in self.agents)

    def close(self):
        """Ends all threads."""
        self._closing = True
        for agent in list(self.agents):
            agent.process.alive = False
            if agent.is_code and not agent.ended:
                agent.run = None
                agent.resume(Died())


class _Thread:
    """A thread of the process whose code makes it."""

    def __init__(self, world, body):
        self._world, self._body = world, body

    def start(self):
        process = self._world.current.process
        number = len(process.agents)
        self._agent = process.thread(
            self._body, f"{process.name}'s thread" + f' {number}' * (number > 1))

    def join(self, seconds=1e9):
        if not self._agent.ended:
            self._world.current.wait_for(lambda: self._agent.ended, seconds)


class _Timer(_Thread):
    """A thread that calls a function after some time, unless it is cancelled before."""

    def __init__(self, world, seconds, body):
        def wait_and_call():
            world.sleep(seconds)
            if not self._is_cancelled:
                body()

        super().__init__(world, wait_and_call)
        self._is_cancelled = False

    def cancel(self):
        self._is_cancelled = True


class _Event:
    """An event of the world."""

    def __init__(self, world):
        self._world, self._is_set = world, False

    def set(self):
        self._is_set = True
        self._world.changes += 1

    def is_set(self):
        return self._is_set

    def wait(self, seconds=1e9):
        if not self._is_set:
            self._world.current.wait_for(self.is_set, seconds)
        return self._is_set


class _Lock:
    """A lock of the world, which one thread has at a time."""

    def __init__(self, world):
        self._world, self._is_free = world, True

    def __enter__(self):
        while not self._is_free:
            self._world.current.wait_for(lambda: self._is_free, _LEAST_SLEEP)
        self._is_free = False

    def __exit__(self, *_):
        self._is_free = True
