"""The results in words: what each scheme came to, the table, and the guide that follows from it."""

import collections
import csv
import statistics

from examples import BARE, bytes_per_step, examples, GROUPS, ROOT
import readmes

TABLE = 'table', 'quick'  # the experiments with the runs of the table
REFERENCE = 'Non-Distributed-Setup'  # one process
NEAR = 0.02  # of a metric: about as good as one process
TIMED = 'resnet', 'clicks'  # the models of which the rates are told


def read(path):
    """Returns the rows of a results.csv, dicts of strings; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def numbers(rows, column):
    """Returns a column's values as floats, of the rows that have one."""
    return [float(row[column]) for row in rows if row[column] != '']


def median(values):
    """Returns the median, or None of nothing."""
    return statistics.median(values) if values else None


def histogram(rows):
    """Returns a `collections.Counter`: how many updates of the rows' runs had which staleness."""
    counts = collections.Counter()
    for row in rows:
        for pair in row['staleness'].split():
            value, count = map(int, pair.split(':'))
            counts[value] += count
    return counts


def curve(row):
    """Returns a run's lists of local steps, seconds and test accuracies."""
    points = [tuple(map(float, point.split(':'))) for point in row['curve'].split()]
    return [list(values) for values in zip(*points)] or [[], [], []]


class Summary:
    """What the runs of a scheme came to.

    Attributes:
      example: `Example`, or None for the bare limit.
      name: string.
      rows: list of dicts, the runs of the table: one for each seed.
      accuracies: list of floats, one for each seed.
      rate: float, median of the local steps/s of all workers, or None.
      straggling: the same with a straggler.
      seconds_to_95: median, if at least half of the runs came there, else None.
      sent: bytes per local step as traced, or None.
      theory: bytes per local step as computed, or None.
      mean_staleness, most_stale: of all updates; None for schemes that do not count it.
      start, stop: median seconds from the start of run.sh to the first step, and from the test to
        the end of run.sh; None for the bare limit.
      failures: list of strings, why runs failed.
    """

    def __init__(self, name, rows, example):
        """Sums up; `rows` are all that there are."""
        own = [row for row in rows if row['folder'] == name]
        self.name, self.example = name, example
        self.rows = [row for row in own if row['experiment'] in TABLE]
        self.accuracies = numbers(self.rows, 'test_accuracy')
        self.rate = median(numbers(self.rows, 'steps_per_s'))
        self.straggling = median(numbers([row for row in own if row['experiment'] == 'straggler'],
                                         'steps_per_s'))
        # Who did not come there took longer than all who did.
        times = [float(row['seconds_to_95'] or 'inf') for row in self.rows if row['curve']]
        self.seconds_to_95 = median(times) if times and median(times) < float('inf') else None
        self.sent = median(numbers([row for row in own if row['experiment'] in ('trace', 'quick')],
                                   'bytes_per_step'))
        self.theory = example and bytes_per_step(
            example.kind, int(self.rows[0]['workers']), example.window)
        stale = histogram(self.rows)
        self.mean_staleness = self.most_stale = None
        if stale:
            self.mean_staleness = sum(s * n for s, n in stale.items()) / sum(stale.values())
            self.most_stale = max(stale)
        self.accepted, self.dropped = (median(numbers(self.rows, column))
                                       for column in ('accepted', 'dropped'))
        self.start, self.stop = (median(numbers(self.rows, column))
                                 for column in ('start_s', 'stop_s'))
        self.failures = [row['failed'] for row in own if row['failed']]

    @property
    def accuracy(self):
        """Mean of the accuracies, or None."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def spread(self):
        """Standard deviation of the accuracies over the seeds, or None with less than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def _in_order():
    """Returns a list of all `Example`, by groups."""
    return sorted(examples(), key=lambda example: (GROUPS.index(example.group), example.name))


def summaries(rows):
    """Returns a `Summary` of each scheme with runs in the table: the bare limit, then by groups."""
    there = {row['folder'] for row in rows if row['experiment'] in TABLE}
    return [Summary(name, rows, example)
            for name, example in [(BARE, None), *((each.name, each) for each in _in_order())]
            if name in there]


def cell(value, form):
    """Returns a value as a cell of the table, which is empty without one."""
    return '' if value is None else form.format(value)


COLUMNS = ['', 'workers', 'window', 'test accuracy', 's to 95 %', 'local steps/s',
           'with a straggler', 'staleness (max)', 'B per local step', 'in theory',
           'accepted, dropped', 'start, s', 'stop, s']


def table_row(summary):
    """Returns the cells of the table for a `Summary`."""
    example = summary.example
    name, workers, window = summary.name, '', ''
    if example:
        note = f' ({example.settings.note})' if example.settings.note else ''
        name = f'[{name}](../{name}/){note}'
        workers = summary.rows[0]['workers'] if example.kind != 'alone' else ''
        window = summary.rows[0]['window'] if example.window > 1 else ''
    accuracy = cell(summary.accuracy, '{:.3f}') + cell(summary.spread, ' ± {:.3f}')
    gradients = ('' if summary.accepted is None
                 else f'{summary.accepted:.0f}, {summary.dropped:.0f}')
    return [name, workers, window, accuracy or 'failed' * bool(summary.failures),
            cell(summary.seconds_to_95, '{:.2f}') or '–' * bool(example),
            cell(summary.rate, '{:.0f}'), cell(summary.straggling, '{:.0f}'),
            cell(summary.mean_staleness, '{:.2f}') + cell(summary.most_stale, ' ({})'),
            cell(summary.sent, '{:,.0f}'), cell(summary.theory, '{:,.0f}'), gradients,
            cell(summary.start, '{:.1f}'), cell(summary.stop, '{:.1f}')]


def with_models(rows):
    """Returns a dict by folder of dicts by model: the row of each run with the gallery.

    The folders come in the order of their groups.
    """
    found = {example.name: {row['model']: row for row in rows
                            if row['experiment'] == 'model' and row['folder'] == example.name}
             for example in _in_order()}
    return {name: of_folder for name, of_folder in found.items() if of_folder}


def _metric(row, reference):
    """Returns a cell of `models_table`; `reference` is the row of one process, or None."""
    if row is None or not row['test_accuracy']:
        return 'failed' if row else ''
    value = float(row['test_accuracy'])
    worse = reference and float(reference['test_accuracy'] or 'inf') - value > NEAR
    return f'**{value:.3f}**' if worse else f'{value:.3f}'


def models_table(rows):
    """Returns two tables in Markdown: what models of the gallery come to, and how fast."""
    found = with_models(rows)
    one = found.get(REFERENCE, {})
    names = sorted({model for of_folder in found.values() for model in of_folder})
    reached = [['', *names], ['---'] + ['---:'] * len(names)]
    timed = [name for name in TIMED if name in names]
    rates = [['', *(f'{name}, {column}' for name in timed for column in
                    ('local steps/s', 'in those of one process', 'kB per local step'))]]
    rates.append(['---'] + ['---:'] * (len(rates[0]) - 1))
    for folder, of_folder in found.items():
        link = f'[{folder}](../{folder}/)'
        reached.append([link, *(_metric(of_folder.get(name), one.get(name)) for name in names)])
        cells = [link]
        for name in timed:
            rate, sent = (numbers([of_folder[name]] if name in of_folder else [], column)
                          for column in ('steps_per_s', 'bytes_per_step'))
            ratio = relative_rate(rows, folder, name)
            cells += [f'{rate[0]:.{int(rate[0] < 100)}f}' if rate else '', cell(ratio, '{:.2f}'),
                      f'{sent[0] / 1000:,.0f}' if sent else '']
        rates.append(cells)
    return '\n\n'.join(['\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
                        for lines in (reached, rates) if len(lines[0]) > 1])


def relative_rate(rows, folder, model):
    """Returns a folder's local steps/s with a model in those of one process, or None.

    Args:
      rows: list of dicts.
      folder: string.
      model: string, of the gallery; '' for the digits.
    """
    own, one = (median(numbers([row for row in rows if row['folder'] == name and
                                row['experiment'] in (TABLE if not model else ('model',))
                                and row['model'] == model], 'steps_per_s'))
                for name in (folder, REFERENCE))
    return own / one if own and one else None


def conditions(rows):
    """Returns in words what the runs of the table were made on, when, and how long they were."""
    of_table = [row for row in rows if row['experiment'] in TABLE]
    length = (f'{of_table[0]["local_steps"]} local steps by all workers together; seeds: '
              f'{len({row["seed"] for row in of_table})}. ' if of_table else '')
    dates = sorted({row['date'] for row in rows})
    versions = sorted({row['tensorflow'] for row in rows} - {''})
    minutes = sum(numbers(rows, 'seconds')) / 60
    return (f'{length}{" to ".join(dict.fromkeys((dates[0], dates[-1])))}, '
            f'{rows[0]["machine"]}, TensorFlow {", ".join(versions)}; {len(rows)} runs in '
            f'{minutes:.0f} minutes.')


def table(rows):
    """Returns the table in Markdown, with the conditions below."""
    lines = [COLUMNS, ['---'] * 2 + ['---:'] * (len(COLUMNS) - 2)]
    lines += [table_row(summary) for summary in summaries(rows)]
    text = '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
    return f'{text}\n\n{conditions(rows)}\n'


def tables(rows):
    """Returns all tables, for whoever compares."""
    parts = [models_table(rows), table(rows) if summaries(rows) else conditions(rows) + '\n']
    return '\n\n'.join(filter(None, parts))


def _best(candidates, figure, least=False):
    """Returns the summary with the most (or least) of an attribute, of those that have it."""
    there = [summary for summary in candidates if getattr(summary, figure) is not None]
    if not there:
        return None
    return (min if least else max)(there, key=lambda summary: getattr(summary, figure))


def _near(candidates, choice, figure):
    """Returns in words those that are about as good as a choice.

    That is, within a tenth of its figure; an accuracy, within 0.005, which is one or two images.
    """
    best = getattr(choice, figure)
    far = 0.005 if figure == 'accuracy' else 0.1 * best
    return ', '.join(each.name for each in candidates
                     if each is not choice and getattr(each, figure) is not None
                     and abs(getattr(each, figure) - best) <= far)


def guide(rows):
    """Returns the lines of the decision guide, a table in Markdown; all of it follows from rows.

    Only schemes on the same network with plain SGD are compared.
    """
    found = [each for each in summaries(rows) if each.example and not each.example.settings.note]
    alone = [each for each in found if each.example.kind == 'alone']
    schemes = [each for each in found if each.example.free_workers and each.accuracies]
    if not schemes:
        return []
    good = max(each.accuracy for each in schemes) - 0.01
    accurate = [each for each in schemes if each.accuracy >= good]
    exact = [each for each in schemes if each.example.synchronous and each.example.window == 1]
    lines = ['| if | then | because | about as good |', '|---|---|---|---|']

    def say(situation, candidates, figure, reason, form, least=False):
        choice = _best(candidates, figure, least)
        if choice:
            reason = reason.format(form.format(getattr(choice, figure)))
            lines.append(f'| {situation} | [{choice.name}]({choice.name}/) | {reason} | '
                         f'{_near(candidates, choice, figure)} |')

    say('the model trains on one machine, and that is fast enough', alone, 'seconds_to_95',
        '{} s to 95 %, without any network', '{:.2f}', least=True)
    say('you want 95 % as soon as you can', schemes, 'seconds_to_95', '{} s, the least', '{:.2f}',
        least=True)
    say('you want the most accurate after so many local steps', schemes, 'accuracy',
        '{} of the test images, the most', '{:.3f}')
    say('the network is slow, and you want nearly that accuracy', accurate, 'sent',
        '{} B per local step, the least of those within 0.01 of the best accuracy', '{:,.0f}',
        least=True)
    say('some workers are slow', accurate, 'straggling',
        '{} local steps/s with a straggler, the most of those within 0.01 of the best accuracy',
        '{:.0f}')
    say('the result has to be that of one process with larger batches', exact, 'rate',
        '{} local steps/s, the most of those that take each step at one point', '{:.0f}')
    return lines


def round_trips(rows):
    """Returns a line: how many round trips a window has, from the runs at a distance.

    That is by how much a window takes longer with the longest round trip than without any.

    Args:
      rows: list of dicts, as in results.csv.
    """
    seconds = collections.defaultdict(dict)
    for row in rows:
        if row['experiment'] == 'latency' and row['steps_per_s']:
            windows = float(row['steps_per_s']) / int(row['window']) / int(row['workers'])
            name = row['folder'] + f', window {row["window"]}' * (row['window'] != '1')
            seconds[name][float(row['round_trip'])] = 1 / windows
    trips = [f'{name} {(times[max(times)] - times[0]) / (max(times) / 1000):.1f}'
             for name, times in seconds.items() if 0 in times and len(times) > 1]
    return f'Round trips in a window, as measured: {"; ".join(trips)}.' if trips else ''


def publish(rows, pictures, root=ROOT):
    """Puts what follows from the results between its markers in two READMEs.

    Args:
      rows: list of dicts, as in results.csv.
      pictures: dict of captions by the names of the pictures in Comparison/results.
      root: path, where README.md and Comparison/README.md are.

    Raises:
      SystemExit: if a marker is missing.
    """
    parts = {'README.md': {'guide': '\n'.join(guide(rows))},
             'Comparison/README.md': {
                 'table': table(rows).rstrip(),
                 'gallery': models_table(rows),
                 'round trips': round_trips(rows),
                 'pictures': '\n\n'.join(f'![{caption}](results/{name}.png)\n\n{caption}.'
                                         for name, caption in pictures.items())}}
    for name, of_readme in parts.items():
        readmes.fill(root / name, of_readme)
