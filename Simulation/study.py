"""Simulates every scheme with up to 1,024 workers, on the same problems and virtual clusters.

    bash run.sh --study                    all of it, some hours on two cores
    bash run.sh --study --only=AGN,SSP     some schemes only
    bash run.sh --study --draw             tables and pictures again, without any simulation
    bash run.sh --study --print=AGN,64     the command that repeats each simulation of AGN with 64

It does not simulate again what is in results/study.csv, and so resumes what was stopped. What
matters most comes first. Then it writes the tables of the READMEs and of results/study.md, and the
pictures.
"""

import argparse
import functools
import sys

import experiments
import study_cases
from study_cases import MissingError, STAGES, Study
import study_plots
import study_report

RESULTS = experiments.HERE / 'results'


class Simulator:
    """Simulates a scheme: has a process for each model that is asked for. A context manager.

    Attributes:
      name: string, of the study.
    """

    def __init__(self, name):
        self.name, self._processes = name, {}

    def simulate(self, asked):
        """See `experiments.Scheme`; also takes the name of the model."""
        flags = dict(asked)
        model = flags.pop('model', None)
        if model not in self._processes:
            self._processes[model] = experiments.Scheme(
                study_cases.folder_of(self.name), *([f'--model={model}'] if model else []))
        return self._processes[model].simulate(flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.__exit__()


def open_table(path):
    """Returns the `experiments.Table` of a file, a path."""
    return experiments.Table(path, study_cases.COLUMNS, study_cases.FIGURES)


def simulate(table, names, jobs=None):
    """Simulates what is not in the table yet, stage by stage.

    Args:
      table: `experiments.Table`.
      names: list of strings, schemes.
      jobs: int, how many schemes at a time, see `experiments.for_each`.
    """
    def do(stage, name):
        try:
            with Simulator(name) as simulator:
                STAGES[stage](Study(table, simulator))
            print(f'study: {name}: {stage} is done', flush=True)
        except MissingError as error:
            print(f'study: {name}: {stage} has to wait for {error.args[0]}', flush=True)

    for stage in STAGES:
        experiments.for_each(functools.partial(do, stage),
                             study_cases.left(table, names, stage), jobs)


def commands(table, asked):
    """Returns the commands that repeat the simulations of a scheme, a list of lines.

    Args:
      table: `experiments.Table`.
      asked: string, a scheme, or a scheme and a number of workers, such as 'AGN,64'.
    """
    name, _, workers = asked.partition(',')
    return [f'{study_report.command(row)}  # {study_report.result(row)}'
            for row in table.rows.values()
            if study_cases.folder_of(row['scheme']) == name and workers in ('', row['workers'])]


def main():
    parser = argparse.ArgumentParser(prog='run.sh', description=__doc__.splitlines()[0])
    parser.add_argument('--study', action='store_true', help='this program; give it first')
    parser.add_argument('--only', metavar='NAME[,...]', help='only these schemes')
    parser.add_argument('--draw', action='store_true', help='simulate nothing')
    parser.add_argument('--print', metavar='NAME[,WORKERS]', dest='printed',
                        help='print the commands that repeat what was simulated')
    experiments.add_jobs(parser)
    args = parser.parse_args()
    names = study_cases.names()
    table = open_table(RESULTS / 'study.csv')
    if args.printed:
        lines = commands(table, args.printed)
        if not lines:
            sys.exit(f'--print={args.printed}: the study has no such simulation.')
        print('\n'.join(lines))
        return
    folders = sorted(set(map(study_cases.folder_of, names)))
    only = args.only.split(',') if args.only else folders
    for name in only:
        if name not in folders:
            sys.exit(f'--only={name}: there are {", ".join(folders)}.')
    if not args.draw:
        simulate(table, [name for name in names if study_cases.folder_of(name) in only], args.jobs)
    study_plots.draw(table, RESULTS)
    study_report.publish(table)


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --study` goes on.')
