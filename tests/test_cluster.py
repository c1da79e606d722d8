"""Membership: TF_CONFIG and the host flags say the same, and what is wrong with them is said."""

import json
import socket

from absl import flags
from absl.testing import flagsaver
import pytest

from tfdist.cluster import membership
from tfdist.start.ports import free_ports

FLAGS = flags.FLAGS
# Nothing ever listens on these; nobody has to, either.
PS, WORKERS = ['ps0:2221'], ['worker0:2222', 'worker1:2223']


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No cluster given in any way."""
    FLAGS.mark_as_parsed()
    monkeypatch.delenv('TF_CONFIG', raising=False)
    with flagsaver.flagsaver():
        yield


@pytest.fixture
def tf_config(monkeypatch):
    """A function that sets TF_CONFIG to its text, or to its argument in JSON."""
    def set_to(value):
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv('TF_CONFIG', text)
    return set_to


def config(task_type='worker', index=0, **jobs):
    """Returns the content of a TF_CONFIG; `jobs` replace those of a good one."""
    return {'cluster': dict({'ps': PS, 'worker': WORKERS}, **jobs),
            'task': {'type': task_type, 'index': index}}


def give_flags(ps='ps0:2221', worker='worker0:2222,worker1:2223', index=0):
    """Sets the host flags, as if these texts had been given on the command line."""
    for name, value in ('ps_hosts', ps), ('worker_hosts', worker), ('task_index', index):
        if value is not None:
            FLAGS[name].parse(value)


@pytest.mark.parametrize('task_type, index', [('ps', 0), ('worker', 0), ('worker', 1)])
def test_flags_and_tf_config_give_the_same(tf_config, task_type, index):
    give_flags(index=index)
    by_flags = membership.resolve(task_type)
    for flag in 'ps_hosts', 'worker_hosts', 'task_index':
        FLAGS[flag].value = None
    tf_config(config(task_type, index))
    by_config = membership.resolve(task_type)
    for resolver in by_flags, by_config:
        assert resolver.cluster_spec().as_dict() == {'ps': PS, 'worker': WORKERS}
        assert (resolver.task_type, resolver.task_id) == (task_type, index)
    assert type(by_flags) is type(by_config)


def test_an_empty_tf_config_is_none(tf_config):
    tf_config('')
    give_flags()
    assert membership.resolve('worker').task_id == 0


def tfjob(job, count):
    """Returns the addresses of a job's tasks as the training operator makes them."""
    return [f'digits-{job}-{i}.default.svc:2222' for i in range(count)]


# What engines put into TF_CONFIG: its content; which of its tasks this is; the addresses of the
# parameter servers and of all workers, in the order of worker 0, 1, ..., the chief first; which of
# ours it is.
DIALECTS = {
    'this collection': (
        {'cluster': {'ps': PS, 'worker': WORKERS}}, ('worker', 1), PS, WORKERS, ('worker', 1)),
    'an index as text': (
        {'cluster': {'ps': PS, 'worker': WORKERS}}, ('worker', '1'), PS, WORKERS, ('worker', 1)),
    'TFJob without a chief': (
        {'cluster': {'ps': tfjob('ps', 1), 'worker': tfjob('worker', 2)}, 'environment': 'cloud'},
        ('worker', 0), tfjob('ps', 1), tfjob('worker', 2), ('worker', 0)),
    'TFJob, its ps': (
        {'cluster': {'chief': tfjob('chief', 1), 'evaluator': tfjob('evaluator', 1),
                     'ps': tfjob('ps', 2), 'worker': tfjob('worker', 2)}, 'environment': 'cloud'},
        ('ps', 1), tfjob('ps', 2), tfjob('chief', 1) + tfjob('worker', 2), ('ps', 1)),
    'TFJob, its chief': (
        {'cluster': {'chief': tfjob('chief', 1), 'evaluator': tfjob('evaluator', 1),
                     'ps': tfjob('ps', 2), 'worker': tfjob('worker', 2)}, 'environment': 'cloud'},
        ('chief', 0), tfjob('ps', 2), tfjob('chief', 1) + tfjob('worker', 2), ('worker', 0)),
    'TFJob, worker 0 beside a chief': (
        {'cluster': {'chief': tfjob('chief', 1), 'evaluator': tfjob('evaluator', 1),
                     'ps': tfjob('ps', 2), 'worker': tfjob('worker', 2)}, 'environment': 'cloud'},
        ('worker', 0), tfjob('ps', 2), tfjob('chief', 1) + tfjob('worker', 2), ('worker', 1)),
    'TFJob with a master': (
        {'cluster': {'master': tfjob('master', 1), 'ps': tfjob('ps', 1),
                     'worker': tfjob('worker', 1)}, 'environment': 'cloud'},
        ('worker', 0), tfjob('ps', 1), tfjob('master', 1) + tfjob('worker', 1), ('worker', 1)),
    'TFJob with a chief and no worker': (
        {'cluster': {'chief': tfjob('chief', 1), 'ps': tfjob('ps', 1)}},
        ('chief', 0), tfjob('ps', 1), tfjob('chief', 1), ('worker', 0)),
    'Volcano': (
        {'cluster': {'ps': ['digits-ps-0.digits:2222'],
                     'worker': ['digits-worker-0.digits:2222', 'digits-worker-1.digits:2222']}},
        ('ps', 0), ['digits-ps-0.digits:2222'],
        ['digits-worker-0.digits:2222', 'digits-worker-1.digits:2222'], ('ps', 0)),
    'SageMaker, its first host': (
        {'cluster': {'master': ['algo-1:2222'], 'worker': ['algo-2:2222'],
                     'ps': ['algo-1:2223', 'algo-2:2223']}, 'environment': 'cloud'},
        ('master', 0), ['algo-1:2223', 'algo-2:2223'], ['algo-1:2222', 'algo-2:2222'],
        ('worker', 0)),
    'SageMaker, its second host': (
        {'cluster': {'master': ['algo-1:2222'], 'worker': ['algo-2:2222'],
                     'ps': ['algo-1:2223', 'algo-2:2223']}, 'environment': 'cloud'},
        ('worker', 0), ['algo-1:2223', 'algo-2:2223'], ['algo-1:2222', 'algo-2:2222'],
        ('worker', 1)),
    'Vertex AI': (
        {'cluster': {'chief': ['pool0-0:2222'], 'worker': ['pool1-0:2222', 'pool1-1:2222'],
                     'ps': ['pool2-0:2222']}, 'environment': 'cloud', 'job': '{}'},
        ('worker', 1), ['pool2-0:2222'], ['pool0-0:2222', 'pool1-0:2222', 'pool1-1:2222'],
        ('worker', 2)),
    'TonY': (
        {'cluster': {'ps': ['node3:34567'], 'worker': ['node1:45678', 'node2:41234']}},
        ('worker', 0), ['node3:34567'], ['node1:45678', 'node2:41234'], ('worker', 0)),
    'addresses by index': (
        {'cluster': {'ps': {'0': 'ps0:2221'},
                     'worker': {'10': 'w10:1', **{str(i): f'w{i}:1' for i in range(10)}}}},
        ('worker', 10), PS, [f'w{i}:1' for i in range(11)], ('worker', 10)),
}


@pytest.mark.parametrize('name', DIALECTS)
def test_dialects(tf_config, name):
    content, (job, index), ps, workers, mine = DIALECTS[name]
    tf_config(dict(content, task={'type': job, 'index': index}))
    resolver = membership.resolve(mine[0])
    assert resolver.cluster_spec().as_dict() == {'ps': ps, 'worker': workers}
    assert (resolver.task_type, resolver.task_id) == mine


@pytest.mark.parametrize('content', [content for content, _, _, _, _ in DIALECTS.values()],
                         ids=DIALECTS)
def test_each_trainer_has_an_index_of_its_own(tf_config, content):
    """And with it a shard: the chief and the engine's worker 0, too."""
    shards = []
    for job in content['cluster']:
        for index in range(len(content['cluster'][job])):
            if job in ('chief', 'master', 'worker'):
                tf_config(dict(content, task={'type': job, 'index': index}))
                resolver = membership.resolve('worker')
                shards.append((resolver.task_id, resolver.cluster_spec().num_tasks('worker')))
    assert sorted(shards) == [(i, len(shards)) for i in range(len(shards))]


@pytest.mark.parametrize('content, job, index, expected', [
    # TFJob with enableDynamicWorker tells a task of itself and, if it is a worker, of the ps.
    ({'ps': PS, 'worker': {'7': 'worker7:1'}}, 'worker', 7, {'ps': PS, 'worker': {7: 'worker7:1'}}),
    ({'ps': ['ps1:1'], 'worker': {}}, 'ps', 1, {'ps': {1: 'ps1:1'}}),
    ({'ps': PS, 'worker': WORKERS}, 'worker', 1, {'ps': PS, 'worker': {1: WORKERS[1]}}),
    ({'ps': PS, 'worker': WORKERS}, 'ps', 0, {'ps': PS}),
])
def test_a_task_that_is_to_know_no_other_of_its_job(tf_config, content, job, index, expected):
    jobs = ('ps', 'worker') if job == 'worker' else ('ps',)
    tf_config({'cluster': content, 'task': {'type': job, 'index': index}})
    resolver = membership.resolve(job, jobs, alone=True)
    assert resolver.cluster_spec().as_dict() == expected
    assert (resolver.task_type, resolver.task_id) == (job, index)


@pytest.mark.parametrize('workers, index, complaint', [
    (WORKERS, 2, 'the index of this worker is 2, but there are 2'),
    ({'1': 'worker1:1'}, 0, 'the index of this worker is 0, but there are 1'),
    ([], 0, 'no list of hosts for the job worker'),
    (['worker7'], 7, '"worker7" is not of the form host:port'),
])
def test_a_task_alone_and_wrong(tf_config, workers, index, complaint):
    tf_config(config(index=index, worker=workers))
    with pytest.raises(SystemExit, match=f'^TF_CONFIG: .*{complaint}'):
        membership.resolve('worker', alone=True)


def test_a_task_alone_by_flags():
    give_flags(worker='worker7:1', index=7)
    resolver = membership.resolve('worker', alone=True)
    assert resolver.cluster_spec().as_dict() == {'ps': PS, 'worker': {7: 'worker7:1'}}


@pytest.mark.parametrize('job', ['chief', 'master'])
def test_a_master_is_a_chief_where_that_is_a_task_of_its_own(tf_config, job):
    tf_config(config(job, **{job: CHIEF}))
    resolver = membership.resolve('chief', ('chief', 'ps', 'worker'))
    assert resolver.cluster_spec().as_dict() == {'chief': CHIEF, 'ps': PS, 'worker': WORKERS}


@pytest.mark.parametrize('task_type, value, complaint', [
    ('worker', 'nonsense', 'cannot be read.*JSONDecodeError.*looks like'),
    ('worker', '[]', 'cannot be read.*TypeError'),
    ('worker', '{}', "cannot be read.*KeyError: 'cluster'"),
    ('worker', {'cluster': {}}, "cannot be read.*KeyError: 'task'"),
    ('worker', {'cluster': [1], 'task': {}}, 'cannot be read.*TypeError'),
    ('worker', {'cluster': {}, 'task': {'type': 'worker'}}, "cannot be read.*KeyError: 'index'"),
    ('worker', {'cluster': {}, 'task': {'index': 0}}, "cannot be read.*KeyError: 'type'"),
    ('worker', config(index='first'), 'cannot be read.*ValueError'),
    ('worker', config(index=None), 'cannot be read.*TypeError'),
    ('worker', config(task_type='ps'), r'this is a task of the job ps: start ps\.py'),
    ('ps', config(), r'this is a task of the job worker: start worker\.py'),
    ('worker', config('evaluator', evaluator=['host:1']), r'job evaluator: start evaluator\.py'),
    ('ps', config('chief', chief=['host:1']), r'a task of the job worker: start worker\.py'),
    ('ps', 'nonsense', '"task": {"type": "ps", "index": 0}'),
    ('worker', config(ps=[]), 'no list of hosts for the job ps'),
    ('worker', config(worker='worker0:2222'), 'no list of hosts for the job worker'),
    ('worker', config(worker={'1': 'worker1:2222'}, index=1),
     'some tasks of the job worker are missing: there are only 1'),
    ('worker', config(worker={'one': 'worker1:2222'}), 'cannot be read.*ValueError'),
    ('worker', config(observer=['host:1']), 'the jobs are ps and worker, not observer, ps'),
    ('worker', config(chief=['host:1'], master=['host:2']), 'ps and worker, not master, ps'),
    ('worker', config(chief=['host:1'], index=2), 'there is no worker 2'),
    ('worker', config(chief=['host:1'], index=-1), 'there is no worker -1'),
    ('worker', config('chief', chief=['host:1'], index=1), 'there is no chief 1'),
    ('worker', config('chief', 0, worker=[], ps=[]), 'there is no chief 0'),
    ('worker', config(chief='host:1'), 'cannot be read.*TypeError'),
    ('worker', config(chief=WORKERS[:1]), 'worker0:2222 appears twice'),
    ('worker', config(index=2), r'index of this worker is 2, but there are 2 \(counted from 0\)'),
    ('worker', config(index=-1), 'index of this worker is -1'),
    ('worker', config(ps=['ps0']), '"ps0" is not of the form host:port'),
    ('worker', config(ps=[2222]), '"2222" is not of the form host:port'),
    ('worker', config(ps=[':2222']), '":2222" is not of the form host:port'),
    ('worker', config(ps=['ps0:http']), '"ps0:http" is not of the form host:port'),
    ('worker', config(ps=['ps0:0']), '"ps0:0" is not of the form host:port'),
    ('worker', config(ps=['ps0:65536']), '"ps0:65536" is not of the form host:port'),
    ('worker', config(ps=WORKERS[1:]), 'worker1:2223 appears twice'),
])
def test_bad_tf_config(tf_config, task_type, value, complaint):
    tf_config(value)
    with pytest.raises(SystemExit, match='(?s)^TF_CONFIG.*' + complaint) as error:
        membership.resolve(task_type)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('given, complaint', [
    (dict(ps=None), 'no list of hosts for the job ps'),
    (dict(worker=None), 'no list of hosts for the job worker'),
    (dict(ps=None, worker=None), 'no list of hosts for the job ps'),
    (dict(index=None), 'index of this worker is None, but there are 2'),
    (dict(index=2), 'index of this worker is 2, but there are 2'),
    (dict(ps='ps0'), '"ps0" is not of the form host:port'),
    (dict(worker='worker0:2222,'), '"" is not of the form host:port'),
    (dict(worker='worker0:2222,worker0:2222'), 'worker0:2222 appears twice'),
])
def test_bad_flags(given, complaint):
    give_flags(**given)
    with pytest.raises(SystemExit,
                       match='^--ps_hosts, --worker_hosts, --task_index: .*' + complaint) as error:
        membership.resolve('worker')
    assert '\n' not in str(error.value)


CHIEF = ['chief0:2220']


@pytest.mark.parametrize('task_type', ['chief', 'ps', 'worker'])
def test_a_chief_that_is_a_task_of_its_own(tf_config, task_type):
    jobs = 'chief', 'ps', 'worker'
    give_flags()
    FLAGS['chief_hosts'].parse(CHIEF[0])
    by_flags = membership.resolve(task_type, jobs)
    for flag in 'chief_hosts', 'ps_hosts', 'worker_hosts', 'task_index':
        FLAGS[flag].value = None
    tf_config(config(task_type, chief=CHIEF))
    for resolver in by_flags, membership.resolve(task_type, jobs):
        assert resolver.cluster_spec().as_dict() == {'chief': CHIEF, 'ps': PS, 'worker': WORKERS}
        assert (resolver.task_type, resolver.task_id) == (task_type, 0)


@pytest.mark.parametrize('jobs, hosts, complaint', [
    (('ps', 'worker'), dict(observer=CHIEF), 'jobs are ps and worker, not observer, ps, worker'),
    (('chief', 'ps', 'worker'), {}, 'no list of hosts for the job chief'),
    (('chief', 'worker'), dict(chief=CHIEF), 'jobs are chief and worker, not chief, ps, worker'),
    (('chief', 'ps', 'worker'), dict(chief=PS), 'ps0:2221 appears twice'),
])
def test_jobs_that_a_folder_does_not_have_or_misses(tf_config, jobs, hosts, complaint):
    tf_config(config(**hosts))
    with pytest.raises(SystemExit, match=f'^TF_CONFIG: .*{complaint}'):
        membership.resolve('worker', jobs)


def test_a_chief_is_started_by_another_name(tf_config):
    tf_config(config('chief', chief=CHIEF))
    with pytest.raises(SystemExit, match=r'the job chief: start train\.py'):
        membership.resolve('worker', ('chief', 'ps', 'worker'))


def test_no_cluster():
    with pytest.raises(SystemExit, match='No cluster is given.*`bash run.sh`'):
        membership.resolve('worker')


@pytest.mark.parametrize('given', [{}, dict(ps=None, worker=None), dict(worker=None, index=None)])
def test_two_clusters(tf_config, given):
    tf_config(config())
    give_flags(**given)
    with pytest.raises(SystemExit, match='given twice.*Unset TF_CONFIG, or leave out the flags'):
        membership.resolve('worker')


def test_port_in_use():
    port, = free_ports(1)
    give_flags(ps=f'localhost:{port}')
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it is held for a server
        other.bind(('', port))
        other.listen(1)
        with pytest.raises(SystemExit, match=f'ps 0 cannot listen on port {port}: '
                                             'Address already in use. Is another run using it'):
            membership.resolve('ps')
        assert membership.resolve('worker').task_id == 0, "another task's port is not looked at"
    assert membership.resolve('ps').task_id == 0
