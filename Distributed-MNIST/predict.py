"""Loads the exported model and says what is on images. Needs no cluster, and not model.py.

    python predict.py --model_dir=DIRECTORY --images=FILE.npy

FILE.npy is an array of float32, [images, pixels], with values from 0 to 1.
"""

import os
import sys

from absl import flags
import numpy as np
from tfdist import console
from tfdist.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_string('model_dir', None, 'the --model_dir of a run; its newest export is taken')
flags.DEFINE_string('images', None, 'file of NumPy with the images')


def newest_export(model_dir):
    """Returns the directory of the export with the highest global step.

    Raises:
      SystemExit: if there is none.
    """
    export_dir = os.path.join(model_dir or '', 'export')
    steps = [name for name in (os.listdir(export_dir) if os.path.isdir(export_dir) else [])
             if name.isdigit()]
    if not model_dir or not steps:
        sys.exit(f'--model_dir={model_dir}: nothing is exported there. A run exports at its end; '
                 '`python evaluator.py --model_dir=...` does it after one that was stopped.')
    return os.path.join(export_dir, max(steps, key=int))


class Model:
    """An exported model, ready to answer.

    Attributes:
      pixels: int, how many values an image has.
    """

    def __init__(self, directory):
        """Loads the model from `directory`, a string."""
        self._session = tf.Session(graph=tf.Graph())
        signature = tf.saved_model.load(self._session, ['serve'],
                                        directory).signature_def['serving_default']
        self.pixels = signature.inputs['images'].tensor_shape.dim[1].size
        self._call = self._session.make_callable(
            [signature.outputs[name].name for name in ('classes', 'probabilities')],
            [signature.inputs['images'].name])

    def __call__(self, images):
        """Returns classes [n] int64 and probabilities [n, 10] of images [n, pixels] float32."""
        return self._call(images)


def _read(path, pixels):
    """Returns the images in a file.

    Raises:
      SystemExit: if there are none.
    """
    try:
        images = np.load(path)
        if images.ndim != 2 or images.shape[1] != pixels:
            raise ValueError(f'its shape is {images.shape}, not [images, {pixels}]')
    except (OSError, ValueError, EOFError) as error:
        sys.exit(f'--images={path} cannot be used: {error}')
    return images.astype(np.float32)


def main(_):
    if not FLAGS.images:
        sys.exit('predict: give the --images.')
    model = Model(newest_export(FLAGS.model_dir))
    for i, (label, shares) in enumerate(zip(*model(_read(FLAGS.images, model.pixels)))):
        print(f'image {i}: {label}, probability {shares[label]:.3f}')


if __name__ == '__main__':
    console.run(main)
