"""Flags of the programs that train. Each folder has its own defaults."""

import math
import sys

from absl import flags
from tfdist.start import flag_clash

FLAGS = flags.FLAGS
_LEARNING_RATE, _STEPS = 0.1, 3000  # of the digits in plain SGD


@flag_clash.failures()
def define(model, train_steps, learning_rate, communication_window=None,
           counted='updates of the center, by all workers', straggler=True, of_sgd=True):
    """Defines the flags. A program calls it once, after it loads its model and before it parses.

    The defaults for the digits are scaled by the model's own values for plain SGD.

    Args:
      model: object that may have the attributes LEARNING_RATE and LOCAL_STEPS, see `model_file`.
      train_steps: int, default of --train_steps for the digits.
      learning_rate: float, default of --learning_rate for the digits.
      communication_window: int, default of --communication_window; None for no such flag.
      counted: string, what --train_steps counts.
      straggler: bool, whether to define --straggler.
      of_sgd: bool, whether the learning rate is for SGD.
    """
    train_steps = math.ceil(train_steps * getattr(model, 'LOCAL_STEPS', _STEPS) / _STEPS)
    if of_sgd:
        learning_rate *= getattr(model, 'LEARNING_RATE', _LEARNING_RATE) / _LEARNING_RATE
    flags.DEFINE_integer('train_steps', train_steps, counted, lower_bound=1)
    flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
    flags.DEFINE_integer('accumulate', 1, 'batches whose mean gradient makes a local step, one '
                         'after the other', lower_bound=1)
    flags.DEFINE_float('learning_rate', learning_rate, 'step size', lower_bound=0)
    if communication_window is not None:
        flags.DEFINE_integer('communication_window', communication_window,
                             'local steps between two exchanges', lower_bound=1)
    flags.DEFINE_integer('seed', 1, 'seed of the initial values and the order of the examples')
    flags.DEFINE_string('model_dir', None,
                        'directory for checkpoints and summaries, seen by all tasks')
    flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=1)
    flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
    if straggler:
        flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local '
                          'step')


def straggler_delay(task_index):
    """Returns the seconds that --straggler has this worker waste in each local step."""
    return of_worker('straggler', task_index, otherwise=None, most=1e6,
                     form='worker:seconds, such as 1:0.05') or 0.


def of_worker(flag, task_index, otherwise, most, form):
    """Returns a worker's number, a float, in a flag of the form worker:number[,...].

    Args:
      flag: string, the flag's name.
      task_index: int, the worker.
      otherwise: what to return if the flag does not name the worker.
      most: float, the largest number allowed; the smallest is 0.
      form: string, the form with an example, for the error.

    Raises:
      SystemExit: if the flag is not of this form.
    """
    return by_worker(flag, FLAGS[flag].value, most, form).get(task_index, otherwise)


def by_worker(flag, given, most, form):
    """Returns the numbers of workers, a dict of floats; `given` is the list that a flag has.

    The other arguments, and what it raises: see `of_worker`.
    """
    try:
        parts = [part.split(':') for part in given]
        numbers = {int(worker): float(number) for worker, number in parts}
        if not all(0 <= number <= most for number in numbers.values()):
            raise ValueError
    except ValueError:
        sys.exit(f'--{flag}={",".join(given)} is not of the form {form}, or several of these '
                 'separated by commas.')
    return numbers
