"""The sides of the comparisons in a claim: what is simulated, each with its best step size.

An arm is a scheme at some places of an axis, such as numbers of workers. At each place the step
size is searched for with a seed of its own, and then simulated with the seeds that are reported.
All arms search on one grid, and none can end at its edge.
"""

import collections
import math

import experiments

CHOOSING = 4  # the seed with which step sizes are chosen
REPORTED = 1, 2, 3
MIDDLE, FACTOR, FARTHEST = 0.1, 2, 14  # of the grid of step sizes; and its largest exponent
# The flags that identify a simulation: columns of the table.
COLUMNS = ['seed', 'model', 'teacher_dimension', 'teacher_condition', 'clicks_rows', 'clicks_deep',
           'clicks_uniform', 'cluster', 'workers', 'step', 'latency', 'bandwidth', 'ps_bandwidth',
           'parameters', 'local_steps', 'train_steps', 'tests', 'batch_size', 'learning_rate',
           'server_learning_rate', 'communication_window', 'constant', 'variance', 'lambda_0',
           'staleness_bound', 'replicas_to_aggregate', 'aggregate', 'liar', 'scale_learning_rate',
           'warmup_steps', 'outer_learning_rate', 'outer_momentum', 'clients', 'fraction',
           'classes_per_client', 'epochs', 'algorithm', 'roles', 'compression', 'error_feedback',
           'fragments', 'fragment_delay', 'fragment_alpha', 'torn', 'ps_momentum']
FIGURES = ['accuracy', 'loss', 'excess_loss', 'diverged', 'steps', 'examples', 'seconds',
           'staleness', 'staleness_max', 'waits', 'in_line', 'sent', 'curve', 'wall_seconds']
# A network that has not begun to learn from the teacher is some 1.6 nats above the least loss.
LEARNS = 1.0
GONE = 10  # nats; with a larger loss training diverges, even if the loss is still finite


def table_of(path):
    """Returns the `experiments.Table` of claims in a file, a path."""
    return experiments.Table(path, COLUMNS, FIGURES)


def value(row, figure):
    """Returns a figure of a simulation, a float, which is the better the less it is.

    Args:
      row: dict of strings, of a table.
      figure: string, a column; or a pair of 'examples' or 'seconds' and a test accuracy: what it
        takes to come to that. Infinity: it diverged, or did not come there.
    """
    if isinstance(figure, tuple):
        return _reached(row, *figure)
    number = float(row[figure] or 'nan')
    if figure in ('loss', 'excess_loss') and (row['diverged'] == '1' or not number < GONE):
        return math.inf
    return number


def _reached(row, what, target):
    """Returns when the test accuracy came to a target, on a straight line between two tests."""
    before = None
    for test in row['curve'].split():
        examples, seconds, accuracy = map(float, test.split(':'))
        here = {'examples': examples, 'seconds': seconds}[what]
        if accuracy >= target:
            if before is None:
                return here
            share = (target - before[1]) / (accuracy - before[1])
            return before[0] + share * (here - before[0])
        before = here, accuracy if not math.isnan(accuracy) else 0.
    return math.inf


def climb(worth, start):
    """Searches for the best place of a grid: goes on until both neighbours are worse.

    Args:
      worth: function of an int that returns a tuple, the less the better, or None if that is not
        known yet. No two are equal.
      start: int, where the search begins.

    Returns:
      The best int, or None if that is not known yet; and the list of ints whose worth is missing.
    """
    seen, best = {}, start
    while True:
        around = [place for place in (best, best - 1, best + 1) if abs(place) <= FARTHEST]
        seen.update({place: worth(place) for place in around if place not in seen})
        missing = [place for place in around if seen[place] is None]
        if missing:
            return None, missing
        there = min(seen, key=seen.get)
        if there == best:
            return best, []
        best = there


class Arm:
    """One side of a comparison.

    Attributes:
      scheme: string, a folder.
      at: dict by place on the picture's axis of dicts of flags.
      figure: what the step size is chosen by, see `value`.
    """

    def __init__(self, scheme, at, figure='excess_loss', rate='learning_rate', start=0,
                 options=({},), like=None, **flags):
        """Takes the parts.

        Args:
          scheme: string, see above.
          at: dict, see above.
          figure: see above.
          rate: string, the flag of the step size; None if nothing is chosen.
          start: int, the exponent at which the search for the step size begins.
          options: list of dicts of flags, of which the best one is chosen, too.
          like: pair of another arm and a place: the step size is the one that was chosen there; if
            that place is None, at the same place.
          flags: the flags that are the same at all places.
        """
        self.scheme, self.at, self.figure, self._flags = scheme, at, figure, flags
        self.rate, self._start, self._options = rate, start, options
        self._like = like

    def asked(self, place, seed, chosen):
        """Returns what to simulate at a place, a dict of strings; `chosen` is a dict of flags."""
        flags = collections.OrderedDict(self._flags, seed=seed, **self.at[place])
        flags.update(chosen)
        return {name: str(value) for name, value in flags.items()}

    def chosen(self, table, place):
        """Returns what is chosen at a place.

        Args:
          table: `experiments.Table`.
          place: of the axis.

        Returns:
          Dict of flags, or None if that is not known yet; and the list of pairs of a scheme and its
          flags that are to be simulated for that.
        """
        if self._like:
            arm, there = self._like
            flags, missing = arm.chosen(table, place if there is None else there)
            if flags is None:
                return None, missing
            return {self.rate: flags[arm.rate]}, []
        if not self.rate:
            return {}, []
        found, missing = [], []
        for number, option in enumerate(self._options):
            def worth(exponent, option=option):
                return self._worth(table, place, option, exponent)
            best, left = climb(worth, self._start)
            missing += [(self.scheme, self.asked(place, CHOOSING, self._choice(option, exponent)))
                        for exponent in left]
            if best is not None:
                found.append((worth(best), number, self._choice(option, best)))
        return (None, missing) if missing else (min(found)[-1], [])

    def _choice(self, option, exponent):
        return dict(option, **{self.rate: f'{MIDDLE * FACTOR ** exponent:.4g}'})

    def _worth(self, table, place, option, exponent):
        """Returns how good a step size is, see `climb`: where nothing is reached, by the loss."""
        asked = self.asked(place, CHOOSING, self._choice(option, exponent))
        row = table.row(self.scheme, asked)
        return row and (value(row, self.figure), value(row, 'loss'), exponent)

    def missing(self, table, place):
        """Returns what is to be simulated next for a place, a list as `chosen` does."""
        chosen, missing = self.chosen(table, place)
        if chosen is None:
            return missing
        asked = [self.asked(place, seed, chosen) for seed in REPORTED]
        return [(self.scheme, flags) for flags in asked if not table.row(self.scheme, flags)]

    def used(self, table, place):
        """Returns the pairs of a scheme and its flags at a place that its results rest on."""
        pairs = []
        chosen, _ = self.chosen(
            _Noting(table, lambda scheme, flags: pairs.append((scheme, flags))), place)
        if chosen is None:
            return pairs
        return [*pairs, *((self.scheme, self.asked(place, seed, chosen)) for seed in REPORTED)]


class _Noting:
    """A table that tells of each row that is looked up."""

    def __init__(self, table, note):
        self._table, self._note = table, note

    def row(self, scheme, asked):
        self._note(scheme, asked)
        return self._table.row(scheme, asked)


def teacher(scheme, at, **kwargs):
    """Returns an `Arm` on the problem without end, see docs/models.md."""
    return Arm(scheme, at, model='teacher', **kwargs)


def over(flag, values):
    """Returns the places of an `Arm` that varies one flag, from a list of its values."""
    return {value: {flag: value} for value in values}


class Found:
    """The results of a claim's arms."""

    def __init__(self, arms, table):
        """Takes a dict of `Arm`s by name, and an `experiments.Table`."""
        self.arms, self._table = arms, table

    def missing(self):
        """Returns what is to be simulated next, a list of pairs of a scheme and its flags."""
        return [pair for arm in self.arms.values() for place in arm.at
                for pair in arm.missing(self._table, place)]

    def used(self):
        """Returns the pairs of a scheme and its flags that the results rest on, a list."""
        return [pair for arm in self.arms.values() for place in arm.at
                for pair in arm.used(self._table, place)]

    def chosen(self, name, place):
        """Returns the flags that were chosen for an arm at a place, a dict of strings."""
        return self.arms[name].chosen(self._table, place)[0]

    def rate(self, name, place):
        """Returns the step size of an arm at a place, a string."""
        return self.chosen(name, place)[self.arms[name].rate]

    def rows(self, name, place):
        """Returns the rows of an arm at a place, a list by seed."""
        arm, chosen = self.arms[name], self.chosen(name, place)
        return [self._table.row(arm.scheme, arm.asked(place, seed, chosen)) for seed in REPORTED]

    def values(self, name, place, figure=None):
        """Returns a figure at a place, a list of floats by seed; by default that of the arm."""
        return [value(row, figure or self.arms[name].figure) for row in self.rows(name, place)]

    def line(self, name, figure=None):
        """Returns the `values` at all places, a dict."""
        return {place: self.values(name, place, figure) for place in self.arms[name].at}

    def learns(self, name, place):
        """Returns whether training on the teacher's examples got anywhere with each seed."""
        return max(self.values(name, place, 'excess_loss')) < LEARNS
