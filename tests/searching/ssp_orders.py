"""SSP: no worker is further ahead of the slowest than the bound."""

import types

import numpy as np
from conftest import load_program
from tfdist.scheme import toy
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must

_DEAD_AFTER = 3.  # seconds
program = load_program('SSP')


class Worker:
    """The graph of a worker; each of its pushes adds 1 to a center that starts at 0."""

    def __init__(self, task_index, setting):
        with tf.Graph().as_default() as self.graph, tf.device(tf.train.replica_device_setter(
                ps_tasks=1, worker_device=f'/job:worker/task:{task_index}')):
            step = tf.train.get_or_create_global_step()
            center = tf.get_variable('x', initializer=tf.constant(0.))
            hparams = types.SimpleNamespace(learning_rate=1., staleness_bound=setting['bound'],
                                            dead_after_secs=_DEAD_AFTER)
            # Its gradient is -1, and depends on what was read, as any other.
            problem = toy.Problem(lambda values: (0 * tf.square(values[0]) - values[0],
                                                  tf.constant(0.)), [center])
            self.scheme = program.Scheme(problem, step, hparams, task_index, setting['workers'])
            self.step = step.read_value()
            self.center_read = self.scheme.pull[1].op.inputs[0].op.name


class Ssp(protocol.Protocol):
    """The gate, the push and the tick."""

    name = 'ssp'
    settings = [dict(workers=2, bound=0, steps=5, back=True),
                dict(workers=2, bound=1, steps=6, back=False),
                dict(workers=3, bound=1, steps=8, back=True)]
    modules = (program,)
    may_be_killed = may_be_lost = True

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting)

    def begin(self, world):
        number = world.setting['workers']
        world.base = [None] * number  # the clock at which each began; None: it is absent
        world.pushed = [0] * number  # since then
        world.since = [0] * number  # when it began, counted in `world.now`
        world.looked = [0] * number  # when each looked at the clocks last
        world.moved = [(None, 0., 0)] * number  # the clocks, and when they came to be so
        world.now = 0
        super().begin(world)

    def body(self, world, process):
        worker = self.workers[str(world.setting)][process.name]
        scheme, session = worker.scheme, world.session(process)
        # The clocks and when they moved are of a process, as in a program that starts again.
        scheme.gate._waited = np.zeros(world.setting['workers'])
        scheme.gate._seen = np.zeros(world.setting['workers'])
        scheme.gate.after_create_session(session, None)
        step = int(session.run(worker.step))
        while step < world.setting['steps']:
            scheme.wait()
            step = int(session.run(scheme.train_op)['global_step'])
        scheme.gate.end(session)

    def observe(self, world, agent, run, atom, given, made):
        if not atom.state:
            return
        world.now += 1
        state, me = atom.state.partition('@')[0], int(agent.process.name.split()[1])
        if state == 'clocks' and atom.kind == 'ReadVariableOp':
            run.info['clocks'] = np.asarray(made[0])[:world.setting['workers']]
            if agent.process.alive:
                world.looked[me] = world.now
        elif atom.kind == 'ResourceScatterUpdate':
            self._sets(world, run, me, int(given[0]), int(given[1]))
            self._moves(world, int(given[0]))
        elif atom.kind == 'ResourceScatterAdd':
            self._moves(world, me)
        elif atom.name == self.workers[str(world.setting)][agent.process.name].center_read:
            self._reads(world, me)
        elif state == 'x' and atom.kind != 'ReadVariableOp':
            world.pushed[me] += 1

    @staticmethod
    def _moves(world, worker):
        clock = int(world.machine.value('clocks@ps 0')[worker])
        if world.moved[worker][0] != clock:
            world.moved[worker] = clock, world.clock, world.now

    def _sets(self, world, run, me, worker, clock):
        """A clock is set: its worker joins, leaves, or is struck."""
        if clock >= program.Gate.ABSENT:
            _, moved, at = world.moved[worker]
            # Who has moved since the other looked is struck, too, and joins again.
            must(worker == me or at > world.looked[me] or world.clock - moved >= _DEAD_AFTER,
                 'a clock is struck too soon:', f'worker {worker} by worker {me}')
            world.base[worker] = None
            return
        there = [each for each in run.info['clocks'] if each < program.Gate.ABSENT]
        must(clock == min(there, default=0), 'a worker does not begin at the slowest clock:',
             f'worker {worker} at {clock}, of {there}')
        world.base[worker], world.pushed[worker] = clock, 0
        world.since[worker] = world.now

    def _reads(self, world, me):
        """A worker reads the center."""
        if world.base[me] is None:
            return
        mine = world.base[me] + world.pushed[me]
        for other, base in enumerate(world.base):
            if base is not None and world.since[other] < world.looked[me]:
                must(base + world.pushed[other] >= mine - world.setting['bound'],
                     'a worker reads what is too old:',
                     f'worker {me} after {mine} iterations, worker {other} has made '
                     f'{base + world.pushed[other]}')

    def at_the_end(self, world):
        pushed = float(world.machine.value('x@ps 0'))
        steps = int(world.machine.value('global_step@ps 0'))
        done = [process.is_done for process in world.processes.values()]
        must(steps >= world.setting['steps'] or not any(done), 'the run ends too early:',
             f'{steps}')
        must(pushed >= steps, 'a push is lost:', f'{pushed} of {steps}')
        clocks = world.machine.value('clocks@ps 0')[:world.setting['workers']]
        must((clocks[done] >= program.Gate.ABSENT).all(), 'a clock of one that is done stays:',
             f'{clocks}')

    def calm(self, world):
        if world.setting['back']:
            super().calm(world)
