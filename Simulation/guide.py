"""The guide of the front page: what the advisor says about some models on some clusters.

    bash run.sh --guide                      asks about all of them, and writes the pages
    bash run.sh --guide --only=mnist         about one model; --only=mnist/sites: about one pair
    bash run.sh --guide --draw               writes the pages again from results/guide.csv

It measures each model for a minute, which wants a quiet machine, and searches on each cluster for
the minutes of the model: more for one whose local steps take long to simulate. results/guide.csv
keeps what the advisor said; a pair that is there is not asked about.
"""

import argparse
import collections
import pathlib
import sys

from measuring import readmes
from measuring.results import machine, read, write
import advise
import advise_costs
from advise_folders import ALONE
import advise_words
import advised
import experiments

ROOT, TABLE = experiments.HERE.parent, experiments.HERE / 'results' / 'guide.csv'
PAGES = {'README.md': 'guide', 'docs/schemes.md': 'first'}
_ALIKE = 1.1  # times the least seconds: as good as the first

Model = collections.namedtuple('Model', 'flags target minutes words')
MODELS = collections.OrderedDict([
    ('mnist', Model(['--model=mnist'], 0.94, 5, 'an MLP')),
    ('teacher', Model(['--model=teacher', '--batch_size=128'], 0.65, 5,
                      'a small network, noisy labels and batches of 128')),
    ('resnet', Model(['--model=resnet'], 0.9, 20, 'a small ResNet'))])
Place = collections.namedtuple('Place', 'cluster words')
CLUSTERS = collections.OrderedDict([
    ('rack', Place('9 hosts, 4 cores, 10Gbit, 0.1ms', '9 hosts of 4 cores in a rack: 10 Gbit/s, '
                   '0.1 ms there and back')),
    ('office', Place('9 hosts, 4 cores, 1Gbit, 0.5ms, 2 slow by 3', '9 hosts of 4 cores in an '
                     'office: 1 Gbit/s, 0.5 ms; 2 of them are three times as slow')),
    ('sites', Place('5 hosts, 4 cores, 100Mbit, 50ms', '5 hosts of 4 cores at different '
                    'sites: 100 Mbit/s, 50 ms'))])
# A row for each of the settings that the advisor names, the best one first.
COLUMNS = ['model', 'cluster', 'minutes', 'rank', 'scheme', 'window', 'workers', 'ps', 'step_size',
           'seconds', 'simulated_seconds', 'from', 'to', 'limited_by', 'parameters', 'local_step',
           'machine']


def ask(advisor, model, cluster, minutes):
    """Returns rows of COLUMNS, a list of dicts: what the advisor says about a pair.

    Args:
      advisor: `advised.Advisor`.
      model: string, of MODELS.
      cluster: string, of CLUSTERS.
      minutes: float, for the search.

    Raises:
      SystemExit: if it has no answer.
    """
    its = MODELS[model]
    answer = advisor.answer(model, its.flags, its.target, CLUSTERS[cluster].cluster, cluster,
                            minutes)
    costs = advise_costs.read(advisor.costs(model, its.flags))
    rows = []
    for rank, entry in enumerate(answer['advised']):
        row = {name: '' if entry.get(name) is None else str(entry[name]) for name in COLUMNS}
        row.update(model=model, cluster=cluster, minutes=f'{minutes:g}', rank=str(rank),
                   parameters=str(round(costs.get('parameters'))),
                   local_step=f'{costs.get("one process"):.3g}', machine=machine())
        rows.append(row)
    return rows


def _of(rows, model, cluster):
    """Returns the rows of a pair, the best one first."""
    return sorted((row for row in rows if (row['model'], row['cluster']) == (model, cluster)),
                  key=lambda row: int(row['rank']))


def _are_first(its):
    """Returns the rows of a pair that are as good as the first one; it takes what `_of` returns."""
    there = [row for row in its if row['seconds']]
    return [row for row in there if float(row['seconds']) <= _ALIKE * float(there[0]['seconds'])]


def _link(row, root):
    return row['scheme'] if row['scheme'] == ALONE else f'[{row["scheme"]}]({root}{row["scheme"]}/)'


def _seconds(row):
    if row['seconds']:
        return f'{float(row["seconds"]):.3g} s'
    return f'over {float(row["simulated_seconds"]):.3g} s'


def _cell(its):
    """Returns the cell of a pair, from what `_of` returns."""
    if not its:
        return ''
    there = [row for row in its if row['seconds']]
    if not there:
        return 'none comes there in the time simulated'
    first, *others = there
    parts = [_link(first, '')]
    if first['scheme'] != ALONE:
        parts.append(f'{first["workers"]} workers')
        if first['window'] != '1':
            parts.append(f'window {first["window"]}')
    text = f'{", ".join(parts)}: {_seconds(first)}'
    alike = [_link(row, '') for row in _are_first(its)[1:] if row['scheme'] != ALONE]
    if alike and first['scheme'] != ALONE:
        text += f'; as soon: {", ".join(alike)}'
    alone = next((row for row in its if row['scheme'] == ALONE and row is not first), None)
    if alone:
        text += f'; one process: {_seconds(alone)}'
    elif first['scheme'] == ALONE and others:
        is_sooner = advise_words.is_sooner(*(float(row['seconds']) for row in (others[0], first)))
        text += (f'; {"hardly sooner" if is_sooner else "the next"}: {_link(others[0], "")}, '
                 f'{_seconds(others[0])}')
    elif first['scheme'] == ALONE and len(its) > 1:
        text += '; none of the others comes there in the time simulated'
    return text


def _words_of(model, rows):
    """Returns the head of a model's column."""
    row = next(row for row in rows if row['model'] == model)
    parameters, step = int(row['parameters']) / 4, 1000 * float(row['local_step'])
    size = f'{parameters / 1e6:.1g} million' if parameters >= 1e5 else f'{parameters:,.0f}'
    return (f'[{model}](docs/models.md), {MODELS[model].words}: {size} parameters, {step:.2g} ms '
            f'for a local step; to {MODELS[model].target:.0%}'.replace('%', ' %'))


def table(rows):
    """Returns the guide, in Markdown: a line for each cluster, a column for each model."""
    models = [model for model in MODELS if any(row['model'] == model for row in rows)]
    lines = [['', *(_words_of(model, rows) for model in models)]]
    lines += [[place.words, *(_cell(_of(rows, model, name)) for model in models)]
              for name, place in CLUSTERS.items()]
    return readmes.table(lines, 'l')


def first(rows):
    """Returns in Markdown which scheme is first, or as soon as the first, for which pairs."""
    found = collections.OrderedDict()
    for model in MODELS:
        for cluster in CLUSTERS:
            for row in _are_first(_of(rows, model, cluster)):
                found.setdefault(_link(row, '../'), []).append(f'{model} ({cluster})')
    return '\n'.join(f'- {name}: {", ".join(pairs)}' for name, pairs in found.items())


def publish(rows, root=ROOT):
    """Writes what rows of COLUMNS say into the pages; `root` is the path of the collection."""
    for (page, part), text in zip(PAGES.items(), (table(rows), first(rows))):
        readmes.fill(root / page, {part: text})


def _options(arguments):
    """Returns the options in a list of arguments; `pairs` are those of model and cluster."""
    parser = argparse.ArgumentParser(prog='run.sh', description=__doc__.splitlines()[0],
                                     allow_abbrev=False)
    parser.add_argument('--guide', action='store_true', help='this program; give it first')
    parser.add_argument('--only', metavar='MODEL[/CLUSTER][,...]', help='only these pairs')
    parser.add_argument('--minutes', type=float, metavar='N',
                        help='for each search, in place of the minutes of its model')
    parser.add_argument('--draw', action='store_true', help='ask nothing')
    options = parser.parse_args(arguments)
    if options.minutes is not None and not options.minutes > 0:
        sys.exit(f'--minutes={options.minutes:g}: it has to be above 0.')
    every = [(model, cluster) for model in MODELS for cluster in CLUSTERS]
    names = options.only.split(',') if options.only else list(MODELS)
    for name in names:
        if not any(name in (pair[0], '/'.join(pair)) for pair in every):
            sys.exit(f'--only={name}: there are {", ".join(MODELS)}, each with '
                     f'{", ".join(CLUSTERS)}, such as mnist/sites.')
    options.pairs = [pair for pair in every if {pair[0], '/'.join(pair)} & set(names)]
    return options


def say(text):
    """Prints a line."""
    print(f'guide: {text}', flush=True)


def main(arguments):
    """Asks, and publishes."""
    options = _options(arguments)
    rows = read(TABLE)
    there = {(row['model'], row['cluster']) for row in rows}
    asked = [pair for pair in options.pairs if pair not in there] * (not options.draw)
    advisor = advised.Advisor(pathlib.Path(advise.RESULTS) / 'guide', say)
    for number, pair in enumerate(asked, 1):
        minutes = options.minutes or MODELS[pair[0]].minutes
        say(f'{"/".join(pair)}, {number} of {len(asked)}: searches for {minutes:g} minutes')
        rows += ask(advisor, *pair, minutes)
        write(TABLE, COLUMNS, rows)
    if not rows:
        sys.exit(f'{TABLE}: there is nothing to publish; without --draw the advisor is asked.')
    publish(rows)
    readmes.show(table(rows))


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit('Stopped. `bash run.sh --guide` goes on.')
