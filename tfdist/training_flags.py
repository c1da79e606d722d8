"""Flags of the programs that train. Each folder gives its own defaults."""

import math
import sys

from absl import flags
from tfdist import models

FLAGS = flags.FLAGS
_LEARNING_RATE, _STEPS = 0.1, 3000  # of the digits in plain SGD


def define(train_steps, learning_rate, communication_window=None, counted='updates of the center, '
           'by all workers', straggler=True, of_sgd=True):
    """Defines the flags. A program calls it once, when its model is loaded, before it parses them.

    A model may suggest others, see `models`: what it suggests is to the default as what plain SGD
    takes for it is to what it takes for the digits.

    Args:
      train_steps: int, default of --train_steps for the digits.
      learning_rate: float, default of --learning_rate for the digits.
      communication_window: int, default of --communication_window; None: there is no such flag.
      counted: string, what --train_steps counts.
      straggler: bool, whether there is a flag --straggler.
      of_sgd: bool, whether the learning rate is one of SGD.
    """
    if models.suggested('LOCAL_STEPS'):
        train_steps = math.ceil(train_steps * models.suggested('LOCAL_STEPS') / _STEPS)
    if models.suggested('LEARNING_RATE') and of_sgd:
        learning_rate *= models.suggested('LEARNING_RATE') / _LEARNING_RATE
    flags.DEFINE_integer('train_steps', train_steps, counted, lower_bound=1)
    flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a local step', lower_bound=1)
    flags.DEFINE_float('learning_rate', learning_rate, 'step size', lower_bound=0)
    if communication_window is not None:
        flags.DEFINE_integer('communication_window', communication_window,
                             'local steps between two exchanges', lower_bound=1)
    flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
    flags.DEFINE_string('model_dir', None,
                        'directory for checkpoints and summaries, seen by all tasks')
    flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=1)
    flags.DEFINE_integer('log_every_n_steps', 500, 'local steps between two lines', lower_bound=1)
    if straggler:
        flags.DEFINE_list('straggler', [], 'worker:seconds[,...], artificial delays of each local '
                          'step')


def straggler_delay(task_index):
    """Returns the seconds that --straggler lets this worker waste in each local step."""
    return of_worker('straggler', task_index, otherwise=0.0, most=1e6, form='worker:seconds, such '
                     'as 1:0.05')


def of_worker(flag, task_index, otherwise, most, form):
    """Returns what a flag of the form worker:number[,...] says for a worker, a float.

    Args:
      flag: string, its name.
      task_index: int, which worker.
      otherwise: what to return if the flag does not name it.
      most: float, the largest number that makes sense; the least is 0.
      form: string, for the error: the form, and an example.

    Raises:
      SystemExit: if the flag is not of that form.
    """
    given = FLAGS[flag].value
    try:
        parts = [part.split(':') for part in given]
        numbers = {int(worker): float(number) for worker, number in parts}
        if not all(0 <= number <= most for number in numbers.values()):
            raise ValueError
    except ValueError:
        sys.exit(f'--{flag}={",".join(given)} is not of the form {form}, or several of these by '
                 'commas.')
    return numbers.get(task_index, otherwise)
