"""--timeline: what each task did in a step, sorted, on one clock, drawn and written for viewers."""

import ast
import collections
import json
import re
import sys

from absl import flags
from absl.testing import flagsaver
import pytest

from tfdist.training import clock_offsets, lanes, timeline, timeline_parts, traffic
from tfdist.training.lanes import Event
from tfdist.training.timeline_parts import Part, Run
from tfdist.start.quiet import tf

from conftest import load_program
from processes import examples, ROOT

DID = re.compile(r'timeline: (?P<task>[a-z ]+?(?: \d+)?): a run of the train op takes [\d.]+ ms; '
                 r'\d+ traced ones, [\d.]+ ms from the first operation to the last: '
                 r'(?P<what>.*), between these [\d.]+')
DRAWN = re.compile(r'timeline: drawn in line.png; line.json is its trace, for https://\S+')
LEFT = re.compile(r'timeline: what worker \d did is in line.png.worker-\d.part.json; the worker '
                  r'that ends last draws the picture')
PARAMETERS = 4 * 9610  # bytes, of the model of the folders
SYNCHRONOUS = {'Synchronous-SGD', 'Synchronous-SGD-different-learning-rates', 'SAGN', 'Local-SGD',
               'DiLoCo'}


def event(kind, begin, end, task='worker 0', name='x', sent=0, sender='', clock=None):
    return Event(task, kind, name, begin, end, clock or task, sent, sender)


# What is what.

@pytest.mark.parametrize('op, name, kind', [
    ('MatMul', 'layer/MatMul', 'computes'), ('_FusedMatMul', 'Relu', 'computes'),
    ('ReadVariableOp', 'Read', 'reads'), ('IteratorGetNext', 'Next', 'reads'),
    ('ResourceGather', 'rows', 'reads'), ('LookupTableFindV2', 'busy', 'reads'),
    ('ResourceApplyMomentum', 'update', 'updates'), ('AssignAddVariableOp', 'add', 'updates'),
    ('ResourceSparseApplyAdagrad', 'update', 'updates'), ('ResourceScatterSub', 's', 'updates'),
    ('AccumulatorApplyGradient', 'push', 'updates'), ('CountUpTo', 'step', 'updates'),
    ('SparseAccumulatorApplyGradient', 'push', 'updates'),
    ('QueueDequeueManyV2', 'tokens', 'waits'), ('AccumulatorTakeGradient', 'take', 'waits'),
    ('ResourceAccumulatorTakeGradient', 'take', 'waits'), ('QueueEnqueueV2', 'hop', 'waits'),
    ('CollectiveReduce', 'sum', 'transfers'), ('EagerPyFunc', 'PyFunc', 'computes'),
    ('Const', 'x/shape', None), ('VarHandleOp', 'x', None), ('FIFOQueueV2', 'tokens', None),
    ('MutableHashTableV2', 'busy', None), ('ConditionalAccumulator', 'sum', None), ('', 'x', None),
])
def test_the_kinds_of_operations(op, name, kind):
    assert lanes._kind_of(traffic.Work('', name, 0, 1, op)) == kind


def test_the_shares_of_a_run():
    """A moment counts for the first kind under way; what nothing fills is between."""
    found = lanes.shares([event('waits', 0, 10), event('computes', 2, 4), event('transfers', 3, 6),
                          event('reads', 12, 13), event('updates', 12.5, 15)])
    assert found == {'waits': 2 + 4, 'computes': 2, 'transfers': 2, 'reads': 1, 'updates': 2,
                     'between': 2}
    assert lanes.shares([])['between'] == 0


def test_a_step_of_a_worker_and_its_ps(toy):
    worker, = toy('HogWild', ms=(0,), start=(8., [1., 2., 3.]), use_locking=False)
    worker.step()
    trace = traffic.whole_trace(worker.session, worker.scheme.train_op)
    events = lanes.of(trace, 'worker 0', (5., 6.))
    where = collections.defaultdict(set)
    for each in events:
        where[each.kind].add(each.task)
    assert where == {'computes': {'worker 0', 'ps 0'}, 'reads': {'ps 0'}, 'updates': {'ps 0'},
                     'transfers': {'worker 0', 'ps 0'}, 'waits': {'worker 0'}}
    assert events[0] == Event('worker 0', 'waits', 'until it may begin', 5, 6, 'worker 0', 0, '')
    sent = collections.Counter()
    for each in events:
        sent[each.sender, each.task] += each.bytes
    assert sent['ps 0', 'worker 0'] >= 4 * (1 + 3)
    assert sent['worker 0', 'ps 0'] == 4 * (1 + 3)
    updated = {each.name for each in events if each.kind == 'updates'}
    assert len(updated) >= 3  # two variables and the step
    assert [each.begin for each in events] == sorted(each.begin for each in events)


# The clocks of several hosts.

def there_and_back(ahead):
    """Returns runs in which the clock of the ps is so many milliseconds ahead."""
    return [[event('reads', 1 + ahead + at, 2 + ahead + at, 'ps 0', 'center'),
             event('transfers', 2.1 + at, 3 + at, 'worker 0', 'center', 8, 'ps 0'),
             event('computes', 3 + at, 5 + at, 'worker 0', 'gradient'),
             event('transfers', 5.1 + ahead + at, 7 + ahead + at, 'ps 0', 'gradient', 8,
                   'worker 0')] for at in (0, 10, 20)]


def test_what_transfers_say_of_clocks():
    """The center arrives 1 ms after it was read, the gradient 2 ms after it was computed."""
    assert clock_offsets.bounds(there_and_back(0)) == {
        ('ps 0', 'worker 0'): -1, ('worker 0', 'ps 0'): -2}
    assert clock_offsets.find(there_and_back(0), 'worker 0') == {'worker 0': 0, 'ps 0': 0}
    assert clock_offsets.find(there_and_back(0.9), 'worker 0')['ps 0'] == 0  # it may be so


@pytest.mark.parametrize('ahead', [-1000, -5, 5, 1000])
def test_clocks_that_differ(ahead):
    """They are at least 1 ms less ahead and at most 2 ms more: the middle is a half more."""
    assert clock_offsets.find(there_and_back(ahead), 'worker 0') == {
        'worker 0': 0, 'ps 0': pytest.approx(ahead + 0.5)}
    assert clock_offsets.find(there_and_back(ahead), 'ps 0')['worker 0'] == pytest.approx(
        -ahead - 0.5)


def test_only_one_way_is_known():
    runs = [[each for each in run if each.name == 'center'] for run in there_and_back(5)]
    assert clock_offsets.find(runs, 'worker 0')['ps 0'] == 4


# The parts of workers, and the picture.

def a_part(number, of=2, at=0., whole=(True,) * 3, untraced=4.):
    """Returns the part of a worker whose runs take 3 ms, one each 10 ms."""
    task = f'worker {number}'
    runs = []
    for i, is_whole in enumerate(whole):
        begin = at + 10 * i
        runs.append(Run(begin - 1, begin + 4, is_whole, [
            event('reads', begin, begin + 1, 'ps 0', 'center'),
            event('transfers', begin + .5, begin + 2, task, 'center', 400, 'ps 0'),
            event('transfers', begin + 1, begin + 1.5, task, 'step', 8, 'ps 0'),
            event('computes', begin + 2, begin + 3, task, 'loss')]))
    return Part(task, number, of, untraced, runs)


def trace_of(path):
    """Returns the events of a trace, lists by the names of task and row; checks how it is made."""
    with open(str(path), encoding='utf-8') as file:
        events = json.load(file)['traceEvents']
    names = {one['pid']: one['args']['name'] for one in events if one['name'] == 'process_name'}
    rows = {(one['pid'], one['tid']): one['args']['name'] for one in events
            if one['name'] == 'thread_name'}
    found, ends = collections.defaultdict(list), {}
    for one in (one for one in events if one['ph'] == 'X'):
        assert one['ts'] >= ends.get(one['tid'], one['ts']), 'what overlaps is in one row'
        ends[one['tid']] = one['ts'] + one['dur'] - 1e-3
        found[names[one['pid']], rows[one['pid'], one['tid']]].append(one)
    return found


def test_the_last_worker_draws(tmp_path, capsys):
    picture = tmp_path / 'line.png'
    timeline_parts.add(str(picture), a_part(1, at=1), 1)
    assert not picture.exists()
    assert capsys.readouterr().out == (
        f'timeline: what worker 1 did is in {picture}.worker-1.part.json; the worker that ends '
        'last draws the picture\n')
    timeline_parts.add(str(picture), a_part(0), 1)
    assert picture.read_bytes()[1:4] == b'PNG'
    assert {path.name for path in tmp_path.iterdir()} == {'line.png', 'line.json'}
    assert capsys.readouterr().out.splitlines() == [
        *(f'timeline: worker {i}: a run of the train op takes 4.0 ms; 3 traced ones, 3.0 ms from '
          'the first operation to the last: reads 1.00, computes 1.00, receives 1.00, between '
          'these 0.00' for i in range(2)),
        f'timeline: drawn in {picture}; {tmp_path / "line.json"} is its trace, for '
        'https://ui.perfetto.dev']
    rows = trace_of(tmp_path / 'line.json')
    assert {key: len(events) for key, events in rows.items()} == {
        ('ps 0', 'reads'): 6, ('worker 0', 'computes'): 3, ('worker 0', 'receives'): 6,
        ('worker 1', 'computes'): 3, ('worker 1', 'receives'): 6}
    assert [(one['name'], one['args'], one['dur']) for one in rows['worker 1', 'receives'][:1]] == [
        ('center', {'in a run of': 'worker 1', 'bytes': 400, 'from': 'ps 0'}, 1500)]
    gap = rows['worker 1', 'computes'][0]['ts'] - rows['worker 0', 'computes'][0]['ts']
    assert gap == pytest.approx(1000)


def test_what_is_shown():
    """A typical run of the first worker that overlaps with those of others, and these."""
    first = a_part(0)._replace(runs=[Run(0, 9, True, [event('computes', *span)]) for span in (
        (0, 1), (10, 13), (20, 23), (30, 33), (40, 48))])
    other = a_part(1)._replace(runs=[Run(0, 9, True, [event('computes', 31, 36)])])
    assert timeline_parts.shown([first, other], 1) == (30, 36)
    assert timeline_parts.shown([first], 2) in [(10, 23), (20, 33)]
    assert timeline_parts.shown([first], 99) == (0, 48)
    late = a_part(1)._replace(runs=[Run(0, 9, True, [event('computes', 32, 99)])])
    assert timeline_parts.shown([first, late], 1) == (30, 36)  # no more than as long again


def test_a_run_that_takes_longest_or_shortest_does_not_count():
    part = a_part(0)._replace(runs=[Run(0, 99, True, [event('computes', 0, length)])
                                    for length in (90, 3, 4, 1, 5)])
    assert timeline_parts.in_words(part) == (
        'a run of the train op takes 4.0 ms; 5 traced ones, 4.0 ms from the first operation to the '
        'last: computes 4.00, between these 0.00')


def test_gaps_and_other_runs_are_left_out(tmp_path, capsys):
    """A trace that is not whole; a worker whose steps were traced at another time, or never."""
    parts = [a_part(0, of=3, whole=(False, True, False)), a_part(1, at=60_000), a_part(2, whole=())]
    timeline_parts.merge(str(tmp_path / 'line.png'), parts, 1)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        'timeline: worker 2 made no steps that could be traced',
        'timeline: worker 1 is left out: its steps were traced 60 s after those of worker 0']
    assert ' 1 traced ones, ' in said[2] and len(said) == 4
    assert len(trace_of(tmp_path / 'line.json')['worker 0', 'computes']) == 1


def test_clocks_are_set_to_one(tmp_path, capsys):
    runs = [Run(run[0].begin, run[-1].end, True, run) for run in there_and_back(50)]
    timeline_parts.merge(str(tmp_path / 'line.png'), [Part('worker 0', 0, 1, None, runs)], 1)
    assert capsys.readouterr().out.startswith(
        'timeline: the clock of ps 0 differs from that of worker 0 by about 50.5 ms, which is taken'
        ' off\ntimeline: worker 0: 3 traced ones, 6.0 ms from the first operation')
    rows = trace_of(tmp_path / 'line.json')
    read, received = rows['ps 0', 'reads'][0], rows['worker 0', 'receives'][0]
    assert read['ts'] + read['dur'] == pytest.approx(received['ts'] - 600)


def test_nothing_to_draw(tmp_path, capsys):
    timeline_parts.add(str(tmp_path / 'line.png'), a_part(0, of=1, whole=()), 1)
    assert 'nothing was traced, so there is no picture' in capsys.readouterr().out
    (tmp_path / 'line.png.worker-0.part.json').write_text('[]', encoding='utf-8')
    timeline_parts.add(str(tmp_path / 'line.png'), a_part(1), 1)
    assert 'line.png.worker-0.part.json is not the part of a timeline' in capsys.readouterr().out


def test_parts_are_merged_by_hand(programs, tmp_path):
    for i in range(2):
        path = tmp_path / f'line.png.worker-{i}.part.json'
        path.write_text(json.dumps(a_part(i, of=3)), encoding='utf-8')
    run = programs.start([sys.executable, '-m', 'tfdist.training.timeline_parts',
                          '--timeline=line.png'], cwd=tmp_path, env={'PYTHONPATH': str(ROOT)})
    run.ends_well()
    assert len(run.matches(DID)) == 2 and run.matches(DRAWN)
    assert (tmp_path / 'line.png').read_bytes()[1:4] == b'PNG'


@pytest.mark.parametrize('name, complaint', [
    (None, 'Say of which picture the parts are to be merged: --timeline=FILE.png.'),
    ('none.png', 'none.png: there are no parts of it, such as '),
    ('bad.png', 'bad.png is not drawn: .*bad.png.worker-0.part.json is not the part of a')])
def test_parts_that_are_not_there(tmp_path, name, complaint):
    flags.FLAGS([''])
    (tmp_path / 'bad.png.worker-0.part.json').write_text('{"a": 1}', encoding='utf-8')
    with flagsaver.flagsaver(timeline=name and str(tmp_path / name)):
        with pytest.raises(SystemExit, match=complaint):
            timeline_parts.main([])


# When steps are traced.

@pytest.fixture
def asked(tmp_path):
    """--timeline in a directory of its own, and no `Timeline` of this process yet."""
    load_program('HogWild')  # has --train_steps
    flags.FLAGS([''])
    with flagsaver.flagsaver(timeline=str(tmp_path / 'line.png'), timeline_after=4):
        yield tmp_path
    for made in timeline._MADE:
        made.forget()
    timeline._MADE[:] = []


def test_events_lie_within_their_runs(toy, asked):
    """After four runs, ten are traced, and no more."""
    worker, = toy('HogWild', ms=(0,), use_locking=False)
    with worker.graph.as_default():
        line = timeline.asked_for(0, 1, worker.global_step.device)
    traced = []
    run = worker.session.make_callable(worker.scheme.train_op)
    step = line.on(worker.session, worker.scheme.train_op,
                   lambda: traced.append(line.has_begun) or run())
    results = [step()['global_step'] for _ in range(20)]
    assert results == list(range(results[0], results[0] + 20))
    assert traced == [False] * 4 + [True] * (20 - 4 - 11)
    line._of = 2  # so that it is not the last one
    line._write()
    part = timeline_parts.read(str(asked / 'line.png.worker-0.part.json'))
    assert part[:3] == ('worker 0', 0, 2) and 0 < part.untraced < 1000 and len(part.runs) == 10
    for run in part.runs:
        assert run.events and any(each.kind == 'updates' for each in run.events)
        assert run.began <= min(each.begin for each in run.events)
        assert max(each.end for each in run.events) <= run.ended


def test_workers_trace_at_the_same_time(cluster, asked):
    """None before all have made their first runs, but for the second half of the steps."""
    graph = tf.Graph()
    with graph.as_default(), tf.device('/job:ps/task:0'):
        loss, count = tf.constant(1.), tf.constant(7)
        lines = [timeline.Timeline(i, 2, '/job:ps/task:0') for i in range(2)]
    with tf.Session(cluster.servers['worker', 0].target, graph=graph) as session:
        step = iter(range(10**6))

        def run():
            return {'loss': 1., 'global_step': next(step)}

        first, second = (line.on(session, {'loss': loss, 'global_step': count}, run)
                         for line in lines)
        for _ in range(30):
            first()
        assert not lines[0].has_begun
        for _ in range(4):
            second()
        assert not lines[1].has_begun
        second()
        first()
        assert lines[0].has_begun and lines[1].has_begun
    for line in lines:
        line.forget()


def test_waits_before_a_run_are_noted(toy, asked):
    """But for the base class's, which is no wait, however long a busy machine takes for it."""
    worker, = toy('HogWild', ms=(0,), use_locking=False)
    with worker.graph.as_default():
        line = timeline.asked_for(0, 1, worker.global_step.device)
    assert line.noting(worker.scheme.wait) == worker.scheme.wait
    waits = []
    line.noting(lambda: waits.append(1))()
    assert waits == [1] and 0 < line._waited[0] <= line._waited[1]


def test_half_of_the_steps_is_late_enough(asked):
    """A worker that never comes is waited for no longer; and a short run is traced, too."""
    with flagsaver.flagsaver(train_steps=100), tf.Graph().as_default():
        line = timeline.asked_for(0, 2, '')
        line._first_step, line._runs = 20, 1
        for line._step, late in (59, False), (60, True):
            assert line._is_time(None) == late


def test_one_trainer_of_a_process_is_traced(asked):
    with tf.Graph().as_default():
        first = timeline.asked_for(None, 1, '')
        assert first and timeline.asked_for(None, 1, '') is None
    with tf.Graph().as_default():  # all begins anew, and nothing was traced before
        again = timeline.asked_for(None, 1, '')
        assert again
        again._firsts['loss'] = tf.RunMetadata()
    with tf.Graph().as_default():
        assert timeline.asked_for(None, 1, '') is None


def test_it_costs_nothing_if_it_is_not_asked_for():
    """No operation, no call, no import of matplotlib: not even of what draws, at the top."""
    flags.FLAGS([''])
    with flagsaver.flagsaver(timeline=None), tf.Graph().as_default() as graph:
        assert timeline.asked_for(0, 2, '/job:ps/task:0') is None
        assert not graph.get_operations()
    for path in ROOT.glob('tfdist/*/*.py'):
        top = [node for node in ast.parse(path.read_text(encoding='utf-8')).body
               if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert 'matplotlib' not in ''.join(map(ast.dump, top)), path


# Whole runs.

def test_a_run_of_two_workers(programs):
    """Both in one picture; the parameters travel to the worker and the gradients back."""
    run = programs.run_sh('HogWild', '--train_steps=1200', '--timeline=line.png',
                          '--timeline_after=20')
    run.ends_well()
    assert sorted(match['task'] for match in run.matches(DID)) == ['worker 0', 'worker 1']
    assert len(run.matches(DRAWN)) == 1 and len(run.matches(LEFT)) == 1
    assert {path.name for path in run.cwd.glob('line.*')} == {'line.png', 'line.json'}
    assert (run.cwd / 'line.png').read_bytes()[1:4] == b'PNG'
    rows = trace_of(run.cwd / 'line.json')
    for i in range(2):
        sent = collections.Counter(
            (one['args']['from'], one['args']['bytes']) for task in (f'worker {i}', 'ps 0')
            for one in rows[task, 'receives'] if one['args']['in a run of'] == f'worker {i}'
            and one['args']['bytes'] > 100)
        assert set(sent) == {('ps 0', PARAMETERS), (f'worker {i}', PARAMETERS)}
        assert sent['ps 0', PARAMETERS] == sent[f'worker {i}', PARAMETERS] > 1
        assert {name for task, name in rows if task == f'worker {i}'} == {
            'reads', 'computes', 'receives'}
    assert {name for task, name in rows if task == 'ps 0'} == {
        'reads', 'computes', 'receives', 'updates'}


@pytest.mark.thorough
@pytest.mark.parametrize('folder', [name for name in examples() if name != 'HogWild'])
def test_each_folder_has_it(programs, folder):
    # An exchange of AD-PSGD is in sessions of its own, which are not traced.
    its_flags = ['--algorithm=d-psgd'] if folder == 'Gossip' else []
    run = programs.run_sh(folder, '--timeline=line.png', *its_flags)
    run.ends_well()
    assert run.matches(DID) and run.matches(DRAWN), str(run)
    rows = trace_of(run.cwd / 'line.json')
    workers = {task for task, _ in rows if task.startswith('worker')}
    assert {name for _, name in rows} >= {'reads', 'computes', 'updates'}
    if folder in ('Non-Distributed-Setup', 'Multiple-GPUs-Single-Machine'):
        assert {task for task, _ in rows} == {lanes.ALONE}
    else:
        assert len(workers) >= 1 and {name for _, name in rows} >= {'receives'}
    if folder in SYNCHRONOUS:
        assert {(worker, 'waits') for worker in workers} <= set(rows)


@pytest.mark.thorough
@pytest.mark.parametrize('implementation', ['sockets', 'collective'])
def test_a_ring_of_another_kind(programs, implementation):
    """One operation sums up the gradients of all."""
    run = programs.run_sh('Ring-AllReduce', '--timeline=line.png',
                          f'--implementation={implementation}')
    run.ends_well()
    rows = trace_of(run.cwd / 'line.json')
    for i in range(2):
        assert PARAMETERS in {one['args']['bytes'] for one in rows[f'worker {i}', 'receives']}


@pytest.mark.parametrize('value, complaint', [
    ('a.json', r'^--timeline=a.json: the name of a picture ends in one of .png, .pdf, .svg\.$'),
    ('/proc/none/a.png', '^--timeline=/proc/none cannot be made or written to: ')])
def test_what_is_wrong_with_the_flag(programs, value, complaint):
    run = programs.task('train', f'--timeline={value}', folder='Non-Distributed-Setup')
    run.fails(complaint)
    assert not run.out, 'before training'
