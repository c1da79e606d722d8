"""The learning problem on one machine, in one process: SGD on handwritten digits.

    x <- x - learning_rate * g(x)

Distributed-Setup is the same with the variables on a parameter server.
"""

import console  # first: it loads TensorFlow without its banners
import time

from absl import flags
import model
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('train_steps', 3000, 'updates of the variables', lower_bound=1)
flags.DEFINE_integer('batch_size', 32, 'examples in the batch of a step', lower_bound=1)
flags.DEFINE_float('learning_rate', 0.1, 'step size', lower_bound=0)
flags.DEFINE_integer('seed', 1, 'of the initial values and the order of the examples')
flags.DEFINE_string('model_dir', None, 'directory for checkpoints and summaries')
flags.DEFINE_float('save_checkpoint_secs', 60, 'time between checkpoints', lower_bound=0.1)
flags.DEFINE_integer('log_every_n_steps', 500, 'steps between two lines', lower_bound=1)
flags.DEFINE_integer('num_threads', 1, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0)


def sgd(loss, accuracy, variables, global_step, learning_rate):
    """Makes one step of SGD.

    Args:
      loss: float32 scalar tensor, on a fresh batch.
      accuracy: float32 scalar tensor, on the same batch.
      variables: list of `tf.Variable`.
      global_step: integer `tf.Variable`, counts the steps.
      learning_rate: float.

    Returns:
      Dict of tensors to run again and again: 'global_step' after the step, 'loss', 'accuracy'.
    """
    update = tf.train.GradientDescentOptimizer(learning_rate).minimize(
        loss, global_step=global_step, var_list=variables)
    with tf.control_dependencies([update]):
        return {'global_step': global_step.read_value(), 'loss': loss, 'accuracy': accuracy}


class PastTheHooks(tf.train.SessionRunHook):
    """Runs `fetches` past the hooks, which together take longer than a step of a small network."""

    def __init__(self, fetches):
        self._fetches = fetches

    def after_create_session(self, session, coord):
        self.run = session.make_callable(self._fetches)


def main(_):
    tf.set_random_seed(FLAGS.seed)
    global_step = tf.train.get_or_create_global_step()
    _, test_accuracy = model.loss_and_accuracy(*model.test_set())
    variables = tf.trainable_variables()
    batch, = model.train_batches(FLAGS.batch_size, count=1, seed=FLAGS.seed)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        loss, accuracy = model.loss_and_accuracy(*batch)
    train_op = sgd(loss, accuracy, variables, global_step, FLAGS.learning_rate)

    past_the_hooks = PastTheHooks(train_op)
    console.check_model_dir(FLAGS.model_dir)
    scaffold = tf.train.Scaffold(saver=console.Saver('train'))
    config = tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                            inter_op_parallelism_threads=FLAGS.num_threads)
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, scaffold=scaffold, hooks=[past_the_hooks],
            config=config, save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None
    ) as session:
        progress = console.Progress('train', session.run(global_step))

        def train(step_context):
            """Trains past the hooks for a second, and one step with them: checkpoints."""
            until = time.time() + 1
            while time.time() < until and progress.global_step < FLAGS.train_steps:
                progress.add(past_the_hooks.run())
            if progress.global_step < FLAGS.train_steps:
                progress.add(step_context.run_with_hooks(train_op))

        while progress.global_step < FLAGS.train_steps and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run(test_accuracy))


if __name__ == '__main__':
    console.run(main)
