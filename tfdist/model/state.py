"""What a model keeps besides its parameters, such as the moving averages of batch norm."""

import sys

from tfdist.model import stand_ins
from tfdist.scheme import exchange, graphs, transfer
from tfdist.start.quiet import tf

FED = 'fed'  # collection of the placeholders that are fed whenever the graph runs


class State:
    """Variables that the model itself assigns to: read before a run, and pushed with it.

    A run adds to the center a share of the change that its local steps, in order, made to the
    values it read.

    Attributes:
      stand_ins: list of stand-ins for the variables, the same in all builds of the model.
      pull: list of tensors, the values as read, on the ps.
      pushed: list of tensors, the changes; set after all builds of the model.
    """

    def __init__(self, variables):
        """Reads the variables, a list of `tf.Variable`."""
        self._variables = variables
        self.pull, self.pushed = [exchange.read(variable) for variable in variables], []
        self._read = transfer.to_worker(self.pull)
        self.stand_ins = [stand_ins.of_state(*both) for both in zip(variables, self._read)]

    def push(self, share=1):
        """Returns an op that adds `pushed` to the variables: of floats, only the given share.

        Raises:
          SystemExit: if an assigned value depends on a placeholder that is not fed.
        """
        fed = {tensor.op for tensor in tf.get_collection(FED)}
        for op in graphs.ancestors([stand_in.current for stand_in in self.stand_ins]) - fed:
            if op.type == 'Placeholder' and op.outputs[0].dtype.is_floating:
                sys.exit(f'The model assigns a variable a value that depends on {op.name}, which '
                         'is not fed. Begin Keras models with tf.keras.Input(tensor=...).')
        self.pushed = [
            (stand_in.current - read) * (share if read.dtype.is_floating else 1)
            for stand_in, read in zip(self.stand_ins, self._read)]
        return exchange.add_to(self._variables, transfer.to_ps(self.pushed, self._variables))


class Own:
    """The worker's own state: local variables of the model, which stay on the worker.

    A recurrent network may carry its state from batch to batch in them. They are in no checkpoint,
    and begin anew with each session.

    Attributes:
      variables: list of `tf.Variable`.
      stand_ins: list of stand-ins for the variables, the same in all training builds of the model.
    """

    def __init__(self, variables):
        """Reads the variables, a list of `tf.Variable`."""
        self.variables = variables
        self.stand_ins = [stand_ins.of_state(variable, exchange.read(variable))
                          for variable in variables]

    def push(self):
        """Returns an op, made after all builds, that keeps what the last one has assigned."""
        return exchange.assign(self.variables, [each.current for each in self.stand_ins])
