"""The figures of the study: what comes out of its rows, with the best step sizes."""

import statistics

from measuring.study import reached, TEACHER
import numpy as np
import study_cases
from study_cases import (Absent, ALIKE, case, CLUSTERS, DIGITS, MissingError, NUMBERS, REFERENCE,
                         SOME, Study)

FAMILIES = {
    'asynchronous, in each step': ['HogWild', 'DC-ASGD', 'SSP', 'Distributed-MNIST', 'Gossip'],
    'asynchronous, in windows': ['AGN', 'DynSGD', 'DOWNPOUR', 'DOWNPOUR-Easy'],
    'elastic averaging': ['AEASGD', 'AEAMSGD'],
    'synchronous': ['Synchronous-SGD', 'Ring-AllReduce', 'Local-SGD', 'DiLoCo', 'SAGN',
                    'Gossip (d-psgd)']}
SYNCHRONOUS = 'Synchronous-SGD'  # whose batch has a critical size


def families(table):
    """Returns a dict by family of lists of `Study`, each of what is in a table."""
    return {family: [Study(table, Absent(name)) for name in members]
            for family, members in FAMILIES.items()}


def tuned_schemes(table):
    """Returns a list of `Study` by families: the schemes whose step sizes are tuned."""
    return [study for members in families(table).values() for study in members]


def known(function, *args, **kwargs):
    """Returns what a function of a `Study` returns, or None if that has not been simulated."""
    try:
        return function(*args, **kwargs)
    except MissingError:
        return None


def best_rows(study, its_case, tuned=True):
    """Returns the rows by seed with the best step size of a case, a list; empty if it is not there.

    Args:
      study: `Study`.
      its_case: dict.
      tuned: bool, whether the step size was searched for in this very case.
    """
    exponent = known(study.best if tuned else study.chosen, its_case)
    return [] if exponent is None else study.seeds(its_case, exponent)


def soonest_rows(study, its_case, tuned=True):
    """Returns the rows with the step size that comes to the target first; see `best_rows`."""
    if not best_rows(study, its_case, tuned):
        return []
    return study.seeds(its_case, study.soonest(its_case))


def reference_rows(table, problem=TEACHER):
    """Returns the rows of one worker that speed-ups are over, see `soonest_rows`."""
    return soonest_rows(Study(table, Absent(REFERENCE)), case(1, problem))


def digits_rows(study, workers):
    """Returns the rows of the digits with the best step size, or that of the scheme of ALIKE."""
    its_case = case(workers, DIGITS)
    if study.name not in ALIKE:
        return best_rows(study, its_case)
    exponent = known(study.other(ALIKE[study.name]).best, its_case)
    return [] if exponent is None else study.seeds(its_case, exponent)


def unequal_rows(study):
    """Returns the rows of SOME workers with equal and with unequal data, two lists."""
    return best_rows(study, case(SOME)), best_rows(
        study, case(SOME, teacher_shift=study_cases.SHIFT), False)


def mean(rows, column='excess_loss'):
    """Returns the mean of a column over the seeds, a float; None without rows, or a value."""
    values = [float(row[column]) for row in rows if row[column]]
    return statistics.mean(values) if values else None


def mean_reached(rows):
    """Returns after how many local steps and seconds the target is `reached`, two floats.

    These are means over the seeds; None without rows, or if one of them does not come there.
    """
    found = [reached(row) for row in rows]
    return tuple(map(statistics.mean, zip(*found))) if found and None not in found else None


def mean_seconds(rows):
    """Returns after how many seconds the target is reached, a float or None, see `mean_reached`."""
    found = mean_reached(rows)
    return found and found[1]


def seconds_of_one(table, problem=TEACHER):
    """Returns the time of the reference to the target, a float, or None."""
    return mean_seconds(reference_rows(table, problem))


def speed_up(table, study, workers, cluster=CLUSTERS[0]):
    """Returns the speed-up to the TARGET over one worker, a float; None if it is not known."""
    its_case = case(workers, cluster=cluster)
    many = mean_seconds(soonest_rows(study, its_case, cluster == CLUSTERS[0]))
    one = seconds_of_one(table)
    return one / many if one and many else None


def arrivals(table, workers, cluster=CLUSTERS[0]):
    """Returns who comes to the TARGET, and when: pairs of the seconds and a `Study`, sorted.

    Returns:
      List of such pairs; and how many schemes have been simulated there, an int.
    """
    rows = {study: soonest_rows(study, case(workers, cluster=cluster), cluster == CLUSTERS[0])
            for study in tuned_schemes(table)}
    times = [(mean_seconds(its), study) for study, its in rows.items() if mean_seconds(its)]
    return sorted(times, key=lambda pair: pair[0]), sum(map(bool, rows.values()))


def times_as_much(study):
    """Returns the excess loss with unequal data over that with equal ones, a float, or None."""
    alike_, shifted = map(mean, unequal_rows(study))
    return None if None in (alike_, shifted) else shifted / alike_


def critical(local_steps):
    """Returns what a larger batch costs: `least` * (1 + N / `half`) local steps with N workers.

    Args:
      local_steps: dict of floats by the number of workers.

    Returns:
      Two floats, `least` and `half`, the critical number of workers; None if there are fewer than
      three numbers, or they do not grow so.
    """
    if len(local_steps) < 3:
        return None
    counts, steps = (np.array(list(values), float) for values in zip(*local_steps.items()))
    (least, each), *_ = np.linalg.lstsq(np.stack([1 / steps, counts / steps], 1),
                                        np.ones(len(steps)), rcond=None)
    return (least, least / each) if least > 0 and each > 0 else None


def critical_of(table):
    """Returns `critical` of Synchronous-SGD, with the reference as one worker of it."""
    study = Study(table, Absent(SYNCHRONOUS))
    rows = {workers: soonest_rows(study, case(workers)) for workers in NUMBERS}
    rows[1] = reference_rows(table)
    found = {workers: mean_reached(its) for workers, its in rows.items()}
    return critical({workers: its[0] for workers, its in found.items() if its})
