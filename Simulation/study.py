"""The study: every scheme with 1 to 1,024 workers, on the same problem and virtual clusters.

    python study.py --study                    all of it, under an hour on two cores
    python study.py --study --only=AGN,SSP     some schemes only
    python study.py --study --draw             tables and pictures of what there is, without any run

What there is in results/study.csv is not simulated again: stopped, the same command goes on. Then
the tables are put into README.md, and the pictures beside the table.
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
    """A process that simulates; the curves, which would be most of the file, are not kept."""

    def simulate(self, asked):
        return dict(super().simulate(asked), curve='')


def fixed(study):
    """The stage of the fixed step size."""
    study.fixed()


def few(study):
    """The stage of each fourth number of workers, up to 64."""
    study.scale(COARSE[:4])


def many(study):
    """The stage of each fourth number above, and of what disturbs 64."""
    study.disturb()
    study.scale(COARSE[4:])


def between(study):
    """The stage of the numbers between these."""
    study.scale(BETWEEN)


def _is_done(table, name, stage):
    try:
        stage(Study(table, Absent(name)))
    except MissingError:
        return False
    return True


def simulate(table, names):
    """Simulates all that is not in the table yet, what matters most first.

    Args:
      table: `experiments.Table`.
      names: list of strings, schemes.
    """
    def do(stage, name):
        with Quiet(name) as scheme:
            stage(Study(table, scheme))
        print(f'study: {name}: {stage.__name__} is done', flush=True)

    for stage in fixed, few, many, between:
        left = [name for name in names if (stage is fixed or name not in ALIKE)
                and not _is_done(table, name, stage)]
        experiments.for_each(functools.partial(do, stage), left)


def main():
    parser = argparse.ArgumentParser(
        prog='run.sh', description=__doc__.splitlines()[0])
    parser.add_argument('--study', action='store_true', help='first: that it is the study')
    parser.add_argument('--only', metavar='NAME[,...]', help='these schemes')
    parser.add_argument('--draw', action='store_true', help='simulate nothing')
    args = parser.parse_args()
    names = schemes.folders()
    only = args.only.split(',') if args.only else names
    for name in only:
        if name not in names:
            sys.exit(f'--only={name}: there are {", ".join(names)}.')
    table = experiments.Table(RESULTS / 'study.csv', study_cases.COLUMNS)
    if not args.draw:
        simulate(table, only)
    study_plots.draw(table, RESULTS)
    study_report.publish(table)


if __name__ == '__main__':
    main()
