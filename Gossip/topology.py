"""Who is whose neighbour; in AD-PSGD, who starts exchanges; in SGP, who sends to whom."""

import sys

import numpy as np


def neighbours_of(worker, num_workers):
    """Returns the neighbours of a worker in the ring, a sorted list; each is in it once.

    With two workers the one before and the next one are the same.
    """
    return sorted({(worker - 1) % num_workers, (worker + 1) % num_workers} - {worker})


def roles_of(roles, num_workers):
    """Returns who starts exchanges, 'any' or 'bipartite'; `roles` may be None, for the default.

    Two workers that exchange at the same moment swap their replicas, and drift apart. So in a ring
    of an even number of workers it is every other one.
    """
    return roles or ('any' if num_workers % 2 else 'bipartite')


def partners_of(worker, num_workers, roles):
    """Returns those neighbours with which a worker starts exchanges; none if it is passive."""
    if roles_of(roles, num_workers) == 'bipartite' and worker % 2:
        return []
    return neighbours_of(worker, num_workers)


def phases(graph, num_workers):
    """Returns after how many steps all send to the same workers again, by the name of a graph."""
    return (num_workers - 1).bit_length() if graph == 'exponential' and num_workers > 2 else 1


def receivers_of(worker, num_workers, phase):
    """Returns to whom a worker sends in the steps of a phase of SGP, a sorted list.

    In the only phase of a ring that is the next one; in further ones, the worker that is 2, 4, 8
    and so on places ahead. Whatever the graph, what a worker has must get to all others in time.
    """
    return sorted({(worker + 2 ** phase) % num_workers} - {worker})


def senders_of(worker, num_workers, phase):
    """Returns who sends to a worker in the steps of a phase of SGP, a sorted list."""
    return [each for each in range(num_workers)
            if worker in receivers_of(each, num_workers, phase)]


def all_neighbours_of(worker, num_workers, algorithm, graph):
    """Returns all with whom a worker exchanges in some step, a sorted list."""
    if algorithm != 'sgp':
        return neighbours_of(worker, num_workers)
    return sorted({each for phase in range(phases(graph, num_workers))
                   for of in (receivers_of, senders_of)
                   for each in of(worker, num_workers, phase)})


class Draw:
    """Draws the partners of a worker's exchanges at random, by `seed` and `worker`, two ints."""

    def __init__(self, seed, worker):
        self._random = np.random.RandomState([seed % 2 ** 32, worker])

    def __call__(self, there):
        """Returns one of a sorted list of partners that answer."""
        return there[self._random.randint(len(there))]


def check(roles, num_workers):
    """Ends the program if there are no such roles in a ring of so many workers."""
    if roles == 'bipartite' and num_workers % 2 and num_workers > 1:
        sys.exit(f'--roles=bipartite needs an even number of workers: in a ring of {num_workers} '
                 'two neighbours would both be active.')
