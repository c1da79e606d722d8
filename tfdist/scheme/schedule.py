"""Lists a run's pulls and pushes, in order, so that each can be run alone."""

import collections

from tfdist.scheme import graphs


class Pull(collections.namedtuple('Pull', 'after tensors')):
    """A pull of a run.

    Attributes:
      after: int, how many local steps of the run precede it.
      tensors: list of tensors, as `Seam.pull`. Feed those of a later pull what a pull reads then.
    """

    @property
    def results(self):
        """List of tensors: when they are computed, the pull is done."""
        return self.tensors

    @property
    def needs(self):
        """List of ops and tensors that the worker has run before, in this run."""
        return sorted(graphs.awaited(self.tensors), key=lambda op: op.name) if self.after else []


class Push(collections.namedtuple('Push', 'after pushed arrived figures')):
    """A push of a run.

    Attributes:
      after: int, how many local steps of the run precede it.
      pushed: list of tensors that this worker pushes.
      arrived: list of the same tensors, to be fed when this push is run alone.
      figures: dict of tensors, as `Seam.push`.
    """

    @property
    def results(self):
        """See `Pull`."""
        return list(self.figures.values())

    @property
    def needs(self):
        """See `Pull`."""
        return self.pushed


def of(scheme, local_steps):
    """Returns the pulls and pushes of a run, a list of `Pull` and `Push` in order.

    They are spread evenly over the `local_steps` of a run of `scheme`, a `seam.Seam`. After the
    same local step, the push comes first.
    """
    if scheme.pulls is None:
        return [Pull(0, scheme.pull),
                Push(local_steps, scheme.pushed, scheme.pushed, scheme.push)]
    # The state that the model assigns to, and averages, travel once in a run: at its ends.
    pulls = [scheme.pull, *scheme.pulls[1:]]
    *others, (pushed, arrived, figures) = scheme.pushes
    once = scheme.pushed[sum(len(values) for values, _, _ in scheme.pushes):]
    pushes = [*others, ([*pushed, *once], [*arrived, *once],
                        dict(figures, global_step=scheme.push['global_step']))]
    found = [Push((i + 1) * local_steps // len(pushes), *push) for i, push in enumerate(pushes)]
    found += [Pull(i * local_steps // len(pulls), pull) for i, pull in enumerate(pulls)]
    return sorted(found, key=lambda exchange: exchange.after)
