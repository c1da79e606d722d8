"""The clock alone: what workers of a scheme take the time for, while nobody computes a gradient.

A simulation of this kind takes milliseconds, since nothing of TensorFlow runs in it. The scheme
itself says what a worker does in a round, and how many bytes it pulls and pushes.

As a program it answers questions: each line of its input is a list of them, in JSON. It loads
TensorFlow once, and looks at each scheme in a copy of itself, since folders share the names of
their files and flags.
"""

import collections
import itertools
import json
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import subprocess
import sys

import numpy as np

import advise_cluster
import advise_costs
from clock import Clock
from crew import Crew
import description
import lives
from rounds import Computed, Round

WINDOWS = 5, 10, 20, 50  # that are tried, if the scheme has a flag for it
_WINDOW_FLAGS = 'communication_window', 'n_fetch', 'n_push'
_BUILT = 2  # window of the graph that is looked at
_ROUNDS = 400  # of all workers, but at least _LEAST of each
_LEAST = 12
_BUSY = 0.5  # share of the time for which the ps work: from then on, one more is tried
_ABSENT = 2 ** 62  # clock of a worker that is not there
ON_THE_PS = 'into the ps', 'out of the ps', 'updates'


class _Bytes:
    """A tensor that has a size and no values."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def __add__(self, _):
        return self


class _Ready:
    """Stands for a `gathering.Computation`: there is nothing to compute."""

    def __init__(self, pushed):
        self._computed = Computed(fed={}, pushed=pushed, figures={}, kept=None)

    def result(self):
        """See `gathering.Computation`."""
        return self._computed


class Silent:
    """Stands for a `player.Player`: it knows sizes, counts updates, and computes nothing.

    Attributes:
      scheme, hparams, pieces, pushes, overlaps, parameters, source: see there.
    """

    source = None

    def __init__(self, player):
        """Looks at one round of a `player.Player`.

        Raises:
          SystemExit: if not all of its rounds are the same, or exchange while they compute.
        """
        if player.scheme.others or player.scheme.beginning:
            sys.exit('with these flags not all rounds are the same, or they exchange while they '
                     'compute: the clock alone does not tell')
        self.scheme, self.hparams, self.pushes = player.scheme, player.hparams, player.pushes
        self.overlaps, self.parameters = player.overlaps, player.parameters
        player.begin(0)
        if hasattr(player.source, 'take'):
            player.source.begin(0)
            player.source.take(0)
        one, self._pulls = None, []
        pieces, = player.pieces
        for piece in pieces:
            if piece.what == 'pulls':
                one = player.compute(0, one, piece.number)
                self._pulls.append(one.pull_bytes)
        self._ready = _Ready([[_Bytes(size) for size in one.push_bytes(number)]
                              for number in range(self.pushes)])
        self._pieces, self._built = pieces, sum(
            piece.local_steps for piece in pieces if piece.what == 'pushes')
        self.begin_with(self._built, 1)

    @property
    def push_bytes(self):
        """Bytes that a worker pushes in a round, an int."""
        return sum(tensor.nbytes for pushed in self._ready.result().pushed for tensor in pushed)

    @property
    def pull_bytes(self):
        """Bytes that a worker pulls in a round, an int."""
        return sum(sum(sizes) for sizes in self._pulls)

    def begin_with(self, window, workers):
        """Begins anew, with other numbers of local steps in a round and of workers."""
        self.pieces = [[piece._replace(local_steps=piece.local_steps * window // self._built)
                        for piece in self._pieces]]
        self.step, self._clocks = 0, np.full(workers, _ABSENT, np.int64)

    def begin(self, worker):
        """See `player.Player`; a clock begins at the slowest one, or at 0."""
        slowest = self._clocks.min()
        self._clocks[worker] = slowest if slowest < _ABSENT else 0

    def compute(self, worker, one=None, number=0):
        """See `player.Player`."""
        return Round(self.step, self._pulls[number], self._ready)

    def push(self, worker, one, number=0, stamp=None, sums=()):
        """See `player.Player`; a push with a stamp counts if that is the step."""
        if self.scheme.complete is not None:
            return {'dropped': float(stamp != self.step)}
        late = self.step - one.step
        self.step += 1
        self._clocks[worker] += 1
        return {'global_step': self.step, **({} if self.scheme.sums else {'staleness': late})}

    def push_gathered(self, several):
        """See `player.Player`."""
        return self.push(0, several[0])

    def complete(self, step=0):
        """See `player.Player`."""
        self.step += 1
        return self.step

    def clocks(self):
        """See `player.Player`."""
        return self._clocks

    def leave(self, worker):
        """See `player.Player`."""
        self._clocks[worker] = _ABSENT


class _Tally:
    """Stands for a `record.Record`: it counts, from when a quarter is done."""

    def __init__(self, clock, enough):
        self._clock, self._enough, self._began = clock, enough, None
        self.local_steps, self.seconds = 0, collections.Counter()
        self._late, self._pushes, self._dropped = 0, 0, 0

    def phase(self, worker, what, began, ended):
        self.seconds[what] += ended - began

    def add(self, figures, local_steps):
        self.local_steps += local_steps
        self._late += figures.get('staleness', 0)
        self._dropped += figures.get('dropped', 0)
        self._pushes += 1
        if self._began is None and 4 * self.local_steps >= self._enough:
            self._began = self._clock.now, self.local_steps

    def reach(self, step):
        pass

    def may_test(self, worker):
        pass

    def goes_on(self):
        return self.local_steps < self._enough

    def figures(self):
        """Returns local steps/s, the mean staleness, and what share of the time workers do what."""
        began, before = self._began
        alive = sum(self.seconds.values()) or 1
        return {'rate': (self.local_steps - before) / (self._clock.now - began),
                'staleness': self._late / self._pushes, 'dropped': self._dropped / self._pushes,
                **{what: self.seconds[what] / alive
                   for what in ('computes', 'pulls', 'pushes', 'waits')}}


def simulate(silent, window, flags):
    """Simulates the clock.

    Args:
      silent: `Silent`.
      window: int, local steps in a round.
      flags: dict of strings, as `advise_cluster.Cluster.flags` returns it.

    Returns:
      Dict of floats: 'rate', local steps/s of all workers; 'staleness'; 'dropped', the share of
      the pushes that came too late; and shares of the time by what workers do, and by what the ps
      and shared processors are busy with.

    Raises:
      SystemExit: if it comes to no end.
    """
    said = dict(flags)
    late = dict(part.split(':') for part in said.pop('straggler', '').split(',') if part)
    cluster = description.Cluster(**{
        name: value.split(',') if isinstance(description.KEYS[name][1], list) else value
        for name, value in said.items()})
    workers = cluster.workers
    silent.begin_with(window, workers)
    clock = Clock()
    tally = _Tally(clock, window * workers * max(_LEAST, _ROUNDS // workers))
    life = lives.kind_of(silent)(clock, cluster, silent, tally,
                                 [float(late.get(str(worker), 0)) for worker in range(workers)], 1)
    Crew(clock, cluster, life, 1)
    clock.run(tally.goes_on)
    if tally.goes_on():
        sys.exit(f'nothing happens after {clock.now:.3g} s: {life.stands()}')
    return dict(tally.figures(), **life.travels.shares(), **life.processors.shares())


def _rows(silent, asked, windows):
    """Returns what `_answer` does as 'rows', for a `Silent`, what was asked, and windows to try."""
    kind = lives.kind_of(silent)
    is_ring = issubclass(kind, lives.InARing)
    costs = advise_costs.read(pathlib.Path(asked['costs'])).of_scheme(asked.get('name'))
    rows = []
    for number, variant in enumerate(asked.get('variants', [{}])):
        cluster = advise_cluster.Cluster(asked['cluster'])
        if 'improved' in variant:
            cluster = cluster.improvements()[variant['improved']]
        for window, workers in itertools.product(
                windows, variant.get('workers') or cluster.numbers_of_workers(is_ring)):
            for ps in [0] if is_ring else variant.get('ps') or cluster.numbers_of_ps(workers):
                flags = cluster.flags(costs, workers, ps, kind.stages, is_ring,
                                      variant.get('at', 'value'))
                row = simulate(silent, window, flags)
                rows.append(dict(row, window=window, workers=workers, ps=ps, flags=flags,
                                 variant=number, start=cluster.start(
                                     costs, window, workers, ps, is_ring)))
                if max(row.get(name, 0) for name in ON_THE_PS) < _BUSY:
                    break  # one more ps would have nothing to do
    return rows


def _answer(asked):
    """Simulates what is asked, in a copy of the process.

    Args:
      asked: dict of the 'name' of a scheme; its 'folder', a path; 'flags', a list of strings
        for its program; 'cluster', a text; 'costs', the path of a file; to choose, a list of
        'windows'; and a list of 'variants', dicts that may have lists of 'workers' and of 'ps',
        'improved', one of `Cluster.improvements`, and 'at', see `Costs.get`.

    Returns:
      Dict of 'rows', of which each is what `simulate` returns, with its window, workers, ps, flags
      for a whole simulation, the number of its variant, and its start, see `Cluster.start`;
      'window_flags', a list; 'rate_flag', 'rate' and 'rate_is_given', the flag of the step size,
      its value, and whether 'flags' has it;
      'train_steps' and 'batch_size'; 'together', whether a step is one of all workers; 'averages',
      whether it is one of the mean of their gradients; 'pushes', how many a round has.
    """
    sys.argv[1:] = [f'--scheme={asked["folder"]}', *asked['flags']]
    import schemes
    program, _ = schemes.load(asked['folder'])
    import simulate as simulation
    import study_cases
    flags = simulation.FLAGS
    flags(sys.argv)
    window_flags = [name for name in _WINDOW_FLAGS if name in flags]
    windows = asked.get('windows') or (WINDOWS if window_flags else [1])
    if any(flags[name].present for name in window_flags):
        windows = [program.Scheme.local_steps(flags)]
    else:
        for name in window_flags:
            flags[name].value = _BUILT
    player = simulation.make_player(program, 2, hasattr(program, 'at_step'))
    silent, kind = Silent(player), lives.kind_of(player)
    rate_flag = study_cases.RATES.get(asked.get('name'), study_cases.RATE)[0]
    return {'rows': _rows(silent, asked, windows), 'window_flags': window_flags,
            'rate_flag': rate_flag, 'rate': flags[rate_flag].value,
            'rate_is_given': bool(flags[rate_flag].present),
            'train_steps': flags.train_steps, 'batch_size': flags.batch_size,
            'together': kind.together,
            'averages': kind.together and not window_flags, 'pushes': silent.pushes}


def _complaint(error):
    """Returns an exception in one line."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return words[-1] if isinstance(error, SystemExit) else f'{type(error).__name__}: {words[0]}'


def _tell(asked, there):
    """Sends the answer to a question through a connection, or what is wrong, as 'error'."""
    try:
        found = _answer(asked)
    except BaseException as error:  # whatever a scheme or a model may do
        found = {'error': _complaint(error)}
    there.send(found)


def main():
    """Answers each line of the input, a list of questions; several at a time."""
    import simulate as _  # noqa: F401  (loads TensorFlow, for all copies)
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what models print is no answer
    most, context = int(sys.argv[1]), multiprocessing.get_context('fork')
    for line in sys.stdin:
        left, running, found = list(enumerate(json.loads(line))), {}, {}
        while left or running:
            while left and len(running) < most:
                number, asked = left.pop(0)
                here, there = context.Pipe(duplex=False)
                copy = context.Process(target=_tell, args=[asked, there])
                copy.start()
                there.close()
                running[here] = number, copy
            for here in connection.wait(list(running)):
                number, copy = running.pop(here)
                try:
                    found[number] = here.recv()
                except EOFError:
                    found[number] = {'error': 'the process has ended'}
                copy.join()
        print(json.dumps([found[number] for number in sorted(found)]), file=answers, flush=True)


class Oracle:
    """The program, as a process that answers. A context manager."""

    def __init__(self, jobs, cluster, costs):
        """Starts it.

        Args:
          jobs: int, how many schemes it looks at at the same time.
          cluster: `advise_cluster.Cluster`.
          costs: `pathlib.Path`, the file of the costs.
        """
        self._about = {'cluster': cluster.text, 'costs': str(costs)}
        # Ctrl-C is for whoever asks: it still has questions then.
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(jobs)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True,
            start_new_session=True)

    def ask(self, folder, questions):
        """Returns the answers to questions, a list of dicts, see `_answer`.

        Args:
          folder: `advise_folders.Folder`.
          questions: list of dicts with the 'name' of a scheme, and what `_answer` takes besides.

        Raises:
          SystemExit: if the program ends.
        """
        asked = [dict(self._about, folder=str(folder.of(question['name'])), flags=folder.flags,
                      **question) for question in questions]
        self._process.stdin.write(json.dumps(asked) + '\n')
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit('The process that simulates the clock has ended.')
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # then it ends
        self._process.wait()
        self._process.stdout.close()


if __name__ == '__main__':
    main()
