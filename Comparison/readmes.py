"""The tables of the READMEs: which commands make their rows, and new rows in place of the old ones.

A table belongs to a code block, indented by four spaces, with commands of measure.py or bench.py:
it stands right above the block, or below it, before the next heading. A row belongs to a command by
the cells in which it says what was run.
"""

import os
import re
import shutil
import subprocess
import textwrap

PROGRAMS = 'Comparison/measure.py', 'Comparison/bench.py'
# The columns that say what was run: in the tables of measure.py, and of bench.py.
KEYS = ('folder', 'workers', 'flags'), ('',)
# What the shell runs for `python` and `make` in a code block: it prints the words. Nothing else is
# there to be run.
_SPY = r"""
python() { printf '%s\0' "$#" "$@"; }
make() { if [ "$1" = bench ]; then eval "python Comparison/bench.py ${2#ARGS=}"; fi; }
"""


def commands(block):
    """Finds what a code block measures, with the shell's loops, variables and sums.

    Args:
      block: string, lines of a README.

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
    words, found = done.stdout.split('\0')[:-1], []
    while words:
        count = int(words.pop(0))
        found.append(tuple(words[:count]))
        del words[:count]
    return [words for words in found if words[0] in PROGRAMS and '--readmes' not in words]


def fill(path, parts):
    """Puts parts of a README between their markers.

    Args:
      path: path of the README.
      parts: dict of strings in Markdown by the names in the markers.

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


def _as(old, new):
    """Returns a new cell, or None for the old one, in bold if the old one is."""
    if new is None:
        return old
    return f'**{new}**' if new and old.startswith('**') else new


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

    def __init__(self, lines, block, begin):
        """Takes the lines of a README, and between which of them the block is and a table begins.

        Args:
          lines: list of strings.
          block: slice.
          begin: int.
        """
        self.block = '\n'.join(lines[block])
        self.line = block.start + 1
        self.begin = self.end = begin
        while self.end < len(lines) and lines[self.end].startswith('|'):
            self.end += 1
        self._lines = lines[self.begin:self.end]

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
        """Puts new rows in the place of the old ones, or behind them where there is no old one.

        Cells of other columns stay as they are, and what was bold is so again.

        Args:
          rows: list of dicts, cells by column.

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
                lines.append(before)
                left.append(before)
            else:
                lines.append(line([_as(cell, row.get(name)) for name, cell in old.items()]))
        lines += [line([row.get(name, '') for name in names]) for row in new.values()]
        return lines, left


def tables(text):
    """Returns a list of the `Table`s of a README, a string, that have a block which measures."""
    lines, blocks, begin = text.split('\n'), [], None
    for i, line in enumerate(lines + ['the end']):
        if line.startswith('    '):
            begin = i if begin is None else begin
        elif line and begin is not None:
            block = '\n'.join(lines[begin:i])
            if 'make bench' in block or any(program in block for program in PROGRAMS):
                blocks.append(slice(begin, i))
            begin = None
    above = {block.start: _begin_above(lines, block.start) for block in blocks}
    found = []
    for block in blocks:
        begin = above[block.start]
        if begin is None:
            begin = next((i for i in range(block.stop, len(lines))
                          if lines[i].startswith(('|', '#'))), len(lines))
        own = begin == above[block.start] or begin not in above.values()  # not another block's
        if own and begin < len(lines) and lines[begin].startswith('|'):
            found.append(Table(lines, block, begin))
    return found


def _begin_above(lines, i):
    """Returns the number of the first line of a table that ends right above line i, or None."""
    while i and not lines[i - 1]:
        i -= 1
    end = i
    while i and lines[i - 1].startswith('|'):
        i -= 1
    return i if i < end else None


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
    for table in reversed(tables(text)):  # those above keep their lines
        try:
            rows = [row for command in commands(table.block) for row in rows_of(command) or ()]
            new, left = table.replaced(rows) if rows else ([], [])
        except ValueError:
            continue  # it is no such table
        if rows:
            lines[table.begin:table.end] = new
        remarks += [f'line {table.line}: nothing new for {row}' for row in left]
    return '\n'.join(lines), remarks[::-1]


def dated(text, date, cores, tensorflow, python):
    """Writes when and where it was measured into those paragraphs that say so, with a date.

    Args:
      text: string, a README.
      date: string, as 2026-11-21.
      cores: int, of the machine.
      tensorflow: string, the version.
      python: string, the version, without its last number.
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
