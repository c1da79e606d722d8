"""The interface between a model and the schemes: what a file such as `model.py` defines.

Required:
  train_batches(batch_size, count, shard, num_shards, seed): list of `count` nests of tensors, the
    batches of one run of the graph, fetched at once, from the worker's own shard.
  loss_and_metrics(batch, training): the loss, a scalar tensor; and a dict of metrics by name. A
    metric is a scalar tensor, to be averaged over the batches, or what `tf.metrics` returns, a
    tensor and the op that adds a batch. The function makes the variables, by any API.
  test_batches(batch_size): finite `tf.data.Dataset` of such nests.

Optional:
  LEARNING_RATE, LOCAL_STEPS: a step size for plain SGD, and how many steps it takes: the defaults
    of the flags follow from these. The digits have 0.1 and 3000.
  optimizer(learning_rate): `tf.train.Optimizer`, with its schedule and its clipping, for the
    schemes in which the ps applies the update.
  local_rule(learning_rate): one of `local_rules`, for the schemes with windows of local steps; by
    default plain SGD.
  RECIPE: `recipe.Recipe`, a schedule of the learning rate, clipping and weight decay, in all
    schemes.
  initial_values(names): mapping of arrays by the names of variables, which begin with these; see
    `starts`. It gets the names of all the model's variables, a list of strings.
  trains(name): whether a trainable variable of this name is trained; the others are frozen.
  hooks(): list of `tf.train.SessionRunHook`, which see each run of the train op.
  MOVING_AVERAGE_DECAY: the share of the parameters' moving averages that a step keeps; the test
    uses the averages.
  predictions(batch): dict of tensors by name, with a row for each example, what --export_dir
    exports: from a batch of placeholders, without labels. It makes the variables of
    loss_and_metrics, in the same order, or some of them.
  INPUTS: the names of the parts of a batch that is a tuple, for the exported model.

An older form is understood, too, for batches that are tuples:
  loss_and_accuracy(*batch): one metric, and the same network in training and in the test;
  test_set(): the whole test set as one batch.
"""

import importlib
import inspect
import pkgutil
import sys

from absl import flags
from tfdist.scheme import recipe
from tfdist.start import flag_clash, told_once
from tfdist.start.quiet import tf

flags.DEFINE_string('model', None, 'a model of the gallery, such as resnet, instead of model.py')


class Model:
    """Gives a module with the functions above, of either form, the newer interface.

    Attributes:
      module: the module.
      name: string, its name.
      left_out: set of strings, optional parts of the module that were not used so far.
      remarks: list of strings, what the chief is to say of the model.
    """

    def __init__(self, module):
        """Takes the module.

        Raises:
          SystemExit: if a function is missing.
        """
        self.module = module
        self.name = module.__name__.rpartition('.')[2]
        for either in (['train_batches'], ['loss_and_metrics', 'loss_and_accuracy'],
                       ['test_batches', 'test_set']):
            if not any(hasattr(module, name) for name in either):
                sys.exit(f'{module.__file__} has no function {" or ".join(either)}.')
        self.train_batches = module.train_batches
        self._recipe = getattr(module, 'RECIPE', None) or recipe.Recipe()
        if not isinstance(self._recipe, recipe.Recipe):
            sys.exit(f'{module.__file__}: RECIPE is {self._recipe!r}, and no tfdist.scheme.recipe.'
                     'Recipe.')
        self.remarks = []
        self.left_out = {
            name for name in ('optimizer', 'local_rule', 'RECIPE', 'initial_values', 'hooks')
            if hasattr(module, name)}

    def __getattr__(self, name):
        """Returns any other attribute of the module."""
        return getattr(self.module, name)

    def loss_and_metrics(self, batch, training):
        """See the module.

        Raises:
          SystemExit: if the function returns something else.
        """
        if hasattr(self.module, 'loss_and_metrics'):
            returned = self.module.loss_and_metrics(batch, training)
            if _is_pair(returned) and hasattr(returned[1], 'items'):
                return returned
            sys.exit("The model's loss_and_metrics has to return its loss, and a dict of metrics.")
        returned = self.module.loss_and_accuracy(*batch)
        if _is_pair(returned):
            return returned[0], {'accuracy': returned[1]}
        sys.exit("The model's loss_and_accuracy has to return its loss and its accuracy.")

    @property
    def recipe(self):
        """The `recipe.Recipe` of the module, or one without parts."""
        self.left_out.discard('RECIPE')
        return self._recipe

    def test_batches(self, batch_size):
        """See the module."""
        if hasattr(self.module, 'test_batches'):
            return self.module.test_batches(batch_size)
        return tf.data.Dataset.from_tensors(self.module.test_set())

    def trains(self, name):
        """See the module; True if it has no such function."""
        return getattr(self.module, 'trains', lambda name: True)(name)

    def lines(self):
        """Returns a list of strings, what the chief is to say: what is not used, and remarks."""
        reasons = dict.fromkeys(('optimizer', 'local_rule'), 'this scheme has a rule of its own')
        return [f'{name} of the model is not used: {reasons.get(name, "there is no place for it")}'
                for name in sorted(self.left_out)] + self.remarks

    def remark_once(self, text):
        """Has the chief say something of the model, a string."""
        if text not in self.remarks:
            self.remarks.append(text)

    def initial_values(self, names):
        """See the module; None if it has no such function."""
        self.left_out.discard('initial_values')
        make = getattr(self.module, 'initial_values', None)
        return make and make(names)

    def hooks(self):
        """See the module.

        Raises:
          SystemExit: if the function returns something else.
        """
        self.left_out.discard('hooks')
        hooks = list(getattr(self.module, 'hooks', list)())
        for hook in hooks:
            if not isinstance(hook, tf.train.SessionRunHook):
                sys.exit(f"The model's hooks() returns {hook!r}, which is no "
                         'tf.train.SessionRunHook.')
        return hooks

    def local_rule(self, learning_rate):
        """See the module; None if it has none."""
        return self._make('local_rule', learning_rate)

    def optimizer(self, learning_rate):
        """See the module; None if it has none."""
        return self._make('optimizer', learning_rate)

    def keras(self):
        """Returns `tf.keras`; None if the model does not use it, for 2.21 takes time to load it."""
        module = inspect.getmodule(getattr(self.module, 'loss_and_metrics', None)) or self.module
        try:
            mentioned = 'keras' in inspect.getsource(module)
        except (OSError, TypeError):
            mentioned = False
        loaded = tf.__version__.startswith('1.') or 'tf_keras' in sys.modules
        return tf.keras if loaded or mentioned else None

    def _make(self, name, learning_rate):
        """Returns the result of an optional function; None if there is none.

        Raises:
          SystemExit: if the function returns nothing.
        """
        self.left_out.discard(name)
        make = getattr(self.module, name, None)
        made = make and make(learning_rate)
        if make and made is None:
            sys.exit(f"The model's {name}(learning_rate) returns None.")
        return made


def _is_pair(value):
    """Returns whether a value is a tuple or a list of two."""
    return isinstance(value, (tuple, list)) and len(value) == 2


@told_once.failures()
def load():
    """Returns the `Model` that this program trains: the one of --model, or else of `model.py`.

    Call it before the flags are parsed: a model may define some.

    Raises:
      SystemExit: if the gallery has no model of that name.
    """
    words = [word.lstrip('-') for word in sys.argv]
    name = next((word.partition('=')[2] or following for word, following in
                 zip(words, [*words[1:], '']) if word.partition('=')[0] == 'model'), None)
    try:
        with flag_clash.failures():
            module = importlib.import_module(f'tfdist.gallery.{name}' if name else 'model')
    except ModuleNotFoundError as error:
        if error.name != f'tfdist.gallery.{name}':
            raise
        names = pkgutil.iter_modules(importlib.import_module('tfdist.gallery').__path__)
        sys.exit(f'--model={name}: the gallery has {", ".join(each.name for each in names)}.')
    tf.enable_resource_variables()  # which tf.disable_v2_behavior() in a model has switched off
    return Model(module)
