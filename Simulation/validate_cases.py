"""What `validate` really runs and simulates: cases in four groups, some of which tell the costs.

- here: up to eight workers on this machine, which share its processors;
- sleeping: 16 and 32 workers that sleep in each local step, as if each had a processor of its own;
- bandwidths: each task is a host of its own, whose link has a rate; a model of 2.6 MB;
- distances: each task is a host of its own, with a round trip from host to host.

Costs are measured on this machine, without sleep and links, with one worker; in a ring, which one
worker does not use, with three, too. These cases are fitted, and no error is counted for them.
"""

import collections
import re

from measuring.folders import Example
from measuring.results import median
from experiments import BATCH

RING = 'Ring-AllReduce'
# A case is a folder, with its numbers of backup workers and workers, its window, which repeat this
# is, and the local steps of all workers; '' for the digits, or a model of the gallery; and '' or
# ints: milliseconds of sleep in each local step, Mbit/s of each link, milliseconds of a round trip.
Case = collections.namedtuple('Case', 'scheme backups workers window repeat local_steps model '
                              'sleep mbit round_trip', defaults=('',) * 4)
# What is the same in all repeats.
FIELDS = [name for name in Case._fields if name not in ('repeat', 'local_steps')]
GROUPS = {'here': 'up to 8 workers on this machine', 'sleeping': '16 and 32 workers that sleep',
          'bandwidths': 'links with a rate', 'distances': 'hosts at a distance'}

SCHEMES = [('HogWild', 0), ('SSP', 0), ('AGN', 0), ('DOWNPOUR', 0), ('DynSGD', 0), ('AEASGD', 0),
           ('Local-SGD', 0), ('Synchronous-SGD', 0), ('Synchronous-SGD', 1), (RING, 0)]
WORKERS, IN_A_RING = (1, 2, 8), (1, 2, 3, 8)
STEPS = {True: 3000, False: 10000}  # of all workers on this machine, by whether each is pushed
PASSES = 3  # over all cases, as what a machine does changes from minute to minute
LONG_WINDOW = 50  # of AGN: what it takes longer than the folder's own is local steps
ON_LINKS = 'HogWild', 'AGN', 'Synchronous-SGD', RING
# How often each worker runs its train op: of the large model, by window; and for tuples of a rate
# or a round trip, and numbers of workers.
LARGE, LARGE_RUNS = 'mnist', {1: 400, 10: 150, LONG_WINDOW: 60}
BANDWIDTHS = [(100, (2,), 25), (1000, (2, 4), 60)]
DISTANCES = [(1, (2,), 500), (10, (2, 8), 100)]
SLEEP, SLEEPING = 50, [('HogWild', (16, 32), 300), ('AGN', (16, 32), 30),
                       ('Synchronous-SGD', (16, 32), 100)]
# While a worker sleeps, it exchanges in AEASGD, and not in AGN: one that is far from the ps.
MEANWHILE, FAR = ('AEASGD', 'AGN'), {'sleep': 5, 'round_trip': 10}
# With the folders' own step sizes many stale updates may make the loss grow.
SMALL_STEP = '--learning_rate=0.01'


def is_fitted(case):
    """Returns whether the costs are measured with a case, a dict by FIELDS."""
    return (not (case['sleep'] or case['mbit'] or case['round_trip'])
            and int(case['workers']) <= (3 if case['scheme'] == RING else 1))


def group_of(case):
    """Returns the group of a case, a dict by FIELDS: one of GROUPS."""
    if case['model'] or case['mbit']:
        return 'bandwidths'
    return 'distances' if case['round_trip'] else 'sleeping' if case['sleep'] else 'here'


def _case(scheme, workers, runs, window=None, **others):
    """Returns a `Case` in which each worker runs its train op so often."""
    window = window or Example(scheme).window
    return Case(scheme, 0, workers, window, 0, runs * window * workers, **others)


def _here():
    """Returns the cases of the digits on this machine, a list."""
    found = []
    for scheme, backups in SCHEMES:
        window = Example(scheme).window
        steps = STEPS[window == 1]
        found += [Case(scheme, backups, workers, window, 0, steps)
                  for workers in (IN_A_RING if scheme == RING else WORKERS) if workers > backups]
        if scheme == 'AGN':
            found.append(Case(scheme, backups, 1, LONG_WINDOW, 0, 3 * steps))
    return found


def _on_links():
    """Returns the cases with links, and those that tell the costs of the large model, a list."""
    found = []
    for scheme in ON_LINKS:
        windows = {Example(scheme).window, *([LONG_WINDOW] if scheme == 'AGN' else [])}
        found += [_case(scheme, workers, LARGE_RUNS[window], window, model=LARGE)
                  for window in sorted(windows)
                  for workers in ((1, 2, 3) if scheme == RING else (1,))]
        found += [_case(scheme, workers, runs, model=LARGE, mbit=mbit)
                  for mbit, numbers, runs in BANDWIDTHS for workers in numbers]
        found += [_case(scheme, workers, runs, round_trip=round_trip)
                  for round_trip, numbers, runs in DISTANCES for workers in numbers]
    return found + [_case(scheme, 1, 100, **FAR) for scheme in MEANWHILE]


def cases():
    """Returns a list of `Case`: one pass over all after the other."""
    first = [*_here(), *_on_links(),
             *(_case(scheme, workers, runs, sleep=SLEEP)
               for scheme, numbers, runs in SLEEPING for workers in numbers)]
    return [case._replace(repeat=repeat) for repeat in range(PASSES) for case in first]


def chosen(pattern):
    """Returns the cases whose words a regular expression finds, and those with their costs."""
    named = [case for case in cases() if re.search(pattern, words(case._asdict()))]
    wanted = {(case.scheme, case.model) for case in named}
    # The seconds of a local step are by AGN.
    wanted |= {('AGN', case.model) for case in named if case.scheme != RING}
    return [case for case in cases() if case in named
            or is_fitted(case._asdict()) and (case.scheme, case.model) in wanted]


def words(case):
    """Returns a case, a dict by FIELDS, in words, such as 'AGN, window 10, 2 workers, 1 ms'."""
    workers = f'{case["workers"]} worker{"s" * (int(case["workers"]) > 1)}'
    return ', '.join(part for part in (name_of(case), workers, setting_of(case), case['model'])
                     if part)


def name_of(case):
    """Returns what a case, a dict by FIELDS, trains with: its scheme, backup workers and window."""
    name = case['scheme']
    if int(case['backups']):
        name += f', {case["backups"]} backup'
    return f'{name}, window {case["window"]}' if int(case['window']) > 1 else name


def setting_of(case):
    """Returns the sleep or the links of a case, a dict by FIELDS, in words; '' without any."""
    return ', '.join(f'{case[name]} {unit}' for name, unit in (
        ('sleep', 'ms of sleep'), ('mbit', 'Mbit/s'), ('round_trip', 'ms')) if case[name])


def arguments(case):
    """Returns the flags of a `Case`, a list of strings."""
    flags = Example(case.scheme).arguments(case.workers, case.window, case.local_steps)
    if case.backups:
        flags.append(f'--replicas_to_aggregate={case.workers - case.backups}')
    if case.scheme == RING:
        flags.append('--implementation=ring')  # its costs are those of the presets
    if case.model:
        flags += [f'--model={case.model}', '--num_threads=1']
    if case.sleep:
        flags.append('--straggler=' + ','.join(
            f'{worker}:{case.sleep / 1000}' for worker in range(case.workers)))
    if case.model or case.sleep:
        flags.append(SMALL_STEP)
    return [*flags, f'--batch_size={BATCH}', f'--seed={case.repeat + 1}']


def of(rows, kind, **which):
    """Returns the rows of a kind whose columns have the given values."""
    return [row for row in rows if row['kind'] == kind
            and all(row[name] == str(value) for name, value in which.items())]


def costing(rows, scheme, workers, window, model=''):
    """Returns those real rows that the costs of a scheme are measured with, for some workers."""
    return of(rows, 'real', scheme=scheme, backups=0, workers=workers, window=window, model=model,
              sleep='', mbit='', round_trip='')


def missing(rows):
    """Returns the cases of which there is no real row."""
    there = {tuple(row[name] for name in Case._fields) for row in of(rows, 'real')}
    return [case for case in cases() if tuple(map(str, case)) not in there]


def seconds_of_step(rows, model=''):
    """Returns the seconds of a local step, from rows of real runs."""
    window = Example('AGN').window
    short, long = (median(costing(rows, 'AGN', 1, each, model), 'work_s')
                   for each in (window, LONG_WINDOW))
    return (long - short) / (LONG_WINDOW - window)
