"""The interface between a model and the schemes: what a file such as `model.py` may have.

To be had:
  train_batches(batch_size, count, shard, num_shards, seed): list of `count` nests of tensors, the
    batches of one run of the graph: of the worker's own shard, and in one piece.
  loss_and_metrics(batch, training): the loss, a scalar tensor; and a dict of metrics by name. Each
    is a scalar tensor, of which the mean over the batches is wanted, or what `tf.metrics` returns,
    a tensor and the op that takes in one more batch. It makes the variables, by any API.
  test_batches(batch_size): `tf.data.Dataset` of such nests that ends.

At will:
  LEARNING_RATE, LOCAL_STEPS: a step size for plain SGD, and how many steps it takes: what the
    defaults of the flags are made of. The digits have 0.1 and 3000.
  optimizer(learning_rate): `tf.train.Optimizer`, with its schedule and its clipping, for the
    schemes in which the ps makes the step.
  local_rule(learning_rate): one of `local_rules`, for the schemes with windows of local steps; by
    default plain SGD.
  MOVING_AVERAGE_DECAY: what moving averages of the parameters keep in a step: the test uses them.

An older form is understood, too, for batches that are tuples:
  loss_and_accuracy(*batch), without modes of training and inference, and with one metric;
  test_set(), the whole of it as one batch.
"""

import importlib
import pkgutil
import sys

from absl import flags
from tfdist.quiet import tf

FLAGS = flags.FLAGS
_LOADED = []
flags.DEFINE_string('model', None, 'a model of the gallery, such as resnet, in the place of '
                    'model.py')


class Model:
    """A module with the functions above, in either form, as the newer one.

    Attributes:
      name: string, the module's.
      left_out: set of strings, functions at will that it has, and nobody has asked for so far.
    """

    def __init__(self, module):
        """Takes the module.

        Raises:
          SystemExit: if a function is missing.
        """
        self._module = module
        self.name = module.__name__.rpartition('.')[2]
        for either in (['train_batches'], ['loss_and_metrics', 'loss_and_accuracy'],
                       ['test_batches', 'test_set']):
            if not any(hasattr(module, name) for name in either):
                sys.exit(f'{module.__file__} has no function {" or ".join(either)}.')
        self.train_batches = module.train_batches
        self.left_out = {name for name in ('optimizer', 'local_rule') if hasattr(module, name)}

    def __getattr__(self, name):
        """Returns what else the module has."""
        return getattr(self._module, name)

    def loss_and_metrics(self, batch, training):
        """See the module.

        Raises:
          SystemExit: if the function does not return what it should.
        """
        if hasattr(self._module, 'loss_and_metrics'):
            returned = self._module.loss_and_metrics(batch, training)
            if _is_pair(returned) and hasattr(returned[1], 'items'):
                return returned
            sys.exit("The model's loss_and_metrics has to return its loss, and a dict of metrics.")
        returned = self._module.loss_and_accuracy(*batch)
        if _is_pair(returned):
            return returned[0], {'accuracy': returned[1]}
        sys.exit("The model's loss_and_accuracy has to return its loss and its accuracy.")

    def test_batches(self, batch_size):
        """See the module."""
        if hasattr(self._module, 'test_batches'):
            return self._module.test_batches(batch_size)
        return tf.data.Dataset.from_tensors(self._module.test_set())

    def local_rule(self, learning_rate):
        """See the module; None if it has none."""
        return self._make('local_rule', learning_rate)

    def optimizer(self, learning_rate):
        """See the module; None if it has none."""
        return self._make('optimizer', learning_rate)

    def _make(self, name, learning_rate):
        """Returns what a function at will returns; None if there is none."""
        self.left_out.discard(name)
        make = getattr(self._module, name, None)
        return make and make(learning_rate)


def suggested(name):
    """Returns what the model that was loaded suggests, such as LEARNING_RATE; None if nothing."""
    return getattr(_LOADED[-1], name, None) if _LOADED else None


def left_out():
    """Returns a set of strings: functions that the model has, and that nobody asked for."""
    return _LOADED[-1].left_out if _LOADED else set()


def _is_pair(value):
    """Returns whether a value is a tuple or a list of two."""
    return isinstance(value, (tuple, list)) and len(value) == 2


def load():
    """Returns the `Model` that this program trains: that of --model, or else of `model.py`.

    To be called before the flags are parsed: a model may have its own.

    Raises:
      SystemExit: if there is none of that name.
    """
    words = [word.lstrip('-') for word in sys.argv]
    name = next((word.partition('=')[2] or following for word, following in
                 zip(words, [*words[1:], '']) if word.partition('=')[0] == 'model'), None)
    try:
        module = importlib.import_module(f'tfdist.gallery.{name}' if name else 'model')
    except ModuleNotFoundError as error:
        if error.name != f'tfdist.gallery.{name}':
            raise
        names = pkgutil.iter_modules(importlib.import_module('tfdist.gallery').__path__)
        sys.exit(f'--model={name}: the gallery has {", ".join(each.name for each in names)}.')
    _LOADED.append(Model(module))
    return _LOADED[-1]
