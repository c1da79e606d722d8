"""Compares simulated with real runs on this machine: steps/s, staleness, accuracy, dropped pushes.

    bash run.sh --validate              what is missing; all of it takes ten minutes on two cores
    bash run.sh --validate --fresh      all of it anew
    bash run.sh --validate --draw       tables and picture again, without any run

Costs are measured with one worker, and nothing is fitted: the seconds of a run of the train op, and
the processor seconds of the worker and the ps in it. Two lengths of AGN's window show how much of
that is a local step. In a ring one worker sends nothing: there runs of two and three workers show
what a run and a hop cost. Then the same folder, flags and local steps are simulated and really run
with more workers; and they are simulated at a distance for which Comparison has real runs.

Each run is a row of results/validation.csv. A command that was stopped resumes from there.
clusters/this-machine.json describes this machine as it was measured.
"""

import argparse
import collections
import json
import math
import os
import re
import sys
import tempfile

import numpy as np
from measuring import runs
from measuring.folders import Example
from measuring.results import machine, median, read, write
from experiments import BATCH, HERE, local_steps_per_second, Scheme
import predictions
import validate_report
from validate_report import FIGURES, of

RESULTS = HERE / 'results' / 'validation.csv'
PRESET = HERE / 'clusters' / 'this-machine.json'

# What is run: a folder, with its numbers of backup workers and workers, its window, which repeat
# this is, and the local steps of all workers.
Case = collections.namedtuple('Case', 'scheme backups workers window repeat local_steps')
# Seconds: of a local step; of an exchange beyond it, and of processors in that; the same of a hop
# in a ring; and the deviation of a run.
TIMES = 'exchange', 'exchange_work', 'hop', 'hop_work'  # flags
Costs = collections.namedtuple('Costs', ['step', *TIMES, 'deviation'])
# Rows are 'real', 'simulated', or 'distant', simulated with a round trip in ms. Real ones have the
# seconds of a run of a worker's train op, their deviation, and the processor seconds in it.
COLUMNS = ['kind', *Case._fields, *FIGURES, 'run_s', 'deviation_s', 'work_s', 'round_trip',
           'machine']
SCHEMES = [('HogWild', 0), ('SSP', 0), ('AGN', 0), ('DOWNPOUR', 0), ('DynSGD', 0), ('AEASGD', 0),
           ('Local-SGD', 0), ('Synchronous-SGD', 0), ('Synchronous-SGD', 1), ('Ring-AllReduce', 0)]
WORKERS = 1, 2, 4, 8
IN_A_RING = 1, 2, 3, 4, 8
REPEATS = {1: 3}  # by workers; all costs are measured with one
MORE_REPEATS = 2
STEPS = {True: 3000, False: 10000}  # whether each local step is pushed
LONG_WINDOW = 50
DISTANT_STEPS = 4000
SUMS = re.compile(r': did .* accepted (\d+), dropped (\d+)')


def cases():
    """Returns a list of `Case`: one repeat of all after the other."""
    found = []
    for repeat in range(max(REPEATS.values())):
        for scheme, backups in SCHEMES:
            window = Example(scheme).window
            steps = STEPS[window == 1]
            found += [Case(scheme, backups, workers, window, repeat, steps)
                      for workers in (IN_A_RING if Example(scheme).kind == 'ring' else WORKERS)
                      if workers > backups and repeat < REPEATS.get(workers, MORE_REPEATS)]
            if scheme == 'AGN':
                found.append(Case(scheme, backups, 1, LONG_WINDOW, repeat, 3 * steps))
    return found


def arguments(case):
    """Returns the flags of a case, a list of strings."""
    flags = Example(case.scheme).arguments(case.workers, case.window, case.local_steps)
    if case.backups:
        flags.append(f'--replicas_to_aggregate={case.workers - case.backups}')
    if case.scheme == 'Ring-AllReduce':
        flags.append('--implementation=ring')  # its costs are those of the presets
    return [*flags, f'--batch_size={BATCH}', f'--seed={case.repeat + 1}']


def measured(notes, work):
    """Returns the costs of runs of the train op.

    Args:
      notes: list of dicts, what the processes wrote by tfdist/training/notes.py.
      work: list of pairs, `runs.Run.work`.

    Returns:
      Dict of 'run_s', 'deviation_s', a robust one, and 'work_s', '' if the run was too short.
    """
    begin = max(note['times'][runs.WARM_UP] for note in notes)
    end = min(note['times'][-1] for note in notes)
    took = np.concatenate([np.diff(note['times'][runs.WARM_UP:]) for note in notes])
    low, high = np.percentile(took, [25, 75])
    inside = [(when, worked) for when, worked in work if begin <= when <= end]
    found = {'run_s': len(notes) / runs.rate(notes), 'deviation_s': (high - low) / 1.349,
             'work_s': ''}
    if len(inside) > 1:
        (first, before), (last, after) = inside[0], inside[-1]
        number = sum(first < when <= last for note in notes for when in note['times'])
        found['work_s'] = (after - before) / max(1, number)
    return found


def really_run(case):
    """Runs a case; returns a row, a dict."""
    with tempfile.TemporaryDirectory() as directory:
        run = runs.Run(case.scheme, *arguments(case), f'--notes_dir={directory}',
                       f'--log_every_n_steps={10**9}', WORKERS=str(case.workers))
        notes = runs.notes_in(directory)
    staleness = collections.Counter()
    for note in notes:
        staleness.update({int(value): count for value, count in note['staleness'].items()})
    sums = [tuple(map(int, match.groups())) for _, line in run.lines
            for match in [SUMS.search(line)] if match]
    accepted, dropped = map(sum, zip(*sums)) if sums else (0, 0)
    mean = (sum(value * count for value, count in staleness.items()) / sum(staleness.values())
            if staleness else '')
    return dict(measured(notes, run.work), steps_per_s=case.window * runs.rate(notes),
                staleness=mean, accuracy=run.figures()['test accuracy'],
                dropped=dropped / (accepted + dropped) if sums else '')


def seconds_of_step(rows):
    """Returns the seconds of a local step, from rows of real runs."""
    window = Example('AGN').window
    short, long = (median(of(rows, 'real', scheme='AGN', workers=1, window=each), 'work_s')
                   for each in (window, LONG_WINDOW))
    return (long - short) / (LONG_WINDOW - window)


def costs_of(scheme, rows):
    """Returns the `Costs` of a scheme, from rows of real runs."""
    example = Example(scheme)
    window = example.window

    def of_run(workers):
        """Returns the seconds of a run, and those of processors in it."""
        alone = of(rows, 'real', scheme=scheme, backups=0, workers=workers, window=window)
        return median(alone, 'run_s'), median(alone, 'work_s')

    deviation = median(of(rows, 'real', scheme=scheme, backups=0, workers=1, window=window),
                       'deviation_s')
    if example.kind != 'ring':
        step = seconds_of_step(rows)
        run, work = of_run(1)
        return Costs(step, *(max(0., each - window * step) for each in (run, work)), 0., 0.,
                     deviation)
    step = of_run(1)[0]
    return Costs(step, *costs_of_ring(step, *of_run(2), of_run(3)[1]), deviation)


def costs_of_ring(step, run, work, more):
    """Returns the costs of a ring by the names of TIMES, four floats.

    One worker exchanges nothing, two have two hops, and three have four.

    Args:
      step: float, seconds of a local step.
      run: float, seconds of a run of two workers.
      work: float, seconds of processors in that.
      more: float, seconds of processors in a run of three workers.
    """
    hop_work = max(0., more - work) / 2
    # What the second worker adds; waiting is divided as the work is.
    waits, works = run - step, max(work - step, 2 * hop_work, 1e-9)
    hop = waits * hop_work / works
    return waits - 2 * hop, works - 2 * hop_work, hop, hop_work


def description_of(costs, window):
    """Returns a description of this machine, a dict, by names of flags.

    The local steps get all variation from run to run.

    Args:
      costs: `Costs`.
      window: int, local steps in a run.
    """
    sigma = math.sqrt(math.log1p(window * (costs.deviation / window / costs.step) ** 2))
    step = f'{1e3 * costs.step:.4g}ms'
    return {'step': f'lognormal:{step}:{sigma:.3g}' if sigma else step, 'cores': os.cpu_count(),
            **{name: f'{1e3 * getattr(costs, name):.4g}ms' for name in TIMES}}


def simulated(process, case, rows, **changes):
    """Simulates a case; returns a row, a dict.

    Args:
      process: `experiments.Scheme`.
      case: `Case`.
      rows: list of dicts, of which those with the fewest workers tell the costs.
      **changes: strings, other flags.
    """
    about = description_of(costs_of(case.scheme, rows), case.window)
    asked = dict((name, str(value)) for name, value in about.items())
    asked.update(flag[2:].split('=', 1) for flag in arguments(case))
    # All that the flags leave of this preset: messages take no time.
    asked.update(cluster='this-machine', workers=str(case.workers), tests='1', **changes)
    found = process.simulate(asked)
    return dict(found, steps_per_s=local_steps_per_second(found))


class Results:
    """The rows of the file; each new row is written at once.

    Attributes:
      rows: list of dicts of strings.
    """

    def __init__(self, path):
        """Reads the real runs; the simulated ones are made anew."""
        self._path = path
        self.rows = [row for row in read(path) if row['kind'] == 'real']

    def has(self, case):
        """Returns whether there is a real run of a `Case`."""
        return bool(of(self.rows, 'real', **case._asdict()))

    def add(self, kind, case, figures):
        """Adds a row and writes the file."""
        row = dict(case._asdict(), kind=kind, machine=machine(), **{
            name: f'{value:.5g}' if isinstance(value, float) else value
            for name, value in figures.items() if name in COLUMNS and name not in Case._fields})
        self.rows.append({name: str(row.get(name, '')) for name in COLUMNS})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write(self._path, COLUMNS, self.rows)


def write_preset(rows):
    """Writes the preset of this machine: HogWild's costs, and those of a ring's hop."""
    costs, ring = costs_of('HogWild', rows), costs_of('Ring-AllReduce', rows)
    PRESET.write_text(json.dumps(dict(
        {'about': f'The machine that the results are of: {rows[0]["machine"]}, which all tasks '
         'share. `bash run.sh --validate` measured it, with one worker of HogWild: exchange is '
         'what a run of its train op takes beyond the local step, exchange_work what the '
         'processors of worker and ps work in that, and the local step is by what longer windows '
         'of AGN take longer. hop and hop_work are of a ring.'},
        **description_of(costs._replace(hop=ring.hop, hop_work=ring.hop_work),
                         Example('HogWild').window)), indent=2) + '\n', encoding='utf-8')


def main():
    """Measures, simulates, compares."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--validate', action='store_true', help='this program; give it first')
    parser.add_argument('--fresh', action='store_true', help='forget all results and begin anew')
    parser.add_argument('--draw', action='store_true',
                        help='tables and picture again, without any run')
    options = parser.parse_args()
    if options.draw:
        if not RESULTS.exists():
            sys.exit(f'There is no {RESULTS}: `bash run.sh --validate` makes it.')
        validate_report.publish(read(RESULTS), len(cases()))
        return
    if options.fresh and RESULTS.exists():
        RESULTS.unlink()
    results = Results(RESULTS)
    left = [case for case in cases() if not results.has(case)]
    for number, case in enumerate(left):
        print(f'{number + 1} of {len(left)}: {case.scheme}, {case.workers} workers, window '
              f'{case.window}, repeat {case.repeat + 1}', flush=True)
        results.add('real', case, really_run(case))
    write_preset(results.rows)
    for scheme in dict.fromkeys(scheme for scheme, _ in SCHEMES):
        with Scheme(scheme) as process:
            for case in cases():
                if (case.scheme == scheme and not case.repeat and case.window != LONG_WINDOW):
                    results.add('simulated', case, simulated(process, case, results.rows))
            for (name, window, round_trip), _ in validate_report.measured_at_a_distance():
                if name == scheme:
                    case = Case(name, 0, 2, window, 0, DISTANT_STEPS)
                    found = simulated(process, case, results.rows,
                                      latency=f'{round_trip / 2:g}ms')
                    results.add('distant', case, dict(found, round_trip=round_trip))
    predictions.simulate()
    validate_report.publish(results.rows, len(cases()))
    print(validate_report.summary(results.rows, len(cases())))


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --validate` goes on.')
