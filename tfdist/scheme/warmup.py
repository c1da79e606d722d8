"""A step size that grows with the batch: linear scaling, and a gradual warm-up to it.

Priya Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677,
section 2.
"""

from absl import flags
from tfdist.start.quiet import tf


def define(factor):
    """Defines the flags; `factor`, a string, says what number multiplies the learning rate."""
    flags.DEFINE_boolean('scale_learning_rate', False, f'multiply the learning rate by how many '
                         f'{factor}')
    flags.DEFINE_integer('warmup_steps', 0, 'steps in which the learning rate grows to the scaled '
                         'one', lower_bound=0)


def scaled_learning_rate(hparams, factor, global_step):
    """Returns the learning rate of the next step.

    Args:
      hparams: object with the attributes learning_rate, scale_learning_rate and warmup_steps.
      factor: int, how many times larger the batch of a step is than one worker's.
      global_step: integer `tf.Variable`.

    Returns:
      Float32 scalar tensor on the ps: learning_rate; with scale_learning_rate it grows to factor
      times that, by the same amount in each of the first warmup_steps steps.
    """
    first = hparams.learning_rate
    full = first * factor if hparams.scale_learning_rate else first
    with tf.device(global_step.device):
        if not hparams.warmup_steps:
            return tf.constant(full, tf.float32)
        done = tf.cast(global_step.read_value(), tf.float32) / hparams.warmup_steps
        return first + (full - first) * tf.minimum(done, 1.)
