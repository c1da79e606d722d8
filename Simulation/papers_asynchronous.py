"""Claims on workers that push each gradient, or each window, without waiting: see `papers`."""

from arms import over, teacher, Arm
from judging import Claim, control, Panel, part, regime, untested
from effects import gain


class Staleness(Claim):
    name = 'staleness'
    paper = 'Hermans 2017'
    where = 'the thesis'
    says = 'With N equal workers an update is N - 1 updates late, and the step has to be smaller.'
    here = 'HogWild, 8,000 local steps, each number of workers with its own step size'
    folders = ['HogWild']
    numbers = [1, 4, 16, 64]
    arms = {'its own step size': teacher('HogWild', over('workers', numbers), local_steps=8000)}
    arms['step size of one worker'] = teacher('HogWild', over('workers', [64]), local_steps=8000,
                                              like=(arms['its own step size'], 1))
    arms['step size of 64'] = teacher('HogWild', over('workers', [1]), local_steps=8000,
                                      like=(arms['its own step size'], 64))

    @staticmethod
    def judge(seen):
        own, of_one, of_many = seen.arms
        late = {number: seen.values(own, number, 'staleness') for number in Staleness.numbers}
        rates = [seen.rate(own, number) for number in Staleness.numbers]
        better = seen.gain((own, 64), (of_one, 64))
        alone = seen.gain((own, 1), (of_many, 1))
        return [
            part('updates are late by ' + ', '.join(
                f'{sum(values) / len(values):.1f} with N = {number}'
                for number, values in late.items()) + ': within 5 % of N - 1',
                 all(abs(value - number + 1) <= 0.05 * number
                     for number, values in late.items() for value in values)),
            part(f'with 64 workers the step size chosen for them, {rates[-1]}, over that of one '
                 f'worker, {rates[0]}: {better}', better.better()),
            control('with one worker its own step size over that of 64, so that it is not small '
                    f'steps that are better: {alone}', alone.is_sure or not better.is_sure)]

    @classmethod
    def panels(cls, seen):
        own = list(seen.arms)[:1]
        return [*super().panels(seen), Panel('staleness', 'workers', 'mean', dict(
            {'simulated': seen.line(own[0], 'staleness')},
            **{'N - 1': {number: [number - 1] for number in cls.numbers}}), False)]


_MORE = [4, 32]  # workers
_MOMENTA = (0, 3), (.9, 0)  # each with the exponent at which the search for the step size begins


def _with_momentum(scheme, momentum, start, numbers, **flags):
    """Returns an `Arm` over numbers of workers, on inputs of unequal variance."""
    return teacher(scheme, over('workers', numbers), ps_momentum=momentum, start=start,
                   teacher_condition=100, step='lognormal:2ms:0.83', **flags)


class Momentum(Claim):
    name = 'momentum'
    paper = 'Mitliagkas et al. 2016'
    where = 'abstract and theorem'
    says = ('Asynchrony acts like momentum: N workers move the center, in the mean, as a step size '
            'divided by N and a momentum of 1 - 1/N do; so momentum of its own has to be smaller.')
    here = ('HogWild, without momentum on the ps and with 0.9; batches of 512, inputs whose '
            'variances differ by up to 100 times, 1,600 local steps that take times which vary as '
            'much as exponential ones; as a control as many updates of 4 workers in step, each '
            'with a batch of 128')
    folders = ['HogWild']
    arms = dict(
        {f'momentum {momentum}': _with_momentum('HogWild', momentum, start, [1, *_MORE],
                                                batch_size=512, local_steps=1600)
         for momentum, start in _MOMENTA},
        **{f'in step, momentum {momentum}': _with_momentum(
            'Synchronous-SGD', momentum, start, [4], batch_size=128, local_steps=6400,
            scale_learning_rate=False, warmup_steps=0) for momentum, start in _MOMENTA})

    @staticmethod
    def judge(seen):
        none, with_it, in_step, in_step_with = seen.arms
        gains = {number: seen.gain((with_it, number), (none, number)) for number in (1, *_MORE)}
        losses = {number: seen.gain((none, number), (with_it, number)) for number in _MORE}
        together = seen.gain((in_step_with, 4), (in_step, 4))
        return [
            regime(f'one worker gains by momentum: {gains[1]}', gains[1].is_sure),
            *(part(f'{number} workers gain less by it: {gains[number]}',
                   gains[1].larger(gains[number])) for number in _MORE),
            *(part(f'{number} workers are better without it: {losses[number]}',
                   losses[number].better()) for number in _MORE),
            control('it is not the number of workers: 4 workers in step gain more by it than 4 '
                    f'asynchronous ones: {together}', together.is_larger(gains[4])),
            untested('the path of the center: it differs from that of plain SGD at the start, and '
                     'there it depends on the velocity with which momentum begins. N workers begin '
                     'at full speed, all with a gradient of the first center; momentum, in all '
                     'folders, begins at rest')]


# Rows of the table, and local steps: each row is read as often.
_RARE, _DENSE = (10000, 25600), (100, 256)
_TORN = 0.1  # the share of each push that is lost
_MANY = 64  # workers


class Sparse(Claim):
    name = 'sparse'
    paper = 'Niu et al. 2011'
    says = ('Where each update changes a small part of the parameters, workers need no locks, and '
            'the speed-up is nearly linear.')
    here = ('HogWild, logistic regression on clicks with --clicks_uniform: 25,600 local steps with '
            'a table of 10,000 rows, of which a batch reads some 250; and 256 local steps with one '
            'of 100 rows, of which it reads some 90, so that each row is read as often')
    folders = ['HogWild']
    arms = {
        f'{rows:,} rows{words}': Arm(
            'HogWild', over('workers', workers), figure='loss', start=3, model='clicks',
            clicks_deep=False, clicks_uniform=True, clicks_rows=rows, local_steps=local_steps,
            tests=4, **flags)
        for rows, local_steps in (_RARE, _DENSE)
        for words, workers, flags in (('', [1, _MANY], {}), (', torn', [_MANY], {'torn': _TORN}))}

    @staticmethod
    def judge(seen):
        rare, rare_torn, dense, dense_torn = seen.arms
        lost = {name: seen.gain((name, 1), (name, _MANY)) for name in (rare, dense)}
        torn = seen.gain((rare, _MANY), (rare_torn, _MANY))
        return [
            part(f'sparse: what {_MANY} workers lose after as many examples as one worker, at most '
                 f'0.005 nats: {lost[rare]}', seen.gain((rare, _MANY), (rare, 1)).as_good(0.005)),
            part('sparse: what they lose besides if a tenth of each push is lost, as where updates '
                 f'without locks overwrite each other, at most 0.005 nats: {torn}',
                 seen.gain((rare_torn, _MANY), (rare, _MANY)).as_good(0.005)),
            control(f'they lose more where all rows are shared: {lost[dense]}',
                    lost[dense].is_larger(lost[rare])),
            untested('which elements of a push updates without locks would overwrite: the '
                     'simulation loses a tenth of them, whichever. With all rows shared that costs '
                     f'{seen.gain((dense, _MANY), (dense_torn, _MANY))}'),
            untested('nearly linear in time: how long the ps take for an update, 50 us one after '
                     'the other, is an assumption, and it decides')]

    @classmethod
    def panels(cls, seen):
        return [Panel('equal examples', cls.x, 'loss', seen.lines('loss'), False)]


_NUMBERS = [4, 16, 64]
_LEARNS = 'ends less than 1 nat above the least loss, with each seed'


class Stability(Claim):
    name = 'stability'
    paper = 'Hermans 2017'
    where = 'the thesis'
    says = ('AGN is stable where DOWNPOUR diverges. With 10 workers DOWNPOUR diverges from a '
            'window of 5 on, with 20 from 1 on.')
    here = 'a window of 10, 16,000 local steps; one step size for all, and the best of each'
    folders = ['AGN', 'DOWNPOUR-Easy']
    arms = dict(
        {scheme: teacher(scheme, over('workers', _NUMBERS), start=-2, local_steps=16000,
                         communication_window=10) for scheme in ('AGN', 'DOWNPOUR-Easy')},
        **{f'{scheme}, 0.1': teacher(scheme, over('workers', _NUMBERS), rate=None, learning_rate=.1,
                                     local_steps=16000, communication_window=10)
           for scheme in ('AGN', 'DOWNPOUR-Easy')},
        **{f'{number} workers, window {window}': teacher(
            'DOWNPOUR-Easy', {number: {'workers': number}}, start=-2, local_steps=16000,
            communication_window=window) for number, window in ((10, 5), (20, 1))})

    @staticmethod
    def judge(seen):
        learns = {scheme: [number for number in _NUMBERS if seen.learns(f'{scheme}, 0.1', number)]
                  for scheme in ('AGN', 'DOWNPOUR-Easy')}
        mine, others = (', '.join(map(str, numbers)) or 'no' for numbers in learns.values())
        own = {number: seen.gain(('AGN', number), ('DOWNPOUR-Easy', number))
               for number in _NUMBERS}
        only = [number for number in learns['AGN'] if number not in learns['DOWNPOUR-Easy']]
        said = {name: seen.learns(name, int(name.partition(' ')[0]))
                for name in list(seen.arms)[4:]}
        return [
            part(f'with a step size of 0.1 AGN learns with {mine} workers, DOWNPOUR-Easy with '
                 f'{others} (learning: {_LEARNS})', only),
            *(part(f'DOWNPOUR-Easy fails with {name}, whatever the step size', not learns)
              for name, learns in said.items()),
            control(f'where AGN alone learns with 0.1, with {", ".join(map(str, only)) or "no"} '
                    'workers, it is better with the best step size of each, too: ' + ', '.join(
                        f'with {number} workers {effect}' for number, effect in own.items()),
                    all(own[number].is_sure for number in only))]


_SLOWER = {times: {'step': f'lognormal:2ms:0.1,lognormal:{2 * times}ms:0.1'}
           for times in (1, 4, 16)}


class Heterogeneity(Claim):
    name = 'heterogeneity'
    paper = 'Jiang et al. 2017'
    says = ('With unequal workers, a step divided by its staleness is better than a constant one.')
    here = '20 workers, half of them slower, a window of 5, 16,000 local steps'
    folders = ['DynSGD']
    x = 'half the workers slower by'
    arms = {name: teacher('DynSGD', _SLOWER, workers=20, communication_window=5, local_steps=16000,
                          **flags)
            for name, flags in (('DynSGD', {}), ('DynSGD, 1/N', {'constant': 'true'}))}

    @staticmethod
    def judge(seen):
        gains = {times: seen.gain(('DynSGD', times), ('DynSGD, 1/N', times))
                 for times in _SLOWER}
        return [
            *(part(f'divided by the staleness over divided by N, half {times} times slower: '
                   f'{gains[times]}', gains[times].better()) for times in (4, 16)),
            control(f'it gains more than with equal workers, where it is {gains[1]}',
                    gains[16].is_larger(gains[1]))]


class Delay(Claim):
    name = 'delay'
    paper = 'Zheng et al. 2017'
    where = 'abstract'
    says = 'Compensated for the delay, asynchronous SGD is nearly as good as sequential SGD.'
    here = ('4,000 local steps, of 64 workers or of one; lambda is chosen like the step size: the '
            'less it is, the nearer is DC-ASGD to HogWild')
    folders = ['DC-ASGD']
    arms = {
        'HogWild': teacher('HogWild', over('workers', [64]), local_steps=4000),
        'DC-ASGD, constant': teacher('DC-ASGD', over('workers', [64]), local_steps=4000, options=[
            {'lambda_0': each} for each in (.04, .4, 4)]),
        'DC-ASGD, adaptive': teacher('DC-ASGD', over('workers', [64]), local_steps=4000,
                                     variance='adaptive', options=[
                                         {'lambda_0': each} for each in (.5, 2, 8)]),
        'sequential': teacher('HogWild', over('workers', [1]), local_steps=4000)}

    @staticmethod
    def judge(seen):
        plain, *forms = [(name, 64) for name in list(seen.arms)[:3]]
        one = 'sequential', 1
        delayed = seen.gain(one, plain)
        gains = [seen.gain(form, plain) for form in forms]
        left = [seen.gain(one, form) for form in forms]
        return [
            regime(f'the delay does harm: what HogWild loses against one worker: {delayed}',
                   delayed.is_sure),
            *(part(f'{form[0]}, lambda {seen.chosen(*form)["lambda_0"]}, over HogWild: {effect}',
                   effect.better()) for form, effect in zip(forms, gains)),
            part('what is lost against one worker, at most 0.02: ' + ', '.join(
                f'{form[0]} {effect}' for form, effect in zip(forms, left)),
                 True in [seen.gain(form, one).as_good() for form in forms])]

    @classmethod
    def panels(cls, seen):
        return [Panel('4,000 local steps', '', 'excess loss', {'loss': {
            name: line for name in seen.arms for line in seen.line(name).values()}}, False)]


class Bound(Claim):
    name = 'bound'
    paper = 'Ho et al. 2013'
    where = 'abstract'
    says = ('With a bound on staleness workers wait less than in lock-step; training is faster '
            'than in lock-step and than without a bound.')
    here = ('16 workers to a test accuracy of 0.6; the bound, 1, 3 or 10, is chosen like the step '
            'size')
    folders = ['SSP']
    x = 'step times'
    kinds = {'all slow now and then': {'step': 'pareto:1ms:1.5'},
             'one always slow': {'step': ','.join(['2ms'] * 15 + ['16ms'])},
             'equal': {'step': 'lognormal:2ms:0.1'}}
    figure = 'seconds', .6  # sooner, few steps are made, and a single long one decides
    _same = {'workers': 16, 'local_steps': 12000, 'tests': 30, 'start': -1, 'figure': figure}
    arms = {
        'lock-step': teacher('SSP', kinds, staleness_bound=0, **_same),
        'bound': teacher('SSP', kinds, options=[
            {'staleness_bound': bound} for bound in (1, 3, 10)], **_same),
        'no bound': teacher('HogWild', kinds, **_same)}

    @staticmethod
    def judge(seen):
        *unequal, equal = Bound.kinds
        gains = {kind: seen.gain(('bound', kind), ('lock-step', kind)) for kind in Bound.kinds}
        parts = []
        for kind in unequal:
            waits = gain(*(seen.values(name, kind, 'waits') for name in ('bound', 'lock-step')))
            free = seen.gain(('bound', kind), ('no bound', kind))
            bound = seen.chosen('bound', kind)['staleness_bound']
            parts += [
                part(f'{kind}, a bound of {bound}: less of the time spent waiting than in '
                     f'lock-step: {waits}', waits.better()),
                part(f'{kind}: faster than in lock-step: {gains[kind]}', gains[kind].better()),
                part(f'{kind}: faster than without a bound: {free}', free.better())]
        return [*parts, control('workers that are equal gain less over lock-step: '
                                f'{gains[equal]}', any(gains[kind].is_larger(gains[equal])
                                                       for kind in unequal))]

    @classmethod
    def panels(cls, seen):
        return [Panel('to an accuracy of 0.6', cls.x, 'virtual seconds', seen.lines(), True),
                Panel('waiting', cls.x, 'share of the time', seen.lines('waits'), False)]


class Adagrad(Claim):
    name = 'adagrad'
    paper = 'Dean et al. 2012'
    where = 'section 4.1'
    says = ('With Adagrad on the ps, more replicas can work together productively in Downpour SGD.')
    here = 'a window of 10, 16,000 local steps; DOWNPOUR-Easy is without Adagrad'
    folders = ['DOWNPOUR']
    numbers = [1, 16, 64]
    arms = {
        'DOWNPOUR': teacher('DOWNPOUR', over('workers', numbers), rate='server_learning_rate',
                            start=-1, local_steps=16000,
                            options=[{'learning_rate': rate} for rate in (.01, .1)]),
        'DOWNPOUR-Easy': teacher('DOWNPOUR-Easy', over('workers', numbers), start=-2,
                                 local_steps=16000, communication_window=10)}

    @staticmethod
    def judge(seen):
        gains = {number: seen.gain(('DOWNPOUR', number), ('DOWNPOUR-Easy', number))
                 for number in Adagrad.numbers}
        return [
            *(part(f'with Adagrad over without, {number} workers: {gains[number]}',
                   gains[number].better()) for number in (16, 64)),
            control(f'it gains more than with one worker, where it is {gains[1]}',
                    gains[64].is_larger(gains[1])),
            untested('thousands of cores, models of a billion parameters, and a warm start with '
                     'one replica')]
