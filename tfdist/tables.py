"""Tables: variables too large to travel, of which a run reads and writes the rows that it needs."""

import copy
import sys

from tfdist import graphs
from tfdist.quiet import tf


class Rows:
    """The rows of a table that one run of a graph asks for: in the place of a variable.

    They are those of all batches of the run, each once. So their values are a dense tensor like any
    other: read on the ps in one gather, trained on by the worker, and written in one scatter.

    Attributes:
      table: `tf.Variable`.
      ids: int64 [rows] tensor, which rows; on the table's device.
    """

    def __init__(self, table):
        self.table = table
        self._asked = []  # pairs of tensors: ids of any shape, and where they are among the rows
        self._known = _promise(tf.int64, [None])
        with tf.device(table.device):
            self.ids = tf.identity(self._known)

    @property
    def device(self):
        """Where the table is, a string."""
        return self.table.device

    @property
    def op(self):
        """The op that made the table; it has the table's name."""
        return self.table.op

    @property
    def dtype(self):
        """That of the table."""
        return self.table.dtype

    @property
    def shape(self):
        """That of the rows' values; nobody knows how many there will be."""
        return tf.TensorShape([None]).concatenate(self.table.shape[1:])

    def of(self, other):
        """Returns the same rows of another table, a `tf.Variable` of as many rows."""
        rows = copy.copy(self)
        rows.table = other
        return rows

    def gather_from(self, values):
        """Returns a function of ids that looks up their rows among `values`, those of all rows.

        Which of them these are is known after the last batch: see `all_asked`.
        """
        def gather(ids):
            where = _promise(tf.int32, ids.shape)
            self._asked.append((ids, where))
            return tf.gather(values, where)

        return gather

    def all_asked(self):
        """Tells the rows from the ids that all batches asked for. To be called after the last.

        Raises:
          SystemExit: if an id depends on what is in a row.
        """
        if self._known.op in graphs.ancestors([ids for ids, _ in self._asked]):
            sys.exit(f'Which rows of the table {self.op.name} are read depends on the rows that '
                     'were read before: a scheme that leaves tables on the ps reads all at once.')
        ids = [tf.reshape(tf.cast(ids, tf.int64), [-1]) for ids, _ in self._asked]
        unique, where = tf.unique(tf.concat(ids, axis=0))
        _keep(self._known, unique)
        for (asked, promised), part in zip(self._asked, tf.split(where, [tf.size(i) for i in ids])):
            _keep(promised, tf.reshape(part, tf.shape(asked)))

    def read_value(self):
        """Returns the rows' values, [rows, ...], as `tf.Variable.read_value` those of all."""
        return self.table.sparse_read(self.ids)

    def assign_add(self, delta, read_value=False):
        """Returns an op that adds to each row."""
        del read_value
        return tf.raw_ops.ResourceScatterAdd(resource=self.table.handle, indices=self.ids,
                                             updates=delta)

    def assign_sub(self, delta, read_value=False):
        """Returns an op that subtracts from each row."""
        return self.assign_add(-delta, read_value)

    def assign(self, value, read_value=False):
        """Returns an op that gives each row its value."""
        del read_value
        return tf.raw_ops.ResourceScatterUpdate(resource=self.table.handle, indices=self.ids,
                                                updates=value)

    def zeros(self):
        """Returns zeros of the shape of the rows' values."""
        shape = tf.concat([tf.shape(self._known), self.table.shape.as_list()[1:]], axis=0)
        return tf.zeros(shape, self.dtype.base_dtype)


def slot(variable, name):
    """Makes what a rule keeps beside a variable: zeros, trained by nobody, in no checkpoint.

    Args:
      variable: `tf.Variable`, or `Rows`.
      name: string.

    Returns:
      A `tf.Variable` of the same shape and dtype; or the same rows of one.
    """
    whole = variable.table if isinstance(variable, Rows) else variable
    made = tf.get_variable(name, whole.shape, whole.dtype.base_dtype, tf.zeros_initializer(),
                           trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    return variable.of(made) if isinstance(variable, Rows) else made


def ids_of(variables):
    """Returns a list of tensors: which rows, of those of the variables that are `Rows`."""
    return [variable.ids for variable in variables if isinstance(variable, Rows)]


def of_optimizer(gradients, variables):
    """Returns a list of pairs as `tf.train.Optimizer.apply_gradients` takes them.

    Args:
      gradients: list of tensors.
      variables: list of `tf.Variable`, and `Rows`.
    """
    return [(tf.IndexedSlices(gradient, variable.ids), variable.table)
            if isinstance(variable, Rows) else (gradient, variable)
            for gradient, variable in zip(gradients, variables)]


class MeansOfSums:
    """An optimizer that gets the mean of dense gradients, and the sum of those of tables' rows.

    An accumulator of rows has another mean: it divides each row by how many workers pushed it. Of a
    row that one of two workers pushed, half counts here, as of a dense gradient that is 0 for one.
    """

    def __init__(self, optimizer, number):
        """Takes a `tf.train.Optimizer`, and of how many gradients a sum is."""
        self._optimizer, self._number = optimizer, number

    def apply_gradients(self, gradients, global_step):
        """See `tf.train.Optimizer`."""
        return self._optimizer.apply_gradients([
            (tf.IndexedSlices(gradient.values / self._number, gradient.indices), variable)
            if isinstance(gradient, tf.IndexedSlices) else (gradient, variable)
            for gradient, variable in gradients], global_step)


def _promise(dtype, shape):
    """Returns a tensor whose value becomes known while the graph is still being made."""
    return tf.identity(tf.placeholder(dtype, shape))


def _keep(promise, tensor):
    """Gives a tensor that was promised its value.

    There is no public way. Without it each batch would have to be drawn, and what the model does to
    it done, twice: once to learn the ids, and again to train.
    """
    promise.op._update_input(0, tensor)
