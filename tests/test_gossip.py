"""Gossip: its worked numbers, what it conserves, the mean; and real workers that are lost.

The toy problem as in the other schemes: one parameter that starts at 8, gradient x - m, learning
rate 1/2. In D-PSGD each worker's step needs the others', so each runs in a thread of its own.
"""

import concurrent.futures
import contextlib
import functools
import re
import signal
import socket
import sys
import threading
import time
import types

from absl import flags
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import recipe

from cases import briefly
from conftest import at_once, load_program
from processes import BEGINS, DID, MEAN, RESUMES, STEP, Tasks, TEST, wait_until

EXACT = dict(rel=1e-6, abs=1e-6)


SERVERS = dict(roles='any', implementation='servers')
# Roles, and how many workers exchange at the same time.
AT_ONCE = briefly([('any', 3), ('any', 4), ('bipartite', 4), ('any', 2)],
                  lambda *each: each in (('any', 3), ('bipartite', 4)))


class Gossip:
    """Workers of AD-PSGD on real servers, which exchange through them; each has x, one variable."""

    def __init__(self, cluster, made, seed):
        self.made, self.program = made, made[0].program
        targets = [cluster.servers['worker', i].target for i in range(len(made))]
        self.pairs, self.workers = [], []
        for i, each in enumerate(made):
            with each.graph.as_default():
                every = {j: self.program.others.Worker(j, target, each.variables)
                         for j, target in enumerate(targets)}
                self.workers.append(every)
                partners = self.program.topology.partners_of(i, len(made), each.hparams.roles)
                self.pairs.append(self.program.pairs.Pairs(
                    every, i, partners, each.variables, each.scheme.before, seed, 30)
                    if each.scheme.before else None)
        for i, every in enumerate(self.workers):
            every[i].show(self.program.others.BEGUN)
        for each in filter(None, self.pairs):
            each.begin()

    def x(self):
        """Returns the replicas, a list."""
        return [each.center() for each in self.made]

    def set(self, values):
        """Gives each worker a replica."""
        for each, value in zip(self.made, values):
            each.variables[0].load(value, each.session)

    def exchange(self, worker, partner):
        """Runs an exchange."""
        assert self.pairs[worker].exchange_with(partner)

    def step(self, worker, partner=None):
        """A worker takes a step of AD-PSGD, with an exchange if a partner is given."""
        self.exchange(worker, worker if partner is None else partner)
        return self.made[worker].step()

    def close(self):
        for pairs, every in zip(self.pairs, self.workers):
            for worker in every.values():
                worker.link.close()
            if pairs:
                pairs.close()


@pytest.fixture
def gossip(cluster, toy):
    """A function that makes a `Gossip` of workers with the optima `ms`."""
    found = []
    flags.FLAGS.mark_as_parsed()

    def make(ms, seed=1, **changes):
        hparams = dict(SERVERS, algorithm='ad-psgd', **changes)
        found.append(Gossip(cluster, toy('Gossip', ms, **hparams), seed))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.fixture
def connected():
    """A function that connects each of so many workers with its neighbours, or with all others.

    It returns, for each, a dict of connections by neighbour.
    """
    def connect(num_workers, with_all=False):
        topology = load_program('Gossip', 'topology')
        found = [{} for _ in range(num_workers)]
        for i in range(num_workers):
            for j in range(num_workers) if with_all else topology.neighbours_of(i, num_workers):
                if i < j:
                    found[i][j], found[j][i] = socket.socketpair()
        made.extend(found)
        return found

    made = []
    yield connect
    for each in made:
        for connection in each.values():
            connection.close()


@pytest.fixture(params=['servers', 'sockets'])
def synchronous(toy, connected, request):
    """A function that makes workers of D-PSGD, and returns a function that has all take a step."""
    def make(ms, implementation=request.param, **changes):
        program = load_program('Gossip', 'swaps')
        more = [(program.Swaps(i, each) if each else None,)
                for i, each in enumerate(connected(len(ms)))]
        made = toy('Gossip', ms, algorithm='d-psgd', roles='any', implementation=implementation,
                   more=more if implementation == 'sockets' else None, **changes)

        def step():
            at_once([each.step for each in made])
            return [each.center() for each in made]

        return made, step
    return make


class Visiting:
    """Workers of AD-PSGD on real servers, who visit each other over sockets."""

    def __init__(self, cluster, toy, ms, roles='any', **changes):
        self.program, number = load_program('Gossip'), len(ms)
        targets = [cluster.servers['worker', i].target for i in range(number)]
        topology, meeting = self.program.topology, self.program.meeting
        self.listeners, self.visits, every = [], [], []
        for i in range(number):
            listener = meeting.Listener(f'worker {i}', 0)
            listener.start()
            self.listeners.append(listener)
            every.append({})
            is_visited = any(i in topology.partners_of(j, number, roles) for j in range(number))
            self.visits.append(self.program.visits.Visits(
                every[i], i, topology.partners_of(i, number, roles), 1, 30,
                meeting.Met(i, listener, dict.fromkeys(range(number), 'localhost'), {}),
                is_visited))
        self.made = toy('Gossip', ms, algorithm='ad-psgd', roles=roles, implementation='sockets',
                        more=[(each,) for each in self.visits], **changes)
        for i, each in enumerate(self.made):
            with each.graph.as_default():
                every[i].update((j, self.program.others.Worker(j, target, each.variables))
                                for j, target in enumerate(targets))
            every[i][i].tell(self.listeners[i].told())
            every[i][i].show(self.program.others.BEGUN)
        self.workers = every
        for each in self.visits:
            each.begin()

    def step(self, worker, partner):
        """A worker takes a step, in which it visits a partner."""
        self.visits[worker]._draw = lambda there: partner
        return self.made[worker].step()

    def x(self):
        """Returns the replicas, a list, with all that was added."""
        for each in self.visits:
            if each._is_visited:
                each._replica.end_steps()
        return [each.center() for each in self.made]

    def set(self, values):
        """Gives each worker a replica."""
        for each, value in zip(self.made, values):
            each.variables[0].load(value, each.session)

    def close(self):
        for each, listener, every in zip(self.visits, self.listeners, self.workers):
            each.close()
            listener.close()
            for worker in every.values():
                worker.link.close()


@pytest.fixture
def visiting(cluster, toy):
    """A function that makes a `Visiting` of workers with the optima `ms`."""
    found = []
    flags.FLAGS.mark_as_parsed()

    def make(ms, **changes):
        found.append(Visiting(cluster, toy, ms, **changes))
        return found[-1]

    yield make
    for each in found:
        each.close()


def distance(replicas):
    """Returns the consensus distance."""
    return np.mean(np.square(np.subtract(replicas, np.mean(replicas, axis=0))))


# D-PSGD.

# Targets of the workers, their replicas after each step, and consensus distances.
D_PSGD = [
    ([0, 4], [(4, 6), (3, 4), (2, 3.5), (1.75, 3)], [1, 0.25, 0.5625, 0.390625]),
    ([0, 4, 8], [(4, 6, 8), (4, 5, 6), (3, 4.5, 6), (3, 4.25, 5.5)],
     [2.6666667, 0.66666667, 1.5, 1.0416667]),
    ([0, 4, 8, 12], [(4, 6, 8, 10), (4.6666667, 5, 8, 8.3333333)], None)]


@pytest.mark.parametrize('ms, replicas, distances', D_PSGD, ids=str)
def test_d_psgd(synchronous, ms, replicas, distances):
    """Gradient at the own x from before the mixing; the mean does what one of SGD would do."""
    made, step = synchronous(ms)
    mean = 8.
    for i, expected in enumerate(replicas):
        found = step()
        assert found == pytest.approx(expected, **EXACT)
        mean -= 0.5 * (mean - np.mean(ms))
        assert np.mean(found) == pytest.approx(mean, **EXACT)
        if distances:
            assert distance(found) == pytest.approx(distances[i], **EXACT)
    assert [int(each.session.run(each.global_step)) for each in made] == [len(replicas)] * len(ms)


def test_d_psgd_never_agrees_on_unequal_data(synchronous):
    _, step = synchronous([0, 4])
    for _ in range(40):
        found = step()
    assert found == pytest.approx([4 / 3, 8 / 3], **EXACT)


def test_mixing_alone(synchronous):
    """In a ring of 4 the distance falls by the square of 1/3 in each step."""
    made, step = synchronous([0, 0, 0, 0], learning_rate=0.)
    for each, value in zip(made, (8., 0., 0., 0.)):
        each.variables[0].load(value, each.session)
    found = [step() for _ in range(3)]
    assert found[0] == pytest.approx([8 / 3, 8 / 3, 0, 8 / 3], **EXACT)
    assert found[1] == pytest.approx([2.6666667] + [1.7777778] * 3, **EXACT)
    assert found[2] == pytest.approx([2.0740741, 2.0740741, 1.7777778, 2.0740741], **EXACT)
    assert list(map(sum, found)) == pytest.approx([8] * 3, **EXACT)
    assert list(map(distance, found)) == pytest.approx([12 / 9, 12 / 81, 12 / 729], **EXACT)


@pytest.mark.parametrize('num_workers, eigenvalue', [
    (2, 0), (3, 0), (4, 1 / 3), (5, 0.53934466), (6, 2 / 3), (7, 0.7489932), (8, 0.80473785)])
def test_how_fast_mixing_is(num_workers, eigenvalue):
    """It multiplies the distance by the square of that, or less."""
    topology = load_program('Gossip', 'topology')
    weights = np.zeros([num_workers] * 2)
    for i in range(num_workers):
        group = [i, *topology.neighbours_of(i, num_workers)]
        weights[i, group] = 1 / len(group)
    assert (weights == weights.T).all() and weights.sum(axis=0) == pytest.approx(1)
    assert sorted(abs(np.linalg.eigvals(weights)))[-2] == pytest.approx(eigenvalue, abs=1e-7)


def test_two_workers_are_neighbours_once(synchronous):
    """Not twice, as the one before and the next one: that would give 8/3 and 16/3."""
    made, step = synchronous([0, 0], learning_rate=0.)
    made[1].variables[0].load(0., made[1].session)
    assert step() == [4, 4]
    topology = made[0].program.topology
    assert [topology.neighbours_of(i, 2) for i in range(2)] == [[1], [0]]
    assert topology.neighbours_of(0, 1) == []
    assert topology.neighbours_of(0, 5) == [1, 4]


@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
def test_without_neighbours_it_is_sgd(toy, algorithm):
    """As when the mixing matrix is the identity: each by itself."""
    for m, expected in (0, [4, 2, 1]), (4, [6, 5, 4.5]):
        worker, = toy('Gossip', [m], algorithm=algorithm, **SERVERS)
        assert [(worker.step(), worker.center())[1] for _ in range(3)] == expected


def test_the_replicas_of_a_full_mean_have_the_same_bits(synchronous):
    """All add in the same order, and so do both implementations."""
    replicas = []
    for implementation in 'servers', 'sockets':
        made, step = synchronous([0, 0, 0], implementation, learning_rate=0., start=[[0.] * 100])
        random = np.random.RandomState(1)
        for each in made:
            each.variables[0].load(random.normal(size=100) * 10. ** random.randint(-3, 3, 100),
                                   each.session)
        replicas += step()
    assert all(each == replicas[0] for each in replicas)


@pytest.mark.parametrize('num_workers', [2, 3])
def test_swaps(connected, num_workers):
    """Of arrays of several dtypes, of none, and of more than a socket takes at once."""
    program, flags_ = load_program('Gossip', 'swaps'), (np.float32, np.float64, np.float16)
    swaps = [program.Swaps(i, each) for i, each in enumerate(connected(num_workers))]
    sizes, all_but = (3000000, 3, 0), [[j for j in range(num_workers) if j != i]
                                       for i in range(num_workers)]
    for found in at_once([lambda i=i, each=each: each._run(
            all_but[i], all_but[i], program.mean,
            *[np.full(size, i + 1, dtype) for size, dtype in zip(sizes, flags_)])
            for i, each in enumerate(swaps)]):
        for size, dtype, one in zip(sizes, flags_, found):
            assert one.dtype == dtype and len(one) == size
            assert np.allclose(one, (num_workers + 1) / 2, rtol=1e-3)


def test_a_neighbour_that_is_gone(connected):
    program = load_program('Gossip', 'swaps')
    swaps = [program.Swaps(i, each) for i, each in enumerate(connected(3))]
    swaps[1].close()
    for i, each in (0, swaps[0]), (2, swaps[2]):
        with pytest.raises(program.connections.LostError, match='worker 1'):
            each._run([1, 2 - i], [1, 2 - i], program.mean, np.ones(10, np.float32))
        assert 'worker 1' in each.lost


@pytest.mark.parametrize('receivers, senders', [([1], [2]), ([2], [1])])
def test_a_neighbour_that_is_gone_in_one_direction(connected, receivers, senders):
    """As in SGP: whether one sends to it, or receives from it."""
    program = load_program('Gossip', 'swaps')
    swaps = [program.Swaps(i, each) for i, each in enumerate(connected(3))]
    swaps[1].close()
    share = [np.ones(10, np.float32)]
    swaps[2].swap(share, [0], [])
    with pytest.raises(program.connections.LostError, match='worker 1'):
        swaps[0].swap(share, receivers, senders)


def test_one_worker_is_never_more_than_a_step_ahead_of_its_neighbour(synchronous):
    """It may begin its second step, and waits in it for what the neighbour sends."""
    made, _ = synchronous([0, 4])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        fast = pool.submit(lambda: [made[0].step() for _ in range(2)])
        time.sleep(0.5)
        assert not fast.done() and made[0].center() == 8
        made[1].step()
        wait_until(lambda: made[0].center() == 4, 'the first step is not made')
        time.sleep(0.5)
        assert not fast.done()
        made[1].step()
        assert [each['global_step'] for each in fast.result(60)] == [1, 2]
    assert [each.center() for each in made] == [3, 4]


# AD-PSGD.

def test_pairs_alone(gossip):
    made = gossip([0, 0, 0])
    made.set([8, 4, 0])
    found = []
    for pair in (0, 1), (1, 2), (2, 0), (0, 1):
        made.exchange(*pair)
        found.append(made.x())
    assert found == [[6, 6, 0], [6, 3, 3], [4.5, 3, 4.5], [3.75, 3.75, 4.5]]
    assert list(map(distance, found)) == pytest.approx([8, 2, 0.5, 0.125], **EXACT)


@pytest.mark.parametrize('implementation', ['gossip', 'visiting'])
def test_ad_psgd(request, implementation):
    """The gradient is that of before the exchange: through the servers, and past them."""
    made = request.getfixturevalue(implementation)([0, 4])
    found = []
    for worker in 0, 1, 0, 1:
        made.step(worker, 1 - worker)
        found.append(made.x())
    assert found == [[4, 8], [6, 4], [2, 5], [3.5, 3]]
    assert [int(each.session.run(each.global_step)) for each in made.made] == [2, 2]


@pytest.mark.parametrize('while_it_steps', [False, True])
def test_visits_in_turn(visiting, while_it_steps):
    """What partners add to a worker counts for the next one at once, whether it steps or not."""
    made = visiting([0, 0, 0], learning_rate=0.)
    made.set([8, 4, 0])
    for i in range(3) if while_it_steps else ():
        made.visits[i]._replica.begin_step([np.float32([8, 4, 0][i])])
    for pair in (0, 1), (1, 2), (2, 0), (0, 1):
        made.step(*pair)
    assert made.x() == [3.75, 3.75, 4.5]


def test_a_worker_that_is_visited_computes_the_gradient_at_what_was_added(visiting):
    """And the others see its replica without its last step, until it begins the next one."""
    made = visiting([0, 4], roles=None)
    made.made[1].step()
    made.set([0, 8])
    made.step(0, 1)  # worker 1 still shows 8
    assert made.made[0].center() == 4 and made.made[1].center() == 8
    made.made[1].step()
    assert made.made[1].center() == 8 - 4 - 0.5 * (4 - 4)


def test_visits_during_one_step(visiting):
    """Each is of what the visits before have made of the replica, and so is its own exchange."""
    made = visiting([0, 0])
    its = made.visits[1]._replica
    its.begin_step([np.float32(8)])
    assert [its.add_half([np.float32(other)]) for other in (4, 0)] == [[-2], [-3]]
    its.subtract([np.float32(1)])
    assert its.add_half([np.float32(4)]) == [1]
    assert made.made[1].center() == 8
    assert made.x() == [8, 8 - 5 + 1], 'TensorFlow subtracts what its own exchange takes'


def test_a_port_that_is_in_use_or_too_high():
    listener = load_program('Gossip', 'meeting').Listener
    with socket.socket() as other:
        other.bind(('', 0))
        other.listen(1)
        for port in other.getsockname()[1], 70000:
            with pytest.raises(SystemExit, match=f'^worker 1 cannot listen on port {port} '
                                                 r'\(.+\): give another --sockets_port\.$'):
                listener('worker 1', port)


@pytest.mark.parametrize('roles, num_workers', AT_ONCE)
def test_visits_at_once(visiting, roles, num_workers):
    """While all step: all come to an end, and the sum stays."""
    made = visiting([0] * num_workers, roles=roles, learning_rate=0.,
                    start=[[0.] * 1000, [[0.] * 3] * 2])
    random = np.random.RandomState(1)
    values = random.normal(size=[num_workers, 1000]).astype(np.float32)
    made.set(values)
    at_once([lambda each=each: [each.step() for _ in range(30)] for each in made.made])
    found = np.array(made.x())
    assert found.sum(axis=0) == pytest.approx(values.sum(axis=0), abs=1e-4)
    assert np.ptp(found, axis=0).max() < 0.1 * np.ptp(values, axis=0).max()


@pytest.mark.parametrize('how', ['closes', 'is silent'])
def test_who_does_not_answer_a_visit_is_left_out(visiting, monkeypatch, capsys, how):
    """Alone a step is one of SGD; it is taken in again when it answers."""
    made = visiting([0, 4], roles=None)
    visits, its = made.visits[0], made.visits[1]._replica
    usual, visits._answer_secs = visits._answer_secs, 0.2  # of the next connection
    visits._there.clear()
    visits._look()
    with monkeypatch.context() as patch:
        patch.setattr(its, 'add_half', lambda other: time.sleep(how == 'is silent') or None)
        made.step(0, 1)
    assert made.x() == [4, 8]
    reason = dict(closes='it has closed the connection').get(how, 'timed out')
    assert f'worker 0: worker 1 does not answer ({reason}): this' in capsys.readouterr().out
    visits._answer_secs = usual
    visits._look()
    assert 'worker 0: worker 1 answers again' in capsys.readouterr().out
    made.step(0, 1)
    assert made.x() == [6 - 2, 6]


def test_who_has_given_up_is_not_answered(visiting):
    """What it has sent may be of long ago."""
    made = visiting([0, 0], roles=None)
    for gives_up in True, False:
        one, other = socket.socketpair()
        with one:
            made.program.visits.send(one, [np.zeros(1, np.float32)])
            if gives_up:
                one.shutdown(socket.SHUT_WR)
            answering = threading.Thread(target=made.visits[1]._answer, args=(other,), daemon=True)
            answering.start()
            if not gives_up:
                assert made.program.visits.receive(one, [np.zeros(1, np.float32)]) == [-4]
        answering.join(10)
        assert made.x() == [8, 8 if gives_up else 4]


def test_a_stranger_changes_nothing(visiting):
    """It is closed out, and keeps nobody from a visit; see also `test_ring`."""
    made = visiting([0, 0], roles=None)
    port = made.workers[0][1].told([made.program.meeting._PORT])[0]
    with socket.create_connection(('localhost', port), 10) as stranger:
        stranger.sendall(bytes(100))
        with contextlib.suppress(ConnectionError):
            assert not stranger.recv(1)
    made.step(0, 1)
    assert made.x() == [4, 8]


@pytest.fixture
def meet(cluster):
    """A function that has workers meet, on hosts; returns what each has, `meeting.Met` or None."""
    def all_meet(hosts_, algorithm, among=None):
        program = load_program('Gossip')
        flags.FLAGS.mark_as_parsed()
        number = len(hosts_)
        targets = [cluster.servers['worker', i].target for i in range(number)]
        addresses = [target[len('grpc://'):] for target in targets]
        spec = tf.train.ClusterSpec({'worker': addresses})
        among = range(number) if among is None else among
        for i in among:
            program.others.Board(i, targets[i]).tell(dict.fromkeys(range(20), 0))

        class Hosts:
            def __init__(self, me):
                self.task_id = me

            def cluster_spec(self):
                return types.SimpleNamespace(
                    job_tasks=spec.job_tasks, task_address=lambda job, i: f'{hosts_[i]}:1')

        def one(me):
            neighbours = program.topology.neighbours_of(me, number)
            reaches = [i for i in neighbours if i > me or algorithm == 'ad-psgd']
            return program.meeting.meet(Hosts(me), cluster.servers['worker', me], reaches,
                                        algorithm == 'ad-psgd', 0)

        return at_once([functools.partial(one, i) for i in among])
    return all_meet


@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
def test_workers_meet_past_the_servers(meet, algorithm):
    """And one that starts anew does as the others do, whomever it reaches."""
    found = meet(['localhost'] * 3, algorithm)
    assert all(found)
    if algorithm == 'd-psgd':
        for i, ways in enumerate(at_once([
                lambda i=i, each=each: each.connections([j for j in range(3) if j != i])
                for i, each in enumerate(found)])):
            assert sorted(ways) == [j for j in range(3) if j != i]
    else:
        assert meet(['nowhere.invalid'] * 3, algorithm, [1]) != [None]


@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
def test_where_one_is_not_reached_all_take_the_servers(meet, capsys, algorithm):
    assert meet(['localhost', 'localhost', 'nowhere.invalid'], algorithm) == [None] * 3
    said = capsys.readouterr().out
    assert "worker 1: cannot reach worker 2's socket at nowhere.invalid (" in said
    assert said.count("worker 0: not all workers reach each other's sockets") == 1
    assert meet(['localhost'] * 3, algorithm, [1]) == [None], 'it does as the others do'


def test_what_comes_in_between_is_not_overwritten(gossip):
    """Worker 0 has read 8; 2 exchanges with 0; then 0 ends its exchange: assigned, it were 6."""
    made = gossip([0, 0, 0])
    made.set([8, 4, 0])
    op = made.pairs[0].ops[1]
    mine = next(each for each in op.graph.get_operations() if each.type == 'ReadVariableOp'
                and 'task:0' in each.device).outputs[0]
    made.exchange(2, 0)
    assert made.x() == [4, 4, 4]
    with tf.Session(made.workers[0][1].target, graph=op.graph) as session:
        session.run(op, {mine: 8.})
    assert made.x() == [2, 6, 4]


def test_gradient_first_and_a_full_mean_are_synchronous_sgd(gossip):
    """Both take a step without an exchange; then they exchange."""
    made = gossip([0, 4])
    for expected in 5, 3.5, 2.75, 2.375:
        for worker in range(2):
            made.step(worker)
        made.exchange(0, 1)
        assert made.x() == [expected] * 2


def test_any_exchanges_in_turn(gossip):
    """Without gradients the sum stays, and the distance never grows."""
    made = gossip([0] * 4)
    made.set([8, 4, 0, -20])
    random, before = np.random.RandomState(1), distance([8, 4, 0, -20])
    for _ in range(40):
        worker = random.randint(4)
        made.exchange(worker, (worker + random.choice([1, 3])) % 4)
        found = made.x()
        assert sum(found) == pytest.approx(-8, abs=1e-5)
        assert distance(found) <= before + 1e-5
        before = distance(found)
    assert before < 1


@pytest.mark.parametrize('roles, num_workers', AT_ONCE)
def test_exchanges_at_once(gossip, roles, num_workers):
    """From threads, 30 by each that starts them: all come to an end, and the sum stays."""
    made = gossip([0] * num_workers, roles=roles, start=[[0.] * 1000, [[0.] * 3] * 2])
    random = np.random.RandomState(1)
    values = random.normal(size=[num_workers, 1000]).astype(np.float32)
    made.set(values)
    active = [pairs for pairs in made.pairs if pairs]
    assert len(active) == (num_workers // 2 if roles == 'bipartite' else num_workers)
    at_once([lambda pairs=pairs: [pairs.exchange() for _ in range(30)] for pairs in active])
    found = np.array(made.x())
    assert found.sum(axis=0) == pytest.approx(values.sum(axis=0), abs=1e-4)
    assert np.ptp(found, axis=0).max() < 0.1 * np.ptp(values, axis=0).max()


def test_variables_of_all_kinds(gossip):
    """Small ones travel together, large ones by themselves."""
    large, small = np.arange(40000.), [1., 2., 3.]
    made = gossip([0, 0], start=[large.tolist(), small, 5.])
    for variable in made.made[1].variables:
        variable.load(np.zeros(variable.shape.as_list()), made.made[1].session)
    made.exchange(1, 0)
    for each in made.made:
        for value, whole in zip(each.session.run(each.variables), (large, np.array(small), 5.)):
            assert value == pytest.approx(np.asarray(whole) / 2)


def test_the_draws_are_those_of_the_seed(gossip, monkeypatch):
    made = gossip([0] * 4, seed=3)
    drawn = []
    monkeypatch.setattr(made.pairs[2], 'exchange_with', lambda partner: drawn.append(partner) or 1)
    for _ in range(50):
        made.pairs[2].exchange()
    random = np.random.RandomState([3, 2])
    assert drawn == [[1, 3][random.randint(2)] for _ in range(50)]


def test_a_passive_worker_starts_nothing(gossip):
    made = gossip([0, 4, 0, 4], roles='bipartite')
    assert [bool(pairs) for pairs in made.pairs] == [True, False, True, False]
    assert [bool(each.scheme.own) for each in made.made] == [True, False, True, False]
    made.step(0, 1)
    made.made[1].step()
    assert made.x() == [4, 6, 8, 8]


def test_every_other_worker_starts_exchanges_unless_their_number_is_odd():
    topology = load_program('Gossip', 'topology')
    for roles, number, expected in (
            (None, 1, [[]]), (None, 2, [[1], []]), (None, 3, [[1, 2], [0, 2], [0, 1]]),
            (None, 4, [[1, 3], [], [1, 3], []]), ('any', 2, [[1], [0]]),
            ('bipartite', 2, [[1], []])):
        topology.check(roles, number)
        assert [topology.partners_of(i, number, roles) for i in range(number)] == expected


def test_who_does_not_answer_is_left_out(gossip, monkeypatch, capsys):
    """The next one is taken; with nobody there, a step is one of SGD."""
    made = gossip([0] * 4)
    pairs = made.pairs[0]
    links = {partner: pairs._links[partner] for partner in (1, 3)}
    gone = {1}

    def run(link, *args):
        if link.worker in gone:
            link.silence = 'refused'
            return None
        return real(link, *args)

    real = made.program.others.Link.run
    monkeypatch.setattr(made.program.others.Link, 'run', run)
    made.set([8, 0, 0, 4])
    assert set(links) == {1, 3}
    for _ in range(4):
        pairs.exchange()
    assert made.x() == [6, 0, 0, 6]
    gone.add(3)
    pairs.exchange()
    assert made.made[0].step()['global_step'] == 1
    assert made.x() == [3, 0, 0, 6]
    said = capsys.readouterr().out
    assert said.count('worker 0: worker 1 does not answer (refused)') == 1
    assert said.count('worker 0: worker 3 does not answer (refused)') == 1
    gone.clear()
    pairs._look()
    assert capsys.readouterr().out.count('answers again') == 2
    pairs.exchange()
    assert made.x()[0] != 3


def test_a_partner_that_starts_anew_has_to_have_its_values_first(gossip):
    made = gossip([0, 4])
    pairs = made.pairs[0]
    made.workers[1][1].show(0)
    pairs._there.clear()
    pairs._look()
    pairs.exchange()
    assert made.made[0].step() and made.x() == [4, 8]
    made.workers[1][1].show(made.program.others.BEGUN)
    pairs._look()
    pairs.exchange()
    assert made.x() == [6, 6]


@pytest.mark.parametrize('algorithm', ['ad-psgd', 'd-psgd'])
def test_a_recipe(gossip, synchronous, algorithm):
    """A worker clips its own gradient, and decays its own replica, as it is after averaging."""
    its_recipe = recipe.Recipe(clip_norm=1., weight_decay=0.25)
    if algorithm == 'd-psgd':
        made, step = synchronous([0, 4], its_recipe=its_recipe)
        made[1].variables[0].load(4., made[1].session)
        assert step() == [6 - 0.75 - 0.5, 6 - 0.75]
    else:
        made = gossip([0, 4], its_recipe=its_recipe)
        made.set([8, 4])
        made.step(0, 1)
        assert made.x() == [6 - 0.75 - 0.5, 6]


# The mean.

def test_the_mean_is_saved_and_restored(gossip, tmp_path, capsys):
    made = gossip([0, 4, 8])
    first = made.made[0]
    with first.graph.as_default():
        of_all = first.program.mean.Mean(first.scheme.network, made.workers[0])
        saver = first.program.mean.Saver('worker 0', of_all)
        first.session.run(tf.local_variables_initializer())
    made.set([1, 2, 6])
    assert of_all.form(first.session) == (3, pytest.approx(14 / 3))
    assert first.session.run(of_all.tested) == [3]
    made.set([1, 2, 9])
    path = saver.save(first.session, str(tmp_path / 'model.ckpt'), 7)
    assert tf.train.load_variable(path, 'x0') == 4
    assert first.center() == 1, 'the replica goes on'
    made.set([1, 2, 12])
    assert saver.save(first.session, str(tmp_path / 'model.ckpt'), 7) == path
    assert tf.train.load_variable(path, 'x0') == 5, 'the last mean of a step'
    made.set([1, 2, 9])
    saver.save(first.session, str(tmp_path / 'model.ckpt'), 7)
    saver.restore(first.session, path)
    assert first.center() == 4
    made.workers[2][2].show(0)
    made.set([1, 2, 9])
    assert of_all.form(first.session) == (2, 0.25)
    assert 'the mean is without worker 2, which has not begun' in capsys.readouterr().out
    made.workers[0][0].show(0)
    assert of_all.form(first.session) == (1, 0), 'before all begin it is that of worker 0'


# Flags.

@pytest.mark.parametrize('changes, num_workers, complaint', [
    (dict(roles='bipartite'), 3, '--roles=bipartite needs an even number of workers'),
    (dict(roles='any', algorithm='d-psgd'), 2, '--roles is for --algorithm=ad-psgd'),
    (dict(stop_after_evals_without_gain=2), 2, '--stop_after_evals_without_gain: here each')])
def test_flags_that_do_not_go_together(monkeypatch, changes, num_workers, complaint):
    program = load_program('Gossip')
    flags.FLAGS.mark_as_parsed()
    program.check(num_workers)
    for name, value in changes.items():
        monkeypatch.setattr(flags.FLAGS[name], '_value', value)
    with pytest.raises(SystemExit, match=f'^{complaint}'):
        program.check(num_workers)


# Real processes.

@pytest.fixture
def started(programs):
    """Starts slow workers; returns them when they are training."""
    def start(num_workers, *flags_, train_steps=300):
        tasks = Tasks(programs, num_ps=0, num_workers=num_workers, folder='Gossip', flags=[
            f'--train_steps={train_steps}', '--log_every_n_steps=5', '--patience_secs=60',
            '--straggler=' + ','.join(f'{i}:0.03' for i in range(num_workers)), *flags_],
            python=sys.executable)
        workers = [tasks.start('worker', i) for i in range(num_workers)]
        for worker in workers:
            worker.wait_for(STEP)
        return tasks, workers
    return start


LOST = r'worker {}: worker {} does not answer \(.+\): this worker goes on without it'


@pytest.mark.thorough
def test_who_is_killed_is_left_out_and_joins_again(started):
    """AD-PSGD: the others go on meanwhile; and the new one has their values and their step."""
    # The runtime may look for ten seconds for one that is back.
    tasks, workers = started(3, train_steps=900)
    workers[1].kill()
    for i in 0, 2:
        workers[i].wait_for(LOST.format(i, 1))
    workers[0].wait_for(STEP, len(workers[0].matches(STEP)) + 2)
    again = tasks.start('worker', 1)
    begins = again.wait_for(BEGINS)
    assert int(begins['step']) > 0 and ': joins' in begins.group()
    for i in 0, 2:
        workers[i].wait_for(rf'worker {i}: worker 1 answers again')
    for worker in workers[0], again, workers[2]:
        worker.ends_well()
    assert 'the mean of 3 replicas' in workers[0].matches(MEAN)[-1].group()
    assert float(workers[0].wait_for(TEST)['accuracy']) > 0.9


@pytest.mark.thorough
def test_who_is_killed_for_good(started):
    """The mean is that of those that are left."""
    _, workers = started(3)
    workers[2].kill()
    for i in 0, 1:
        workers[i].ends_well()
        assert int(workers[i].wait_for(DID)['local_steps']) == 300
    assert workers[0].matches('worker 0: the mean is without worker 2, .+')
    assert 'the mean of 2 replicas' in workers[0].matches(MEAN)[-1].group()


@pytest.mark.thorough
def test_who_is_paused_is_left_out_until_it_goes_on(started):
    tasks, workers = started(3, '--exchange_secs=2', train_steps=600)
    workers[1].send(signal.SIGSTOP)
    for i in 0, 2:
        workers[i].wait_for(LOST.format(i, 1))
    workers[0].wait_for(STEP, len(workers[0].matches(STEP)) + 2)
    workers[1].send(signal.SIGCONT)
    workers[0].wait_for('worker 0: worker 1 answers again')
    for worker in workers:
        worker.ends_well()
    assert 'the mean of 3 replicas' in workers[0].matches(MEAN)[-1].group()


@pytest.mark.thorough
def test_without_worker_0_nobody_tests(started):
    _, workers = started(2, '--patience_secs=5', train_steps=100)
    workers[0].kill()
    workers[1].wait_for(DID)
    assert workers[1].wait() == 75
    assert 'worker 0 does not answer' in workers[1].err[-1] and 'nobody tests' in workers[1].err[-1]


@pytest.mark.thorough
@pytest.mark.parametrize('algorithm, patience', [('d-psgd', 6), ('sgp', 20)])
def test_it_ends_when_one_is_killed_and_a_new_start_resumes(started, programs, algorithm,
                                                            patience):
    """All end, also those to whom it does not send; worker 0 saves the mean, and all resume."""
    flags_ = [f'--algorithm={algorithm}', f'--model_dir={programs.directory / "model"}',
              '--save_checkpoint_secs=1']
    tasks, workers = started(3, *flags_, f'--patience_secs={patience}')
    wait_until(lambda: not (tf.train.latest_checkpoint(str(programs.directory / 'model'))
                            or '-0').endswith('-0'), 'no checkpoint by', *workers)
    workers[2].kill()
    for i in 0, 1:
        assert workers[i].wait() == 75 and len(workers[i].err) == 1, str(workers[i])
        assert f'worker {i}: ' in workers[i].err[0]
        assert re.search(rf'lost a neighbour|does not answer \(.+\). Gave up after {patience} s',
                         workers[i].err[0])
    workers = [tasks.start('worker', i) for i in range(3)]
    resumed = int(workers[0].wait_for(RESUMES)['step'])
    for worker in workers:
        worker.ends_well()
        assert int(worker.wait_for(BEGINS)['step']) == resumed > 0
        assert int(worker.wait_for(DID)['local_steps']) == 300 - resumed


@pytest.mark.thorough
@pytest.mark.parametrize('goes_on', [True, False])
def test_d_psgd_waits_for_one_that_is_paused(started, goes_on):
    """The others say so, and end after --patience_secs; here without --model_dir."""
    _, workers = started(2, '--algorithm=d-psgd', f'--patience_secs={60 if goes_on else 8}')
    workers[1].send(signal.SIGSTOP)
    workers[0].wait_for(r'worker 0: worker 1 at \S+ does not answer \(timed out\); waiting')
    if goes_on:
        workers[1].send(signal.SIGCONT)
        for worker in workers:
            worker.ends_well()
    else:
        assert workers[0].wait() == 75
        assert 'does not answer (timed out). Gave up after 8 s' in workers[0].err[-1]
        workers[1].kill()


@pytest.mark.thorough
def test_run_sh_goes_on_without_one_of_ad_psgd(programs):
    """And starts it again, alone."""
    run = programs.run_sh('Gossip', '--restarts=1', '--log_every_n_steps=5', '--train_steps=400',
                          '--straggler=0:0.03,1:0.03,2:0.03', WORKERS=3)
    run.wait_for(STEP, 4)
    worker, = [each for each in run.left() if any('worker.py' in word for word in each.cmdline())
               and '"index": 1' in each.environ().get('TF_CONFIG', '')]
    worker.kill()
    run.wait_for(r'run.sh: worker 1 was killed \(SIGKILL\); the others go on; restart 1 of 1')
    run.wait_for(r'worker 1: joins at step [1-9]\d* of 400, .+')
    assert run.wait() == 0
    assert 'the mean of 3 replicas' in run.matches(MEAN)[-1].group()
