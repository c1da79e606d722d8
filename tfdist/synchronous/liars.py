"""Workers that push nonsense, to see what a mean that is robust against them is worth."""

from absl import flags
from tfdist.start.quiet import tf
from tfdist.training import training_flags

flags.DEFINE_list('liar', [], 'worker:number[,...], workers that push their gradient times minus '
                  'this number')


def lie(gradients, given, worker, num_workers):
    """Returns what a worker pushes, a list of tensors: its gradients, unless it is a liar.

    Args:
      gradients: list of tensors.
      given: list of strings, the value of --liar.
      worker: int64 scalar tensor, the worker.
      num_workers: int.

    Raises:
      SystemExit: if --liar is not of its form.
    """
    numbers = training_flags.by_worker('liar', given, most=1e30, form='worker:number, such as 1:10')
    if not numbers:
        return gradients
    factors = [-numbers[i] if i in numbers else 1. for i in range(num_workers)]
    factor = tf.gather(tf.constant(factors), worker)
    return [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
