"""Compares simulated with real runs on this machine: steps/s, staleness, accuracy, dropped pushes.

    bash run.sh --validate              what is missing
    bash run.sh --validate --fresh      all of it anew, on a quiet machine
    bash run.sh --validate --draw       tables and picture again, without any run
    bash run.sh --validate --only='HogWild, 2 workers' --results_dir=mine     some cases, elsewhere

Costs are measured with one worker: the seconds of a run of the train op, and the processor seconds
of the worker and the ps in it. Two lengths of AGN's window show how much of that is a local step.
In a ring one worker sends nothing: there runs of two and three workers show what a run and a hop
cost. Then the same folder, flags and local steps are simulated and really run with more workers,
with workers that sleep, and with a rate or a distance between hosts: see `validate_cases`. Nothing
is fitted to these; beside the simulation stands the model of one line in `naive`.

Each run is a row of results/validation.csv. A command that was stopped resumes from there.
clusters/this-machine.json describes this machine as it was measured.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import re
import sys
import tempfile

import numpy as np
from measuring import hosts, runs
from measuring.folders import Example
from measuring.results import machine, median, read, write
import description
from experiments import HERE, local_steps_per_second, Scheme
import predictions
import validate_cases
from validate_cases import Case, costing, FIELDS, is_fitted, LONG_WINDOW, RING, seconds_of_step
import validate_report
from validate_report import FIGURES

RESULTS = HERE / 'results'
PRESETS = HERE / 'clusters'
OF_PRESET = [('HogWild', 1), (RING, 1), (RING, 2), (RING, 3)]  # what its costs are measured with

# Seconds: of a local step; of an exchange beyond it, and of processors in that; the same of a hop
# in a ring; and the deviation of a run.
TIMES = 'exchange', 'exchange_work', 'hop', 'hop_work'  # flags
Costs = collections.namedtuple('Costs', ['step', *TIMES, 'deviation'])
# Rows are 'real' or 'simulated'. Those from which costs follow have the seconds of a run of a
# worker's train op, their deviation, and the processor seconds in it.
COLUMNS = ['kind', *Case._fields, *FIGURES, 'run_s', 'deviation_s', 'work_s', 'machine']


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


@contextlib.contextmanager
def where(case):
    """Makes the hosts of a case that has links; yields environment variables for its run."""
    env = {'WORKERS': str(case.workers)}
    if not case.mbit and not case.round_trip:
        yield env
        return
    with hosts.of_tasks(1, case.workers, case.round_trip / 1000 if case.round_trip else None,
                        case.mbit / 1000 if case.mbit else None) as network:
        yield dict(env, PYTHON=network.python())


def really_run(case):
    """Runs a case; returns a row, a dict."""
    with tempfile.TemporaryDirectory() as directory, where(case) as env:
        run = runs.Run(case.scheme, *validate_cases.arguments(case), f'--notes_dir={directory}',
                       f'--log_every_n_steps={10**9}', **env)
        notes = runs.notes_in(directory)
    staleness = collections.Counter()
    for note in notes:
        staleness.update({int(value): count for value, count in note['staleness'].items()})
    figures = run.figures()
    pushes = figures.get('accepted', 0) + figures.get('dropped', 0)
    mean = (sum(value * count for value, count in staleness.items()) / sum(staleness.values())
            if staleness else '')
    return dict(measured(notes, run.work) if is_fitted(case._asdict()) else {},
                steps_per_s=case.window * runs.rate(notes), staleness=mean,
                accuracy=figures['test accuracy'],
                dropped=figures['dropped'] / pushes if pushes else '')


def costs_of(scheme, rows, model=''):
    """Returns the `Costs` of a scheme with a model, from rows of real runs."""
    window = Example(scheme).window

    def of_run(workers):
        """Returns the seconds of a run, and those of processors in it."""
        own = costing(rows, scheme, workers, window, model)
        return median(own, 'run_s'), median(own, 'work_s')

    deviation = median(costing(rows, scheme, 1, window, model), 'deviation_s')
    if scheme != RING:
        step = seconds_of_step(rows, model)
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
    # What the second worker adds, if the local step is not so long that it is lost in the noise;
    # waiting is divided as the work is.
    waits, works = max(0., run - step), max(work - step, 2 * hop_work, 1e-9)
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


def asked(case, rows):
    """Returns what to simulate for a case, a dict of strings by names of flags.

    Args:
      case: `Case`.
      rows: list of dicts, of which the fitted ones tell the costs.
    """
    about = description_of(costs_of(case.scheme, rows, case.model), case.window)
    found = dict((name, str(value)) for name, value in about.items())
    found.update(flag[2:].split('=', 1) for flag in validate_cases.arguments(case))
    found.pop('model', None)  # the process has imported it
    # All that the flags leave of this preset: messages take no time.
    found.update(cluster='this-machine', workers=str(case.workers), tests='1')
    if case.mbit:
        found.update(dict.fromkeys(('bandwidth', 'ps_bandwidth'), f'{case.mbit}Mbit'),
                     links=description.SHARED)
    if case.round_trip:
        found['latency'] = f'{case.round_trip / 2:g}ms'
    return found


class Results:
    """The rows of the file; each new row is written at once.

    Attributes:
      rows: list of dicts of strings.
    """

    def __init__(self, path):
        """Reads the real runs; the simulated ones are made anew.

        Raises:
          SystemExit: if they are of another machine.
        """
        self._path = path
        self.rows = [row for row in read(path) if row['kind'] == 'real']
        others = {row['machine'] for row in self.rows} - {machine()}
        if others:
            sys.exit(f'{path} is of {", ".join(sorted(others))}; this is {machine()}. --fresh '
                     'begins a new one, --results_dir puts it elsewhere.')

    def add(self, kind, case, figures):
        """Adds a row and writes the file."""
        row = dict(case._asdict(), kind=kind, machine=machine(), **{
            name: f'{value:.5g}' if isinstance(value, float) else value
            for name, value in figures.items() if name in COLUMNS and name not in Case._fields})
        self.rows.append({name: str(row.get(name, '')) for name in COLUMNS})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write(self._path, COLUMNS, self.rows)

    def to_simulate(self):
        """Returns a `Case` for each that was really run, but for the long windows, a list."""
        first = {}  # of the repeats
        for row in self.rows:
            first.setdefault(tuple(row[name] for name in FIELDS), row)
        found = [Case(*(int(row[name]) if row[name].isdigit() else row[name]
                        for name in Case._fields)) for row in first.values()]
        return [case for case in found
                if case.window != LONG_WINDOW or not is_fitted(case._asdict())]


def really_run_all(cases, results):
    """Makes the real runs of cases; says what cannot be run here."""
    reason = any(case.mbit or case.round_trip for case in cases) and hosts.missing()
    if reason:
        print(f'Without the runs at bandwidths and distances: {reason}.', file=sys.stderr)
        cases = [case for case in cases
                 if not (case.mbit or case.round_trip or case.model)]
    for number, case in enumerate(cases):
        print(f'{number + 1} of {len(cases)}: {validate_cases.words(case._asdict())}'
              f'{", again" if case.repeat else ""}', flush=True)
        results.add('real', case, really_run(case))


def simulate_all(results):
    """Simulates what was really run."""
    together = collections.OrderedDict()  # what one process simulates
    for case in results.to_simulate():
        together.setdefault((case.scheme, case.model), []).append(case)
    real = list(results.rows)
    for (scheme, model), cases in together.items():
        with Scheme(scheme, *([f'--model={model}'] if model else [])) as process:
            for case in cases:
                found = process.simulate(asked(case, real))
                results.add('simulated', case,
                            dict(found, steps_per_s=local_steps_per_second(found)))


def write_preset(rows, directory):
    """Writes the preset of this machine: HogWild's costs, and those of a ring's hop."""
    costs, ring = costs_of('HogWild', rows), costs_of(RING, rows)
    (directory / 'this-machine.json').write_text(json.dumps(dict(
        {'about': f'The machine that the results are of: {rows[0]["machine"]}, which all tasks '
         'share. `bash run.sh --validate` measured it, with one worker of HogWild: exchange is '
         'what a run of its train op takes beyond the local step, exchange_work what the '
         'processors of worker and ps work in that, and the local step is by what longer windows '
         'of AGN take longer. hop and hop_work are of a ring.'},
        **description_of(costs._replace(hop=ring.hop, hop_work=ring.hop_work),
                         Example('HogWild').window)), indent=2) + '\n', encoding='utf-8')


def parse(arguments):
    """Returns the options; `cases` is a list of those to run."""
    parser = argparse.ArgumentParser(prog='run.sh', description=__doc__.split('\n')[0])
    parser.add_argument('--validate', action='store_true', help='this program; give it first')
    parser.add_argument('--fresh', action='store_true', help='forget all results and begin anew')
    parser.add_argument('--draw', action='store_true',
                        help='tables and picture again, without any run')
    parser.add_argument('--only', metavar='WORDS', default='',
                        help='a regular expression: only cases that it finds, and their costs')
    parser.add_argument('--results_dir', type=pathlib.Path, default=RESULTS,
                        help='where the results are; only those of the collection are published')
    options = parser.parse_args(arguments)
    try:
        options.cases = validate_cases.chosen(options.only)
    except re.error as error:
        sys.exit(f'--only={options.only}: it is no regular expression ({error}).')
    if not options.cases:
        sys.exit(f'--only={options.only}: there is no such case; one is '
                 f'"{validate_cases.words(validate_cases.cases()[1]._asdict())}".')
    return options


def main(arguments):
    """Measures, simulates, compares."""
    options = parse(arguments)
    is_published = options.results_dir.resolve() == RESULTS
    path = options.results_dir / 'validation.csv'
    if options.draw:
        if not path.exists():
            sys.exit(f'There is no {path}: `bash run.sh --validate` makes it.')
        rows = read(path)
    else:
        if options.fresh and path.exists():
            path.unlink()
        results = Results(path)
        left = set(validate_cases.missing(results.rows))
        really_run_all([case for case in options.cases if case in left], results)
        if all(costing(results.rows, *each, window=1) for each in OF_PRESET):
            write_preset(results.rows, PRESETS if is_published else options.results_dir)
        simulate_all(results)
        predictions.simulate()
        rows = results.rows
    validate_report.publish(rows, None if is_published else options.results_dir)
    print(validate_report.summary(rows))


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit('Stopped. The same command without --fresh goes on.')
