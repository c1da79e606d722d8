"""The study in words: its tables, and the guide that follows from them, for README.md."""

import statistics
import sys
import textwrap

import experiments
import schemes
from study_cases import (Absent, ALIKE, CLUSTERS, FIXED, MissingError, NUMBERS, rate_of,
                         SOME, STEPS, Study)

sys.path.append(str(experiments.HERE.parent / 'Comparison'))
import readmes  # noqa: E402

README = experiments.HERE / 'README.md'
FAMILIES = {
    'asynchronous, in each step': ['HogWild', 'DC-ASGD', 'SSP', 'Distributed-MNIST'],
    'asynchronous, in windows': ['AGN', 'DynSGD', 'DOWNPOUR', 'DOWNPOUR-Easy'],
    'elastic averaging': ['AEASGD', 'AEAMSGD'],
    'synchronous': ['Synchronous-SGD', 'Ring-AllReduce', 'Local-SGD', 'SAGN']}
GUIDED = 4, 16, 64, 256, 1024
DISTURBED = {'none': 'none', 'stragglers': 'a tenth five times slower', 'tails': 'heavy tails'}
NEAR = 0.005  # of the accuracy: one image of the test
LATE = 1.25


def families(table):
    """Returns a dict by family of lists of `Study`, each of what is in a table."""
    return {family: [Study(table, Absent(name)) for name in members]
            for family, members in FAMILIES.items()}


def tuned_schemes(table):
    """Returns a list of `Study` by families, of the schemes the step sizes of which are tuned."""
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
    """Returns how many times as soon as one worker so many have 95 %; None if that is not known."""
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
    return f'[{study.name}](../{study.name}/)'


def _table(head, lines, align='---:'):
    """Returns a table in Markdown; the first column is of words, the others are as `align` says."""
    rows = [head, ['---', *[align] * (len(head) - 1)], *lines]
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in rows)


def _by_workers(numbers, studies, cell):
    """Returns a table with a line for each `Study` and a column for each number of workers.

    Args:
      numbers: list of ints.
      studies: list of `Study`.
      cell: function of a `Study` and a number that returns a string.
    """
    return _table(['', *(f'{number:,}' for number in numbers)],
                  [[_link(study), *(cell(study, number) for number in numbers)]
                   for study in studies])


def fixed_table(table):
    """Returns the accuracies with the same step size for all, in Markdown."""
    return _by_workers(FIXED, [Study(table, Absent(name)) for name in schemes.folders()],
                       lambda study, number: accuracy(known(study.row, number)))


def _rates(table, which):
    """Returns step sizes, in Markdown; `which` is a function of a `Study` and how many workers."""
    def rate(study, number):
        exponent = known(which, study, number)
        return '' if exponent is None else rate_of(study.name, exponent)[1]

    return _by_workers(NUMBERS, tuned_schemes(table), rate)


def best_table(table):
    """Returns the best accuracies, and their step sizes, two tables in Markdown."""
    accuracies = _by_workers(NUMBERS, tuned_schemes(table),
                             lambda study, number: accuracy(known(study.best_row, number)))
    return f'{accuracies}\n\nTheir step sizes:\n\n{_rates(table, Study.best)}'


def times_table(table, cluster):
    """Returns the virtual seconds to 95 %, and the speed-up over one worker, in Markdown."""
    return _by_workers(NUMBERS, tuned_schemes(table),
                       lambda study, number: _time(study, number, cluster))


def disturbed_table(table):
    """Returns what stragglers and heavy tails do to SOME workers, in Markdown."""
    def cells(study):
        rows = [known(study.best_row, SOME, steps) for steps in STEPS]
        return [*map(accuracy, rows),
                *(row and (row['target_seconds'] and f'{float(row["target_seconds"]):.3g}' or '–')
                  or '' for row in rows),
                *(f'{experiments.local_steps_per_second(row):,.0f}' if row else '' for row in rows)]

    head = [f'{what}, {steps}' for what in ('accuracy', 's to 95 %', 'local steps/s')
            for steps in DISTURBED.values()]
    return _table(['', *head],
                  [[_link(study), *cells(study)] for study in tuned_schemes(table)])


def _names(studies):
    return ', '.join(study.name for study in studies) or 'none'


def _there(table, ask):
    """Returns a dict of rows by `Study`, of what a function of a `Study` asks for."""
    found = {study: known(ask, study) for study in tuned_schemes(table)}
    return {study: row for study, row in found.items() if row}


def accuracy_guide(table):
    """Returns who is the most accurate with how many workers, in Markdown."""
    lines = []
    for workers in GUIDED:
        rows = _there(table, lambda study, workers=workers: study.best_row(workers))
        if rows:
            most = max(float(row['accuracy']) for row in rows.values())
            best = [study for study, row in rows.items()
                    if float(row['accuracy']) >= most - NEAR]
            lines.append([f'{workers:,}', f'{most:.3f}', _names(best), f'{len(rows)}'])
    return _table(['workers', 'accuracy', f'who is within {NEAR} of it', 'of so many'], lines,
                  '---')


def times_guide(table):
    """Returns who is the first at 95 % with how many workers on which network, in Markdown."""
    lines = []
    for cluster in CLUSTERS:
        for workers in GUIDED:
            rows = _there(table, lambda study, asked=(workers, cluster): study.soonest_row(*asked))
            times = {study: float(row['target_seconds']) for study, row in rows.items()
                     if row['target_seconds']}
            soon = sorted(times, key=times.get)
            if rows:
                lines.append([
                    cluster, f'{workers:,}', soon[0].name if soon else 'none',
                    _time(soon[0], workers, cluster) if soon else '',
                    _names(study for study in soon[1:] if times[study] <= LATE * times[soon[0]]),
                    _names(study for study in rows if study not in times), f'{len(rows)}'])
    return _table(['network', 'workers', 'first', 's to 95 %', 'at most a quarter later',
                   'does not come there', 'of so many'], lines, '---')


def conditions(table):
    """Returns in words what there is, what it took, and what is left to be simulated."""
    rows = list(table.rows.values())
    if not rows:
        return 'Nothing has been simulated yet.'
    rates = [10000 / float(row['wall_seconds']) for row in rows if row['diverged'] == '0']
    text = (f'{len(rows)} simulations of 10,000 local steps, in '
            f'{sum(float(row["wall_seconds"]) for row in rows) / 60:.0f} minutes of their '
            f'processes, of which two ran at a time beside other programs: with the making of the '
            f'graph, half of them made more than {statistics.median(rates):,.0f} local steps in a '
            f'second. The largest process had {max(int(row["megabytes"]) for row in rows):,} MB.')
    left = [study.name for study in tuned_schemes(table)
            if None in [known(study.soonest_row, number, cluster)
                        for number in NUMBERS for cluster in CLUSTERS]
            or None in [known(study.best_row, SOME, steps) for steps in STEPS]]
    left += [name for name in schemes.folders()
             if None in [known(Study(table, Absent(name)).row, number) for number in FIXED]]
    if left:
        text += (' Empty cells are not simulated yet, `make simulate ARGS=--study` goes on with '
                 f'them: {", ".join(dict.fromkeys(left))}.')
    return textwrap.fill(text, 100, break_on_hyphens=False)


def alike(table):
    """Returns in words whose accuracies with the fixed step size are those of another scheme."""
    same, other = [], []
    for name, original in ALIKE.items():
        rows = [(known(Study(table, Absent(name)).row, number),
                 known(Study(table, Absent(original)).row, number)) for number in FIXED]
        rows = [pair for pair in rows if None not in pair]
        equal = all(one['accuracy'] == two['accuracy'] for one, two in rows)
        (same if equal else other).append(f'{name} ({original})')
    return textwrap.fill(
        f'To the digit those of the one in brackets: {", ".join(same) or "none"}. The updates of '
        'the one in brackets, in another order or on other examples: '
        f'{", ".join(other) or "none"}.', 100, break_on_hyphens=False)


def parts(table):
    """Returns what is between the markers of README.md, a dict of strings in Markdown."""
    return {'study': conditions(table),
            'most accurate': accuracy_guide(table),
            'first': times_guide(table),
            'fixed': f'{fixed_table(table)}\n\n{alike(table)}',
            'best': best_table(table),
            'times': _rates(table, Study.soonest),
            **{f'times on {cluster}': times_table(table, cluster) for cluster in CLUSTERS},
            'disturbed': disturbed_table(table)}


def publish(table, readme=README):
    """Puts all of it into README.md, a path."""
    readmes.fill(readme, parts(table))
