"""What a claim is: parts that hold or do not, with controls, and the verdict on them."""

import collections

from arms import Found
from effects import gain, OPEN

NOT_TESTED = 'not tested here'
IN_NOISE = 'within the noise'
VERDICTS = 'holds', 'holds in part', 'does not hold', NOT_TESTED, IN_NOISE
# A panel of a picture: `lines` are dicts by name of dicts by place of lists by seed; `log`: whether
# y is logarithmic.
Panel = collections.namedtuple('Panel', 'title x y lines log')


class Part(collections.namedtuple('Part', 'kind says holds')):
    """A part of a claim.

    Attributes:
      kind: string: 'part'; 'control', without which the claim does not hold, even if its parts do;
        or 'regime', without which there is nothing to see here.
      says: string, what was compared, with figures.
      holds: bool; OPEN if the noise is too large to tell; None if it is not tested here.
    """


def part(says, holds):
    """Returns a `Part` of what is claimed."""
    return Part('part', says, OPEN if holds == OPEN else bool(holds))


def control(says, holds):
    """Returns a `Part` that holds unless something else explains the effect."""
    return Part('control', says, bool(holds))


def regime(says, holds):
    """Returns a `Part` that holds where the claim can be tested at all."""
    return Part('regime', says, bool(holds))


def untested(says):
    """Returns a `Part` that is not tested here; `says` why."""
    return Part('part', says, None)


def verdict(parts):
    """Returns one of VERDICTS for a list of `Part`s."""
    told = [one.holds for one in parts if one.kind == 'part' and one.holds is not None]
    tested = [holds for holds in told if holds != OPEN]
    if not told or not all(one.holds for one in parts if one.kind == 'regime'):
        return NOT_TESTED
    if not tested:
        return IN_NOISE
    if not any(tested) or not all(one.holds for one in parts if one.kind == 'control'):
        return VERDICTS[2]
    return VERDICTS[0 if all(tested) else 1]


class Seen(Found):
    """The results of a claim's arms, to be judged."""

    def gain(self, ours, others, figure=None):
        """Compares two sides.

        Args:
          ours: pair of the name of an arm and a place.
          others: the same, of the other side.
          figure: see `arms.value`; by default that of the arm. Times, and numbers of examples
            and of bytes, are compared as ratios.

        Returns:
          `effects.Effect`, positive if ours are better.
        """
        figure = figure or self.arms[ours[0]].figure
        is_ratio = isinstance(figure, tuple) or figure in ('seconds', 'in_line')
        return gain(self.values(*ours, figure), self.values(*others, figure), is_ratio)

    def lines(self, figure=None):
        """Returns `Panel.lines` of all arms."""
        return {name: self.line(name, figure) for name in self.arms}


class Claim:
    """A claim of a paper, as an experiment.

    Attributes:
      name: string, one word.
      paper: string, authors and year.
      where: string, where the paper makes the claim, as far as that is known.
      says: string, the claim.
      here: string, what is simulated.
      folders: list of strings, the folders whose READMEs tell of it.
      x: string, what the axis of its pictures is.
      arms: dict of `arms.Arm`s by name.
    """

    where, x = "the paper's claim", 'workers'

    @staticmethod
    def judge(seen):
        """Judges the parts of a claim.

        Args:
          seen: `Seen`, complete.

        Returns:
          List of `Part`s.
        """
        raise NotImplementedError

    @classmethod
    def panels(cls, seen):
        """Returns a list of `Panel`s."""
        return [Panel('loss', cls.x, 'excess loss', seen.lines('excess_loss'), True)]
