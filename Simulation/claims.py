"""Simulates what papers claim and tells whether it holds: results, verdicts and pictures.

    bash run.sh --claims                all claims; it resumes what was stopped
    bash run.sh --claims=delay,bound    some of them
    bash run.sh --claims --draw         tables and pictures again, without simulating

It does not simulate again what is in results/claims.csv; --results_dir= names another directory.
"""

import argparse
import collections
import contextlib
import math
import os
import pathlib
import statistics
import sys
import textwrap
import threading

import matplotlib
import tqdm
from measuring import readmes, style
import arms
from effects import OPEN
import experiments
import judging
import papers

matplotlib.use('Agg')  # it writes files, and needs no screen
from matplotlib import pyplot as plt  # noqa: E402

RESULTS = experiments.HERE / 'results'
README, PAGE = experiments.HERE / 'README.md', RESULTS / 'claims.md'
NOT_YET = 'not simulated yet'
# Ticks of a logarithmic axis of less than a decade.
_FINE = 1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8
_ANSWERS = {True: 'Yes', False: 'No', None: 'Not tested here', OPEN: 'Within the noise'}


class Process(experiments.Scheme):
    """A process that simulates one scheme on one model, many times."""

    def __init__(self, name, model):
        """Takes the name of a folder, and that of a model of the gallery, or ''."""
        super().__init__(name, *([f'--model={model}'] if model else []))

    def simulate(self, asked):
        return super().simulate({name: value for name, value in asked.items() if name != 'model'})


class Processes:
    """Processes that stay for the simulations to come. A context manager."""

    def __init__(self):
        self._idle, self._lock = collections.defaultdict(list), threading.Lock()
        self._all = contextlib.ExitStack()

    def simulate(self, table, scheme, asked):
        """Adds a row to an `experiments.Table`, in any thread; see `Table.simulate`."""
        kind = scheme, asked.get('model', '')
        with self._lock:
            one = (self._idle[kind].pop() if self._idle[kind] else
                   self._all.enter_context(Process(*kind)))
        table.simulate(one, asked)
        with self._lock:
            self._idle[kind].append(one)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._all.close()


def simulate(claims, table, jobs=None):
    """Simulates what is needed and not there yet, one claim after the other.

    Args:
      claims: list of `judging.Claim`.
      table: `experiments.Table`.
      jobs: int, how many simulations at a time; by default one for each processor.
    """
    for claim in claims:
        found = judging.Seen(claim.arms, table)
        with Processes() as processes, tqdm.tqdm(
                desc=claim.name, unit=' simulations', disable=None, leave=False) as bar:
            def one(pair, processes=processes, bar=bar):
                processes.simulate(table, *pair)
                bar.update()

            while True:  # what is chosen tells what to simulate next
                missing = found.missing()
                if not missing:
                    break
                # Arms may ask for the same.
                once = {(scheme, tuple(sorted(asked.items()))): (scheme, asked)
                        for scheme, asked in missing}
                experiments.for_each(one, once.values(), jobs or os.cpu_count())


def _looks(names):
    """Returns how the lines of a panel are drawn, a list of dicts: by their folders, if they can.

    A line for the same folder as an earlier one is dotted and darker.
    """
    looks, folders = [], [name.partition(',')[0] for name in names]
    for number, folder in enumerate(folders):
        look = style.look_of(folder)
        if look['color'] == style.GREY:  # it is of no folder
            look = {'color': style.COLOURS[number], 'marker': style.MARKERS[number],
                    'markersize': max(4, 7 - 1.2 * number), 'linewidth': 3.2 / (number + 1) ** 0.7,
                    'linestyle': style.DASHES[number % len(style.DASHES)]}
        elif folder in folders[:number]:
            darker = [0.6 * part for part in matplotlib.colors.to_rgb(look['color'])]
            look.update(color=darker, linestyle=':', linewidth=1.3, markersize=4, zorder=3)
        looks.append(look)
    return looks


def _finite(values):
    """Returns the mean, and how far it is to the least and to the most; nan if a seed failed."""
    if not all(map(math.isfinite, values)):
        return [math.nan] * 3
    mean = statistics.mean(values)
    return mean, max(0, mean - min(values)), max(0, max(values) - mean)


def _draw_panel(axes, panel):
    """Draws a `judging.Panel`: means, and bars from the least to the most of the seeds.

    Kinds, which have names and no order, are not joined by lines, and drawn side by side.
    """
    places = list(dict.fromkeys(x for line in panel.lines.values() for x in line))
    has_names = any(isinstance(x, str) for x in places)
    if not has_names:
        places.sort()
    for number, (name, look) in enumerate(zip(panel.lines, _looks(panel.lines))):
        line, aside = panel.lines[name], 0
        if has_names:
            aside = 0.12 * (number - (len(panel.lines) - 1) / 2)
            look.update(linestyle='none', markersize=7)
        means, below, above = zip(*map(_finite, line.values()))
        axes.errorbar([places.index(x) + aside for x in line], means, [below, above], label=name,
                      capsize=2, elinewidth=1, **look)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xticks=range(len(places)))
    axes.set_xticklabels(places)
    if has_names:
        axes.set_xlim(-0.5, len(places) - 0.5)
    if panel.log:
        axes.set_yscale('log')
        least, most = axes.get_ylim()
        style.logarithmic(axes, 'y', (1, 2, 5) if most > 10 * least else _FINE)
        return
    axes.set_ylim(0, 1.03 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter('{x:,g}')


def draw(claim, seen, path):
    """Writes the picture of a claim into a file, a path; `seen` is a complete `judging.Seen`."""
    panels = claim.panels(seen)
    with plt.rc_context(style.STYLE):
        figure, all_axes = plt.subplots(1, len(panels), figsize=(11, 2.9), squeeze=False,
                                        constrained_layout=True)
        for axes, panel, following in zip(all_axes[0], panels, [*panels[1:], None]):
            _draw_panel(axes, panel)
            if not following or list(following.lines) != list(panel.lines):
                style.legend_beside(axes)
        style.write(figure, path)
        plt.close(figure)


def judge(claims, table):
    """Returns a dict by claim of the list of its `judging.Part`s, or None if rows are missing."""
    seen = {claim: judging.Seen(claim.arms, table) for claim in claims}
    return {claim: None if its.missing() else claim.judge(its) for claim, its in seen.items()}


def verdict_of(parts):
    """Returns the verdict on what `judge` returns for a claim, a string."""
    if parts is None:
        return NOT_YET
    found = judging.verdict(parts)
    if found in (judging.NOT_TESTED, judging.IN_NOISE):
        return found
    words = [found]
    for holds, what in ((OPEN, judging.IN_NOISE), (None, judging.NOT_TESTED)):
        left = sum(one.holds == holds for one in parts)
        words += [f'{left} part{"s" * (left > 1)} {what}'] if left else []
    return '; '.join(words)


def verdicts_of(judged, page='results/claims.md'):
    """Returns the verdicts in Markdown.

    Args:
      judged: what `judge` returns.
      page: string, the path of the page with the figures.
    """
    rows = [['', 'the claim', 'simulated']]
    rows += [[f'[{claim.name}]({page}#{claim.name})', f'{claim.says} ({claim.paper})',
              verdict_of(parts)] for claim, parts in judged.items()]
    return readmes.table(rows, 'l')


def figures_of(judged):
    """Returns what is seen for each claim, in Markdown; `judged` is what `judge` returns."""
    return '\n\n'.join(_figures_of(*each) for each in judged.items())


def _figures_of(claim, parts):
    verdict = verdict_of(parts)
    texts = [f'## {claim.name}', *map(readmes.paragraph, (
        f'{claim.paper} ({claim.where}): {claim.says}',
        f'**{verdict[0].upper()}{verdict[1:]}.** Simulated: {claim.here}.'))]
    if parts is not None:
        texts.append('\n'.join(map(_item, parts)))
        texts.append(f'![{claim.name}: {claim.paper}]({picture_of(claim)})')
    return '\n\n'.join(texts)


def _item(part):
    """Returns a `judging.Part` as an item of a list in Markdown."""
    kind = {'part': '', 'control': ' (control)', 'regime': ' (needed to see anything)'}[part.kind]
    return textwrap.fill(f'- **{_ANSWERS[part.holds]}**{kind}: {part.says}.', 100,
                         subsequent_indent='  ', break_on_hyphens=False, break_long_words=False)


def told_in(folder, judged):
    """Returns what the README of a folder tells of its claims, in Markdown; see `figures_of`."""
    mine = {claim: parts for claim, parts in judged.items() if folder in claim.folders}
    pictures = [f'![{claim.name}: {claim.paper}](../Simulation/results/{picture_of(claim)})'
                for claim, parts in mine.items()
                if parts is not None and folder == claim.folders[0]]
    return '\n\n'.join([verdicts_of(mine, '../Simulation/results/claims.md'), *pictures])


def publish(table, root=experiments.HERE.parent):
    """Writes what is known of all claims into the pages; `root` is the path of the collection."""
    judged = judge(papers.CLAIMS, table)
    readmes.fill(README, {'claims': verdicts_of(judged)})
    readmes.fill(PAGE, {'claims': figures_of(judged)})
    for folder in folders():
        readmes.fill(root / folder / 'README.md', {'claims': told_in(folder, judged)})


def folders():
    """Returns the folders whose READMEs tell of claims, a sorted list of strings."""
    return sorted({folder for claim in papers.CLAIMS for folder in claim.folders})


def picture_of(claim):
    """Returns the name of a claim's picture."""
    return f'claim-{claim.name}.png'


def _options(arguments):
    """Returns the options in a list of arguments; ends the program if they are wrong."""
    parser = argparse.ArgumentParser(prog='run.sh', description='what papers claim, simulated')
    names = [claim.name for claim in papers.CLAIMS]
    parser.add_argument('--claims', nargs='?', const=','.join(names), default=','.join(names),
                        metavar='NAME,...', help=f'all, or some of {", ".join(names)}')
    parser.add_argument('--draw', action='store_true', help='simulate nothing')
    parser.add_argument('--results_dir', type=pathlib.Path, default=RESULTS)
    experiments.add_jobs(parser)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.claims.split(',')) - set(names))
    if unknown:
        sys.exit(f'--claims={options.claims}: there is no {unknown[0]}; there are '
                 f'{", ".join(names)}.')
    return options


def main(arguments):
    options = _options(arguments)
    claims = [claim for claim in papers.CLAIMS if claim.name in options.claims.split(',')]
    table = arms.table_of(options.results_dir / 'claims.csv')
    if not options.draw:
        simulate(claims, table, options.jobs)
    judged = {claim: parts for claim, parts in judge(claims, table).items() if parts is not None}
    if not judged:
        sys.exit(f'{options.results_dir}: there is nothing to draw; without --draw it is '
                 'simulated.')
    for claim, parts in judged.items():
        draw(claim, judging.Seen(claim.arms, table), options.results_dir / picture_of(claim))
        print(f'{claim.name}: {verdict_of(parts)}')
    if options.results_dir == RESULTS:
        publish(table)


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --claims` goes on.')
