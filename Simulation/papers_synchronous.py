"""Claims on workers that make each step together, and on large batches: see `papers`."""

import math

from arms import over, teacher
from judging import Claim, control, Panel, part, regime, untested
from effects import gain

_TARGET = .55
_SECONDS = 'seconds', _TARGET


class Backups(Claim):
    name = 'backups'
    paper = 'Chen et al. 2016'
    where = '4 of 100 machines are a good number'
    says = 'A few backup workers save more time in the tail than their gradients would be worth.'
    here = ('Synchronous-SGD with 50 workers to a test accuracy of 0.55; 2, 4 or 8 of them as '
            'backups, chosen like the step size')
    folders = ['Synchronous-SGD']
    x = 'step times'
    kinds = {'heavy tail': {'step': 'pareto:1ms:1.5'}, 'light tail': {'step': 'pareto:1.5ms:4'},
             'no tail': {'step': 'lognormal:2ms:0.1'}}
    _same = {'workers': 50, 'train_steps': 150, 'tests': 30, 'start': 3, 'figure': _SECONDS}
    arms = {'no backups': teacher('Synchronous-SGD', kinds, **_same),
            'a few': teacher('Synchronous-SGD', kinds, options=[
                {'replicas_to_aggregate': 50 - backups} for backups in (2, 4, 8)], **_same)}

    @staticmethod
    def judge(seen):
        gains = {kind: seen.gain(('a few', kind), ('no backups', kind)) for kind in Backups.kinds}
        few = {kind: 50 - int(seen.chosen('a few', kind)['replicas_to_aggregate'])
               for kind in Backups.kinds}
        *tails, none = gains
        return [
            *(part(f'{kind}, {few[kind]} backups: faster than with none: {gains[kind]}',
                   gains[kind].better()) for kind in tails),
            control(f'without a tail they gain less: {gains[none]}',
                    any(gains[kind].is_larger(gains[none]) for kind in tails))]

    @classmethod
    def panels(cls, seen):
        return [Panel('to an accuracy of 0.55', cls.x, 'virtual seconds', seen.lines(), True)]


_NUMBERS = [4, 16, 64]
_EXAMPLES = 12800  # local steps


def _scaled(**flags):
    """Returns an arm whose step size is that of one worker, or grows from it."""
    return teacher('Ring-AllReduce', {number: dict({'workers': number}, **{
        name: each(number) for name, each in flags.items()}) for number in _NUMBERS},
        local_steps=_EXAMPLES, like=(_ALONE, 1))


_ALONE = teacher('Ring-AllReduce', over('workers', [1]), local_steps=_EXAMPLES)


class Scaling(Claim):
    name = 'scaling'
    paper = 'Goyal et al. 2017'
    where = 'abstract: 256 times the batch of 32'
    says = ('With a step size that grows with the batch, and a warm-up to it, a large batch trains '
            'as well as a small one in as many epochs, up to an end.')
    here = ('Ring-AllReduce, 12,800 local steps in all; the warm-up is an eighteenth of the '
            'updates, as 5 of 90 epochs in the paper')
    folders = ['Ring-AllReduce', 'Synchronous-SGD']
    arms = {
        'one worker': _ALONE,
        'its own step size': teacher('Ring-AllReduce', over('workers', _NUMBERS), start=2,
                                     local_steps=_EXAMPLES),
        'not scaled': _scaled(),
        'scaled': _scaled(scale_learning_rate=lambda number: 'true'),
        'scaled, warm-up': _scaled(scale_learning_rate=lambda number: 'true',
                                   warmup_steps=lambda number: _EXAMPLES // number // 18)}

    @staticmethod
    def judge(seen):
        one, most = ('one worker', 1), _NUMBERS[-1]
        warm = {number: seen.gain(('scaled, warm-up', number), one) for number in _NUMBERS}
        grown = {number: seen.gain(('scaled, warm-up', number), ('not scaled', number))
                 for number in _NUMBERS}
        gentle = seen.gain(('scaled, warm-up', most), ('scaled', most))
        end = seen.gain(one, ('its own step size', most))
        best = seen.gain(('scaled, warm-up', 16), ('its own step size', 16))
        return [
            *(part(f'{number} workers, scaled from {seen.rate(*one)} with a warm-up, are as good '
                   f'as one worker, to 0.02: {warm[number]}', warm[number].as_good())
              for number in _NUMBERS[:2]),
            part('16 workers: the scaled step size is as good as the best of their own, '
                 f'{seen.rate("its own step size", 16)}, to 0.02: {best}', best.as_good()),
            part(f'{most} workers, with the warm-up over without: {gentle}', gentle.better()),
            part(f'there is an end: one worker over {most}, whatever their step size: {end}',
                 end.better()),
            control('the step size has to grow; scaled with a warm-up over not: ' + ', '.join(
                f'{number} workers {grown[number]}' for number in _NUMBERS[:2]),
                    all(grown[number].is_sure for number in _NUMBERS[:2]))]


class CriticalBatch(Claim):
    name = 'critical-batch'
    paper = 'McCandlish et al. 2018'
    where = 'abstract'
    says = ('Up to a critical batch size a larger batch needs fewer updates, nearly in proportion; '
            'beyond it, hardly fewer. The critical size grows as training goes on.')
    here = ('Synchronous-SGD to a test accuracy of 0.45 and of 0.55; the critical size is where '
            'twice as many examples are needed as with the smallest batch')
    folders = ['Synchronous-SGD', 'Ring-AllReduce']
    x = 'workers, with 32 examples each'
    numbers = [1, 4, 16, 64, 256]
    targets = .45, .55
    arms = {'Synchronous-SGD': teacher('Synchronous-SGD', over('workers', numbers), start=2,
                                       local_steps=25600, tests=30, figure=('examples', .55))}

    @staticmethod
    def updates(seen, target):
        """Returns the updates to a test accuracy, a dict of lists by number of workers."""
        return {number: [examples / 32 / number for examples in values] for number, values in
                seen.line('Synchronous-SGD', ('examples', target)).items()}

    @staticmethod
    def critical(seen, target):
        """Returns the critical batch size for a test accuracy, a list of floats by seed.

        It is where twice as many examples are needed as with the smallest batch, on a straight line
        between two logarithms; infinity if no batch needs so many.
        """
        found = []
        for values in zip(*(seen.values('Synchronous-SGD', number, ('examples', target))
                            for number in CriticalBatch.numbers)):
            sizes = [math.log(32 * number) for number in CriticalBatch.numbers]
            if math.isinf(values[0]):
                found.append(math.inf)
                continue
            needed = [math.log(value / values[0]) for value in values]
            last = next((i for i, each in enumerate(needed) if each >= math.log(2)), None)
            if last is None or math.isinf(needed[last]):
                found.append(math.inf)
                continue
            share = (math.log(2) - needed[last - 1]) / (needed[last] - needed[last - 1])
            found.append(math.exp(sizes[last - 1] + share * (sizes[last] - sizes[last - 1])))
        return found

    @staticmethod
    def judge(seen):
        updates = CriticalBatch.updates(seen, .55)
        few, many = (gain(updates[more], updates[less], is_ratio=True)
                     for less, more in ((1, 4), (64, 256)))
        not_twice = gain(updates[64], updates[256], is_ratio=True)
        early, late = (CriticalBatch.critical(seen, target) for target in CriticalBatch.targets)
        grows = gain(early, late, is_ratio=True)
        sizes = [f'{sum(each) / 3:,.0f}' if max(each) < math.inf else 'more than 8,192'
                 for each in (early, late)]
        reached = all(value < math.inf for values in updates.values() for value in values)
        return [
            regime('all batches come to 0.55 with each seed', reached),
            part(f'from a batch of 32 to one of 128 fewer updates, by 4 at best, at least 3: {few}',
                 few.as_good(-math.log(3))),
            part(f'from 2,048 to 8,192 fewer updates, by 4 at best, less than 2: {many}',
                 not_twice.as_good(math.log(2))),
            part(f'the critical size, {sizes[0]} examples on the way to 0.45 and '
                 f'{sizes[1]} on the way to 0.55, grows: {grows}', grows.better()),
            untested('that the noise scale of the gradient predicts it: the simulation does not '
                     'measure that')]

    @classmethod
    def panels(cls, seen):
        return [Panel('updates to an accuracy', cls.x, 'updates', {
            f'{target}': cls.updates(seen, target) for target in cls.targets}, True)]


_LIARS = '3:10,11:10'


class Liars(Claim):
    name = 'liars'
    paper = 'Blanchard et al. 2017, Yin et al. 2018'
    where = 'abstracts'
    says = ('A mean of gradients does not bear a single worker that pushes nonsense; Krum, a '
            'median and a trimmed mean do.')
    here = ('Synchronous-SGD, 20 workers, 400 updates; two of them push -10 times their gradient, '
            'which is the attack that --liar makes. To learn is to end less than 1 nat above the '
            'least loss, with each seed')
    folders = ['Synchronous-SGD']
    x = '--aggregate'
    robust = ['median', 'trimmed:2', 'krum:2:10']
    _same = {'workers': 20, 'local_steps': 8000, 'start': 2}
    arms = {'nobody lies': teacher('Synchronous-SGD', over('aggregate', ['mean', 'median']),
                                   **_same),
            'two of twenty lie': teacher('Synchronous-SGD', over('aggregate', ['mean', *robust]),
                                         liar=_LIARS, **_same)}

    @staticmethod
    def judge(seen):
        honest, lied = ('nobody lies', 'mean'), ('two of twenty lie', 'mean')
        lost = seen.gain(honest, lied)
        kept = {name: seen.gain(('two of twenty lie', name), honest) for name in Liars.robust}
        alone = seen.gain(('nobody lies', 'median'), honest)
        return [
            part('the mean learns nothing if two lie, with any step size; what it loses: '
                 f'{lost}', not seen.learns(*lied)),
            *(part(f'{name} learns in spite of that; over the mean if nobody lies: {effect}',
                   seen.learns('two of twenty lie', name)) for name, effect in kept.items()),
            control(f'if nobody lies the median is no better than the mean: {alone}',
                    not alone.is_sure),
            untested('attacks that know the other gradients: --liar makes none')]
