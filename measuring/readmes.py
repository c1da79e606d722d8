"""The tables of the READMEs: which commands make their rows, and new rows in place of the old ones.

A table belongs to a code block, indented by four spaces, with commands of measure.py or bench.py:
it stands right above the block, or below it, before the next heading. A row belongs to a command by
the cells in which it says what was run.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap

PROGRAMS = 'Comparison/measure.py', 'Comparison/bench.py'
# The columns that say what was run: in the tables of measure.py, and of bench.py.
KEYS = ('folder', 'workers', 'flags'), ('',)
# A part of a README: a code block, also with empty lines, or a table, or a line.
_PART = re.compile(r'(?: {4}.*\n+)+|(?:\|.*\n)+|.*\n')
# What the shell runs for `python` and `make` in a code block: it prints the words. Nothing else is
# there to be run.
_SPY = r"""
python() { printf '%s\x1f' "$@"; printf '\0'; }
make() { if [ "$1" = bench ]; then eval "python Comparison/bench.py ${2#ARGS=}"; fi; }
"""


def commands(block):
    """Finds what a code block of a README measures, with the shell's loops, variables and sums.

    Returns:
      List of tuples of strings, such as ('Comparison/measure.py', 'AGN').

    Raises:
      ValueError: if there is more in the block than can be run here.
    """
    done = subprocess.run(
        [shutil.which('bash'), '--restricted', '-c', _SPY + textwrap.dedent(block)],
        env={'PATH': os.devnull}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, timeout=30, check=False)
    if done.returncode or done.stderr:
        raise ValueError(f'what is {block.strip()!r}? ({done.stderr.strip()})')
    found = [tuple(words.split('\x1f')[:-1]) for words in done.stdout.split('\0')[:-1]]
    return [words for words in found if words[0] in PROGRAMS and '--readmes' not in words]


def fill(path, parts):
    """Puts parts of a README, a dict of strings by the names in the markers, between these.

    Raises:
      SystemExit: if a marker is missing.
    """
    text = path.read_text(encoding='utf-8')
    for part, content in parts.items():
        begin, end = f'<!-- {part} begins -->', f'<!-- {part} ends -->'
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f'{path} has not once {begin} and {end}.')
        before, _, after = text.partition(begin)
        text = f'{before}{begin}\n\n{content}\n\n{end}{after.partition(end)[2]}'
    path.write_text(text, encoding='utf-8')


def cells(line):
    """Returns the cells of a line of a table, a list of strings."""
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def line(its_cells):
    """Returns a line of a table, from a list of strings."""
    return f'| {" | ".join(its_cells)} |'


def table(lines, align='lr'):
    """Returns a table in Markdown.

    Args:
      lines: lists of strings, the cells of each line; the first one is the head.
      align: string, l or r for left or right of each column; the last letter is for the rest, too.
    """
    head, *others = lines
    rule = [{'l': '---', 'r': '---:'}[side] for side in align.ljust(len(head), align[-1])]
    return '\n'.join(map(line, [head, rule, *others]))


def rounded(value):
    """Returns a float for a cell: with three digits, or if it has more before the point, these."""
    return f'{value:.3g}' if value < 100 else f'{value:.0f}'


def paragraph(text):
    """Returns a paragraph in lines of at most 100 characters."""
    return textwrap.fill(' '.join(text.split()), 100, break_on_hyphens=False,
                         break_long_words=False)


def for_terminal(text, width):
    """Returns Markdown for a terminal: the columns of tables aligned, no links, nothing bold.

    What does not fit into a width stands below, with the first column again; what is empty in all
    rows is left out.
    """
    return re.sub(r'(?:^\|.*\n?)+', lambda match: _aligned(match.group(), width), text,
                  flags=re.MULTILINE)


def _aligned(text, width):
    """Returns a table, a string, for `for_terminal`."""
    head, rule, *rows = [[re.sub(r'\[([^]]*)\]\([^)]*\)|\*\*', r'\1', cell)
                          for cell in cells(its_line)] for its_line in text.splitlines()]
    columns, parts = [], []
    for align, name, *column in zip(rule, head, *rows):
        if columns and not any(column):
            continue
        longest = max(map(len, [name, *column]))
        columns.append([f'{cell:{">" if align.endswith(":") else "<"}{longest}}'
                        for cell in [name, '-' * longest, *column]])
    for column in columns[1:]:
        if not parts or len('  '.join(one[0] for one in [*parts[-1], column])) > width:
            parts.append([columns[0]])
        parts[-1].append(column)
    return '\n\n'.join('\n'.join('  '.join(its_line).rstrip() for its_line in zip(*part))
                       for part in parts) + '\n' * text.endswith('\n')


def show(text):
    """Prints Markdown: as it is into a file or a pipe, and on a terminal for reading."""
    print(for_terminal(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def _as(old, new):
    """Returns a new cell, in bold if the old one is; the old one if the new one is None."""
    return old if new is None else f'**{new}**' if new and old.startswith('**') else new


def _key(row, columns):
    """Returns what was run, as a tuple, for a dict of cells by column."""
    return tuple(row[column].strip('*') for column in columns)


class Table:
    """A table, and the code block that it belongs to.

    Attributes:
      block: string.
      line: int, the first line of the block, counted from 1: for whoever reads a complaint.
      begin, end: ints, between which lines of the README the table is.
    """

    def __init__(self, block, table):
        """Takes the matches of _PART in a README."""
        self.block = block.group()
        self.line = block.string.count('\n', 0, block.start()) + 1
        self._lines = table.group().splitlines()
        self.begin = table.string.count('\n', 0, table.start())
        self.end = self.begin + len(self._lines)

    def _columns(self, new):
        """Returns the names of all columns, and of those that say what was run.

        Raises:
          ValueError: if it is no table for a new row, a dict of cells by column.
        """
        names = cells(self._lines[0])
        for keys in KEYS:
            if set(keys) <= set(names) & set(new):
                return names, keys
        raise ValueError(f'the columns {", ".join(names)} do not say what was run')

    def row(self, new):
        """Returns the row that a new one is to replace, or None; both are dicts of cells by column.

        Raises:
          ValueError: if the columns are others.
        """
        names, keys = self._columns(new)
        rows = (dict(zip(names, cells(line))) for line in self._lines[2:])
        return next((row for row in rows if _key(row, keys) == _key(new, keys)), None)

    def replaced(self, rows):
        """Puts new rows, dicts as for `row`, in the place of the old ones, or behind them.

        Cells of other columns stay as they are, and what was bold is so again.

        Returns:
          The new lines, a list of strings, and a list of the old ones that no row was for.

        Raises:
          ValueError: if the columns are others.
        """
        names, keys = self._columns(rows[0])
        new = {_key(row, keys): row for row in rows}
        lines, left = self._lines[:2], []
        for before in self._lines[2:]:
            old = dict(zip(names, cells(before)))
            row = new.pop(_key(old, keys), None)
            if row is None:
                left.append(before)
            lines.append(before if row is None else
                         line([_as(cell, row.get(name)) for name, cell in old.items()]))
        lines += [line([row.get(name, '') for name in names]) for row in new.values()]
        return lines, left


def tables(text):
    """Returns a list of the `Table`s of a README, a string, that have a block which measures."""
    parts = [part for part in _PART.finditer(text + '\n') if part.group() != '\n']
    blocks = [i for i, part in enumerate(parts) if part.group().startswith('    ')
              and any(word in part.group() for word in ('make bench', *PROGRAMS))]
    above = [i - 1 for i in blocks if i and parts[i - 1].group().startswith('|')]
    found = []
    for i in blocks:
        # Below a block, the next table before a heading; if it is not another block's.
        below = next((part for part in parts[i + 1:] if part.group()[0] in '|#'), parts[i])
        if i - 1 in above:
            found.append(Table(parts[i], parts[i - 1]))
        elif below.group()[0] == '|' and parts.index(below) not in above:
            found.append(Table(parts[i], below))
    return found


def renewed(text, rows_of):
    """Replaces the rows of the tables.

    Args:
      text: string, a README.
      rows_of: function of a command, a tuple of strings, that returns its rows, a list of dicts of
        cells by column; None if it has none.

    Returns:
      The new text, and a list of strings: the rows in new tables that are as they were.
    """
    lines, remarks = text.split('\n'), []
    for old in reversed(tables(text)):  # those above keep their lines
        try:
            rows = [row for command in commands(old.block) for row in rows_of(command) or ()]
            new, left = old.replaced(rows) if rows else (lines[old.begin:old.end], [])
        except ValueError:
            continue  # it is no such table
        lines[old.begin:old.end] = new
        remarks += [f'line {old.line}: nothing new for {row}' for row in left]
    return '\n'.join(lines), remarks[::-1]


def dated(text, date, cores, tensorflow, python):
    """Writes when and where it was measured into those paragraphs that say so, with a date.

    The date is as 2026-11-21, the version of Python without its last number.
    """
    def renew(match):
        paragraph = match.group()
        if not (re.search(r'\b20\d\d-\d\d-\d\d\b', paragraph)
                and re.search(r'\d+\s+cores\b', paragraph)):
            return paragraph
        paragraph = re.sub(r'\b20\d\d-\d\d-\d\d\b', date, paragraph)
        paragraph = re.sub(r'\d+(?=\s+cores\b)', str(cores), paragraph)
        return re.sub(r'(TensorFlow\s+)\d+(?:\.\d+)+(\s+on\s+Python\s+)\d+(?:\.\d+)+',
                      rf'\g<1>{tensorflow}\g<2>{python}', paragraph)

    # A paragraph begins in the first column, with neither a table nor a heading.
    return re.sub(r'^[^\s|#`].*\n(?:\S.*\n)*', renew, text, flags=re.MULTILINE)
