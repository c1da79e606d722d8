"""Writes events for TensorBoard at virtual times."""

from tfdist.start.quiet import tf


class Events:
    """A file of events at virtual times: in TensorBoard, choose Relative or Step."""

    def __init__(self, directory):
        """Takes the directory for the file."""
        with tf.Graph().as_default():  # no eager mode
            self._writer = tf.summary.FileWriter(directory)

    def add(self, row, rate):
        """Writes a row of `record.Record.curve` and the local steps per virtual second."""
        figures = dict(row, local_steps_per_second=rate)
        step, seconds = figures.pop('step'), figures.pop('seconds')
        summary = tf.Summary(value=[tf.Summary.Value(tag=name, simple_value=value)
                                    for name, value in figures.items()])
        self._writer.add_event(tf.Event(wall_time=seconds, step=step, summary=summary))

    def close(self):
        """Writes the remaining events."""
        self._writer.close()
