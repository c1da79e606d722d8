"""Figures that READMEs quote from the simulation are in its results: those of claims and studies.

Those of the new study are in tables that it writes, and in no sentence: see test_simulation_study.
"""

import functools
import re

import pytest

from conftest import ROOT
from measuring import results

import claims
import experiments
import papers
import schemes

# Numbers that say what is simulated, and not what comes out.
ASKED = {'1,024', '10,000', '1,500', '9,610'}
NUMBER = re.compile(r'(?<![\w.,=-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]|[.,]\d)( s\b| %)?')


@functools.lru_cache(maxsize=None)
def table_of_claims():
    return experiments.Table(claims.RESULTS / 'claims.csv', papers.COLUMNS)


@functools.lru_cache(maxsize=None)
def older_study():
    return results.read(claims.RESULTS / 'older-study.csv')


def quoted(text):
    """Returns the figures in a text: pairs of 'accuracy', 'seconds', 'share' or 'count', a string.

    An accuracy has three decimals; step sizes and numbers of workers are none of these.
    """
    found = []
    for number, unit in NUMBER.findall(text):
        if unit.endswith('s'):
            found.append(('seconds', number))
        elif unit == ' %' and number != '95':
            found.append(('share', number))
        elif re.fullmatch(r'0\.\d{3}', number):
            found.append(('accuracy', number))
        elif ',' in number and number not in ASKED:
            found.append(('count', number))
    return found


def is_quoted_from(number, values):
    """Returns whether a number, as it is written, is one of some values, rounded."""
    decimals = len(number.partition('.')[2])
    return number in {f'{value:,.{decimals}f}' for value in values}


def figures_of(rows):
    """Returns the figures of rows of a table, a dict of lists of floats."""
    def floats(name, factor=1):
        return [factor * float(row[name]) for row in rows if row[name]]

    return {'accuracy': floats('accuracy'), 'seconds': floats('target_seconds'),
            'share': floats('waits', 100),
            'count': [*floats('target_examples'),
                      *map(experiments.local_steps_per_second, rows)]}


def figures_of_claim(claim):
    """Returns the figures of a claim, as `figures_of` does: of each simulation, and means."""
    its = claims.Found(claim.sweeps, table_of_claims())
    found = figures_of([table_of_claims().row(*pair) for pair in claims.asked_for(claim.sweeps)])
    for kind, figure in ('accuracy', 'accuracy'), ('seconds', 'target_seconds'):
        found[kind] += [mean for name in its.sweeps for mean in its.line(name, figure).values()]
    return found


def strangers(text, folder=None):
    """Returns the figures in a paragraph that the results do not have, a list of strings.

    Args:
      text: string. Its figures are those of one of the claims that the folder shows, if it leads
        to the claims. Otherwise they are the older study's, of the schemes that it names, with the
        numbers of workers that it names, or with one.
      folder: string, whose README it is of.
    """
    text = ' '.join(text.split())
    if '#what-the-papers-claim' in text or 'results/claim-' in text:
        sources = [figures_of_claim(claim) for claim in papers.CLAIMS if folder in claim.folders]
    else:
        numbers = {number.replace(',', '') for number in re.findall(r'(?<!\.)\b\d[\d,]*\b', text)}
        for first, last in re.findall(r'(\d+) to (\d+)', text):
            numbers |= set(map(str, range(int(first), int(last))))
        names = [name for name in schemes.folders()
                 if name == folder or re.search(rf'(?<![\w-]){name}(?![\w-])', text)]
        sources = [figures_of([row for row in older_study() if row['scheme'] in names
                               and row['workers'] in numbers | {'1', '2'}])]
    return min(([number for kind, number in quoted(text)
                 if not is_quoted_from(number, source[kind])] for source in sources), key=len)


def paragraphs(folder):
    """Returns the paragraphs of a README's section on many workers, without commands."""
    text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
    section = text.partition('\n## With many workers\n')[2].partition('\n## ')[0]
    return [paragraph for paragraph in re.split(r'\n\s*\n', section)
            if not paragraph.startswith(('    ', '![', '<!--', '|'))]


@pytest.mark.parametrize('folder', schemes.folders())
def test_figures_of_a_folder(folder):
    assert {paragraph: strange for paragraph in paragraphs(folder)
            for strange in [strangers(paragraph, folder)] if strange} == {}


def test_figures_of_the_older_study():
    """What Simulation/README.md concludes from it, as long as that stands there."""
    text = (ROOT / 'Simulation' / 'README.md').read_text(encoding='utf-8')
    section = text.partition('<!-- study begins -->')[2].partition('<!-- study ends -->')[0]
    for verdict in re.findall(r'^- (.*(?:\n  .*)*)', section, re.MULTILINE):
        assert strangers(verdict) == [], verdict


def test_what_the_claims_need_a_word_for():
    """The remarks in results/claims.md, as far as they have figures."""
    found = {claim: claims.Found(claim.sweeps, table_of_claims()) for claim in papers.CLAIMS}
    stability, delay = found[papers.Stability], found[papers.Delay]
    assert (papers._learns(stability.line('AGN'))
            == papers._learns(stability.line('DOWNPOUR-Easy, a tenth')))
    plain, adaptive = (delay.mean(name, .1, 'target_examples') for name in ('HogWild', 'adaptive'))
    assert adaptive / plain == pytest.approx(2 / 3, abs=0.02)

    def learned(name):
        its = papers.Delay.sweeps[name]
        return sum(float(table_of_claims().row(its.scheme, its.asked(.2, seed))['accuracy']) > 0.9
                   for seed in range(1, its.seeds + 1))

    assert (learned('adaptive'), learned('HogWild')) == (1, 0)
    examples, seconds = (found[papers.Windows].line('Local-SGD', f'target_{what}')
                         for what in ('examples', 'seconds'))
    assert examples[32] / examples[1] == pytest.approx(4 / 3, abs=0.05)
    assert seconds[1] / seconds[32] == pytest.approx(15, abs=0.5)
    scaled = found[papers.Scaling].line('scaled')
    assert scaled[32] > 0.95 > 0.2 > scaled[48]


def test_a_wrong_figure_is_found():
    """A time that another number of backup workers has not, and an accuracy of other workers."""
    right = ('8 of 50 workers as backups cut it from 1.36 s to 0.18 s: see [what the papers '
             'claim](../Simulation/README.md#what-the-papers-claim).')
    assert strangers(right, 'Synchronous-SGD') == []
    assert strangers(right.replace('0.18', '0.23'), 'Synchronous-SGD') == ['0.23']
    right = '128 workers reach 0.919; 14,944 local steps/s.'
    assert strangers(right, 'Synchronous-SGD') == []
    assert strangers(right.replace('128', '32'), 'Synchronous-SGD') == ['0.919', '14,944']
    assert strangers(right, 'HogWild') == ['0.919', '14,944']
