"""Measures what the examples reach on this machine: steps per second, start and end, memory.

    python Comparison/bench.py                               all of it, five times
    python Comparison/bench.py --repeats=1 --only='AGN|DOWN'  once, the cases whose names match this
    python Comparison/bench.py --only=beside                 the examples beside other frameworks

Prints one table in Markdown, of medians, and one of the examples beside peers in other frameworks,
as far as these are installed: see beside.py. The cases take turns within each repeat, so that
whatever else the machine does hits all alike; ratios are taken within a repeat. Targets are for a
quiet machine of two cores: they stand beside the figures, with the word `missed` where a median
misses one; nothing fails by them. Cases that a target names are measured with it, without a row.
"""

import argparse
import collections
from functools import partial
import multiprocessing
import operator
import os
import pathlib
import re
import signal
import socket
import statistics
import sys
import tempfile
import time

import numpy as np
from measuring import around_a_ring, hosts, readmes, there_and_back, tunnels
from measuring.folders import Example
from measuring.results import machine
from measuring.runs import calls_per_second, notes_in, rate, ROOT, Run, TIME_LIMIT
import beside

COLLECTIVE = '--implementation=collective'
RATE = 'steps/s in all'
BARE = 'bare limit, ' + RATE
STEPS = 'steps/s'
SENT = 'kB that a worker sends and gets in a push'
IN_ONE = 'relative to one process with 1 thread'
TUNNELLED = 'through tunnels, relative to plain'
SAVING = 'steps/s with a checkpoint every 5 s, relative to none'
SLEEP = 0.02  # seconds of a local step in which a worker only sleeps
MNIST = ['--model=mnist', '--learning_rate=0.001']  # with which as many as 32 workers stay finite
AWAKE = 'of what they would make if there were nothing but sleep'
HOTTEST = 'bytes that the busiest ps sends in a step'
FOR_TABLES = 'bytes for the tables, relative to those of the rows'


def training(local_steps, window):
    """Returns flags, a list of strings, with which all workers together make `local_steps`.

    There are `window` local steps to each global step.
    """
    return [f'--train_steps={local_steps // window}',
            *[f'--communication_window={window}'] * (window > 1)]


def bare_limit(steps):
    """Measures the plainest loop on the model of Non-Distributed-Setup, in a process of its own."""
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return {RATE: pool.apply_async(_bare_loop, (steps,)).get(TIME_LIMIT)}


def _bare_loop(steps):
    """Returns the steps/s of a plain session and its callable: no hooks, no look at the results."""
    sys.path.insert(0, str(ROOT / 'Non-Distributed-Setup'))
    import model
    from tfdist.start.quiet import tf
    import train
    train.FLAGS(['bare_limit'])
    tf.set_random_seed(train.FLAGS.seed)
    batch, = model.train_batches(train.FLAGS.batch_size, count=1, seed=train.FLAGS.seed)
    loss, accuracy = model.loss_and_accuracy(*batch)
    global_step = tf.train.get_or_create_global_step()
    step = tf.train.GradientDescentOptimizer(train.FLAGS.learning_rate).minimize(loss, global_step)
    with tf.control_dependencies([step]):
        train_op = {'global_step': global_step.read_value(), 'loss': loss, 'accuracy': accuracy}
    return _calls_per_second(train_op, steps)


def _calls_per_second(fetches, calls, warm_up=0):
    """Returns how often in a second a session runs fetches; the first `warm_up` do not count."""
    from tfdist.cluster import servers
    from tfdist.start.quiet import tf
    with tf.Session(config=servers.config()) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return calls_per_second(session.make_callable(fetches), calls, warm_up)


def one_process(folder, steps, *flags, **env):
    """Measures a folder of which one process trains, or drives all that do."""
    return {RATE: Run(folder, f'--train_steps={steps}', *flags, **env).figures()['local steps/s']}


def as_it_comes(folder):
    """Measures a run with all defaults: when it starts and ends, its result and its memory."""
    run = Run(folder)
    first_step, _ = run.find('starts at step')
    return {'seconds to the first step': first_step,
            'seconds to the exit': run.seconds,
            'test accuracy': run.figures()['test accuracy'],
            'peak memory of the ps, MB': run.peaks['ps.py'] / 1e6,
            'peak memory of a worker, MB': run.peaks['worker.py'] / 1e6}


def together(folder, workers, local_steps, window=1, **env):
    """Measures `workers` workers side by side, with the environment variables `env`."""
    figures = Run(folder, *training(local_steps, window), '--log_every_n_steps=5000',
                  WORKERS=str(workers), **env).figures()
    rates = {RATE: figures['local steps/s']}
    if workers > 1:
        rates['steps/s per worker'] = figures['steps/s per worker']
    return rates


def two_devices(mode, steps):
    """Measures two devices against one; `steps` are the train_steps by the number of devices."""
    rates = {count: one_process('Multiple-GPUs-Single-Machine', steps[count],
                                f'--num_gpus={count}', MODE=mode)[RATE] for count in (1, 2)}
    return {'one, batches/s': rates[1], 'two, batches/s': rates[2],
            'two, relative to one': rates[2] / rates[1]}


def with_its_input(folder, workers, steps):
    """Measures training, and in a process of its own the input of one worker without training."""
    rates = together(folder, workers, steps)
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        alone = pool.apply_async(_input_alone, (folder, 5000)).get(TIME_LIMIT)
    return {**rates, 'batches/s of the input alone': alone,
            'input alone, relative to what all workers consume': alone / rates[RATE]}


def _input_alone(folder, batches):
    """Returns the batches/s of a folder's input, as a worker of two has it."""
    sys.path.insert(0, str(ROOT / folder))
    import model
    import worker
    worker.FLAGS(['input_alone', '--num_threads=1'])
    batch, = model.train_batches(worker.FLAGS.batch_size, 1, shard=0, num_shards=2)
    return _calls_per_second([tensor.op for tensor in batch], batches, warm_up=1)


def by_tunnels(folder, local_steps, window=1):
    """Measures two workers and a ps on hosts of their own, plainly and through tunnels of TLS.

    Where hosts or tunnels cannot be made it returns no figures, and says why.
    """
    names, port = ['ps-0', 'worker-0', 'worker-1'], str(tunnels.LOCAL_PORT)
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        try:
            command = tunnels.stunnel(place)
            reason = hosts.missing()
        except RuntimeError as error:
            reason = error
        if reason:
            print(f'left out: {reason}', file=sys.stderr)
            return {}
        with hosts.Hosts(place, names) as network:
            measured = partial(together, folder, 2, local_steps, window, PORT=port)
            plain = measured(PYTHON=network.python())[RATE]
            with tunnels.Tunnels(network, place, names, command):
                tunnelled = measured(PYTHON=network.python(by_tunnels=True))[RATE]
    return {'plain, ' + RATE: plain, 'through tunnels, ' + RATE: tunnelled,
            TUNNELLED: tunnelled / plain}


def saving(local_steps, *flags):
    """Measures two workers that train for some 20 s, with a checkpoint every 5 s and without."""
    flags = [f'--train_steps={local_steps}', '--log_every_n_steps=100000', *flags]
    without = Run('HogWild', *flags).figures()['local steps/s']
    with tempfile.TemporaryDirectory() as directory:
        saved = Run('HogWild', *flags, f'--model_dir={directory}', '--save_checkpoint_secs=5')
    return {SAVING: saved.figures()['local steps/s'] / without}


def windows(folder, lengths=(10, 50), numbers=(1, 2)):
    """Returns cases for a folder whose workers train in windows of local steps."""
    return {f'{folder}, window {window}, {workers} worker{"s" * (workers > 1)}':
            partial(together, folder, workers, 12000, window)
            for window in lengths for workers in numbers}


def sleeping(folder, workers, most_steps, *flags, window=1, **env):
    """Measures workers that sleep in each local step, as if each had a processor of its own.

    There are 1,000 local steps for each, and `most_steps` at most in all.
    """
    with tempfile.TemporaryDirectory() as notes:
        run = Run(folder, *training(min(1000 * workers, most_steps), window), *flags,
                  f'--straggler={",".join(f"{i}:{SLEEP}" for i in range(workers))}',
                  '--num_threads=1', '--log_every_n_steps=100000', f'--notes_dir={notes}',
                  WORKERS=str(workers), **env)
        steps = rate(notes_in(notes)) * window
    return {RATE: steps, AWAKE: steps * SLEEP / workers,
            'ms of a processor that the ps take for a local step':
                1000 * run.busy['ps.py'] / run.figures()['local steps']}


def synchronous(folder, *flags):
    """Measures two workers that make each step together."""
    return {STEPS: Run(folder, '--train_steps=2000', *flags).figures()['steps/s per worker']}


def loopback(size=2**28):
    """Measures a plain TCP connection within this machine, one way."""
    def send():
        with socket.create_connection(server.getsockname()) as connection:
            connection.sendall(bytes(size))

    with socket.socket() as server:
        server.bind(('localhost', 0))
        server.listen(1)
        sender = multiprocessing.get_context('fork').Process(target=send)
        sender.start()
        connection, _ = server.accept()
        buffer, received = bytearray(2**20), 0
        with connection:
            began = time.monotonic()
            while received < size:
                received += connection.recv_into(buffer)
            seconds = time.monotonic() - began
        sender.join()
    return {'MB/s': size / seconds / 1e6}


def large(folder, *flags):
    """Measures two workers that make each step together on the network for MNIST, 2.6 MB.

    What they send: as much as the parameters, in a ring of two; twice that with a ps.
    """
    with tempfile.TemporaryDirectory() as directory:
        noise = np.random.RandomState(0)  # what the images show does not matter to their speed
        np.savez(os.path.join(directory, 'mnist.npz'),
                 **{f'x_{part}': noise.randint(256, size=(2000, 28, 28), dtype=np.uint8)
                    for part in ('train', 'test')},
                 **{f'y_{part}': noise.randint(10, size=2000) for part in ('train', 'test')})
        run = Run(folder, '--train_steps=300', '--learning_rate=0.01', '--dataset=mnist',
                  f'--data_dir={directory}', *flags)
    steps = run.figures()['steps/s per worker']
    ways = 1 if Example(folder).kind == 'ring' else 2
    size = there_and_back.size_of(there_and_back.SHAPES['mnist'])
    return {STEPS: steps, 'MB/s by two workers': steps * 2 * ways * size / 1e6}


def placement(strategy, network, steps):
    """Measures one worker on two parameter servers, and the load of the one that has more."""
    run = Run('Parameter-Placement', f'--strategy={strategy}', f'--network={network}',
              f'--train_steps={steps}', '--log_every_n_steps=5000', WORKERS='1', PS='2')
    printed = '\n'.join(line for _, line in run.lines)
    sent = re.findall(r'in a step ps \d+ sends ([\d,]+) B', printed)
    return {RATE: run.figures()['local steps/s'],
            HOTTEST: max(int(size.replace(',', '')) for size in sent)}


def table(folder, rows, local_steps, *flags, parts=1, window=1):
    """Measures two workers on the clicks, with tables of so many rows over `parts` ps."""
    flags = [*flags, *training(local_steps, window), '--model=clicks', f'--clicks_rows={rows}',
             f'--clicks_table_parts={parts}', '--batch_size=64', '--clicks_test_examples=1000',
             '--log_every_n_steps=100000']
    with tempfile.TemporaryDirectory() as notes:
        run = Run(folder, *flags, f'--notes_dir={notes}', '--traced_runs=5', PS=str(parts))
        sent = [note['bytes'] for note in notes_in(notes)]
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        asked_for = pool.apply_async(_bytes_of_rows, (flags, window)).get(TIME_LIMIT)
    inputs = 8 * (16 if '--clicks_dimension=16' in flags else 32)  # of the dense layers
    dense = 4 * (inputs * 64 + 64 + 64 * 32 + 32 + 32 + 1)
    return {RATE: run.figures()['local steps/s'], SENT: statistics.mean(sent) / 1e3,
            FOR_TABLES: (statistics.mean(sent) - 2 * dense) / asked_for,
            'peak memory of a worker, MB': run.peaks['worker.py'] / 1e6,
            'peak memory of a ps, MB': run.peaks['ps.py'] / 1e6}


def _bytes_of_rows(flags, window):
    """Returns how many bytes the rows have that the clicks of a window ask for, each row once."""
    from tfdist.start.quiet import tf
    from tfdist.gallery import clicks
    clicks.FLAGS(['bytes_of_rows', *(flag for flag in flags if flag.startswith('--clicks'))])
    drawn = clicks.train_batches(64, window)
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        counts = [len(np.unique([batch['ids'] for batch in session.run(drawn)]))
                  for _ in range(20)]
    return statistics.mean(counts) * 4 * (clicks.FLAGS.clicks_dimension + 1)


def images_per_second(folder, train_steps, threads=1):
    """Returns how many images a second all train the ResNet on, 32 in a batch."""
    with tempfile.TemporaryDirectory() as notes:
        Run(folder, '--model=resnet', f'--train_steps={train_steps}', f'--num_threads={threads}',
            '--log_every_n_steps=100000', f'--notes_dir={notes}')
        return 32 * rate(notes_in(notes))


def resnet(folder, train_steps):
    """Measures the ResNet, in two workers with a thread each against one process with one."""
    one = images_per_second('Non-Distributed-Setup', 100)
    both = images_per_second(folder, train_steps)
    return {'images/s': both, IN_ONE: both / one}


def one_resnet(threads):
    """Measures the ResNet in one process."""
    return {'images/s': images_per_second('Non-Distributed-Setup', 100, threads)}


# What is measured, by name: functions that return a dict of figures.
CASES = {
    'bare limit': partial(bare_limit, 10000),
    'Non-Distributed-Setup': partial(one_process, 'Non-Distributed-Setup', 10000),
    'HogWild': partial(as_it_comes, 'HogWild'),
    'HogWild, 1 worker': partial(together, 'HogWild', 1, 2500),
    'HogWild, 2 workers': partial(together, 'HogWild', 2, 4000),
    'HogWild, 4 workers': partial(together, 'HogWild', 4, 3500),
    **windows('AGN'),
    **windows('SAGN', [10], [2]),
    **windows('Local-SGD', [10], [2]),
    'Tunnels, HogWild': partial(by_tunnels, 'HogWild', 4000),
    **{f'Tunnels, AGN, window {window}': partial(by_tunnels, 'AGN', 24000, window)
       for window in (10, 50)},
    'Checkpoints, digits': partial(saving, 20000),
    'Checkpoints, clicks, 1000000 rows': partial(
        saving, 10000, '--model=clicks', '--batch_size=64', '--clicks_rows=1000000'),
    'Synchronous-SGD': partial(synchronous, 'Synchronous-SGD'),
    'Ring-AllReduce': partial(synchronous, 'Ring-AllReduce'),
    'Ring-AllReduce, collective': partial(synchronous, 'Ring-AllReduce', COLLECTIVE),
    **{f'Sleeping, {folder}, {words}{workers} worker{"s" * (workers > 1)}': partial(
        sleeping, folder, workers, steps, *flags, window=window, **env)
       for folder, words, steps, flags, window, env, numbers in (
           ('HogWild', '', 30000, [], 1, {}, (1, 8, 16, 32)),
           ('AGN', 'window 10, ', 60000, [], 10, {}, (32,)),
           ('HogWild', '648k parameters, ', 10000, MNIST, 1, {}, (1, 8, 16)),
           ('HogWild', '648k parameters, 2 ps, ', 10000, MNIST, 1, {'PS': '2'}, (16,)),
           ('AGN', '648k parameters, window 10, ', 30000, MNIST, 10, {}, (16, 32)))
       for workers in numbers},
    'TCP on loopback': loopback,
    **{f'TensorFlow on loopback, {size} there and back': partial(
        there_and_back.measure, there_and_back.SHAPES[model], trips)
       for model, size, trips in (('digits', '38 kB', 6000), ('mnist', '2.6 MB', 300))},
    **{f'Ring on loopback, {size}': partial(
        around_a_ring.measure, there_and_back.size_of(there_and_back.SHAPES[model]), sums)
       for model, size, sums in (('digits', '38 kB', 20000), ('mnist', '2.6 MB', 1000))},
    'Synchronous-SGD, MNIST': partial(large, 'Synchronous-SGD'),
    'Ring-AllReduce, MNIST': partial(large, 'Ring-AllReduce'),
    'Ring-AllReduce, MNIST, collective': partial(large, 'Ring-AllReduce', COLLECTIVE),
    **{f'Multiple-GPUs-Single-Machine, {mode}': partial(two_devices, mode, steps)
       for mode, steps in (('towers', {1: 6000, 2: 3000}), ('threads', {1: 6000, 2: 6000}))},
    'Distributed-MNIST': partial(with_its_input, 'Distributed-MNIST', 2, 2000),
    **{f'Parameter-Placement, {network}, {strategy}': partial(placement, strategy, network, 1500)
       for network, strategy in [('uneven', 'round_robin'), ('uneven', 'greedy'),
                                 ('deep', 'greedy'), ('deep', 'fused')]},
    **{f'In-Graph-Replication, {mode}, 2 workers': partial(
        one_process, 'In-Graph-Replication', steps, f'--mode={mode}', '--log_every_n_steps=5000',
        WORKERS='2') for mode, steps in (('sync', 1500), ('async', 3000))},
    **{f'{folder}, clicks, {rows} rows': partial(table, folder, rows, steps, window=window)
       for folder, steps, window in (('HogWild', 2000, 1), ('Synchronous-SGD', 1000, 1),
                                     ('AGN', 10000, 10))
       for rows in (10**4, 10**6)},
    **{f'HogWild, clicks, {rows} rows of 16 over 2 ps':
       partial(table, 'HogWild', rows, 1000, '--clicks_dimension=16', parts=2)
       for rows in (10**7, 10**4)},
    **{f'ResNet, one process, {threads} thread{"s" * (threads > 1)}': partial(one_resnet, threads)
       for threads in (1, 2)},
    **{f'ResNet, {folder}, 2 workers of 1 thread': partial(resnet, folder, steps)
       for folder, steps in (('HogWild', 200), ('Synchronous-SGD', 100), ('Ring-AllReduce', 100))},
    **{f'Model-Parallel, {split}': partial(one_process, 'Model-Parallel', 3000, f'--split={split}')
       for split in ('none', 'layers', 'columns')},
}

# What is to be reached: bounds, which BOUND reads. What a bound names is in REFERENCES.
TARGETS = {
    'AGN, window 10, 1 worker, ' + RATE: '>= 0.8 of the bare limit',
    'AGN, window 10, 2 workers, ' + RATE: '>= 1.2 of the bare limit',
    'AGN, window 50, 1 worker, ' + RATE: '>= 1.2 of the bare limit',
    'AGN, window 50, 2 workers, ' + RATE: '>= 1.8 of the bare limit',
    'SAGN, window 10, 2 workers, ' + RATE: '>= 0.8 of AGN',
    'Local-SGD, window 10, 2 workers, ' + RATE: '>= 0.8 of AGN',
    'Synchronous-SGD, ' + STEPS: '>= 400, >= HogWild per worker',
    'Ring-AllReduce, ' + STEPS: '>= 400, >= HogWild per worker',
    'Tunnels, HogWild, ' + TUNNELLED: '>= 0.6',
    **{f'Tunnels, AGN, window {window}, ' + TUNNELLED: '>= 0.9' for window in (10, 50)},
    'Non-Distributed-Setup, ' + RATE: '>= 0.6 of the bare limit',
    'HogWild, 2 workers, ' + RATE: '>= 900',
    'HogWild, seconds to the first step': '<= 5',
    'HogWild, seconds to the exit': '<= 12',
    'HogWild, test accuracy': '>= 0.95',
    'Multiple-GPUs-Single-Machine, towers, two, relative to one': '>= 1.0',
    'Multiple-GPUs-Single-Machine, threads, two, relative to one': '>= 1.3',
    'Distributed-MNIST, input alone, relative to what all workers consume': '>= 5',
    'Parameter-Placement, uneven, greedy, ' + HOTTEST: '<= 0.6 of that with round_robin',
    'HogWild, clicks, 1000000 rows, ' + RATE: '>= 280, >= 0.9 of those with 10000',
    'AGN, clicks, 1000000 rows, ' + RATE: '>= 900',
    **{f'{folder}, clicks, 1000000 rows, ' + FOR_TABLES: '<= 3'
       for folder in ('HogWild', 'Synchronous-SGD', 'AGN')},
    'HogWild, clicks, 10000000 rows of 16 over 2 ps, peak memory of a worker, MB':
        '<= 1.1 of that with 10000',
    **{f'ResNet, {folder}, 2 workers of 1 thread, {figure}': target
       for folder in ('HogWild', 'Synchronous-SGD', 'Ring-AllReduce')
       for figure, target in ((IN_ONE, '>= 1.8'), ('images/s', '> one process with 2 threads'))},
}
# A bound: a sign and a number, or how much of another figure. REFERENCES has the figures named.
BOUND = re.compile(r'(>=|<=|>) ?([\d.]*)(?: of )?(.*)')
SIGNS = {'>=': operator.ge, '<=': operator.le, '>': operator.gt}
REFERENCES = {
    'the bare limit': BARE,
    'AGN': 'AGN, window 10, 2 workers, ' + RATE,
    'HogWild per worker': 'HogWild, 2 workers, steps/s per worker',
    'that with round_robin': 'Parameter-Placement, uneven, round_robin, ' + HOTTEST,
    'those with 10000': 'HogWild, clicks, 10000 rows, ' + RATE,
    'that with 10000': 'HogWild, clicks, 10000 rows of 16 over 2 ps, peak memory of a worker, MB',
    'one process with 2 threads': 'ResNet, one process, 2 threads, images/s',
}


def bounds(figure):
    """Returns the bounds of a figure, a list of a sign, a number, and another figure or None."""
    found = [BOUND.fullmatch(bound).groups() for bound in TARGETS.get(figure, '').split(', ')
             if bound]
    return [(sign, float(number or 1), REFERENCES[words] if words else None)
            for sign, number, words in found]


def missed(figure, figures):
    """Returns whether the median of a figure, as the table has it, is out of one of its bounds."""
    def median(other):
        ratios = [value / (figures[other][i] if other else 1)
                  for i, value in enumerate(figures[figure])]
        return float(f'{statistics.median(ratios):.3g}')

    return any(not SIGNS[sign](median(other), number) for sign, number, other in bounds(figure))


def case_of(figure):
    """Returns the name of the case that measures a figure; None if there is none."""
    return max((name for name in CASES if figure.startswith(f'{name}, ')), key=len, default=None)


def with_references(cases):
    """Returns cases, a dict, and those that the targets of their figures name."""
    named = {case_of(other) for figure in TARGETS if case_of(figure) in cases
             for _, _, other in bounds(figure) if other}
    return {name: case for name, case in CASES.items() if name in cases or name in named}


def measure(cases, repeats):
    """Runs all cases in turn, and those that their targets name, `repeats` times.

    Returns:
      Dict of lists of floats: a figure's values, one for each repeat.
    """
    figures = collections.defaultdict(list)
    for repeat in range(repeats):
        for name, case in with_references(cases).items():
            print(f'{repeat + 1} of {repeats}: {name}', file=sys.stderr, flush=True)
            for figure, value in case().items():
                figures[f'{name}, {figure}'].append(value)
    return figures


COLUMNS = ['', 'median', 'lowest to highest', 'of the bare limit', 'target']


def rows(figures, cases):
    """Returns the rows of cases, dicts of cells by COLUMNS, from what `measure` returns."""
    found = []
    for name, values in figures.items():
        if case_of(name) not in cases:
            continue
        ratio, target = '', TARGETS.get(name, '')
        if 'steps/s' in name and BARE in figures:
            ratio = f'{statistics.median(v / b for v, b in zip(values, figures[BARE])):.2f}'
        low, median, high = map(readmes.rounded, (min(values), statistics.median(values),
                                                  max(values)))
        found.append(dict(zip(COLUMNS, [name, median, f'{low} to {high}', ratio,
                                        f'missed: {target}' if missed(name, figures)
                                        else target])))
    return found


def parse(words=None):
    """Returns the options: `repeats`; `cases` and `pairs`, dicts of functions and pairs by name."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--repeats', type=int, default=5, help='how often (default: 5)')
    parser.add_argument('--only', default='', help='a regular expression: only cases that it finds')
    options = parser.parse_args(words)
    options.cases = {name: case for name, case in CASES.items() if re.search(options.only, name)}
    options.pairs = {name: pair for name, pair in beside.PAIRS.items()
                     if re.search(options.only, name)}
    if options.repeats < 1 or not (options.cases or options.pairs):
        parser.error(f'nothing to measure; the cases are {"; ".join([*CASES, *beside.PAIRS])}')
    return options


def tables(options):
    """Measures; yields the columns and rows of each table, and in words what else it is made with.

    The rows are dicts of cells.
    """
    if options.cases:
        yield COLUMNS, rows(measure(options.cases, options.repeats), options.cases), []
    if options.pairs:
        figures, frameworks = beside.measure(options.pairs, options.repeats)
        if figures:
            yield beside.COLUMNS, beside.rows(figures, options.pairs), frameworks


def main():
    """Measures, and prints the tables."""
    options = parse()
    began, load = time.monotonic(), os.getloadavg()[0]
    for columns, its_rows, frameworks in tables(options):
        print(f'{", ".join([time.strftime("%Y-%m-%d"), machine(), *frameworks])}; repeats: '
              f'{options.repeats}, in {time.monotonic() - began:.0f} s; load when it began '
              f'{load:.1f}.\n')
        lines = [list(row.values()) for row in its_rows]
        readmes.show(readmes.table([columns, *lines], 'l' + 'r' * (len(columns) - 2) + 'l') + '\n')


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is under way is ended
    main()
