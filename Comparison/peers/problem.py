"""What all peers share with the examples: network, initial values, data; and how they are timed.

There is nothing of a framework in here: examples are NumPy arrays, and a step is a function.
"""

import argparse
import collections
import importlib
import math
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import sys
import time

from absl import flags
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tfdist.data import datasets  # noqa: E402

Network = collections.namedtuple('Network', 'sizes learning_rate load')
Network.__doc__ = """A network and its data, as the folders of examples have them.

Attributes:
  sizes: list of ints, of dense layers: of the input, of the hidden layers, of the output. None: its
    layers are others, which only some peers have.
  learning_rate: float.
  load: function that returns images [n, pixels] and labels [n], then those to test on.
"""
NETWORKS = {
    'digits': Network([64, 128, 10], 0.1, datasets.digits),
    'mnist': Network([784, 500, 500, 10], 0.2, datasets.mnist_at_hand),
    'large': Network([784, 2800, 2800, 10], 0.02, datasets.mnist_at_hand),
    'resnet': Network(None, 0.05, datasets.mnist_at_hand),
}
BATCH_SIZE = 32
SEED = 1


def load(name):
    """Returns a module of a framework; ends the program in one line if it is not installed."""
    # One thread of a CPU for each worker; and TensorFlow raises its errors as well.
    os.environ.update(CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1', TF_CPP_MIN_LOG_LEVEL='3')
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f'{pathlib.Path(sys.argv[0]).name} needs {name} ({error}): '
                 'see Comparison/peers.txt')


def parse(doc, networks=('digits', 'large', 'mnist'), **more):
    """Returns the options of a peer, an `argparse.Namespace`.

    Args:
      doc: string, the docstring of its program.
      networks: strings, which keys of NETWORKS it has.
      **more: further options, numbers: by name the default, and what it is.
    """
    parser = argparse.ArgumentParser(description=doc.split('\n')[0])
    parser.add_argument('--model', choices=networks, default='digits',
                        help='data and network, as in the folders (default: digits)')
    for name, default, what in [
            ('steps', 2000, 'steps of each worker that are timed'),
            ('warm_up', 100, 'steps of each worker before these'),
            ('workers', 2, 'workers, each with one thread to compute'),
            *((name, *rest) for name, rest in more.items())]:
        parser.add_argument(f'--{name}', type=int, default=default,
                            help=f'{what} (default: {default})')
    options = parser.parse_args()
    if min(value for value in vars(options).values() if isinstance(value, int)) < 1:
        parser.error('all numbers are at least 1')
    return options


def initial(sizes):
    """Returns the same initial values for all: weights uniform as Glorot says, biases of zero.

    Args:
      sizes: list of ints, see `Network`.

    Returns:
      List of pairs of float32 arrays, weights [n, m] and biases [m].
    """
    random = np.random.RandomState(SEED)
    layers = []
    for n, m in zip(sizes, sizes[1:]):
        bound = math.sqrt(6 / (n + m))
        layers.append((random.uniform(-bound, bound, [n, m]).astype(np.float32),
                       np.zeros(m, np.float32)))
    return layers


def shard(options, worker=0, workers=1):
    """Returns the examples of one of some workers: [n, pixels] float32 and labels [n] int64."""
    flags.FLAGS.mark_as_parsed()  # the data sets have flags, which keep their defaults here
    images, labels, *_ = NETWORKS[options.model].load()
    return images[worker::workers].astype(np.float32), labels[worker::workers].astype(np.int64)


def batches(images, labels, worker):
    """Yields pairs of images and labels endlessly, shuffled again in each epoch."""
    random = np.random.RandomState(SEED + worker)
    while True:
        order = random.permutation(len(labels))
        for begin in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            chosen = order[begin:begin + BATCH_SIZE]
            yield images[chosen], labels[chosen]


def train(name, options, steps):
    """Trains, and prints the steps per second of each worker, without those of the warm-up.

    Args:
      name: string, who prints it.
      options: what `parse` returns.
      steps: function of a number that makes so many steps, each worker that is waited for, and
        returns the last loss.

    Raises:
      SystemExit: if the loss is not finite in the end.
    """
    before = float(steps(options.warm_up))
    began = time.monotonic()
    after = float(steps(options.steps))
    rate = options.steps / (time.monotonic() - began)
    if not math.isfinite(after):
        sys.exit(f'{name}: the loss is {after}: training diverged')
    print(f'{name}: {rate:.1f} steps/s per worker, loss {before:.3f} to {after:.3f}', flush=True)


def in_processes(functions):
    """Runs functions, a list of pairs of a function and its arguments, each in its own process.

    All end with this process, or when the first one fails.

    Raises:
      SystemExit: if one fails.
    """
    context = multiprocessing.get_context('spawn')
    running = {}
    for function, arguments in functions:
        process = context.Process(target=function, args=arguments, daemon=True)
        process.start()
        running[process.sentinel] = process
    while running:
        for sentinel in connection.wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                for other in running.values():
                    other.kill()
                sys.exit(f'{pathlib.Path(sys.argv[0]).name}: a worker failed, '
                         f'status {process.exitcode}')
