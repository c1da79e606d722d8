"""Claims on slow workers, slow networks, and what travels on them: see `papers`."""

import math

from arms import over, teacher
from judging import Claim, control, Panel, part, untested

_TARGET = .55
_SECONDS, _NEEDED = ('seconds', _TARGET), ('examples', _TARGET)
_TENTH = math.log(1.1)  # between the logarithms of two numbers: a tenth more is as good
_RING = 'Ring-AllReduce'


class Gossip(Claim):
    name = 'gossip'
    paper = 'Lian et al. 2018'
    where = 'abstract'
    says = ('Averaged in pairs at any time, replicas learn as fast per example as in step, and a '
            'slow worker does not hold up the others.')
    here = ('AD-PSGD with --roles=bipartite and Ring-AllReduce, 16 workers to a test accuracy of '
            '0.55; one worker takes ten times as long for a local step')
    folders = ['Gossip']
    x = 'step times'
    kinds = {'equal': {'step': 'lognormal:2ms:0.1'},
             'one ten times slower': {'step': ','.join(
                 ['lognormal:2ms:0.1'] * 15 + ['lognormal:20ms:0.1'])}}
    _same = {'workers': 16, 'local_steps': 4800, 'tests': 30, 'start': 3, 'figure': _SECONDS}
    arms = {'Gossip': teacher('Gossip', kinds, roles='bipartite', **_same),
            _RING: teacher(_RING, kinds, **_same)}

    @staticmethod
    def judge(seen):
        equal, slow = Gossip.kinds
        gains = {kind: seen.gain(('Gossip', kind), (_RING, kind)) for kind in Gossip.kinds}
        held_up = {name: seen.gain((name, equal), (name, slow)) for name in seen.arms}
        needed = seen.gain((_RING, equal), ('Gossip', equal), _NEEDED)
        ended = seen.gain(('Gossip', equal), (_RING, equal), 'excess_loss')
        return [
            part('equal workers: what Gossip needs of examples over what the ring needs, at most a '
                 f'tenth more: {needed}',
                 seen.gain(('Gossip', equal), (_RING, equal), _NEEDED).as_good(_TENTH)),
            part('equal workers: after 4,800 local steps as good as the ring, to 0.02: '
                 f'{ended}', ended.as_good()),
            part(f'one worker ten times slower: faster than the ring: {gains[slow]}',
                 gains[slow].better()),
            part(f'that worker makes the ring slower by {held_up[_RING]}, and Gossip by less, by '
                 f'{held_up["Gossip"]}', held_up[_RING].larger(held_up['Gossip'])),
            control(f'with equal workers Gossip gains less over the ring: {gains[equal]}',
                    gains[slow].is_larger(gains[equal])),
            untested('how good the replica of one worker is: what is tested is their mean')]

    @classmethod
    def panels(cls, seen):
        return [Panel('to an accuracy of 0.55', cls.x, 'virtual seconds', seen.lines(), True),
                Panel('to an accuracy of 0.55', cls.x, 'examples', seen.lines(_NEEDED), True)]


_SLOW, _FAR = '10 Mbit/s', '10 ms one way'
_NETWORKS = {'10 Gbit/s': {}, _SLOW: {'bandwidth': '10Mbit', 'ps_bandwidth': '10Mbit'},
             _FAR: {'latency': '10ms'}}


def _everywhere(scheme, **flags):
    """Returns the arm of a scheme in step on all networks, on which it makes the same updates."""
    flags = dict(flags, workers=16, local_steps=4800, tests=30, figure=_SECONDS)
    fast = dict(list(_NETWORKS.items())[:1])
    return teacher(scheme, _NETWORKS, like=(teacher(scheme, fast, start=3, **flags), *fast),
                   **flags)


class Neighbours(Claim):
    name = 'neighbours'
    paper = 'Lian et al. 2017'
    where = 'abstract'
    says = ('Where the network is slow or far, D-PSGD, which averages with two neighbours, is '
            'faster than a center or an all-reduce, with as many examples.')
    here = ('16 workers to a test accuracy of 0.55, with 38 kB of parameters, on a network of '
            '10 Gbit/s and 30 us, on one of 10 Mbit/s, also for the ps, and on one of 10 ms')
    folders = ['Gossip']
    x = 'network'
    center = 'Synchronous-SGD'
    arms = {'Gossip, D-PSGD': _everywhere('Gossip', algorithm='d-psgd'), _RING: _everywhere(_RING),
            center: _everywhere(center)}

    @staticmethod
    def judge(seen):
        mine, *others = seen.arms
        fast, *bad = _NETWORKS
        gains = {(place, other): seen.gain((mine, place), (other, place))
                 for place in _NETWORKS for other in others}
        needed = seen.gain((Neighbours.center, fast), (mine, fast), _NEEDED)
        ended = seen.gain((mine, fast), (Neighbours.center, fast), 'excess_loss')
        parts = [part(
            f'after 4,800 local steps as good as {Neighbours.center}, to 0.02: {ended}',
            ended.as_good()), part(
            f'what D-PSGD needs of examples over what {Neighbours.center} needs, at most a tenth '
            f'more: {needed}', seen.gain((mine, fast), (Neighbours.center, fast),
                                         _NEEDED).as_good(_TENTH))]
        for place in bad:
            parts += [part(f'{place}: faster than {other}: {gains[place, other]}',
                           gains[place, other].better()) for other in others]
        return [*parts, control(
            'on the fast network it gains less: ' + ', '.join(
                f'over {other} {gains[fast, other]}' for other in others),
            all(any(gains[place, other].is_larger(gains[fast, other]) for place in bad)
                for other in others))]

    @classmethod
    def panels(cls, seen):
        return [Panel('to an accuracy of 0.55', cls.x, 'virtual seconds', seen.lines(), True)]


_BIASED = ['sign', 'topk:0.01']


def _compressed(values, **flags):
    return teacher(_RING, over('compression', values), **dict(
        {'workers': 2, 'local_steps': 3200, 'tests': 30, 'start': 1, 'bandwidth': '10Mbit'},
        **flags))


_FED_BACK = _compressed(['none', 'int8', *_BIASED])


class Compression(Claim):
    name = 'compression'
    paper = 'Karimireddy et al. 2019'
    where = 'abstract'
    says = ('Signs of gradients, and other biased compressions, do not come as near as SGD. With '
            'error feedback they do, in as many steps.')
    here = ('Ring-AllReduce, 2 workers on lines of 10 Mbit/s, 1,600 updates: signs with one '
            'magnitude, the largest hundredth, and int8, rounded at random and so without a bias')
    folders = [_RING]
    x = '--compression'
    arms = {'feedback, 10 Mbit/s': _FED_BACK,
            'without, 10 Mbit/s': _compressed(['int8', *_BIASED], error_feedback='false'),
            'feedback, 10 Gbit/s': _compressed(['none', *_BIASED], bandwidth='10Gbit',
                                               like=(_FED_BACK, None))}

    @staticmethod
    def judge(seen):
        fed, bare, fast = seen.arms
        gains = {name: seen.gain((fed, name), (bare, name)) for name in ['int8', *_BIASED]}
        kept = {name: seen.gain((fed, name), (fed, 'none')) for name in _BIASED}
        times = {(arm, name): seen.gain((arm, name), (arm, 'none'), _SECONDS)
                 for arm in (fed, fast) for name in _BIASED}
        sent = {name: sum(seen.values(fed, name, 'sent')) for name in seen.arms[fed].at}
        parts = []
        for name in _BIASED:
            parts += [
                part(f'{name}: with error feedback over without: {gains[name]}',
                     gains[name].better()),
                part(f'{name}: with error feedback as good as without compression, to 0.02: '
                     f'{kept[name]}', kept[name].as_good()),
                part(f'{name}: with 1/{sent["none"] / sent[name]:.0f} of the bytes sooner at an '
                     f'accuracy of 0.55: {times[fed, name]}', times[fed, name].better())]
        return [
            *parts,
            control(f'int8, which has no bias, gains less by feedback: {gains["int8"]}',
                    all(gains[name].is_larger(gains['int8']) for name in _BIASED
                        if gains[name].is_sure)),
            control('on lines of 10 Gbit/s compression makes it no faster: ' + ', '.join(
                f'{name} {times[fast, name]}' for name in _BIASED),
                    not any(times[fast, name].is_sure for name in _BIASED)),
            untested('what it takes to compress: the simulation does not count that')]

    @classmethod
    def panels(cls, seen):
        return [*super().panels(seen), Panel('to an accuracy of 0.55', cls.x, 'virtual seconds',
                                             seen.lines(_SECONDS), True)]


_IN_PARTS = {'whole': {}, 'two fragments': {'fragments': 2},
             'two, delay 9': {'fragments': 2, 'fragment_delay': 9, 'fragment_alpha': .5}}
_COMPUTING = .2 * 1000  # seconds: 1,000 local steps


class Streaming(Claim):
    name = 'streaming'
    paper = 'Douillard et al. 2025'
    where = 'abstract'
    says = ('Exchanged in fragments, one after the other, while the workers go on, the center '
            'takes less bandwidth at a time, and nobody waits, with the same quality.')
    here = ('DiLoCo, 4 workers with 1,000 local steps of 0.2 s each in windows of 20; inputs of 10 '
            'numbers, so that the network has two equal parts, that count as 4 MB, on lines of '
            '100 Mbit/s; the delay is of 9 local steps, and a worker keeps half of its own values')
    folders = ['DiLoCo']
    x = 'exchange'
    _same = {'workers': 4, 'local_steps': 4000, 'start': -3, 'communication_window': 20,
             'teacher_dimension': 10, 'step': '0.2s', 'parameters': '4MB', 'tests': 10}
    _slow = teacher('DiLoCo', _IN_PARTS, bandwidth='100Mbit', ps_bandwidth='100Mbit', **_same)
    arms = {'100 Mbit/s': _slow, '10 Gbit/s': teacher('DiLoCo', _IN_PARTS, like=(_slow, None),
                                                      **_same)}

    @staticmethod
    def waiting(seen, arm):
        """Returns the seconds that nobody computes, a dict of lists by the kind of exchange."""
        return {place: [seconds - _COMPUTING for seconds in values]
                for place, values in seen.line(arm, 'seconds').items()}

    @staticmethod
    def judge(seen):
        slow, fast = seen.arms
        whole, cut, late = _IN_PARTS
        peak, time = ({place: seen.gain((slow, place), (slow, whole), figure) for place in
                       (cut, late)} for figure in ('in_line', 'seconds'))
        kept = {place: seen.gain((slow, place), (slow, whole)) for place in (cut, late)}
        waits = {place: sum(values) / 3 for place, values in
                 Streaming.waiting(seen, slow).items()}
        lines = {place: sum(seen.values(slow, place, 'in_line')) / 3e6 for place in _IN_PARTS}
        no_need = seen.gain((fast, late), (fast, whole), 'seconds')
        return [
            part(f'the most in line at the ps: {lines[whole]:.1f} MB whole, {lines[cut]:.1f} MB in '
                 f'two fragments, {lines[late]:.1f} MB with the delay', all(
                     effect.is_sure for effect in peak.values())),
            part(f'workers wait {waits[whole]:.1f} s whole, {waits[cut]:.1f} s in two fragments, '
                 f'{waits[late]:.1f} s with the delay, less than a tenth',
                 time[late].is_sure and waits[late] < waits[whole] / 10),
            *(part(f'{place}: as good as whole, to 0.02: {effect}', effect.as_good())
              for place, effect in kept.items()),
            control(f'on lines of 10 Gbit/s the delay saves less time: {no_need}',
                    time[late].is_larger(no_need)),
            untested('more than two fragments: the network here has two large variables; and '
                     'values of four bits')]

    @classmethod
    def panels(cls, seen):
        return [*super().panels(seen),
                Panel('1,000 local steps of each', cls.x, 'seconds waiting',
                      {name: Streaming.waiting(seen, name) for name in seen.arms}, False)]
