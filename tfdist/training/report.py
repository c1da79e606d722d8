"""Reports of a run: a line now and then, totals at the end, figures for TensorBoard."""

import collections
import math
import os
import sys
import time

import numpy as np
from tfdist.start import console, quiet
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf


class Progress:
    """Collects results of training, and reports them every --log_every_n_steps local steps.

    Attributes:
      global_step: int, the number of updates of the parameters, as of the last result.
      last_step: int, the step at which training ends, as of the last result.
    """

    def __init__(self, name, global_step, is_chief=True, model=None):
        """Says that training starts.

        Args:
          name: string, the speaker, for example 'worker 1'.
          global_step: int, the step at which training starts.
          is_chief: bool, whether to write events for TensorBoard into --model_dir itself, or into a
            directory below, since two writers in one directory lose data.
          model: `model_file.Model` or None; the chief says what is to be said of it.
        """
        self.global_step = global_step
        self.last_step = FLAGS.train_steps
        self._name = name
        self._writer = FLAGS.model_dir and tf.summary.FileWriterCache.get(
            FLAGS.model_dir if is_chief else os.path.join(FLAGS.model_dir, name.replace(' ', '-')))
        self._whole_run = _Period()
        self._line = _Period()
        for line in model.lines() if model and is_chief else []:
            self.say(line)
        how = 'starts' if is_chief or not global_step else 'joins'
        self.say(f'{how} at step {global_step} of {FLAGS.train_steps}, '
                 f'after {time.monotonic() - quiet.START:.1f} s')

    def say(self, text):
        """Prints `text` on one line, after the speaker's name."""
        console.say(self._name, text)

    def add(self, result, local_steps=1):
        """Takes the result of one run of a train op.

        Args:
          result: dict of numbers or arrays of numbers: 'global_step' after the run; 'loss' and the
            metrics, means over the run's batches; other figures, such as 'staleness';
            'last_step' if training may end early; and 'local_steps' if that differs from run to
            run.
          local_steps: int, the number of batches on which the run trained, if the result does not
            say it.

        Raises:
          SystemExit: if the loss is not finite.
        """
        self.global_step = int(result['global_step'])
        if 'last_step' in result:
            self.end_at(result['last_step'])
        if not math.isfinite(result['loss']):
            sys.exit(f'{self._name}: the loss is {result["loss"]} at step {self.global_step}: '
                     'training diverged. Try a smaller --learning_rate.')
        self._line.add(result, int(result.get('local_steps', local_steps)))
        if self._line.local_steps >= FLAGS.log_every_n_steps:
            self.say(f'step {self.global_step} of {FLAGS.train_steps}, {self._line.words()}')
            self.write(self._line.means())
            self._whole_run.merge(self._line)
            self._line = _Period()

    def end_at(self, last_step):
        """Takes the step of an early end, an int; training never ends later than it would have."""
        self.last_step = min(self.last_step, last_step)

    def goes_on(self):
        """Returns whether there are steps left to train."""
        return self.global_step < self.last_step

    def write(self, figures):
        """Writes `figures`, a dict of floats, for TensorBoard at the current global step."""
        if self._writer:
            values = [tf.Summary.Value(tag=tag, simple_value=figures[tag]) for tag in figures]
            self._writer.add_summary(tf.Summary(value=values), self.global_step)
            self._writer.flush()

    def done(self):
        """Prints the totals of this process."""
        self._whole_run.merge(self._line)
        self.say(f'did {self._whole_run.local_steps} local steps, '
                 f'{self._whole_run.words(without=("loss", "accuracy"))}')

    def test(self, figures, at_the_end=True):
        """Prints the metrics of the test set, and when training is over, the time it took in all.

        Args:
          figures: dict of floats, see `evaluation.Test.run`.
          at_the_end: bool, whether training is over.
        """
        self.write({f'test_{name}': value for name, value in figures.items()})
        metrics = ', '.join(f'{name} {figures[name]:.3f}' for name in figures
                            if name != 'loss' or len(figures) == 1)
        self.say(f'test {metrics} after {self.global_step} steps, '
                 f'{time.monotonic() - quiet.START:.1f} s' if at_the_end else
                 f'test {metrics} at step {self.global_step}')


class _Period:
    """The results of the runs since it was made."""

    def __init__(self):
        self.local_steps = 0
        self._began = time.monotonic()
        self._results = []  # summed up later, off the hot path
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
        return dict(means, **{'steps/s': self.local_steps / (time.monotonic() - self._began)})

    def _sum_up(self):
        for key in self._results[0] if self._results else ():
            if key not in ('global_step', 'last_step', 'local_steps'):
                column = np.concatenate([np.ravel(result[key]) for result in self._results])
                self._sums[key] += float(column.sum())
                self._counts[key] += len(column)
                self._maxima[key] = max(column.max(), self._maxima.get(key, column[0]))
        self._results = []

    def words(self, without=()):
        """Returns the means as a string, with the maxima or sums of some figures."""
        means = self.means()
        precision = '.0f' if means['steps/s'] >= 100 else '.3g'
        forms = {'staleness': 'staleness {mean:.1f} (max {maximum:.0f})',
                 'dropped': 'accepted {rest:.0f}, dropped {total:.0f}',
                 'steps/s': f'{{mean:{precision}}} steps/s'}
        return ', '.join(
            forms.get(key, key + ' {mean:.3f}').format(
                mean=mean, maximum=self._maxima.get(key), total=self._sums[key],
                rest=self._counts[key] - self._sums[key])
            for key, mean in means.items() if key not in without)
