"""Workers that push nonsense, to see what a mean that is robust against them is worth."""

from absl import flags
from tfdist.start.quiet import tf
from tfdist.training import training_flags

flags.DEFINE_list('liar', [], 'worker:number[,...], workers that push their gradient times minus '
                  'this number')


def lie(scheme, gradients, hparams):
    """Returns what a worker pushes, a list of tensors: its gradients, unless it is a liar.

    Args:
      scheme: `seam.Seam`. If there are liars it gets one of its `workers`.
      gradients: list of tensors.
      hparams: object that may have the attribute `liar`, the list of strings of the flag.

    Raises:
      SystemExit: if --liar is not of its form.
    """
    numbers = training_flags.by_worker('liar', getattr(hparams, 'liar', []), most=1e30,
                                       form='worker:number, such as 1:10')
    if not numbers:
        return gradients
    factors = [-numbers[i] if i in numbers else 1. for i in range(scheme.num_workers)]
    with tf.device(scheme.worker_device(scheme.task_index)):
        factor = tf.gather(tf.constant(factors), scheme.index_to_feed())
    return [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
