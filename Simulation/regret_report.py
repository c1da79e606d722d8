"""Reports what `regret` found: a page with tables, and a picture."""

import collections
import math
import statistics

import matplotlib
from measuring import readmes
from measuring.results import read
from measuring.style import COLOURS, GREY, logarithmic, STYLE, write

matplotlib.use('Agg')  # it writes files, and needs no screen
import matplotlib.pyplot as plt  # noqa: E402

# Real runs; what was chosen to be run; and what was simulated and run with many seeds.
FILES = 'regret.csv', 'regret-advice.csv', 'regret-seeds.csv'
PAGE, PICTURE = 'regret.md', 'regret.png'
PAIR = ['model', 'cluster']  # columns
SETTING = ['scheme', 'window', 'workers', 'ps', 'step_size']  # columns that say what is run
ADVISED, NEAR_ROLE, LOT_ROLE, ALONE = 'advised', 'near', 'by lot', 'one process'  # roles
MEDIAN, WORST, WITHIN, SHARE = 0.1, 0.3, 0.2, 0.8  # what is wanted
_ALIKE = 1.05  # times the least seconds: then either is the best
_FAR = 2  # an infinite regret, in the picture

# What came out for a pair and a budget. Seconds are infinite if the target was not reached.
# `seconds` is the median of `runs` runs, `least` that of `best_runs`.
Case = collections.namedtuple(
    'Case', 'pair minutes held_out advised predicted seconds runs best least best_runs alone '
    'regret by_others')


def words(setting):
    """Returns a setting, a dict with SETTING, in words."""
    if setting['scheme'] == ALONE:
        return f'{ALONE}, step size {setting["step_size"]}'
    parts = [setting['scheme'], f'{setting["workers"]} workers']
    if str(setting['ps']) != '0':
        parts.append(f'{setting["ps"]} ps')
    if str(setting['window']) != '1':
        parts.append(f'window {setting["window"]}')
    return ', '.join([*parts, f'step size {setting["step_size"]}'])


def _of(runs, row, names):
    """Returns those rows of `runs` that have in the columns `names` what `row`, a dict, has."""
    return [each for each in runs if all(each[name] == row[name] for name in names)]


def _seconds(runs, setting):
    """Returns the median of the real seconds of a setting; None if it was not run.

    Args:
      runs: list of rows, dicts, of the pair.
      setting: dict with SETTING.
    """
    own = _of(runs, setting, SETTING)
    if not own:
        return None
    return statistics.median(float(row['seconds'] or 'inf') for row in own)


def best_of(runs, settings):
    """Returns that one of the settings, dicts with SETTING, whose real seconds are the least.

    None if none of them was run. `runs` are rows as `_seconds` takes them.
    """
    times = [(_seconds(runs, setting), setting) for setting in settings]
    return min(((seconds, setting) for seconds, setting in times if seconds is not None),
               key=lambda pair: pair[0], default=(None, None))[1]


def as_soon(runs, setting):
    """Returns a row of each setting that really takes at most as long as `setting`, a list.

    Args:
      runs: list of rows, dicts, of the pair.
      setting: dict with SETTING, which was run.
    """
    own = _seconds(runs, setting)
    rows = {tuple(row[name] for name in SETTING): row for row in runs}
    return [row for row in rows.values() if _seconds(runs, row) <= own]


def by_other_seeds(runs, advised):
    """Returns the regret when the best setting is chosen by other seeds than those it is timed by.

    The best of many settings is a lucky one: with the seeds that show it to be the best it takes
    less time than with others. So each seed in turn times the setting that is the best by all
    others, and the median of these regrets is returned.

    Args:
      runs: list of rows, dicts, of the pair.
      advised: dict with SETTING.

    Returns:
      Float, below 0 if what is advised takes less; or None if there are less than two seeds.
    """
    times = collections.defaultdict(dict)
    for row in runs:
        key = tuple(row[name] for name in SETTING)
        times[key][row['repeat']] = float(row['seconds'] or 'inf')
    own = times[tuple(advised[name] for name in SETTING)]
    if len(own) < 2:
        return None
    # Those with fewer seeds cannot be timed by each.
    several = [each for each in times.values() if each.keys() >= own.keys()]
    regrets = []
    for repeat, seconds in own.items():
        best = min(several, key=lambda each: statistics.median(
            each[other] for other in own if other != repeat))
        regrets.append(math.inf if math.isinf(seconds) else seconds / best[repeat] - 1)
    return statistics.median(regrets)


def cases(advice, runs):
    """Returns a list of `Case`, of the pairs and budgets whose settings were all run.

    Args:
      advice: list of rows, dicts, of what was chosen.
      runs: list of rows, dicts, of real runs.
    """
    found, groups = [], collections.OrderedDict()
    for row in advice:
        groups.setdefault((row['model'], row['cluster'], row['minutes']), []).append(row)
    for (model, cluster, minutes), rows in groups.items():
        own = _of(runs, rows[0], PAIR)
        times = [(_seconds(own, row), row) for row in rows]
        if any(seconds is None for seconds, _ in times):
            continue
        (seconds, advised), *_ = times
        # Settings that another budget chose were really run, too.
        best = best_of(own, own)
        least = _seconds(own, best)
        alone = min((each for each, row in times if row['scheme'] == ALONE), default=math.inf)
        found.append(Case(
            f'{model}/{cluster}', float(minutes), advised['held_out'] in (1, '1'), advised,
            float(advised['predicted'] or 'nan'), seconds, len(_of(own, advised, SETTING)), best,
            least, len(_of(own, best, SETTING)), alone,
            math.inf if math.isinf(seconds) else seconds / least - 1,
            by_other_seeds(own, advised)))
    return found


def _cell(seconds):
    return 'not reached' if math.isinf(seconds) else f'{seconds:.3g}'


def _share(regret):
    return 'not reached' if math.isinf(regret) else f'{regret:.0%}'


def table(some):
    """Returns the table of a list of `Case`, in Markdown."""
    lines = [['pair', 'minutes', 'advised', 'predicted s', 'real s (runs)',
              'the best of all that ran', 'its real s (runs)', 'one process, real s', 'regret',
              'by other seeds']]
    lines += [[each.pair, f'{each.minutes:g}', words(each.advised), f'{each.predicted:.3g}',
               f'{_cell(each.seconds)} ({each.runs})', words(each.best),
               f'{_cell(each.least)} ({each.best_runs})', _cell(each.alone), _share(each.regret),
               '' if each.by_others is None else _share(each.by_others)]
              for each in some]
    return readmes.table(lines, 'lrlrrlrrrr')


def is_near(each):
    """Returns whether the prediction of a `Case` is as near as is wanted."""
    return abs(each.predicted / each.seconds - 1) <= WITHIN if each.seconds < math.inf else False


def summary(some):
    """Returns in words how a list of `Case` of one budget turned out."""
    regrets = [each.regret for each in some]
    fair = [each.by_others for each in some if each.by_others is not None]
    near = sum(map(is_near, some))
    one_best = [each for each in some if each.alone <= _ALIKE * each.least < math.inf]
    said = sum(each.advised['scheme'] == ALONE for each in one_best)
    in_vain = sum(each.advised['scheme'] == ALONE for each in some) - said

    def is_met(met):
        return 'met' if met else 'missed'

    median = statistics.median(regrets)
    others = ''
    if fair:
        others = (f' With the best chosen by other seeds than those it is timed by, the regret is '
                  f'{_share(statistics.median(fair))} in the median and {_share(max(fair))} at '
                  'worst.')
    return readmes.paragraph(
        f'{len(some)} pair{"s" * (len(some) > 1)}, {some[0].minutes:g} minutes each: the regret is '
        f'{_share(median)} in the median (at most {MEDIAN:.0%} is wanted: '
        f'{is_met(median <= MEDIAN)}) and {_share(max(regrets))} at worst (at most {WORST:.0%}: '
        f'{is_met(max(regrets) <= WORST)}).{others} The time to the target was predicted within '
        f'{WITHIN:.0%} for {near} of them (for {SHARE:.0%}: {is_met(near >= SHARE * len(some))}). '
        f'One process was the best, or at most {_ALIKE - 1:.0%} slower, for {len(one_best)}; the '
        f'advisor said so for {said} of these, and for {in_vain} where it was not.')


def _by_pair(found):
    """Returns a dict of the name of a pair to its list of `Case`, of more and more minutes."""
    pairs = {}
    for each in sorted(found, key=lambda each: each.minutes):
        pairs.setdefault(each.pair, []).append(each)
    return pairs


def falls(found):
    """Returns the table of pairs with several budgets, a list of `Case`, or '' without any."""
    several = {pair: some for pair, some in _by_pair(found).items() if len(some) > 1}
    if not several:
        return ''
    budgets = sorted({each.minutes for some in several.values() for each in some})
    lines = [['pair', *(f'{minutes:g} minutes' for minutes in budgets)]]
    for pair, some in several.items():
        regrets = {each.minutes: _share(each.regret) for each in some}
        lines.append([pair, *(regrets.get(minutes, '') for minutes in budgets)])
    return readmes.table(lines, 'l' + 'r' * len(budgets))


def _compared(advice, runs):
    """Yields rows of what was to come to the target, and did: row, predicted and real seconds.

    The arguments are those of `cases`.
    """
    for row in advice:
        seconds = _seconds(_of(runs, row, PAIR), row)
        if row['predicted'] and seconds not in (None, math.inf):
            yield row, float(row['predicted']), seconds


def by_scheme(advice, runs):
    """Returns a table by scheme, in Markdown: the real time to the target over the predicted one.

    Each setting of a pair counts once, with the prediction of the longest search. If none came to
    the target, the result is the empty string. The arguments are those of `cases`.
    """
    last = {}
    for row in sorted(advice, key=lambda row: float(row['minutes'])):
        last[tuple(row[name] for name in PAIR + SETTING)] = row
    ratios = collections.defaultdict(list)
    for row, predicted, seconds in _compared(last.values(), runs):
        ratios[row['scheme']].append(seconds / predicted)
    if not ratios:
        return ''
    medians = {scheme: statistics.median(some) for scheme, some in ratios.items()}
    lines = [['scheme', 'settings', 'real over predicted time']]
    lines += [[scheme, f'{len(ratios[scheme])}', f'{medians[scheme]:.2f}']
              for scheme in sorted(medians, key=medians.get)]
    return readmes.table(lines, 'lrr')


def _mean(values):
    """Returns the mean of at least two numbers and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def by_seeds(rows):
    """Returns what came out with many seeds, in Markdown, a list of parts; empty without rows.

    A setting counts if each seed came to the target; that others did not is said.

    Args:
      rows: list of rows, dicts: a seed of a setting, simulated and really run.
    """
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault(tuple(row[name] for name in PAIR + SETTING), []).append(row)
    lines = [['pair', 'what', 'seeds', 'predicted s', 'real s', 'real over predicted',
              'longer than the best']]
    ratios, means = [], collections.defaultdict(dict)
    for setting, some in groups.items():
        if len(some) > 1 and all(row['real'] for row in some):
            means[setting[:len(PAIR)]][setting] = _mean([float(row['real']) for row in some])[0]
    for setting, some in groups.items():
        pair, what = '/'.join(setting[:len(PAIR)]), words(some[0])
        lost = {name: sum(not row[name] for row in some) for name in ('simulated', 'real')}
        if any(lost.values()) or len(some) < 2:
            lines.append([pair, what, str(len(some)), f'{lost["simulated"]} not reached',
                          f'{lost["real"]} not reached', '', ''])
            continue
        simulated, off = _mean([float(row['simulated']) for row in some])
        real, real_off = _mean([float(row['real']) for row in some])
        predicted = simulated + float(some[0]['start'])
        ratio = real / predicted
        error = ratio * math.hypot(off / predicted, real_off / real)
        ratios.append((ratio, error))
        lines.append([pair, what, str(len(some)), f'{predicted:.3g} ± {off:.2g}',
                      f'{real:.3g} ± {real_off:.2g}', f'{ratio:.2f} ± {error:.2g}',
                      f'{real / min(means[setting[:len(PAIR)]].values()) - 1:.0%}'])
    if not groups:
        return []
    parts = ['## With many seeds', 'What is advised, one process, and what was the best of all '
             'that were run, simulated with many seeds and really run with as many: means and '
             'their standard errors. With few seeds, as above, luck makes more of a difference '
             'than the prediction.',
             readmes.table(lines, 'llrrrrr')]
    if ratios:
        only = [ratio for ratio, _ in ratios]
        error = statistics.median(error for _, error in ratios)
        parts.append(f'Real over predicted is {statistics.mean(only):.2f} in the mean of these '
                     f'{len(only)}, from {min(only):.2f} to {max(only):.2f}; the standard error of '
                     f'one ratio is {error:.2g} in the median.')
    return parts


def page(found, advice, runs, seeds=()):
    """Returns the page, for a list of `Case`, and what `cases` and `by_seeds` take."""
    parts = ['# The advisor, judged by regret',
             '`bash Simulation/run.sh --regret` writes this page; `--help` says more. Regret '
             'is by how much longer what was advised really took to the target than the best of '
             'all that were run. That best one is partly lucky, so there is also the regret *by '
             'other seeds*: each seed in turn times what is the best by the others, and the median '
             'is told. The seconds count from the first step of any worker on, without those in '
             'which tests of worker 0 held up the training.']
    machines = sorted({row['machine'] for row in runs})
    if machines:
        parts.append(f'Measured with {" and ".join(machines)}.')
    for held_out, title in (False, 'Pairs that were looked at'), (True, 'Pairs that were held out'):
        some = [each for each in found if each.held_out == held_out]
        parts.append(f'## {title}')
        budgets = sorted({each.minutes for each in some})
        parts += [summary([each for each in some if each.minutes == minutes])
                  for minutes in budgets]
        some = [each for own in _by_pair(some).values() for each in own]
        parts.append(table(some) if some else 'None of them was run.')
    with_more_time = falls(found)
    if with_more_time:
        parts += ['## With more time for the search', 'Regret of the pairs that were searched for '
                  'more than one time. The best of all that were run is the same in each column.',
                  with_more_time]
    of_schemes = by_scheme(advice, runs)
    if of_schemes:
        parts += ['## By scheme', 'The median over the settings that came to the target, in all '
                  'pairs: with 0.9 it took a tenth less than was predicted.',
                  of_schemes]
    parts += by_seeds(seeds)
    failed = [row for row in runs if row['complaint']]
    if failed:
        parts += ['## Runs that failed', 'They count as not having reached the target.', *(
            f'- {row["model"]}/{row["cluster"]}, {words(row)}: {row["complaint"]}'
            for row in failed)]
    if found:
        parts.append(f'![On the left regret over the minutes of a search, on the right real over '
                     f'predicted seconds]({PICTURE})')
    return '\n\n'.join(readmes.paragraph(part) if part[0] not in '#|!-' else part
                       for part in parts) + '\n'


def draw(found, advice, runs):
    """Returns a figure: regret over the budget, and measured over predicted seconds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for held_out, colour, name in (False, COLOURS[0], 'looked at'), (True, COLOURS[1], 'held out'):
        some = [each for each in found if each.held_out == held_out]
        left.plot([each.minutes for each in some], [100 * min(_FAR, each.regret) for each in some],
                  'o', color=colour, alpha=0.5, label=f'a pair that was {name}')
    # A line for each pair: not all have each budget, so medians would be of different pairs.
    for some in _by_pair(found).values():
        left.plot([each.minutes for each in some], [100 * min(_FAR, each.regret) for each in some],
                  '-', color=GREY, linewidth=0.8, zorder=1)
    logarithmic(left, 'x')
    left.set(xlabel='minutes of the search', ylabel='regret, %', title='Regret over the budget')
    left.legend()
    points = [(predicted, seconds, row['role'] == ADVISED)
              for row, predicted, seconds in _compared(advice, runs)]
    for advised, colour in (False, GREY), (True, COLOURS[0]):
        its = [point for point in points if point[2] == advised]
        right.plot([point[0] for point in its], [point[1] for point in its], 'o', color=colour,
                   label='advised' if advised else 'others')
    if points:
        ends = [min(min(point[:2]) for point in points), max(max(point[:2]) for point in points)]
        right.plot(ends, ends, '-', color=GREY, linewidth=0.8)
        logarithmic(right, 'x')
        logarithmic(right, 'y')
    right.set(xlabel='predicted s', ylabel='measured s', title='Time to the target')
    right.legend()
    return figure


def publish(results):
    """Writes the page and the picture from the files in a directory; returns the page, a string."""
    runs, advice, seeds = (read(results / name) for name in FILES)
    found = cases(advice, runs)
    text = page(found, advice, runs, seeds)
    (results / PAGE).write_text(text, encoding='utf-8')
    if found:
        with plt.rc_context(STYLE):
            figure = draw(found, advice, runs)
            write(figure, results / PICTURE)
            plt.close(figure)
    return text
