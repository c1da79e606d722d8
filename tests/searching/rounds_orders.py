"""FedAvg's rounds and FedBuff's buffers: a push counts in both variables or in none, and once."""

import contextlib
import types
from unittest import mock

import numpy as np
from conftest import load_program
from tfdist.scheme import exchange, toy
from tfdist.start import console
from tfdist.synchronous import stamps, succession
from tfdist.start.quiet import tf

from searching import barrier_orders, world as worlds
from searching.protocol import must

program = load_program('FedAvg')
_MOST_PUSHES = 40  # each has a power of two of its own, and their sums are exact
_STATE, _DRAWN = [0, 1, 2, 3], 3  # keys of the table
_APPLIES, _COUNTS = 'ResourceApplyGradientDescent', 'AssignAddVariableOp'


class Worker:
    """The graph of a worker: a client makes one step, of what is fed, and has one example."""

    def __init__(self, task_index, setting):
        with tf.Graph().as_default() as self.graph, tf.device(tf.train.replica_device_setter(
                ps_tasks=2, worker_device=f'/job:worker/task:{task_index}')):
            step = tf.train.get_or_create_global_step()
            variables = [tf.get_variable(f'x{i}', initializer=tf.constant(0., tf.float64))
                         for i in range(2)]
            self.pushed = tf.placeholder(tf.float64, [])
            problem = toy.Problem(lambda values: (tf.cast(sum(
                self.pushed * value + 0 * tf.square(value) for value in values), tf.float32),
                tf.constant(0.)), variables)
            hparams = types.SimpleNamespace(
                learning_rate=1., batch_size=1, accumulate=1, seed=1, server_optimizer='sgd',
                server_learning_rate=None, train_steps=setting['steps'],
                clients=setting['clients'], fraction=setting.get('fraction', 1.),
                deadline_secs=setting.get('deadline', 0.), buffer=setting.get('buffer', 0))
            one = tf.constant(1, tf.int64)
            with tf.device(f'/job:worker/task:{task_index}'):
                ticket = exchange.own_variable(tf.zeros([3], tf.int64), 'ticket')
            turn = types.SimpleNamespace(most_steps=1, fewest_steps=1, steps=one, examples=one,
                                         ticket=ticket)
            self.scheme = program.Scheme(problem, step, hparams, task_index, setting['workers'],
                                         turn)
            self.step_read = self.scheme.pull[0].op.inputs[0].op.name
            self.hook = (program.buffers.Buffers if hparams.buffer else program.rounds.Rounds)(
                self.scheme, step, hparams, task_index)
            self.hook.take_with_each_push()
            self.run = {name: self.scheme.train_op[name]
                        for name in ('global_step', 'dropped', 'ticket')}
            self.local_init = tf.local_variables_initializer()
            every = [step, *variables]
            self.all = [each.read_value() for each in every]
            self.saved = [tf.placeholder(each.dtype.base_dtype, []) for each in every]
            self.restore = [each.assign(value).op for each, value in zip(every, self.saved)]


class Rounds(barrier_orders.Barrier):
    """Clients take turns on workers; a chief draws them, and makes the steps of the center."""

    name = 'rounds'
    settings = [dict(workers=2, clients=3, fraction=0.67, steps=2),
                dict(workers=3, clients=2, buffer=1, steps=3),
                dict(workers=2, clients=3, buffer=2, steps=3),
                dict(workers=3, clients=4, steps=1),
                dict(workers=2, clients=2, deadline=5., steps=2)]
    modules = program.rounds, program.buffers, succession

    def graphs(self, setting):
        # What is stale counts as much as anything else: the sums are of powers of two.
        with mock.patch.object(program.buffers, 'of_age',
                               lambda staleness: tf.ones_like(staleness, tf.float64)):
            return super().graphs(setting)

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting)

    def more(self, world):
        stack = contextlib.ExitStack()
        stack.enter_context(mock.patch.object(
            console, 'say', lambda _, what: world.tell(world.current.name, f'says "{what}"')))
        return stack

    def begin(self, world):
        world.counted_pushes, world.open, world.drawn = set(), 0, 0
        super().begin(world)

    def _train(self, world, process, worker):
        """What a `tf.train.MonitoredSession` does with the hook, from its beginning."""
        session, hook = self._session(world, process, worker), worker.hook
        hook.after_create_session(session, None)
        while hook.take(types.SimpleNamespace(end_at=lambda step: None)):
            number = len(world.pushes)
            if number >= _MOST_PUSHES:
                raise worlds.TooLongError()
            ticket = world.machine.value(f'ticket@{process.name}')
            push = dict(worker=process.name, number=number, client=int(ticket[1]), lost=False,
                        accepted=False, losses=sum(world.incarnations.values()),
                        began=getattr(process, 'began', None))
            world.pushes.append(push)
            result = session.run(worker.run, {worker.pushed: 2. ** number}, dict(push=push))
            hook.hear(result.pop('ticket'))
            must(not result['dropped'] or number not in world.counted_pushes,
                 'a push counts that was dropped:', process.name)
            push['accepted'] = not result['dropped']
            self._after(world, process, session, worker, result)
            if number % 2:  # it has something else to do
                hook.before_run(types.SimpleNamespace(session=session))
        if not self._is_initialized(world):  # this one is needed, and gone; the others wait, aloud
            raise worlds.TooLongError()
        hook.end(session)
        session.close()

    # What must hold.

    def observe(self, world, agent, run, atom, given, made):
        state = (atom.state or '').partition('@')[0]
        if atom.kind == 'ReadVariableOp' and 'push' in run.info:
            worker = self.workers[str(world.setting)][run.info['push']['worker']]
            if atom.name == worker.step_read:
                self._reads(world, run.info['push'], int(made[0]))
        elif atom.kind == 'LookupTableInsertV2' and state == 'round':
            self._writes(world, agent, *map(np.ravel, given))
        elif atom.kind == 'LookupTableInsertV2' and state == 'epoch':
            self._begin_epoch(world)
        elif atom.kind == 'QueueDequeueV2' and state == 'closed':
            run.info['count'] = int(made[0])
        elif atom.kind == _COUNTS and state == 'global_step':
            self._made(world, run.info['count'], int(world.machine.value(atom.state)))

    def _writes(self, world, agent, keys, values):
        """The state of the step that is open is written; or a ticket was drawn."""
        if keys.tolist() == _STATE:
            world.open, world.drawn = int(values[0]) % stamps.STEPS, int(values[3])
        elif keys.tolist() == [_DRAWN] and values[0] > world.drawn:
            world.drawn = int(values[0])
            agent.process.began = world.open

    @staticmethod
    def _reads(world, push, step):
        """A client begins: with a buffer it has the update of each that was full by then."""
        push['read'] = step
        if world.setting.get('buffer') and not push['lost'] and (
                push['losses'] == sum(world.incarnations.values())):
            must(step >= push['began'], 'a client begins before the update:',
                 f'{push["worker"]} at step {step}, and {push["began"]} buffers were full')

    def _made(self, world, count, step):
        """Checks a step of the center."""
        must(step == world.steps + 1, 'a step is counted out of turn:', f'{step}')
        world.steps, before = step, world.center
        if not self._is_initialized(world):  # it is going to be restored
            return
        world.center = self._center(world)
        numbers = [self._counted((old - new) * count, count)
                   for old, new in zip(before, world.center)]
        must(numbers[0] == numbers[1], 'two variables take different pushes:', f'{numbers}')
        both = world.counted_pushes.intersection(numbers[0])
        must(not both, 'a push counts in two steps:', f'{both}')
        world.counted_pushes.update(numbers[0])
        of_step = [world.pushes[number] for number in numbers[0]]
        for push in of_step:
            must(not push['lost'], 'a push of a lost time counts:', push['worker'])
        setting = world.setting
        if 'buffer' in setting:
            must(count == setting['buffer'], 'a buffer is not full:', f'{count}')
            return
        who = sorted(push['client'] for push in of_step)
        must(len(set(who)) == len(who), 'a client counts twice in a round:', f'{who}')
        drawn = program.clients.sample(1, step - 1, setting['clients'], setting.get('fraction', 1))
        must(set(who) <= set(drawn), 'a client counts that was not drawn:', f'{who} of {drawn}')
        must('deadline' in setting or who == drawn, 'a client is missing:', f'{who} of {drawn}')
        for push in of_step:
            must(push['read'] == step - 1, 'a push of another step counts:',
                 f'{push["worker"]} read step {push["read"]}')

    @staticmethod
    def _counted(total, count):
        """Returns the numbers of the pushes in a sum."""
        must(abs(total - round(total)) < 0.1 and total > 0, 'a step is of no whole pushes:',
             f'{total} of {count}')
        numbers = [i for i in range(_MOST_PUSHES) if int(round(total)) >> i & 1]
        must(len(numbers) == count, 'a push is twice in a step:', f'{numbers}')
        return numbers

    def left_behind(self, world, run):
        atoms = run.program.atoms
        came, gone = ({atom.kind for atom in atoms if (atom.number in run.cut) == is_gone}
                      for is_gone in (False, True))
        if _APPLIES in came and gone & {_APPLIES, _COUNTS}:
            world.is_torn = True

    def at_the_end(self, world):
        must(world.steps == world.setting['steps'], 'the run ends at another step:',
             f'{world.steps}')
        if 'buffer' not in world.setting:
            for push in world.pushes:
                must(push['lost'] or not push['accepted']
                     or push['number'] in world.counted_pushes, 'a push is lost:', push['worker'])
