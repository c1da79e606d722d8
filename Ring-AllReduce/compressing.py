"""What --compression refuses in a ring, and when it saves nothing there."""

import sys

from tfdist.scheme import compression, transfer
from tfdist.start import console
import powersgd


def _goes_around_encoded(hparams):
    """Returns whether what each worker has encoded goes around, and not sums."""
    return compression.is_asked_for(hparams) and powersgd.rank_of(hparams) is None


def check(hparams):
    """Ends the program if gradients cannot be compressed with these hyperparameters.

    Args:
      hparams: object with the attributes compression, implementation and min_workers.

    Raises:
      SystemExit: with the reason.
    """
    if _goes_around_encoded(hparams) and hparams.implementation == 'collective':
        sys.exit(f"--compression={hparams.compression}: TensorFlow's own all-reduce adds up what "
                 'it gets, and encoded gradients cannot be added. Take another --implementation.')
    if compression.is_asked_for(hparams) and hparams.min_workers is not None:
        sys.exit(f'--compression={hparams.compression}: each new ring of --min_workers would lose '
                 'what all workers have left out so far. Leave out one of the two.')


def tell(scheme, hparams):
    """Says, if this worker is worker 0, when compression saves no bytes.

    Args:
      scheme: `seam.Seam` of this worker. What goes around encoded it pushes as a vector of bytes.
      hparams: object with the attribute compression.
    """
    number = scheme.num_workers
    if not _goes_around_encoded(hparams) or scheme.task_index or number == 1:
        return
    encoded = scheme.pushed[0].shape.num_elements()
    plain = transfer.size_of(scheme.network.variables)
    # N - 1 hops with all of it, in place of 2 (N - 1) with an N-th of the gradients.
    if encoded / plain >= 2 / number:
        console.say('worker 0', (
            f'--compression={hparams.compression} saves nothing with {number} workers: each sends '
            f'{(number - 1) * encoded:,} B in a step, and {2 * (number - 1) * plain // number:,} B '
            f'without it; r is {encoded / plain:.3g}, and has to be below 2 / {number}'))
