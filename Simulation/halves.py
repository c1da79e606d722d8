"""Tests: of the whole test set, or of two halves: by one to choose, and by the other to report.

In each batch of the test set every other example is of the half whose figures are called validation
figures. So no example is in both.
"""

import math
import sys

from absl import flags
import numpy as np
from tfdist.start.quiet import tf
from tfdist.training import evaluation
from record import VALIDATION

FLAGS = flags.FLAGS
flags.DEFINE_boolean('validation', False, 'test on two halves of the test set, one to choose by, '
                     'and one to report')
_HUGE = 1e9  # products of a few weights like that overflow a float


class Half:
    """A model that is tested on every other example of each batch; else it is as it was."""

    def __init__(self, model, begin):
        """Takes a `model_file.Model`, and which example of a batch is the first: 0 or 1."""
        self._model, self._begin = model, begin

    def __getattr__(self, name):
        """Returns any other attribute of the model."""
        return getattr(self._model, name)

    def test_batches(self, batch_size):
        """Returns half of the test set, see `model_file`; `batch_size` is that of both halves.

        Raises:
          SystemExit: if a part of a batch is no array.
        """
        whole = self._model.test_batches(batch_size)
        if not all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(whole.element_spec)):
            sys.exit('--validation: the test set has sparse tensors, which are not cut in halves.')

        def half(*parts):
            batch = parts if type(whole.element_spec) is tuple else parts[0]
            return tf.nest.map_structure(lambda part: part[self._begin::2], batch)

        # A last batch of one example has no other half.
        return whole.map(half).filter(
            lambda *parts: tf.shape(tf.nest.flatten(parts)[0])[0] > 0)


class BothHalves:
    """Tests on both halves, as an `evaluation.Test` does on the whole test set."""

    def __init__(self, model, build):
        """Makes the ops; the arguments are those of `evaluation.Test`."""
        self._tests = {prefix: evaluation.Test(Half(model, begin), build)
                       for begin, prefix in enumerate(('', VALIDATION))}

    def run(self, session):
        """Returns the figures of both halves, a dict of floats; names of one begin VALIDATION."""
        return {prefix + name: value for prefix, test in self._tests.items()
                for name, value in test.run(session).items()}


def test_of(model, build):
    """Returns what tests a `model_file.Model`: `BothHalves` with --validation.

    Args:
      model: `model_file.Model`.
      build: see `evaluation.Test`.
    """
    return (BothHalves if FLAGS.validation else evaluation.Test)(model, build)


def figures(test, session, values):
    """Returns what a test of `test_of` finds, a dict of floats.

    Args:
      test: the test.
      session: `tf.Session`.
      values: list of tensors or variables, those that are tested. If some are not finite, or so
        large that what the model computes may not be, a metric may refuse what the model says: then
        there is only a loss, which is no number.
    """
    try:
        return test.run(session)
    except tf.errors.InvalidArgumentError:
        if all(np.issubdtype(value.dtype, np.integer) or (np.abs(value) < _HUGE).all()
               for value in session.run(values)):
            raise
        return {'loss': math.nan}
