"""A cost model: how many local steps per second a scheme makes, and what it sends.

    python scaling.py results            fits it to what was measured, and says how wrong it is

With a parameter server, a worker computes a window of T local steps of s seconds each; then it
pulls the parameters, K bytes, and pushes as much. For both together the runtime takes e seconds of
the worker's time, and o seconds of processor time on the worker and on the servers, half and half.
There are N workers, P servers, B bytes/s on each link in each direction, a round trip of r, two
of them in an exchange, and C cores on each server. A window takes

    asynchronous  max(T s + e + 2 r + 2 K / B,  N K / (P B),  N o / (2 P C))
    synchronous   T s + max(e, N o / (2 P C)) + 2 r + max(2 K / B, 2 N K / (P B))

since asynchronous workers compute while others travel; in step, all travel at once. In a ring there
are 2 (N - 1) hops of K / N bytes, with e and o for each of them. A hop takes a round trip, as who
gets something asks for it, and to begin takes one more:

    ring          s + 2 (N - 1) (e + K / (N B)) + (2 N - 1) r

All workers together make N T local steps in that time. When all tasks share one machine of C cores,
a window takes at least as long as these have to work for it: N (T s + o) / C, and in a ring
N (s + 2 (N - 1) o) / C.

What it leaves out: that e and o grow with the bytes, which have to be copied; workers of different
speed (a straggler holds up all that are in step, by as much as it is late; see the measured
picture); batches of different cost; the time that schemes take on a ps beyond adding; locks; other
traffic in the network; a switch that has not the bandwidth of all its links; and what staleness
does to the accuracy: it counts steps, not what they are worth.
"""

import collections
import csv
import math
import pathlib
import statistics
import sys

from examples import examples
import numpy as np
import scipy.optimize

ROUND_TRIPS = 2  # in an exchange with a ps, as `round_trips` counts them
DIGITS = 4 * (64 * 128 + 128 + 128 * 10 + 10)  # bytes of the parameters of the network
BOUNDARY = 4 * 32 * 128  # bytes of the activations between the layers, of a batch
# A large network, for the prediction: bytes of its parameters, seconds of a local step.
LARGE, LARGE_STEP = 1e8, 0.1

# Seconds: of a local step, s; of an exchange or hop as the worker waits, e; and as processors work
# for it, o.
Costs = collections.namedtuple('Costs', 'step exchange work')
# The number of servers, P; cores of each server, or of the machine if all tasks share one, C;
# bytes/s of a link, B; seconds of a round trip, r.
Cluster = collections.namedtuple('Cluster', 'servers cores bandwidth round_trip shared')


def seconds_of_window(kind, synchronous, workers, window, size, costs, cluster):
    """Returns how long all workers take for one window of local steps each.

    Args:
      kind: 'server' or 'ring'.
      synchronous: bool; a ring always is.
      workers: int, N.
      window: int, T; in a ring 1.
      size: number, K, bytes of the parameters.
      costs: `Costs`.
      cluster: `Cluster`.
    """
    compute = window * costs.step
    if kind == 'ring':
        hops = 2 * (workers - 1)
        alone = compute + hops * (costs.exchange + size / workers / cluster.bandwidth)
        if hops:
            alone += (hops + 1) * cluster.round_trip
        work = workers * (compute + hops * costs.work)
    else:
        carry = 2 * size / cluster.bandwidth
        carry_all = workers * size / (cluster.servers * cluster.bandwidth)
        serve_all = (0 if cluster.shared else
                     workers * costs.work / (2 * cluster.servers * cluster.cores))
        wait = ROUND_TRIPS * cluster.round_trip
        if synchronous:
            alone = (compute + max(costs.exchange, serve_all) + wait
                     + max(carry, 2 * carry_all))
        else:
            alone = max(compute + costs.exchange + wait + carry, carry_all, serve_all)
        work = workers * (compute + costs.work)
    return max(alone, work / cluster.cores) if cluster.shared else alone


def steps_per_second(kind, synchronous, workers, window, size, costs, cluster):
    """Returns the local steps/s of all workers together; see `seconds_of_window`."""
    return workers * window / seconds_of_window(kind, synchronous, workers, window, size, costs,
                                                cluster)


def bytes_per_step(kind, workers, window, size=DIGITS, boundary=BOUNDARY):
    """Returns what a worker sends and gets in one local step, in bytes, without counters.

    Args:
      kind: `Example.kind`.
      workers: int.
      window: int, local steps between two exchanges.
      size: number, bytes of the parameters.
      boundary: number, bytes of the activations between two layers; they return as gradients.
    """
    if kind == 'server':
        return 2 * size / window
    if kind == 'ring':
        return 2 * (workers - 1) / workers * size
    return 2 * boundary if kind == 'layers' else 0


def family(example):
    """Returns of an `Example` (kind, whether it is synchronous)."""
    return example.kind, example.synchronous


def points(rows):
    """Returns what was measured without a straggler on any number of workers.

    Args:
      rows: list of dicts, as in results.csv.

    Returns:
      Dict of lists of (workers, window, steps/s), by `family`.
    """
    of_folder = {example.name: example for example in examples()}
    found = collections.defaultdict(list)
    for row in rows:
        example = of_folder.get(row['folder'])
        if (example and example.free_workers and row['experiment'] in ('window', 'workers')
                and row['steps_per_s']):
            found[family(example)].append((int(row['workers']), int(row['window']),
                                           float(row['steps_per_s'])))
    return found


def fit(measured, synchronous, kind, cluster):
    """Finds the costs with which the model comes closest, in ratios.

    Args:
      measured: list of (workers, window, steps/s).
      synchronous: bool.
      kind: 'server' or 'ring'.
      cluster: `Cluster`, what they were measured on.

    Returns:
      `Costs`.
    """
    def errors(logarithms):
        costs = Costs(*np.exp(logarithms))
        return [math.log(steps_per_second(kind, synchronous, workers, window, DIGITS, costs,
                                          cluster) / rate)
                for workers, window, rate in measured]

    start = np.log([2e-4, 1e-3, 1e-3])
    # Like absolute errors: a run that something disturbed does not count by its square.
    best = scipy.optimize.least_squares(errors, start, loss='soft_l1', f_scale=0.1)
    return Costs(*np.exp(best.x))


def check(rows, cores):
    """Fits the model to all runs but those with the most workers, and checks it on these.

    Args:
      rows: list of dicts, as in results.csv.
      cores: int, of the machine that they were measured on.

    Returns:
      Dict by `family` of (`Costs`, list of (workers, window, steps/s, model's steps/s, whether it
      was fitted to this)).
    """
    cluster = Cluster(1, cores, math.inf, 0, True)
    found = {}
    for (kind, synchronous), measured in sorted(points(rows).items()):
        most = max(workers for workers, _, _ in measured)
        few = [point for point in measured if point[0] < most]
        if len(few) < 3:
            continue
        costs = fit(few, synchronous, kind, cluster)
        found[kind, synchronous] = costs, [
            (*point, steps_per_second(kind, synchronous, *point[:2], DIGITS, costs, cluster),
             point in few) for point in measured]
    return found


def errors(checked, fitted):
    """Returns the model's relative errors on what it was fitted to, or on the rest."""
    return [abs(model / rate - 1) for _, _, rate, model, known in checked if known == fitted]


def round_trips(rows):
    """Returns how many round trips there are in a window, from the runs at a distance.

    That is by how much a window takes longer with the longest round trip than without any.

    Args:
      rows: list of dicts, as in results.csv.

    Returns:
      Dict of floats by (folder, window).
    """
    seconds = collections.defaultdict(dict)
    for row in rows:
        if row['experiment'] == 'latency' and row['steps_per_s']:
            windows = float(row['steps_per_s']) / int(row['window']) / int(row['workers'])
            seconds[row['folder'], int(row['window'])][float(row['round_trip'])] = 1 / windows
    return {which: (times[max(times)] - times[0]) / (max(times) / 1000)
            for which, times in seconds.items() if 0 in times and len(times) > 1}


NAMES = {('server', False): 'asynchronous', ('server', True): 'synchronous', ('ring', True): 'ring'}


def table(rows, cores):
    """Returns the lines of a table of the fitted costs and of the errors, in Markdown."""
    lines = ['| | s, ms | e, ms | o, ms | error where fitted (worst) | '
             'error with the most workers (worst) |', '|---|---:|---:|---:|---:|---:|']
    for which, (costs, checked) in check(rows, cores).items():
        cells = [NAMES[which], *(f'{1000 * cost:.2f}' for cost in costs)]
        for fitted in True, False:
            found = errors(checked, fitted)
            cells.append(f'{statistics.median(found):.0%} ({max(found):.0%}), {len(found)} runs')
        lines.append(f'| {" | ".join(cells)} |')
    trips = round_trips(rows)
    if trips:
        lines += ['', 'Round trips in a window, as measured: ' + '; '.join(
            f'{folder}{f", window {window}" * (window > 1)} {number:.1f}'
            for (folder, window), number in trips.items()) + '.']
    return lines


def main():
    """Prints the check of a directory with results."""
    if len(sys.argv) != 2:
        sys.exit(f'usage: {sys.argv[0]} DIRECTORY, one with a results.csv')
    path = pathlib.Path(sys.argv[1]) / 'results.csv'
    if not path.exists():
        sys.exit(f'There is no {path}: `bash run.sh` makes one.')
    with path.open(newline='', encoding='utf-8') as file:
        rows = list(csv.DictReader(file))
    print('\n'.join(table(rows, cores_of(rows))))


def cores_of(rows):
    """Returns how many cores the machine has that made the results."""
    return int(rows[0]['machine'].split()[0])


if __name__ == '__main__':
    main()
