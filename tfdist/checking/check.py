"""Compares one worker of a folder's scheme with plain TensorFlow: `bash run.sh --check`.

Both train the same model from the same values on the same batches, in this process, without
servers. Their losses and variables have to agree.
"""

import contextlib
import importlib
import math
import os
import sys
import types

from absl import flags
import numpy as np
from tfdist.checking import counterpart, distances, plain_side, scheme_side
from tfdist.scheme import compression, seam
from tfdist.start import console

FLAGS = flags.FLAGS
flags.DEFINE_integer('check_steps', 20, 'local steps to compare', lower_bound=1)


def start(folder, program, arguments):
    """Checks a folder's scheme, and ends this process.

    Args:
      folder: string, a path.
      program: string, the name of its file that trains.
      arguments: list of strings, the flags for that.
    """
    sys.argv = [os.path.join(folder, program), *arguments]
    module = importlib.import_module(os.path.splitext(program)[0])
    plain = None
    if os.path.exists(os.path.join(folder, 'plain.py')):
        plain = importlib.import_module('plain').Plain()
    elif issubclass(getattr(module, 'Scheme', object), seam.Seam):
        plain = counterpart.Counterpart()
    console.run(lambda _: check(os.path.basename(folder), module, plain))


def check(name, program, plain):
    """Compares both sides, and says how far they are apart.

    Args:
      name: string, the folder's.
      program: module, its program that trains.
      plain: `counterpart.Counterpart`; None if there is none.

    Raises:
      SystemExit: if they differ, or cannot be compared.
    """
    if not plain:
        sys.exit(f'check: {name} is not checked: it has no scheme for a worker to train with.')
    hparams = types.SimpleNamespace(**{**FLAGS.flag_values_dict(), **plain.settings})
    if compression.is_asked_for(hparams):
        sys.exit(f'check: plain TensorFlow has no --compression={hparams.compression}: leave it '
                 'out.')
    comparison = Comparison(program, plain, hparams)
    model = plain.model(program)
    console.say('check', f'{name} with one worker against plain TensorFlow, {comparison.steps} '
                f'steps of {hparams.model or "model.py"} from the same values on the same batches')
    if plain.says:
        console.say('check', plain.says)
    for line in model.lines():
        console.say('check', line)
    comparison.train()
    if comparison.random_ops:
        console.say('check', f'both got the same random numbers from '
                    f'{", ".join(op.name for op in comparison.random_ops)}')
    comparison.tell()


@contextlib.contextmanager
def _kept_layers():
    """Ends the program in one line if the model uses what another call has made in its graph."""
    try:
        yield
    except SystemExit as error:
        if 'must be from the same graph' not in str(error.code):
            raise
        sys.exit("The model's function uses what an earlier call has made, such as a layer: make "
                 'layers anew in each call.')


class Comparison:
    """Both sides, and what they came to.

    Attributes:
      steps: int, local steps that each makes.
      random_ops: list of the ops that draw random numbers in a step.
    """

    def __init__(self, program, plain, hparams):
        """Makes both sides.

        Args:
          program: module, the folder's program that trains.
          plain: `counterpart.Counterpart`.
          hparams: object with the values of all flags as attributes.
        """
        model, scheme_class = plain.model(program), plain.scheme_class(program)
        self._window = scheme_class.local_steps(hparams)
        self._num_runs = math.ceil(hparams.check_steps / self._window)
        self.steps = self._num_runs * self._window

        def make_batches():
            return plain.train_batches(model, hparams, scheme_class.batches(hparams),
                                       self.steps * hparams.accumulate)

        # First the plain side, for which the model's first call counts.
        self._plain = plain_side.PlainSide(model, make_batches, hparams)
        with _kept_layers():
            self._scheme = scheme_side.SchemeSide(scheme_class, model, make_batches, plain, hparams)
        self._plain.make_step(plain, self._scheme.asked)
        self.random_ops = self._plain.random_ops

    def train(self):
        """Trains on both sides, and once more in plain TensorFlow with errors of rounding."""
        self._plain.start()
        begin = self._plain.values()
        drawn = self._plain.draw(self._num_runs)
        losses, numbers = self._plain.train(drawn)
        there = self._plain.values()
        self._scheme.start(self._plain.variables, {
            name: value for name, value in begin.items() if name not in self._plain.given})
        losses_here = self._scheme.train(drawn, self.random_ops, numbers)
        here = self._scheme.values()
        self._plain.start({name: distances.nudged(value) for name, value in begin.items()})
        nudged_losses, _ = self._plain.train(drawn, numbers)
        nudged = self._plain.values()
        self._losses = [
            distances.Pair(self._when(i), *map(np.asarray, values))
            for i, values in enumerate(zip(losses, losses_here, nudged_losses))]
        self._variables = [distances.Pair(name, there[name], here[name], nudged[name])
                           for name in here]

    def tell(self):
        """Says how far both are apart.

        Raises:
          SystemExit: if that is too far, with a hint where to look.
        """
        for loss in self._losses:
            if not np.isfinite(loss.there):
                sys.exit(f'check: in plain TensorFlow the loss is {loss.there} {loss.name}: '
                         'training diverges there, too. Try a smaller --learning_rate.')
        parted = [loss for loss in self._losses if not loss.agrees]
        console.say('check', (
            f'losses part {parted[0].name}: {parted[0].here:.9g} with the scheme, '
            f'{parted[0].there:.9g} in plain TensorFlow') if parted else (
                f'losses agree {distances.up_to(distances.furthest(self._losses).distance)}'))
        far = [variable for variable in self._variables if not variable.agrees]
        for variable in far:
            console.say('check', f'{variable.name} is {variable.distance:.1e} apart, with values '
                        f'up to {np.abs(variable.there).max():.3g}')
        close = [variable for variable in self._variables if variable.agrees]
        if close:
            last = distances.furthest(close)
            console.say('check', (
                f'{len(close)} variables agree {distances.up_to(last.distance)}'
                f'{f", the furthest is {last.name}" if last.distance else ""}') if close[1:] else (
                    f'{last.name} agrees {distances.up_to(last.distance)}'))
        if far or parted:
            sys.exit(f'check: {self._hint(parted, far)}')

    def _when(self, run):
        """Returns in which steps the run of a number, from 0, was, in words."""
        last = (run + 1) * self._window
        if self._window == 1:
            return f'in step {last}'
        return f'in steps {last - self._window + 1} to {last}'

    def _hint(self, parted, far):
        """Returns where to look; takes lists of the losses and variables that do not agree."""
        if self._losses[0] in parted and self._window == 1:
            return ("the loss differs before any update: each call of the model's function builds "
                    'something else. Look for what it keeps from call to call, such as a counter, '
                    'and for random numbers that NumPy draws.')
        if not far:
            return 'the variables agree, and only the loss that the scheme tells does not.'
        trained = {variable.op.name for variable in self._plain.trained}
        if not any(variable.name in trained for variable in far):
            return ('what is trained agrees, and only what the model itself assigns to differs: '
                    'look at these assignments.')
        return 'the updates differ. If other folders agree, look at this scheme; else at the model.'
