"""FedAvg: its worked numbers, who has which examples, tickets and admissions.

The toy problem: an example is a number m, and the loss of a batch is the mean of the half squares
of x - m. So the gradient is x less the mean of the batch; x starts at 8, the learning rate is 1/2.
"""

import collections
import re
import shutil
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tfdist.scheme import local_rules, recipe, seam
from tfdist.scheme.toy import Problem
from tfdist.training import traffic

from cases import briefly
from conftest import digits, load_program
from processes import DID, ROOT, STEP, Tasks, TEST, TESTED, wait_until
import test_synchronous

FOLDER = 'FedAvg'
THREE = [0., 4., 16., 0.]  # of three clients the first one has two: 0 and 0, 4, 16
FLAGS = dict(learning_rate=0.5, batch_size=2, accumulate=1, clients=3, fraction=1., epochs=2,
             classes_per_client=None, server_optimizer='sgd', server_learning_rate=None,
             server_momentum=0.5, deadline_secs=0., buffer=0, train_steps=10, seed=1)


class Worker:
    """A worker of the toy problem on real servers; see `test_synchronous`.

    Attributes:
      scheme, rounds: those of worker.py.
      train_op: a turn without the next ticket; that of the scheme ends with it, as in worker.py.
      session: a plain session on this worker's server.
      counted: list of lists, how many clients and examples were in each step; the chief's.
    """

    def __init__(self, cluster, container, task_index, num_workers, examples, hparams, start,
                 its_recipe=None, program=None, num_ps=2):
        self.program, self._config = program or load_program(FOLDER), cluster.config(task_index)
        clients = self.program.clients
        self.graph, device = tf.Graph(), f'/job:worker/task:{task_index}'
        hosts = cluster.spec.as_dict()
        hosts['ps'] = hosts['ps'][:num_ps]
        with self.graph.as_default(), self.graph.container(container), tf.device(
                tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(hosts),
                                               worker_device=device)):
            global_step = tf.train.get_or_create_global_step()
            self.variables = [
                tf.get_variable(f'x{i}', initializer=tf.constant(value, tf.float32))
                for i, value in enumerate(start)]
            with tf.device(device):
                self.client_of = clients.client_of(hparams)
                turn = clients.Turn(clients.Clients([np.array(examples)], hparams),
                                    hparams.buffer and (lambda ticket: self.client_of(ticket)))
            left = iter(turn.batches)

            def loss_at(values):
                batch = tf.cast(next(left)[0], tf.float32)
                return sum(tf.reduce_mean(tf.square(
                    value - tf.reshape(batch, [-1] + [1] * value.shape.ndims)))
                           * int(np.prod(value.shape.as_list())) / 2
                           for value in values), tf.constant(0.)

            self.scheme = self.program.Scheme(
                Problem(loss_at, self.variables, its_recipe), global_step, hparams, task_index,
                num_workers, turn)
            kind = (self.program.buffers.Buffers if hparams.buffer
                    else self.program.rounds.Rounds)
            self.rounds = kind(self.scheme, global_step, hparams, task_index)
            self._note_what_counts()
            self.train_op = dict(self.scheme.train_op)
            self.rounds.take_with_each_push()
            initialize = tf.global_variables_initializer()
            self._initialize_local = tf.local_variables_initializer()
            self._progress = types.SimpleNamespace(end_at=lambda step: None)
        self._target = cluster.servers['worker', task_index].target
        self.new_session()
        if not task_index:
            self.session.run(initialize)

    def _note_what_counts(self):
        self.counted, make_steps = [], self.rounds.make_steps

        def noting(session, complete):
            def completing():
                ends, counted = complete()
                self.counted.append(list(counted))
                return ends, counted

            make_steps(session, completing)

        self.rounds.make_steps = noting

    def new_session(self):
        """Gets a session, as when it is started again; leaves the one before open."""
        self.session = tf.Session(self._target, graph=self.graph, config=self._config)
        self.session.run(self._initialize_local)

    def begin(self):
        self.rounds.after_create_session(self.session, None)

    def step(self):
        """Returns how many rounds are complete."""
        return self.session.run(self.rounds._ends)[0]

    def ticket(self):
        """Returns the ticket that it has: the stamp, and the client."""
        return self.session.run(self.scheme.turn.ticket)[:2].tolist()

    def take(self):
        """Takes a ticket; returns whether there is one."""
        return self.rounds.take(self._progress)

    def train(self):
        """Trains the client whose ticket it has; returns the figures."""
        return self.session.run(self.train_op)

    def turn(self):
        """Trains the client whose ticket it has, and waits for the next ticket."""
        self.rounds.hear(self.session.run(self.scheme.train_op)['ticket'])

    def run(self):
        """Trains clients to the end of the run."""
        while self.take():
            self.turn()

    def center(self):
        return self.session.run(self.variables[0]).tolist()


@pytest.fixture
def workers(cluster, request):
    """Makes workers that have not begun: so many, with these examples, and changes of the flags."""
    made = []

    def make(number=1, examples=THREE, start=(8.,), its_recipe=None, program=None, num_ps=2,
             **changes):
        container = re.sub(r'[^A-Za-z0-9]', '.', f'clients-{request.node.name}-{len(made)}')
        hparams = types.SimpleNamespace(**dict(FLAGS, **changes))
        mine = [Worker(cluster, container, i, number, examples, hparams, start, its_recipe, program,
                       num_ps) for i in range(number)]
        made.extend(mine)
        return mine

    yield make
    for worker in made:
        worker.session.close()


def samples(chief, *rounds):
    """Has the chief take these clients in its rounds, instead of drawing them."""
    chief.rounds._sample = lambda step: list(rounds[step])


def alone(workers, number_of_rounds, *sampled, **changes):
    """One worker trains all; returns the center after each round."""
    worker, = workers(train_steps=number_of_rounds, **changes)
    if sampled:
        samples(worker, *sampled)
    worker.begin()
    centers = []
    for i in range(number_of_rounds):
        for _ in sampled[i] if sampled else range(changes.get('clients', 3)):
            assert worker.take()
            worker.train()
        wait_until(lambda i=i: worker.step() > i)
        centers.append(worker.center())
    assert not worker.take()
    return centers


def together(made):
    """All workers train to the end of the run, each in a thread; returns the center."""
    made[0].begin()
    for worker in made[1:]:
        worker.begin()
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return made[0].session.run(made[0].variables)


# The worked numbers.

@pytest.mark.parametrize('sampled, center', briefly(
    [((0, 1, 2), 5.75), ((0, 2), 6), ((0,), 2)], lambda sampled, center: len(sampled) > 1), ids=str)
def test_a_round_by_hand(workers, sampled, center):
    """The ends are 2, 5 and 14; client 0 has two examples, and the other two have one each."""
    assert alone(workers, 1, sampled) == [center]


def test_clients_with_more_examples_make_more_steps(workers):
    """One epoch of batches of one: 2, 1 and 1 steps, which end at 2, 6 and 12."""
    assert alone(workers, 1, epochs=1, batch_size=1) == [5.5]


SWINGS = (0, 2), (0, 1), (1, 2)


@pytest.mark.parametrize('changes, centers', [
    ({}, [6, 2.5, 8.125]),
    (dict(server_optimizer='momentum'), [6, 1.5, 5.625]),
    (dict(server_optimizer='adam', server_learning_rate=0.5), [7.5024876, 6.8657424, 6.5561593]),
], ids=str)
def test_three_optimizers_of_the_center(workers, changes, centers):
    assert alone(workers, 3, *SWINGS, **changes) == pytest.approx(centers, rel=1e-6)


def test_a_client_that_is_too_late_is_refused(workers):
    """The fourth round: client 2 is admitted, then time is up, then client 0 comes."""
    one, other = workers(2, train_steps=4)
    samples(one, *SWINGS, (0, 2))
    one.begin()
    other.begin()
    for _ in range(3):
        for _ in range(2):
            one.take()
            one.train()
    assert one.take() and other.take()
    assert one.center() == 8.125
    stamp, client = one.ticket()
    assert (client, other.ticket()[1]) == (0, 2)
    assert other.train()['dropped'] == 0
    assert one.step() == 3, 'one is missing'
    one.rounds._at_the_deadline(one.session, stamp)
    wait_until(lambda: one.step() == 4)
    assert one.train()['dropped'] == 1
    assert one.center() == 14.03125
    assert not one.take() and not other.take()
    assert one.counted[-1] == [1, 1]


def test_the_sample_is_a_function_of_seed_and_round():
    clients = load_program(FOLDER).clients
    assert [clients.sample(1, step, 10, 0.3) for step in range(4)] == [
        [2, 8, 9], [0, 2, 6], [4, 5, 6], [1, 2, 9]]
    assert [clients.sample(1, step, 3, 0.67) for step in range(4)] == [
        [0, 2], [0, 2], [1, 2], [1, 2]]
    assert clients.sample(2, 0, 10, 0.3) != [2, 8, 9]
    assert len(clients.sample(1, 0, 100, 0.29)) == 28, 'rounded down, also by the last bit'
    assert len(clients.sample(1, 0, 100, 0)) == 1
    assert clients.sample(-1, 0, 3, 1) == [0, 1, 2], 'any seed will do'


# Who has which examples.

def test_pieces_of_the_sorted_examples_are_dealt():
    parts = load_program(FOLDER).clients.parts_by_class(np.arange(12) % 3, 3, 2, seed=1)
    assert [part.tolist() for part in parts] == [[6, 9, 2, 5], [0, 3, 7, 10], [1, 4, 8, 11]]


@pytest.mark.parametrize('number, each', [(10, 2), (50, 1), (100, 2), (7, 3)])
def test_parts_are_a_partition_with_few_classes(number, each):
    clients = load_program(FOLDER).clients
    classes = digits()[1]
    parts = clients.parts_by_class(classes, number, each, seed=3)
    assert len(parts) == number
    assert sorted(np.concatenate(parts)) == list(range(1500))
    assert max(len(set(classes[part])) for part in parts) <= 2 * each
    assert max(map(len, parts)) - min(map(len, parts)) <= each
    other = clients.parts_by_class(classes, number, each, seed=4)
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(parts, other))
    equal = clients.equal_parts(1500, number)
    assert sorted(np.concatenate(equal)) == list(range(1500))
    assert {len(set(classes[part])) for part in clients.equal_parts(1500, 10)} == {10}


def clients_of(examples, **changes):
    """Returns the `Clients` of a number of examples that are their own numbers."""
    return load_program(FOLDER).clients.Clients(
        [np.arange(examples)], types.SimpleNamespace(**dict(FLAGS, **changes)))


def test_a_client_has_each_of_its_examples_once_in_an_epoch():
    """In an order of the seed, the round and the client; the last batch has what is left."""
    made = clients_of(22, clients=2, batch_size=4, epochs=3)
    assert made.most_steps == 9
    mine = made.batches_of(1, 5)
    assert [len(batch) for batch in mine] == [4, 4, 3] * 3
    epochs = [np.concatenate(mine[i:i + 3]).tolist() for i in (0, 3, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(1, 22, 2))] * 3
    assert epochs[0] != epochs[1] != epochs[2]

    def order(made, client, step):
        return np.concatenate(made.batches_of(client, step)).tolist()

    assert order(made, 1, 5) == sum(epochs, [])
    assert order(clients_of(22, clients=2, batch_size=4, epochs=3, seed=2), 1, 5) != sum(epochs, [])
    assert order(made, 1, 6) != sum(epochs, [])
    assert [i // 2 for i in order(made, 0, 5)] != [i // 2 for i in order(made, 1, 5)]


def test_a_batch_has_a_static_shape_where_all_are_as_large():
    clients = load_program(FOLDER).clients

    def shapes(examples):
        with tf.Graph().as_default():
            return [batch[0].shape.as_list()
                    for batch in clients.Turn(clients_of(examples, epochs=1)).batches]

    assert shapes(12) == [[2], [2]]
    assert shapes(13) == [[None]] * 3


# Properties.

@pytest.mark.parametrize('number', briefly([1, 2], [2]))
def test_with_all_clients_and_equal_parts_it_is_local_sgd(workers, toy, number):
    """Whoever trains them: its numbers, and at those that have to be rounded."""
    same = dict(clients=2, epochs=1, batch_size=1, train_steps=2)
    assert together(workers(number, [0., 4., 0., 4.], **same))[0] == 2.375
    start = [0.1, [[1 / 3, -0.7, 5e-6], [1e6, 0.3, -1e-3]]]
    changes = dict(same, train_steps=4, learning_rate=0.3)
    found = together(workers(number, [0.3, 1.7, 0.3, 1.7], start, **changes))
    made = toy('Local-SGD', (0.3, 1.7), start, learning_rate=0.3, communication_window=2,
               num_ps=2, replicas_to_aggregate=None, train_steps=4)
    for _ in range(4):
        test_synchronous.together(made)
    for value, other in zip(found, made[0].session.run(made[0].variables)):
        assert value == pytest.approx(other, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize('each', [None, 2])
def test_it_does_not_matter_how_many_workers_there_are(workers, each):
    """Clients of unequal size, some of them in each round: only roundings differ."""
    random = np.random.RandomState(0)
    examples = [random.randint(5, size=23)] if each else [random.normal(size=23)]
    changes = dict(clients=7, fraction=0.5, epochs=2, batch_size=2, classes_per_client=each,
                   train_steps=5)
    found = []
    for number in 1, 2, 3:
        made = workers(number, *examples, start=[8., [[1., -2.]]], **changes)
        found.append(together(made))
        assert sum(count for count, _ in made[0].counted) == 5 * 3
    for other in found[1:]:
        for value, same in zip(found[0], other):
            assert value == pytest.approx(same, rel=1e-6)
    assert abs(found[0][0] - 8) > 0.1


def test_with_one_step_of_all_examples_it_is_sgd_on_the_whole(workers):
    """FedSGD: the mean of the gradients by examples is the gradient of all examples together."""
    changes = dict(epochs=1, batch_size=100)
    assert alone(workers, 2, **changes) == [8 - (8 - 5) / 2, 6.5 - (6.5 - 5) / 2]


def test_the_examples_of_a_round_are_those_of_its_clients(workers):
    changes = dict(clients=5, fraction=0.5, epochs=1, batch_size=3, train_steps=6)
    made = workers(2, np.arange(23.), **changes)
    together(made)
    clients = clients_of(23, **changes)
    drawn = [made[0].program.clients.sample(1, step, 5, 0.5) for step in range(6)]
    assert made[0].counted == [
        [2, sum(len(clients.parts[client]) for client in mine)] for mine in drawn]
    assert len({examples for _, examples in made[0].counted}) > 1


def test_a_local_rule_keeps_nothing_from_client_to_client(workers, monkeypatch):
    """Each begins with no velocity, as if it were the first one of its worker."""
    monkeypatch.setattr(Problem, 'model_rule', lambda _, rate: local_rules.Momentum(rate, 0.5))
    # From 8 by velocities 8 and 8: 4, 0; in the next round the same again from 0.
    assert alone(workers, 2, clients=1, examples=[0., 0.]) == [0, 0]
    # From 8 to 16: velocities -8, -8, so 12, 16.
    assert alone(workers, 2, (0,), (1,), clients=2, examples=[0., 16.]) == [0, 16]


def test_a_recipe_is_that_of_local_steps(workers, toy):
    """Each gradient is clipped; the schedule counts local steps; the decay is that of x."""
    def schedule(step, examples):
        return 1 / (1 + tf.cast(examples, tf.float32))

    its_recipe = recipe.Recipe(schedule=schedule, clip_norm=3., weight_decay=0.1)
    same = dict(train_steps=3, batch_size=2, its_recipe=its_recipe)
    found = together(workers(1, [0., 4., 0., 4.], clients=2, **same))[0]
    made = toy('Local-SGD', (0, 4), communication_window=2, replicas_to_aggregate=None, **same)
    for _ in range(3):
        expected = test_synchronous.together(made)
    assert found == pytest.approx(expected, rel=1e-6)
    assert found > 5, 'without the recipe it would be at 2.09'


# Tickets and admissions: who is late, dies, or begins again.

def test_with_no_client_at_the_deadline_the_next_one_closes_the_round(workers):
    worker, = workers(train_steps=1)
    worker.begin()
    assert worker.take()
    stamp, client = worker.ticket()
    worker.rounds._at_the_deadline(worker.session, stamp)
    assert worker.step() == 0 and client == 0
    assert worker.train()['dropped'] == 0
    wait_until(lambda: worker.step() == 1)
    assert worker.center() == 2 and worker.counted == [[1, 2]]
    assert not worker.take(), 'the other tickets are left from a round that is over'


def test_the_deadline_comes_by_itself(workers, capsys):
    one, other = workers(2, train_steps=1, deadline_secs=0.3)
    one.begin()
    other.begin()
    assert one.take() and other.take()
    one.train()
    wait_until(lambda: one.step() == 1)
    assert other.train()['dropped'] == 1
    assert not other.take() and one.center() == 2
    assert 'worker 0: round 1 is closed after its 0.3 s, with 1 of 3 clients' in (
        capsys.readouterr().out)


def test_a_deadline_leaves_later_rounds_alone(workers):
    worker, = workers(train_steps=2)
    samples(worker, (0,), (0, 1))
    worker.begin()
    assert worker.take()
    first = worker.ticket()[0]
    worker.train()
    wait_until(lambda: worker.step() == 1)
    assert worker.take()
    worker.rounds._at_the_deadline(worker.session, first)
    worker.train()
    assert worker.take() and worker.ticket()[1] == 1
    worker.train()
    assert not worker.take() and worker.counted == [[1, 2], [2, 3]]


def test_a_worker_that_died_with_a_ticket_gives_it_back_when_it_begins_again(workers):
    """And what is left of its former life is refused."""
    one, other = workers(2, train_steps=1)
    one.begin()
    other.begin()
    assert other.take()
    former, turn = other.session, other.scheme.turn
    ticket = former.run(turn.ticket)
    assert ticket[1] == 0
    other.new_session()
    other.begin()
    trained = []
    for _ in range(3):
        assert one.take()
        trained.append(one.ticket()[1])
        if len(trained) == 2:  # sessions on one server share the variable; a life has its own
            former.run(turn.ticket.initializer, {turn.ticket.initial_value: ticket})
            assert former.run(other.train_op)['dropped'] == 1
        one.train()
    assert trained == [1, 2, 0]
    assert not one.take() and not other.take()
    assert one.center() == 5.75
    former.close()


def test_a_ticket_of_a_round_that_is_over_is_not_given_back(workers):
    one, other = workers(2, train_steps=2)
    samples(one, (0, 1), (2,))
    one.begin()
    other.begin()
    assert other.take() and one.take()
    one.train()
    one.rounds._at_the_deadline(one.session, one.ticket()[0])
    wait_until(lambda: one.step() == 1)
    other.new_session()
    other.begin()
    assert one.take() and one.ticket()[1] == 2
    one.train()
    assert not one.take() and one.counted == [[1, 1], [1, 1]]


def test_a_chief_that_begins_again_draws_the_same_clients_and_forgets_half_a_round(workers):
    one, other = workers(2, train_steps=2, clients=3, fraction=0.67)
    one.begin()
    other.begin()
    for worker in one, one:  # the first round: 0 and 2
        worker.take()
        worker.train()
    wait_until(lambda: one.step() == 1)
    assert one.center() == 6
    assert other.take() and other.ticket()[1] == 0
    other.train()  # pushed in vain
    assert one.take() and one.ticket()[1] == 2
    one.session.close()
    one.new_session()
    one.begin()
    assert one.train()['dropped'] == 1, 'it is the ticket of another chief'
    for _ in range(2):
        assert other.take()
        assert other.train()['dropped'] == 0
    assert not other.take() and not one.take()
    # Ends 6 / 4 and 16 - 10 / 4, by 2 and 1 examples.
    assert one.center() == (2 * 1.5 + 13.5) / 3
    assert one.counted[-1] == [2, 3]


def test_who_comes_after_the_end_is_told_so(workers):
    one, late = workers(2, train_steps=1)
    one.begin()
    one.run()
    late.begin()
    assert not late.take()
    one.session.close()
    one.new_session()
    one.begin()  # the chief, too
    assert not one.take() and one.center() == 5.75


def test_all_of_the_optimizer_is_in_the_checkpoint(workers, tmp_path):
    """A run that is resumed goes on with its velocity, and draws the clients of its round."""
    changes = dict(server_optimizer='momentum', fraction=0.67, server_learning_rate=0.5)
    whole = alone(workers, 3, *[(0, 2), (0, 2), (1, 2)], **changes)
    before, after = workers(train_steps=1, **changes)[0], workers(train_steps=3, **changes)[0]
    before.begin()
    before.run()
    savers = []
    for worker in before, after:
        with worker.graph.as_default():
            savers.append(tf.train.Saver())
    path = savers[0].save(before.session, str(tmp_path / 'model.ckpt'))
    assert sorted(name for name, _ in tf.train.list_variables(path)) == [
        'global_step', 'x0', 'x0/Momentum']
    savers[1].restore(after.session, path)
    after.begin()
    after.run()
    assert after.center() == whole[-1]


# A push counts in every variable or in none.

def keep_half(worker):
    """Has the first part of a worker's push kept, and nothing else of it: it dies in between."""
    first, _ = [op for op in worker.graph.get_operations() if op.type.startswith('QueueEnqueueV2')
                and op.inputs[0].op.get_attr('shared_name').endswith(b'/pushes')]
    worker.session.run(first)


def test_half_a_push_counts_in_no_variable(workers):
    """A worker dies while the parts of its push arrive, and its client comes once more."""
    one, other = workers(2, start=(8., 8.), train_steps=1)
    one.begin()
    other.begin()
    assert other.take() and other.ticket()[1] == 0
    keep_half(other)
    other.new_session()
    other.begin()
    while one.take():
        one.train()
    assert one.session.run(one.variables) == [5.75, 5.75] and one.counted == [[3, 4]]


@pytest.mark.parametrize('deadline', briefly([False, True], [True]))
def test_half_a_push_of_one_that_stays_away(workers, deadline):
    """Until the deadline its client is waited for; then the others count, in both variables."""
    one, other = workers(2, start=(8., 8.), train_steps=1)
    one.begin()
    other.begin()
    assert other.take() and other.ticket()[1] == 0
    keep_half(other)
    for _ in range(2):
        assert one.take()
        one.train()
    assert one.step() == 0
    if deadline:
        one.rounds._at_the_deadline(one.session, one.ticket()[0])
        assert not one.take()
        assert one.session.run(one.variables) == [9.5, 9.5] and one.counted == [[2, 2]]


def test_a_ticket_that_a_former_life_waits_for_goes_back(workers):
    """Its machine is lost, and a run of it still waits on the ps when it begins again."""
    one, other = workers(2, train_steps=2)
    samples(one, (0,), (1, 2))
    one.begin()
    other.begin()
    assert one.take()
    former = other.session
    waiting = threading.Thread(target=former.run, args=([other.rounds.takes],), daemon=True)
    waiting.start()
    other.new_session()
    other.begin()
    one.train()  # the next round begins, and the former life takes a ticket of it
    waiting.join(60)
    assert not waiting.is_alive()
    together_from_here = [one.take() and one.train() for _ in range(2)]
    assert [figures['dropped'] for figures in together_from_here] == [0, 0]
    assert not one.take() and one.counted == [[1, 2], [2, 2]]
    former.close()


def test_who_has_something_else_to_do_gives_the_next_ticket_back(workers):
    one, other = workers(2, train_steps=1)
    one.begin()
    other.begin()
    assert one.take()
    one.turn()
    assert one.ticket()[1] == 1, 'the next one has come with the answer to the push'
    one.rounds.before_run(types.SimpleNamespace(session=one.session))
    trained = []
    while other.take():
        trained.append(other.ticket()[1])
        other.train()
    assert trained == [2, 1] and one.counted == [[3, 4]]
    assert not one.take()


@pytest.mark.parametrize('buffer', briefly([0, 1], [1]))
def test_a_turn_is_four_transfers(workers, buffer):
    """Down the center, and the answer; up the change, and whose it is."""
    worker, = workers(train_steps=9, buffer=buffer, start=(8., [1., 2.]), num_ps=1)
    worker.begin()
    most = collections.Counter()
    for _ in range(8):
        assert worker.take()
        result, trace = traffic.traced_run(worker.session, worker.scheme.train_op)
        worker.rounds.hear(result['ticket'])
        # Now and then a trace ends before its last transfer.
        most |= collections.Counter(one.receiver.split()[0] for one in traffic.transfers(trace))
    assert most == {'ps': 2, 'worker': 2}


# FedBuff.

EIGHT = 0, 1, 0, 2, 1, 0, 0, 2  # whose reports come, in this order


def begin_turn(worker):
    """Has a worker take its client, and pull."""
    assert worker.take()
    worker.pulled = worker.session.run(worker.scheme.pull)


def report(worker):
    """Has a worker train from what it has pulled, and push; returns the figures of the push."""
    scheme = worker.scheme
    pushed = worker.session.run(scheme.pushed, seam.feed(scheme.pull, worker.pulled))
    return worker.session.run(scheme.push, seam.feed(
        scheme.pull + scheme.pushed, worker.pulled + pushed))


def by_hand(workers, order, ms, steps, **changes):
    """Each worker trains a client of its own; returns the centers, and the staleness of each."""
    made = workers(len(ms), examples=ms, clients=len(ms), train_steps=steps, **changes)
    for i, worker in enumerate(made):
        worker.client_of = lambda ticket, i=i: i
        worker.begin()
    for worker in made:
        begin_turn(worker)
    centers, ages = [], []
    for i in order:
        ages.append(int(report(made[i])['staleness']))
        if len(ages) % changes['buffer'] == 0:
            wait_until(lambda: made[0].step() == len(ages) // changes['buffer'])
            centers.append(made[0].center())
        if len(centers) < steps:
            begin_turn(made[i])
    return centers, ages


def test_a_buffer_by_hand(workers):
    """Staleness counts updates, not reports; and the sum is divided by how many there are."""
    centers, ages = by_hand(workers, EIGHT, [0., 4., 8.], 4, buffer=2)
    assert ages == [0, 0, 1, 1, 1, 1, 0, 1]
    assert centers == pytest.approx([3.5, 1.37867966, 0.58318453, 2.12023302], rel=1e-6)


def test_a_buffer_whose_pushes_count_alike(workers, monkeypatch):
    program = load_program(FOLDER)
    monkeypatch.setattr(program.buffers, 'of_age',
                        lambda staleness: tf.ones_like(staleness, tf.float64))
    centers, _ = by_hand(workers, EIGHT, [0., 4., 8.], 4, buffer=2, program=program)
    assert centers == [3.5, 0.5, -0.625, 2.421875]


def test_a_buffer_of_one(workers):
    assert by_hand(workers, [0] * 4, [0.], 4, buffer=1) == ([2, 0.5, 0.125, 0.03125], [0] * 4)


@pytest.mark.parametrize('staleness, weight', [(0, 1), (1, 0.70710678), (3, 0.5), (99, 0.1)])
def test_what_a_push_counts_for(staleness, weight):
    buffers = load_program(FOLDER).buffers
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(buffers.of_age(tf.constant(staleness, tf.int64))) == pytest.approx(
            weight, rel=1e-7)


def test_whose_push_fills_the_buffer_begins_after_the_update(workers):
    """And so does who comes while the update is made; what has begun may still push."""
    one, other, third = workers(3, examples=[0., 4., 8.], train_steps=2, buffer=2)
    may_complete = threading.Event()
    make_steps = one.rounds.make_steps
    one.rounds.make_steps = lambda session, complete: make_steps(
        session, lambda: may_complete.wait(60) and complete())
    for i, worker in enumerate((one, other, third)):
        worker.client_of = lambda ticket, i=i: i
        worker.begin()
    for worker in one, other, third:
        begin_turn(worker)
    report(one)
    begin_turn(one)
    assert one.pulled == [0, 8], 'the buffer is not full'
    report(other)
    turn = threading.Thread(target=begin_turn, args=(other,), daemon=True)
    turn.start()
    assert report(third) == {'global_step': 0, 'dropped': 0, 'staleness': 1}
    turn.join(0.5)
    assert turn.is_alive(), 'the update is still to be made'
    may_complete.set()
    turn.join(60)
    assert other.pulled == [1, 3.5]


def test_one_worker_and_a_buffer_of_all_clients_is_a_round_of_all(workers):
    """Nothing is stale then, and with equal parts all count alike in both."""
    same = dict(examples=[0., 4., 16., 1.], clients=4, train_steps=3, start=(8., [[1., -2.]]))
    assert together(workers(1, buffer=4, fraction=0.1, **same))[0] == pytest.approx(
        together(workers(1, **same))[0], rel=1e-6)


def test_each_client_has_its_turn_in_a_pass():
    clients = load_program(FOLDER).clients
    drawn = [clients.in_passes(1, ticket, 10) for ticket in range(30)]
    passes = [drawn[i:i + 10] for i in (0, 10, 20)]
    assert [sorted(each) for each in passes] == [list(range(10))] * 3
    assert passes[0] != passes[1] != passes[2]
    assert drawn == [clients.in_passes(1, ticket, 10) for ticket in range(30)]
    assert drawn != [clients.in_passes(2, ticket, 10) for ticket in range(30)]


def test_many_workers_fill_buffers(workers):
    """Nobody waits for anybody, and no push is lost, or counts twice."""
    made = workers(3, np.arange(23.), clients=7, epochs=1, batch_size=3, train_steps=8, buffer=2)
    together(made)
    assert [number for number, _ in made[0].counted] == [2] * 8
    assert made[0].step() == 8
    left = made[0].session.run(sizes_of_queues(made[0]))
    assert max(left) <= 3, 'no more than a push of each worker'


def sizes_of_queues(worker):
    """Returns the tensors with how many pushes are kept for each variable."""
    return [op.outputs[0] for op in worker.graph.get_operations() if op.type == 'QueueSizeV2'
            and op.inputs[0].op.get_attr('shared_name').endswith(b'/pushes')
            and not op.control_inputs]


def test_nobody_begins_a_turn_when_the_run_is_over(workers, monkeypatch):
    """The last step is complete when a worker has drawn a ticket, and not before."""
    program = load_program(FOLDER)
    draw = program.admissions.Admissions.draw

    def draw_and_end(self, global_step, after=()):
        ticket = draw(self, global_step, after)
        with tf.control_dependencies([ticket]):
            end = global_step.assign(3, read_value=False)
        with tf.control_dependencies([end]):
            return tf.identity(ticket)

    monkeypatch.setattr(program.admissions.Admissions, 'draw', draw_and_end)
    worker, = workers(program=program, train_steps=3, buffer=1)
    worker.begin()
    assert not worker.take()


def test_a_client_whose_worker_dies_holds_up_no_buffer(workers):
    """Its push was on the way; what came of that is thrown away with the worker's next one."""
    one, other = workers(2, examples=[0., 4., 8.], start=(8., 8.), train_steps=3, buffer=1)
    one.begin()
    other.begin()
    assert other.take()
    keep_half(other)
    other.new_session()
    other.begin()
    for worker in one, other, one:
        assert worker.take()
        assert worker.train()['dropped'] == 0
    assert not one.take() and not other.take() and one.step() == 3
    assert not any(one.session.run(sizes_of_queues(one)))
    both = one.session.run(one.variables)
    assert both[0] == both[1] != 8


def test_a_chief_that_begins_again_forgets_half_a_buffer(workers):
    one, other = workers(2, examples=[0., 4., 8.], train_steps=1, buffer=2)
    one.begin()
    other.begin()
    for worker in one, other:
        begin_turn(worker)
    report(one)  # in vain
    one.session.close()
    one.new_session()
    one.begin()
    assert report(other)['dropped'] == 1, 'it has begun with another chief'
    assert one.step() == 0
    for worker in one, other:
        begin_turn(worker)
        assert report(worker)['dropped'] == 0
    wait_until(lambda: one.step() == 1)
    assert not one.take() and not other.take() and one.counted == [[2, 2]]


def test_a_flag_of_rounds_does_not_go_with_a_buffer(programs):
    run = programs.run_sh(FOLDER, '--buffer=5', '--deadline_secs=3', WORKERS=1)
    run.fails('--deadline_secs: it is of rounds, and with --buffer=5 there are none')


# Flags and models that do not fit; and a run.

@pytest.mark.parametrize('changes, complaint', [
    (dict(clients=30), '--clients=30: 22 examples cannot be cut into 30 parts'),
    (dict(classes_per_client=8), '--clients=3: 22 examples cannot be cut into 24 parts'),
])
def test_too_many_parts(changes, complaint):
    with pytest.raises(SystemExit, match=complaint):
        clients_of(22, **changes)


def test_what_a_model_has_to_give():
    clients = load_program(FOLDER).clients
    hparams = types.SimpleNamespace(**FLAGS)
    model = types.SimpleNamespace(name='mine', train_batches=lambda: None)
    with pytest.raises(SystemExit, match='The model mine reads shards, and not the examples of '):
        clients.of_model(model, hparams)
    model.train_batches.arrays = lambda: [np.zeros([6, 2]), np.zeros(6)]
    assert clients.of_model(model, hparams).most_steps == 2
    with pytest.raises(SystemExit, match='--accumulate=2: '):
        clients.of_model(model, types.SimpleNamespace(**dict(FLAGS, accumulate=2)))
    hparams.classes_per_client = 1
    with pytest.raises(SystemExit, match=r'it is \[6\] float64'):
        clients.of_model(model, hparams)
    model.train_batches.arrays = lambda: [np.zeros([6, 2]), np.zeros(5)]
    with pytest.raises(SystemExit, match='not all of one length'):
        clients.of_model(model, hparams)


@pytest.mark.parametrize('flags, rounds, least', briefly(
    [([], 100, 0.9), (['--classes_per_client=2'], 300, 0.9)], lambda flags, *_: not flags))
def test_a_run(programs, flags, rounds, least):
    run = programs.run_sh(FOLDER, '--clients=100', '--fraction=0.1', f'--train_steps={rounds}',
                          *flags, WORKERS=2)  # some seconds, and it tests once a second
    run.ends_well()
    assert not run.left()
    assert float(run.wait_for(TEST)['accuracy']) >= least
    assert int(run.wait_for(TEST)['step']) == rounds
    steps = sum(int(match['local_steps']) for match in run.matches(DID))
    assert (steps == rounds * 10 * 15) == (not flags), 'with classes some have more, some fewer'
    assert run.matches(TESTED)


@pytest.mark.thorough
@pytest.mark.parametrize('job, index', [('worker', 1), ('worker', 0), ('ps', 1)])
def test_a_task_that_is_killed_and_started_again(programs, tmp_path, job, index):
    """The round comes to its end, and the run to its accuracy."""
    tasks = Tasks(programs, num_ps=2, num_workers=3, folder=FOLDER, flags=[
        '--train_steps=60', '--log_every_n_steps=100', '--straggler=0:0.005,1:0.005,2:0.005',
        f'--model_dir={tmp_path}', '--save_checkpoint_secs=1', '--patience_secs=60'])
    running = {(job, i): tasks.start(job, i) for job, number in (('ps', 2), ('worker', 3))
               for i in range(number)}
    running['worker', 1].wait_for(STEP)
    running[job, index].kill()
    running[job, index] = tasks.start(job, index)
    for task in running.values():
        task.ends_well()
    assert float(running['worker', 0].wait_for(TEST)['accuracy']) > 0.9


# A copy of the folder, in which a push of worker 1 is held at one of two moments: while a part of
# it is on the way, or when it was admitted, and has not heard of it. The chief waits for that.
HELD = """

import json
import os
import pathlib
import time

from tfdist.start.quiet import tf as _tf

_FOLDER = pathlib.Path(__file__).parent
_ME = json.loads(os.environ['TF_CONFIG'])['task']['index']


def _hold():
    if _ME:
        (_FOLDER / 'held').touch()
    while not (_FOLDER / ('go' if _ME else 'held')).exists():
        time.sleep(0.01)


def _held(value):
    with _tf.device(f'/job:worker/task:{_ME}'), _tf.control_dependencies([value]):
        waits = _tf.py_func(_hold, [], [])
    with _tf.device(value.device), _tf.control_dependencies([waits]):
        return _tf.identity(value)
"""
WHILE = {'pushes': """

_keep = Pushes.keep
Pushes.keep = lambda self, changes, ticket: _keep(
    self, [*changes[:-1], _held(changes[-1])], ticket)
""", 'admissions': """

_admit = Admissions.admit


def admit(self, *args):
    counts, staleness = _admit(self, *args)
    with _tf.control_dependencies([counts]):
        return _held(_tf.identity(counts)), staleness


Admissions.admit = admit
"""}
# Its model: each step takes the mean of the labels, times the learning rate, from both variables.
SUMS_LABELS = """

def loss_and_accuracy(images, labels):
    both = [tf.get_variable(f'x{i}', initializer=0.) for i in range(2)]
    return sum(both) * tf.reduce_mean(tf.cast(labels, tf.float32)), tf.constant(0.)
"""


def copy_of_folder(directory, name):
    """Returns a copy of the folder, beside the library, in which a client is held in a module."""
    shutil.copytree(str(ROOT / FOLDER), str(directory / FOLDER),
                    ignore=shutil.ignore_patterns('__pycache__'))
    (directory / 'tfdist').symlink_to(ROOT / 'tfdist')
    for file, text in ('model', SUMS_LABELS), (name, HELD + WHILE[name]):
        with (directory / FOLDER / f'{file}.py').open('a', encoding='utf-8') as copied:
            copied.write(text)
    return directory / FOLDER


@pytest.mark.parametrize('moment', briefly(['admissions', 'pushes'], ['admissions']))
def test_a_worker_that_is_killed_in_its_push(programs, tmp_path, moment):
    """It was admitted, and its push counts; or it was not, and its client comes once more."""
    folder = copy_of_folder(tmp_path, moment)
    tasks = Tasks(programs, num_ps=2, num_workers=2, folder=folder, flags=[
        '--train_steps=2', '--clients=6', '--fraction=0.5', '--epochs=1', '--batch_size=1000',
        '--learning_rate=1', f'--model_dir={tmp_path / "model"}', '--eval_every_secs=0',
        '--patience_secs=60'])
    servers = [tasks.start('ps', i) for i in range(2)]
    chief, victim = (tasks.start('worker', i) for i in range(2))
    wait_until((folder / 'held').exists, 'no push is held in', victim)
    victim.kill()
    (folder / 'go').touch()
    if moment == 'admissions':
        chief.ends_well()
        again = tasks.start('worker', 1)
    else:
        again = tasks.start('worker', 1)
        chief.ends_well()
    for task in [again, *servers]:
        task.ends_well()
    center = tf.train.load_checkpoint(str(tmp_path / 'model'))
    clients, expected = load_program(FOLDER).clients, 0
    labels = digits()[1]
    for step in range(2):
        mine = [labels[client::6] for client in clients.sample(1, step, 6, 0.5)]
        expected -= np.concatenate(mine).mean()
    for name in 'x0', 'x1':
        assert center.get_tensor(name) == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
def test_a_buffer_when_a_worker_stays_away(programs, tmp_path):
    """Its client holds up nobody; and the chief may be killed, too, and started again."""
    tasks = Tasks(programs, num_ps=2, num_workers=3, folder=FOLDER, flags=[
        '--buffer=4', '--train_steps=100', '--log_every_n_steps=100',
        '--straggler=0:0.005,1:0.005,2:0.005', f'--model_dir={tmp_path}',
        '--save_checkpoint_secs=1', '--patience_secs=60'])
    running = {(job, i): tasks.start(job, i) for job, number in (('ps', 2), ('worker', 3))
               for i in range(number)}
    for i in 1, 0:
        running['worker', i].wait_for(STEP)
        running['worker', i].kill()
    running['worker', 0] = tasks.start('worker', 0)
    running['worker', 0].ends_well()
    assert float(running['worker', 0].wait_for(TEST)['accuracy']) > 0.9
    running['worker', 1] = tasks.start('worker', 1)
    for task in running.values():
        task.ends_well()
