"""Tests the model in inference mode on the whole test set, at the end and during training."""

import json
import math
import os
import sys
import time

from absl import flags
from tfdist.cluster import patience
from tfdist.data import batches
from tfdist.start import console
from tfdist.training import busy, checkpoints, export, sessions, stopping
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf

flags.DEFINE_float('eval_every_secs', 0, 'time between two tests while training goes on; 0: test '
                   'at the end only', lower_bound=0)
flags.DEFINE_integer('test_batch_size', 1000, 'examples in a batch of the test', lower_bound=1)


class Test:
    """Tests the parameters as they are now.

    Attributes:
      is_chief: bool, whether this is the chief's test.
      export: `export.Export`, or None without --export_dir.
    """

    def __init__(self, model, build, is_chief=True, values=None, saved=None):
        """Makes the ops, on the device of the scope.

        Args:
          model: `model_file.Model`.
          build: function of a batch that builds the model for a test, and returns its loss and
            metrics.
          is_chief: bool. Other workers test only while the chief is away, see `chief.Role`; without
            --model_dir they never do, and make no ops.
          values: function that returns what to export, see `export.Export`; or None.
          saved: function that returns what the best checkpoint has, a dict of variables by name;
            by default all variables.
        """
        self.is_chief, self._best = is_chief, None
        if not is_chief and not FLAGS.model_dir:
            return  # it could not know that the chief is away
        dataset = model.test_batches(FLAGS.test_batch_size)
        iterator = batches.make_iterator(dataset)
        batch = iterator.get_next()
        first = tf.nest.flatten(batch)[0]
        shape = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first)
        others = set(tf.local_variables())

        def here(next_creator, **kwargs):  # not on a ps, as other variables
            with tf.device(shape.device):
                return next_creator(**kwargs)

        with tf.variable_creator_scope(here):
            loss, metrics = build(batch)
        self._begin = [iterator.initializer, *(
            variable.initializer for variable in tf.local_variables() if variable not in others)]
        means = {name: metric for name, metric in dict(metrics, loss=loss).items()
                 if not isinstance(metric, tuple)}
        self._streaming = {name: metric[0] for name, metric in metrics.items()
                           if isinstance(metric, tuple)}
        self._names = list(metrics)
        if FLAGS.stop_after_evals_without_gain and not FLAGS.eval_every_secs:
            sys.exit('--stop_after_evals_without_gain: without --eval_every_secs there are no such '
                     'tests.')
        if FLAGS.eval_every_secs:
            self._best = _Best(self._names, is_chief, saved and saved())
            self._stop = stopping.LastStep(tf.train.get_global_step())
        self._last = time.monotonic()
        self._take_in = (shape[0], means,
                         [metric[1] for metric in metrics.values() if isinstance(metric, tuple)])
        self.export = export.asked_for(model, dataset.element_spec, values)

    def run(self, session):
        """Returns a dict of floats, in a `tf.Session`: the metrics in the model's order, the loss.

        Means are over the examples: a smaller batch counts for less.

        Raises:
          SystemExit: if the test set is empty, or cannot be read.
        """
        session.run(self._begin)
        examples, sums = 0, None
        with batches.failures():
            while True:
                try:
                    size, means, _ = session.run(self._take_in)
                except tf.errors.OutOfRangeError:
                    break
                patience.PATIENCE.heard()
                examples += size
                sums = {name: mean * size + (sums[name] if sums else 0)
                        for name, mean in means.items()}
        if not examples:
            sys.exit('The test set is empty: there is nothing to test on.')
        figures = {name: total / examples for name, total in sums.items()}
        figures.update(session.run(self._streaming))
        return {name: float(figures[name]) for name in [*self._names, 'loss']}

    def now_and_then(self, session, progress):
        """Tests if it is time to, keeps the best parameters, and ends a run that no longer gains.

        Args:
          session: `tf.Session`.
          progress: `report.Progress`.
        """
        if not FLAGS.eval_every_secs:
            return
        self._best.stopped_at = math.inf  # the run goes on
        if time.monotonic() - self._last < FLAGS.eval_every_secs:
            return
        with busy.on_behalf_of_all(session, 'tests'):
            figures = self.run(session)
            progress.test(figures, at_the_end=False)
            without_gain = self._best.compare(session, figures)
        if without_gain and without_gain == FLAGS.stop_after_evals_without_gain:
            last_step = self._stop.write(session)
            progress.say(f'{without_gain} tests without gain, all stop at step {last_step}')
            self._best.is_last(last_step)
        self._last = time.monotonic()

    def is_over(self):
        """Returns whether the run was over when this process was started, see `is_over`."""
        return is_over(self._best.stopped_at if self._best else math.inf)

    def restore(self, session):
        """Has a run that was to end early do so, after its parameters were restored."""
        if FLAGS.eval_every_secs and os.path.exists(_last_step_file()):
            self._stop.write(session, last_step())

    def at_the_end(self, session, progress):
        """Saves and tests the trained parameters, and with --export_dir exports the model.

        It saves first: a ps may die during the test.

        Args:
          session: `tf.train.MonitoredSession`.
          progress: `report.Progress`.
        """
        def test(current):
            self._keep(current, progress.global_step)
            with busy.on_behalf_of_all(current, 'tests'):
                return self.run(current)

        def write(current):
            self._keep(current, progress.global_step)
            with busy.on_behalf_of_all(current, 'exports the model'):
                return self.export.write(current, progress.global_step)

        progress.test(sessions.run_in(session, test))
        if self.export:
            progress.say(f'exported to {sessions.run_in(session, write)}')

    def _keep(self, session, trained):
        """Saves the parameters; ends the process if those of step `trained`, an int, are lost."""
        step = int(session.run(tf.train.get_global_step()))
        if step < trained:
            console.give_up(f'A parameter server was lost with the parameters of step {trained}, '
                            f'before they were saved: what is left is step {step}. Start the run '
                            'again to train on from there.')
        if FLAGS.model_dir:
            checkpoints.save(session, FLAGS.model_dir, step)


def _last_step_file():
    return os.path.join(FLAGS.model_dir, 'last_step')


def last_step():
    """Returns the step at which the run in --model_dir ends, an int, as far as known now."""
    try:
        with open(_last_step_file(), encoding='utf-8') as file:
            return min(int(file.read()), FLAGS.train_steps)
    except OSError:
        return FLAGS.train_steps


def is_over(stopped_at=math.inf):
    """Returns whether --model_dir has the run's last step: never if there is no such directory.

    Args:
      stopped_at: int, the step at which the run ended early, if the file that tells is gone.
    """
    return bool(FLAGS.model_dir) and (
        checkpoints.newest_step(FLAGS.model_dir) >= min(last_step(), stopped_at))


def _write(path, text):
    """Writes a file whole or not at all."""
    with open(f'{path}.part', 'w', encoding='utf-8') as file:
        file.write(text)
    os.replace(f'{path}.part', path)


class _Best:
    """The best test so far, and with --model_dir its parameters, in the directory `best` there.

    Attributes:
      stopped_at: number, the step at which an earlier run ended early; infinite if none did.
    """

    def __init__(self, names, is_chief=True, saved=None):
        """Takes the names of the metrics, and what to save, see `Test`.

        The first metric decides, or if there is none, the loss.
        """
        self._name = names[0] if names else 'loss'
        self._without_gain, self._figures, self.stopped_at = 0, None, math.inf
        self._directory = FLAGS.model_dir and os.path.join(FLAGS.model_dir, 'best')
        if self._directory:
            self._saver = checkpoints.Saver(None, var_list=saved, sharded=True, max_to_keep=1)
            self._path = os.path.join(self._directory, 'figures.json')
            if is_chief and os.path.exists(_last_step_file()):  # left by the run that is resumed
                self.stopped_at = last_step()
                os.remove(_last_step_file())

    def is_last(self, step):
        """Writes the last step of the run to a file in --model_dir, which an evaluator reads."""
        if self._directory:
            _write(_last_step_file(), str(step))

    def compare(self, session, figures):
        """Keeps the parameters if `figures` are the best; returns how many tests were no better."""
        if self._directory and os.path.exists(self._path):  # by an earlier run, or another worker
            with open(self._path, encoding='utf-8') as file:
                self._figures = json.load(file)
        new, old = figures[self._name], (self._figures or {}).get(self._name)
        if old is not None and (new >= old if self._name == 'loss' else new <= old):
            self._without_gain += 1
            return self._without_gain
        self._without_gain, self._figures = 0, figures
        if self._directory:
            os.makedirs(self._directory, exist_ok=True)
            self._saver.save(session, os.path.join(self._directory, 'model.ckpt'),
                             tf.train.get_global_step())
            _write(self._path, json.dumps(figures))
        return 0
