"""Clusters/kubernetes: the manifests are right, and what they start trains.

There is no Kubernetes here. Each pod is a host of its own (a network namespace), with the names and
the environment that Kubernetes and the training operator would give it.
"""

import copy
import json
import os
import pathlib
import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml

from measuring import hosts

from conftest import ROOT
from kubernetes_schema import KINDS
from processes import checkpoints, DID, EVALUATED, EXPORTED, PREPARED, TEST

FOLDER = ROOT / 'Clusters' / 'kubernetes'
JOBS = sorted(path.name for path in FOLDER.glob('*job-*.yaml'))
PORT = 2222


def load(name):
    """Returns the resources of a manifest, a list of dicts."""
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding='utf-8')))


def check(manifest):
    """Raises `jsonschema.ValidationError` for what a server would refuse, or drop."""
    schema = KINDS[manifest['kind']]
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(manifest)


def of_kind(resources, kind):
    return [resource for resource in resources if resource['kind'] == kind]


class Pod:
    """A pod that a manifest asks for.

    Attributes:
      name: string, by which the others know it.
      env: dict, what Kubernetes or the operator adds to the environment.
      spec: dict, as in the manifest.
      labels: dict.
    """

    def __init__(self, name, env, template):
        self.name, self.env = name, env
        self.spec, self.labels = template['spec'], template['metadata']['labels']


def pods(resources):
    """Returns the pods that a manifest's jobs make, a list of `Pod`."""
    made = []
    for job in of_kind(resources, 'TFJob'):
        name, replicas = job['metadata']['name'], job['spec']['tfReplicaSpecs']
        cluster = {kind.lower(): [f'{name}-{kind.lower()}-{i}.default.svc:{PORT}'
                                  for i in range(spec['replicas'])]
                   for kind, spec in replicas.items()}
        for kind, spec in replicas.items():
            for i, address in enumerate(cluster[kind.lower()]):
                config = {'cluster': cluster, 'task': {'type': kind.lower(), 'index': i},
                          'environment': 'cloud'}
                made.append(Pod(address.partition(':')[0], {'TF_CONFIG': json.dumps(config)},
                                spec['template']))
    for job in of_kind(resources, 'Job'):
        name, spec = job['metadata']['name'], job['spec']
        domain = spec['template']['spec']['subdomain']
        made += [Pod(f'{name}-{i}.{domain}', {'JOB_COMPLETION_INDEX': str(i)}, spec['template'])
                 for i in range(spec['completions'])]
    return made


@pytest.fixture(scope='module')
def path(bare_python):
    """The PATH of the containers: the library is not installed, so it has to be in the image."""
    return os.pathsep.join([os.path.dirname(bare_python), os.environ['PATH']])


@pytest.fixture(scope='module')
def image(tmp_path_factory):
    """The root directory of the image, without what pip puts there."""
    root = tmp_path_factory.mktemp('image')
    text = (FOLDER / 'Dockerfile').read_text(encoding='utf-8')
    for source, target in re.findall(r'^COPY (\S+) /(\S+)$', text, re.MULTILINE):
        if (ROOT / source).is_dir():  # its contents go there
            shutil.copytree(str(ROOT / source), str(root / target),
                            ignore=shutil.ignore_patterns('__pycache__', 'records*', 'runs'))
        else:
            assert target.endswith('/')
            (root / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(str(ROOT / source), str(root / target))
    return root


def inside(image, path):
    """Returns the path here of an absolute path, a string, in the image."""
    return image / path.lstrip('/')


def test_all_are_looked_at():
    examples = {name.partition('job-')[2] for name in JOBS}
    assert len(JOBS) == 2 * len(examples) == len(list(FOLDER.glob('*.yaml'))) - 1


@pytest.mark.parametrize('name', sorted(path.name for path in FOLDER.glob('*.yaml')))
def test_each_is_valid(name):
    for manifest in load(name):
        check(manifest)


def _set(*path, value):
    def change(manifest):
        *parents, last = path
        for key in parents:
            manifest = manifest[key]
        manifest[last] = value
    return change


def _rename(*path, to):
    def change(manifest):
        *parents, last = path
        for key in parents:
            manifest = manifest[key]
        manifest[to] = manifest.pop(last)
    return change


REPLICAS = 'spec', 'tfReplicaSpecs'
PS_POD = *REPLICAS, 'PS', 'template', 'spec'


@pytest.mark.parametrize('name, change', [
    ('tfjob-hogwild.yaml', _set('spec', 'cleanPodPolicy', value='None')),  # belongs to runPolicy
    ('tfjob-hogwild.yaml', _set('spec', 'successPolicy', value='AllWorker')),
    ('tfjob-hogwild.yaml', _set(*REPLICAS, 'PS', 'replicas', value='1')),
    ('tfjob-hogwild.yaml', _rename(*REPLICAS, 'PS', 'replicas', to='replica')),
    ('tfjob-hogwild.yaml', _rename(*PS_POD, 'containers', 0, 'workingDir', to='workdir')),
    # What the operator's own schema lets pass:
    ('tfjob-hogwild.yaml', _rename(*REPLICAS, 'Worker', to='Workers')),
    ('tfjob-hogwild.yaml', _set(*REPLICAS, 'PS', 'restartPolicy', value='OnError')),
    ('tfjob-hogwild.yaml', _set(*PS_POD, 'containers', 0, 'name', value='tensor-flow')),
    ('job-hogwild.yaml', _set('spec', 'completionMode', value='indexed')),
    ('job-hogwild.yaml', _rename('spec', 'template', 'spec', 'subdomain', to='subDomain')),
    ('job-hogwild.yaml', _set('spec', 'template', 'spec', 'restartPolicy', value='Always')),
])
def test_mistakes_are_found(name, change):
    manifest = copy.deepcopy(load(name)[0])
    check(manifest)
    change(manifest)
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


@pytest.mark.parametrize('name', JOBS)
def test_the_parts_fit_together(name, image, path):
    """Names and labels that one resource takes from another, and from the image."""
    resources = load(name)
    claim, = load('model-dir.yaml')
    policy, = of_kind(resources, 'NetworkPolicy')
    tag, = re.findall(r'docker build -t (\S+)', (FOLDER / 'Dockerfile').read_text('utf-8'))
    made = pods(resources)
    for pod in made:
        assert policy['spec']['podSelector']['matchLabels'].items() <= pod.labels.items()
        assert {volume['name']: volume['persistentVolumeClaim']['claimName']
                for volume in pod.spec['volumes']} == {'models': claim['metadata']['name']}
        for container in pod.spec['containers'] + pod.spec.get('initContainers', []):
            assert container['image'] == tag
            folder = inside(image, container['workingDir'])
            assert finds_the_library(folder, path) == image / 'examples'
            assert [mount['name'] for mount in container['volumeMounts']] == ['models']
            assert all(port['containerPort'] == PORT for port in container.get('ports', []))
    ingress, = policy['spec']['ingress']
    assert ingress['from'] == [{'podSelector': policy['spec']['podSelector']}]
    assert [port['port'] for port in ingress['ports']] == [PORT]
    assert policy['spec']['policyTypes'] == ['Ingress']
    for job in of_kind(resources, 'Job'):
        service, = of_kind(resources, 'Service')
        names = {job['metadata']['name'], service['metadata']['name'],
                 job['spec']['template']['spec']['subdomain']}
        assert len(names) == 1
        assert service['spec']['selector'].items() <= made[0].labels.items()
        assert service['spec']['clusterIP'] == 'None', 'headless'
        assert service['spec']['publishNotReadyAddresses']
        assert [port['port'] for port in service['spec']['ports']] == [PORT]
        assert job['spec']['completions'] == job['spec']['parallelism'] == len(made)


def who_is_in(resources, pod):
    """Returns whom a manifest's policies let connect to a pod of it, a set of (who, port).

    As the documentation of NetworkPolicy says: a pod that no policy of Ingress selects is open;
    what is empty or left out stands for all; a selector of pods is for those of its namespace.
    """
    others = {'a pod of the job': pod.labels, 'another pod': {'app': 'other'}, 'a bare pod': {},
              'a pod of another namespace': None, 'who is no pod': None}
    policies = [policy['spec'] for policy in of_kind(resources, 'NetworkPolicy')
                if 'Ingress' in policy['spec'].get('policyTypes', ['Ingress'])
                and selects(policy['spec']['podSelector'], pod.labels)]
    rules = [rule for policy in policies for rule in policy.get('ingress', [])]
    return {(who, port) for who, labels in others.items() for port in (PORT, PORT + 1)
            if not policies or any(
                (not rule.get('from') or any(selects(peer['podSelector'], labels)
                                             for peer in rule['from']))
                and (not rule.get('ports') or port in [one['port'] for one in rule['ports']])
                for rule in rules)}


def selects(selector, labels):
    """Returns whether a selector is for a pod with these labels; None: it is in no reach of it."""
    return labels is not None and selector.get('matchLabels', {}).items() <= labels.items()


@pytest.mark.parametrize('name', JOBS)
def test_the_policy_lets_in_the_pods_of_the_job_alone(name):
    resources = load(name)
    made = pods(resources)
    assert len(made) > 2
    for pod in made:
        assert who_is_in(resources, pod) == {('a pod of the job', PORT)}


POLICY_RULE = 'spec', 'ingress', 0


@pytest.mark.parametrize('change', [
    _set('spec', 'ingress', value=[]),  # nobody
    _set('spec', 'podSelector', 'matchLabels', value={'app': 'hog-wild'}),  # of no pod
    _set('spec', 'policyTypes', value=['Egress']),
    _set(*POLICY_RULE, 'from', value=[]),
    _set(*POLICY_RULE, 'from', 0, 'podSelector', value={}),
    _set(*POLICY_RULE, 'ports', value=[]),
])
def test_mistakes_of_a_policy_are_found(change):
    resources = copy.deepcopy(load('job-hogwild.yaml'))
    policy, = of_kind(resources, 'NetworkPolicy')
    change(policy)
    assert who_is_in(resources, pods(resources)[0]) != {('a pod of the job', PORT)}


def finds_the_library(folder, path):
    """Returns the path of the directory from which the programs in a folder import tfdist."""
    script = 'import find_library, tfdist; print(tfdist.__path__[0])'
    found = subprocess.run(['python', '-c', script],
                           cwd=str(folder), env={'PATH': path}, stdout=subprocess.PIPE, check=True,
                           universal_newlines=True, timeout=60)
    return pathlib.Path(found.stdout.strip()).parent


def files(image):
    """Returns all that is in the image, but for what Python compiles where it may."""
    return {path for path in image.rglob('*') if '__pycache__' not in path.parts}


class Pods:
    """Pods on hosts of their own, with the manifest's directories."""

    def __init__(self, programs, made, image, path):
        self._programs, self._image, self._path = programs, image, path
        self.made = {pod.name: pod for pod in made}
        self.hosts = hosts.Hosts(programs.directory, list(self.made))

    def start(self, name, *flags, kind='containers'):
        """Starts a pod's container; `flags` go to programs that train. Returns a `Program`."""
        pod = self.made[name]
        container, = pod.spec[kind]
        cwd = inside(self._image, container['workingDir'])
        args = container.get('args', [])
        command = container['command'] + args + (list(flags) if args else [])
        return self._programs.start(self.hosts.on(name, command, cwd), cwd,
                                    dict(pod.env, PATH=self._path))


@pytest.mark.usefixtures('needs_hosts')
@pytest.mark.parametrize('name', [
    JOBS[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in JOBS[1:])])
def test_the_pods_train(programs, name, image, path):
    """With the manifest's own commands and arguments, but fewer steps."""
    run = Pods(programs, pods(load(name)), image, path)
    before = files(image)
    with run.hosts:
        prepare = [run.start(pod.name, kind='initContainers') for pod in run.made.values()
                   if 'initContainers' in pod.spec]
        for task in prepare:  # at the same time
            task.ends_well()
            task.wait_for(PREPARED)
        tasks = [run.start(pod, '--train_steps=200') for pod in run.made]
        for task in tasks:
            task.ends_well()
    assert files(image) == before, 'where a pod may not write'
    did = [match for task in tasks for match in task.matches(DID)]
    assert sorted(match['name'] for match in did) == ['worker 0', 'worker 1']
    # Together: one that comes late may find nothing left to do.
    assert 200 <= sum(int(match['local_steps']) for match in did) <= 200 + len(did)
    test, = [match for task in tasks for match in task.matches(TEST)]
    assert float(test['accuracy']) > 0.5
    example = re.search(r'-(\w+)\.yaml', name).group(1)
    model_dir = run.hosts.shared[list(run.made)[0]] / example
    assert checkpoints(model_dir)[-1] >= 200
    if example == 'mnist':
        assert tasks[-1].matches(EVALUATED) and tasks[-1].matches(EXPORTED)


def test_a_pod_beyond_the_tasks(programs, image, path):
    """It says so, and not that it is a worker."""
    job, = of_kind(load('job-hogwild.yaml'), 'Job')
    container, = job['spec']['template']['spec']['containers']
    run = programs.start(container['command'], cwd=inside(image, container['workingDir']),
                         env={'PATH': path, 'JOB_COMPLETION_INDEX': '3'})
    run.fails('JOB_COMPLETION_INDEX is "3", and there are 3 pods')
