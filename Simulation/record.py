"""Records what comes out of a simulation: printed lines, a curve, totals, in virtual time."""

import collections
import csv
import math

import numpy as np
import tqdm
from tfdist.start import console

VALIDATION = 'validation_'  # with which names of figures of a test begin that are to choose by
_PHASES = 'computes', 'pulls', 'pushes', 'waits'
_NOT_SAID = 'test_loss', f'{VALIDATION}loss'
_QUANTILES = .5, .9, .99
_BAR = '{desc}: {percentage:3.0f}%|{bar}| step {n_fmt} of {total_fmt}, {remaining} left'


class Record:
    """Collects what all workers do, and tests: often at first, when most is learned.

    Attributes:
      step: int, the global step.
      local_steps: int, of all workers.
      diverged: bool, whether any loss was not finite.
      curve: list of dicts, a row for each test; see `write`.
      reached_target: dict of floats, the step, examples and seconds at which the test accuracy came
        to the target, on a straight line from the test before to the first one that has it; and
        under 'tests' the list of both rows of the curve, or of one if the first test has it. None
        if no test has it.
      seconds: `collections.Counter` by phase, summed over all workers.
    """

    def __init__(self, name, clock, train_steps, batch_size, test, tests, reached=None,
                 target=0.95, timeline=None, events=None, until_target=False, test_every=None):
        """Takes the parts.

        Args:
          name: string, with which each printed line begins; None: nothing is printed.
          clock: `clock.Clock`.
          train_steps: int, the global step at which training ends.
          batch_size: int, examples in a local step.
          test: function that returns the figures of a test, a dict of floats by name.
          tests: int, how many tests the run has; None if `test_every` says when.
          reached: function to call with each global step, or None.
          target: float, a test accuracy, see `reached_target`.
          timeline: `timeline.Timeline`, or None.
          events: `events.Events`, or None.
          until_target: bool, whether training ends when the target is reached.
          test_every: float, seconds from a test to the next one, at least; see `may_test`.
        """
        self._name, self._clock, self._train_steps, self._test = name, clock, train_steps, test
        self._batch_size, self._reached = batch_size, reached
        self.step, self.local_steps, self.diverged, self.curve = 0, 0, False, []
        self._test_at = [] if test_every else sorted({-(-train_steps * i ** 2 // tests ** 2)
                                                      for i in range(1, tests + 1)})
        self._test_every, self._next_test = test_every, 0.
        self._line, self._whole = _Figures(), _Figures()
        self.seconds = collections.Counter()  # of all workers, by phase
        self.reached_target, self._until_target = None, until_target
        self._target, self._timeline, self._events = target, timeline, events
        self._bar = tqdm.tqdm(desc=name, total=train_steps, bar_format=_BAR, leave=False,
                              disable=None if name else True)  # None: on a terminal only

    def begin(self, cluster):
        """Prints on what cluster, a string, training starts."""
        self._say(f'cluster: {cluster}')
        self._say(f'starts at step 0 of {self._train_steps}')

    def _say(self, words):
        if self._name:
            self._bar.clear()
            console.say(self._name, words)

    def remark(self, words):
        """Prints a line that is not of the record itself."""
        self._say(words)

    def phase(self, worker, what, began, ended):
        """Records that a worker did one of the _PHASES from one time to another."""
        self.seconds[what] += ended - began
        if self._timeline:
            self._timeline.add(worker, what, began, ended)

    def add(self, figures, local_steps):
        """Records the figures of a push, a dict of numbers or arrays, and its local steps."""
        self.local_steps += local_steps
        self._line.add(figures)
        if not math.isfinite(figures.get('loss', 0)) and not self.diverged:
            self.diverged = True
            self._say(f'the loss is {figures["loss"]} at step {self.step}: training '
                        'diverged')

    def reach(self, step):
        """Records an update of the center, and tests when a test is due."""
        self._bar.update(step - self.step)
        self.step = step
        if self._test_at and step >= self._test_at[0]:
            while self._test_at and step >= self._test_at[0]:
                self._test_at.pop(0)
            self._say_line()
        if self._reached:
            self._reached(step)

    def may_test(self, worker):
        """Tests if a worker is the chief, and a test is due; it is between two rounds now."""
        if self._test_every and worker == 0 and self._clock.now >= self._next_test:
            self._next_test = self._clock.now + self._test_every
            self._say_line()

    @property
    def train_steps(self):
        """The global step at which training ends, an int."""
        return self._train_steps

    def goes_on(self):
        """Returns whether training has not come to its end, and has not diverged."""
        is_there = self._until_target and self.reached_target
        return self.step < self._train_steps and not self.diverged and not is_there

    def rate(self):
        """Returns the local steps of all workers per virtual second."""
        if not self._clock.now:
            return math.inf if self.local_steps else 0.
        return self.local_steps / self._clock.now

    def _say_line(self):
        """Tests, and prints a line."""
        figures = {name if name.startswith(VALIDATION) else f'test_{name}': value
                   for name, value in self._test().items()}
        means = self._line.means()
        self.curve.append(dict(
            {'step': self.step, 'examples': self.local_steps * self._batch_size,
             'seconds': self._clock.now}, **means, **figures))
        if not self.reached_target and figures.get('test_accuracy', 0) >= self._target:
            self.reached_target = self._between(self.curve[-2:])
        if self._events:
            self._events.add(self.curve[-1], self.rate())
        said = [self._line.words(), *(f'{name.replace("_", " ")} {value:.3f}' for name, value in
                                      figures.items() if name not in _NOT_SAID), self._rate()]
        self._say(f'step {self.step} of {self._train_steps}, {", ".join(filter(None, said))}, '
                  f'{self._clock.now:.4g} s')
        self._whole.merge(self._line)
        self._line = _Figures()

    def _between(self, tests):
        """Returns `reached_target` for the list of the last two rows of the curve, or of one."""
        first, last = tests[0], tests[-1]
        share = (1. if first is last else (self._target - first['test_accuracy'])
                 / (last['test_accuracy'] - first['test_accuracy']))
        return dict({name: first[name] + share * (last[name] - first[name])
                     for name in ('step', 'examples', 'seconds')}, tests=tests)

    def _say_when_reached(self, workers):
        """Prints when the test accuracy came to the target, or why it did not."""
        reached = self.reached_target
        if reached is None:
            when = f'in none of the {len(self.curve)} tests'
            if not self.diverged:
                each = self.local_steps / workers
                when += (f': the run ends with {self.local_steps} local steps, {each:.3g} by each '
                         'worker, and --local_steps= makes it longer')
        else:
            steps = ' and '.join(str(test['step']) for test in reached['tests'])
            when = ('after {step:.0f} steps, {examples:.0f} examples, {seconds:.4g} s, '.format(
                **reached) + (f'between the tests at {steps}' if len(reached['tests']) > 1
                              else 'the first test'))
        self._say(f'{self._target:.0%} {when}')

    def _rate(self):
        return f'{_short(self.rate())} steps/s'

    def done(self, shares, workers, most_in_line=None):
        """Prints the totals.

        Args:
          shares: dict of floats by name: the share of the time for which that was busy.
          workers: int, how many there are.
          most_in_line: float, bytes, see `links.Star`; or None.

        Returns:
          Dict of the figures of the last test.
        """
        if not self.curve or self.curve[-1]['step'] != self.step:
            self._say_line()
        self._bar.close()
        self._whole.merge(self._line)
        alive = sum(self.seconds.values()) or 1
        said = [f'did {self.local_steps} local steps',
                self._whole.words(without=('loss', 'accuracy')),
                *(f'{what} {self.seconds[what] / alive:.0%}' for what in _PHASES),
                *(f'{name} {share:.0%}' for name, share in shares.items()),
                most_in_line is not None and f'at most {_short(most_in_line / 1e6)} MB in line',
                self._rate()]
        self._say(', '.join(filter(None, said)))
        if self.staleness:
            quantiles = zip(_QUANTILES, self.quantiles(_QUANTILES))
            self._say('staleness of ' + ', '.join(
                f'{share:.0%} at most {value}' for share, value in quantiles))
        last = {name[5:]: value for name, value in self.curve[-1].items()
                if name.startswith('test_')}
        metrics = [f'{name} {value:.3f}' for name, value in last.items()
                   if name != 'loss' or len(last) == 1]
        if metrics:
            self._say(f'test {", ".join(metrics)} after {self.step} steps, '
                        f'{self._clock.now:.4g} s')
        if 'accuracy' in last:
            self._say_when_reached(workers)
        return last

    @property
    def staleness(self):
        """The number of updates by staleness, a `collections.Counter`."""
        return self._whole.staleness + self._line.staleness

    def mean_staleness(self):
        """Returns the mean staleness, a float; at least one update has to have one."""
        return _mean(self.staleness)

    def quantiles(self, shares):
        """Returns for each share the staleness that this share of updates does not exceed: ints."""
        values, counts = zip(*sorted(self.staleness.items()))
        passed = np.cumsum(counts)
        return [int(values[np.searchsorted(passed, share * passed[-1])]) for share in shares]

    @property
    def dropped(self):
        """The number of pushes that came too late to count; see also `accepted`."""
        return self._whole.sums['dropped'] + self._line.sums['dropped']

    @property
    def accepted(self):
        """The number of pushes that counted."""
        return self._whole.counts['dropped'] + self._line.counts['dropped'] - self.dropped

    def write(self, path):
        """Writes the curve as CSV: step, examples, virtual seconds and figures of each test."""
        names = list(collections.OrderedDict.fromkeys(
            name for row in self.curve for name in row))
        with open(path, 'w', newline='', encoding='utf-8') as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.curve)

    def write_staleness(self, path):
        """Writes a histogram as CSV: each staleness, and how many updates had it."""
        with open(path, 'w', newline='', encoding='utf-8') as file:
            writer = csv.writer(file)
            writer.writerow(['staleness', 'updates'])
            writer.writerows(sorted(self.staleness.items()))


def _short(number):
    """Returns a float as a string of three digits, or of more if it is so large."""
    return f'{number:.0f}' if number >= 100 else f'{number:.3g}'


def _mean(counter):
    """Returns the mean of the numbers in a `collections.Counter`."""
    return sum(value * number for value, number in counter.items()) / sum(counter.values())


class _Figures:
    """Sums of the figures of rounds, which take no more memory with more rounds."""

    def __init__(self):
        self.sums, self.counts = collections.Counter(), collections.Counter()
        self.staleness = collections.Counter()

    def add(self, figures):
        """Adds the figures of a round, a dict of numbers or arrays."""
        for name, value in figures.items():
            if name == 'staleness':
                for late in [value] if np.ndim(value) == 0 else np.ravel(value):
                    self.staleness[int(late)] += 1
            else:
                self.sums[name] += float(value)
                self.counts[name] += 1

    def merge(self, later):
        """Adds the sums of later rounds."""
        for name in 'sums', 'counts', 'staleness':
            getattr(self, name).update(getattr(later, name))

    def means(self):
        """Returns a dict of floats, the mean of each figure."""
        means = {name: self.sums[name] / number for name, number in self.counts.items()}
        if self.staleness:
            means['staleness'] = _mean(self.staleness)
        return means

    def words(self, without=()):
        """Returns the means as a string, in the form of `tfdist/training/report.py`."""
        words = []
        for name, mean in self.means().items():
            if name == 'staleness':
                words.append(f'staleness {mean:.1f} (max {max(self.staleness)})')
            elif name == 'dropped':
                late = self.sums['dropped']
                words.append(f'accepted {self.counts["dropped"] - late:.0f}, dropped {late:.0f}')
            elif name not in without:
                words.append(f'{name} {mean:.3f}')
        return ', '.join(words)
