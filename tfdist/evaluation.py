"""The test: the model in inference mode, on all of the test set, in batches."""

import sys

from absl import flags
from tfdist.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('test_batch_size', 1000, 'examples in a batch of the test', lower_bound=1)


class Test:
    """Tests the parameters as they are now."""

    def __init__(self, model, build):
        """Makes the ops, on the device of the scope.

        Args:
          model: `models.Model`.
          build: function of a batch that builds it for a test, and returns loss and metrics.
        """
        iterator = tf.data.make_initializable_iterator(model.test_batches(FLAGS.test_batch_size))
        batch = iterator.get_next()
        first = tf.nest.flatten(batch)[0]
        is_sparse = isinstance(first, tf.SparseTensor)
        others = set(tf.local_variables())

        def here(next_creator, **kwargs):  # and not on a ps, as other variables
            with tf.device(first.device):
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
        self._take_in = (first.dense_shape[0] if is_sparse else tf.shape(first)[0], means,
                         [metric[1] for metric in metrics.values() if isinstance(metric, tuple)])

    def run(self, session):
        """Returns a dict of floats, in a `tf.Session`: the metrics in the model's order, the loss.

        The mean of a metric is over the examples: a batch of fewer counts for less.
        """
        session.run(self._begin)
        examples, sums = 0, None
        while True:
            try:
                size, means, _ = session.run(self._take_in)
            except tf.errors.OutOfRangeError:
                break
            examples += size
            sums = {name: mean * size + (sums[name] if sums else 0) for name, mean in means.items()}
        if not examples:
            sys.exit('The test set is empty: there is nothing to test on.')
        figures = {name: total / examples for name, total in sums.items()}
        figures.update(session.run(self._streaming))
        return {name: float(figures[name]) for name in [*self._names, 'loss']}

    def in_step(self, step_context):
        """Does what `run` does, in `tf.train.MonitoredSession.run_step_fn`."""
        return self.run(step_context.session)
