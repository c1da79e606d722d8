"""What things cost: a file in JSON that `advise_measure` writes, and that a person may edit.

    {"about": "...", "of": "...", "figures": {
       "exchange": {"value": "1.1ms", "low": "1.08ms", "high": "1.15ms", "how": "..."}, ...}}

Each figure has its unit, and how it was measured; `low` and `high` say how sure it is.
"""

import collections
import json
import re
import sys

import description

# What is needed, and what it is. A figure is the median of its measurement, between `low` and
# `high`; all of them are of one batch size and one model. There may also be STEP_OF and START_OF of
# a scheme: in place of 'step, 1 thread', and of 'start, a local step'.
MEANINGS = collections.OrderedDict([
    ('one process', 'a local step in one process, all in all'),
    ('start', 'what the first runs of that process take longer than later ones'),
    ('threads', 'of that process'),
    ('test', 'what a test takes that process'),
    ('step, 1 thread', 'a local step within a window, by a session with so many threads'),
    ('variation', 'of a local step: the standard deviation of its logarithm'),
    ('exchange', 'a pull and a push of a worker, beyond the local step, for any model'),
    ('exchange, a byte', 'what is added for each byte that the pull and the push carry'),
    ('exchange work', 'processor time of worker and ps in a pull and a push of this model'),
    ('start of a worker', 'what the first runs of a worker take longer than later ones'),
    ('start, a local step', 'what each further local step of a window adds to that'),
    ('update', 'what an update takes a ps'),
    ('ring', 'a sum around a ring, beyond the local step and the hops'),
    ('ring work', 'processor time in that, of each worker'),
    ('hop', 'a hop of the ring'),
    ('hop work', 'processor time of a hop'),
    ('start of a ring', 'what the first runs of two workers in a ring take longer than later ones'),
    ('parameters', 'bytes of the variables'),
    ('pull', 'bytes that a worker reads in an exchange'),
    ('push', 'bytes that it sends')])
STEP_OF, START_OF = 'step of {}', 'start, a local step of {}'
_NUMBERS = 'threads', 'variation'
_SIZES = 'parameters', 'pull', 'push'
_ALL = 'value', 'low', 'high'
_STEP = re.compile(r'step, (\d+) threads?')

Figure = collections.namedtuple('Figure', 'value low high how')


def _parser(name):
    if name in _NUMBERS:
        return description.number
    return description.size if name in _SIZES else description.seconds


def _written(name, value):
    """Returns a figure's value as text, with its unit."""
    if name in _NUMBERS:
        return f'{value:.4g}'
    return f'{value:.0f}B' if name in _SIZES else time(value)


def time(seconds):
    """Returns a time as text that `description.seconds` takes, such as 1.1ms."""
    for unit, factor in ('s', 1), ('ms', 1e3), ('us', 1e6):
        if seconds * factor >= 1 or unit == 'us':
            return f'{seconds * factor:.4g}{unit}'


class Costs:
    """The figures.

    Attributes:
      figures: dict of `Figure` by name: times in seconds, sizes in bytes.
      of: string, the identity of what was measured, see `advise_folders.Folder`.
    """

    def __init__(self, figures, of='', about=''):
        """Takes the attributes, and a string about them."""
        self.figures, self.of, self._about = figures, of, about

    def get(self, name, at='value'):
        """Returns a figure, a float; `at` is 'value', 'low' or 'high'."""
        return getattr(self.figures[name], at)

    def of_scheme(self, name):
        """Returns the `Costs` of a scheme, whose local steps may take longer than those of others.

        By how many times is known of one thread; with more of them it is taken to be the same.
        """
        step, start = STEP_OF.format(name), START_OF.format(name)
        if step not in self.figures or start not in self.figures:
            return self
        longer = self.get(step) / self.get('step, 1 thread')
        figures = dict(self.figures)
        for each in filter(_STEP.fullmatch, self.figures):
            figures[each] = figures[each]._replace(
                **{at: longer * self.get(each, at) for at in _ALL})
        figures['start, a local step'] = self.figures[start]
        return Costs(figures, self.of, self._about)

    def step(self, threads, at='value'):
        """Returns the seconds of a local step with so many threads, or the most measured below."""
        known = [int(_STEP.fullmatch(name)[1]) for name in self.figures if _STEP.fullmatch(name)]
        most = max(number for number in known if number <= max(1, threads))
        return self.get(f'step, {most} thread{"s" * (most > 1)}', at)

    def write(self, path):
        """Writes the file, a path."""
        figures = {name: {'value': _written(name, figure.value), 'low': _written(name, figure.low),
                          'high': _written(name, figure.high), 'how': figure.how}
                   for name, figure in self.figures.items()}
        path.write_text(json.dumps({'about': self._about, 'of': self.of, 'figures': figures},
                                   indent=2) + '\n', encoding='utf-8')


def read(path):
    """Returns the `Costs` of a file, a path.

    Raises:
      SystemExit: with what is wrong, in one line.
    """
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
        written = values['figures']
        missing = [name for name in MEANINGS if name not in written]
    except OSError as error:
        sys.exit(f'--costs={path}: it cannot be read ({error.strerror}).')
    except ValueError as error:
        sys.exit(f'--costs={path}: it is no JSON ({error}).')
    except (KeyError, TypeError):
        sys.exit(f'--costs={path}: it has no figures, {{"figures": {{"exchange": ...}}}}.')
    if missing:
        sys.exit(f'--costs={path}: "{missing[0]}" is missing: {MEANINGS[missing[0]]}.')
    figures = collections.OrderedDict()
    for name, figure in written.items():
        try:
            value, low, high = (_parser(name)(figure.get(at, figure['value']))
                                for at in _ALL)
        except (ValueError, KeyError, AttributeError) as error:
            sys.exit(f'--costs={path}: "{name}": '
                     f'{error if isinstance(error, ValueError) else "it has no value"}.')
        figures[name] = Figure(value, low, high, figure.get('how', ''))
    return Costs(figures, values.get('of', ''), values.get('about', ''))
