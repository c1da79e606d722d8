"""Means of pushes that a few bad workers cannot move far: median, trimmed mean, Krum.

Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498: coordinate-wise median and trimmed
mean. Peva Blanchard, El Mahdi El Mhamdi, Rachid Guerraoui, Julien Stainer, "Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017: Krum and Multi-Krum.

A stack is what all have pushed for one variable: [pushes, ...], in the order of the workers. What
is not finite in a push counts as the largest number there is.
"""

import functools
import re
import sys

from absl import flags
from tfdist.start.quiet import tf

flags.DEFINE_string('aggregate', 'mean', 'what the ps makes of the pushes of a step: mean, median, '
                    'trimmed:b without the b largest and b smallest, krum:f or krum:f:m for at '
                    'most f bad workers, the mean of the m best')
_FORM = re.compile(r'mean|median|trimmed:(?P<b>\d+)|krum:(?P<f>\d+)(:(?P<m>\d+))?')


def asked_for(aggregate, number):
    """Returns the function that --aggregate asks for; None for the plain mean.

    The function takes a list of stacks, each on the device of its variable, and returns a list of
    tensors [...] there.

    Args:
      aggregate: string, the value of the flag.
      number: int, how many pushes make a step.

    Raises:
      SystemExit: if it is of no such form, or asks for more pushes than make a step.
    """
    found = _FORM.fullmatch(aggregate)
    if not found:
        sys.exit(f'--aggregate={aggregate} is not mean, median, trimmed:b, krum:f or krum:f:m with '
                 'numbers for b, f and m.')
    least = 1
    if aggregate == 'mean':
        return None
    if found['b']:
        function, least = functools.partial(_trimmed, int(found['b'])), 2 * int(found['b']) + 1
    elif found['f']:
        bad, best = int(found['f']), int(found['m'] or 1)
        if not best:
            sys.exit(f'--aggregate={aggregate}: the mean of no push is nothing. m is 1 or more.')
        function, least = functools.partial(_krum, bad, best), max(2 * bad + 3, best)
    else:
        function = _median
    if number < least:
        sys.exit(f'--aggregate={aggregate} takes {least} pushes in a step, but {number} make one.')
    return function


def _median(stacks):
    """Returns the median of each element; of an even number the mean of the middle two."""
    def median(stack):
        ordered, count = _sorted(stack), tf.shape(stack)[0]
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return _each(stacks, median)


def _trimmed(cut, stacks):
    """Returns the mean of each element without its `cut` largest and `cut` smallest."""
    return _each(stacks, lambda stack: tf.reduce_mean(
        _sorted(stack)[cut:tf.shape(stack)[0] - cut], axis=0))


def _krum(bad, best, stacks):
    """Returns the mean of the `best` pushes with the least scores; of equal ones the first.

    The score of a push is the sum of its squared distances, over all variables, from its nearest
    others: from all but `bad` + 1 of the others.
    """
    distances = tf.add_n(_each(stacks, _squared_distances))
    count = tf.shape(distances)[0]
    nearest = _sorted(distances)[1:count - bad - 1]  # without its own
    _, chosen = tf.math.top_k(-tf.reduce_sum(nearest, axis=0), best)
    return _each(stacks, lambda stack: tf.reduce_mean(tf.gather(stack, chosen), axis=0))


def _squared_distances(stack):
    """Returns the squared distances between all pushes, float64 [pushes, pushes]."""
    flat = tf.cast(tf.reshape(stack, [tf.shape(stack)[0], -1]), tf.float64)
    # Row by row: all differences at once would take as much memory as all pushes, squared.
    return tf.map_fn(
        lambda push: tf.reduce_sum(tf.math.squared_difference(flat, push), axis=1), flat)


def _sorted(stack):
    """Returns a stack in which each element's values are in ascending order."""
    return tf.sort(_finite(stack), axis=0)


def _finite(tensor):
    """Returns a tensor with infinity wherever it is not finite."""
    return tf.where(tf.math.is_finite(tensor), tensor, tf.fill(
        tf.shape(tensor), tf.constant(float('inf'), tensor.dtype)))


def _each(stacks, function):
    """Returns `function` of each stack, on its device."""
    results = []
    for stack in stacks:
        with tf.device(stack.device):
            results.append(function(stack))
    return results
