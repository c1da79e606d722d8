"""Figures that READMEs quote from the study are in its results, study.csv."""

import functools
import re

import pytest

from conftest import ROOT

import experiments
import schemes
import study
import study_cases
from study_cases import CLUSTERS, STEPS, Study
from study_report import known

IN_WORDS = {'one': 1, 'two': 2, 'four': 4, 'eight': 8}
# Numbers that say what is simulated, and not what comes out.
ASKED = {'1,024', '10,000', '1,500', '9,610'}
NUMBER = re.compile(r'(?<![\w.,=-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]|[.,]\d)( s\b| %)?')


@functools.lru_cache(maxsize=None)
def table_of_study():
    return experiments.Table(study.RESULTS / 'study.csv', study_cases.COLUMNS)


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


def rows_of_study(names, numbers):
    """Returns the rows of the study's tables, of schemes with some numbers of workers."""
    rows = []
    for name in names:
        one = Study(table_of_study(), study_cases.Absent(name))
        for number in numbers:
            asked = [known(one.row, number), known(one.best_row, number),
                     *(known(one.soonest_row, number, cluster) for cluster in CLUSTERS),
                     *(known(one.best_row, number, steps) for steps in STEPS)]
            rows += [row for row in asked if row]
    return rows


def strangers(text, folder=None):
    """Returns the figures in a paragraph that the results do not have, a list of strings.

    Args:
      text: string. Its figures are those of the schemes that it names, with the numbers of
        workers that it names, or with one.
      folder: string, whose README it is of.
    """
    text = ' '.join(text.split())
    numbers = {int(number.replace(',', '')) for number in re.findall(r'(?<!\.)\b\d[\d,]*\b', text)}
    numbers |= {IN_WORDS[word] for word in re.findall(r'\w+', text.lower()) if word in IN_WORDS}
    for first, last in re.findall(r'(\d+) to (\d+)', text):
        numbers |= set(range(int(first), int(last)))
    names = [name for name in schemes.folders()
             if name == folder or re.search(rf'(?<![\w-]){name}(?![\w-])', text)]
    source = figures_of(rows_of_study(names, numbers & set(study_cases.NUMBERS) | {1}))
    return [number for kind, number in quoted(text) if not is_quoted_from(number, source[kind])]


def paragraphs(folder):
    """Returns the paragraphs of a README's section on many workers, without commands and claims."""
    text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
    section = text.partition('\n## With many workers\n')[2].partition('\n## ')[0]
    section = re.sub(r'<!-- claims begins -->.*<!-- claims ends -->', '', section, flags=re.DOTALL)
    return [paragraph for paragraph in re.split(r'\n\s*\n', section)
            if not paragraph.startswith(('    ', '!['))]


@pytest.mark.parametrize('folder', schemes.folders())
def test_figures_of_a_folder(folder):
    assert {paragraph: strange for paragraph in paragraphs(folder)
            for strange in [strangers(paragraph, folder)] if strange} == {}


def verdicts():
    """Returns what the study's section of Simulation/README.md concludes, a list of strings."""
    text = (ROOT / 'Simulation' / 'README.md').read_text(encoding='utf-8')
    section = text.partition('<!-- first ends -->')[2].partition('\n![')[0]
    return section.strip()[2:].split('\n- ')


def test_figures_of_the_study():
    assert len(verdicts()) > 3
    assert {text: strange for text in verdicts() for strange in [strangers(text)] if strange} == {}


def test_what_the_study_concludes():
    """What is said there in words."""
    def study_of(name):
        return Study(table_of_study(), study_cases.Absent(name))

    def fixed(name, workers):
        return float(study_of(name).row(workers)['accuracy'])

    def seconds(name, workers):
        return float(study_of(name).soonest_row(workers, 'ethernet')['target_seconds'] or 'inf')

    tuned = [name for name in schemes.folders() if name not in study_cases.ALIKE]
    assert max(fixed(name, 32) for name in ('HogWild', 'DC-ASGD', 'SSP')) < study_cases.LEARNS
    assert {name for name in tuned if fixed(name, 128) > 0.9} == {
        'Local-SGD', 'DiLoCo', 'Synchronous-SGD', 'Ring-AllReduce', 'DynSGD'}
    assert min(seconds(name, 64) for name in tuned) > min(seconds(name, 16) for name in tuned)


def test_a_wrong_figure_is_found():
    """An accuracy and a speed of other workers."""
    right = '128 workers reach 0.919; 14,944 local steps/s.'
    assert strangers(right, 'Synchronous-SGD') == []
    assert strangers(right.replace('128', '32'), 'Synchronous-SGD') == ['0.919', '14,944']
    assert strangers(right, 'HogWild') == ['0.919', '14,944']
