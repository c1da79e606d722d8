"""Numbers on a ps that need no initialization: they are in no checkpoint, and die with the ps."""

from tfdist.start.quiet import tf


class VolatileTable:
    """Maps int64 keys to int64 numbers; graphs that use the same name and device share a table."""

    def __init__(self, name, device, default):
        """Takes a name, a device, and the int to read where nothing was written."""
        self._device, self._default = device, default
        with tf.device(device):
            self._table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64,
                                                        shared_name=name)

    def read(self, keys):
        """Returns the numbers of `keys`; both are int64 tensors of one shape."""
        with tf.device(self._device):
            return tf.raw_ops.LookupTableFindV2(
                table_handle=self._table, keys=keys,
                default_value=tf.constant(self._default, tf.int64))

    def write(self, keys, values):
        """Returns an op that writes the numbers of `keys`; both are int64 tensors of one shape."""
        with tf.device(self._device):
            return tf.raw_ops.LookupTableInsertV2(table_handle=self._table, keys=keys,
                                                  values=values)

    def clear(self):
        """Returns an op that empties the table."""
        with tf.device(self._device):
            nothing = tf.constant([], tf.int64)
            return tf.raw_ops.LookupTableImportV2(table_handle=self._table, keys=nothing,
                                                  values=nothing)
