"""Measures on this machine, in about a minute, what a model and the runtime cost.

It times local steps in one process, and makes real runs: with one process, with one worker and one
ps, and with rings of two and three workers. Costs follow from these as in `validate`.
"""

import collections
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from measuring import runs
from measuring.results import machine
import advise_costs
from advise_costs import Costs, Figure, START_OF, STEP_OF
import advise_folders
import validate

HERE = pathlib.Path(__file__).resolve().parent
TESTED_SHARE = 0.1  # of its time for which the chief of a real run tests
_TIMED = 'AGN', 'HogWild'  # whose local steps are timed; the second one for what the first refuses
# Whose local steps take longer: they keep something from one to the next.
_OTHERS = ['DiLoCo', 'AEAMSGD', 'DynSGD']
_SECONDS = 3  # that a run is to train
_MOST_RUNS, _LEAST_RUNS = 20000, 30  # of a train op
_ROUND = 0.0015  # seconds of an exchange, for an estimate
_SMALL, _LARGE = 2 ** 12, 2 ** 20  # bytes
_TIME_LIMIT = 300
# A worker gets more threads on more cores. The local step that is subtracted was timed with one.
_AS_TIMED = '--num_threads=1'


def _of_steps(folder, names, *options):
    """Returns what advise_steps.py prints for an `advise_folders.Folder`, a dict.

    Args:
      folder: see there.
      names: strings, schemes: it times the first one that can be timed.
      *options: strings, for the program.

    Raises:
      SystemExit: with its complaint.
    """
    for name in names:
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / 'advise_steps.py'), f'--scheme={folder.of(name)}',
                 *options, *folder.flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                check=False, timeout=_TIME_LIMIT, universal_newlines=True)
        except subprocess.TimeoutExpired:
            sys.exit(f'Local steps cannot be timed: that takes more than {_TIME_LIMIT} s.')
        if not done.returncode:
            return json.loads(done.stdout.splitlines()[-1])
    complaint = done.stderr.strip().splitlines() or ['it ended']
    sys.exit(f'Local steps cannot be timed: {complaint[-1]}')


def local_step(folder):
    """Returns the seconds of a local step in one process with one thread, a float.

    Args:
      folder: `advise_folders.Folder`.

    Raises:
      SystemExit: if it cannot be timed.
    """
    timed, = _of_steps(folder, _TIMED, '--briefly')['steps']
    return timed['step'][0]


def _seconds_of_trip(number):
    """Returns the seconds in which so many bytes go from a ps to a worker and back."""
    ask = ('from measuring import there_and_back; print(there_and_back.measure('
           f'[[{number // 4}]], trips=300, workers=1)["trips/s of each worker"])')
    done = subprocess.run([sys.executable, '-c', ask], stdout=subprocess.PIPE, check=True,
                          cwd=str(HERE.parent), timeout=_TIME_LIMIT, universal_newlines=True)
    return 1 / float(done.stdout)


Real = collections.namedtuple('Real', 'curve local_steps_per_second start head_start')
Real.__doc__ = """How a setting really trains.

Attributes:
  curve: list of (step, seconds, accuracy), see `curve_of`.
  local_steps_per_second: float.
  start: float, seconds, see `start_of`.
  head_start: float, seconds, see `runs.head_start`.
"""


def real(path, setting, *flags, **options):
    """Makes a run of a setting; returns a `Real`.

    Args:
      path: of the folder that is run.
      setting: dict, one of the settings that `advise_answer.Answer.as_json` returns.
      *flags: strings, more flags; they overrule those of the setting.
      **options: more of the arguments of `runs.Run`.

    Raises:
      SystemExit: if it fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        run = runs.Run(str(path), *setting['flags'], *flags, f'--tested_share={TESTED_SHARE}',
                       f'--notes_dir={directory}', **setting['workers_and_ps'], **options)
        notes = runs.notes_in(directory)
    rate = runs.rate(notes)
    return Real(curve_of(run, notes, setting), setting['window'] * rate,
                start_of(notes, len(notes) / rate), runs.head_start(notes))


def start_of(notes, seconds):
    """Returns what the first runs of a train op took longer than later ones, in seconds, a float.

    In these TensorFlow prepares the graph, and the tasks reach each other for the first time.

    Args:
      notes: list of dicts, what the processes wrote by tfdist/training/notes.py.
      seconds: float, that a later run takes where a process made none.
    """
    def longer(note):
        first, later = note['times'][:runs.WARM_UP], note['times'][runs.WARM_UP - 1:]
        # Compared with the worker's own later runs: on a slow host all runs take longer.
        each = (later[-1] - later[0]) / (len(later) - 1) if len(later) > 1 else seconds
        return first[-1] - note['began'] - len(first) * each

    return max(0., max(map(longer, notes)))


def curve_of(run, notes, setting):
    """Returns the accuracy over time of a run, a list of (step, seconds, accuracy).

    The test at the end comes last; its step is None. The seconds count from when the first worker
    began, without the time that tests took from the training: while the chief tests, it does not
    train, nor do workers that wait for it, but the others do; so do they before the chief begins.

    Args:
      run: `runs.Run`.
      notes: list of dicts, what its processes wrote by tfdist/training/notes.py.
      setting: dict, one of the settings that `advise_answer.Answer.as_json` returns.
    """
    together = setting['local_steps_of_update'] >= setting['workers'] * setting['window']
    stopped = 1. if together else 1 / setting['workers']
    chief = runs.of_chief(notes)
    lost = (stopped - 1) * runs.head_start(notes)  # the first test precedes the chief's training
    end = max(note['times'][-1] for note in notes) - chief['began']
    found = []
    for (step, seconds, accuracy), tested in zip(chief['curve'], chief['tested']):
        found.append((step, seconds - lost, accuracy))
        lost += stopped * tested if seconds else 0.
    return [*found, (None, end - lost, float(run.find(runs.TEST)[1][1]))]


def reached(curve, target):
    """Returns when a curve, a list of (step, seconds, accuracy), comes to a target; or None."""
    before = 0., 0.
    for _, seconds, accuracy in curve:
        if accuracy >= target:
            (began, first), whole = before, accuracy - before[1]
            return began + (seconds - began) * ((target - first) / whole if whole else 1)
        before = seconds, accuracy
    return None


def _really_run(folder, name, seconds, *flags, **env):
    """Makes a run.

    Args:
      folder: `advise_folders.Folder`.
      name: string, a scheme, or `advise_folders.ALONE`.
      seconds: float, what a run of the train op may take, for an estimate.
      *flags: strings, more flags.
      **env: strings, such as WORKERS='2'.

    Returns:
      Tuple of the seconds of a run of its train op, the mean and the least and largest of three
      parts; the processor seconds in it; what the first runs took longer, see `start_of`; and the
      seconds of a test.
    """
    count = min(_MOST_RUNS, max(_LEAST_RUNS, int(_SECONDS / seconds)))
    with tempfile.TemporaryDirectory() as directory:
        run = runs.Run(str(folder.of(name)), f'--train_steps={count}', *folder.flags, *flags,
                       f'--notes_dir={directory}', f'--log_every_n_steps={10 ** 9}', **env)
        notes = runs.notes_in(directory)
    found = validate.measured(notes, run.work)
    middle, times = found['run_s'], notes[0]['times'][runs.WARM_UP:]
    # Of each third: single times are too coarse.
    ends = [len(times) * i // 3 for i in range(3)] + [len(times) - 1]
    parts = [(times[end] - times[begin]) / (end - begin) for begin, end in zip(ends, ends[1:])]
    # A run that was too short for its processor times is said to have worked all the time.
    return ((middle, min(*parts, middle), max(*parts, middle)), found['work_s'] or middle,
            start_of(notes, middle), _seconds_of_test(notes))


def _seconds_of_test(notes):
    """Returns the median of the seconds of the chief's tests; the first one takes longer."""
    first, *others = runs.of_chief(notes)['tested']
    return statistics.median(others or [first])


def _the_same(value, how):
    return Figure(float(value), float(value), float(value), how)


def measure(folder, say):
    """Measures.

    Args:
      folder: `advise_folders.Folder`.
      say: function of a string that tells what is being measured.

    Returns:
      `advise_costs.Costs`.
    """
    say('times local steps in one process, by threads and batch size')
    timed = _of_steps(folder, _TIMED)
    found = collections.OrderedDict((name, None) for name in advise_costs.MEANINGS)
    its_own = [each for each in timed['steps'] if each['batch'] == timed['batch']]
    best = min(its_own, key=lambda each: each['run'][0])
    say('trains with one process')
    alone, _, start, test = _really_run(folder, advise_folders.ALONE, best['run'][0],
                                        f'--num_threads={best["threads"]}')
    found['one process'] = Figure(*alone, 'a real run of Non-Distributed-Setup')
    found['start'] = _the_same(start, 'the first runs of that run')
    found['threads'] = _the_same(best['threads'], 'those with which a local step is fastest')
    found['test'] = _the_same(test, 'the tests in the run with one process')
    found['variation'] = _the_same(its_own[0]['variation'], 'of the runs for step, 1 thread')
    for each in its_own:
        name = f'step, {each["threads"]} thread{"s" * (each["threads"] > 1)}'
        found[name] = Figure(*each['step'], 'in one process: what longer windows take longer')
    found['start, a local step'] = _the_same(
        its_own[0]['more'], 'in one process: what a longer window makes the first run longer')
    for each in timed['steps']:
        if each['threads'] == 1:
            found[f'batch of {each["batch"]} examples'] = Figure(
                *each['step'], 'a local step, 1 thread; not used')
    update = timed['update']
    found['update'] = Figure(update[0], min(update), max(update),
                             'in one process: a push alone, less a run that does nothing')
    for name in 'parameters', 'pull', 'push':
        found[name] = _the_same(timed[name], 'as the scheme AGN has it')
    step = its_own[0]['step'][0]
    found.update(_of_exchanges(folder, step, timed['pull'] + timed['push'], say))
    found.update(_of_rings(folder, step, say))
    found.update(_of_others(folder, say))
    flags = ' '.join(folder.flags) or 'of its folder'
    about = (f'Measured on {machine()}, {time.strftime("%Y-%m-%d")}: each figure, its least and '
             'its largest value in three parts of the measurement. The model is that of '
             f'{folder.path}, with the flags {flags}. Edit what you know better, and give the '
             'file back with --costs=.')
    return Costs(found, folder.identity, about)


def _of_others(folder, say):
    """Times schemes whose local steps may take longer; returns their figures as `measure` does.

    Without those of a scheme that cannot be timed, as with flags that are not its own.
    """
    found = {}
    # One's own scheme may be a changed copy of one of these, of the same name.
    for name in dict.fromkeys(_OTHERS + [folder.own] * bool(folder.own)):
        say(f'times local steps of {name}')
        with contextlib.suppress(SystemExit):
            timed, = _of_steps(folder, [name], '--briefly')['steps']
            found[STEP_OF.format(name)] = Figure(*timed['step'], 'as step, 1 thread')
            found[START_OF.format(name)] = _the_same(timed['more'], 'as start, a local step')
    return found


def _of_exchanges(folder, step, carried, say):
    """Returns the figures of an exchange, a dict.

    Args:
      folder: see `measure`.
      step: float, seconds of a local step.
      carried: int, the bytes of a pull and a push.
      say: see `measure`.
    """
    say('trains with one worker and one ps')
    run, work, start, _ = _really_run(folder, 'HogWild', step + _ROUND, _AS_TIMED,
                                      WORKERS='1', PS='1')
    say('sends bytes to a ps and back')
    small, large = map(_seconds_of_trip, (_SMALL, _LARGE))
    by_byte = max(0., (large - small) / 2 / (_LARGE - _SMALL))
    return {
        'exchange': Figure(*(max(0., each - step - by_byte * carried) for each in run),
                           'a real run of HogWild with one worker, less the local step and what '
                           'its bytes take'),
        'exchange, a byte': _the_same(by_byte, 'what 1 MB takes longer than 4 kB, from a ps and '
                                      'back'),
        'exchange work': _the_same(max(0., work - step), 'the same run of HogWild, by the '
                                   'processor times of worker and ps'),
        'start of a worker': _the_same(start, 'the first runs of the same run')}


def _of_rings(folder, step, say):
    """Returns the figures of a ring, a dict; the arguments are those of `_of_exchanges`."""
    run, work, start = {}, {}, {}
    for workers in 2, 3:
        say(f'trains with a ring of {workers} workers')
        run[workers], work[workers], start[workers], _ = _really_run(
            folder, 'Ring-AllReduce', step + workers * _ROUND, _AS_TIMED,
            WORKERS=str(workers))
    costs = validate.costs_of_ring(step, run[2][0], work[2], work[3])
    off = [each / run[2][0] for each in run[2]]
    names = 'ring', 'ring work', 'hop', 'hop work'
    found = {name: Figure(*(value * each for each in off), 'real runs of rings of two workers, '
                          'which have two hops, and of three, which have four')
             for name, value in zip(names, costs)}
    return dict(found, **{'start of a ring': _the_same(
        start[2], 'the first runs of the ring of two workers')})
