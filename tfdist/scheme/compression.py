"""Compression of what a worker pushes, with error feedback: --compression.

    p <- g + e                            on the worker: g is what the scheme would push
    send Q(p)
    e <- p - Q(p)                         once the push has arrived

The ps decodes Q(p), which takes the place of g there. The residual e begins at 0. So whatever Q is,
the sum of all that was sent is the sum of all g, less e: nothing is lost, it only comes later.

Sai Praneeth Karimireddy, Quentin Rebjock, Sebastian Stich, Martin Jaggi, "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", ICML 2019, arXiv 1901.09847, algorithm 2.

With dgc:SHARE:MOMENTUM there is momentum on the worker, before the selection:
`DeepGradientCompression`.
"""

import functools
import sys

from absl import flags
from tfdist.scheme import compressors, exchange, tables, transfer
from tfdist.start.quiet import tf


def define():
    """Defines the flag."""
    flags.DEFINE_string('compression', 'none', 'how a worker compresses what it pushes, with error '
                        'feedback: none, bf16, fp16, int8, sign, or topk:SHARE, such as topk:0.01; '
                        'with momentum before that, dgc:SHARE:MOMENTUM; around a ring also '
                        'powersgd:RANK')


def is_asked_for(hparams):
    """Returns whether hyperparameters, an object, ask for compression; no flag is no."""
    return getattr(hparams, 'compression', 'none') != 'none'


def of(scheme, hparams, variables=None, optimizer=None):
    """Returns the `Compression` of what a scheme pushes, or `Uncompressed`.

    Args:
      scheme: `seam.Seam` that has made its pull. With compression it gets one of its `workers`.
      hparams: object that may have the attributes `compression` and `error_feedback`; the latter is
        a flag of the simulation, and True without it.
      variables: list of `tf.Variable` and `tables.Rows`, those for which it pushes; by default all
        of its network.
      optimizer: `tf.train.Optimizer` that gets what is pushed as the gradients of a step; None if
        changes are pushed, or a step is of one worker alone.

    Raises:
      SystemExit: if the compression cannot be had.
    """
    if not is_asked_for(hparams):
        return Uncompressed()
    variables = scheme.network.variables if variables is None else variables
    for variable in variables:
        if isinstance(variable, tables.Rows):
            sys.exit(f'--compression={hparams.compression}: {variable.op.name} is a table. Only '
                     'rows of it travel, while a residual would be as large as the table, on each '
                     'worker. Leave the compression out.')
    compressor = compressors.by_name(hparams.compression)
    momentum = compressors.momentum_of(hparams.compression)
    if momentum is not None:
        _check_that_it_is_sgd(optimizer, hparams)
    with tf.device(scheme.worker_device(scheme.task_index)):
        arguments = compressor, variables, scheme.index_to_feed(), scheme.pull[0]
        if momentum is not None:
            return DeepGradientCompression(*arguments, momentum)
        return Compression(*arguments, getattr(hparams, 'error_feedback', True))


def _check_that_it_is_sgd(optimizer, hparams):
    """Ends the program where momentum before the selection is no momentum of the center's."""
    if not getattr(hparams, 'error_feedback', True):
        sys.exit(f'--error_feedback=false: with --compression={hparams.compression} what is not '
                 'sent is the momentum.')
    if optimizer is None:
        sys.exit(f'--compression={hparams.compression}: its momentum is that of gradients of which '
                 'all workers make a step together, and here they push something else, or each by '
                 'itself. Take topk:SHARE.')
    if type(optimizer) is not tf.train.GradientDescentOptimizer:
        sys.exit(f'--compression={hparams.compression}: its momentum is on the workers, and what '
                 f'they send takes a step of plain SGD. Here {type(optimizer).__name__} would take '
                 'it, by an optimizer or a RECIPE of the model: leave these out, or take '
                 'topk:SHARE.')


class Uncompressed:
    """Takes the place of a `Compression` where there is none."""

    own = []

    def sent(self, tensors):
        """Returns the tensors twice, see `Compression`."""
        return tensors, tensors

    def arrived(self, figures):
        """Returns the figures."""
        return figures


class Compression:
    """Compresses what one worker pushes, each variable by itself, and keeps the residuals.

    Attributes:
      own: list of `tf.Variable` of the worker, see `seam.Seam`: the residuals, and what they will
        be when the push under way has arrived. They are in no checkpoint.
    """

    def __init__(self, compressor, variables, worker, step, feedback=True):
        """Makes the residuals, on the device of the scope.

        Args:
          compressor: `compressors.Compressor`.
          variables: list of `tf.Variable`, the center.
          worker: int64 scalar tensor, the index of the worker.
          step: integer scalar tensor, the global step as pulled, another one in each run.
          feedback: bool, whether the residuals are added; without it they stay 0.
        """
        self._compressor, self._variables, self._feedback = compressor, variables, feedback
        self._worker, self._step = worker, step
        self._residuals, self._following = (
            [exchange.own_variable(tf.zeros(variable.shape, dtype_of(variable)),
                                   f'{name}/{variable.op.name}') for variable in variables]
            for name in ('residual', 'next_residual'))
        self._kept = list(zip(self._residuals, self._following))
        self.own = self._residuals + self._following

    def sent(self, tensors):
        """Encodes what is to be pushed.

        Args:
          tensors: list of tensors of the variables' shapes and dtypes, on the worker.

        Returns:
          The list of vectors that travel, one for each variable, on the worker; and the list of
          tensors that are to be pushed in place of `tensors`, on the variables' devices.
        """
        encoded = self._encoded(tensors)
        pushed = []
        for each, variable in zip(transfer.to_ps(encoded, self._variables), self._variables):
            with tf.device(variable.device):  # else the worker decodes, and all of it travels
                pushed.append(self._decoded(each, variable))
        return encoded, pushed

    def sent_around(self, tensors, gather):
        """Encodes what workers without a ps send to each other, and sums it up.

        Args:
          tensors: list of tensors of the variables' shapes and dtypes, on the worker.
          gather: function of this worker's bytes, an uint8 [n] tensor, that returns those of all
            workers, [num_workers, n], in the same order on each of them.

        Returns:
          The uint8 [n] tensor that travels; and the list of sums over all workers, of the shapes
          and dtypes of the variables. Each worker adds in the order of the workers, not in that of
          arrival: so all have the same sums, bit for bit.
        """
        encoded = self._encoded(tensors)
        kinds = [(each.dtype, each.shape.num_elements()) for each in encoded]
        bytes_ = compressors.packed(encoded)

        def add(sums, one):
            return [total + self._decoded(each, variable) for total, each, variable in
                    zip(sums, compressors.unpacked(one, kinds), self._variables)]

        return bytes_, tf.foldl(add, gather(bytes_), exchange.zeros_like(self._variables))

    def _encoded(self, tensors):
        """Returns the list of encoded vectors, once it is kept what they leave out; see `sent`."""
        encoded, keep = [], []
        for i, tensor in enumerate(tensors):
            one, follows = self._encoded_one(i, tf.cast(tensor, self._residuals[i].dtype))
            encoded.append(one)
            keep += follows
        # A push reads what will follow: not before it is there.
        with tf.control_dependencies(keep):
            return [tf.identity(each) for each in encoded]

    def _encoded_one(self, i, tensor):
        """Returns an encoded vector, and the list of ops that keep what is to follow."""
        return self._encoded_and_decoded(i, tensor)[:2]

    def _encoded_and_decoded(self, i, tensor):
        """Returns the same, and what the receiver makes of the vector."""
        p = tensor + self._residuals[i].read_value()
        encoded = self._compressor.encode(tf.reshape(p, [-1]), functools.partial(self._seed, i))
        decoded = tf.cast(self._decoded(encoded, self._variables[i]), p.dtype)
        return encoded, [self._following[i].assign(p - decoded, read_value=False)], decoded

    def arrived(self, figures):
        """Returns the figures of a push, a dict of tensors, once the residuals are up to date.

        If a figure 'dropped' says that the push did not count, they stay as they were.
        """
        if not self._feedback:
            return figures
        updates = []
        with tf.control_dependencies(list(figures.values())):
            for kept, following in self._kept:
                value = following.read_value()
                if 'dropped' in figures:
                    value = tf.where_v2(figures['dropped'] > 0, kept.read_value(), value)
                updates.append(kept.assign(value, read_value=False))
        with tf.control_dependencies(updates):
            return {name: tf.identity(figure) for name, figure in figures.items()}

    def _seed(self, i):
        """Returns the seed of variable i in this step, see `compressors.Compressor.encode`."""
        return tf.stack([self._worker * len(self._variables) + i, tf.cast(self._step, tf.int64)])

    def _decoded(self, encoded, variable):
        """Returns what the ps makes of a vector, in the variable's shape and dtype."""
        vector = self._compressor.decode(encoded, variable.shape.num_elements(),
                                         dtype_of(variable))
        return tf.cast(tf.reshape(vector, variable.shape), variable.dtype.base_dtype)


class DeepGradientCompression(Compression):
    """Momentum on the worker, before the largest elements are selected.

        u <- momentum * u + g
        v <- v + u
        send the largest elements of v
        v <- 0 and u <- 0 where they were sent             once the push has arrived

    The step of what arrives is plain SGD. The v are the residuals. An element of u that was sent
    has done its work; as it begins anew, what is stale does not go on moving it. Neither the
    clipping on each worker nor the sparsity that rises over the first epochs is here.

    Yujun Lin, Song Han, Huizi Mao, Yu Wang, William Dally, "Deep Gradient Compression", ICLR 2018,
    arXiv 1712.01887, section 3.
    """

    def __init__(self, compressor, variables, worker, step, momentum):
        """See the base class.

        Args:
          compressor: `compressors.TopK`.
          variables: see there.
          worker: see there.
          step: see there.
          momentum: float, the share of u that a step keeps.
        """
        super().__init__(compressor, variables, worker, step)
        self._momentum = momentum
        self._velocities, self._next_velocities = (
            [exchange.own_variable(tf.zeros(variable.shape, dtype_of(variable)),
                                   f'{name}/{variable.op.name}') for variable in variables]
            for name in ('velocity', 'next_velocity'))
        self._kept += zip(self._velocities, self._next_velocities)
        self.own = self.own + self._velocities + self._next_velocities

    def _encoded_one(self, i, tensor):
        velocity = self._momentum * self._velocities[i].read_value() + tensor
        encoded, keep, decoded = self._encoded_and_decoded(i, velocity)
        follows = self._next_velocities[i].assign(self._masked(velocity, decoded),
                                                  read_value=False)
        return encoded, [*keep, follows]

    @staticmethod
    def _masked(velocity, decoded):
        """Returns the velocity, which begins anew where something was sent."""
        return tf.where(tf.equal(decoded, 0), velocity, tf.zeros_like(velocity))


def dtype_of(variable):
    """Returns the dtype of a variable's residual: half floats would lose much of it."""
    return tf.float64 if variable.dtype.base_dtype == tf.float64 else tf.float32
