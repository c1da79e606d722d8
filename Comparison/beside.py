"""Examples beside their peers in other frameworks, for bench.py: pairs, rounds, one table.

Both of a pair train the same network on the same data, in batches of the same size, with workers on
this machine, each with one thread to compute. They take turns, so that whatever else the machine
does hits both alike, and the ratio is taken within a round. Pairs with a network have each task on
a host of its own, whose link has a rate.
"""

import collections
import contextlib
import pathlib
import statistics
import sys
import tempfile

from measuring import hosts, peers, readmes
from measuring.folders import Example
from measuring.runs import notes_in, rate, Run

Model = collections.namedtuple('Model', 'words flags steps distant_steps')
Model.__doc__ = """A network that both of a pair train.

Attributes:
  words: string, in the table.
  flags: list of strings, with which an example trains it.
  steps, distant_steps: ints, steps of each worker on this machine, and on hosts.
"""
MODELS = {'digits': Model('digits', [], 4000, 1000),
          'mnist': Model('648k parameters', ['--model=mnist'], 600, 150),
          'large': Model('10M parameters', ['--model=mnist', '--mnist_hidden_units=2800',
                                            '--learning_rate=0.02'], 60, 30),
          'resnet': Model('ResNet', ['--model=resnet'], 150, 60)}
WINDOWS = 5  # with windows of local steps there are so many times as many steps
WARM_UP = 20  # steps of a peer that do not count, at most as many as count

Pair = collections.namedtuple('Pair', 'folder peer model target workers network',
                              defaults=(2, None))
Pair.__doc__ = """An example and its peer.

Attributes:
  folder: string, the example, with its default flags.
  peer: string, a name in `peers.PEERS`.
  model: string, what both train: a key of MODELS.
  target: float, how many times the peer's steps per second are to be reached; or None.
  workers: int.
  network: `Network`, if each task is on a host of its own; None: all are on this machine.
"""
Network = collections.namedtuple('Network', 'gigabits milliseconds')
Network.__doc__ = """What is between the hosts, which are namespaces of this machine.

Attributes:
  gigabits: float, how many bits pass each host's link in a second, either way.
  milliseconds: float, from host to host and back; None: what a switch of this machine takes.
"""


def _pairs(*rows):
    """Returns a dict of `Pair`s by their names in the table."""
    return {f'{folder} beside {peer}, {MODELS[model].words}': Pair(folder, peer, model, target)
            for folder, peer, model, target in rows}


def _distant_pairs(peer, target, *rows):
    """Returns a dict of `Pair`s by their names in the table: rows of networks, with two folders."""
    return {f'{folder} against {peer}, {network.gigabits} Gbit/s, '
            + (f'{network.milliseconds} ms, ' if network.milliseconds else '')
            + f'{MODELS[model].words}, {workers} workers':
            Pair(folder, peer, model, target, workers, network)
            for network, model, workers in rows for folder in ('Ring-AllReduce', 'Synchronous-SGD')}


# What is left of a difference if an exchange costs nothing: one worker, which has no other.
ALONE = {f'Alone, Non-Distributed-Setup and DDP, {model.words}':
         Pair('Non-Distributed-Setup', 'DDP', name, None, 1) for name, model in MODELS.items()}
PAIRS = {
    **ALONE,
    **_pairs(
        ('Ring-AllReduce', 'DDP', 'digits', 1.8),
        ('Ring-AllReduce', 'Horovod', 'digits', 1.8),
        ('Synchronous-SGD', 'DDP', 'digits', 1.0),
        ('Local-SGD', 'local SGD in PyTorch', 'digits', 1.5),
        ('Ring-AllReduce', 'DDP', 'mnist', 1.5),
        ('Ring-AllReduce', 'Horovod', 'mnist', 1.5),
        ('Ring-AllReduce', 'MultiWorkerMirroredStrategy', 'mnist', None),
        ('Synchronous-SGD', 'DDP', 'mnist', 0.95),
        ('HogWild', 'ParameterServerStrategy', 'mnist', None)),
    **_distant_pairs(
        'DDP', 1.0,
        (Network(1, 1), 'digits', 2),
        *((Network(gigabits, milliseconds), 'mnist', 2)
          for gigabits in (1, 10) for milliseconds in (None, 1, 10)),
        (Network(1, 1), 'mnist', 4), (Network(1, 1), 'mnist', 8),
        (Network(10, None), 'large', 2), (Network(1, None), 'large', 2),
        (Network(1, 1), 'large', 4),
        (Network(1, 1), 'resnet', 2), (Network(1, 1), 'resnet', 4))}


def steps_of(pair):
    """Returns how many steps each worker makes, in either program."""
    steps = MODELS[pair.model].distant_steps if pair.network else MODELS[pair.model].steps
    return steps * (WINDOWS if Example(pair.folder).window > 1 else 1)


def ours(pair, network):
    """Runs the example of a pair; returns how many steps a second each of its workers makes.

    The network is `hosts.Hosts`, or None for this machine.
    """
    example, env = Example(pair.folder), {'PYTHON': network.python()} if network else {}
    with tempfile.TemporaryDirectory() as notes:
        Run(pair.folder, *MODELS[pair.model].flags, '--num_threads=1',
            '--log_every_n_steps=100000', f'--notes_dir={notes}',
            *example.arguments(pair.workers, example.window, pair.workers * steps_of(pair)),
            WORKERS=str(pair.workers), CUDA_VISIBLE_DEVICES='', **env)
        return rate(notes_in(notes)) * example.window / pair.workers


def theirs(pair, interpreter, network):
    """Runs the peer of a pair, as `ours`."""
    steps = steps_of(pair)
    return peers.steps_per_second(pair.peer, interpreter, f'--model={pair.model}',
                                  f'--workers={pair.workers}', f'--steps={steps}',
                                  f'--warm_up={min(WARM_UP, steps)}', network=network)


@contextlib.contextmanager
def hosts_of(pair):
    """Makes the hosts of a pair's tasks, and a ps beside the workers; yields None without any."""
    if not pair.network:
        yield None
        return
    gigabits, milliseconds = pair.network
    with tempfile.TemporaryDirectory() as directory, hosts.Hosts(
            pathlib.Path(directory), ['ps-0', *(f'worker-{i}' for i in range(pair.workers))],
            round_trip=milliseconds and milliseconds / 1000, gigabits=gigabits) as network:
        yield network


def measure(pairs, repeats):
    """Runs pairs, a dict, in `repeats` rounds; says in a line which of them cannot be run here.

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
    no_hosts = any(pair.network for pair in pairs.values()) and hosts.missing()
    if no_hosts:
        print(f'left out, as there are no hosts: {no_hosts}', file=sys.stderr)
    figures = collections.defaultdict(list)
    for repeat in range(repeats):
        for name, pair in pairs.items():
            if pair.peer in found and not (pair.network and no_hosts):
                print(f'{repeat + 1} of {repeats}: {name}', file=sys.stderr, flush=True)
                with hosts_of(pair) as network:
                    figures[name].append((ours(pair, network),
                                          theirs(pair, found[pair.peer], network)))
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
        found.append(dict(zip(COLUMNS, [name, readmes.rounded(own), readmes.rounded(other), ratio,
                                        f'{min(ratios):.2f} to {max(ratios):.2f}', word])))
    return found
