"""Numbers on a ps that nobody has to initialize: they are in no checkpoint, and die with the ps."""

from tfdist.quiet import tf


class Ledger:
    """An int64 for each key, an int64; the same for all graphs that use the name and the device."""

    def __init__(self, name, device, default):
        """Takes a string, a device, and the int that stands for what nobody has written."""
        self._device, self._default = device, default
        with tf.device(device):
            self._table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64,
                                                        shared_name=name)

    def read(self, keys):
        """Returns an int64 tensor, the numbers of `keys`, an int64 tensor of the same shape."""
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
        """Returns an op that forgets all that was written."""
        with tf.device(self._device):
            nothing = tf.constant([], tf.int64)
            return tf.raw_ops.LookupTableImportV2(table_handle=self._table, keys=nothing,
                                                  values=nothing)
