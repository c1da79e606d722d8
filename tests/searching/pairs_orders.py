"""Gossip's exchanges: pairs of workers average their replicas, and nothing is lost or doubled."""

from conftest import load_program
from tfdist.scheme import exchange
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must

pairs = load_program('Gossip', 'pairs')
topology = load_program('Gossip', 'topology')


class Worker:
    """The graph of a worker: its replica begins at a number of its own; a step takes 1 from it."""

    def __init__(self, task_index, setting):
        with tf.Graph().as_default() as self.graph, tf.device(f'/job:worker/task:{task_index}'):
            replica = tf.get_variable('x', initializer=tf.constant(64. * task_index))
            before = exchange.own_variable(tf.constant(0.), 'before/x')
            partners = topology.partners_of(task_index, setting['workers'], setting['roles'])
            self.exchanges = [pairs.exchange([replica], [before], task_index, partner)
                              for partner in partners]
            self.step = replica.assign_sub(1., read_value=False)


class Pairs(protocol.Protocol):
    """Exchanges and steps."""

    name = 'pairs'
    settings = [dict(workers=2, roles='any', steps=2), dict(workers=3, roles='any', steps=2),
                dict(workers=4, roles='bipartite', steps=3), dict(workers=4, roles='any', steps=2)]

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting)

    def begin(self, world):
        world.own = [0.] * world.setting['workers']  # what each has taken from its own replica
        super().begin(world)

    def body(self, world, process):
        worker = self.workers[str(world.setting)][process.name]
        session = world.session(process)
        for step in range(world.setting['steps']):
            if worker.exchanges:
                session.run([worker.exchanges[step % len(worker.exchanges)]])
            session.run([worker.step])

    def observe(self, world, agent, run, atom, given, made):
        state, _, place = (atom.state or '').partition('@')
        if state != 'x':
            return
        index = int(place.split()[1])
        if agent.process.name == place:
            if atom.kind == 'AssignSubVariableOp':
                world.own[index] += given[0]
        elif atom.kind == 'ReadVariableOp':
            run.info['read'] = made[0], world.own[index]
        else:
            value, own = run.info['read']
            value += own - world.own[index]  # its own worker may step meanwhile, or exchange
            must(world.machine.value(atom.state) - given[0] == value,
                 'an average is of what another exchange has changed:', atom.state)

    def at_the_end(self, world):
        number = world.setting['workers']
        total = sum(float(world.machine.value(f'x@worker {i}')) for i in range(number))
        expected = 64 * number * (number - 1) / 2 - number * world.setting['steps']
        must(total == expected, 'the sum of the replicas is another:', f'{total}, not {expected}')
