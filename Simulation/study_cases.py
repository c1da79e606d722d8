"""The cases of the study: workers, clusters, problems, and the choice of step sizes.

A case is a dict of strings by the names of flags: all of a simulation but its step size, its seed
and what is of one scheme only. Step sizes are chosen on one half of the test set, with one seed,
from all that was simulated; what is told is of the other half.
"""

import functools

from measuring.study import reached, TEACHER, worth
import schemes

DIGITS, MNIST = 'digits', 'mnist'
# The local steps, of 32 examples, of all workers together: 100 by each of 1,024, or of 64.
LOCAL_STEPS = {TEACHER: 102400, DIGITS: 10000, MNIST: 6400}
COLUMNS = ['model', 'workers', 'cluster', 'step', 'update', 'ps_bandwidth', 'links', 'torn',
           'teacher_shift', 'learning_rate', 'server_learning_rate', 'communication_window',
           'inner', 'outer', 'outer_learning_rate', 'outer_momentum', 'local_steps', 'tests',
           'validation', 'seed', 'algorithm', 'roles']
FIGURES = ['excess_loss', 'validation_excess_loss', 'accuracy', 'validation_accuracy', 'loss',
           'validation_loss', 'diverged', 'examples', 'seconds', 'target_seconds', 'staleness',
           'staleness_90', 'staleness_max', 'computes', 'waits', 'excess_curve', 'error_curve',
           'wall_seconds', 'megabytes']
NUMBERS = 8, 64, 256, 1024  # of workers
OF_IMAGES = 1, 8, 64  # of the digits and of MNIST
SOME = 64  # workers with which the study begins, and whose cluster is varied
CLUSTERS = 'ethernet', 'sites'
STEPS = {'none': '', 'stragglers': ','.join(['2ms'] * 9 + ['10ms']), 'tails': 'pareto:1ms:2'}
SEEDS = '1', '2', '3'
FACTOR, FARTHEST = 3, 8  # of the grid of step sizes; and its largest exponent
# Step sizes of another kind than that of SGD: those of Adagrad, of AdamW, and of Adam.
RATES = {'DOWNPOUR': ('server_learning_rate', 0.05), 'DiLoCo': ('learning_rate', 0.01),
         'Distributed-MNIST': ('learning_rate', 0.001)}
RATE = 'learning_rate', 0.1
# The exponents with which the search of SOME workers begins; 0 for other schemes.
STARTS = {'HogWild': -2, 'DC-ASGD': -2, 'SSP': -2, 'AGN': -2, 'DOWNPOUR': -2, 'DOWNPOUR-Easy': -4,
          'DynSGD': 2, 'AEASGD': 2, 'Synchronous-SGD': 2, 'Ring-AllReduce': 2, 'Local-SGD': 2,
          'SAGN': 2, 'Gossip': 2, 'Gossip (d-psgd)': 2}
# Folders that make the updates of another one, whose step size is tuned; theirs is that one.
ALIKE = {'Distributed-Setup': 'HogWild', 'Elastic-Workers': 'HogWild',
         'Parameter-Placement': 'HogWild', 'Work-Queue': 'HogWild',
         'Synchronous-SGD-different-learning-rates': 'Synchronous-SGD'}
# One worker that exchanges only once in ten local steps: nearly plain SGD, for the speed-up.
REFERENCE = 'Local-SGD'
# Workers without a common center, whose mean is tested, with the flags of each. They are in some
# stages only.
WITHOUT_CENTER = {'Gossip': {'roles': 'bipartite'}, 'Gossip (d-psgd)': {'algorithm': 'd-psgd'}}
THEIR_STAGES = 'some', 'cluster', 'scale', 'unequal'
# What makes a ceiling, with what is assumed in its place, and the schemes that are asked.
CEILINGS = {'update': ['0s', '5us', '500us'], 'ps_bandwidth': ['1Gbit', '100Gbit', 'inf'],
            'links': ['shared'], 'torn': ['0.01', '0.1', '0.5']}
AT_CEILINGS = 256  # workers
UNDER_CEILINGS = {'HogWild': ['update', 'ps_bandwidth', 'links', 'torn'],
                  'DynSGD': ['update', 'ps_bandwidth', 'links'],
                  'Synchronous-SGD': ['update', 'ps_bandwidth', 'links']}
SHIFT = '0.5'  # of the inputs of workers with unequal data
WINDOWS, WINDOWED = (1, 5, 20, 100, 500), ('Local-SGD', 'DiLoCo')
OF_WINDOWS = 8  # workers
# Of the momentum that asynchrony makes: HogWild, and one worker with that momentum (Mitliagkas et
# al. 2016). The times of the local steps vary as much as exponential ones.
OF_MOMENTUM = 8, 64  # workers
EXPONENTIAL, SHORT = 'lognormal:2ms:0.83', 25600


class MissingError(Exception):
    """What is asked for has not been simulated."""


class Absent:
    """Stands for what simulates a scheme where nothing is simulated."""

    def __init__(self, name):
        self.name = name

    def simulate(self, asked):
        raise MissingError(self.name, asked)


def names():
    """Returns the names of all schemes of the study, a list."""
    return [*schemes.folders(), *WITHOUT_CENTER]


def folder_of(name):
    """Returns the folder of a scheme, by its name."""
    return name.partition(' ')[0]


@functools.lru_cache(maxsize=None)
def _has_window(name):
    return 'communication_window=' in (schemes.ROOT / folder_of(name) / 'worker.py').read_text(
        encoding='utf-8')


def rate_of(name, exponent):
    """Returns the flag of a scheme's step size, and one of the grid of these, two strings."""
    flag, middle = RATES.get(name, RATE)
    return flag, f'{middle * FACTOR ** exponent:.3g}'


def case(workers, problem=TEACHER, **flags):
    """Returns a case: some workers on `ethernet`, but for what other flags say."""
    of_problem = {} if problem == DIGITS else {'model': problem}
    return dict(of_problem, **dict({
        'workers': str(workers), 'cluster': CLUSTERS[0], 'tests': '16', 'validation': 'true',
        'local_steps': str(LOCAL_STEPS[problem])}, **flags))


def disturbed(steps, workers=SOME):
    """Returns the case with other times of local steps, by a name of STEPS."""
    return case(workers, **({'step': STEPS[steps]} if STEPS[steps] else {}))


def elsewhere():
    """Returns the cases of SOME workers on other clusters, a list."""
    return [case(SOME, cluster=CLUSTERS[1]),
            *(disturbed(steps) for steps in STEPS if STEPS[steps])]


def of_window(window, shift=''):
    """Returns the case with a window, an int, on `sites`; and with a shift, a string, or ''."""
    return case(OF_WINDOWS, cluster=CLUSTERS[1], communication_window=str(window),
                **({'teacher_shift': shift} if shift else {}))


def of_momentum(workers, rate):
    """Returns what is compared for so many workers and HogWild's step size, a string.

    Returns:
      Dict by what it is of pairs: the name of a scheme, and a case with its step size.
    """
    short = {'local_steps': str(SHORT)}
    ball = {'communication_window': '1', 'inner': 'sgd', 'outer': 'heavy_ball',
            'outer_learning_rate': '1', 'outer_momentum': f'{1 - 1 / workers:.6g}',
            'learning_rate': f'{float(rate) / workers:.6g}'}
    return {'asynchronous': ('HogWild', case(workers, step=EXPONENTIAL, learning_rate=rate,
                                             **short)),
            'momentum': ('DiLoCo', dict(case(1), **short, **ball)),
            'plain': ('HogWild', dict(case(1), learning_rate=rate, **short))}


def settle(found, measure, start):
    """Measures until the best exponent has been measured, and so have both of its neighbours.

    Args:
      found: dict of what `worth` returns by exponent, of those that are there; it is added to.
      measure: function of an exponent that returns its worth.
      start: int, the first one if there is none.

    Returns:
      int, the best exponent; of equal ones the smallest.
    """
    if not found:
        found[start] = measure(start)
    while True:
        best = min(found, key=lambda exponent: (found[exponent], exponent))
        near = [exponent for exponent in (best - 1, best + 1)
                if abs(exponent) <= FARTHEST and exponent not in found]
        if not near:
            return best
        found[near[0]] = measure(near[0])


class Study:
    """The simulations of one scheme.

    Attributes:
      name: string.
    """

    def __init__(self, table, scheme):
        """Takes an `experiments.Table`, and what simulates a scheme, or an `Absent`."""
        self.name, self._table, self._scheme = scheme.name, table, scheme

    def asked(self, its_case, exponent=0, seed=SEEDS[0]):
        """Returns all flags of a simulation, a dict of strings; those of the case come first."""
        flag, rate = rate_of(self.name, exponent)
        windows = {'communication_window': '10'} if _has_window(self.name) else {}
        return {**windows, **WITHOUT_CENTER.get(self.name, {}), flag: rate, **its_case,
                'seed': seed}

    def row(self, its_case, exponent=0, seed=SEEDS[0]):
        """Returns the row of a simulation; raises MissingError if it is missing."""
        return self._table.simulate(self._scheme, self.asked(its_case, exponent, seed))

    def there(self, its_case):
        """Returns the rows that are there of a case with the first seed, a dict by exponent."""
        rows = {exponent: self._table.row(self.name, self.asked(its_case, exponent))
                for exponent in range(-FARTHEST, FARTHEST + 1)}
        return {exponent: row for exponent, row in rows.items() if row}

    def seeds(self, its_case, exponent=0):
        """Returns the rows that are there of a case, a list by seed."""
        rows = [self._table.row(self.name, self.asked(its_case, exponent, seed)) for seed in SEEDS]
        return [row for row in rows if row]

    def best(self, its_case, start=None):
        """Returns the exponent of the best step size of a case; its neighbours are there, too.

        Args:
          its_case: dict.
          start: int, with which to begin; by default that of STARTS.
        """
        found = {exponent: worth(row) for exponent, row in self.there(its_case).items()}
        return settle(found, lambda exponent: worth(self.row(its_case, exponent)),
                      STARTS.get(self.name, 0) if start is None else start)

    def soonest(self, its_case):
        """Returns the exponent that is `reached` first, of those there; or the best one."""
        times = {exponent: reached(row, half=1)[1] for exponent, row in
                 self.there(its_case).items() if reached(row, half=1)}
        return min(times, key=times.get) if times else self.chosen(its_case)

    def chosen(self, its_case):
        """Returns the exponent of the best step size of those that are there of a case."""
        found = {exponent: worth(row) for exponent, row in self.there(its_case).items()}
        if not found:
            raise MissingError(self.name, its_case)
        return min(found, key=lambda exponent: (found[exponent], exponent))

    def other(self, name):
        """Returns the `Study` of another scheme, as far as that is there."""
        return Study(self._table, Absent(name))

    def tuned(self, workers, problem=TEACHER):
        """Returns the case of some workers, after the search for its step sizes."""
        numbers = NUMBERS if problem == TEACHER else OF_IMAGES
        where, begin = numbers.index(workers), numbers.index(SOME)
        start = None
        if where != begin:  # it begins where its neighbour ended
            neighbour = numbers[where + (1 if where < begin else -1)]
            start = self.best(self.tuned(neighbour, problem))
        self.best(case(workers, problem), start)
        return case(workers, problem)

    def moved(self, its_case, workers):
        """Returns a case after simulating it with the step sizes of as many workers elsewhere."""
        plain = self.tuned(workers)
        for exponent in {self.best(plain), self.soonest(plain)}:
            self.row(its_case, exponent)
        return its_case

    def of_its_window(self, window, shift):
        """Returns the case of a window after the search for its step size."""
        at = WINDOWS.index(window)
        start = (self.best(self.of_its_window(WINDOWS[at - 1], shift)) if at else
                 self.best(self.tuned(OF_WINDOWS)))
        self.best(of_window(window, shift), start)
        return of_window(window, shift)

    def alone(self):
        """Returns the case of one worker, of REFERENCE, after the search for its step size."""
        self.best(case(1), 0)
        return case(1)


def seeds_of(one, its_case, tuned=True, timed=True):
    """Asks for all SEEDS of what is told of a case.

    Args:
      one: `Study`.
      its_case: dict.
      tuned: bool, whether its step size was searched for in this very case.
      timed: bool, whether the time to a target is told, too.
    """
    best = one.best(its_case) if tuned else one.chosen(its_case)
    for exponent in sorted({best, one.soonest(its_case)} if timed else {best}):
        for seed in SEEDS:
            one.row(its_case, exponent, seed)


def some(one):
    """Asks for SOME workers, and of REFERENCE for one."""
    if one.name == REFERENCE:
        one.alone()
    one.tuned(SOME)


def cluster(one):
    """Asks for SOME workers at sites, and with other times of local steps."""
    for its_case in elsewhere():
        one.moved(its_case, SOME)


def digits(one):
    """Asks for the digits."""
    for workers in OF_IMAGES:
        one.tuned(workers, DIGITS)


def mnist(one):
    """Asks for MNIST."""
    for workers in OF_IMAGES:
        one.tuned(workers, MNIST)


def alike(one):
    """Asks for the digits of a scheme of ALIKE, with the step sizes of the other one."""
    other = one.other(ALIKE[one.name])
    for workers in OF_IMAGES:
        one.row(case(workers, DIGITS), other.best(case(workers, DIGITS)))


def scale(one):
    """Asks for all NUMBERS of workers."""
    for workers in NUMBERS:
        one.tuned(workers)


def seeds(one):
    """Asks for all SEEDS of SOME workers, and of the REFERENCE."""
    if one.name == REFERENCE:
        seeds_of(one, one.alone())
    seeds_of(one, one.tuned(SOME))


def windows(one):
    """Asks for all WINDOWS, with equal and with unequal data."""
    if one.name in WINDOWED:
        for shift in '', SHIFT:
            for window in WINDOWS:
                one.of_its_window(window, shift)


def ceilings(one):
    """Asks for what is assumed in place of what makes a ceiling."""
    for flag in UNDER_CEILINGS.get(one.name, []):
        for value in CEILINGS[flag]:
            one.row(case(AT_CEILINGS, **{flag: value}), one.best(one.tuned(AT_CEILINGS)))


def momentum(one):
    """Asks for what is compared to see the momentum that asynchrony makes."""
    hogwild = one if one.name == 'HogWild' else one.other('HogWild')
    if one.name in ('HogWild', 'DiLoCo'):
        for workers in OF_MOMENTUM:
            rate = rate_of('HogWild', hogwild.best(case(workers)))[1]
            for name, its_case in of_momentum(workers, rate).values():
                for seed in SEEDS if name == one.name else ():
                    one.row(its_case, seed=seed)


def unequal(one):
    """Asks for unequal data."""
    one.moved(case(SOME, teacher_shift=SHIFT), SOME)


def far(one):
    """Asks for sites with all NUMBERS of workers."""
    for workers in NUMBERS:
        one.moved(case(workers, cluster=CLUSTERS[1]), workers)


def again(one):
    """Asks for all SEEDS of all that is told."""
    for workers in NUMBERS:
        seeds_of(one, one.tuned(workers))
    for its_case in [*elsewhere(), case(SOME, teacher_shift=SHIFT)]:
        seeds_of(one, one.moved(its_case, SOME), tuned=False)
    for workers in OF_IMAGES:
        seeds_of(one, one.tuned(workers, DIGITS), timed=False)
        seeds_of(one, one.tuned(workers, MNIST))
    if one.name in WINDOWED:
        for shift in '', SHIFT:
            for window in WINDOWS:
                seeds_of(one, one.of_its_window(window, shift))


# What is asked of a scheme, what matters most first.
STAGES = {stage.__name__: stage for stage in (
    some, cluster, digits, alike, scale, seeds, windows, ceilings, momentum, unequal, far, mnist,
    again)}


def has_stage(name, stage):
    """Returns whether a stage, by its name, is about a scheme, by its name."""
    if name in WITHOUT_CENTER:
        return stage in THEIR_STAGES
    return (name in ALIKE) == (stage == 'alike')


def left(table, names, stage):
    """Returns those of some schemes of which a stage, by its name, is not in the table yet."""
    def is_left(name):
        try:
            STAGES[stage](Study(table, Absent(name)))
        except MissingError:
            return True
        return False

    return [name for name in names if has_stage(name, stage) and is_left(name)]
