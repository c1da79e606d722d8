"""The results in tables and in words: what each scheme came to, and the guide that follows.

Everywhere `rows` are those of results.csv, a list of dicts, and `study` those of the study of
Simulation.
"""

import collections
import math
import os
import re
import statistics

from measuring import readmes, results, study as its_study
from measuring.folders import BARE, bytes_per_step, examples, GROUPS, ROOT
from measuring.results import median, numbers

TABLE = 'table', 'quick'  # the experiments with the runs of the table
REFERENCE = 'Non-Distributed-Setup'  # one process
NEAR = 0.02  # of a metric: about as good as one process
TIMED = 'resnet', 'clicks'  # the models of which the rates are told
# Of the guide: what is as good as the best. An accuracy, within three images of the test; an excess
# loss, within a twentieth; others, within what a machine is now and then slower or faster.
EQUAL, NEARLY, LATE = 0.01, 1.05, 1.25
COMES_TO = f'an excess loss of {its_study.TARGET}'
FORMS = {'accuracy': '{:.3f} of the test images', 'seconds_to_95': '{:.2f} s to 95 %',
         'excess_seconds': f'{{:.3g}} s to {COMES_TO}',
         'excess_loss': '{:.3f} of excess loss', 'sent': '{:,.0f} B in a local step',
         'straggling': '{:.0f} local steps/s with a straggler', 'rate': '{:.0f} local steps/s'}
# Figures of which less is better.
LEAST = 'seconds_to_95', 'excess_seconds', 'excess_loss', 'sent'
HERE = ROOT / 'Comparison'
STUDY = ROOT / 'Simulation' / 'results' / 'study.csv'
MANY = 64  # workers of the study in the guide
STRAGGLERS = ','.join(['2ms'] * 9 + ['10ms'])  # of the study: the times of local steps
SHOWN_ABOVE = 'overview', 'models'  # pictures that have their place in Comparison/README.md


def histogram(rows):
    """Returns a `collections.Counter`: how many updates of the rows' runs had which staleness."""
    counts = collections.Counter()
    for row in rows:
        pairs = (map(int, pair.split(':')) for pair in row['staleness'].split())
        counts.update(dict(pairs))
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
      accuracy, spread: mean and standard deviation over the seeds; None without one, or two.
      rate: float, median of the local steps/s of all workers, or None.
      straggling: the same with a straggler.
      seconds_to_95: median, if at least half of the runs came there, else None.
      sent, theory: bytes per local step, as traced and as computed, or None.
      staleness: `collections.Counter`, how many updates had which; empty if the scheme does not
        count it.
      mean_staleness, most_stale: of all updates; None if the scheme does not count it.
      start, stop: median seconds from the start of run.sh to the first step, and from the test to
        the end of run.sh; None for the bare limit.
      failures: list of strings, why runs failed.
    """

    def __init__(self, name, rows, example):
        """Sums up; `rows` are all that there are."""
        own = [row for row in rows if row['folder'] == name]
        self.name, self.example = name, example
        self.rows = [row for row in own if row['experiment'] in TABLE]
        accuracies = numbers(self.rows, 'test_accuracy')
        self.accuracy = statistics.mean(accuracies) if accuracies else None
        self.spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
        self.rate = median(self.rows, 'steps_per_s')
        self.straggling = median([row for row in own if row['experiment'] == 'straggler'],
                                 'steps_per_s')
        # Who did not come there took longer than all who did.
        times = [float(row['seconds_to_95'] or 'inf') for row in self.rows if row['curve']]
        middle = statistics.median(times) if times else float('inf')
        self.seconds_to_95 = middle if middle < float('inf') else None
        self.sent = median([row for row in own if row['experiment'] in ('trace', 'quick')],
                           'bytes_per_step')
        self.theory = example and bytes_per_step(
            example.kind, int(self.rows[0]['workers']),
            example.settings.turn or example.window)
        self.staleness = histogram(self.rows)
        updates = sum(self.staleness.values())
        self.mean_staleness = sum(self.staleness.elements()) / updates if updates else None
        self.most_stale = max(self.staleness, default=None)
        self.accepted, self.dropped, self.start, self.stop = (
            median(self.rows, column) for column in ('accepted', 'dropped', 'start_s', 'stop_s'))
        self.failures = [row['failed'] for row in own if row['failed']]


def _in_order():
    """Returns a list of all `Example`, by groups."""
    return sorted(examples(), key=lambda example: (GROUPS.index(example.group), example.name))


def summaries(rows):
    """Returns a `Summary` of each scheme with runs in the table: the bare limit, then by groups."""
    there = {row['folder'] for row in rows if row['experiment'] in TABLE}
    return [Summary(name, rows, example)
            for name, example in [(BARE, None), *((each.name, each) for each in _in_order())]
            if name in there]


COLUMNS = ['', 'workers', 'window', 'test accuracy', 's to 95 %', 'local steps/s',
           'with a straggler', 'staleness (max)', 'B per local step', 'in theory',
           'accepted, dropped', 'start, s', 'stop, s', 'differs in']


def cell(value, form):
    """Returns a value as a cell of the table, which is empty without one."""
    return '' if value is None else form.format(value)


def link(folder, place):
    """Returns a link to a folder from a file in `place`, a path, in Markdown."""
    return f'[{folder}]({os.path.relpath(str(ROOT / folder), str(place))}/)'


def table_row(summary, place):
    """Returns the cells of the table for a `Summary`, with a link from `place`."""
    example = summary.example
    name, workers, window, note = summary.name, '', '', ''
    if example:
        name, note = link(name, place), example.settings.note
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
            cell(summary.start, '{:.1f}'), cell(summary.stop, '{:.1f}'), note]


def with_models(rows):
    """Returns a dict by folder, by groups, of dicts by model: the rows of runs with the gallery."""
    found = {example.name: {row['model']: row for row in rows
                            if row['experiment'] == 'model' and row['folder'] == example.name}
             for example in _in_order()}
    return {name: of_folder for name, of_folder in found.items() if of_folder}


def _metric(row, reference):
    """Returns a cell of `models_tables`; `reference` is the row of one process, or None."""
    if row is None or not row['test_accuracy']:
        return 'failed' if row else ''
    value = float(row['test_accuracy'])
    worse = reference and float(reference['test_accuracy'] or 'inf') - value > NEAR
    return f'**{value:.3f}**' if worse else f'{value:.3f}'


def models_tables(rows, place):
    """Returns two tables in Markdown: what models of the gallery come to, and how fast.

    There are less where there are no such runs. The links are those of a file in `place`.
    """
    found = with_models(rows)
    one = found.get(REFERENCE, {})
    names = sorted({model for of_folder in found.values() for model in of_folder})
    timed = [name for name in TIMED if name in names]
    reached = [['', *names]]
    rates = [['', *(f'{name}, {column}' for name in timed for column in
                    ('local steps/s', 'relative to one process', 'kB per local step'))]]
    for folder, of_folder in found.items():
        reached.append([link(folder, place),
                        *(_metric(of_folder.get(name), one.get(name)) for name in names)])
        rates.append([link(folder, place)])
        for name in timed:
            rate, sent = (numbers([of_folder[name]] if name in of_folder else [], column)
                          for column in ('steps_per_s', 'bytes_per_step'))
            rates[-1] += [f'{rate[0]:.{int(rate[0] < 100)}f}' if rate else '',
                          cell(relative_rate(rows, folder, name), '{:.2f}'),
                          f'{sent[0] / 1000:,.0f}' if sent else '']
    return [readmes.table(lines) for lines in (reached, rates) if len(lines[0]) > 1]


def relative_rate(rows, folder, model):
    """Returns a folder's local steps/s relative to one process, or None; model '' is the digits."""
    rows = [row for row in rows if row['model'] == model
            and row['experiment'] in (['model'] if model else TABLE)]
    own, one = (median([row for row in rows if row['folder'] == name], 'steps_per_s')
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


def table(rows, place):
    """Returns the table in Markdown, for a file in `place`, with the conditions below."""
    lines = [COLUMNS, *(table_row(summary, place) for summary in summaries(rows))]
    text = readmes.table(lines, 'll' + 'r' * (len(COLUMNS) - 3) + 'l')
    return f'{text}\n\n{conditions(rows)}\n'


def tables(rows, place):
    """Returns all tables in Markdown, for a file in `place`."""
    return '\n\n'.join([*models_tables(rows, place),
                        table(rows, place) if summaries(rows) else conditions(rows) + '\n'])


ABOUT = """
Each scheme was run with 2 workers on one machine of {machine}, with the step size of its folder,
not tuned. [The study](../Simulation/#the-study) simulates {many} workers on a problem whose
least possible loss is known, above which is the *excess loss*, and tunes the step sizes. Schemes
that are as good as each other stand together: accuracies within {equal}, three of the test images;
excess losses within a twentieth; other figures within a quarter.
"""
WHY = """
With 2 workers an update is {stale:.1f} updates late, and a window only saves exchanges; with {many}
it is some {stale_many:.0f} updates late. {never}A ring has more hops the more workers it has. The
simulated slow network joins four sites, 50 ms there and back; where workers are slow, one in ten
takes five times as long.
"""


def equals(values, figure):
    """Returns those of the values that are as good as the best one, sorted by name.

    Args and result: dicts by names of schemes of values of a `figure` of FORMS, or None for none.
    """
    there = {name: value for name, value in sorted(values.items()) if value is not None}
    best = (min if figure in LEAST else max)(there.values(), default=None)
    return {name: value for name, value in there.items() if (
        value >= best - EQUAL if figure == 'accuracy' else
        value <= best * (NEARLY if figure == 'excess_loss' else LATE) if figure in LEAST else
        value * LATE >= best)}


def _choice(values, figure, name_of=str):
    """Returns a cell of the guide: which schemes are as good as the best, and how good that is.

    Args:
      values: dict of floats by names of schemes, or None.
      figure: string, of FORMS.
      name_of: function of a name that returns what to write.
    """
    best = equals(values, figure)
    if not best:
        return ''
    names = ', '.join(map(name_of, best))
    if len(best) == len(values) > 3:
        names = f'the {len(best)}, which do not differ in this'
    form, _, rest = FORMS[figure].partition(' ')
    span = dict.fromkeys(map(form.format, (min(best.values()), max(best.values()))))
    return f'{"any of " * (len(best) > 1)}{names}: {" to ".join(span)} {rest}'


def the_study():
    """Returns the rows of the study, of MANY workers whose data are alike."""
    return [row for row in results.read(STUDY)
            if (row['workers'], row['model'], row['teacher_shift']) == (
                str(MANY), its_study.TEACHER, '')]


def _seconds(row, half=0):
    """Returns when a row of `the_study` came to its TARGET, a float, or None."""
    found = its_study.reached(row, half=half)
    return found and found[1]


def in_the_study(study, figure, cluster='ethernet', step=''):
    """Returns what each scheme comes to in `the_study`, a dict of floats or None.

    That is the mean over the seeds with the best step size; and where a time is asked for, with the
    one that takes the least. Both are chosen on the other half of the test set.
    """
    is_time = figure.endswith('_seconds')

    def value(its):
        values = [_seconds(row) if is_time else float(row[figure]) for row in its]
        return None if None in values else statistics.mean(values)

    def worth(its):
        soon = is_time and _seconds(its[0], half=1)
        return (-math.inf, soon) if soon else its_study.worth(its[0])

    rows = collections.defaultdict(list)
    for row in sorted(study, key=lambda row: row.get('seed', '')):
        if (row['cluster'], row['step']) == (cluster, step):
            rows[row['scheme'], row['learning_rate'], row['server_learning_rate']].append(row)
    best = {}
    for (name, *_), its in rows.items():
        if name not in best or worth(its) < worth(best[name]):
            best[name] = its
    return {name: value(its) for name, its in best.items() if is_time or its[0]['diverged'] == '0'}


def never(soon, slow):
    """Returns a sentence: which schemes of the study never come to its TARGET; '' if all do.

    Args:
      soon: dict by scheme of times, or None.
      slow: the same with slow workers.
    """
    lost = sorted(name for name in soon if not soon[name])
    with_slow = sorted(name for name in slow if soon.get(name) and not slow[name])
    parts = [f'{", ".join(names)} never reach{"es" * (len(names) == 1)} {COMES_TO}'
             for names in (lost, with_slow) if names]
    if with_slow:
        parts[-1] = f'with slow workers {parts[-1]}'
    text = '; '.join(parts)
    return f'{text[0].upper()}{text[1:]}. ' if text else ''


def guide(rows, study):
    """Returns the decision guide, in Markdown; all of it follows from the results.

    Only schemes on the same network with plain SGD are compared, but for the accuracy.
    """
    every = [each for each in summaries(rows) if each.example and each.accuracy is not None]
    spread = [each for each in every if each.example.kind != 'alone']
    schemes = [each for each in spread if each.example.free_workers
               and not each.example.settings.note]
    good = max(each.accuracy for each in schemes) - EQUAL
    accurate = [each for each in schemes if each.accuracy >= good]
    exact = [each for each in schemes if each.example.synchronous and each.example.window == 1]
    soon = in_the_study(study, 'excess_seconds')
    slow = in_the_study(study, 'excess_seconds', step=STRAGGLERS)
    lines = []
    for situation, candidates, figure, many in [
            ('the model trains on one machine, and that is fast enough',
             [each for each in every if each.name == REFERENCE], 'seconds_to_95', {}),
            ('you want to get there as soon as possible', accurate, 'seconds_to_95', soon),
            ('you want the best model after a fixed number of local steps', spread, 'accuracy',
             in_the_study(study, 'excess_loss')),
            ('the network is slow', accurate, 'sent',
             in_the_study(study, 'excess_seconds', 'sites')),
            ('some workers are slow', accurate, 'straggling', slow),
            ('all workers have to compute a step at the same parameters', exact, 'rate',
             {each.name: soon.get(each.name) for each in exact})]:
        values = {each.name: getattr(each, figure) for each in candidates}
        lines.append(readmes.line([
            situation, _choice(values, figure, lambda name: link(name, HERE)),
            _choice(many, 'excess_loss' if figure == 'accuracy' else 'excess_seconds')]))
    said = {'machine': rows[0]['machine'].partition(',')[0], 'equal': EQUAL, 'many': MANY,
            'stale': statistics.median(each.mean_staleness for each in spread
                                       if each.mean_staleness),
            'stale_many': median(study, 'staleness') or 0,
            'never': never(soon, slow)}
    head = f'| if | with 2 workers | with {MANY} workers, simulated |\n|---|---|---|'
    return '\n'.join([readmes.paragraph(ABOUT.format(**said)), '', head, *lines, '',
                      readmes.paragraph(WHY.format(**said))])


def round_trips(rows):
    """Returns a line: how many round trips a window has, from the runs at a distance.

    That is by how much a window takes longer with the longest round trip than without any.
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


def resnet_rates():
    """Returns the images/s of a ResNet by what trains it, as docs/how-fast.md has them: ints."""
    text = (ROOT / 'docs' / 'how-fast.md').read_text(encoding='utf-8')
    return {name: int(rate) for name, rate in re.findall(
        r'^\| ResNet, (.+), images/s \| (\d+) \|', text, re.MULTILINE)}


def why():
    """Returns the front page's table: what distribution gains where computing dominates."""
    rates = resnet_rates()
    return readmes.table([list(rates), map(str, rates.values())], align='r')


def publish(rows, pictures, root=ROOT):
    """Puts what follows from the results between its markers in two READMEs.

    Args:
      rows: list of dicts.
      pictures: dict of captions by the names of the pictures in Comparison/results.
      root: path, where README.md and Comparison/README.md are.

    Raises:
      SystemExit: if a marker is missing.
    """
    parts = {'README.md': {'why': why()},
             'Comparison/README.md': {
                 'guide': guide(rows, the_study()),
                 'table': table(rows, HERE).rstrip(),
                 'gallery': '\n\n'.join(models_tables(rows, HERE)),
                 'round trips': round_trips(rows),
                 'pictures': '\n\n'.join(f'![{caption}](results/{name}.png)\n\n{caption}.'
                                         for name, caption in pictures.items()
                                         if name not in SHOWN_ABOVE)}}
    for name, of_readme in parts.items():
        readmes.fill(root / name, of_readme)
