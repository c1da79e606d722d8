"""Finds out how far the clocks of hosts differ, from transfers: none ends before it could begin.

Tasks of one host have one clock. Hosts set theirs by the network, mostly to within a millisecond,
which is as long as many a transfer. A tensor arrives after it was computed, so each transfer bounds
the difference of two clocks, and those there and back bound it from both sides.
"""

import collections

# So much a tensor may seem to arrive before it was there: what was noted is rounded, and late.
_TOLERANCE_MS = 0.1


def find(runs, reference):
    """Returns by how much to correct times: a dict of floats, milliseconds by task.

    An offset is 0 if the times of a task agree with those of the reference. Otherwise it is how far
    the task's clock is ahead, in the middle of what is possible.

    Args:
      runs: list of runs, each a list of `lanes.Event`.
      reference: string, the task that has the clock.
    """
    least = bounds(runs)
    offsets, reached = {reference: 0.}, [reference]
    while reached:
        here = reached.pop(0)
        for there in {task for way in least if here in way for task in way} - set(offsets):
            offsets[there] = offsets[here] + _between(
                least.get((there, here), float('-inf')), -least.get((here, there), float('-inf')))
            reached.append(there)
    return offsets


def _between(low, high):
    """Returns the offset of a clock that is at least `low` and at most `high` ahead."""
    if low <= _TOLERANCE_MS and high >= -_TOLERANCE_MS:
        return 0.
    if float('inf') in (abs(low), abs(high)):
        return low if low > 0 else high
    return (low + high) / 2


def bounds(runs):
    """Returns by how much clocks are ahead of others at least: a dict of floats, milliseconds.

    The keys are pairs of tasks, the sender of transfers and their receiver.

    Args:
      runs: list of runs, each a list of `lanes.Event`.
    """
    found = collections.defaultdict(lambda: float('-inf'))
    for events in runs:
        made = {(event.clock, event.name): event.end for event in events
                if event.kind != 'transfers'}
        for event in events:
            if (event.sender, event.name) in made:
                way = event.sender, event.task
                found[way] = max(found[way], made[event.sender, event.name] - event.end)
    return dict(found)
