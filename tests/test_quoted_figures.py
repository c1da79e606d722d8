"""Figures that READMEs quote from the older study are in its results.

Those of the claims and of the new study are in tables that these write, and in no sentence: see
test_simulation_claims and test_simulation_study.
"""

import functools
import re

import pytest

from conftest import ROOT
from measuring import results

import experiments
import schemes

# Numbers that say what is simulated, and not what comes out.
ASKED = {'1,024', '10,000', '1,500', '9,610'}
NUMBER = re.compile(r'(?<![\w.,=-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]|[.,]\d)( s\b| %)?')


@functools.lru_cache(maxsize=None)
def older_study():
    return results.read(experiments.HERE / 'results' / 'older-study.csv')


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


def strangers(text, folder=None):
    """Returns the figures in a paragraph that the results do not have, a list of strings.

    Args:
      text: string. Its figures are those of the schemes that it names, with the numbers of
        workers that it names, or with one or two.
      folder: string, whose README it is of.
    """
    text = ' '.join(text.split())
    numbers = {number.replace(',', '') for number in re.findall(r'(?<!\.)\b\d[\d,]*\b', text)}
    for first, last in re.findall(r'(\d+) to (\d+)', text):
        numbers |= set(map(str, range(int(first), int(last))))
    names = [name for name in schemes.folders()
             if name == folder or re.search(rf'(?<![\w-]){name}(?![\w-])', text)]
    source = figures_of([row for row in older_study() if row['scheme'] in names
                         and row['workers'] in numbers | {'1', '2'}])
    return [number for kind, number in quoted(text) if not is_quoted_from(number, source[kind])]


def paragraphs(folder):
    """Returns the paragraphs of a README's section on many workers, without commands and claims."""
    text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
    section = text.partition('\n## With many workers\n')[2].partition('\n## ')[0]
    section = re.sub(r'<!-- claims begins -->.*<!-- claims ends -->', '', section, flags=re.DOTALL)
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


def test_a_wrong_figure_is_found():
    """An accuracy and a speed of other workers."""
    right = '128 workers reach 0.919; 14,944 local steps/s.'
    assert strangers(right, 'Synchronous-SGD') == []
    assert strangers(right.replace('128', '32'), 'Synchronous-SGD') == ['0.919', '14,944']
    assert strangers(right, 'HogWild') == ['0.919', '14,944']
