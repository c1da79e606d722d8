"""Events for TensorBoard, on the virtual clock."""

from tfdist.quiet import tf


class Board:
    """Writes figures whose time is the virtual one: in TensorBoard, choose Relative or Step."""

    def __init__(self, directory):
        """Takes the directory of the events."""
        with tf.Graph().as_default():  # no eager mode
            self._writer = tf.summary.FileWriter(directory)

    def add(self, row, rate):
        """Writes a row of `record.Record.curve`, and the local steps in a virtual second."""
        figures = dict(row, local_steps_per_second=rate)
        step, seconds = figures.pop('step'), figures.pop('seconds')
        summary = tf.Summary(value=[tf.Summary.Value(tag=name, simple_value=value)
                                    for name, value in figures.items()])
        self._writer.add_event(tf.Event(wall_time=seconds, step=step, summary=summary))

    def close(self):
        """Writes what is left."""
        self._writer.close()
