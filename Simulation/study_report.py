"""Writes the study: a guide into README.md, and all tables into results/study.md."""

import functools
import statistics

from measuring import readmes
import experiments
import schemes
from study_cases import (Absent, ALIKE, CLUSTERS, FIXED, MissingError, NUMBERS, rate_of,
                         SOME, STEPS, Study)

README = experiments.HERE / 'README.md'
FAMILIES = {
    'asynchronous, in each step': ['HogWild', 'DC-ASGD', 'SSP', 'Distributed-MNIST'],
    'asynchronous, in windows': ['AGN', 'DynSGD', 'DOWNPOUR', 'DOWNPOUR-Easy'],
    'elastic averaging': ['AEASGD', 'AEAMSGD'],
    'synchronous': ['Synchronous-SGD', 'Ring-AllReduce', 'Local-SGD', 'DiLoCo', 'SAGN']}
GUIDED = 4, 16, 64, 256, 1024
DISTURBED = {'none': 'none', 'stragglers': 'a tenth five times slower', 'tails': 'heavy tails'}
NEAR = 0.005  # of the accuracy: one image of the test
LATE = 1.25
PAGE = experiments.HERE / 'results' / 'study.md'


def families(table):
    """Returns a dict by family of lists of `Study`, each of what is in a table."""
    return {family: [Study(table, Absent(name)) for name in members]
            for family, members in FAMILIES.items()}


def tuned_schemes(table):
    """Returns a list of `Study` by families: the schemes whose step sizes are tuned."""
    return [study for members in families(table).values() for study in members]


def known(function, *args, **kwargs):
    """Returns what a function of a `Study` returns, or None if that has not been simulated."""
    try:
        return function(*args, **kwargs)
    except MissingError:
        return None


def accuracy(row):
    """Returns an accuracy as a cell; empty without a row."""
    if row is None:
        return ''
    return 'diverged' if row['diverged'] == '1' else f'{float(row["accuracy"]):.3f}'


def speed_up(study, workers, cluster):
    """Returns the speed-up to 95 % over one worker of the same scheme; None if it is not known."""
    one, many = (known(study.soonest_row, number, cluster) for number in (1, workers))
    if not (one and many and one['target_seconds'] and many['target_seconds']):
        return None
    return float(one['target_seconds']) / float(many['target_seconds'])


def _time(study, workers, cluster):
    row, times = known(study.soonest_row, workers, cluster), speed_up(study, workers, cluster)
    if row is None:
        return ''
    if not row['target_seconds']:
        return '–'
    of_one = '' if times is None or workers == 1 else f' ({times:.2g})'
    return f'{float(row["target_seconds"]):.3g}{of_one}'


def _link(study):
    return f'[{study.name}](../../{study.name}/)'


def _by_workers(numbers, studies, cell):
    """Returns a table with a line for each `Study` and a column for each number of workers.

    What stands there is what `cell` returns, a function of the two.
    """
    return readmes.table([
        ['', *(f'{number:,}' for number in numbers)],
        *([_link(study), *(cell(study, number) for number in numbers)] for study in studies)])


def _rate(which, study, number):
    exponent = known(which, study, number)
    return '' if exponent is None else rate_of(study.name, exponent)[1]


def _disturbed(table):
    """Returns what stragglers and heavy tails do to SOME workers, in Markdown."""
    def cells(study):
        rows = [known(study.best_row, SOME, steps) for steps in STEPS]
        return [*map(accuracy, rows),
                *(row and (row['target_seconds'] and f'{float(row["target_seconds"]):.3g}' or '–')
                  or '' for row in rows),
                *(f'{experiments.local_steps_per_second(row):,.0f}' if row else '' for row in rows)]

    head = [f'{what}, {steps}' for what in ('accuracy', 's to 95 %', 'local steps/s')
            for steps in DISTURBED.values()]
    return readmes.table([['', *head],
                          *([_link(study), *cells(study)] for study in tuned_schemes(table))])


def _names(studies):
    return ', '.join(study.name for study in studies) or 'none'


def _there(table, ask):
    """Returns a dict of rows by `Study`: those that `ask`, a function of a `Study`, finds."""
    found = {study: known(ask, study) for study in tuned_schemes(table)}
    return {study: row for study, row in found.items() if row}


def accuracy_guide(table):
    """Returns the most accurate schemes by the number of workers, in Markdown."""
    lines = [['workers', 'accuracy', f'schemes that have it, or at most {NEAR} less']]
    for workers in GUIDED:
        rows = _there(table, lambda study, workers=workers: study.best_row(workers))
        if rows:
            most = max(float(row['accuracy']) for row in rows.values())
            best, others = ([study for study, row in rows.items()
                             if (float(row['accuracy']) >= most - NEAR) == is_near]
                            for is_near in (True, False))
            but = f'all but {_names(others)}' if others else 'all'
            lines.append([f'{workers:,}', f'{most:.3f}',
                          _names(best) if len(best) <= len(others) else but])
    return readmes.table(lines, 'l')


def times_guide(table):
    """Returns the fastest schemes to 95 % by network and number of workers, in Markdown."""
    lines = [['network', 'workers', 'fastest', 's to 95 % (speed-up)', 'at most a quarter slower',
              'schemes that reach 95 %']]
    for cluster in CLUSTERS:
        for workers in GUIDED:
            rows = _there(table, lambda study, asked=(workers, cluster): study.soonest_row(*asked))
            times = {study: float(row['target_seconds']) for study, row in rows.items()
                     if row['target_seconds']}
            soon = sorted(times, key=times.get)
            if rows:
                lines.append([
                    cluster, f'{workers:,}', _names(soon[:1]),
                    _time(soon[0], workers, cluster) if soon else '',
                    _names(study for study in soon[1:] if times[study] <= LATE * times[soon[0]]),
                    f'{len(times)} of {len(rows)}'])
    return readmes.table(lines, 'l')


def conditions(table):
    """Returns in words what there is, what it took, and what is still to be simulated."""
    rows = list(table.rows.values())
    if not rows:
        return 'Nothing has been simulated yet.'
    rates = [10000 / float(row['wall_seconds']) for row in rows if row['diverged'] == '0']
    text = (f'{len(rows)} simulations of 10,000 local steps took '
            f'{sum(float(row["wall_seconds"]) for row in rows) / 60:.0f} minutes of their '
            'processes, two of which ran at a time, beside other programs. Half of them made more '
            f'than {statistics.median(rates):,.0f} local steps/s, with the time to build the graph '
            f'counted. The largest process had {max(int(row["megabytes"]) for row in rows):,} MB.')
    left = [study.name for study in tuned_schemes(table)
            if None in [known(study.soonest_row, number, cluster)
                        for number in NUMBERS for cluster in CLUSTERS]
            or None in [known(study.best_row, SOME, steps) for steps in STEPS]]
    left += [name for name in schemes.folders()
             if None in [known(Study(table, Absent(name)).row, number) for number in FIXED]]
    if left:
        text += (' Empty cells are not simulated yet; `make simulate ARGS=--study` goes on with '
                 f'them: {", ".join(dict.fromkeys(left))}.')
    return readmes.paragraph(text)


def alike(table):
    """Returns in words which schemes are as accurate as another one with the fixed step size."""
    same, other = [], []
    for name, original in ALIKE.items():
        rows = [(known(Study(table, Absent(name)).row, number),
                 known(Study(table, Absent(original)).row, number)) for number in FIXED]
        rows = [pair for pair in rows if None not in pair]
        equal = all(one['accuracy'] == two['accuracy'] for one, two in rows)
        (same if equal else other).append(f'{name} ({original})')
    return readmes.paragraph(
        'The same accuracies, to the digit, as the scheme in brackets: '
        f'{", ".join(same) or "none"}. The same updates, in another order or on other examples: '
        f'{", ".join(other) or "none"}.')


def tables(table):
    """Returns what PAGE has between its markers, a dict of strings in Markdown."""
    tuned = tuned_schemes(table)
    everyone = [Study(table, Absent(name)) for name in schemes.folders()]
    return {'study': conditions(table), 'alike': alike(table), 'disturbed': _disturbed(table),
            'fixed': _by_workers(FIXED, everyone,
                                 lambda study, number: accuracy(known(study.row, number))),
            'best': _by_workers(NUMBERS, tuned,
                                lambda study, number: accuracy(known(study.best_row, number))),
            'rates of best': _by_workers(NUMBERS, tuned, functools.partial(_rate, Study.best)),
            'rates of times': _by_workers(NUMBERS, tuned, functools.partial(_rate, Study.soonest)),
            **{f'times on {cluster}': _by_workers(
                NUMBERS, tuned, lambda study, number, cluster=cluster: _time(
                    study, number, cluster)) for cluster in CLUSTERS}}


def publish(table, readme=README, page=PAGE):
    """Puts the guide into README.md and all tables into the page, two paths."""
    readmes.fill(readme, {'most accurate': accuracy_guide(table), 'first': times_guide(table)})
    readmes.fill(page, tables(table))
