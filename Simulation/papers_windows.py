"""Claims on windows of local steps between two exchanges: see `papers`."""

import math

from arms import over, teacher, value, Arm
from effects import every, gain
from judging import Claim, control, Panel, part, untested

_ELASTIC = [1, 4, 16, 64]


class Elastic(Claim):
    name = 'elastic'
    paper = 'Zhang et al. 2015'
    where = 'CIFAR-10, windows of 1 to 64'
    says = ('DOWNPOUR gets unstable with windows of 16 and 64, elastic averaging does not; with '
            'momentum it is the best at each; the error falls with N.')
    here = '4 workers with 2,000 local steps each, and with a window of 16 also 16 workers'
    folders = ['AEASGD', 'AEAMSGD']
    x = 'window'
    arms = dict(
        {scheme: teacher(scheme, over('communication_window', _ELASTIC), start=start, workers=4,
                         local_steps=8000)
         for scheme, start in (('DOWNPOUR-Easy', 0), ('AEASGD', 0), ('AEAMSGD', -3))},
        **{'AEASGD, 16 workers': teacher('AEASGD', over('communication_window', [16]), workers=16,
                                         local_steps=32000)})

    @staticmethod
    def judge(seen):
        plain, elastic, momentum, wide = seen.arms
        lost = {name: seen.gain((name, 1), (name, 64)) for name in (plain, elastic)}
        better = {window: seen.gain((momentum, window), (elastic, window)) for window in _ELASTIC}
        more = seen.gain((wide, 16), (elastic, 16))
        longest = seen.gain((elastic, 64), (plain, 64))
        return [
            part(f'{plain} loses with a window of 64 against one of 1: {lost[plain]}',
                 lost[plain].better()),
            part(f'{elastic} loses less: {lost[elastic]}', lost[plain].larger(lost[elastic])),
            control(f'each with its own step size, {elastic} is better with 64: {longest}',
                    longest.is_sure),
            part('momentum is better at each window: ' + ', '.join(
                f'{window}: {effect}' for window, effect in better.items()),
                 every(effect.better() for effect in better.values())),
            part(f'16 workers over 4: {more}', more.better())]


_WINDOWS = [1, 5, 25, 125, 500]
_EACH = 2000  # local steps of each of 8 workers
_EPOCHS = [1, 4, 20]
_LOCAL = {'cluster': 'sites', 'workers': 8, 'local_steps': 8 * _EACH, 'start': 1}


class Windows(Claim):
    name = 'windows'
    paper = 'Stich 2019'
    where = 'abstract'
    says = ('As many gradients do as in minibatch SGD, with fewer rounds: by up to the root of the '
            'number of steps.')
    here = ('Local-SGD between sites, 8 workers with 2,000 local steps each, of which the root is '
            '45')
    folders = ['Local-SGD']
    x = 'window'
    arms = {
        'Local-SGD': teacher('Local-SGD', over('communication_window', _WINDOWS), **_LOCAL),
        'one worker': teacher('Local-SGD', over('communication_window', [1]), cluster='sites',
                              workers=1, local_steps=_EACH, start=1)}

    @staticmethod
    def judge(seen):
        def local(window):
            return 'Local-SGD', window

        equal = {window: seen.gain(local(window), local(1)) for window in _WINDOWS[1:]}
        faster = seen.gain(local(25), local(1), 'seconds')
        alone = seen.gain(local(25), ('one worker', 1))
        return [
            *(part(f'a window of {window} is as good as one of 1, to 0.02: {equal[window]}',
                   equal[window].as_good()) for window in (5, 25)),
            part(f'with a window of 25 the gradients take less time: {faster}', faster.better()),
            part('a window of 500, far beyond the root, is worse than one of 1: '
                 f'{equal[500]}', seen.gain(local(1), local(500)).better()),
            control('with a window of 25, 8 workers are better than one with as many steps as each '
                    f'of them: {alone}', alone.is_sure)]

    @classmethod
    def panels(cls, seen):
        return [*super().panels(seen),
                Panel('16,000 local steps', cls.x, 'virtual seconds', seen.lines('seconds'), True)]


class Unequal(Claim):
    name = 'unequal'
    paper = 'Karimireddy et al. 2020'
    where = 'abstract'
    says = ("Where the workers' data differ, their models drift apart in their local steps, which "
            'makes averaging slow.')
    here = ('FedAvg on the digits, whose 8 clients all take part in each round, as in Local-SGD: '
            '320 epochs, in rounds of 1, 4 or 20; shards are equal, or sorted by class, so that a '
            'client has one class or two')
    folders = ['Local-SGD', 'FedAvg']
    x = 'epochs in a round'
    arms = {name: Arm('FedAvg', {each: {'epochs': each, 'train_steps': 320 // each}
                                 for each in _EPOCHS},
                      figure='loss', start=1, clients=8, fraction=1, workers=8, batch_size=32,
                      **data)
            for name, data in (('equal data', {}), ('sorted data', {'classes_per_client': 1}))}

    @staticmethod
    def judge(seen):
        lost = {(name, epochs): seen.gain((name, 1), (name, epochs))
                for name in seen.arms for epochs in _EPOCHS[1:]}
        return [
            *(part(f'sorted: what rounds of {epochs} epochs lose against rounds of one: '
                   f'{lost["sorted data", epochs]}', lost['sorted data', epochs].better())
              for epochs in _EPOCHS[1:]),
            control(f'with equal data rounds of 20 lose less: {lost["equal data", 20]}',
                    lost['sorted data', 20].is_larger(lost['equal data', 20]))]

    @classmethod
    def panels(cls, seen):
        return [Panel('digits', cls.x, 'test loss', seen.lines('loss'), True)]


class Outer(Claim):
    name = 'outer-momentum'
    paper = 'Douillard et al. 2023'
    where = 'abstract'
    says = ('With AdamW in windows of 500 local steps and momentum between them, 8 workers are as '
            'good as if they exchanged after each step.')
    here = ('DiLoCo, 8 workers with 2,000 local steps each; averaging alone is '
            '--outer_learning_rate=1 --outer_momentum=0')
    folders = ['DiLoCo']
    x = 'window'
    _same = {'workers': 8, 'local_steps': 8 * _EACH, 'start': -3}
    arms = {
        'DiLoCo': teacher('DiLoCo', over('communication_window', _WINDOWS[1:]), **_same),
        'averaging alone': teacher('DiLoCo', over('communication_window', _WINDOWS[:-1]),
                                   outer_learning_rate=1, outer_momentum=0, **_same)}

    @staticmethod
    def judge(seen):
        each = 'averaging alone', 1
        equal = {window: seen.gain(('DiLoCo', window), each) for window in _WINDOWS[1:]}
        momentum = {window: seen.gain(('DiLoCo', window), ('averaging alone', window))
                    for window in _WINDOWS[1:-1]}
        return [
            *(part(f'a window of {window} is as good as an exchange after each step, to 0.02: '
                   f'{equal[window]}', equal[window].as_good()) for window in (25, 125)),
            control('momentum is better than averaging alone: ' + ', '.join(
                f'with a window of {window} {momentum[window]}' for window in (25, 125)),
                    any(momentum[window].is_sure for window in (25, 125))),
            untested('a window of 500: 2,000 local steps are four such windows, too few for a '
                     f'momentum of 0.9, which looks back on ten; here it is {equal[500]}. Nor is a '
                     'start from a trained model')]


_DIGITS = {'figure': 'loss', 'clients': 100, 'fraction': .1, 'workers': 10}
_KINDS = {'all classes': {}, '2 classes a client': {'classes_per_client': 2}}


class Federated(Claim):
    name = 'federated'
    paper = 'McMahan et al. 2017'
    where = 'abstract'
    says = ('Clients that train on their own need 10 to 100 times fewer rounds than synchronous '
            'SGD, also where their data differ.')
    here = ('FedAvg on the digits, 10 of 100 clients in a round: rounds of 5 epochs in batches of '
            '5, or rounds of a single step on all examples of each client')
    folders = ['FedAvg']
    x = 'data'
    arms = {
        '100 rounds, 5 epochs': Arm('FedAvg', _KINDS, epochs=5, batch_size=5, train_steps=100,
                                    **_DIGITS),
        '1,000 rounds, one step': Arm('FedAvg', _KINDS, epochs=1, batch_size=20, train_steps=1000,
                                      start=1, **_DIGITS),
        '100 rounds, one step': Arm('FedAvg', _KINDS, epochs=1, batch_size=20, train_steps=100,
                                    start=2, **_DIGITS)}

    @staticmethod
    def rounds(seen, name, kind):
        """Returns the rounds to a test accuracy of 0.9, a list of floats by seed."""
        return [value(row, ('examples', .9)) / float(row['examples']) * float(row['steps'])
                for row in seen.rows(name, kind)]

    @staticmethod
    def judge(seen):
        epochs, many, few = seen.arms
        fewer = {kind: gain(Federated.rounds(seen, epochs, kind), Federated.rounds(seen, few, kind),
                            is_ratio=True) for kind in _KINDS}
        more = seen.gain((many, 'all classes'), (few, 'all classes'))
        lost = seen.gain((epochs, 'all classes'), (epochs, '2 classes a client'))
        return [
            *(part(f'{kind}: with 5 epochs fewer rounds to an accuracy of 0.9 than with one step: '
                   f'{effect}', effect.better()) for kind, effect in fewer.items()),
            control(f'rounds count: what 1,000 of one step are better than 100: {more}',
                    more.is_sure),
            part('10 times fewer at least; 15 times at best, as the 5 epochs of a client with 15 '
                 'examples are 15 steps', every(effect.as_good(-math.log(10))
                                                for effect in fewer.values())),
            untested('by how much differing data hurt in large networks. Here 5 epochs lose '
                     f'{lost} with 2 classes a client')]

    @classmethod
    def panels(cls, seen):
        return [Panel('digits', cls.x, 'test loss', seen.lines('loss'), True)]
