"""Runs of the folders' run.sh, for measure.py, bench.py and compare.py; what they print."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME_LIMIT = 300  # seconds for one run
WARM_UP = 5  # the first runs of a train op, which do not count for a rate
ENOUGH_RUNS = 20  # for a rate
# A shell may have set these, and run.sh reads them.
FOREIGN = {'PS', 'WORKERS', 'PORT', 'LOCAL_ONLY', 'MODE', 'TF_CONFIG'}
DID = re.compile(r'[\w ]+: did (\d+) local steps, (?:staleness ([\d.]+) \(max (\d+)\), )?'
                 r'(?:.*, )?([\d.]+) steps/s')
PUSHES = re.compile(r': did .* accepted (\d+), dropped (\d+)')
# The first metric of the test, which mostly is the accuracy.
TEST = re.compile(r'test \w+ ([\d.]+)(?:, \w+ [\d.]+)* after (\d+) steps, ([\d.]+) s')


def calls_per_second(function, calls, warm_up=0):
    """Calls a function; returns how often in a second. The first `warm_up` calls do not count."""
    for _ in range(warm_up):
        function()
    began = time.monotonic()
    for _ in range(calls):
        function()
    return calls / (time.monotonic() - began)


def rate(notes):
    """Returns how many runs of train ops there are in a second, by all processes together.

    It counts while all of them train: from when each has made its first runs, in which TensorFlow
    prepares the graph, until the first one ends. Who makes hardly any run does not count. When that
    leaves too little, as in very short runs, it counts the whole time. For `notes`, see `notes_in`.
    """
    times = [note['times'] for note in notes]
    busy = [own for own in times if len(own) > max(WARM_UP, max(map(len, times)) / 50)]
    begin = max((own[WARM_UP - 1] for own in busy), default=0)
    end = min((own[-1] for own in busy), default=0)
    counted = sum(begin < when <= end for own in busy for when in own)
    if counted < ENOUGH_RUNS:
        begin, end = min(note['began'] for note in notes), max(own[-1] for own in times)
        counted = sum(map(len, times))
    return counted / (end - begin)


def notes_in(directory):
    """Returns what the processes of a run wrote by --notes_dir, see tfdist/training/notes.py."""
    return [json.loads(path.read_text(encoding='utf-8'))
            for path in pathlib.Path(directory).glob('*.json')]


def of_chief(notes):
    """Returns those of `notes_in` that the chief wrote, a dict."""
    chief, = (note for note in notes if note['chief'])
    return chief


def head_start(notes):
    """Returns for how many seconds another worker trained before the chief did, a float."""
    return of_chief(notes)['began'] - min(note['began'] for note in notes)


class Run:
    """A run of a folder's run.sh, from its start to its end.

    Attributes:
      lines: list of (seconds since the start, line that was printed).
      seconds: float, how long it took.
      peaks: dict, the peak of the resident memory of a process in bytes, by its program's name.
      work: list of (seconds of the clock that all share, processor seconds of all processes).
      busy: dict, the processor seconds of processes, by their program's name.
    """

    def __init__(self, folder, *flags, time_limit=TIME_LIMIT, **env):
        """Runs it with flags for the workers, and environment variables such as WORKERS='4'.

        It is ended after `time_limit` seconds.

        Raises:
          SystemExit: if it fails.
        """
        self.lines, self.peaks, self.work, self.busy = [], {}, [], {}
        own = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        began = time.monotonic()
        process = subprocess.Popen(
            ['bash', str(ROOT / folder / 'run.sh'), *flags], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True,
            env={**own, 'PYTHON': sys.executable, **env})
        limit = threading.Timer(time_limit, process.terminate)
        limit.start()
        watch = threading.Thread(target=self._watch, args=(process,))
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
                                f'{time_limit} s at most:',
                                *(line for _, line in self.lines)]))

    def _watch(self, process):
        """Looks at the processes until the run ends."""
        while process.poll() is None:
            try:
                busy = collections.Counter()
                for child in psutil.Process(process.pid).children(recursive=True):
                    name = ' '.join(child.cmdline()[1:2]).rpartition('/')[2]
                    self.peaks[name] = max(self.peaks.get(name, 0), child.memory_info().rss)
                    times = child.cpu_times()
                    busy[name] += times.user + times.system
                self.work.append((time.time(), sum(busy.values())))
                self.busy.update((name, max(seconds, self.busy.get(name, 0)))
                                 for name, seconds in busy.items())
            except psutil.NoSuchProcess:
                pass  # it ended meanwhile
            time.sleep(0.2)

    def find(self, form):
        """Returns (seconds since the start, match) of the first line with `form`, a pattern."""
        return next((seconds, match) for seconds, line in self.lines
                    for match in [re.search(form, line)] if match)

    def figures(self):
        """Returns a dict of what it printed: floats, by the names that tables give them.

        These are 'local steps' by all workers together and 'local steps/s', 'steps/s per worker',
        their mean, 'test accuracy', 'seconds' from the start of the program that tests to its test;
        and, where there are any, 'staleness' and 'most', the mean and the largest of all updates,
        and 'accepted' and 'dropped', the pushes of all workers.
        """
        done = [match.groups() for match in (DID.fullmatch(line) for _, line in self.lines)
                if match]
        worked = [(int(steps), staleness, most, float(rate))
                  for steps, staleness, most, rate in done
                  if float(rate)]  # one that came too late did nothing
        steps = sum(row[0] for row in worked)
        _, test = self.find(TEST)
        found = {'local steps': steps,
                 # By the time of the worker that took longest: one that came late had no share in
                 # the others' first steps.
                 'local steps/s': steps / max(row[0] / row[3] for row in worked),
                 'steps/s per worker': sum(row[3] for row in worked) / len(worked),
                 'test accuracy': float(test[1]), 'seconds': float(test[3])}
        if worked[0][1]:
            # Workers make as many updates as they have local steps, by the same factor.
            found['staleness'] = sum(row[0] * float(row[1]) for row in worked) / steps
            found['most'] = max(int(row[2]) for row in worked)
        pushes = [tuple(map(int, match.groups())) for match in (
            PUSHES.search(line) for _, line in self.lines) if match]
        if pushes:
            found['accepted'], found['dropped'] = map(sum, zip(*pushes))
        return found
