"""Writes the study: guides into README.md, tables into study.md and the folders' READMEs."""

import statistics
import textwrap

from measuring import readmes
from measuring.study import curve, ERROR, TARGET
import experiments
import schemes
import study_cases
from study_cases import (Absent, ALIKE, case, CLUSTERS, folder_of, MNIST, NUMBERS, OF_IMAGES,
                         rate_of, REFERENCE, SOME, STEPS, Study)
from study_figures import (arrivals, best_rows, critical_of, digits_rows, known, mean,
                           mean_reached, mean_seconds, reference_rows, seconds_of_one,
                           soonest_rows, SYNCHRONOUS, times_as_much, tuned_schemes, unequal_rows)

README = experiments.HERE / 'README.md'
PAGE = experiments.HERE / 'results' / 'study.md'
DISTURBED = {'none': 'none', 'stragglers': 'a tenth five times slower', 'tails': 'heavy tails'}
NEAR, LATE = 1.05, 1.25  # as good as the best: an excess loss, a time
EARLY = study_cases.SHORT // 16  # local steps, at a test of the runs about momentum
NOT_YET = 'Empty cells are not simulated yet.'


def cell(rows, column='excess_loss'):
    """Returns the mean of a column as a cell, with the standard deviation over the seeds."""
    if any(row['diverged'] == '1' for row in rows):
        return 'diverged'
    values = [float(row[column]) for row in rows if row[column]]
    if not values:
        return ''
    spread = f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.3f}{spread}'


def time_cell(value, of_one=None):
    """Returns seconds as a cell, with the speed-up over those `of_one`, floats."""
    words = f'{value:.3g}' if value < 999.5 else f'{value:,.0f}'
    return words + (f' ({of_one / value:.2g})' if of_one else '')


def seconds(rows, of_one=None):
    """Returns the time to the target as a cell; a dash if some rows do not come there."""
    found = mean_seconds(rows)
    if not found:
        return '–' if rows else ''
    return time_cell(found, of_one)


def batch_sentence(table):
    """Returns in words how large a batch of Synchronous-SGD may usefully be."""
    found = critical_of(table)
    if not found:
        return NOT_YET.replace('Empty cells are', 'What this needs is')
    least, half = found
    return readmes.paragraph(
        f'Fitted to Synchronous-SGD: N workers need {least:,.0f} · (1 + N / {half:.3g}) local '
        f'steps to an excess loss of {TARGET}. So the critical batch size is that of '
        f'{half:.3g} workers, {half * experiments.BATCH:,.0f} examples: there a step costs twice '
        'the examples that it needs at least, and more workers hardly make it sooner.')


def command(row):
    """Returns the command that repeats the simulation of a row, a string."""
    flags = ' '.join(f'--{name}={row[name]}' for name in study_cases.COLUMNS if row.get(name))
    return f'bash Simulation/run.sh --scheme={folder_of(row["scheme"])} {flags}'


def result(row):
    """Returns in words what the simulation of a row came to."""
    if row['diverged'] == '1':
        return 'diverged'
    return (f'excess loss {row["excess_loss"]}' if row['excess_loss'] else
            f'accuracy {row["accuracy"]}')


def _again(table, rows):
    """Returns a table in Markdown with what it lacks, and the command of a cell below it."""
    lacks = [NOT_YET] if any(not each for line in table[1:] for each in line[1:]) else []
    found = [readmes.table(table), *lacks]
    if rows:
        words = textwrap.wrap(command(rows[0]), 90, break_on_hyphens=False,
                              break_long_words=False)
        found += [f'This repeats one of these simulations, with {rows[0]["scheme"]} '
                  f'({result(rows[0])}):', '    ' + ' \\\n      '.join(words)]
    return '\n\n'.join(found)


def _link(study):
    return f'[{study.name}](../../{folder_of(study.name)}/)'


def _by_workers(numbers, studies, its_cell):
    """Returns the lines of a table: one for each `Study`, a column for each number of workers.

    What stands there is what `its_cell` returns, a function of the two.
    """
    return [['', *(f'{number:,}' for number in numbers)],
            *([_link(study), *(its_cell(study, number) for number in numbers)]
              for study in studies)]


def _rate(exponent, study):
    return '' if exponent is None else rate_of(study.name, exponent)[1]


def _scale(table):
    """Returns the parts of the page on the number of workers."""
    studies, one = tuned_schemes(table), seconds_of_one(table)
    hogwild = Study(table, Absent('HogWild'))

    def soonest(study, workers):
        return (known(study.soonest, case(workers))
                if best_rows(study, case(workers)) else None)

    parts = {
        'least excess': (lambda study, n: cell(best_rows(study, case(n))),
                         best_rows(hogwild, case(SOME))),
        'rates': (lambda study, n: _rate(known(study.best, case(n)), study), []),
        'times': (lambda study, n: seconds(soonest_rows(study, case(n)), one),
                  soonest_rows(hogwild, case(SOME))),
        'rates of times': (lambda study, n: _rate(soonest(study, n), study), []),
        'times at sites': (lambda study, n: seconds(soonest_rows(
            study, case(n, cluster=CLUSTERS[1]), False), one),
                           soonest_rows(hogwild, case(SOME, cluster=CLUSTERS[1]), False))}
    far = [study for study in studies if study_cases.has_stage(study.name, 'far')]
    found = {name: _again(_by_workers(NUMBERS, far if 'sites' in name else studies, its_cell), rows)
             for name, (its_cell, rows) in parts.items()}
    alone, its = Study(table, Absent(REFERENCE)), mean_reached(reference_rows(table))
    of_one = [['workers', 'step size', 'excess loss', f's to {TARGET}', 'local steps to it'],
              ['1', _rate(known(alone.best, case(1)), alone), cell(best_rows(alone, case(1))),
               seconds(reference_rows(table)), f'{its[0]:,.0f}' if its else '']]
    return dict(found, **{'one worker': _again(of_one, reference_rows(table)),
                          'batch': batch_sentence(table)})


def _disturbed(table):
    """Returns what stragglers and heavy tails do to SOME workers."""
    def cells(study):
        cases = {steps: study_cases.disturbed(steps) for steps in STEPS}
        best, soon = ([of(study, its, steps == 'none') for steps, its in cases.items()]
                      for of in (best_rows, soonest_rows))
        return [*map(cell, best), *map(seconds, soon),
                *(f'{experiments.local_steps_per_second(rows[0]):,.0f}' if rows else ''
                  for rows in best)]

    head = [f'{what}, {steps}' for what in ('excess loss', f's to {TARGET}', 'local steps/s')
            for steps in DISTURBED.values()]
    return _again([['', *head], *([_link(study), *cells(study)]
                                  for study in tuned_schemes(table))],
                  best_rows(Study(table, Absent('HogWild')),
                            study_cases.disturbed('stragglers'), False))


def _ceilings(table):
    """Returns what comes out if what makes a ceiling is assumed to be something else."""
    lines, last = [['', 'assumed', 'local steps/s', 'staleness', 'excess loss',
                    f's to {TARGET}']], []
    for name, flags in study_cases.UNDER_CEILINGS.items():
        study = Study(table, Absent(name))
        exponent = known(study.best, case(study_cases.AT_CEILINGS))
        variants = [({}, 'as in the study')] + [
            ({flag: value}, f'`--{flag}={value}`')
            for flag in flags for value in study_cases.CEILINGS[flag]]
        for changed, words in variants:
            rows = [] if exponent is None else study.seeds(
                case(study_cases.AT_CEILINGS, **changed), exponent)[:1]
            rate = f'{experiments.local_steps_per_second(rows[0]):,.0f}' if rows else ''
            stale = mean(rows, 'staleness')
            lines.append([_link(study), words, rate,
                          '–' if rows and stale is None else f'{stale:.0f}' if rows else '',
                          cell(rows), seconds(rows)])
            last = rows or last
    return _again(lines, last)


def _unequal(table):
    """Returns what unequal data do to SOME workers."""
    lines = [['', 'all alike', f'shift {study_cases.SHIFT}', 'times as much']]
    for study in tuned_schemes(table):
        times = times_as_much(study)
        lines.append([_link(study), *map(cell, unequal_rows(study)),
                      '' if times is None else f'{times:.2f}'])
    return _again(lines, unequal_rows(Study(table, Absent('Local-SGD')))[1])


def _windows(table):
    """Returns what comes out with each of the WINDOWS."""
    lines, last = [['', 'data', *map(str, study_cases.WINDOWS)]], []
    for name in study_cases.WINDOWED:
        study = Study(table, Absent(name))
        for shift in '', study_cases.SHIFT:
            words = f'shift {shift}' if shift else 'all alike'
            cases = [study_cases.of_window(window, shift) for window in study_cases.WINDOWS]
            rows = [best_rows(study, its) for its in cases]
            lines += [[_link(study), f'{words}: excess loss', *map(cell, rows)],
                      [_link(study), f'{words}: s to {TARGET}',
                       *(seconds(soonest_rows(study, its)) for its in cases)],
                      [_link(study), f'{words}: step size',
                       *(_rate(known(study.best, its), study) for its in cases)]]
            last = rows[-1] or last
    return _again(lines, last)


def _momentum(table):
    """Returns HogWild's excess loss beside that of one worker with momentum, and without."""
    names = 'asynchronous', 'momentum', 'plain'
    lines, last = [['workers', 'step size', 'staleness', *(
        f'{name}, {steps:,} local steps' for steps in (EARLY, study_cases.SHORT)
        for name in names)]], []
    for workers in study_cases.OF_MOMENTUM:
        exponent = known(Study(table, Absent('HogWild')).best, case(workers))
        rate = _rate(exponent, Study(table, Absent('HogWild')))
        compared = study_cases.of_momentum(workers, rate) if rate else {}
        rows = [Study(table, Absent(compared[name][0])).seeds(compared[name][1])
                if compared else [] for name in names]
        stale = mean(rows[0], 'staleness')
        early = [[dict(row, excess_loss=str(excess)) for row in its
                  for steps, _, excess in curve(row) if steps == EARLY] for its in rows]
        lines.append([f'{workers:,}', rate, '' if stale is None else f'{stale:.0f}',
                      *map(cell, [*early, *rows])])
        last = rows[0] or last
    return _again(lines, last)


def _digits(table):
    """Returns the accuracy on the digits."""
    return _again(
        _by_workers(OF_IMAGES, [Study(table, Absent(name)) for name in schemes.folders()],
                    lambda study, workers: cell(digits_rows(study, workers), 'accuracy')),
        digits_rows(Study(table, Absent('HogWild')), OF_IMAGES[1]))


def _mnist(table):
    """Returns the accuracy on MNIST, and the times to one."""
    one = seconds_of_one(table, MNIST)

    def cells(study):
        cases = [case(workers, MNIST) for workers in OF_IMAGES]
        return [*(cell(best_rows(study, its), 'accuracy') for its in cases),
                *(seconds(soonest_rows(study, its), one) for its in cases)]

    head = [f'{what}, {workers}' for what in ('accuracy', f's to {1 - ERROR}')
            for workers in OF_IMAGES]
    studies = [study for study in tuned_schemes(table)
               if study_cases.has_stage(study.name, 'mnist')]
    return _again([['', *head], *([_link(study), *cells(study)] for study in studies)],
                  soonest_rows(Study(table, Absent('Local-SGD')), case(SOME, MNIST)))


def alike(table):
    """Returns in words which schemes are as accurate as the ones whose updates they make."""
    same, other = [], []
    for name, original in ALIKE.items():
        pairs = [[rows[0]['accuracy'] for rows in (
            digits_rows(Study(table, Absent(each)), workers) for each in (name, original)) if rows]
            for workers in OF_IMAGES]
        pairs = [pair for pair in pairs if len(pair) == 2]
        if pairs:
            equal = all(one == two for one, two in pairs)
            (same if equal else other).append(f'{name} ({original})')
    return readmes.paragraph(
        'The same accuracies, to the digit, as the scheme in brackets: '
        f'{", ".join(same) or "none"}. The same updates, in another order or on other examples: '
        f'{", ".join(other) or "none"}.')


def names_of(studies):
    """Returns the names of a list of `Study` as a cell."""
    return ', '.join(study.name for study in studies) or 'none'


def excess_guide(table):
    """Returns the schemes with the least excess loss by the number of workers, in Markdown."""
    lines = [['workers', 'excess loss', 'scheme', 'at most 5 % more', 'of']]
    for workers in NUMBERS:
        found = {study: best_rows(study, case(workers)) for study in tuned_schemes(table)}
        means = {study: mean(rows) for study, rows in found.items()
                 if rows and rows[0]['diverged'] == '0'}
        order = sorted(means, key=means.get)
        if order:
            lines.append([f'{workers:,}', cell(found[order[0]]), order[0].name,
                          names_of(study for study in order[1:]
                                   if means[study] <= NEAR * means[order[0]]), f'{len(order)}'])
    return readmes.table(lines, 'l') if len(lines) > 1 else 'Nothing has been simulated yet.'


def times_guide(table):
    """Returns the fastest schemes to the TARGET by network and number of workers, in Markdown."""
    lines = [['network', 'workers', 'fastest', f's to {TARGET} (speed-up)',
              'at most a quarter slower', 'schemes that come there']]
    for cluster in CLUSTERS:
        for workers in NUMBERS:
            soon, number = arrivals(table, workers, cluster)
            if number:
                lines.append([
                    cluster, f'{workers:,}', names_of(study for _, study in soon[:1]),
                    time_cell(soon[0][0], seconds_of_one(table)) if soon else '',
                    names_of(study for its, study in soon[1:] if its <= LATE * soon[0][0]),
                    f'{len(soon)} of {number}'])
    return readmes.table(lines, 'l') if len(lines) > 1 else 'Nothing has been simulated yet.'


def findings(table):
    """Returns what follows from the tables: pairs of a text, and the floats that it has, or None.

    The words say which of them are larger; `test_simulation_study` holds them to that.
    """
    def of(name):
        return Study(table, Absent(name))

    def rate(name, steps):
        rows = best_rows(of(name), study_cases.disturbed(steps), steps == 'none')
        return experiments.local_steps_per_second(rows[0]) if rows else None

    def far(name):
        return mean_seconds(soonest_rows(of(name), case(SOME, cluster=CLUSTERS[1]), False))

    def soonest(workers):
        found, _ = arrivals(table, workers)
        return f'{time_cell(found[0][0])} s ({found[0][1].name})' if found else 'none'

    def on_mnist(name, workers=OF_IMAGES[1]):
        return mean_seconds(soonest_rows(of(name), case(workers, MNIST)))

    with_means = [of(name) for name in (SYNCHRONOUS, 'Local-SGD', 'DiLoCo')]
    return [
        ('**More workers stop helping early.** The soonest of all, on `ethernet`: '
         f'{", ".join(f"with {n:,} workers {soonest(n)}" for n in NUMBERS)}. '
         f'One worker takes {{:.3g}} s. {NUMBERS[-1]:,} workers make only '
         f'{study_cases.LOCAL_STEPS[study_cases.TEACHER] // NUMBERS[-1]} local steps each.',
         [seconds_of_one(table)]),
        ('**Windows cost, but not those of DiLoCo.** After as many examples '
         f'{SOME} workers have an excess loss of {{:.3f}} with {SYNCHRONOUS}, {{:.3f}} with '
         'Local-SGD, and {:.3f} with DiLoCo, which also has AdamW and momentum.',
         [mean(best_rows(study, case(SOME))) for study in with_means]),
        (f'**Distance hurts those who wait.** On `sites` {SOME} workers take {{:.3g}} s with '
         f'{SYNCHRONOUS} and {{:.3g}} s with Ring-AllReduce: longer than one worker alone. '
         'HogWild takes {:.3g} s, and DynSGD {:.3g} s.',
         [far(name) for name in (SYNCHRONOUS, 'Ring-AllReduce', 'HogWild', 'DynSGD')]),
        (f'**So do stragglers.** If a tenth of {SOME} workers is five times slower, '
         f'{SYNCHRONOUS} makes {{:,.0f}} local steps/s in place of {{:,.0f}}, and HogWild '
         '{:,.0f} in place of {:,.0f}.',
         [rate(name, steps) for name in (SYNCHRONOUS, 'HogWild')
          for steps in ('stragglers', 'none')]),
        ('**Unequal data hurt plain means of models.** If the inputs of each of '
         f'{SOME} workers have another mean, {SYNCHRONOUS} has {{:.2f}} times the excess loss, '
         'Local-SGD {:.2f} times, and DiLoCo {:.2f} times.',
         [times_as_much(study) for study in with_means]),
        ('**Large networks need windows, and gain less.** On MNIST, with 648,010 weights in place '
         f'of 9,610, one worker comes to an accuracy of {1 - ERROR} in {{:.3g}} s. '
         f'{OF_IMAGES[1]} workers on `ethernet` do so in {{:.3g}} s with DiLoCo and in {{:.3g}} s '
         f'with Local-SGD, but in {{:.3g}} s with {SYNCHRONOUS} and in {{:.3g}} s with HogWild. '
         f'{SOME} workers take {{:.3g}} s with DiLoCo, and {{:.3g}} s with Local-SGD.',
         [seconds_of_one(table, MNIST),
          *map(on_mnist, ('DiLoCo', 'Local-SGD', SYNCHRONOUS, 'HogWild')),
          *(on_mnist(name, SOME) for name in ('DiLoCo', 'Local-SGD'))])]


def conclusions(table):
    """Returns the `findings` of which all is there, bullets in Markdown."""
    return '\n'.join(textwrap.fill(text.format(*values), 98, initial_indent='- ',
                                   subsequent_indent='  ', break_on_hyphens=False,
                                   break_long_words=False)
                     for text, values in findings(table) if None not in values)


OF_A_FOLDER = """
In [the study](../Simulation/README.md#the-study), with the best step sizes; *excess loss* is what
the loss is above the least possible one:
"""
ALT = ('Excess loss, time to one on two networks, and accuracy on the digits, over the number of '
       'workers')


def of_folder(table, name):
    """Returns what the README of a folder has of the study, in Markdown."""
    study, one, words, alt = Study(table, Absent(name)), seconds_of_one(table), OF_A_FOLDER, ALT
    if name in ALIKE:
        words = f'In [the study](../Simulation/README.md#the-study), on the digits, with the ' \
                f'step sizes of {ALIKE[name]}:'
        alt = 'Accuracy on the digits, and local steps in a second, over the number of workers'
        lines = [['workers', 'test accuracy', f'test accuracy of {ALIKE[name]}', 'local steps/s']]
        for workers in OF_IMAGES:
            rows = digits_rows(study, workers)
            lines.append([str(workers), cell(rows, 'accuracy'),
                          cell(digits_rows(study.other(ALIKE[name]), workers)[:1], 'accuracy'),
                          f'{experiments.local_steps_per_second(rows[0]):,.0f}' if rows else ''])
    else:
        lines = [['workers', 'step size', 'excess loss',
                  *(f's to {TARGET} on {cluster} (speed-up)' for cluster in CLUSTERS)]]
        lines += [[f'{workers:,}', _rate(known(study.best, case(workers)), study),
                   cell(best_rows(study, case(workers))),
                   *(seconds(soonest_rows(study, case(workers, cluster=cluster),
                                          cluster == CLUSTERS[0]), one) for cluster in CLUSTERS)]
                  for workers in NUMBERS]
    return '\n\n'.join([readmes.paragraph(words), _again(lines, []), (
        f'![{alt}: {name} in colour, the others in grey]'
        f'(../Simulation/results/scheme-{name}.png)')])


def conditions(table):
    """Returns in words what there is, what it took, and what is still to be simulated."""
    rows = list(table.rows.values())
    if not rows:
        return 'Nothing has been simulated yet.'
    rates = [float(row['local_steps']) / float(row['wall_seconds'])
             for row in rows if row['diverged'] == '0']
    hours = sum(float(row['wall_seconds']) for row in rows) / 3600
    text = (f'{len(rows):,} simulations took {hours:.1f} hours when added up. Two run at a time on '
            f'two processors, so that is {hours / 2:.1f} hours there, with other programs beside '
            'them. Half of the simulations made more than '
            f'{statistics.median(rates):,.0f} local steps/s, with the time to build the graph '
            f'counted. The largest process had {max(int(row["megabytes"]) for row in rows):,} MB.')
    return f'{readmes.paragraph(text)}\n\n{whats_left(table)}'


def whats_left(table):
    """Returns in words what is still to be simulated."""
    found = {stage: study_cases.left(table, study_cases.names(), stage)
             for stage in study_cases.STAGES}
    parts = [f'*{stage}* of {"all schemes" if len(names) == _number(stage) else ", ".join(names)}'
             for stage, names in found.items() if names]
    if not parts:
        return 'All of it has been simulated.'
    return readmes.paragraph(
        'Not simulated yet, by the stages of `study_cases.py`: '
        f'{"; ".join(parts)}. `make simulate ARGS=--study` goes on with it.')


def _number(stage):
    return sum(study_cases.has_stage(name, stage) for name in study_cases.names())


def tables(table):
    """Returns what PAGE has between its markers, a dict of strings in Markdown."""
    return dict(_scale(table), **{
        'study': conditions(table), 'disturbed': _disturbed(table), 'ceilings': _ceilings(table),
        'unequal': _unequal(table), 'windows': _windows(table), 'momentum': _momentum(table),
        'digits': _digits(table), 'alike': alike(table), 'mnist': _mnist(table)})


GUIDE = """### Which scheme for how many workers

*Excess loss* is how far the loss is above the least possible one, in nats. The least after all
local steps, on `ethernet`, with the best step size of each scheme:

{excess}

The fastest to an excess loss of {target}, with the speed-up over one worker:

{times}

{conclusions}

![Excess loss over the number of workers, with the best step sizes](results/study-excess.png)

![Excess loss with 64 workers by examples and by virtual time](results/study-curves.png)

![Speed-up over one worker, on ethernet and between sites](results/study-scaling.png)

The dotted line is the critical batch size: from there on more workers hardly help. See [how it was
found](results/study.md#the-critical-batch-size). That page also has
[stragglers](results/study.md#stragglers-and-heavy-tails), [unequal
data](results/study.md#unequal-data), [MNIST](results/study.md#mnist), [the momentum that asynchrony
makes](results/study.md#the-momentum-that-asynchrony-makes), and [what comes out if what makes a
ceiling is assumed to be something else](results/study.md#what-makes-a-ceiling).

![Excess loss and time over the window, of Local-SGD and DiLoCo](results/study-windows.png)

Its limits: small networks, of 9,610 weights but for MNIST; a coarse grid of step sizes, chosen with
one seed; where no ± stands, one seed; costs that are assumed, not measured; and links that [take
turns](how-it-works.md#turns-or-shares)."""


def is_told(table, name=None):
    """Returns whether what a README tells of a scheme, or of all, has been simulated, if only once.

    Until then it has what stood there before.
    """
    names, stages = ([name], []) if name else (schemes.folders(), ['windows', 'mnist'])
    return not any(study_cases.left(table, names, stage)
                   for stage in ['some', 'digits', 'alike', 'scale', *stages])


def publish(table, readme=README, page=PAGE, root=schemes.ROOT):
    """Puts all tables into the page, and guides and some tables into READMEs, see `is_told`.

    Args:
      table: `experiments.Table`.
      readme: path, of README.md.
      page: path.
      root: path, where the folders are.
    """
    readmes.fill(page, tables(table))
    guide = GUIDE.format(excess=excess_guide(table), times=times_guide(table), target=TARGET,
                         conclusions=conclusions(table))
    readmes.fill(readme, dict({'left': whats_left(table)}, **(
        {'study': guide} if is_told(table) else {})))
    for name in schemes.folders():
        if is_told(table, name):
            readmes.fill(root / name / 'README.md', {'study': of_folder(table, name)})
