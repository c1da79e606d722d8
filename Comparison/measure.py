"""Measures one example as the tables of the READMEs have it: several seeds, one row.

    python Comparison/measure.py AGN
    python Comparison/measure.py --workers=4 --seeds=3 AGN -- --communication_window=50
    python Comparison/measure.py --readmes              the tables of all READMEs again, in place
    python Comparison/measure.py --readmes AGN HogWild  those of some folders, or of a page of docs

What follows -- are flags of the example. The row: test accuracy, mean and standard deviation over
the seeds; local steps/s of all workers together, median; staleness, the mean of all updates and the
largest; the seconds from the start of the chief's program to its test, median.

The commands that --readmes runs are those of the code blocks beside the tables. It can be stopped
at any time: a README is written in one piece, when all of its rows are there.
"""

import argparse
import collections
import os
import signal
import statistics
import subprocess
import sys
import time

from measuring import readmes
from measuring.folders import Example
from measuring.results import machine
from measuring.runs import ROOT, Run
import bench

SEEDS = 5
HEADER = ['folder', 'workers', 'flags', 'local steps', 'test accuracy', 'local steps/s',
          'staleness (max)', 'seconds']
# For an estimate: seconds of a run of which no row says them, of what is before and after those
# that it does say, and of a case of bench.py.
UNKNOWN_SECONDS, MORE_SECONDS, CASE_SECONDS = 8, 3, 9

# What a command in a README takes: how many runs, about how many seconds, and the function that
# makes them and returns the rows, a list of dicts of cells by column.
Job = collections.namedtuple('Job', 'runs seconds rows')


def parse(words):
    """Returns the options of a command line, a list of strings, and `flags`, what follows --."""
    own, flags = words, []
    if '--' in own:
        own, flags = own[:own.index('--')], own[own.index('--') + 1:]
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folders', nargs='*', metavar='FOLDER',
                        help='such as AGN; its flags follow --')
    parser.add_argument('--seeds', type=int, help=f'seeds 1, 2, ... (default: {SEEDS})')
    parser.add_argument('--workers', type=int, default=2, help='workers (default: 2)')
    parser.add_argument('--ps', type=int, default=1, help='parameter servers (default: 1)')
    parser.add_argument('--readmes', action='store_true',
                        help='measure the tables of the READMEs again, those of the folders or '
                        'all; with --seeds otherwise than their commands say')
    options = parser.parse_args(own, argparse.Namespace(flags=flags))
    if not options.readmes and len(options.folders) != 1:
        parser.error('one folder at a time')
    if options.seeds is None and not options.readmes:
        options.seeds = SEEDS
    if options.seeds is not None and options.seeds < 1:
        parser.error('without a seed there is nothing to measure')
    return options


def command_of(options):
    """Returns the first cells of a row, which say what was run."""
    folder, = options.folders
    alone = Example(folder).kind == 'alone'
    return [folder, '' if alone else str(options.workers),
            f'`{" ".join(options.flags)}`' if options.flags else '']


def row(options, runs):
    """Returns the cells of a row for the figures of runs, a list of dicts: one for each seed."""
    accuracies = [run['test accuracy'] for run in runs]
    spread = f' ± {statistics.stdev(accuracies):.3f}' if len(runs) > 1 else ''
    steps, rate, seconds = (statistics.median(run[name] for run in runs)
                            for name in ('local steps', 'local steps/s', 'seconds'))
    if Example(options.folders[0]).settings.own_steps:  # a fast worker ends before a slow one
        rate = statistics.median(options.workers * run['steps/s per worker'] for run in runs)
    stale = ''
    if 'staleness' in runs[0]:
        stale = (f'{statistics.mean(run["staleness"] for run in runs):.1f} '
                 f'({max(run["most"] for run in runs)})')
    return [*command_of(options), f'{steps:.0f}', f'{statistics.mean(accuracies):.3f}{spread}',
            f'{rate:.0f}', stale, f'{seconds:.1f}']


def measured(options):
    """Makes the runs of an example; returns the cells of its row."""
    folder, = options.folders
    env = ({} if Example(folder).kind == 'alone' else
           {'WORKERS': str(options.workers), 'PS': str(options.ps)})
    return row(options, [Run(folder, *options.flags, f'--seed={seed}', **env).figures()
                         for seed in range(1, options.seeds + 1)])


def job(words, table, seeds):
    """Returns the `Job` of a command in a README.

    Args:
      words: tuple of strings, the command: a program, and what follows.
      table: `readmes.Table`, that its rows are for; if it has not such rows, that is a ValueError.
      seeds: int, how many, or how many repeats; None: as the command says.
    """
    if words[0].endswith('bench.py'):
        table.row({'': ''})
        options = bench.parse(list(words[1:]))
        options.repeats = seeds or options.repeats
        runs = options.repeats * (len(options.cases) + 2 * len(options.pairs))
        return Job(runs, runs * CASE_SECONDS,
                   lambda: [row for _, rows, _ in bench.tables(options) for row in rows])
    options = parse(list(words[1:]))
    options.seeds = seeds or options.seeds
    old = table.row(dict(zip(HEADER, command_of(options)))) or {}
    seconds = float(old.get('seconds') or UNKNOWN_SECONDS) + MORE_SECONDS
    return Job(options.seeds, options.seeds * seconds,
               lambda: [dict(zip(HEADER, measured(options)))])


def pages(names):
    """Returns paths below ROOT, a list of strings: of all READMEs, or of named files and folders.

    Raises:
      SystemExit: if there is nothing of such a name.
    """
    found = [path.relative_to(ROOT) for path in [*ROOT.glob('*.md'), *ROOT.glob('[!.]*/*.md')]]
    unknown = set(names) - {str(name) for path in found for name in (path, path.parent)}
    if unknown:
        sys.exit(f'There is no README of {", ".join(sorted(unknown))}.')
    return sorted(str(path) for path in found
                  if not names or str(path) in names or str(path.parent) in names)


def jobs_of(page, seeds):
    """Returns the jobs for the tables of a README, a dict of `Job` by their commands.

    Says which tables it has none for.
    """
    found = {}
    for table in readmes.tables((ROOT / page).read_text(encoding='utf-8')):
        try:
            found.update({words: job(words, table, seeds)
                          for words in readmes.commands(table.block)})
        except ValueError as error:
            print(f'{page}, line {table.line}: {error}; left alone', flush=True)
    return found


def versions():
    """Returns the versions of TensorFlow and of Python, strings."""
    said = subprocess.run([sys.executable, '-c', 'from tfdist.start.quiet import tf; '
                           'print(tf.__version__)'], cwd=str(ROOT), stdout=subprocess.PIPE,
                          universal_newlines=True, check=True).stdout
    return said.strip(), '{}.{}'.format(*sys.version_info)


def renew(names, seeds):
    """Measures the tables of READMEs again, and writes each README when all its rows are there.

    The `names` are as for `pages`, and `seeds` for all commands; None: as they say.

    Raises:
      SystemExit: if it is stopped; that says how to go on.
    """
    jobs = {page: jobs_of(page, seeds) for page in pages(names)}
    left = [page for page, own in jobs.items() if own]
    every = {words: each for own in jobs.values() for words, each in own.items()}
    print(f'{sum(each.runs for each in every.values())} runs for {len(every)} rows or tables, '
          f'about {sum(each.seconds for each in every.values()) / 60:.0f} minutes', flush=True)
    rows = {}
    try:
        where = versions()
        while left:
            for words in jobs[left[0]]:
                if words not in rows:  # some stand in several READMEs
                    print(f'{len(rows) + 1} of {len(every)}: python {" ".join(words)}', flush=True)
                    rows[words] = _rows_or_none(every[words])
            _write(ROOT / left[0], {words: rows[words] for words in jobs[left[0]]}, where)
            del left[0]
    except KeyboardInterrupt:
        sys.exit('Stopped. This goes on: python Comparison/measure.py --readmes ' + ' '.join(left))


def _write(path, rows, where):
    """Puts new rows into a README, in one piece; says which of its rows are the old ones.

    The `rows` are lists, or None, by the commands that made them; `where` is what `versions` says.
    """
    # It is read again: somebody may have edited it meanwhile.
    text, remarks = readmes.renewed(path.read_text(encoding='utf-8'), rows.get)
    if any(rows.values()):
        text = readmes.dated(text, time.strftime('%Y-%m-%d'), os.cpu_count(), *where)
        part = path.with_suffix('.part')
        part.write_text(text, encoding='utf-8')
        os.replace(str(part), str(path))
    for remark in [*remarks, 'done']:
        print(f'{path.relative_to(ROOT)}, {remark}', flush=True)


def _rows_or_none(each):
    try:
        return each.rows()
    except SystemExit as error:
        print(f'failed: {str(error).splitlines()[-1]}', flush=True)
        return None


def main():
    """Measures, and prints the table, or writes tables."""
    options = parse(sys.argv[1:])
    if options.readmes:
        renew(options.folders, options.seeds)
        return
    load = os.getloadavg()[0]
    cells = measured(options)
    print(f'{time.strftime("%Y-%m-%d")}, {machine()}; seeds: {options.seeds}; load when it began: '
          f'{load:.1f}\n', file=sys.stderr)
    readmes.show(readmes.table([HEADER, cells], 'lllr'))


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is under way is ended
    main()
