"""The pulls and pushes of a run of a scheme's train op, in order: to be looked for, or run, by one.

See `seam` for the parts of a scheme. One that pulls or pushes several times in a run has lists of
these, besides: `pulls`, of lists of tensors, and `pushes`, of triples. The lists are spread evenly
over the local steps of a run: it begins with a pull, and ends with a push.
"""

import collections

from tfdist import graphs


class Pull(collections.namedtuple('Pull', 'after tensors')):
    """A pull of a run.

    Attributes:
      after: int, how many local steps of the run come before it.
      tensors: list of tensors, as `Seam.pull`; those of a later pull are to be fed, with what that
        reads then.
    """

    @property
    def results(self):
        """List of tensors: these are there when it is done."""
        return self.tensors

    @property
    def needs(self):
        """List of ops and tensors: what the worker has done before in this run."""
        return sorted(graphs.awaited(self.tensors), key=lambda op: op.name) if self.after else []


class Push(collections.namedtuple('Push', 'after pushed arrived figures')):
    """A push of a run.

    Attributes:
      after: int, how many local steps of the run come before it.
      pushed: list of tensors, what this worker pushes.
      arrived: list of tensors, the same, to be fed where one push is run by itself.
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


def exchanges(scheme, local_steps):
    """Returns the pulls and pushes of a run, a list of `Pull` and `Push` in order.

    After the same local step the push comes first.

    Args:
      scheme: `seam.Seam`.
      local_steps: int, how many there are in a run.
    """
    if not hasattr(scheme, 'pulls'):
        return [Pull(0, scheme.pull),
                Push(local_steps, scheme.pushed, scheme.pushed, scheme.push)]
    # Once in a run, at its ends, come what the model itself assigns to, and averages.
    pulls = [scheme.pull, *scheme.pulls[1:]]
    *others, (pushed, arrived, figures) = scheme.pushes
    once = scheme.pushed[sum(len(values) for values, _, _ in scheme.pushes):]
    pushes = [*others, ([*pushed, *once], [*arrived, *once],
                        dict(figures, global_step=scheme.push['global_step']))]
    found = [Push((i + 1) * local_steps // len(pushes), *push) for i, push in enumerate(pushes)]
    found += [Pull(i * local_steps // len(pulls), pull) for i, pull in enumerate(pulls)]
    return sorted(found, key=lambda exchange: exchange.after)
