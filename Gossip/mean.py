"""The mean of all replicas: what worker 0 tests, exports and saves."""

import functools

import numpy as np

from tfdist.scheme import exchange
from tfdist.start import console
from tfdist.training import checkpoints, evaluation
from tfdist.start.quiet import tf


def words(number, distance):
    """Returns what is said before a test; the arguments are what `Mean.form` returns."""
    return f'tests the mean of {number} replicas, consensus distance {distance:.3g}'


class Mean:
    """The mean, in variables of worker 0 of its own: the replicas go on meanwhile.

    It is formed anew for each test and each checkpoint: worker 0 asks one worker after the other
    for its replica, and for a moment has them all. While they train these are of different steps,
    and a step or an exchange may be half done in them. At the end all have made their last step. A
    worker that does not answer, or has not begun, is left out, and a line says so.

    Attributes:
      of: list of `tf.Variable`, what it is the mean of: the trained variables, and their averages.
      weights: list of one `tf.Variable`, the weight of a replica in SGP, to be set: the mean is
        then the sum of all replicas, divided by that of all weights. Empty if all count the same.
      tested: list of tensors to take the place of the trained variables in a test.
      values: list of arrays, the mean that was formed last.
    """

    def __init__(self, network, workers):
        """Makes the variables, on the device of the scope.

        Args:
          network: `building.Network`, of worker 0.
          workers: dict by index of `others.Worker`; their values need not be there yet.
        """
        self._workers, self._name, self.values, self.weights = workers, 'worker 0', [], []
        self._trained = len(network.variables)
        averages = network.averages.variables if network.averages else []
        self.of = [*network.variables, *averages]
        self._means = [exchange.own_variable(variable.read_value(), f'mean/{variable.op.name}')
                       for variable in self.of]
        self._given = [tf.placeholder(variable.dtype.base_dtype, variable.shape)
                       for variable in self.of]
        self._put = exchange.assign(self._means, self._given)
        self._take_over = exchange.assign(self.of, [mean.read_value() for mean in self._means])
        self.tested = [mean.read_value() for mean in self._means][-self._trained:]

    def saved(self):
        """Returns what a checkpoint has: a dict by name of all global variables, or their means."""
        found = {variable.op.name: variable for variable in tf.global_variables()}
        found.update((variable.op.name, mean) for variable, mean in zip(self.of, self._means))
        return found

    def form(self, session):
        """Forms the mean, in a `tf.Session` of worker 0.

        Returns:
          How many replicas it is of, an int; and the consensus distance, a float: the mean over
          them of the squared distance from their mean.
        """
        replicas = [session.run([*self.of, *self.weights])]
        if self._workers[0].stage():  # else the others have nothing yet
            replicas += [values for values in map(self._replica, self._others()) if values]
        return self.form_of(session, replicas)

    def form_of(self, session, replicas):
        """Forms the mean of replicas, a list of lists of arrays, each with its weight at the end.

        Otherwise as `form`. The distance is that of what the workers take gradients at.
        """
        weights = [float(values[-1]) if self.weights else 1. for values in replicas]
        means = [sum(np.asarray(each, float) for each in values) / sum(weights)
                 for values, _ in zip(zip(*replicas), self.of)]
        session.run(self._put, dict(zip(self._given, means)))
        self.values = means
        distances = [sum(np.sum(np.square(np.asarray(value, float) / weight - mean))
                         for value, mean in zip(values, means[:self._trained]))
                     for values, weight in zip(replicas, weights)]
        return len(replicas), float(np.mean(distances))

    def _others(self):
        return [worker for index, worker in sorted(self._workers.items()) if index]

    def _replica(self, worker):
        """Returns the replica of a worker, a list of arrays; None if it is left out."""
        stage = worker.stage()
        values = worker.values([*self.of, *self.weights]) if stage else None
        if values is None:
            console.say(self._name, f'the mean is without worker {worker.index}, which '
                        + (f'does not answer ({worker.link.silence})' if worker.link.silence else
                           'has not begun'))
        return values

    def take_over(self, session):
        """Gives worker 0 the mean, as it was restored, as its replica."""
        session.run(self._take_over)


class Saver(checkpoints.Saver):
    """Saves the mean; what it restores becomes the replica of worker 0, and so of all."""

    def __init__(self, name, mean):
        """Takes the name of the speaker, and a `Mean`; all variables have to be made."""
        super().__init__(name, var_list=mean.saved())
        self._mean, self._saved = mean, []

    def save(self, sess, *args, **kwargs):
        """See `checkpoints.Saver`; a step is written again if the mean is another one now."""
        self._mean.form(sess)
        if not all(map(np.array_equal, self._mean.values, self._saved)) or not self._saved:
            self._last = None
        self._saved = self._mean.values
        return super().save(sess, *args, **kwargs)

    def restore(self, sess, save_path):
        """See `checkpoints.Saver`."""
        super().restore(sess, save_path)
        self._mean.take_over(sess)


class Test(evaluation.Test):
    """Tests the mean, and tells how far the replicas are from it."""

    def __init__(self, model, network, mean):
        """Takes the `model_file.Model`, the `building.Network` of worker 0, and its `Mean`."""
        super().__init__(model, functools.partial(network.at_variables, values=mean.tested),
                         values=functools.partial(network.tested_values, mean.tested),
                         saved=mean.saved)
        self._mean = mean

    def run(self, session):
        """See `evaluation.Test`."""
        console.say('worker 0', words(*self._mean.form(session)))
        return super().run(session)
