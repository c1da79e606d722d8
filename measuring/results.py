"""Files of results: CSV, one row for each run."""

import csv
import os
import platform
import statistics


def read(path):
    """Returns the rows of a CSV file, dicts of strings; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def write(path, columns, rows):
    """Writes rows, dicts, into a CSV file in one piece: whoever is stopped leaves a whole one."""
    part = path.with_suffix('.part')
    with part.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, columns, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    os.replace(str(part), str(path))


def machine():
    """Returns in words what a run is made on."""
    return f'{os.cpu_count()} cores, Python {platform.python_version()}'


def numbers(rows, column):
    """Returns a column's values as floats, of the rows that have one."""
    return [float(row[column]) for row in rows if row[column] not in ('', None)]


def median(rows, column):
    """Returns the median of a column over the rows that have a value there, or None."""
    values = numbers(rows, column)
    return statistics.median(values) if values else None
