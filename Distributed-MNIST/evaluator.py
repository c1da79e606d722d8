"""Follows a run: tests each new checkpoint, and exports the last one. It is not in the cluster.

    python evaluator.py --model_dir=DIRECTORY

It needs nothing but the checkpoints and the test set, holds up nobody, and may come late, be killed
and started again, or run after the training. It ends with the first checkpoint that has
--train_steps.
"""

import functools
import os
import sys

from absl import flags
from tfdist import averages, checkpoints, console, evaluation, sessions
from tfdist.quiet import tf

from worker import model  # with it come its flags: run.sh gives all programs the same ones

FLAGS = flags.FLAGS


def export(checkpoint, step, export_dir):
    """Exports a checkpoint as a SavedModel: from `images` to `classes` and `probabilities`.

    The graph is made anew. That of a worker would not do: its operations are bound to the devices
    of a cluster, and it reads from files.

    Args:
      checkpoint: string, as `tf.train.Saver` takes it.
      step: int, its global step.
      export_dir: string; the model comes into a directory below, with the step as its name.
        TensorFlow Serving takes the highest.

    Returns:
      String, that directory.

    Raises:
      SystemExit: if the checkpoint cannot be restored.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.placeholder(tf.float32, [None, model.read_index()['pixels']], 'images')
        scores = model.logits(images)
        outputs = {'classes': tf.argmax(scores, axis=1), 'probabilities': tf.nn.softmax(scores)}
        averages.Saver(None).restore(session, checkpoint)
        directory = os.path.join(export_dir, str(step))
        if not os.path.isdir(directory):
            part = f'{directory}.{os.getpid()}'
            tf.saved_model.simple_save(session, part, {'images': images}, outputs)
            os.rename(part, directory)  # so it is there as a whole or not at all
    return directory


def main(_):
    if not FLAGS.model_dir:
        sys.exit('evaluator: give the --model_dir of a run.')
    checkpoints.check_model_dir(FLAGS.model_dir)
    global_step = tf.train.get_or_create_global_step()
    FLAGS.eval_every_secs = FLAGS.stop_after_evals_without_gain = 0  # here each one is tested
    test = evaluation.Test(model, functools.partial(model.loss_and_metrics, training=False))
    saver = averages.Saver(None)
    writer = tf.summary.FileWriter(os.path.join(FLAGS.model_dir, 'evaluator'))
    with tf.Session(config=sessions.config()) as session:
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
                directory = os.path.join(FLAGS.model_dir, 'export')
                console.say('evaluator', f'exported to {export(checkpoint, step, directory)}'
                            if hasattr(model, 'logits') else
                            f'exports nothing: {model.name} has no logits()')
                return
    sys.exit(f'evaluator: no new checkpoint in {FLAGS.model_dir} for {FLAGS.patience_secs:g} s. Is '
             'the chief, worker 0, running?')


if __name__ == '__main__':
    console.run(main)
