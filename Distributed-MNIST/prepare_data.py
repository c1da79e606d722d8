"""Writes the examples to files of TFRecords, enough that each worker can have files of its own.

    python prepare_data.py --dataset=digits --num_files=8

If the files are there already, it does nothing. For your own data, replace `_arrays`.
"""

import json
import os
import shutil
import sys
import uuid

from absl import flags
import numpy as np
import find_library  # noqa: F401  (finds tfdist)
from tfdist.data import problem
from tfdist.start import console
from tfdist.start.quiet import tf
import model
import worker  # noqa: F401  (for its flags: run.sh gives all programs the same ones)

FLAGS = flags.FLAGS


def _arrays():
    """Returns images (values 0 to 255) and labels to train on, then those to test on."""
    x, y, test_x, test_y = problem.load()
    return np.round(x * 255), y, np.round(test_x * 255), test_y


def write(directory, num_files):
    """Writes all examples and an index; training example i goes into file i modulo `num_files`.

    Args:
      directory: string, the directory for the files, which must not exist yet.
      num_files: int.
    """
    x, y, test_x, test_y = _arrays()
    os.makedirs(directory)
    index = {'pixels': int(np.prod(x.shape[1:])), 'train': {}, 'test': {}}
    for part, images, labels, count in (('train', x, y, num_files), ('test', test_x, test_y, 1)):
        for i in range(count):
            name = f'{part}-{i:05d}-of-{count:05d}.tfrecord'
            path = os.path.join(directory, name)
            with tf.io.TFRecordWriter(path) as writer:
                for image, label in zip(images[i::count], labels[i::count]):
                    writer.write(model.serialize(image.astype(np.uint8), int(label)))
            index[part][name] = [len(labels[i::count]), os.path.getsize(path)]
    with open(os.path.join(directory, 'index.json'), 'w', encoding='utf-8') as file:
        json.dump(index, file, indent=1)


def main(_):
    directory = model.records_dir()
    if not os.path.isdir(directory):
        part = f'{directory}.{uuid.uuid4().hex}'  # hosts may have processes of the same id
        try:
            write(part, FLAGS.num_files)
            os.rename(part, directory)  # so that the files are there whole or not at all
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            if not os.path.isdir(directory):  # else another run was faster
                sys.exit(f'--records_dir={FLAGS.records_dir} cannot be written to: '
                         f'{error.strerror}.')
    index = model.read_index()
    model.check([*index['train'].items(), *index['test'].items()])
    train, test = (sum(count for count, _ in index[part].values()) for part in ('train', 'test'))
    console.say('prepare_data', f'{train} examples in {len(index["train"])} files, and {test} to '
                f'test on, are in {directory}')


if __name__ == '__main__':
    console.run(main)
