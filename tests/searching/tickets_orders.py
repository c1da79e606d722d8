"""Work-Queue's tickets: each is done in every epoch, and counted once."""

import collections

import numpy as np
from conftest import load_program
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must

tickets = load_program('Work-Queue', 'tickets')


class Worker:
    """The graph of a worker."""

    def __init__(self, task_index, setting):
        with tf.Graph().as_default() as self.graph, tf.device(tf.train.replica_device_setter(
                ps_tasks=1, worker_device=f'/job:worker/task:{task_index}')):
            step = tf.train.get_or_create_global_step()
            self.queue = tickets.Tickets(setting['tickets'], setting['batches'], step.device)
            self.queue.make_ready = tf.no_op()
            self.step = tf.assign_add(step, 1).op


class Tickets(protocol.Protocol):
    """Workers take tickets, and finish them."""

    name = 'tickets'
    settings = [dict(workers=2, tickets=2, batches=1), dict(workers=2, tickets=3, batches=2),
                dict(workers=3, tickets=3, batches=1)]
    epochs = 2
    may_be_killed = may_be_lost = True

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting)

    def begin(self, world):
        world.done = collections.defaultdict(set)  # by epoch, tickets all batches of which are done
        world.given = collections.defaultdict(list)  # by epoch, tickets that workers took, in order
        super().begin(world)

    def body(self, world, process):
        worker = self.workers[str(world.setting)][process.name]
        queue, session = worker.queue, world.session(process)
        queue.taken = queue.epoch = 0
        queue.after_create_session(session, None)
        while True:
            queue.wait()
            if queue.epoch >= self.epochs:
                return
            session.run(worker.step)
            process.batches += 1
            if process.batches == world.setting['batches']:
                epoch, ticket = process.ticket
                world.done[epoch].add(ticket)
                world.tell(process.name, f'has done ticket {ticket} of epoch {epoch}')

    def observe(self, world, agent, run, atom, given, made):
        if not all(run.done) or not any(each.state and each.state.startswith('tickets/epoch@')
                               for each in run.program.atoms):
            return
        epoch, finished, taken = (world.machine.value(f'tickets/{name}@ps 0')
                                  for name in ('epoch', 'finished', 'taken'))
        epoch = int(epoch)
        if world.given and epoch > max(world.given):
            missing = set(range(world.setting['tickets'])) - world.done[epoch - 1]
            must(not missing, 'an epoch ends without a ticket:', f'{sorted(missing)}')
        self._given(world, agent, run, epoch, finished, taken)

    def _given(self, world, agent, run, epoch, finished, taken):
        """Checks what a worker gets."""
        its_epoch, ticket = map(int, run.program.results(run.values)[0])
        agent.process.ticket, agent.process.batches = (its_epoch, ticket), 0
        before = collections.Counter(world.given[epoch])
        world.given[its_epoch].append(ticket)
        world.tell(agent.name, f'has ticket {ticket} of epoch {its_epoch}')
        must(its_epoch == epoch, 'a ticket is of another epoch:', f'{its_epoch}')
        counts = collections.Counter(world.given[epoch])
        must(all(counts[i] == count for i, count in enumerate(taken)),
             'a taken ticket is not counted once:', f'{taken}, not {dict(counts)}')
        wrong = set(np.flatnonzero(finished).tolist()) - world.done[epoch]
        must(not wrong, 'a ticket counts that nobody has done:', f'{sorted(wrong)}')
        must(not finished[ticket], 'a finished ticket is taken again:', f'{ticket}')
        free = [i for i in range(len(finished)) if not finished[i]]
        must(before[ticket] == min(before[i] for i in free),
             'a ticket waits that fewer have taken:', f'{ticket} of {dict(before)}')

    def at_the_end(self, world):
        for epoch in range(self.epochs):
            must(len(world.done[epoch]) == world.setting['tickets'], 'a ticket is not done:',
                 f'epoch {epoch}: {sorted(world.done[epoch])}')
