"""Exports the model as the test saw it, for serving and for `predict.py`: --export_dir.

A worker's own graph would not load anywhere else: its operations are bound to the devices of a
cluster. So the model's `predictions` is built in a graph of its own, on plain variables, which at
the end get the values of those that were trained, by name.
"""

import os
import shutil
import sys

from absl import flags
import numpy as np
from tfdist.cluster import patience
from tfdist.scheme import graphs
from tfdist.start import console, directories
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('export_dir', None, 'directory of exported models: SavedModels, each in a '
                    'directory that is named after its global step')

# Bytes of a value that travel at once. A message has to be smaller than 2 GB, and the ps may copy
# all of a table for each piece of it.
_AT_ONCE = 2 ** 30


def asked_for(model, structure, values):
    """Returns an `Export`, see there for the arguments; None without --export_dir."""
    return Export(model, structure, values) if FLAGS.export_dir else None


class Export:
    """The graph of a model's predictions, and the values for its variables."""

    def __init__(self, model, structure, values):
        """Builds the graph: what is wrong with it ends the program now, not after the training.

        Args:
          model: `model_file.Model`.
          structure: nest of `tf.TypeSpec`, of a batch of the test.
          values: function that returns a dict of tensors by name of a variable, see
            `building.Network.tested_values`; None if the program exports nothing.

        Raises:
          SystemExit: if the model cannot be exported, or not to --export_dir.
        """
        if values is None:
            sys.exit('--export_dir: this program exports nothing.')
        if not hasattr(model, 'predictions'):
            sys.exit(f'--export_dir: {model.name}.py has no function predictions(batch). It has to '
                     'return what to export, a dict of tensors by name.')
        directories.make(FLAGS.export_dir, 'export_dir')
        made = []

        def note(next_creator, **kwargs):
            made.append(next_creator(**kwargs))
            return made[-1]

        with tf.Graph().as_default() as self._graph, tf.variable_creator_scope(note):
            batch, inputs = _placeholders(structure, getattr(model, 'INPUTS', None))
            outputs = model.predictions(batch)
            self._signature = _signature(inputs, outputs)
            self._begin = tf.tables_initializer()
        for operation in self._graph.get_operations():
            operation._set_device('')  # that of a cluster or a GPU, if the model names one
        trained = values()
        self._values = [(variable, _pieces(_of(variable, trained))) for variable in made]

    def write(self, session, step):
        """Writes the model into a new directory, which is there whole or not at all.

        Args:
          session: `tf.Session` in which the values are.
          step: int, the global step: the directory's name. Another model of this step is replaced.

        Returns:
          String, the directory.

        Raises:
          SystemExit: if it cannot be written.
        """
        directory = os.path.join(FLAGS.export_dir, str(step))
        part = f'{directory}.{os.getpid()}'
        with tf.Session(graph=self._graph, config=tf.ConfigProto(device_count={'GPU': 0})) as own:
            for variable, pieces in self._values:
                variable.load(_read(session, variable, pieces), own)
            try:
                builder = tf.saved_model.Builder(part)
                builder.add_meta_graph_and_variables(
                    own, [tf.saved_model.SERVING],
                    {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: self._signature},
                    assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
                    main_op=self._begin)
                builder.save()
                _move(part, directory)
            except (OSError, tf.errors.OpError) as error:
                sys.exit(f'--export_dir={FLAGS.export_dir} cannot be written to: '
                         f'{console.reason(str(error))}. A --model_dir keeps what was trained.')
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return directory


def _move(path, directory):
    """Moves `path` to `directory`; what is there is removed."""
    old = f'{path}.old'
    if os.path.isdir(directory):  # a directory can only take the place of an empty one
        os.rename(directory, old)
    os.rename(path, directory)
    shutil.rmtree(old, ignore_errors=True)


def _placeholders(structure, names):
    """Makes placeholders for a batch of any size.

    Args:
      structure: nest of `tf.TypeSpec`.
      names: the model's INPUTS, or None.

    Returns:
      The batch, a nest of tensors, dense or sparse; and a dict of its dense tensors by the name of
      an input. A sparse tensor has three: its indices, values and shape.

    Raises:
      SystemExit: if there are not as many names as parts.
    """
    if isinstance(names, str):
        names = [names]
    top = structure if isinstance(structure, (tuple, list)) else [structure]
    if names and not isinstance(structure, dict) and len(names) != len(top):
        sys.exit(f"The model's INPUTS are {len(names)} names, and a batch has {len(top)} parts.")
    made, inputs = [], {}
    with tf.name_scope('inputs_of_export'):  # a variable may have the name of an input
        for name, spec in zip(_paths(structure, names), tf.nest.flatten(structure)):
            shape = spec.shape
            if shape.rank:
                shape = tf.TensorShape([None]).concatenate(shape[1:])
            if isinstance(spec, tf.SparseTensorSpec):
                made.append(tf.sparse_placeholder(spec.dtype, shape.as_list()))
                inputs.update({f'{name}_indices': made[-1].indices,
                               f'{name}_values': made[-1].values,
                               f'{name}_shape': made[-1].dense_shape})
            else:
                made.append(tf.placeholder(spec.dtype, shape))
                inputs[name] = made[-1]
    return tf.nest.pack_sequence_as(structure, made), inputs


def _paths(nest, names=None, path=''):
    """Returns the names of a nest's leaves, in the order of `tf.nest.flatten`.

    Args:
      nest: nest of anything.
      names: list of strings for the parts of a tuple, or None.
      path: string, what the names begin with.
    """
    if isinstance(nest, dict):
        parts = [(str(key), nest[key]) for key in sorted(nest)]
    elif isinstance(nest, (tuple, list)):
        numbers = [str(i) if path else f'input_{i}' for i in range(len(nest))]
        parts = zip(names or getattr(nest, '_fields', None) or numbers, nest)
    else:
        return [path or (names or ['input_0'])[0]]
    return [leaf for name, part in parts
            for leaf in _paths(part, path=f'{path}_{name}' if path else name)]


def _signature(inputs, outputs):
    """Returns the signature from those of `inputs`, a dict of tensors, that `outputs` depend on.

    Raises:
      SystemExit: if there is none, or `outputs`, of a model's predictions, are no dict of tensors.
    """
    if not (isinstance(outputs, dict) and outputs and all(isinstance(name, str) for name in outputs)
            and all(isinstance(tensor, tf.Tensor) for tensor in outputs.values())):
        sys.exit("The model's predictions has to return a dict of tensors by name.")
    needed = graphs.ancestors(outputs.values())
    inputs = {name: tensor for name, tensor in inputs.items() if tensor.op in needed}
    if not inputs:
        sys.exit("The model's predictions depends on nothing in the batch.")
    return tf.saved_model.predict_signature_def(inputs, dict(outputs))


def _of(variable, values):
    """Returns the value of a variable of the export.

    Raises:
      SystemExit: if `values`, a dict of tensors by name, has none for it.
    """
    name = variable.op.name
    if name not in values:
        sys.exit(f"The model's predictions makes the variable {name}, which its training does not "
                 'have. It has to make its variables as loss_and_metrics does, in the same order.')
    value = values[name]
    if value.dtype != variable.dtype.base_dtype or not value.shape.is_compatible_with(
            variable.shape):
        sys.exit(f"The model's predictions makes the variable {name} of {variable.shape} and "
                 f'{variable.dtype.base_dtype.name}; in training it is of {value.shape} and '
                 f'{value.dtype.name}.')
    return value


def _pieces(value):
    """Returns a list of tensors, in order the rows of `value`, which are small enough to travel."""
    size = (value.shape.num_elements() or 0) * value.dtype.size
    if size <= _AT_ONCE or not value.shape.rank:
        return [value]
    rows = value.shape[0].value
    step = max(1, rows * _AT_ONCE // size)
    with tf.device(value.device):
        return [value[begin:begin + step] for begin in range(0, rows, step)]


def _read(session, variable, pieces):
    """Returns the value of a variable of the export as an array, from its `pieces` in a session."""
    whole, begin = np.empty(variable.shape.as_list(), variable.dtype.as_numpy_dtype), 0
    for piece in pieces:
        rows = session.run(piece)
        patience.PATIENCE.heard()
        if len(pieces) == 1:
            return rows
        whole[begin:begin + len(rows)] = rows
        begin += len(rows)
    return whole
