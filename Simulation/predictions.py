"""Predicts what a cluster does with a large network: local steps/s over the number of workers.

Each scheme trains the folder's own network, which counts as 100 MB on the links. An update takes
the ps as long as memory of 20 GB/s needs to read the gradient and the parameters and to write the
parameters.
"""

import experiments

RESULTS = experiments.HERE / 'results' / 'predictions.csv'
# A step size so small that no scheme diverges, which would end its simulation.
CLUSTER = {'cluster': 'ethernet', 'ps': '8', 'step': 'lognormal:100ms:0.1', 'parameters': '100MB',
           'update': '15ms', 'learning_rate': '0.0001', 'tests': '1'}
IN_WORDS = '100 MB, 0.1 s a step, 8 ps, 10 Gbit/s'
WINDOWS = {'HogWild': 1, 'AGN': 10, 'Synchronous-SGD': 1, 'Local-SGD': 10, 'Ring-AllReduce': 1}
NUMBERS = [2 ** power for power in range(11)]
ROUNDS = 20  # of each worker: enough for the simultaneous start not to matter


def table():
    """Returns the results so far, an `experiments.Table`."""
    return experiments.Table(RESULTS, ['workers', *CLUSTER, 'local_steps'])


def _asked(name, workers):
    return dict(CLUSTER, workers=str(workers), local_steps=str(ROUNDS * WINDOWS[name] * workers))


def simulate():
    """Simulates what is missing in the file; all of it takes minutes."""
    found = table()

    def do(name):
        with experiments.Scheme(name) as scheme:
            for workers in NUMBERS:
                found.simulate(scheme, _asked(name, workers))

    left = [name for name in WINDOWS
            if not all(found.row(name, _asked(name, workers)) for workers in NUMBERS)]
    experiments.for_each(do, left)


def rates():
    """Returns a dict by scheme of lists of known (workers, local steps/s)."""
    found, known = table(), {}
    for name in WINDOWS:
        rows = [(workers, found.row(name, _asked(name, workers))) for workers in NUMBERS]
        known[name] = [(workers, experiments.local_steps_per_second(row))
                       for workers, row in rows if row]
    return known
