"""The learning problem on one machine, in one process: SGD on handwritten digits.

    x <- x - learning_rate * g(x)

Distributed-Setup is the same with the variables on a parameter server.
"""

import time

from absl import flags
from tfdist import (building, checkpoints, console, evaluation, models, report, seam, sessions,
                    tables, training_flags)
from tfdist.quiet import tf

model = models.load()
FLAGS = flags.FLAGS
training_flags.define(train_steps=3000, learning_rate=0.1, counted='updates of the variables',
                      straggler=False)
flags.DEFINE_integer('num_threads', 1, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0)


class Scheme(seam.Seam):
    """Plain SGD on variables in this process."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = [global_step.read_value()] + [variable.read_value() for variable in variables]
        self.pushed, self.computed = network.gradients_at(self.pull[1:])
        update = network.optimizer(hparams.learning_rate).apply_gradients(
            tables.of_optimizer(self.pushed, variables), global_step)
        with tf.control_dependencies([update]):
            self.push = {'global_step': global_step.read_value()}


def main(_):
    tf.set_random_seed(FLAGS.seed)
    global_step = tf.train.get_or_create_global_step()
    batches = model.train_batches(FLAGS.batch_size, Scheme.local_steps(FLAGS), seed=FLAGS.seed)
    network = building.Network(model, batches)
    test = evaluation.Test(model, network.at_variables)
    scheme = Scheme(network, global_step, FLAGS, task_index=0, num_workers=1)

    past_the_hooks = sessions.PastTheHooks(scheme.train_op, test=test)
    checkpoints.claim(FLAGS.model_dir, 'train')
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
            while time.time() < until and progress.goes_on():
                progress.add(past_the_hooks.run())
            if progress.goes_on():
                progress.add(step_context.run_with_hooks(scheme.train_op))
            test.now_and_then(step_context.session, progress)

        while progress.goes_on() and not session.should_stop():
            session.run_step_fn(train)
        progress.done()
        progress.test(session.run_step_fn(test.in_step))


if __name__ == '__main__':
    console.run(main)
