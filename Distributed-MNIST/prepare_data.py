"""Writes the examples as files of TFRecords, so many that each worker has some of its own.

    python prepare_data.py --dataset=digits --num_files=8

A second time it finds them and does nothing. For your own data, replace `_arrays`.
"""

import console  # first: it loads TensorFlow without its banners
import json
import os
import shutil
import sys
import urllib.request
import uuid
import zipfile
import zlib

from absl import flags
import model
import numpy as np
import sklearn.datasets
import tensorflow.compat.v1 as tf
import worker  # noqa: F401  (its flags: run.sh gives all programs the same ones)

FLAGS = flags.FLAGS

_MNIST_URL = 'https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz'


def _digits():
    """Returns 1,500 digits to train on and 297 to test on, as (images, labels, images, labels)."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    # The file is sorted by writer. Shuffled, the test asks for new digits and not for new hands.
    order = np.random.RandomState(0).permutation(len(labels))
    images, labels = np.round(images[order] * (255 / 16)), labels[order]
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def _mnist():
    """Returns 60,000 digits to train on and 10,000 to test on, as (images, labels, images, labels).

    Raises:
      SystemExit: if `mnist.npz` is neither there nor to be had, or is not what it should be.
    """
    path = os.path.join(os.path.expanduser(FLAGS.data_dir), 'mnist.npz')
    if not os.path.exists(path):
        part = f'{path}.{os.getpid()}'
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            urllib.request.urlretrieve(_MNIST_URL, part)
            os.replace(part, path)
        except OSError as error:
            if os.path.exists(part):
                os.remove(part)
            sys.exit(f'--dataset=mnist: there is no {path}, and downloading {_MNIST_URL} failed '
                     f'({error}). Put the file there, or name its directory with --data_dir.')
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError('the end is missing, or it is something else')
        with np.load(path) as arrays:
            x, y, test_x, test_y = (arrays[k] for k in ('x_train', 'y_train', 'x_test', 'y_test'))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        sys.exit(f'--dataset=mnist: {path} is not a whole mnist.npz ({error}). Delete it.')
    return x, y, test_x, test_y


def _arrays():
    """Returns images (values 0 to 255) and labels to train on, then those to test on."""
    return _digits() if FLAGS.dataset == 'digits' else _mnist()


def write(directory, num_files):
    """Writes all examples, example i into training file i modulo `num_files`, and an index.

    Args:
      directory: string, where the files go; it must not be there.
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
        part = f'{directory}.{uuid.uuid4().hex}'  # processes of different hosts may share an id
        try:
            write(part, FLAGS.num_files)
            os.rename(part, directory)  # so they are there as a whole or not at all
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            if not os.path.isdir(directory):  # else another run was faster
                sys.exit(f'--records_dir={FLAGS.records_dir} cannot be written to: '
                         f'{error.strerror}.')
    index = model.read_index()
    model.check([*index['train'].items(), *index['test'].items()])
    train, test = (sum(count for count, _ in index[part].values()) for part in ('train', 'test'))
    print(f'prepare_data: {train} examples in {len(index["train"])} files, and {test} to test on, '
          f'are in {directory}', flush=True)


if __name__ == '__main__':
    console.run(main)
