"""Values to start a model with: those of a checkpoint, or of a model of Keras.

`initial_values` of a model returns a mapping of arrays by the names of its variables; the functions
here make such mappings. Each worker calls it when it builds the model, and so needs the files; the
variables get the values of the one that initializes them.
"""

import collections.abc
import sys

import numpy as np
from tfdist.start.quiet import tf


class _OfCheckpoint(collections.abc.Mapping):
    """The values in a checkpoint, each read when it is asked for."""

    def __init__(self, reader, theirs):
        self._reader, self._theirs = reader, theirs

    def __getitem__(self, name):
        return self._reader.get_tensor(self._theirs[name])

    def __iter__(self):
        return iter(self._theirs)

    def __len__(self):
        return len(self._theirs)


def of_checkpoint(path, names, scopes=None):
    """Returns a mapping of the values in a checkpoint by the names of a model's variables.

    Args:
      path: string, a checkpoint as `tf.train.Saver` takes it, or its directory.
      names: list of strings, the names of the model's variables, as `initial_values` gets them.
      scopes: dict of strings: beginnings of names, or whole names, of variables in the checkpoint,
        and what the model has instead, such as {'bert/': 'encoder/', 'w': 'logits/kernel'}. By
        default the names are the same. Of several that fit, the longest counts.

    Raises:
      SystemExit: if there is no checkpoint, or if it lacks a variable of such a name.
    """
    try:
        reader = tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError) as error:
        sys.exit(f'initial_values: {path} is no checkpoint that can be read '
                 f'({str(error).splitlines()[0]}).')
    ours = sorted(((mine, their) for their, mine in (scopes or {'': ''}).items()),
                  key=lambda pair: -len(pair[0]))
    theirs = {}
    for name in names:
        fits = next(((mine, their) for mine, their in ours
                     if name == mine or name.startswith(mine) and mine[-1:] in ('', '/')), None)
        if fits:
            theirs[name] = fits[1] + name[len(fits[0]):]
    for name, their in theirs.items():
        if not reader.has_tensor(their):
            sys.exit(f'initial_values: {path} has no {their}, which is to be {name}.')
    return _OfCheckpoint(reader, theirs)


def of_keras(make):
    """Returns a dict of the values of a model of Keras, by the names of its variables.

    Args:
      make: function without arguments that returns the model with its weights, such as
        `lambda: tf.keras.applications.MobileNetV2(weights='weights.h5')`, or a model after
        `load_weights`. It is called in a graph of its own, so that names begin as in `model.py`.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        tf.keras.backend.set_session(session)
        try:
            made = make()
            return {weight.op.name: value
                    for weight, value in zip(made.weights, made.get_weights())}
        finally:
            tf.keras.backend.set_session(None)


def give(variables, values, scope):
    """Has variables initialized with values instead of their own initial ones.

    Args:
      variables: list of `tf.Variable`.
      values: mapping of arrays by the variables' names.
      scope: string, the scope in which the model was built.

    Returns:
      List of strings, the names of the variables that got none.

    Raises:
      SystemExit: if a name is none of a variable, or a value of another shape.
    """
    names = names_of(variables, scope)
    unknown = [name for name in values if name not in names]
    if unknown:
        sys.exit(f'initial_values: the model makes no variable {unknown[0]}; it makes '
                 f'{", ".join(sorted(set(names)))}.')
    for name, variable in zip(names, variables):
        if name not in values:
            continue
        part = variable._get_save_slice_info()
        shape = tf.TensorShape(part.full_shape if part else variable.shape)
        if not shape.is_compatible_with(np.shape(values[name])):
            sys.exit(f'initial_values: the value of {name} is of shape {np.shape(values[name])}, '
                     f'the variable of {shape}.')
        where = [slice(begin, begin + size) for begin, size in
                 zip(part.var_offset, part.var_shape)] if part else []
        _give(variable, lambda name=name, where=where: np.asarray(values[name])[tuple(where)])
    return [name for name in sorted(set(names)) if name not in values]


def names_of(variables, scope):
    """Returns the names that the variables have in the model: parts of one have the same.

    Args:
      variables: list of `tf.Variable`.
      scope: string, the scope in which the model was built.
    """
    parts = [(variable, variable._get_save_slice_info()) for variable in variables]
    names = [part.full_name if part else variable.op.name for variable, part in parts]
    return [name[len(scope) + 1:] if scope else name for name in names]


def _give(variable, read):
    """Has a variable initialized with what the function `read` returns in this process."""
    dtype = variable.dtype.base_dtype
    value = tf.py_func(lambda: np.asarray(read(), dtype.as_numpy_dtype), [], dtype)
    value.set_shape(variable.shape)
    # As tf.train.init_from_checkpoint does it: there is no public way.
    variable._initial_value = value
    variable._initializer_op = variable.assign(value, read_value=False)
