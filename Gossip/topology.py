"""Who is whose neighbour in the ring of workers; who starts exchanges, and with whom."""

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
