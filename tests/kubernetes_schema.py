"""What Kubernetes and the training operator take, as far as the manifests here use it.

Closed: a field that is not named here is an error, for the servers drop many of them without a
word. TFJob has three rules which are in no schema of its own, but in the operator's code: which
replicas there are, which restart policies, and the name of the container.
"""

STRING = {'type': 'string', 'minLength': 1}
STRINGS = {'type': 'array', 'items': STRING, 'minItems': 1}
COUNT = {'type': 'integer', 'minimum': 1}
PORT = {'type': 'integer', 'minimum': 1, 'maximum': 65535}
BOOLEAN = {'type': 'boolean'}
LABELS = {'type': 'object', 'additionalProperties': STRING, 'minProperties': 1}
NAME = {'type': 'string', 'pattern': '^[a-z]([-a-z0-9]*[a-z0-9])?$', 'maxLength': 63}
QUANTITY = {'type': 'string', 'pattern': r'^\d+(m|Ki|Mi|Gi)?$'}


def one_of(*words):
    return {'enum': list(words)}


def some(items):
    return {'type': 'array', 'items': items, 'minItems': 1}


def closed(required='', **properties):
    """Returns the schema of an object without other fields; `required` are names, by spaces."""
    return {'type': 'object', 'properties': properties, 'additionalProperties': False,
            'required': required.split()}


def resource(api_version, kind, spec):
    return closed('apiVersion kind metadata spec', apiVersion=one_of(api_version),
                  kind=one_of(kind), metadata=closed('name', name=NAME), spec=spec)


RESOURCES = closed(requests=closed(cpu=QUANTITY, memory=QUANTITY, storage=QUANTITY))
CONTAINER = closed(
    'name image', name=NAME, image=STRING, workingDir=STRING, command=STRINGS, args=STRINGS,
    ports=some(closed('containerPort', name=NAME, containerPort=PORT)), resources=RESOURCES,
    volumeMounts=some(closed('name mountPath', name=NAME, mountPath=STRING)))
POD = closed(
    'containers', subdomain=NAME, restartPolicy=one_of('OnFailure', 'Never'),
    automountServiceAccountToken=BOOLEAN, containers=some(CONTAINER),
    initContainers=some(CONTAINER),
    securityContext=closed(runAsNonRoot=BOOLEAN, runAsUser=COUNT, fsGroup=COUNT),
    volumes=some(closed('name persistentVolumeClaim', name=NAME,
                        persistentVolumeClaim=closed('claimName', claimName=NAME))))
TEMPLATE = closed('metadata spec', metadata=closed('labels', labels=LABELS), spec=POD)
SELECTOR = closed('matchLabels', matchLabels=LABELS)

_OPERATORS_POD = {
    'properties': {'spec': {'properties': {'containers': {
        'contains': {'properties': {'name': one_of('tensorflow')}}}}}}}
_REPLICAS = closed(
    'replicas restartPolicy template', replicas=COUNT,
    restartPolicy=one_of('Always', 'OnFailure', 'Never', 'ExitCode'),
    template={'allOf': [TEMPLATE, _OPERATORS_POD]})
_RUN_POLICY = closed(cleanPodPolicy=one_of('All', 'Running', 'None'), backoffLimit=COUNT,
                     activeDeadlineSeconds=COUNT, ttlSecondsAfterFinished=COUNT, suspend=BOOLEAN)

KINDS = {schema['properties']['kind']['enum'][0]: schema for schema in [
    resource('kubeflow.org/v1', 'TFJob', closed(
        'tfReplicaSpecs', successPolicy=one_of('', 'AllWorkers'), runPolicy=_RUN_POLICY,
        tfReplicaSpecs=closed('Worker', Chief=_REPLICAS, Master=_REPLICAS, PS=_REPLICAS,
                              Worker=_REPLICAS, Evaluator=_REPLICAS))),
    resource('batch/v1', 'Job', closed(
        'template', completionMode=one_of('NonIndexed', 'Indexed'), completions=COUNT,
        parallelism=COUNT, backoffLimit=COUNT, template=TEMPLATE)),
    resource('v1', 'Service', closed(
        'selector ports', clusterIP=STRING, publishNotReadyAddresses=BOOLEAN, selector=LABELS,
        ports=some(closed('port', port=PORT)))),
    resource('networking.k8s.io/v1', 'NetworkPolicy', closed(
        'podSelector', podSelector=SELECTOR, policyTypes=some(one_of('Ingress', 'Egress')),
        ingress=some(closed('from ports', **{'from': some(closed('podSelector',
                                                                 podSelector=SELECTOR))},
                            ports=some(closed('port', protocol=one_of('TCP'), port=PORT)))))),
    resource('v1', 'PersistentVolumeClaim', closed(
        'accessModes resources', accessModes=some(one_of('ReadWriteOnce', 'ReadWriteMany')),
        resources=RESOURCES)),
]}
