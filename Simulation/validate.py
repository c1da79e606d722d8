"""Simulated against really run, on this machine: steps/s, staleness, accuracy, pushes dropped.

    bash run.sh --validate              what is not there yet, ten minutes on two cores if all is
    bash run.sh --validate --fresh      all of it anew
    bash run.sh --validate --draw       the table again, without any run

What things cost is measured with one worker, and nothing is fitted: seconds of a run of
the train op, and processor seconds of the worker and the ps in it. What a local step takes of that,
two lengths of AGN's window show. In a ring one worker sends nothing: there two show what a hop
costs. Then the same folder, flags and local steps are simulated and really run with more workers.

Results are in results/validation.csv, a row for each run, to which a command that was stopped goes
on; clusters/this-machine.json is this machine as it was measured.
"""

import argparse
import collections
import csv
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile

from experiments import HERE, Scheme
import numpy as np

sys.path.append(str(HERE.parent / 'Comparison'))

from examples import Example  # noqa: E402
import readmes  # noqa: E402
import runs  # noqa: E402
import scaling  # noqa: E402

RESULTS = HERE / 'results' / 'validation.csv'
PRESET = HERE / 'clusters' / 'this-machine.json'
README = HERE / 'README.md'

# What is run: a folder, with how many backup workers, on how many workers, in which window, how
# often, and how many local steps all workers make.
Case = collections.namedtuple('Case', 'scheme backups workers window repeat local_steps')
FIGURES = ['steps_per_s', 'staleness', 'accuracy', 'dropped']
# Rows are 'real' or 'simulated', or of 'cost model', that of Comparison. Real ones have the seconds
# of a run of a worker's train op, their deviation, and the processor seconds in it.
COLUMNS = ['kind', *Case._fields, *FIGURES, 'run_s', 'deviation_s', 'work_s', 'machine']
SCHEMES = [('HogWild', 0), ('SSP', 0), ('AGN', 0), ('DOWNPOUR', 0), ('DynSGD', 0), ('AEASGD', 0),
           ('Local-SGD', 0), ('Synchronous-SGD', 0), ('Synchronous-SGD', 1), ('Ring-AllReduce', 0)]
WORKERS = 1, 2, 4, 8
REPEATS = {1: 3}  # by workers; what all else is made of
MORE_REPEATS = 2
STEPS = {True: 3000, False: 10000}  # whether each local step is pushed
LONG_WINDOW = 50
BATCH = 32
TOLERANCES = {'steps_per_s': (0.2, 0), 'staleness': (0.2, 0.1), 'accuracy': (0, 0.01),
              'dropped': (0.2, 0.02)}  # relative, absolute: one of them is enough
SUMS = re.compile(r': did .* accepted (\d+), dropped (\d+)')


def cases():
    """Returns what is run, a list of `Case`: each repeat after the whole one before."""
    found = []
    for repeat in range(max(REPEATS.values())):
        for scheme, backups in SCHEMES:
            window = Example(scheme).window
            steps = STEPS[window == 1]
            found += [Case(scheme, backups, workers, window, repeat, steps) for workers in WORKERS
                      if workers > backups and repeat < REPEATS.get(workers, MORE_REPEATS)]
            if scheme == 'AGN':
                found.append(Case(scheme, backups, 1, LONG_WINDOW, repeat, 3 * steps))
    return found


def arguments(case):
    """Returns the flags of a case, a list of strings."""
    flags = Example(case.scheme).arguments(case.workers, case.window, case.local_steps)
    if case.backups:
        flags.append(f'--replicas_to_aggregate={case.workers - case.backups}')
    return [*flags, f'--batch_size={BATCH}', f'--seed={case.repeat + 1}']


def measured(notes, work):
    """Returns what runs of the train op cost.

    Args:
      notes: list of dicts, what the processes wrote by tfdist/notes.py.
      work: list of pairs, `runs.Run.work`.

    Returns:
      Dict of 'run_s', 'deviation_s', robust, and 'work_s', '' if it was too short for that.
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


def median(rows, name):
    """Returns the median of a column, of those rows that have it; None if none has."""
    values = [float(row[name]) for row in rows if row[name] not in ('', None)]
    return statistics.median(values) if values else None


def of(rows, kind, **which):
    """Returns the rows of a kind and of what a case's fields are to be."""
    return [row for row in rows if row['kind'] == kind
            and all(row[name] == str(value) for name, value in which.items())]


def seconds_of_step(rows):
    """Returns the seconds of a local step, of the rows that were really run."""
    window = Example('AGN').window
    short, long = (median(of(rows, 'real', scheme='AGN', workers=1, window=each), 'work_s')
                   for each in (window, LONG_WINDOW))
    return (long - short) / (LONG_WINDOW - window)


def costs_of(scheme, rows):
    """Returns (`scaling.Costs`, deviation of a run in seconds) of a scheme, of real rows."""
    example = Example(scheme)
    alone = of(rows, 'real', scheme=scheme, backups=0, workers=1, window=example.window)
    run, work = median(alone, 'run_s'), median(alone, 'work_s')
    if example.kind == 'ring':
        two = of(rows, 'real', scheme=scheme, workers=2)
        step, hops = run, 2
        run, work = median(two, 'run_s'), median(two, 'work_s')
    else:
        step, hops = seconds_of_step(rows), 1
    costs = scaling.Costs(step, *(max(0., each - example.window * step) / hops
                                  for each in (run, work)))
    return costs, median(alone, 'deviation_s')


def description_of(costs, deviation, window):
    """Returns a description of this machine, a dict, by names of flags.

    What varies from run to run is put into the local steps.

    Args:
      costs: `scaling.Costs`.
      deviation: float, seconds, of a run.
      window: int, local steps in a run.
    """
    sigma = math.sqrt(math.log1p(window * (deviation / window / costs.step) ** 2))
    step = f'{1e3 * costs.step:.4g}ms'
    return {'step': f'lognormal:{step}:{sigma:.3g}' if sigma else step, 'cores': os.cpu_count(),
            'exchange': f'{1e3 * costs.exchange:.4g}ms',
            'exchange_work': f'{1e3 * costs.work:.4g}ms'}


def simulated(process, case, rows):
    """Simulates a case; returns a row, a dict.

    Args:
      process: `experiments.Scheme`.
      case: `Case`.
      rows: list of dicts, of which those with one worker say what things cost.
    """
    about = description_of(*costs_of(case.scheme, rows), case.window)
    asked = dict((name, str(value)) for name, value in about.items())
    asked.update(flag[2:].split('=', 1) for flag in arguments(case))
    # A preset, of which nothing is left but that messages take no time.
    asked.update(cluster='this-machine', workers=str(case.workers), tests='1')
    found = process.simulate(asked)
    return dict(found, steps_per_s=found['examples'] / BATCH / found['seconds'])


def modelled(case, rows):
    """Returns a row with what Comparison's cost model says with the same costs, a dict."""
    example, (costs, _) = Example(case.scheme), costs_of(case.scheme, rows)
    machine = scaling.Cluster(1, os.cpu_count(), math.inf, 0, True)
    return {'steps_per_s': scaling.steps_per_second(
        example.kind, example.synchronous, case.workers, case.window, scaling.DIGITS, costs,
        machine)}


class Results:
    """The rows in the file; each new one is there at once.

    Attributes:
      rows: list of dicts of strings.
    """

    def __init__(self, path):
        """Reads what is there, but what was simulated: that is made anew."""
        self._path, self.rows = path, []
        if path.exists():
            self.rows = [row for row in read(path) if row['kind'] == 'real']

    def has(self, case):
        """Returns whether a `Case` was really run."""
        return bool(of(self.rows, 'real', **case._asdict()))

    def add(self, kind, case, figures):
        """Adds a row, and writes the file."""
        row = dict(case._asdict(), kind=kind, machine=machine(), **{
            name: f'{value:.5g}' if isinstance(value, float) else value
            for name, value in figures.items() if name in COLUMNS and name not in Case._fields})
        self.rows.append({name: str(row.get(name, '')) for name in COLUMNS})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix('.part')
        with open(part, 'w', newline='', encoding='utf-8') as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(str(part), str(self._path))


def read(path):
    """Returns the rows of a file, a list of dicts."""
    with open(path, newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def machine():
    """Returns in words what a run is made on."""
    return f'{os.cpu_count()} cores, Python {platform.python_version()}'


def is_near(name, real, other):
    """Returns whether a figure of a simulation is as near to the real one as is wanted."""
    relative, absolute = TOLERANCES[name]
    return abs(other - real) <= max(relative * abs(real), absolute)


def pairs(rows, kind='simulated'):
    """Returns what can be compared: a list of (case's fields as a tuple, figure, real, other)."""
    found = []
    for row in of(rows, kind):
        which = {name: row[name] for name in ('scheme', 'backups', 'workers', 'window')}
        real = of(rows, 'real', **which)
        for name in FIGURES:
            values = median(real, name), median([row], name)
            if None not in values:
                found.append((tuple(which.values()), name, *values))
    return found


_FORMS = {'steps_per_s': '.0f', 'staleness': '.2f', 'accuracy': '.3f', 'dropped': '.1%'}


def table(rows):
    """Returns the lines for the README, of all rows."""
    lines = ['| | workers | steps/s | simulated | staleness | simulated | accuracy | simulated | '
             'dropped | simulated |', '|---|---:' + '|---:' * 8 + '|']
    cells = collections.OrderedDict()
    for which, name, real, other in pairs(rows):
        text = format(other, _FORMS[name])
        cells.setdefault(which, {})[name] = (
            format(real, _FORMS[name]), text if is_near(name, real, other) else f'**{text}**')
    for (scheme, backups, workers, _), figures in cells.items():
        name = f'{scheme}, {backups} backup' if int(backups) else scheme
        lines.append('| ' + ' | '.join([name, workers, *(
            cell for figure in FIGURES for cell in figures.get(figure, ('', '')))]) + ' |')
    compared = pairs(rows)
    lines += ['', 'As near as wanted, else bold: ' + '; '.join(
        '{} in {} of {}'.format(words, *_count(name, compared)) for name, words in (
            ('steps_per_s', 'steps/s within 20 %'), ('staleness', 'staleness within 20 % or 0.1'),
            ('accuracy', 'accuracy within 0.01'), ('dropped', 'dropped within 20 % or 2 %'))) + '.']
    errors = [[abs(other / real - 1)
               for (scheme, _, workers, _), name, real, other in pairs(rows, kind)
               if name == 'steps_per_s' and int(workers) > _measured_with(scheme)]
              for kind in ('simulated', 'cost model')]
    lines += ['With more workers than costs were measured with the steps/s are off by {:.0%} in '
              'the median and by {:.0%} at most; those of the '
              '[cost model](../Comparison/scaling.py), with the same costs, by {:.0%} and '
              '{:.0%}.'.format(*(figure(each) for each in errors
                                for figure in (statistics.median, max)))]
    there, whole = len(of(rows, 'real')), len(cases())
    if there < whole:
        lines += ['', f'This is not all of it: {there} of {whole} runs.']
    return lines


def _measured_with(scheme):
    """Returns with how many workers at most the costs of a scheme were measured."""
    return 2 if Example(scheme).kind == 'ring' else 1


def _count(figure, compared):
    near = [is_near(name, real, other) for _, name, real, other in compared if name == figure]
    return sum(near), len(near)


def publish(rows):
    """Puts the table into the README, between the marks."""
    readmes.fill(README, {'validation': '\n'.join(table(rows))})


def write_preset(rows):
    """Writes the description of this machine, with the costs of HogWild: a pull and a push."""
    window = Example('HogWild').window
    PRESET.write_text(json.dumps(dict(
        {'about': f'The machine that the results are of: {rows[0]["machine"]}, which all tasks '
         'share. `bash run.sh --validate` measured it, with one worker of HogWild: exchange is '
         'what a run of its train op takes beyond the local step, exchange_work what the '
         'processors of worker and ps work in that, and the local step is by what longer windows '
         'of AGN take longer.'},
        **description_of(*costs_of('HogWild', rows), window)), indent=2) + '\n', encoding='utf-8')


def main():
    """Measures, simulates, compares."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--validate', action='store_true', help='first: that it is this')
    parser.add_argument('--fresh', action='store_true', help='forget what is there, begin anew')
    parser.add_argument('--draw', action='store_true', help='the table again, without any run')
    options = parser.parse_args()
    if options.draw:
        if not RESULTS.exists():
            sys.exit(f'There is no {RESULTS}: `bash run.sh --validate` makes it.')
        publish(read(RESULTS))
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
                    results.add('cost model', case, modelled(case, results.rows))
    publish(results.rows)
    print('\n'.join(table(results.rows)))


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --validate` goes on.')
