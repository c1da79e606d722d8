"""FedBuff: no rounds. Whoever is ready trains the next client, and a full buffer moves the center.

The center moves when the pushes of --buffer=K clients are there, whichever these are. What began
at an older center counts less. Nobody waits but for the update of a full buffer: a client whose
worker dies is left out until its turn comes again.

John Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv
2106.06639, algorithm 1.
"""

import time

from tfdist.synchronous import stamps
from tfdist.start.quiet import tf
import admissions
import rounds

_LOOK_SECS = 0.005  # far less than a client's training


def of_age(staleness):
    """Returns what pushes count for: 1 / sqrt(1 + staleness), float64, of an int64 tensor."""
    return 1 / tf.sqrt(1 + tf.cast(staleness, tf.float64))


class Buffers(rounds.Steps):
    """Draws the clients one by one; the chief makes a step of the center of each full buffer."""

    gives_back = False  # nobody waits for a client

    def asks(self, after=()):
        """See the base class: the ticket, and whether the run is over."""
        ticket = self._scheme.admissions.draw(self._global_step, after)
        with tf.control_dependencies([ticket]):  # an end before it would be missed
            return tf.concat([ticket, self.ends()], axis=0)

    def make_open(self, scheme):
        stamp, number = scheme.clock.read(), self._hparams.buffer
        # A run that goes on draws the clients that come next, about.
        self._open = scheme.admissions.open(stamp, number, stamps.step_of(stamp) * number)

    def take_next(self, ask):
        while True:
            number, _, _, *ends = ask()
            if self.is_over(ends) or number != admissions.NONE:
                return not self.is_over(ends)
            time.sleep(_LOOK_SECS)

    def make_steps(self, session, complete):
        ends, _ = session.run([self._ends, self._open])
        while not self.is_over(ends):
            ends, _ = complete()
