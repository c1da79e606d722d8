"""The barrier: steps that all workers make together, of pushes to two ps."""

import collections
import types

import numpy as np
from tfdist.scheme import exchange, transfer
from tfdist.synchronous import barrier, stamps, succession
from tfdist.training import sessions, stopping
from tfdist.start.quiet import tf

from searching import protocol, world as worlds
from searching.protocol import must

_PUSH, _TAKE = 'ResourceAccumulatorApplyGradient', 'ResourceAccumulatorTakeGradient'
_MOST_PUSHES = 40  # each has a power of two of its own, and their sums are exact


class Worker:
    """The graph of a worker, as its program makes it."""

    def __init__(self, task_index, setting, stops):
        with tf.Graph().as_default() as self.graph, tf.device(tf.train.replica_device_setter(
                ps_tasks=2, worker_device=f'/job:worker/task:{task_index}')):
            self.step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(0., tf.float64)) for i in range(2)]
            pull = exchange.pull(self.variables, self.step)
            center = transfer.to_worker(pull[1:])
            self.pushed = tf.placeholder(tf.float64, [])
            gradients = [self.pushed + 0 * each for each in center]
            self.step_read = pull[0].op.inputs[0].op.name
            hparams = types.SimpleNamespace(
                replicas_to_aggregate=setting['pushes'], train_steps=setting['steps'],
                stop_after_evals_without_gain=int(stops))
            self._make_barriers(gradients, hparams, task_index, setting['workers'])
            self.last_step = stopping.LastStep(self.step)
            self.local_init = tf.local_variables_initializer()
            every = [self.step, *self.variables]
            self.all = [each.read_value() for each in every]
            self.saved = [tf.placeholder(each.dtype.base_dtype, []) for each in every]
            self.restore = [each.assign(value).op for each, value in zip(every, self.saved)]

    def _make_barriers(self, gradients, hparams, task_index, num_workers):
        self.barrier = self._barrier(gradients, self.variables, hparams, task_index, num_workers)

    def _barrier(self, gradients, variables, hparams, task_index, num_workers, **kwargs):
        optimizer = tf.train.GradientDescentOptimizer(tf.constant(1., tf.float64))
        return barrier.Barrier(optimizer, gradients, variables, self.step, hparams, task_index,
                               num_workers, **kwargs)


class Barrier(protocol.Protocol):
    """All workers' pushes, or the first of them, make a step."""

    name = 'barrier'
    settings = [dict(workers=2, pushes=None, steps=2), dict(workers=3, pushes=None, steps=2),
                dict(workers=3, pushes=2, steps=2)]
    modules = (barrier, succession)
    may_be_killed = may_be_lost = True
    stops = False  # early

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting, self.stops)

    def begin(self, world):
        world.pushes = []  # by number: a dict of what is known of each
        world.counted = collections.defaultdict(dict)  # by step, by variable: sets of pushes
        world.steps, world.is_torn = 0, False
        world.saved = [0, 0., 0.]
        world.is_initialized = {'ps 0': 0, 'ps 1': 0}
        world.center = [0., 0.]
        super().begin(world)

    def faults(self, world):
        found = super().faults(world)
        # After one has ended, a ps takes steps with it that cannot be made again, see `_train`.
        if sum(world.incarnations.values()) < 2 and not any(
                process.is_done for process in world.processes.values()):
            found += ['crash ps 0', 'crash ps 1']
        return found

    def body(self, world, process):
        worker = self.workers[str(world.setting)][process.name]
        while True:
            try:
                with sessions.failures_of_ps():
                    self._train(world, process, worker)
                    return
            except (tf.errors.AbortedError, tf.errors.UnavailableError):
                process.session.close()
                world.tell(process.name, 'gets a new session')

    def _train(self, world, process, worker):
        """What a `tf.train.MonitoredSession` does with the barrier, from its beginning."""
        session = self._session(world, process, worker)
        hook = worker.barrier
        hook.after_create_session(session, None)
        step, last = self._steps(world, session, worker)
        while step < last():
            number = len(world.pushes)
            if number >= _MOST_PUSHES:
                raise worlds.TooLongError()
            push = dict(worker=process.name, number=number, torn=False, lost=False,
                        losses=sum(world.incarnations.values()))
            world.pushes.append(push)
            result = session.run(self._train_op(worker, step), {worker.pushed: 2. ** number},
                                 dict(push=push))
            step = int(result['global_step'])
            self._check_result(world, push, result)
            self._after(world, process, session, worker, result)
        if not self._is_initialized(world):  # this one is needed, and gone; the others wait, aloud
            raise worlds.TooLongError()
        hook.end(session)
        session.close()

    def _train_op(self, worker, step):
        return worker.barrier.finish

    def _in_step(self, number):
        """Returns of which variables a step is, a list of ints."""
        return [0, 1]

    def _steps(self, world, session, worker):
        """Returns the step at which a worker begins, and a function: the one at which it ends."""
        return int(session.run(worker.all[0])), lambda: world.setting['steps']

    def _after(self, world, process, session, worker, result):
        """What the chief does after a step: it saves now and then."""
        if process.name == 'worker 0' and int(result['global_step']) % 2:
            saved = session.run(worker.all)
            world.saved = saved
            world.tell(process.name, f'has saved step {saved[0]}')

    @staticmethod
    def _is_initialized(world):
        return all(world.incarnations.get(ps, 0) == life
                   for ps, life in world.is_initialized.items())

    def _session(self, world, process, worker):
        """Returns a session, as soon as the variables are initialized; the chief sees to that."""
        session = process.session = world.session(process)
        while process.name == 'worker 0' and not self._is_initialized(world):
            incarnations = {ps: world.incarnations.get(ps, 0) for ps in ('ps 0', 'ps 1')}
            session = process.session = world.session(process)
            session.run(worker.restore, dict(zip(worker.saved, world.saved)), dict(restores=True))
            world.is_initialized = incarnations
            world.steps, world.center = int(world.saved[0]), list(world.saved[1:])
            world.tell(process.name, f'restores step {world.steps}')
            for push in world.pushes:
                push['lost'] = True
        while not self._is_initialized(world):
            world.sleep(0.2)
        session = process.session = world.session(process)
        session.run(worker.local_init)
        return session

    # What must hold.

    def observe(self, world, agent, run, atom, given, made):
        if atom.kind == 'ReadVariableOp' and 'push' in run.info:
            worker = self.workers[str(world.setting)][run.info['push']['worker']]
            if atom.name == worker.step_read:
                run.info['push']['read'] = int(made[0])
        elif atom.kind == 'ResourceAccumulatorApplyGradient' and 'push' in run.info:
            run.info['push'].setdefault('steps', set()).add(
                int(given[0]) % stamps.STEPS)
        elif atom.kind == 'ResourceAccumulatorTakeGradient':
            self._taken(world, run, atom, made[0])
        elif atom.kind == 'AssignAddVariableOp' and atom.state.startswith('global_step@'):
            self._completed(world, int(world.machine.value(atom.state)))
        elif atom.kind == 'LookupTableInsertV2' and atom.state.startswith('epoch@'):
            self._begin_epoch(world)

    def _begin_epoch(self, world):
        """A chief begins the step afresh; what one before it has done of that step may stay."""
        for push in world.pushes:
            push['lost'] = True
        world.counted[world.steps].clear()
        if world.is_torn:
            world.center, world.is_torn = self._center(world), False

    @staticmethod
    def _center(world):
        """Returns the values of the two variables as they are."""
        return [float(world.machine.value(f'x{i}@ps {place}')) for i, place in ((0, 1), (1, 0))]

    def _is_entrance(self, run):
        return 'push' not in run.info and not any(
            atom.kind == 'AssignAddVariableOp' for atom in run.program.atoms)

    def _taken(self, world, run, atom, mean):
        if self._is_entrance(run):
            return
        variable = atom.state.partition('/')[0]
        if np.ndim(mean):  # contributions
            world.counted[world.steps]['contributions'] = {
                f'worker {i}' for i in np.flatnonzero(mean)}
            must((mean < 2).all(), 'a worker contributes twice to a step:', f'{mean}')
            return
        total = float(mean) * run.info['available']
        must(abs(total - round(total)) < 0.1 and total > 0, 'a mean is of no whole pushes:',
             f'{mean} of {run.info["available"]}')
        numbers = [i for i in range(_MOST_PUSHES) if int(round(total)) >> i & 1]
        must(len(numbers) == run.info['available'], 'a push is twice in a step:',
             f'{variable}: {numbers}')
        world.counted[world.steps][variable] = pushes = [world.pushes[i] for i in numbers]
        if any(push['torn'] for push in pushes):
            return
        who = [push['worker'] for push in pushes]
        must(len(set(who)) == len(who), 'a worker counts twice in a step:', ' and '.join(who))
        setting = world.setting
        must(len(who) >= (setting['pushes'] or setting['workers']), 'too few pushes make a step:',
             ' and '.join(who))
        for push in pushes:
            must(not push['lost'], 'a push of a lost time counts:', push['worker'])
            must(push['read'] == world.steps, 'a push of another step counts:',
                 f'{push["worker"]} read step {push["read"]}')

    def _completed(self, world, step):
        """Checks a step that is complete."""
        counted = world.counted[step - 1]
        must(step == world.steps + 1, 'a step is counted out of turn:', f'{step}')
        sets = [counted.get(f'x{i}', []) for i in self._in_step(step - 1)]
        world.steps = step
        if not self._is_initialized(world):  # it is going to be restored
            return
        if any(push['torn'] for pushes in sets for push in pushes):
            world.center = None
            return
        if 'contributions' in counted:
            for pushes in sets:
                must(counted['contributions'] <= {push['worker'] for push in pushes},
                     'a contribution is missing from a mean:', f'{counted["contributions"]}')
        else:
            must(sets[0] == sets[-1], 'two variables take different pushes:',
                 f'{[[push["worker"] for push in pushes] for pushes in sets]}')
        for i, pushes in zip(self._in_step(step - 1), sets if world.center else []):
            world.center[i] -= sum(2. ** push['number'] for push in pushes) / len(pushes)
        now = self._center(world)
        must(world.center is None or np.allclose(now, world.center),
             'the center is not what the pushes make of it:', f'{now}, not {world.center}')

    def _check_result(self, world, push, result):
        """Checks what a worker is told of its push."""
        if push['lost'] or push['losses'] != sum(world.incarnations.values()):
            return
        counted = [number for number, sets in world.counted.items()
                   if all(push in sets.get(f'x{i}', []) for i in self._in_step(number))]
        partly = [number for number, sets in world.counted.items()
                  if any(push in sets.get(f'x{i}', []) for i in range(2))]
        # One that counts twice, because it was killed before its push was noted, takes a place.
        if any(each['torn'] for number in [*partly, push['read']]
               for i in range(2) for each in world.counted[number].get(f'x{i}', [])):
            return
        if any(each['torn'] and each['worker'] == push['worker'] for each in world.pushes):
            return
        if result['dropped']:
            must(world.setting['pushes'] or not partly, 'a push counts that was dropped:',
                 push['worker'])
            must(not any(push['worker'] in world.counted[number].get('contributions', ())
                         and push['steps'] == {number} for number in partly),
                 'a push counts that was dropped:', push['worker'])
        else:
            must(counted, 'a push is lost:', push['worker'])
            must(int(result['global_step']) > counted[0], 'a worker repeats a step:',
                 f'{push["worker"]} at step {result["global_step"]}')

    def left_behind(self, world, run):
        push, atoms = run.info.get('push'), run.program.atoms
        gone = {atoms[number].kind for number in run.cut}
        came = {atom.kind for atom in atoms if atom.number not in run.cut}
        if push and _PUSH in came and gone & {_PUSH, 'LookupTableInsertV2'}:
            push['torn'] = True
        if _TAKE in came and gone & {_TAKE, 'AssignAddVariableOp'} and not self._is_entrance(run):
            world.is_torn = True

    def at_the_end(self, world):
        must(world.steps == world.setting['steps'], 'the run ends at another step:',
             f'{world.steps}')
