"""The learning problem on one machine, in one process: SGD on handwritten digits.

    x <- x - learning_rate * g(x)

Distributed-Setup is the same with the variables on a parameter server.
"""

import time

from absl import flags
from tfdist import checkpoints, console, report, sessions, training_flags
from tfdist.quiet import tf

import model

FLAGS = flags.FLAGS
training_flags.define(train_steps=3000, learning_rate=0.1, counted='updates of the variables',
                      straggler=False)
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


def main(_):
    tf.set_random_seed(FLAGS.seed)
    global_step = tf.train.get_or_create_global_step()
    _, test_accuracy = model.loss_and_accuracy(*model.test_set())
    variables = tf.trainable_variables()
    batch, = model.train_batches(FLAGS.batch_size, count=1, seed=FLAGS.seed)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        loss, accuracy = model.loss_and_accuracy(*batch)
    train_op = sgd(loss, accuracy, variables, global_step, FLAGS.learning_rate)

    past_the_hooks = sessions.PastTheHooks(train_op, test=test_accuracy)
    checkpoints.check_model_dir(FLAGS.model_dir)
    scaffold = tf.train.Scaffold(saver=checkpoints.Saver('train'))
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, scaffold=scaffold, hooks=[past_the_hooks],
            config=sessions.config(), save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None
    ) as session:
        progress = report.Progress('train', session.run(global_step))

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
