"""Describes a cluster: by flags, by a file in JSON with the same names, or by both.

    {"about": "two sites", "workers": 16, "step": ["2ms", "lognormal:2ms:0.5"],
     "latency": ["50us", "25ms"], "bandwidth": "1Gbit", "die": ["3:10s"]}

A value that differs from worker to worker is a list: the workers take its elements in turn.
"""

import copy
import functools
import json
import math
import pathlib
import re
import sys

import numpy as np

_UNITS = {'s': 1, 'ms': 1e-3, 'us': 1e-6}
_RATES = {'bit': 1 / 8, 'kbit': 1e3 / 8, 'Mbit': 1e6 / 8, 'Gbit': 1e9 / 8}
_SIZES = {'B': 1, 'kB': 1e3, 'MB': 1e6, 'GB': 1e9}
MOST_WORKERS = 2 ** 16
_AHEAD = 128  # times that are drawn at once
TURNS, SHARED = 'turns', 'shared'  # what is done with a link that several need at a time


class Times:
    """A distribution of times: `constant`, `lognormal`, `pareto` or `drawn`; or a `trace`.

    Attributes:
      draw: function of a `np.random.RandomState` and a number of times; returns their sum in
        seconds.
    """

    def __init__(self, text, directory='.'):
        """Parses the description.

        Args:
          text: string, such as '2ms', 'lognormal:2ms:0.5' (mean, sigma), 'pareto:1ms:1.5' (least,
            tail index), 'trace:FILE' (a time in each line, followed in this order, again and
            again) or 'drawn:FILE' (each draw is one of these, whichever).
          directory: string or path, of the file.

        Raises:
          ValueError: with what is wrong.
        """
        if not isinstance(text, (str, int, float)):
            raise ValueError(f'{text} is no time, such as 2ms')
        kind, *given = str(text).split(':')
        self._trace = self._many = None
        if not given:
            kind, given = 'constant', [kind]
        if kind in ('trace', 'drawn'):
            values = _read(pathlib.Path(directory) / ':'.join(given))
            if kind == 'trace':
                self._trace, self._next, self.draw = values, 0, self._follow
            else:
                self.draw = lambda random, count: float(
                    values[random.randint(len(values), size=count)].sum())
            return
        forms = {'constant': 1, 'lognormal': 2, 'pareto': 2}
        if kind not in forms:
            raise ValueError(f'there is no distribution {kind}; there are constant, lognormal, '
                             'pareto, trace and drawn')
        if len(given) != forms[kind]:
            raise ValueError(f'{kind} takes {forms[kind]} numbers, not {len(given)}')
        time, shape = seconds(given[0]), 0.
        if forms[kind] == 2:
            shape = number(given[1], above=0)
        if kind == 'constant':
            self.draw = lambda random, count: time * count
            return
        if kind == 'lognormal':
            middle, factor = math.log(time) - shape ** 2 / 2 if time else -math.inf, 1.
            self._many = lambda random, count: random.lognormal(middle, shape, count)
        else:
            factor = time
            self._many = lambda random, count: 1 + random.pareto(shape, count)
        self._factor = factor
        self.draw = lambda random, count: float(factor * self._many(random, count).sum())

    def ahead(self, random):
        """Returns a function of a number of times that does what `draw` does, only sooner.

        Args:
          random: `np.random.RandomState` that nothing else draws from: it draws many at once.
        """
        if self._many is None:
            return functools.partial(self.draw, random)
        left, factor = np.array([]), self._factor

        def draw(count):
            nonlocal left
            if len(left) < count:
                left = np.concatenate([left, self._many(random, max(count, _AHEAD))])
            drawn, left = left[:count], left[count:]
            return factor * (drawn.item() if count == 1 else float(drawn.sum()))

        return draw

    def beginning_at(self, share):
        """Returns a `Times` for one worker: a trace begins at a share of its length, a float."""
        if self._trace is None:
            return self
        one = copy.copy(self)
        one._next, one.draw = int(share * len(self._trace)), one._follow
        return one

    def _follow(self, _, count):
        """Does what `draw` says, with the times that come next in the trace."""
        places = (self._next + np.arange(count)) % len(self._trace)
        self._next = (self._next + count) % len(self._trace)
        return float(self._trace[places].sum())


def _read(path):
    """Returns the times in a file, an array of seconds."""
    try:
        values = np.array([seconds(line) for line in path.read_text(encoding='utf-8').split()])
    except OSError as error:
        raise ValueError(f'{path} cannot be read ({error.strerror})') from error
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    if not len(values):
        raise ValueError(f'{path} has no times')
    return values


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
    """Returns a float, of a number with one of some units; see `number`. Zero needs no unit."""
    found = re.fullmatch(rf'([-+\d.e]+?)({"|".join(units)})?', str(text).strip())
    if not found:
        raise ValueError(f'{text} is no {what}')
    value = number(found[1], above)
    if value and not found[2]:
        *first, last = (f'{text}{unit}' for unit in units)
        raise ValueError(f'{text} has no unit: give {", ".join(first)} or {last}')
    return value * units.get(found[2], 1)


def seconds(text):
    """Returns a float for a time such as '0.5s', '2ms' or '50us'."""
    return _measure(text, _UNITS, 'time, such as 2ms')


def bandwidth(text):
    """Returns bytes/s for a bandwidth such as '10Gbit' or 'inf'."""
    return math.inf if text == 'inf' else _measure(text, _RATES, 'bandwidth, such as 10Gbit',
                                                   above=0)


def size(text):
    """Returns bytes for a size such as '38.4kB' or '100MB'."""
    return _measure(text, _SIZES, 'size, such as 100MB', above=0)


def count(text):
    """Returns an int of at least 1."""
    if not re.fullmatch(r'\d+', str(text)) or not 1 <= int(text) <= MOST_WORKERS:
        raise ValueError(f'{text} is no number from 1 to {MOST_WORKERS}')
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


def way_of_links(text):
    """Returns TURNS or SHARED, of a string."""
    if text not in (TURNS, SHARED):
        raise ValueError(f'{text} is neither {TURNS} nor {SHARED}')
    return text


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
    'links': (way_of_links, TURNS),
    'update': (seconds, '0s'),
    'come': (moments, []),
    'leave': (moments, []),
    'die': (moments, []),
    'die_every': (Times, None),
    'back_after': (Times, None),
}
# Every simulation has these: they are told also where nobody has set them.
_TOLD = 'workers', 'ps', 'step', 'latency', 'bandwidth', 'ps_bandwidth', 'update'
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
        values, where = load(file) if file else ({}, '')
        directory = pathlib.Path(where).parent
        self.about, self._told = values.pop('about', ''), {'flags': {}, file: {}, 'default': {}}
        for name in values:
            if name not in KEYS:
                sys.exit(f'{where}: what is "{name}"? There are {", ".join(["about", *KEYS])}.')
        for name, (parse, otherwise) in KEYS.items():
            value, source, place = values.get(name, otherwise), f'{where}, {name}', directory
            teller = file if name in values else 'default'
            if said.get(name) not in (None, []):
                value, source, place, teller = said[name], f'--{name}', '.', 'flags'
            if isinstance(otherwise, list) and not isinstance(value, list):
                value = [value]
            if teller != 'default' or name in _TOLD:
                self._told[teller][name] = ','.join(map(str, value)) if isinstance(
                    value, list) else value
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
                self.check_worker(name, worker)
        for name in 'exchange_work', 'hop_work':
            if getattr(self, name) and not self.cores:
                sys.exit(f'--{name}: without --cores nobody shares processors.')
        if self.die_every and not self.die_every.beginning_at(0).draw(
                np.random.RandomState(1), 100):
            sys.exit('--die_every: after 0 s nobody has lived. Give a time above 0.')
        if self.back_after and not self.die_every:
            sys.exit('--back_after: without --die_every nobody dies so.')

    def check_worker(self, name, worker):
        """Ends the program if a flag, by its name, is about a worker that is not there, an int."""
        if not 0 <= worker < self.workers:
            sys.exit(f'--{name}: there is no worker {worker}; there are {self.workers}, from 0.')

    def of(self, name, worker):
        """Returns a worker's value of one of the KEYS that are lists."""
        values = getattr(self, name)
        return values[worker % len(values)]

    def steps_of(self, worker):
        """Returns the `Times` of a worker's local steps.

        Workers that follow one trace begin at even distances in it: they are not all slow at once.
        """
        kinds = len(self.step)
        sharing = len(range(worker % kinds, self.workers, kinds))
        return self.of('step', worker).beginning_at(worker // kinds / sharing)

    def words(self, without=()):
        """Returns what it is by KEYS, but for some of them, and who said that, as a string."""
        parts = []
        for teller, told in self._told.items():
            kept = [f'{name} {value}' for name, value in told.items() if name not in without]
            if kept:
                parts.append(f'{", ".join(kept)} ({teller})')
        return '; '.join(parts)


def _once_each(pairs):
    """Returns a dict of pairs of a name and a value; raises KeyError for a name's second pair."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise KeyError(name)
        found[name] = value
    return found


def load(file):
    """Returns the contents of a file, a dict, and its path."""
    path = pathlib.Path(file)
    if path.name == file and not path.suffix:
        path = PRESETS / f'{file}.json'
        if not path.exists():
            names = ', '.join(sorted(each.stem for each in PRESETS.glob('*.json')))
            sys.exit(f'--cluster={file}: there are {names}; or name a file, such as mine.json.')
    try:
        values = json.loads(path.read_text(encoding='utf-8'), object_pairs_hook=_once_each)
    except OSError as error:
        sys.exit(f'--cluster={file}: it cannot be read ({error.strerror}).')
    except KeyError as error:
        sys.exit(f'--cluster={file}: it has "{error.args[0]}" twice.')
    except ValueError as error:
        sys.exit(f'--cluster={file}: it is no JSON ({error}).')
    if not isinstance(values, dict):
        sys.exit(f'--cluster={file}: it has to be an object, {{"workers": 8, ...}}.')
    return values, str(path)
