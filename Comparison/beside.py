"""Examples beside their peers in other frameworks, for bench.py: pairs, rounds, one table.

Both of a pair train the same network on the same data, in batches of the same size, with two
workers on this machine, each with one thread to compute. They take turns, so that whatever else the
machine does hits both alike, and the ratio is taken within a round.
"""

import collections
import statistics
import sys
import tempfile

from measuring import peers
from measuring.folders import Example
from measuring.runs import notes_in, rate, Run

WORKERS = 2
STEPS = {'digits': 4000, 'mnist': 600}  # of each worker
PARAMETERS = {'digits': 'digits', 'mnist': '648k parameters'}
WINDOWS = 5  # with windows of local steps there are so many times as many steps

Pair = collections.namedtuple('Pair', 'folder peer model target')
Pair.__doc__ = """An example and its peer.

Attributes:
  folder: string, the example, with its default flags.
  peer: string, a name in `peers.PEERS`.
  model: string, what both train: a key of STEPS.
  target: float, how many times the peer's steps per second are to be reached; or None.
"""


def _pairs(*rows):
    """Returns a dict of `Pair`s by their names in the table."""
    return {f'{folder} beside {peer}, {PARAMETERS[model]}': Pair(folder, peer, model, target)
            for folder, peer, model, target in rows}


PAIRS = _pairs(
    ('Ring-AllReduce', 'DDP', 'digits', 1.8),
    ('Ring-AllReduce', 'Horovod', 'digits', 1.8),
    ('Synchronous-SGD', 'DDP', 'digits', 1.0),
    ('Local-SGD', 'local SGD in PyTorch', 'digits', 1.5),
    ('Ring-AllReduce', 'DDP', 'mnist', 1.5),
    ('Ring-AllReduce', 'Horovod', 'mnist', 1.5),
    ('Ring-AllReduce', 'MultiWorkerMirroredStrategy', 'mnist', None),
    ('Synchronous-SGD', 'DDP', 'mnist', 0.95),
    ('HogWild', 'ParameterServerStrategy', 'mnist', None))


def steps_of(pair):
    """Returns how many steps each worker makes, in either program."""
    return STEPS[pair.model] * (WINDOWS if Example(pair.folder).window > 1 else 1)


def ours(pair):
    """Runs the example of a pair; returns how many steps a second each of its workers makes."""
    example = Example(pair.folder)
    with tempfile.TemporaryDirectory() as notes:
        model = [f'--model={pair.model}'] * (pair.model != 'digits')
        Run(pair.folder, *model, '--num_threads=1', '--log_every_n_steps=100000',
            f'--notes_dir={notes}',
            *example.arguments(WORKERS, example.window, WORKERS * steps_of(pair)),
            WORKERS=str(WORKERS), CUDA_VISIBLE_DEVICES='')
        return rate(notes_in(notes)) * example.window / WORKERS


def theirs(pair, interpreter):
    """Runs the peer of a pair, as `ours`."""
    return peers.steps_per_second(pair.peer, interpreter, f'--model={pair.model}',
                                  f'--workers={WORKERS}', f'--steps={steps_of(pair)}')


def measure(pairs, repeats):
    """Runs pairs, a dict, in `repeats` rounds; says in a line which peers are not installed.

    Returns:
      Dict by names of lists of the steps/s of both, one pair of floats for each round; and what the
      peers are made with, a list of strings.
    """
    names = list(dict.fromkeys(pair.peer for pair in pairs.values()))
    found, frameworks = peers.installed(names)
    missing = [name for name in names if name not in found]
    if missing:
        print(f'left out, as it is not installed (see Comparison/peers.txt): {", ".join(missing)}',
              file=sys.stderr)
    figures = collections.defaultdict(list)
    for repeat in range(repeats):
        for name, pair in pairs.items():
            if pair.peer in found:
                print(f'{repeat + 1} of {repeats}: {name}', file=sys.stderr, flush=True)
                figures[name].append((ours(pair), theirs(pair, found[pair.peer])))
    return figures, frameworks


COLUMNS = ['', 'ours, steps/s', "peer's, steps/s", 'ratio', 'lowest to highest', 'target']


def rows(figures, pairs):
    """Returns the rows of pairs, dicts of cells by COLUMNS, from what `measure` returns."""
    found = []
    for name, rounds in figures.items():
        ratios = [own / other for own, other in rounds]
        own, other = map(statistics.median, zip(*rounds))
        ratio, target = f'{statistics.median(ratios):.2f}', pairs[name].target
        word = '' if target is None else f'>= {target}'
        if target is not None and float(ratio) < target:
            word = f'missed: {word}'
        found.append(dict(zip(COLUMNS, [name, f'{own:.0f}', f'{other:.0f}', ratio,
                                        f'{min(ratios):.2f} to {max(ratios):.2f}', word])))
    return found
