"""The study: every scheme with 1 to 1,024 workers, on the same problem and the same virtual clusters.

    python study.py --study                    all of it, under an hour on two cores
    python study.py --study --only=AGN,SSP     some schemes only
    python study.py --study --draw             tables and pictures of what there is, without any run

What there is in results/study.csv is not simulated again: stopped, the same command goes on. Then
the tables are put into README.md and the pictures into results/.
"""

import argparse
import functools
import sys

import experiments
import schemes
import study_report

HERE = experiments.HERE
RESULTS = HERE / 'results'
# Equal examples: so many local steps, of 32 examples, of all workers together.
LENGTH = {'local_steps': '10000', 'tests': '100'}
COLUMNS = ['workers', 'cluster', 'step', 'learning_rate', 'server_learning_rate',
           'communication_window', 'local_steps', 'tests']
# At these numbers of workers all step sizes are the same, and those that the search begins with.
FIXED = 1, 8, 32, 128, 1024
# First each fourth number, then those between them: the search begins where N / 4, or N / 2, ended.
COARSE, BETWEEN = (1, 4, 16, 64, 256, 1024), (2, 8, 32, 128, 512)
SOME = 64  # workers, with stragglers and with heavy tails
CLUSTERS = 'ethernet', 'sites'
STEPS = {'none': '', 'stragglers': ','.join(['2ms'] * 9 + ['10ms']), 'tails': 'pareto:1ms:2'}
FACTOR, FARTHEST = 3, 8  # of the grid of step sizes; and how far it goes from the fixed one
# A step size of another kind than that of SGD: that of Adagrad.
RATES = {'DOWNPOUR': ('server_learning_rate', 0.05)}
RATE = 'learning_rate', 0.1
# Folders whose updates are those of another one: what differs in them is nothing that a step size
# would be tuned for. They run with the fixed one.
ALIKE = {'Distributed-Setup': 'HogWild', 'Elastic-Workers': 'HogWild',
         'Parameter-Placement': 'HogWild', 'Work-Queue': 'HogWild',
         'Synchronous-SGD-different-learning-rates': 'Synchronous-SGD'}
# It reads files that somebody has to write first, and has Adam, the step size of which is another.
WITHOUT = {'Distributed-MNIST'}
LEARNS = 0.2  # accuracy of who has learned anything; chance is 0.1
PATIENCE = 3  # so many times it goes on to a smaller step size although nothing is learned


class Missing(Exception):
    """What is asked for has not been simulated."""


class Quiet(experiments.Scheme):
    """A process that simulates; the curves are not kept, which would be most of the file."""

    def simulate(self, asked):
        return dict(super().simulate(asked), curve='')


class Absent:
    """Stands for a `Scheme` where nothing is simulated."""

    def __init__(self, name):
        self.name = name

    def simulate(self, asked):
        raise Missing(self.name, asked)


def names():
    """Returns the schemes to simulate, a list of strings."""
    return [name for name in schemes.folders() if name not in WITHOUT]


@functools.lru_cache(maxsize=None)
def _has_window(name):
    return 'communication_window=' in (schemes.ROOT / name / 'worker.py').read_text(
        encoding='utf-8')


def rate_of(name, exponent):
    """Returns the flag of a scheme's step size, and one of the grid of these, two strings."""
    flag, middle = RATES.get(name, RATE)
    return flag, f'{middle * FACTOR ** exponent:.3g}'


def asked(name, workers, exponent=0, cluster=CLUSTERS[0], steps='none'):
    """Returns what to simulate, a dict of strings by names of flags.

    Args:
      name: string, of a scheme.
      workers: int.
      exponent: int, of FACTOR in the step size.
      cluster: string, of CLUSTERS.
      steps: string, of STEPS.
    """
    flag, rate = rate_of(name, exponent)
    found = dict(LENGTH, workers=str(workers), cluster=cluster, **{flag: rate})
    if STEPS[steps]:
        found['step'] = STEPS[steps]
    if _has_window(name):
        found['communication_window'] = '10'
    return found


def _worth(row):
    """Returns what a row is judged by, a tuple: the first is 0 if nothing has been learned."""
    accuracy = float(row['accuracy'])
    if accuracy < LEARNS or row['diverged'] == '1':
        return 0., 0.
    return accuracy, -float(row['loss'])


def search(measure, start):
    """Finds the best exponent: downwards while it gets better, or, if it does not, upwards.

    Args:
      measure: function of an exponent that returns a row.
      start: int.

    Returns:
      int, of those that were measured the one with the highest accuracy, of equal ones the one with
      the lowest loss.
    """
    worths = {start: _worth(measure(start))}
    for direction in -1, 1:
        here = start
        while abs(here) < FARTHEST:
            there = here + direction
            worths[there] = _worth(measure(there))
            # Who has not learned anything may do so with a smaller one yet.
            is_lost = direction < 0 and not worths[here][0] and start - there <= PATIENCE
            if worths[there] <= worths[here] and not is_lost:
                break
            here = there
        if max(worths, key=worths.get) != start:
            break
    return max(worths, key=worths.get)


class Study:
    """What the study asks of one scheme.

    Attributes:
      name: string.
    """

    def __init__(self, table, scheme):
        """Takes an `experiments.Table`, and a `Quiet` or an `Absent`."""
        self.name, self._table, self._scheme = scheme.name, table, scheme
        self._tuned = {}

    def row(self, *args, **kwargs):
        """Returns the row of a simulation, see `asked`; raises Missing if there cannot be one."""
        return self._table.simulate(self._scheme, asked(self.name, *args, **kwargs))

    def tuned(self, workers):
        """Returns the exponent of the step size that is best with so many workers, an int."""
        if workers not in self._tuned:
            earlier = (workers // 4 if workers in COARSE else workers // 2)
            start = self.tuned(earlier) if earlier else 0
            self._tuned[workers] = search(functools.partial(self.row, workers), start)
        return self._tuned[workers]

    def fixed(self):
        """Simulates all numbers of workers with the step size of all."""
        for workers in FIXED:
            self.row(workers)

    def scale(self, numbers):
        """Simulates some numbers of workers with tuned step sizes, on all clusters."""
        for workers in numbers:
            for cluster in CLUSTERS:
                self.row(workers, self.tuned(workers), cluster)

    def disturb(self):
        """Simulates some workers with stragglers, and with heavy tails."""
        for steps in STEPS:
            self.row(SOME, self.tuned(SOME), steps=steps)


def simulate(table, of_which):
    """Simulates all that is not in the table yet, what matters most first."""
    def all_of(stage, name):
        with Quiet(name) as scheme:
            stage(Study(table, scheme))
            print(f'study: {name}: {stage.__name__} is done', flush=True)

    def fixed(study):
        study.fixed()

    def coarse(study):
        study.scale(COARSE)
        study.disturb()

    def between(study):
        study.scale(BETWEEN)

    for stage, of_stage in ((fixed, of_which),
                            *((stage, [name for name in of_which if name not in ALIKE])
                              for stage in (coarse, between))):
        left = [name for name in of_stage if not _is_there(table, name, stage)]
        experiments.for_each(functools.partial(all_of, stage), left)


def _is_there(table, name, stage):
    """Returns whether nothing is left to be simulated in a stage."""
    try:
        stage(Study(table, Absent(name)))
    except Missing:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--study', action='store_true', help='that this is what run.sh starts')
    parser.add_argument('--only', metavar='NAME[,...]', help='these schemes')
    parser.add_argument('--draw', action='store_true', help='simulate nothing')
    args = parser.parse_args()
    of_which = args.only.split(',') if args.only else names()
    for name in of_which:
        if name not in names():
            sys.exit(f'--only={name}: there are {", ".join(names())}.')
    table = experiments.Table(RESULTS / 'study.csv', COLUMNS)
    if not args.draw:
        simulate(table, of_which)
    study_report.publish({name: Study(table, Absent(name)) for name in names()})


if __name__ == '__main__':
    main()
