"""Describes a cluster: by flags, by a file in JSON with the same names, or by both.

    {"about": "two sites", "workers": 16, "step": ["2ms", "lognormal:2ms:0.5"],
     "latency": ["50us", "25ms"], "bandwidth": "1Gbit", "die": ["3:10s"]}

A value that differs from worker to worker is a list: the workers take its elements in turn.
"""

import json
import math
import pathlib
import re
import sys

import numpy as np

_UNITS = {'s': 1, 'ms': 1e-3, 'us': 1e-6}
_RATES = {'bit': 1 / 8, 'kbit': 1e3 / 8, 'Mbit': 1e6 / 8, 'Gbit': 1e9 / 8}
_SIZES = {'B': 1, 'kB': 1e3, 'MB': 1e6, 'GB': 1e9}
_MOST_WORKERS = 2 ** 16


class Times:
    """A distribution of times: `constant`, `lognormal`, `pareto` or `trace`.

    Attributes:
      draw: function of a `np.random.RandomState` and a number of times; returns their sum in
        seconds.
    """

    def __init__(self, text, directory='.'):
        """Parses the description.

        Args:
          text: string, such as '2ms', 'lognormal:2ms:0.5' (mean, sigma), 'pareto:1ms:1.5' (least,
            tail index) or 'trace:FILE' (a time in each line; each draw is one of them).
          directory: string or path, of the file.

        Raises:
          ValueError: with what is wrong.
        """
        if not isinstance(text, (str, int, float)):
            raise ValueError(f'{text} is no time, such as 2ms')
        kind, *given = str(text).split(':')
        if not given:
            kind, given = 'constant', [kind]
        if kind == 'trace':
            self._read(pathlib.Path(directory) / ':'.join(given))
            return
        forms = {'constant': 1, 'lognormal': 2, 'pareto': 2}
        if kind not in forms:
            raise ValueError(f'there is no distribution {kind}; there are constant, lognormal, '
                             'pareto and trace')
        if len(given) != forms[kind]:
            raise ValueError(f'{kind} takes {forms[kind]} numbers, not {len(given)}')
        time, shape = seconds(given[0]), 0.
        if forms[kind] == 2:
            shape = number(given[1], above=0)
        if kind == 'constant':
            self.draw = lambda random, count: time * count
        elif kind == 'lognormal':
            middle = math.log(time) - shape ** 2 / 2 if time else -math.inf
            self.draw = lambda random, count: float(random.lognormal(middle, shape, count).sum())
        else:
            self.draw = lambda random, count: float(time * (1 + random.pareto(shape, count)).sum())

    def _read(self, path):
        try:
            values = np.array([seconds(line) for line in path.read_text(encoding='utf-8').split()])
        except OSError as error:
            raise ValueError(f'{path} cannot be read ({error.strerror})') from error
        except ValueError as error:
            raise ValueError(f'{path}: {error}') from error
        if not len(values):
            raise ValueError(f'{path} has no times')
        self.draw = lambda random, count: float(values[random.randint(len(values), size=count)]
                                                .sum())


def number(text, above=None):
    """Returns a float that is not negative and, if `above` is given, greater than that."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf or above is not None and value <= above:
        raise ValueError(f'{text} is no number of at least 0' if above is None else
                         f'{text} is no number above {above}')
    return value


def _measure(text, units, what, above=None):
    """Returns a float, of a number with one of some units, or with none; see `number`."""
    found = re.fullmatch(rf'([-+\d.e]+?)({"|".join(units)})?', str(text).strip())
    if not found:
        raise ValueError(f'{text} is no {what}')
    return number(found[1], above) * units.get(found[2], 1)


def seconds(text):
    """Returns a float for a time such as 0.5, '0.5s', '2ms' or '50us'."""
    return _measure(text, _UNITS, 'time, such as 2ms')


def bandwidth(text):
    """Returns bytes/s for a bandwidth such as 1.25e9, '10Gbit' or 'inf'."""
    return math.inf if text == 'inf' else _measure(
        text, _RATES, 'bandwidth, such as 10Gbit, or bytes in a second', above=0)


def size(text):
    """Returns bytes for a size such as 4e6, '38.4kB' or '100MB'."""
    return _measure(text, _SIZES, 'size, such as 100MB', above=0)


def count(text):
    """Returns an int of at least 1."""
    if not re.fullmatch(r'\d+', str(text)) or not 1 <= int(text) <= _MOST_WORKERS:
        raise ValueError(f'{text} is no number from 1 to {_MOST_WORKERS}')
    return int(text)


def moments(texts):
    """Returns a list of pairs (worker, seconds) for a list such as ['3:10s', '4:2ms']."""
    found = []
    for text in texts:
        worker, _, time = str(text).partition(':')
        if not re.fullmatch(r'\d+', worker) or not time:
            raise ValueError(f'{text} is not of the form worker:time, such as 3:10s')
        found.append((int(worker), seconds(time)))
    return found


def _each(parse):
    """Returns a parser of a list whose elements the workers take in turn."""
    return lambda values: [parse(value) for value in values]


# The names in a description: parser and default of each. The help of the flags has the meanings.
KEYS = {
    'workers': (count, '8'),
    'ps': (count, '1'),
    'step': (_each(Times), ['1ms']),
    'cores': (count, None),
    'exchange': (seconds, '0s'),
    'exchange_work': (seconds, '0s'),
    'hop': (seconds, '0s'),
    'hop_work': (seconds, '0s'),
    'parameters': (size, None),
    'latency': (_each(seconds), ['0s']),
    'bandwidth': (_each(bandwidth), ['inf']),
    'ps_bandwidth': (bandwidth, 'inf'),
    'update': (seconds, '0s'),
    'come': (moments, []),
    'leave': (moments, []),
    'die': (moments, []),
    'die_every': (Times, None),
    'back_after': (Times, None),
}
PRESETS = pathlib.Path(__file__).resolve().parent / 'clusters'


class Cluster:
    """A described cluster: each of KEYS is an attribute.

    Attributes:
      about: string, the description in words, from the file.
    """

    def __init__(self, file=None, **said):
        """Reads the description.

        Args:
          file: string, the path of a file, or the name of one in `clusters`.
          **said: strings, lists of strings, or None, by KEYS; they override the file.

        Raises:
          SystemExit: with what is wrong, in one line.
        """
        values, where = _load(file) if file else ({}, '')
        directory = pathlib.Path(where).parent
        self.about = values.pop('about', '')
        for name in values:
            if name not in KEYS:
                sys.exit(f'{where}: what is "{name}"? There are {", ".join(["about", *KEYS])}.')
        for name, (parse, otherwise) in KEYS.items():
            value, source, place = values.get(name, otherwise), f'{where}, {name}', directory
            if said.get(name) not in (None, []):
                value, source, place = said[name], f'--{name}', '.'
            if isinstance(otherwise, list) and not isinstance(value, list):
                value = [value]
            try:
                if name == 'step':
                    value = [Times(text, place) for text in value]
                elif value is not None:
                    value = parse(value)
            except ValueError as error:
                sys.exit(f'{source}: {error}.')
            if value == [] and otherwise:
                sys.exit(f'{source}: it is empty.')
            setattr(self, name, value)
        self._check()

    def _check(self):
        """Ends the program if values contradict each other."""
        for name in 'come', 'leave', 'die':
            for worker, _ in getattr(self, name):
                if worker >= self.workers:
                    sys.exit(f'--{name}: there is no worker {worker}; there are {self.workers}, '
                             'from 0.')
        for name in 'exchange_work', 'hop_work':
            if getattr(self, name) and not self.cores:
                sys.exit(f'--{name}: without --cores nobody shares processors.')
        if self.die_every and not self.die_every.draw(np.random.RandomState(1), 100):
            sys.exit('--die_every: after 0 s nobody has lived. Give a time above 0.')
        if self.back_after and not self.die_every:
            sys.exit('--back_after: without --die_every nobody dies so.')

    def of(self, name, worker):
        """Returns a worker's value of one of the KEYS that are lists."""
        values = getattr(self, name)
        return values[worker % len(values)]


def _load(file):
    """Returns the contents of a file, a dict, and its path."""
    path = pathlib.Path(file)
    if path.name == file and not path.suffix:
        path = PRESETS / f'{file}.json'
        if not path.exists():
            names = ', '.join(sorted(each.stem for each in PRESETS.glob('*.json')))
            sys.exit(f'--cluster={file}: there are {names}; or name a file, such as mine.json.')
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        sys.exit(f'--cluster={file}: it cannot be read ({error.strerror}).')
    except ValueError as error:
        sys.exit(f'--cluster={file}: it is no JSON ({error}).')
    if not isinstance(values, dict):
        sys.exit(f'--cluster={file}: it has to be an object, {{"workers": 8, ...}}.')
    return values, str(path)
