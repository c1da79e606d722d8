"""Runs every example on the same problem; writes results.csv, a table and pictures.

    python compare.py                          all of it, under an hour on two cores
    python compare.py --quick                  each scheme once and short, under three minutes
    python compare.py --only=HogWild,AGN       some folders only
    python compare.py --models=resnet,clicks   models of the gallery, in the place of the digits
    python compare.py --draw                   the table and the pictures again, without any run

The folders are found by rule: those with a model.py. Each run is one of the folder's own run.sh.
results.csv is written after each run, so that a comparison that was stopped goes on from there with
the same command. First come one seed and all that the pictures need; then as many more seeds as
--minutes allows.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import tqdm
from measuring import hosts, readmes, results, runs
from measuring.folders import BARE, Example, examples, gallery, MODEL_FLAGS, names
import bench
import plots
import report

HERE = pathlib.Path(__file__).resolve().parent
DELAY = 0.005  # seconds that the straggler, worker 1, wastes in each local step
WINDOWS = 1, 5, 10, 20, 50
WORKERS = 1, 2, 4, 8
MOST_SEEDS = 5
ENOUGH = 0.95  # of the test images, to take the time
MODEL_RATE = 200  # about how many local steps per second a model of the gallery makes

# Local steps of all workers together in a run for the table, and for the rest in parts of that.
STEPS, QUICK_STEPS = 10000, 1500
PARTS = {'table': 1, 'quick': 1, 'trace': 0.2, 'straggler': 0.2, 'window': 0.6, 'workers': 0.5}
# With an artificial round-trip time in ms: folder and window, and windows in a run.
ROUND_TRIPS = 0, 1, 2, 5, 10, 20
DISTANT = [('HogWild', 1), ('AGN', 10), ('AGN', 50), ('Synchronous-SGD', 1), ('Ring-AllReduce', 1)]
DISTANT_WINDOWS = 0.04  # of the local steps of a run for the table

# What to run, and so the key of a row in results.csv. The experiment 'quick' is a short run for the
# table with a trace.
Job = collections.namedtuple(
    'Job', 'experiment folder model workers window straggler round_trip seed local_steps')
# What is measured. Staleness is a list of value:count, the curve of local step:seconds:accuracy.
COLUMNS = [*Job._fields, 'steps', 'test_accuracy', 'steps_per_s', 'seconds_to_95', 'bytes_per_step',
           'start_s', 'stop_s', 'accepted', 'dropped', 'staleness', 'curve', 'failed', 'seconds',
           'date', 'machine', 'tensorflow']


class Plan:
    """What to run: makes lists of jobs for a list of `Example`."""

    def __init__(self, found, steps):
        """Takes the examples, and the local steps of a run for the table."""
        self._found = found
        self._free = [example for example in found if example.free_workers]
        self._steps = steps

    def _job(self, experiment, example, seed=1, **others):
        """Returns the `Job` for an `Example`, with its own workers and window unless given."""
        workers = 2 if example.free_workers else example.settings.workers
        return Job(experiment, example.name, '', workers, example.window, 0, '', seed,
                   round(PARTS[experiment] * self._steps))._replace(**others)

    def for_the_table(self, seed, experiment='table'):
        """Returns the jobs of one seed, or of --quick: the bare limit, and each example."""
        return [Job(experiment, BARE, '', 0, 1, 0, '', seed, self._steps),
                *(self._job(experiment, example, seed) for example in self._found)]

    def for_the_pictures(self):
        """Returns the jobs that need no second seed."""
        return [*(self._job('trace', example) for example in self._found),
                *(self._job('straggler', example, straggler=DELAY) for example in self._free
                  if 'straggler' in example.flags),
                *(self._job('window', example, window=window) for example in self._free
                  if example.window > 1 for window in WINDOWS),
                *(self._job('workers', example, workers=workers) for example in self._free
                  for workers in WORKERS)]

    def with_models(self, names):
        """Returns the jobs with models of the gallery, each as long as the model suggests."""
        return [self._job('table', example)._replace(experiment='model', model=name,
                                                     local_steps=gallery()[name])
                for name in names for example in self._found if example.settings.gallery]

    def at_a_distance(self):
        """Returns the jobs on a network with a round-trip time."""
        names = [example.name for example in self._found]
        return [Job('latency', folder, '', 2, window, 0, round_trip, 1,
                    round(DISTANT_WINDOWS * self._steps * window))
                for folder, window in DISTANT if folder in names for round_trip in ROUND_TRIPS]


def cost(each, rows):
    """Returns about how many seconds a `Job` takes, from what the `rows` so far tell."""
    rates = [float(row['steps_per_s']) for row in rows  # without what is added below
             if (row['folder'], row['model']) == (each.folder, each.model) and row['steps_per_s']
             and row['round_trip'] == '' and row['straggler'] == '0']
    rate = rates[-1] if rates else MODEL_RATE if each.model else min(700 * each.window ** 0.5, 4000)
    delays = each.straggler * each.local_steps / 2
    delays += (each.round_trip or 0) / 1000 * each.local_steps / each.window
    return 3 + each.workers + each.local_steps / rate + delays


def run(each, results_dir):
    """Makes the run of a `Job`; returns its row, a dict: 'failed' is what it said of an error."""
    began = time.time()
    row = dict(each._asdict(), date=time.strftime('%Y-%m-%d'), machine=results.machine())
    try:
        if each.folder == BARE:
            rate, = bench.bare_limit(each.local_steps).values()
            row.update(steps=each.local_steps, steps_per_s=round(rate))
        else:
            row.update(_run_folder(each, Example(each.folder), results_dir))
    except SystemExit as error:
        lines = str(error).splitlines()
        row['failed'] = next((line for line in lines if 'diverged' in line), lines[-1])
    return dict(row, seconds=round(time.time() - began, 2))


def _run_folder(each, example, results_dir):
    """Returns a dict of what a run of a folder's run.sh measures."""
    env = {} if example.settings.workers == 0 else {'WORKERS': str(each.workers)}
    flags = example.arguments(each.workers, each.window, each.local_steps)
    traced = each.experiment in ('trace', 'quick')
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        flags += [f'--notes_dir={directory}', f'--seed={each.seed}',
                  f'--log_every_n_steps={each.local_steps // 20 if traced else 10**9}']
        logdir = os.path.join(directory, 'model')
        if traced:
            logdir = str(results_dir / 'tensorboard' / example.name)
            shutil.rmtree(logdir, ignore_errors=True)  # or this run would resume the last one
        if each.model:
            flags += [f'--model={each.model}', *MODEL_FLAGS.get(each.model, [])]
        if traced or each.model:
            flags += [f'--traced_runs={runs.WARM_UP}']  # these do not count for the rate
        if traced or 'is_sync' in example.flags:  # this one would take a directory of its own
            flags += [f'--model_dir={logdir}']
        if each.straggler:
            flags += [f'--straggler=1:{each.straggler}']
        if each.round_trip != '':
            network = stack.enter_context(hosts.of_tasks(1, each.workers, each.round_trip / 1000))
            env['PYTHON'] = network.python()
        done = runs.Run(example.name, *flags, **env)
        notes = runs.notes_in(directory)
    return from_notes(notes, **from_lines(done), asked=each.local_steps)


def from_lines(done):
    """Returns a dict of what a finished `runs.Run` printed."""
    figures = done.figures()
    started, _ = done.find('starts at step')
    tested, test = done.find(runs.TEST)
    return {'steps': figures['local steps'], 'updates': int(test[2]),
            'test_accuracy': figures['test accuracy'],
            'start_s': round(started, 2),
            'stop_s': round(done.seconds - tested, 2),
            'accepted': figures.get('accepted', ''), 'dropped': figures.get('dropped', '')}


def from_notes(notes, steps, updates, asked, **rest):
    """Returns a run's figures, a dict: `steps` and the `rest`, and what its processes noted.

    The run made `steps` local steps in so many `updates`; its notes are as `runs.notes_in` returns
    them.

    Raises:
      SystemExit: if it made many more or fewer local steps than were `asked` of it.
    """
    if not 0.75 * asked < steps < 1.5 * asked:
        sys.exit(f'it did {steps} local steps and not {asked}: Example.steps_of_update is wrong')
    chief = runs.of_chief(notes)
    late = runs.head_start(notes)
    curve = [(round(step * steps / updates), round(late + seconds, 3), accuracy)
             for step, seconds, accuracy in chief['curve']]
    enough = [seconds for _, seconds, accuracy in curve if accuracy >= ENOUGH]
    staleness = collections.Counter()
    for note in notes:
        staleness.update({int(value): count for value, count in note['staleness'].items()})
    in_a_call = round(steps / sum(len(note['times']) for note in notes))
    sent = [note['bytes'] / in_a_call for note in notes if note['bytes'] is not None]
    return dict(rest, steps=steps, steps_per_s=round(in_a_call * runs.rate(notes), 2),
                seconds_to_95=min(enough, default=''),
                bytes_per_step=round(max(sent)) if sent else '', tensorflow=chief['tensorflow'],
                staleness=' '.join(f'{value}:{staleness[value]}' for value in sorted(staleness)),
                curve=' '.join('{}:{}:{}'.format(*point) for point in curve))


class Comparison:
    """The runs, some of which may have been made before.

    Attributes:
      rows: list of dicts, one for each run.
    """

    def __init__(self, results_dir):
        """Reads what is there; raises SystemExit if that is of another machine."""
        self._dir = results_dir
        self._path = results_dir / 'results.csv'
        # What failed is tried again, unless it would only fail in the same way.
        self.rows = [row for row in results.read(self._path)
                     if not row['failed'] or 'diverged' in row['failed']]
        others = {row['machine'] for row in self.rows} - {results.machine()}
        if others:
            sys.exit(f'{self._path} is of {", ".join(sorted(others))}; this is '
                     f'{results.machine()}. --fresh begins a new one, --results_dir puts it '
                     'elsewhere.')

    def left(self, jobs):
        """Returns those of the jobs that are still to be done."""
        done = {tuple(row[field] for field in Job._fields) for row in self.rows}
        return [each for each in jobs if tuple(map(str, each)) not in done]

    def estimate(self, jobs):
        """Returns about how many seconds the jobs that are left will take."""
        return sum(cost(each, self.rows) for each in self.left(jobs))

    def affordable(self, rounds, seconds):
        """Returns of a list of lists of jobs those for which there is time, and always the first.

        The `seconds` are for all runs, with those that were made before.
        """
        chosen, total = [], sum(float(row['seconds']) for row in self.rows)
        for jobs in rounds:
            total += self.estimate(jobs)
            if chosen and total > seconds:
                break
            chosen.append(jobs)
        return chosen

    def do(self, jobs, bar):
        """Makes the runs that are left; `bar` counts seconds as they were estimated."""
        for each in self.left(jobs):
            bar.set_description(' '.join(f'{each.experiment}: {each.model} {each.folder}'.split()))
            seconds = cost(each, self.rows)
            row = run(each, self._dir)
            if row.get('failed'):
                bar.write(f'{each.folder}, {each.experiment} {each.model}: {row["failed"]}',
                          file=sys.stderr)
            self.rows.append({name: str(row.get(name, '')) for name in COLUMNS})
            results.write(self._path, COLUMNS, self.rows)
            bar.update(seconds)

    def do_all(self, found, options):
        """Makes all runs, for a list of `Example`, and tells the time that is left."""
        plan = Plan(found, options.steps)
        if options.models:
            rounds = [plan.with_models(options.models.split(','))]
        elif options.quick:
            rounds = [plan.for_the_table(1, 'quick')]
        else:
            reason = hosts.missing()
            if reason:
                print(f'Without the runs at a distance: {reason}.', file=sys.stderr)
            rounds = [plan.for_the_table(1) + plan.for_the_pictures()
                      + plan.with_models(gallery()) + ([] if reason else plan.at_a_distance()),
                      *(plan.for_the_table(seed) for seed in range(2, MOST_SEEDS + 1))]
        form = '{percentage:3.0f}% |{bar:30}| {elapsed}, {remaining} left: {desc}'
        with tqdm.tqdm(total=0, bar_format=form, dynamic_ncols=True) as bar:
            while True:
                chosen = self.affordable(rounds, options.minutes * 60)  # knows more each time
                left = [jobs for jobs in chosen if self.left(jobs)]
                if not left:
                    break
                bar.total = bar.n + sum(map(self.estimate, left))
                self.do(left[0], bar)


def parse(argv):
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--quick', action='store_true', help='each scheme once, and short')
    parser.add_argument('--minutes', type=float, default=55,
                        help='no further seed is begun that would take longer (default: 55)')
    parser.add_argument('--steps', type=int, help='local steps of all workers in a run for the '
                        f'table (default: {STEPS}, with --quick {QUICK_STEPS})')
    parser.add_argument('--only', help='names of folders, by commas (default: all)')
    parser.add_argument('--results_dir', type=pathlib.Path,
                        help='where the results are (default: mine, with --quick quick, with '
                        '--publish results, all beside this file)')
    parser.add_argument('--models', help='models of the gallery, by commas, in the place of the '
                        'digits')
    parser.add_argument('--fresh', action='store_true', help='forget what is there, begin anew')
    parser.add_argument('--draw', action='store_true', help='table and pictures, without any run')
    parser.add_argument('--publish', action='store_true',
                        help='put the results into the READMEs, here and above')
    options = parser.parse_args(argv)
    if options.publish and (options.quick or options.only or options.models):
        parser.error('what is published is the whole comparison: no --quick, --only or --models')
    if options.steps is None:
        options.steps = QUICK_STEPS if options.quick else STEPS
    if options.steps < 500:
        parser.error('with less than 500 local steps there is nothing to see')
    unknown = set((options.only or names()[0]).split(',')) - set(names())
    if unknown:
        parser.error(f'{", ".join(sorted(unknown))}: the folders are {", ".join(names())}')
    if options.models and not set(options.models.split(',')) <= set(gallery()):
        parser.error(f'--models={options.models}: the gallery has {", ".join(gallery())}')
    if options.results_dir is None:
        options.results_dir = HERE / ('quick' if options.quick else
                                      'results' if options.publish else 'mine')
    options.results_dir = options.results_dir.resolve()
    return options


def main(argv=None):
    """Compares."""
    options = parse(argv)
    options.results_dir.mkdir(parents=True, exist_ok=True)
    path = options.results_dir / 'results.csv'
    if options.fresh and path.exists():
        path.unlink()
    if options.draw:
        rows = results.read(path)
        if not rows:
            sys.exit(f'{options.results_dir} has no results to draw.')
    else:
        comparison = Comparison(options.results_dir)
        before = len(comparison.rows)
        try:
            comparison.do_all([each for each in examples()
                               if each.name in (options.only or each.name).split(',')], options)
        except KeyboardInterrupt:
            sys.exit('Stopped. The same command goes on from there.')
        rows = comparison.rows
        print(f'{len(rows)} runs, {len(rows) - before} of them new, are in {path}'
              + ('' if len(rows) > before else '; --fresh makes them anew'))
    pictures = plots.draw(rows, options.results_dir)
    text = report.tables(rows, options.results_dir)
    (options.results_dir / 'table.md').write_text(text, encoding='utf-8')
    readmes.show(text)
    if options.publish:
        report.publish(rows, pictures)


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is under way is ended
    main()
