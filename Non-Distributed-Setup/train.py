"""The learning problem on one machine, in one process: SGD on handwritten digits.

    x <- x - learning_rate * g(x)

Distributed-Setup is the same with the variables on a parameter server.
"""

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import servers
from tfdist.model import building, model_file
from tfdist.scheme import seam, tables
from tfdist.start import console
from tfdist.training import checkpoints, evaluation, report, sessions, training_flags
from tfdist.start.quiet import tf

model = model_file.load()
FLAGS = flags.FLAGS
training_flags.define(model, train_steps=3000, learning_rate=0.1,
                      counted='updates of the variables')
FLAGS.set_default('num_threads', 1)  # more only wait for each other in a small network


class Scheme(seam.Seam):
    """Plain SGD on variables in this process."""

    def make(self, network, global_step, hparams, task_index, num_workers):
        variables = network.variables
        self.pull = [global_step.read_value()] + [variable.read_value() for variable in variables]
        optimizer = network.optimizer(hparams.learning_rate)
        self.pushed, self.computed = network.gradients_at(self.pull[1:])
        update = optimizer.apply_gradients(tables.of_optimizer(self.pushed, variables))
        with tf.control_dependencies([update]):
            self.push = {'global_step': global_step.assign_add(1)}


def main(_):
    tf.set_random_seed(FLAGS.seed)
    global_step = tf.train.get_or_create_global_step()
    batches = model.train_batches(FLAGS.batch_size, Scheme.batches(FLAGS), seed=FLAGS.seed)
    network = building.Network(model, batches, training_flags.straggler_delay(0))
    test = evaluation.Test(model, network.at_variables, values=network.tested_values)
    scheme = Scheme(network, global_step, FLAGS, task_index=0, num_workers=1)

    trainer = sessions.Trainer.of(scheme, test)
    checkpoints.claim(FLAGS.model_dir, 'train')
    scaffold = tf.train.Scaffold(saver=checkpoints.Saver('train'))
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.model_dir, scaffold=scaffold, hooks=[trainer],
            config=servers.config(), save_checkpoint_secs=FLAGS.save_checkpoint_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None
    ) as session:
        progress = report.Progress('train', session.run(global_step), model=model)
        while progress.goes_on() and not session.should_stop():
            trainer.train_for_a_second(session, progress, then=test.now_and_then)
        progress.done()
        test.at_the_end(session, progress)


if __name__ == '__main__':
    console.run(main)
