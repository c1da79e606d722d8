"""Measures what the examples reach on this machine: steps per second, start and end, memory.

    python Comparison/bench.py                               all of it, five times
    python Comparison/bench.py --repeats=1 --only='AGN|DOWN'  once, the cases whose names match this

Prints one table in Markdown, of medians. The cases take turns within each repeat, so that whatever
else the machine does hits all alike; ratios are taken within a repeat. Targets are for a quiet
machine of two cores: they stand beside the figures, and nothing fails by them.
"""

import argparse
import collections
import functools
import multiprocessing
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME_LIMIT = 120  # seconds for one run
# A shell may have set these, and run.sh reads them.
FOREIGN = {'PS', 'WORKERS', 'PORT', 'LOCAL_ONLY', 'MODE'}
DID = re.compile(r'[\w ]+: did (\d+) local steps, .*?(\d+) steps/s')
RATE = 'steps/s in all'
BARE = 'bare limit, ' + RATE
STEPS = 'steps/s'
HOTTEST = 'bytes that the busiest ps sends in a step'


class Run:
    """A run of a folder's run.sh, from its start to its end.

    Attributes:
      lines: list of (seconds since the start, line that was printed).
      seconds: float, how long it took.
      peaks: dict, the peak of the resident memory of a process in bytes, by its program's name.
    """

    def __init__(self, folder, *flags, **env):
        """Runs it.

        Args:
          folder: string.
          *flags: strings, for the workers.
          **env: environment variables, such as WORKERS='4'.

        Raises:
          SystemExit: if it fails.
        """
        self.lines, self.peaks = [], {}
        own = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        began = time.monotonic()
        process = subprocess.Popen(
            ['bash', str(ROOT / folder / 'run.sh'), *flags], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True,
            env={**own, 'PYTHON': sys.executable, **env})
        limit = threading.Timer(TIME_LIMIT, process.terminate)
        limit.start()
        watch = threading.Thread(target=self._watch_memory, args=(process,))
        watch.start()
        try:
            for line in process.stdout:
                self.lines.append((time.monotonic() - began, line.rstrip()))
            status = process.wait()
            self.seconds = time.monotonic() - began
        finally:  # also when this program is told to end
            process.terminate()
            limit.cancel()
            watch.join()
        if status:
            sys.exit('\n'.join([f'{folder}: status {status} after {self.seconds:.0f} s, of '
                                f'{TIME_LIMIT} s at most:',
                                *(line for _, line in self.lines)]))

    def _watch_memory(self, process):
        """Looks at the processes until the run ends."""
        while process.poll() is None:
            try:
                for child in psutil.Process(process.pid).children(recursive=True):
                    name = ' '.join(child.cmdline()[1:2]).rpartition('/')[2]
                    self.peaks[name] = max(self.peaks.get(name, 0), child.memory_info().rss)
            except psutil.NoSuchProcess:
                pass  # it ended meanwhile
            time.sleep(0.2)

    def find(self, form):
        """Returns (seconds since the start, match) of the first line of `form`, a pattern."""
        return next((seconds, match) for seconds, line in self.lines
                    for match in [re.search(form, line)] if match)

    def rates(self):
        """Returns a dict: local steps/s by all workers together, and by each, their mean.

        Together: all steps by the time of the worker that took longest, since a worker that came
        late had no share in the others' first steps.
        """
        workers = [tuple(map(int, match.groups()))
                   for match in (DID.fullmatch(line) for _, line in self.lines) if match]
        longest = max(steps / rate for steps, rate in workers if rate)
        return {RATE: sum(steps for steps, _ in workers) / longest,
                'steps/s per worker': statistics.mean(rate for _, rate in workers)}


def bare_limit(steps):
    """Measures the plainest loop on the graph of Non-Distributed-Setup, in a process of its own."""
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return {RATE: pool.apply_async(_bare_loop, (steps,)).get(TIME_LIMIT)}


def _bare_loop(steps):
    """Returns the steps/s of a plain session and its callable: no hooks, no look at the results."""
    sys.path.insert(0, str(ROOT / 'Non-Distributed-Setup'))
    import console  # noqa: F401  (before TensorFlow)
    import model
    import tensorflow.compat.v1 as tf
    import train
    train.FLAGS(['bare_limit'])
    tf.set_random_seed(train.FLAGS.seed)
    batch, = model.train_batches(train.FLAGS.batch_size, count=1, seed=train.FLAGS.seed)
    loss, accuracy = model.loss_and_accuracy(*batch)
    train_op = train.sgd(loss, accuracy, tf.trainable_variables(),
                         tf.train.get_or_create_global_step(), train.FLAGS.learning_rate)
    config = tf.ConfigProto(intra_op_parallelism_threads=train.FLAGS.num_threads,
                            inter_op_parallelism_threads=train.FLAGS.num_threads)
    with tf.Session(config=config) as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        run = session.make_callable(train_op)
        began = time.monotonic()
        for _ in range(steps):
            run()
        return steps / (time.monotonic() - began)


def one_process(folder, steps, *flags):
    """Measures a folder of which one process trains."""
    rates = Run(folder, f'--train_steps={steps}', *flags).rates()
    return {RATE: rates[RATE]}


def as_it_comes(folder):
    """Measures a run with all defaults: when it starts and ends, its result and its memory."""
    run = Run(folder)
    first_step, _ = run.find('starts at step')
    _, accuracy = run.find(r'test accuracy ([\d.]+)')
    return {'seconds to the first step': first_step,
            'seconds to the exit': run.seconds,
            'test accuracy': float(accuracy.group(1)),
            'peak memory of the ps, MB': run.peaks['ps.py'] / 1e6,
            'peak memory of a worker, MB': run.peaks['worker.py'] / 1e6}


def together(folder, workers, local_steps, window=1):
    """Measures `workers` workers side by side.

    Args:
      folder: string.
      workers: int.
      local_steps: int, how many they train in all.
      window: int, how many local steps there are to one global step.
    """
    flags = [f'--train_steps={local_steps // window}', '--log_every_n_steps=5000']
    if window > 1:
        flags.append(f'--communication_window={window}')
    rates = Run(folder, *flags, WORKERS=str(workers)).rates()
    return rates if workers > 1 else {RATE: rates[RATE]}


def two_devices(folder, mode, steps):
    """Measures a process with two devices against one with one.

    Args:
      folder: string.
      mode: string, for the MODE of its run.sh.
      steps: dict of ints, the train_steps by the number of devices.
    """
    rates = {count: Run(folder, f'--train_steps={steps[count]}', f'--num_gpus={count}',
                        MODE=mode).rates()[RATE] for count in (1, 2)}
    return {'one, batches/s': rates[1], 'two, batches/s': rates[2],
            'two, in what one does': rates[2] / rates[1]}


def with_its_input(folder, workers, steps):
    """Measures training, and in a process of its own the input of one worker without training."""
    rates = together(folder, workers, steps)
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        alone = pool.apply_async(_input_alone, (folder, 5000)).get(TIME_LIMIT)
    return {**rates, 'batches/s of the input alone': alone,
            'input alone, in what all workers consume': alone / rates[RATE]}


def _input_alone(folder, batches):
    """Returns the batches/s of a folder's input, as a worker of two has it."""
    sys.path.insert(0, str(ROOT / folder))
    import console  # noqa: F401  (before TensorFlow)
    import model
    import tensorflow.compat.v1 as tf
    import worker
    worker.FLAGS(['input_alone'])
    batch, = model.train_batches(worker.FLAGS.batch_size, 1, shard=0, num_shards=2)
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Session(config=config) as session:
        session.run(tf.tables_initializer())
        run = session.make_callable([tensor.op for tensor in batch])
        run()
        began = time.monotonic()
        for _ in range(batches):
            run()
        return batches / (time.monotonic() - began)


def windows(folder, lengths=(10, 50), numbers=(1, 2)):
    """Returns cases for a folder whose workers train in windows of local steps."""
    return {f'{folder}, window {window}, {workers} worker{"s" * (workers > 1)}':
            functools.partial(together, folder, workers, 12000, window)
            for window in lengths for workers in numbers}


def synchronous(folder, *flags):
    """Measures two workers that make each step together."""
    rates = Run(folder, '--train_steps=2000', *flags).rates()
    return {STEPS: rates['steps/s per worker']}


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
    parameters = 4 * (784 * 500 + 500 + 500 * 500 + 500 + 500 * 10 + 10)
    with tempfile.TemporaryDirectory() as directory:
        noise = np.random.RandomState(0)  # what the images show does not matter to their speed
        np.savez(os.path.join(directory, 'mnist.npz'),
                 **{f'x_{part}': noise.randint(256, size=(2000, 28, 28), dtype=np.uint8)
                    for part in ('train', 'test')},
                 **{f'y_{part}': noise.randint(10, size=2000) for part in ('train', 'test')})
        rates = Run(folder, '--train_steps=300', '--learning_rate=0.01', '--dataset=mnist',
                    f'--data_dir={directory}', *flags).rates()
    steps = rates['steps/s per worker']
    per_worker = parameters if (ROOT / folder / 'ring.py').exists() else 2 * parameters
    return {STEPS: steps, 'MB/s by two workers': steps * 2 * per_worker / 1e6}


def placement(strategy, network, steps):
    """Measures one worker on two parameter servers, and the load of the one that has more."""
    run = Run('Parameter-Placement', f'--strategy={strategy}', f'--network={network}',
              f'--train_steps={steps}', '--log_every_n_steps=5000', WORKERS='1', PS='2')
    printed = '\n'.join(line for _, line in run.lines)
    sent = re.findall(r'in a step ps \d+ sends ([\d,]+) B', printed)
    return {RATE: run.rates()[RATE], HOTTEST: max(int(size.replace(',', '')) for size in sent)}


def in_graph(mode, workers, local_steps):
    """Measures the replicas that one chief drives."""
    steps = local_steps // workers if mode == 'sync' else local_steps
    run = Run('In-Graph-Replication', f'--mode={mode}', f'--train_steps={steps}',
              '--log_every_n_steps=5000', WORKERS=str(workers))
    return {RATE: run.rates()[RATE]}


# What is measured, by name: functions that return a dict of figures.
CASES = {
    'bare limit': functools.partial(bare_limit, 10000),
    'Non-Distributed-Setup': functools.partial(one_process, 'Non-Distributed-Setup', 10000),
    'HogWild': functools.partial(as_it_comes, 'HogWild'),
    'HogWild, 1 worker': functools.partial(together, 'HogWild', 1, 2500),
    'HogWild, 2 workers': functools.partial(together, 'HogWild', 2, 4000),
    'HogWild, 4 workers': functools.partial(together, 'HogWild', 4, 3500),
    **windows('AGN'),
    **windows('SAGN', [10], [2]),
    **windows('Local-SGD', [10], [2]),
    'Synchronous-SGD': functools.partial(synchronous, 'Synchronous-SGD'),
    'Ring-AllReduce': functools.partial(synchronous, 'Ring-AllReduce'),
    'Ring-AllReduce, collective': functools.partial(synchronous, 'Ring-AllReduce',
                                                    '--implementation=collective'),
    'TCP on loopback': loopback,
    'Synchronous-SGD, MNIST': functools.partial(large, 'Synchronous-SGD'),
    'Ring-AllReduce, MNIST': functools.partial(large, 'Ring-AllReduce'),
    'Ring-AllReduce, MNIST, collective': functools.partial(large, 'Ring-AllReduce',
                                                           '--implementation=collective'),
    **{f'Multiple-GPUs-Single-Machine, {mode}': functools.partial(
        two_devices, 'Multiple-GPUs-Single-Machine', mode, steps)
       for mode, steps in (('towers', {1: 6000, 2: 3000}), ('threads', {1: 6000, 2: 6000}))},
    'Distributed-MNIST': functools.partial(with_its_input, 'Distributed-MNIST', 2, 2000),
    **{f'Parameter-Placement, {network}, {strategy}':
       functools.partial(placement, strategy, network, 1500)
       for network, strategy in [('uneven', 'round_robin'), ('uneven', 'greedy'),
                                 ('deep', 'greedy'), ('deep', 'fused')]},
    **{f'In-Graph-Replication, {mode}, 2 workers': functools.partial(in_graph, mode, 2, 3000)
       for mode in ('sync', 'async')},
    **{f'Model-Parallel, {split}':
       functools.partial(one_process, 'Model-Parallel', 3000, f'--split={split}')
       for split in ('none', 'layers', 'columns')},
}

# What is to be reached, and whether from above ('<=') or from below.
TARGETS = {
    'AGN, window 10, 1 worker, ' + RATE: '>= 0.8 of the bare limit',
    'AGN, window 10, 2 workers, ' + RATE: '>= 1.2 of the bare limit',
    'AGN, window 50, 1 worker, ' + RATE: '>= 1.2 of the bare limit',
    'AGN, window 50, 2 workers, ' + RATE: '>= 1.8 of the bare limit',
    'SAGN, window 10, 2 workers, ' + RATE: '>= 0.8 of AGN',
    'Local-SGD, window 10, 2 workers, ' + RATE: '>= 0.8 of AGN',
    'Synchronous-SGD, ' + STEPS: '>= 400, and HogWild per worker',
    'Ring-AllReduce, ' + STEPS: '>= 400, and HogWild per worker',
    'Non-Distributed-Setup, ' + RATE: '>= 0.6 of the bare limit',
    'HogWild, 2 workers, ' + RATE: '>= 900',
    'HogWild, seconds to the first step': '<= 5',
    'HogWild, seconds to the exit': '<= 12',
    'HogWild, test accuracy': '>= 0.95',
    'Multiple-GPUs-Single-Machine, towers, two, in what one does': '>= 1.0',
    'Multiple-GPUs-Single-Machine, threads, two, in what one does': '>= 1.3',
    'Distributed-MNIST, input alone, in what all workers consume': '>= 5',
    'Parameter-Placement, uneven, greedy, ' + HOTTEST: '<= 0.6 of that with round_robin',
}


def measure(cases, repeats):
    """Runs all cases in turn, `repeats` times.

    Returns:
      Dict of lists of floats: a figure's values, one for each repeat.
    """
    figures = collections.defaultdict(list)
    for repeat in range(repeats):
        for name, case in cases.items():
            print(f'{repeat + 1} of {repeats}: {name}', file=sys.stderr, flush=True)
            for figure, value in case().items():
                figures[f'{name}, {figure}'].append(value)
    return figures


def table(figures):
    """Returns the lines of the table, from what `measure` returns."""
    lines = ['| | median | lowest to highest | of the bare limit | target |',
             '|---|---:|---:|---:|---|']
    for name, values in figures.items():
        ratio = ''
        if 'steps/s' in name and BARE in figures:
            ratio = f'{statistics.median(v / b for v, b in zip(values, figures[BARE])):.2f}'
        low, median, high = (f'{v:.3g}' if v < 100 else f'{v:.0f}'
                             for v in (min(values), statistics.median(values), max(values)))
        lines.append(f'| {name} | {median} | {low} to {high} | {ratio} | {TARGETS.get(name, "")} |')
    return lines


def main():
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--repeats', type=int, default=5, help='how often (default: 5)')
    parser.add_argument('--only', default='', help='a regular expression: only cases that it finds')
    options = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if re.search(options.only, name)}
    if options.repeats < 1 or not cases:
        parser.error(f'nothing to measure; the cases are {"; ".join(CASES)}')
    began, load = time.monotonic(), os.getloadavg()[0]
    figures = measure(cases, options.repeats)
    print(f'{time.strftime("%Y-%m-%d")}, {os.cpu_count()} cores, '
          f'Python {sys.version.split()[0]}; repeats: {options.repeats}, in '
          f'{time.monotonic() - began:.0f} s; load when it began {load:.1f}.\n')
    print('\n'.join(table(figures)))


if __name__ == '__main__':
    main()
