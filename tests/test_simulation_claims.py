"""What papers claim: tuned on both sides, effects beside their noise, controls, and the pages."""

import collections
import math
import re
import subprocess
import sys

import pytest

from conftest import ROOT

SIMULATION = ROOT / 'Simulation'

import arms  # noqa: E402
import claims  # noqa: E402
import effects  # noqa: E402
import judging  # noqa: E402
import papers  # noqa: E402
import papers_synchronous  # noqa: E402
import schemes  # noqa: E402

NAMES = [claim.name for claim in papers.CLAIMS]


@pytest.fixture(scope='module')
def table():
    return arms.table_of(claims.RESULTS / 'claims.csv')


@pytest.fixture(scope='module')
def judged(table):
    return claims.judge(papers.CLAIMS, table)


def test_the_pages_say_what_the_results_say(judged):
    text = claims.README.read_text(encoding='utf-8')
    assert f'\n\n{claims.verdicts_of(judged)}\n\n' in text
    assert f'\n\n{claims.figures_of(judged)}\n\n' in claims.PAGE.read_text(encoding='utf-8')
    words = '|'.join([*judging.VERDICTS, claims.NOT_YET])
    assert len(re.findall(rf'\| (?:{words})(?:; [^|]*)? \|\n', text)) == len(NAMES)


@pytest.mark.parametrize('folder', claims.folders())
def test_a_folder_tells_of_its_claims(folder, judged):
    text = (ROOT / folder / 'README.md').read_text(encoding='utf-8')
    told = claims.told_in(folder, judged)
    assert f'<!-- claims begins -->\n\n{told}\n\n<!-- claims ends -->' in text
    first = [claim.name for claim in papers.CLAIMS if claim.folders[0] == folder]
    if first:
        assert f'    bash Simulation/run.sh --claims={",".join(first)}\n' in text


def test_results_are_of_claims(table):
    """Nothing is left of an experiment that has been changed."""
    used = [pair for claim in papers.CLAIMS for pair in judging.Seen(claim.arms, table).used()]
    rows = {id(table.row(*pair)) for pair in used if table.row(*pair)}
    assert rows == {id(row) for row in table.rows.values()}


def test_columns_are_what_is_asked_for():
    table = Known({})
    asked = [flags for claim in papers.CLAIMS
             for _, flags in judging.Seen(claim.arms, table).used()]
    assert {name for flags in asked for name in flags} == set(arms.COLUMNS)


def test_all_that_is_asked_for_is_a_scheme_that_is_simulated():
    assert {arm.scheme for claim in papers.CLAIMS for arm in claim.arms.values()} <= set(
        schemes.simulated())


@pytest.mark.parametrize('claim', papers.CLAIMS, ids=NAMES)
def test_a_claim_has_a_control(claim):
    """Whatever is found, it says what else could explain the effect, or which regime it needs."""
    parts = claim.judge(judging.Seen(claim.arms, Known({})))
    kinds = collections.Counter(part.kind for part in parts)
    assert kinds['part'] and (kinds['control'] or kinds['regime'])
    assert claims.verdict_of(parts).partition(';')[0] in judging.VERDICTS
    assert all('nan' not in part.says and 'inf' not in part.says for part in parts)


@pytest.mark.parametrize('claim', papers.CLAIMS, ids=NAMES)
def test_pictures_are_there(claim, judged):
    path = claims.RESULTS / claims.picture_of(claim)
    assert path.exists() == (judged[claim] is not None)
    if path.exists():
        assert path.read_bytes().startswith(b'\x89PNG')


class Known:
    """A table that has every row: what it says depends on a function of scheme and flags."""

    def __init__(self, figures, function=None):
        self._figures, self._function = figures, function

    def row(self, scheme, asked):
        figures = dict(self._figures)
        if self._function:
            figures.update(self._function(scheme, asked))
        return row_with(seed=int(asked['seed']), **figures)


def row_with(excess=0.5, seed=0, **figures):
    """Returns a row of a table; the excess loss differs a little from seed to seed."""
    loss = excess + 0.001 * seed
    row = dict.fromkeys(arms.FIGURES, '1')
    row.update(diverged='0', loss=str(loss), excess_loss=str(loss), waits='0.1',
               curve='3200:1:0.5 32000:2:0.54 64000:3:0.65')
    return dict(row, **figures)


@pytest.mark.parametrize('function, expected', [
    # As large as the delay, and the smaller the best step size.
    (lambda workers, rate: abs(math.log(rate * workers / 6.4)) / 9, 'holds'),
    # The best step size is the same with all numbers of workers.
    (lambda workers, rate: abs(math.log(rate / 0.4)) / 9 + workers / 999, 'holds in part')])
def test_a_verdict_on_staleness(function, expected):
    """The late updates are there in any case."""
    def figures(_, asked):
        workers = int(asked['workers'])
        excess = function(workers, float(asked['learning_rate']))
        return {'excess': excess, 'staleness': str(workers - 1)}

    claim = papers.Staleness
    assert claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures)))) == expected


def test_a_control_decides():
    """If the step that is divided by its staleness gains as much with equal workers."""
    def found(gain_equal):
        def figures(_, asked):
            unequal = not asked['step'].endswith('lognormal:2ms:0.1')
            gain = .2 if unequal else gain_equal
            return {'excess': .5 + gain * ('constant' in asked)
                    + abs(math.log(float(asked['learning_rate']) / .1))}
        claim = papers.Heterogeneity
        return judging.verdict(claim.judge(judging.Seen(claim.arms, Known({}, figures))))

    assert [found(0), found(.2)] == ['holds', 'does not hold']


def test_stability_is_no_matter_of_the_step_size():
    """With its own step size DOWNPOUR-Easy is as good as AGN, which alone learns with 0.1."""
    def found(lost):
        def figures(scheme, asked):
            off = abs(math.log(float(asked['learning_rate']) / (.1 if scheme == 'AGN' else .0125)))
            return {'excess': .5 + lost * (scheme != 'AGN') + off}
        claim = papers.Stability
        return claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures))))

    assert [found(.1), found(0)] == ['holds in part', 'does not hold']


def test_delay_is_not_tested_where_it_does_no_harm():
    def found(harm):
        def figures(scheme, asked):
            late = asked['workers'] != '1' and scheme == 'HogWild'
            return {'excess': .5 + harm * late + abs(math.log(float(asked['learning_rate']) / .1))}
        claim = papers.Delay
        return claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures))))

    assert [found(.2), found(0)] == ['holds', 'not tested here']


def test_momentum_is_about_asynchrony():
    """It does not hold if workers in step lose as much by momentum as asynchronous ones."""
    def found(one, many, in_step):
        def figures(scheme, asked):
            gain = (in_step if scheme == 'Synchronous-SGD' else
                    one if asked['workers'] == '1' else many)
            return {'excess': .5 - gain * (asked['ps_momentum'] != '0')
                    + abs(math.log(float(asked['learning_rate']) / .1))}
        claim = papers.Momentum
        return claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures))))

    assert [found(.1, -.1, .1), found(.1, -.1, -.1), found(0, -.1, .1)] == [
        'holds; 1 part not tested here', 'does not hold; 1 part not tested here',
        'not tested here']


def test_the_critical_batch_size():
    """By hand: E = E_min (1 + B / 512), with B = 32 as the smallest batch, so at 576."""
    def figures(_, asked):
        batch = 32 * int(asked['workers'])
        needed = 10000 * (1 + batch / 512)
        return {'curve': f'{needed / 2}:1:0.545 {needed}:2:0.555 {4 * needed}:3:0.7'}

    seen = judging.Seen(papers.CriticalBatch.arms, Known({}, figures))
    sizes = papers.CriticalBatch.critical(seen, .55)
    # On the line between the logarithms at 512 and at 2,048 it is somewhat less.
    assert sizes == pytest.approx([561] * 3, abs=1)
    assert papers.CriticalBatch.updates(seen, .55)[4] == pytest.approx(
        [10000 * 1.25 * .75 / 128] * 3)
    _, few, many, *_ = papers.CriticalBatch.judge(seen)
    assert few.holds is True and many.holds is True


def test_a_step_size_of_another_arm_at_the_same_place():
    tuned = arms.teacher('AGN', arms.over('workers', [1, 4]))
    arm = arms.teacher('AGN', arms.over('workers', [1, 4]), like=(tuned, None), bandwidth='1Mbit')
    table = Known({}, lambda _, asked: {'excess': abs(math.log(
        float(asked['learning_rate']) * int(asked['workers']) / .8))})
    assert [arm.chosen(table, place)[0] for place in (1, 4)] == [
        {'learning_rate': '0.8'}, {'learning_rate': '0.2'}]


def test_compression_is_about_a_bias():
    """It does not hold if feedback gains as much where there is no bias."""
    def found(gain_of_int8):
        def figures(_, asked):
            gains = .1 if asked['compression'] != 'int8' else gain_of_int8
            bare = gains * ('error_feedback' in asked)
            faster = asked['compression'] != 'none' and asked['bandwidth'] == '10Mbit'
            return {'excess': .5 + bare + abs(math.log(float(asked['learning_rate']) / .4)),
                    'curve': '100:0.5:0.6' if faster else '100:2:0.6'}
        claim = papers.Compression
        return claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures))))

    assert [found(0), found(.1)] == ['holds; 1 part not tested here',
                                     'does not hold; 1 part not tested here']


@pytest.mark.parametrize('slowed, expected', [
    (10, 'holds'), (1, 'does not hold; 1 part within the noise')])
def test_gossip_gains_where_one_is_slow(slowed, expected):
    """Not if it is as much faster where all are equal."""
    def figures(scheme, asked):
        seconds = 10. if scheme == 'Ring-AllReduce' else 10 / 3
        seconds *= slowed if scheme == 'Ring-AllReduce' and '20ms' in asked['step'] else 1
        off = abs(math.log(float(asked['learning_rate']) / .8))
        return {'excess': .5, 'curve': f'100:{seconds * (1 + off)}:0.6'}

    claim = papers.Gossip
    assert claims.verdict_of(claim.judge(judging.Seen(claim.arms, Known({}, figures)))) == (
        f'{expected}; 1 part not tested here')


def test_the_warm_up_is_of_each_number_of_workers():
    arm = papers.Scaling.arms['scaled, warm-up']
    table = Known({}, lambda _, asked: {'excess': abs(math.log(float(asked['learning_rate'])/.2))})
    assert arm.chosen(table, 16)[0] == {'learning_rate': '0.2'}
    asked = arm.asked(16, 1, arm.chosen(table, 16)[0])
    assert (asked['warmup_steps'], asked['scale_learning_rate']) == ('44', 'true')
    assert papers_synchronous.Scaling.arms['not scaled'].asked(4, 1, {})['workers'] == '4'


def test_effects():
    """Worked by hand: variances 0.01 and 0.04, so a deviation of 0.158."""
    effect = effects.gain([.9, 1., 1.1], [1.8, 2., 2.2])
    assert effect.mean == pytest.approx(1)
    assert effect.noise == pytest.approx(2.776 * .025 ** .5 * (2 / 3) ** .5)
    assert effect.is_sure and not effect.is_at_least(-0.7) and effect.is_at_least(-0.6)
    assert str(effect) == '1.000 ± 0.358'
    assert not effects.gain([.9, 1., 1.1], [1.1, 1.2, 1.3]).is_sure
    assert effect.is_larger(effects.gain([1., 1.1, 1.2], [1., 1.1, 1.2]))
    assert not effect.is_larger(effects.gain([0., .1, .2], [1., 1.2, 1.4]))
    assert [effect.larger(effects.Effect(mean, .1, False)) for mean in (.1, .9, 2)] == [
        True, effects.OPEN, False]
    assert [effects.every(answers) for answers in (
        [True, True], [True, effects.OPEN], [False, effects.OPEN])] == [True, effects.OPEN, False]


@pytest.mark.parametrize('mean, noise, is_ratio, better, as_good', [
    (.03, .02, False, True, True),
    (-.03, .02, False, False, effects.OPEN),
    (-.03, .005, False, False, False),
    (.001, .01, False, False, True),  # less than what counts as equally good
    (.01, .04, False, effects.OPEN, effects.OPEN),
    (.001, .01, True, effects.OPEN, True),
    (math.inf, 0, False, True, True),
    (-math.inf, 0, False, False, False),
    (math.nan, math.inf, False, False, False)])
def test_the_noise_leaves_questions_open(mean, noise, is_ratio, better, as_good):
    effect = effects.Effect(mean, noise, is_ratio)
    assert (effect.better(), effect.as_good()) == (better, as_good)


def test_effects_of_times_are_ratios():
    effect = effects.gain([1., 1., 1.], [2., 2., 2.], is_ratio=True)
    assert str(effect) == '2 times (2 to 2)'


@pytest.mark.parametrize('ours, others, said, sure', [
    ([1., 1., 1.], [math.inf] * 3, 'only the first with all seeds', True),
    ([math.inf] * 3, [1., 1., 1.], 'only the second with all seeds', False),
    ([1., 1., 1.], [1., math.inf, 1.], 'not with all seeds', False),
    ([math.inf] * 3, [math.inf] * 3, 'not with all seeds', False)])
def test_runs_that_failed(ours, others, said, sure):
    effect = effects.gain(ours, others)
    assert (str(effect), effect.is_sure, effect.is_at_least(9)) == (said, sure, sure)


def test_what_it_takes_to_come_to_an_accuracy():
    """On a straight line between two tests; at the first test if that has it."""
    row = row_with()
    assert arms.value(row, ('seconds', .52)) == pytest.approx(1.5)
    assert arms.value(row, ('examples', .595)) == pytest.approx(48000)
    assert arms.value(row, ('seconds', .4)) == 1
    assert arms.value(row, ('seconds', .7)) == math.inf
    assert arms.value(dict(row, curve='32:1:nan 64:2:nan'), ('seconds', .5)) == math.inf


@pytest.mark.parametrize('row', [
    {'diverged': '1'}, {'excess_loss': 'nan'}, {'excess_loss': ''}, {'excess_loss': '1e9'}])
def test_a_run_that_diverged_is_worse_than_any(row):
    assert arms.value(dict(row_with(), **row), 'excess_loss') == math.inf


@pytest.mark.parametrize('best, start', [(0, 0), (5, 0), (-4, 0), (14, 10)])
def test_the_search_goes_on_until_both_neighbours_are_worse(best, start):
    looked = []

    def worth(place):
        looked.append(place)
        return abs(place - best), place

    assert arms.climb(worth, start) == (best, [])
    assert len(looked) == len(set(looked))
    assert set(looked) >= {best - 1, best} and max(looked) <= arms.FARTHEST


def test_the_search_says_what_it_needs():
    assert arms.climb(lambda place: None, 3) == (None, [3, 2, 4])
    assert arms.climb({0: (1.,), 1: (2.,), -1: (0.,)}.get, 0) == (None, [-2])
    # Where all of it diverges it goes on to smaller steps.
    assert arms.climb({0: (9, 0), 1: (9, 1), -1: (9, -1)}.get, 0) == (None, [-2])


def test_verdicts():
    part, control, regime = judging.part, judging.control, judging.regime
    for parts, expected in (
            ([part('', True), control('', True)], 'holds'),
            ([part('', True), part('', False)], 'holds in part'),
            ([part('', False), control('', True)], 'does not hold'),
            ([part('', True), control('', False)], 'does not hold'),
            ([part('', True), regime('', False)], 'not tested here'),
            ([judging.untested('')], 'not tested here'),
            ([part('', True), part('', effects.OPEN), control('', True)], 'holds'),
            ([part('', effects.OPEN), part('', False)], 'does not hold'),
            ([part('', effects.OPEN), judging.untested('')], 'within the noise')):
        assert judging.verdict(parts) == expected
    assert claims.verdict_of([part('', True), judging.untested('')]) == (
        'holds; 1 part not tested here')
    assert claims.verdict_of([part('', True), part('', effects.OPEN), part('', effects.OPEN)]) == (
        'holds; 2 parts within the noise')
    assert claims.verdict_of(None) == 'not simulated yet'


class Pretended:
    """A scheme that is not simulated: the best step size is 0.4."""

    simulated, started = 0, []

    def __init__(self, name, model):
        self.name = name
        Pretended.started.append((name, model))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def simulate(self, asked):
        Pretended.simulated += 1
        return row_with(abs(math.log(float(asked['learning_rate']) / .4)), int(asked['seed']))


class Small(judging.Claim):
    name = 'small'
    says = 'Two workers are better.'
    paper = 'Nobody'
    here = 'nothing'
    folders = []
    arms = {'it': arms.teacher('AGN', arms.over('workers', [1, 2]), local_steps=1)}

    @staticmethod
    def judge(seen):
        effect = seen.gain(('it', 2), ('it', 1))
        return [judging.part(f'at {seen.rate("it", 1)}: {effect}', effect.is_sure)]


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(papers, 'CLAIMS', [Small])
    monkeypatch.setattr(claims, 'Process', Pretended)
    monkeypatch.setattr(Pretended, 'simulated', 0)
    monkeypatch.setattr(Pretended, 'started', [])


def test_it_goes_on_from_where_it_was(tmp_path, pretended, capsys):
    before = claims.README.read_bytes(), claims.PAGE.read_bytes()
    csv = tmp_path / 'claims.csv'
    # At each of two places 0.05 to 0.8 around 0.1 and 0.4, and three seeds with the best one.
    for expected in 16, 3, 0:
        claims.main(['--claims', f'--results_dir={tmp_path}'])
        assert capsys.readouterr().out == 'small: does not hold\n'
        assert (tmp_path / 'claim-small.png').stat().st_size > 2000
        assert Pretended.simulated == expected
        Pretended.simulated = 0
        lines = csv.read_text(encoding='utf-8').splitlines(keepends=True)
        assert len(lines) == 17
        if expected == 16:
            csv.write_text(''.join(lines[:14]), encoding='utf-8')
    assert (claims.README.read_bytes(), claims.PAGE.read_bytes()) == before, (
        'only the results of the folder are told there')
    seen = judging.Seen(Small.arms, arms.table_of(csv))
    assert Small.judge(seen)[0].says == 'at 0.4: 0.000 ± 0.002'


def test_processes_stay_for_what_comes_next(tmp_path, pretended):
    """One at a time needs one process; no more start than work at a time."""
    for jobs in 1, 4:
        claims.simulate([Small], arms.table_of(tmp_path / f'{jobs}.csv'), jobs)
        assert 1 <= len(Pretended.started) <= jobs
        assert set(Pretended.started) == {('AGN', 'teacher')}
        Pretended.started.clear()


@pytest.mark.parametrize('arguments, complaint', [
    (['--claims=delay,bounds'], 'there is no bounds; there are staleness, .*scaling'),
    (['--claims', '--draw', '--results_dir=none'], 'nothing to draw')])
def test_bad_input(arguments, complaint):
    run = subprocess.run(['bash', str(SIMULATION / 'run.sh'), *arguments], stderr=subprocess.PIPE,
                         env={'PYTHON': sys.executable, 'PATH': '/usr/bin:/bin'}, timeout=60,
                         universal_newlines=True, check=False)
    assert run.returncode == 1 and len(run.stderr.splitlines()) == 1, run.stderr
    assert re.search(complaint, run.stderr)


def test_a_number_of_jobs_that_is_none(capsys):
    with pytest.raises(SystemExit):
        claims.main(['--claims', '--jobs=0'])
    assert capsys.readouterr().err.endswith('argument --jobs: 0 is no number from 1 on\n')


@pytest.mark.thorough
def test_a_row_is_simulated_again(table):
    """Times are the same on any machine; what is learned, nearly."""
    row = next(row for row in table.rows.values() if row['scheme'] == 'AGN')
    asked = {name: row[name] for name in arms.COLUMNS if row[name]}
    with claims.Process('AGN', 'teacher') as scheme:
        again = scheme.simulate(asked)
    for figure in 'steps', 'seconds', 'staleness', 'staleness_max':
        assert float(again[figure]) == float(row[figure]), figure
    assert abs(again['excess_loss'] - float(row['excess_loss'])) < 0.02
