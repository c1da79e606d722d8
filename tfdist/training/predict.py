"""Asks an exported model, of any folder. It needs neither a cluster nor the model's own file.

    python ../tfdist/training/predict.py --export_dir=DIRECTORY --inputs=FILE.npz

DIRECTORY is the --export_dir of a run, of whose models the newest is taken. FILE.npz has an array
for each input, with a row for each example; for a model of one input it may be FILE.npy.
"""

import os
import sys
import zipfile
import zlib

from absl import flags
from google.protobuf import message
import numpy as np

if not __package__:  # run by its path: what lies beside it is not to be imported by mistake
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import tfdist  # noqa: F401  (from now on every import finds it)
    sys.path.pop(0)
from tfdist.start import console
from tfdist.training import export  # noqa: F401  (has --export_dir)
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('inputs', None, 'NumPy file with the examples: an array for each input')
flags.DEFINE_string('outputs', None, 'NumPy file, FILE.npz, for the outputs, which are then not '
                    'printed')

_AT_ONCE = 1000  # examples
_ENDS = 3  # numbers to print at either end of a long vector


def newest(export_dir):
    """Returns the directory of the exported model with the highest global step.

    Raises:
      SystemExit: if there is none.
    """
    steps = [name for name in (os.listdir(export_dir) if os.path.isdir(export_dir) else [])
             if name.isdigit()]
    if not steps:
        sys.exit(f'--export_dir={export_dir}: nothing is exported there. A run exports at its end, '
                 'if it is given this flag.')
    return os.path.join(export_dir, max(steps, key=int))


class Model:
    """An exported model, loaded.

    Attributes:
      inputs: dict by name of pairs, the `tf.DType` and the `tf.TensorShape` of each input.
    """

    def __init__(self, directory):
        """Loads the model from `directory`, a string.

        Raises:
          SystemExit: if it cannot be loaded.
        """
        self._session = tf.Session(graph=tf.Graph())
        try:
            signature = tf.saved_model.load(
                self._session, [tf.saved_model.SERVING], directory
            ).signature_def[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
        except (OSError, RuntimeError, ValueError, message.Error, tf.errors.OpError) as error:
            sys.exit(f'{directory} is not a whole SavedModel ({console.reason(str(error))}). '
                     'Delete it, and export again.')
        self.inputs = {name: (tf.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape))
                       for name, info in sorted(signature.inputs.items())}
        self._outputs = sorted(signature.outputs)
        self._call = self._session.make_callable(
            [signature.outputs[name].name for name in self._outputs],
            [signature.inputs[name].name for name in self.inputs])

    def __call__(self, arrays):
        """Returns a dict of arrays, the outputs by name, for a dict of arrays, the inputs."""
        arrays = [arrays[name] for name in self.inputs]
        sizes = {len(array) if shape.rank and shape[0].value is None else None
                 for array, (_, shape) in zip(arrays, self.inputs.values())}
        pieces = [arrays]
        if len(sizes) == 1 and None not in sizes:  # otherwise they cannot be cut by examples
            pieces = [[array[begin:begin + _AT_ONCE] for array in arrays]
                      for begin in range(0, sizes.pop(), _AT_ONCE)] or pieces
        answers = zip(*(self._call(*piece) for piece in pieces))
        return {name: _text(np.concatenate(parts) if len(parts) > 1 else parts[0])
                for name, parts in zip(self._outputs, answers)}


def _text(array):
    """Returns an array of bytes as strings, any other as it is."""
    return (np.char.decode(array.astype(bytes), 'utf-8', 'replace') if array.dtype == object
            else array)


def read(path, inputs):
    """Returns the arrays of a file, a dict by name, in the dtypes of the inputs.

    Args:
      path: string.
      inputs: see `Model`.

    Raises:
      SystemExit: if they cannot be read, or do not fit.
    """
    try:
        found = np.load(path)
        arrays = {name: found[name] for name in getattr(found, 'files', ())} or found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        sys.exit(f'--inputs={path} cannot be read ({console.reason(str(error))}).')
    takes = ', '.join(f'{name}, {_words_of(*inputs[name])}' for name in inputs)
    if not isinstance(arrays, dict):
        if len(inputs) > 1:
            sys.exit(f'--inputs={path} is one array, and the model takes {takes}: put them into '
                     'a file .npz.')
        arrays = dict.fromkeys(inputs, arrays)
    missing = [name for name in inputs if name not in arrays]
    if missing:
        sys.exit(f'--inputs={path} has no {", ".join(missing)}: the model takes {takes}.')
    return {name: _cast(arrays[name], name, *inputs[name], path) for name in inputs}


def _words_of(dtype, shape):
    """Returns a dtype and a shape as a string."""
    sizes = ['...'] if shape.rank is None else [
        '?' if size is None else str(size) for size in shape.as_list()]
    return f'{dtype.name} [{", ".join(sizes)}]'


def _cast(array, name, dtype, shape, path):
    """Returns an array in the dtype of an input, if it fits; see `read`."""
    fits = (array.dtype.kind in 'SU' if dtype == tf.string
            else np.can_cast(array.dtype, dtype.as_numpy_dtype, 'same_kind'))
    if not fits or not shape.is_compatible_with(array.shape):
        sys.exit(f'--inputs={path}: {name} is {_words_of(array.dtype, tf.TensorShape(array.shape))}'
                 f', and the model takes {_words_of(dtype, shape)}.')
    return array.astype(dtype.as_numpy_dtype)


def words(value):
    """Returns a value of an output as a string: of a long vector only the ends."""
    if not value.ndim:
        return f'{value:.3f}' if value.dtype.kind == 'f' else str(value)
    ends = [*value] if len(value) <= 10 else [*value[:_ENDS], None, *value[-_ENDS:]]
    return f'[{" ".join("..." if each is None else words(each) for each in ends)}]'


def show(outputs):
    """Prints a line for each example.

    Args:
      outputs: dict of arrays by name.

    Raises:
      SystemExit: if they are not of as many examples.
    """
    sizes = {len(array) if array.ndim else None for array in outputs.values()}
    if len(sizes) > 1 or None in sizes:
        shapes = ', '.join(f'{name} {[*array.shape]}' for name, array in outputs.items())
        sys.exit(f'Not all outputs have a row for each example ({shapes}): --outputs=FILE.npz '
                 'writes them to a file.')
    for i, rows in enumerate(zip(*outputs.values())):
        print(f'example {i}: ' + ', '.join(f'{name} {words(row)}'
                                           for name, row in zip(outputs, rows)))


def main(_):
    for flag in 'export_dir', 'inputs':
        if not FLAGS[flag].value:
            sys.exit(f'predict: give the --{flag}.')
    model = Model(newest(FLAGS.export_dir))
    try:
        outputs = model(read(FLAGS.inputs, model.inputs))
    except tf.errors.OpError as error:
        sys.exit(f'--inputs={FLAGS.inputs}: the model fails on these '
                 f'({console.reason(error.message)}).')
    if not FLAGS.outputs:
        return show(outputs)
    try:
        with open(FLAGS.outputs, 'wb') as file:
            np.savez(file, **outputs)
    except OSError as error:
        sys.exit(f'--outputs={FLAGS.outputs} cannot be written to: {error.strerror}.')


if __name__ == '__main__':
    console.run(main)
