"""The answer: the best settings with predictions, what limits them, and what would help."""

import math
import os
import shlex
import statistics

import matplotlib
from measuring import readmes
from measuring.style import GREY, look_of, STYLE, write
import numpy as np
from advise_clock import ON_THE_PS
from advise_cluster import ANOTHER_PS
from advise_folders import ALONE
import advise_simulations
from advise_space import ONE, Trial
import advise_words
import schemes

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

_BUSY = 0.85  # share of the time from which on something that all share is what limits
_LONGER = 2  # local steps in the advised command, in place of those to the target
_WORTH_IT = 0.9  # share of the time of one process from which down others are advised
_IN_VIEW = 4  # times the time of the best setting that the picture shows
_LOOKS_AS = 'Non-Distributed-Setup'  # one process, in the picture
HEADER = ['', 'window', 'step size', 'workers', 'ps', None, 'local steps/s', 'limited by']


def limited_by(row):
    """Returns what limits the local steps/s, a string; `row` is as `advise_clock.simulate` says."""
    if row.get('processors', 0) > _BUSY:
        return 'the cores'
    busy = max(ON_THE_PS, key=lambda name: row.get(name, 0))
    if row.get(busy, 0) > _BUSY:
        return advise_words.LINES[busy]
    of_workers = {'computing': row.get('computes', 0), 'waiting': row.get('waits', 0),
                  'pulls and pushes': row.get('pulls', 0) + row.get('pushes', 0)}
    return max(of_workers, key=of_workers.get)


def compare_at_once(entries):
    """Has all entries without a time tell their accuracy after the same seconds; returns these.

    They were simulated for different times, and who trains for longer is more accurate.

    Args:
      entries: list of dicts, see `Answer`; their 'accuracy' is changed.
    """
    left = [entry for entry in entries if entry['seconds'] is None
            and entry['accuracy'] is not None and entry['curve']]
    if not left:
        return None
    then = min(entry['simulated_seconds'] for entry in left)
    for entry in left:
        if entry['simulated_seconds'] > then:
            entry['accuracy'] = float(np.interp(then, *zip(*entry['curve'])))
    return then


def one_process_first(entries):
    """Returns a list of entries, the best one first: one process if that one is hardly sooner."""
    alone = next((entry for entry in entries if entry['scheme'] == ALONE), None)
    if alone and alone['seconds'] and entries[0]['seconds'] > _WORTH_IT * alone['seconds']:
        return [alone, *(entry for entry in entries if entry is not alone)]
    return entries


class Answer:
    """What is advised.

    Attributes:
      entries: list of dicts, the best settings, the best one first, see `_entry`.
      helps: dict of floats: by what would help the best distributed one, how many times as many
        local steps/s it would make.
      then: float, the seconds after which settings that do not come to the target are compared:
        the first one's simulation ended there; None if there are none.
    """

    def __init__(self, search, space, oracle, folder, cluster, goal):
        """Asks for what is still missing.

        Args:
          search: `advise_search.Search` that has run.
          space: `advise_space.Space`.
          oracle: `advise_clock.Oracle`.
          folder: `advise_folders.Folder`.
          cluster: `advise_cluster.Cluster`.
          goal: `advise_space.Goal`.
        """
        self._search, self._space, self.goal = search, space, goal
        self._folder, self._cluster = folder, cluster
        trials = search.best()
        others = [trial for trial in trials if trial.config != ONE]
        found = dict(zip(others, self._ask(oracle, others)))
        entries = []
        for trial in trials:
            off = [space.alone[at] / space.alone['value'] for at in ('low', 'high')]
            if trial.config != ONE:
                off = [space.rate(trial.config) / found[trial][at] for at in ('low', 'high')]
            entries.append((self._entry(trial, *off), trial))
        self.then = compare_at_once([entry for entry, _ in entries])
        entries.sort(key=lambda pair: self._rank(pair[0]))
        self.entries = one_process_first([entry for entry, _ in entries])
        self.helps = next((found[trial]['helps'] for _, trial in entries
                           if trial.config != ONE), {})

    def _ask(self, oracle, trials):
        """Returns what the clock says of each trial: its rates with other costs, and what helps."""
        improvements, names, questions = list(self._cluster.improvements()), [], []
        for trial in trials:
            config = trial.config
            its = {'workers': [config.workers], 'ps': [config.ps]}
            # A ring has no ps.
            better = [name for name in improvements if config.ps or name != ANOTHER_PS]
            names.append(['low', 'high', *better])
            variants = [dict(its, at='low'), dict(its, at='high'),
                        *(dict(its, improved=name, ps=[config.ps + (name == ANOTHER_PS)])
                          for name in better)]
            questions.append({'name': config.scheme, 'windows': [config.window],
                              'variants': variants})
        found = []
        for trial, own, answer in zip(trials, names, oracle.ask(self._folder, questions)):
            its_rate = self._space.rate(trial.config)
            rates = {own[row['variant']]: row['rate'] for row in answer.get('rows', [])}
            found.append({'low': rates.pop('low', its_rate), 'high': rates.pop('high', its_rate),
                          'helps': {name: rate / its_rate for name, rate in rates.items()}})
        return found

    def _entry(self, trial, low, high):
        """Returns what is predicted of a trial, a dict that JSON takes.

        Args:
          trial: `advise_space.Trial`.
          low: float, by how much shorter it takes with the costs at their lowest.
          high: float, by how much longer with the costs at their highest.
        """
        rows = [row for _, (row, _) in sorted(self._search.found[trial].items())]
        times = [float(row['target_seconds']) for row in rows if row['target_seconds'] != '']
        config, clock = trial.config, self._space.rows[trial.config]
        flag, size = self._space.step_size(trial)
        start = self._space.start(config)
        reached = bool(self.goal.target) and len(times) == len(rows)
        # Other seeds end soon after the target, and so the first one tells what comes in the end.
        whole = [row for row in rows[:1 if self.goal.target else None] if row['accuracy'] != '']
        entry = {
            'scheme': config.scheme, 'window': config.window, 'workers': config.workers,
            'workers_on_a_host': self._cluster.places(config.workers, config.ps, not config.ps)[1],
            'ps': config.ps, flag: float(size), 'step_size': float(size), 'seeds': len(rows),
            'start': start,
            'seconds': start + statistics.mean(times) if reached else None,
            'from': start + min(times) * low if reached else None,
            'to': start + max(times) * high if reached else None,
            'reached': len(times) if self.goal.target else None,
            'accuracy': statistics.mean(float(row['accuracy']) for row in whole) if whole else None,
            'loss': statistics.mean(float(row['loss'] or 'nan') for row in rows),
            'simulated_seconds': start + float(rows[0]['seconds']),
            'local_steps': self._local_steps(rows), 'local_steps_per_second': clock['rate'],
            'local_steps_of_update': self._space.steps_of_update(config),
            'staleness': clock.get('staleness', 0), 'computes': clock.get('computes', 1),
            'waits': clock.get('waits', 0), 'limited_by': limited_by(clock),
            'curve': [[start + seconds, accuracy] for _, seconds, accuracy in (
                map(float, test.split(':')) for test in rows[0]['curve'].split())]}
        entry.update(self._command(trial, entry))
        return entry

    def _local_steps(self, rows):
        """Returns the mean of the local steps to the target, or to the end where it is not reached.

        The rows are those of the seeds of one trial.
        """
        examples = [float(row['target_examples' if row['target_seconds'] != '' else 'examples'])
                    for row in rows]
        return statistics.mean(examples) / self._space.batch_size

    def _straggler(self, config):
        """Returns which workers sleep in a real run, the value of a flag, or an empty string."""
        if config == ONE:  # the simulation has a longer local step in its place
            return f'0:{self._space.longer:g}' if self._space.longer else ''
        return self._space.rows[config]['flags'].get('straggler', '')

    def _flags(self, trial):
        """Returns the flags of a trial's program but for the number of steps, a list of strings."""
        flags = [*self._folder.flags, *(f'--{name}={value}' for name, value in
                                        self._space.own_flags(trial).items())]
        straggler = self._straggler(trial.config)
        if straggler and self._cluster.hosts == 1:
            flags.append(f'--straggler={straggler}')
        return flags + [f'--num_threads={self._space.threads}'] * (trial.config == ONE)

    @staticmethod
    def _numbers(config):
        """Returns the environment variables of a run, a dict."""
        if config == ONE:
            return {}
        return dict({'WORKERS': str(config.workers)}, **({'PS': str(config.ps)} if config.ps
                                                         else {}))

    def _command(self, trial, entry):
        """Returns a dict: how to run a trial, and the seconds that this is predicted to take."""
        local_steps = (_LONGER if entry['seconds'] else 1) * entry['local_steps']
        steps = math.ceil(local_steps / entry['local_steps_of_update'])
        flags, numbers = [f'--train_steps={steps}', *self._flags(trial)], self._numbers(
            trial.config)
        script = self._folder.of(trial.config.scheme) / 'run.sh'
        if schemes.ROOT in script.parents:
            script = script.relative_to(schemes.ROOT)
        words = [*(f'{name}={value}' for name, value in numbers.items()), 'bash',
                 *map(shlex.quote, [str(script), *flags])]
        return {'flags': flags, 'workers_and_ps': numbers, 'command': ' '.join(words),
                'run_seconds': entry['start'] + local_steps / self._space.rate(trial.config)}

    def on_hosts(self):
        """Returns the commands that run what is advised, a list of strings, one for each task.

        It is empty for one process, and where no addresses of the hosts are known.
        """
        entry = self.best
        tasks = entry['scheme'] != ALONE and self._cluster.tasks(entry['workers'], entry['ps'])
        if not tasks:
            return []
        hosts = [f'--{job}_hosts={",".join(addresses)}' for job, addresses in tasks.items()]
        flags = {'ps': [], 'worker': list(map(shlex.quote, entry['flags']))}
        return [' '.join([f'{address.rpartition(":")[0]}$ python {job}.py', *hosts,
                          f'--task_index={index}', *flags[job]])
                for job, addresses in tasks.items() for index, address in enumerate(addresses)]

    @staticmethod
    def _rank(entry):
        if entry['seconds'] is not None:
            return 0, entry['seconds'], 0
        return 1, -(entry['accuracy'] or 0), entry['loss']

    @property
    def best(self):
        """The entry of what is advised."""
        return self.entries[0]

    def of(self, scheme):
        """Returns the entry of a scheme, or None."""
        return next((entry for entry in self.entries if entry['scheme'] == scheme), None)

    def _when(self, entry):
        """Returns the cell of a time, with its interval; or how it ended."""
        if not self.goal.target:
            return (f'{entry["loss"]:.4g}' if entry['accuracy'] is None else
                    f'{entry["accuracy"]:.3f}')
        if entry['seconds'] is not None:
            return f'{entry["seconds"]:.3g} ({entry["from"]:.3g} to {entry["to"]:.3g})'
        if entry['reached']:
            return f'{entry["reached"]} of {entry["seeds"]} seeds'
        then = advise_words.in_time(self.then or entry['simulated_seconds'])
        return f'{entry["accuracy"] or 0:.3f} after {then}'

    def table(self):
        """Returns the table of the entries, in Markdown."""
        when = (f's to {advise_words.percent(self.goal.target)}' if self.goal.target else
                f'{"loss" if self.best["accuracy"] is None else "accuracy"} after '
                f'{advise_words.in_time(self.then or self.goal.within)}')
        lines = [[when if each is None else each for each in HEADER]]
        for entry in self.entries:
            is_one = entry['scheme'] == ALONE
            lines.append([
                entry['scheme'], str(entry['window']) if entry['window'] > 1 else '',
                f'{entry["step_size"]:g}', '' if is_one else str(entry['workers']),
                str(entry['ps'] or ''), self._when(entry),
                f'{entry["local_steps_per_second"]:,.0f}' if entry['local_steps_per_second'] >= 10
                else f'{entry["local_steps_per_second"]:.2g}', entry['limited_by']])
        return readmes.table(lines, 'lrrrrrrl')

    def draw(self, path):
        """Draws the accuracy over time of the entries into a file, a path; returns whether it did.

        Without an accuracy there is no picture.
        """
        if self.best['accuracy'] is None:
            return False
        with plt.rc_context(STYLE):
            figure, panel = plt.subplots(figsize=(7, 3.4), constrained_layout=True)
            for entry in self.entries:
                name = entry['scheme']
                panel.plot(*zip([0, math.nan], *entry['curve']), label=name,
                           **dict(look_of(_LOOKS_AS if name == ALONE else name), markersize=4))
            if self.goal.target:
                panel.axhline(self.goal.target, color=GREY, linewidth=0.8)
            ends = [entry['to'] or entry['simulated_seconds'] for entry in self.entries]
            panel.set(xlabel='seconds from the first step on', ylabel='test accuracy',
                      xlim=(0, min(1.3 * max(ends), _IN_VIEW * ends[0])), ylim=(0, 1.02),
                      title='Predicted, by simulation')
            panel.legend(loc='lower right', handlelength=3)
            write(figure, path, 64)
            plt.close(figure)
        return True

    def sentences(self):
        """Returns five sentences, a list of strings."""
        return advise_words.sentences(self, self._counts())

    def _counts(self):
        """Returns the `advise_words.Counts`."""
        search = self._search
        return advise_words.Counts(len(self._space.rows), len(search.too_slow),
                                   len(search.ranked()), len(search.untried()), search.number)

    def candidates(self):
        """Returns all settings that may be run, a list of dicts that JSON takes.

        First come those that were simulated, the best ones first, and then those that were not,
        though the clock did not rule them out: without 'seconds', and with the likeliest step size.
        """
        others = [Trial(config, self._space.exponents(config)[0])
                  for config in self._search.untried()]
        return [self._candidate(trial) for trial in [*self._search.ranked(), *others]]

    def _candidate(self, trial):
        config, clock = trial.config, self._space.rows[trial.config]
        rows = [row for _, (row, _) in sorted(self._search.found.get(trial, {}).items())]
        times = [float(row['target_seconds']) for row in rows if row['target_seconds'] != '']
        there = rows and len(times) == len(rows) and self._search.worth(trial)[0] == 0
        return dict(
            config._asdict(), step_size=float(self._space.step_size(trial)[1]),
            seconds=self._space.start(config) + statistics.mean(times) if there else None,
            start=self._space.start(config), simulated_with={
                name: rows[0][name] for name in advise_simulations.COLUMNS if rows[0].get(name)}
            if there else None,
            local_steps=self._local_steps(rows) if there else None,
            local_steps_per_second=clock['rate'],
            local_steps_of_update=self._space.steps_of_update(config), flags=self._flags(trial),
            straggler=self._straggler(config), workers_and_ps=self._numbers(config))

    def as_json(self):
        """Returns all of it, a dict that JSON takes."""
        return {'folder': str(self._folder.path), 'flags': self._folder.flags,
                'cluster': self._cluster.words(), 'commands': self.on_hosts(),
                'target': self.goal.target,
                'within': self.goal.within, 'advised': self.entries, 'helps': self.helps,
                **self._counts()._asdict(),
                'too_long': len(self._search.too_long),
                'left_out': dict(self._space.left_out), 'stopped': self._search.is_stopped,
                'sentences': self.sentences(), 'cores': os.cpu_count(),
                'candidates': self.candidates()}
