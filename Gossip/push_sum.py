"""SGP, stochastic gradient push: workers send shares of what they have, in one direction.

Worker i has a replica x_i and a weight w_i, a number, 1 at first. In each step it does:

    z_i <- x_i / w_i
    x_i <- x_i - learning_rate * g_i(z_i)
    keep, and send to each of its n receivers, x_i / (n + 1) and w_i / (n + 1)
    x_i <- sum of the shares of x;  w_i <- sum of those of w          kept, and received

Of all that a worker has, each part goes to one place: so the sums of all x_i, and of all w_i, stay
what they are, whoever sends to whom. Who receives more than others has a larger x_i, and a w_i that
is larger by as much. In both graphs of `topology` each receives as many shares as it sends: there
w_i stays 1.

What is tested and saved is the sum of all x_i, divided by that of all w_i. Moving averages follow
x_i: their mean is the moving average of the mean of x. An optimizer has slots for x_i. Weight decay
is that of x_i: so the mean of x decays as the parameters of one worker would. What a model keeps,
as batch norm does, comes from z_i and does not travel.

Mahmoud Assran, Nicolas Loizou, Nicolas Ballas, Michael Rabbat, "Stochastic Gradient Push for
Distributed Deep Learning", arXiv 1811.10792.
"""

import copy
import functools

from tfdist.scheme import exchange, transfer
from tfdist.start.quiet import tf
import topology


def make(scheme, network, global_step, hparams):
    """Makes the parts of a `seam.Seam`; the arguments are those of `Seam.make`.

    It gets further attributes:
      weights: list of one `tf.Variable`, w_i.
      stepped: list of tensors, x_i after the step of the optimizer, and w_i.
      mixed: list of tensors, both after the exchange.
      meetings: list by phase of ops, the exchange of each, of which a run needs one: see
        `topology.phases`. Empty if there is only one, which `push` depends on.
    """
    variables = network.variables
    optimizer = network.optimizer(hparams.learning_rate)
    scheme.weights = scheme.own = [exchange.own_variable(tf.ones([]), 'weight')]
    kept = [*variables, *scheme.weights]
    scheme.pull = [global_step.read_value(), *(each.read_value() for each in kept)]
    *x, w = scheme.pull[1:]
    scheme.pushed, scheme.computed = network.gradients_at([
        value / tf.cast(w, value.dtype) for value in x])
    with tf.control_dependencies([optimizer.apply_gradients(zip(scheme.pushed, variables))]):
        scheme.stepped = [*(variable.read_value() for variable in variables), w]
    number = topology.phases(hparams.graph, scheme.num_workers)
    scheme.mixed, *others = [_meet(scheme, phase) for phase in range(number)]
    if others:
        # Each run has one of the exchanges, and all else of a step is the same.
        with tf.device('/device:CPU:0'):
            inbox = tf.FIFOQueue(1, [each.dtype for each in scheme.mixed],
                                 [each.shape for each in scheme.mixed])
            scheme.meetings = [inbox.enqueue(mixed) for mixed in (scheme.mixed, *others)]
            scheme.mixed = inbox.dequeue()
    with tf.control_dependencies([exchange.assign(kept, scheme.mixed)]):
        scheme.push = {'global_step': global_step.assign_add(1)}


def _meet(scheme, phase):
    """Returns what a worker has after the exchange of a phase, a list of tensors."""
    place = scheme.task_index, scheme.num_workers, phase
    receivers, senders = topology.receivers_of(*place), topology.senders_of(*place)
    if scheme.by_sockets and receivers:
        mine = share(transfer.bundle(scheme.stepped), len(receivers))
        return transfer.unbundle(scheme.by_sockets.totals(mine, receivers, senders),
                                 scheme.stepped)
    mine = share(scheme.stepped, len(receivers))
    sends, parts = scheme.swap(mine, scheme.task_index, receivers, senders)
    parts[scheme.task_index] = mine
    with tf.control_dependencies(sends):
        return total([parts[each] for each in sorted(parts)])


def take_turns(scheme):
    """Gives a complete `seam.Seam` with several `meetings` its `others`: each run makes one."""
    runs = [scheme, *(copy.copy(scheme) for _ in scheme.meetings[1:])]
    for each, meeting in zip(runs, scheme.meetings):
        with tf.control_dependencies([meeting]):
            step = tf.identity(scheme.push['global_step'])
        each.train_op = dict(scheme.train_op, global_step=step)
    scheme.others = runs[1:]


def share(values, receivers):
    """Returns what each of a number of receivers gets of a list of tensors, and the sender keeps.

    The shares of a sender make up all that it had: what another one receives does not matter here.
    """
    return [value / (receivers + 1) for value in values]


def total(parts):
    """Returns the sums of lists of tensors, a list, added in the order of the lists."""
    return [functools.reduce(tf.add, each) for each in zip(*parts)]
