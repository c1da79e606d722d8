"""Tables: variables too large to travel. A run reads and writes only the rows that it needs."""

import copy
import sys

from tfdist.scheme import graphs
from tfdist.start.quiet import tf


class Rows:
    """Takes the place of a variable: the rows of a table that one run of a graph asks for.

    They are the rows of all batches of the run, each once. So their values are a dense tensor like
    any other: read on the ps by one gather, trained on the worker, and written by one scatter.

    Attributes:
      table: `tf.Variable`.
      ids: int64 [rows] tensor on the table's device, which rows these are.
    """

    def __init__(self, table):
        self.table = table
        self._asked = []  # pairs of tensors: ids of any shape, and their positions among the rows
        self._known = _promise(tf.int64, [None])
        with tf.device(table.device):
            self.ids = tf.identity(self._known)

    @property
    def device(self):
        """The table's device, a string."""
        return self.table.device

    @property
    def op(self):
        """The op that made the table, and has its name."""
        return self.table.op

    @property
    def dtype(self):
        """The table's dtype."""
        return self.table.dtype

    @property
    def shape(self):
        """The shape of the rows' values; their number is unknown."""
        return tf.TensorShape([None]).concatenate(self.table.shape[1:])

    def of(self, other):
        """Returns the same rows of another table, a `tf.Variable` of as many rows."""
        rows = copy.copy(self)
        rows.table = other
        return rows

    def gather_from(self, values):
        """Returns a function of ids that looks up their rows in `values`, the values of all rows.

        Their positions in `values` are known after the last batch, see `all_asked`.
        """
        def gather(ids):
            where = _promise(tf.int32, ids.shape)
            self._asked.append((ids, where))
            return tf.gather(values, where)

        return gather

    def all_asked(self):
        """Determines the rows from the ids of all batches. Call it after the last batch.

        Raises:
          SystemExit: if an id depends on the contents of a row.
        """
        if self._known.op in graphs.ancestors([ids for ids, _ in self._asked]):
            sys.exit(f'Which rows of the table {self.op.name} are read depends on the rows that '
                     'were read before: a scheme that leaves tables on the ps reads all at once.')
        ids = [tf.reshape(tf.cast(ids, tf.int64), [-1]) for ids, _ in self._asked]
        unique, where = tf.unique(tf.concat(ids, axis=0))
        _keep(self._known, unique)
        for (asked, promised), part in zip(self._asked, tf.split(where, [tf.size(i) for i in ids])):
            _keep(promised, tf.reshape(part, tf.shape(asked)))

    def slices(self, values, ids):
        """Returns values of rows as `tf.IndexedSlices`; with its shape, as some optimizers want."""
        with tf.device(self.device):
            return tf.IndexedSlices(values, ids, tf.constant(self.table.shape.as_list(), tf.int64))

    def read_value(self):
        """Returns the rows' values, [rows, ...]."""
        return self.table.sparse_read(self.ids)

    def assign_add(self, delta, read_value=False):
        """Returns an op that adds to the rows."""
        del read_value
        return tf.raw_ops.ResourceScatterAdd(resource=self.table.handle, indices=self.ids,
                                             updates=delta)

    def assign_sub(self, delta, read_value=False):
        """Returns an op that subtracts from the rows."""
        return self.assign_add(-delta, read_value)

    def assign(self, value, read_value=False):
        """Returns an op that assigns the rows' values."""
        del read_value
        return tf.raw_ops.ResourceScatterUpdate(resource=self.table.handle, indices=self.ids,
                                                updates=value)

    def zeros(self):
        """Returns zeros in the shape of the rows' values."""
        shape = tf.concat([tf.shape(self._known), self.table.shape.as_list()[1:]], axis=0)
        return tf.zeros(shape, self.dtype.base_dtype)


def slot(variable, name):
    """Makes a slot of a variable, of the same shape and dtype: zeros at first, in no checkpoint.

    Args:
      variable: `tf.Variable` or `Rows`.
      name: string.

    Returns:
      `tf.Variable`; or, for `Rows`, the same rows of one.
    """
    whole = variable.table if isinstance(variable, Rows) else variable
    made = tf.get_variable(name, whole.shape, whole.dtype.base_dtype, tf.zeros_initializer(),
                           trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    return variable.of(made) if isinstance(variable, Rows) else made


def ids_of(variables):
    """Returns the ids, a list of tensors, of those variables that are `Rows`."""
    return [variable.ids for variable in variables if isinstance(variable, Rows)]


def of_optimizer(gradients, variables):
    """Returns a list of tensors and a list of variables, some `Rows`, as pairs for an optimizer."""
    return [(variable.slices(gradient, variable.ids), variable.table)
            if isinstance(variable, Rows) else (gradient, variable)
            for gradient, variable in zip(gradients, variables)]


def _promise(dtype, shape):
    """Returns a tensor whose value is set later, while the graph is still being made."""
    return tf.identity(tf.placeholder(dtype, shape))


def _keep(promise, tensor):
    """Sets the value of a promised tensor.

    There is no public way. Otherwise each batch would have to be drawn, and run through the model,
    twice: once to learn the ids, and again to train.
    """
    promise.op._update_input(0, tensor)
