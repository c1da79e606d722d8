"""The answer: the best settings with predictions, what limits them, and what would help."""

import math
import os
import shlex
import statistics

import matplotlib
from measuring import readmes
from measuring.style import GREY, look_of, STYLE, write
from advise_clock import ON_THE_PS
from advise_folders import ALONE
from advise_search import ONE, SEEDS
import schemes

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

_BUSY = 0.85  # share of the time from which on something that all share is what limits
_LONGER = 2  # local steps in the advised command, in place of those to the target
_HELPS = 1.05  # from so many times as many local steps/s on, something helps
_LOOKS_AS = 'Non-Distributed-Setup'  # one process, in the picture
_LINES = {'out of the ps': 'the line out of the ps', 'into the ps': 'the line into the ps',
          'updates': 'updates on the ps'}
HEADER = ['', 'window', 'step size', 'workers', 'ps', None, 'local steps/s', 'limited by',
          'accuracy in the end']


def in_time(value):
    """Returns seconds in words, a string."""
    return f'{value:.3g} s'


def limited_by(row):
    """Returns what limits the local steps/s, a string; `row` is as `advise_clock.simulate` says."""
    if row.get('processors', 0) > _BUSY:
        return 'the cores'
    busy = max(ON_THE_PS, key=lambda name: row.get(name, 0))
    if row.get(busy, 0) > _BUSY:
        return _LINES[busy]
    of_workers = {'computing': row.get('computes', 0), 'waiting': row.get('waits', 0),
                  'pulls and pushes': row.get('pulls', 0) + row.get('pushes', 0)}
    return max(of_workers, key=of_workers.get)


class Answer:
    """What is advised.

    Attributes:
      entries: list of dicts, the best settings, the best one first, see `_entry`.
      helps: dict of floats: by what would help the best distributed one, how many times as many
        local steps/s it would make.
    """

    def __init__(self, search, space, oracle, folder, cluster, costs, goal):
        """Asks for what is still missing.

        Args:
          search: `advise_search.Search` that has run.
          space: `advise_search.Space`.
          oracle: `advise_clock.Oracle`.
          folder: `advise_folders.Folder`.
          cluster: `advise_cluster.Cluster`.
          costs: `advise_costs.Costs`.
          goal: `advise_search.Goal`.
        """
        self._search, self._space, self._goal = search, space, goal
        self._folder, self._cluster = folder, cluster
        trials = search.best()
        others = [trial for trial in trials if trial.config != ONE]
        found = dict(zip(others, self._ask(oracle, others)))
        alone = [costs.get('one process', at) for at in ('value', 'low', 'high')]
        entries = []
        for trial in trials:
            off = [each / alone[0] for each in alone[1:]]
            if trial.config != ONE:
                off = [space.rate(trial.config) / found[trial].get(at, space.rate(trial.config))
                       for at in ('low', 'high')]
            entries.append((self._entry(trial, *off), trial))
        entries.sort(key=lambda pair: self._rank(pair[0]))
        self.entries = [entry for entry, _ in entries]
        self.helps = next((found[trial].get('helps', {}) for _, trial in entries
                           if trial.config != ONE), {})

    def _ask(self, oracle, trials):
        """Returns what the clock says of each trial: its rates with other costs, and what helps."""
        improvements = list(self._cluster.improvements())
        questions = []
        for trial in trials:
            config = trial.config
            its = {'workers': [config.workers], 'ps': [config.ps]}
            variants = [dict(its, at='low'), dict(its, at='high'),
                        *(dict(its, improved=name) for name in improvements),
                        *([dict(its, ps=[config.ps + 1])] if config.ps else [])]
            questions.append({'name': config.scheme, 'windows': [config.window],
                              'variants': variants})
        found = []
        names = ['low', 'high', *improvements, 'another ps']
        for trial, answer in zip(trials, oracle.ask(self._folder, questions)):
            rates = {names[row['variant']]: row['rate'] for row in answer.get('rows', [])}
            found.append({'low': rates.pop('low', self._space.rate(trial.config)),
                          'high': rates.pop('high', self._space.rate(trial.config)),
                          'helps': {name: rate / self._space.rate(trial.config)
                                    for name, rate in rates.items()}})
        return found

    def _entry(self, trial, low, high):
        """Returns what is predicted of a trial, a dict that JSON takes.

        Args:
          trial: `advise_search.Trial`.
          low: float, by how much shorter it takes with the costs at their lowest.
          high: float, by how much longer with the costs at their highest.
        """
        rows = [row for _, (row, _) in sorted(self._search.found[trial].items())]
        times = [float(row['target_seconds']) for row in rows if row['target_seconds'] != '']
        config, clock = trial.config, self._space.rows[trial.config]
        flag, size = self._space.step_size(trial)
        examples = [float(row['target_examples' if row['target_seconds'] != '' else 'examples'])
                    for row in rows]
        local_steps = statistics.mean(examples) / self._space.batch_size
        reached = bool(self._goal.target) and len(times) == len(rows)
        # Other seeds end soon after the target, and so the first one tells what comes in the end.
        whole = [row for row in rows[:1 if self._goal.target else None] if row['accuracy'] != '']
        entry = {
            'scheme': config.scheme, 'window': config.window, 'workers': config.workers,
            'ps': config.ps, flag: float(size), 'step_size': float(size), 'seeds': len(rows),
            'seconds': statistics.mean(times) if reached else None,
            'from': min(times) * low if reached else None,
            'to': max(times) * high if reached else None,
            'reached': len(times) if self._goal.target else None,
            'accuracy': statistics.mean(float(row['accuracy']) for row in whole) if whole else None,
            'loss': statistics.mean(float(row['loss'] or 'nan') for row in rows),
            'simulated_seconds': float(rows[0]['seconds']),
            'local_steps': local_steps, 'local_steps_per_second': clock['rate'],
            'staleness': clock.get('staleness', 0), 'computes': clock.get('computes', 1),
            'limited_by': limited_by(clock),
            'curve': [[float(part) for part in test.split(':')[1:]]
                      for test in rows[0]['curve'].split()]}
        entry.update(zip(('flags', 'workers_and_ps', 'command'), self._command(trial, entry)))
        return entry

    def _command(self, trial, entry):
        """Returns flags, a list of strings; environment variables, a dict; the whole command."""
        config = trial.config
        local_steps = (_LONGER if entry['seconds'] else 1) * entry['local_steps']
        steps = math.ceil(local_steps / self._space.steps_of_update(config))
        flags = [*self._folder.flags, f'--train_steps={steps}', *(
            f'--{name}={value}' for name, value in self._space.own_flags(trial).items())]
        straggler = self._space.rows[config]['flags'].get('straggler')
        if straggler and self._cluster.hosts == 1:
            flags.append(f'--straggler={straggler}')
        numbers = {}
        if config != ONE:
            numbers = {'WORKERS': str(config.workers)}
            if config.ps:
                numbers['PS'] = str(config.ps)
        else:
            flags.append(f'--num_threads={self._space.threads}')
        script = self._folder.of(config.scheme) / 'run.sh'
        if schemes.ROOT in script.parents:
            script = script.relative_to(schemes.ROOT)
        words = [*(f'{name}={value}' for name, value in numbers.items()), 'bash',
                 *map(shlex.quote, [str(script), *flags])]
        return flags, numbers, ' '.join(words)

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

    def _wanted(self):
        return f'{100 * self._goal.target:g} %' if self._goal.target else (
            f'the best after {in_time(self._goal.within)}')

    def _when(self, entry):
        """Returns the cell of a time, with its interval; or how it ended."""
        if not self._goal.target:
            return f'{entry["simulated_seconds"]:.3g}'
        if entry['reached'] and entry['seconds'] is None:
            return f'{entry["reached"]} of {entry["seeds"]} seeds'
        if entry['seconds'] is None:
            return f'not in {in_time(entry["simulated_seconds"])}'
        return f'{entry["seconds"]:.3g} ({entry["from"]:.3g} to {entry["to"]:.3g})'

    def table(self):
        """Returns the table of the entries, in Markdown."""
        when = f's to {self._wanted()}' if self._goal.target else 's'
        header = [when if each is None else each for each in HEADER]
        lines = [header]
        for entry in self.entries:
            is_one = entry['scheme'] == ALONE
            lines.append([
                entry['scheme'], str(entry['window']) if entry['window'] > 1 else '',
                f'{entry["step_size"]:g}', '' if is_one else str(entry['workers']),
                str(entry['ps'] or ''), self._when(entry),
                f'{entry["local_steps_per_second"]:,.0f}' if entry['local_steps_per_second'] >= 10
                else f'{entry["local_steps_per_second"]:.2g}', entry['limited_by'],
                '' if entry['accuracy'] is None else f'{entry["accuracy"]:.3f}'])
        return readmes.table(lines, 'lrrrrrrlr')

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
                panel.plot([0, *(seconds for seconds, _ in entry['curve'])],
                           [math.nan, *(accuracy for _, accuracy in entry['curve'])], label=name,
                           **dict(look_of(_LOOKS_AS if name == ALONE else name), markersize=4))
            if self._goal.target:
                panel.axhline(self._goal.target, color=GREY, linewidth=0.8)
            ends = [entry['to'] or entry['simulated_seconds'] for entry in self.entries]
            panel.set(xlabel='seconds', ylabel='test accuracy', ylim=(0, 1.02),
                      xlim=(0, 1.3 * max(ends)), title='Predicted, by simulation')
            panel.legend(loc='lower right', handlelength=3)
            write(figure, path, 64)
            plt.close(figure)
        return True

    def sentences(self):
        """Returns five sentences, a list of strings."""
        return [self._choice(), self._pays(), self._limits(), self._what_helps(), self._method()]

    def _settings(self, entry):
        """Returns an entry's settings in words."""
        if entry['scheme'] == ALONE:
            return f'{ALONE} with a step size of {entry["step_size"]:g}'
        workers, ps = entry['workers'], entry['ps']
        parts = [f'{workers} worker{"s" * (workers > 1)}']
        if ps:
            parts.append(f'{ps} ps')
        if entry['window'] > 1:
            parts.append(f'a window of {entry["window"]}')
        parts.append(f'a step size of {entry["step_size"]:g}')
        return f'{entry["scheme"]} with {", ".join(parts[:-1])} and {parts[-1]}'

    def _reach(self, entry):
        """Returns what an entry reaches, in words."""
        if entry['seconds'] is not None:
            return (f'{self._wanted()} after {in_time(entry["seconds"])}, between '
                    f'{in_time(entry["from"])} and {in_time(entry["to"])}')
        figure = (f'a loss of {entry["loss"]:.4g}' if entry['accuracy'] is None else
                  f'an accuracy of {entry["accuracy"]:.3f}')
        return f'{figure} after {in_time(entry["simulated_seconds"])}'

    def _choice(self):
        best = self.best
        if best['scheme'] == ALONE:
            return f'Stay on one machine: {self._settings(best)} comes to {self._reach(best)}.'
        return f'Take {self._settings(best)}: it comes to {self._reach(best)}.'

    def _pays(self):
        best, alone = self.best, self.of(ALONE)
        other = next((entry for entry in self.entries if entry['scheme'] != ALONE), None)
        if best is not alone and alone:
            if alone['seconds'] and best['seconds']:
                return (f'It pays: one process takes {in_time(alone["seconds"])}, '
                        f'{alone["seconds"] / best["seconds"]:.2g} times as long.')
            return f'It pays: one process comes to {self._reach(alone)}.'
        if not other:
            return 'No other setting was simulated in the time there was.'
        if other['seconds'] and best['seconds']:
            return (f'It does not pay to distribute this: the best of the others, '
                    f'{self._settings(other)}, takes {in_time(other["seconds"])}, '
                    f'{other["seconds"] / best["seconds"]:.2g} times as long.')
        return (f'It does not pay to distribute this: the best of the others, '
                f'{self._settings(other)}, comes to {self._reach(other)}.')

    def _limits(self):
        entry = next((entry for entry in self.entries if entry['scheme'] != ALONE), self.best)
        return (f'What limits {entry["scheme"]}: {entry["limited_by"]}; its workers compute for '
                f'{entry["computes"]:.0%} of the time, and an update is '
                f'{entry["staleness"]:.1f} updates late in the mean.')

    def _what_helps(self):
        helps = sorted(((rate, name) for name, rate in self.helps.items() if rate >= _HELPS),
                       reverse=True)
        scheme = next((entry['scheme'] for entry in self.entries if entry['scheme'] != ALONE), '')
        if helps:
            return (f'What would help {scheme}: ' + '; '.join(
                f'{name}, {rate:.2g} times as many local steps/s' for rate, name in helps) + '.')
        if self.helps:
            return f'None of these would help {scheme} by 5 %: {", ".join(self.helps)}.'
        return 'What would help was not simulated.'

    def _method(self):
        search, seeds = self._search, min(entry['seeds'] for entry in self.entries)
        said = (f'This is of {len(self._space.rows)} settings, of which the clock alone ruled out '
                f'{len(search.too_slow)}, and of {search.number} simulations with gradients; ')
        said += (f'step sizes were chosen with seed 1, and the times are of seeds 1 to {seeds}, '
                 if seeds > 1 else 'step sizes were chosen with the only seed there was time for, ')
        return said + ('all on the one test set of the model: the interval is of these seeds and '
                       'of the spread of the costs, not of what the simulation leaves out.')

    def as_json(self):
        """Returns all of it, a dict that JSON takes."""
        return {'folder': str(self._folder.path), 'flags': self._folder.flags,
                'cluster': self._cluster.words(), 'target': self._goal.target,
                'within': self._goal.within, 'advised': self.entries, 'helps': self.helps,
                'settings': len(self._space.rows), 'ruled_out': len(self._search.too_slow),
                'too_long': len(self._search.too_long),
                'left_out': dict(self._space.left_out), 'stopped': self._search.is_stopped,
                'seeds': SEEDS, 'sentences': self.sentences(), 'cores': os.cpu_count()}
