"""The asynchronous schemes: the worked numbers of each come out of the ops worker.py trains with.

The toy problem: one parameter that starts at 8, gradient x - m, learning rate 1/2. Two workers in
this process are interleaved by hand.
"""

import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cases import briefly

# The hyperparameters of each scheme, with a window of two steps where it has one.
HPARAMS = {
    'HogWild': dict(use_locking=False),
    'DOWNPOUR': dict(n_fetch=2, n_push=2, server_learning_rate=1., initial_accumulator_value=1e-10),
    'DOWNPOUR-Easy': dict(communication_window=2),
    'AGN': dict(communication_window=2),
    'DynSGD': dict(communication_window=2, constant=False),
    'AEASGD': dict(communication_window=2, moving_rate=0.25),
    'AEAMSGD': dict(communication_window=2, moving_rate=0.25, momentum=0.5),
    'DC-ASGD': dict(variance='constant', lambda_0=1 / 64, mean_square_decay=0.95,
                    first_square=False),
    'SSP': dict(staleness_bound=10**9, dead_after_secs=30.),
}
BRIEF = 'HogWild', 'DOWNPOUR', 'AEAMSGD'  # one of each kind
WINDOWED = [folder for folder in HPARAMS if 'communication_window' in HPARAMS[folder]]


@pytest.fixture
def workers(toy):
    """Makes workers of a scheme; hyperparameters not given are those of the table above."""
    def make(folder, ms=(0, 0), **changes):
        return toy(folder, ms, **dict(HPARAMS[folder], **changes))
    return make


def in_turn(made):
    """All pull; then they push, one after the other. Returns the center after each push."""
    pulled = [worker.pull() for worker in made]
    return [(worker.push(values), worker.center())[1] for worker, values in zip(made, pulled)]


# Of every scheme.

@pytest.mark.parametrize('folder, window, centers', [
    ('HogWild', 1, [4, 0]),
    ('DOWNPOUR', 1, [7, 6.292893]),
    ('DOWNPOUR', 2, [7, 6.292893]),
    ('DOWNPOUR-Easy', 1, [4, 0]),
    ('DOWNPOUR-Easy', 2, [2, -4]),
    ('AGN', 1, [4, 0]),
    ('AGN', 2, [5, 2]),
    ('DynSGD', 1, [4, 2]),
    ('DynSGD', 2, [2, -1]),
    ('DC-ASGD', 1, [4, 2]),
    ('SSP', 1, [4, 0]),
])
def test_two_workers_that_pull_at_the_same_time(workers, folder, window, centers):
    changes = {key: window for key in ('communication_window', 'n_fetch', 'n_push')
               if key in HPARAMS[folder]}
    assert in_turn(workers(folder, **changes)) == pytest.approx(centers, abs=2e-6)


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_staleness_counts_the_updates_between_pull_and_push(workers, folder):
    made = workers(folder, [0, 0, 0])
    pulled = [worker.pull() for worker in made]
    results = [worker.push(values) for worker, values in zip(made, pulled)]
    assert [np.ravel(result['staleness']).tolist() for result in results] == [[0], [1], [2]]
    assert [result['global_step'] for result in results] == [1, 2, 3]
    assert np.ravel(made[2].step()['staleness']).tolist() == [0]


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_a_pull_after_a_push_reads_what_was_pushed(workers, folder):
    """Two in one run would not (a read created before a write), in any of 60 steps."""
    worker, = workers(folder, [3], learning_rate=1 / 64)
    for _ in range(60):
        worker.step()
        step, value = worker.pull()
        assert (step, value) == tuple(worker.session.run([worker.global_step, worker.variables[0]]))


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_variables_of_any_shape_on_several_ps(workers, folder):
    """Each entry goes the way that a single scalar goes."""
    shapes = workers(folder, start=[8., [[8., 8., 8.], [8., 8., 8.]], [8.]], num_ps=2)
    scalar = workers(folder)
    for made in shapes, scalar:
        for _ in range(3):
            in_turn(made)
    values = shapes[0].session.run(shapes[0].variables)
    expected = scalar[0].center()
    assert expected != 8
    for value in values:
        assert np.ravel(value) == pytest.approx(expected, rel=1e-5)
    assert len({variable.device for variable in shapes[0].variables}) == 2


@pytest.mark.parametrize('folder', WINDOWED + ['DOWNPOUR'])
def test_a_window_is_as_many_fresh_gradients(workers, folder):
    """Frozen gradients would be 8 and 8; a lost last step would leave serial SGD behind."""
    worker, = workers(folder, [0], momentum=0.) if folder == 'AEAMSGD' else workers(folder, [0])
    assert worker.scheme.local_steps(worker.hparams) == 2
    assert worker.window() == [8, 4]


@pytest.mark.parametrize('folder', briefly(HPARAMS, BRIEF))
def test_a_run_moves_the_parameters_once_in_each_direction(workers, folder):
    """However long the window. Within 1 % and the few bytes of counters."""
    size = 250000
    worker, = workers(folder, [0], start=[[1.] * size, [[2.] * 1000]], num_ps=2)
    worker.step()
    parameters = 4 * (size + 1000)
    for moved in worker.traffic():
        assert parameters <= moved <= 1.01 * parameters


# DOWNPOUR.

def adagrad_sum(worker):
    """Returns G, Adagrad's sum of squares on the ps."""
    with worker.graph.as_default():
        slot, = [v for v in tf.global_variables() if 'Adagrad' in v.name]
    return worker.session.run(slot)


@pytest.mark.parametrize('scale', [1, 100])
def test_downpour_first_push_moves_by_the_rate_whatever_the_gradient(workers, scale):
    worker, = workers('DOWNPOUR', [0], loss_scale=scale, learning_rate=0.5 / scale)
    worker.step()
    assert worker.center() == pytest.approx(7, abs=1e-5)
    assert adagrad_sum(worker) == pytest.approx((12 * scale)**2)


def test_downpour_with_the_accumulator_of_tensorflow(workers):
    worker, = workers('DOWNPOUR', [0], initial_accumulator_value=0.1)
    worker.step()
    assert worker.center() == pytest.approx(7.000347, abs=1e-6)


def test_downpour_second_window(workers):
    worker, = workers('DOWNPOUR', [0])
    worker.step()
    assert worker.window() == [7, 3.5]
    assert adagrad_sum(worker) == pytest.approx(254.25)
    assert worker.center() == pytest.approx(6.341495, abs=1e-5)


def test_downpour_workers_share_the_sum_of_squares(workers):
    first, second = workers('DOWNPOUR')
    assert in_turn([first, second])[1] == pytest.approx(6.292893, abs=1e-5)
    assert adagrad_sum(first) == pytest.approx(288)


@pytest.mark.parametrize('n_fetch, n_push, gradients, squares, center', [
    (1, 2, [8, 8], 16**2, 7),                                # a = 16
    (2, 1, [8, 4], 8**2 + 4**2, 7 - 4 / 80**0.5),            # pushes 8, then 4
    (2, 2, [8, 4], 12**2, 7),                                # a = 12
])
def test_downpour_fetches_and_pushes_at_their_own_pace(workers, n_fetch, n_push, gradients, squares,
                                                       center):
    worker, = workers('DOWNPOUR', [0], n_fetch=n_fetch, n_push=n_push)
    assert worker.window() == gradients
    assert adagrad_sum(worker) == pytest.approx(squares)
    assert worker.center() == pytest.approx(center, abs=1e-5)
    assert worker.session.run(worker.global_step) == 2 // n_push


def test_downpour_fetches_in_a_run_see_the_pushes_before_them(workers):
    """n_fetch = 2, n_push = 3: the fetch at t = 4 comes after the push at t = 2."""
    worker, = workers('DOWNPOUR', [0], n_fetch=2, n_push=3)
    gradients = worker.window()
    assert gradients[:4] == [8, 4, 8, 4]  # fetched at t = 0 and 2, from the center at 8
    assert gradients[4:] == pytest.approx([7, 3.5], abs=1e-5)


@pytest.mark.parametrize('n_fetch, n_push, pushes', [(4, 1, 4), (4, 2, 2), (2, 3, 2), (1, 4, 1)])
def test_downpour_own_pushes_make_nothing_stale(workers, n_fetch, n_push, pushes):
    worker, = workers('DOWNPOUR', [0], n_fetch=n_fetch, n_push=n_push)
    for run in 1, 2:
        result = worker.step()
        assert result['staleness'].tolist() == [0] * pushes
        assert result['global_step'] == run * pushes


@pytest.mark.parametrize('n_push, pushes', briefly([(1, 4), (2, 2), (4, 1)], [2]))
def test_downpour_pushes_of_others_make_all_stale_that_was_pulled_before(workers, n_push, pushes):
    worker, other = workers('DOWNPOUR', n_fetch=4, n_push=n_push)
    pulled = worker.pull()
    other.step()
    assert worker.push(pulled)['staleness'].tolist() == [pushes] * pushes


@pytest.mark.parametrize('n_fetch, n_push, down, up', briefly(
    [(1, 1, 1, 1), (2, 4, 2, 1), (6, 2, 1, 3)], [2]))
def test_downpour_traffic(workers, n_fetch, n_push, down, up):
    size = 250000
    worker, = workers('DOWNPOUR', [0], start=[[1.] * size], n_fetch=n_fetch, n_push=n_push)
    worker.step()
    received, sent = worker.traffic()
    assert received == pytest.approx(4 * size * down, rel=0.01)
    assert sent == pytest.approx(4 * size * up, rel=0.01)


# DOWNPOUR-Easy.

@pytest.mark.parametrize('window, centers', [(1, [4, 2, 1]), (2, [2, 0.5, 0.125]), (3, [1, 0.125])])
def test_downpour_easy_alone_is_serial_sgd(workers, window, centers):
    worker, = workers('DOWNPOUR-Easy', [0], communication_window=window)
    assert [(worker.step(), worker.center())[1] for _ in centers] == centers


def test_downpour_easy_loses_no_delta_under_any_interleaving(workers):
    """Threads: the center has moved by the sum of all that was sent."""
    made = workers('DOWNPOUR-Easy', [0, 4], learning_rate=1 / 8)
    sent = [[], []]

    def run(i):
        for _ in range(50):
            pulled = made[i].pull()
            x = pulled[1]
            for _ in range(2):
                x = x - (x - (0, 4)[i]) / 8
            made[i].push(pulled)
            sent[i].append(float(x - pulled[1]))

    in_threads(run)
    assert made[0].center() - 8 == pytest.approx(sum(sent[0]) + sum(sent[1]), abs=1e-3)


# AGN.

@pytest.mark.parametrize('window, centers', [(1, [4, 2, 1]), (2, [5, 3.125, 1.953125])])
def test_agn_alone(workers, window, centers):
    worker, = workers('AGN', [0], communication_window=window)
    assert [(worker.step(), worker.center())[1] for _ in centers] == centers


def test_agn_moves_by_the_step_of_downpour_easy_over_the_window(workers):
    for window in 1, 2, 4:
        moved = []
        for folder in 'AGN', 'DOWNPOUR-Easy':
            worker, = workers(folder, [0], communication_window=window)
            worker.step()
            moved.append(8 - worker.center())
        assert moved[0] * window == moved[1]


# DynSGD.

def test_dynsgd_alone_is_serial_sgd(workers):
    worker, = workers('DynSGD', [0], communication_window=1)
    assert [(worker.step(), worker.center())[1] for _ in range(3)] == [4, 2, 1]


def test_dynsgd_third_commit_counts_a_third(workers):
    assert in_turn(workers('DynSGD', [0, 0, 0])) == [2, -1, -3]


@pytest.mark.parametrize('window, centers', [(1, [6, 4]), (2, [5, 2])])
def test_dynsgd_constant_divides_by_the_workers(workers, window, centers):
    made = workers('DynSGD', constant=True, communication_window=window)
    assert in_turn(made) == centers


def test_dynsgd_commits_are_atomic(workers):
    """Threads: each commit has a version of its own, and the center is the sum of what was sent."""
    made = workers('DynSGD', [0, 4, 0, 4], learning_rate=1 / 8)
    log = [[] for _ in made]

    def run(i):
        for _ in range(40):
            (version, x0), m = made[i].pull(), (0, 4, 0, 4)[i]
            x = x0
            for _ in range(2):
                x = x - (x - m) / 8
            result = made[i].push([version, x0])
            log[i].append((int(result['global_step']), int(version), int(result['staleness']),
                           float(x - x0)))

    in_threads(run, 4)
    commits = sorted(itertools.chain(*log))
    assert [step for step, _, _, _ in commits] == list(range(1, 161))
    assert all(staleness == step - 1 - version for step, version, staleness, _ in commits)
    moved = sum(delta / (staleness + 1) for _, _, staleness, delta in commits)
    assert made[0].center() == pytest.approx(8 + moved, abs=1e-3)
    assert min(staleness for _, _, staleness, _ in commits) == 0


# AEASGD and AEAMSGD.

def apart(made, x=8., center=0.):
    """Puts the replicas at x, and the center elsewhere."""
    for worker in made:
        worker.set(worker.scheme.replica[0], x)
    made[0].set(made[0].variables[0], center)


def replica(worker):
    return worker.session.run(worker.scheme.replica[0])


def test_aeasgd_exchange_keeps_the_sum_and_the_order_of_the_paper(workers):
    worker, = workers('AEASGD', [0], communication_window=1)
    apart([worker])
    worker.step()
    # E = 2: x goes from 8 to 6 and the center from 0 to 2; then the gradient at 8, not at 6.
    assert (replica(worker), worker.center()) == (2, 2)


def test_aeasgd_two_windows(workers):
    worker, = workers('AEASGD', [0])
    apart([worker])
    assert worker.window() == [8, 2]
    assert (replica(worker), worker.center()) == (1, 2)
    assert worker.window() == [1, 0.75]
    assert (replica(worker), worker.center()) == (0.375, 1.75)


def test_aeamsgd_two_windows(workers):
    worker, = workers('AEAMSGD', [0])
    apart([worker])
    assert worker.window() == [8, 0]  # the look-ahead from x = 2 with u = -4
    assert (replica(worker), worker.center()) == (0, 2)
    # E = -1/2, look-ahead 0 + (-2)/2 = -1, u = -1/2, x = 1/2 - 1/2 = 0; then look-ahead -1/4.
    assert worker.window() == [-1, -0.25]
    assert worker.center() == 1.5


def test_aeamsgd_from_the_center(workers):
    worker, = workers('AEAMSGD', [0])
    assert worker.window() == [8, 2]
    assert replica(worker) == 1
    # At t = 2: x = 1.5 with u = -1.25, so that the next look-ahead is at 0.875.
    assert worker.window() == [-0.5, 0.875]
    assert worker.center() == 6.25


def test_aeamsgd_without_momentum_is_aeasgd(workers):
    with_u, = workers('AEAMSGD', [0], momentum=0.)
    without, = workers('AEASGD', [0])
    for worker in with_u, without:
        apart([worker])
    for _ in range(3):
        assert with_u.window() == without.window()
        assert with_u.center() == without.center()


@pytest.mark.parametrize('folder, window, centers', [
    ('AEASGD', 1, [7, 6.25]), ('AEASGD', 2, [6.5, 5.375]),
    ('AEAMSGD', 1, [7, 6.25]), ('AEAMSGD', 2, [6.25, 4.9375])])
def test_elastic_workers_exchange_after_a_window(workers, folder, window, centers):
    made = workers(folder, communication_window=window)
    for worker in made:
        worker.step()  # their first exchange finds the replica at the center
    assert made[0].center() == 8
    assert [(worker.step(), worker.center())[1] for worker in made] == centers


def test_aeasgd_one_after_the_other(workers):
    first, second = workers('AEASGD', communication_window=1)
    apart([first])
    second.set(second.scheme.replica[0], 4.)
    assert [(worker.step(), worker.center())[1] for worker in (first, second)] == [2, 2.5]


@pytest.mark.parametrize('moving_rate, bounded', [(0.84, True), (0.88, False)])
def test_aeasgd_is_stable_up_to_its_bound(workers, moving_rate, bounded):
    """For learning rate 1/2 the bound is (4 - 1) / (4 - 1/2) = 0.857."""
    worker, = workers('AEASGD', [0], communication_window=1, moving_rate=moving_rate)
    apart([worker])
    for _ in range(300):
        worker.step()
    assert (abs(worker.center()) < 8) == bounded


def test_aeasgd_never_puts_the_center_in_place_of_the_replica(workers):
    """Learning rate 0, so that only the exchange moves anything."""
    for moving_rate in 0.1, 0.25, 0.5, 0.75:
        worker, = workers('AEASGD', [0], moving_rate=moving_rate, learning_rate=0.)
        apart([worker])
        worker.step()
        own, center = replica(worker), worker.center()
        assert own + center == pytest.approx(8)
        assert own - center == pytest.approx(8 * (1 - 2 * moving_rate), abs=1e-5)
        assert (own == pytest.approx(center)) == (moving_rate == 0.5)


@pytest.mark.parametrize('folder', ['AEASGD', 'AEAMSGD'])
def test_elastic_default_moving_rate(workers, folder):
    """0.9 over the number of workers, as in the paper."""
    worker, _ = workers(folder, moving_rate=None, learning_rate=0.)
    apart([worker])
    worker.step()
    assert worker.center() == pytest.approx(0.45 * 8)


# DC-ASGD.

@pytest.mark.parametrize('variance', ['constant', 'adaptive'])
@pytest.mark.parametrize('lambda_0', [0., 0.5, 100.])
def test_dc_asgd_without_delay_is_asgd(workers, variance, lambda_0):
    worker, = workers('DC-ASGD', [0], variance=variance, lambda_0=lambda_0)
    assert [(worker.step(), worker.center())[1] for _ in range(3)] == [4, 2, 1]


def test_dc_asgd_without_lambda_is_asgd(workers):
    assert in_turn(workers('DC-ASGD', lambda_0=0.)) == [4, 0]


@pytest.mark.parametrize('changes, center', [
    (dict(lambda_0=1 / 4), 0.5),                                            # asynchronous SGD: 0
    (dict(variance='adaptive', lambda_0=1 / 2, mean_square_decay=0.), 0.5),
    (dict(variance='adaptive', lambda_0=2., mean_square_decay=0.95), 8.944272),   # too much
    (dict(variance='adaptive', lambda_0=2., mean_square_decay=0.95, first_square=True), 2.),
])
def test_dc_asgd_corrects_a_late_gradient(workers, changes, center):
    """Pulled 2, gradient 2; the center is at 1 by now."""
    late, other = workers('DC-ASGD', start=[2.], **changes)
    pulled = late.pull()
    other.step()
    assert late.center() == 1
    late.push(pulled)
    assert late.center() == pytest.approx(center, abs=1e-5)


def test_dc_asgd_mean_square_is_each_worker_s_own_and_runs(workers):
    """Gradients 8 and then 4 of one worker; the other's do not count."""
    worker, other = workers('DC-ASGD', variance='adaptive', lambda_0=1.)
    worker.step()
    other.step()
    worker.set(worker.variables[0], 4.)
    worker.step()
    with worker.graph.as_default():
        own, = tf.local_variables()
    assert worker.session.run(own) == pytest.approx(0.95 * 0.05 * 64 + 0.05 * 16)
    assert '/job:ps/' in own.device + '/'


def test_dc_asgd_default_strengths(workers):
    """0.04 with the constant variance: pulled 2, gradient 2, center 1: 1 - (2 - 0.16) / 2."""
    late, other = workers('DC-ASGD', start=[2.], lambda_0=None)
    pulled = late.pull()
    other.step()
    late.push(pulled)
    assert late.center() == pytest.approx(0.08, abs=1e-6)


# SSP. An iteration adds 1 to a center that starts at 0: a gradient of -1, learning rate 1.

def iterate(worker):
    """Runs an iteration that may begin; returns the center as it read it."""
    assert worker.scheme.gate.may_run()
    value = worker.pull()[1]
    worker.push([0, -1.])
    return value


@pytest.fixture
def gated(workers):
    """Makes two SSP workers that have joined."""
    def make(staleness_bound, dead_after_secs=30., ms=(0, 0)):
        return workers('SSP', ms, start=[0.], learning_rate=1., staleness_bound=staleness_bound,
                       dead_after_secs=dead_after_secs)
    return make


def test_ssp_bound_0_is_lock_step(gated):
    a, b = gated(0)
    for i in range(3):
        assert iterate(a) == 2 * i
        assert not a.scheme.gate.may_run()
        iterate(b)
        assert b.scheme.gate.may_run()
        assert a.scheme.gate.may_run()


def test_ssp_bound_1(gated):
    a, b = gated(1)
    iterate(a)
    iterate(a)
    assert not a.scheme.gate.may_run()
    iterate(b)
    assert iterate(a) == 3


def test_ssp_huge_bound_never_waits(gated):
    a, _ = gated(10**9)
    for _ in range(20):
        iterate(a)


def test_ssp_waits_until_the_slowest_ticks(gated):
    a, b = gated(0)
    iterate(a)
    waiter = threading.Thread(target=a.scheme.wait, daemon=True)
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()
    iterate(b)
    waiter.join(30)
    assert not waiter.is_alive()


@pytest.mark.parametrize('bound', [0, 2])
def test_ssp_guarantee_under_free_running(gated, bound):
    """At each start: no more than the bound ahead, and all that must be in the read is in it."""
    made = gated(bound)
    log = [[], []]

    def run(i):
        wait_for_all.wait(30)
        for k in range(60):
            made[i].scheme.wait()
            log[i].append((k, made[i].pull()[1], clock(made[i], 1 - i)))
            made[i].push([0, -1.])
            if i == 1 and k % 10 == 0:
                time.sleep(0.01)
        made[i].scheme.gate.end(made[i].session)

    wait_for_all = threading.Barrier(2)
    in_threads(run)
    for k, read, other in log[0] + log[1]:
        assert other >= k - bound
        assert read >= k + (k - bound)  # its own, and the other's up to k - bound - 1
    assert made[0].center() == 120


def clock(worker, index):
    """Returns the clock of a worker, by its index."""
    clocks = worker.graph.get_tensor_by_name('clocks/Read/ReadVariableOp:0')
    return worker.session.run(clocks)[index]


def test_ssp_done_holds_nobody(gated):
    a, b = gated(0)
    iterate(a)
    assert not a.scheme.gate.may_run()
    b.scheme.gate.end(b.session)
    assert a.scheme.gate.may_run()


def test_ssp_dead_holds_nobody_for_ever(gated):
    a, b = gated(0, dead_after_secs=0.5)
    iterate(a)
    began = time.time()
    waiter = threading.Thread(target=a.scheme.wait, daemon=True)
    waiter.start()
    waiter.join(30)
    assert not waiter.is_alive()
    assert time.time() - began >= 0.5
    for _ in range(5):
        iterate(a)
    assert b.scheme.gate.may_run()  # it comes back, at the slowest clock
    assert clock(b, 1) == clock(a, 0) == 6
    iterate(a)
    assert not a.scheme.gate.may_run()


class Clock:
    """Stands for the module `time` in a program: time passes when it sleeps, half a second each.

    Attributes:
      now: float, seconds.
      events: dict of functions to call by when they are due.
    """

    def __init__(self):
        self.now, self.events = 0., {}

    def sleep(self, _):
        self.now += 0.5
        self.events.pop(self.now, lambda: None)()

    def monotonic(self):
        return self.now

    time = monotonic


@pytest.fixture
def clocked(workers, monkeypatch):
    """Makes SSP workers, the first of which has a `Clock`; returns that, too."""
    def make(count, staleness_bound):
        made = workers('SSP', [0] * count, start=[0.], learning_rate=1., dead_after_secs=30.,
                       staleness_bound=staleness_bound)
        watch = Clock()
        monkeypatch.setattr(made[0].program, 'time', watch)
        return made, watch
    return make


def test_ssp_strikes_all_dead_at_once(clocked):
    (worker, *_), watch = clocked(4, staleness_bound=0)
    iterate(worker)
    worker.scheme.wait()
    assert 30 < watch.now <= 31
    assert [clock(worker, i) for i in range(4)] == [1] + [worker.scheme.gate.ABSENT] * 3


def test_ssp_waits_once_for_the_dead_of_different_clocks(clocked):
    """The second of them holds nobody yet when the first one is struck."""
    (worker, dead, late), watch = clocked(3, staleness_bound=2)
    iterate(late)
    for _ in range(3):
        iterate(worker)
    worker.scheme.wait()
    assert 30 < watch.now <= 31
    assert [clock(worker, i) for i in range(3)] == [3, worker.scheme.gate.ABSENT, 1]
    iterate(worker)
    worker.scheme.wait()
    assert watch.now <= 32
    assert clock(worker, 2) == worker.scheme.gate.ABSENT


def test_ssp_strikes_nobody_who_is_slow(clocked):
    (worker, slow, dead), watch = clocked(3, staleness_bound=1)
    watch.events[20] = watch.events[45] = lambda: iterate(slow)
    iterate(worker)
    iterate(worker)
    worker.scheme.wait()
    assert 30 < watch.now <= 31
    assert [clock(worker, i) for i in (1, 2)] == [1, worker.scheme.gate.ABSENT]
    iterate(worker)
    worker.scheme.wait()
    assert watch.now == 45 and clock(worker, 1) == 2


def test_ssp_counts_only_time_in_which_it_waits_and_looks(clocked):
    """Neither in which it computes, nor in which this process is stopped."""
    (worker, slow), watch = clocked(2, staleness_bound=0)
    iterate(worker)
    watch.events = {20: lambda: iterate(slow)}
    worker.scheme.wait()
    iterate(worker)
    watch.now += 100
    watch.events = {125: lambda: setattr(watch, 'now', 325), 345: lambda: iterate(slow)}
    worker.scheme.wait()
    assert watch.now == 345 and clock(worker, 1) == 2


def test_ssp_late_worker_begins_at_the_slowest_clock(gated):
    a, b = gated(0)
    b.scheme.gate.end(b.session)
    for _ in range(4):
        iterate(a)
    b.scheme.gate.after_create_session(b.session, None)
    assert clock(a, 1) == 4


def test_ssp_clocks_of_workers_that_a_resumed_run_has_no_more_hold_nobody(gated):
    a, b = gated(0)
    with a.graph.as_default():
        clocks, = [v for v in tf.global_variables() if v.op.name == 'clocks']
        a.session.run(clocks[5].assign(0))  # as a run of six workers may have left it
    for _ in range(3):
        iterate(a)
        iterate(b)


def in_threads(run, count=2):
    """Runs run(0), run(1), ... at once, and passes on what they raise."""
    errors = []

    def guarded(i):
        try:
            run(i)
        except BaseException as error:  # pytest sees only the main thread's
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
