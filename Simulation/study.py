"""Simulates every scheme with 1 to 1,024 workers, on the same problem and virtual clusters.

    bash run.sh --study                    all of it, under an hour on two cores
    bash run.sh --study --only=AGN,SSP     some schemes only
    bash run.sh --study --draw             tables and pictures again, without any simulation

It does not simulate again what is in results/study.csv, and so resumes what was stopped. Then it
writes the guide in README.md, the tables in results/study.md, and the pictures.
"""

import argparse
import functools
import sys

import experiments
import schemes
import study_cases
from study_cases import Absent, ALIKE, BETWEEN, COARSE, MissingError, Study
import study_plots
import study_report

RESULTS = experiments.HERE / 'results'


class Quiet(experiments.Scheme):
    """A process that simulates and drops the curves, which would be most of the file."""

    def simulate(self, asked):
        return dict(super().simulate(asked), curve='')


# What is asked of a scheme, what matters most first.
STAGES = {'fixed': Study.fixed,
          'few': lambda one: one.scale(COARSE[:4]),
          'many': lambda one: (one.disturb(), one.scale(COARSE[4:])),
          'between': lambda one: one.scale(BETWEEN)}


def _is_done(table, name, stage):
    try:
        stage(Study(table, Absent(name)))
    except MissingError:
        return False
    return True


def simulate(table, names, jobs=None):
    """Simulates what is not in the table yet, stage by stage.

    Args:
      table: `experiments.Table`.
      names: list of strings, schemes.
      jobs: int, how many schemes at a time, see `experiments.for_each`.
    """
    def do(stage, name):
        with Quiet(name) as scheme:
            STAGES[stage](Study(table, scheme))
        print(f'study: {name}: {stage} is done', flush=True)

    for stage in STAGES:
        left = [name for name in names if (stage == 'fixed' or name not in ALIKE)
                and not _is_done(table, name, STAGES[stage])]
        experiments.for_each(functools.partial(do, stage), left, jobs)


def main():
    parser = argparse.ArgumentParser(prog='run.sh', description=__doc__.splitlines()[0])
    parser.add_argument('--study', action='store_true', help='this program; give it first')
    parser.add_argument('--only', metavar='NAME[,...]', help='only these schemes')
    parser.add_argument('--draw', action='store_true', help='simulate nothing')
    experiments.add_jobs(parser)
    args = parser.parse_args()
    names = schemes.folders()
    only = args.only.split(',') if args.only else names
    for name in only:
        if name not in names:
            sys.exit(f'--only={name}: there are {", ".join(names)}.')
    table = experiments.Table(RESULTS / 'study.csv', study_cases.COLUMNS)
    if not args.draw:
        simulate(table, only, args.jobs)
    study_plots.draw(table, RESULTS)
    study_report.publish(table)


if __name__ == '__main__':
    main()
