"""What a run prints, and what it does not: a quiet TensorFlow, errors in one line, progress.

Import it before TensorFlow.
"""

import collections
import contextlib
import math
import os
import signal
import sys
import tempfile
import time
import warnings

from absl import app, flags
import numpy as np

START = time.time()
FLAGS = flags.FLAGS
flags.DEFINE_boolean('verbose', False, 'show the banners and notices of TensorFlow and NumPy')
_QUIET = '--verbose' not in sys.argv and 'TF_CPP_MIN_LOG_LEVEL' not in os.environ


@contextlib.contextmanager
def _held_back_stderr():
    """Keeps what native code writes to stderr, and shows it only if the block fails."""
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if _QUIET:
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'  # native errors are raised, too
    warnings.simplefilter('ignore')
# Else TensorFlow 2.21 loads Keras 3: a third of the start, 100 MB, and of no use in sessions. With
# this `tf.keras` is the older one, of the package tf_keras, if that is installed.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
# While it loads, TensorFlow 2.21 heeds no log level; both versions complain when they find no GPU.
with _held_back_stderr() if _QUIET else contextlib.nullcontext():
    import tensorflow.compat.v1 as tf
    tf.config.experimental.list_physical_devices('GPU')
if _QUIET:
    tf.logging.set_verbosity(tf.logging.FATAL)  # its errors are raised, too
tf.disable_v2_behavior()
# No torn reads, no lost updates, and a read can be ordered after a write (unlike a reference).
tf.enable_resource_variables()


def _parse_flags(argv):
    """Returns what is left of `argv`; ends the program in one line where absl would print three."""
    try:
        rest = FLAGS(argv)
    except flags.Error as error:
        sys.exit(f'{argv[0]}: {error} (--help lists the flags)')
    if rest[1:]:
        sys.exit(f'{argv[0]}: what is "{rest[1]}"? Flags begin with -- (--help lists them).')
    return rest


def run(main):
    """Runs `main(argv)` when the flags are right, else says which one is not."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    try:
        app.run(main, flags_parser=_parse_flags)
    except SystemExit as error:
        if isinstance(error.code, str):
            # Python would write the end of the line by itself, and other tasks may write meanwhile.
            os.write(2, f'{error.code}\n'.encode())
            sys.exit(1)
        raise


def check_model_dir(model_dir):
    """Makes `model_dir`, a string or None, if it is not there.

    Raises:
      SystemExit: if it cannot be made or written to, or its checkpoints cannot be found.
    """
    if not model_dir:
        return
    try:
        os.makedirs(model_dir, exist_ok=True)
        tempfile.TemporaryFile(dir=model_dir).close()
    except OSError as error:
        sys.exit(f'--model_dir={model_dir} cannot be made or written to: {error.strerror}.')
    try:
        found = tf.train.latest_checkpoint(model_dir)
    except (tf.errors.OpError, ValueError):
        found = None
    if not found and os.path.exists(os.path.join(model_dir, 'checkpoint')):
        sys.exit(f'--model_dir={model_dir}: its file "checkpoint" is damaged, or names files '
                 'that are not there. Mend it, or give another --model_dir.')


class Saver(tf.train.Saver):
    """A `tf.train.Saver` that says when it restores, and fails in one line."""

    def __init__(self, name, **kwargs):
        """See `tf.train.Saver`; `name` is who is speaking, such as 'worker 0'; None: nobody."""
        super().__init__(**kwargs)
        self._name = name

    def save(self, sess, save_path, *args, **kwargs):
        """See `tf.train.Saver`.

        Raises:
          SystemExit: if the checkpoint cannot be written where the parameters are.
        """
        try:
            return super().save(sess, save_path, *args, **kwargs)
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError) as error:
            sys.exit(f'The checkpoint {save_path} cannot be written '
                     f'({" ".join(error.message.split())[:200]}). --model_dir has to be a '
                     'directory that all tasks see, and can write to.')

    def restore(self, sess, save_path):
        """See `tf.train.Saver`.

        Raises:
          SystemExit: if the checkpoint cannot be read or is not of this model.
        """
        try:
            shapes = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
            for variable in tf.global_variables():  # TensorFlow 1.15 would take any shape
                shape = shapes.get(variable.op.name, variable.shape)
                if not variable.shape.is_compatible_with(shape):
                    raise ValueError(f'{variable.op.name} has shape {shape}')
            super().restore(sess, save_path)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # a ps died meanwhile: the session is made anew
        except (tf.errors.OpError, ValueError) as error:
            sys.exit(f'The checkpoint {save_path} cannot be restored, it is damaged or of another '
                     f'model ({str(error).splitlines()[0][:200]}). Give another --model_dir, or '
                     'delete it.')
        if self._name:
            print(f'{self._name}: resumes from {save_path}', flush=True)


class Progress:
    """Collects what training returns; prints a line and feeds TensorBoard every few hundred steps.

    Attributes:
      global_step: int, the number of updates of the parameters, as last heard.
    """

    def __init__(self, name, global_step, is_chief=True):
        """Says that training starts.

        Reads the flags train_steps, log_every_n_steps and model_dir.

        Args:
          name: string, who is speaking, for example 'worker 1'.
          global_step: int, where training starts.
          is_chief: bool, whether its events for TensorBoard go into model_dir itself, or, as two
            writers in one directory lose data, into one below.
        """
        self.global_step = global_step
        self._name = name
        self._writer = FLAGS.model_dir and tf.summary.FileWriter(
            FLAGS.model_dir if is_chief else os.path.join(FLAGS.model_dir, name.replace(' ', '-')))
        self._whole_run = _Period()
        self._line = _Period()
        how = 'starts' if is_chief or not global_step else 'joins'
        self.say(f'{how} at step {global_step} of {FLAGS.train_steps}, '
                 f'after {time.time() - START:.1f} s')

    def say(self, text):
        """Prints `text` in one line, behind the name of the process."""
        sys.stdout.write(f'{self._name}: {text}\n')  # in one piece: other processes write, too
        sys.stdout.flush()

    def add(self, result, local_steps=1):
        """Takes the result of one run of a train op.

        Args:
          result: dict of numbers or arrays of numbers: 'global_step' after the run; 'loss' and
            'accuracy', the means over the run's batches; and others, such as 'staleness'.
          local_steps: int, on how many batches the run trained.

        Raises:
          SystemExit: if the loss is not finite.
        """
        self.global_step = int(result['global_step'])
        if not math.isfinite(result['loss']):
            sys.exit(f'{self._name}: the loss is {result["loss"]} at step {self.global_step}: '
                     'training diverged. Try a smaller --learning_rate.')
        self._line.add(result, local_steps)
        if self._line.local_steps >= FLAGS.log_every_n_steps:
            self.say(f'step {self.global_step} of {FLAGS.train_steps}, {self._line.words()}')
            self.write(self._line.means())
            self._whole_run.merge(self._line)
            self._line = _Period()

    def write(self, figures):
        """Writes `figures`, a dict of floats, for TensorBoard at the current global step."""
        if self._writer:
            values = [tf.Summary.Value(tag=tag, simple_value=figures[tag]) for tag in figures]
            self._writer.add_summary(tf.Summary(value=values), self.global_step)
            self._writer.flush()

    def done(self):
        """Says what this process did in all."""
        self._whole_run.merge(self._line)
        self.say(f'did {self._whole_run.local_steps} local steps, '
                 f'{self._whole_run.words(without=("loss", "accuracy"))}')

    def test(self, accuracy):
        """Says the accuracy on the test set, and how long it took since the program began."""
        self.write({'test_accuracy': accuracy})
        self.say(f'test accuracy {accuracy:.3f} after {self.global_step} steps, '
                 f'{time.time() - START:.1f} s')


class _Period:
    """The results of the runs since its beginning."""

    def __init__(self):
        self.local_steps = 0
        self._began = time.time()
        self._results = []  # as they came: to sum them up is not for the hot path
        self._sums = collections.Counter()
        self._counts = collections.Counter()
        self._maxima = {}

    def add(self, result, local_steps):
        """Adds the result of one run, a dict of numbers."""
        self._results.append(result)
        self.local_steps += local_steps

    def merge(self, later):
        """Adds the results of a later period."""
        later._sum_up()
        self.local_steps += later.local_steps
        self._sums.update(later._sums)
        self._counts.update(later._counts)
        for key, value in later._maxima.items():
            self._maxima[key] = max(value, self._maxima.get(key, value))

    def means(self):
        """Returns a dict of floats: the mean of each figure, and steps/s."""
        self._sum_up()
        means = {key: total / self._counts[key] for key, total in self._sums.items()}
        return dict(means, **{'steps/s': self.local_steps / (time.time() - self._began)})

    def _sum_up(self):
        for key in self._results[0] if self._results else ():
            if key != 'global_step':
                column = np.concatenate([np.ravel(result[key]) for result in self._results])
                self._sums[key] += float(column.sum())
                self._counts[key] += len(column)
                self._maxima[key] = max(column.max(), self._maxima.get(key, column[0]))
        self._results = []

    def words(self, without=()):
        """Returns the means as a string for the reader; of some figures the maximum or the sum."""
        forms = {'staleness': 'staleness {mean:.1f} (max {maximum:.0f})',
                 'dropped': 'accepted {rest:.0f}, dropped {total:.0f}',
                 'steps/s': '{mean:.0f} steps/s'}
        return ', '.join(
            forms.get(key, key + ' {mean:.3f}').format(
                mean=mean, maximum=self._maxima.get(key), total=self._sums[key],
                rest=self._counts[key] - self._sums[key])
            for key, mean in self.means().items() if key not in without)
