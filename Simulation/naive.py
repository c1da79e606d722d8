"""A model of one line, beside which the simulation is to be judged: what is it worth to simulate?

    min(N * w / run, cores * w / work, rate * w / bytes)

N workers make N times the local steps of one, until the processors, or the line of the ps, are busy
all the time. A run of one worker's train op makes w local steps; it takes `run` seconds, alone and
with nothing in its way, and `work` seconds of processors. In a ring each further worker adds to
both what the second and the third one have added.
"""

from measuring import there_and_back
from measuring.results import median
import validate_cases
from validate_cases import RING


def steps_per_second(rows, case):
    """Returns the local steps/s of all workers.

    Args:
      rows: list of dicts, with the fitted cases of the scheme.
      case: dict of strings by `validate_cases.FIELDS`.
    """
    is_ring, workers, window = case['scheme'] == RING, int(case['workers']), int(case['window'])
    run, work = (_in_a_ring if is_ring else _measured)(rows, case)
    run += window * int(case['sleep'] or 0) / 1000
    # Each pull and each push is a round trip; in a ring each hop is one, and the beginning.
    hops = 2 * (workers - 1)
    run += (hops + 1 if is_ring else 2) * int(case['round_trip'] or 0) / 1000
    cores = int(rows[0]['machine'].split()[0])
    bounds = [cores * window / work]
    if case['mbit']:
        rate = int(case['mbit']) * 1e6 / 8
        size = there_and_back.size_of(there_and_back.SHAPES[case['model'] or 'digits'])
        run += (hops / workers if is_ring else 2) * size / rate
        if not is_ring:
            bounds.append(rate * window / size)
    return min(workers * window / run, *bounds)


def _measured(rows, case, workers=1):
    """Returns the seconds of a run as measured with so many workers, and of processors in it."""
    own = validate_cases.costing(rows, case['scheme'], workers, case['window'], case['model'])
    return median(own, 'run_s'), median(own, 'work_s')


def _in_a_ring(rows, case):
    """Returns the seconds of a run with the workers of a ring, and of processors for each."""
    workers = int(case['workers'])
    (one, alone), (two, work), (_, more) = (_measured(rows, case, number) for number in (1, 2, 3))
    return (one + (workers - 1) * (two - one),
            alone if workers == 1 else work + (workers - 2) * (more - work))
