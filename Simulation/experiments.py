"""Runs many simulations: a process for each scheme, and a table of results that can be resumed.

As a program it is such a process. It reads what to simulate from its input, a line of JSON, and
answers each line with the figures, another one.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import threading

from measuring.results import read

HERE = pathlib.Path(__file__).resolve().parent
BATCH = 32  # examples in a local step
# The figures of a simulation: columns of the table, after the scheme and what was asked for.
FIGURES = ['accuracy', 'loss', 'diverged', 'steps', 'examples', 'seconds', 'target_examples',
           'target_seconds', 'staleness', 'staleness_50', 'staleness_90', 'staleness_99',
           'staleness_max', 'dropped', 'computes', 'waits', 'curve', 'wall_seconds', 'megabytes']
# Further ones: of a model with an excess loss, and of tests on two halves, see `halves`.
# The most bytes that were in line at a ps, and all bytes that have travelled.
OF_LINKS = ['in_line', 'sent']
OF_HALVES = ['excess_loss', 'validation_accuracy', 'validation_loss', 'validation_excess_loss',
             'excess_curve', 'error_curve']


class Scheme:
    """A process that simulates one scheme, many times. A context manager.

    Attributes:
      name: string, the folder.
      is_apart: bool, whether it goes on when Ctrl-C stops the program that asks.
      running: set of all `Scheme` whose processes have not ended.
    """

    is_apart = False
    running = set()

    def __init__(self, name, *flags):
        """Takes the name of a folder, and flags of its program, strings such as --model=resnet."""
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).resolve()), f'--scheme={name}', *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, start_new_session=self.is_apart)
        self.running.add(self)

    def simulate(self, asked):
        """Simulates.

        Args:
          asked: dict of strings by names of flags.

        Returns:
          Dict of FIGURES, OF_HALVES and OF_LINKS: numbers, and '' for what it does not have.

        Raises:
          SystemExit: with the complaint of the process.
        """
        try:
            self._process.stdin.write(json.dumps(asked) + '\n')
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ''
        if not answer:
            complaint = self._process.communicate()[1].strip() or 'it ended'
            reason = complaint.partition('\nin an operation made by:')[0].splitlines()[-1]
            sys.exit(f'{self.name}, {asked}: {reason}')
        return json.loads(answer)

    def stop(self):
        """Ends the process, also in the midst of a simulation."""
        self._process.terminate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # then it ends
        for stream in self._process.stdout, self._process.stderr:
            stream.close()
        self._process.wait()
        self.running.discard(self)


class Table:
    """Results in a CSV file, a row for each simulation; what it has is not simulated again."""

    _is_older = False  # whether the file lacks columns, as one of an older program

    def __init__(self, path, columns, figures=tuple(FIGURES)):
        """Reads the file.

        Args:
          path: string or path; the file and its directory are made with the first row.
          columns: list of strings, names of the flags that identify a simulation.
          figures: sequence of strings, which figures of a simulation are kept.
        """
        self._path, self._columns = pathlib.Path(path), ['scheme', *columns]
        self._figures, self._lock = figures, threading.Lock()
        self.rows = collections.OrderedDict()
        for row in read(self._path):
            self.rows[self._key(row)] = row
            self._is_older = not row.keys() >= {*self._columns, *figures}

    def _key(self, row):
        return tuple(row.get(name, '') for name in self._columns)

    def simulate(self, scheme, asked):
        """Returns the row of a simulation, a dict of strings; simulates it if the row is missing.

        Args:
          scheme: `Scheme`.
          asked: dict of strings by names of flags, which are columns.
        """
        found = self.row(scheme.name, asked)
        if found is None:
            found = dict(asked, scheme=scheme.name)
            answer = scheme.simulate(asked)
            found.update((name, str(value)) for name, value in answer.items()
                         if name in self._figures)
            with self._lock:
                self._write(found)
                self.rows[self._key(found)] = found
        return found

    def row(self, name, asked):
        """Returns the row of a scheme's name and of what was asked for, or None."""
        return self.rows.get(self._key(dict(asked, scheme=name)))

    def _write(self, row):
        """Adds a row to the file at once: a run that is cut off loses only what was under way."""
        is_new = self._is_older or not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, 'w' if is_new else 'a', newline='', encoding='utf-8') as file:
            writer = csv.DictWriter(file, [*self._columns, *self._figures], lineterminator='\n')
            if is_new:
                writer.writeheader()
                writer.writerows(self.rows.values())
            writer.writerow(row)
        self._is_older = False


def add_jobs(parser):
    """Adds the option of `for_each` to an `argparse.ArgumentParser`."""
    def number(text):
        if not re.fullmatch(r'[1-9]\d*', text):
            raise argparse.ArgumentTypeError(f'{text} is no number from 1 on')
        return int(text)

    parser.add_argument('--jobs', type=number, metavar='N',
                        help='simulations at a time; by default one for each processor')


def local_steps_per_second(row):
    """Returns the local steps of all workers per virtual second, from a row of FIGURES."""
    return int(row['examples']) / BATCH / float(row['seconds'])


def for_each(function, items, jobs=None):
    """Calls a function with each item, several at a time, the first ones first.

    Args:
      function: function of an item.
      items: list.
      jobs: int, how many at a time; by default one for each processor.

    Raises:
      SystemExit: if one of the calls does so, after the calls under way have ended.
      KeyboardInterrupt: after SIGINT, which also ends simulations under way.
    """
    left, complaints = list(items), []

    def work():
        while left and not complaints:
            try:
                function(left.pop(0))
            except (Exception, SystemExit) as error:  # pylint: disable=broad-except
                complaints.append(error)

    threads = [threading.Thread(target=work) for _ in range(jobs or os.cpu_count())]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:  # the threads end now, not with the last item
        left.clear()
        for process in list(Scheme.running):
            if not process.is_apart:
                process.stop()
        raise
    if complaints:
        raise complaints[0]


def figures_of(simulation):
    """Returns the figures of a `simulate.Simulation` that has run, but for those of its process.

    Returns:
      Dict of FIGURES, OF_HALVES and OF_LINKS. The excess curve has for each test the local steps,
      seconds, and the excess loss on both halves of the test set; where there is none, the error
      curve has the share of wrong answers in its place.
    """
    record = simulation.record
    last, reached = record.curve[-1], record.reached_target or {}
    found = dict.fromkeys([*FIGURES, *OF_HALVES, *OF_LINKS], '')
    alive = sum(record.seconds.values()) or 1
    found.update(accuracy=last.get('test_accuracy', ''), loss=last.get('test_loss', ''),
                 diverged=int(record.diverged), steps=record.step, examples=last['examples'],
                 seconds=simulation.clock.now, target_examples=reached.get('examples', ''),
                 target_seconds=reached.get('seconds', ''),
                 computes=record.seconds['computes'] / alive, waits=record.seconds['waits'] / alive,
                 curve=' '.join(f'{row["examples"]}:{row["seconds"]:.6g}:'
                                f'{row.get("test_accuracy", 0):.4f}' for row in record.curve))
    if record.staleness:
        half, most, nearly, maximum = record.quantiles([.5, .9, .99, 1])
        found.update(staleness=record.mean_staleness(), staleness_50=half, staleness_90=most,
                     staleness_99=nearly, staleness_max=maximum)
    if record.accepted or record.dropped:
        found['dropped'] = record.dropped / (record.accepted + record.dropped)
    found['excess_loss'] = last.get('test_excess_loss', '')
    travels = simulation.life.travels
    for name, amount in (('in_line', travels.most_in_line()), ('sent', travels.sent)):
        found[name] = '' if amount is None else float(amount)
    found.update((name, last[name]) for name in OF_HALVES if name in last)
    if 'validation_excess_loss' in last:
        found['excess_curve'] = _curve_of_halves(
            record, lambda row, half: row[f'{half}_excess_loss'])
    elif 'validation_accuracy' in last:
        found['error_curve'] = _curve_of_halves(
            record, lambda row, half: 1 - row[f'{half}_accuracy'])
    for name, value in found.items():
        if isinstance(value, float):
            found[name] = float(f'{value:.5g}')
    return found


def _curve_of_halves(record, figure):
    """Returns a curve as text; `figure` is a function of a test and the name of a half."""
    return ' '.join(f'{row["examples"] // BATCH}:{row["seconds"]:.5g}:{figure(row, "test"):.4g}:'
                    f'{figure(row, "validation"):.4g}' for row in record.curve)


def _end_with_who_asks():
    """Exits when the parent closes the pipe, even in mid-simulation."""
    hang_up = select.poll()
    hang_up.register(sys.stdin, 0)  # the event of a closed pipe needs no mask

    def wait():
        hang_up.poll()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _serve(program, prepare):
    """Simulates what the input asks for; takes what `schemes.load` returns."""
    _end_with_who_asks()
    # Here, and not above: the parent does not load TensorFlow.
    import time
    from absl.testing import flagsaver
    import simulate
    flags = simulate.FLAGS
    answers, sys.stdout = sys.stdout, open(os.devnull, 'w', encoding='utf-8')  # for answers only
    for line in sys.stdin:
        began = time.time()
        with flagsaver.flagsaver():
            for name, value in json.loads(line).items():
                flags[name].parse(value)
                flags[name].using_default_value = False
            prepare()
            simulation = simulate.Simulation(None, program, simulate.cluster())
            simulation.run()
            found = figures_of(simulation)
            simulation.player.close()
        found.update(wall_seconds=round(time.time() - began, 2),
                     megabytes=round(simulate.megabytes()))
        print(json.dumps(found), file=answers, flush=True)


if __name__ == '__main__':
    import schemes
    from tfdist.start import console
    loaded = schemes.load(schemes.asked_for(sys.argv))
    import simulate  # noqa: F401
    console.run(lambda _: _serve(*loaded))
