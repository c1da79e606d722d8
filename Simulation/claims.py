"""Simulates what papers claim, and says whether it holds: results, a table and pictures.

    python claims.py --claims                all of them; stopped, it goes on from there
    python claims.py --claims=delay,bound    some
    python claims.py --draw                  the table and the pictures again, without simulating

What there is in results/claims.csv is not simulated again: --results_dir= names another place.
"""

import argparse
import collections
import pathlib
import sys

import experiments
import matplotlib
import papers
import tqdm

HERE = pathlib.Path(__file__).resolve().parent
# The colours and the style are those of the comparison's pictures.
sys.path.append(str(HERE.parent / 'Comparison'))
import readmes  # noqa: E402
import style  # noqa: E402

matplotlib.use('Agg')  # it writes files, and needs no screen
from matplotlib import pyplot as plt  # noqa: E402

RESULTS = HERE / 'results'
README = HERE / 'README.md'


class Found:
    """What was found for the sweeps of a claim.

    Attributes:
      sweeps: dict of `papers.Sweep`s by name.
    """

    def __init__(self, sweeps, table):
        """Takes a dict of `papers.Sweep`s by name, and an `experiments.Table`."""
        self.sweeps, self._table = sweeps, table

    @property
    def is_complete(self):
        """Whether all of it has been simulated."""
        return all(self._table.row(scheme, asked) for scheme, asked in asked_for(self.sweeps))

    def mean(self, name, x, figure='accuracy'):
        """Returns the mean of a figure over the seeds at one place, nan if one has it not."""
        its = self.sweeps[name]
        values = [float(self._table.row(its.scheme, its.asked(x, seed))[figure] or 'nan')
                  for seed in range(1, its.seeds + 1)]
        return sum(values) / len(values)

    def line(self, name, figure='accuracy'):
        """Returns a dict of the means by place."""
        return {x: self.mean(name, x, figure) for x in self.sweeps[name].at}


def asked_for(sweeps):
    """Returns what is to be simulated for a dict of sweeps, pairs of a scheme and its flags."""
    return [(its.scheme, its.asked(x, seed)) for its in sweeps.values() for x in its.at
            for seed in range(1, its.seeds + 1)]


def simulate(claims, table):
    """Simulates what a list of `papers.Claim`s needs, and a table does not have yet."""
    asked, seen = collections.defaultdict(list), set()
    for claim in claims:
        for scheme, flags in asked_for(claim.sweeps):
            key = scheme, tuple(sorted(flags.items()))
            if key not in seen and not table.row(scheme, flags):
                seen.add(key)
                asked[scheme].append(flags)
    with tqdm.tqdm(total=len(seen), unit=' simulations', disable=None, leave=False) as bar:
        def of_scheme(name):
            with experiments.Scheme(name) as scheme:
                for flags in asked[name]:
                    table.simulate(scheme, flags)
                    bar.update()
        experiments.for_each(of_scheme, list(asked))


def draw(claim, found, path):
    """Writes the picture of a claim into a file, a path."""
    panels = claim.panels(found)
    with plt.rc_context(style.STYLE):
        figure, all_axes = plt.subplots(1, len(panels), figsize=(9, 2.9), squeeze=False)
        for axes, panel in zip(all_axes[0], panels):
            places = list(dict.fromkeys(x for line in panel.lines.values() for x in line))
            if not any(isinstance(x, str) for x in places):
                places.sort()
            for (name, line), colour, marker in zip(
                    panel.lines.items(), style.COLOURS, style.MARKERS):
                axes.plot([places.index(x) for x in line], list(line.values()), color=colour,
                          marker=marker, markersize=4, label=name)
            axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y,
                     xticks=range(len(places)))
            axes.set_xticklabels(places)
            if panel.log:
                style.logarithmic(axes, 'y')
            elif panel.y == 'test accuracy':
                axes.set_ylim(0, 1.02)
            else:
                axes.set_ylim(bottom=0)
            if axes is all_axes[0][0] or list(panel.lines) != list(panels[0].lines):
                axes.legend()
        figure.tight_layout()
        figure.savefig(str(path))
        plt.close(figure)


def lines_of(judged):
    """Returns the table and the pictures, Markdown, of a dict of verdicts and figures by claim."""
    lines = ['| | the claim | here | what is seen |', '|---|---|---|---|']
    for claim, (verdict, seen) in judged.items():
        lines.append(f'| {claim.name} | {claim.says} ({claim.paper}; {claim.where}) | {verdict} '
                     f'| {seen} |')
    lines += [f'\n![{claim.name}: {claim.paper}](results/{picture_of(claim)})' for claim in judged]
    return '\n'.join(lines)


def picture_of(claim):
    """Returns the name of the picture of a claim."""
    return f'claim-{claim.name}.png'


def judge(claims, table):
    """Returns a dict of verdicts and figures by claim, of those of which all is simulated."""
    found = {claim: Found(claim.sweeps, table) for claim in claims}
    return {claim: claim.judge(its) for claim, its in found.items() if its.is_complete}


def _options(arguments):
    """Returns what a list of arguments says; ends the program if that is wrong."""
    parser = argparse.ArgumentParser(prog='run.sh', description='what papers claim, simulated')
    names = [claim.name for claim in papers.CLAIMS]
    parser.add_argument('--claims', nargs='?', const=','.join(names), default=','.join(names),
                        metavar='NAME,...', help=f'all, or some of {", ".join(names)}')
    parser.add_argument('--draw', action='store_true', help='nothing is simulated')
    parser.add_argument('--results_dir', type=pathlib.Path, default=RESULTS)
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
        simulate(claims, table)
    judged = judge(claims, table)
    if not judged:
        sys.exit(f'{options.results_dir}: there is nothing to draw; without --draw it is '
                 'simulated.')
    for claim, (verdict, seen) in judged.items():
        draw(claim, Found(claim.sweeps, table), options.results_dir / picture_of(claim))
        print(f'{claim.name}: {verdict}: {seen}')
    if options.results_dir == RESULTS:
        readmes.fill(README, {'claims': lines_of(judge(papers.CLAIMS, table))})


if __name__ == '__main__':
    main(sys.argv[1:])
