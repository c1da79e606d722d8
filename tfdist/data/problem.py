"""The problem that all folders share: to recognize the handwritten digits of --dataset."""

from absl import flags
from tfdist.data import batches, datasets

FLAGS = flags.FLAGS
flags.DEFINE_enum('dataset', 'digits', ['digits', 'mnist'],
                  'digits: 8x8 images, part of scikit-learn; mnist: 28x28, from --data_dir')

CLASSES = 10


def load():
    """Returns the arrays of --dataset, to train on and to test on: images, labels, images, labels.

    Images are [n, pixels] from 0 to 1, labels [n].
    """
    if FLAGS.dataset == 'digits':
        return datasets.digits()
    return datasets.mnist(datasets.directory('mnist'))


def hidden_units():
    """Returns the sizes of hidden layers that suit --dataset, a list of ints."""
    return [128] if FLAGS.dataset == 'digits' else [500, 500]


# Pairs of images [batch_size, pixels] float32 in [0, 1] and labels [batch_size] int64.
train_batches, test_batches = batches.of_arrays(load)


def test_set():
    """Returns the whole test set as one batch, a pair of tensors as from `train_batches`."""
    return batches.tensors(load()[2:])
