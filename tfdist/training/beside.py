"""What a model has run beside the train op: its own hooks, and its own summaries."""

import time

from absl import flags
from tfdist.training.training_flags import FLAGS
from tfdist.start.quiet import tf

flags.DEFINE_float('save_summaries_secs', 10, "time between two runs whose tf.summary, the model's "
                   'own, the chief writes into --model_dir', lower_bound=0)


class Beside(tf.train.SessionRunHook):
    """Runs a train op with the model's hooks in each run, and its summaries now and then.

    The session's other hooks see one run in a second, see `sessions.Trainer`.
    """

    def __init__(self, network, writes):
        """Takes a `trainee.Trainee`, and a bool: whether this process writes the summaries."""
        self._hooks = network.hooks()
        self._summaries = network.summaries if writes and FLAGS.model_dir else {}
        self._due = 0.
        self._stops = False

    def __bool__(self):
        """Whether there is anything to run."""
        return bool(self._hooks or self._summaries)

    @property
    def stops(self):
        """Whether a hook has asked for the end."""
        return self._stops

    def begin(self):
        for hook in self._hooks:
            hook.begin()

    def after_create_session(self, session, coord):
        for hook in self._hooks:
            hook.after_create_session(session, coord)

    def end(self, session):
        for hook in self._hooks:
            hook.end(session)

    def on(self, session, train_op, run):
        """Returns a function without arguments that runs `train_op`, and returns its results.

        Args:
          session: `tf.Session`.
          train_op: dict of tensors.
          run: function that runs it alone.
        """
        def with_all():
            is_due = self._summaries and time.monotonic() >= self._due
            if not is_due and not self._hooks:
                return run()
            found, result = self._run(session, train_op, self._summaries if is_due else {})
            if is_due:
                self._due = time.monotonic() + FLAGS.save_summaries_secs
                self._write(found, int(result['global_step']))
            return result

        return with_all

    def _run(self, session, train_op, summaries):
        """Returns the values of `summaries`, a dict of tensors, and of `train_op`."""
        context = tf.train.SessionRunContext(tf.train.SessionRunArgs(train_op), session)
        asked = [hook.before_run(context) or tf.train.SessionRunArgs(None) for hook in self._hooks]
        feed, options = {}, tf.RunOptions()
        for each in asked:
            feed.update(each.feed_dict or {})
            options.MergeFrom(each.options or tf.RunOptions())
        metadata = tf.RunMetadata()
        found, result, *fetched = session.run(
            [summaries, train_op, *([] if each.fetches is None else each.fetches
                                    for each in asked)],
            feed, options, metadata)
        for hook, each, values in zip(self._hooks, asked, fetched):
            hook.after_run(context, tf.train.SessionRunValues(
                None if each.fetches is None else values, options, metadata))
        self._stops |= context.stop_requested
        return found, result

    def _write(self, found, step):
        """Writes summaries, a dict of serialized ones by tag, as those of a step, an int."""
        writer = tf.summary.FileWriterCache.get(FLAGS.model_dir)
        for tag, serialized in found.items():
            summary = tf.Summary.FromString(serialized)
            for value in summary.value:  # the tag that the op has in this build of the model
                value.tag = tag + value.tag[len(self._summaries[tag].op.name):]
            writer.add_summary(summary, step)
        writer.flush()
