"""How large an effect is beside its noise: differences between simulations with several seeds."""

import collections
import math
import statistics

# Student's t: 95 % of differences between two means of three values each are within so many of
# their standard errors.
_T = 2.776
EQUAL = 0.02  # nats; what is worse by no more than this counts as equally good
OPEN = 'open'  # the answer to a question that the noise leaves open


class Effect(collections.namedtuple('Effect', 'mean noise is_ratio')):
    """By how much one side of a comparison is better than the other.

    Attributes:
      mean: float, the difference of the means, or of the means of the logarithms. Infinity: the
        other side failed with all seeds; minus infinity: this one did; nan: with some seeds.
      noise: float, half the width of the interval in which the difference lies with 95 %.
      is_ratio: bool, whether it is one of logarithms.
    """

    @property
    def is_sure(self):
        """Whether one side is better, by more than the noise."""
        return self.mean > self.noise

    def is_larger(self, other):
        """Returns whether this effect is larger than another one, by more than their noise."""
        if math.isinf(self.mean) or math.isinf(other.mean):
            return self.mean > other.mean
        return self.mean - other.mean > math.hypot(self.noise, other.noise)

    def is_at_least(self, margin):
        """Returns whether it is no loss of more than a margin, even at the end of its interval."""
        return self.mean - self.noise >= -margin

    def better(self):
        """Returns whether one side is better: a bool, or OPEN."""
        if self.is_sure:
            return True
        is_worse, is_nothing = self.mean < -self.noise, abs(self.mean) + self.noise <= EQUAL
        if is_worse or not math.isfinite(self.mean) or is_nothing and not self.is_ratio:
            return False
        return OPEN

    def as_good(self, margin=EQUAL):
        """Returns whether it is no loss of more than a margin: a bool, or OPEN."""
        if self.is_at_least(margin):
            return True
        return OPEN if self.mean + self.noise >= -margin else False

    def larger(self, other):
        """Returns whether this effect is larger than another one: a bool, or OPEN."""
        if self.is_larger(other):
            return True
        return False if other.is_larger(self) else OPEN

    def __str__(self):
        if not math.isfinite(self.mean):
            return {math.inf: 'only the first with all seeds',
                    -math.inf: 'only the second with all seeds'}.get(
                        self.mean, 'not with all seeds')
        if self.is_ratio:
            first, middle, last = (math.exp(self.mean + way * self.noise) for way in (-1, 0, 1))
            return f'{middle:.3g} times ({first:.3g} to {last:.3g})'
        return f'{self.mean:.3f} ± {self.noise:.3f}'


def every(answers):
    """Returns whether all of some answers, bools or OPEN, are yes: a bool, or OPEN."""
    answers = list(answers)
    return False if False in answers else OPEN if OPEN in answers else True


def gain(ours, others, is_ratio=False):
    """Compares two sides, of which the one with less is better.

    Args:
      ours: list of three floats, one for each seed; infinity where a run failed.
      others: the same, of the other side.
      is_ratio: bool, whether to compare logarithms.

    Returns:
      `Effect`, positive if ours are less.
    """
    failed = [[math.isinf(value) for value in side] for side in (ours, others)]
    if any(map(any, failed)):
        if all(failed[1]) and not any(failed[0]):
            return Effect(math.inf, 0., is_ratio)
        if all(failed[0]) and not any(failed[1]):
            return Effect(-math.inf, 0., is_ratio)
        return Effect(math.nan, math.inf, is_ratio)
    if is_ratio:
        ours, others = (list(map(math.log, side)) for side in (ours, others))
    deviation = statistics.mean([statistics.variance(side) for side in (ours, others)]) ** 0.5
    return Effect(statistics.mean(others) - statistics.mean(ours),
                  _T * deviation * (1 / len(ours) + 1 / len(others)) ** 0.5, is_ratio)
