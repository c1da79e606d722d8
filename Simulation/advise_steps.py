"""Times local steps and updates in one process, without servers; prints the figures as JSON.

    python advise_steps.py --scheme=FOLDER [--briefly] [flags]

It runs the scheme of the folder with one worker, with windows of one and of several local steps:
what these take longer is the local steps, without what a run of a session takes. With --briefly it
times local steps with one thread, and nothing else.
"""

import functools
import json
import math
import multiprocessing
import os
import statistics
import sys
import time

import numpy as np

_LONG = 11  # local steps of the longer window
_SLOW = 0.05  # seconds of a local step beside which a run of a session is nothing
_SECONDS = 0.6  # for which each is timed
_WARM_UP, _LEAST = 3, 4  # runs that do not count, and how many do at least
_UPDATES = 200

program = None  # the worker.py of the folder, a module


def spread(times):
    """Returns the median of times, and the least and the largest of their three parts' medians."""
    third = max(1, len(times) // 3)
    parts = [statistics.median(times[begin:begin + third])
             for begin in range(0, len(times) - third + 1, third)]
    return statistics.median(times), min(parts), max(parts)


def _seconds_of(run):
    """Returns the seconds of one run of a function."""
    before = time.perf_counter()
    run()
    return time.perf_counter() - before


def _timed(run):
    """Returns the `spread` of the seconds of a function's runs, and their relative deviation."""
    for _ in range(_WARM_UP):
        run()
    times, began = [], time.monotonic()
    while len(times) < _LEAST or time.monotonic() < began + _SECONDS:
        times.append(_seconds_of(run))
    low, high = np.percentile(times, [25, 75])  # robust: others use this machine, too
    return spread(times), (high - low) / 1.349 / statistics.median(times)


def _run_of(threads, batch_size, window):
    """Returns a function that makes a run of the scheme's train op, with one worker."""
    from tfdist.model import building
    from tfdist.start.quiet import tf
    import simulate
    flags = simulate.FLAGS
    flags.batch_size = batch_size
    if 'communication_window' in flags:
        flags.communication_window = window
    here = type('Scheme', (program.Scheme,), {'worker_device': staticmethod(lambda _: None)})
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(flags.seed)
        step = tf.train.get_or_create_global_step()
        made = program.model.train_batches(batch_size, here.batches(flags), 0, 1, flags.seed)
        network = building.Network(program.model, made, 0, here.tables_stay_on_ps)
        scheme = here(network, step, flags, 0, 1)
        begin = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                 tf.tables_initializer()]
    session = tf.Session(graph=graph, config=tf.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads))
    for op in begin:
        session.run(op)
    return session.make_callable(scheme.train_op)


def _steps(asked):
    """Returns figures: 'run' and 'step', each as `spread` does, 'variation' and 'more'.

    'variation' is that of a local step. 'more' is by how many seconds each further local step of a
    window makes the first run longer, beyond its own time; 0 if it was not measured.

    Args:
      asked: pair of ints, threads and batch size.
    """
    import simulate
    first_run = _run_of(*asked, 1)
    first = _seconds_of(first_run)
    run, deviation = _timed(first_run)
    if run[0] > _SLOW or 'communication_window' not in simulate.FLAGS:
        return {'run': run, 'step': run, 'variation': _sigma(deviation), 'more': 0.}
    long_run = _run_of(*asked, _LONG)
    more = (_seconds_of(long_run) - first) / (_LONG - 1)
    longer, deviation = _timed(long_run)
    steps = [max(1e-7, (long - short) / (_LONG - 1)) for long, short in zip(longer, run)]
    step = steps[0], min(steps), max(steps)
    # All variation of a run is that of its local steps.
    return {'run': run, 'step': step, 'more': max(0., more - step[0]),
            'variation': _sigma(deviation * longer[0] / step[0] / math.sqrt(_LONG))}


def _sigma(deviation):
    """Returns sigma of a lognormal distribution that has a relative deviation."""
    return math.sqrt(math.log1p(deviation ** 2))


def _update(_):
    """Returns what travels, in bytes, and the seconds of an update."""
    import advise_clock
    import simulate
    player = simulate.make_player(program, 2, hasattr(program, 'at_step'))
    silent, one = advise_clock.Silent(player), player.compute(0)
    nothing = player.session.make_callable(player.scheme.pull[0])
    times = {run: [] for run in (functools.partial(player.push, 0, one), nothing)}
    for _ in range(_UPDATES):
        for run, taken in times.items():
            taken.append(_seconds_of(run))
    pushes, empty = map(spread, times.values())
    return {'update': [max(1e-7, push - none) for push, none in zip(pushes, empty)],
            'parameters': silent.parameters, 'pull': silent.pull_bytes, 'push': silent.push_bytes}


def _guarded(function, asked):
    """Returns what a function returns; a pool would wait forever for a copy that exits."""
    try:
        return function(asked)
    except SystemExit as error:
        raise RuntimeError(str(error)) from error


def main(_):
    """Prints a dict of figures: by threads and batch size, and of an update."""
    import simulate
    batch, asked = simulate.FLAGS.batch_size, [(1, simulate.FLAGS.batch_size)]
    if not simulate.FLAGS.briefly:
        threads = [2 ** power for power in range(1, 10) if 2 ** power <= os.cpu_count()]
        asked += [*((number, batch) for number in threads), (1, max(1, batch // 2)), (1, 2 * batch)]
    # A process has one pool of threads that compute, so each gets a copy of this process.
    with multiprocessing.get_context('fork').Pool(1, maxtasksperchild=1) as pool:
        steps = pool.map(functools.partial(_guarded, _steps), asked, chunksize=1)
        update = {} if simulate.FLAGS.briefly else pool.apply(_guarded, (_update, None))
    print(json.dumps({
        'batch': batch, 'steps': [dict(figures, threads=number, batch=size)
                                  for (number, size), figures in zip(asked, steps)],
        **update}))


if __name__ == '__main__':
    import schemes
    program, _ = schemes.load(schemes.asked_for(sys.argv))
    from absl import flags
    import simulate  # noqa: F401  (defines flags)
    from tfdist.start import console
    flags.DEFINE_bool('briefly', False, 'time local steps with one thread, and nothing else')
    console.run(main)
