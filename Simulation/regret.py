"""Judges the advisor by regret: how much sooner than what it advises the best of others really is.

    bash run.sh --regret                        the pairs of model and cluster that may be looked at
    bash run.sh --regret --held_out             and those that are not while it is being built
    bash run.sh --regret --only=digits/far      one pair; --only=digits: those of a model
    bash run.sh --regret --minutes=2,10,60      how regret falls with the time for the search
    bash run.sh --regret --sure=9               more runs of what may be the best
    bash run.sh --regret --seeds=14             is the predicted time right, but for luck?
    bash run.sh --regret --draw                 tables and picture again, without any run

A cluster is network namespaces of this machine, with a rate and a delay. All of them share its
cores, so sleeping workers stand for slow computing: two cores carry nine of them. For each pair the
advisor is asked, and these are really run: what it advises; what it predicts to take at most NEAR
times as long, the soonest first, --most of them; LOT others, drawn by lot; and one process.

The soonest of many settings is a lucky one. With --sure=N, what is advised and every setting that
really took no longer get more runs, until each has N or turns out to take longer.

With --seeds=N, what is advised, the best of all that were run, and one process are simulated with N
seeds, and really run with N.

It measures for hours, and wants a quiet machine. Each run is a row of results/regret.csv, each
setting that was chosen one of results/regret-advice.csv, each of N seeds one of
results/regret-seeds.csv; a command that was stopped goes on there.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import sys

from measuring import hosts
from measuring.results import machine, read, write
import advise
import advise_measure
import advise_simulations
import advised
import experiments
import regret_report
from regret_report import ADVISED, ALONE, LOT_ROLE, NEAR_ROLE, SETTING

RESULTS = experiments.HERE / 'results'
PLACE = advise.RESULTS / 'regret'  # for costs, and for what the advisor keeps
NEAR, LOT = 3, 3
_MINUTES, _MOST, _REPEATS = '2', 5, 1
_MOST_SECONDS = 30  # that a real run is to train
_ENOUGH = 2.5, 3  # times its own time, or that of what is advised, for which a setting is run
_SEED = 101  # of the first repeat: the advisor simulates with 1, 2, ... 20
_TIME_LIMIT = 120  # for a real run, from its start to its end
_COSTS_SECONDS, _CLOCK_SECONDS, _RUN_SECONDS = 90, 30, 25  # for an estimate
_AS_SOON = 3  # settings of a pair that --sure runs on; for an estimate, too

Model = collections.namedtuple('Model', 'flags target milliseconds')
Model.__doc__ = """What is trained.

Attributes:
  flags: list of strings.
  target: float, the test accuracy to reach.
  milliseconds: int, for which a worker sleeps in each local step.
"""
MODELS = {
    'digits': Model([], 0.95, 50),
    'keras_layers': Model(['--model=keras_layers'], 0.95, 50),
    'teacher': Model(['--model=teacher', '--batch_size=128', '--teacher_test_examples=5000'], 0.52,
                     50),
    'mnist': Model(['--model=mnist'], 0.9, 50)}

Place = collections.namedtuple('Place', 'hosts megabits round_trip more slow slow_by',
                               defaults=(0, 0, 0))
Place.__doc__ = """A cluster.

Attributes:
  hosts: int.
  megabits: int, of each host's link in a second.
  round_trip: int, milliseconds.
  more: int, milliseconds for which each worker sleeps besides those of its model; or less.
  slow, slow_by: ints, how many hosts sleep longer, and by how many milliseconds.
"""
CLUSTERS = {
    'gigabit': Place(5, 1000, 1),
    'slow line': Place(5, 100, 1),
    'far': Place(4, 1000, 10),
    'sleeping': Place(9, 1000, 1, more=30),
    'unequal': Place(5, 1000, 1, slow=2, slow_by=60),
    'slow and far': Place(4, 10, 100, more=-40),  # one process is to be best
    'mixed': Place(6, 300, 4, more=10, slow=1, slow_by=40)}
Pair = collections.namedtuple('Pair', 'model cluster')
# Pairs that nobody looks at while building the advisor: what it is worth is seen on these.
HELD_OUT = [Pair('digits', 'far'), Pair('keras_layers', 'sleeping'), Pair('teacher', 'slow line'),
            Pair('mnist', 'unequal'), Pair('teacher', 'gigabit'),
            *(Pair(model, 'mixed') for model in MODELS)]

_IDENTITY = ['model', 'cluster', *SETTING, 'repeat']
COLUMNS = [*_IDENTITY, 'seconds', 'ran', 'local_steps_per_second', 'start', 'head_start',
           'complaint', 'machine']
ADVICE = ['model', 'cluster', 'minutes', 'role', *SETTING, 'predicted', 'predicted_rate',
          'held_out']
SEEDS = ['model', 'cluster', *SETTING, 'seed', 'start', 'simulated', 'real', 'machine']
_LONGER = 4  # times the local steps of the first seed, for unlucky ones


def sleeps(pair):
    """Returns for how many milliseconds all workers of a `Pair` sleep in a local step, an int."""
    return MODELS[pair.model].milliseconds + CLUSTERS[pair.cluster].more


def in_words(pair):
    """Returns the cluster of a `Pair` as the advisor takes it, a string."""
    place = CLUSTERS[pair.cluster]
    words = [f'{place.hosts} hosts', '2 cores shared', f'{place.megabits}Mbit',
             f'{place.round_trip}ms', f'steps {sleeps(pair)}ms longer']
    return ', '.join(words + [f'{place.slow} slow by {place.slow_by}ms'] * bool(place.slow))


def parse(arguments):
    """Returns the options in a list of arguments; `pairs` are the chosen `Pair`s, a list."""
    parser = argparse.ArgumentParser(prog='run.sh', description=__doc__.splitlines()[0],
                                     allow_abbrev=False)
    parser.add_argument('--regret', action='store_true', help='this program; give it first')
    parser.add_argument('--only', metavar='MODEL[/CLUSTER][,...]', help='only these pairs')
    parser.add_argument('--held_out', action='store_true',
                        help='also the pairs that are not looked at while the advisor is built')
    parser.add_argument('--minutes', default=_MINUTES, metavar='N[,...]',
                        help=f'for each search (default: {_MINUTES})')
    parser.add_argument('--most', type=int, default=_MOST, metavar='N',
                        help='how many of those that are predicted to be nearly as soon are run '
                        f'(default: {_MOST})')
    parser.add_argument('--repeats', type=int, default=_REPEATS, metavar='N',
                        help=f'runs of each, with other seeds (default: {_REPEATS})')
    parser.add_argument('--sure', type=int, default=0, metavar='N',
                        help='then runs of what is advised, and of all that really was as soon, '
                        'until each has N')
    parser.add_argument('--seeds', type=int, default=0, metavar='N',
                        help='only this: N simulations and N real runs of what is advised, of the '
                        'best that was run, and of one process')
    parser.add_argument('--results_dir', type=pathlib.Path,
                        help='where all of it goes, in place of results and advice/regret')
    parser.add_argument('--draw', action='store_true', help='run nothing')
    options = parser.parse_args(arguments)
    try:
        options.minutes = [float(each) for each in options.minutes.split(',')]
    except ValueError:
        sys.exit(f'--minutes={options.minutes}: a number, or several with commas between.')
    if (min(options.minutes) <= 0 or options.repeats < 1
            or min(options.most, options.sure, options.seeds) < 0):
        sys.exit('--minutes and --repeats have to be above 0, --most, --sure and --seeds at least '
                 '0.')
    options.pairs = _chosen(options.only, options.held_out)
    return options


def _chosen(only, held_out):
    """Returns a list of `Pair`; the arguments are those of the options."""
    every = [Pair(model, cluster) for model in MODELS for cluster in CLUSTERS]
    found = [pair for pair in every if held_out or pair not in HELD_OUT]
    if only is None:
        return found
    names = only.split(',')
    for name in names:
        if not any(name in (pair.model, '/'.join(pair)) for pair in every):
            sys.exit(f'--only={name}: there are {", ".join(MODELS)}, each with '
                     f'{", ".join(CLUSTERS)}, such as digits/far.')
    found = [pair for pair in found if {pair.model, '/'.join(pair)} & set(names)]
    if not found:
        sys.exit(f'--only={only}: that is held out; --held_out runs it.')
    return found


def chosen_settings(answer, most, seed):
    """Returns what is really run: pairs of a role and one of the advisor's candidates.

    Args:
      answer: dict, its answer.json.
      most: int, how many of those that are predicted to be nearly as soon.
      seed: string, of the lot.
    """
    first = answer['advised'][0]
    left = list(answer['candidates'])

    def take(role, some):
        for each in some:
            left.remove(each)
            found.append((role, each))

    found = []
    take(ADVISED, [next(each for each in left
                        if all(each[name] == first[name] for name in SETTING))])
    near = sorted((each for each in left if each['seconds'] and first['seconds']
                   and each['seconds'] <= NEAR * first['seconds']),
                  key=lambda each: each['seconds'])
    take(NEAR_ROLE, near[:most])
    take(ALONE, [each for each in left if each['scheme'] == ALONE][:1])
    # Sorted: the order of the candidates depends on their figures, and so would the lot.
    rest = sorted(left, key=lambda each: [str(each[name]) for name in SETTING])
    take(LOT_ROLE, random.Random(seed).sample(rest, min(LOT, len(rest))))
    return found


def with_step_size_of(row, candidates):
    """Returns a candidate with the step size of a row of results/regret.csv, a dict.

    None if no candidate has its scheme, window, workers and ps.
    """
    for each in candidates:
        if all(str(each[name]) == row[name] for name in SETTING if name != 'step_size'):
            flags = []
            for flag in each['flags']:
                name, _, value = flag.partition('=')
                is_it = name.endswith('learning_rate') and float(value) == each['step_size']
                flags.append(f'{name}={float(row["step_size"]):g}' if is_it else flag)
            return dict(each, flags=flags, step_size=float(row['step_size']))
    return None


def _identity(pair, setting):
    """Returns what identifies a setting of a `Pair` in the files, a dict of strings by columns."""
    return dict(pair._asdict(), **{name: str(setting[name]) for name in SETTING})


def _has(row, its):
    """Returns whether a row has these values, a dict."""
    return all(row[name] == value for name, value in its.items())


class Judge:
    """Asks the advisor, runs what was chosen, and keeps both in files."""

    def __init__(self, results, place):
        """Takes two paths: where the files of the results are, and where the advisor works."""
        self.results, self._advisor = results, advised.Advisor(place, say)
        self._rows, self._advice, self._seeds = (
            read(results / name) for name in regret_report.FILES)

    def _folder(self, model):
        return self._advisor.folder(model, MODELS[model].flags)

    def advice(self, pair, minutes):
        """Returns the answer of the advisor for a `Pair`, see `advised.Advisor.answer`."""
        model = MODELS[pair.model]
        return self._advisor.answer(pair.model, model.flags, model.target, in_words(pair),
                                    pair.cluster, minutes)

    def choose(self, pair, minutes, most):
        """Asks the advisor; keeps and returns what `chosen_settings` does."""
        found = chosen_settings(self.advice(pair, minutes), most, '/'.join(pair))
        its = dict(pair._asdict(), minutes=f'{minutes:g}')
        self._advice = [row for row in self._advice if not _has(row, its)]
        self._advice += [
            dict(its, role=role, predicted='' if each['seconds'] is None else each['seconds'],
                 predicted_rate=each['local_steps_per_second'], held_out=int(pair in HELD_OUT),
                 **{name: str(each[name]) for name in SETTING}) for role, each in found]
        self._write()
        return found

    def run(self, pair, setting, repeat, expected):
        """Really runs a setting if there is no row of it; keeps the row.

        Args:
          pair: `Pair`.
          setting: dict, one of the advisor's candidates.
          repeat: int, from 0 on.
          expected: float, the predicted seconds of what is advised, or None.
        """
        its = dict(_identity(pair, setting), repeat=str(repeat))
        if any(_has(row, its) for row in self._rows):
            return
        say(f'{"/".join(pair)}: {regret_report.words(setting)}, repeat {repeat + 1}')
        path = self._folder(pair.model).of(setting['scheme'])
        row = dict.fromkeys(COLUMNS, '')
        row.update(its, machine=machine())
        try:
            row.update(really_run(pair, path, setting, _SEED + repeat, expected))
        except SystemExit as error:
            row['complaint'] = str(error).splitlines()[-1]
        self._rows.append({name: str(row[name]) for name in COLUMNS})
        self._write()

    def judge(self, pair, options):
        """Asks the advisor about a `Pair`, and runs what was chosen; takes what `parse` returns."""
        for minutes in options.minutes:
            chosen = self.choose(pair, minutes, options.most)
            expected = chosen[0][1]['seconds']
            for repeat in range(options.repeats):
                for _, setting in chosen:
                    self.run(pair, setting, repeat, expected)
            if options.sure:
                self.make_sure(pair, minutes, options.sure)

    def make_sure(self, pair, minutes, most):
        """Runs what is advised, and all that really was as soon, until each has `most` runs.

        Args:
          pair: `Pair`, which was judged.
          minutes: float, for the search.
          most: int.
        """
        answer = self.advice(pair, minutes)
        (_, advised), *_ = chosen_settings(answer, 0, '')
        unknown = []
        while True:
            runs, missing = self._of(pair), []
            for row in regret_report.as_soon(runs, _identity(pair, advised)):
                its = _identity(pair, row)
                there = {int(each['repeat']) for each in runs if _has(each, its)}
                missing += [(repeat, its) for repeat in range(most)
                            if repeat not in there and its not in unknown]
            if not missing:
                return
            repeat, its = min(missing, key=lambda each: each[0])
            setting = with_step_size_of(its, answer['candidates'])
            if setting is None:
                say(f'{"/".join(pair)}: {regret_report.words(its)} is no candidate any more, and '
                    'not run again')
                unknown.append(its)
            else:
                self.run(pair, setting, repeat, advised['seconds'])

    def _of(self, pair):
        """Returns the rows of real runs of a `Pair`, a list of dicts."""
        return [row for row in self._rows if _has(row, pair._asdict())]

    def with_seeds(self, pair, options):
        """Simulates and really runs a few settings of a `Pair`; takes what `parse` returns.

        These are what is advised, one process, and the best of those candidates that were run.

        Raises:
          SystemExit: if a real run fails.
        """
        answer = self.advice(pair, options.minutes[0])
        settings = [setting for role, setting in chosen_settings(answer, 0, '')
                    if role in (ADVISED, ALONE) and setting['seconds']]
        best = regret_report.best_of(self._of(pair), [_identity(pair, setting)
                                                      for setting in answer['candidates']])
        settings += [setting for setting in answer['candidates'] if best and setting['seconds']
                     and _has(best, _identity(pair, setting)) and setting not in settings]
        known = [_identity(pair, setting) for setting in settings]
        # What is no longer advised goes.
        self._seeds = [row for row in self._seeds if not _has(row, pair._asdict())
                       or any(_has(row, its) for its in known)]
        folder = self._folder(pair.model)
        for setting, its in zip(settings, known):
            there = {row['seed'] for row in self._seeds if _has(row, its)}
            seeds = [seed for seed in range(1, options.seeds + 1) if str(seed) not in there]
            simulated = simulate(folder, self._advisor.place / 'seeds.csv', setting, seeds)
            for seed in seeds:
                say(f'{"/".join(pair)}: {regret_report.words(setting)}, seed {seed}')
                real = really_run(pair, folder.of(setting['scheme']), setting, seed,
                                  answer['advised'][0]['seconds'])
                self._seeds.append(dict(its, seed=str(seed), start=f'{setting["start"]:.4g}',
                                        simulated=simulated[seed], real=real['seconds'],
                                        machine=machine()))
                self._write()

    def _write(self):
        self.results.mkdir(parents=True, exist_ok=True)
        for name, columns, rows in zip(regret_report.FILES, (COLUMNS, ADVICE, SEEDS),
                                       (self._rows, self._advice, self._seeds)):
            write(self.results / name, columns, rows)


def simulate(folder, path, setting, seeds):
    """Returns a dict by seed of the simulated seconds to the target, strings; empty if not reached.

    Args:
      folder: `advise_folders.Folder`.
      path: `pathlib.Path`, the file that keeps simulations.
      setting: dict, one of the advisor's candidates that came to the target.
      seeds: list of ints.
    """
    found, flags = {}, dict(setting['simulated_with'])
    flags['local_steps'] = str(_LONGER * int(flags['local_steps']))
    del flags['problem']  # it is that of the folder
    asked = [(seed, setting['scheme'], dict(flags, seed=str(seed))) for seed in seeds]
    with advise_simulations.Simulations(folder, path, os.cpu_count(), float('inf')) as simulations:
        simulations.run(asked, lambda seed, row: found.update({seed: row['target_seconds']}),
                        float('inf'))
    return found


def steps_of(setting, expected):
    """Returns how many global steps a setting is run for, an int.

    Args:
      setting: dict, one of the advisor's candidates.
      expected: float, the predicted seconds of what is advised, or None.
    """
    own, others = _ENOUGH
    seconds = max(own * (setting['seconds'] or 0), others * (expected or _MOST_SECONDS))
    local_steps = min(seconds, _MOST_SECONDS) * setting['local_steps_per_second']
    return max(1, round(local_steps / setting['local_steps_of_update']))


@contextlib.contextmanager
def hosts_of(pair, setting):
    """Makes the hosts of a setting's tasks; yields environment variables, a dict."""
    ps, workers = (int(setting['workers_and_ps'].get(name, 0)) for name in ('PS', 'WORKERS'))
    if not ps + workers:  # one process has no network
        yield {}
        return
    place = CLUSTERS[pair.cluster]
    with hosts.of_tasks(ps, workers, place.round_trip / 1000, place.megabits / 1000) as network:
        yield {'PYTHON': network.python()}


def really_run(pair, folder, setting, seed, expected):
    """Makes a run; returns figures, a dict by names of COLUMNS.

    Args:
      pair: `Pair`.
      folder: path of the folder that is run.
      setting: dict, one of the advisor's candidates.
      seed: int.
      expected: float, see `Judge.run`.

    Raises:
      SystemExit: if it fails.
    """
    flags = [f'--train_steps={steps_of(setting, expected)}', f'--seed={seed}',
             f'--log_every_n_steps={10 ** 9}']
    if setting['straggler']:
        flags.append(f'--straggler={setting["straggler"]}')
    with hosts_of(pair, setting) as network:
        real = advise_measure.real(folder, setting, *flags, time_limit=_TIME_LIMIT,
                                   CUDA_VISIBLE_DEVICES='', **network)
    when = advise_measure.reached(real.curve, MODELS[pair.model].target)
    return {'seconds': '' if when is None else f'{when:.4g}', 'ran': f'{real.curve[-1][1]:.4g}',
            'local_steps_per_second': f'{real.local_steps_per_second:.4g}',
            'start': f'{real.start:.3g}', 'head_start': f'{real.head_start:.3g}'}


def say(text):
    """Prints a line."""
    print(f'regret: {text}', flush=True)


def seconds_of(options):
    """Returns about how many seconds all of it takes, an int, from the start."""
    minutes = options.minutes[:1] if options.seeds else options.minutes
    runs_of_pair = 3 * options.seeds or (
        options.repeats * (options.most + LOT + 2)
        + _AS_SOON * max(0, options.sure - options.repeats))
    each = sum(60 * its + _CLOCK_SECONDS for its in minutes)
    # What another budget advises is mostly what was run for the first one.
    each += _RUN_SECONDS * runs_of_pair * (1 + 0.5 * (len(minutes) - 1))
    return round(len({pair.model for pair in options.pairs}) * _COSTS_SECONDS
                 + len(options.pairs) * each)


def main(arguments):
    """Judges."""
    options = parse(arguments)
    results = (options.results_dir or RESULTS).expanduser().resolve()
    place = results / 'advice' if options.results_dir else PLACE
    judge = Judge(results, place)
    if not options.draw:
        reason = hosts.missing()
        if reason:
            sys.exit(f'Clusters cannot be imitated here: {reason}.')
        what = (f'{options.seeds} simulations and real runs of what is advised, of the best that '
                'was run, and of one process'
                if options.seeds else
                f'at most {options.most} of those that are predicted to take at most {NEAR} times '
                f'as long as what is advised, {LOT} by lot')
        say(f'{len(options.pairs)} pair{"s" * (len(options.pairs) > 1)}, '
            f'{", ".join(f"{minutes:g}" for minutes in options.minutes)} minutes for each search, '
            f'{what}: about {seconds_of(options) / 60:.0f} minutes if nothing of it is there yet')
        for pair in options.pairs:
            try:
                (judge.with_seeds if options.seeds else judge.judge)(pair, options)
            except SystemExit as error:
                say(f'left out: {error}')
            regret_report.publish(results)
    print(regret_report.publish(results))


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --regret` goes on.')
