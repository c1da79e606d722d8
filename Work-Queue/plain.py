"""Work-Queue with one worker, as plain TensorFlow has it: for `bash run.sh --check`."""

import sys

from tfdist.checking import counterpart
from tfdist.start.quiet import tf


class Plain(counterpart.Counterpart):
    """The model's optimizer, on the batches of one long ticket."""

    says = 'tickets are left out: both train on the batches of one long ticket'

    def train_batches(self, model, hparams, count, num_steps):
        """See the base class."""
        if not hasattr(model, 'num_examples'):
            sys.exit(f'The model {model.name} reads shards, and not tickets: it has no '
                     'num_examples().')
        first = tf.zeros([2], tf.int64)  # the first ticket of the first epoch
        batches, make_ready = model.train_batches(hparams.batch_size, count, first, num_steps,
                                                  hparams.seed)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, make_ready)
        return batches
