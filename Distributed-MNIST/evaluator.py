"""Follows a run: tests each new checkpoint, and exports the last one. It is not in the cluster.

    python evaluator.py --model_dir=DIRECTORY

It needs only the checkpoints and the test set, and holds up nobody. It may start late, be killed
and restarted, or run after the training. It ends with the first checkpoint at --train_steps.
"""

import functools
import os
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import servers
from tfdist.start import console
from tfdist.training import checkpoints, evaluation
from tfdist.start.quiet import tf
from worker import model  # and the worker's flags: run.sh gives all programs the same ones

FLAGS = flags.FLAGS


def values():
    """Returns the values of the variables, a dict of tensors by name."""
    return {variable.op.name: variable.read_value() for variable in tf.global_variables()}


def main(_):
    if not FLAGS.model_dir:
        sys.exit('evaluator: give the --model_dir of a run.')
    checkpoints.check_model_dir(FLAGS.model_dir, 'evaluator')
    global_step = tf.train.get_or_create_global_step()
    FLAGS.eval_every_secs = FLAGS.stop_after_evals_without_gain = 0  # tests each checkpoint instead
    FLAGS.export_dir = (os.path.join(FLAGS.model_dir, 'export') if hasattr(model, 'predictions')
                        else None)  # in place of the flag, by which worker 0 exports
    test = evaluation.Test(model, functools.partial(model.loss_and_metrics, training=False),
                           values=values)
    saver = checkpoints.AveragesSaver(None)
    writer = tf.summary.FileWriter(os.path.join(FLAGS.model_dir, 'evaluator'))
    with tf.Session(config=servers.config()) as session:
        session.run(tf.tables_initializer())
        for checkpoint in tf.train.checkpoints_iterator(FLAGS.model_dir,
                                                        timeout=FLAGS.patience_secs):
            saver.restore(session, checkpoint)
            step, figures = session.run(global_step), test.run(session)
            writer.add_summary(tf.Summary(value=[
                tf.Summary.Value(tag=f'test_{name}', simple_value=value)
                for name, value in figures.items()]), step)
            writer.flush()
            words = ', '.join(f'{name} {figures[name]:.3f}' for name in reversed(list(figures)))
            console.say('evaluator', f'checkpoint at step {step}, {words}')
            if step >= evaluation.last_step():
                console.say('evaluator', f'exported to {test.export.write(session, step)}'
                            if test.export else
                            f'exports nothing: {model.name} has no predictions()')
                return
    sys.exit(f'evaluator: no new checkpoint in {FLAGS.model_dir} for {FLAGS.patience_secs:g} s. Is '
             'the chief, worker 0, running?')


if __name__ == '__main__':
    console.run(main)
