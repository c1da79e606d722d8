"""The cluster that there is, in a few words or in a file: what a run of a scheme has of it.

    4 hosts, 8 cores, 1Gbit, 0.5ms, 1 slow by 3

are four hosts of eight cores each. A message there and back takes half a millisecond; the local
steps of a worker on one of the hosts take three times as long. `2 cores shared` are all that the
hosts have together, as those have that are imitated on one machine; with `steps 20ms longer` each
local step takes so much longer than was measured here, also in one process, without keeping a core
busy. A file has the same as JSON:

    {"hosts": 4, "cores": 8, "rate": "1Gbit", "round_trip": "0.5ms", "slow": 1, "slow_by": "3"}

It may also have what a file for the simulation has, such as a list of latencies, see `description`;
and `"addresses": ["alpha:2222", ...]`, one on each host, for the commands that start the tasks.
Each task has a host of its own, or each core of the workers' hosts has a worker, which share the
host's line; on one host each task has a share of the cores. Workers take the slow hosts last.
"""

import copy
import os
import pathlib
import re
import sys

import advise_costs
import description

# Each key of a file, and the words for it.
_WORDS = [
    ('hosts', r'(\d+) hosts?'),
    ('cores', r'(\d+) cores?(?: each)?'),
    ('shared', r'(\d+) cores? shared'),
    ('rate', r'([\d.]+ ?[kMG]?bit)(?:/s)?'),
    ('round_trip', r'([\d.]+ ?(?:s|ms|us))(?: round trip| there and back)?'),
    ('longer', r'steps ([\d.]+ ?(?:s|ms|us)) longer'),
    ('slow', r'(\d+) slow by ([\d.]+ ?(?:s|ms|us)?)')]
_OWN = ('hosts', 'cores', 'shared', 'rate', 'round_trip', 'longer', 'slow', 'slow_by', 'addresses',
        'about')
_NOT_HERE = 'come', 'leave', 'die', 'parameters', 'exchange', 'exchange_work', 'hop', 'hop_work'
_STAGES = 5  # of an exchange whose costs were measured, see `lives.Life`
_MOST_PS = 8
ANOTHER_PS, MORE_CORES = 'another ps', 'twice the cores'  # of `Cluster.improvements`
_ON_A_CORE = 2  # workers, at most, where all share the cores: one computes while another one waits
_FORM = 'say it as in "4 hosts, 8 cores, 1Gbit, 0.5ms, 1 slow by 3", or name a file'


def _said(text):
    """Returns a dict by keys of a file, for a text of words; None if it is no such text."""
    if not re.match(r'\s*\d', text):
        return None
    found = {}
    for part in text.split(','):
        key, match = next(((key, match) for key, form in _WORDS
                           for match in [re.fullmatch(form, part.strip())] if match), (None, None))
        if key is None:
            sys.exit(f'--cluster={text}: what is "{part.strip()}"? Please {_FORM}.')
        found[key] = match[1].replace(' ', '')
        if key == 'slow':
            found['slow_by'] = match[2].replace(' ', '')
    return found


def _as_rate(bytes_per_second):
    return f'{bytes_per_second * 8 / 1e6:.6g}Mbit'


class Cluster:
    """A cluster.

    Attributes:
      text: string from which it can be made again, or None.
      hosts: int; on 1 host all tasks share its cores.
      addresses: list of strings, a host:port on each host, the slow hosts last; None if not known.
      longer: float, seconds by which each local step takes longer than on this machine.
    """

    def __init__(self, text=None):
        """Reads a description.

        Args:
          text: string, words or the path of a file; None: this machine.

        Raises:
          SystemExit: with what is wrong, in one line.
        """
        self.text, directory = text, '.'
        values = {} if text is None else _said(text)
        if values is None:
            values, path = description.load(text)
            directory = pathlib.Path(path).resolve().parent
        try:
            self._check_names(values)
            self._take(values)
            self._describe(values, directory)
        except ValueError as error:
            sys.exit(f'--cluster={text}: {error}.')

    @staticmethod
    def _check_names(values):
        for name in values:
            if name in _NOT_HERE:
                raise ValueError(f'"{name}" is not for this: costs are measured, and workers are '
                                 'there from the beginning to the end')
            if name not in _OWN and name not in description.KEYS:
                known = [*_OWN, *(each for each in description.KEYS
                                  if each not in _NOT_HERE and each not in _OWN)]
                raise ValueError(f'what is "{name}"? There are {", ".join(known)}')

    def _take(self, values):
        """Takes the values of a file, a dict."""
        def count(name, otherwise):
            return description.count(values[name]) if name in values else otherwise

        # A file for the simulation names workers in place of hosts.
        self._workers = count('workers', None)
        if self._workers is None and 'hosts' not in values and any(
                name in values for name in ('latency', 'bandwidth', 'ps_bandwidth')):
            self._workers = 8
        self._most_ps = count('ps', 1 if self._workers else _MOST_PS)
        self.hosts = count('hosts', self._workers + self._most_ps if self._workers else 1)
        self.addresses = values.get('addresses')
        if self.addresses is not None and (
                not isinstance(self.addresses, list) or len(self.addresses) != self.hosts
                or not all(re.fullmatch(r'.+:\d+', str(each)) for each in self.addresses)):
            raise ValueError(f'"addresses" has one host:port for each of the {self.hosts} hosts')
        self._cores = count('shared', count('cores', os.cpu_count() if self.hosts == 1 else 1))
        self._is_shared = (self.hosts == 1 or 'shared' in values
                           or bool(self._workers) and 'cores' in values)
        self._rate = description.bandwidth(values.get('rate', 'inf'))
        self._round_trip = description.seconds(values.get('round_trip', '0s'))
        self.longer = description.seconds(values.get('longer', '0s'))
        self._slow = int(values.get('slow', 0))
        slow_by = str(values.get('slow_by', '1'))
        self._delay = description.seconds(slow_by) if re.search('[a-z]', slow_by) else 0.
        self._factor = 1. if self._delay else description.number(slow_by, above=0)
        if self.hosts > 1 and not self._workers and not {'rate', 'round_trip'} & set(values):
            raise ValueError('several hosts have a network: say its rate and its round trip, '
                             'such as 1Gbit, 0.5ms')
        most = self._workers or (self.hosts if self.hosts > 1 else _ON_A_CORE * self._cores)
        if not 0 <= self._slow < most:
            raise ValueError(f'{self._slow} slow ones are too many: there are {most}')

    def _describe(self, values, directory):
        """Keeps what is said as in a file for the simulation, which is in a directory, a path."""
        self._described = {}
        for name in description.KEYS:
            if name in values and name not in ('workers', 'ps', 'cores'):
                value = values[name]
                each = [re.sub('^(trace|drawn):', lambda kind: f'{kind[0]}{directory}/', str(part))
                        for part in (value if isinstance(value, list) else [value])]
                self._described[name] = ','.join(each)
        description.Cluster(**{  # it ends the program if a value is wrong
            name: value.split(',') if isinstance(description.KEYS[name][1], list) else value
            for name, value in self._described.items()})

    def words(self):
        """Returns what it is, as a string."""
        return self.text or f'this machine, {self._cores} core{"s" * (self._cores > 1)}'

    def numbers_of_workers(self, is_ring):
        """Returns the numbers of workers to try, a list of ints; a ring needs no host for a ps."""
        most = self._workers or (
            self.hosts - (not is_ring) if self.hosts > 1 else _ON_A_CORE * self._cores)
        numbers = {most, *(2 ** power for power in range(1, 17) if 2 ** power <= most)}
        if self.hosts > 1 and most - self._slow > 1:
            numbers.add(most - self._slow)  # without the slow ones
        if self.hosts > 1 and not self._is_shared and not self._workers:
            numbers.add(most * self._cores)  # one for each core
        return sorted(numbers)

    def numbers_of_ps(self, workers):
        """Returns the numbers of ps to try beside so many workers, a list of ints in order."""
        most = min(2, self._cores)
        if self.hosts > 1:
            most = min(self._most_ps, max(1, self.hosts - workers))
        return [2 ** power for power in range(4) if 2 ** power <= most]

    def flags(self, costs, workers, ps, stages=_STAGES, is_ring=False, at='value'):
        """Returns what a simulation needs, a dict of strings by names of flags.

        Args:
          costs: `advise_costs.Costs`.
          workers: int.
          ps: int.
          stages: int, how many an exchange of the scheme has, see `processors`.
          is_ring: bool, whether the workers sum up around a ring; then there is no ps.
          at: string, which of the costs to take, see `Costs.get`.
        """
        places, on_each = self.places(workers, ps, is_ring)
        tasks = workers + (0 if is_ring else ps) if self._is_shared else on_each
        # Each task has its share of the cores: threads beyond these would only wait.
        threads = max(1, self._cores // tasks)
        found = {'workers': workers, 'ps': max(1, ps), 'latency': f'{self._round_trip / 2:.6g}s',
                 'bandwidth': 'inf', 'ps_bandwidth': 'inf', 'links': description.SHARED,
                 'update': '0s'}
        if self._rate < float('inf'):
            found.update(bandwidth=_as_rate(self._rate / on_each),
                         ps_bandwidth=_as_rate(self._rate))
        found.update(self._exchange(costs, ps, stages, is_ring, at))
        found.update(self._steps(costs.step(threads, at), costs.get('variation'), workers, places))
        if self._is_shared:
            found['cores'] = max(1, self._cores // threads)
        found.update(self._described)
        return {name: str(value) for name, value in found.items()}

    def places(self, workers, ps, is_ring):
        """Returns how many hosts there are for the workers, and how many workers are on each."""
        own = self.hosts > 1 and not self._workers  # workers and ps have hosts
        places = self.hosts - (0 if is_ring else ps) if own else workers
        return places, -(-workers // places)

    def tasks(self, workers, ps):
        """Returns where so many workers and ps may listen; None if addresses are not known.

        Returns:
          Dict of lists of strings, host:port, by job. The ps have the first hosts, and the workers
          take the others in turn, the slow ones last; a further worker of a host has its next port.
        """
        if not self.addresses:
            return None
        places = [address.rpartition(':') for address in self.addresses[ps:]]
        found = [f'{host}:{int(port) + more}' for more in range(-(-workers // len(places)))
                 for host, _, port in places][:workers]
        return dict({'ps': self.addresses[:ps]} if ps else {}, worker=found)

    def start(self, costs, window, workers, ps, is_ring=False):
        """Returns the seconds that the first runs take longer than later ones, a float.

        On shared cores the workers, which all prepare their graphs then, and the ps are in each
        other's way: on two cores 1.7 times as long was measured for 2 workers, in the median, 2.7
        for 3, 3.6 for 4 and 8.3 for 8 (in the 627 runs of results/regret.csv with windows up to 10
        on equal hosts, without those on the cluster "slow and far").

        Args:
          costs: `advise_costs.Costs`.
          window: int, local steps in a run.
          workers: int.
          ps: int.
          is_ring: bool, see `flags`.
        """
        first = costs.get('start of a ring' if is_ring else 'start of a worker')
        busy = workers if self._is_shared else self.places(workers, ps, is_ring)[1]
        cores = self._cores
        if self._is_shared and not is_ring:
            busy, cores = 2 * workers, max(2, cores)  # the ps works for each of them
        return (first + (window - 1) * costs.get('start, a local step')) * max(1, busy / cores)

    def _exchange(self, costs, ps, stages, is_ring, at):
        """Returns what the runtime takes for an exchange, a dict by names of flags."""
        def times(**figures):
            return {flag: advise_costs.time(value) for flag, value in figures.items()}

        work = {}
        if is_ring:
            if self._is_shared:
                work = times(exchange_work=costs.get('ring work', at),
                             hop_work=costs.get('hop work', at))
            return dict(times(exchange=costs.get('ring', at), hop=costs.get('hop', at)), **work)
        fixed, by_byte = costs.get('exchange', at), costs.get('exchange, a byte', at)
        by_bytes, more = by_byte * (costs.get('pull') + costs.get('push')), stages / _STAGES
        if self._is_shared:
            return times(exchange=more * (fixed + by_bytes),
                         exchange_work=more * costs.get('exchange work', at))
        # What was measured on one machine contains the update, which is a queue of its own here.
        update = costs.get('update', at)
        return times(exchange=more * (max(0., fixed - update) + by_bytes / ps), update=update)

    def _steps(self, step, variation, workers, places):
        """Returns the flags for the local steps: the workers on the last places are the slow ones.

        Args:
          step: float, seconds of a local step of a fast worker.
          variation: float, see `advise_costs.MEANINGS`.
          workers: int.
          places: int, how many hosts there are for them, which they take in turn.
        """
        def one(factor):
            mean = advise_costs.time(step * factor)
            return f'lognormal:{mean}:{variation:.3g}' if variation else mean

        is_slow = [worker % places >= places - self._slow for worker in range(workers)]
        factors = [self._factor if slow else 1 for slow in is_slow]
        delays = [factor * self.longer + slow * self._delay
                  for factor, slow in zip(factors, is_slow)]
        steps = [one(factor) for factor in factors]
        found = {'step': ','.join(steps if any(is_slow) and not self._delay else steps[:1])}
        if any(delays):
            found['straggler'] = ','.join(
                f'{worker}:{delay:g}' for worker, delay in enumerate(delays) if delay)
        return found

    def improvements(self):
        """Returns what could be better, a dict of `Cluster` by words for that."""
        found = {}
        if self._rate < float('inf'):
            found['twice the bandwidth'] = self._but(_rate=2 * self._rate)
        if self._round_trip:
            found['half the round trip'] = self._but(_round_trip=self._round_trip / 2)
        if self._is_shared:
            found[MORE_CORES] = self._but(_cores=2 * self._cores)
        if self._slow:
            found['half as many slow hosts'] = self._but(_slow=self._slow // 2)
        found[ANOTHER_PS] = self._but(hosts=self.hosts + (self.hosts > 1))  # on a host of its own
        return found

    def _but(self, **changes):
        other = copy.copy(self)
        vars(other).update(changes)
        return other
