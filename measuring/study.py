"""What a simulation of the study came to: how good it is, and when it was as good as is wanted.

Everywhere a row is one of Simulation/results/study.csv, a dict of strings.
"""

import math

TEACHER = 'teacher'  # the model most of the study is about
TARGET = 0.4  # excess loss whose time is told
ERROR = 0.1  # share of wrong answers whose time is told where no least loss is known
LEARNS = 0.2  # accuracy of a run that has learned anything; chance is 0.1
LOST = math.inf, math.inf


def worth(row):
    """Returns how good a row is on the half of the test set to choose by, a tuple: less is better.

    If it has diverged, or learned nothing, it is LOST.
    """
    excess = row['validation_excess_loss']
    if row['diverged'] == '1':
        return LOST
    if excess:
        return (float(excess), 0.) if math.isfinite(float(excess)) else LOST
    accuracy = float(row['validation_accuracy'])
    return (-accuracy, float(row['validation_loss'])) if accuracy >= LEARNS else LOST


def curve(row, half=0):
    """Returns what a row is tested for by local steps and seconds, a list of triples of floats.

    That is the excess loss, or where no least loss is known the share of wrong answers.

    Args:
      row: dict.
      half: int, 0 for the half of the test set that is reported, and 1 for that to choose by.
    """
    tests = [list(map(float, test.split(':')))
             for test in (row['excess_curve'] or row.get('error_curve', '')).split()]
    return [(test[0], test[1], test[2 + half]) for test in tests]


def reached(row, target=None, half=0):
    """Returns after how many local steps and seconds a row's `curve` came to a target, two floats.

    Between two tests it is taken as a power of both. None if the run ends above it.

    Args:
      row: dict.
      target: float; by default TARGET, or ERROR where the curve has wrong answers.
      half: int, see `curve`.
    """
    tests = curve(row, half)
    if target is None:
        target = TARGET if row['excess_curve'] else ERROR
    if row['diverged'] == '1' or not tests or not tests[-1][2] <= target:
        return None
    at = next(i for i, test in enumerate(tests) if test[2] <= target)
    there, before = tests[at], tests[max(0, at - 1)]
    if not at or not math.isfinite(before[2]) or there[2] <= 0:
        return there[:2]
    share = math.log(before[2] / target) / math.log(before[2] / there[2])
    return tuple(early ** (1 - share) * late ** share for early, late in zip(before, there[:2]))
