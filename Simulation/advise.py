"""Advises: which scheme, window, step size, how many ps and workers, how long, and does it pay?

    bash run.sh --advise                                    the digits on this machine
    bash run.sh --advise --folder=~/my-project/HogWild      your own model.py
    bash run.sh --advise --cluster="4 hosts, 8 cores, 1Gbit, 0.5ms, 1 slow by 3"
    bash run.sh --advise --minutes=10 -- --model=resnet     flags of the programs follow --
    TF_CONFIG=... bash run.sh --advise                      the same for each task: its cluster

It measures what the model and the runtime cost on this machine, simulates what there is to choose
from, and says what is best. Costs, simulations, the answer and a picture are in --results_dir; a
command that was stopped goes on from there.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from measuring import readmes
import advise_answer
import advise_clock
import advise_cluster
import advise_costs
import advise_folders
import advise_measure
import advise_network
import advise_search
import advise_simulations
import advise_space
import advise_words
import experiments

RESULTS = experiments.HERE / 'advice'
_TARGET, _MINUTES = 0.95, 1.
_START = 1  # seconds, about
_MOST_SECONDS = 200  # that a run by --run may be predicted to take


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message):
        sys.exit(f'{message} (--help lists the options)')


def _positive(text):
    value = float(text)
    if not 0 < value < float('inf'):
        raise ValueError
    return value


_positive.__name__ = 'number above 0'  # argparse names it


def parse(arguments):
    """Returns the options in a list of arguments, and the list of flags that follow --."""
    own, flags = arguments, []
    if '--' in own:
        own, flags = own[:own.index('--')], own[own.index('--') + 1:]
    parser = _Parser(prog='run.sh', formatter_class=argparse.RawDescriptionHelpFormatter,
                     description=__doc__, allow_abbrev=False)
    parser.add_argument('--advise', action='store_true', help='this program; give it first')
    parser.add_argument('--folder', default='HogWild',
                        help='that has the model.py: one of the collection, or your own')
    parser.add_argument('--cluster', help='in words, a file, or a name in the folder clusters '
                        '(default: the hosts of TF_CONFIG if it is set, else this machine)')
    parser.add_argument('--target', type=_positive,
                        help=f'test accuracy to reach soon (default: {_TARGET})')
    parser.add_argument('--within', type=_positive, metavar='SECONDS',
                        help='in place of --target: the best that so many seconds give')
    parser.add_argument('--minutes', type=_positive, default=_MINUTES,
                        help=f'for the search (default: {_MINUTES:g}); measuring takes one more')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(),
                        help='simulations at a time (default: one for each core)')
    parser.add_argument('--costs', type=pathlib.Path, metavar='FILE',
                        help='measure nothing: these are the costs')
    parser.add_argument('--schemes', metavar='NAME[,...]', help='only these')
    parser.add_argument('--results_dir', type=pathlib.Path, default=RESULTS)
    parser.add_argument('--fresh', action='store_true', help='measure and simulate all anew')
    parser.add_argument('--run', action='store_true',
                        help='run what is advised, and compare it with what was predicted')
    options = parser.parse_args(own)
    if options.target and options.within:
        parser.error('--target and --within: one of them')
    if options.target and options.target > 1:
        parser.error(f'--target={options.target:g}: an accuracy is at most 1')
    if options.jobs < 1:
        parser.error(f'--jobs={options.jobs}: at least 1')
    return options, flags


def say(text):
    """Prints a line."""
    print(f'advise: {text}', flush=True)


class Progress:
    """Tells the best so far: in one line on a terminal, and otherwise when it has changed.

    Attributes:
      search: `advise_search.Search`, to be set before it runs.
    """

    def __init__(self, space, simulations, goal):
        self._space, self._simulations, self._goal = space, simulations, goal
        self.search, self._said, self._is_terminal = None, '', sys.stdout.isatty()

    def __call__(self):
        """Tells it."""
        ranked = self.search.ranked()
        best = f'best so far: {self._words(ranked[0])}' if ranked else ''
        if self._is_terminal:
            left = max(0, self._simulations.deadline - time.monotonic())
            line = f'{left:.0f} s left, {self._simulations.number} simulations; {best}'
            width = shutil.get_terminal_size().columns - 1
            print(f'\r{line[:width].ljust(width)}', end='', flush=True)
        elif best != self._said:
            say(best)
        self._said = best

    def _words(self, trial):
        config, row = trial.config, self.search.found[trial][1][0]
        settings = [config.scheme]
        if config.window > 1:
            settings.append(f'window {config.window}')
        settings.append(f'step size {self._space.step_size(trial)[1]}')
        if config != advise_space.ONE:
            settings.append(f'{config.workers} workers')
        if row['target_seconds'] != '':
            return (f'{", ".join(settings)}: {100 * self._goal.target:g} % after '
                    f'{float(row["target_seconds"]):.3g} s')
        if row['accuracy'] != '':
            return f'{", ".join(settings)}: {float(row["accuracy"]):.3f}'
        return f'{", ".join(settings)}: a loss of {float(row["loss"] or "nan"):.4g}'

    def end(self):
        """Ends the line."""
        if self._is_terminal:
            print(flush=True)


def _costs(options, folder, place):
    """Returns the costs, and the path of their file; measures them if they are not there."""
    if options.costs:
        return advise_costs.read(options.costs), options.costs
    path = place / 'costs.json'
    if path.exists() and not options.fresh:
        try:
            costs = advise_costs.read(path)
        except SystemExit as error:  # it is kept: a person may have edited it
            sys.exit(f'{error} --fresh measures all of it again.')
        if costs.of == folder.identity:
            say(f'takes the costs in {path}; --fresh measures them again')
            return costs, path
    load, cores = os.getloadavg()[0], os.cpu_count()
    if load > cores / 2:
        say(f'this machine is busy, with a load of {load:.1f} on {cores} cores: what is measured '
            'now is worth little; use --fresh when it is quiet')
    costs = advise_measure.measure(folder, say)
    costs.write(path)
    say(f'wrote the costs into {path}')
    return costs, path


def _ask_the_clock(oracle, folder, names):
    """Returns the answers of the clock by scheme, and by scheme why it was left out.

    Raises:
      SystemExit: if even one process cannot train the model.
    """
    one = advise_folders.SIMULATES_ALONE
    asked = list(dict.fromkeys([one, *names]))
    answers = dict(zip(asked, oracle.ask(folder, [{'name': name} for name in asked])))
    if 'error' in answers[one]:
        sys.exit(f'The model cannot be simulated: {answers[one]["error"]}')
    left_out = {name: answer['error'] for name, answer in answers.items() if 'error' in answer}
    found = {name: answers[name] for name in names if name not in left_out}
    found[advise_folders.ALONE] = answers[one]
    return found, left_out


def _names(options, folder):
    """Returns the schemes to choose from, a list of strings."""
    names = options.schemes.split(',') if options.schemes else folder.names
    for name in names:
        if name not in folder.names:
            why = folder.why_not(name)
            sys.exit(f'--schemes={options.schemes}: {name} is no candidate: {why}.' if why else
                     f'--schemes={options.schemes}: there is no {name}; there are '
                     f'{", ".join(folder.names)}.')
    return names


def search(options, folder, cluster, costs, path, place, goal):
    """Searches; returns an `advise_answer.Answer`.

    Args:
      options: what `parse` returns.
      folder: `advise_folders.Folder`.
      cluster: `advise_cluster.Cluster`.
      costs: `advise_costs.Costs`.
      path: `pathlib.Path`, their file.
      place: `pathlib.Path`, the directory of the results.
      goal: `advise_space.Goal`.

    Raises:
      SystemExit: if nothing could be simulated.
    """
    names, seconds = options.names, 60 * options.minutes
    with advise_clock.Oracle(options.jobs, cluster, path) as oracle:
        say(f'{cluster.words()}: asks the clock about {len(names)} scheme{"s" * (len(names) > 1)}')
        answers, left_out = _ask_the_clock(oracle, folder, names)
        space = advise_space.Space(answers, costs, goal, cluster.longer)
        say(f'{len(space.rows)} settings, of {min(row["rate"] for row in space.rows.values()):.3g}'
            f' to {max(row["rate"] for row in space.rows.values()):.3g} local steps/s')
        with advise_simulations.Simulations(
                folder, place / 'simulated.csv', options.jobs,
                time.monotonic() + seconds) as simulations:
            progress = Progress(space, simulations, goal)
            progress.search = advise_search.Search(
                space, simulations, goal, seconds, options.jobs, progress)
            progress.search.run()
            progress.end()
        left_out.update(simulations.left_out)
        for name, why in left_out.items():
            say(f'{name} is left out: {why}')
        diverged = [name for name in progress.search.diverged() if name not in left_out]
        if diverged:
            say(f'diverged in each simulation: {", ".join(diverged)}')
        if not progress.search.best():
            sys.exit('Each simulation diverged: try a smaller step size, such as -- '
                     '--learning_rate=0.001.' if progress.search.number else
                     'There was no time for a single simulation: give more --minutes.')
        if progress.search.is_stopped:
            say('stopped before its end; the same command goes on from there')
        space.left_out = left_out
        return advise_answer.Answer(progress.search, space, oracle, folder, cluster, goal)


def really_run(answer, folder, goal):
    """Runs what is advised, and prints predicted beside measured figures.

    Args:
      answer: `advise_answer.Answer`.
      folder: `advise_folders.Folder`.
      goal: `advise_space.Goal`.
    """
    entry = answer.best
    if entry['run_seconds'] > _MOST_SECONDS:
        sys.exit(f'--run: it would take {entry["run_seconds"]:.0f} s. The command above runs it.')
    real = advise_measure.real(folder.of(entry['scheme']), entry)
    lines = [['', 'predicted', 'measured'],
             ['local steps/s', f'{entry["local_steps_per_second"]:.0f}',
              f'{real.local_steps_per_second:.0f}'],
             ['s that the first runs take longer', f'{entry["start"]:.3g}', f'{real.start:.3g}']]
    if goal.target:
        when = advise_measure.reached(real.curve, goal.target)
        lines.append([f's to {advise_words.percent(goal.target)}, these included',
                      f'{entry["seconds"] or float("nan"):.3g}',
                      f'not in {real.curve[-1][1]:.3g}' if when is None else f'{when:.3g}'])
    else:
        lines.append(['test metric', f'{entry["accuracy"] or float("nan"):.3f}',
                      f'{real.curve[-1][2]:.3f}'])
    readmes.show(readmes.table(lines))


def _of_tf_config(folder, place, fresh):
    """Returns the `advise_cluster.Cluster` of TF_CONFIG; None if this task is not worker 0."""
    with tempfile.TemporaryDirectory() as directory:  # tasks may share the directory of the results
        own = advise_folders.Folder(str(folder.path), folder.flags, pathlib.Path(directory))
        path = advise_network.file_for(own, place, fresh, say)
    return path and advise_cluster.Cluster(str(path))


def _show_commands(answer, folder, cluster):
    """Prints how to run what is advised.

    Args:
      answer: `advise_answer.Answer`.
      folder: `advise_folders.Folder`.
      cluster: `advise_cluster.Cluster`.
    """
    commands = answer.on_hosts()
    print('\n' + '\n'.join(f'    {command}' for command in commands or [answer.best['command']])
          + '\n')
    if commands:
        say(f'each in a copy of {folder.of(answer.best["scheme"])} that has the library beside it, '
            'as Clusters/several-hosts/README.md says')
    elif cluster.hosts > 1 and answer.best['ps'] + answer.best['workers'] > 1:
        say('that is for one machine; on the cluster each worker gets these flags, as '
            'docs/several-machines.md says')


def main(arguments):
    """Advises."""
    options, flags = parse(arguments)
    place = options.results_dir.expanduser().resolve()
    text = options.cluster
    if text and pathlib.Path(text).suffix == '.json':
        text = str(pathlib.Path(text).expanduser().resolve())
    by_tf_config = not text and os.environ.get('TF_CONFIG')
    cluster = None if by_tf_config else advise_cluster.Cluster(text)
    if options.run and (by_tf_config or cluster.hosts > 1):
        sys.exit('--run: it runs on this machine, and '
                 f'{"TF_CONFIG" if by_tf_config else "--cluster="} is another one.')
    folder = advise_folders.Folder(os.path.expanduser(options.folder), flags, place / 'folders')
    options.names = _names(options, folder)  # before anything takes time
    if options.costs:
        options.costs = options.costs.expanduser().resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=str(place)).close()  # whether files can be made there
    except OSError as error:
        sys.exit(f'--results_dir={options.results_dir}: {error.strerror}.')
    if experiments.HERE.parent not in folder.path.parents:
        os.chdir(str(folder.path))  # where a model looks for its files
    if by_tf_config:
        cluster = _of_tf_config(folder, place, options.fresh)
        if cluster is None:
            say('worker 0 knows this host now, and advises')
            return
    if options.fresh and (place / 'simulated.csv').exists():
        (place / 'simulated.csv').unlink()
    costs, path = _costs(options, folder, place)
    goal = advise_space.Goal(None if options.within else options.target or _TARGET,
                             options.within)
    answer = search(options, folder, cluster, costs, path, place, goal)
    readmes.show(answer.table())
    print('\n' + '\n'.join(f'{number}. {text}' for number, text in
                           enumerate(answer.sentences(), 1)))
    _show_commands(answer, folder, cluster)
    if answer.best['seconds'] and answer.best['seconds'] < _START:
        say(f'less than {_START} s is less than processes take until their first step, which is in '
            'no figure: what pays here is hardly to be seen')
    (place / 'answer.json').write_text(json.dumps(answer.as_json(), indent=1) + '\n',
                                       encoding='utf-8')
    drawn = answer.draw(place / 'accuracy.png')
    say(f'wrote {place / "answer.json"}' + (f' and {place / "accuracy.png"}' if drawn else
                                            '; without an accuracy there is no picture'))
    if options.run:
        really_run(answer, folder, goal)


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit('Stopped; what was measured and simulated is kept.')
    except SystemExit as stop:
        if isinstance(stop.code, str):  # some complaints are a whole run
            sys.exit(stop.code.splitlines()[-1])
        raise
