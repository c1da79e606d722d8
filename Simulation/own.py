"""What each worker keeps from one round to the next: its values of a scheme's `own` variables.

One scheme plays all workers. As a rule a run is fed what it would read of these variables, and
what it would assign to them is fetched: so the workers do not get in each other's way. A scheme
that does something else with them, such as to read some rows, has a worker's values loaded before
its run.
"""

import parts
from parts import Part
from tfdist.start.quiet import tf


class Own:
    """The values of all workers.

    Attributes:
      places: dict by op, the handle of a variable: its place among the values that are fed; empty
        if they are loaded.
    """

    def __init__(self, variables):
        """Makes ops on the `own` variables of a scheme, a list."""
        self._handles = [variable.handle.op for variable in variables]
        self._initial = [variable.initializer.inputs[1] for variable in variables]
        self._given = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                       for variable in variables]
        self._ops = ([variable.read_value() for variable in variables],
                     [variable.assign(value, read_value=False)
                      for variable, value in zip(variables, self._given)],
                     [tf.variables_initializer(variables)])
        self.places, self._kept, self._whose = {}, {}, None

    def make_parts(self, session, runs):
        """Makes the parts to run in a `tf.Session` of the finished graph.

        Args:
          session: `tf.Session`.
          runs: list of pairs of lists of tensors, of all runs that may use the variables: what is
            fetched, and what may be fed.
        """
        places = {handle: place for place, handle in enumerate(self._handles)}
        at_first, _ = parts.needed(self._initial, ())
        if all(parts.only_reads_and_assigns(*run, places) for run in runs) and not any(
                tensor.op in places for op in at_first for tensor in op.inputs):
            self.places = places
        take, give, make = self._ops
        self._begin = Part(session, self._initial)
        self._take, self._give, self._make = (
            Part(session, take), Part(session, give, self._given), Part(session, make))

    def begin(self, worker, values=None):
        """Gives a worker its initial values as of now, or `values`, a list of arrays."""
        if self.places:
            self._kept[worker] = list(self._begin({}) if values is None else values)
            return
        if self._whose != worker:
            self._put_away()
        if values is None:
            self._make({})
        else:
            self._load(values)
        self._whose = worker

    def of(self, worker):
        """Returns what a worker keeps, a list of arrays; None if it is loaded."""
        if not self.places:
            return None
        kept = self._kept[worker]
        if not isinstance(kept, list):
            kept = self._kept[worker] = kept.result().kept
        return kept

    def keep(self, worker, computation):
        """Has a worker keep what the result of a `gathering.Computation` has as `kept`."""
        if self.places:
            self._kept[worker] = computation

    def values(self, worker):
        """Returns all that a worker keeps where that is loaded, a list of arrays not to change."""
        return self._take({}) if self._whose == worker else self._kept[worker]

    def run(self, worker, part, values):
        """Runs a `Part` for a worker; returns the list of results."""
        if self.places:
            results, self._kept[worker] = part.run_for(values, self.of(worker))
            return results
        self._turn(worker, part)
        return part(values)

    def settle(self, worker, part, read, assigned):
        """Has a worker keep what follows for it from a push that another one made for all.

        Args:
          worker: int.
          part: `Part`.
          read: dict by tensor's name, the places of what it is fed.
          assigned: list of ints, the places of what it returns.
        """
        kept = list(self.of(worker))
        results = part({name: kept[place] for name, place in read.items()})
        for place, value in zip(assigned, results):
            kept[place] = value
        self._kept[worker] = kept

    def _turn(self, worker, part):
        """Loads what a worker keeps into the variables if a `Part` uses them."""
        if part.ops.intersection(self._handles):
            self.turn_to(worker)

    def turn_to(self, worker):
        """Loads what a worker keeps into the variables."""
        if self._whose != worker:
            self._put_away()
            self._load(self._kept.pop(worker))
            self._whose = worker

    def _put_away(self):
        if self._whose is not None:
            self._kept[self._whose] = self._take({})

    def _load(self, values):
        self._give({tensor.name: value for tensor, value in zip(self._given, values)})
