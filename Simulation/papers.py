"""Papers' claims as experiments: what is simulated, whether the claim holds, and a picture."""

import collections
import math

VERDICTS = 'holds', 'holds in part', 'does not hold'
# The flags that identify a simulation: columns of the table.
COLUMNS = ['seed', 'cluster', 'workers', 'step', 'local_steps', 'train_steps', 'learning_rate',
           'communication_window', 'constant', 'variance', 'staleness_bound',
           'replicas_to_aggregate', 'scale_learning_rate', 'warmup_steps', 'tests']


class Sweep(collections.namedtuple('Sweep', 'scheme at flags seeds')):
    """Simulations of one scheme, a line of a picture.

    Attributes:
      scheme: string, a folder.
      at: dict by place on the picture's axis of dicts of flags.
      flags: dict of the flags that are the same at all places.
      seeds: int, how many times each place is simulated.
    """

    def asked(self, x, seed):
        """Returns what to simulate at one place of the axis, a dict of strings."""
        return {name: str(value)
                for name, value in dict(self.flags, seed=seed, **self.at[x]).items()}


def sweep(scheme, at, seeds=1, **flags):
    """Returns a `Sweep`."""
    return Sweep(scheme, at, flags, seeds)


def over(flag, values):
    """Returns the places of a `Sweep` that varies one flag, from a list of its values."""
    return {value: {flag: value} for value in values}


# A panel of a picture: `lines` are dicts of y by x, by name; `log`: whether y is logarithmic.
Panel = collections.namedtuple('Panel', 'title x y lines log')


def _listed(values, form=''):
    """Returns numbers, a list or the values of a dict, as '1, 2 and 3'."""
    values = values.values() if isinstance(values, dict) else values
    *words, last = ['never' if math.isnan(value) else format(value, form) for value in values]
    return f'{", ".join(words)} and {last}' if words else last


class Claim:
    """A claim of a paper, as an experiment.

    Attributes:
      name: string, one word.
      paper: string, authors and year.
      where: string, where the paper makes the claim, as far as that is known.
      says: string, the claim.
      folders: list of strings, the folders whose READMEs show the picture.
      sweeps: dict of `Sweep`s by name, what is simulated.
    """

    where = "the paper's claim"

    @staticmethod
    def judge(found):
        """Judges whether the claim holds.

        Args:
          found: `claims.Found`.

        Returns:
          Two strings: one of VERDICTS, and what is seen, with figures.
        """
        raise NotImplementedError

    @staticmethod
    def panels(found):
        """Returns a list of `Panel`s."""
        raise NotImplementedError


def _verdict(*parts):
    """Returns one of VERDICTS: all parts of a claim hold, some, or none."""
    return VERDICTS[0 if all(parts) else 1 if any(parts) else 2]


def _to_compare(seconds):
    """Returns a time at which something is reached; infinity if it never is."""
    return math.inf if math.isnan(seconds) else seconds


def _learns(line, least=0.9):
    """Returns the last place of a line up to which all accuracies are `least` or more; or None."""
    last = None
    for x, accuracy in line.items():
        if not accuracy >= least:
            break
        last = x
    return last


_RATES = {1: [.2, .4, .8, 1.6], 4: [.1, .2, .4, .8], 16: [.05, .1, .2, .4],
          64: [.0125, .025, .05, .1]}


class Staleness(Claim):
    name = 'staleness'
    paper = 'Niu et al. 2011, Hermans 2017'
    where = 'staleness: the thesis'
    says = 'With N equal workers an update is N - 1 updates late, and the step has to be smaller.'
    folders = ['HogWild', 'Distributed-Setup', 'Parameter-Placement', 'Work-Queue',
               'Elastic-Workers']
    sweeps = {number: sweep('HogWild', over('learning_rate', rates), workers=number,
                            local_steps=4000) for number, rates in _RATES.items()}

    @staticmethod
    def late(found):
        """Returns the mean staleness by the number of workers; it is that of any step size."""
        return {number: found.mean(number, rates[0], 'staleness')
                for number, rates in _RATES.items()}

    @staticmethod
    def judge(found):
        late, rates = Staleness.late(found), [_learns(found.line(number)) or 0 for number in _RATES]
        return _verdict(
            all(abs(mean - number + 1) <= 0.05 * number for number, mean in late.items()),
            all(later < rate for rate, later in zip(rates, rates[1:]))), (
            f'with {_listed(list(late))} workers the staleness is {_listed(late, ".1f")}, and step '
            f'sizes up to {_listed(rates)} learn')

    @staticmethod
    def panels(found):
        equal = {number: max(number - 1, 0) for number in _RATES}
        return [Panel('accuracy', 'step size', 'test accuracy',
                      {f'N = {number}': found.line(number) for number in found.sweeps}, False),
                Panel('staleness', 'workers', 'mean',
                      {'simulated': Staleness.late(found), 'N - 1': equal}, False)]


class Stability(Claim):
    name = 'stability'
    paper = 'Hermans 2017'
    where = 'the thesis'
    says = ('AGN is stable where DOWNPOUR diverges. With 10 workers DOWNPOUR diverges from a '
            'window of 5 on, with 20 from 1 on.')
    folders = ['AGN', 'DOWNPOUR-Easy', 'DOWNPOUR']
    sweeps = dict(
        {name: sweep(scheme, over('workers', numbers), learning_rate=rate, local_steps=8000,
                     **flags)
         for name, scheme, numbers, rate, flags in (
             ('AGN', 'AGN', [1, 2, 4, 8, 16, 32, 64], .1, {'communication_window': 10}),
             ('DOWNPOUR-Easy', 'DOWNPOUR-Easy', [1, 2, 4, 8, 16, 32, 64], .1,
              {'communication_window': 10}),
             ('DOWNPOUR-Easy, a tenth', 'DOWNPOUR-Easy', [8, 16, 32, 64], .01,
              {'communication_window': 10}),
             ('DOWNPOUR', 'DOWNPOUR', [1, 2, 4, 8, 16, 32, 64], .1, {}))},
        **{f'{number} workers': sweep(
            'DOWNPOUR-Easy', over('communication_window', [1, 5, 10, 20]), workers=number,
            learning_rate=.1, local_steps=6000) for number in (10, 20)})

    @staticmethod
    def judge(found):
        mine, plain, tenth = (_learns(found.line(name)) or 0 for name in
                              ('AGN', 'DOWNPOUR-Easy', 'DOWNPOUR-Easy, a tenth'))
        ten, twenty = found.line('10 workers'), found.line('20 workers')
        return _verdict(mine > plain, _learns(ten) == 1 and _learns(twenty) is None), (
            f'with a window of 10 and the same step size AGN learns with up to {mine} workers, '
            f'DOWNPOUR-Easy with up to {plain}, or {tenth} with a tenth of that step size. With '
            f'windows of {_listed(list(ten))} DOWNPOUR-Easy reaches an accuracy of '
            f'{_listed(ten, ".2f")} with 10 workers, {_listed(twenty, ".2f")} with 20')

    @staticmethod
    def panels(found):
        return [Panel('window 10', 'workers', 'test accuracy',
                      {name: found.line(name) for name in found.sweeps if ' workers' not in name},
                      False),
                Panel('DOWNPOUR-Easy', 'window', 'test accuracy',
                      {name: found.line(name) for name in ('10 workers', '20 workers')}, False)]


_SLOWER = {slower: {'step': f'lognormal:2ms:0.1,lognormal:{2 * slower}ms:0.1'}
           for slower in (1, 4, 16)}


class Heterogeneity(Claim):
    name = 'heterogeneity'
    paper = 'Jiang et al. 2017'
    says = 'With unequal workers, a step divided by its staleness is better than a constant one.'
    folders = ['DynSGD']
    sweeps = {name: sweep(scheme, _SLOWER, seeds, workers=20, learning_rate=.1,
                          communication_window=5, local_steps=8000, tests=40, **flags)
              for name, scheme, seeds, flags in (
                  ('DynSGD', 'DynSGD', 3, {}), ('DynSGD, 1/N', 'DynSGD', 3, {'constant': 'true'}),
                  ('DOWNPOUR-Easy', 'DOWNPOUR-Easy', 1, {}))}

    @staticmethod
    def judge(found):
        mine, _, plain = (found.line(name) for name in found.sweeps)
        seconds, other = (found.line(name, 'target_seconds') for name in
                          ('DynSGD', 'DynSGD, 1/N'))
        unequal = [slower for slower in _SLOWER if slower > 1]
        return _verdict(
            all(mine[slower] > plain[slower] for slower in _SLOWER),
            all(_to_compare(seconds[slower]) < _to_compare(other[slower])
                for slower in unequal)), (
            f'half of 20 workers take {_listed(list(_SLOWER))} times as long. Seconds to 95 %: '
            f'DynSGD {_listed(seconds, ".2f")}, with steps divided by N {_listed(other, ".2f")}. '
            f'DOWNPOUR-Easy ends at an accuracy of {_listed(plain, ".2f")}')

    @staticmethod
    def panels(found):
        x = 'half the workers slower by'
        return [Panel('equal local steps', x, 'test accuracy',
                      {name: found.line(name) for name in found.sweeps}, False),
                Panel('time to 95 %', x, 'virtual seconds',
                      {name: found.line(name, 'target_seconds') for name in found.sweeps}, False)]


_WINDOWS = [1, 4, 16, 64]


class Elastic(Claim):
    name = 'elastic'
    paper = 'Zhang et al. 2015'
    where = 'CIFAR-10, windows of 1 to 64'
    says = ('DOWNPOUR gets unstable with windows of 16 and 64, elastic averaging does not; with '
            'momentum it is the best at each; the error falls with N.')
    folders = ['AEASGD', 'AEAMSGD']
    sweeps = dict(
        {scheme: sweep(scheme, over('communication_window', _WINDOWS), workers=4, local_steps=4000,
                       learning_rate=rate)
         for scheme, rate in (('DOWNPOUR-Easy', .1), ('AEASGD', .1), ('AEAMSGD', .01))},
        **{'AEASGD, by workers': sweep(
            'AEASGD', {number: {'workers': number, 'local_steps': 1000 * number}
                       for number in (4, 8, 16)}, 3, communication_window=16, learning_rate=.1)})

    @staticmethod
    def judge(found):
        plain, elastic, momentum, wide = (found.line(name) for name in found.sweeps)
        return _verdict(
            _learns(plain) in (1, 4), _learns(elastic) == _learns(momentum) == 64,
            all(momentum[window] > elastic[window] for window in _WINDOWS),
            wide[4] < wide[8] < wide[16]), (
            f'accuracy with windows of {_listed(_WINDOWS)}: DOWNPOUR-Easy {_listed(plain, ".3f")}, '
            f'AEASGD {_listed(elastic, ".3f")}, AEAMSGD {_listed(momentum, ".3f")}. With '
            f'{_listed(list(wide))} workers AEASGD has {_listed(wide, ".3f")}')

    @staticmethod
    def panels(found):
        return [Panel('4 workers', 'window', 'test accuracy',
                      {name: found.line(name)
                       for name in ('DOWNPOUR-Easy', 'AEASGD', 'AEAMSGD')}, False),
                Panel('window 16, equal local steps of each', 'workers', 'test accuracy',
                      {'AEASGD': found.line('AEASGD, by workers')}, False)]


class Delay(Claim):
    name = 'delay'
    paper = 'Zheng et al. 2017'
    where = 'abstract'
    says = 'Compensated for the delay, asynchronous SGD is nearly as good as sequential SGD.'
    folders = ['DC-ASGD']
    sweeps = dict(
        {name: sweep(scheme, over('learning_rate', [.1, .2, .4]), 3, workers=16, local_steps=4000,
                     **flags)
         for name, scheme, flags in (('HogWild', 'HogWild', {}), ('constant', 'DC-ASGD', {}),
                                     ('adaptive', 'DC-ASGD', {'variance': 'adaptive'}))},
        sequential=sweep('HogWild', over('learning_rate', [.2, .4]), workers=1, local_steps=4000))

    @staticmethod
    def judge(found):
        plain, constant, adaptive, sequential = (found.line(name) for name in found.sweeps)
        examples = [found.mean(name, .1, 'target_examples')
                    for name in ('HogWild', 'constant', 'adaptive')]
        return _verdict(
            constant[.2] >= plain[.2] + 0.01, adaptive[.2] >= plain[.2] + 0.01,
            adaptive[.2] >= sequential[.2] - 0.01, max(examples[1:]) < examples[0]), (
            f'accuracy of 16 workers with step sizes of {_listed(list(plain))}, means of 3 seeds: '
            f'HogWild {_listed(plain, ".3f")}, constant {_listed(constant, ".3f")}, adaptive '
            f'{_listed(adaptive, ".3f")}; one worker, with the last two step sizes, '
            f'{_listed(sequential, ".3f")}. With 0.1 the first three take '
            f'{_listed(examples, ",.0f")} examples to 95 %')

    @staticmethod
    def panels(found):
        names = {'HogWild': 'HogWild', 'constant': 'DC-ASGD, constant',
                 'adaptive': 'DC-ASGD, adaptive', 'sequential': 'one worker'}
        return [Panel('16 workers', 'step size', 'test accuracy',
                      {said: found.line(name) for name, said in names.items()}, False),
                Panel('examples to 95 %', 'step size', 'examples',
                      {said: found.line(name, 'target_examples')
                       for name, said in names.items()}, False)]


_BOUNDS = [0, 1, 3, 10, 30]
_NOW_AND_THEN = 'pareto:1ms:1.5'
_STRAGGLERS = {'all slow now and then': (_NOW_AND_THEN, .1),
               'one always slow': (','.join(['2ms'] * 15 + ['16ms']), .1),
               'all slow now and then, step size 0.2': (_NOW_AND_THEN, .2)}


class Bound(Claim):
    name = 'bound'
    paper = 'Ho et al. 2013'
    where = 'abstract'
    says = ('With a bound on staleness workers wait less than in lock-step; training is faster '
            'than in lock-step and than without a bound.')
    folders = ['SSP']
    sweeps = dict(
        {name: sweep('SSP', over('staleness_bound', _BOUNDS), workers=16, step=step,
                     learning_rate=rate, local_steps=3000, tests=50)
         for name, (step, rate) in _STRAGGLERS.items()},
        **{f'{name}, no bound': sweep('HogWild', {'none': {}}, workers=16, step=step,
                                      learning_rate=rate, local_steps=3000, tests=50)
           for name, (step, rate) in _STRAGGLERS.items()})

    @staticmethod
    def lines(found, figure):
        """Returns lines over the bound, with none as the last place, by kind of stragglers."""
        return {name: dict({str(bound): y for bound, y in found.line(name, figure).items()},
                           **found.line(f'{name}, no bound', figure)) for name in _STRAGGLERS}

    @staticmethod
    def judge(found):
        waits, times = (Bound.lines(found, figure) for figure in ('waits', 'target_seconds'))
        parts, said = [], []
        for name in _STRAGGLERS:
            share, seconds = list(waits[name].values()), list(times[name].values())
            first, *bounded, none = map(_to_compare, seconds)
            parts += [all(later < before for before, later in zip(share, share[1:])),
                      min(bounded) < first, min(bounded) < none]
            said.append(f'{name.capitalize()}: workers wait for {_listed(share, ".0%")} of the '
                        f'time; seconds to 95 %: {_listed(seconds, ".2f")}')
        return _verdict(*parts), (f'the bounds are {", ".join(map(str, _BOUNDS))} and none. '
                                  f'{". ".join(said)}')

    @staticmethod
    def panels(found):
        return [Panel(title, 'bound', y, Bound.lines(found, figure), log)
                for title, y, figure, log in (
                    ('waiting', 'share of the time', 'waits', False),
                    ('staleness', 'largest', 'staleness_max', True),
                    ('time to 95 %', 'virtual seconds', 'target_seconds', False))]


_BACKUPS = {backups: {'replicas_to_aggregate': 50 - backups}
            for backups in (0, 2, 4, 8, 25)}


class Backups(Claim):
    name = 'backups'
    paper = 'Chen et al. 2016'
    where = '4 of 100 machines are a good number'
    says = 'A few backup workers save more time in the tail than their gradients would be worth.'
    folders = ['Synchronous-SGD', 'Synchronous-SGD-different-learning-rates']
    sweeps = {name: sweep('Synchronous-SGD', _BACKUPS, workers=50, step=step, train_steps=100,
                          tests=50, scale_learning_rate='true', learning_rate=.016)
              for name, step in (('pareto:1ms:1.5', 'pareto:1ms:1.5'),
                                 ('pareto:1.5ms:4', 'pareto:1.5ms:4'),
                                 ('lognormal:2ms:0.1', 'lognormal:2ms:0.1'))}

    @staticmethod
    def judge(found):
        gains, said = [], []
        for name in found.sweeps:
            seconds = found.line(name, 'target_seconds')
            best = min(seconds, key=seconds.get)
            gains.append(0 < best < 25 and seconds[best] < 0.95 * seconds[0])
            fewer = (f', {seconds[best]:.2f} s with {best}, {seconds[25]:.2f} s with 25' if best
                     else f'; any number of them only adds time ({seconds[25]:.2f} s with 25)')
            said.append(f'Steps of {name}: {seconds[0]:.2f} s without backups{fewer}')
        return _verdict(*gains[:2], not gains[2]), f'50 workers to 95 %. {". ".join(said)}'

    @staticmethod
    def panels(found):
        return [Panel('time to 95 %', 'backup workers of 50', 'virtual seconds',
                      {name: found.line(name, 'target_seconds') for name in found.sweeps}, True),
                Panel('100 updates', 'backup workers of 50', 'virtual seconds',
                      {name: found.line(name, 'seconds') for name in found.sweeps}, True)]


class Windows(Claim):
    name = 'windows'
    paper = 'Stich 2019'
    where = 'abstract'
    says = ('As many gradients do as in minibatch SGD, with fewer rounds: by up to the root of the '
            'number of steps.')
    folders = ['Local-SGD', 'SAGN']
    sweeps = {scheme: sweep(scheme, over('communication_window', windows), workers=8,
                            cluster='sites', learning_rate=.1, local_steps=8192, tests=100)
              for scheme, windows in (('Local-SGD', [1, 4, 16, 32, 64]),
                                      ('SAGN', [1, 16, 64]))}

    @staticmethod
    def judge(found):
        accuracy = found.line('Local-SGD')
        examples, seconds = (found.line('Local-SGD', f'target_{what}')
                             for what in ('examples', 'seconds'))
        return _verdict(accuracy[32] >= accuracy[1] - 0.01, examples[32] <= 1.1 * examples[1]), (
            f'8 workers with 1,024 steps each, between sites, with windows of 1 and 32: accuracy '
            f'{accuracy[1]:.3f} and {accuracy[32]:.3f}; 95 % after {examples[1]:,.0f} and '
            f'{examples[32]:,.0f} examples, or {seconds[1]:.1f} and {seconds[32]:.1f} s')

    @staticmethod
    def panels(found):
        return [Panel(title, 'window', y, {name: found.line(name, figure)
                                           for name in found.sweeps}, log)
                for title, y, figure, log in (
                    ('equal local steps', 'test accuracy', 'accuracy', False),
                    ('examples to 95 %', 'examples', 'target_examples', False),
                    ('time to 95 %', 'virtual seconds', 'target_seconds', True))]


_NUMBERS = [8, 16, 32, 48, 64]
_SCALED = {number: {'workers': number, 'scale_learning_rate': 'true'} for number in _NUMBERS}
# Some 90 epochs of the digits, and a warm-up of the first 5, as in the paper.
_WARM = {number: dict(flags, warmup_steps=234 // number) for number, flags in _SCALED.items()}


class Scaling(Claim):
    name = 'scaling'
    paper = 'Goyal et al. 2017'
    where = 'abstract: 256 times the batch of 32'
    says = ('With a step size that grows with the batch, and a warm-up to it, a large batch trains '
            'as well as a small one in as many epochs, up to an end.')
    folders = ['Ring-AllReduce', 'Synchronous-SGD']
    sweeps = {name: sweep('Ring-AllReduce', at, seeds, learning_rate=.05, local_steps=4224)
              for name, at, seeds in (('one worker', over('workers', [1]), 3),
                                      ('not scaled', over('workers', _NUMBERS), 1),
                                      ('scaled', _SCALED, 3), ('scaled, warm-up', _WARM, 3))}

    @staticmethod
    def judge(found):
        one = found.mean('one worker', 1)
        fixed, scaled, warm = lines = [found.line(name) for name in list(found.sweeps)[1:]]
        ends = [_learns(line, one - 0.01) or 1 for line in lines]
        return _verdict(ends[1] > ends[0], ends[2] > ends[1]), (
            f'one worker has {one:.3f}. Up to {_listed(ends)} workers come within 0.01 of that '
            'without scaling, with it, and with a warm-up. Accuracy with '
            f'{_listed(_NUMBERS)} workers: {_listed(fixed, ".3f")} without scaling, '
            f'{_listed(scaled, ".3f")} with it, {_listed(warm, ".3f")} with a warm-up')

    @staticmethod
    def panels(found):
        return [Panel('equal examples', 'workers', 'test accuracy',
                      {name: found.line(name) for name in found.sweeps}, False)]


CLAIMS = [Staleness, Stability, Heterogeneity, Elastic, Delay, Bound, Backups, Windows, Scaling]
