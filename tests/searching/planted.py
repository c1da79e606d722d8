"""Faults that are planted into the protocols' code, to see that each is found.

Each changes a line or two of a function of the library, or of a folder.
"""

import collections
import contextlib
import inspect
import pathlib
import textwrap
from unittest import mock

from tfdist.synchronous import accumulators, barrier, contributions, entrance, stamps, tokens
from tfdist.training import checkpoints, chief, report, save_lock, stopping

from processes import ROOT
from searching import (barrier_orders, lock_orders, members_orders, pairs_orders, ring_orders,
                       rounds_orders, ssp_orders, stopping_orders, tickets_orders, turns_orders)

# What is planted: a sentence; the class of the protocol; the object that has the function, and its
# name; pairs of what stands there and what takes its place; and to find it sooner, the settings and
# the faults in which it shows, see `protocol.Protocol`.
Plant = collections.namedtuple('Plant', 'sentence protocol owner function changes settings faults',
                               defaults=[None, ''])

BARRIER, STOPPING = barrier_orders.Barrier, stopping_orders.Stopping
TURNS = turns_orders.Turns
SSP, TICKETS, LOCK = ssp_orders.Ssp, tickets_orders.Tickets, lock_orders.Lock
MEMBERS, RING = members_orders.Members, ring_orders.Rings
_SERVE = MEMBERS, members_orders.members, 'serve'
_AGREE = ring_orders.agreement
_EXCHANGE = pairs_orders.Pairs, pairs_orders.pairs, 'exchange'
_JOIN = barrier.Barrier, '_make_join'
_TICKETS = tickets_orders.tickets.Tickets
_FEDAVG, _ROUNDS = rounds_orders.program, rounds_orders.Rounds
_ADMISSIONS = _ROUNDS, _FEDAVG.admissions.Admissions
_A_ROUND, _A_BUFFER, _IN_TIME = ([setting] for setting in _ROUNDS.settings[::2])
_FAST_CHIEF = dict(workers=2, pushes=1, steps=9)  # which completes steps on its own
_NOBODY = '$'  # fails

PLANTS = {
    'one queue': Plant(
        'All workers take their tokens from one queue.', BARRIER, tokens.Tokens, '__init__',
        [("f'tokens_{worker}'", "'tokens_0'")]),
    'token of the next': Plant(
        'The token names the step after the next.', BARRIER, tokens.Tokens, 'give',
        [('enqueue(stamp)', 'enqueue(stamp + 1)')]),
    'token at once': Plant(
        'A token is given before the step is complete.', BARRIER, barrier.Barrier,
        '_make_complete',
        [('self._tokens.give(self._next_stamp,',
          'self._tokens.give(self._clock.of(self._step.read_value() + 1),')]),
    'no token for the last': Plant(
        'One worker gets no token.', BARRIER, tokens.Tokens, 'give',
        [('if also_mine or worker != self._task_index', 'if worker not in (self._task_index, 1)')]),
    'tokens are kept': Plant(
        'Who is started again takes a token of its earlier life.', BARRIER, tokens.Tokens, 'forget',
        [('self._mine.dequeue_many(size).op', 'self._mine.dequeue().op')]),
    'vote not taken back': Plant(
        'Who is started again pushes a second time in the same step.', BARRIER, barrier.Barrier,
        '_make_push', [('tf.less(self._pushed_at.read(self.worker),',
                        'tf.less_equal(self._pushed_at.read(self.worker),')]),
    'vote noted late': Plant(
        'A push is noted as that of the step before.', BARRIER, barrier.Barrier, '_make_push',
        [('write(self.worker, noted)', 'write(self.worker, noted - 1)')]),
    'stamp of no step': Plant(
        'A push is stamped with a step far ahead, and is never too old.', BARRIER, barrier.Barrier,
        '_make_push', [('push(gradients, stamp, self.worker)',
                        'push(gradients, stamp + 100, self.worker)')]),
    'stamp when it comes': Plant(
        'A push is stamped with the step in which it arrives.', BARRIER, barrier.Barrier,
        '_make_push', [('push(gradients, stamp, self.worker)',
                        'push(gradients, stamp_at_push, self.worker)')]),
    'begins ahead': Plant(
        'The accumulators of a turn refuse the pushes of its own step.', TURNS,
        barrier.Barrier, '_make_complete',
        [('all, self._clock.read())', 'all, self._clock.read() + 1)')]),
    'one push less': Plant(
        'A step is complete when one push is missing.', BARRIER, barrier.Barrier, '__init__',
        [('self._number = pushes_per_step(hparams, num_workers)',
          'self._number = pushes_per_step(hparams, num_workers) - 1')]),
    'one push less in one variable': Plant(
        'The mean of one variable is taken when one push is missing.', BARRIER,
        accumulators.Accumulators, 'take',
        [('accumulator.take_grad(number)',
          'accumulator.take_grad(number - (accumulator is self.all[0]))')]),
    'drop said of none': Plant(
        'A push that came too late is reported as accepted.', BARRIER, barrier.Barrier,
        '_make_result', [('self._contributions.is_missing()', 'tf.constant(False)')]),
    'note first': Plant(
        'A worker notes its contribution before its push has arrived.', BARRIER,
        contributions.Contributions, 'note',
        [('return self', 'with tf.control_dependencies(None):\n        return self')]),
    'notes taken last': Plant(
        'The notes are taken after the means.', BARRIER, barrier.Barrier, '_make_complete',
        [('[count] if self._contributions else []', '[]')]),
    'not published': Plant(
        'Nobody can read who contributed.', BARRIER, barrier.Barrier, '_make_complete',
        [('[self._contributions.publish(self._next_stamp)]', '[]')]),
    'not cleared': Plant(
        'After the loss of a ps the other keeps its parts of the pushes.', BARRIER,
        entrance.Entrance, 'open',
        [('session.run([take for take, number in zip(self._take, pushed) if number])', 'pass')]),
    'epoch of before': Plant(
        'A chief that begins goes on in the epoch before.', BARRIER, stamps.Clock, 'begin_epoch',
        [('read(self._key) + STEPS', 'read(self._key)')]),
    'nobody released': Plant(
        'When a chief begins, nobody wakes those who wait.', BARRIER, entrance.Entrance,
        '__init__', [('*release()', '')]),
    'accumulators ahead': Plant(
        'When a chief begins, the accumulators keep the step that they had.', BARRIER,
        entrance.Entrance, '__init__',
        [('accumulators.refuse_older(every, stamp)', '[]')]),
    'chief at once': Plant(
        'A chief begins while a run of an earlier one is left.', BARRIER, barrier.Barrier,
        'after_create_session', [('self._succession.begin(session)', 'pass')]),
    'one life': Plant(
        'A run of an earlier life writes the stamp of the new one.', BARRIER, stamps.Local,
        'begin_life', [('read(self._key) + 1', 'read(self._key)')],
        [dict(workers=2, pushes=None, steps=4)], '(lose|start) worker 1'),
    'no step at the start': Plant(
        'A worker begins at step 0, whatever the step is.', BARRIER, *_JOIN,
        [('begin_life(self._clock.read())',
          'begin_life(self._clock.of(tf.zeros([], tf.int64)))')]),
    'no token for the dead': Plant(
        'A run of an earlier life takes the token of the new one.', BARRIER, tokens.Tokens,
        'forget', [('[self._mine.enqueue(tf.int64.max)]', '[]')],
        [dict(workers=2, pushes=None, steps=2)], '.* worker 1$'),
    'refused late': Plant(
        'A chief that begins takes what was pushed before it refuses more of it.', BARRIER,
        entrance.Entrance, 'open', [('session.run(self._refuse_older)', 'pass')],
        [dict(workers=3, pushes=2, steps=2)], '(kill|start) worker 0$'),
    'bound by one': Plant(
        'A worker may be one iteration further ahead than the bound.', SSP,
        ssp_orders.program.Gate, 'holds',
        [('- self._staleness_bound', '- self._staleness_bound - 1')]),
    'tick first': Plant(
        'A clock ticks before its push is in the center.', SSP, ssp_orders.program.Scheme, 'make',
        [('with tf.control_dependencies([push]):\n        tick = self.gate.tick()',
          'tick = self.gate.tick()'), ('dependencies([tick])', 'dependencies([tick, push])')]),
    'no gate': Plant(
        'Nobody waits at the gate.', SSP, ssp_orders.program.Gate, 'wait',
        [('while not self.may_run():', 'while self.may_run() and False:')]),
    'from zero': Plant(
        'A worker begins at clock 0, whatever the others have.', SSP, ssp_orders.program.Gate,
        '_set', [('updates=clock', 'updates=clock * tf.cast(clock >= self.ABSENT, tf.int64)')]),
    'fastest clock': Plant(
        'A worker begins at the fastest clock.', SSP, ssp_orders.program.Gate, '__init__',
        [('slowest = tf.reduce_min(self.clocks)', 'slowest = tf.reduce_max(tf.where(tf.less('
          'self.clocks, self.ABSENT), self.clocks, tf.zeros_like(self.clocks)))')]),
    'clock left': Plant(
        'A worker that is done leaves its clock behind.', SSP, ssp_orders.program.Gate, 'end',
        [('session.run(self.leave)', 'pass')]),
    'struck at once': Plant(
        'A clock that stands still for a moment is struck.', SSP, ssp_orders.program.Gate, 'wait',
        [('> self._dead_after_secs', '> 0')]),
    'never struck': Plant(
        'The clock of a dead worker is never struck.', SSP, ssp_orders.program.Gate, 'wait',
        [('self._strike(worker)', 'pass')]),
    'no section': Plant(
        'Two workers exchange tickets at the same time.', TICKETS, _TICKETS, '__init__',
        [("tf.CriticalSection(shared_name='tickets').execute(self._exchange)",
          'self._exchange()')]),
    'late finish counts': Plant(
        'A ticket of the last epoch finishes that of this one.', TICKETS, _TICKETS, '_exchange',
        [('finished |= of_this_epoch & tf', 'finished |= tf')]),
    'taken is finished': Plant(
        'An epoch is over when all tickets are taken.', TICKETS, _TICKETS, '_exchange',
        [('over = tf.reduce_all(finished)', 'over = tf.reduce_all(taken > 0)')]),
    'finished when given': Plant(
        'A ticket counts as finished as soon as a worker has it.', TICKETS, _TICKETS, '_exchange',
        [('taken += tf.one_hot', 'finished |= tf.one_hot(ticket, self.number, True, False)\n'
          '    taken += tf.one_hot')]),
    'ticket forgotten': Plant(
        'Nobody says that the last ticket is finished.', TICKETS, _TICKETS, '_exchange',
        [('tf.equal(tf.range(self.number, dtype=tf.int64), self.mine[1])',
          'tf.equal(tf.range(self.number, dtype=tf.int64), self.mine[1]) & '
          '(self.mine[1] < self.number - 1)')]),
    'none is the first': Plant(
        'A worker without a ticket finishes the first one.', TICKETS, _TICKETS,
        'after_create_session', [('_NONE, 0', '(0, 0), 0')]),
    'counts are kept': Plant(
        'How often a ticket was taken is not forgotten in the next epoch.', TICKETS, _TICKETS,
        '_exchange', [('taken *= tf.cast(~over, tf.int64)', 'taken *= 1')]),
    'the first again': Plant(
        'Who is free takes the first ticket that is not finished, and not the one taken least.',
        TICKETS, _TICKETS, '_exchange',
        [('tf.fill([self.number], tf.int64.max), taken)',
          'tf.fill([self.number], tf.int64.max), tf.zeros_like(taken))')]),
    'a batch too few': Plant(
        'A worker says that a ticket is finished before its last batch.', TICKETS, _TICKETS,
        'wait', [('self._steps_left = self._num_steps',
                  'self._steps_left = max(self._num_steps - 1, 1)')]),
    'stop now': Plant(
        'The last step is the one that is complete already.', STOPPING, stopping.LastStep,
        '__init__', [('global_step.read_value() + _AHEAD', 'global_step.read_value()')]),
    'stop in a moment': Plant(
        'The last step is the next one, which others have begun.', STOPPING, stopping.LastStep,
        '__init__', [('global_step.read_value() + _AHEAD', 'global_step.read_value() + 1')],
        [_FAST_CHIEF], _NOBODY),
    'last step of before': Plant(
        'A worker reads the last step before it waits for the others.', STOPPING, barrier.Barrier,
        '_make_result', [('result.append(', 'with tf.control_dependencies(None):\n'
                          '                    result.append(')], [_FAST_CHIEF], _NOBODY),
    'chief deaf': Plant(
        'A worker does not look at the last step.', STOPPING, report.Progress, 'end_at',
        [('min(self.last_step, last_step)', 'self.last_step')]),
    'nobody told': Plant(
        'The last step is written where nobody reads it.', STOPPING, stopping.LastStep, '__init__',
        [('board.write(key, self._step)', 'board.write(key + 1, self._step)')]),
    'stand-in stays': Plant(
        'A stand-in does not see that the chief is back.', LOCK, save_lock.SaveLock, 'is_wanted',
        [('return True', 'return False')]),
    'chief does not wait': Plant(
        'The chief saves beside its stand-in.', LOCK, checkpoints, '_take_lock',
        [('while not is_chief or not lock.take():', 'while not is_chief:'),
         ('lock.sign()', 'lock.take() and lock.sign()')]),
    'stand-in without lock': Plant(
        'A worker stands in though another has the lock.', LOCK, chief.Role, '_look_after_it',
        [('elif not self._lock.take():', 'elif not self._lock.take() and False:'),
         ('self._lock.give_back()', 'pass')]),
    'shared lock': Plant(
        'The files are locked for many at a time.', LOCK, save_lock.SaveLock, '_lock',
        [('fcntl.LOCK_EX', 'fcntl.LOCK_SH')]),
    'file removed': Plant(
        'Who gives the lock back removes its file, which another has locked since.', LOCK,
        save_lock.SaveLock, 'give_back',
        [('self._files.pop(self._path).close()',
          'self._files.pop(self._path).close()\n    os.remove(self._path)')]),
    'gone before the end': Plant(
        'A ps ends as soon as nobody takes part.', *_SERVE,
        [('while addresses or lost or not is_over:', 'while addresses or not heard:')]),
    'over for all': Plant(
        'A ps ends as soon as one worker says that training is over.', *_SERVE,
        [('while addresses or lost or not is_over:', 'while not is_over:')]),
    'leaves at once': Plant(
        'A ps forgets a worker that says that it leaves.', *_SERVE,
        [('if not liveness.silence(address):',
          'if worker not in going and not liveness.silence(address):')]),
    'silence is forgotten': Plant(
        'A worker that does not answer takes part for ever.', *_SERVE,
        [('> _LOST_AFTER_SECS:', '> 10**9:')]),
    'lonely though not alone': Plant(
        'A ps does not look whether the workers that it knows answer.', MEMBERS,
        members_orders.shutdown.Loneliness, 'look',
        [('not all(map(liveness.silence, addresses))', 'not addresses')]),
    'still taking part': Plant(
        'A worker that is lost is counted on.', *_SERVE,
        [('taking_part.discard(worker)\n                        say', 'say')]),
    'same place': Plant(
        'A worker that was started again goes along with the ring of its earlier life.', RING,
        _AGREE.Workers, 'next_place',
        [("if self._life in each['lives']", "if self.me in each['workers']")], RING.settings[1:2]),
    'two rings': Plant(
        'As few as one worker make a ring.', RING, _AGREE, 'next_ring',
        [('len(holders) + len(missing) < min_workers', 'len(holders) + len(missing) < 1')]),
    'nobody is waited for': Plant(
        'A ring is made without those that may still ask.', RING, _AGREE, 'next_ring',
        [('if missing:', 'if False:')]),
    'fewest steps': Plant(
        'A ring begins with the values of the fewest steps.', RING, _AGREE, 'next_ring',
        [('source = max(whole', 'source = min(whole')], RING.settings[1:2]),
    'values of no ring': Plant(
        'A worker does not remember in which ring its values are from.', RING, _AGREE.Workers,
        'begins', [('self._values = self._tried', 'pass')], RING.settings[1:2]),
    'nobody leaves': Plant(
        'A worker does not see that others have gone on.', RING, _AGREE.Workers, 'has_gone_on',
        [('return bool(board) and (', 'return False and (')]),
    'the average is assigned': Plant(
        'A worker sets its replica to the average, whatever has come to it meanwhile.', *_EXCHANGE,
        [('subtracted = subtract(here, transfer.to_worker(halves))',
          'subtracted = [tf.raw_ops.AssignVariableOp(resource=handle, value=value - half)\n'
          '                      for handle, half, value in zip('
          'here, transfer.to_worker(halves), mine)]')]),
    'two sections': Plant(
        'A worker keeps others from its replica while it waits for its partner.', *_EXCHANGE,
        [('halves = add_half(there, arrived)',
          "with tf.device(others.device_of(worker)), tf.control_dependencies(arrived):\n"
          "            lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(\n"
          "                shared_name='replica'))\n"
          "        with tf.control_dependencies([lock.op]):\n"
          "            halves = add_half(there, arrived)\n"
          "        with tf.device(others.device_of(worker)), tf.control_dependencies(halves):\n"
          "            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)\n"
          "        with tf.control_dependencies([release]):\n"
          "            halves = [tf.identity(half) for half in halves]")]),
    'read outside': Plant(
        'The partner is read before its section is entered.', *_EXCHANGE[:2], 'add_half',
        [("tf.CriticalSection(shared_name='replica').execute(add)", 'add()')]),
    'admitted first': Plant(
        'A push is admitted before all of it is on the ps.', _ROUNDS, _FEDAVG.Scheme, '_make_push',
        [('with tf.control_dependencies(self.kept.keep(arrived, ticket)):',
          'kept = self.kept.keep(arrived, ticket)\n    with tf.control_dependencies([]):'),
         ('done = [counts]', 'done = [counts, *kept]')], _A_ROUND),
    'ticket is kept': Plant(
        'Who is started again does not give back the ticket that it had.', *_ADMISSIONS,
        'begin_life', [('is_lost = tf.equal(held[0], now) & tf.greater(now, NONE)',
                        'is_lost = tf.constant(False)')], _A_ROUND, '(kill|start) worker 1$'),
    'ticket to a former life': Plant(
        'A run of an earlier life takes a ticket, and nobody has it.', *_ADMISSIONS, 'take',
        [('goes_back = is_over |', 'goes_back =')], _A_ROUND, '(lose|start) worker 1$'),
    'push of a former round': Plant(
        'A push counts in the round that is open when it comes.', *_ADMISSIONS, 'admit',
        [('tf.equal(ticket[0], now), tf.zeros_like(now)',
          'tf.greater(now, NONE), tf.zeros_like(now)')], _IN_TIME, _NOBODY),
    'parts by client': Plant(
        'What an earlier life has left of its push counts in the place of the next one.', _ROUNDS,
        _FEDAVG.pushes.Pushes, 'take',
        [('tf.equal(kept[:, tf.newaxis], counting)',
          'tf.equal(kept[:, tf.newaxis, :2], counting[:, :2])')], _A_ROUND,
        '(kill|start) worker 1$'),
    'the end for one': Plant(
        'One worker alone hears that the run is over.', *_ADMISSIONS, 'take',
        [(' | tf.equal(ticket[0], NONE)', '')], _A_ROUND, _NOBODY),
    'opened beside': Plant(
        'A round is opened while a push is being refused, which closes it again.', *_ADMISSIONS,
        'open', [('self._section.execute(lambda: self._table.write(self._state, state))',
                  'self._table.write(self._state, state)')], _IN_TIME, _NOBODY),
    'half a round counts': Plant(
        'What was admitted with an earlier chief counts with the next one.', *_ADMISSIONS, 'shut',
        [('self._closed, self._admitted', 'self._closed')], _A_ROUND, '(kill|start) worker 0$'),
    'begins before the update': Plant(
        'Who fills the buffer begins again before the update is made.', *_ADMISSIONS, 'draw',
        [('tf.equal(stamps.step_of(now), global_step.read_value())', 'tf.greater(now, NONE)')],
        _A_BUFFER, _NOBODY),
    'thrown away': Plant(
        'A push that comes just before the update of a buffer is thrown away.', _ROUNDS,
        _FEDAVG.pushes.Pushes, '_put_back',
        [('stays = ~counts & ~is_older', 'stays = counts & ~counts')], _A_BUFFER, _NOBODY),
}


def _function(one):
    """Returns the function into which a fault is planted, as it is."""
    return inspect.getattr_static(one.owner, one.function)


def _changed(one):
    """Returns the text of the function with the fault in it, from the left edge on."""
    text = textwrap.dedent(inspect.getsource(_function(one)))
    for before, after in one.changes:
        found = text.count(before)
        if found != 1:
            raise ValueError(f'"{before}" stands {found} times in {one.function}')
        text = text.replace(before, after)
    return text


@contextlib.contextmanager
def plant(one):
    """Has the code as it is with a fault, in the block."""
    place, made = _function(one).__globals__, {}
    exec(compile(_changed(one), one.function, 'exec'), place, made)  # in the module's own names
    with mock.patch.object(one.owner, one.function, made[one.function]):
        yield


def path(one):
    """Returns the path of the file into which a fault is planted, in the collection."""
    return pathlib.Path(inspect.getsourcefile(_function(one))).relative_to(ROOT)


def plant_in_copy(one, root):
    """Puts a fault into a copy of its file, for processes that run the copy.

    Args:
      one: `Plant`.
      root: `pathlib.Path` of a directory with copies of the folder and of the library.
    """
    lines, number = inspect.getsourcelines(_function(one))
    copy = root / path(one)
    text = copy.read_text(encoding='utf-8').splitlines(keepends=True)
    begin, end = number - 1, number - 1 + len(lines)
    if text[begin:end] != lines:
        raise ValueError(f'{copy} is another file than the one that was loaded')
    indent = lines[0][:len(lines[0]) - len(lines[0].lstrip())]
    text[begin:end] = [textwrap.indent(_changed(one), indent)]
    copy.write_text(''.join(text), encoding='utf-8')
