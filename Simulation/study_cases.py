"""The cases of the study: workers, clusters, and the search for the best step size of each."""

import functools

import schemes

# Equal examples: the local steps, of 32 examples, of all workers together.
LENGTH = {'local_steps': '10000', 'tests': '100'}
COLUMNS = ['workers', 'cluster', 'step', 'learning_rate', 'server_learning_rate',
           'communication_window', 'local_steps', 'tests']
# The numbers of workers for which all schemes run with the fixed step size.
FIXED = 1, 8, 32, 128, 1024
# First these, then those between: a search begins where that of N / 4, or of N / 2, ended.
COARSE, BETWEEN = (1, 4, 16, 64, 256, 1024), (2, 8, 32, 128, 512)
NUMBERS = sorted(COARSE + BETWEEN)
SOME = 64  # workers, with stragglers and with heavy tails
CLUSTERS = 'ethernet', 'sites'
STEPS = {'none': '', 'stragglers': ','.join(['2ms'] * 9 + ['10ms']), 'tails': 'pareto:1ms:2'}
FACTOR, FARTHEST = 3, 8  # of the grid of step sizes; and its largest exponent
# Step sizes of another kind than that of SGD: those of Adagrad, of AdamW, and of Adam.
RATES = {'DOWNPOUR': ('server_learning_rate', 0.05), 'DiLoCo': ('learning_rate', 0.01),
         'Distributed-MNIST': ('learning_rate', 0.001)}
RATE = 'learning_rate', 0.1
# Folders that make the updates of another one, whose step size is tuned; theirs is the fixed one.
ALIKE = {'Distributed-Setup': 'HogWild', 'Elastic-Workers': 'HogWild',
         'Parameter-Placement': 'HogWild', 'Work-Queue': 'HogWild',
         'Synchronous-SGD-different-learning-rates': 'Synchronous-SGD'}
LEARNS = 0.2  # accuracy of a run that has learned anything; chance is 0.1
ENOUGH = 0.95  # accuracy whose time is told
PATIENCE = 3  # smaller step sizes tried although nothing is learned


class MissingError(Exception):
    """What is asked for has not been simulated."""


class Absent:
    """Stands for a `Scheme` where nothing is simulated."""

    def __init__(self, name):
        self.name = name

    def simulate(self, asked):
        raise MissingError(self.name, asked)


@functools.lru_cache(maxsize=None)
def _has_window(name):
    return 'communication_window=' in (schemes.ROOT / name / 'worker.py').read_text(
        encoding='utf-8')


def rate_of(name, exponent):
    """Returns the flag of a scheme's step size, and one of the grid of these, two strings."""
    flag, middle = RATES.get(name, RATE)
    return flag, f'{middle * FACTOR ** exponent:.3g}'


def asked(name, workers, exponent=0, cluster=CLUSTERS[0], steps='none'):
    """Returns what to simulate of a scheme, a dict of strings by the names of flags.

    The step size has FACTOR to the power of `exponent`; the others are of CLUSTERS and of STEPS.
    """
    flag, rate = rate_of(name, exponent)
    found = dict(LENGTH, workers=str(workers), cluster=cluster, **{flag: rate})
    if STEPS[steps]:
        found['step'] = STEPS[steps]
    if _has_window(name):
        found['communication_window'] = '10'
    return found


def _accurate(row):
    """Returns how accurate a row is, a tuple, whose first is 0 if nothing was learned."""
    accuracy = float(row['accuracy'])
    if accuracy < LEARNS or row['diverged'] == '1':
        return 0., 0.
    return accuracy, -float(row['loss'])


def _soon(row):
    """Returns how soon a row reaches 95 %, a tuple, whose first is 0 if it ends below."""
    if float(row['accuracy']) < ENOUGH or row['diverged'] == '1':
        return 0., 0.
    return 1., -float(row['target_seconds'])


def search(measure, start, worth):
    """Finds the best exponent: goes down while it gets better, or, if it does not, up.

    Args:
      measure: function of an exponent that returns a row.
      start: int.
      worth: function of a row that returns a tuple, larger for a better row, (0, ...) for nothing.

    Returns:
      int, the best of the exponents that were measured.
    """
    worths = {start: worth(measure(start))}
    for direction in -1, 1:
        here = start
        while abs(here) < FARTHEST:
            there = here + direction
            worths[there] = worth(measure(there))
            # A run that has learned nothing may do so with a smaller step size.
            is_lost = direction < 0 and not worths[here][0] and start - there <= PATIENCE
            if worths[there] <= worths[here] and not is_lost:
                break
            here = there
        if max(worths, key=worths.get) != start:
            break
    return max(worths, key=worths.get)


class Study:
    """The simulations of one scheme.

    Attributes:
      name: string.
    """

    def __init__(self, table, scheme):
        """Takes an `experiments.Table`, and an `experiments.Scheme` or an `Absent`."""
        self.name, self._table, self._scheme, self._best = scheme.name, table, scheme, {}

    def row(self, *args, **kwargs):
        """Returns the row of a simulation, see `asked`; raises MissingError if it is missing."""
        return self._table.simulate(self._scheme, asked(self.name, *args, **kwargs))

    def best(self, workers):
        """Returns the exponent of the most accurate step size for a number of workers, an int."""
        if workers not in self._best:
            earlier = (workers // 4 if workers in COARSE else workers // 2)
            start = self.best(earlier) if earlier else 0
            self._best[workers] = search(functools.partial(self.row, workers), start, _accurate)
        return self._best[workers]

    def soonest(self, workers):
        """Returns the exponent of the step size that reaches 95 % first, or of the best one."""
        best = self.best(workers)
        if not _soon(self.row(workers, best))[0]:
            return best
        return search(functools.partial(self.row, workers), best, _soon)

    def best_row(self, workers, steps='none'):
        """Returns the row with the most accurate step size; see `row`."""
        return self.row(workers, self.best(workers), steps=steps)

    def soonest_row(self, workers, cluster):
        """Returns the row with the step size that reaches 95 % first; see `row`."""
        return self.row(workers, self.soonest(workers), cluster)

    def fixed(self):
        """Asks for all numbers of workers with the fixed step size."""
        for workers in FIXED:
            self.row(workers)

    def scale(self, numbers):
        """Asks for some numbers of workers with tuned step sizes, on all clusters."""
        for workers in numbers:
            for cluster in CLUSTERS:
                self.soonest_row(workers, cluster)

    def disturb(self):
        """Asks for some workers with stragglers, and with heavy tails."""
        for steps in STEPS:
            self.best_row(SOME, steps)
