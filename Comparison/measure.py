"""Measures one example as the tables of the READMEs have it: several seeds, one row.

    python Comparison/measure.py AGN
    python Comparison/measure.py --workers=4 --seeds=3 AGN -- --communication_window=50

What follows -- are flags of the example. The row: test accuracy, mean and standard deviation over
the seeds; local steps/s of all workers together, median; staleness, the mean of all updates and the
largest; the seconds from the start of the chief's program to its test, median.
"""

import argparse
import os
import re
import statistics
import sys
import time

from bench import Run

DID = re.compile(r'[\w ]+: did (\d+) local steps, (?:staleness ([\d.]+) \(max (\d+)\), )?'
                 r'(?:.*, )?(\d+) steps/s')
TEST = re.compile(r'test accuracy ([\d.]+) after \d+ steps, ([\d.]+) s')
HEADER = ['folder', 'workers', 'flags', 'local steps', 'test accuracy', 'local steps/s',
          'staleness (max)', 'seconds']


def figures(run):
    """Returns a dict of what a finished `Run` printed: floats, by the table's columns."""
    done = [match.groups() for match in (DID.fullmatch(line) for _, line in run.lines) if match]
    worked = [(int(steps), staleness, most, int(rate)) for steps, staleness, most, rate in done
              if int(rate)]  # one that came too late did nothing
    steps = sum(row[0] for row in worked)
    found = {'local steps': steps,
             # By the time of the worker that took longest: the others' steps are over by then.
             'local steps/s': steps / max(row[0] / row[3] for row in worked)}
    found['test accuracy'], found['seconds'] = map(float, run.find(TEST.pattern)[1].groups())
    if worked[0][1]:
        # Workers make as many updates as they have local steps, by the same factor.
        found['staleness'] = sum(row[0] * float(row[1]) for row in worked) / steps
        found['most'] = max(int(row[2]) for row in worked)
    return found


def row(folder, workers, flags, runs):
    """Returns the cells of the table for a list of dicts from `figures`, one for each seed."""
    def column(name):
        return [run[name] for run in runs]

    accuracy = column('test accuracy')
    spread = f' ± {statistics.stdev(accuracy):.3f}' if len(runs) > 1 else ''
    stale = 'staleness' in runs[0]
    return [folder, str(workers), f'`{" ".join(flags)}`' if flags else '',
            f'{statistics.median(column("local steps")):.0f}',
            f'{statistics.mean(accuracy):.3f}{spread}',
            f'{statistics.median(column("local steps/s")):.0f}',
            f'{statistics.mean(column("staleness")):.1f} ({max(column("most"))})' if stale else '',
            f'{statistics.median(column("seconds")):.1f}']


def main():
    """Measures, and prints the table."""
    own, flags = sys.argv[1:], []
    if '--' in own:
        own, flags = own[:own.index('--')], own[own.index('--') + 1:]
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folder', help='such as AGN; its flags follow --')
    parser.add_argument('--seeds', type=int, default=5, help='seeds 1, 2, ... (default: 5)')
    parser.add_argument('--workers', type=int, default=2, help='workers (default: 2)')
    parser.add_argument('--ps', type=int, default=1, help='parameter servers (default: 1)')
    options = parser.parse_args(own)
    load, runs = os.getloadavg()[0], []
    for seed in range(1, options.seeds + 1):
        run = Run(options.folder, *flags, f'--seed={seed}', WORKERS=str(options.workers),
                  PS=str(options.ps))
        runs.append(figures(run))
    alone = os.path.basename(options.folder.rstrip('/')) == 'Non-Distributed-Setup'
    print(f'{time.strftime("%Y-%m-%d")}, {os.cpu_count()} cores, Python {sys.version.split()[0]}; '
          f'seeds: {options.seeds}; load when it began: {load:.1f}\n', file=sys.stderr)
    for cells in (HEADER, ['---'] * len(HEADER),
                  row(options.folder, '' if alone else options.workers, flags, runs)):
        print('| ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
    main()
