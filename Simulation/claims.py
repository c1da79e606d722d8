"""Simulates what papers claim and tells whether it holds: results, verdicts and pictures.

    bash run.sh --claims                all claims; it resumes what was stopped
    bash run.sh --claims=delay,bound    some of them
    bash run.sh --claims --draw         tables and pictures again, without simulating

It does not simulate again what is in results/claims.csv; --results_dir= names another directory.
"""

import argparse
import collections
import os
import pathlib
import sys

import matplotlib
import tqdm
from measuring import readmes, style
import experiments
import papers

matplotlib.use('Agg')  # it writes files, and needs no screen
from matplotlib import pyplot as plt  # noqa: E402

RESULTS = experiments.HERE / 'results'
README, PAGE = experiments.HERE / 'README.md', RESULTS / 'claims.md'


class Found:
    """The results of a claim's sweeps."""

    def __init__(self, sweeps, table):
        """Takes a dict of `papers.Sweep`s by name, and an `experiments.Table`."""
        self.sweeps, self._table = sweeps, table

    @property
    def is_complete(self):
        """Whether all of them have been simulated."""
        return all(self._table.row(scheme, asked) for scheme, asked in asked_for(self.sweeps))

    def mean(self, name, x, figure='accuracy'):
        """Returns the mean of a figure over the seeds at one place; nan if a seed lacks it."""
        its = self.sweeps[name]
        values = [float(self._table.row(its.scheme, its.asked(x, seed))[figure] or 'nan')
                  for seed in range(1, its.seeds + 1)]
        return sum(values) / len(values)

    def line(self, name, figure='accuracy'):
        """Returns the means, a dict by place."""
        return {x: self.mean(name, x, figure) for x in self.sweeps[name].at}


def asked_for(sweeps):
    """Returns what to simulate for a dict of sweeps: pairs of a scheme and its flags."""
    return [(its.scheme, its.asked(x, seed)) for its in sweeps.values() for x in its.at
            for seed in range(1, its.seeds + 1)]


def simulate(claims, table, jobs=None):
    """Simulates what is needed and not there yet.

    Args:
      claims: list of `papers.Claim`.
      table: `experiments.Table`.
      jobs: int, how many simulations at a time; by default one for each processor.
    """
    asked, seen = collections.defaultdict(list), set()
    for claim in claims:
        for scheme, flags in asked_for(claim.sweeps):
            key = scheme, tuple(sorted(flags.items()))
            if key not in seen and not table.row(scheme, flags):
                seen.add(key)
                asked[scheme].append(flags)
    jobs = jobs or os.cpu_count()
    processes = -(-jobs // max(1, len(asked)))  # for each scheme, so that no processor is idle
    with tqdm.tqdm(total=len(seen), unit=' simulations', disable=None, leave=False) as bar:
        def some_of_a_scheme(which):
            name, first = which
            with experiments.Scheme(name) as scheme:
                for flags in asked[name][first::processes]:
                    table.simulate(scheme, flags)
                    bar.update()
        experiments.for_each(some_of_a_scheme, [
            (name, first) for name, flags in asked.items()
            for first in range(min(processes, len(flags)))], jobs)


def _looks(names):
    """Returns how the lines of a panel are drawn, a list of dicts: by their folders, if they can.

    A line for the same folder as an earlier one is dotted and darker.
    """
    looks, folders = [], [name.partition(',')[0] for name in names]
    for number, folder in enumerate(folders):
        look = style.look_of(folder)
        if look['color'] == style.GREY:  # it is of no folder
            look = {'color': style.COLOURS[number], 'marker': style.MARKERS[number],
                    'markersize': 7 - 1.2 * number, 'linewidth': 3.2 / (number + 1) ** 0.7,
                    'linestyle': style.DASHES[number % len(style.DASHES)]}
        elif folder in folders[:number]:
            darker = [0.6 * part for part in matplotlib.colors.to_rgb(look['color'])]
            look.update(color=darker, linestyle=':', linewidth=1.3, markersize=4, zorder=3)
        looks.append(look)
    return looks


def _draw_panel(axes, panel):
    """Draws a `papers.Panel`."""
    places = list(dict.fromkeys(x for line in panel.lines.values() for x in line))
    if not any(isinstance(x, str) for x in places):
        places.sort()
    for (name, line), look in zip(panel.lines.items(), _looks(panel.lines)):
        axes.plot([places.index(x) for x in line], list(line.values()), label=name, **look)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xticks=range(len(places)))
    axes.set_xticklabels(places)
    if panel.log:
        style.logarithmic(axes, 'y')
        return
    axes.set_ylim(0, 1.03 if panel.y == 'test accuracy' else 1.03 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter('{x:,g}')


def draw(claim, found, path):
    """Writes the picture of a claim into a file, a path."""
    panels = claim.panels(found)
    with plt.rc_context(style.STYLE):
        figure, all_axes = plt.subplots(1, len(panels), figsize=(11, 2.7), squeeze=False,
                                        constrained_layout=True)
        for axes, panel, following in zip(all_axes[0], panels, [*panels[1:], None]):
            _draw_panel(axes, panel)
            if not following or list(following.lines) != list(panel.lines):
                style.legend_beside(axes)
        figure.savefig(str(path))
        plt.close(figure)


def verdicts_of(judged):
    """Returns the verdicts and the pictures in Markdown; `judged` is what `judge` returns."""
    rows = [['', 'the claim', 'here']]
    rows += [[f'[{claim.name}](results/claims.md#{claim.name})', f'{claim.says} ({claim.paper})',
              verdict] for claim, (verdict, _) in judged.items()]
    return '\n'.join([readmes.table(rows, 'l'), *(
        f'\n![{claim.name}: {claim.paper}](results/{picture_of(claim)})' for claim in judged)])


def figures_of(judged):
    """Returns what is seen for each claim, in Markdown; `judged` is what `judge` returns."""
    return '\n\n'.join(readmes.paragraph(text)
                       for claim, (verdict, seen) in judged.items() for text in (
                           f'## {claim.name}', f'{claim.paper} ({claim.where}): {claim.says}',
                           f'**{verdict.capitalize()}**: {seen}.'))


def picture_of(claim):
    """Returns the name of a claim's picture."""
    return f'claim-{claim.name}.png'


def judge(claims, table):
    """Returns a dict of (verdict, what is seen) by claim, of the claims that are all simulated."""
    found = {claim: Found(claim.sweeps, table) for claim in claims}
    return {claim: claim.judge(its) for claim, its in found.items() if its.is_complete}


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
    table = experiments.Table(options.results_dir / 'claims.csv', papers.COLUMNS)
    if not options.draw:
        simulate(claims, table, options.jobs)
    judged = judge(claims, table)
    if not judged:
        sys.exit(f'{options.results_dir}: there is nothing to draw; without --draw it is '
                 'simulated.')
    for claim, (verdict, seen) in judged.items():
        draw(claim, Found(claim.sweeps, table), options.results_dir / picture_of(claim))
        print(f'{claim.name}: {verdict}: {seen}')
    if options.results_dir == RESULTS:
        everything = judge(papers.CLAIMS, table)
        readmes.fill(README, {'claims': verdicts_of(everything)})
        readmes.fill(PAGE, {'claims': figures_of(everything)})


if __name__ == '__main__':
    main(sys.argv[1:])
