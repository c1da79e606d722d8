"""What a model keeps besides its parameters, such as the moving averages of batch norm."""

import sys

from tfdist import exchange, graphs, stand_ins, transfer
from tfdist.quiet import tf

FED = 'fed'  # collection of the placeholders that who runs the graph feeds


class State:
    """Variables that the model itself assigns to: read before a run, and pushed with it.

    A run adds to the center what its local steps, in order, made of what it read. So it is with any
    number of workers as with one that runs by itself: the center keeps what everybody saw.

    Attributes:
      stand_ins: list of what the model gets in the place of the variables, in all builds.
      pull: list of tensors, the values as read, on the ps.
      pushed: list of tensors, what is added to them; it is there after all builds of the model.
    """

    def __init__(self, variables):
        """Reads the variables, a list of `tf.Variable`."""
        self._variables = variables
        self.pull, self.pushed = [exchange.read(variable) for variable in variables], []
        self._read = transfer.to_worker(self.pull)
        self.stand_ins = [stand_ins.of_state(*both) for both in zip(variables, self._read)]

    def push(self, share=1):
        """Returns an op that adds `pushed`, of fractions the `share` of one among many workers.

        Raises:
          SystemExit: if what is assigned depends on what nobody feeds.
        """
        fed = {tensor.op for tensor in tf.get_collection(FED)}
        for op in graphs.ancestors([stand_in.current for stand_in in self.stand_ins]) - fed:
            if op.type == 'Placeholder' and op.outputs[0].dtype.is_floating:
                sys.exit(f'The model assigns to a variable what depends on {op.name}, which nobody '
                         'feeds. Models of Keras begin with tf.keras.Input(tensor=...) here.')
        self.pushed = [
            (stand_in.current - read) * (share if read.dtype.is_floating else 1)
            for stand_in, read in zip(self.stand_ins, self._read)]
        return exchange.add_to(self._variables, transfer.to_ps(self.pushed, self._variables))
